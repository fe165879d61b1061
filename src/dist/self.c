#include "dist/dist.h"

static status sum_f64(struct comm *comm, double *values, int64_t count) {
    (void)comm, (void)values, (void)count;
    return OK;
}

static status sum_f32(struct comm *comm, float *values, int64_t count) {
    (void)comm, (void)values, (void)count;
    return OK;
}

static status broadcast(struct comm *comm, int root, void *bytes, int64_t count) {
    (void)comm, (void)root, (void)bytes, (void)count;
    return OK;
}

static void no_others(struct comm *comm, int code) { (void)comm, (void)code; }
static void comm_free(struct comm *comm) { (void)comm; }

struct comm *comm_self(void) {
    static struct comm self = {.name = "one process",
                               .ranks = 1,
                               .local_ranks = 1,
                               .sharers = 1,
                               .sum_f64 = sum_f64,
                               .sum_f32 = sum_f32,
                               .broadcast = broadcast,
                               .abort = no_others,
                               .free = comm_free};
    return &self;
}
