/* Dense contractions of floats: the seam behind which the library, or plain C, stands. */
#ifndef BERTH_KERNELS_CPU_CONTRACTION_H
#define BERTH_KERNELS_CPU_CONTRACTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* c[m,n] = a b (+ c where `add`), row-major with row strides. a is [m,k], or [k,m] if transposed; b is [k,n], or [n,k].
 * Uses all threads, or one when called inside a parallel region. */
status contract_f32(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const float *a,
                    int64_t stride_a, const float *b, int64_t stride_b, bool add, float *c, int64_t stride_c);

void contraction_describe(char *out, size_t size); /* "oneDNN 2.6.3" */

#endif
