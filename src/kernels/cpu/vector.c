#include "kernels/cpu/vector.h"

#include "kernels/cpu/kernels.h"

PER_ISA(float, vector_sum, (const float *x, int64_t n), (x, n)) {
    float sum;
    SUM_IN_LANES(sum, i, n, x[i]);
    return sum;
}

PER_ISA(float, vector_dot, (const float *x, const float *y, int64_t n), (x, y, n)) {
    float sum;
    SUM_IN_LANES(sum, i, n, x[i] * y[i]);
    return sum;
}

PER_ISA(float, vector_max, (const float *x, int64_t n), (x, n)) {
    float lanes[LANES], most = x[0];
    int64_t i = 0;
    for (int lane = 0; lane < LANES; lane++)
        lanes[lane] = x[0];
    for (; i + LANES <= n; i += LANES)
        for (int lane = 0; lane < LANES; lane++)
            lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
    for (int lane = 0; lane < LANES; lane++)
        most = lanes[lane] > most ? lanes[lane] : most;
    for (; i < n; i++)
        most = x[i] > most ? x[i] : most;
    return most;
}

PER_ISA(double, vector_sum_exp, (const float *x, float shift, int64_t n), (x, shift, n)) {
    double sum;
    SUM_IN_LANES(sum, i, n, vector_exp(x[i] - shift));
    return sum;
}

/* --- storage --- */

PER_ISA(void, floats_from_bf16, (const bf16 *x, int64_t count, float *y), (x, count, y)) {
    for (int64_t i = 0; i < count; i++)
        y[i] = bf16_to_float(x[i]);
}

PER_ISA(void, floats_to_bf16, (const float *x, int64_t count, bf16 *y), (x, count, y)) {
    for (int64_t i = 0; i < count; i++)
        y[i] = bf16_from_float(x[i]);
}

PER_ISA(void, floats_from_f16, (const f16 *x, int64_t count, float *y), (x, count, y)) {
    for (int64_t i = 0; i < count; i++)
        y[i] = f16_to_float(x[i]);
}

PER_ISA(void, floats_to_f16, (const float *x, int64_t count, f16 *y), (x, count, y)) {
    for (int64_t i = 0; i < count; i++)
        y[i] = f16_from_float(x[i]);
}
