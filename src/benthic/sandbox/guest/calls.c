/* What the host may ask, one function a call. Requests carry an id and get one answer; jobs are answered when due. */
#define _GNU_SOURCE
#include "calls.h"
#include "linux_abi.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct call {
    struct init *init;
    const struct header *header;
    const struct frame *frame;
    int64_t id;
    struct job *job;
};

struct bytes begin_answer(int64_t id)
{
    struct bytes header = {0};
    json_open(&header);
    json_number(&header, "id", id);
    return header;
}

void send_frame(struct init *init, struct bytes *header, const void *body, size_t len)
{
    json_close(header);
    frame_add(&init->out, init->key, header, body, len);
    bytes_free(header);
}

static void answer(struct call *call)
{
    struct bytes header = begin_answer(call->id);
    send_frame(call->init, &header, NULL, 0);
}

static void refuse(struct call *call, const char *kind, const char *text)
{
    struct bytes header = begin_answer(call->id);
    json_text(&header, "error", kind);
    json_text(&header, "text", text);
    send_frame(call->init, &header, NULL, 0);
}

int64_t clamp(int64_t number, int64_t low, int64_t high)
{
    return number < low ? low : number > high ? high : number;
}

static char **copy_list(const struct header *header, const char *key)
{
    int count, used = 0;
    const struct value *items = header_list(header, key, &count);
    char **list = must_alloc(NULL, (count + 1) * sizeof *list);
    for (int i = 0; i < count; i++)
        if (items[i].kind == KIND_TEXT)
            list[used++] = must_copy(items[i].text);
    list[used] = NULL;
    return list;
}

static void free_list(char **list)
{
    for (char **item = list; item && *item; item++)
        free(*item);
    free(list);
}

/* ---- greeting and set-up ---- */

static void call_hello(struct call *call)
{
    struct init *init = call->init;
    const char *nonce = header_text(call->header, "nonce", ""), *client = header_text(call->header, "client", "");
    struct bytes header = {0};
    json_open(&header);
    json_text(&header, "hello", nonce);
    json_number(&header, "protocol", PROTOCOL);
    json_text(&header, "boot_id", init->boot_id);
    json_number(&header, "is_configured", init->setup.is_configured);
    json_number(&header, "pid", getpid());
    init->key = 0;
    send_frame(init, &header, NULL, 0);
    init->key = crc32_of(0, nonce, strlen(nonce));
    init->is_greeted = true;
    init->is_noisy = false;
    bool is_new = strcmp(init->client, client);
    for (struct job *job = init->jobs; job; job = job->next) { /* an older session's questions are void */
        job->num_waiting = 0;
        job->feed_id = 0;
        job->is_followed = false;
        job->holds_output &= !is_new || job->is_file_call; /* nobody will come who wanted to read */
        if (is_new && job->is_connection)
            job_end(job, "killed", init->now_ms);
    }
    network_restart(init, is_new);
    if (is_new) {
        snprintf(init->client, sizeof init->client, "%s", client);
        init->last_signal_id = 0;
    }
}

static void call_configure(struct call *call)
{
    struct setup *setup = &call->init->setup;
    int count;
    const struct value *limits = header_list(call->header, "rlimits", &count);
    free(setup->cwd);
    free_list(setup->env);
    setup->uid = header_number(call->header, "uid", 1000);
    setup->gid = header_number(call->header, "gid", 1000);
    setup->cwd = must_copy(header_text(call->header, "cwd", "/"));
    setup->env = copy_list(call->header, "env");
    setup->output_max = header_number(call->header, "output_bytes", 1 << 20);
    setup->rlimits = must_alloc(setup->rlimits, count * sizeof *setup->rlimits);
    setup->num_rlimits = count;
    for (int i = 0; i < count; i++)
        setup->rlimits[i] = limits[i].number;
    setup->seccomp = must_alloc(setup->seccomp, call->frame->body_len);
    setup->seccomp_len = call->frame->body_len;
    memcpy(setup->seccomp, call->frame->body, call->frame->body_len);
    setup->is_configured = true;
    answer(call);
}

/* ---- jobs ---- */

static void answer_start(struct call *call, const struct job *job, bool is_new)
{
    struct bytes header = begin_answer(call->id);
    json_number(&header, "is_new", is_new);
    json_number(&header, "fed", job->fed);
    send_frame(call->init, &header, NULL, 0);
}

static struct job *new_job(struct call *call)
{
    const struct header *header = call->header;
    int64_t now_ms = call->init->now_ms, timeout_ms = header_number(header, "timeout_ms", 0);
    struct job *job = must_alloc(NULL, sizeof *job);
    *job = (struct job){.started_ms = now_ms, .printed_ms = now_ms};
    snprintf(job->id, sizeof job->id, "%s", header_text(header, "job", ""));
    job->deadline_ms = timeout_ms ? now_ms + timeout_ms : 0;
    job->quiet_ms = header_number(header, "quiet_ms", 0);
    job->is_file_call = header_number(header, "is_file_call", 0);
    job->holds_output = header_number(header, "holds_output", 0);
    job->input_ends = header_number(header, "input_ends", 1);
    job->is_connection = header_text(header, "listener", NULL) != NULL;
    job->fed = call->frame->body_len;
    bytes_add(&job->unwritten, call->frame->body, call->frame->body_len);
    int64_t max = clamp(header_number(header, "output_bytes", call->init->setup.output_max), 0, KEPT_MAX);
    kept_init(&job->out[0].kept, max);
    kept_init(&job->out[1].kept, max);
    return job;
}

/* NULL if there is room for one more job. */
static const char *lack_of_room(const struct init *init)
{
    size_t num_jobs = 0, num_running = 0, kept = 0;
    for (const struct job *job = init->jobs; job; job = job->next) {
        num_jobs++;
        num_running += job->pid != 0;
        kept += kept_size(&job->out[0].kept) + kept_size(&job->out[1].kept);
    }
    if (num_jobs >= MAX_JOBS)
        return "too many jobs; forget some";
    if (JOB_FDS * (num_running + 1) + SPARE_FDS > init->setup.files.rlim_max)
        return "too many jobs run at once";
    return kept > KEPT_MAX ? "too much output is kept; forget some jobs" : NULL;
}

static void call_start(struct call *call)
{
    struct init *init = call->init;
    const char *id = header_text(call->header, "job", ""), *trouble = lack_of_room(init);
    if (call->job) {
        if (!call->job->is_file_call) /* whoever wanted to read may be gone */
            call->job->holds_output = header_number(call->header, "holds_output", 0);
        answer_start(call, call->job, false);
        return;
    }
    int num_arguments;
    const struct value *argv = header_list(call->header, "argv", &num_arguments);
    if (!*id || strlen(id) > ID_MAX || !num_arguments || argv->kind != KIND_TEXT || !init->setup.is_configured)
        trouble = "no valid job id, nothing to run, or not configured";
    const char *listener = header_text(call->header, "listener", NULL);
    int remote = listener && !trouble ? network_accept(init, listener) : -1;
    if (listener && !trouble && remote < 0)
        trouble = "nobody waits there";
    if (trouble) {
        refuse(call, "refused", trouble);
        return;
    }
    struct program program = {
        .argv = copy_list(call->header, "argv"),
        .env = copy_list(call->header, "env"),
        .cwd = header_text(call->header, "cwd", NULL),
        .is_root = header_number(call->header, "is_root", 0),
        .is_file_call = header_number(call->header, "is_file_call", 0),
        .rows = header_number(call->header, "rows", 0),
        .columns = header_number(call->header, "columns", 0),
        .remote = remote,
    };
    struct job *job = new_job(call);
    job->next = init->jobs;
    init->jobs = job;
    job_start(&init->setup, &program, job);
    job_write_input(job);
    answer_start(call, job, true);
    free_list(program.argv);
    free_list(program.env);
}

static void call_wait(struct call *call)
{
    struct job *job = call->job;
    job->waiting = must_alloc(job->waiting, (job->num_waiting + 1) * sizeof *job->waiting);
    job->waiting[job->num_waiting++] = call->id;
}

/* A reader has come, or tells how far it is. */
static void call_follow(struct call *call)
{
    static const char *const names[] = {"stdout", "stderr"};
    struct job *job = call->job;
    bool is_fresh = header_number(call->header, "is_fresh", 0);
    for (int i = 0; i < 2; i++) {
        struct stream *stream = &job->out[i];
        stream->consumed = clamp(header_number(call->header, names[i], 0), 0, stream->kept.total);
        stream->window = clamp(header_number(call->header, "window", 0), 0, RING_MIN - PIECE_MAX);
        if (is_fresh)
            stream->sent = stream->consumed;
    }
    job->is_followed = true;
    if (call->id)
        answer(call);
}

static void call_unfollow(struct call *call)
{
    call->job->is_followed = call->job->holds_output = false;
    answer(call);
}

static void call_kept(struct call *call)
{
    char *piece = must_alloc(NULL, ANSWER_MAX);
    int stream = header_number(call->header, "stream", 0) != 0;
    int64_t from = clamp(header_number(call->header, "start", 0), 0, INT64_MAX);
    size_t len = kept_show(&call->job->out[stream].kept, from, piece, ANSWER_MAX);
    struct bytes header = begin_answer(call->id);
    send_frame(call->init, &header, piece, len);
    free(piece);
}

static void call_feed(struct call *call)
{
    struct job *job = call->job;
    int64_t offset = header_number(call->header, "offset", 0), known = job->fed - offset;
    if (known < 0 || job->unwritten.len + call->frame->body_len > INPUT_MAX) {
        refuse(call, "refused", "input out of order, or more of it than fits");
        return;
    }
    if (known < (int64_t)call->frame->body_len) {
        if (job->input >= 0)
            bytes_add(&job->unwritten, call->frame->body + known, call->frame->body_len - known);
        job->fed += call->frame->body_len - known;
        if (job->is_file_call)
            job->printed_ms = call->init->now_ms; /* it moves, though it has nothing to say */
    }
    job->input_ends |= header_number(call->header, "input_ends", 0);
    job->feed_id = call->id;
    job_write_input(job);
}

static void call_signal(struct call *call)
{
    int signal = header_number(call->header, "signal", 0);
    if (call->id > call->init->last_signal_id && signal > 0 && signal < NSIG) {
        call->init->last_signal_id = call->id;
        call->job->was_signalled = true;
        job_order(call->job, signal);
    }
    answer(call);
}

static void call_resize(struct call *call)
{
    struct winsize size = {
        .ws_row = header_number(call->header, "rows", 24),
        .ws_col = header_number(call->header, "columns", 80),
    };
    if (call->job->is_terminal && call->job->out[0].fd >= 0)
        ioctl(call->job->out[0].fd, TIOCSWINSZ, &size);
    answer(call);
}

static void call_forget(struct call *call)
{
    if (call->job) {
        call->job->is_forgotten = true;
        if (call->job->state != JOB_ENDED)
            job_end(call->job, "killed", call->init->now_ms);
    }
    answer(call);
}

void put_end(struct bytes *header, const struct job *job)
{
    int status = job->report.status;
    bool is_signalled = WIFSIGNALED(status);
    json_text(header, "reason", job->reason ? job->reason
                                : !is_signalled ? "exited"
                                : job->was_signalled ? "killed"
                                                     : "signalled");
    if (!job->reason)
        json_number(header, "returncode", is_signalled ? -WTERMSIG(status) : WEXITSTATUS(status));
}

/* The table as JSON lines: it may be longer than a header. */
static void call_jobs(struct call *call)
{
    struct bytes lines = {0};
    for (struct job *job = call->init->jobs; job; job = job->next) {
        if (job->is_forgotten)
            continue;
        json_open(&lines);
        json_text(&lines, "job", job->id);
        json_number(&lines, "has_ended", job->state == JOB_ENDED);
        json_number(&lines, "has_background", job->state == JOB_ENDED && job->pid);
        json_number(&lines, "stdout", job->out[0].kept.total);
        json_number(&lines, "stderr", job->out[1].kept.total);
        json_number(&lines, "fed", job->fed);
        if (job->state == JOB_ENDED)
            put_end(&lines, job);
        json_close(&lines);
        bytes_add(&lines, "\n", 1);
    }
    struct bytes header = begin_answer(call->id);
    send_frame(call->init, &header, lines.data, lines.len);
    bytes_free(&lines);
}

/* ---- the network ---- */

static void call_listen(struct call *call)
{
    const struct header *header = call->header;
    const char *trouble = network_listen(call->init, header_text(header, "host", ""), header_number(header, "port", 0),
                                         header_number(header, "is_datagram", 0));
    if (trouble)
        refuse(call, "refused", trouble);
    else
        answer(call);
}

static void call_reply(struct call *call)
{
    const struct header *header = call->header;
    network_reply(call->init, header_text(header, "listener", ""), header_number(header, "address", 0),
                  header_number(header, "port", 0), call->frame->body, call->frame->body_len);
    answer(call);
}

/* ---- the machine ---- */

/* A cloned machine is another one, and is configured anew. */
static void call_reseed(struct call *call)
{
    call->init->setup.is_configured = false;
    int64_t now_ns = header_number(call->header, "now_ns", 0);
    struct timespec now = {now_ns / 1000000000, now_ns % 1000000000};
    int fd = open("/dev/urandom", O_WRONLY | O_CLOEXEC);
    if (fd >= 0 && write(fd, call->frame->body, call->frame->body_len) < 0)
        refuse(call, "refused", "cannot write to /dev/urandom");
    else if (call->init->is_machine && clock_settime(CLOCK_REALTIME, &now)) /* another's clock is not ours to set */
        refuse(call, "refused", "cannot set the clock");
    else
        answer(call);
    if (fd >= 0) {
        ioctl(fd, RESEED_RANDOM);
        close(fd);
    }
}

static void call_shutdown(struct call *call)
{
    call->init->is_stopping = true;
    answer(call);
}

static const struct {
    const char *name;
    void (*function)(struct call *);
    bool needs_job;
} calls[] = {
    {"hello", call_hello, false},   {"configure", call_configure, false}, {"start", call_start, false},
    {"wait", call_wait, true},      {"follow", call_follow, true},        {"unfollow", call_unfollow, true},
    {"kept", call_kept, true},      {"feed", call_feed, true},            {"signal", call_signal, true},
    {"resize", call_resize, true},  {"forget", call_forget, false},       {"jobs", call_jobs, false},
    {"listen", call_listen, false}, {"reply", call_reply, false},         {"reseed", call_reseed, false},
    {"shutdown", call_shutdown, false},
};

void call_handle(struct init *init, struct frame *frame)
{
    struct header header;
    bool is_valid = header_parse(&header, frame->header, frame->header_len);
    const char *name = is_valid ? header_text(&header, "op", "") : "";
    struct call call = {init, &header, frame, header_number(&header, "id", 0), NULL};
    bool is_hello = !strcmp(name, "hello");
    bool may_speak = is_hello || (init->is_greeted && frame->has_key);
    call.job = job_find(init->jobs, header_text(&header, "job", ""));
    size_t i = 0, count = sizeof calls / sizeof *calls;
    while (i < count && strcmp(calls[i].name, name))
        i++;
    if (!may_speak)
        init->is_noisy = true;
    else if (i == count)
        refuse(&call, "refused", "not a call that init knows");
    else if (calls[i].needs_job && !call.job)
        refuse(&call, "unknown", "no job has this id");
    else
        calls[i].function(&call);
    header_free(&header);
}
