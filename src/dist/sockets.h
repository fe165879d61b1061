/* Connections by TCP, with a limit of time for everything. */
#ifndef BERTH_DIST_SOCKETS_H
#define BERTH_DIST_SOCKETS_H

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/socket.h>

#include "base/status.h"

/* Small messages go at once; a machine that is gone shows within minutes. */
void socket_tune(int socket);
/* Nothing has come from the other machine for some three minutes, not even an answer of its kernel, which also answers
 * for a process that is stopped or busy. */
bool socket_is_silent(int socket);
/* The address at the other end, as figures. */
void socket_name_peer(int socket, char name[INET6_ADDRSTRLEN]);
/* -1, with errno: ETIMEDOUT after so many seconds. */
int socket_connect(const struct sockaddr *address, socklen_t size, double seconds);

/* Where others come. Whoever is not one of us may come, too, and may say nothing: nobody waits for him. */
struct door {
    int port, guests;
    struct pollfd all[1 + 64]; /* the listener, then guests who have not yet introduced themselves */
    double since[1 + 64];
    bool full; /* no descriptor was left, which was said */
};

/* On all addresses of this machine; port 0: one that is free. */
status door_open(struct door *door, int port);
/* The next one who has sent so many bytes, which come to `words`; -1: none did before `until` (clock_seconds). */
int door_next(struct door *door, void *words, size_t size, double until);
void door_close(struct door *door);

#endif
