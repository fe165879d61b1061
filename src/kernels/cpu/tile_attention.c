/* Attention of bf16 where the processor multiplies tiles of it (AMX): the same blocks of query rows as in
 * fused_attention.c, but probabilities and gradients of scores are rounded to bf16 for the next product, as the
 * operands are (what dropout keeps is scaled behind the product); sums and everything between the products are floats.
 * Sequences and head sizes are filled up with zeros to whole tiles: a product with them is zero, so nothing else needs
 * care.
 *
 * Products read their left side in rows and their right side in pairs of rows (products.h). Two steps make all forms:
 * rows to pairs, and transposing 32-bit words, which hold a pair. */
#include "kernels/cpu/fused_attention.h"
#include "kernels/cpu/products.h"
#include "kernels/cpu/vector.h"

enum { QUERIES = 2 * ROWS_PRODUCT, COLUMNS = 16 }; /* of a block; of a panel of pairs */

static int64_t up(int64_t n) { return (n + ROWS_PRODUCT - 1) / ROWS_PRODUCT * ROWS_PRODUCT; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* --- forms of a matrix --- */

/* [rows, columns] of bf16 as pairs of rows: [columns/16][rows/2][16][2]. Both are even multiples of 16. */
static PER_ISA(void, pairs_of, (const bf16 *x, int64_t rows, int64_t columns, uint32_t *restrict pairs),
               (x, rows, columns, pairs)) {
    for (int64_t r = 0; r < rows; r += 2)
        for (int64_t c = 0; c < columns; c += COLUMNS) {
            const bf16 *from = x + r * columns + c;
            uint32_t *to = pairs + (c * rows + r * COLUMNS) / 2;
            for (int i = 0; i < COLUMNS; i++)
                to[i] = from[i] | (uint32_t)from[columns + i] << 16;
        }
}

/* The same from floats, which are rounded; rows are `stride` apart. */
static PER_ISA(void, pairs_of_floats,
               (const float *x, int64_t rows, int64_t columns, int64_t stride, uint32_t *restrict pairs),
               (x, rows, columns, stride, pairs)) {
    for (int64_t r = 0; r < rows; r += 2)
        for (int64_t c = 0; c < columns; c += COLUMNS) {
            const float *from = x + r * stride + c;
            uint32_t *to = pairs + (c * rows + r * COLUMNS) / 2;
            for (int i = 0; i < COLUMNS; i++)
                to[i] = bf16_from_float(from[i]) | (uint32_t)bf16_from_float(from[stride + i]) << 16;
        }
}

/* to[j][i] = from[i][j] of 32-bit words; rows are multiples of 4, `columns` too. */
static void transpose_words(const void *from, int64_t rows, int64_t columns, int64_t from_stride, void *to,
                            int64_t to_stride) {
    for (int64_t r = 0; r < rows; r += 4) {
        const float *first = (const float *)from + r * from_stride;
        const float *const row[4] = {first, first + from_stride, first + 2 * from_stride, first + 3 * from_stride};
        for (int64_t c = 0; c < columns; c += 4)
            transpose_four(row, c, (float *)to + c * to_stride + r, to_stride);
    }
}

/* x[rows, columns] of bf16: its transpose as pairs of rows, [rows/16][columns/2][16][2]. */
static void pairs_of_transpose(const bf16 *x, int64_t rows, int64_t columns, uint32_t *pairs) {
    for (int64_t r = 0; r < rows; r += COLUMNS)
        transpose_words(x + r * columns, COLUMNS, columns / 2, columns / 2, pairs + r * columns / 2, COLUMNS);
}

/* x[rows, columns] of bf16: its transpose in rows; `pairs` is scratch of its size. */
static void transpose(const bf16 *x, int64_t rows, int64_t columns, uint32_t *pairs, bf16 *to) {
    pairs_of(x, rows, columns, pairs);
    for (int64_t c = 0; c < columns; c += COLUMNS)
        transpose_words(pairs + c * rows / 2, rows / 2, COLUMNS, COLUMNS, to + c * rows, rows / 2);
}

/* --- a head's scratch and rows --- */

static float *scratch(struct cpu *cpu, int slot, int64_t floats) {
    return (float *)(((uintptr_t)cpu_scratch(cpu, slot, floats + COLUMNS) + 63) / 64 * 64);
}

static bf16 *take_16(float **rest, int64_t count) { return (bf16 *)(void *)take(rest, count / 2); }
static uint32_t *take_pairs(float **rest, int64_t count) { return (uint32_t *)(void *)take(rest, count / 2); }

/* The head's rows of a [t,i] tensor of bf16, filled up with zeros: [up(n), up(p)]. */
static void read_rows(const struct operand *operand, const struct head *head, bf16 *to) {
    int64_t wide = up(head->p);
    memset(to, 0, (size_t)(up(head->n) * wide) * sizeof *to);
    for (int64_t r = 0; r < head->n; r++) {
        if (r + AHEAD < head->n)
            foresee(operand, head, r + AHEAD);
        memcpy(to + r * wide, (const bf16 *)operand->data + row_offset(operand, head->row + r) + head->number * head->p,
               (size_t)head->p * sizeof *to);
    }
}

static void product(int64_t m, int64_t n, int64_t k, const bf16 *a, int64_t a_row, const uint32_t *b, float *c,
                    int64_t c_row, bool add) {
    const struct rows_product rows = {m, n, k, a, a_row, 1, b, c, c_row, add};
    rows_kernel(BF16)->multiply_rows(&rows);
}

/* --- forward --- */

struct forward {
    bf16 *q;                /* [n,p] */
    uint32_t *k_across, *v; /* pairs of k^T, [p,n]; of v, [n,p] */
    float *scores, *y;      /* of a block: [QUERIES,n], [QUERIES,p] */
    bf16 *probabilities;    /* [QUERIES,n] */
};

static struct forward forward_of(struct cpu *cpu, const struct op_call *call, const struct head *head) {
    int64_t n = up(head->n), p = up(head->p);
    float *rest = scratch(cpu, 0, 2 * n * p);
    bf16 *rows = take_16(&rest, n * p);
    struct forward data = {
        .q = take_16(&rest, n * p), .k_across = take_pairs(&rest, n * p), .v = take_pairs(&rest, n * p)};
    rest = scratch(cpu, 1, QUERIES * (n + p) + QUERIES * n / 2);
    data.scores = take(&rest, QUERIES * n);
    data.y = take(&rest, QUERIES * p);
    data.probabilities = take_16(&rest, QUERIES * n);
    read_rows(&call->in[0], head, data.q);
    read_rows(&call->in[1], head, rows);
    pairs_of_transpose(rows, n, p, data.k_across);
    read_rows(&call->in[2], head, rows);
    pairs_of(rows, n, p, data.v);
    return data;
}

static void forward_block(const struct op_call *call, const struct head *head, const struct forward *data,
                          int64_t first) {
    int64_t n = up(head->n), p = up(head->p), rows = least(QUERIES, head->n - first), whole = up(rows);
    float inverse[QUERIES], scale = kept_scale(head);
    product(whole, n, p, data->q + first * p, p, data->k_across, data->scores, n, false);
    for (int64_t r = 0; r < rows; r++) {
        float *row = data->scores + r * n;
        struct dropout_place place = query_place(head, first + r);
        inverse[r] = softmax_row(row, head->n, call->attr->scale, lse_of(call, &call->out[1], head, first + r));
        if (head->probability > 0)
            dropout_floats(&place, head->n, dropout_threshold(head->probability), 1, row, row);
    }
    floats_to_bf16(data->scores, whole * n, data->probabilities);
    product(whole, p, n, data->probabilities, n, data->v, data->y, p, false);
    for (int64_t r = 0; r < rows; r++)
        scale_row(data->y + r * p, head->p, scale * inverse[r]);
    write_rows(&call->out[0], head, first, rows, data->y, p);
}

status tile_attention(struct cpu *cpu, const struct op_call *call, const struct head *head) {
    const struct kernel *kernel = rows_kernel(BF16);
    struct forward data = forward_of(cpu, call, head);
    kernel->begin();
    for (int64_t first = 0; first < head->n; first += QUERIES)
        forward_block(call, head, &data, first);
    kernel->end();
    return OK;
}

/* --- backward --- */

struct backward {
    bf16 *q, *dy, *q_across, *dy_across; /* [n,p], [p,n] */
    uint32_t *k_across, *v_across, *k;   /* pairs of k^T and v^T, [p,n]; of k, [n,p] */
    float *dk_across, *dv_across;        /* [p,n] */
    float *scores, *gradients, *dq;      /* of a block: [QUERIES,n], [QUERIES,p] */
    uint32_t *probability_pairs, *pairs; /* [QUERIES,n], the latter of gradients */
    bf16 *gradients_16;                  /* [QUERIES,n] */
    float *rows;                         /* [n,p] */
    uint8_t *mask;                       /* [n] of a row */
};

static struct backward backward_of(struct cpu *cpu, const struct op_call *call, const struct head *head) {
    int64_t n = up(head->n), p = up(head->p), size = n * p;
    float *rest = scratch(cpu, 0, 7 * size);
    struct backward data = {.rows = take(&rest, size),
                            .q = take_16(&rest, size),
                            .dy = take_16(&rest, size),
                            .q_across = take_16(&rest, size),
                            .dy_across = take_16(&rest, size),
                            .k_across = take_pairs(&rest, size),
                            .v_across = take_pairs(&rest, size),
                            .k = take_pairs(&rest, size),
                            .dk_across = take(&rest, size),
                            .dv_across = take(&rest, size)};
    rest = scratch(cpu, 1, QUERIES * (3 * n + n / 2 + p) + n);
    data.scores = take(&rest, QUERIES * n);
    data.gradients = take(&rest, QUERIES * n);
    data.dq = take(&rest, QUERIES * p);
    data.probability_pairs = take_pairs(&rest, QUERIES * n);
    data.pairs = take_pairs(&rest, QUERIES * n);
    data.gradients_16 = take_16(&rest, QUERIES * n);
    data.mask = memset(rest, 1, (size_t)n);
    bf16 *rows = (bf16 *)(void *)data.rows;
    read_rows(&call->in[0], head, data.dy);
    transpose(data.dy, n, p, data.k, data.dy_across);
    read_rows(&call->in[1], head, data.q);
    transpose(data.q, n, p, data.k, data.q_across);
    read_rows(&call->in[2], head, rows);
    pairs_of_transpose(rows, n, p, data.k_across);
    pairs_of(rows, n, p, data.k);
    read_rows(&call->in[3], head, rows);
    pairs_of_transpose(rows, n, p, data.v_across);
    return data;
}

static void backward_block(const struct op_call *call, const struct head *head, const struct backward *data,
                           int64_t first) {
    int64_t n = up(head->n), p = up(head->p), rows = least(QUERIES, head->n - first), whole = up(rows);
    product(whole, n, p, data->q + first * p, p, data->k_across, data->scores, n, false);
    product(whole, n, p, data->dy + first * p, p, data->v_across, data->gradients, n, false);
    backward_rows(call, head, first, rows, data->scores, data->gradients, n, 1, data->mask);
    pairs_of_floats(data->scores, whole, n, n, data->probability_pairs);
    pairs_of_floats(data->gradients, whole, n, n, data->pairs);
    floats_to_bf16(data->gradients, whole * n, data->gradients_16);
    product(p, n, whole, data->dy_across + first, n, data->probability_pairs, data->dv_across, n, first > 0);
    product(p, n, whole, data->q_across + first, n, data->pairs, data->dk_across, n, first > 0);
    product(whole, p, n, data->gradients_16, n, data->k, data->dq, p, false);
    write_rows(&call->out[0], head, first, rows, data->dq, p);
}

/* Of the transpose [p,n]. */
static void write_transpose(const struct operand *operand, const struct head *head, const float *from, float scale,
                            float *rows) {
    int64_t n = up(head->n), p = up(head->p);
    transpose_words(from, p, n, n, rows, p);
    scale_row(rows, n * p, scale);
    write_rows(operand, head, 0, head->n, rows, p);
}

status tile_attention_dx(struct cpu *cpu, const struct op_call *call, const struct head *head) {
    const struct kernel *kernel = rows_kernel(BF16);
    struct backward data = backward_of(cpu, call, head);
    kernel->begin();
    for (int64_t first = 0; first < head->n; first += QUERIES)
        backward_block(call, head, &data, first);
    kernel->end();
    write_transpose(&call->out[1], head, data.dk_across, 1, data.rows);
    write_transpose(&call->out[2], head, data.dv_across, kept_scale(head), data.rows);
    return OK;
}
