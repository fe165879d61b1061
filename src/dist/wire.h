/* Communicators made of two ways to move bytes. What is added is added here, in rank order, so that sums do not depend
 * on how a library moves them. */
#ifndef BERTH_DIST_WIRE_H
#define BERTH_DIST_WIRE_H

#include "graph/comm.h"

struct wire {
    struct comm comm; /* first: comm_open gives it away */
    /* Slice r of `from` (counts[r] bytes from starts[r] on) goes to rank r; this rank's slices of all ranks come to
     * `to`, in rank order. */
    status (*all_to_all)(struct wire *wire, const char *from, const int *counts, const int *starts, char *to);
    /* Slice r of `bytes` is rank r's, and comes to all. */
    status (*all_gather)(struct wire *wire, char *bytes, const int *counts, const int *starts);
    float *parts;
    double *values;
    int *counts, *starts; /* [ranks] */
};

/* For a communicator whose rank, ranks and functions above are there: its sums. */
void wire_open(struct wire *wire);
/* Then: who runs on the same machine, and on the same cores. `library` ends its name. */
status wire_meet(struct wire *wire, const char *library);
void wire_close(struct wire *wire);

#endif
