/* cuBLASLt counts columns first. A row-major c[m,n] is to it the matrix c^T with n rows, so its operand A is our b, its
 * B is our a, and "rows of D", along which it adds a bias, are our columns. */
#include "kernels/cuda/contraction.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/memory.h"
#include "kernels/cuda/choices.h"
#include "kernels/cuda/cublaslt.h"

/* What decides which algorithm is fastest. Zeroed before it is filled: compared as bytes. */
struct shape {
    int64_t m, n, k;
    int32_t transpose_a, transpose_b, dtype, dtype_c, adds, in_place, epilogue, aligned;
};

struct choice {
    struct shape shape;
    bool supported;
    cublasLtMatmulAlgo_t algorithm;
};

struct lt {
    struct cuda *cuda;
    cublasLtHandle_t library;
    bool tf32;
    struct choice *choices; /* one a shape */
    int count, capacity;
    struct choices *kept; /* in a file, or NULL */
};
_Static_assert(sizeof(cublasLtMatmulAlgo_t) == CHOICE_BYTES, "what choices.h keeps");

/* --- errors --- */

static status library_check(cublasStatus_t code, const char *what) {
    if (code == CUBLAS_STATUS_SUCCESS)
        return OK;
    return failed("cuBLASLt: %s: %s", what, cublaslt.GetStatusString(code));
}
#define LT_TRY(call) TRY(library_check((call), #call))
#define LT_TRY_GOTO(call, label) TRY_GOTO(library_check((call), #call), label)

/* --- descriptors --- */

static cudaDataType_t data_type(enum dtype dtype) {
    return dtype == F32 ? CUDA_R_32F : dtype == BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

struct descriptors {
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c;
};

static void descriptors_free(struct descriptors *d) {
    if (d->product)
        cublaslt.MatmulDescDestroy(d->product);
    cublasLtMatrixLayout_t layouts[] = {d->a, d->b, d->c};
    for (int i = 0; i < 3; i++)
        if (layouts[i])
            cublaslt.MatrixLayoutDestroy(layouts[i]);
}

static status set(cublasLtMatmulDesc_t descriptor, cublasLtMatmulDescAttributes_t attribute, const void *value,
                  size_t bytes) {
    LT_TRY(cublaslt.MatmulDescSetAttribute(descriptor, attribute, value, bytes));
    return OK;
}

static status set_epilogue(cublasLtMatmulDesc_t descriptor, const struct product *product) {
    static const cublasLtEpilogue_t epilogues[] = {[EPILOGUE_NONE] = CUBLASLT_EPILOGUE_DEFAULT,
                                                   [EPILOGUE_BIAS] = CUBLASLT_EPILOGUE_BIAS,
                                                   [EPILOGUE_GELU_BIAS] = CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
                                                   [EPILOGUE_DGELU] = CUBLASLT_EPILOGUE_DGELU,
                                                   [EPILOGUE_ROW_SUMS] = CUBLASLT_EPILOGUE_BGRADB};
    cublasLtEpilogue_t epilogue = epilogues[product->epilogue];
    TRY(set(descriptor, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    if (product->vector)
        TRY(set(descriptor, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &product->vector, sizeof product->vector));
    if (product->aux) {
        TRY(set(descriptor, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &product->aux, sizeof product->aux));
        TRY(set(descriptor, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &product->n, sizeof product->n));
    }
    return OK;
}

static status layout_new(cublasLtMatrixLayout_t *out, enum dtype dtype, bool transposed, int64_t rows,
                         int64_t columns) {
    uint64_t first = (uint64_t)(transposed ? rows : columns), second = (uint64_t)(transposed ? columns : rows);
    LT_TRY(cublaslt.MatrixLayoutCreate(out, data_type(dtype), first, second, (int64_t)first));
    return OK;
}

static status describe(const struct lt *lt, const struct product *p, struct descriptors *out) {
    *out = (struct descriptors){0};
    cublasComputeType_t compute = lt->tf32 && p->dtype == F32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    cublasOperation_t transpose_a = p->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t transpose_b = p->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    status code = OK;
    LT_TRY_GOTO(cublaslt.MatmulDescCreate(&out->product, compute, CUDA_R_32F), fail);
    TRY_GOTO(set(out->product, CUBLASLT_MATMUL_DESC_TRANSA, &transpose_a, sizeof transpose_a), fail);
    TRY_GOTO(set(out->product, CUBLASLT_MATMUL_DESC_TRANSB, &transpose_b, sizeof transpose_b), fail);
    TRY_GOTO(set_epilogue(out->product, p), fail);
    TRY_GOTO(layout_new(&out->a, p->dtype, p->transpose_b, p->k, p->n), fail);
    TRY_GOTO(layout_new(&out->b, p->dtype, p->transpose_a, p->m, p->k), fail);
    TRY_GOTO(layout_new(&out->c, p->dtype_c, false, p->m, p->n), fail);
    return OK;
fail:
    descriptors_free(out);
    return code;
}

static cublasStatus_t multiply(const struct lt *lt, const struct product *p, const struct descriptors *d,
                               const cublasLtMatmulAlgo_t *algorithm, void *to) {
    float one = 1, beta = p->z ? 1 : 0;
    return cublaslt.Matmul(lt->library, d->product, &one, p->b, d->a, p->a, d->b, &beta, p->z ? p->z : to, d->c, to,
                           d->c, algorithm, cuda_workspace(lt->cuda), CUDA_WORKSPACE_BYTES, cuda_stream(lt->cuda));
}

/* --- the choice of an algorithm --- */

/* The largest power of two up to 16 that divides all addresses. */
static int32_t alignment(const struct product *p) {
    uintptr_t all = (uintptr_t)p->a | (uintptr_t)p->b | (uintptr_t)p->c | (uintptr_t)p->z | (uintptr_t)p->vector |
                    (uintptr_t)p->aux | 16;
    return (int32_t)(all & -all);
}

static struct shape shape_of(const struct product *p) {
    struct shape shape;
    memset(&shape, 0, sizeof shape);
    shape.m = p->m, shape.n = p->n, shape.k = p->k;
    shape.transpose_a = p->transpose_a, shape.transpose_b = p->transpose_b;
    shape.dtype = (int32_t)p->dtype, shape.dtype_c = (int32_t)p->dtype_c;
    shape.adds = p->z != NULL, shape.in_place = p->z == p->c;
    shape.epilogue = (int32_t)p->epilogue;
    shape.aligned = alignment(p);
    return shape;
}

enum { PROPOSALS = 8, TRIALS = 3 };

static status propose(const struct lt *lt, const struct product *p, const struct descriptors *d,
                      cublasLtMatmulHeuristicResult_t *found, int *count) {
    cublasLtMatmulPreference_t preference = NULL;
    uint64_t workspace = CUDA_WORKSPACE_BYTES;
    uint32_t aligned = (uint32_t)alignment(p);
    static const cublasLtMatmulPreferenceAttributes_t addresses[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    status code = OK;
    *count = 0;
    LT_TRY(cublaslt.MatmulPreferenceCreate(&preference));
    LT_TRY_GOTO(cublaslt.MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                                      sizeof workspace),
                done);
    for (int i = 0; i < 4; i++)
        LT_TRY_GOTO(cublaslt.MatmulPreferenceSetAttribute(preference, addresses[i], &aligned, sizeof aligned), done);
    cublasStatus_t said = cublaslt.MatmulAlgoGetHeuristic(lt->library, d->product, d->a, d->b, d->c, d->c, preference,
                                                          PROPOSALS, found, count);
    int valid = 0; /* none after NOT_SUPPORTED, or INVALID_VALUE for an epilogue that these types do not have */
    for (int i = 0; said == CUBLAS_STATUS_SUCCESS && i < *count; i++)
        if (found[i].state == CUBLAS_STATUS_SUCCESS) /* the others' fields mean nothing */
            found[valid++] = found[i];
    *count = valid;
done:
    cublaslt.MatmulPreferenceDestroy(preference);
    return code;
}

struct trial {
    const struct lt *lt;
    const struct product *product;
    const struct descriptors *descriptors;
    const cublasLtMatmulAlgo_t *algorithm;
    void *to;
};

static status run_trial(struct cuda *cuda, void *ctx) {
    const struct trial *t = ctx;
    (void)cuda;
    return library_check(multiply(t->lt, t->product, t->descriptors, t->algorithm, t->to), "cublasLtMatmul");
}

/* The proposals are timed into memory of their own, so that a sum that `c` holds stays as it is; where there is no room
 * for that, the library's first proposal it is. */
static int fastest(const struct lt *lt, const struct product *p, const struct descriptors *d,
                   const cublasLtMatmulHeuristicResult_t *found, int count) {
    struct trial trial = {.lt = lt, .product = p, .descriptors = d};
    int best = 0;
    if (count == 1 || cudaMalloc(&trial.to, (size_t)(p->m * p->n) * dtype_size(p->dtype_c)) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    double least = 0;
    for (int i = 0; i < count; i++) {
        trial.algorithm = &found[i].algo;
        double seconds = cuda_time(lt->cuda, run_trial, &trial, TRIALS);
        if (seconds > 0 && (least == 0 || seconds < least))
            least = seconds, best = i;
    }
    cudaFree(trial.to);
    return best;
}

/* What decides on an algorithm, in words. */
static void name_shape(const struct shape *shape, char *name, size_t size) {
    static const char *const epilogues[] = {[EPILOGUE_NONE] = "",
                                            [EPILOGUE_BIAS] = ", bias",
                                            [EPILOGUE_GELU_BIAS] = ", bias and gelu",
                                            [EPILOGUE_DGELU] = ", gelu's gradient",
                                            [EPILOGUE_ROW_SUMS] = ", sums of rows"};
    snprintf(name, size, "%lld x %lld x %lld, a%s b%s%s%s, %s to %s, %d bytes aligned", (long long)shape->m,
             (long long)shape->n, (long long)shape->k, shape->transpose_a ? "^T" : "", shape->transpose_b ? "^T" : "",
             !shape->adds      ? ""
             : shape->in_place ? " + c"
                               : " + z",
             epilogues[shape->epilogue], dtype_name((enum dtype)shape->dtype), dtype_name((enum dtype)shape->dtype_c),
             shape->aligned);
}

/* The kept algorithm, where the library can still do it. */
static bool is_kept(const struct lt *lt, const char *name, const struct descriptors *d,
                    cublasLtMatmulAlgo_t *algorithm) {
    cublasLtMatmulHeuristicResult_t result;
    if (!lt->kept || !choices_find(lt->kept, name, algorithm))
        return false;
    if (cublaslt.MatmulAlgoCheck(lt->library, d->product, d->a, d->b, d->c, d->c, algorithm, &result) ==
            CUBLAS_STATUS_SUCCESS &&
        result.workspaceSize <= CUDA_WORKSPACE_BYTES)
        return true;
    log_warn("cuBLASLt refuses the algorithm that was kept for %s: it is chosen anew", name);
    return false;
}

static status choose(struct lt *lt, const struct product *p, const struct descriptors *d, struct choice *choice) {
    cublasLtMatmulHeuristicResult_t found[PROPOSALS];
    char name[160];
    int count;
    name_shape(&choice->shape, name, sizeof name);
    if (cuda_records(lt->cuda))
        return failed("a product of %lld x %lld x %lld is new, and cannot be timed while launches are recorded",
                      (long long)p->m, (long long)p->n, (long long)p->k);
    choice->supported = is_kept(lt, name, d, &choice->algorithm);
    if (choice->supported)
        return OK;
    TRY(propose(lt, p, d, found, &count));
    choice->supported = count > 0;
    if (count > 0)
        choice->algorithm = found[fastest(lt, p, d, found, count)].algo;
    return count > 0 && lt->kept ? choices_add(lt->kept, name, &choice->algorithm) : OK;
}

static status find(struct lt *lt, const struct product *p, const struct descriptors *d, const struct choice **out) {
    struct shape shape = shape_of(p);
    for (int i = 0; i < lt->count; i++)
        if (memcmp(&lt->choices[i].shape, &shape, sizeof shape) == 0) {
            *out = &lt->choices[i];
            return OK;
        }
    struct choice choice = {.shape = shape};
    TRY(choose(lt, p, d, &choice));
    GROW(lt->choices, lt->count, lt->capacity);
    lt->choices[lt->count] = choice;
    *out = &lt->choices[lt->count++];
    return OK;
}

/* --- the interface --- */

status lt_multiply_if_supported(struct lt *lt, const struct product *product, bool *supported) {
    struct descriptors d;
    const struct choice *choice;
    *supported = true;
    if (product->k == 0 && !product->z)
        CUDA_TRY(cudaMemsetAsync(product->c, 0, (size_t)(product->m * product->n) * dtype_size(product->dtype_c),
                                 cuda_stream(lt->cuda)));
    if (product->m == 0 || product->n == 0 || product->k == 0)
        return OK;
    TRY(describe(lt, product, &d));
    status code = find(lt, product, &d, &choice);
    *supported = code == OK && choice->supported;
    if (*supported)
        code = library_check(multiply(lt, product, &d, &choice->algorithm, product->c), "cublasLtMatmul");
    descriptors_free(&d);
    return code;
}

status lt_multiply(struct lt *lt, const struct product *product) {
    bool supported;
    TRY(lt_multiply_if_supported(lt, product, &supported));
    return supported ? OK
                     : failed("cuBLASLt has no product of %lld x %lld x %lld in %s", (long long)product->m,
                              (long long)product->n, (long long)product->k, dtype_name(product->dtype));
}

status lt_new(struct lt **out, struct cuda *cuda, bool tf32) {
    struct lt *lt = xcalloc(1, sizeof *lt);
    *lt = (struct lt){.cuda = cuda, .tf32 = tf32};
    *out = lt;
    LT_TRY(cublaslt.Create(&lt->library));
    return OK;
}

status lt_keep_choices(struct lt *lt, const char *path, const char *device, bool write) {
    char library[64];
    choices_free(lt->kept);
    lt->kept = NULL;
    lt->count = 0; /* made before, by timing */
    lt_describe(lt, library, sizeof library);
    return choices_open(&lt->kept, path, device, library, write);
}

void lt_free(struct lt *lt) {
    if (!lt)
        return;
    choices_free(lt->kept);
    if (lt->library)
        cublaslt.Destroy(lt->library);
    free(lt->choices);
    free(lt);
}

void lt_describe(const struct lt *lt, char *out, size_t size) {
    size_t version = cublaslt.GetVersion();
    snprintf(out, size, "cuBLASLt %zu.%zu.%zu%s", version / 10000, version / 100 % 100, version % 100,
             lt->tf32 ? ", tf32" : "");
}
