/* Attention over ragged sequences, one (sequence, head) at a time. Matrices of one head of a sequence of n tokens are n
 * x n, see op.def for where they stand; q, k, v and context rows are [t,i] with head a in columns a·p to (a+1)·p. */
#include <string.h>

#include "kernels/cpu/contraction.h"
#include "kernels/cpu/heads.h"
#include "kernels/cpu/vector.h"

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
    const struct operand *operand = view.operand;
    view.data = cpu_scratch(cpu, slot, view.rows * view.columns);
    view.stride = view.columns;
    for (int64_t r = 0; r < view.rows; r++)
        floats_read(operand->data, operand->dtype, view.first + r * view.step, view.columns,
                    view.data + r * view.columns);
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
    for (int64_t r = 0; r < view->rows; r++)
        floats_write(view->operand->data, view->operand->dtype, view->first + r * view->step, view->columns,
                     view->data + r * view->stride);
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
    floats_write(operand->data, operand->dtype, head->matrix + j * head->n, head->n, values);
}

static PER_ISA(status, scale_head, (struct cpu * cpu, const struct op_call *call, const struct head *head),
               (cpu, call, head)) {
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

static PER_ISA(status, mask_head, (struct cpu * cpu, const struct op_call *call, const struct head *head),
               (cpu, call, head)) {
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

static PER_ISA(void, softmax_row, (const float *x, float *y, int64_t n), (x, y, n)) {
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

static PER_ISA(status, softmax_dx_head, (struct cpu * cpu, const struct op_call *call, const struct head *head),
               (cpu, call, head)) {
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
    dropout_apply(mask, head->n, scale, x, y);
    matrix_written(&call->out[0], head, j, y);
}

static status dropout_head(struct cpu *cpu, const struct op_call *call, const struct head *head) {
    float *buffer = cpu_scratch(cpu, 0, head->n);
    for (int64_t j = 0; j < head->n; j++) {
        uint8_t *mask = (uint8_t *)call->out[1].data + head->matrix + j * head->n;
        struct dropout_place place = query_place(head, j);
        dropout_mask(&place, head->n, dropout_threshold(head->probability), mask);
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

/* --- the paper's kernels: a row of scores in one pass --- */

static PER_ISA(void, scale_and_mask, (const float *x, const float *mask, float scale, int64_t n, float *y),
               (x, mask, scale, n, y)) {
    for (int64_t k = 0; k < n; k++)
        y[k] = scale * x[k] + mask[k];
}

static status sm_head(struct cpu *cpu, const struct op_call *call, const struct head *head) {
    float *buffer = cpu_scratch(cpu, 0, head->n), *dropped = cpu_scratch(cpu, 1, head->n);
    const float *mask = (const float *)call->in[1].data + head->row;
    for (int64_t j = 0; j < head->n; j++) {
        const float *x = matrix_read(&call->in[0], head, j, buffer);
        float *p = matrix_write(&call->out[0], head, j, buffer), *d = matrix_write(&call->out[1], head, j, dropped);
        scale_and_mask(x, mask, call->attr->scale, head->n, p);
        softmax_row(p, p, head->n);
        struct dropout_place place = query_place(head, j);
        if (call->evaluate)
            memcpy(d, p, (size_t)head->n * sizeof *d);
        else
            dropout_floats(&place, head->n, dropout_threshold(call->attr->probability),
                           dropout_scale(call->attr->probability), p, d);
        matrix_written(&call->out[0], head, j, p);
        matrix_written(&call->out[1], head, j, d);
    }
    return OK;
}

status cpu_sm(struct cpu *cpu, const struct op_call *call) { return each_head(cpu, call, sm_head); }

static PER_ISA(void, softmax_gradient, (const float *p, const float *dp, float scale, int64_t n, float *dx),
               (p, dp, scale, n, dx)) {
    float dot = vector_dot(p, dp, n);
    for (int64_t k = 0; k < n; k++)
        dx[k] = scale * p[k] * (dp[k] - dot);
}

static status bs_head(struct cpu *cpu, const struct op_call *call, const struct head *head) {
    float *buffer = cpu_scratch(cpu, 0, head->n), *p_buffer = cpu_scratch(cpu, 1, head->n);
    for (int64_t j = 0; j < head->n; j++) {
        const float *dd = matrix_read(&call->in[0], head, j, buffer);
        const float *p = matrix_read(&call->in[1], head, j, p_buffer);
        float *dx = matrix_write(&call->out[0], head, j, buffer);
        struct dropout_place place = query_place(head, j);
        if (!call->evaluate) {
            dropout_floats(&place, head->n, dropout_threshold(call->attr->probability),
                           dropout_scale(call->attr->probability), dd, dx);
            dd = dx;
        }
        softmax_gradient(p, dd, call->attr->scale, head->n, dx);
        matrix_written(&call->out[0], head, j, dx);
    }
    return OK;
}

status cpu_bs(struct cpu *cpu, const struct op_call *call) { return each_head(cpu, call, bs_head); }
