/* An output of any length in bounded memory: its first bytes, and its last ones in a ring that grows as needed.
 *
 *   0 ......... head_cap ......... (dropped) ......... total - held ......... total
 *   `-- head --'                                       `-------- ring -------'
 */
#include "guest.h"

#include <stdlib.h>
#include <string.h>

void kept_init(struct kept *kept, size_t max)
{
    *kept = (struct kept){.max = max, .head_cap = max / 2};
    kept->ring_max = max - kept->head_cap > RING_MIN ? max - kept->head_cap : RING_MIN;
}

void kept_free(struct kept *kept)
{
    free(kept->head);
    free(kept->ring);
    kept->head = kept->ring = NULL;
    kept->ring_cap = 0;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static int64_t ring_start(const struct kept *kept)
{
    int64_t start = kept->total - (int64_t)kept->ring_cap;
    return start > (int64_t)kept->head_cap ? start : (int64_t)kept->head_cap;
}

/* Moves bytes between the ring and plain memory; an offset has its place modulo the size. */
static void ring_move(char *ring, size_t cap, int64_t offset, char *plain, size_t len, bool is_into)
{
    while (len) {
        size_t place = offset % cap, piece = least(len, cap - place);
        if (is_into)
            memcpy(ring + place, plain, piece);
        else
            memcpy(plain, ring + place, piece);
        plain += piece, offset += piece, len -= piece;
    }
}

static void ring_grow(struct kept *kept, size_t wanted)
{
    size_t cap = kept->ring_cap ? kept->ring_cap : 4096;
    while (cap < wanted)
        cap *= 2;
    cap = least(cap, kept->ring_max);
    int64_t start = ring_start(kept);
    size_t held = kept->total > start ? kept->total - start : 0;
    char *ring = must_alloc(NULL, cap);
    for (size_t done = 0; done < held;) {
        int64_t offset = start + done;
        size_t place = offset % kept->ring_cap, piece = least(held - done, kept->ring_cap - place);
        ring_move(ring, cap, offset, kept->ring + place, piece, true);
        done += piece;
    }
    free(kept->ring);
    kept->ring = ring;
    kept->ring_cap = cap;
}

void kept_add(struct kept *kept, const char *data, size_t len)
{
    if (kept->total < (int64_t)kept->head_cap) {
        size_t piece = least(len, kept->head_cap - kept->total);
        kept->head = must_alloc(kept->head, kept->total + piece);
        memcpy(kept->head + kept->total, data, piece);
        kept->total += piece, data += piece, len -= piece;
    }
    if (!len)
        return;
    size_t wanted = kept->total - kept->head_cap + len;
    if (wanted > kept->ring_cap && kept->ring_cap < kept->ring_max)
        ring_grow(kept, wanted);
    if (len > kept->ring_cap) {
        kept->total += len - kept->ring_cap;
        data += len - kept->ring_cap;
        len = kept->ring_cap;
    }
    ring_move(kept->ring, kept->ring_cap, kept->total, (char *)data, len, true);
    kept->total += len;
}

int64_t kept_next(const struct kept *kept, int64_t offset)
{
    if (offset < (int64_t)kept->head_cap || offset >= ring_start(kept))
        return offset;
    return ring_start(kept);
}

size_t kept_copy(const struct kept *kept, int64_t offset, char *to, size_t len)
{
    if (offset >= kept->total || kept_next(kept, offset) != offset)
        return 0;
    if (offset < (int64_t)kept->head_cap) {
        int64_t end = kept->total < (int64_t)kept->head_cap ? kept->total : (int64_t)kept->head_cap;
        len = least(len, end - offset);
        memcpy(to, kept->head + offset, len);
    } else {
        len = least(len, kept->total - offset);
        ring_move(kept->ring, kept->ring_cap, offset, to, len, false);
    }
    return len;
}

size_t kept_size(const struct kept *kept)
{
    size_t head = kept->total < (int64_t)kept->head_cap ? (size_t)kept->total : kept->head_cap;
    return head + kept->ring_cap;
}

size_t kept_len(const struct kept *kept)
{
    return kept->total < (int64_t)kept->max ? (size_t)kept->total : kept->max;
}

/* The shown part is the head and then as many of the last bytes as are left to show. */
size_t kept_show(const struct kept *kept, size_t from, char *to, size_t len)
{
    size_t shown = kept_len(kept), done = 0;
    while (done < len && from + done < shown) {
        size_t place = from + done;
        bool is_head = place < kept->head_cap;
        int64_t offset = is_head ? (int64_t)place : kept->total - (int64_t)(shown - place);
        size_t end = is_head ? least(shown, kept->head_cap) : shown;
        size_t piece = kept_copy(kept, offset, to + done, least(len - done, end - place));
        if (!piece)
            break;
        done += piece;
    }
    return done;
}
