/* LayerNorm and the sums over rows that go with it. Sums over rows run over blocks of BLOCK rows, then over the blocks
 * in order: the same bits on any number of threads. */
#include "kernels/cpu/norm.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/activation.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/vector.h"

PER_ISA(void, normalize_row,
        (const float *x, int64_t n, double epsilon, const float *gamma, const float *beta, float *y, float *mean,
         float *rstd),
        (x, n, epsilon, gamma, beta, y, mean, rstd)) {
    float sum, squares;
    SUM_IN_LANES(sum, i, n, x[i]);
    const float m = sum / (float)n;
    SUM_IN_LANES(squares, i, n, (x[i] - m) * (x[i] - m));
    const float r = (float)(1 / sqrt((double)squares / (double)n + epsilon));
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        y[i] = (x[i] - m) * r * gamma[i] + beta[i];
    *mean = m;
    *rstd = r;
}

static void layernorm_row(struct cpu *cpu, const struct op_call *call, int64_t row) {
    int64_t n = call->out[0].columns;
    const float *x = row_read(&call->in[0], row, cpu_scratch(cpu, 0, n));
    float *y = row_write(&call->out[0], row, cpu_scratch(cpu, 2, n));
    normalize_row(x, n, call->attr->epsilon, call->in[1].data, call->in[2].data, y, (float *)call->out[1].data + row,
                  (float *)call->out[2].data + row);
    row_written(&call->out[0], row, y);
}

status cpu_layernorm(struct cpu *cpu, const struct op_call *call) { return cpu_rows(cpu, call, layernorm_row); }

/* The two passes over a row: sums of g and g xhat, with what the row adds to dgamma and dbeta; then dx. */
static PER_ISA(void, gradient_sums,
               (const float *dy, const float *x, int64_t n, float mean, float rstd, const float *gamma,
                float *restrict dgamma, float *restrict dbeta, float sums[2]),
               (dy, x, n, mean, rstd, gamma, dgamma, dbeta, sums)) {
    float plain[LANES] = {0}, times_xhat[LANES] = {0};
    int64_t i = 0, whole = n / LANES * LANES;
    for (; i < whole; i += LANES)
        for (int lane = 0; lane < LANES; lane++) {
            float slope = dy[i + lane], xhat = (x[i + lane] - mean) * rstd, g = gamma[i + lane] * slope;
            dgamma[i + lane] += slope * xhat;
            dbeta[i + lane] += slope;
            plain[lane] += g;
            times_xhat[lane] += g * xhat;
        }
    sums[0] = sum_of_lanes(plain);
    sums[1] = sum_of_lanes(times_xhat);
    for (; i < n; i++) {
        float xhat = (x[i] - mean) * rstd, g = gamma[i] * dy[i];
        dgamma[i] += dy[i] * xhat;
        dbeta[i] += dy[i];
        sums[0] += g;
        sums[1] += g * xhat;
    }
}

static PER_ISA(void, gradient_of_sums,
               (const float *dy, const float *x, int64_t n, float mean, float rstd, const float *gamma, float mean_g,
                float mean_product, float *dx),
               (dy, x, n, mean, rstd, gamma, mean_g, mean_product, dx)) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        dx[i] = rstd * (gamma[i] * dy[i] - mean_g - (x[i] - mean) * rstd * mean_product);
}

void normalize_row_gradient(const float *dy, const float *x, int64_t n, float mean, float rstd, const float *gamma,
                            float *dgamma, float *dbeta, float *dx) {
    float sums[2];
    gradient_sums(dy, x, n, mean, rstd, gamma, dgamma, dbeta, sums);
    gradient_of_sums(dy, x, n, mean, rstd, gamma, sums[0] / (float)n, sums[1] / (float)n, dx);
}

/* The sum of gamma dy (x - mean) */
static PER_ISA(float, centred_product, (const float *dy, const float *x, int64_t n, float mean, const float *gamma),
               (dy, x, n, mean, gamma)) {
    float sum;
    SUM_IN_LANES(sum, i, n, gamma[i] * dy[i] * (x[i] - mean));
    return sum;
}

static void layernorm_dx_row(struct cpu *cpu, const struct op_call *call, int64_t row) {
    int64_t n = call->out[0].columns;
    const float *dy = row_read(&call->in[0], row, cpu_scratch(cpu, 0, n));
    const float *x = row_read(&call->in[1], row, cpu_scratch(cpu, 1, n));
    float mean = ((const float *)call->in[2].data)[row], rstd = ((const float *)call->in[3].data)[row];
    const float *gamma = call->in[4].data;
    float *dx = row_write(&call->out[0], row, cpu_scratch(cpu, 2, n));
    float mean_g = vector_dot(gamma, dy, n) / (float)n;
    float mean_product = centred_product(dy, x, n, mean, gamma) * rstd / (float)n;
    gradient_of_sums(dy, x, n, mean, rstd, gamma, mean_g, mean_product, dx);
    row_written(&call->out[0], row, dx);
}

status cpu_layernorm_dx(struct cpu *cpu, const struct op_call *call) { return cpu_rows(cpu, call, layernorm_dx_row); }

/* --- sums over rows --- */

enum { BLOCK = 128 };

struct column_sums {
    struct cpu *cpu;
    const struct op_call *call;
    float *partial; /* [blocks][sums][columns] */
    int sums;
};

static PER_ISA(void, bias_block, (const struct column_sums *job, int64_t block, float *sum, float *unused),
               (job, block, sum, unused)) {
    (void)unused;
    const struct operand *dy = &job->call->in[0];
    int64_t n = dy->columns, end = (block + 1) * BLOCK < dy->rows ? (block + 1) * BLOCK : dy->rows;
    float *buffer = cpu_scratch(job->cpu, 0, n);
    for (int64_t row = block * BLOCK; row < end; row++) {
        const float *values = row_read(dy, row, buffer);
        for (int64_t i = 0; i < n; i++)
            sum[i] += values[i];
    }
}

static PER_ISA(void, norm_block, (const struct column_sums *job, int64_t block, float *dgamma, float *dbeta),
               (job, block, dgamma, dbeta)) {
    const struct operand *dy = &job->call->in[0], *x = &job->call->in[1];
    const float *mean = job->call->in[2].data, *rstd = job->call->in[3].data;
    int64_t n = dy->columns, end = (block + 1) * BLOCK < dy->rows ? (block + 1) * BLOCK : dy->rows;
    float *dy_buffer = cpu_scratch(job->cpu, 0, n), *x_buffer = cpu_scratch(job->cpu, 1, n);
    for (int64_t row = block * BLOCK; row < end; row++) {
        const float *g = row_read(dy, row, dy_buffer), *values = row_read(x, row, x_buffer);
        for (int64_t i = 0; i < n; i++) {
            dgamma[i] += g[i] * (values[i] - mean[row]) * rstd[row];
            dbeta[i] += g[i];
        }
    }
}

static void sum_blocks(void *ctx, int64_t begin, int64_t end) {
    const struct column_sums *job = ctx;
    int64_t n = job->call->in[0].columns;
    for (int64_t block = begin; block < end; block++) {
        float *sums = job->partial + block * job->sums * n;
        memset(sums, 0, (size_t)(job->sums * n) * sizeof *sums);
        (job->sums == 1 ? bias_block : norm_block)(job, block, sums, sums + n);
    }
}

static status column_sums(struct cpu *cpu, const struct op_call *call, int sums) {
    int64_t n = call->in[0].columns, blocks = (call->in[0].rows + BLOCK - 1) / BLOCK;
    struct column_sums job = {cpu, call, cpu_scratch(cpu, 2, blocks * sums * n), sums};
    parallel_for(blocks, 1, sum_blocks, &job);
    for (int s = 0; s < sums; s++) {
        float *out = call->out[s].data;
        if (!call->accumulate)
            memset(out, 0, (size_t)n * sizeof *out);
        for (int64_t block = 0; block < blocks; block++)
            for (int64_t i = 0; i < n; i++)
                out[i] += job.partial[(block * sums + s) * n + i];
    }
    return OK;
}

status cpu_bias_dw(struct cpu *cpu, const struct op_call *call) { return column_sums(cpu, call, 1); }

status cpu_layernorm_dw(struct cpu *cpu, const struct op_call *call) { return column_sums(cpu, call, 2); }

/* --- sums over rows of what is made in the same pass; the blocks and their order are those above --- */

/* Makes rows of output 0, and adds to up to three sums of columns. */
typedef void (*made_row)(struct cpu *cpu, const struct op_call *call, int64_t row, float *sums);

struct made_sums {
    struct cpu *cpu;
    const struct op_call *call;
    made_row make;
    float *partial; /* [blocks][sums][columns] */
    int sums;
};

static void make_blocks(void *ctx, int64_t begin, int64_t end) {
    const struct made_sums *job = ctx;
    const struct operand *out = &job->call->out[0];
    for (int64_t block = begin; block < end; block++) {
        float *sums = job->partial + block * job->sums * out->columns;
        memset(sums, 0, (size_t)(job->sums * out->columns) * sizeof *sums);
        for (int64_t row = block * BLOCK; row < (block + 1) * BLOCK && row < out->rows; row++)
            job->make(job->cpu, job->call, row, sums);
    }
}

static status make_with_sums(struct cpu *cpu, const struct op_call *call, made_row make, int sums) {
    int64_t n = call->out[0].columns, blocks = (call->out[0].rows + BLOCK - 1) / BLOCK;
    struct made_sums job = {cpu, call, make, cpu_shared(cpu, 0, blocks * sums * n), sums};
    parallel_for(blocks, 1, make_blocks, &job);
    for (int s = 0; s < sums; s++) {
        float *out = call->out[1 + s].data;
        if (!call->accumulate)
            memset(out, 0, (size_t)n * sizeof *out);
        for (int64_t block = 0; block < blocks; block++)
            for (int64_t i = 0; i < n; i++)
                out[i] += job.partial[(block * sums + s) * n + i];
    }
    cpu_zero_tail(&call->out[0]);
    return OK;
}

static PER_ISA(void, ebsb_row, (struct cpu * cpu, const struct op_call *call, int64_t row, float *sums),
               (cpu, call, row, sums)) {
    int64_t n = call->out[0].columns;
    const float *a = row_read(&call->in[0], row, cpu_scratch(cpu, 0, n));
    const float *b = row_read(&call->in[1], row, cpu_scratch(cpu, 1, n));
    float mean = ((const float *)call->in[3].data)[row], rstd = ((const float *)call->in[4].data)[row];
    float *dy = row_write(&call->out[0], row, cpu_scratch(cpu, 2, n));
    for (int64_t i = 0; i < n; i++)
        dy[i] = a[i] + b[i];
    const float *x = row_read(&call->in[2], row, cpu_scratch(cpu, 0, n));
    const float *last = row_read(&call->in[5], row, cpu_scratch(cpu, 1, n));
    for (int64_t i = 0; i < n; i++) {
        sums[i] += dy[i] * (x[i] - mean) * rstd;
        sums[n + i] += dy[i];
        sums[2 * n + i] += last[i];
    }
    row_written(&call->out[0], row, dy);
}

status cpu_ebsb(struct cpu *cpu, const struct op_call *call) { return make_with_sums(cpu, call, ebsb_row, 3); }

static PER_ISA(void, bdrb_row, (struct cpu * cpu, const struct op_call *call, int64_t row, float *sums),
               (cpu, call, row, sums)) {
    int64_t n = call->out[0].columns;
    const float *h = row_read(&call->in[0], row, cpu_scratch(cpu, 0, n));
    const float *dy = row_read(&call->in[1], row, cpu_scratch(cpu, 1, n));
    float *dx = row_write(&call->out[0], row, cpu_scratch(cpu, 2, n));
    activation_gradient(call->attr->act, h, dy, dx, n);
    for (int64_t i = 0; i < n; i++)
        sums[i] += dx[i];
    row_written(&call->out[0], row, dx);
}

status cpu_bdrb(struct cpu *cpu, const struct op_call *call) { return make_with_sums(cpu, call, bdrb_row, 1); }
