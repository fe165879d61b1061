/* Many counters of Philox4x32-10 (base/philox.h) at once, so that their rounds are vector instructions. */
#include "kernels/cpu/dropout.h"

#include <string.h>

#include "base/philox.h"
#include "kernels/cpu/kernels.h"

enum { BYTES = 16, LANES = 32 }; /* of a counter; counters at once */

/* bytes[LANES][16] of counters first_block, first_block + 1, … */
CPU_DISPATCH static void random_bytes(const struct dropout_place *place, int64_t first_block, uint8_t *bytes) {
    uint32_t c0[LANES], c1[LANES], c2[LANES], c3[LANES], out[LANES][4];
    uint32_t k0 = (uint32_t)place->seed, k1 = (uint32_t)(place->seed >> 32);
    for (int lane = 0; lane < LANES; lane++) {
        c0[lane] = (uint32_t)(first_block + lane);
        c1[lane] = place->site;
        c2[lane] = (uint32_t)place->sequence;
        c3[lane] = (uint32_t)(place->sequence >> 32);
    }
    for (int round = 0; round < 10; round++) {
#pragma GCC unroll 1
        for (int lane = 0; lane < LANES; lane++) {
            uint64_t p0 = (uint64_t)0xD2511F53u * c0[lane], p1 = (uint64_t)0xCD9E8D57u * c2[lane];
            uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1[lane] ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3[lane] ^ k1;
            c0[lane] = n0;
            c1[lane] = (uint32_t)p1;
            c2[lane] = n2;
            c3[lane] = (uint32_t)p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int lane = 0; lane < LANES; lane++) {
        out[lane][0] = c0[lane];
        out[lane][1] = c1[lane];
        out[lane][2] = c2[lane];
        out[lane][3] = c3[lane];
    }
    memcpy(bytes, out, sizeof out); /* on a little-endian machine a word's least significant byte comes first */
}

CPU_DISPATCH static void keep(const uint8_t *bytes, int64_t count, int threshold, uint8_t *mask) {
    for (int64_t i = 0; i < count; i++)
        mask[i] = bytes[i] >= threshold;
}

CPU_DISPATCH static void keep_floats(const uint8_t *bytes, int64_t count, int threshold, float scale, const float *x,
                                     float *y) {
    for (int64_t i = 0; i < count; i++)
        y[i] = bytes[i] >= threshold ? x[i] * scale : 0.0f;
}

/* The bytes of up to LANES counters from element `at` on; sets how many elements they serve. */
static const uint8_t *next_bytes(const struct dropout_place *place, int64_t at, int64_t end, uint8_t *bytes,
                                 int64_t *count) {
    random_bytes(place, at / BYTES, bytes);
    int64_t skip = at % BYTES, most = LANES * BYTES - skip;
    *count = end - at < most ? end - at : most;
    return bytes + skip;
}

void dropout_mask(const struct dropout_place *place, int64_t count, int threshold, uint8_t *mask) {
    uint8_t bytes[LANES * BYTES];
    int64_t end = place->first + count, served;
    for (int64_t at = place->first; at < end; at += served, mask += served) {
        const uint8_t *from = next_bytes(place, at, end, bytes, &served);
        keep(from, served, threshold, mask);
    }
}

void dropout_floats(const struct dropout_place *place, int64_t count, float probability, const float *x, float *y) {
    uint8_t bytes[LANES * BYTES];
    int64_t end = place->first + count, served;
    for (int64_t at = place->first; at < end; at += served, x += served, y += served) {
        const uint8_t *from = next_bytes(place, at, end, bytes, &served);
        keep_floats(from, served, dropout_threshold(probability), dropout_scale(probability), x, y);
    }
}
