/* Headers of frames: flat JSON objects. Strings are bytes: names of files need not be UTF-8. */
#include "guest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VALUES_MAX = 65536 };

struct parser {
    char *at, *end;
    struct header *header;
};

static void skip_space(struct parser *parser)
{
    while (parser->at < parser->end && strchr(" \t\r\n", *parser->at) && *parser->at)
        parser->at++;
}

static bool take(struct parser *parser, char wanted)
{
    skip_space(parser);
    if (parser->at >= parser->end || *parser->at != wanted)
        return false;
    parser->at++;
    return true;
}

static struct value *new_value(struct header *header)
{
    if (header->num_values == VALUES_MAX)
        return NULL;
    if (header->num_values == header->room) {
        header->room = header->room ? 2 * header->room : 32;
        header->values = must_alloc(header->values, header->room * sizeof *header->values);
    }
    struct value *value = &header->values[header->num_values++];
    *value = (struct value){.kind = KIND_NULL};
    return value;
}

static int hex4(const char *at)
{
    int code = 0;
    for (int i = 0; i < 4; i++) {
        char c = at[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (digit < 0)
            return -1;
        code = 16 * code + digit;
    }
    return code;
}

/* One \uXXXX; the host escapes control characters alone, so pairs of surrogates are refused, and so is NUL. */
static char *put_code(char *to, int code)
{
    if (code <= 0 || (code >= 0xd800 && code < 0xe000))
        return NULL;
    if (code < 0x80) {
        *to++ = code;
    } else if (code < 0x800) {
        *to++ = 0xc0 | code >> 6;
        *to++ = 0x80 | (code & 63);
    } else {
        *to++ = 0xe0 | code >> 12;
        *to++ = 0x80 | (code >> 6 & 63);
        *to++ = 0x80 | (code & 63);
    }
    return to;
}

/* Decodes in place: an escape is longer than what it stands for. The end mark overwrites the closing quote at latest. */
static const char *take_string(struct parser *parser)
{
    if (!take(parser, '"'))
        return NULL;
    char *start = parser->at, *to = start;
    while (parser->at < parser->end) {
        unsigned char c = *parser->at++;
        if (c == '"') {
            *to = 0;
            return start;
        }
        if (c < 0x20)
            return NULL;
        if (c != '\\') {
            *to++ = c;
            continue;
        }
        if (parser->at >= parser->end)
            return NULL;
        c = *parser->at++;
        if (c == 'u') {
            if (parser->end - parser->at < 4 || !(to = put_code(to, hex4(parser->at))))
                return NULL;
            parser->at += 4;
            continue;
        }
        const char *from = "\"\\/bfnrt", *found = c ? strchr(from, c) : NULL;
        if (!found)
            return NULL;
        *to++ = "\"\\/\b\f\n\r\t"[found - from];
    }
    return NULL;
}

static bool take_word(struct parser *parser, const char *word)
{
    size_t len = strlen(word);
    if ((size_t)(parser->end - parser->at) < len || memcmp(parser->at, word, len))
        return false;
    parser->at += len;
    return true;
}

static bool take_number(struct parser *parser, int64_t *number)
{
    bool is_negative = take_word(parser, "-");
    uint64_t sum = 0;
    int digits = 0;
    for (; parser->at < parser->end && *parser->at >= '0' && *parser->at <= '9'; parser->at++) {
        if (++digits > 19) /* which fit; a time in nanoseconds has that many */
            return false;
        sum = 10 * sum + (*parser->at - '0');
    }
    if (sum > INT64_MAX)
        return false;
    *number = is_negative ? -(int64_t)sum : (int64_t)sum;
    return digits > 0;
}

static bool take_scalar(struct parser *parser, struct value *value)
{
    skip_space(parser);
    if (parser->at >= parser->end)
        return false;
    if (*parser->at == '"') {
        value->kind = KIND_TEXT;
        return (value->text = take_string(parser)) != NULL;
    }
    if (take_word(parser, "null"))
        return true;
    value->kind = KIND_NUMBER;
    if (take_word(parser, "true")) {
        value->number = 1;
        return true;
    }
    return take_word(parser, "false") || take_number(parser, &value->number);
}

static bool take_list(struct parser *parser, int place)
{
    struct header *header = parser->header;
    header->values[place].kind = KIND_LIST;
    if (take(parser, ']'))
        return true;
    do {
        struct value *item = new_value(header);
        if (!item || !take_scalar(parser, item))
            return false;
        header->values[place].number++;
    } while (take(parser, ','));
    return take(parser, ']');
}

bool header_parse(struct header *header, char *text, size_t len)
{
    struct parser parser = {.at = text, .end = text + len, .header = header};
    *header = (struct header){0};
    if (!take(&parser, '{'))
        return false;
    if (take(&parser, '}'))
        return true;
    do {
        const char *key = take_string(&parser);
        if (!key || !take(&parser, ':'))
            return false;
        struct value *value = new_value(header);
        if (!value)
            return false;
        value->key = key;
        if (take(&parser, '[') ? !take_list(&parser, header->num_values - 1) : !take_scalar(&parser, value))
            return false;
    } while (take(&parser, ','));
    return take(&parser, '}');
}

void header_free(struct header *header)
{
    free(header->values);
    *header = (struct header){0};
}

static const struct value *find(const struct header *header, const char *key, enum kind kind)
{
    for (int i = 0; i < header->num_values; i++) {
        const struct value *value = &header->values[i];
        if (value->key && value->kind == kind && !strcmp(value->key, key))
            return value;
    }
    return NULL;
}

const char *header_text(const struct header *header, const char *key, const char *otherwise)
{
    const struct value *value = find(header, key, KIND_TEXT);
    return value ? value->text : otherwise;
}

int64_t header_number(const struct header *header, const char *key, int64_t otherwise)
{
    const struct value *value = find(header, key, KIND_NUMBER);
    return value ? value->number : otherwise;
}

const struct value *header_list(const struct header *header, const char *key, int *num_items)
{
    const struct value *value = find(header, key, KIND_LIST);
    *num_items = value ? value->number : 0;
    return value ? value + 1 : NULL;
}

static void put_key(struct bytes *out, const char *key)
{
    if (out->data[out->len - 1] != '{')
        bytes_add(out, ",", 1);
    bytes_add(out, "\"", 1);
    bytes_add(out, key, strlen(key));
    bytes_add(out, "\":", 2);
}

void json_open(struct bytes *out)
{
    bytes_add(out, "{", 1);
}

void json_close(struct bytes *out)
{
    bytes_add(out, "}", 1);
}

void json_text(struct bytes *out, const char *key, const char *text)
{
    put_key(out, key);
    bytes_add(out, "\"", 1);
    for (; *text; text++) {
        unsigned char c = *text;
        char escaped[8];
        if (c < 0x20 || c == '"' || c == '\\')
            bytes_add(out, escaped, snprintf(escaped, sizeof escaped, "\\u%04x", c));
        else
            bytes_add(out, text, 1);
    }
    bytes_add(out, "\"", 1);
}

void json_number(struct bytes *out, const char *key, int64_t number)
{
    char digits[24];
    put_key(out, key);
    bytes_add(out, digits, snprintf(digits, sizeof digits, "%lld", (long long)number));
}
