/* Learning-rate schedules. t is the number of the update, 1 for the first; T = steps; w is the length of the warm-up.
 */
#ifndef BERTH_OPTIM_SCHEDULE_H
#define BERTH_OPTIM_SCHEDULE_H

#include <stdint.h>

enum schedule_kind {
    NVIDIA_POLY, /* t/T < share: rate·(t/T)/share; after: rate·(1 - t/T)^power. It jumps at the end of the warm-up. */
    POLY,        /* t <= w: rate·t/w; after: rate·((T - t)/(T - w))^power */
    LINEAR,      /* t <= w: rate·t/w; after: rate·(T - t)/(T - w) */
    COSINE,      /* t <= w: rate·t/w; after: rate·(1 + cos(pi·(t - w)/(T - w)))/2 */
    CONSTANT,    /* t <= w: rate·t/w; after: rate */
};

struct schedule {
    enum schedule_kind kind;
    double rate; /* the peak */
    int64_t steps;
    double warmup_share;  /* of steps, in [0,1) */
    int64_t warmup_steps; /* or a count; at most one of the two is not 0 */
    double power;         /* of the poly schedules */
};

/* The rate of update t. From t = T on it is what the formula gives at T. */
double schedule_rate(const struct schedule *schedule, int64_t t);

#endif
