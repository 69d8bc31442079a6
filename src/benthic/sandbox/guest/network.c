/* Sockets of the sandbox's own loopback that the host serves: what arrives there goes to the host over our stream.
 *
 * Init keeps the listening sockets. It tells the host once that somebody waits; the host then starts a job that carries
 * the connection (ports.c), as many at once as it likes, and the rest waits in the kernel. Datagrams are questions to a
 * name service: each goes to the host whole, and so does the reply.
 */
#define _GNU_SOURCE
#include "calls.h"
#include "linux_abi.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BACKLOG = 64 };
#define RESOLV_CONF "/etc/resolv.conf"

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static socklen_t parse_address(const char *host, int port, union address *address)
{
    *address = (union address){0};
    if (port < 1 || port > 65535)
        return 0;
    if (inet_pton(AF_INET, host, &address->v4.sin_addr) == 1) {
        address->v4.sin_family = AF_INET;
        address->v4.sin_port = htons(port);
        return sizeof address->v4;
    }
    if (inet_pton(AF_INET6, host, &address->v6.sin6_addr) == 1) {
        address->v6.sin6_family = AF_INET6;
        address->v6.sin6_port = htons(port);
        return sizeof address->v6;
    }
    return 0;
}

static bool own_v4(struct init *init, int sock, const union address *address)
{
    struct ifreq request = {0};
    snprintf(request.ifr_name, sizeof request.ifr_name, "lo:%d", ++init->num_owned);
    memcpy(&request.ifr_addr, &address->v4, sizeof address->v4);
    ((struct sockaddr_in *)&request.ifr_addr)->sin_port = 0;
    if (ioctl(sock, SIOCSIFADDR, &request))
        return errno == EEXIST;
    ((struct sockaddr_in *)&request.ifr_addr)->sin_addr.s_addr = INADDR_NONE; /* of one address */
    return !ioctl(sock, SIOCSIFNETMASK, &request);
}

static bool own_v6(int sock, const union address *address)
{
    struct {
        struct in6_addr address;
        uint32_t prefix_len;
        int interface;
    } request = {address->v6.sin6_addr, 128, if_nametoindex("lo")};
    return !ioctl(sock, SIOCSIFADDR, &request) || errno == EEXIST;
}

/* Makes an address one of the loopback's, so that connections to it arrive here. */
static bool own(struct init *init, const union address *address)
{
    int family = address->any.sa_family;
    bool is_ours = family == AF_INET ? ntohl(address->v4.sin_addr.s_addr) >> 24 == 127
                                     : IN6_IS_ADDR_LOOPBACK(&address->v6.sin6_addr);
    if (is_ours)
        return true;
    int sock = init->is_machine ? socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0) : -1;
    if (sock < 0)
        return false;
    is_ours = family == AF_INET ? own_v4(init, sock, address) : own_v6(sock, address);
    close(sock);
    return is_ours;
}

static void name_the_service(const struct init *init)
{
    static const char text[] = "nameserver 127.0.0.1\noptions attempts:1 timeout:5\n";
    if (!init->is_machine)
        return;
    mkdir("/etc", 0755);
    unlink(RESOLV_CONF);
    int fd = open(RESOLV_CONF, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd >= 0 && write(fd, text, sizeof text - 1) < 0)
        errno = 0; /* a full disk: names are not found then */
    if (fd >= 0)
        close(fd);
}

static struct listener *find(struct init *init, const char *name)
{
    for (int i = 0; i < init->num_listeners; i++)
        if (!strcmp(init->listeners[i].name, name))
            return &init->listeners[i];
    return NULL;
}

/* A listener is known by its host and port, `127.0.0.1 3128`. */
const char *network_listen(struct init *init, const char *host, int port, bool is_datagram)
{
    union address address;
    socklen_t len = parse_address(host, port, &address);
    struct listener listener = {.is_datagram = is_datagram};
    snprintf(listener.name, sizeof listener.name, "%s %d", host, port);
    if (!len || (is_datagram && address.any.sa_family != AF_INET))
        return "no address to listen at";
    if (find(init, listener.name))
        return NULL;
    if (init->num_listeners == MAX_LISTENERS)
        return "too many listeners";
    if (!own(init, &address))
        return "the address cannot be led to the loopback";
    int type = (is_datagram ? SOCK_DGRAM : SOCK_STREAM) | SOCK_CLOEXEC | SOCK_NONBLOCK;
    int fd = socket(address.any.sa_family, type, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    /* An address that was given a moment ago may not be ready yet. */
    setsockopt(fd, IPPROTO_IP, FREE_BIND, &(int){1}, sizeof(int));
    setsockopt(fd, IPPROTO_IPV6, FREE_BIND_V6, &(int){1}, sizeof(int));
    if (fd < 0 || bind(fd, &address.any, len) || (!is_datagram && listen(fd, BACKLOG))) {
        if (fd >= 0)
            close(fd);
        return "cannot listen there";
    }
    if (is_datagram)
        name_the_service(init);
    listener.fd = fd;
    init->listeners[init->num_listeners++] = listener;
    return NULL;
}

int network_accept(struct init *init, const char *name)
{
    struct listener *listener = find(init, name);
    if (!listener || listener->is_datagram)
        return -1;
    listener->is_told = false; /* who else waits is told of next */
    return accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC);
}

void network_reply(struct init *init, const char *name, uint32_t address, int port, const void *data, size_t len)
{
    struct listener *listener = find(init, name);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(address)};
    if (listener && listener->is_datagram)
        sendto(listener->fd, data, len, MSG_DONTWAIT, (struct sockaddr *)&to, sizeof to); /* may be lost, as all are */
}

void network_restart(struct init *init, bool is_new)
{
    for (int i = 0; i < init->num_listeners; i++) {
        init->listeners[i].is_told = false;
        if (is_new)
            close(init->listeners[i].fd);
    }
    if (is_new)
        init->num_listeners = 0;
}

bool network_wants(const struct init *init, const struct listener *listener)
{
    return init->is_greeted && init->out.len < QUEUE_HIGH && !listener->is_told;
}

void network_tell(struct init *init, struct listener *listener)
{
    static char datagram[DATAGRAM_MAX];
    struct sockaddr_in from = {0};
    socklen_t from_len = sizeof from;
    struct bytes header = {0};
    ssize_t len = 0;
    if (listener->is_datagram) {
        len = recvfrom(listener->fd, datagram, sizeof datagram, MSG_DONTWAIT, (struct sockaddr *)&from, &from_len);
        if (len < 0)
            return;
    }
    json_open(&header);
    json_text(&header, "arrived", listener->name);
    if (listener->is_datagram) {
        json_number(&header, "address", ntohl(from.sin_addr.s_addr));
        json_number(&header, "port", ntohs(from.sin_port));
    }
    send_frame(init, &header, datagram, len);
    listener->is_told = !listener->is_datagram;
}
