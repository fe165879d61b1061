/* Stand-ins of the cuBLASLt functions that the backend calls: D = epilogue(alpha op(A) op(B) + beta C), columns first.
 * What the library refuses by its documentation is refused here, with a line on stderr that says why. */
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <memory>

#include "internal.h"

namespace emu {

/* --- what the handles point to --- */

struct layout {
    cudaDataType type;
    int64_t rows, columns, leading;
    int32_t batches;
    int64_t stride; /* elements from one matrix of a batch to the next */
};

struct description {
    cublasComputeType_t compute;
    cudaDataType scale;
    int32_t transpose_a, transpose_b;
    uint32_t epilogue;
    void *bias, *aux;
    int64_t aux_leading;
    int32_t bias_type, aux_type; /* -1: that of D */
};

struct preference {
    uint64_t workspace;
    uint32_t alignment[4]; /* of A, B, C, D */
};

/* An algorithm, as it lies in the caller's cublasLtMatmulAlgo_t. */
struct algorithm {
    uint64_t mark, alignment;
};
static_assert(sizeof(algorithm) <= sizeof(cublasLtMatmulAlgo_t), "has room");
constexpr uint64_t ALGORITHM_MARK = 0x6265727468, NO_ALGORITHM_MARK = 0x6E6F6E65;

template <typename T, typename Handle>
static T *object(Handle handle) {
    return reinterpret_cast<T *>(handle);
}

/* --- what is allowed --- */

static size_t type_size(cudaDataType type) { return type == CUDA_R_32F ? 4 : 2; }
static bool is_known(cudaDataType type) { return type == CUDA_R_32F || type == CUDA_R_16BF || type == CUDA_R_16F; }

struct product {
    const description *how;
    const layout *a, *b, *c, *d;
    int64_t m = 0, n = 0, k = 0;
    cudaDataType bias_type = CUDA_R_32F, aux_type = CUDA_R_32F;
    /* what the epilogue does; bias_gradient is that of D */
    bool adds_bias = false, bias_gradient = false, bias_gradient_a = false, bias_gradient_b = false;
    bool gelu = false, gelu_gradient = false, has_aux = false;
};

static cublasStatus_t refuse(cublasStatus_t status, const std::string &why) {
    warn("cublasLtMatmul: %s: %s", cublasLtGetStatusName(status), why.c_str());
    return status;
}

static bool epilogue_of(const description *how, product *out) {
    switch (how->epilogue) {
        case CUBLASLT_EPILOGUE_DEFAULT:
        case CUBLASLT_EPILOGUE_BIAS:
        case CUBLASLT_EPILOGUE_GELU:
        case CUBLASLT_EPILOGUE_GELU_BIAS:
        case CUBLASLT_EPILOGUE_GELU_AUX:
        case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
        case CUBLASLT_EPILOGUE_DGELU:
        case CUBLASLT_EPILOGUE_DGELU_BGRAD:
        case CUBLASLT_EPILOGUE_BGRADA:
        case CUBLASLT_EPILOGUE_BGRADB:
            break;
        default:
            return false;
    }
    /* the values are sets of bits */
    out->adds_bias = how->epilogue & CUBLASLT_EPILOGUE_BIAS;
    out->gelu = how->epilogue & CUBLASLT_EPILOGUE_GELU;
    out->gelu_gradient = (how->epilogue & CUBLASLT_EPILOGUE_DGELU) == CUBLASLT_EPILOGUE_DGELU;
    out->has_aux = how->epilogue & 128;
    out->bias_gradient = how->epilogue & 16;
    out->bias_gradient_a = how->epilogue & CUBLASLT_EPILOGUE_BGRADA;
    out->bias_gradient_b = how->epilogue & CUBLASLT_EPILOGUE_BGRADB;
    return true;
}

static bool needs_bias(const product &p) {
    return p.adds_bias || p.bias_gradient || p.bias_gradient_a || p.bias_gradient_b;
}

static cublasStatus_t check_shapes(product *p) {
    bool ta = p->how->transpose_a == CUBLAS_OP_T, tb = p->how->transpose_b == CUBLAS_OP_T;
    p->m = p->d->rows;
    p->n = p->d->columns;
    p->k = ta ? p->a->rows : p->a->columns;
    if ((ta ? p->a->columns : p->a->rows) != p->m || (tb ? p->b->columns : p->b->rows) != p->k ||
        (tb ? p->b->rows : p->b->columns) != p->n || p->c->rows != p->m || p->c->columns != p->n)
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "the shapes of A, B, C and D do not fit together");
    if (p->m <= 0 || p->n <= 0 || p->k <= 0)
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "a side of the product is 0");
    const layout *all[] = {p->a, p->b, p->c, p->d};
    for (const layout *l : all) {
        if (l->leading < l->rows)
            return refuse(CUBLAS_STATUS_INVALID_VALUE, "a leading dimension is less than the rows");
        if (l->batches != p->d->batches)
            return refuse(CUBLAS_STATUS_INVALID_VALUE, "the batch counts of A, B, C and D differ");
    }
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_types(const product &p) {
    if (!is_known(p.a->type) || !is_known(p.d->type) || p.a->type != p.b->type || p.c->type != p.d->type)
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "types: A and B the same, C and D the same, of f32, bf16, f16");
    if (p.d->type != CUDA_R_32F && p.d->type != p.a->type)
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "types: D is that of A, or f32");
    bool fast = p.how->compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    if ((p.how->compute != CUBLAS_COMPUTE_32F && !fast) || p.how->scale != CUDA_R_32F)
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "types: only 32F and 32F_FAST_TF32 with f32 scales");
    if (fast && p.a->type != CUDA_R_32F)
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "types: FAST_TF32 is of f32 matrices");
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_epilogue(product *p) {
    const description *how = p->how;
    if (!epilogue_of(how, p))
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "an epilogue that the emulator does not have");
    p->bias_type = how->bias_type < 0 ? p->d->type : (cudaDataType)how->bias_type;
    p->aux_type = how->aux_type < 0 ? p->d->type : (cudaDataType)how->aux_type;
    if (needs_bias(*p) && p->bias_type != p->d->type)
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "a bias, or its gradient, has the type of D");
    if (p->has_aux && p->aux_type != p->d->type)
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "the auxiliary matrix has the type of D");
    if (p->has_aux && (how->aux_leading % 8 != 0 || how->aux_leading < p->m))
        return refuse(CUBLAS_STATUS_INVALID_VALUE,
                      "the leading dimension of the auxiliary matrix is a multiple of 8, and no less than D's rows");
    if ((needs_bias(*p) || p->has_aux) && p->d->batches > 1)
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "batches have no epilogue here");
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_product(product *p) {
    cublasStatus_t status = check_shapes(p);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = check_types(*p);
    return status == CUBLAS_STATUS_SUCCESS ? check_epilogue(p) : status;
}

/* Do all columns begin at a multiple of `alignment` bytes, if the matrix does? */
static bool columns_fit(const layout *l, uint64_t alignment) {
    return l->leading * type_size(l->type) % alignment == 0;
}

static bool all_columns_fit(const product &p, uint64_t alignment) {
    return columns_fit(p.a, alignment) && columns_fit(p.b, alignment) && columns_fit(p.c, alignment) &&
           columns_fit(p.d, alignment);
}

/* --- memory --- */

static cublasStatus_t check_range(const char *name, const void *p, int64_t elements, cudaDataType type,
                                  uint64_t alignment) {
    if (!p)
        return refuse(CUBLAS_STATUS_INVALID_VALUE, text("%s is not given", name));
    if ((uintptr_t)p % std::max<uint64_t>(alignment, type_size(type)) != 0)
        return refuse(CUBLAS_STATUS_INVALID_VALUE, text("%s is not aligned as the algorithm needs it", name));
    if (!is_device_memory(p, elements * type_size(type)))
        return refuse(CUBLAS_STATUS_INVALID_VALUE,
                      text("%s is not %lld elements of device memory", name, (long long)elements));
    return CUBLAS_STATUS_SUCCESS;
}

static int64_t elements_of(const layout *l) {
    return (l->batches - 1) * l->stride + (l->columns - 1) * l->leading + l->rows;
}

static cublasStatus_t check_memory(const product &p, const void *a, const void *b, const void *c, const void *d,
                                   bool reads_c, uint64_t alignment) {
    const struct {
        const char *name;
        const void *at;
        int64_t elements;
        cudaDataType type;
        bool used;
        uint64_t alignment;
    } ranges[] = {
        {"A", a, elements_of(p.a), p.a->type, true, alignment},
        {"B", b, elements_of(p.b), p.b->type, true, alignment},
        {"C", c, elements_of(p.c), p.c->type, reads_c, alignment},
        {"D", d, elements_of(p.d), p.d->type, true, alignment},
        {"the bias", p.how->bias, p.bias_gradient_b ? p.n : p.m, p.bias_type, needs_bias(p), 1},
        {"the auxiliary matrix", p.how->aux, (p.n - 1) * p.how->aux_leading + p.m, p.aux_type, p.has_aux, 16},
    };
    for (const auto &r : ranges) {
        cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
        if (r.used)
            status = check_range(r.name, r.at, r.elements, r.type, r.alignment);
        if (status != CUBLAS_STATUS_SUCCESS)
            return status;
    }
    if (d == a || d == b)
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "D lies where A or B does");
    return CUBLAS_STATUS_SUCCESS;
}

static float load(const void *p, cudaDataType type, int64_t i) {
    if (type == CUDA_R_32F)
        return static_cast<const float *>(p)[i];
    if (type == CUDA_R_16BF)
        return __bfloat162float(static_cast<const __nv_bfloat16 *>(p)[i]);
    return __half2float(static_cast<const __half *>(p)[i]);
}

static void store(void *p, cudaDataType type, int64_t i, float x) {
    if (type == CUDA_R_32F)
        static_cast<float *>(p)[i] = x;
    else if (type == CUDA_R_16BF)
        static_cast<__nv_bfloat16 *>(p)[i] = __float2bfloat16_rn(x);
    else
        static_cast<__half *>(p)[i] = __float2half_rn(x);
}

/* --- the product of floats --- */

/* To the nearest number of 10 bits of mantissa, ties away from zero. */
static float rounded_to_tf32(float x) {
    uint32_t bits = same_bits<uint32_t>(x);
    if ((bits & 0x7F800000u) != 0x7F800000u)
        bits = (bits + 0x1000u) & ~0x1FFFu;
    return same_bits<float>(bits);
}

/* Rows of a tile of D, and columns: their sums stay in registers. */
constexpr int TILE_ROWS = 32, TILE_COLUMNS = 4;

static int64_t tiles(int64_t length, int tile) { return (length + tile - 1) / tile; }

/* op(X) [outer, k] or its transpose as tiles of `tile` rows, zero where there is nothing: [outer / tile][k][tile]. */
static std::unique_ptr<float[]> packed(const void *x, const layout *l, bool k_is_first, int64_t outer, int64_t k,
                                       int tile, bool tf32) {
    int64_t count = tiles(outer, tile);
    std::unique_ptr<float[]> made(new float[count * k * tile]);
#pragma omp parallel for
    for (int64_t t = 0; t < count; t++)
        for (int64_t row = 0; row < tile; row++)
            for (int64_t j = 0; j < k; j++) {
                int64_t i = t * tile + row;
                float value = i >= outer ? 0 : load(x, l->type, k_is_first ? j + i * l->leading : i + j * l->leading);
                made[(t * k + j) * tile + row] = tf32 ? rounded_to_tf32(value) : value;
            }
    return made;
}

/* Compiled twice, and the better one for the processor is taken. */
#if defined(__x86_64__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define WITH_WIDE_VECTORS __attribute__((target_clones("avx2", "default")))
#else
#define WITH_WIDE_VECTORS
#endif

WITH_WIDE_VECTORS
static void multiply_tile(const float *__restrict__ a, const float *__restrict__ b, int64_t k,
                          float (*__restrict__ out)[TILE_ROWS]) {
    float sum[TILE_COLUMNS][TILE_ROWS] = {};
    for (int64_t j = 0; j < k; j++)
        for (int column = 0; column < TILE_COLUMNS; column++)
            for (int row = 0; row < TILE_ROWS; row++)
                sum[column][row] += a[j * TILE_ROWS + row] * b[j * TILE_COLUMNS + column];
    memcpy(out, sum, sizeof sum);
}

static float gelu(float x) { return 0.5f * x * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x))); }

static float gelu_gradient(float x) {
    float t = tanhf(0.7978845608f * (x + 0.044715f * x * x * x));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.7978845608f * (1 + 3 * 0.044715f * x * x);
}

/* What becomes of a sum; returns what D gets. */
static float finish(const product &p, float x, int64_t row, int64_t column) {
    int64_t aux = row + column * p.how->aux_leading;
    if (p.adds_bias)
        x += load(p.how->bias, p.bias_type, row);
    if (p.gelu && p.has_aux)
        store(p.how->aux, p.aux_type, aux, x);
    if (p.gelu)
        return gelu(x);
    return p.gelu_gradient ? x * gelu_gradient(load(p.how->aux, p.aux_type, aux)) : x;
}

static void multiply(const product &p, const void *a, const void *b, const void *c, void *d, float alpha, float beta) {
    bool tf32 = p.how->compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    auto pa = packed(a, p.a, p.how->transpose_a == CUBLAS_OP_T, p.m, p.k, TILE_ROWS, tf32);
    auto pb = packed(b, p.b, p.how->transpose_b == CUBLAS_OP_N, p.n, p.k, TILE_COLUMNS, tf32);
    int64_t across = tiles(p.m, TILE_ROWS), along = tiles(p.n, TILE_COLUMNS);
#pragma omp parallel for
    for (int64_t tile = 0; tile < across * along; tile++) {
        int64_t first_row = tile / along * TILE_ROWS, first_column = tile % along * TILE_COLUMNS;
        float sum[TILE_COLUMNS][TILE_ROWS];
        multiply_tile(&pa[first_row * p.k], &pb[first_column * p.k], p.k, sum);
        for (int64_t j = first_column; j < std::min(first_column + TILE_COLUMNS, p.n); j++)
            for (int64_t i = first_row; i < std::min(first_row + TILE_ROWS, p.m); i++) {
                float x = alpha * sum[j - first_column][i - first_row];
                if (beta != 0)
                    x += beta * load(c, p.c->type, i + j * p.c->leading);
                store(d, p.d->type, i + j * p.d->leading, finish(p, x, i, j));
            }
    }
}

/* vector[i] = the sum over j of x[i + j rows_apart, …]; the gradient of a bias. */
static void sum_over(const void *x, cudaDataType type, int64_t count, int64_t apart, int64_t terms, int64_t terms_apart,
                     const product &p) {
    for (int64_t i = 0; i < count; i++) {
        double sum = 0;
        for (int64_t j = 0; j < terms; j++)
            sum += load(x, type, i * apart + j * terms_apart);
        store(p.how->bias, p.bias_type, i, (float)sum);
    }
}

static void bias_gradients(const product &p, const void *a, const void *b, const void *d) {
    bool ta = p.how->transpose_a == CUBLAS_OP_T, tb = p.how->transpose_b == CUBLAS_OP_T;
    if (p.bias_gradient_a)
        sum_over(a, p.a->type, p.m, ta ? p.a->leading : 1, p.k, ta ? 1 : p.a->leading, p);
    if (p.bias_gradient_b)
        sum_over(b, p.b->type, p.n, tb ? 1 : p.b->leading, p.k, tb ? p.b->leading : 1, p);
    if (p.bias_gradient)
        sum_over(d, p.d->type, p.m, 1, p.n, p.d->leading, p);
}

/* All matrices of a batch, and the gradient of a bias. */
static void run(const product &p, const void *a, const void *b, const void *c, void *d, float alpha, float beta) {
    for (int64_t i = 0; i < p.d->batches; i++) {
        auto matrix = [i](auto *base, const layout *l) {
            return (decltype(base))((uintptr_t)base + i * l->stride * type_size(l->type));
        };
        multiply(p, matrix(a, p.a), matrix(b, p.b), matrix(c, p.c), matrix(d, p.d), alpha, beta);
    }
    bias_gradients(p, a, b, d);
}

template <typename T>
static cublasStatus_t set(T *field, const void *value, size_t bytes) {
    if (!value || bytes != sizeof *field)
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "an attribute of another size");
    memcpy(field, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

}  // namespace emu

/* --- cuBLASLt's names --- */

using namespace emu;

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out) {
    *out = object<cublasLtContext>(new char);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t library) {
    delete object<char>(library);
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }

const char *cublasLtGetStatusName(cublasStatus_t status) {
    switch (status) {
        case CUBLAS_STATUS_SUCCESS:
            return "CUBLAS_STATUS_SUCCESS";
        case CUBLAS_STATUS_INVALID_VALUE:
            return "CUBLAS_STATUS_INVALID_VALUE";
        case CUBLAS_STATUS_NOT_SUPPORTED:
            return "CUBLAS_STATUS_NOT_SUPPORTED";
        case CUBLAS_STATUS_EXECUTION_FAILED:
            return "CUBLAS_STATUS_EXECUTION_FAILED";
        default:
            return "another status";
    }
}

const char *cublasLtGetStatusString(cublasStatus_t status) { return cublasLtGetStatusName(status); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale) {
    *out = object<cublasLtMatmulDescOpaque_t>(new description{compute, scale, CUBLAS_OP_N, CUBLAS_OP_N,
                                                              CUBLASLT_EPILOGUE_DEFAULT, nullptr, nullptr, 0, -1, -1});
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t handle) {
    delete object<description>(handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle, cublasLtMatmulDescAttributes_t name,
                                              const void *value, size_t bytes) {
    description *how = object<description>(handle);
    switch (name) {
        case CUBLASLT_MATMUL_DESC_TRANSA:
            return set(&how->transpose_a, value, bytes);
        case CUBLASLT_MATMUL_DESC_TRANSB:
            return set(&how->transpose_b, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE:
            return set(&how->epilogue, value, bytes);
        case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
            return set(&how->bias, value, bytes);
        case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
            return set(&how->bias_type, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
            return set(&how->aux, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
            return set(&how->aux_leading, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
            return set(&how->aux_type, value, bytes);
        default:
            return refuse(CUBLAS_STATUS_INVALID_VALUE, text("attribute %d of a description is not known", name));
    }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t leading) {
    *out = object<cublasLtMatrixLayoutOpaque_t>(
        new layout{type, (int64_t)rows, (int64_t)columns, leading, 1, leading * (int64_t)columns});
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t handle) {
    delete object<layout>(handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t handle, cublasLtMatrixLayoutAttribute_t name,
                                                const void *value, size_t bytes) {
    layout *l = object<layout>(handle);
    if (name == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
        return set(&l->batches, value, bytes);
    if (name == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)
        return set(&l->stride, value, bytes);
    return refuse(CUBLAS_STATUS_INVALID_VALUE, text("attribute %d of a layout is not known", name));
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
    *out = object<cublasLtMatmulPreferenceOpaque_t>(new preference{0, {256, 256, 256, 256}});
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t handle) {
    delete object<preference>(handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t name, const void *value,
                                                    size_t bytes) {
    preference *wish = object<preference>(handle);
    switch (name) {
        case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
            return set(&wish->workspace, value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
            return set(&wish->alignment[0], value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
            return set(&wish->alignment[1], value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
            return set(&wish->alignment[2], value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
            return set(&wish->alignment[3], value, bytes);
        default:
            return refuse(CUBLAS_STATUS_INVALID_VALUE, text("attribute %d of a preference is not known", name));
    }
}

/* One result that is none, as its state says; one algorithm that needs columns aligned to 16 bytes, where they are, and
 * one that does not. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t how, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t wish, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int *count) {
    product p = {object<description>(how), object<layout>(a), object<layout>(b), object<layout>(c), object<layout>(d)};
    *count = 0;
    if (requested <= 0)
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "no algorithm is asked for");
    cublasStatus_t status = check_product(&p);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    const uint32_t *promised = object<preference>(wish)->alignment;
    uint64_t needs[] = {16, 1};
    if (requested > 1) {
        cublasLtMatmulHeuristicResult_t *result = &results[(*count)++];
        *result = {};
        result->state = CUBLAS_STATUS_NOT_SUPPORTED;
        memcpy(&result->algo, &NO_ALGORITHM_MARK, sizeof NO_ALGORITHM_MARK);
    }
    for (uint64_t alignment : needs) {
        if (*count == requested || *std::min_element(promised, promised + 4) < alignment ||
            !all_columns_fit(p, alignment))
            continue;
        cublasLtMatmulHeuristicResult_t *result = &results[(*count)++];
        *result = {};
        algorithm made = {ALGORITHM_MARK, alignment};
        memcpy(&result->algo, &made, sizeof made);
        result->state = CUBLAS_STATUS_SUCCESS;
        result->wavesCount = 1;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t how, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
    product p = {object<description>(how), object<layout>(a_layout), object<layout>(b_layout), object<layout>(c_layout),
                 object<layout>(d_layout)};
    float scale = *static_cast<const float *>(alpha), scale_c = *static_cast<const float *>(beta);
    algorithm chosen = {ALGORITHM_MARK, 1};
    if (algo)
        memcpy(&chosen, algo, sizeof chosen);
    if (chosen.mark == NO_ALGORITHM_MARK)
        stop("", "cublasLtMatmul: an algorithm of a result whose state says that it is none");
    if (chosen.mark != ALGORITHM_MARK || !stream_is_known(stream))
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "no algorithm of cublasLtMatmulAlgoGetHeuristic, or no stream");
    if (workspace_bytes > 0 && (!is_device_memory(workspace, workspace_bytes) || (uintptr_t)workspace % 256 != 0))
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "the workspace is not device memory at a multiple of 256 bytes");
    cublasStatus_t status = check_product(&p);
    if (status == CUBLAS_STATUS_SUCCESS && !all_columns_fit(p, chosen.alignment))
        status = refuse(CUBLAS_STATUS_NOT_SUPPORTED, "the algorithm is one for aligned columns");
    if (status == CUBLAS_STATUS_SUCCESS)
        status = check_memory(p, a, b, c, d, scale_c != 0, chosen.alignment);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    auto work = [p, how = *p.how, layouts = std::array<layout, 4>{*p.a, *p.b, *p.c, *p.d}, a, b, c, d, scale, scale_c] {
        product own = p; /* the caller's descriptions may be gone */
        own.how = &how;
        own.a = &layouts[0], own.b = &layouts[1], own.c = &layouts[2], own.d = &layouts[3];
        run(own, a, b, c, d, scale, scale_c);
    };
    return submit(stream, work_kind::PRODUCT, work) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                                   : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
