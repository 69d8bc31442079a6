/* Unpacks a tar archive (ustar, pax, GNU long names) from stdin into a folder.
 *
 * Every path is walked from the folder on, one open folder after the other and never through a link: an archive cannot
 * write beside its folder, and neither can a link that replaces a folder meanwhile.
 */
#define _GNU_SOURCE
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 512, LONG_NAME_MAX = 8192 };

struct entry {
    char type;
    char *path, *target;
    int64_t size, mode, modified_s;
};

struct archive {
    int folder;
    int64_t bytes_left, files_left;
    char *long_path, *long_target; /* for the next entry */
    int64_t long_size;             /* -1: none */
};

struct place {
    int folder;
    char *name; /* points into a path; NULL: the folder itself */
};

/* False at the end of the input. */
static bool get_block(char *block)
{
    size_t done = 0;
    for (size_t len; done < BLOCK && (len = get_some(0, block + done, BLOCK - done)); done += len)
        continue;
    if (done && done < BLOCK)
        file_failed(EINVAL, "the archive is cut off");
    return done == BLOCK;
}

static int64_t octal(const char *field, size_t len)
{
    int64_t sum = 0;
    size_t i = 0;
    while (i < len && field[i] == ' ')
        i++;
    for (; i < len && field[i] >= '0' && field[i] <= '7'; i++)
        sum = 8 * sum + field[i] - '0';
    if (i < len && field[i] && field[i] != ' ')
        file_failed(EINVAL, "a number in the archive is not octal");
    return sum;
}

static void check_sum(const char *block)
{
    int64_t sum = 0;
    for (int i = 0; i < BLOCK; i++)
        sum += i >= 148 && i < 156 ? ' ' : (unsigned char)block[i];
    if (sum != octal(block + 148, 8))
        file_failed(EINVAL, "this is no tar archive, or a damaged one");
}

static char *get_data(int64_t size)
{
    char block[BLOCK];
    if (size < 0 || size > LONG_NAME_MAX)
        file_failed(EINVAL, "an extended header of %lld bytes is too large", (long long)size);
    char *data = must_alloc(NULL, size + 1);
    for (int64_t done = 0; done < size; done += BLOCK) {
        if (!get_block(block))
            file_failed(EINVAL, "the archive is cut off");
        memcpy(data + done, block, size - done < BLOCK ? size - done : BLOCK);
    }
    data[size] = 0;
    return data;
}

static void replace(char **text, const char *with)
{
    free(*text);
    *text = with ? must_copy(with) : NULL;
}

/* Records as "LENGTH KEY=VALUE\n"; three of the keys matter. */
static void take_pax(struct archive *archive, char *data, int64_t size)
{
    for (char *at = data; at < data + size;) {
        char *space;
        int64_t len = strtoll(at, &space, 10);
        if (len <= space - at || len > data + size - at || *space != ' ' || at[len - 1] != '\n')
            file_failed(EINVAL, "an extended header of the archive is damaged");
        at[len - 1] = 0;
        char *key = space + 1, *value = strchr(key, '=');
        if (value) {
            *value++ = 0;
            if (!strcmp(key, "path"))
                replace(&archive->long_path, value);
            else if (!strcmp(key, "linkpath"))
                replace(&archive->long_target, value);
            else if (!strcmp(key, "size"))
                archive->long_size = strtoll(value, NULL, 10);
        }
        at += len;
    }
}

static void parse_entry(struct archive *archive, const char *block, struct entry *entry)
{
    char path[260];
    bool has_prefix = !memcmp(block + 257, "ustar\0", 6) && block[345];
    if (has_prefix)
        snprintf(path, sizeof path, "%.155s/%.100s", block + 345, block);
    else
        snprintf(path, sizeof path, "%.100s", block);
    char target[101];
    snprintf(target, sizeof target, "%.100s", block + 157);
    *entry = (struct entry){
        .type = block[156] ? block[156] : '0',
        .path = must_copy(archive->long_path ? archive->long_path : path),
        .target = must_copy(archive->long_target ? archive->long_target : target),
        .size = archive->long_size >= 0 ? archive->long_size : octal(block + 124, 12),
        .mode = octal(block + 100, 8) & 0777,
        .modified_s = octal(block + 136, 12),
    };
}

static int enter(int parent, const char *name, const char *path)
{
    if (mkdirat(parent, name, 0755) && errno != EEXIST)
        file_failed(errno, "cannot make a folder of '%s'", path);
    int fd = open_folder(parent, name);
    if (fd < 0)
        file_failed(errno, "a part of '%s' is no folder", path);
    return fd;
}

/* Walks to the folder of a path's last part; `scratch` is cut into the parts. */
static struct place walk(const struct archive *archive, const char *path, char *scratch)
{
    struct place place = {dup(archive->folder), NULL};
    if (*path == '/')
        file_failed(EPERM, "the path '%s' is absolute", path);
    char *rest = strcpy(scratch, path);
    for (char *part; (part = strsep(&rest, "/"));) {
        if (!*part || !strcmp(part, "."))
            continue;
        if (!strcmp(part, ".."))
            file_failed(EPERM, "the path '%s' leads out of the archive's folder", path);
        if (place.name) {
            int next = enter(place.folder, place.name, path);
            close(place.folder);
            place.folder = next;
        }
        place.name = part;
    }
    check(place.folder >= 0, "cannot open the folder");
    return place;
}

static void skip(int64_t size, int to)
{
    char block[BLOCK];
    for (; size > 0; size -= BLOCK) {
        if (!get_block(block))
            file_failed(EINVAL, "the archive is cut off");
        if (to >= 0)
            put_all(to, block, size < BLOCK ? size : BLOCK);
    }
}

static void make_file(const struct place *place, const struct entry *entry)
{
    int fd = openat(place->folder, place->name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        file_failed(errno, "cannot make '%s'", entry->path);
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = entry->modified_s}};
    skip(entry->size, fd);
    if (fchmod(fd, entry->mode) || futimens(fd, times))
        file_failed(errno, "cannot set the mode or time of '%s'", entry->path);
    close(fd);
}

static void make_folder(const struct place *place, const struct entry *entry)
{
    if (!place->name)
        return; /* the folder itself */
    int fd = enter(place->folder, place->name, entry->path);
    fchmod(fd, entry->mode | 0700); /* what belongs into it is yet to come */
    close(fd);
}

static void make_hard_link(const struct archive *archive, const struct place *place, const struct entry *entry)
{
    char *scratch = must_alloc(NULL, strlen(entry->target) + 1);
    struct place from = walk(archive, entry->target, scratch);
    if (!from.name || linkat(from.folder, from.name, place->folder, place->name, 0))
        file_failed(from.name ? errno : EINVAL, "cannot link '%s' to '%s'", entry->path, entry->target);
    close(from.folder);
    free(scratch);
}

static void make_entry(struct archive *archive, const struct entry *entry)
{
    char *scratch = must_alloc(NULL, strlen(entry->path) + 1);
    struct place place = walk(archive, entry->path, scratch);
    if (archive->files_left-- <= 0 || entry->size < 0 || entry->size > archive->bytes_left)
        file_failed(EFBIG, "the archive holds more than was allowed");
    bool has_data = entry->type == '0' || entry->type == '7';
    archive->bytes_left -= has_data ? entry->size : 0;
    if (entry->type != '5') {
        if (!place.name)
            file_failed(EINVAL, "the path '%s' names no file", entry->path);
        if (unlinkat(place.folder, place.name, 0) && errno != ENOENT)
            file_failed(errno, "cannot replace '%s'", entry->path);
    }
    if (has_data)
        make_file(&place, entry);
    else if (entry->type == '5')
        make_folder(&place, entry);
    else if (entry->type == '1')
        make_hard_link(archive, &place, entry);
    else if (entry->type != '2')
        file_failed(EPERM, "'%s' is neither a file, a folder nor a link", entry->path);
    else if (symlinkat(entry->target, place.folder, place.name))
        file_failed(errno, "cannot make the link '%s'", entry->path);
    close(place.folder);
    free(scratch);
}

static void take_entry(struct archive *archive, const char *block)
{
    struct entry entry;
    char type = block[156];
    check_sum(block);
    if (type == 'x' || type == 'g' || type == 'L' || type == 'K') {
        int64_t size = octal(block + 124, 12);
        char *data = get_data(size);
        if (type == 'x')
            take_pax(archive, data, size);
        else if (type != 'g')
            replace(type == 'L' ? &archive->long_path : &archive->long_target, data);
        free(data);
        return;
    }
    parse_entry(archive, block, &entry);
    make_entry(archive, &entry);
    free(entry.path);
    free(entry.target);
    replace(&archive->long_path, NULL);
    replace(&archive->long_target, NULL);
    archive->long_size = -1;
}

/* unpack FOLDER MAX_BYTES MAX_FILES */
void call_unpack(char **arguments)
{
    static const char zeros[BLOCK];
    char block[BLOCK];
    struct archive archive = {
        .bytes_left = strtoll(arguments[2], NULL, 10),
        .files_left = strtoll(arguments[3], NULL, 10),
        .long_size = -1,
    };
    make_parents(arguments[1], 0755);
    if (mkdir(arguments[1], 0755) && errno != EEXIST)
        file_failed(errno, "cannot make the folder");
    archive.folder = open(arguments[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    check(archive.folder >= 0, "cannot open the folder");
    bool is_over = false;
    while (!is_over) {
        if (!get_block(block))
            file_failed(EINVAL, "the archive has no end; it may be cut off");
        is_over = !memcmp(block, zeros, BLOCK);
        if (!is_over)
            take_entry(&archive, block);
    }
    while (get_block(block)) /* the second block of the end, and padding */
        continue;
}
