/* The activations and their slopes. */
#ifndef BERTH_KERNELS_CUDA_ACTIVATION_CUH
#define BERTH_KERNELS_CUDA_ACTIVATION_CUH

#include "kernels/cuda/device.cuh"

constexpr float ROOT_HALF = 0.7071067812f, ROOT_2_OVER_PI = 0.7978845608f, INVERSE_ROOT_2PI = 0.3989422804f;
constexpr float CUBIC = 0.044715f;

/* tanh within 1e-7 absolute, which is enough where 1 is added to it. */
__device__ inline float quick_tanh(float x) { return 1.0f - __fdividef(2.0f, expf(2.0f * x) + 1.0f); }

__device__ inline float gelu(float x) { return 0.5f * x * (1.0f + erff(x * ROOT_HALF)); }

__device__ inline float gelu_slope(float x) {
    return 0.5f * (1.0f + erff(x * ROOT_HALF)) + x * INVERSE_ROOT_2PI * expf(-0.5f * x * x);
}

__device__ inline float gelu_new(float x) {
    return 0.5f * x * (1.0f + quick_tanh(ROOT_2_OVER_PI * (x + CUBIC * x * x * x)));
}

__device__ inline float gelu_new_slope(float x) {
    float t = quick_tanh(ROOT_2_OVER_PI * (x + CUBIC * x * x * x));
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * ROOT_2_OVER_PI * (1.0f + 3.0f * CUBIC * x * x);
}

__device__ inline float tanh_slope(float x) {
    float t = tanhf(x);
    return 1.0f - t * t;
}

/* x = act(x) */
template <int N>
__device__ inline void activate(enum activation act, float (&x)[N]) {
#define EACH(expression) _Pragma("unroll") for (int i = 0; i < N; i++) expression
    switch (act) {
        case ACT_GELU:
            EACH(x[i] = gelu(x[i]));
            break;
        case ACT_GELU_NEW:
            EACH(x[i] = gelu_new(x[i]));
            break;
        case ACT_RELU:
            EACH(x[i] = x[i] > 0.0f ? x[i] : 0.0f);
            break;
        case ACT_TANH:
            EACH(x[i] = tanhf(x[i]));
            break;
    }
}

/* d = d act'(x) */
template <int N>
__device__ inline void activation_gradient(enum activation act, const float (&x)[N], float (&d)[N]) {
    switch (act) {
        case ACT_GELU:
            EACH(d[i] *= gelu_slope(x[i]));
            break;
        case ACT_GELU_NEW:
            EACH(d[i] *= gelu_new_slope(x[i]));
            break;
        case ACT_RELU:
            EACH(d[i] = x[i] > 0.0f ? d[i] : 0.0f);
            break;
        case ACT_TANH:
            EACH(d[i] *= tanh_slope(x[i]));
            break;
    }
#undef EACH
}

#endif
