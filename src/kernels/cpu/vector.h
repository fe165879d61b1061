/* Functions of floats that loops can be vectorized over, and reductions of a row in a fixed order. The polynomials were
 * fitted by weighted least squares; tests bound their errors. */
#ifndef BERTH_KERNELS_CPU_VECTOR_H
#define BERTH_KERNELS_CPU_VECTOR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* The nearest of [low, high]; NaN stays NaN. One instruction for each bound, as the order of the comparisons is theirs.
 */
static inline float vector_clamp(float x, float low, float high) {
    float above = low > x ? low : x;
    return high < above ? high : above;
}

/* e^x within 1e-7 relative; x is clamped to [-87, 88], so no result is denormal or infinite. NaN stays NaN. */
static inline float vector_exp(float input) {
    float x = vector_clamp(input, -87.0f, 88.0f);
    const float to_integer = 12582912.0f; /* 1.5 * 2^23: adding it leaves the nearest integer in the low bits */
    float shifted = x * 1.44269504f + to_integer, n = shifted - to_integer;
    float r = x - n * 0.693145752f - n * 1.42860677e-6f; /* ln 2 in two parts */
    float p = 0.00138146143f;
    p = p * r + 0.00836870985f;
    p = p * r + 0.0416683873f;
    p = p * r + 0.166665207f;
    p = p * r + 0.499999935f;
    p = p * (r * r) + r;
    uint32_t bits;
    float power;
    memcpy(&bits, &shifted, 4);
    bits = (bits << 23) + 0x3F800000u; /* the bits of 2^n */
    memcpy(&power, &bits, 4);
    return p * power + power;
}

/* The distribution function of the normal distribution and *bell = e^(-x²/2), which its derivative needs too. The
 * relative error is below 2e-6 up to 6 deviations, on both tails; then the rounding of x²/2 outgrows it: 2^-24 of that.
 * Beyond
 * NORMAL_END the tail and the bell are zero instead of denormal numbers, which are slow. NaN stays NaN. */
#define NORMAL_END 12.9f
static inline float vector_normal(float x, float *bell) {
    float size = fabsf(x), t = 1.0f / (1.0f + 0.212132034f * size), p = -0.0639333106f;
    float exponential = vector_exp(-0.5f * x * x);
    *bell = size > NORMAL_END ? 0 : exponential;
    p = p * t + 0.238867714f;
    p = p * t - 0.248274299f;
    p = p * t + 0.265103021f;
    p = p * t - 0.0414293525f;
    p = p * t + 0.105010404f;
    p = p * t + 0.0747838786f;
    p = p * t + 0.085273066f;
    p = p * t + 0.0845988918f;
    float tail = p * t * *bell;
    return x < 0 ? tail : 1.0f - tail;
}

/* tanh, absolute error below 2e-7: three roundings of numbers around 1. */
static inline float vector_tanh(float x) {
    return 1.0f - 2.0f / (vector_exp(2.0f * x) + 1.0f); /* the exponential is clamped */
}

/* --- four by four --- */

typedef float four __attribute__((vector_size(16)));
typedef float four_unaligned __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t four_places __attribute__((vector_size(16)));

static inline __attribute__((always_inline)) four load_four(const float *from) { return *(const four_unaligned *)from; }
static inline __attribute__((always_inline)) void store_four(float *to, four value) { *(four_unaligned *)to = value; }

/* to[j][i] = from[i][j] for i and j below 4 */
static inline __attribute__((always_inline)) void transpose_four(const float *const from[4], int64_t at, float *to,
                                                                 int64_t stride) {
    four a = load_four(from[0] + at), b = load_four(from[1] + at), c = load_four(from[2] + at),
         d = load_four(from[3] + at);
    four ab = __builtin_shuffle(a, b, (four_places){0, 4, 1, 5}),
         cd = __builtin_shuffle(c, d, (four_places){0, 4, 1, 5});
    store_four(to, __builtin_shuffle(ab, cd, (four_places){0, 1, 4, 5}));
    store_four(to + stride, __builtin_shuffle(ab, cd, (four_places){2, 3, 6, 7}));
    ab = __builtin_shuffle(a, b, (four_places){2, 6, 3, 7}), cd = __builtin_shuffle(c, d, (four_places){2, 6, 3, 7});
    store_four(to + 2 * stride, __builtin_shuffle(ab, cd, (four_places){0, 1, 4, 5}));
    store_four(to + 3 * stride, __builtin_shuffle(ab, cd, (four_places){2, 3, 6, 7}));
}

/* --- rows --- */

enum { LANES = 16 }; /* partial sums of a row, which become vectors: the same bits whatever the instruction set */

/* sum = the sum of `term` over i in [0, n) */
#define SUM_IN_LANES(sum, i, n, term)                                          \
    do {                                                                       \
        float lanes[LANES] = {0};                                              \
        const int64_t i##_whole = (n) / LANES * LANES;                         \
        for (int64_t i##_first = 0; i##_first < i##_whole; i##_first += LANES) \
            for (int lane = 0; lane < LANES; lane++) {                         \
                const int64_t i = i##_first + lane;                            \
                lanes[lane] += (term);                                         \
            }                                                                  \
        (sum) = sum_of_lanes(lanes);                                           \
        for (int64_t i = i##_whole; i < (n); i++)                              \
            (sum) += (term);                                                   \
    } while (0)

static inline __attribute__((always_inline)) float sum_of_lanes(const float lanes[LANES]) {
    four sum = load_four(lanes);
    for (int lane = 4; lane < LANES; lane += 4)
        sum += load_four(lanes + lane);
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

float vector_sum(const float *x, int64_t n);
float vector_dot(const float *x, const float *y, int64_t n);
float vector_max(const float *x, int64_t n);                   /* n ≥ 1 */
double vector_sum_exp(const float *x, float shift, int64_t n); /* sum of e^(x - shift) */

#endif
