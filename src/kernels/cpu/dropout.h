/* Dropout's random bytes, as op.def defines them. */
#ifndef BERTH_KERNELS_CPU_DROPOUT_H
#define BERTH_KERNELS_CPU_DROPOUT_H

#include <math.h>

#include "base/philox.h"

/* A byte below the threshold drops its element. */
static inline int dropout_threshold(float probability) { return (int)lrintf(256 * probability); }

static inline float dropout_scale(float probability) { return 256.0f / (float)(256 - dropout_threshold(probability)); }

/* mask[0..count): 1 where kept, for elements first, first + 1, … of a sequence at a site. */
static inline void dropout_mask(uint64_t seed, uint32_t site, int64_t sequence, int64_t first, int64_t count,
                                int threshold, uint8_t *mask) {
    int64_t element = first, end = first + count;
    while (element < end) {
        struct philox words =
            philox4x32(seed, (uint32_t)(element / 16), site, (uint32_t)sequence, (uint32_t)(sequence >> 32));
        int64_t block_end = (element / 16 + 1) * 16;
        for (; element < block_end && element < end; element++) {
            uint32_t byte = words.word[element % 16 / 4] >> (8 * (element % 4)) & 255;
            *mask++ = byte >= (uint32_t)threshold;
        }
    }
}

#endif
