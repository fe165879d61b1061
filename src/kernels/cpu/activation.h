/* Activations of n floats and their gradients; y may be x, dx may be dy. */
#ifndef BERTH_KERNELS_CPU_ACTIVATION_H
#define BERTH_KERNELS_CPU_ACTIVATION_H

#include "graph/graph.h"

void activate(enum activation act, const float *x, float *y, int64_t n);
void activation_gradient(enum activation act, const float *x, const float *dy, float *dx, int64_t n); /* dy act'(x) */

#endif
