/* Attention without matrices in memory: a block of query rows at a time, with the scores of all keys of its sequence in
 * the cache (BLOCK x n floats), so that no online softmax is needed. The backward pass makes the probabilities anew
 * from the log-sum-exp of each row.
 *
 * Each (sequence, head) is one thread's work. q, k, v, dy and the gradients are read and written once; as floats they
 * stand in scratch: [n, p] each, or in the panels that a product reads. (The row sums dy . y, for which other devices
 * read y, are those of p dp here.) Sums over query blocks run in their order: the same bits on any number of threads.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/fused_attention.h"
#include "kernels/cpu/panels.h"
#include "kernels/cpu/vector.h"

enum { BLOCK = 4 * SLIVER };

/* Operands are of one dtype. */
static status heads_to_rows(struct cpu *cpu, const struct op_call *call, head_kernel floats, head_kernel tiles) {
    bool is_native = call->in[0].dtype == BF16 && rows_kernel(BF16);
    TRY(each_head(cpu, call, is_native ? tiles : floats));
    for (int i = 0; i < op_info(call->op)->outputs; i++)
        cpu_zero_tail(&call->out[i]);
    return OK;
}

/* --- a head's rows of a [t,i] tensor --- */

void foresee(const struct operand *operand, const struct head *head, int64_t row) {
    int64_t size = (int64_t)dtype_size(operand->dtype);
    const char *from =
        (const char *)operand->data + (row_offset(operand, head->row + row) + head->number * head->p) * size;
    for (int64_t at = 0; at < head->p * size; at += 64)
        __builtin_prefetch(from + at);
}

static void read_rows(const struct operand *operand, const struct head *head, float *to) {
    for (int64_t r = 0; r < head->n; r++) {
        if (r + AHEAD < head->n)
            foresee(operand, head, r + AHEAD);
        int64_t at = row_offset(operand, head->row + r) + head->number * head->p;
        floats_copy(operand->data, operand->dtype, at, head->p, to + r * head->p);
    }
}

void write_rows(const struct operand *operand, const struct head *head, int64_t first, int64_t count, const float *from,
                int64_t stride) {
    for (int64_t r = 0; r < count; r++) {
        int64_t at = row_offset(operand, head->row + first + r) + head->number * head->p;
        floats_write(operand->data, operand->dtype, at, head->p, from + r * stride);
    }
}

/* --- scratch of a head --- */

/* Of a matrix of scores: whole panels of keys, and whole slivers where it is read transposed. */
static int64_t scores_row(const struct head *head) { return panel_columns(sliver_rows(head->n)); }

/* Of [n,p], with what products read or write beyond; of panels of it or of its transpose, too. */
static int64_t rows_size(const struct head *head) { return scores_row(head) * panel_columns(head->p); }

float *take(float **rest, int64_t count) {
    float *piece = *rest;
    *rest += (count + 15) / 16 * 16;
    return piece;
}

/* Between the last panel of keys and the last sliver of them, scores are read as rows of a transposed matrix. */
static void clear_gap(const struct head *head, int64_t rows, float *scores) {
    int64_t written = panel_columns(head->n), gap = sliver_rows(head->n) - written, stride = scores_row(head);
    for (int64_t r = 0; r < rows && gap > 0; r++)
        memset(scores + r * stride + written, 0, (size_t)gap * sizeof *scores);
}

float *lse_of(const struct op_call *call, const struct operand *operand, const struct head *head, int64_t query) {
    return (float *)operand->data + (head->row + query) * call->heads + head->number;
}

/* --- forward --- */

PER_ISA(float, softmax_row, (float *s, int64_t n, float scale, float *lse), (s, n, scale, lse)) {
    float most = vector_max(s, n);
    for (int64_t k = 0; k < n; k++)
        s[k] = vector_exp(scale * (s[k] - most));
    float sum = vector_sum(s, n);
    *lse = scale * most + logf(sum);
    return 1 / sum;
}

PER_ISA(void, scale_row, (float *y, int64_t n, float factor), (y, n, factor)) {
    for (int64_t i = 0; i < n; i++)
        y[i] *= factor;
}

struct forward_data {
    float *q, *k, *v;  /* [n,p], panels of k^T, panels of v */
    float *scores, *y; /* [BLOCK, scores_row], [BLOCK, panel_columns(p)] */
};

static struct forward_data forward_data(struct cpu *cpu, const struct op_call *call, const struct head *head) {
    int64_t size = rows_size(head);
    float *rest = cpu_scratch(cpu, 0, 4 * size), *rows = take(&rest, size);
    struct forward_data data = {.q = take(&rest, size), .k = take(&rest, size), .v = take(&rest, size)};
    rest = cpu_scratch(cpu, 1, BLOCK * (scores_row(head) + panel_columns(head->p)));
    data.scores = take(&rest, BLOCK * scores_row(head));
    data.y = rest;
    read_rows(&call->in[0], head, data.q);
    read_rows(&call->in[1], head, rows);
    panels_of_transpose(rows, head->n, head->p, data.k);
    read_rows(&call->in[2], head, rows);
    panels_of(rows, head->n, head->p, data.v);
    return data;
}

static void forward_block(const struct op_call *call, const struct head *head, const struct forward_data *data,
                          int64_t first, int64_t rows) {
    int64_t n = head->n, p = head->p, wide = panel_columns(p), stride = scores_row(head);
    float inverse[BLOCK];
    panel_product(&(struct rows_product){rows, n, p, data->q + first * p, p, 1, data->k, data->scores, stride, false});
    for (int64_t r = 0; r < rows; r++) {
        float *row = data->scores + r * stride;
        struct dropout_place place = query_place(head, first + r);
        inverse[r] = softmax_row(row, n, call->attr->scale, lse_of(call, &call->out[1], head, first + r));
        if (head->probability > 0)
            dropout_floats(&place, n, dropout_threshold(head->probability), dropout_scale(head->probability), row, row);
    }
    panel_product(&(struct rows_product){rows, p, n, data->scores, stride, 1, data->v, data->y, wide, false});
    for (int64_t r = 0; r < rows; r++)
        scale_row(data->y + r * wide, p, inverse[r]);
    write_rows(&call->out[0], head, first, rows, data->y, wide);
}

static status forward(struct cpu *cpu, const struct op_call *call, const struct head *head) {
    struct forward_data data = forward_data(cpu, call, head);
    for (int64_t first = 0; first < head->n; first += BLOCK)
        forward_block(call, head, &data, first, head->n - first < BLOCK ? head->n - first : BLOCK);
    return OK;
}

status cpu_attention(struct cpu *cpu, const struct op_call *call) {
    return heads_to_rows(cpu, call, forward, tile_attention);
}

/* --- backward --- */

static PER_ISA(void, probabilities_row, (float *s, int64_t n, float scale, float lse), (s, n, scale, lse)) {
    for (int64_t k = 0; k < n; k++)
        s[k] = vector_exp(scale * s[k] - lse);
}

/* dp becomes the gradient of the unscaled scores, and p what dropout leaves of it. */
static PER_ISA(void, scores_gradient_row,
               (float *restrict p, float *restrict dp, const uint8_t *restrict mask, int64_t n, float scale,
                float dropout_scale),
               (p, dp, mask, n, scale, dropout_scale)) {
    float sum = vector_dot(p, dp, n); /* the same as dy . y, but for the rounding of a stored y */
    for (int64_t k = 0; k < n; k++) {
        float kept = dropout_scale * p[k];
        dp[k] = scale * p[k] * (dp[k] - sum);
        p[k] = mask[k] ? kept : 0;
    }
}

struct backward_data {
    float *q, *dy;                                          /* [n,p] */
    float *k_across, *v_across, *k_down, *q_down, *dy_down; /* panels of k^T and v^T; of k; of a block of q and of dy */
    float *dk, *dv;                                         /* [n, panel_columns(p)] */
    float *scores, *gradients;                              /* [BLOCK, scores_row] */
    float *dq;                                              /* [BLOCK, panel_columns(p)] */
    uint8_t *mask;                                          /* [n] of a row */
};

static struct backward_data backward_data(struct cpu *cpu, const struct op_call *call, const struct head *head) {
    int64_t size = rows_size(head), wide = panel_columns(head->p);
    float *rest = cpu_scratch(cpu, 0, 8 * size), *rows = take(&rest, size);
    struct backward_data data = {.q = take(&rest, size),
                                 .dy = take(&rest, size),
                                 .k_across = take(&rest, size),
                                 .v_across = take(&rest, size),
                                 .k_down = take(&rest, size),
                                 .dk = take(&rest, size),
                                 .dv = take(&rest, size)};
    rest = cpu_scratch(cpu, 1, BLOCK * (2 * scores_row(head) + 3 * wide) + scores_row(head));
    data.scores = take(&rest, BLOCK * scores_row(head));
    data.gradients = take(&rest, BLOCK * scores_row(head));
    data.q_down = take(&rest, BLOCK * wide);
    data.dy_down = take(&rest, BLOCK * wide);
    data.dq = take(&rest, BLOCK * wide);
    data.mask = memset(rest, 1, (size_t)head->n);
    read_rows(&call->in[0], head, data.dy);
    read_rows(&call->in[1], head, data.q);
    read_rows(&call->in[2], head, rows);
    panels_of_transpose(rows, head->n, head->p, data.k_across);
    panels_of(rows, head->n, head->p, data.k_down);
    read_rows(&call->in[3], head, rows);
    panels_of_transpose(rows, head->n, head->p, data.v_across);
    return data;
}

float kept_scale(const struct head *head) { return head->probability > 0 ? dropout_scale(head->probability) : 1; }

void backward_rows(const struct op_call *call, const struct head *head, int64_t first, int64_t rows, float *scores,
                   float *gradients, int64_t stride, float kept, uint8_t *mask) {
    int64_t n = head->n;
    for (int64_t r = 0; r < rows; r++) {
        float *p = scores + r * stride, *dp = gradients + r * stride;
        struct dropout_place place = query_place(head, first + r);
        probabilities_row(p, n, call->attr->scale, *lse_of(call, &call->in[5], head, first + r));
        if (head->probability > 0) {
            dropout_mask(&place, n, dropout_threshold(head->probability), mask);
            dropout_apply(mask, n, kept_scale(head), dp, dp);
        }
        scores_gradient_row(p, dp, mask, n, call->attr->scale, kept);
    }
}

static void backward_block(const struct op_call *call, const struct head *head, const struct backward_data *data,
                           int64_t first, int64_t rows) {
    int64_t n = head->n, p = head->p, wide = panel_columns(p), stride = scores_row(head);
    const float *q = data->q + first * p, *dy = data->dy + first * p;
    panel_product(&(struct rows_product){rows, n, p, q, p, 1, data->k_across, data->scores, stride, false});
    panel_product(&(struct rows_product){rows, n, p, dy, p, 1, data->v_across, data->gradients, stride, false});
    backward_rows(call, head, first, rows, data->scores, data->gradients, stride, kept_scale(head), data->mask);
    clear_gap(head, rows, data->scores);
    clear_gap(head, rows, data->gradients);
    panels_of(q, rows, p, data->q_down);
    panels_of(dy, rows, p, data->dy_down);
    panel_product(
        &(struct rows_product){n, p, rows, data->scores, 1, stride, data->dy_down, data->dv, wide, first > 0});
    panel_product(
        &(struct rows_product){n, p, rows, data->gradients, 1, stride, data->q_down, data->dk, wide, first > 0});
    panel_product(&(struct rows_product){rows, p, n, data->gradients, stride, 1, data->k_down, data->dq, wide, false});
    write_rows(&call->out[0], head, first, rows, data->dq, wide);
}

static status backward(struct cpu *cpu, const struct op_call *call, const struct head *head) {
    struct backward_data data = backward_data(cpu, call, head);
    for (int64_t first = 0; first < head->n; first += BLOCK)
        backward_block(call, head, &data, first, head->n - first < BLOCK ? head->n - first : BLOCK);
    write_rows(&call->out[1], head, 0, head->n, data.dk, panel_columns(head->p));
    write_rows(&call->out[2], head, 0, head->n, data.dv, panel_columns(head->p));
    return OK;
}

status cpu_attention_dx(struct cpu *cpu, const struct op_call *call) {
    return heads_to_rows(cpu, call, backward, tile_attention_dx);
}
