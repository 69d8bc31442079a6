/* A command's parent. It takes in whatever the command orphans, so that the whole tree can be found and ended, and it
 * outlives the command for as long as something of the tree runs in the background.
 */
#define _GNU_SOURCE
#include "guest.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct process {
    pid_t pid, parent;
    char state;
    bool is_in_tree, is_stopped_by_us;
};

static bool read_process(const char *name, struct process *process)
{
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/%.16s/stat", name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t len = read(fd, line, sizeof line - 1);
    close(fd);
    if (len <= 0)
        return false;
    line[len] = 0;
    char *rest = strrchr(line, ')'); /* the name before it may hold anything */
    *process = (struct process){.pid = atoi(name)};
    return rest && sscanf(rest + 1, " %c %d", &process->state, &process->parent) == 2;
}

static int list_processes(struct process **list)
{
    DIR *proc = opendir("/proc");
    int count = 0, room = 0;
    *list = NULL;
    for (struct dirent *entry; proc && (entry = readdir(proc));) {
        struct process process;
        if (!isdigit((unsigned char)entry->d_name[0]) || !read_process(entry->d_name, &process))
            continue;
        if (count == room) {
            room = room ? 2 * room : 64;
            *list = must_alloc(*list, room * sizeof **list);
        }
        (*list)[count++] = process;
    }
    if (proc)
        closedir(proc);
    return count;
}

static bool is_among(pid_t pid, const pid_t *pids, int count)
{
    for (int i = 0; i < count; i++)
        if (pids[i] == pid)
            return true;
    return false;
}

/* Marks our descendants but the spared ones and theirs. A parent may come after its child, so it goes round until
 * nothing is added. */
static void mark_tree(struct process *list, int count, const pid_t *spared, int num_spared)
{
    pid_t root = getpid();
    for (bool grew = true; grew;) {
        grew = false;
        for (int i = 0; i < count; i++) {
            bool belongs = list[i].parent == root;
            for (int j = 0; j < count && !belongs; j++)
                belongs = list[j].is_in_tree && list[j].pid == list[i].parent;
            if (!belongs || list[i].is_in_tree || is_among(list[i].pid, spared, num_spared))
                continue;
            list[i].is_in_tree = grew = true;
        }
    }
}

/* One round; returns how many living ones it was sent to, those that are stopped already left out. */
static int signal_tree(int signal, const pid_t *spared, int num_spared)
{
    struct process *list;
    int count = list_processes(&list), reached = 0;
    mark_tree(list, count, spared, num_spared);
    for (int i = 0; i < count; i++) {
        bool is_stopped = signal == SIGSTOP && strchr("Tt", list[i].state);
        if (list[i].is_in_tree && !strchr("ZX", list[i].state) && !is_stopped)
            reached += !kill(list[i].pid, signal);
    }
    free(list);
    return reached;
}

/* A stopped fork bomb does not grow while it is being killed. */
static int end_tree(const pid_t *spared, int num_spared)
{
    for (int round = 0; round < 50 && signal_tree(SIGSTOP, spared, num_spared); round++)
        usleep(1000); /* on a single processor they stop only when it is theirs */
    return signal_tree(SIGKILL, spared, num_spared);
}

void kill_tree(int signal)
{
    if (signal == SIGKILL)
        end_tree(NULL, 0);
    else
        signal_tree(signal, NULL, 0);
}

bool kill_strays(const pid_t *known, int count)
{
    return end_tree(known, count) > 0;
}

struct monitor {
    int control;
    pid_t child; /* 0: reaped */
    bool is_ending;
};

static void report_end(struct monitor *monitor, int status)
{
    struct rusage usage;
    getrusage(RUSAGE_CHILDREN, &usage);
    struct report report = {
        .kind = CHILD_EXITED,
        .status = status,
        .cpu_us = (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000LL + usage.ru_utime.tv_usec
                  + usage.ru_stime.tv_usec,
        .peak_bytes = usage.ru_maxrss * 1024LL,
        .written_bytes = usage.ru_oublock * 512LL,
    };
    monitor->child = 0;
    send(monitor->control, &report, sizeof report, MSG_NOSIGNAL);
}

/* True while there are children. */
static bool reap(struct monitor *monitor, int *status_of_child, bool *has_ended)
{
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid <= 0)
            return pid == 0 || errno != ECHILD;
        if (pid == monitor->child) {
            *status_of_child = status;
            *has_ended = true;
        }
    }
}

static void hear(struct monitor *monitor)
{
    struct order order;
    ssize_t len = recv(monitor->control, &order, sizeof order, MSG_DONTWAIT);
    if (len < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (len != sizeof order || !order.signal) /* init is gone, or wants an end */
        monitor->is_ending = true;
    else
        kill_tree(order.signal);
}

static int watch_children(void)
{
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    return signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
}

void monitor_main(const struct setup *setup, const struct program *program)
{
    struct monitor monitor = {.control = program->control};
    prctl(PR_SET_NAME, "monitor", 0, 0, 0);
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    int signals = watch_children();
    monitor.child = fork();
    if (!monitor.child)
        run_program(setup, program);
    if (monitor.child < 0) {
        send_report(program->control, CHILD_FAILED, "cannot make a process", errno);
        _exit(126);
    }
    for (int fd = 0; fd < 3; fd++)
        close(fd);
    close_other_fds(monitor.control, signals);
    int status = 0;
    bool has_ended = false, has_children = true;
    while (has_children) {
        struct pollfd fds[2] = {{.fd = signals, .events = POLLIN}, {.fd = monitor.control, .events = POLLIN}};
        poll(fds, 2, monitor.is_ending ? 10 : -1);
        struct signalfd_siginfo info;
        while (read(signals, &info, sizeof info) > 0)
            continue;
        if (!monitor.is_ending && fds[1].revents)
            hear(&monitor);
        if (monitor.is_ending)
            kill_tree(SIGKILL);
        has_children = reap(&monitor, &status, &has_ended);
        /* When all is being ended the end is told last: nothing is left then. */
        if (monitor.child && has_ended && (!monitor.is_ending || !has_children))
            report_end(&monitor, status);
    }
    _exit(0);
}
