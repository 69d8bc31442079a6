/* What a hostile program tries: one thing a run, named by its first argument. Prints what came of it: an error's number, or 0.
 *
 * Linked statically, so that it runs in every kind of sandbox whatever the image holds.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <unistd.h>

enum { MIB = 1 << 20 };

static int answer(long result)
{
    printf("%d\n", result < 0 ? errno : 0);
    return 0;
}

static int fork_bomb(char **arguments)
{
    while (arguments)
        fork();
    return 0;
}

static void *sleeper(void *nothing)
{
    pause();
    return nothing;
}

static int threads(char **arguments)
{
    (void)arguments;
    int count = 0;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 1 << 16);
    for (pthread_t thread; count < 100000 && !pthread_create(&thread, &attributes, sleeper, NULL); count++)
        ;
    printf("%d\n", count);
    fflush(stdout);
    _exit(0);
}

/* A piece of memory of a kind; kept for ever. */
static char *memory(const char *kind, size_t length)
{
    if (!strcmp(kind, "anonymous"))
        return mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!strcmp(kind, "shared"))
        return mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!strcmp(kind, "segment")) {
        int segment = shmget(IPC_PRIVATE, length, IPC_CREAT | 0600);
        return segment < 0 ? MAP_FAILED : shmat(segment, NULL, 0);
    }
    int fd = memfd_create("hog", 0);
    if (fd < 0 || ftruncate(fd, (off_t)length))
        return MAP_FAILED;
    return mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

static int hog(char **arguments)
{
    enum { PIECE = 8 * MIB };
    for (int left = atoi(arguments[1]); left > 0; left -= PIECE / MIB) {
        char *data = memory(arguments[0], PIECE);
        if (data == MAP_FAILED)
            return answer(-1);
        for (size_t at = 0; at < PIECE; at += 4096)
            data[at] = 1;
    }
    puts("all");
    return 0;
}

/* Fills a file system with one file, kept open and perhaps unlinked; says how many MiB went in and what stopped it. */
static int fill(char **arguments)
{
    static char block[1 << 16];
    memset(block, 'x', sizeof block);
    signal(SIGXFSZ, SIG_IGN);
    int fd = open(arguments[0], O_CREAT | O_WRONLY | O_TRUNC, 0644);
    if (arguments[1])
        unlink(arguments[0]);
    long long total = 0;
    ssize_t count = 0;
    while (fd >= 0 && total < 4LL << 30 && (count = write(fd, block, sizeof block)) > 0)
        total += count;
    printf("%lld ", total / MIB);
    return answer(fd < 0 ? fd : count);
}

static int sparse(char **arguments)
{
    signal(SIGXFSZ, SIG_IGN);
    int fd = open(arguments[0], O_CREAT | O_WRONLY, 0644);
    return answer(ftruncate(fd, 1LL << 40));
}

static int files(char **arguments)
{
    int count = 0;
    for (char name[256]; count < 10000000; count++) {
        snprintf(name, sizeof name, "%s/%d", arguments[0], count);
        int fd = open(name, O_CREAT | O_WRONLY, 0644);
        if (fd < 0)
            break;
        close(fd);
    }
    printf("%d ", count);
    return answer(-1);
}

static int descriptors(char **arguments)
{
    (void)arguments;
    int count = 0;
    while (dup(0) >= 0)
        count++;
    printf("%d ", count);
    return answer(-1);
}

/* Leaves a process behind that has left session and parent, holds our output open and does not want to end. */
static int daemonize(char **arguments)
{
    (void)arguments;
    for (int number = 1; number < 32; number++)
        signal(number, SIG_IGN);
    if (fork() == 0) {
        setsid();
        if (fork() == 0) {
            prctl(PR_SET_NAME, "daemon");
            for (;;)
                sleep(1);
        }
        _exit(0);
    }
    if (!arguments[0])
        return 0;
    for (;;)
        sleep(1); /* deaf to every signal that it may be deaf to */
}

static int zombies(char **arguments)
{
    (void)arguments;
    for (int i = 0; i < 20; i++)
        if (fork() == 0)
            _exit(0);
    usleep(50000);
    return 0; /* twenty unwaited children become init's */
}

static int priority(char **arguments)
{
    (void)arguments;
    struct sched_param parameters = {.sched_priority = 1};
    answer(setpriority(PRIO_PROCESS, 0, -5));
    return answer(syscall(SYS_sched_setscheduler, 0, SCHED_FIFO, &parameters));
}

static int call(char **arguments)
{
    long words[7] = {0};
    for (int i = 0; i < 7 && arguments[i]; i++)
        words[i] = strtol(arguments[i], NULL, 0);
    return answer(syscall(words[0], words[1], words[2], words[3], words[4], words[5], words[6]));
}

static int make_device(char **arguments)
{
    return answer(mknod(arguments[0], S_IFBLK | 0666, makedev(254, 0)));
}

static int identity(char **arguments)
{
    (void)arguments;
    uid_t real, effective, saved;
    getresuid(&real, &effective, &saved);
    printf("%u %u %u\n", real, effective, saved);
    return 0;
}

static int send_signal(char **arguments)
{
    return answer(kill(atoi(arguments[0]), atoi(arguments[1])));
}

static int connect_to(char **arguments)
{
    struct sockaddr_in6 address6 = {.sin6_family = AF_INET6, .sin6_port = htons((in_port_t)atoi(arguments[1]))};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = address6.sin6_port};
    int is_4 = inet_pton(AF_INET, arguments[0], &address.sin_addr);
    inet_pton(AF_INET6, arguments[0], &address6.sin6_addr);
    int fd = socket(is_4 ? AF_INET : AF_INET6, SOCK_STREAM, 0);
    if (fd < 0)
        return answer(fd);
    return answer(is_4 ? connect(fd, (struct sockaddr *)&address, sizeof address)
                       : connect(fd, (struct sockaddr *)&address6, sizeof address6));
}

static int connect_abstract(char **arguments)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(arguments[0]);
    memcpy(address.sun_path + 1, arguments[0], length);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    return answer(connect(fd, (struct sockaddr *)&address, (socklen_t)(sizeof(sa_family_t) + 1 + length)));
}

static int open_socket(char **arguments)
{
    return answer(socket(atoi(arguments[0]), atoi(arguments[1]), atoi(arguments[2])));
}

static int overwrite(char **arguments)
{
    return answer(open(arguments[0], O_WRONLY | (arguments[1] ? O_CREAT : 0), 0644));
}

static int read_file(char **arguments)
{
    char data[4096];
    int fd = open(arguments[0], O_RDONLY | O_NONBLOCK);
    if (fd < 0)
        return answer(fd);
    ssize_t count = read(fd, data, sizeof data);
    if (count < 0)
        return answer(count);
    fwrite(data, 1, (size_t)count, stdout);
    return 0;
}

/* As many of a thing as can be had, and why no more: what a host counts for all of its sandboxes together. */
static int hoard(char **arguments)
{
    long count = 0;
    while (count < 100000 && (strcmp(arguments[0], "watches") ? open("/dev/ptmx", O_RDWR | O_NOCTTY) : inotify_init()) >= 0)
        count++;
    printf("%ld %d\n", count, errno);
    return 0;
}

static const struct {
    const char *name;
    int (*run)(char **arguments);
} DEEDS[] = {
    {"call", call}, {"connect", connect_to}, {"connect-abstract", connect_abstract}, {"daemon", daemonize},
    {"descriptors", descriptors}, {"device", make_device}, {"files", files}, {"fill", fill}, {"fork-bomb", fork_bomb},
    {"hoard", hoard}, {"hog", hog}, {"identity", identity}, {"kill", send_signal}, {"overwrite", overwrite},
    {"priority", priority}, {"read", read_file}, {"socket", open_socket}, {"sparse", sparse}, {"threads", threads},
    {"zombies", zombies},
};

int main(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < sizeof DEEDS / sizeof *DEEDS; i++)
        if (!strcmp(DEEDS[i].name, argv[1]))
            return DEEDS[i].run(argv + 2);
    fprintf(stderr, "no such deed\n");
    return 2;
}
