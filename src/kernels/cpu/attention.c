/* Attention over ragged sequences, one (sequence, head) at a time. Matrices of one head of a sequence of n tokens are n
 * x n, see op.def for where they stand; q, k, v and context rows are [t,i] with head a in columns a·p to (a+1)·p. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cpu/contraction.h"
#include "kernels/cpu/dropout.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/vector.h"

struct head {
    int64_t sequence, number; /* which */
    int64_t n, p;             /* length, head size */
    int64_t row;              /* first token */
    int64_t matrix;           /* first element of its n x n matrix */
};

typedef status (*head_kernel)(struct cpu *cpu, const struct op_call *call, const struct head *head);

struct heads {
    struct cpu *cpu;
    const struct op_call *call;
    head_kernel kernel;
    atomic_flag failed;
    status code; /* and message: of the first head that failed */
    char message[256];
};

static void run_heads(void *ctx, int64_t begin, int64_t end) {
    struct heads *job = ctx;
    const struct op_call *call = job->call;
    const struct ragged *ragged = call->ragged;
    for (int64_t i = begin; i < end; i++) {
        int64_t sequence = i / call->heads, number = i % call->heads;
        int64_t n = ragged->starts[sequence + 1] - ragged->starts[sequence];
        struct head head = {.sequence = sequence,
                            .number = number,
                            .n = n,
                            .p = call->hidden / call->heads,
                            .row = ragged->starts[sequence],
                            .matrix = call->heads * ragged->square_starts[sequence] + number * n * n};
        status code = job->kernel(job->cpu, call, &head);
        if (code != OK && !atomic_flag_test_and_set(&job->failed)) {
            job->code = code;
            snprintf(job->message, sizeof job->message, "%s", status_message());
        }
    }
}

static status each_head(struct cpu *cpu, const struct op_call *call, head_kernel kernel) {
    struct heads job = {.cpu = cpu, .call = call, .kernel = kernel, .failed = ATOMIC_FLAG_INIT};
    parallel_for(call->ragged->sequences * call->heads, 1, run_heads, &job);
    return job.code == OK ? OK : status_set(job.code, job.message);
}

/* --- views: a head's rows of a [t,i] tensor, or its matrix, as floats with a row stride --- */

struct view {
    float *data;
    int64_t stride;
    const struct operand *operand;
    int64_t first, rows, columns, step; /* where it stands in the operand: element, shape, row step */
};

static struct view view_of(const struct operand *operand, int64_t first, int64_t rows, int64_t columns, int64_t step) {
    struct view view = {
        .stride = step, .operand = operand, .first = first, .rows = rows, .columns = columns, .step = step};
    if (operand->dtype == F32)
        view.data = (float *)operand->data + first;
    return view;
}

static struct view rows_view(const struct op_call *call, const struct operand *operand, const struct head *head) {
    return view_of(operand, head->row * call->hidden + head->number * head->p, head->n, head->p, call->hidden);
}

static struct view matrix_view(const struct operand *operand, const struct head *head) {
    return view_of(operand, head->matrix, head->n, head->n, head->n);
}

static struct view read_view(struct cpu *cpu, struct view view, int slot) {
    if (view.data)
        return view;
    const bf16 *from = (const bf16 *)view.operand->data + view.first;
    view.data = cpu_scratch(cpu, slot, view.rows * view.columns);
    view.stride = view.columns;
    for (int64_t r = 0; r < view.rows; r++)
        for (int64_t c = 0; c < view.columns; c++)
            view.data[r * view.columns + c] = bf16_to_float(from[r * view.step + c]);
    return view;
}

static struct view write_view(struct cpu *cpu, struct view view, int slot) {
    if (view.data)
        return view;
    view.data = cpu_scratch(cpu, slot, view.rows * view.columns);
    view.stride = view.columns;
    return view;
}

static void view_written(const struct view *view) {
    if (view->operand->dtype == F32)
        return;
    bf16 *to = (bf16 *)view->operand->data + view->first;
    for (int64_t r = 0; r < view->rows; r++)
        for (int64_t c = 0; c < view->columns; c++)
            to[r * view->step + c] = bf16_from_float(view->data[r * view->stride + c]);
}

static status contract_views(bool transpose_a, bool transpose_b, int64_t k, const struct view *a, const struct view *b,
                             const struct view *y) {
    struct product product = {.transpose_a = transpose_a,
                              .transpose_b = transpose_b,
                              .m = y->rows,
                              .n = y->columns,
                              .k = k,
                              .stride_a = a->stride,
                              .stride_b = b->stride,
                              .stride_c = y->stride};
    TRY(contract_f32(&product, a->data, b->data, y->data));
    view_written(y);
    return OK;
}

/* rows x rows^T -> matrix: scores = q k^T, dp = dy v^T */
static status rows_by_rows(struct cpu *cpu, const struct op_call *call, const struct head *head) {
    struct view a = read_view(cpu, rows_view(call, &call->in[0], head), 0);
    struct view b = read_view(cpu, rows_view(call, &call->in[1], head), 1);
    struct view y = write_view(cpu, matrix_view(&call->out[0], head), 2);
    return contract_views(false, true, head->p, &a, &b, &y);
}

/* matrix x rows -> rows: context = p v, dq = ds k */
static status matrix_by_rows(struct cpu *cpu, const struct op_call *call, const struct head *head) {
    struct view a = read_view(cpu, matrix_view(&call->in[0], head), 0);
    struct view b = read_view(cpu, rows_view(call, &call->in[1], head), 1);
    struct view y = write_view(cpu, rows_view(call, &call->out[0], head), 2);
    return contract_views(false, false, head->n, &a, &b, &y);
}

/* matrix^T x rows -> rows: dk = ds^T q, dv = p^T dy */
static status transpose_by_rows(struct cpu *cpu, const struct op_call *call, const struct head *head) {
    struct view a = read_view(cpu, matrix_view(&call->in[0], head), 0);
    struct view b = read_view(cpu, rows_view(call, &call->in[1], head), 1);
    struct view y = write_view(cpu, rows_view(call, &call->out[0], head), 2);
    return contract_views(true, false, head->n, &a, &b, &y);
}

static status rows_result(struct cpu *cpu, const struct op_call *call, head_kernel kernel) {
    TRY(each_head(cpu, call, kernel));
    cpu_zero_tail(&call->out[0]);
    return OK;
}

status cpu_attn_scores(struct cpu *cpu, const struct op_call *call) { return each_head(cpu, call, rows_by_rows); }
status cpu_attn_context_dp(struct cpu *cpu, const struct op_call *call) { return each_head(cpu, call, rows_by_rows); }
status cpu_attn_context(struct cpu *cpu, const struct op_call *call) { return rows_result(cpu, call, matrix_by_rows); }
status cpu_attn_scores_dq(struct cpu *cpu, const struct op_call *call) {
    return rows_result(cpu, call, matrix_by_rows);
}
status cpu_attn_scores_dk(struct cpu *cpu, const struct op_call *call) {
    return rows_result(cpu, call, transpose_by_rows);
}
status cpu_attn_context_dv(struct cpu *cpu, const struct op_call *call) {
    return rows_result(cpu, call, transpose_by_rows);
}

/* --- rows of the matrices --- */

/* Row j of the head's matrix in an operand, as floats. */
static const float *matrix_read(const struct operand *operand, const struct head *head, int64_t j, float *buffer) {
    struct operand row = *operand;
    row.columns = head->n;
    row.data = (char *)operand->data + (size_t)(head->matrix + j * head->n) * dtype_size(operand->dtype);
    return row_read(&row, 0, buffer);
}

static float *matrix_write(const struct operand *operand, const struct head *head, int64_t j, float *buffer) {
    return operand->dtype == F32 ? (float *)operand->data + head->matrix + j * head->n : buffer;
}

static void matrix_written(const struct operand *operand, const struct head *head, int64_t j, const float *values) {
    if (operand->dtype == F32)
        return;
    bf16 *to = (bf16 *)operand->data + head->matrix + j * head->n;
    for (int64_t k = 0; k < head->n; k++)
        to[k] = bf16_from_float(values[k]);
}

CPU_DISPATCH static status scale_head(struct cpu *cpu, const struct op_call *call, const struct head *head) {
    float *buffer = cpu_scratch(cpu, 0, head->n), scale = call->attr->scale;
    for (int64_t j = 0; j < head->n; j++) {
        const float *x = matrix_read(&call->in[0], head, j, buffer);
        float *y = matrix_write(&call->out[0], head, j, buffer);
        for (int64_t k = 0; k < head->n; k++)
            y[k] = scale * x[k];
        matrix_written(&call->out[0], head, j, y);
    }
    return OK;
}

status cpu_attn_scale(struct cpu *cpu, const struct op_call *call) { return each_head(cpu, call, scale_head); }

CPU_DISPATCH static status mask_head(struct cpu *cpu, const struct op_call *call, const struct head *head) {
    float *buffer = cpu_scratch(cpu, 0, head->n);
    const float *mask = (const float *)call->in[1].data + head->row;
    for (int64_t j = 0; j < head->n; j++) {
        const float *x = matrix_read(&call->in[0], head, j, buffer);
        float *y = matrix_write(&call->out[0], head, j, buffer);
        for (int64_t k = 0; k < head->n; k++)
            y[k] = x[k] + mask[k];
        matrix_written(&call->out[0], head, j, y);
    }
    return OK;
}

status cpu_attn_mask(struct cpu *cpu, const struct op_call *call) { return each_head(cpu, call, mask_head); }

CPU_DISPATCH static void softmax_row(const float *x, float *y, int64_t n) {
    float most = vector_max(x, n);
    for (int64_t k = 0; k < n; k++)
        y[k] = vector_exp(x[k] - most);
    float inverse = 1 / vector_sum(y, n);
    for (int64_t k = 0; k < n; k++)
        y[k] *= inverse;
}

static status softmax_head(struct cpu *cpu, const struct op_call *call, const struct head *head) {
    float *buffer = cpu_scratch(cpu, 0, head->n);
    for (int64_t j = 0; j < head->n; j++) {
        const float *x = matrix_read(&call->in[0], head, j, buffer);
        float *y = matrix_write(&call->out[0], head, j, buffer);
        softmax_row(x, y, head->n);
        matrix_written(&call->out[0], head, j, y);
    }
    return OK;
}

status cpu_softmax(struct cpu *cpu, const struct op_call *call) { return each_head(cpu, call, softmax_head); }

CPU_DISPATCH static status softmax_dx_head(struct cpu *cpu, const struct op_call *call, const struct head *head) {
    float *dy_buffer = cpu_scratch(cpu, 0, head->n), *y_buffer = cpu_scratch(cpu, 1, head->n);
    for (int64_t j = 0; j < head->n; j++) {
        const float *dy = matrix_read(&call->in[0], head, j, dy_buffer);
        const float *y = matrix_read(&call->in[1], head, j, y_buffer);
        float *dx = matrix_write(&call->out[0], head, j, dy_buffer), dot = vector_dot(y, dy, head->n);
        for (int64_t k = 0; k < head->n; k++)
            dx[k] = y[k] * (dy[k] - dot);
        matrix_written(&call->out[0], head, j, dx);
    }
    return OK;
}

status cpu_softmax_dx(struct cpu *cpu, const struct op_call *call) { return each_head(cpu, call, softmax_dx_head); }

static void apply_mask(const struct op_call *call, const struct head *head, int64_t j, const uint8_t *mask,
                       float *buffer) {
    const float *x = matrix_read(&call->in[0], head, j, buffer);
    float *y = matrix_write(&call->out[0], head, j, buffer);
    float scale = call->evaluate ? 1 : dropout_scale(call->attr->probability);
    for (int64_t k = 0; k < head->n; k++)
        y[k] = mask[k] ? x[k] * scale : 0;
    matrix_written(&call->out[0], head, j, y);
}

static status dropout_head(struct cpu *cpu, const struct op_call *call, const struct head *head) {
    float *buffer = cpu_scratch(cpu, 0, head->n);
    int64_t padded_keys = (call->longest_position + 15) / 16 * 16;
    for (int64_t j = 0; j < head->n; j++) {
        uint8_t *mask = (uint8_t *)call->out[1].data + head->matrix + j * head->n;
        int64_t first = (head->number * call->longest_position + j) * padded_keys;
        if (call->evaluate)
            memset(mask, 1, (size_t)head->n);
        else
            dropout_mask(&(struct dropout_place){call->seed, call->attr->site,
                                                 call->ragged->sequence_numbers[head->sequence], first},
                         head->n, dropout_threshold(call->attr->probability), mask);
        apply_mask(call, head, j, mask, buffer);
    }
    return OK;
}

status cpu_attn_dropout(struct cpu *cpu, const struct op_call *call) { return each_head(cpu, call, dropout_head); }

static status dropout_dx_head(struct cpu *cpu, const struct op_call *call, const struct head *head) {
    float *buffer = cpu_scratch(cpu, 0, head->n);
    for (int64_t j = 0; j < head->n; j++)
        apply_mask(call, head, j, (const uint8_t *)call->in[1].data + head->matrix + j * head->n, buffer);
    return OK;
}

status cpu_attn_dropout_dx(struct cpu *cpu, const struct op_call *call) {
    return each_head(cpu, call, dropout_dx_head);
}
