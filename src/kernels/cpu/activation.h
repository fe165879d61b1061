/* Activations of n floats and their gradients; y may be x, dx may be dy. The rows are for loops that are PER_ISA. */
#ifndef BERTH_KERNELS_CPU_ACTIVATION_H
#define BERTH_KERNELS_CPU_ACTIVATION_H

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/vector.h"

void activate(enum activation act, const float *x, float *y, int64_t n);
void activation_gradient(enum activation act, const float *x, const float *dy, float *dx, int64_t n); /* dy act'(x) */

static const float ROOT_2_OVER_PI = 0.7978845608f, CUBIC = 0.044715f, INVERSE_ROOT_2PI = 0.3989422804f;

CPU_BODY float gelu(float x) {
    float bell;
    return x * vector_normal(x, &bell);
}

CPU_BODY float gelu_slope(float x) {
    float bell, below = vector_normal(x, &bell);
    return below + x * INVERSE_ROOT_2PI * bell;
}

CPU_BODY float gelu_new(float x) { return 0.5f * x * (1 + vector_tanh(ROOT_2_OVER_PI * (x + CUBIC * x * x * x))); }

CPU_BODY float gelu_new_slope(float x) {
    float t = vector_tanh(ROOT_2_OVER_PI * (x + CUBIC * x * x * x));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * ROOT_2_OVER_PI * (1 + 3 * CUBIC * x * x);
}

CPU_BODY void activate_row(enum activation act, const float *x, float *y, int64_t n) {
    switch (act) {
        case ACT_GELU:
            for (int64_t i = 0; i < n; i++)
                y[i] = gelu(x[i]);
            break;
        case ACT_GELU_NEW:
            for (int64_t i = 0; i < n; i++)
                y[i] = gelu_new(x[i]);
            break;
        case ACT_RELU:
            for (int64_t i = 0; i < n; i++)
                y[i] = x[i] > 0 ? x[i] : 0;
            break;
        case ACT_TANH:
            for (int64_t i = 0; i < n; i++)
                y[i] = vector_tanh(x[i]);
            break;
    }
}

CPU_BODY void activation_gradient_row(enum activation act, const float *x, const float *dy, float *dx, int64_t n) {
    switch (act) {
        case ACT_GELU:
            for (int64_t i = 0; i < n; i++)
                dx[i] = dy[i] * gelu_slope(x[i]);
            break;
        case ACT_GELU_NEW:
            for (int64_t i = 0; i < n; i++)
                dx[i] = dy[i] * gelu_new_slope(x[i]);
            break;
        case ACT_RELU:
            for (int64_t i = 0; i < n; i++)
                dx[i] = x[i] > 0 ? dy[i] : 0;
            break;
        case ACT_TANH:
            for (int64_t i = 0; i < n; i++) {
                float t = vector_tanh(x[i]);
                dx[i] = dy[i] * (1 - t * t);
            }
            break;
    }
}

#endif
