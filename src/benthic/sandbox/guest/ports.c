/* A connection to a TCP port on the sandbox's own loopback: stdin goes there, and what comes back to stdout. */
#define _GNU_SOURCE
#include "guest.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
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

/* connect PORT */
void call_connect(char **arguments)
{
    static char piece[PIECE_MAX];
    int remote = connect_loopback(atoi(arguments[1]));
    setsockopt(remote, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    for (struct pollfd fds[2] = {{0, POLLIN, 0}, {remote, POLLIN, 0}}; fds[1].fd >= 0;) {
        check(poll(fds, 2, -1) >= 0 || errno == EINTR, "cannot wait for the connection");
        if (fds[0].revents) {
            size_t len = get_some(0, piece, sizeof piece);
            put_all(remote, piece, len);
            if (!len) {
                shutdown(remote, SHUT_WR);
                fds[0].fd = -1;
            }
        }
        if (fds[1].revents) {
            size_t len = get_some(remote, piece, sizeof piece);
            put_all(1, piece, len);
            if (!len)
                fds[1].fd = -1;
        }
    }
}
