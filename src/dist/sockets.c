#include "dist/sockets.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"

enum { MOST_GUESTS = 64, SILENCE = 180 };      /* seconds; a kernel asks at least every 120 */
static const double MANNERS = 10;              /* seconds to introduce oneself */
enum { IDLE = 60, INTERVAL = 10, PROBES = 6 }; /* seconds; is the other one still there? */

void socket_tune(int socket) {
    int on = 1, idle = IDLE, interval = INTERVAL, probes = PROBES;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

/* TCP itself repeats for 15 minutes what is not acknowledged. TCP_USER_TIMEOUT would also end connections to a process
 * that is only stopped. */
bool socket_is_silent(int socket) {
    struct tcp_info info = {0};
    socklen_t size = sizeof info;
    if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0)
        return false;
    /* data that acknowledges nothing new counts as data only */
    uint32_t acknowledged = info.tcpi_last_ack_recv, heard = info.tcpi_last_data_recv;
    return (acknowledged < heard ? acknowledged : heard) / 1000 > SILENCE;
}

void socket_name_peer(int socket, char name[INET6_ADDRSTRLEN]) {
    struct sockaddr_storage there = {0};
    socklen_t size = sizeof there;
    strcpy(name, "?");
    getpeername(socket, (struct sockaddr *)&there, &size);
    getnameinfo((struct sockaddr *)&there, size, name, INET6_ADDRSTRLEN, NULL, 0, NI_NUMERICHOST);
    if (strncmp(name, "::ffff:", 7) == 0 && strchr(name, '.'))
        memmove(name, name + 7, strlen(name + 7) + 1);
}

/* Of two ends that try at once, as one does that is given the very port to which it goes. */
static bool is_own_end(int socket) {
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t here_size = sizeof here, there_size = sizeof there;
    return getsockname(socket, (struct sockaddr *)&here, &here_size) == 0 &&
           getpeername(socket, (struct sockaddr *)&there, &there_size) == 0 && here_size == there_size &&
           memcmp(&here, &there, here_size) == 0;
}

/* 0, or what is wrong. */
static int finish_connect(int made, const struct sockaddr *address, socklen_t size, double seconds) {
    int why = 0;
    socklen_t why_size = sizeof why;
    struct pollfd wait = {.fd = made, .events = POLLOUT};
    if (connect(made, address, size) && errno != EINPROGRESS)
        return errno;
    if (poll(&wait, 1, (int)(1000 * seconds)) <= 0)
        return ETIMEDOUT;
    if (getsockopt(made, SOL_SOCKET, SO_ERROR, &why, &why_size))
        return errno;
    return why == 0 && is_own_end(made) ? ECONNREFUSED : why;
}

int socket_connect(const struct sockaddr *address, socklen_t size, double seconds) {
    int made = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (made < 0)
        return -1;
    int why = finish_connect(made, address, size, seconds);
    if (why == 0) {
        fcntl(made, F_SETFL, 0); /* blocking again */
        return made;
    }
    close(made);
    errno = why;
    return -1;
}

/* --- the door --- */

status door_open(struct door *door, int port) {
    struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    struct sockaddr_in old = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int off = 0, on = 1, kind = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, listener = socket(AF_INET6, kind, 0);
    socklen_t size = sizeof address;
    bool six = listener >= 0;
    if (six)
        setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    else
        listener = socket(AF_INET, kind, 0);
    door->all[0] = (struct pollfd){.fd = listener, .events = POLLIN};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, six ? (struct sockaddr *)&address : (struct sockaddr *)&old,
             six ? sizeof address : sizeof old) ||
        listen(listener, SOMAXCONN))
        return port ? bad_input("MASTER_PORT = %d: cannot listen there: %s", port, strerror(errno))
                    : failed("no port to listen on: %s", strerror(errno));
    getsockname(listener, (struct sockaddr *)&address, &size); /* the port is in the same place in both kinds */
    door->port = ntohs(address.sin6_port);
    return OK;
}

/* Guest i, from 1 on, is no guest any more. */
static void let_go(struct door *door, int i) {
    size_t after = (size_t)(door->guests - i);
    memmove(door->all + i, door->all + i + 1, after * sizeof *door->all);
    memmove(door->since + i, door->since + i + 1, after * sizeof *door->since);
    door->guests--;
}

static void send_away(struct door *door, int i) {
    close(door->all[i].fd);
    let_go(door, i);
}

/* A guest counts as ready when all he has to say is there. */
static void let_in(struct door *door, size_t size) {
    int enough = (int)size, guest = accept4(door->all[0].fd, NULL, NULL, SOCK_CLOEXEC);
    if (guest < 0 && (errno == EMFILE || errno == ENFILE)) {
        if (!door->full)
            log_warn("no descriptor is left for a process that wants to connect (ulimit -n)");
        door->full = true;
        sleep(1); /* others may be closed */
    }
    if (guest < 0)
        return;
    if (door->guests == MOST_GUESTS)
        send_away(door, 1);
    setsockopt(guest, SOL_SOCKET, SO_RCVLOWAT, &enough, sizeof enough);
    int last = ++door->guests;
    door->all[last] = (struct pollfd){.fd = guest, .events = POLLIN};
    door->since[last] = clock_seconds();
}

/* The one of them who said all; the others who have come to an end are sent away. */
static int hear(struct door *door, void *words, size_t size) {
    for (int i = door->guests, one = 1; i > 0; i--) {
        int guest = door->all[i].fd;
        if (door->all[i].revents) {
            if (recv(guest, words, size, MSG_DONTWAIT) == (ssize_t)size) {
                setsockopt(guest, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one);
                let_go(door, i);
                return guest;
            }
            send_away(door, i);
        } else if (clock_seconds() - door->since[i] > MANNERS) {
            send_away(door, i);
        }
    }
    return -1;
}

int door_next(struct door *door, void *words, size_t size, double until) {
    for (double left; (left = until - clock_seconds()) > 0;) {
        if (poll(door->all, (nfds_t)(1 + door->guests), (int)(1000 * (left < 1 ? left : 1)) + 1) < 0)
            continue;
        int guest = hear(door, words, size);
        if (guest >= 0)
            return guest;
        if (door->all[0].revents)
            let_in(door, size);
    }
    return -1;
}

void door_close(struct door *door) {
    while (door->guests)
        send_away(door, 1);
    if (door->all[0].fd >= 0)
        close(door->all[0].fd);
}
