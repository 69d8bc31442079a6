/* The few things of the kernel's interface that we need: musl-gcc comes without the kernel's headers. */
#ifndef LINUX_ABI_H
#define LINUX_ABI_H

#include <stdint.h>
#include <sys/ioctl.h>

#define CAPABILITY_VERSION 0x20080522 /* 64 bits in two words */
#define FILTER_MODE 2                 /* SECCOMP_MODE_FILTER */
#define RESEED_RANDOM _IO('R', 7)     /* RNDRESEEDCRNG */

#define VSOCK_FAMILY 40               /* AF_VSOCK */
#define VSOCK_ANY_CID 0xffffffffu
#define FREE_BIND 15                  /* IP_FREEBIND */
#define FREE_BIND_V6 78               /* IPV6_FREEBIND */

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

struct vsock_address {
    uint16_t family, reserved;
    uint32_t port, cid;
    uint8_t zero[4];
};

struct cap_header {
    uint32_t version;
    int pid;
};

struct cap_data {
    uint32_t effective, permitted, inheritable;
};

struct filter_step {
    uint16_t code;
    uint8_t if_true, if_false;
    uint32_t k;
};

struct filter {
    unsigned short len;
    struct filter_step *steps;
};

#endif
