/* How init answers: frames whose header has the number of the question. */
#ifndef CALLS_H
#define CALLS_H

#include "guest.h"

enum { ANSWER_MAX = 256 << 10, FED_MAX = 256 << 10 };

struct bytes begin_answer(int64_t id);
void send_frame(struct init *init, struct bytes *header, const void *body, size_t len); /* closes and frees the header */
void put_end(struct bytes *header, const struct job *job);
int64_t clamp(int64_t number, int64_t low, int64_t high);

#endif
