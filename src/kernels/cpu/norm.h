/* LayerNorm of one row of floats. */
#ifndef BERTH_KERNELS_CPU_NORM_H
#define BERTH_KERNELS_CPU_NORM_H

#include <stdint.h>

/* y = (x - mean) rstd gamma + beta with the row's own statistics, which *mean and *rstd become. All are [n]. */
void normalize_row(const float *x, int64_t n, double epsilon, const float *gamma, const float *beta, float *y,
                   float *mean, float *rstd);

/* dx of the row from dy (where dx may stand) and x; dgamma and dbeta are added to. All are [n]. */
void normalize_row_gradient(const float *dy, const float *x, int64_t n, float mean, float rstd, const float *gamma,
                            float *dgamma, float *dbeta, float *dx);

#endif
