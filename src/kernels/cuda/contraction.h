/* Dense products with weights: the seam behind which cuBLASLt stands. */
#ifndef BERTH_KERNELS_CUDA_CONTRACTION_H
#define BERTH_KERNELS_CUDA_CONTRACTION_H

#include "kernels/cuda/kernels.h"

enum epilogue {
    EPILOGUE_NONE,
    EPILOGUE_BIAS,      /* c[m,n] += vector[n] */
    EPILOGUE_GELU_BIAS, /* aux = c + vector, c = gelu_new(aux) */
    EPILOGUE_DGELU,     /* c = c * gelu_new'(aux) */
    EPILOGUE_ROW_SUMS,  /* vector[m] = the sums over k of a */
};

/* c[m,n] = a b + beta z, row-major and without gaps. a is [m,k], or [k,m] if transposed; b is [k,n], or [n,k]. */
struct product {
    bool transpose_a, transpose_b;
    int64_t m, n, k;
    enum dtype dtype, dtype_c; /* of a, b and aux; of c and z */
    const void *a, *b, *z;     /* z NULL: beta is 0; it may be c */
    void *c;
    enum epilogue epilogue;
    void *vector; /* f32 */
    void *aux;    /* [m,n] */
};

struct lt;
status lt_new(struct lt **out, struct cuda *cuda, bool tf32);
void lt_free(struct lt *lt);
struct lt *cuda_lt(struct cuda *cuda);

/* The product, on the backend's stream. The first one of a shape is timed with each algorithm that the library
 * proposes, and the fastest is kept. */
status lt_multiply(struct lt *lt, const struct product *product);

/* The same where the library has this product with its epilogue; where not, *supported is false, nothing is done, and
 * what the epilogue does is the caller's to do. */
status lt_multiply_if_supported(struct lt *lt, const struct product *product, bool *supported);

/* From now on what the file has was chosen, and what it has not is chosen and kept there (see choices.h). */
status lt_keep_choices(struct lt *lt, const char *path, const char *device, bool write);

/* "cuBLASLt 13.0.2" */
void lt_describe(const struct lt *lt, char *out, size_t size);

#endif
