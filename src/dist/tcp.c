/* Processes that tell each other by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as many clusters start them: a
 * connection between any two. They meet at rank 0, which hands out where each can be reached. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "dist/dist.h"
#include "dist/wire.h"

static const double PATIENCE = 300; /* seconds for all to come */
static const double GRACE = 30;     /* seconds to find out by oneself that another one has ended */
static const char MAGIC[8] = "berth 1";

struct tcp {
    struct wire wire;
    int *sockets; /* [ranks] -1: none */
    pthread_t watcher;
    bool watched;
    atomic_bool closing;
};

/* How a process introduces itself. All run the same program on the same kind of processor. */
struct hello {
    char magic[8];
    int32_t rank, ranks, port; /* where it can be reached; rank 0 knows its address */
};

/* --- moving bytes --- */

static status lost(int rank) {
    const char *why = errno ? strerror(errno) : "it has ended";
    return failed("the connection to rank %d is lost: %s", rank, why);
}

/* Goes on with what is there to move; `moved` is what send or recv gave. */
static status advance(int rank, ssize_t moved, int64_t *done) {
    if (moved > 0)
        *done += moved;
    if (moved == 0)
        errno = 0;
    return moved > 0 || (moved < 0 && (errno == EAGAIN || errno == EINTR)) ? OK : lost(rank);
}

/* Sends to one rank and receives from another at the same time, so that a ring of processes that all send goes on. */
static status exchange(struct tcp *tcp, int to, const char *out, int64_t out_bytes, int from, char *in,
                       int64_t in_bytes) {
    int64_t sent = 0, got = 0;
    while (sent < out_bytes || got < in_bytes) {
        struct pollfd wait[2] = {{.fd = sent < out_bytes ? tcp->sockets[to] : -1, .events = POLLOUT},
                                 {.fd = got < in_bytes ? tcp->sockets[from] : -1, .events = POLLIN}};
        if (poll(wait, 2, -1) < 0 && errno != EINTR)
            return failed("poll: %s", strerror(errno));
        if (wait[0].revents)
            TRY(advance(to, send(wait[0].fd, out + sent, (size_t)(out_bytes - sent), MSG_DONTWAIT | MSG_NOSIGNAL),
                        &sent));
        if (wait[1].revents)
            TRY(advance(from, recv(wait[1].fd, in + got, (size_t)(in_bytes - got), MSG_DONTWAIT), &got));
    }
    return OK;
}

static status all_to_all(struct wire *wire, const char *from, const int *counts, const int *starts, char *to) {
    int ranks = wire->comm.ranks, rank = wire->comm.rank;
    int64_t own = counts[rank];
    memcpy(to + rank * own, from + starts[rank], (size_t)own);
    for (int distance = 1; distance < ranks; distance++) {
        int next = (rank + distance) % ranks, previous = (rank - distance + ranks) % ranks;
        TRY(exchange((struct tcp *)wire, next, from + starts[next], counts[next], previous, to + previous * own, own));
    }
    return OK;
}

/* Slices go round the ring of ranks. */
static status all_gather(struct wire *wire, char *bytes, const int *counts, const int *starts) {
    int ranks = wire->comm.ranks, rank = wire->comm.rank;
    for (int distance = 0; distance < ranks - 1; distance++) {
        int out = (rank - distance + ranks) % ranks, in = (rank - distance - 1 + ranks) % ranks;
        TRY(exchange((struct tcp *)wire, (rank + 1) % ranks, bytes + starts[out], counts[out],
                     (rank - 1 + ranks) % ranks, bytes + starts[in], counts[in]));
    }
    return OK;
}

static status broadcast(struct comm *comm, int root, void *bytes, int64_t count) {
    struct tcp *tcp = (struct tcp *)comm;
    if (comm->rank != root)
        return exchange(tcp, root, NULL, 0, root, bytes, count);
    for (int rank = 0; rank < comm->ranks; rank++)
        if (rank != root)
            TRY(exchange(tcp, rank, bytes, count, rank, NULL, 0));
    return OK;
}

/* --- sockets --- */

/* Small messages go at once; a machine that is gone shows within minutes. */
static void tune(int socket) {
    int on = 1, idle = 60, interval = 10, probes = 6;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

/* On all addresses of this machine; port 0: one that is free. */
static status listen_on(int port, int *listener, int *taken) {
    struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    struct sockaddr_in old = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int off = 0, on = 1;
    socklen_t size = sizeof address;
    bool six = (*listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)) >= 0;
    if (six)
        setsockopt(*listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    else
        *listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(*listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(*listener, six ? (struct sockaddr *)&address : (struct sockaddr *)&old,
             six ? sizeof address : sizeof old) ||
        listen(*listener, SOMAXCONN))
        return port ? bad_input("MASTER_PORT = %d: rank 0 cannot listen there: %s", port, strerror(errno))
                    : failed("no port to listen on: %s", strerror(errno));
    getsockname(*listener, (struct sockaddr *)&address, &size); /* the port is in the same place in both kinds */
    *taken = ntohs(address.sin6_port);
    return OK;
}

/* The next process that introduces itself as one of us; whoever else comes is sent away. */
static status accept_one(struct tcp *tcp, int listener, double deadline, struct hello *hello, int *out) {
    const struct comm *comm = &tcp->wire.comm;
    for (;;) {
        struct pollfd wait = {.fd = listener, .events = POLLIN};
        double left = deadline - clock_seconds();
        if (left <= 0)
            return failed("rank %d waited %.0f s in vain for others: expected %d processes", comm->rank, PATIENCE,
                          comm->ranks);
        if (poll(&wait, 1, (int)(1000 * left) + 1) <= 0)
            continue;
        struct timeval limit = {.tv_sec = 10};
        int socket = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        bool ours = recv(socket, hello, sizeof *hello, MSG_WAITALL) == sizeof *hello &&
                    memcmp(hello->magic, MAGIC, sizeof MAGIC) == 0;
        if (ours && (hello->ranks != comm->ranks || hello->rank <= 0 || hello->rank >= comm->ranks ||
                     tcp->sockets[hello->rank] >= 0)) {
            close(socket);
            return bad_input("RANK = %d and WORLD_SIZE = %d come to rank %d of %d: expected each rank once",
                             hello->rank, hello->ranks, comm->rank, comm->ranks);
        }
        if (ours) {
            *out = tcp->sockets[hello->rank] = socket;
            tune(socket);
            return OK;
        }
        if (socket >= 0)
            close(socket);
    }
}

static status introduce(struct tcp *tcp, int rank, int port) {
    struct hello hello = {.rank = tcp->wire.comm.rank, .ranks = tcp->wire.comm.ranks, .port = port};
    memcpy(hello.magic, MAGIC, sizeof MAGIC);
    tune(tcp->sockets[rank]);
    return exchange(tcp, rank, (const char *)&hello, sizeof hello, rank, NULL, 0);
}

/* Of two ends that try at once, as one does that is given the very port to which it goes. */
static bool is_own_end(int socket) {
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t here_size = sizeof here, there_size = sizeof there;
    return getsockname(socket, (struct sockaddr *)&here, &here_size) == 0 &&
           getpeername(socket, (struct sockaddr *)&there, &there_size) == 0 && here_size == there_size &&
           memcmp(&here, &there, here_size) == 0;
}

static int connect_to(const struct sockaddr *address, socklen_t size) {
    int made = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool connected = made >= 0 && connect(made, address, size) == 0;
    if (connected && !is_own_end(made))
        return made;
    int why = connected ? ECONNREFUSED : errno;
    if (made >= 0)
        close(made);
    errno = why;
    return -1;
}

/* Rank 0 may start later than others. */
static status connect_to_master(struct tcp *tcp, const char *host, const char *port, double deadline) {
    struct addrinfo wanted = {.ai_socktype = SOCK_STREAM}, *found;
    int code = getaddrinfo(host, port, &wanted, &found);
    if (code)
        return bad_input("MASTER_ADDR = %s: %s", host, gai_strerror(code));
    while (tcp->sockets[0] < 0) {
        for (const struct addrinfo *a = found; a && tcp->sockets[0] < 0; a = a->ai_next)
            tcp->sockets[0] = connect_to(a->ai_addr, a->ai_addrlen);
        if (tcp->sockets[0] < 0 && clock_seconds() > deadline)
            break;
        if (tcp->sockets[0] < 0)
            usleep(100000);
    }
    freeaddrinfo(found);
    return tcp->sockets[0] >= 0 ? OK
                                : failed("rank %d cannot reach rank 0 at MASTER_ADDR = %s, MASTER_PORT = %s: %s",
                                         tcp->wire.comm.rank, host, port, strerror(errno));
}

/* --- meeting --- */

/* Where a rank can be reached. On rank 0's own machine that may be an address which only that machine knows: the others
 * then take the one by which they found rank 0. */
struct place {
    struct sockaddr_storage address;
    socklen_t size; /* 0: that of rank 0 */
    int port;
};

static bool is_loopback(const struct sockaddr_storage *address) {
    const struct in6_addr *six = &((const struct sockaddr_in6 *)address)->sin6_addr;
    if (address->ss_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(six) || (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == 127);
}

/* At the other end of a connection. An old address in a new one's clothes becomes itself: not all have the new ones. */
static void find_peer(int socket, struct place *place) {
    struct sockaddr_in old = {.sin_family = AF_INET};
    place->size = sizeof place->address;
    getpeername(socket, (struct sockaddr *)&place->address, &place->size);
    const struct in6_addr *six = &((struct sockaddr_in6 *)&place->address)->sin6_addr;
    if (place->address.ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(six))
        return;
    memcpy(&old.sin_addr, six->s6_addr + 12, sizeof old.sin_addr);
    memcpy(&place->address, &old, sizeof old);
    place->size = sizeof old;
}

/* Rank 0: all others come; then it tells them where all of them are. */
static status receive_all(struct tcp *tcp, int listener, double deadline, struct place *places) {
    struct comm *comm = &tcp->wire.comm;
    for (int come = 1; come < comm->ranks; come++) {
        struct hello hello;
        int socket;
        TRY(accept_one(tcp, listener, deadline, &hello, &socket));
        struct place *place = &places[hello.rank];
        find_peer(socket, place);
        place->port = hello.port;
        if (is_loopback(&place->address))
            place->size = 0;
    }
    return broadcast(comm, 0, places, comm->ranks * (int64_t)sizeof *places);
}

static status reach(struct tcp *tcp, int rank, struct place *place) {
    int port = place->port;
    if (place->size == 0)
        find_peer(tcp->sockets[0], place);
    ((struct sockaddr_in6 *)&place->address)->sin6_port = htons((uint16_t)port); /* where sin_port is, too */
    tcp->sockets[rank] = connect_to((struct sockaddr *)&place->address, place->size);
    return tcp->sockets[rank] >= 0
               ? OK
               : failed("rank %d cannot reach rank %d: %s", tcp->wire.comm.rank, rank, strerror(errno));
}

/* The others: to those of lower rank they go, those of higher rank come. */
static status join(struct tcp *tcp, int listener, int port, double deadline, struct place *places) {
    struct comm *comm = &tcp->wire.comm;
    TRY(introduce(tcp, 0, port));
    TRY(broadcast(comm, 0, places, comm->ranks * (int64_t)sizeof *places));
    for (int rank = 1; rank < comm->rank; rank++) {
        TRY(reach(tcp, rank, &places[rank]));
        TRY(introduce(tcp, rank, port));
    }
    for (int rank = comm->rank + 1; rank < comm->ranks; rank++) {
        struct hello hello;
        int socket;
        TRY(accept_one(tcp, listener, deadline, &hello, &socket));
    }
    return OK;
}

static status meet(struct tcp *tcp, const char *host, const char *port) {
    const struct comm *comm = &tcp->wire.comm;
    double deadline = clock_seconds() + PATIENCE;
    struct place *places = xcalloc((size_t)comm->ranks, sizeof *places);
    int listener = -1, taken = 0;
    status code = listen_on(comm->rank == 0 ? atoi(port) : 0, &listener, &taken);
    if (code == OK && comm->rank > 0)
        code = connect_to_master(tcp, host, port, deadline);
    if (code == OK)
        code = comm->rank == 0 ? receive_all(tcp, listener, deadline, places)
                               : join(tcp, listener, taken, deadline, places);
    if (listener >= 0)
        close(listener);
    free(places);
    return code;
}

/* --- processes that end --- */

static int find_ended(const struct tcp *tcp, struct pollfd *all) {
    int ranks = tcp->wire.comm.ranks;
    while (!atomic_load(&tcp->closing)) {
        if (poll(all, (nfds_t)ranks, 100) <= 0)
            continue;
        for (int rank = 0; rank < ranks; rank++)
            if (all[rank].revents & (POLLRDHUP | POLLHUP | POLLERR))
                return rank;
    }
    return -1;
}

/* Whoever waits for bytes sees that a connection has ended. Whoever waits for a GPU, which waits for the GPU of a
 * process that is gone, would wait for ever. Before this ends him there is time to say it himself, or to save. */
static void *watch(void *ctx) {
    struct tcp *tcp = ctx;
    const struct comm *comm = &tcp->wire.comm;
    struct pollfd *all = xcalloc((size_t)comm->ranks, sizeof *all);
    for (int rank = 0; rank < comm->ranks; rank++)
        all[rank] = (struct pollfd){.fd = tcp->sockets[rank], .events = POLLRDHUP};
    int ended = find_ended(tcp, all);
    free(all);
    for (double since = clock_seconds(); !atomic_load(&tcp->closing); usleep(100000))
        if (clock_seconds() - since > GRACE) {
            log_error("rank %d: rank %d has ended", comm->rank, ended);
            _exit(FAILED);
        }
    return NULL;
}

/* --- beginning and end --- */

/* The others see the connection end. */
static void abort_all(struct comm *comm, int code) {
    (void)comm;
    fflush(NULL);
    _exit(code);
}

static void release(struct tcp *tcp) {
    atomic_store(&tcp->closing, true);
    if (tcp->watched)
        pthread_join(tcp->watcher, NULL);
    for (int rank = 0; rank < tcp->wire.comm.ranks; rank++)
        if (tcp->sockets[rank] >= 0)
            close(tcp->sockets[rank]);
    wire_close(&tcp->wire);
    free(tcp->sockets);
    free(tcp);
}

static void tcp_free(struct comm *comm) {
    double together = 0;
    comm->sum_f64(comm, &together, 1); /* nobody leaves while another still waits for bytes */
    release((struct tcp *)comm);
}

/* Where the launcher counts the processes of a machine, it knows better than their names do. */
static void adopt_local_rank(struct comm *comm) {
    const char *rank = getenv("LOCAL_RANK"), *ranks = getenv("LOCAL_WORLD_SIZE");
    if (rank)
        comm->local_rank = atoi(rank);
    if (ranks)
        comm->local_ranks = atoi(ranks);
}

status comm_tcp_new(int rank, int ranks, const char *host, const char *port, struct comm **out) {
    char *end;
    long number = strtol(port, &end, 10);
    if (rank < 0 || rank >= ranks || end == port || *end || number < 1 || number > 65535)
        return bad_input(
            "RANK = %d, WORLD_SIZE = %d, MASTER_PORT = %s: expected a rank from 0 to WORLD_SIZE - 1, and a port", rank,
            ranks, port);
    struct tcp *tcp = xcalloc(1, sizeof *tcp);
    struct comm *comm = &tcp->wire.comm;
    comm->rank = rank;
    comm->ranks = ranks;
    comm->broadcast = broadcast;
    comm->abort = abort_all;
    comm->free = tcp_free;
    tcp->wire.all_to_all = all_to_all;
    tcp->wire.all_gather = all_gather;
    tcp->sockets = xmalloc((size_t)ranks * sizeof *tcp->sockets);
    for (int r = 0; r < ranks; r++)
        tcp->sockets[r] = -1;
    wire_open(&tcp->wire);
    status code = meet(tcp, host, port);
    if (code == OK)
        code = wire_meet(&tcp->wire, "TCP");
    if (code != OK) {
        release(tcp);
        return code;
    }
    adopt_local_rank(comm);
    tcp->watched = pthread_create(&tcp->watcher, NULL, watch, tcp) == 0;
    *out = comm;
    return OK;
}
