#include "kernels/cpu/activation.h"

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/vector.h"

static const float ROOT_2_OVER_PI = 0.7978845608f, CUBIC = 0.044715f, INVERSE_ROOT_2PI = 0.3989422804f;

static inline float gelu(float x) {
    float bell;
    return x * vector_normal(x, &bell);
}

static inline float gelu_slope(float x) {
    float bell, below = vector_normal(x, &bell);
    return below + x * INVERSE_ROOT_2PI * bell;
}

static inline float gelu_new(float x) { return 0.5f * x * (1 + vector_tanh(ROOT_2_OVER_PI * (x + CUBIC * x * x * x))); }

static inline float gelu_new_slope(float x) {
    float t = vector_tanh(ROOT_2_OVER_PI * (x + CUBIC * x * x * x));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * ROOT_2_OVER_PI * (1 + 3 * CUBIC * x * x);
}

PER_ISA(void, activate, (enum activation act, const float *x, float *y, int64_t n), (act, x, y, n)) {
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

PER_ISA(void, activation_gradient, (enum activation act, const float *x, const float *dy, float *dx, int64_t n),
        (act, x, dy, dx, n)) {
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
