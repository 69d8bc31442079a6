/* A connection to a TCP port on the sandbox's own loopback, or from there: stdin goes to it, what it sends to stdout. */
#define _GNU_SOURCE
#include "guest.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static int connect_to(const struct sockaddr *address, socklen_t len)
{
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, address, len)) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

static int connect_loopback(int port)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = connect_to((struct sockaddr *)&v4, sizeof v4);
    if (fd < 0 && (fd = connect_to((struct sockaddr *)&v6, sizeof v6)) < 0)
        file_failed(ECONNREFUSED, "nothing listens on port %d", port);
    return fd;
}

/* One direction of a connection. Neither waits for the other: a client may send all before it reads anything. */
struct flow {
    int from, to;
    char piece[PIECE_MAX];
    size_t at, len;
    bool is_over;
    int64_t total;
};

static void step(struct flow *flow)
{
    bool is_reading = flow->at == flow->len;
    ssize_t done = is_reading ? read(flow->from, flow->piece, sizeof flow->piece)
                              : write(flow->to, flow->piece + flow->at, flow->len - flow->at);
    if (done < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    check(done >= 0, is_reading ? "cannot read" : "cannot write");
    if (is_reading) {
        flow->at = 0;
        flow->len = done;
        flow->total += done;
        flow->is_over = !done;
    } else {
        flow->at += done;
    }
}

/* The outward direction, once over, is said to the host on stderr with its size: its stream is open until we end. */
static void carry(int remote, bool ends_with_remote)
{
    static struct flow in, out;
    in.from = 0, in.to = remote;
    out.from = remote, out.to = 1;
    setsockopt(remote, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    for (int fds[] = {0, 1, remote}, i = 0; i < 3; i++)
        fcntl(fds[i], F_SETFL, fcntl(fds[i], F_GETFL) | O_NONBLOCK);
    while (!out.is_over || (!in.is_over && !ends_with_remote)) {
        struct flow *flows[] = {&in, &out};
        struct pollfd fds[2];
        for (int i = 0; i < 2; i++) {
            bool is_reading = flows[i]->at == flows[i]->len;
            fds[i].fd = flows[i]->is_over ? -1 : is_reading ? flows[i]->from : flows[i]->to;
            fds[i].events = is_reading ? POLLIN : POLLOUT;
        }
        check(poll(fds, 2, -1) >= 0 || errno == EINTR, "cannot wait for the connection");
        for (int i = 0; i < 2; i++) {
            if (flows[i]->is_over || !fds[i].revents)
                continue;
            step(flows[i]);
            if (flows[i]->is_over && flows[i] == &in)
                shutdown(remote, SHUT_WR);
            else if (flows[i]->is_over)
                dprintf(2, "%lld\n", (long long)out.total);
        }
    }
}

/* connect PORT */
void call_connect(char **arguments)
{
    carry(connect_loopback(atoi(arguments[1])), true);
}

/* carry: a connection that init has accepted. */
void call_carry(char **arguments)
{
    (void)arguments;
    check(accepted >= 0, "no connection to carry");
    carry(accepted, false);
}
