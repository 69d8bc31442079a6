/* Bytes, and frames among them. What is no frame is skipped to the next magic: a serial line may carry noise. */
#include "guest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PREFIX = 20 };
static const char magic[4] = {'B', 'N', 'T', '1'};

void *must_alloc(void *old, size_t size)
{
    void *memory = realloc(old, size ? size : 1);
    if (!memory)
        abort();
    return memory;
}

char *must_copy(const char *text)
{
    size_t size = strlen(text) + 1;
    return memcpy(must_alloc(NULL, size), text, size);
}

/* Makes room behind the bytes for so many more. */
static void reserve(struct bytes *bytes, size_t more)
{
    size_t dropped = bytes->data - bytes->base;
    if (dropped + bytes->len + more <= bytes->cap)
        return;
    if (bytes->len + more <= bytes->cap / 2) {
        memmove(bytes->base, bytes->data, bytes->len);
    } else {
        size_t cap = 2 * (bytes->len + more) + 256;
        char *base = must_alloc(NULL, cap);
        if (bytes->len)
            memcpy(base, bytes->data, bytes->len);
        free(bytes->base);
        bytes->base = base;
        bytes->cap = cap;
    }
    bytes->data = bytes->base;
}

void bytes_add(struct bytes *bytes, const void *data, size_t len)
{
    if (!len)
        return;
    reserve(bytes, len);
    memcpy(bytes->data + bytes->len, data, len);
    bytes->len += len;
}

void bytes_drop(struct bytes *bytes, size_t len)
{
    bytes->len -= len;
    bytes->data += len;
    if (!bytes->len)
        bytes_free(bytes); /* a burst should not stay with us for ever */
}

void bytes_free(struct bytes *bytes)
{
    free(bytes->base);
    *bytes = (struct bytes){0};
}

static void put32(char *to, uint32_t number)
{
    for (int i = 0; i < 4; i++)
        to[i] = number >> 8 * i;
}

static uint32_t get32(const char *from)
{
    const unsigned char *bytes = (const unsigned char *)from;
    return bytes[0] | bytes[1] << 8 | bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

/* tables[k] holds each byte's remainder with k zeros behind it. */
static void fill_tables(uint32_t tables[4][256])
{
    for (uint32_t i = 0; i < 256; i++) {
        tables[0][i] = i;
        for (int bit = 0; bit < 8; bit++)
            tables[0][i] = tables[0][i] >> 1 ^ (tables[0][i] & 1 ? 0xedb88320 : 0);
    }
    for (int k = 1; k < 4; k++)
        for (int i = 0; i < 256; i++)
            tables[k][i] = tables[k - 1][i] >> 8 ^ tables[0][tables[k - 1][i] & 255];
}

/* As zlib's, four bytes a step. */
uint32_t crc32_of(uint32_t crc, const void *data, size_t len)
{
    static uint32_t tables[4][256];
    const char *bytes = data;
    if (!tables[0][1])
        fill_tables(tables);
    crc = ~crc;
    for (; len >= 4; bytes += 4, len -= 4) {
        crc ^= get32(bytes);
        crc = tables[3][crc & 255] ^ tables[2][crc >> 8 & 255] ^ tables[1][crc >> 16 & 255] ^ tables[0][crc >> 24];
    }
    for (; len; bytes++, len--)
        crc = crc >> 8 ^ tables[0][(crc ^ *bytes) & 255];
    return ~crc;
}

void frame_add(struct bytes *out, uint32_t key, const struct bytes *header, const void *body, size_t body_len)
{
    char prefix[PREFIX];
    memcpy(prefix, magic, sizeof magic);
    put32(prefix + 4, header->len);
    put32(prefix + 8, body_len);
    put32(prefix + 12, crc32_of(0, prefix, 12));
    put32(prefix + 16, crc32_of(crc32_of(key, header->data, header->len), body, body_len));
    bytes_add(out, prefix, PREFIX);
    bytes_add(out, header->data, header->len);
    bytes_add(out, body, body_len);
}

/* Drops what cannot begin a frame. */
static void skip_noise(struct bytes *in, bool *is_noisy)
{
    size_t from = 0;
    while (from < in->len) {
        char *found = memchr(in->data + from, magic[0], in->len - from);
        if (!found) {
            *is_noisy = in->len > 0;
            bytes_drop(in, in->len);
            return;
        }
        from = found - in->data;
        size_t seen = in->len - from < sizeof magic ? in->len - from : sizeof magic;
        if (!memcmp(found, magic, seen))
            break;
        from++;
    }
    if (from) {
        *is_noisy = true;
        bytes_drop(in, from);
    }
}

/* A frame is taken with the key of its session, or with 0, which only a greeting has. */
size_t frame_find(struct bytes *in, uint32_t key, struct frame *frame, bool *is_noisy)
{
    for (size_t bad = 0;; bytes_drop(in, bad), *is_noisy = true) {
        skip_noise(in, is_noisy);
        if (in->len < PREFIX)
            return 0;
        size_t header_len = get32(in->data + 4), body_len = get32(in->data + 8);
        bad = 1;
        if (get32(in->data + 12) != crc32_of(0, in->data, 12) || header_len > HEADER_MAX || body_len > BODY_MAX)
            continue;
        size_t size = PREFIX + header_len + body_len;
        if (in->len < size)
            return 0;
        bad = size; /* its inside is not searched: a file may well look like a frame */
        uint32_t crc = get32(in->data + 16);
        bool has_key = crc == crc32_of(key, in->data + PREFIX, header_len + body_len);
        if (!has_key && crc != crc32_of(0, in->data + PREFIX, header_len + body_len))
            continue;
        *frame = (struct frame){in->data + PREFIX, header_len, in->data + PREFIX + header_len, body_len, has_key};
        return size;
    }
}
