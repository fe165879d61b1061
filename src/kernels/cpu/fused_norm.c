/* LayerNorm with what stands around it, a row in one pass: embeddings, dropout, the residual, and both gradients. Sums
 * over rows run over blocks of BLOCK rows, then over the blocks in order: the same bits on any number of threads. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/dropout.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/vector.h"

enum { BLOCK = 128 };

/* y = dropout(x) of a row of tokens; the identity without a probability, and in evaluation. */
static const float *drop_row(const struct op_call *call, int64_t row, int64_t n, const float *x, float *y) {
    float probability = call->attr->probability;
    if (probability == 0 || call->evaluate)
        return x;
    const struct ragged *ragged = call->ragged;
    int64_t sequence = ragged->token_sequence[row], position = row - ragged->starts[sequence];
    struct dropout_place place = {call->seed, call->attr->site, ragged->sequence_numbers[sequence],
                                  position * call->hidden};
    dropout_floats(&place, n, probability, x, y);
    return y;
}

/* --- forward --- */

/* y = layernorm(x); the row's statistics go to outputs 2 and 3. */
CPU_DISPATCH static void normalize(const struct op_call *call, int64_t row, int64_t n, const float *x,
                                   const float *gamma, const float *beta, float *squares, float *y) {
    float mean = vector_sum(x, n) / (float)n;
    for (int64_t i = 0; i < n; i++)
        squares[i] = (x[i] - mean) * (x[i] - mean);
    float rstd = (float)(1 / sqrt((double)vector_sum(squares, n) / (double)n + call->attr->epsilon));
    for (int64_t i = 0; i < n; i++)
        y[i] = (x[i] - mean) * rstd * gamma[i] + beta[i];
    ((float *)call->out[2].data)[row] = mean;
    ((float *)call->out[3].data)[row] = rstd;
}

CPU_DISPATCH static void add_rows(const float *a, const float *b, float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        y[i] = a[i] + b[i];
}

static void store(const struct operand *operand, int64_t row, const float *values) {
    if (operand->dtype == F32)
        memcpy((float *)operand->data + row_offset(operand, row), values, (size_t)operand->columns * sizeof *values);
    else
        row_written(operand, row, values);
}

static void residual_norm_row(struct cpu *cpu, const struct op_call *call, int64_t row) {
    int64_t n = call->out[0].columns;
    float *sum = cpu_scratch(cpu, 3, 2 * n), *squares = sum + n;
    const float *x = row_read(&call->in[0], row, cpu_scratch(cpu, 0, n));
    const float *residual = row_read(&call->in[1], row, cpu_scratch(cpu, 1, n));
    add_rows(drop_row(call, row, n, x, sum), residual, sum, n);
    store(&call->out[1], row, sum);
    float *y = row_write(&call->out[0], row, cpu_scratch(cpu, 2, n));
    normalize(call, row, n, sum, call->in[2].data, call->in[3].data, squares, y);
    row_written(&call->out[0], row, y);
}

status cpu_residual_norm(struct cpu *cpu, const struct op_call *call) { return cpu_rows(cpu, call, residual_norm_row); }

static void embedding_row(struct cpu *cpu, const struct op_call *call, int64_t row) {
    int64_t n = call->out[0].columns;
    float *sum = cpu_scratch(cpu, 3, 2 * n), *squares = sum + n, *buffer = cpu_scratch(cpu, 0, n);
    for (int i = 0; i < 3; i++) {
        const float *part = row_read(&call->in[2 * i], ((const int32_t *)call->in[2 * i + 1].data)[row], buffer);
        if (i == 0)
            memcpy(sum, part, (size_t)n * sizeof *sum);
        else
            add_rows(sum, part, sum, n);
    }
    store(&call->out[1], row, sum);
    float *y = cpu_scratch(cpu, 2, n);
    normalize(call, row, n, sum, call->in[6].data, call->in[7].data, squares, y);
    store(&call->out[0], row, drop_row(call, row, n, y, y));
}

status cpu_embedding(struct cpu *cpu, const struct op_call *call) { return cpu_rows(cpu, call, embedding_row); }

/* --- backward --- */

struct norm_sums {
    struct cpu *cpu;
    const struct op_call *call;
    float *partial; /* [blocks][2][columns] */
    bool residual;  /* residual_norm_dx; else layernorm_grad */
};

/* dx of a row, and what it adds to dgamma and dbeta. product[n] is scratch. */
CPU_DISPATCH static void gradient_row(const float *dy, const float *x, float mean, float rstd, const float *gamma,
                                      int64_t n, float *dgamma, float *dbeta, float *scaled, float *product,
                                      float *dx) {
    for (int64_t i = 0; i < n; i++) {
        float xhat = (x[i] - mean) * rstd;
        dgamma[i] += dy[i] * xhat;
        dbeta[i] += dy[i];
        scaled[i] = gamma[i] * dy[i];
        product[i] = scaled[i] * xhat;
    }
    float mean_g = vector_sum(scaled, n) / (float)n, mean_product = vector_sum(product, n) / (float)n;
    for (int64_t i = 0; i < n; i++)
        dx[i] = rstd * (scaled[i] - mean_g - (x[i] - mean) * rstd * mean_product);
}

static void norm_row(const struct norm_sums *job, int64_t row, float *dgamma, float *dbeta) {
    const struct op_call *call = job->call;
    int64_t n = call->out[0].columns;
    float *scaled = cpu_scratch(job->cpu, 3, 3 * n), *product = scaled + n, *dx = scaled + 2 * n;
    const float *dy = row_read(&call->in[0], row, cpu_scratch(job->cpu, 0, n));
    const float *x = row_read(&call->in[1], row, cpu_scratch(job->cpu, 1, n));
    if (!job->residual)
        dy = drop_row(call, row, n, dy, cpu_scratch(job->cpu, 2, n));
    gradient_row(dy, x, ((const float *)call->in[2].data)[row], ((const float *)call->in[3].data)[row],
                 call->in[4].data, n, dgamma, dbeta, scaled, product, dx);
    store(&call->out[0], row, dx);
    if (job->residual)
        store(&call->out[1], row, drop_row(call, row, n, dx, scaled));
}

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
