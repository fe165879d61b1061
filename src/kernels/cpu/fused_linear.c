/* Contractions with weights whose results are worked on before they are stored: biases, activations, sums, softmax. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/activation.h"
#include "kernels/cpu/tiles.h"
#include "kernels/cpu/vector.h"

CPU_BODY void add_floats(float *restrict to, const float *restrict from, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        to[i] += from[i];
}

/* --- y = x w^T + b, for one weight or three --- */

CPU_BODY void add_bias_rows(const struct tile_job *job, const struct tile *tile, int64_t columns, enum dtype dtype) {
    const float *bias = (const float *)job->call->in[1 + job->parts + tile->part].data + tile->column;
    for (int64_t r = 0; r < tile->rows; r++) {
        float *values = tile->values + r * tile->stride;
        add_floats(values, bias, columns);
        numbers_write(segment(&job->call->out[tile->part], tile->row + r, tile->column), dtype, columns, values);
    }
}
static TILE_EPILOGUE(add_bias)

    status cpu_linear_bias(struct cpu *cpu, const struct op_call *call) {
    struct tile_job job = forward_tiles(cpu, call, 1, add_bias);
    return tiles_run(&job);
}

status cpu_qkv(struct cpu *cpu, const struct op_call *call) {
    struct tile_job job = forward_tiles(cpu, call, 3, add_bias);
    return tiles_run(&job);
}

status cpu_qkv_linear(struct cpu *cpu, const struct op_call *call) {
    struct tile_job job = forward_tiles(cpu, call, 3, store_tile);
    return tiles_run(&job);
}

CPU_BODY void add_bias_act_rows(const struct tile_job *job, const struct tile *tile, int64_t columns,
                                enum dtype dtype) {
    const struct op_call *call = job->call;
    const float *bias = (const float *)call->in[2].data + tile->column;
    for (int64_t r = 0; r < tile->rows; r++) {
        float *values = tile->values + r * tile->stride;
        add_floats(values, bias, columns);
        numbers_write(segment(&call->out[0], tile->row + r, tile->column), dtype, columns, values);
        activate_row(call->attr->act, values, values, columns);
        numbers_write(segment(&call->out[1], tile->row + r, tile->column), dtype, columns, values);
    }
}
static TILE_EPILOGUE(add_bias_act)

    status cpu_linear_act(struct cpu *cpu, const struct op_call *call) {
    struct tile_job job = forward_tiles(cpu, call, 1, add_bias_act);
    job.beside = &call->out[1];
    return tiles_run(&job);
}

/* --- dx = dy w, and what follows --- */

CPU_BODY void add_residual_rows(const struct tile_job *job, const struct tile *tile, int64_t columns,
                                enum dtype dtype) {
    const struct operand *residual = &job->call->in[2 * job->terms];
    float buffer[TILE_COLUMNS];
    for (int64_t r = 0; r < tile->rows; r++) {
        float *values = tile->values + r * tile->stride;
        numbers_read(segment(residual, tile->row + r, tile->column), dtype, columns, buffer);
        add_floats(values, buffer, columns);
        numbers_write(segment(&job->call->out[0], tile->row + r, tile->column), dtype, columns, values);
    }
}
static TILE_EPILOGUE(add_residual)

    status cpu_linear_dx_add(struct cpu *cpu, const struct op_call *call) {
    struct tile_job job = backward_tiles(cpu, call, 1, add_residual);
    job.beside = &call->in[2];
    return tiles_run(&job);
}

status cpu_qkv_dx(struct cpu *cpu, const struct op_call *call) {
    struct tile_job job = backward_tiles(cpu, call, 3, add_residual);
    job.beside = &call->in[6];
    return tiles_run(&job);
}

status cpu_qkv_linear_dx(struct cpu *cpu, const struct op_call *call) {
    struct tile_job job = backward_tiles(cpu, call, 3, store_tile);
    return tiles_run(&job);
}

CPU_BODY void times_slope_rows(const struct tile_job *job, const struct tile *tile, int64_t columns, enum dtype dtype) {
    const struct op_call *call = job->call;
    float h[TILE_COLUMNS];
    for (int64_t r = 0; r < tile->rows; r++) {
        float *values = tile->values + r * tile->stride;
        numbers_read(segment(&call->in[2], tile->row + r, tile->column), dtype, columns, h);
        activation_gradient_row(call->attr->act, h, values, values, columns);
        numbers_write(segment(&call->out[0], tile->row + r, tile->column), dtype, columns, values);
    }
}
static TILE_EPILOGUE(times_slope)

    status cpu_linear_dx_act(struct cpu *cpu, const struct op_call *call) {
    struct tile_job job = backward_tiles(cpu, call, 1, times_slope);
    job.beside = &call->in[2];
    return tiles_run(&job);
}

/* --- dw = dy^T x with the bias gradient --- */

static struct op_call call_with(const struct op_call *call, enum op op, const struct operand *dy,
                                const struct operand *x, const struct operand *out) {
    struct op_call inner = *call;
    inner.op = op;
    inner.in[0] = *dy;
    inner.in[1] = *x;
    inner.out[0] = *out;
    return inner;
}

static status gradients(struct cpu *cpu, const struct op_call *call, int which, int count) {
    const struct operand *dy = &call->in[which], *x = &call->in[count];
    struct op_call weight = call_with(call, OP_linear_dw, dy, x, &call->out[which]);
    return linear_dw_sums(cpu, &weight, &call->out[count + which]);
}

status cpu_linear_dw_bias(struct cpu *cpu, const struct op_call *call) { return gradients(cpu, call, 0, 1); }

status cpu_qkv_dw(struct cpu *cpu, const struct op_call *call) {
    for (int i = 0; i < 3; i++)
        TRY(gradients(cpu, call, i, 3));
    return OK;
}

status cpu_qkv_linear_dw(struct cpu *cpu, const struct op_call *call) {
    for (int i = 0; i < 3; i++) {
        struct op_call weight = call_with(call, OP_linear_dw, &call->in[i], &call->in[3], &call->out[i]);
        TRY(cpu_linear_dw(cpu, &weight));
    }
    return OK;
}

status cpu_baib(struct cpu *cpu, const struct op_call *call) {
    for (int i = 0; i < 3; i++) {
        struct op_call bias = call_with(call, OP_bias_dw, &call->in[i], &call->in[i], &call->out[i]);
        TRY(cpu_bias_dw(cpu, &bias));
    }
    return OK;
}

/* --- logits with their cross-entropy: a tile leaves the maximum and the sum of its columns of each row --- */

struct part_sum {
    float most, sum; /* of e^(logit - most) */
    int32_t best;    /* first column of the maximum */
};

static PER_ISA(void, xent_epilogue, (const struct tile_job *job, const struct tile *tile), (job, tile)) {
    const struct op_call *call = job->call;
    const float *bias = call->in[2].data;
    int64_t classes = call->attr->classes - tile->column, blocks = (job->columns + TILE_COLUMNS - 1) / TILE_COLUMNS;
    classes = classes < 0 ? 0 : classes < tile->columns ? classes : tile->columns;
    struct part_sum *sums = job->context;
    for (int64_t r = 0; r < tile->rows; r++) {
        float *values = tile->values + r * tile->stride, rounded[TILE_COLUMNS];
        void *stored = segment(&call->out[0], tile->row + r, tile->column);
        add_floats(values, bias + tile->column, tile->columns);
        numbers_write(stored, call->out[0].dtype, tile->columns, values);
        /* the loss is that of the logits as they are stored, so that the probabilities of the backward pass add up to 1
         */
        const float *logits = floats_read(stored, call->out[0].dtype, 0, tile->columns, rounded);
        struct part_sum *part = &sums[(tile->row + r) * blocks + tile->column / TILE_COLUMNS];
        *part = (struct part_sum){-INFINITY, 0, 0};
        if (!classes)
            continue;
        part->most = vector_max(logits, classes);
        part->sum = (float)vector_sum_exp(logits, part->most, classes);
        while (part->best < classes - 1 && logits[part->best] < part->most)
            part->best++;
        part->best += (int32_t)tile->column;
    }
}

static void combine_row(struct cpu *cpu, const struct op_call *call, int64_t row) {
    int64_t n = call->out[0].columns, blocks = (n + TILE_COLUMNS - 1) / TILE_COLUMNS;
    const struct part_sum *sums = (const struct part_sum *)(void *)cpu_shared(cpu, XENT_SLOT, 0) + row * blocks;
    int32_t label = ((const int32_t *)call->in[3].data)[row];
    struct part_sum all = sums[0];
    double sum = 0;
    float buffer;
    for (int64_t b = 1; b < blocks; b++)
        if (sums[b].most > all.most)
            all = sums[b];
    for (int64_t b = 0; b < blocks; b++)
        sum += (double)sums[b].sum * exp((double)(sums[b].most - all.most));
    float lse = all.most + (float)log(sum);
    ((float *)call->out[1].data)[row] = lse;
    ((float *)call->out[2].data)[row] =
        lse - *floats_read(call->out[0].data, call->out[0].dtype, row_offset(&call->out[0], row) + label, 1, &buffer);
    ((int32_t *)call->out[3].data)[row] = all.best == label;
}

struct combine_job {
    struct cpu *cpu;
    const struct op_call *call;
};

static void combine_rows(void *ctx, int64_t begin, int64_t end) {
    const struct combine_job *job = ctx;
    for (int64_t row = begin; row < end; row++)
        combine_row(job->cpu, job->call, row);
}

status cpu_linear_xent(struct cpu *cpu, const struct op_call *call) {
    struct tile_job job = forward_tiles(cpu, call, 1, xent_epilogue);
    int64_t blocks = (job.columns + TILE_COLUMNS - 1) / TILE_COLUMNS;
    job.column_step = TILE_COLUMNS;
    job.context = cpu_shared(cpu, XENT_SLOT, job.rows * blocks * (int64_t)(sizeof(struct part_sum) / sizeof(float)));
    TRY(tiles_run(&job));
    struct combine_job combine = {cpu, call};
    parallel_for(call->out[0].rows, 8, combine_rows, &combine);
    return OK;
}
