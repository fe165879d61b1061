/* Products of bf16 in squares of 32 x 32 sums, which an instruction set multiplies by tiles (AMX). Unlike products of
 * floats they are as fast as memory lets them be, so their loop nests are made around bytes: the left side is read
 * where it lies if its rows run along k; packing and epilogues go on between the instructions of the next square. */
#ifndef BERTH_KERNELS_CPU_SQUARES_H
#define BERTH_KERNELS_CPU_SQUARES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum {
    SIDE = 32,           /* of a square of sums, and k of a step */
    SQUARE_BYTES = 2048, /* packed: two tiles of 16 lines and 32 k */
    SUM_LANES = 16       /* partial sums of a packed line */
};

/* Work that can wait, done between the instructions of a product: `count` pieces at every `every`th step of k. */
struct interlude {
    void (*run)(struct interlude *interlude, int64_t count);
    int64_t left, count, every, wait; /* pieces; pieces at a time; steps between; steps until the next time */
};

static inline void interlude_step(struct interlude *interlude) {
    if (interlude->left > 0 && --interlude->wait < 0) {
        int64_t count = interlude->count < interlude->left ? interlude->count : interlude->left;
        interlude->run(interlude, count);
        interlude->wait = interlude->every - 1;
        interlude->left -= count;
    }
}

/* One product: c[32,32] = a b, or added to. */
struct square {
    int64_t steps; /* of 32 k */
    /* 32 lines of 32 k, in halves: a line, the lower 16 lines and the next 32 k are so many bytes further on */
    const char *a;
    int64_t a_line, a_low, a_step;
    /* pairs of k, [16][16 columns][2], in two halves of columns: the right one and the next 32 k are so many bytes on
     */
    const char *b;
    int64_t b_right, b_step;
    float *c;
    int64_t c_row; /* floats */
    bool add;
    const char *next; /* `lines` cache lines of it are fetched in each step; */
    int lines;
    struct interlude *interlude; /* not NULL */
};

struct kernel;
struct tile_job;
/* Every tile of the job, on all threads; the kernel has `square`. */
status squares_run(const struct kernel *kernel, const struct tile_job *job);

#endif
