/* Functions of floats that loops can be vectorized over, and reductions of a row in a fixed order. The polynomials were
 * fitted by weighted least squares; tests bound their errors. */
#ifndef BERTH_KERNELS_CPU_VECTOR_H
#define BERTH_KERNELS_CPU_VECTOR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* e^x within 1e-7 relative; x is clamped to [-87, 88], so no result is denormal or infinite. NaN stays NaN. */
static inline float vector_exp(float input) {
    float x = input < -87.0f ? -87.0f : input > 88.0f ? 88.0f : input;
    const float to_integer = 12582912.0f; /* 1.5 * 2^23: adding it leaves the nearest integer in the low bits */
    float shifted = x * 1.44269504f + to_integer, n = shifted - to_integer;
    float r = x - n * 0.693145752f - n * 1.42860677e-6f; /* ln 2 in two parts */
    float p = 0.00138146143f;
    p = p * r + 0.00836870985f;
    p = p * r + 0.0416683873f;
    p = p * r + 0.166665207f;
    p = p * r + 0.499999935f;
    p = p * r * r + r + 1.0f;
    uint32_t bits, exponent;
    memcpy(&bits, &p, 4);
    memcpy(&exponent, &shifted, 4);
    bits += exponent << 23;
    memcpy(&p, &bits, 4);
    return input == input ? p : input;
}

/* The distribution function of the normal distribution, relative error below 1e-6 on both tails down to its underflow,
 * and *bell = e^(-x²/2), which its derivative needs too. */
static inline float vector_normal(float x, float *bell) {
    float size = fabsf(x), t = 1.0f / (1.0f + 0.212132034f * size), p = -0.0639333106f;
    *bell = vector_exp(-0.5f * x * x);
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

/* tanh, absolute error below 1e-7. */
static inline float vector_tanh(float x) {
    x = x < -15.0f ? -15.0f : x > 15.0f ? 15.0f : x;
    return 1.0f - 2.0f / (vector_exp(2.0f * x) + 1.0f);
}

float vector_sum(const float *x, int64_t n);
float vector_dot(const float *x, const float *y, int64_t n);
float vector_max(const float *x, int64_t n);                   /* n ≥ 1 */
double vector_sum_exp(const float *x, float shift, int64_t n); /* sum of e^(x - shift) */

#endif
