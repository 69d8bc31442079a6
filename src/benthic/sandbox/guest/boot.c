/* What /init of the initramfs does in a virtual machine, before it is the init that every kind of sandbox has.
 *
 * The host says in the kernel's command line (which the kernel hands on as environment):
 *   layers=N     disks with the serial numbers layer0 (the lowest), layer1, ... hold EROFS layers
 *   threads=N    processes and threads of the whole machine
 * A disk with the serial number `upper` holds an ext4 file system for what the sandbox writes.
 *
 * Afterwards the root is an overlay of these, nothing of the initramfs can be reached, and init runs from memory.
 */
#define _GNU_SOURCE
#include "boot.h"

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
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PORT_NAME "benthic"
#define DEVICE_WAIT_MS 10000
#define MAX_LAYERS 24

static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "benthic-init: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, ": %s\n", strerror(errno));
    va_end(arguments);
    sync();
    reboot(RB_POWER_OFF);
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

static void mount_disk(const char *serial, const char *target, const char *type, unsigned long flags) {
    char device[16] = "";
    for (int waited_ms = 0; !*device && waited_ms < DEVICE_WAIT_MS; waited_ms += 2) {
        find_disk(serial, device, sizeof device);
        if (!*device) wait_a_little();
    }
    errno = ENODEV;
    if (!*device) fail("find the disk %s", serial);
    close(opened_when_there(device, O_RDONLY));
    mounted(device, target, type, flags, NULL);
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
        mount_disk(serial, target, "erofs", MS_RDONLY | MS_NOSUID | MS_NODEV);
        snprintf(lower + strlen(lower), size - strlen(lower), "%s%s", *lower ? ":" : "", target);
    }
}

static void mount_root(void) {
    char lower[MAX_LAYERS * 16], options[MAX_LAYERS * 16 + 128];
    mount_layers((int)number("layers", 1), lower, sizeof lower);
    mount_disk("upper", "/upper", "ext4", MS_NOSUID | MS_NODEV | MS_NOATIME);
    if (mkdir("/upper/data", 0755) && errno != EEXIST) fail("mkdir /upper/data");
    if (mkdir("/upper/work", 0700) && errno != EEXIST) fail("mkdir /upper/work");
    snprintf(options, sizeof options, "lowerdir=%s,upperdir=/upper/data,workdir=/upper/work", lower);
    mounted("overlay", "/root", "overlay", MS_NOSUID | MS_NODEV | MS_NOATIME, options);
}

static void enter_root(void) {
    static const char *const moved[] = {"dev", "proc", "sys"};
    char target[16];
    for (size_t index = 0; index < sizeof moved / sizeof *moved; index++) {
        snprintf(target, sizeof target, "/root/%s", moved[index]);
        if (mkdir(target, 0755) && errno != EEXIST) fail("mkdir %s", target);
        if (mount(target + 5, target, NULL, MS_MOVE, NULL)) fail("move %s", target + 5);
    }
    unlink("/init");
    if (chdir("/root") || mount(".", "/", NULL, MS_MOVE, NULL) || chroot(".") || chdir("/")) fail("enter root");
    mounted("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620");
    mounted("shm", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=25%");
    mounted("run", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=10%");
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

const char *boot_machine(void) {
    static char device[300];
    umask(0);
    mounted("dev", "/dev", "devtmpfs", MS_NOSUID, "mode=755");
    mounted("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    mounted("sys", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    load_modules();
    mount_root();
    wait_for_port(device, sizeof device);
    enter_root();
    raise_loopback();
    restrict_kernel();
    umask(022);
    return device;
}
