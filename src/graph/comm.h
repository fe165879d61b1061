/* What training asks of the other processes of its run. src/dist provides it: `self` for one process, MPI for more.
 * All processes make the same calls in the same order. */
#ifndef BERTH_GRAPH_COMM_H
#define BERTH_GRAPH_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct comm {
    char name[128]; /* "2 processes on 1 machine, MPI 3.1 (Open MPI v4.1.4)" */
    int rank, ranks;
    int local_rank, local_ranks; /* among the processes of this machine */
    int sharers;                 /* processes that may run on the same cores as this one, itself included */
    bool agreed;                 /* all processes know of the failure that ends the run (dist.h) */
    /* Sums over ranks, in place, added in rank order: the same bits on every rank, and in every run with as many. Host
     * memory. */
    status (*sum_f64)(struct comm *comm, double *values, int64_t count);
    status (*sum_f32)(struct comm *comm, float *values, int64_t count);
    /* The bytes of `root` on all ranks. */
    status (*broadcast)(struct comm *comm, int root, void *bytes, int64_t count);
    /* Ends all processes with an exit code; does not return. */
    void (*abort)(struct comm *comm, int code);
    void (*free)(struct comm *comm); /* after all others came to it, too */
};

#endif
