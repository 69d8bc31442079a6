/* The first process of a sandbox: one loop over the host's stream, its jobs' pipes, and its children.
 *
 *     init --listen-fd N      an inherited listening unix socket; the newest connection replaces the older one
 *     init --listen PATH      a unix socket that it makes there, for whom no descriptor can be handed in
 *     init --device PATH      a virtio-serial port or a serial line
 *     init --boot             the first program of a virtual machine, which finds its way to the host by itself
 *
 * It keeps nothing of its environment, can be neither traced nor dumped, and adopts what its jobs orphan: a child that
 * it does not know is what a killed monitor left behind, and is ended.
 */
#define _GNU_SOURCE
#include "boot.h"
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

enum {
    TICK_MS = 100,        /* while something has a time limit */
    STEP_MAX_MS = 1000,   /* of running time in one step; more means that the machine was frozen */
    RETRY_MS = 20,        /* until a device whose host may be coming is looked at again; a signal comes sooner */
    AWAY_MS = 1000,       /* the same once it is known to be away */
    ANNOUNCED_MS = 300,   /* the host's bytes may arrive that much before the news that it is there */
    STALLED_MS = 1000,    /* half a frame for so long on a device is the end of an older session */
    BACKLOG = 16,
    FDS_MAX = JOB_FDS * MAX_JOBS + 3 + MAX_LISTENERS,
};

extern char **environ;

/* ---- the stream ---- */

static void forget_client(struct init *init)
{
    bytes_free(&init->in);
    bytes_free(&init->out);
    init->is_greeted = init->is_noisy = false;
    for (struct job *job = init->jobs; job; job = job->next)
        job->is_followed = false;
}

static void disconnect(struct init *init)
{
    if (init->connection >= 0)
        close(init->connection);
    init->connection = -1;
    forget_client(init);
}

/* Whether the device sends SIGIO when its host comes. */
static void ask_for_news(const struct init *init, bool is_wanted)
{
    fcntl(init->connection, F_SETFL, O_NONBLOCK | (is_wanted ? O_ASYNC : 0));
}

static void open_device(struct init *init)
{
    struct termios line;
    init->connection = open(init->device, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    fcntl(init->connection, F_SETOWN, getpid());
    if (init->connection >= 0 && !tcgetattr(init->connection, &line)) {
        cfmakeraw(&line);
        line.c_cflag |= CLOCAL;
        tcsetattr(init->connection, TCSANOW, &line);
        ioctl(init->connection, TIOCEXCL);
    }
}

static void accept_newest(struct init *init)
{
    for (int fd; (fd = accept4(init->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0;) {
        disconnect(init);
        init->connection = fd;
    }
}

/* As much as is there: a virtual machine's port gives a page at a time. */
static ssize_t read_some(int fd, char *piece, size_t size)
{
    size_t len = 0;
    while (len < size) {
        ssize_t more = read(fd, piece + len, size - len);
        if (more <= 0)
            return len ? (ssize_t)len : more;
        len += more;
    }
    return len;
}

/* A device's host has closed its end, or is just opening it. */
static void host_is_away(struct init *init)
{
    bool is_away = init->now_ms - init->heard_ms > ANNOUNCED_MS;
    ask_for_news(init, true);
    if (is_away)
        forget_client(init);
    init->retry_ms = init->now_ms + (is_away ? AWAY_MS : RETRY_MS);
}

static void read_stream(struct init *init)
{
    static char piece[PIECE_MAX];
    ssize_t len = read_some(init->connection, piece, sizeof piece);
    if (len < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (len <= 0) {
        if (init->device)
            host_is_away(init);
        else
            disconnect(init);
        return;
    }
    if (init->device && init->retry_ms) {
        ask_for_news(init, false);
        init->retry_ms = 0;
    }
    bytes_add(&init->in, piece, len);
    init->heard_ms = init->now_ms;
    struct frame frame;
    for (size_t size; (size = frame_find(&init->in, init->key, &frame, &init->is_noisy));) {
        call_handle(init, &frame);
        bytes_drop(&init->in, size);
    }
}

static void write_stream(struct init *init)
{
    while (init->connection >= 0 && init->out.len) {
        ssize_t len = write(init->connection, init->out.data, init->out.len);
        if (len < 0 && (errno == EAGAIN || errno == EINTR || init->device))
            return;
        if (len < 0)
            disconnect(init);
        else
            bytes_drop(&init->out, len);
    }
}

/* ---- children ---- */

/* What a killed monitor left behind has become ours. True if there was any: it may multiply while it is being ended. */
static bool end_strays(struct init *init)
{
    pid_t known[MAX_JOBS];
    int count = 0;
    for (struct job *job = init->jobs; job && count < MAX_JOBS; job = job->next)
        if (job->pid)
            known[count++] = job->pid;
    return kill_strays(known, count);
}

static bool reap(struct init *init)
{
    bool has_lost_monitor = false;
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        struct job *job = init->jobs;
        while (job && job->pid != pid)
            job = job->next;
        if (!job)
            continue;
        /* Without subreapers (gVisor) what a command leaves behind is never its monitor's, and so not ended by it. */
        has_lost_monitor |= !job->is_file_call && (WIFSIGNALED(status) || (job->reason && init->has_no_subreapers));
        job_reaped(job, status, init->now_ms);
    }
    return has_lost_monitor;
}

static void drop_forgotten(struct init *init)
{
    for (struct job **place = &init->jobs; *place;) {
        struct job *job = *place;
        if (job->is_forgotten && job_is_done(job)) {
            *place = job->next;
            job_free(job);
        } else {
            place = &job->next;
        }
    }
}

/* True if a monitor was lost. */
static bool take_signals(struct init *init, int signals)
{
    struct signalfd_siginfo info;
    bool has_ended = false;
    while (read(signals, &info, sizeof info) > 0) {
        if (info.ssi_signo == SIGIO)
            init->retry_ms = init->now_ms;
        has_ended |= info.ssi_signo == SIGCHLD;
    }
    return has_ended && reap(init);
}

/* ---- the loop ---- */

struct polled {
    struct pollfd fds[FDS_MAX];
    struct job *jobs[FDS_MAX];
    int count, jobs_end; /* behind the jobs' come the listeners' */
};

static void add_fd(struct polled *polled, int fd, short events, struct job *job)
{
    polled->fds[polled->count] = (struct pollfd){.fd = events ? fd : -1, .events = events};
    polled->jobs[polled->count++] = job;
}

static void list_fds(struct init *init, struct polled *polled, int signals)
{
    polled->count = 0;
    add_fd(polled, signals, POLLIN, NULL);
    add_fd(polled, init->listener, POLLIN, NULL);
    add_fd(polled, init->now_ms < init->retry_ms ? -1 : init->connection, POLLIN | (init->out.len ? POLLOUT : 0), NULL);
    for (struct job *job = init->jobs; job; job = job->next) {
        add_fd(polled, job->control, POLLIN, job);
        add_fd(polled, job->input, job->unwritten.len && !job->is_input_held ? POLLOUT : 0, job);
        for (int i = 0; i < 2; i++)
            add_fd(polled, job->out[i].fd, job_may_read(job, i) ? POLLIN : 0, job);
    }
    polled->jobs_end = polled->count;
    for (int i = 0; i < init->num_listeners; i++)
        add_fd(polled, init->listeners[i].fd, network_wants(init, &init->listeners[i]) ? POLLIN : 0, NULL);
}

static void serve_jobs(struct init *init, const struct polled *polled)
{
    for (int i = 3; i < polled->jobs_end; i += 4) {
        struct job *job = polled->jobs[i];
        if (polled->fds[i + 1].revents)
            job_write_input(job);
        for (int stream = 0; stream < 2; stream++)
            if (polled->fds[i + 2 + stream].revents && job_may_read(job, stream))
                job_read(job, stream, init->now_ms);
        if (polled->fds[i].revents && job->control >= 0)
            job_hear(job, init->now_ms);
    }
}

static int sooner(int one_ms, int64_t other_ms)
{
    if (other_ms < 1)
        other_ms = 1;
    return one_ms < 0 || other_ms < one_ms ? (int)other_ms : one_ms;
}

/* Until something is due; -1 if nothing will be. No longer than a tick: a frozen machine's clock must not run on. */
static int wait_ms(const struct init *init, bool has_strays)
{
    int wait = has_strays || init->in.len ? TICK_MS : -1;
    if (init->now_ms < init->retry_ms)
        wait = sooner(wait, init->retry_ms - init->now_ms);
    for (const struct job *job = init->jobs; job; job = job->next) {
        int64_t due_ms = job_due_ms(job, init->now_ms);
        if (due_ms)
            wait = sooner(wait, due_ms - init->now_ms < TICK_MS ? due_ms - init->now_ms : TICK_MS);
    }
    return wait;
}

static int64_t clock_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

static void step_clock(struct init *init, int64_t *last_ms, int waited_ms)
{
    int64_t now_ms = clock_ms(), step = now_ms - *last_ms;
    *last_ms = now_ms;
    init->now_ms += waited_ms >= 0 && step > STEP_MAX_MS ? STEP_MAX_MS : step;
}

static void loop(struct init *init, int signals)
{
    static struct polled polled;
    bool has_strays = false;
    int64_t last_ms = clock_ms();
    while (!init->is_stopping || (init->connection >= 0 && init->out.len)) {
        list_fds(init, &polled, signals);
        int limit_ms = wait_ms(init, has_strays);
        poll(polled.fds, polled.count, limit_ms);
        step_clock(init, &last_ms, limit_ms);
        serve_jobs(init, &polled);
        for (int i = 0; i < init->num_listeners; i++)
            if (polled.fds[polled.jobs_end + i].revents)
                network_tell(init, &init->listeners[i]);
        if (polled.fds[0].revents)
            has_strays |= take_signals(init, signals);
        if (has_strays)
            has_strays = end_strays(init);
        if (polled.fds[1].revents)
            accept_newest(init);
        else if (polled.fds[2].revents & (POLLIN | POLLHUP | POLLERR))
            read_stream(init);
        if (init->device && init->in.len && init->now_ms - init->heard_ms > STALLED_MS)
            bytes_free(&init->in);
        for (struct job *job = init->jobs; job; job = job->next)
            job_tick(job, init->now_ms);
        call_answer_jobs(init);
        drop_forgotten(init);
        write_stream(init);
    }
}

/* ---- begin and end ---- */

static void hide(void)
{
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    prctl(PR_SET_NAME, "init", 0, 0, 0);
    for (char **variable = environ; *variable; variable++)
        memset(*variable, 0, strlen(*variable));
    static char *none[] = {NULL};
    environ = none;
}

static int watch_signals(void)
{
    sigset_t mask;
    sigfillset(&mask); /* only what the kernel insists on should end us */
    sigprocmask(SIG_SETMASK, &mask, NULL);
    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    sigaddset(&mask, SIGIO);
    return signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void draw_boot_id(struct init *init)
{
    unsigned char random[16] = {0};
    int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, random, sizeof random) != sizeof random)
        memcpy(random, &(int64_t){clock_ms()}, sizeof(int64_t));
    if (fd >= 0)
        close(fd);
    for (int i = 0; i < 16; i++)
        snprintf(init->boot_id + 2 * i, 3, "%02x", random[i]);
}

static void protect_from_oom_killer(void)
{
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd >= 0 && write(fd, "-900", 4) < 0)
        errno = 0; /* not allowed: commands offer themselves instead */
    if (fd >= 0)
        close(fd);
}

/* Every running job takes some descriptors; commands get the limit that was there before. */
static void raise_file_limit(struct init *init)
{
    getrlimit(RLIMIT_NOFILE, &init->setup.files);
    struct rlimit raised = {init->setup.files.rlim_max, init->setup.files.rlim_max};
    setrlimit(RLIMIT_NOFILE, &raised);
}

static void end_all(struct init *init)
{
    kill_tree(SIGKILL);
    disconnect(init);
    if (init->is_machine)
        end_machine();
}

/* A listening socket at a path; -1 if it cannot be made. */
static int listen_at(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || strlen(path) >= sizeof address.sun_path)
        return -1;
    memcpy(address.sun_path, path, strlen(path));
    if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, BACKLOG))
        return -1;
    return fd;
}

static bool parse_arguments(struct init *init, int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "--boot")) {
        init->is_machine = true;
        init->listener = boot_machine(&init->device);
    } else if (argc == 3 && !strcmp(argv[1], "--listen-fd")) {
        init->listener = atoi(argv[2]);
    } else if (argc == 3 && !strcmp(argv[1], "--listen")) {
        init->listener = listen_at(argv[2]);
    } else if (argc == 3 && !strcmp(argv[1], "--device")) {
        init->device = argv[2];
    }
    return init->listener >= 3 || init->device;
}

int main(int argc, char **argv)
{
    struct init init = {.listener = -1, .connection = -1};
    if (!parse_arguments(&init, argc, argv)) {
        fprintf(stderr, "usage: %s --listen-fd N | --listen PATH | --device PATH | --boot\n", argv[0]);
        return 2;
    }
    hide();
    close_other_fds(init.listener, -1);
    if (init.listener >= 0) {
        fcntl(init.listener, F_SETFD, FD_CLOEXEC);
        fcntl(init.listener, F_SETFL, fcntl(init.listener, F_GETFL) | O_NONBLOCK);
    } else {
        open_device(&init);
        if (init.connection < 0) {
            perror(init.device);
            return 1;
        }
    }
    int adopts = 0;
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    init.has_no_subreapers = prctl(PR_GET_CHILD_SUBREAPER, &adopts, 0, 0, 0) || !adopts;
    protect_from_oom_killer();
    raise_file_limit(&init);
    draw_boot_id(&init);
    loop(&init, watch_signals());
    end_all(&init);
    return 0;
}
