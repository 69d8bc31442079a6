/* What init sends when it is due: output to its readers, ends to those who wait, room for more input. */
#include "calls.h"

#include <stdlib.h>

static void answer_end(struct init *init, const struct job *job, int64_t id)
{
    struct bytes header = begin_answer(id);
    size_t lens[2] = {kept_len(&job->out[0].kept), kept_len(&job->out[1].kept)};
    size_t len = lens[0] + lens[1] <= ANSWER_MAX ? lens[0] + lens[1] : 0;
    char *body = must_alloc(NULL, len);
    if (len) {
        kept_show(&job->out[0].kept, 0, body, lens[0]);
        kept_show(&job->out[1].kept, 0, body + lens[0], lens[1]);
    }
    put_end(&header, job);
    json_number(&header, "stdout", lens[0]);
    json_number(&header, "stderr", lens[1]);
    json_number(&header, "stdout_total", job->out[0].kept.total);
    json_number(&header, "stderr_total", job->out[1].kept.total);
    json_number(&header, "cpu_us", job->report.cpu_us);
    json_number(&header, "peak_bytes", job->report.peak_bytes);
    json_number(&header, "written_bytes", job->report.written_bytes);
    json_number(&header, "duration_ms", job->duration_ms);
    if (job->report.text[0]) {
        json_text(&header, "failure", job->report.text);
        json_number(&header, "errno", job->report.error);
    }
    send_frame(init, &header, body, len);
    free(body);
}

/* True once the reader has been sent all. */
static bool send_output(struct init *init, struct job *job, int number)
{
    static char piece[PIECE_MAX];
    struct stream *stream = &job->out[number];
    while (init->out.len < QUEUE_HIGH) {
        stream->sent = kept_next(&stream->kept, stream->sent);
        int64_t may_send = stream->consumed + stream->window - stream->sent;
        if (stream->sent >= stream->kept.total)
            return true;
        /* Over a gap the window starts anew: the reader cannot consume what is no longer there. */
        if (may_send <= 0 && stream->consumed + stream->window < stream->sent)
            stream->consumed = stream->sent, may_send = stream->window;
        size_t len = kept_copy(&stream->kept, stream->sent, piece, clamp(may_send, 0, PIECE_MAX));
        if (!len)
            return false;
        struct bytes header = {0};
        json_open(&header);
        json_text(&header, "output", job->id);
        json_number(&header, "stream", number);
        json_number(&header, "offset", stream->sent);
        send_frame(init, &header, piece, len);
        stream->sent += len;
    }
    return false;
}

void call_answer_jobs(struct init *init)
{
    if (!init->is_greeted)
        return;
    if (init->is_noisy) { /* something was lost: the client should begin again */
        struct bytes header = {0};
        json_open(&header);
        json_number(&header, "noise", 1);
        send_frame(init, &header, NULL, 0);
        init->is_greeted = false;
        return;
    }
    for (struct job *job = init->jobs; job; job = job->next) {
        bool is_all_sent = true;
        for (int i = 0; i < 2 && job->is_followed; i++)
            is_all_sent &= send_output(init, job, i);
        if (job->feed_id && (job->unwritten.len <= FED_MAX || job->input < 0 || job->state == JOB_ENDED)) {
            struct bytes header = begin_answer(job->feed_id);
            json_number(&header, "is_closed", job->input < 0 && !job->input_ends);
            send_frame(init, &header, NULL, 0);
            job->feed_id = 0;
        }
        if (job->is_ending && init->now_ms >= job->give_up_ms)
            is_all_sent = true; /* it ran out of time, and so does its reader */
        while (job->num_waiting && job->state == JOB_ENDED && is_all_sent && init->out.len < QUEUE_HIGH)
            answer_end(init, job, job->waiting[--job->num_waiting]);
    }
}
