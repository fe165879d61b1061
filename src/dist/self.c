#include "base/memory.h"
#include "dist/dist.h"

static status sum_f64(struct comm *comm, double *values, int64_t count) {
    (void)comm;
    (void)values;
    (void)count;
    return OK;
}

static void comm_free(struct comm *comm) { memory_free(comm); }

status comm_self_new(struct comm **out) {
    struct comm *comm = xcalloc(1, sizeof *comm);
    *comm = (struct comm){.rank = 0, .ranks = 1, .sum_f64 = sum_f64, .free = comm_free};
    *out = comm;
    return OK;
}
