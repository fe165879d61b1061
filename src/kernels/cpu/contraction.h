/* Dense contractions: the seam behind which the library, or plain C, stands. */
#ifndef BERTH_KERNELS_CPU_CONTRACTION_H
#define BERTH_KERNELS_CPU_CONTRACTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/number.h"
#include "base/status.h"

/* c[m,n] = a b (+ c where `add`), row-major with row strides in elements. a is [m,k], or [k,m] if transposed; b is
 * [k,n], or [n,k]. */
struct product {
    bool transpose_a, transpose_b, add;
    int64_t m, n, k, stride_a, stride_b, stride_c;
    enum dtype dtype_a, dtype_b, dtype_c;
};

/* What the library prepared, kept from call to call; for one thread at a time. */
struct contractions;
struct contractions *contractions_new(void);
void contractions_free(struct contractions *contractions);

/* Does the processor multiply operands of this dtype faster than floats? F32 always; BF16 with AMX, AMD's AVX-512 BF16,
 * or arm64's BF16. */
bool contractions_native(const struct contractions *contractions, enum dtype dtype);

/* The product; a and b have one native dtype, c has it too or is F32. Sums are in fp32. Uses all threads. */
status contract(struct contractions *contractions, const struct product *product, const void *a, const void *b,
                void *c);

/* The same for floats, from any thread: uses one thread inside a parallel region. */
status contract_f32(const struct product *product, const float *a, const float *b, float *c);

/* "oneDNN 2.6.3" */
void contractions_describe(const struct contractions *contractions, char *out, size_t size);

#endif
