/* LayerNorm with what stands around it, a row in one pass: embeddings, dropout, the residual, and both gradients. Sums
 * over rows run over blocks of BLOCK rows, then over the blocks in order: the same bits on any number of threads. */
#include <string.h>

#include "kernels/cpu/dropout.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/norm.h"

enum { BLOCK = 128 };

/* Whether dropout is more than the identity. */
static bool drops(const struct op_call *call) { return call->attr->probability != 0 && !call->evaluate; }

/* y = dropout(x) of a row of tokens, plus `added` unless NULL */
static void drop(const struct op_call *call, int64_t row, int64_t n, const float *x, const float *added, float *y) {
    float probability = call->attr->probability;
    const struct ragged *ragged = call->ragged;
    int64_t sequence = ragged->token_sequence[row], position = row - ragged->starts[sequence];
    struct dropout_place place = {call->seed, call->attr->site, ragged->sequence_numbers[sequence],
                                  position * call->hidden};
    dropout_add(&place, n, dropout_threshold(probability), dropout_scale(probability), x, added, y);
}

/* dropout(x), in y; or x itself, where that is the identity */
static const float *drop_row(const struct op_call *call, int64_t row, int64_t n, const float *x, float *y) {
    if (!drops(call))
        return x;
    drop(call, row, n, x, NULL, y);
    return y;
}

/* --- forward --- */

/* y = a + b; y may be one of them */
static PER_ISA(void, add_rows, (const float *a, const float *b, float *y, int64_t n), (a, b, y, n)) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        y[i] = a[i] + b[i];
}

/* y = dropout(x) + added */
static void drop_and_add(const struct op_call *call, int64_t row, int64_t n, const float *x, const float *added,
                         float *y) {
    if (drops(call))
        drop(call, row, n, x, added, y);
    else
        add_rows(x, added, y, n);
}

/* y = layernorm(sum); the row's statistics go to outputs 2 and 3. */
static void normalize(const struct op_call *call, int64_t row, int64_t n, const float *sum, const float *gamma,
                      const float *beta, float *y) {
    normalize_row(sum, n, call->attr->epsilon, gamma, beta, y, (float *)call->out[2].data + row,
                  (float *)call->out[3].data + row);
}

/* sum = dropout(x, with a bias or NULL) + residual, y = layernorm(sum) */
static void drop_add_norm(struct cpu *cpu, const struct op_call *call, int64_t row, const float *bias,
                          const struct operand *residual, const float *gamma, const float *beta) {
    int64_t n = call->out[0].columns;
    float *sum = row_write(&call->out[1], row, cpu_scratch(cpu, 3, n));
    const float *x = row_read(&call->in[0], row, cpu_scratch(cpu, 0, n));
    if (bias) {
        add_rows(x, bias, sum, n);
        x = sum;
    }
    drop_and_add(call, row, n, x, row_read(residual, row, cpu_scratch(cpu, 1, n)), sum);
    float *y = row_write(&call->out[0], row, cpu_scratch(cpu, 2, n));
    normalize(call, row, n, sum, gamma, beta, y);
    row_written(&call->out[1], row, sum);
    row_written(&call->out[0], row, y);
}

static void residual_norm_row(struct cpu *cpu, const struct op_call *call, int64_t row) {
    drop_add_norm(cpu, call, row, NULL, &call->in[1], call->in[2].data, call->in[3].data);
}

status cpu_residual_norm(struct cpu *cpu, const struct op_call *call) { return cpu_rows(cpu, call, residual_norm_row); }

static void bdrln_row(struct cpu *cpu, const struct op_call *call, int64_t row) {
    drop_add_norm(cpu, call, row, call->in[1].data, &call->in[2], call->in[3].data, call->in[4].data);
}

status cpu_bdrln(struct cpu *cpu, const struct op_call *call) { return cpu_rows(cpu, call, bdrln_row); }

static void embedding_row(struct cpu *cpu, const struct op_call *call, int64_t row) {
    int64_t n = call->out[0].columns;
    float *sum = row_write(&call->out[1], row, cpu_scratch(cpu, 3, n));
    const float *parts[3];
    for (int i = 0; i < 3; i++)
        parts[i] = row_read(&call->in[2 * i], ((const int32_t *)call->in[2 * i + 1].data)[row], cpu_scratch(cpu, i, n));
    add_rows(parts[0], parts[1], sum, n);
    add_rows(sum, parts[2], sum, n);
    float *y = row_write(&call->out[0], row, cpu_scratch(cpu, 2, n));
    normalize(call, row, n, sum, call->in[6].data, call->in[7].data, y);
    row_written(&call->out[1], row, sum);
    drop_row(call, row, n, y, y);
    row_written(&call->out[0], row, y);
}

status cpu_embedding(struct cpu *cpu, const struct op_call *call) { return cpu_rows(cpu, call, embedding_row); }

/* --- backward --- */

struct norm_sums {
    struct cpu *cpu;
    const struct op_call *call;
    float *partial; /* [blocks][2][columns] */
    bool residual;  /* residual_norm_dx; else layernorm_grad */
};

static void norm_row(const struct norm_sums *job, int64_t row, float *dgamma, float *dbeta) {
    const struct op_call *call = job->call;
    int64_t n = call->out[0].columns;
    const float *dy = row_read(&call->in[0], row, cpu_scratch(job->cpu, 0, n));
    const float *x = row_read(&call->in[1], row, cpu_scratch(job->cpu, 1, n));
    if (!job->residual)
        dy = drop_row(call, row, n, dy, cpu_scratch(job->cpu, 3, n));
    float *dx = row_write(&call->out[0], row, cpu_scratch(job->cpu, 3, n));
    normalize_row_gradient(dy, x, n, ((const float *)call->in[2].data)[row], ((const float *)call->in[3].data)[row],
                           call->in[4].data, dgamma, dbeta, dx);
    row_written(&call->out[0], row, dx);
    if (job->residual) {
        float *dropped = row_write(&call->out[1], row, cpu_scratch(job->cpu, 0, n));
        row_written(&call->out[1], row, drop_row(call, row, n, dx, dropped));
    }
}

/* The sums that norm_row also makes are not asked for. */
static void blnrd_row(struct cpu *cpu, const struct op_call *call, int64_t row) {
    struct norm_sums job = {cpu, call, NULL, true};
    float *unused = cpu_scratch(cpu, 2, 2 * call->out[0].columns);
    norm_row(&job, row, unused, unused + call->out[0].columns);
}

status cpu_blnrd(struct cpu *cpu, const struct op_call *call) { return cpu_rows(cpu, call, blnrd_row); }

static void norm_blocks(void *ctx, int64_t begin, int64_t end) {
    const struct norm_sums *job = ctx;
    int64_t n = job->call->out[0].columns, rows = job->call->out[0].rows;
    for (int64_t block = begin; block < end; block++) {
        float *sums = job->partial + block * 2 * n;
        memset(sums, 0, (size_t)(2 * n) * sizeof *sums);
        for (int64_t row = block * BLOCK; row < (block + 1) * BLOCK && row < rows; row++)
            norm_row(job, row, sums, sums + n);
    }
}

static void add_partials(const struct norm_sums *job, int which, const struct operand *out, int64_t blocks) {
    int64_t n = job->call->out[0].columns;
    float *sum = out->data;
    if (!job->call->accumulate)
        memset(sum, 0, (size_t)n * sizeof *sum);
    for (int64_t block = 0; block < blocks; block++)
        add_rows(sum, job->partial + (block * 2 + which) * n, sum, n);
}

static status norm_gradients(struct cpu *cpu, const struct op_call *call, bool residual) {
    int64_t n = call->out[0].columns, blocks = (call->out[0].rows + BLOCK - 1) / BLOCK;
    struct norm_sums job = {cpu, call, cpu_shared(cpu, 0, blocks * 2 * n), residual};
    parallel_for(blocks, 1, norm_blocks, &job);
    add_partials(&job, 0, &call->out[residual ? 2 : 1], blocks);
    add_partials(&job, 1, &call->out[residual ? 3 : 2], blocks);
    cpu_zero_tail(&call->out[0]);
    if (residual)
        cpu_zero_tail(&call->out[1]);
    return OK;
}

status cpu_residual_norm_dx(struct cpu *cpu, const struct op_call *call) { return norm_gradients(cpu, call, true); }

status cpu_layernorm_grad(struct cpu *cpu, const struct op_call *call) { return norm_gradients(cpu, call, false); }
