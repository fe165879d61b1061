#include "kernels/cpu/activation.h"

PER_ISA(void, activate, (enum activation act, const float *x, float *y, int64_t n), (act, x, y, n)) {
    activate_row(act, x, y, n);
}

PER_ISA(void, activation_gradient, (enum activation act, const float *x, const float *dy, float *dx, int64_t n),
        (act, x, dy, dx, n)) {
    activation_gradient_row(act, x, dy, dx, n);
}
