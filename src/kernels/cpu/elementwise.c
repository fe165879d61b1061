/* Operators that touch every element once: sums, activations, dropout, rows moved by an index. */
#include <string.h>

#include "kernels/cpu/activation.h"
#include "kernels/cpu/dropout.h"
#include "kernels/cpu/kernels.h"

static size_t row_bytes(const struct operand *operand) { return (size_t)operand->columns * dtype_size(operand->dtype); }

static void *row_at(const struct operand *operand, int64_t row) {
    return (char *)operand->data + (size_t)row * row_bytes(operand);
}

/* --- rows by index --- */

static void gather_row(struct cpu *cpu, const struct op_call *call, int64_t row) {
    (void)cpu;
    const int32_t *index = call->in[1].data;
    memcpy(row_at(&call->out[0], row), row_at(&call->in[0], index[row]), row_bytes(&call->out[0]));
}

status cpu_gather(struct cpu *cpu, const struct op_call *call) { return cpu_rows(cpu, call, gather_row); }

status cpu_scatter_rows(struct cpu *cpu, const struct op_call *call) {
    (void)cpu;
    const struct operand *dy = &call->in[0], *dx = &call->out[0];
    const int32_t *index = call->in[1].data;
    memset(dx->data, 0, (size_t)dx->padded_rows * row_bytes(dx));
    for (int64_t row = 0; row < dy->rows; row++)
        memcpy(row_at(dx, index[row]), row_at(dy, row), row_bytes(dx));
    return OK;
}

status cpu_scatter_two(struct cpu *cpu, const struct op_call *call) {
    const struct operand *dx = &call->out[0];
    int64_t n = dx->columns;
    memset(dx->data, 0, (size_t)dx->padded_rows * row_bytes(dx));
    for (int part = 0; part < 2; part++) {
        const struct operand *dy = &call->in[2 * part];
        const int32_t *index = call->in[2 * part + 1].data;
        for (int64_t row = 0; row < dy->rows; row++) {
            float *y = row_write(dx, index[row], cpu_scratch(cpu, 2, n));
            const float *a = row_read(dx, index[row], y), *b = row_read(dy, row, cpu_scratch(cpu, 1, n));
            for (int64_t i = 0; i < n; i++)
                y[i] = a[i] + b[i];
            row_written(dx, index[row], y);
        }
    }
    return OK;
}

/* --- sums --- */

static PER_ISA(void, add_row, (struct cpu * cpu, const struct op_call *call, int64_t row), (cpu, call, row)) {
    int64_t n = call->out[0].columns;
    const float *a = row_read(&call->in[0], row, cpu_scratch(cpu, 0, n));
    const float *b = row_read(&call->in[1], row, cpu_scratch(cpu, 1, n));
    float *y = row_write(&call->out[0], row, cpu_scratch(cpu, 2, n));
    for (int64_t i = 0; i < n; i++)
        y[i] = a[i] + b[i];
    row_written(&call->out[0], row, y);
}

status cpu_add(struct cpu *cpu, const struct op_call *call) { return cpu_rows(cpu, call, add_row); }

static PER_ISA(void, bias_row, (struct cpu * cpu, const struct op_call *call, int64_t row), (cpu, call, row)) {
    int64_t n = call->out[0].columns;
    const float *x = row_read(&call->in[0], row, cpu_scratch(cpu, 0, n)), *bias = call->in[1].data;
    float *y = row_write(&call->out[0], row, cpu_scratch(cpu, 2, n));
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] + bias[i];
    row_written(&call->out[0], row, y);
}

status cpu_bias(struct cpu *cpu, const struct op_call *call) { return cpu_rows(cpu, call, bias_row); }

static PER_ISA(void, aib_row, (struct cpu * cpu, const struct op_call *call, int64_t row), (cpu, call, row)) {
    int64_t n = call->out[0].columns;
    for (int part = 0; part < 3; part++) {
        const float *x = row_read(&call->in[part], row, cpu_scratch(cpu, 0, n)), *bias = call->in[3 + part].data;
        float *y = row_write(&call->out[part], row, cpu_scratch(cpu, 2, n));
        for (int64_t i = 0; i < n; i++)
            y[i] = x[i] + bias[i];
        row_written(&call->out[part], row, y);
    }
}

status cpu_aib(struct cpu *cpu, const struct op_call *call) { return cpu_rows(cpu, call, aib_row); }

/* --- activations --- */

static PER_ISA(void, brd_row, (struct cpu * cpu, const struct op_call *call, int64_t row), (cpu, call, row)) {
    int64_t n = call->out[0].columns;
    const float *x = row_read(&call->in[0], row, cpu_scratch(cpu, 0, n)), *bias = call->in[1].data;
    float *h = row_write(&call->out[0], row, cpu_scratch(cpu, 1, n));
    float *y = row_write(&call->out[1], row, cpu_scratch(cpu, 2, n));
    for (int64_t i = 0; i < n; i++)
        h[i] = x[i] + bias[i];
    activate(call->attr->act, h, y, n);
    row_written(&call->out[0], row, h);
    row_written(&call->out[1], row, y);
}

status cpu_brd(struct cpu *cpu, const struct op_call *call) { return cpu_rows(cpu, call, brd_row); }

static void act_row(struct cpu *cpu, const struct op_call *call, int64_t row) {
    int64_t n = call->out[0].columns;
    const float *x = row_read(&call->in[0], row, cpu_scratch(cpu, 0, n));
    float *y = row_write(&call->out[0], row, cpu_scratch(cpu, 2, n));
    activate(call->attr->act, x, y, n);
    row_written(&call->out[0], row, y);
}

status cpu_act(struct cpu *cpu, const struct op_call *call) { return cpu_rows(cpu, call, act_row); }

static void act_dx_row(struct cpu *cpu, const struct op_call *call, int64_t row) {
    int64_t n = call->out[0].columns;
    const float *x = row_read(&call->in[0], row, cpu_scratch(cpu, 0, n));
    const float *dy = row_read(&call->in[1], row, cpu_scratch(cpu, 1, n));
    float *dx = row_write(&call->out[0], row, cpu_scratch(cpu, 2, n));
    activation_gradient(call->attr->act, x, dy, dx, n);
    row_written(&call->out[0], row, dx);
}

status cpu_act_dx(struct cpu *cpu, const struct op_call *call) { return cpu_rows(cpu, call, act_dx_row); }

/* --- dropout of [t,i] --- */

static void dropout_row(struct cpu *cpu, const struct op_call *call, int64_t row) {
    const struct ragged *ragged = call->ragged;
    int64_t n = call->out[0].columns, sequence = ragged->token_sequence[row], position = row - ragged->starts[sequence];
    const float *x = row_read(&call->in[0], row, cpu_scratch(cpu, 0, n));
    float *y = row_write(&call->out[0], row, cpu_scratch(cpu, 2, n));
    uint8_t *mask = row_at(&call->out[1], row);
    float scale = call->evaluate ? 1 : dropout_scale(call->attr->probability);
    if (call->evaluate)
        memset(mask, 1, (size_t)n);
    else
        dropout_mask(&(struct dropout_place){call->seed, call->attr->site, ragged->sequence_numbers[sequence],
                                             position * call->hidden},
                     n, dropout_threshold(call->attr->probability), mask);
    dropout_apply(mask, n, scale, x, y);
    row_written(&call->out[0], row, y);
}

status cpu_dropout(struct cpu *cpu, const struct op_call *call) { return cpu_rows(cpu, call, dropout_row); }

static void dropout_dx_row(struct cpu *cpu, const struct op_call *call, int64_t row) {
    int64_t n = call->out[0].columns;
    const float *dy = row_read(&call->in[0], row, cpu_scratch(cpu, 0, n));
    const uint8_t *mask = row_at(&call->in[1], row);
    float *dx = row_write(&call->out[0], row, cpu_scratch(cpu, 2, n));
    float scale = call->evaluate ? 1 : dropout_scale(call->attr->probability);
    dropout_apply(mask, n, scale, dy, dx);
    row_written(&call->out[0], row, dx);
}

status cpu_dropout_dx(struct cpu *cpu, const struct op_call *call) { return cpu_rows(cpu, call, dropout_dx_row); }
