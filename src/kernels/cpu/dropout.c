/* Many counters of Philox4x32-10 (base/philox.h) at once, so that their rounds are vector instructions. */
#include "kernels/cpu/dropout.h"

#include <string.h>
#if defined(__x86_64__) && !defined(__clang__)
#include <immintrin.h>
#endif

#include "base/philox.h"
#include "kernels/cpu/kernels.h"

enum { BYTES = 16, MOST = 64 }; /* of a counter; counters at once: a multiple of what any vectors hold */

/* bytes[count][16] of counters first, first + 1, …, and perhaps more up to MOST. On a little-endian machine a word's
 * least significant byte comes first. */
static void plain_bytes(const struct dropout_place *place, int64_t first, int64_t count, uint8_t *bytes) {
    for (int64_t i = 0; i < count; i++) {
        struct philox words = philox4x32(place->seed, (uint32_t)(first + i), place->site, (uint32_t)place->sequence,
                                         (uint32_t)(place->sequence >> 32));
        memcpy(bytes + i * BYTES, &words, BYTES);
    }
}

#if defined(__x86_64__) && !defined(__clang__)

/* The same with vectors of WIDTH bytes. Each word of a counter stands in a 64-bit lane of its own of which only the
 * lower half counts: a product needs no shuffle then, its upper half is one shift away, and what shifts, products and
 * carries leave in upper halves does no harm. (Compilers do not find the instruction that multiplies lower halves.)
 * Lane 2n holds counter n of a vector's first half, lane 2n + 1 that of its second half: two shuffles of 64-bit lanes
 * bring the words of a counter together. */
#define VECTOR_BYTES(name, isa, WIDTH, vector, multiply, ORDER, EVEN, ODD)                                            \
    __attribute__((target(isa))) static void name(const struct dropout_place *place, int64_t first, int64_t count,    \
                                                  uint8_t *bytes) {                                                   \
        typedef uint64_t lanes __attribute__((vector_size(WIDTH)));                                                   \
        const lanes zero = {0}, low = zero + 0xFFFFFFFFu, m0 = zero + 0xD2511F53u, m1 = zero + 0xCD9E8D57u;           \
        for (int64_t done = 0; done < count; done += WIDTH / 8, bytes += 2 * WIDTH) {                                 \
            lanes c0 = (lanes)ORDER + (uint64_t)(first + done), c1 = zero + place->site;                              \
            lanes c2 = zero + (uint64_t)place->sequence, c3 = zero + ((uint64_t)place->sequence >> 32);               \
            uint32_t k0 = (uint32_t)place->seed, k1 = (uint32_t)(place->seed >> 32);                                  \
            for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {                          \
                lanes p0 = (lanes)multiply((vector)c0, (vector)m0), p1 = (lanes)multiply((vector)c2, (vector)m1);     \
                c0 = p1 >> 32 ^ (c1 ^ k0);                                                                            \
                c2 = p0 >> 32 ^ (c3 ^ k1);                                                                            \
                c1 = p1;                                                                                              \
                c3 = p0;                                                                                              \
            }                                                                                                         \
            lanes head = (c0 & low) | c1 << 32, tail = (c2 & low) | c3 << 32;                                         \
            lanes even = __builtin_shuffle(head, tail, (lanes)EVEN), odd = __builtin_shuffle(head, tail, (lanes)ODD); \
            memcpy(bytes, &even, WIDTH);                                                                              \
            memcpy(bytes + WIDTH, &odd, WIDTH);                                                                       \
        }                                                                                                             \
    }
#define LIST(...) \
    { __VA_ARGS__ }
VECTOR_BYTES(avx2_bytes, "avx2", 32, __m256i, _mm256_mul_epu32, LIST(0, 2, 1, 3), LIST(0, 4, 2, 6), LIST(1, 5, 3, 7))
VECTOR_BYTES(avx512_bytes, "avx512f", 64, __m512i, _mm512_mul_epu32, LIST(0, 4, 1, 5, 2, 6, 3, 7),
             LIST(0, 8, 2, 10, 4, 12, 6, 14), LIST(1, 9, 3, 11, 5, 13, 7, 15))

#endif

static void random_bytes(const struct dropout_place *place, int64_t first, int64_t count, uint8_t *bytes) {
#if defined(__x86_64__) && !defined(__clang__)
    if (vectors_in_use == VECTORS_AVX512)
        return avx512_bytes(place, first, count, bytes);
    if (vectors_in_use == VECTORS_AVX2)
        return avx2_bytes(place, first, count, bytes);
#endif
    plain_bytes(place, first, count, bytes);
}

static PER_ISA(void, keep, (const uint8_t *bytes, int64_t count, int threshold, uint8_t *mask),
               (bytes, count, threshold, mask)) {
    uint8_t most = (uint8_t)(threshold - 1); /* of what drops: a comparison of bytes, not of integers made of them */
    if (threshold == 0)
        memset(mask, 1, (size_t)count);
    for (int64_t i = 0; i < count && threshold > 0; i++)
        mask[i] = bytes[i] > most;
}

static PER_ISA(void, keep_floats,
               (const uint8_t *bytes, int64_t count, int threshold, float scale, const float *x, float *y),
               (bytes, count, threshold, scale, x, y)) {
#pragma GCC ivdep
    for (int64_t i = 0; i < count; i++) {
        float kept = x[i] * scale; /* whether it is asked for or not: a load without a condition */
        y[i] = bytes[i] < threshold ? 0.0f : kept;
    }
}

static PER_ISA(void, keep_and_add,
               (const uint8_t *bytes, int64_t count, int threshold, float scale, const float *x, const float *added,
                float *y),
               (bytes, count, threshold, scale, x, added, y)) {
#pragma GCC ivdep
    for (int64_t i = 0; i < count; i++) {
        float kept = x[i] * scale; /* as above */
        y[i] = (bytes[i] < threshold ? 0.0f : kept) + added[i];
    }
}

/* The bytes of elements from `at` on, of as many as MOST counters serve or fewer; sets how many. */
static const uint8_t *next_bytes(const struct dropout_place *place, int64_t at, int64_t end, uint8_t *bytes,
                                 int64_t *count) {
    int64_t skip = at % BYTES, most = MOST * BYTES - skip;
    *count = end - at < most ? end - at : most;
    random_bytes(place, at / BYTES, (skip + *count + BYTES - 1) / BYTES, bytes);
    return bytes + skip;
}

void dropout_mask(const struct dropout_place *place, int64_t count, int threshold, uint8_t *mask) {
    uint8_t bytes[MOST * BYTES];
    int64_t end = place->first + count, served;
    for (int64_t at = place->first; at < end; at += served, mask += served) {
        const uint8_t *from = next_bytes(place, at, end, bytes, &served);
        keep(from, served, threshold, mask);
    }
}

void dropout_floats(const struct dropout_place *place, int64_t count, int threshold, float scale, const float *x,
                    float *y) {
    dropout_add(place, count, threshold, scale, x, NULL, y);
}

void dropout_add(const struct dropout_place *place, int64_t count, int threshold, float scale, const float *x,
                 const float *added, float *y) {
    uint8_t bytes[MOST * BYTES];
    for (int64_t i = 0, served; i < count; i += served) {
        const uint8_t *from = next_bytes(place, place->first + i, place->first + count, bytes, &served);
        if (added)
            keep_and_add(from, served, threshold, scale, x + i, added + i, y + i);
        else
            keep_floats(from, served, threshold, scale, x + i, y + i);
    }
}

PER_ISA(void, dropout_apply, (const uint8_t *mask, int64_t count, float scale, const float *x, float *y),
        (mask, count, scale, x, y)) {
#pragma GCC ivdep
    for (int64_t i = 0; i < count; i++) {
        float kept = x[i] * scale; /* as above */
        y[i] = mask[i] ? kept : 0.0f;
    }
}
