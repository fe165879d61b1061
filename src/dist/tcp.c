/* Processes that tell each other by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as many clusters start them: a
 * connection between any two. They meet at rank 0, which hands out where each can be reached. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "dist/dist.h"
#include "dist/sockets.h"
#include "dist/wire.h"

/* seconds */
static const double NOTICE = 10; /* until a wait at the start is spoken of */
static const double ANSWER = 30; /* in which a machine, or rank 0, answers */
static const double GRACE = 30;  /* to find out by oneself that another one has ended */
static const char MAGIC[8] = "berth 2";

struct tcp {
    struct wire wire;
    int *sockets;                    /* [ranks] -1: none */
    char (*names)[INET6_ADDRSTRLEN]; /* [ranks] addresses */
    double patience, deadline;       /* seconds for all to come; until when */
    double notice;                   /* when a wait is spoken of, once */
    pthread_t watcher;
    bool watched;
    atomic_bool closing;
};

/* How two processes introduce themselves to each other, the one who comes first. All run the same program on the same
 * kind of processor. */
struct hello {
    char magic[8];
    int32_t rank, ranks, port; /* where it can be reached; rank 0 knows its address */
};

/* --- moving bytes --- */

static status lost(const struct tcp *tcp, int rank, const char *why) {
    return failed("the connection to rank %d (%s) is lost: %s", rank, tcp->names[rank], why);
}

/* Goes on with what is there to move; `moved` is what send or recv gave. */
static status advance(const struct tcp *tcp, int rank, ssize_t moved, int64_t *done) {
    if (moved > 0)
        *done += moved;
    if (moved == 0)
        return lost(tcp, rank, "it has ended");
    return moved > 0 || errno == EAGAIN || errno == EINTR ? OK : lost(tcp, rank, strerror(errno));
}

static status check_alive(const struct tcp *tcp, int rank) {
    return socket_is_silent(tcp->sockets[rank]) ? lost(tcp, rank, "its machine does not answer any more") : OK;
}

/* Sends to one rank and receives from another at the same time, so that a ring of processes that all send goes on. */
static status exchange(struct tcp *tcp, int to, const char *out, int64_t out_bytes, int from, char *in,
                       int64_t in_bytes) {
    int64_t sent = 0, got = 0;
    while (sent < out_bytes || got < in_bytes) {
        struct pollfd wait[2] = {{.fd = sent < out_bytes ? tcp->sockets[to] : -1, .events = POLLOUT},
                                 {.fd = got < in_bytes ? tcp->sockets[from] : -1, .events = POLLIN}};
        int ready = poll(wait, 2, 1000);
        if (ready < 0 && errno != EINTR)
            return failed("poll: %s", strerror(errno));
        if (ready == 0) {
            TRY(check_alive(tcp, to));
            TRY(check_alive(tcp, from));
        }
        if (wait[0].revents)
            TRY(advance(tcp, to, send(wait[0].fd, out + sent, (size_t)(out_bytes - sent), MSG_DONTWAIT | MSG_NOSIGNAL),
                        &sent));
        if (wait[1].revents)
            TRY(advance(tcp, from, recv(wait[1].fd, in + got, (size_t)(in_bytes - got), MSG_DONTWAIT), &got));
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

/* --- introductions --- */

static void adopt(struct tcp *tcp, int rank, int socket) {
    tcp->sockets[rank] = socket;
    socket_tune(socket);
    socket_name_peer(socket, tcp->names[rank]);
}

static struct hello own_hello(const struct tcp *tcp, int port) {
    struct hello hello = {.rank = tcp->wire.comm.rank, .ranks = tcp->wire.comm.ranks, .port = port};
    memcpy(hello.magic, MAGIC, sizeof MAGIC);
    return hello;
}

/* "1, 3, 4": who is not there of those from `first` on. */
static void list_missing(const struct tcp *tcp, int first, char *list, size_t size) {
    size_t used = 0;
    list[0] = 0;
    for (int rank = first; rank < tcp->wire.comm.ranks && used + 20 < size; rank++)
        if (tcp->sockets[rank] < 0)
            used += (size_t)snprintf(list + used, size - used, "%s%d", used ? ", " : "", rank);
    if (used + 20 >= size)
        snprintf(list + used, size - used, ", ...");
}

static void begin_to_wait(struct tcp *tcp) {
    double now = clock_seconds();
    tcp->deadline = now + tcp->patience;
    tcp->notice = now + (NOTICE < tcp->patience ? NOTICE : tcp->patience);
}

/* Once, when it has been long: whoever looks at a run that does nothing shall know why. */
static void speak_of_wait(struct tcp *tcp, const char *whom, const char *why) {
    double now = clock_seconds();
    if (now < tcp->notice || now >= tcp->deadline)
        return;
    tcp->notice = tcp->deadline;
    log_warn_of(tcp->wire.comm.rank, "waiting for rank %s of %d processes, %.0f s more (BERTH_PATIENCE)%s%s", whom,
                tcp->wire.comm.ranks, tcp->deadline - now, *why ? ": " : "", why);
}

/* The next process that introduces itself as one of us, of higher rank; whoever else comes is sent away. */
static status accept_one(struct tcp *tcp, struct door *door, struct hello *hello) {
    const struct comm *comm = &tcp->wire.comm;
    struct hello own = own_hello(tcp, door->port);
    char missing[80];
    for (;;) {
        int socket = door_next(door, hello, sizeof *hello, tcp->notice);
        list_missing(tcp, comm->rank + 1, missing, sizeof missing);
        if (socket < 0 && clock_seconds() >= tcp->deadline)
            return failed("waited %.0f s (BERTH_PATIENCE) in vain for rank %s at port %d: expected %d processes",
                          tcp->patience, missing, door->port, comm->ranks);
        if (socket < 0) {
            speak_of_wait(tcp, missing, "");
            continue;
        }
        if (memcmp(hello->magic, MAGIC, sizeof MAGIC) != 0 ||
            send(socket, &own, sizeof own, MSG_NOSIGNAL) != sizeof own) {
            close(socket);
            continue;
        }
        if (hello->ranks != comm->ranks || hello->rank <= comm->rank || hello->rank >= comm->ranks ||
            tcp->sockets[hello->rank] >= 0) {
            char name[INET6_ADDRSTRLEN];
            socket_name_peer(socket, name);
            close(socket);
            return bad_input("RANK = %d and WORLD_SIZE = %d come from %s to rank %d of %d: expected each rank once",
                             hello->rank, hello->ranks, name, comm->rank, comm->ranks);
        }
        adopt(tcp, hello->rank, socket);
        return OK;
    }
}

/* Introduces itself to the one at the other end, who must be `rank`. `gone`, if not NULL: whether he hung up before he
 * answered, which is then no failure. */
static status introduce(struct tcp *tcp, int rank, int port, double seconds, bool *gone) {
    struct hello hello = own_hello(tcp, port), answer;
    struct timeval limit = {.tv_sec = (time_t)(seconds + 0.5)};
    int socket = tcp->sockets[rank];
    setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ssize_t got = send(socket, &hello, sizeof hello, MSG_NOSIGNAL);
    if (got == sizeof hello)
        got = recv(socket, &answer, sizeof answer, MSG_WAITALL);
    bool hung_up = got == 0 || (got < 0 && errno != EAGAIN);
    if (hung_up && gone)
        return *gone = true, OK;
    if (hung_up)
        return lost(tcp, rank, "it has ended");
    if (got != sizeof answer || memcmp(answer.magic, MAGIC, sizeof MAGIC) != 0)
        return bad_input("what answers at %s is not rank %d: expected its greeting within %.0f s, got %s",
                         tcp->names[rank], rank, seconds, got > 0 ? "other bytes" : "nothing");
    if (answer.rank != rank || answer.ranks != hello.ranks)
        return bad_input("RANK = %d, WORLD_SIZE = %d: at %s is rank %d of %d: expected rank %d of as many", hello.rank,
                         hello.ranks, tcp->names[rank], answer.rank, answer.ranks, rank);
    return OK;
}

static double answer_time(const struct tcp *tcp) {
    double left = tcp->deadline - clock_seconds();
    return left < 1 ? 1 : left < ANSWER ? left : ANSWER;
}

/* One try, at all addresses of rank 0. A machine between the two may let everybody in, and hang up as long as nobody is
 * there. */
static status try_master(struct tcp *tcp, const struct addrinfo *found, int port) {
    for (const struct addrinfo *a = found; a; a = a->ai_next) {
        bool gone = false;
        int socket = socket_connect(a->ai_addr, a->ai_addrlen, answer_time(tcp));
        if (socket < 0)
            continue;
        adopt(tcp, 0, socket);
        TRY(introduce(tcp, 0, port, answer_time(tcp), &gone));
        if (!gone)
            return OK;
        close(socket);
        tcp->sockets[0] = -1;
        errno = ECONNRESET;
    }
    return OK;
}

/* Rank 0 may start later than others. */
static status find_master(struct tcp *tcp, const char *host, const char *port, int own_port) {
    struct addrinfo wanted = {.ai_socktype = SOCK_STREAM}, *found;
    int failure = getaddrinfo(host, port, &wanted, &found);
    char why[400] = "";
    if (failure)
        return bad_input("MASTER_ADDR = %s: %s", host, gai_strerror(failure));
    status code = OK;
    for (;;) {
        code = try_master(tcp, found, own_port);
        if (code != OK || tcp->sockets[0] >= 0)
            break;
        snprintf(why, sizeof why, "MASTER_ADDR = %s, MASTER_PORT = %s: %s", host, port, strerror(errno));
        if (clock_seconds() >= tcp->deadline)
            break;
        speak_of_wait(tcp, "0", why);
        usleep(100000);
    }
    freeaddrinfo(found);
    TRY(code);
    return tcp->sockets[0] >= 0
               ? OK
               : failed("tried for %.0f s (BERTH_PATIENCE) in vain to reach rank 0 at %s", tcp->patience, why);
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
static status receive_all(struct tcp *tcp, struct door *door, struct place *places) {
    struct comm *comm = &tcp->wire.comm;
    for (int come = 1; come < comm->ranks; come++) {
        struct hello hello;
        TRY(accept_one(tcp, door, &hello));
        struct place *place = &places[hello.rank];
        find_peer(tcp->sockets[hello.rank], place);
        place->port = hello.port;
        if (is_loopback(&place->address))
            place->size = 0;
    }
    return broadcast(comm, 0, places, comm->ranks * (int64_t)sizeof *places);
}

static status reach(struct tcp *tcp, int rank, struct place *place, int own_port) {
    int port = place->port;
    if (place->size == 0)
        find_peer(tcp->sockets[0], place);
    ((struct sockaddr_in6 *)&place->address)->sin6_port = htons((uint16_t)port); /* where sin_port is, too */
    int socket = socket_connect((struct sockaddr *)&place->address, place->size, ANSWER);
    if (socket < 0) {
        const char *why = strerror(errno);
        char name[INET6_ADDRSTRLEN] = "?";
        getnameinfo((struct sockaddr *)&place->address, place->size, name, sizeof name, NULL, 0, NI_NUMERICHOST);
        return failed("cannot reach rank %d at %s, port %d: %s", rank, name, port, why);
    }
    adopt(tcp, rank, socket);
    return introduce(tcp, rank, own_port, tcp->patience, NULL); /* it may itself wait for one that cannot be reached */
}

/* The others: to those of lower rank they go, those of higher rank come. */
static status join(struct tcp *tcp, struct door *door, struct place *places) {
    struct comm *comm = &tcp->wire.comm;
    TRY(broadcast(comm, 0, places, comm->ranks * (int64_t)sizeof *places));
    for (int rank = 1; rank < comm->rank; rank++)
        TRY(reach(tcp, rank, &places[rank], door->port));
    begin_to_wait(tcp); /* rank 0 may have waited long for the last one */
    for (int rank = comm->rank + 1; rank < comm->ranks; rank++) {
        struct hello hello;
        TRY(accept_one(tcp, door, &hello));
    }
    return OK;
}

static status meet(struct tcp *tcp, const char *host, const char *port) {
    const struct comm *comm = &tcp->wire.comm;
    struct place *places = xcalloc((size_t)comm->ranks, sizeof *places);
    struct door door = {0};
    begin_to_wait(tcp);
    status code = door_open(&door, comm->rank == 0 ? atoi(port) : 0);
    if (code == OK && comm->rank > 0)
        code = find_master(tcp, host, port, door.port);
    if (code == OK)
        code = comm->rank == 0 ? receive_all(tcp, &door, places) : join(tcp, &door, places);
    door_close(&door);
    free(places);
    return code;
}

/* --- processes that end --- */

static int find_ended(const struct tcp *tcp, struct pollfd *all) {
    int ranks = tcp->wire.comm.ranks;
    while (!atomic_load(&tcp->closing)) {
        poll(all, (nfds_t)ranks, 100);
        for (int rank = 0; rank < ranks; rank++)
            if (all[rank].revents & (POLLRDHUP | POLLHUP | POLLERR) ||
                (all[rank].fd >= 0 && socket_is_silent(all[rank].fd)))
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
            log_error("rank %d: rank %d (%s) has ended, or does not answer any more", comm->rank, ended,
                      tcp->names[ended]);
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
    free(tcp->names);
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

status comm_tcp_new(int rank, int ranks, const char *host, const char *port, int patience, struct comm **out) {
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
    tcp->patience = patience;
    comm->broadcast = broadcast;
    comm->abort = abort_all;
    comm->free = tcp_free;
    tcp->wire.all_to_all = all_to_all;
    tcp->wire.all_gather = all_gather;
    tcp->sockets = xmalloc((size_t)ranks * sizeof *tcp->sockets);
    tcp->names = xcalloc((size_t)ranks, sizeof *tcp->names);
    for (int r = 0; r < ranks; r++)
        tcp->sockets[r] = -1;
    wire_open(&tcp->wire);
    status code = meet(tcp, host, port);
    if (code == OK)
        code = wire_meet(&tcp->wire, "TCP");
    if (code != OK) {
        release(tcp);
        return status_context(code, "rank %d", rank);
    }
    adopt_local_rank(comm);
    tcp->watched = pthread_create(&tcp->watcher, NULL, watch, tcp) == 0;
    *out = comm;
    return OK;
}
