/* Dropout's random bytes, as op.def defines them. */
#ifndef BERTH_KERNELS_CPU_DROPOUT_H
#define BERTH_KERNELS_CPU_DROPOUT_H

#include <math.h>
#include <stdint.h>

/* A byte below the threshold drops its element. */
static inline int dropout_threshold(float probability) { return (int)lrintf(256 * probability); }

static inline float dropout_scale(float probability) { return 256.0f / (float)(256 - dropout_threshold(probability)); }

/* Where elements stand in the random stream: element `first` of a sequence at a site, and those behind it. */
struct dropout_place {
    uint64_t seed;
    uint32_t site;
    int64_t sequence, first;
};

/* mask[0..count): 1 where kept. */
void dropout_mask(const struct dropout_place *place, int64_t count, int threshold, uint8_t *mask);
/* y = mask ? scale x : 0. x and y may be the same. */
void dropout_apply(const uint8_t *mask, int64_t count, float scale, const float *x, float *y);
/* Both without a mask in memory. x and y may be the same. */
void dropout_floats(const struct dropout_place *place, int64_t count, int threshold, float scale, const float *x,
                    float *y);
/* The same plus `added` unless NULL, in one pass: y = (mask ? scale x : 0) + added. y may be one of them. */
void dropout_add(const struct dropout_place *place, int64_t count, int threshold, float scale, const float *x,
                 const float *added, float *y);

#endif
