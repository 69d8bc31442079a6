/* One job: a command or a file call, its pipes, and how it ends.
 *
 *   RUNNING --its process ends--> EXITED --what it had printed is read--> ENDED --and nothing of it runs--> may be freed
 */
#define _GNU_SOURCE
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef W_EXITCODE
#define W_EXITCODE(code, signal) ((code) << 8 | (signal))
#endif

enum { GIVE_UP_MS = 2000, SETTLE_MS = 200 };

struct job *job_find(struct job *jobs, const char *id)
{
    for (struct job *job = jobs; job; job = job->next)
        if (!job->is_forgotten && !strcmp(job->id, id))
            return job;
    return NULL;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static bool open_terminal(struct job *job, struct program *program)
{
    struct winsize size = {.ws_row = program->rows, .ws_col = program->columns};
    int master, slave;
    if (openpty(&master, &slave, NULL, NULL, &size))
        return false;
    fcntl(slave, F_SETFD, FD_CLOEXEC);
    for (int i = 0; i < 3; i++)
        program->stdio[i] = slave;
    job->out[0].fd = master;
    job->input = fcntl(master, F_DUPFD_CLOEXEC, 3);
    return true;
}

static bool open_pipes(struct job *job, struct program *program)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC))
        return false;
    program->stdio[0] = fds[0];
    job->input = fds[1];
    for (int i = 0; i < 2; i++) {
        if (pipe2(fds, O_CLOEXEC))
            return false;
        job->out[i].fd = fds[0];
        program->stdio[1 + i] = fds[1];
    }
    return true;
}

static bool open_channels(struct job *job, struct program *program)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
        return false;
    job->control = pair[0];
    program->control = pair[1];
    if (program->rows ? !open_terminal(job, program) : !open_pipes(job, program))
        return false;
    int ours[] = {job->control, job->input, job->out[0].fd, job->out[1].fd};
    for (int i = 0; i < 4; i++)
        if (ours[i] >= 0)
            fcntl(ours[i], F_SETFL, fcntl(ours[i], F_GETFL) | O_NONBLOCK), fcntl(ours[i], F_SETFD, FD_CLOEXEC);
    return true;
}

static void close_childs_ends(struct program *program)
{
    for (int i = 2; i >= 0; i--) /* a terminal is there thrice */
        if (i == 0 || program->stdio[i] != program->stdio[0])
            close_fd(&program->stdio[i]);
    close_fd(&program->control);
}

static size_t readable(const struct job *job, const struct stream *stream)
{
    int64_t room = PIECE_MAX;
    if (job->state == JOB_ENDED)
        return room; /* and to nobody */
    if ((job->is_followed || job->holds_output) && !job->is_ending) /* no reader may delay the end */
        room = (int64_t)stream->kept.ring_max - (stream->kept.total - stream->consumed);
    if (job->state == JOB_EXITED && stream->final - stream->kept.total < room)
        room = stream->final - stream->kept.total;
    return room < 0 ? 0 : room > PIECE_MAX ? PIECE_MAX : room;
}

bool job_may_read(const struct job *job, int stream)
{
    return job->out[stream].fd >= 0 && readable(job, &job->out[stream]) > 0;
}

void job_read(struct job *job, int number, int64_t now_ms)
{
    static char piece[PIECE_MAX];
    struct stream *stream = &job->out[number];
    ssize_t len = read(stream->fd, piece, readable(job, stream));
    if (len > 0) {
        if (job->state != JOB_ENDED) /* what the background prints later belongs to nobody */
            kept_add(&stream->kept, piece, len);
        job->printed_ms = now_ms;
    } else if (!len || (errno != EAGAIN && errno != EINTR)) {
        close_fd(&stream->fd);
    }
}

void job_write_input(struct job *job)
{
    if (job->is_input_held)
        return;
    while (job->input >= 0 && job->unwritten.len) {
        ssize_t len = write(job->input, job->unwritten.data, job->unwritten.len);
        if (len < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (len < 0) { /* nobody reads any more */
            bytes_free(&job->unwritten);
            close_fd(&job->input);
            return;
        }
        bytes_drop(&job->unwritten, len);
    }
    if (job->input < 0 || !job->input_ends)
        return;
    if (job->is_terminal && write(job->input, "\4", 1) < 0 && errno == EAGAIN)
        return;
    close_fd(&job->input);
}

/* How much of a stream was printed until now: what is read and what lies in the pipe. A terminal cannot say; it is
 * hung up when the first process of its session ends. */
static int64_t printed_bytes(const struct job *job, const struct stream *stream)
{
    int count = 0;
    if (job->is_terminal)
        return INT64_MAX;
    return stream->kept.total + (stream->fd >= 0 && !ioctl(stream->fd, FIONREAD, &count) ? count : 0);
}

static void explain_failure(struct job *job)
{
    char line[400];
    if (!job->report.text[0] || job->is_file_call)
        return;
    int len = snprintf(line, sizeof line, "benthic: %s: %s\n", job->report.text, strerror(job->report.error));
    kept_add(&job->out[job->is_terminal ? 0 : 1].kept, line, len);
}

/* Its process has ended. What is in the pipes was printed by then; later bytes come from what it left behind. */
static void exited(struct job *job, int64_t now_ms)
{
    if (job->state != JOB_RUNNING)
        return;
    explain_failure(job);
    job->state = JOB_EXITED;
    job->duration_ms = now_ms - job->started_ms;
    job->settle_ms = now_ms + SETTLE_MS;
    for (int i = 0; i < 2; i++)
        job->out[i].final = printed_bytes(job, &job->out[i]);
    job_settle(job, now_ms);
}

static bool is_read(const struct stream *stream)
{
    return stream->fd < 0 || stream->kept.total >= stream->final;
}

/* Reads what an exited job had printed; once that is done the job has ended. */
void job_settle(struct job *job, int64_t now_ms)
{
    if (job->state != JOB_EXITED)
        return;
    for (int i = 0; i < 2; i++) {
        int64_t before = -1;
        while (job_may_read(job, i) && job->out[i].kept.total != before) {
            before = job->out[i].kept.total;
            job_read(job, i, now_ms);
        }
    }
    bool is_held = !job_may_read(job, 0) && !job_may_read(job, 1);
    bool is_late = now_ms >= job->settle_ms && (!is_held || job->is_ending);
    if (!(is_read(&job->out[0]) && is_read(&job->out[1])) && !is_late)
        return;
    job->state = JOB_ENDED;
    bytes_free(&job->unwritten);
    close_fd(&job->input);
}

/* Starts the program of a job that the caller has filled in. Where that is not possible, the job has ended with 126. */
void job_start(const struct setup *setup, struct program *program, struct job *job)
{
    job->control = job->input = job->out[0].fd = job->out[1].fd = -1;
    program->control = program->stdio[0] = program->stdio[1] = program->stdio[2] = -1;
    job->is_terminal = job->is_input_held = program->rows > 0;
    job->pid = open_channels(job, program) ? fork() : -1;
    if (!job->pid) {
        if (program->is_file_call)
            file_call_main(setup, program);
        monitor_main(setup, program);
    }
    int error = errno;
    close_childs_ends(program);
    close_fd(&program->remote);
    if (job->pid > 0)
        return;
    job->pid = 0;
    job->report = (struct report){.status = W_EXITCODE(126, 0), .error = error, .text = "cannot make a process"};
    exited(job, job->started_ms);
}

static bool hear_one(struct job *job, int64_t now_ms)
{
    struct report report;
    ssize_t len = recv(job->control, &report, sizeof report, 0);
    if (len < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (len != sizeof report) {
        close_fd(&job->control); /* SIGCHLD says the rest */
        return false;
    }
    report.text[sizeof report.text - 1] = 0;
    if (report.kind == CHILD_HAS_TERMINAL) {
        job->is_input_held = false;
        job_write_input(job);
        return true;
    }
    if (report.kind == CHILD_FAILED) {
        job->report.error = report.error;
        memcpy(job->report.text, report.text, sizeof report.text);
        return true;
    }
    report.error = job->report.error;
    memcpy(report.text, job->report.text, sizeof report.text);
    job->report = report;
    exited(job, now_ms);
    return true;
}

void job_hear(struct job *job, int64_t now_ms)
{
    while (job->control >= 0 && hear_one(job, now_ms))
        continue;
}

void job_reaped(struct job *job, int status, int64_t now_ms)
{
    job->pid = 0;
    job_hear(job, now_ms);
    close_fd(&job->control);
    if (job->state == JOB_RUNNING) { /* a file call, or a monitor that somebody killed */
        job->report.status = status;
        exited(job, now_ms);
    }
}

/* To everything that the job has started; 0 ends it all. */
void job_order(struct job *job, int signal)
{
    struct order order = {.signal = signal};
    if (!job->pid)
        return;
    if (!job->is_file_call)
        send(job->control, &order, sizeof order, MSG_NOSIGNAL | MSG_DONTWAIT);
    else if (!signal || signal == SIGKILL)
        kill(job->pid, SIGTERM); /* it removes what it has half made */
}

void job_end(struct job *job, const char *reason, int64_t now_ms)
{
    if (job->is_ending)
        return;
    job->is_ending = true;
    if (job->state == JOB_RUNNING && !job->reason)
        job->reason = reason;
    job->give_up_ms = now_ms + GIVE_UP_MS;
    job_order(job, 0);
    job_settle(job, now_ms);
}

/* Its child does not end it, perhaps because somebody inside has stopped the child: first that goes, and what it leaves
 * behind is ended as strays. If even this does not help, only whoever owns the sandbox can. */
static void give_up(struct job *job, int64_t now_ms)
{
    if (job->pid && !job->is_given_up) {
        job->is_given_up = true;
        job->give_up_ms = now_ms + GIVE_UP_MS;
        kill(job->pid, SIGKILL);
        return;
    }
    job->reason = "stuck";
    exited(job, now_ms);
}

void job_tick(struct job *job, int64_t now_ms)
{
    for (int i = 0; i < 2; i++)
        if (job->out[i].fd >= 0 && !job_may_read(job, i))
            job->printed_ms = now_ms; /* it is not silent, it is not listened to */
    job_settle(job, now_ms);
    if (job->state != JOB_ENDED && job->deadline_ms && now_ms >= job->deadline_ms)
        job_end(job, "timeout", now_ms);
    else if (job->state == JOB_RUNNING && job->quiet_ms && now_ms - job->printed_ms >= job->quiet_ms)
        job_end(job, "quiet", now_ms);
    if (job->is_ending && job->state == JOB_RUNNING && now_ms >= job->give_up_ms)
        give_up(job, now_ms);
}

static int64_t earlier(int64_t one_ms, int64_t other_ms)
{
    return !one_ms || (other_ms && other_ms < one_ms) ? other_ms : one_ms;
}

int64_t job_due_ms(const struct job *job, int64_t now_ms)
{
    int64_t due_ms = 0;
    if (job->state == JOB_ENDED)
        return job->num_waiting && job->give_up_ms > now_ms ? job->give_up_ms : 0;
    if (!job->is_ending)
        due_ms = job->deadline_ms;
    if (job->state == JOB_EXITED)
        return job->settle_ms > now_ms ? earlier(due_ms, job->settle_ms) : due_ms; /* later it waits for its reader */
    if (job->is_ending)
        return job->give_up_ms;
    return job->quiet_ms ? earlier(due_ms, job->printed_ms + job->quiet_ms) : due_ms;
}

bool job_is_done(const struct job *job)
{
    return job->state == JOB_ENDED && !job->pid;
}

void job_free(struct job *job)
{
    close_fd(&job->control);
    close_fd(&job->input);
    for (int i = 0; i < 2; i++) {
        close_fd(&job->out[i].fd);
        kept_free(&job->out[i].kept);
    }
    bytes_free(&job->unwritten);
    free(job->waiting);
    free(job);
}
