/* Attention without matrices in memory: a block of query rows at a time, with the scores of all keys of its sequence in
 * the cache (BLOCK x n floats), so that no online softmax is needed. The backward pass makes the probabilities anew
 * from the log-sum-exp of each row.
 *
 * Each (sequence, head) is one thread's work. q, k, v, dy and the gradients are read and written once; as floats they
 * stand in scratch, [n, p] each. (The row sums dy . y, for which other devices read y, are those of p dp here.) Sums
 * over query blocks run in their order: the same bits on any number of threads. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/contraction.h"
#include "kernels/cpu/heads.h"
#include "kernels/cpu/vector.h"

enum { BLOCK = 64 };

static status heads_to_rows(struct cpu *cpu, const struct op_call *call, head_kernel kernel) {
    TRY(each_head(cpu, call, kernel));
    for (int i = 0; i < op_info(call->op)->outputs; i++)
        cpu_zero_tail(&call->out[i]);
    return OK;
}

/* --- a head's rows of a [t,i] tensor --- */

CPU_DISPATCH static void read_rows(const struct op_call *call, const struct operand *operand, const struct head *head,
                                   float *to) {
    for (int64_t r = 0; r < head->n; r++) {
        int64_t at = (head->row + r) * call->hidden + head->number * head->p;
        float *row = to + r * head->p;
        const float *from = floats_read(operand->data, operand->dtype, at, head->p, row);
        if (from != row)
            memcpy(row, from, (size_t)head->p * sizeof *row);
    }
}

/* Rows [first, first + count) of the head. */
CPU_DISPATCH static void write_rows(const struct op_call *call, const struct operand *operand, const struct head *head,
                                    int64_t first, int64_t count, const float *from) {
    for (int64_t r = 0; r < count; r++) {
        int64_t at = (head->row + first + r) * call->hidden + head->number * head->p;
        floats_write(operand->data, operand->dtype, at, head->p, from + r * head->p);
    }
}

/* y[m,n] = a[m,k] b[n,k]^T, or a b[k,n], or a[k,m]^T b[k,n]; rows without gaps */
enum form { BY_ROWS, BY_COLUMNS, TRANSPOSED };
static status product(enum form form, bool add, int64_t m, int64_t n, int64_t k, const float *a, const float *b,
                      float *y) {
    struct product product = {.transpose_a = form == TRANSPOSED,
                              .transpose_b = form == BY_ROWS,
                              .add = add,
                              .m = m,
                              .n = n,
                              .k = k,
                              .stride_a = form == TRANSPOSED ? m : k,
                              .stride_b = form == BY_ROWS ? k : n,
                              .stride_c = n};
    return contract_f32(&product, a, b, y);
}

static float *lse_of(const struct op_call *call, const struct operand *operand, const struct head *head,
                     int64_t query) {
    return (float *)operand->data + (head->row + query) * call->heads + head->number;
}

/* y = dropout(p) for the keys of one query */
static void drop(const struct head *head, int64_t query, const float *p, float *y) {
    struct dropout_place place = query_place(head, query);
    dropout_floats(&place, head->n, head->probability, p, y);
}

/* --- forward --- */

/* Scores become dropped-out probabilities. */
CPU_DISPATCH static float softmax_row(float *s, int64_t n, float scale) {
    float most = vector_max(s, n), sum;
    for (int64_t k = 0; k < n; k++)
        s[k] = vector_exp(scale * (s[k] - most));
    sum = vector_sum(s, n);
    float inverse = 1 / sum;
    for (int64_t k = 0; k < n; k++)
        s[k] *= inverse;
    return scale * most + logf(sum);
}

static status forward(struct cpu *cpu, const struct op_call *call, const struct head *head) {
    int64_t n = head->n, p = head->p;
    float *q = cpu_scratch(cpu, 0, 3 * n * p), *k = q + n * p, *v = k + n * p;
    float *scores = cpu_scratch(cpu, 1, BLOCK * n), *y = cpu_scratch(cpu, 2, BLOCK * p);
    read_rows(call, &call->in[0], head, q);
    read_rows(call, &call->in[1], head, k);
    read_rows(call, &call->in[2], head, v);
    for (int64_t first = 0; first < n; first += BLOCK) {
        int64_t rows = n - first < BLOCK ? n - first : BLOCK;
        TRY(product(BY_ROWS, false, rows, n, p, q + first * p, k, scores));
        for (int64_t r = 0; r < rows; r++) {
            *lse_of(call, &call->out[1], head, first + r) = softmax_row(scores + r * n, n, call->attr->scale);
            if (head->probability > 0)
                drop(head, first + r, scores + r * n, scores + r * n);
        }
        TRY(product(BY_COLUMNS, false, rows, p, n, scores, v, y));
        write_rows(call, &call->out[0], head, first, rows, y);
    }
    return OK;
}

status cpu_attention(struct cpu *cpu, const struct op_call *call) { return heads_to_rows(cpu, call, forward); }

/* --- backward --- */

CPU_DISPATCH static void probabilities_row(float *s, int64_t n, float scale, float lse) {
    for (int64_t k = 0; k < n; k++)
        s[k] = vector_exp(scale * s[k] - lse);
}

/* dp becomes the gradient of the unscaled scores. */
CPU_DISPATCH static void scores_gradient_row(const float *p, float *dp, int64_t n, float scale) {
    float sum = vector_dot(p, dp, n); /* the same as dy . y, but for the rounding of a stored y */
    for (int64_t k = 0; k < n; k++)
        dp[k] = scale * p[k] * (dp[k] - sum);
}

struct backward_data {
    float *q, *k, *v, *dy, *dk, *dv;            /* [n,p] */
    float *probabilities, *dropped, *gradients; /* [BLOCK,n] */
    float *dq;                                  /* [BLOCK,p] */
};

static struct backward_data backward_memory(struct cpu *cpu, const struct head *head) {
    int64_t rows = head->n * head->p, block = BLOCK * head->n;
    float *data = cpu_scratch(cpu, 0, 6 * rows), *blocks = cpu_scratch(cpu, 1, 3 * block);
    return (struct backward_data){.q = data,
                                  .k = data + rows,
                                  .v = data + 2 * rows,
                                  .dy = data + 3 * rows,
                                  .dk = data + 4 * rows,
                                  .dv = data + 5 * rows,
                                  .probabilities = blocks,
                                  .dropped = blocks + block,
                                  .gradients = blocks + 2 * block,
                                  .dq = cpu_scratch(cpu, 2, BLOCK * head->p)};
}

static status backward_block(const struct op_call *call, const struct head *head, const struct backward_data *data,
                             int64_t first, int64_t rows) {
    int64_t n = head->n, p = head->p;
    const float *dropped = head->probability > 0 ? data->dropped : data->probabilities;
    TRY(product(BY_ROWS, false, rows, n, p, data->q + first * p, data->k, data->probabilities));
    TRY(product(BY_ROWS, false, rows, n, p, data->dy + first * p, data->v, data->gradients));
    for (int64_t r = 0; r < rows; r++) {
        float *row = data->probabilities + r * n, *gradients = data->gradients + r * n;
        int64_t query = first + r;
        probabilities_row(row, n, call->attr->scale, *lse_of(call, &call->in[5], head, query));
        if (head->probability > 0) {
            drop(head, query, row, data->dropped + r * n);
            drop(head, query, gradients, gradients);
        }
        scores_gradient_row(row, gradients, n, call->attr->scale);
    }
    TRY(product(TRANSPOSED, first > 0, n, p, rows, dropped, data->dy + first * p, data->dv));
    TRY(product(TRANSPOSED, first > 0, n, p, rows, data->gradients, data->q + first * p, data->dk));
    TRY(product(BY_COLUMNS, false, rows, p, n, data->gradients, data->k, data->dq));
    write_rows(call, &call->out[0], head, first, rows, data->dq);
    return OK;
}

static status backward(struct cpu *cpu, const struct op_call *call, const struct head *head) {
    struct backward_data data = backward_memory(cpu, head);
    float *const inputs[] = {data.dy, data.q, data.k, data.v};
    for (int i = 0; i < 4; i++)
        read_rows(call, &call->in[i], head, inputs[i]);
    for (int64_t first = 0; first < head->n; first += BLOCK)
        TRY(backward_block(call, head, &data, first, head->n - first < BLOCK ? head->n - first : BLOCK));
    write_rows(call, &call->out[1], head, 0, head->n, data.dk);
    write_rows(call, &call->out[2], head, 0, head->n, data.dv);
    return OK;
}

status cpu_attention_dx(struct cpu *cpu, const struct op_call *call) { return heads_to_rows(cpu, call, backward); }
