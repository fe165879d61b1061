/* Contractions by oneDNN's matmul primitives, made once a shape: row counts are padded to buckets, so shapes are few.
 * Inside parallel regions by its sgemm, which needs nothing prepared. */
#ifdef BERTH_ONEDNN
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/cpu/contraction.h"

enum { A, B, C, OPERANDS, CAPACITY = 512 };

struct prepared {
    struct product product;
    dnnl_primitive_t primitive;
    dnnl_memory_t memory[OPERANDS]; /* descriptions only: their data is set for each call */
    uint64_t last_used;
};

struct contractions {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    struct prepared prepared[CAPACITY];
    int count;
    uint64_t clock;
    bool bf16;
};

#define TRY_DNNL(call)                      \
    do {                                    \
        dnnl_status_t try_result_ = (call); \
        if (try_result_ != dnnl_success)    \
            return try_result_;             \
    } while (0)

static dnnl_data_type_t dnnl_type(enum dtype dtype) { return dtype == BF16 ? dnnl_bf16 : dnnl_f32; }

/* --- version 3 of the library changed how descriptions are made --- */

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t memory_desc;
static void memory_desc_free(memory_desc desc) { dnnl_memory_desc_destroy(desc); }
#define DESC(desc) (desc)

static dnnl_status_t matmul_desc(dnnl_primitive_desc_t *out, dnnl_engine_t engine, const memory_desc desc[OPERANDS],
                                 dnnl_primitive_attr_t attr) {
    return dnnl_matmul_primitive_desc_create(out, engine, desc[A], desc[B], NULL, desc[C], attr);
}

static dnnl_status_t strided_desc(memory_desc *out, const dnnl_dims_t dims, dnnl_data_type_t type,
                                  const dnnl_dims_t strides) {
    return dnnl_memory_desc_create_with_strides(out, 2, dims, type, strides);
}

static dnnl_status_t append_sum(dnnl_post_ops_t ops) {
    return dnnl_post_ops_append_sum(ops, 1, 0, dnnl_data_type_undef);
}
#else
typedef dnnl_memory_desc_t memory_desc;
static void memory_desc_free(memory_desc desc) { (void)desc; }
#define DESC(desc) (&(desc))

static dnnl_status_t matmul_desc(dnnl_primitive_desc_t *out, dnnl_engine_t engine, const memory_desc desc[OPERANDS],
                                 dnnl_primitive_attr_t attr) {
    dnnl_matmul_desc_t matmul;
    TRY_DNNL(dnnl_matmul_desc_init(&matmul, &desc[A], &desc[B], NULL, &desc[C]));
    return dnnl_primitive_desc_create(out, &matmul, attr, engine, NULL);
}

static dnnl_status_t strided_desc(memory_desc *out, const dnnl_dims_t dims, dnnl_data_type_t type,
                                  const dnnl_dims_t strides) {
    return dnnl_memory_desc_init_by_strides(out, 2, dims, type, strides);
}

static dnnl_status_t append_sum(dnnl_post_ops_t ops) { return dnnl_post_ops_append_sum(ops, 1); }
#endif

/* --- preparing --- */

static dnnl_status_t operand_desc(memory_desc *out, int64_t rows, int64_t columns, int64_t stride, bool transposed,
                                  enum dtype dtype) {
    dnnl_dims_t dims = {rows, columns}, strides = {transposed ? 1 : stride, transposed ? stride : 1};
    return strided_desc(out, dims, dnnl_type(dtype), strides);
}

static dnnl_status_t operand_descs(memory_desc out[OPERANDS], const struct product *p) {
    TRY_DNNL(operand_desc(&out[A], p->m, p->k, p->stride_a, p->transpose_a, p->dtype_a));
    TRY_DNNL(operand_desc(&out[B], p->k, p->n, p->stride_b, p->transpose_b, p->dtype_b));
    return operand_desc(&out[C], p->m, p->n, p->stride_c, false, p->dtype_c);
}

static dnnl_status_t product_desc(const struct contractions *contractions, const struct product *product,
                                  const memory_desc desc[OPERANDS], dnnl_primitive_desc_t *out) {
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t result = dnnl_primitive_attr_create(&attr);
    if (result == dnnl_success && product->add) {
        result = dnnl_post_ops_create(&ops);
        if (result == dnnl_success)
            result = append_sum(ops);
        if (result == dnnl_success)
            result = dnnl_primitive_attr_set_post_ops(attr, ops);
    }
    if (result == dnnl_success)
        result = matmul_desc(out, contractions->engine, desc, attr);
    dnnl_post_ops_destroy(ops);
    dnnl_primitive_attr_destroy(attr);
    return result;
}

static void prepared_free(struct prepared *prepared) {
    for (int i = 0; i < OPERANDS; i++)
        dnnl_memory_destroy(prepared->memory[i]);
    dnnl_primitive_destroy(prepared->primitive);
    *prepared = (struct prepared){0};
}

static dnnl_status_t prepare(const struct contractions *contractions, struct prepared *prepared) {
    memory_desc desc[OPERANDS] = {0};
    dnnl_primitive_desc_t primitive_desc = NULL;
    dnnl_status_t result = operand_descs(desc, &prepared->product);
    if (result == dnnl_success)
        result = product_desc(contractions, &prepared->product, desc, &primitive_desc);
    if (result == dnnl_success)
        result = dnnl_primitive_create(&prepared->primitive, primitive_desc);
    for (int i = 0; i < OPERANDS && result == dnnl_success; i++)
        result = dnnl_memory_create(&prepared->memory[i], DESC(desc[i]), contractions->engine, DNNL_MEMORY_NONE);
    dnnl_primitive_desc_destroy(primitive_desc);
    for (int i = 0; i < OPERANDS; i++)
        memory_desc_free(desc[i]);
    return result;
}

static bool same_product(const struct product *a, const struct product *b) {
    return a->transpose_a == b->transpose_a && a->transpose_b == b->transpose_b && a->add == b->add && a->m == b->m &&
           a->n == b->n && a->k == b->k && a->stride_a == b->stride_a && a->stride_b == b->stride_b &&
           a->stride_c == b->stride_c && a->dtype_a == b->dtype_a && a->dtype_b == b->dtype_b &&
           a->dtype_c == b->dtype_c;
}

/* The product as prepared before, or prepared now in a free place or in that of the one unused for longest. */
static dnnl_status_t find_prepared(struct contractions *contractions, const struct product *product,
                                   struct prepared **out) {
    struct prepared *oldest = NULL;
    for (int i = 0; i < contractions->count; i++) {
        struct prepared *prepared = &contractions->prepared[i];
        if (prepared->primitive && same_product(&prepared->product, product)) {
            *out = prepared;
            return dnnl_success;
        }
        if (!oldest || prepared->last_used < oldest->last_used)
            oldest = prepared;
    }
    *out = contractions->count < CAPACITY ? &contractions->prepared[contractions->count++] : oldest;
    prepared_free(*out);
    (*out)->product = *product;
    dnnl_status_t result = prepare(contractions, *out);
    if (result != dnnl_success)
        prepared_free(*out);
    return result;
}

/* --- the interface --- */

/* Is there an implementation with the processor's bf16 instructions for y = x w^T, dx = dy w or dw = dy^T x? */
static bool multiplies_bf16(const struct contractions *contractions, bool transpose_a, bool transpose_b) {
    const struct product product = {.transpose_a = transpose_a,
                                    .transpose_b = transpose_b,
                                    .add = transpose_a,
                                    .m = 64,
                                    .n = 64,
                                    .k = 64,
                                    .stride_a = 64,
                                    .stride_b = 64,
                                    .stride_c = 64,
                                    .dtype_a = BF16,
                                    .dtype_b = BF16,
                                    .dtype_c = transpose_a ? F32 : BF16};
    memory_desc desc[OPERANDS] = {0};
    dnnl_primitive_desc_t primitive_desc = NULL;
    const char *name = "ref"; /* its plain C */
    if (operand_descs(desc, &product) == dnnl_success &&
        product_desc(contractions, &product, desc, &primitive_desc) == dnnl_success)
        dnnl_primitive_desc_query(primitive_desc, dnnl_query_impl_info_str, 0, &name);
    bool found = strncmp(name, "ref", 3) != 0;
    dnnl_primitive_desc_destroy(primitive_desc);
    for (int i = 0; i < OPERANDS; i++)
        memory_desc_free(desc[i]);
    return found;
}

/* What is slower than floats does not count: on AVX-512 without BF16 the library emulates it, and Intel's processors
 * without AMX do half as many of its products a cycle as of floats (test_optable perf: 152 against 237 GFLOP/s). */
static bool processor_has_bf16(const struct contractions *contractions) {
#ifdef __x86_64__
    dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
    bool amx = (isa & dnnl_cpu_isa_avx512_core_amx) == dnnl_cpu_isa_avx512_core_amx;
    if (isa == dnnl_cpu_isa_avx512_core || isa == dnnl_cpu_isa_avx512_core_vnni || (!amx && __builtin_cpu_is("intel")))
        return false;
#endif
    return multiplies_bf16(contractions, false, true) && multiplies_bf16(contractions, false, false) &&
           multiplies_bf16(contractions, true, false);
}

struct contractions *contractions_new(void) {
    struct contractions *contractions = xcalloc(1, sizeof *contractions);
    if (dnnl_engine_create(&contractions->engine, dnnl_cpu, 0) == dnnl_success &&
        dnnl_stream_create(&contractions->stream, contractions->engine, dnnl_stream_default_flags) == dnnl_success)
        contractions->bf16 = processor_has_bf16(contractions);
    return contractions; /* without an engine, every contraction fails and says so */
}

void contractions_free(struct contractions *contractions) {
    if (!contractions)
        return;
    for (int i = 0; i < contractions->count; i++)
        prepared_free(&contractions->prepared[i]);
    dnnl_stream_destroy(contractions->stream);
    dnnl_engine_destroy(contractions->engine);
    free(contractions);
}

bool contractions_native(const struct contractions *contractions, enum dtype dtype) {
    return dtype == F32 || (dtype == BF16 && contractions->bf16);
}

void contractions_describe(const struct contractions *contractions, char *out, size_t size) {
    const dnnl_version_t *version = dnnl_version();
    (void)contractions;
    snprintf(out, size, "oneDNN %d.%d.%d", version->major, version->minor, version->patch);
}

static dnnl_status_t run(struct contractions *contractions, const struct product *product, void *const data[OPERANDS]) {
    struct prepared *prepared;
    TRY_DNNL(find_prepared(contractions, product, &prepared));
    prepared->last_used = ++contractions->clock;
    for (int i = 0; i < OPERANDS; i++)
        TRY_DNNL(dnnl_memory_set_data_handle(prepared->memory[i], data[i]));
    const dnnl_exec_arg_t arguments[OPERANDS] = {{DNNL_ARG_SRC, prepared->memory[A]},
                                                 {DNNL_ARG_WEIGHTS, prepared->memory[B]},
                                                 {DNNL_ARG_DST, prepared->memory[C]}};
    TRY_DNNL(dnnl_primitive_execute(prepared->primitive, contractions->stream, OPERANDS, arguments));
    return dnnl_stream_wait(contractions->stream);
}

static status check(dnnl_status_t result, const struct product *p) {
    return result == dnnl_success ? OK
                                  : failed("oneDNN: a contraction of %lld x %lld x %lld failed with status %d",
                                           (long long)p->m, (long long)p->n, (long long)p->k, (int)result);
}

status contract(struct contractions *contractions, const struct product *product, const void *a, const void *b,
                void *c) {
    if (product->m == 0 || product->n == 0)
        return OK;
    void *const data[OPERANDS] = {(void *)a, (void *)b, c};
    return check(run(contractions, product, data), product);
}

status contract_f32(const struct product *p, const float *a, const float *b, float *c) {
    if (p->m == 0 || p->n == 0)
        return OK;
    return check(dnnl_sgemm(p->transpose_a ? 'T' : 'N', p->transpose_b ? 'T' : 'N', p->m, p->n, p->k, 1, a, p->stride_a,
                            b, p->stride_b, p->add ? 1 : 0, c, p->stride_c),
                 p);
}

#endif
