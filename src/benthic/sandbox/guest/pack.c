/* Packs a file, or a folder with all below, as a tar archive to stdout. Links stay links and are never followed. */
#define _GNU_SOURCE
#include "guest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 512, NAME_FIELD = 100, DEPTH_MAX = 200 };

struct packing {
    int64_t bytes_left, files_left;
};

/* Octal digits that fill the field but for the NUL after them. */
static void put_number(char *field, size_t size, int64_t number)
{
    field[size - 1] = 0;
    for (size_t i = size - 1; i-- > 0; number >>= 3)
        field[i] = '0' + (number < 0 ? 0 : number & 7);
}

static void put_padding(int64_t size)
{
    static const char zeros[BLOCK];
    put_all(1, zeros, (BLOCK - size % BLOCK) % BLOCK);
}

static void put_header(const char *name, const char *target, char type, int64_t size, const struct stat *status)
{
    char block[BLOCK] = {0};
    int64_t sum = 0;
    memcpy(block, name, strnlen(name, NAME_FIELD));
    put_number(block + 100, 8, status->st_mode & 0777);
    put_number(block + 108, 8, 0);
    put_number(block + 116, 8, 0);
    put_number(block + 124, 12, size);
    put_number(block + 136, 12, status->st_mtim.tv_sec);
    memset(block + 148, ' ', 8);
    block[156] = type;
    memcpy(block + 157, target, strnlen(target, NAME_FIELD));
    memcpy(block + 257, "ustar\00000", 8);
    for (int i = 0; i < BLOCK; i++)
        sum += (unsigned char)block[i];
    put_number(block + 148, 7, sum);
    put_all(1, block, BLOCK);
}

/* A record holds its own length, digits included. */
static void add_record(struct bytes *records, const char *key, const char *value)
{
    size_t rest = strlen(key) + strlen(value) + 3, len = rest + 1;
    char digits[24];
    while (snprintf(digits, sizeof digits, "%zu", len) + rest != len)
        len = snprintf(digits, sizeof digits, "%zu", len) + rest;
    bytes_add(records, digits, strlen(digits));
    bytes_add(records, " ", 1);
    bytes_add(records, key, strlen(key));
    bytes_add(records, "=", 1);
    bytes_add(records, value, strlen(value));
    bytes_add(records, "\n", 1);
}

static void put_entry(const char *name, const char *target, char type, int64_t size, const struct stat *status)
{
    struct bytes records = {0};
    if (strlen(name) > NAME_FIELD)
        add_record(&records, "path", name);
    if (strlen(target) > NAME_FIELD)
        add_record(&records, "linkpath", target);
    if (records.len) {
        put_header("pax", "", 'x', records.len, status);
        put_all(1, records.data, records.len);
        put_padding(records.len);
    }
    put_header(name, target, type, size, status);
    bytes_free(&records);
}

static void pack_file(struct packing *packing, int parent, const char *last, const char *name)
{
    static char piece[PIECE_MAX];
    struct stat status;
    int fd = openat(parent, last, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return;
    if (fd < 0 || fstat(fd, &status))
        file_failed(errno, "cannot read '%s'", name);
    if (S_ISREG(status.st_mode)) {
        if (status.st_size > packing->bytes_left)
            file_failed(EFBIG, "there is more than was allowed");
        packing->bytes_left -= status.st_size;
        put_entry(name, "", '0', status.st_size, &status);
        int64_t left = status.st_size;
        for (size_t len; left; left -= len) {
            len = get_some(fd, piece, left < PIECE_MAX ? left : PIECE_MAX);
            if (!len) { /* it has shrunk; the header has promised more */
                len = left < PIECE_MAX ? left : PIECE_MAX;
                memset(piece, 0, len);
            }
            put_all(1, piece, len);
        }
        put_padding(status.st_size);
    }
    close(fd);
}

static void pack_link(int parent, const char *last, const char *name, const struct stat *status)
{
    char target[4096];
    ssize_t len = readlinkat(parent, last, target, sizeof target - 1);
    if (len < 0)
        file_failed(errno, "cannot read the link '%s'", name);
    target[len] = 0;
    put_entry(name, target, '2', 0, status);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Sorted, so that equal folders make equal archives. */
static char **list_names(int folder, const char *name, size_t *count)
{
    char **names = NULL;
    DIR *stream = fdopendir(dup(folder));
    if (!stream)
        file_failed(errno, "cannot list the folder '%s'", name);
    *count = 0;
    for (struct dirent *entry; (entry = readdir(stream));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        names = must_alloc(names, (*count + 1) * sizeof *names);
        names[(*count)++] = must_copy(entry->d_name);
    }
    closedir(stream);
    if (*count)
        qsort(names, *count, sizeof *names, by_name);
    return names;
}

static void pack_any(struct packing *packing, int parent, const char *last, const char *name, int depth);

static void pack_folder(struct packing *packing, int parent, const char *last, const char *name, int depth)
{
    struct stat status;
    char *inner = NULL;
    int fd = open_folder(parent, last);
    if (fd < 0 || fstat(fd, &status))
        file_failed(errno, "cannot open the folder '%s'", name);
    if (depth == DEPTH_MAX)
        file_failed(ELOOP, "more than %d folders deep", DEPTH_MAX);
    check(asprintf(&inner, "%s/", name) > 0, "no memory");
    put_entry(inner, "", '5', 0, &status);
    free(inner);
    size_t count;
    char **names = list_names(fd, name, &count);
    for (size_t i = 0; i < count; i++) {
        check(asprintf(&inner, "%s/%s", name, names[i]) > 0, "no memory");
        pack_any(packing, fd, names[i], inner, depth + 1);
        free(inner);
        free(names[i]);
    }
    free(names);
    close(fd);
}

static void pack_any(struct packing *packing, int parent, const char *last, const char *name, int depth)
{
    struct stat status;
    if (fstatat(parent, last, &status, AT_SYMLINK_NOFOLLOW)) {
        if (errno == ENOENT && depth)
            return; /* gone meanwhile */
        file_failed(errno, "cannot look at '%s'", name);
    }
    if (packing->files_left-- <= 0)
        file_failed(EFBIG, "there are more files than were allowed");
    if (S_ISDIR(status.st_mode))
        pack_folder(packing, parent, last, name, depth);
    else if (S_ISREG(status.st_mode))
        pack_file(packing, parent, last, name);
    else if (S_ISLNK(status.st_mode))
        pack_link(parent, last, name, &status);
}

static char *last_part(const char *path)
{
    char *copy = must_copy(path);
    size_t len = strlen(copy);
    while (len > 1 && copy[len - 1] == '/')
        copy[--len] = 0;
    char *name = strrchr(copy, '/') + 1;
    return must_copy(*name ? name : "root");
}

/* pack PATH MAX_BYTES MAX_FILES */
void call_pack(char **arguments)
{
    static const char end[2 * BLOCK];
    struct packing packing = {strtoll(arguments[2], NULL, 10), strtoll(arguments[3], NULL, 10)};
    pack_any(&packing, AT_FDCWD, arguments[1], last_part(arguments[1]), 0);
    put_all(1, end, sizeof end);
}
