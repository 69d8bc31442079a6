/* File calls: each is a child of init that has become the user, does one thing, and ends.
 *
 * Content comes by stdin and goes by stdout; what cannot be done goes to init as a failure with its errno. Paths are
 * resolved here, inside, with the user's rights: whatever a link points at, it is the sandbox's own.
 */
#define _GNU_SOURCE
#include "guest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

/* Of this child. */
static int failure_channel = -1;
int accepted = -1;
static char *half_made; /* a file that must not stay if the call fails */

static void remove_half_made(int signal)
{
    if (half_made)
        unlink(half_made);
    if (signal)
        _exit(1);
}

void file_failed(int error, const char *format, ...)
{
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    remove_half_made(0);
    send_report(failure_channel, CHILD_FAILED, text, error);
    _exit(1);
}

void check(bool is_good, const char *what)
{
    if (!is_good)
        file_failed(errno, "%s", what);
}

void put_all(int fd, const void *data, size_t len)
{
    for (const char *at = data; len;) {
        ssize_t done = write(fd, at, len);
        if (done < 0 && errno == EINTR)
            continue;
        check(done >= 0, "cannot write");
        at += done, len -= done;
    }
}

size_t get_some(int fd, void *data, size_t len)
{
    ssize_t done;
    do
        done = read(fd, data, len);
    while (done < 0 && errno == EINTR);
    check(done >= 0, "cannot read");
    return done;
}

/* Makes every folder above the last part of a path. */
void make_parents(const char *path, mode_t mode)
{
    char *copy = must_copy(path);
    for (char *slash = copy + (*copy == '/'); (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = 0;
        if (mkdir(copy, mode) && errno != EEXIST)
            file_failed(errno, "cannot make the folder '%s'", copy);
    }
    free(copy);
}

/* Opens a regular file. FIFOs would block, devices may do anything: both are refused before they are read. */
static int open_regular(const char *path, int flags, mode_t mode)
{
    struct stat status;
    int fd = open(path, flags | O_NONBLOCK | O_CLOEXEC | O_NOCTTY, mode);
    check(fd >= 0, errno == ENXIO ? "not a regular file" : "cannot open");
    check(!fstat(fd, &status), "cannot look at the file");
    if (S_ISDIR(status.st_mode))
        file_failed(EISDIR, "cannot open");
    if (!S_ISREG(status.st_mode))
        file_failed(EINVAL, "not a regular file");
    return fd;
}

static int64_t number(char **arguments, int place)
{
    return strtoll(arguments[place], NULL, 10);
}

/* read PATH OFFSET LIMIT: LIMIT bytes at most, -1 for all. */
static void call_read(char **arguments)
{
    static char piece[PIECE_MAX];
    int64_t left = number(arguments, 3);
    int fd = open_regular(arguments[1], O_RDONLY, 0);
    off_t offset = number(arguments, 2);
    if (offset)
        check(lseek(fd, offset, SEEK_SET) >= 0, "cannot go to the offset");
    while (left) {
        size_t len = get_some(fd, piece, left > 0 && left < PIECE_MAX ? left : PIECE_MAX);
        if (!len)
            return;
        put_all(1, piece, len);
        left -= left > 0 ? (int64_t)len : 0;
    }
}

static void copy_input(int fd, int64_t size)
{
    static char piece[PIECE_MAX];
    for (size_t len; (len = get_some(0, piece, sizeof piece)); size -= len)
        put_all(fd, piece, len);
    if (size) /* the client went away in the middle */
        file_failed(EPIPE, "the content is not whole");
}

/* write PATH MODE SIZE replace|atomic|OFFSET: MODE -1 keeps what is there. */
static void call_write(char **arguments)
{
    const char *how = arguments[4];
    int64_t mode = number(arguments, 2), size = number(arguments, 3);
    char *target = realpath(arguments[1], NULL); /* through a link, and the link stays */
    struct stat status;
    if (!target)
        make_parents(target = must_copy(arguments[1]), 0755);
    bool exists = !stat(target, &status);
    if (exists && !S_ISREG(status.st_mode))
        file_failed(S_ISDIR(status.st_mode) ? EISDIR : EINVAL, "not a regular file");
    if (mode < 0)
        mode = exists ? status.st_mode & 0777 : 0644;
    if (strcmp(how, "atomic")) {
        bool is_partial = strcmp(how, "replace");
        int fd = open_regular(target, O_WRONLY | O_CREAT | (is_partial ? 0 : O_TRUNC), mode);
        if (is_partial)
            check(lseek(fd, number(arguments, 4), SEEK_SET) >= 0, "cannot go to the offset");
        copy_input(fd, size);
        check(!fchmod(fd, mode & 0777), "cannot set the mode");
        return;
    }
    char *fresh = NULL, *name = strrchr(target, '/');
    check(asprintf(&fresh, "%.*s/.benthic-XXXXXX", (int)(name - target), target) > 0, "no memory");
    int fd = mkostemp(fresh, O_CLOEXEC);
    check(fd >= 0, "cannot make a file");
    half_made = fresh;
    copy_input(fd, size);
    check(!fchmod(fd, mode & 0777), "cannot set the mode");
    check(!rename(fresh, target), "cannot replace the file");
}

static const char *type_name(mode_t mode)
{
    return S_ISREG(mode) ? "file" : S_ISDIR(mode) ? "folder" : S_ISLNK(mode) ? "link" : "other";
}

/* One JSON line. */
static void print_entry(const char *path, const char *full)
{
    struct stat status;
    struct bytes line = {0};
    char target[4096];
    if (lstat(full, &status)) {
        if (errno == ENOENT && path != full)
            return; /* gone since the folder was read */
        file_failed(errno, "cannot look at it");
    }
    json_open(&line);
    json_text(&line, "name", path);
    json_text(&line, "type", type_name(status.st_mode));
    json_number(&line, "size", status.st_size);
    json_number(&line, "mode", status.st_mode & 07777);
    json_number(&line, "modified_ns", status.st_mtim.tv_sec * 1000000000LL + status.st_mtim.tv_nsec);
    ssize_t len = S_ISLNK(status.st_mode) ? readlink(full, target, sizeof target - 1) : -1;
    if (len >= 0) {
        target[len] = 0;
        json_text(&line, "target", target);
    }
    json_close(&line);
    bytes_add(&line, "\n", 1);
    put_all(1, line.data, line.len);
    bytes_free(&line);
}

static void call_stat(char **arguments)
{
    print_entry(arguments[1], arguments[1]);
}

/* list PATH MAX_ENTRIES */
static void call_list(char **arguments)
{
    int64_t left = number(arguments, 2);
    DIR *folder = opendir(arguments[1]);
    check(folder, "cannot open the folder");
    for (struct dirent *entry; (entry = readdir(folder));) {
        char *full = NULL;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        if (!left--)
            file_failed(E2BIG, "the folder has more entries than were allowed");
        check(asprintf(&full, "%s/%s", arguments[1], entry->d_name) > 0, "no memory");
        print_entry(entry->d_name, full);
        free(full);
    }
    closedir(folder);
}

int open_folder(int parent, const char *name)
{
    struct stat opened, named;
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -1;
    /* gVisor follows a link when it is asked for a folder. */
    if (!fstat(fd, &opened) && !fstatat(parent, name, &named, AT_SYMLINK_NOFOLLOW) && !S_ISLNK(named.st_mode) &&
        opened.st_dev == named.st_dev && opened.st_ino == named.st_ino)
        return fd;
    close(fd);
    errno = ELOOP;
    return -1;
}

/* Goes down by open folders: a link that replaces one meanwhile is never followed. */
static void remove_below(int parent, const char *name)
{
    int fd = open_folder(parent, name);
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    if (!folder)
        file_failed(errno, "cannot open the folder '%s'", name);
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        if (!unlinkat(fd, entry->d_name, 0) || errno == ENOENT)
            continue;
        if (errno != EISDIR && errno != EPERM)
            file_failed(errno, "cannot remove '%s'", entry->d_name);
        remove_below(fd, entry->d_name);
        if (unlinkat(fd, entry->d_name, AT_REMOVEDIR))
            file_failed(errno, "cannot remove the folder '%s'", entry->d_name);
    }
    closedir(folder);
}

/* remove PATH IS_RECURSIVE */
static void call_remove(char **arguments)
{
    struct stat status;
    check(!lstat(arguments[1], &status), "cannot remove");
    if (!S_ISDIR(status.st_mode)) {
        check(!unlink(arguments[1]), "cannot remove");
        return;
    }
    if (number(arguments, 2))
        remove_below(AT_FDCWD, arguments[1]);
    check(!rmdir(arguments[1]), "cannot remove the folder");
}

/* make_folder PATH MODE */
static void call_make_folder(char **arguments)
{
    struct stat status;
    make_parents(arguments[1], 0755);
    if (!mkdir(arguments[1], number(arguments, 2) & 0777))
        return;
    int error = errno;
    if (error != EEXIST || stat(arguments[1], &status) || !S_ISDIR(status.st_mode))
        file_failed(error, "cannot make the folder");
}

static const struct {
    const char *name;
    void (*function)(char **arguments);
    int num_arguments;
} file_calls[] = {
    {"read", call_read, 3},     {"write", call_write, 4},   {"stat", call_stat, 1},
    {"list", call_list, 2},     {"remove", call_remove, 2}, {"make_folder", call_make_folder, 2},
    {"pack", call_pack, 3},     {"unpack", call_unpack, 3}, {"connect", call_connect, 1},
    {"carry", call_carry, 0},
};

static int count_arguments(char **argv)
{
    int count = 0;
    while (argv[count])
        count++;
    return count - 1;
}

void file_call_main(const struct setup *setup, const struct program *program)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    prctl(PR_SET_NAME, "file-call", 0, 0, 0);
    for (int fd = 0; fd < 3; fd++)
        check(dup2(program->stdio[fd], fd) >= 0, "cannot set up stdin and stdout");
    close_other_fds(program->control, program->remote);
    accepted = program->remote;
    failure_channel = program->control;
    become_user(setup, program);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGTERM, remove_half_made);
    check(!chdir("/"), "cannot enter /");
    for (size_t i = 0; i < sizeof file_calls / sizeof *file_calls; i++) {
        if (strcmp(file_calls[i].name, program->argv[0]) || file_calls[i].num_arguments != count_arguments(program->argv))
            continue;
        file_calls[i].function(program->argv);
        _exit(0);
    }
    file_failed(ENOSYS, "no such file call");
    _exit(1);
}
