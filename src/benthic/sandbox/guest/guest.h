/* What the parts of init share. Init is one process without threads; everything that can block is a child of its own.
 *
 *   init.c     the loop: connection, timers, children      frames.c   frames on the stream
 *   calls.c    what the host may ask                       json.c     their headers
 *   jobs.c     the table of jobs                           kept.c     the first and last part of an output
 *   spawn.c    from init to the user's program             monitor.c  a command's parent: reaps and kills its tree
 *   files.c    file calls, as children                     pack.c, unpack.c   archives out and in
 *   ports.c    a connection to a port inside, or from one  boot.c     before all that, in a virtual machine
 *   network.c  sockets inside that the host serves         due.c      output and answers when they are due
 */
#ifndef GUEST_H
#define GUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

enum {
    PROTOCOL = 1,
    HEADER_MAX = 1 << 20,
    BODY_MAX = 1 << 20,
    PIECE_MAX = 64 << 10,     /* one read of a pipe, one frame of output */
    INPUT_MAX = 1 << 20,      /* unwritten input of one job */
    RING_MIN = 256 << 10,     /* what a reader may be behind */
    QUEUE_HIGH = 1 << 20,     /* no more output frames while so much is unsent */
    MAX_JOBS = 256,
    JOB_FDS = 4,              /* that a running job takes of init's */
    SPARE_FDS = 24,
    KEPT_MAX = 64 << 20,      /* output of all jobs; the host should forget what it has noted */
    ID_MAX = 64,
    MAX_LISTENERS = 128,
    DATAGRAM_MAX = 512,
};

/* ---- memory: init ends rather than go on with half of something; its host sees a dead sandbox ---- */

void *must_alloc(void *old, size_t size);
char *must_copy(const char *text);

struct bytes {
    char *data; /* within the memory at `base`: what is dropped from the front is only stepped over */
    size_t len, cap;
    char *base;
};

void bytes_add(struct bytes *bytes, const void *data, size_t len);
void bytes_drop(struct bytes *bytes, size_t len); /* from the front */
void bytes_free(struct bytes *bytes);

/* ---- headers: one JSON object whose values are strings, whole numbers, booleans, or lists of strings or numbers ---- */

enum kind { KIND_NULL, KIND_TEXT, KIND_NUMBER, KIND_LIST };

struct value {
    const char *key; /* in a list: NULL */
    enum kind kind;
    const char *text;
    int64_t number; /* of a list: how many values follow it in the table */
};

struct header {
    struct value *values;
    int num_values;
    int room;
};

bool header_parse(struct header *header, char *text, size_t len); /* decodes strings in place; text[len] is written */
void header_free(struct header *header);
const char *header_text(const struct header *header, const char *key, const char *otherwise);
int64_t header_number(const struct header *header, const char *key, int64_t otherwise);
const struct value *header_list(const struct header *header, const char *key, int *num_items);

void json_open(struct bytes *out);
void json_text(struct bytes *out, const char *key, const char *text);
void json_number(struct bytes *out, const char *key, int64_t number);
void json_close(struct bytes *out);

/* ---- frames: magic, header length, body length, CRC of these, CRC of header and body; all little endian ----
 *
 * The second CRC starts from the session's key, the CRC of the greeting's nonce, so that bytes of a file or of an
 * output are never taken for a frame after a disturbance. A greeting itself has the key 0.
 */

struct frame {
    char *header;
    size_t header_len;
    char *body;
    size_t body_len;
    bool has_key;
};

uint32_t crc32_of(uint32_t crc, const void *data, size_t len);
void frame_add(struct bytes *out, uint32_t key, const struct bytes *header, const void *body, size_t body_len);
size_t frame_find(struct bytes *in, uint32_t key, struct frame *frame, bool *is_noisy); /* its size; 0: none yet */

/* ---- a kept output: its first bytes, and its last ones in a ring ---- */

struct kept {
    int64_t total;     /* bytes seen */
    size_t max;        /* what a result shows */
    size_t head_cap, ring_max;
    char *head, *ring;
    size_t ring_cap;
};

void kept_init(struct kept *kept, size_t max);
void kept_add(struct kept *kept, const char *data, size_t len);
int64_t kept_next(const struct kept *kept, int64_t offset); /* the first byte from `offset` on that is still there */
size_t kept_copy(const struct kept *kept, int64_t offset, char *to, size_t len); /* up to the first gap */
size_t kept_size(const struct kept *kept); /* in memory */
size_t kept_len(const struct kept *kept); /* of what a result shows */
size_t kept_show(const struct kept *kept, size_t from, char *to, size_t len);
void kept_free(struct kept *kept);

/* ---- what holds for every command ---- */

struct setup {
    bool is_configured;
    uid_t uid;
    gid_t gid;
    char *cwd;
    char **env;
    int64_t *rlimits; /* pairs of resource and value */
    int num_rlimits;
    char *seccomp;
    size_t seccomp_len;
    size_t output_max;
    struct rlimit files; /* init's own before it took as many as it could */
};

struct program {
    char **argv;         /* a command, or a file call's name and arguments */
    char **env;          /* added to the set-up's */
    const char *cwd;     /* NULL: the set-up's */
    bool is_root;
    bool is_file_call;
    int rows, columns;   /* 0: no terminal */
    int stdio[3];        /* the child's ends; the terminal thrice */
    int control;         /* the child's end of the channel to init */
    int remote;          /* of a file call that carries a connection; else -1 */
};

/* ---- the channel between init and a child: packets ---- */

enum { CHILD_FAILED = 1, CHILD_EXITED, CHILD_HAS_TERMINAL };

struct report {
    int32_t kind;
    int32_t status; /* as of wait(2) */
    int32_t error;  /* errno of a failure */
    int64_t cpu_us, peak_bytes, written_bytes;
    char text[256]; /* what failed */
};

struct order {
    int32_t signal; /* 0: end everything, and then yourself */
};

void send_report(int control, int kind, const char *text, int error);
void monitor_main(const struct setup *setup, const struct program *program) __attribute__((noreturn));
void become_user(const struct setup *setup, const struct program *program); /* all but chdir and seccomp; ends on failure */
void run_program(const struct setup *setup, const struct program *program) __attribute__((noreturn));
void file_call_main(const struct setup *setup, const struct program *program) __attribute__((noreturn));
void kill_tree(int signal);                        /* every descendant of the caller */
bool kill_strays(const pid_t *known, int count);   /* but these and theirs; true if there was one */
void close_other_fds(int first_kept, int second_kept);

/* ---- for file calls; what they cannot do ends them ---- */

int open_folder(int parent, const char *name); /* never by a link; -1 and errno */
void file_failed(int error, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));
void check(bool is_good, const char *what); /* errno says why not */
void put_all(int fd, const void *data, size_t len);
size_t get_some(int fd, void *data, size_t len);
void make_parents(const char *path, mode_t mode);
void call_pack(char **arguments);
void call_unpack(char **arguments);
void call_connect(char **arguments);
void call_carry(char **arguments);
extern int accepted; /* this child's connection */

/* ---- jobs ---- */

enum state { JOB_RUNNING, JOB_EXITED, JOB_ENDED };

struct stream {
    int fd;             /* -1: ended */
    struct kept kept;
    int64_t consumed, sent, window;
    int64_t final;      /* once exited: read up to here, then no more */
};

struct job {
    struct job *next;
    char id[ID_MAX + 1];
    enum state state;
    pid_t pid;            /* the monitor or the file call; 0 once reaped */
    int control;
    bool is_file_call, is_connection, is_terminal, holds_output, is_followed, is_forgotten, was_signalled, is_ending,
        is_given_up;
    const char *reason;
    int64_t started_ms, deadline_ms, quiet_ms, printed_ms, give_up_ms, settle_ms, duration_ms;
    struct stream out[2];
    int input;            /* -1: closed */
    struct bytes unwritten;
    int64_t fed;
    bool input_ends, is_input_held; /* held until the child has its terminal: keys typed before would be lost */
    int64_t feed_id;      /* request to answer once there is room again; 0: none */
    int64_t *waiting;     /* requests to answer at the end */
    int num_waiting;
    struct report report; /* of the end, and of a failure to begin */
};

struct job *job_find(struct job *jobs, const char *id);
void job_start(const struct setup *setup, struct program *program, struct job *job);
bool job_may_read(const struct job *job, int stream);
void job_read(struct job *job, int stream, int64_t now_ms);
void job_write_input(struct job *job);
void job_hear(struct job *job, int64_t now_ms);
void job_reaped(struct job *job, int status, int64_t now_ms);
void job_order(struct job *job, int signal);
void job_end(struct job *job, const char *reason, int64_t now_ms);
void job_tick(struct job *job, int64_t now_ms);
void job_settle(struct job *job, int64_t now_ms);
int64_t job_due_ms(const struct job *job, int64_t now_ms); /* when job_tick is needed at the latest; 0: never */
bool job_is_done(const struct job *job); /* nothing is left that could be forgotten too early */
void job_free(struct job *job);

/* ---- the whole ---- */

struct listener {
    int fd;
    bool is_datagram;
    bool is_told; /* the host knows that somebody waits */
    char name[80];
};

struct init {
    int listener;         /* -1: a device */
    bool has_no_subreapers;
    const char *device;
    int connection;       /* -1: none */
    struct bytes in, out;
    char boot_id[33];
    char client[33];      /* its requests are numbered; signals must not be sent twice */
    int64_t last_signal_id;
    uint32_t key;         /* of the session */
    bool is_greeted, is_noisy;
    int64_t heard_ms, retry_ms;
    struct setup setup;
    struct job *jobs;
    int64_t now_ms;       /* running time: a machine that was frozen does not notice */
    bool is_stopping;
    bool is_machine;      /* booted by us, and ended by us */
    struct listener listeners[MAX_LISTENERS];
    int num_listeners, num_owned;
};

void call_handle(struct init *init, struct frame *frame);
void call_answer_jobs(struct init *init); /* sends output and answers that have become due */

const char *network_listen(struct init *init, const char *host, int port, bool is_datagram); /* NULL, or what is wrong */
int network_accept(struct init *init, const char *name); /* -1: nobody waits there */
void network_reply(struct init *init, const char *name, uint32_t address, int port, const void *data, size_t len);
void network_restart(struct init *init, bool is_new); /* a client has come; a new one listens anew */
bool network_wants(const struct init *init, const struct listener *listener);
void network_tell(struct init *init, struct listener *listener); /* somebody has come */

#endif
