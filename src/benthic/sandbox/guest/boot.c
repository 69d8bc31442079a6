/* What /init of the initramfs does in a virtual machine, before it is the init that every kind of sandbox has.
 *
 * The host says in the kernel's command line (which the kernel hands on as environment):
 *   layers=N     disks with the serial numbers layer0 (the lowest), layer1, ... hold EROFS layers
 *   threads=N    processes and threads of the whole machine
 *   shm_bytes=N  what /dev/shm holds     shm_files=N  and how many
 *   ordered=1    disks have no such serial numbers: they are layer0, layer1, ..., upper in the order of their devices
 *   vsock=N      the host comes by this port of a vsock, and not by a virtio-serial port
 * A disk with the serial number `upper` holds an ext4 file system for what the sandbox writes.
 *
 * Afterwards the root is an overlay of these, nothing of the initramfs can be reached, and init runs from memory.
 */
#define _GNU_SOURCE
#include "boot.h"
#include "linux_abi.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#define PORT_NAME "benthic"
#define DEVICE_WAIT_MS 10000
#define MAX_LAYERS 24

void end_machine(void) {
    if (getpid() != 1) return; /* it is not ours */
    sync();
    reboot(RB_AUTOBOOT); /* whoever emulates a machine ends with it; some know no other way of switching it off */
}

static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "benthic-init: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, ": %s\n", strerror(errno));
    va_end(arguments);
    end_machine();
    _exit(1);
}

static void mounted(const char *source, const char *target, const char *type, unsigned long flags, const char *data) {
    if (mkdir(target, 0755) && errno != EEXIST) fail("mkdir %s", target);
    if (mount(source, target, type, flags, data)) fail("mount %s on %s", type ? type : source, target);
}

static long number(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text && *text ? atol(text) : otherwise;
}

static void wait_a_little(void) {
    struct timespec pause = {.tv_nsec = 2000000};
    nanosleep(&pause, NULL);
}

static void load_modules(void) {
    char path[64];
    for (int index = 0; index < 100; index++) {
        snprintf(path, sizeof path, "/modules/%02d.ko", index);
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file < 0) return;
        if (syscall(SYS_finit_module, file, "", 0) && errno != EEXIST) fail("load %s", path);
        close(file);
        unlink(path);
    }
}

static int opened_when_there(const char *path, int flags) {
    for (int waited_ms = 0; waited_ms < DEVICE_WAIT_MS; waited_ms += 2) {
        int file = open(path, flags | O_CLOEXEC);
        if (file >= 0) return file;
        wait_a_little();
    }
    fail("open %s", path);
    return -1;
}

/* The device of the disk with a serial number, such as "/dev/vda"; "" if it is not there yet. */
static void find_disk(const char *serial, char *device, size_t size) {
    device[0] = 0;
    for (char letter = 'a'; letter <= 'z' && !*device; letter++) {
        char path[40], found[32] = "";
        snprintf(path, sizeof path, "/sys/block/vd%c/serial", letter);
        FILE *file = fopen(path, "re");
        if (!file) continue;
        if (fgets(found, sizeof found, file) && !strcmp(found, serial)) snprintf(device, size, "/dev/vd%c", letter);
        fclose(file);
    }
}

static void mount_disk(const char *serial, int place, const char *target, const char *type, unsigned long flags,
                       const char *options) {
    char device[16] = "";
    if (number("ordered", 0)) snprintf(device, sizeof device, "/dev/vd%c", 'a' + place);
    for (int waited_ms = 0; !*device && waited_ms < DEVICE_WAIT_MS; waited_ms += 2) {
        find_disk(serial, device, sizeof device);
        if (!*device) wait_a_little();
    }
    errno = ENODEV;
    if (!*device) fail("find the disk %s", serial);
    close(opened_when_there(device, O_RDONLY));
    mounted(device, target, type, flags, options);
}

/* The overlay's lower folders, highest first, as overlayfs wants them. */
static void mount_layers(int num_layers, char *lower, size_t size) {
    if (num_layers < 1 || num_layers > MAX_LAYERS) {
        errno = EINVAL;
        fail("layers=%d", num_layers);
    }
    if (mkdir("/layers", 0755) && errno != EEXIST) fail("mkdir /layers");
    lower[0] = 0;
    for (int index = num_layers - 1; index >= 0; index--) {
        char serial[16], target[32];
        snprintf(serial, sizeof serial, "layer%d", index);
        snprintf(target, sizeof target, "/layers/%d", index);
        mount_disk(serial, index, target, "erofs", MS_RDONLY | MS_NOSUID | MS_NODEV, NULL);
        snprintf(lower + strlen(lower), size - strlen(lower), "%s%s", *lower ? ":" : "", target);
    }
}

static void mount_root(void) {
    char lower[MAX_LAYERS * 16], options[MAX_LAYERS * 16 + 128];
    int num_layers = (int)number("layers", 1);
    mount_layers(num_layers, lower, sizeof lower);
    /* What the kernel does in the background for a disk just mounted, it would do in every clone. */
    mount_disk("upper", num_layers, "/upper", "ext4", MS_NOSUID | MS_NODEV | MS_NOATIME,
               "noinit_itable,no_prefetch_block_bitmaps");
    if (mkdir("/upper/data", 0755) && errno != EEXIST) fail("mkdir /upper/data");
    if (mkdir("/upper/work", 0700) && errno != EEXIST) fail("mkdir /upper/work");
    snprintf(options, sizeof options, "lowerdir=%s,upperdir=/upper/data,workdir=/upper/work", lower);
    mounted("overlay", "/root", "overlay", MS_NOSUID | MS_NODEV | MS_NOATIME, options);
}

static void make_device(const char *path, mode_t mode, dev_t device) {
    if (mknod(path, S_IFCHR | mode, device)) fail("make %s", path);
}

/* The few devices that programs expect, and the port; the kernel's own folder has disks and memory in it. */
static void make_devices(const char *port) {
    struct stat status;
    if (port && stat(port, &status)) fail("stat %s", port);
    mounted("dev", "/root/dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=755,size=64k,nr_inodes=64");
    if (chdir("/root/dev")) fail("enter /root/dev");
    make_device("null", 0666, makedev(1, 3));
    make_device("zero", 0666, makedev(1, 5));
    make_device("full", 0666, makedev(1, 7));
    make_device("random", 0666, makedev(1, 8));
    make_device("urandom", 0666, makedev(1, 9));
    make_device("tty", 0666, makedev(5, 0));
    if (port) make_device(strrchr(port, '/') + 1, 0600, status.st_rdev);
    static const char *const links[][2] = {
        {"/proc/self/fd", "fd"}, {"fd/0", "stdin"}, {"fd/1", "stdout"}, {"fd/2", "stderr"}, {"pts/ptmx", "ptmx"}};
    for (size_t index = 0; index < sizeof links / sizeof *links; index++)
        if (symlink(links[index][0], links[index][1])) fail("link %s", links[index][1]);
}

static void enter_root(const char *port) {
    char options[96];
    make_devices(port);
    mounted("proc", "/root/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    mounted("sys", "/root/sys", "sysfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    unlink("/init");
    if (chdir("/root") || mount(".", "/", NULL, MS_MOVE, NULL) || chroot(".") || chdir("/")) fail("enter root");
    mounted("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620");
    snprintf(options, sizeof options, "mode=1777,size=%ld,nr_inodes=%ld", number("shm_bytes", 16 << 20),
             number("shm_files", 1000) + 1);
    mounted("shm", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, options);
    mounted("run", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=4m,nr_inodes=1000");
}

static void write_setting(const char *path, long value) {
    FILE *file = fopen(path, "we");
    if (!file) return;
    fprintf(file, "%ld", value);
    fclose(file);
}

static void restrict_kernel(void) {
    long threads = number("threads", 0);
    /* What the machine itself needs is not the sandbox's. */
    if (threads > 0) write_setting("/proc/sys/kernel/threads-max", threads + 96);
    write_setting("/proc/sys/kernel/dmesg_restrict", 1);
    write_setting("/proc/sys/kernel/kptr_restrict", 2);
    write_setting("/proc/sys/kernel/perf_event_paranoid", 3);
    write_setting("/proc/sys/kernel/unprivileged_bpf_disabled", 1);
    write_setting("/proc/sys/kernel/unprivileged_userns_clone", 0);
    write_setting("/proc/sys/kernel/sysrq", 0);
    write_setting("/proc/sys/kernel/modules_disabled", 1);
    write_setting("/proc/sys/kernel/kexec_load_disabled", 1);
    write_setting("/proc/sys/vm/panic_on_oom", 0);
    write_setting("/proc/sys/kernel/shm_rmid_forced", 1); /* shared memory goes with its last user */
}

/* Root inside owns these files, and needs no capability to write what it owns. */
static void close_kernel(void) {
    static const char *const closed[] = {"/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs"};
    for (size_t index = 0; index < sizeof closed / sizeof *closed; index++) {
        if (mount(closed[index], closed[index], NULL, MS_BIND, NULL) && errno == ENOENT) continue;
        unsigned long flags = MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC;
        if (mount(NULL, closed[index], NULL, flags, NULL)) fail("close %s", closed[index]);
    }
}

static void raise_loopback(void) {
    struct ifreq request = {.ifr_name = "lo"};
    int sock = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (sock < 0) return;
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    if (ioctl(sock, SIOCSIFFLAGS, &request)) fail("raise loopback");
    close(sock);
}

/* The device of the port with our name, such as "vport0p1"; "" if it is not there yet. */
static void find_port(char *device, size_t size) {
    DIR *ports = opendir("/sys/class/virtio-ports");
    device[0] = 0;
    if (!ports) return;
    for (struct dirent *entry; (entry = readdir(ports));) {
        char path[320], name[32] = "";
        snprintf(path, sizeof path, "/sys/class/virtio-ports/%s/name", entry->d_name);
        FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "re");
        if (!file) continue;
        if (fgets(name, sizeof name, file) && !strncmp(name, PORT_NAME, strlen(PORT_NAME)))
            snprintf(device, size, "/dev/%s", entry->d_name);
        fclose(file);
    }
    closedir(ports);
}

static void wait_for_port(char *device, size_t size) {
    for (int waited_ms = 0; waited_ms < DEVICE_WAIT_MS; waited_ms += 2) {
        find_port(device, size);
        if (*device) return;
        wait_a_little();
    }
    errno = ENODEV;
    fail("find the port to the host");
}

/* A socket that the host's connections arrive at. */
static int listen_vsock(unsigned port) {
    struct vsock_address address = {.family = VSOCK_FAMILY, .port = port, .cid = VSOCK_ANY_CID};
    int sock = socket(VSOCK_FAMILY, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (sock < 0 || bind(sock, (struct sockaddr *)&address, sizeof address) || listen(sock, 8))
        fail("listen at port %u of the vsock", port);
    int listener = fcntl(sock, F_DUPFD_CLOEXEC, 3); /* whatever the kernel has opened for us */
    close(sock);
    return listener;
}

int boot_machine(const char **device_of_port) {
    static char device[300];
    long vsock_port;
    int listener = -1;
    umask(0);
    mounted("dev", "/dev", "devtmpfs", MS_NOSUID, "mode=755");
    mounted("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    mounted("sys", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    load_modules();
    mount_root();
    vsock_port = number("vsock", 0);
    if (vsock_port > 0) {
        listener = listen_vsock((unsigned)vsock_port);
    } else {
        wait_for_port(device, sizeof device);
        *device_of_port = device;
    }
    enter_root(*device_of_port);
    raise_loopback();
    sethostname("sandbox", 7);
    restrict_kernel();
    close_kernel();
    /* Whoever ends a hundred busy processes on one processor must not wait behind each of them. */
    setpriority(PRIO_PROCESS, 0, -15);
    umask(022);
    sync(); /* what is written back later is written in every clone */
    return listener;
}
