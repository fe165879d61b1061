/* Contractions with weights, on oneDNN or on the plain C kernel below. Rows of tokens run over their padded count: the
 * rows beyond the true count are zero on input, and so on output. */
#include "kernels/cpu/contraction.h"

#include <stdio.h>
#include <string.h>

#include "kernels/cpu/kernels.h"

#ifdef BERTH_ONEDNN
#include <oneapi/dnnl/dnnl.h>

void contraction_describe(char *out, size_t size) {
    const dnnl_version_t *version = dnnl_version();
    snprintf(out, size, "oneDNN %d.%d.%d", version->major, version->minor, version->patch);
}

status contract_f32(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const float *a,
                    int64_t stride_a, const float *b, int64_t stride_b, bool add, float *c, int64_t stride_c) {
    if (m == 0 || n == 0)
        return OK;
    dnnl_status_t result = dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, 1, a, stride_a, b,
                                      stride_b, add ? 1 : 0, c, stride_c);
    return result == dnnl_success ? OK
                                  : failed("oneDNN: sgemm of %lld x %lld x %lld failed with status %d", (long long)m,
                                           (long long)n, (long long)k, (int)result);
}

#else

enum { PANEL = 16, ROWS = 4, DEPTH = 4096 }; /* a panel of b: [DEPTH][PANEL] floats at most, on the stack */

void contraction_describe(char *out, size_t size) { snprintf(out, size, "plain C contractions"); }

struct contraction {
    bool transpose_a, transpose_b, add;
    int64_t m, n, k, stride_a, stride_b, stride_c;
    const float *a, *b;
    float *c;
};

/* panel[k][PANEL] = columns first… of b, zero beyond n. */
static void pack_panel(const struct contraction *g, int64_t first, int64_t k0, int64_t depth, float *panel) {
    int64_t columns = g->n - first < PANEL ? g->n - first : PANEL;
    for (int64_t k = 0; k < depth; k++)
        for (int64_t j = 0; j < PANEL; j++)
            panel[k * PANEL + j] = j >= columns     ? 0
                                   : g->transpose_b ? g->b[(first + j) * g->stride_b + k0 + k]
                                                    : g->b[(k0 + k) * g->stride_b + first + j];
}

/* ROWS rows of c times one panel. */
CPU_DISPATCH static void micro(const struct contraction *g, int64_t row, int64_t first, int64_t k0, int64_t depth,
                               const float *restrict panel) {
    float sum[ROWS][PANEL] = {{0}};
    int64_t rows = g->m - row < ROWS ? g->m - row : ROWS, columns = g->n - first < PANEL ? g->n - first : PANEL;
    const float *a[ROWS];
    for (int r = 0; r < ROWS; r++) { /* rows beyond the last repeat it: computed, not stored */
        int64_t at = row + (r < rows ? r : rows - 1);
        a[r] = g->transpose_a ? g->a + k0 * g->stride_a + at : g->a + at * g->stride_a + k0;
    }
    int64_t step = g->transpose_a ? g->stride_a : 1;
    for (int64_t k = 0; k < depth; k++)
        for (int r = 0; r < ROWS; r++)
            for (int j = 0; j < PANEL; j++)
                sum[r][j] += a[r][k * step] * panel[k * PANEL + j];
    for (int64_t r = 0; r < rows; r++) {
        float *c = g->c + (row + r) * g->stride_c + first;
        for (int64_t j = 0; j < columns; j++)
            c[j] = (g->add || k0 > 0 ? c[j] : 0) + sum[r][j];
    }
}

static void contract_panels(void *ctx, int64_t begin, int64_t end) {
    const struct contraction *g = ctx;
    float panel[DEPTH * PANEL] __attribute__((aligned(64)));
    for (int64_t block = begin; block < end; block++)
        for (int64_t k0 = 0; k0 < g->k || k0 == 0; k0 += DEPTH) {
            int64_t depth = g->k - k0 < DEPTH ? g->k - k0 : DEPTH;
            pack_panel(g, block * PANEL, k0, depth, panel);
            for (int64_t row = 0; row < g->m; row += ROWS)
                micro(g, row, block * PANEL, k0, depth, panel);
        }
}

status contract_f32(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const float *a,
                    int64_t stride_a, const float *b, int64_t stride_b, bool add, float *c, int64_t stride_c) {
    struct contraction g = {transpose_a, transpose_b, add, m, n, k, stride_a, stride_b, stride_c, a, b, c};
    parallel_for((n + PANEL - 1) / PANEL, 1, contract_panels, &g);
    return OK;
}

#endif

/* --- operators: operands in bf16 are contracted as floats where the processor has no bf16 contractions --- */

struct conversion {
    const struct operand *operand;
    float *values; /* [padded_rows, stride] */
    int64_t stride;
};

static void to_float(void *ctx, int64_t begin, int64_t end) {
    const struct conversion *job = ctx;
    int64_t n = job->operand->columns;
    for (int64_t row = begin; row < end; row++) {
        float *to = job->values + row * job->stride;
        const float *from = row_read(job->operand, row, to);
        if (from != to)
            memcpy(to, from, (size_t)n * sizeof *to);
    }
}

static void from_float(void *ctx, int64_t begin, int64_t end) {
    const struct conversion *job = ctx;
    for (int64_t row = begin; row < end; row++)
        row_written(job->operand, row, job->values + row * job->stride);
}

/* The operand as floats with a row stride: in place, or in scratch. A transposed operand whose rows lie whole pages
 * apart is copied too: walking down its columns would meet the same few cache sets (half the speed). */
static const float *as_float(struct cpu *cpu, const struct operand *operand, int slot, bool transposed,
                             int64_t *stride) {
    bool aliases = transposed && operand->columns * (int64_t)sizeof(float) % 4096 == 0;
    *stride = operand->columns + (aliases ? 16 : 0);
    if (operand->dtype == F32 && !aliases)
        return operand->data;
    struct conversion job = {operand, cpu_scratch(cpu, slot, operand->padded_rows * *stride), *stride};
    parallel_for(operand->padded_rows, 16, to_float, &job);
    return job.values;
}

/* y = op(a) op(b), for row-major operands without gaps; k and n as they are, rows padded. */
static status contract(struct cpu *cpu, const struct op_call *call, bool transpose_a, bool transpose_b, int64_t k) {
    const struct operand *y = &call->out[0];
    int64_t stride_a, stride_b;
    const float *a = as_float(cpu, &call->in[0], 0, transpose_a, &stride_a);
    const float *b = as_float(cpu, &call->in[1], 1, false, &stride_b);
    bool direct = y->dtype == F32;
    float *values = direct ? y->data : cpu_scratch(cpu, 2, y->padded_rows * y->columns);
    bool add = op_info(call->op)->out[0].accumulated && call->accumulate;
    TRY(contract_f32(transpose_a, transpose_b, y->padded_rows, y->columns, k, a, stride_a, b, stride_b, add, values,
                     y->columns));
    if (!direct) {
        struct conversion job = {y, values, y->columns};
        parallel_for(y->padded_rows, 16, from_float, &job);
    }
    return OK;
}

/* y[r,o] = x[r,k] w[o,k]^T */
status cpu_linear(struct cpu *cpu, const struct op_call *call) {
    return contract(cpu, call, false, true, call->in[0].columns);
}

/* dx[r,k] = dy[r,o] w[o,k] */
status cpu_linear_dx(struct cpu *cpu, const struct op_call *call) {
    return contract(cpu, call, false, false, call->in[0].columns);
}

/* dw[o,k] = dy[r,o]^T x[r,k] */
status cpu_linear_dw(struct cpu *cpu, const struct op_call *call) {
    const struct operand *dw = &call->out[0];
    if (call->in[0].padded_rows == 0) {
        if (!call->accumulate)
            memset(dw->data, 0, (size_t)(dw->rows * dw->columns) * sizeof(float));
        return OK;
    }
    return contract(cpu, call, true, false, call->in[0].padded_rows);
}
