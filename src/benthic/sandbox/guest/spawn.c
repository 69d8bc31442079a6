/* From init's child to the user's program: it gives away all that init has, and then runs the program.
 *
 * The order matters. Limits need init's rights, the working folder is judged by the user's, and the filter may forbid
 * every call before it but the last.
 */
#define _GNU_SOURCE
#include "guest.h"
#include "linux_abi.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

extern char **environ;

void send_report(int control, int kind, const char *text, int error)
{
    struct report report = {.kind = kind, .error = error};
    snprintf(report.text, sizeof report.text, "%s", text);
    send(control, &report, sizeof report, MSG_NOSIGNAL);
}

static void fail(const struct program *program, const char *text)
{
    send_report(program->control, CHILD_FAILED, text, errno);
    _exit(errno == ENOENT ? 127 : 126);
}

static void close_range_of(unsigned first, unsigned last)
{
    if (first > last || !syscall(SYS_close_range, first, last, 0))
        return;
    DIR *open_ones = opendir("/proc/self/fd"); /* kernels before 5.9, gVisor */
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    for (unsigned fd = first; !open_ones && fd <= last && fd < limit.rlim_cur; fd++)
        close(fd);
    if (!open_ones)
        return;
    for (struct dirent *one; (one = readdir(open_ones));) {
        unsigned fd = atoi(one->d_name);
        if (fd >= first && fd <= last && fd != (unsigned)dirfd(open_ones))
            close(fd);
    }
    closedir(open_ones);
}

/* Closes everything from 3 on but these two, -1 for none. */
void close_other_fds(int first_kept, int second_kept)
{
    int low = first_kept < second_kept ? first_kept : second_kept;
    int high = first_kept < second_kept ? second_kept : first_kept;
    unsigned next = 3;
    if (low >= 3) {
        close_range_of(next, low - 1);
        next = low + 1;
    }
    if (high >= (int)next) {
        close_range_of(next, high - 1);
        next = high + 1;
    }
    close_range_of(next, ~0u);
}

/* By the kernel's own calls: the library keeps some signals to itself, and whoever started init may have ignored them. */
static void reset_signals(void)
{
    unsigned long plain[8] = {0}; /* larger than the kernel's record of a signal's handling, and all defaults */
    unsigned long none = 0;
    for (int number = 1; number <= 64; number++)
        syscall(SYS_rt_sigaction, number, plain, NULL, sizeof none);
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, sizeof none);
}

/* When memory runs out the kernel should end this, and not init. */
static void offer_to_oom_killer(void)
{
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (write(fd, "500", 3) < 0)
        errno = 0; /* no harm: only the choice of the victim is worse */
    close(fd);
}

static void set_rlimits(const struct setup *setup, const struct program *program)
{
    setrlimit(RLIMIT_NOFILE, &setup->files);
    for (int i = 0; i + 1 < setup->num_rlimits; i += 2) {
        rlim_t number = setup->rlimits[i + 1] < 0 ? RLIM_INFINITY : (rlim_t)setup->rlimits[i + 1];
        struct rlimit limit = {number, number};
        if (setrlimit(setup->rlimits[i], &limit))
            fail(program, "cannot set a resource limit");
    }
}

static void drop_capabilities(const struct program *program)
{
    struct cap_header header = {CAPABILITY_VERSION, 0};
    struct cap_data none[2] = {{0}};
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    if (syscall(SYS_capset, &header, none))
        fail(program, "cannot give up capabilities");
}

static void set_user(const struct setup *setup, const struct program *program)
{
    uid_t uid = program->is_root ? 0 : setup->uid;
    gid_t gid = program->is_root ? 0 : setup->gid;
    for (int capability = 0; capability < 64; capability++)
        prctl(PR_CAPBSET_DROP, capability, 0, 0, 0); /* without the right to, there is nothing to drop */
    if (setgroups(0, NULL) && getgroups(0, NULL) > 0)
        fail(program, "cannot leave init's groups");
    if ((getgid() != gid || getegid() != gid) && setresgid(gid, gid, gid))
        fail(program, "cannot change to the user's group");
    if ((getuid() != uid || geteuid() != uid) && setresuid(uid, uid, uid))
        fail(program, program->is_root ? "there is no root in this kind of sandbox" : "cannot change to the user");
}

void become_user(const struct setup *setup, const struct program *program)
{
    reset_signals();
    umask(022);
    offer_to_oom_killer();
    set_rlimits(setup, program);
    set_user(setup, program);
    drop_capabilities(program);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        fail(program, "cannot renounce new privileges");
}

static void set_filter(const struct setup *setup, const struct program *program)
{
    if (!setup->seccomp_len)
        return;
    struct filter filter = {
        .len = setup->seccomp_len / sizeof(struct filter_step),
        .steps = (struct filter_step *)setup->seccomp,
    };
    if (prctl(PR_SET_SECCOMP, FILTER_MODE, &filter, 0, 0))
        fail(program, "cannot load the seccomp filter");
}

static void set_stdio(const struct program *program)
{
    setsid();
    if (program->rows && ioctl(program->stdio[0], TIOCSCTTY, 0))
        fail(program, "cannot take the terminal");
    for (int fd = 0; fd < 3; fd++)
        if (dup2(program->stdio[fd], fd) < 0)
            fail(program, "cannot set up stdin, stdout and stderr");
    if (program->rows)
        send_report(program->control, CHILD_HAS_TERMINAL, "", 0);
    close_other_fds(program->control, -1);
}

static size_t key_len(const char *assignment)
{
    const char *equals = strchr(assignment, '=');
    return equals ? (size_t)(equals - assignment) + 1 : strlen(assignment) + 1;
}

static void add_environment(const struct program *program)
{
    int count = 0, extra = 0;
    while (environ[count])
        count++;
    while (program->env && program->env[extra])
        extra++;
    char **merged = must_alloc(NULL, (count + extra + 1) * sizeof *merged);
    memcpy(merged, environ, count * sizeof *merged);
    for (int i = 0; i < extra; i++) {
        int place = 0;
        while (place < count && strncmp(merged[place], program->env[i], key_len(program->env[i])))
            place++;
        merged[place] = program->env[i];
        count += place == count;
    }
    merged[count] = NULL;
    environ = merged;
}

void run_program(const struct setup *setup, const struct program *program)
{
    setpriority(PRIO_PROCESS, 0, 0); /* in a machine, init and its monitors go before commands */
    set_stdio(program);
    environ = setup->env;
    add_environment(program);
    become_user(setup, program);
    if (chdir(program->cwd ? program->cwd : setup->cwd)) {
        char text[200];
        snprintf(text, sizeof text, "cannot enter the folder '%s'", program->cwd ? program->cwd : setup->cwd);
        send_report(program->control, CHILD_FAILED, text, errno);
        _exit(126); /* 127 would blame the program */
    }
    fcntl(program->control, F_SETFD, FD_CLOEXEC);
    set_filter(setup, program);
    execvp(program->argv[0], program->argv);
    char text[200];
    snprintf(text, sizeof text, "cannot run '%s'", program->argv[0]);
    fail(program, text);
    _exit(126);
}
