/* What training asks of the other processes. src/dist provides it: `self` for one process, MPI and NCCL for more. */
#ifndef BERTH_GRAPH_COMM_H
#define BERTH_GRAPH_COMM_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct comm {
    int rank, ranks;
    /* Sum over ranks, in place, the same bits on every rank. Host memory. */
    status (*sum_f64)(struct comm *comm, double *values, int64_t count);
    void (*free)(struct comm *comm);
};

#endif
