/* Stand-ins of the cuBLASLt functions that the backend calls: D = epilogue(op(A) op(B) + C), columns first.
 * What the library refuses by its documentation is refused here, with a line on stderr that says why. */
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>

#include "internal.h"

namespace emu {

/* --- what the handles point to --- */

struct layout {
    cudaDataType type;
    int64_t rows, columns, leading;
};

struct description {
    cublasComputeType_t compute;
    int32_t transpose_a, transpose_b;
    uint32_t epilogue;
    void *bias, *aux;
    int64_t aux_leading;
};

struct preference {
    uint64_t workspace;
    uint32_t alignment_a, alignment_b, alignment_c, alignment_d;
};

/* An algorithm, as it lies in the caller's cublasLtMatmulAlgo_t: the columns of all matrices are aligned to these
 * bytes. Where BERTH_EMU_SLOW is set, those for aligned columns add up from the last k to the first; else all
 * give the same bits, whichever is faster. */
struct algorithm {
    uint64_t mark, alignment;
};
static_assert(sizeof(algorithm) <= sizeof(cublasLtMatmulAlgo_t), "has room");
constexpr uint64_t ALGORITHM_MARK = 0x6265727468, NO_ALGORITHM_MARK = 0x6E6F6E65;

template <typename T, typename Handle>
static cublasStatus_t create(Handle *out, T made) {
    *out = reinterpret_cast<Handle>(new T(made));
    return CUBLAS_STATUS_SUCCESS;
}

template <typename T, typename Handle>
static cublasStatus_t destroy(Handle handle) {
    delete reinterpret_cast<T *>(handle);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t refuse(cublasStatus_t status, const std::string &why) {
    warn("cublasLtMatmul: %s: %s", cublasLtGetStatusString(status), why.c_str());
    return status;
}

/* The attributes that can be set, and where they lie. */
struct field {
    int name;
    size_t at, bytes;
};
#define FIELD(attribute, type, member) \
    { attribute, offsetof(type, member), sizeof(type::member) }

static const field DESCRIPTION_FIELDS[] = {FIELD(CUBLASLT_MATMUL_DESC_TRANSA, description, transpose_a),
                                           FIELD(CUBLASLT_MATMUL_DESC_TRANSB, description, transpose_b),
                                           FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE, description, epilogue),
                                           FIELD(CUBLASLT_MATMUL_DESC_BIAS_POINTER, description, bias),
                                           FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, description, aux),
                                           FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, description, aux_leading)};
static const field PREFERENCE_FIELDS[] = {FIELD(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, preference, workspace),
                                          FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, preference, alignment_a),
                                          FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, preference, alignment_b),
                                          FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, preference, alignment_c),
                                          FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, preference, alignment_d)};

template <int COUNT>
static cublasStatus_t set(const field (&fields)[COUNT], void *object, int name, const void *value, size_t bytes) {
    for (const field &f : fields)
        if (f.name == name && f.bytes == bytes && value) {
            memcpy(static_cast<char *>(object) + f.at, value, bytes);
            return CUBLAS_STATUS_SUCCESS;
        }
    return refuse(CUBLAS_STATUS_INVALID_VALUE, text("attribute %d of %zu bytes is not known", name, bytes));
}

/* --- what is allowed --- */

/* Those that berth uses. `bias`: is added, or is where its gradient goes. */
static const struct epilogue {
    uint32_t name;
    bool bias, gelu, gelu_gradient, bias_gradient;
} EPILOGUES[] = {{CUBLASLT_EPILOGUE_DEFAULT, false, false, false, false},
                 {CUBLASLT_EPILOGUE_BIAS, true, false, false, false},
                 {CUBLASLT_EPILOGUE_GELU_AUX_BIAS, true, true, false, false},
                 {CUBLASLT_EPILOGUE_DGELU, false, false, true, false},
                 {CUBLASLT_EPILOGUE_BGRADB, true, false, false, true}};

struct product {
    description how;
    layout a, b, c, d;
    int64_t m, n, k;
    bool transpose_a, transpose_b;
    const epilogue *then; /* nullptr: one that is not known here */
};

static bool has_aux(const product &p) { return p.then->gelu || p.then->gelu_gradient; }

template <typename Description, typename Layout>
static product product_of(Description how, Layout a, Layout b, Layout c, Layout d) {
    auto layout_of = [](Layout l) { return *reinterpret_cast<const layout *>(l); };
    product p = {*reinterpret_cast<const description *>(how),
                 layout_of(a),
                 layout_of(b),
                 layout_of(c),
                 layout_of(d),
                 0,
                 0,
                 0,
                 false,
                 false,
                 nullptr};
    p.transpose_a = p.how.transpose_a == CUBLAS_OP_T;
    p.transpose_b = p.how.transpose_b == CUBLAS_OP_T;
    p.m = p.d.rows;
    p.n = p.d.columns;
    p.k = p.transpose_a ? p.a.rows : p.a.columns;
    for (const epilogue &e : EPILOGUES)
        if (e.name == p.how.epilogue)
            p.then = &e;
    return p;
}

static size_t type_size(cudaDataType type) { return type == CUDA_R_32F ? 4 : 2; }

static bool is_known(cudaDataType type) { return type == CUDA_R_32F || type == CUDA_R_16BF || type == CUDA_R_16F; }

/* Do all columns begin at a multiple of `alignment` bytes, if the matrices do? */
static bool columns_fit(const product &p, uint64_t alignment) {
    const layout all[] = {p.a, p.b, p.c, p.d};
    return std::all_of(all, all + 4, [=](const layout &l) { return l.leading * type_size(l.type) % alignment == 0; });
}

struct rule {
    bool holds;
    cublasStatus_t otherwise;
    const char *text;
};

static cublasStatus_t check_product(const product &p) {
    const layout &a = p.a, &b = p.b, &c = p.c, &d = p.d;
    bool tf32 = p.how.compute == CUBLAS_COMPUTE_32F_FAST_TF32, aux = p.then && has_aux(p);
    constexpr cublasStatus_t INVALID = CUBLAS_STATUS_INVALID_VALUE, UNSUPPORTED = CUBLAS_STATUS_NOT_SUPPORTED;
    const rule rules[] = {
        {p.m > 0 && p.n > 0 && p.k > 0, INVALID, "a side of the product is 0"},
        {(p.transpose_a ? a.columns : a.rows) == p.m && (p.transpose_b ? b.columns : b.rows) == p.k &&
             (p.transpose_b ? b.rows : b.columns) == p.n && c.rows == p.m && c.columns == p.n,
         INVALID, "the shapes of A, B, C and D do not fit together"},
        {a.leading >= a.rows && b.leading >= b.rows && c.leading >= c.rows && d.leading >= d.rows, INVALID,
         "a leading dimension is less than the rows"},
        {is_known(a.type) && is_known(d.type) && a.type == b.type && c.type == d.type, UNSUPPORTED,
         "types: A and B the same, C and D the same, of f32, bf16, f16"},
        {d.type == CUDA_R_32F || d.type == a.type, UNSUPPORTED, "types: D is that of A, or f32"},
        {tf32 || p.how.compute == CUBLAS_COMPUTE_32F, UNSUPPORTED, "types: only 32F and 32F_FAST_TF32"},
        {!tf32 || a.type == CUDA_R_32F, UNSUPPORTED, "types: FAST_TF32 is of f32 matrices"},
        {p.then != nullptr, UNSUPPORTED, "an epilogue that the emulator does not have"},
        {!aux || (p.how.aux_leading % 8 == 0 && p.how.aux_leading >= p.m), INVALID,
         "the leading dimension of the auxiliary matrix is a multiple of 8, and no less than D's rows"}};
    for (const rule &r : rules)
        if (!r.holds)
            return refuse(r.otherwise, r.text);
    return CUBLAS_STATUS_SUCCESS;
}

/* Where the matrices lie; of a bias and an auxiliary matrix the types are that of D. */
struct operands {
    const void *a, *b, *c;
    void *d;
    bool adds_c;
};

static cublasStatus_t check_memory(const product &p, const operands &at, uint64_t alignment) {
    auto elements = [](const layout &l) { return (l.columns - 1) * l.leading + l.rows; };
    const struct {
        const char *name;
        const void *at;
        int64_t elements;
        cudaDataType type;
        bool used;
        uint64_t alignment;
    } ranges[] = {
        {"A", at.a, elements(p.a), p.a.type, true, alignment},
        {"B", at.b, elements(p.b), p.b.type, true, alignment},
        {"C", at.c, elements(p.c), p.c.type, at.adds_c, alignment},
        {"D", at.d, elements(p.d), p.d.type, true, alignment},
        {"the bias", p.how.bias, p.then->bias_gradient ? p.n : p.m, p.d.type, p.then->bias, 1},
        {"the auxiliary matrix", p.how.aux, (p.n - 1) * p.how.aux_leading + p.m, p.d.type, has_aux(p), 16},
    };
    for (const auto &r : ranges) {
        if (r.used && (uintptr_t)r.at % std::max<uint64_t>(r.alignment, type_size(r.type)) != 0)
            return refuse(CUBLAS_STATUS_INVALID_VALUE, text("%s is not aligned as the algorithm needs it", r.name));
        if (r.used && !is_device_memory(r.at, r.elements * type_size(r.type)))
            return refuse(CUBLAS_STATUS_INVALID_VALUE, text("%s is not %lld elements of device memory: from %s", r.name,
                                                            (long long)r.elements, memory_name(r.at).c_str()));
    }
    if (at.d == at.a || at.d == at.b)
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "D lies where A or B does");
    return CUBLAS_STATUS_SUCCESS;
}

/* --- the product of floats --- */

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

/* To the nearest number of 10 bits of mantissa, ties away from zero. */
static float rounded_to_tf32(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7F800000u) != 0x7F800000u)
        bits = (bits + 0x1000u) & ~0x1FFFu;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Rows of a tile of D, and columns: their sums stay in registers. */
constexpr int TILE_ROWS = 32, TILE_COLUMNS = 4;

/* op(X) [outer, k] or its transpose as tiles of `tile` rows, zero where there is nothing: [outer / tile][k][tile]. */
static std::unique_ptr<float[]> packed(const void *x, const layout &l, bool k_is_first, int64_t outer, int64_t k,
                                       int tile, bool tf32) {
    int64_t count = (outer + tile - 1) / tile;
    std::unique_ptr<float[]> made(new float[count * k * tile]());
    for (int64_t i = 0; i < outer; i++)
        for (int64_t j = 0; j < k; j++) {
            float value = load(x, l.type, k_is_first ? j + i * l.leading : i + j * l.leading);
            made[(i / tile * k + j) * tile + i % tile] = tf32 ? rounded_to_tf32(value) : value;
        }
    return made;
}

static void multiply_tile(const float *a, const float *b, int64_t k, bool backwards,
                          float (&sum)[TILE_COLUMNS][TILE_ROWS]) {
    memset(sum, 0, sizeof sum);
    for (int64_t n = 0, j = backwards ? k - 1 : 0; n < k; n++, j += backwards ? -1 : 1)
        for (int column = 0; column < TILE_COLUMNS; column++)
            for (int row = 0; row < TILE_ROWS; row++)
                sum[column][row] += a[j * TILE_ROWS + row] * b[j * TILE_COLUMNS + column];
}

/* GELU of the tanh form, or what it is multiplied by in the gradient. */
static float gelu(float x, bool gradient) {
    float t = tanhf(0.7978845608f * (x + 0.044715f * x * x * x));
    return gradient ? 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.7978845608f * (1 + 3 * 0.044715f * x * x)
                    : 0.5f * x * (1 + t);
}

/* What D gets of a sum. */
static float finish(const product &p, float x, int64_t row, int64_t column) {
    int64_t aux = row + column * p.how.aux_leading;
    if (p.then->gelu_gradient)
        return x * gelu(load(p.how.aux, p.d.type, aux), true);
    if (p.then->bias && !p.then->bias_gradient)
        x += load(p.how.bias, p.d.type, row);
    if (!p.then->gelu)
        return x;
    store(p.how.aux, p.d.type, aux, x);
    return gelu(x, false);
}

static void multiply(const product &p, const operands &at, bool backwards) {
    bool tf32 = p.how.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    auto a = packed(at.a, p.a, p.transpose_a, p.m, p.k, TILE_ROWS, tf32);
    auto b = packed(at.b, p.b, !p.transpose_b, p.n, p.k, TILE_COLUMNS, tf32);
    float sum[TILE_COLUMNS][TILE_ROWS];
    for (int64_t row = 0; row < p.m; row += TILE_ROWS)
        for (int64_t column = 0; column < p.n; column += TILE_COLUMNS) {
            multiply_tile(&a[row * p.k], &b[column * p.k], p.k, backwards, sum);
            for (int64_t j = column; j < std::min(column + TILE_COLUMNS, p.n); j++)
                for (int64_t i = row; i < std::min(row + TILE_ROWS, p.m); i++) {
                    float before = at.adds_c ? load(at.c, p.c.type, i + j * p.c.leading) : 0;
                    float x = finish(p, sum[j - column][i - row] + before, i, j);
                    store(at.d, p.d.type, i + j * p.d.leading, x);
                }
        }
    for (int64_t j = 0; j < p.n && p.then->bias_gradient; j++) { /* the sums over k of B */
        double all = 0;
        for (int64_t i = 0; i < p.k; i++)
            all += load(at.b, p.b.type, p.transpose_b ? j + i * p.b.leading : i + j * p.b.leading);
        store(p.how.bias, p.d.type, j, (float)all);
    }
}

}  // namespace emu

/* --- cuBLASLt's names --- */

using namespace emu;

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out) { return create(out, char()); }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t library) { return destroy<char>(library); }
size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }

const char *cublasLtGetStatusString(cublasStatus_t status) {
    return status == CUBLAS_STATUS_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
           : status == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
           : status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                                   : "CUBLAS_STATUS_EXECUTION_FAILED";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale) {
    if (scale != CUDA_R_32F)
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "types: the scales are f32");
    return create(out, description{compute, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, nullptr, nullptr, 0});
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t handle) { return destroy<description>(handle); }

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle, cublasLtMatmulDescAttributes_t name,
                                              const void *value, size_t bytes) {
    return set(DESCRIPTION_FIELDS, handle, name, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t leading) {
    return create(out, layout{type, (int64_t)rows, (int64_t)columns, leading});
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t handle) { return destroy<layout>(handle); }

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
    return create(out, preference{0, 256, 256, 256, 256});
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t handle) {
    return destroy<preference>(handle);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t name, const void *value,
                                                    size_t bytes) {
    return set(PREFERENCE_FIELDS, handle, name, value, bytes);
}

/* One result that is none, as its state says; one algorithm that needs columns aligned to 16 bytes, where they are, and
 * one that does not. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t how, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t handle,
                                              int requested, cublasLtMatmulHeuristicResult_t results[], int *count) {
    product p = product_of(how, a, b, c, d);
    const preference wish = *reinterpret_cast<const preference *>(handle);
    *count = 0;
    cublasStatus_t status = check_product(p);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    uint32_t promised = std::min({wish.alignment_a, wish.alignment_b, wish.alignment_c, wish.alignment_d});
    if (requested > 1) {
        results[*count] = {};
        memcpy(&results[*count].algo, &NO_ALGORITHM_MARK, sizeof NO_ALGORITHM_MARK);
        results[(*count)++].state = CUBLAS_STATUS_NOT_SUPPORTED;
    }
    for (uint64_t needs : {16, 1}) {
        if (*count == requested || promised < needs || !columns_fit(p, needs))
            continue;
        algorithm made = {ALGORITHM_MARK, needs};
        results[*count] = {};
        memcpy(&results[*count].algo, &made, sizeof made);
        results[(*count)++].state = CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t how, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *result) {
    product p = product_of(how, a, b, c, d);
    algorithm chosen;
    memcpy(&chosen, algo, sizeof chosen);
    *result = {};
    cublasStatus_t status = check_product(p);
    if (status == CUBLAS_STATUS_SUCCESS && (chosen.mark != ALGORITHM_MARK || !columns_fit(p, chosen.alignment)))
        status = CUBLAS_STATUS_NOT_SUPPORTED;
    return status;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t how, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
    product p = product_of(how, a_layout, b_layout, c_layout, d_layout);
    float one = *static_cast<const float *>(alpha), adds = *static_cast<const float *>(beta);
    algorithm chosen;
    memcpy(&chosen, algo, sizeof chosen);
    if (chosen.mark == NO_ALGORITHM_MARK)
        stop("", "cublasLtMatmul: an algorithm of a result whose state says that it is none");
    if (chosen.mark != ALGORITHM_MARK || !stream_is_known(stream))
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "no algorithm of cublasLtMatmulAlgoGetHeuristic, or no stream");
    if (one != 1 || (adds != 0 && adds != 1))
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "alpha is 1 here, and beta 0 or 1");
    if (workspace_bytes > 0 && (!is_device_memory(workspace, workspace_bytes) || (uintptr_t)workspace % 256 != 0))
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "the workspace is not device memory at a multiple of 256 bytes");
    operands at = {a, b, c, d, adds != 0};
    cublasStatus_t status = check_product(p);
    if (status == CUBLAS_STATUS_SUCCESS && !columns_fit(p, chosen.alignment))
        status = refuse(CUBLAS_STATUS_NOT_SUPPORTED, "the algorithm is one for aligned columns");
    if (status == CUBLAS_STATUS_SUCCESS)
        status = check_memory(p, at, chosen.alignment);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    const char *slow = getenv("BERTH_EMU_SLOW");
    if (slow && chosen.alignment == strtoull(slow, nullptr, 10))
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    bool backwards = slow && chosen.alignment > 1;
    bool taken = submit(stream, work_kind::PRODUCT, [=] { multiply(p, at, backwards); }) == cudaSuccess;
    return taken ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
