/* The operator table against the specification.
 *
 *   test_optable               every operator, f32, bf16 and f16, on ragged shapes, held against double precision
 *                              (reference.c); gradients held against finite differences; bits against the number of
 *                              threads
 *   test_optable only NAME...  these operators alone
 *   test_optable perf          every operator at BERT-base size, out of cache: time, GB/s, GFLOP/s, and percent of the
 *                              least time that its bytes and flop take at the rates measured
 *                              (perf T I HEADS V NAME... to choose)
 *   test_optable support       which operators the backend has
 *
 * Tolerances: f32 arithmetic of a sum of K terms errs by some sqrt(K) roundings of 2^-24 of its magnitude, so the bound
 * is `growth` (from the table of cases) x 2^-24 x the magnitude, the larger of the reference's value and its root mean
 * square; a bf16 or f16 result adds half a unit in its last place, at most 2^-8 or 2^-11 of the value. Inputs are the
 * same rounded values on both sides. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../test_backend.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "base/philox.h"
#include "kernels/cpu/products.h"
#include "reference.h"

/* --- shapes --- */

enum { LOGIT_ROWS = 24 }; /* no divisor of a bucket of masked rows */
enum { MOST_SEQUENCES = 8, MOST_TOKENS = 4096 };

struct shape {
    const char *name;
    int sequences;
    int lengths[MOST_SEQUENCES];
    int64_t heads, head_size, columns, other, vocabulary, classes, masked;
};

static const struct shape shapes[] = {
    {"one token", 1, {1}, 1, 8, 8, 8, 64, 50, 1},
    {"odd sizes", 3, {5, 1, 13}, 3, 7, 21, 37, 64, 61, 5},
    {"ragged", 5, {33, 64, 2, 17, 100}, 4, 32, 128, 96, 192, 130, 30},
    {"a whole bucket", 4, {64, 64, 64, 64}, 2, 64, 128, 256, 320, 320, 64},
    {"no masked rows", 2, {9, 4}, 2, 8, 16, 24, 64, 64, 0},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* Sizes for which kernels have other forms. First, more than one tile of queries and of keys for each of the widths of
 * heads, and long rows of logits; then, without contractions, whose references would take long, rows of four items
 * of a warp, and of all warps of a block, with packs and without, and runs of one row of a table over many blocks. */
static const struct shape long_shapes[] = {
    {"heads of 24", 2, {133, 1}, 1, 24, 24, 264, 9008, 9001, 3},
    {"heads of 64", 2, {67, 130}, 1, 64, 64, 520, 64, 64, 3},
    {"heads of 128", 1, {70}, 1, 128, 128, 133, 1301, 1300, 3},
    {"four items", 2, {3, 1}, 1, 776, 776, 9, 64, 61, 0},
    {"several warps", 1, {3}, 1, 2056, 2056, 8, 64, 61, 0},
    {"several warps without packs", 1, {5}, 1, 259, 259, 8, 64, 61, 0},
    {"a long sequence", 1, {1030}, 1, 8, 8, 8, 3, 3, 0},
};
enum { WITH_CONTRACTIONS = 3 };
enum { LONG_SHAPES = sizeof long_shapes / sizeof *long_shapes };

struct tokens {
    int32_t starts[MOST_SEQUENCES + 1], sequence[MOST_TOKENS];
    int64_t square_starts[MOST_SEQUENCES + 1], numbers[MOST_SEQUENCES];
    struct ragged ragged;
};

static void lay_out(const struct shape *shape, struct tokens *t) {
    *t = (struct tokens){.ragged.sequences = shape->sequences};
    for (int s = 0; s < shape->sequences; s++) {
        int n = shape->lengths[s];
        t->starts[s + 1] = t->starts[s] + n;
        t->square_starts[s + 1] = t->square_starts[s] + (int64_t)n * n;
        t->numbers[s] = 0x1FFFFFFFFll + 3 * s; /* beyond 32 bits */
        t->ragged.longest = n > t->ragged.longest ? n : t->ragged.longest;
        for (int i = t->starts[s]; i < t->starts[s + 1]; i++)
            t->sequence[i] = s;
    }
    t->ragged.tokens = t->starts[shape->sequences];
    t->ragged.starts = t->starts;
    t->ragged.square_starts = t->square_starts;
    t->ragged.token_sequence = t->sequence;
    t->ragged.sequence_numbers = t->numbers;
}

/* --- the table of cases --- */

/* Sizes that the letters of an operator's row stand for: t tokens, m masked rows, i columns, u other, v vocabulary. */
struct op_case {
    enum op op;
    const char *letters; /* pairs: letter of op.def, letter of a size */
    double growth;
    double terms;  /* the result is a difference of terms as large as so many times input 0, and may be 0 itself */
    int roundings; /* of values between its parts, to the compute dtype: each may move the result by a unit */
};

static const struct op_case cases[] = {
    {OP_gather, "rtcinv", 0, 0, 0},
    {OP_gather, "rmcint", 0, 0, 0},
    {OP_add, "rtci", 2, 0, 0},
    {OP_layernorm, "rtci", 64, 0, 0},
    {OP_dropout, "rtci", 4, 0, 0},
    {OP_linear, "rtkiou", 64, 0, 0},
    {OP_linear, "rmkiov", 64, 0, 0},
    {OP_bias, "rtcu", 2, 0, 0},
    {OP_act, "rtcu", 32, 0, 0},
    {OP_attn_scores, "rtci", 64, 0, 0},
    {OP_attn_scale, "", 4, 0, 0},
    {OP_attn_mask, "rt", 4, 0, 0},
    {OP_softmax, "", 64, 0, 0},
    {OP_attn_dropout, "", 4, 0, 0},
    {OP_attn_context, "rtci", 64, 0, 0},
    {OP_xent, "rmcv", 64, 0, 0},
    {OP_loss_sum, "rm", 1, 0, 0},
    {OP_xent_dx, "rmcv", 64, 0, 0},
    {OP_scale_loss, "", 2, 0, 0},
    {OP_linear_dx, "rtkiou", 64, 0, 0},
    {OP_linear_dx, "rmkiov", 64, 0, 0},
    {OP_linear_dw, "rtkiou", 128, 0, 0},
    {OP_linear_dw, "rmkiov", 128, 0, 0},
    {OP_bias_dw, "rtcu", 64, 0, 0},
    {OP_act_dx, "rtcu", 64, 0, 0},
    {OP_layernorm_dx, "rtci", 128, 0, 0},
    {OP_layernorm_dw, "rtci", 128, 0, 0},
    {OP_dropout_dx, "rtci", 4, 0, 0},
    {OP_attn_scores_dq, "rtci", 64, 0, 0},
    {OP_attn_scores_dk, "rtci", 64, 0, 0},
    {OP_attn_context_dp, "rtci", 64, 0, 0},
    {OP_attn_context_dv, "rtci", 64, 0, 0},
    {OP_attn_dropout_dx, "", 4, 0, 0},
    {OP_softmax_dx, "", 64, 0, 0},
    {OP_scatter_rows, "mmcirt", 0, 0, 0},
    {OP_embed_dw, "rtcinv", 64, 0, 0},
    {OP_embedding, "rtciavbvdv", 64, 0, 0},
    {OP_residual_norm, "rtci", 64, 0, 0},
    {OP_residual_norm_dx, "rtci", 128, 0, 0},
    {OP_layernorm_grad, "rtci", 128, 0, 0},
    {OP_attention, "rtci", 128, 0, 0},
    {OP_attention_dx, "rtci", 512, 2, 0},
    {OP_qkv, "rtkioi", 64, 0, 0},
    {OP_qkv_dx, "rtkioi", 128, 0, 0},
    {OP_qkv_dw, "rtkioi", 128, 0, 0},
    {OP_linear_bias, "rtkiou", 64, 0, 0},
    {OP_linear_act, "rtkiou", 64, 12, 0},
    {OP_linear_xent, "rmkiov", 64, 0, 1},
    {OP_linear_dx_act, "rtkuoi", 128, 0, 0},
    {OP_linear_dx_add, "rtkiou", 64, 0, 0},
    {OP_linear_dw_bias, "rtkiou", 128, 0, 0},
    {OP_qkv_linear, "rtkioi", 64, 0, 0},
    {OP_qkv_linear_dx, "rtkioi", 128, 0, 0},
    {OP_qkv_linear_dw, "rtkioi", 128, 0, 0},
    {OP_aib, "rtci", 2, 0, 0},
    {OP_baib, "rtci", 64, 0, 0},
    {OP_sm, "rt", 64, 0, 0},
    {OP_bs, "", 64, 0, 0},
    {OP_bdrln, "rtci", 64, 0, 0},
    {OP_blnrd, "rtci", 128, 0, 0},
    {OP_ebsb, "rtci", 128, 0, 0},
    {OP_brd, "rtcu", 32, 0, 0},
    {OP_bdrb, "rtcu", 64, 0, 0},
    {OP_scatter_two, "mmbmcirt", 2, 0, 0},
    {OP_decoder, "rmkiov", 64, 0, 1},
    {OP_decoder_dx, "rmkiov", 128, 0, 2},
};
enum { CASES = sizeof cases / sizeof *cases };

static const struct op_case *case_of(enum op op) {
    for (int c = 0; c < CASES; c++)
        if (cases[c].op == op)
            return &cases[c];
    return NULL;
}

/* --- a call: device operands and reference operands side by side --- */

struct sides {
    struct op_call call; /* its operands are the device's memory */
    struct ref_call ref;
    void *in_data[MAX_OPERANDS]; /* as first made: runs start from copies */
    size_t in_bytes[MAX_OPERANDS], out_bytes[MAX_OPERANDS];
    bool in_borrowed[MAX_OPERANDS], out_borrowed[MAX_OPERANDS]; /* memory of an operand before it */
    bool beside;                                                /* operands that may be are columns of one matrix */
    void *out_start[MAX_OPERANDS], *result[MAX_OPERANDS];
    struct ragged ragged; /* the device's */
};

static struct backend *backend;

static void must(status code) {
    if (code != OK)
        fail_msg("%s", status_message());
}

static void *on_device(const void *host, size_t bytes) {
    void *data;
    must(backend->memory_new(backend, &data, bytes, "operand"));
    if (host)
        must(backend->upload(backend, data, host, bytes));
    return data;
}

static struct ragged ragged_on_device(const struct tokens *t) {
    struct ragged ragged = t->ragged;
    size_t sequences = (size_t)ragged.sequences;
    ragged.starts = on_device(t->starts, (sequences + 1) * sizeof *t->starts);
    ragged.square_starts = on_device(t->square_starts, (sequences + 1) * sizeof *t->square_starts);
    ragged.token_sequence = on_device(t->sequence, (size_t)ragged.tokens * sizeof *t->sequence);
    ragged.sequence_numbers = on_device(t->numbers, sequences * sizeof *t->numbers);
    return ragged;
}

static void size_of(const struct shape *shape, const struct tokens *t, const struct op_case *c, char letter,
                    int64_t *rows, int64_t *padded) {
    const char *pair = c->letters;
    char kind = letter;
    for (; *pair; pair += 2)
        if (pair[0] == letter)
            kind = pair[1];
    struct sizes sizes = {0};
    sizes_set_ragged(&sizes, DIM_T, t->ragged.tokens);
    sizes_set_ragged(&sizes, DIM_M, shape->masked);
    int64_t plain = kind == 'i'   ? shape->heads * shape->head_size
                    : kind == 'u' ? shape->other
                    : kind == 'v' ? shape->vocabulary
                    : kind == 'h' ? shape->heads
                    : kind == 'e' ? t->square_starts[shape->sequences]
                    : kind == 's' ? 2
                    : kind == 'w' ? LOGIT_ROWS
                                  : 1;
    *rows = kind == 't' ? sizes.n[DIM_T] : kind == 'm' ? sizes.n[DIM_M] : plain;
    *padded = kind == 't' ? sizes.padded[DIM_T] : kind == 'm' ? sizes.padded[DIM_M] : plain;
}

static void put(void *data, enum dtype dtype, int64_t at, double value) {
    switch (dtype) {
        case F32:
            ((float *)data)[at] = (float)value;
            break;
        case BF16:
            ((bf16 *)data)[at] = bf16_from_float((float)value);
            break;
        case F16:
            ((uint16_t *)data)[at] = f16_from_float((float)value);
            break;
        case F64:
            ((double *)data)[at] = value;
            break;
        case U8:
            ((uint8_t *)data)[at] = (uint8_t)value;
            break;
        default:
            ((int32_t *)data)[at] = (int32_t)value;
    }
}

static double get(const void *data, enum dtype dtype, int64_t at) {
    switch (dtype) {
        case F32:
            return ((const float *)data)[at];
        case BF16:
            return bf16_to_float(((const bf16 *)data)[at]);
        case F16:
            return f16_to_float(((const uint16_t *)data)[at]);
        case F64:
            return ((const double *)data)[at];
        case U8:
            return ((const uint8_t *)data)[at];
        default:
            return ((const int32_t *)data)[at];
    }
}

/* Index operands: which rows, of a table of how many. */
static void fill_index(struct sides *sides, int operand, const char *name, struct random_stream *random,
                       int64_t bound) {
    struct ref_operand *r = &sides->ref.in[operand];
    r->i = xcalloc((size_t)r->padded_rows + 1, sizeof *r->i);
    for (int64_t row = 0; row < r->rows; row++)
        r->i[row] = strcmp(name, "hit") == 0 ? (int32_t)random_below(random, 2)
                                             : (int32_t)random_below(random, (uint64_t)bound);
    if (sides->call.op == OP_scatter_rows || sides->call.op == OP_scatter_two) /* no row twice */
        for (int64_t row = 0; row < r->rows; row++)
            r->i[row] = (int32_t)(row * bound / r->rows);
    for (int64_t row = r->rows; row < r->padded_rows; row++)
        r->i[row] = 0x7FFFFFFF; /* nobody may follow it */
    memcpy(sides->in_data[operand], r->i, (size_t)r->padded_rows * sizeof *r->i);
}

/* Contractions with weights run over padded rows: those of their inputs are zero. */
static bool is_contraction(enum op op) {
    return op_info(op)->kind == CONTRACTION && strcmp(op_info(op)->space, "rok") == 0;
}

/* A store of normal numbers, as many as a prime: to make new ones takes longer than most operators. */
enum { NORMALS = 65537 };

static const double *normals(void) {
    static double made[NORMALS];
    struct random_stream random = random_open(13, RANDOM_TEST, 0);
    for (int i = 0; i < NORMALS && made[NORMALS - 1] == 0; i++)
        made[i] = random_normal(&random);
    return made;
}

static void fill_values(struct sides *sides, int operand, const char *name, struct random_stream *random) {
    struct ref_operand *r = &sides->ref.in[operand];
    enum dtype dtype = sides->call.in[operand].dtype;
    const double *store = normals();
    uint64_t first = random_below(random, NORMALS);
    bool mask = strcmp(name, "mask") == 0, logits = strcmp(name, "logits") == 0;
    bool weights = strcmp(name, "w") == 0 && sides->call.op == OP_decoder_dx; /* that give logits of usual size */
    bool positive = strcmp(name, "rstd") == 0 || strcmp(name, "scale") == 0;
    double tail = is_contraction(sides->call.op) ? 0 : NAN; /* beyond the true rows: garbage, but for contractions */
    for (int64_t row = 0; row < r->padded_rows; row++)
        for (int64_t c = 0; c < r->columns; c++) {
            int64_t at = row * r->columns + c;
            double value = store[(first + (uint64_t)at) % NORMALS];
            if (mask)
                value = value > -1;
            else if (logits)
                value *= 3;
            else if (weights)
                value /= sqrt((double)r->columns);
            else if (positive)
                value = 0.5 + fabs(value);
            put(sides->in_data[operand], dtype, at, row < r->rows ? value : tail);
            r->d[at] = get(sides->in_data[operand], dtype, at);
        }
}

/* Statistics that belong to another operand: mean, rstd, lse, order. */
static void fill_dependent(struct sides *sides) {
    struct ref_operand *in = sides->ref.in;
    enum op op = sides->call.op;
    bool norm = op == OP_layernorm_dx || op == OP_residual_norm_dx || op == OP_layernorm_grad || op == OP_blnrd;
    if (norm || op == OP_layernorm_dw)
        for (int64_t r = 0; r < in[1].rows; r++) {
            double mean = 0, variance = 0;
            for (int64_t c = 0; c < in[1].columns; c++)
                mean += in[1].d[r * in[1].columns + c] / (double)in[1].columns;
            for (int64_t c = 0; c < in[1].columns; c++)
                variance += pow(in[1].d[r * in[1].columns + c] - mean, 2) / (double)in[1].columns;
            put(sides->in_data[2], F32, r, mean);
            put(sides->in_data[3], F32, r, 1 / sqrt(variance + 1e-12));
            in[2].d[r] = get(sides->in_data[2], F32, r);
            in[3].d[r] = get(sides->in_data[3], F32, r);
        }
    if (norm) /* gamma of zero and tiny gamma */
        for (int64_t c = 0; c < in[4].columns * in[4].rows && c < 2; c++) {
            put(sides->in_data[4], F32, c, c * 1e-30);
            in[4].d[c] = get(sides->in_data[4], F32, c);
        }
    if (op == OP_xent_dx)
        for (int64_t r = 0; r < in[0].rows; r++) {
            double sum = 0;
            for (int64_t c = 0; c < sides->call.attr->classes; c++)
                sum += exp(in[0].d[r * in[0].columns + c]);
            put(sides->in_data[1], F32, r, log(sum));
            in[1].d[r] = get(sides->in_data[1], F32, r);
        }
    if (op == OP_decoder_dx) { /* lse is that of x, w and b */
        struct ref_call forward = sides->ref;
        struct ref_operand other[2];
        forward.op = OP_decoder;
        forward.in[3] = in[4], forward.out[0] = in[3];
        for (int i = 0; i < 2; i++) {
            other[i] = in[4];
            other[i].d = xcalloc((size_t)in[4].padded_rows + 1, sizeof *other[i].d);
            other[i].i = xcalloc((size_t)in[4].padded_rows + 1, sizeof *other[i].i);
            forward.out[1 + i] = other[i];
        }
        reference_run(&forward);
        for (int64_t r = 0; r < in[3].rows; r++) {
            put(sides->in_data[3], F32, r, in[3].d[r]);
            in[3].d[r] = get(sides->in_data[3], F32, r);
        }
        for (int i = 0; i < 2; i++)
            free(other[i].d), free(other[i].i);
    }
    if (op == OP_attention_dx) { /* y and lse are those of q, k and v */
        struct ref_call forward = sides->ref;
        forward.op = OP_attention;
        for (int i = 0; i < 3; i++)
            forward.in[i] = in[1 + i];
        forward.out[0] = in[4], forward.out[1] = in[5];
        reference_run(&forward);
        for (int i = 4; i < 6; i++)
            for (int64_t at = 0; at < in[i].rows * in[i].columns; at++) {
                put(sides->in_data[i], sides->call.in[i].dtype, at, in[i].d[at]);
                in[i].d[at] = get(sides->in_data[i], sides->call.in[i].dtype, at);
            }
    }
    if (op == OP_embed_dw) { /* order: rows sorted by index, stably */
        int64_t place = 0;
        for (int32_t value = 0; place < in[2].rows; value++)
            for (int64_t r = 0; r < in[2].rows; r++)
                if (in[2].i[r] == value)
                    in[1].i[place++] = (int32_t)r;
        memcpy(sides->in_data[1], in[1].i, (size_t)in[1].rows * sizeof(int32_t));
    }
}

static void shape_operand(const struct shape *shape, const struct tokens *t, const struct op_case *c,
                          const struct operand_info *info, enum dtype compute, struct operand *operand,
                          struct ref_operand *reference, size_t *bytes) {
    operand->dtype = info->fixed_dtype ? info->dtype : compute;
    operand->columns = 1;
    size_of(shape, t, c, info->letters[0], &operand->rows, &operand->padded_rows);
    for (const char *letter = info->letters + 1; *letter; letter++) {
        int64_t n, padded;
        size_of(shape, t, c, *letter, &n, &padded);
        operand->columns *= n;
    }
    *reference =
        (struct ref_operand){.rows = operand->rows, .padded_rows = operand->padded_rows, .columns = operand->columns};
    int64_t count = operand->padded_rows * operand->columns;
    reference->d = xcalloc((size_t)count + 1, sizeof *reference->d);
    *bytes = (size_t)count * dtype_size(operand->dtype);
    operand->stride = operand->columns;
}

/* Three operands of one shape as the memory plan may lay them: side by side those marked so, below each other those of
 * weights; false: each has memory of its own. */
static bool are_three(const struct operand_info *info, const struct operand *operands, int left) {
    return left >= 3 && operands->columns * operands->padded_rows > 0 &&
           (info->beside ? operands->columns : operands->padded_rows) % 16 == 0 &&
           strcmp(info[0].letters, info[1].letters) == 0 && strcmp(info[0].letters, info[2].letters) == 0 &&
           info[0].beside == info[1].beside && info[0].beside == info[2].beside;
}

static void allocate(const struct sides *sides, const struct operand_info *info, int count, const size_t *bytes,
                     struct operand *operands, bool *borrowed) {
    for (int i = 0; i < count; i++) {
        if (!sides->beside || !are_three(&info[i], &operands[i], count - i)) {
            operands[i].data = on_device(NULL, bytes[i]);
            continue;
        }
        char *data = on_device(NULL, 3 * bytes[i]);
        size_t step = info[i].beside ? (size_t)operands[i].columns * dtype_size(operands[i].dtype) : bytes[i];
        for (int j = 0; j < 3; j++) {
            operands[i + j].data = data + (size_t)j * step;
            operands[i + j].stride *= info[i].beside ? 3 : 1;
            borrowed[i + j] = j > 0;
        }
        i += 2;
    }
}

/* To and from the device, row by row where rows have gaps. */
static void upload(const struct operand *operand, const void *host, size_t bytes) {
    size_t size = dtype_size(operand->dtype), row = (size_t)operand->columns * size;
    if (operand->stride == operand->columns)
        must(backend->upload(backend, operand->data, host, bytes));
    for (int64_t r = 0; r < operand->padded_rows && operand->stride > operand->columns; r++)
        must(backend->upload(backend, (char *)operand->data + (size_t)(r * operand->stride) * size,
                             (const char *)host + (size_t)r * row, row));
}

static void download(const struct operand *operand, void *host, size_t bytes) {
    size_t size = dtype_size(operand->dtype), row = (size_t)operand->columns * size;
    if (operand->stride == operand->columns)
        must(backend->download(backend, host, operand->data, bytes));
    for (int64_t r = 0; r < operand->padded_rows && operand->stride > operand->columns; r++)
        must(backend->download(backend, (char *)host + (size_t)r * row,
                               (char *)operand->data + (size_t)(r * operand->stride) * size, row));
}

/* An index into table number `operand` of an operator that has several: the letter of its rows. */
static char index_letter(const struct operand_info *in, int operand) {
    return operand > 0 && in[operand - 1].rows_only ? in[operand - 1].letters[0] : 'n';
}

static void make_sides(const struct shape *shape, const struct tokens *t, const struct op_case *c, enum dtype compute,
                       const struct attr *attr, bool beside, struct sides *sides) {
    const struct op_info *info = op_info(c->op);
    struct random_stream random = random_open(11, RANDOM_TEST, (uint64_t)(c - cases));
    int64_t longest = t->ragged.longest > 130 ? t->ragged.longest : 130;
    *sides = (struct sides){.call = {.op = c->op,
                                     .attr = attr,
                                     .seed = 77,
                                     .heads = shape->heads,
                                     .longest_position = longest,
                                     .hidden = shape->heads * shape->head_size,
                                     .ragged = &sides->ragged},
                            .beside = beside,
                            .ragged = ragged_on_device(t)};
    sides->ref = (struct ref_call){.op = c->op,
                                   .attr = *attr,
                                   .seed = 77,
                                   .compute = compute,
                                   .heads = shape->heads,
                                   .longest_position = longest,
                                   .hidden = sides->call.hidden,
                                   .ragged = &t->ragged};
    for (int i = 0; i < info->inputs; i++) {
        shape_operand(shape, t, c, &info->in[i], compute, &sides->call.in[i], &sides->ref.in[i], &sides->in_bytes[i]);
        sides->in_data[i] = xmalloc(sides->in_bytes[i] + 64);
        const char *name = info->in[i].name;
        int64_t rows, padded;
        size_of(shape, t, c,
                strcmp(name, "labels") == 0                           ? '?'
                : c->op == OP_scatter_rows || c->op == OP_scatter_two ? 'r'
                                                                      : index_letter(&info->in[0], i),
                &rows, &padded);
        if (sides->call.in[i].dtype == I32)
            fill_index(sides, i, name, &random, strcmp(name, "labels") == 0 ? shape->classes : rows);
        else
            fill_values(sides, i, name, &random);
    }
    fill_dependent(sides);
    for (int i = 0; i < info->outputs; i++) {
        shape_operand(shape, t, c, &info->out[i], compute, &sides->call.out[i], &sides->ref.out[i],
                      &sides->out_bytes[i]);
        int64_t count = sides->ref.out[i].padded_rows * sides->ref.out[i].columns;
        sides->ref.out[i].i = xcalloc((size_t)count + 1, sizeof(int32_t));
        sides->out_start[i] = xmalloc(sides->out_bytes[i] + 64);
        sides->result[i] = xmalloc(sides->out_bytes[i] + 64);
        memset(sides->out_start[i], 0xFF, sides->out_bytes[i]); /* NaN in every float type */
        for (int64_t at = 0; at < count && info->out[i].accumulated; at++) {
            put(sides->out_start[i], sides->call.out[i].dtype, at, random_normal(&random));
            sides->ref.out[i].d[at] = get(sides->out_start[i], sides->call.out[i].dtype, at);
        }
    }
    allocate(sides, info->in, info->inputs, sides->in_bytes, sides->call.in, sides->in_borrowed);
    allocate(sides, info->out, info->outputs, sides->out_bytes, sides->call.out, sides->out_borrowed);
}

static void free_sides(struct sides *sides) {
    const void *ragged[] = {sides->ragged.starts, sides->ragged.square_starts, sides->ragged.token_sequence,
                            sides->ragged.sequence_numbers};
    for (size_t i = 0; i < sizeof ragged / sizeof *ragged; i++)
        backend->memory_free(backend, (void *)ragged[i]);
    for (int i = 0; i < MAX_OPERANDS; i++) {
        free(sides->in_data[i]), free(sides->out_start[i]), free(sides->result[i]);
        if (!sides->in_borrowed[i])
            backend->memory_free(backend, sides->call.in[i].data);
        if (!sides->out_borrowed[i])
            backend->memory_free(backend, sides->call.out[i].data);
        free(sides->ref.in[i].d), free(sides->ref.in[i].i), free(sides->ref.out[i].d), free(sides->ref.out[i].i);
    }
}

/* Fresh copies of inputs and outputs, one run of the operator, and its results back. */
static void run(struct sides *sides, bool in_place) {
    const struct op_info *info = op_info(sides->call.op);
    struct op_call call = sides->call;
    for (int i = 0; i < info->inputs; i++)
        upload(&call.in[i], sides->in_data[i], sides->in_bytes[i]);
    for (int i = 0; i < info->outputs; i++)
        upload(&call.out[i], sides->out_start[i], sides->out_bytes[i]);
    if (in_place) {
        call.in[info->in_place].data = call.out[0].data;
        must(backend->upload(backend, call.out[0].data, sides->in_data[info->in_place], sides->out_bytes[0]));
    }
    must(backend->run(backend, &call));
    for (int i = 0; i < info->outputs; i++)
        download(&call.out[i], sides->result[i], sides->out_bytes[i]);
}

/* --- comparison --- */

static double root_mean_square(const struct ref_operand *operand) {
    double squares = 0, count = (double)(operand->rows * operand->columns);
    for (int64_t at = 0; at < operand->rows * operand->columns; at++)
        squares += operand->d[at] * operand->d[at];
    return count > 0 ? sqrt(squares / count) : 0;
}

static double unit_of(enum dtype dtype) { return dtype == BF16 ? 0x1p-8 : dtype == F16 ? 0x1p-11 : 0; }

/* Numbers below this one stand as far apart as those from it on. */
static double least_normal(enum dtype dtype) { return dtype == F16 ? 0x1p-14 : 0x1p-126; }

/* What tensor cores and cuBLASLt make of operators that the table counts as one: results that are stored before they
 * are activated, biases in the compute dtype, and sums that are stored twice between three products, each half a unit
 * of a number that may be five root mean squares large. */
static int library_roundings(enum op op, enum dtype compute, bool beside) {
    if (!test_on_cuda()) { /* attention by tiles of bf16 rounds what tensor cores do */
        return (op == OP_attention || op == OP_attention_dx) && compute == BF16 && rows_kernel(BF16) ? 2 : 0;
    }
    switch (op) {
        case OP_qkv_dx: /* one product, if its operands are columns of one */
            return beside ? 0 : 5;
        case OP_qkv_linear_dx:
            return 5;
        case OP_attention:
        case OP_attention_dx:
        case OP_linear_act:
            return 2;
        case OP_linear_bias:
        case OP_qkv:
        case OP_linear_xent:
        case OP_decoder:
        case OP_decoder_dx:
        case OP_linear_dx_act:
            return 1;
        default:
            return 0;
    }
}

/* What stands behind a rounding inside fused attention, which multiplies rounded numbers by the inputs, of which the
 * largest are some three root mean squares: forward the probabilities, which sum to one (half a unit each, so 1 here is
 * 2 halves); backward the gradients of the scores, as large as attr.scale x sqrt(head size) products, of the score
 * itself and, through the row sums, of the stored y. Behind one of a logit: its gradient, at most `scale`, times x,
 * summed over rows. */
static double size_of_inputs(const struct sides *sides) {
    const struct ref_call *call = &sides->ref;
    const struct op_info *info = op_info(call->op);
    double bias = 0; /* on a device, it is added in the compute dtype, and may be larger than the sum */
    for (int i = 0; i < info->inputs && test_on_cuda(); i++)
        for (int64_t at = 0;
             at < call->in[i].rows && info->in[i].name[0] == 'b' && strcmp(info->in[i].letters, "o") == 0; at++)
            bias = fmax(bias, fabs(call->in[i].d[at]));
    double inputs = root_mean_square(&call->in[0]);
    if (call->op == OP_attention_dx)
        return 3 * inputs * call->attr.scale * sqrt((double)(call->hidden / call->heads));
    if (call->op == OP_decoder_dx)
        return inputs * call->in[5].d[0] * sqrt((double)call->in[0].rows);
    return call->op == OP_attention ? inputs : bias;
}

static void compare(const struct sides *sides, const struct op_case *c, const char *where) {
    const struct op_info *info = op_info(c->op);
    for (int o = 0; o < info->outputs; o++) {
        if (info->out[o].scratch)
            continue;
        const struct operand *got = &sides->call.out[o];
        const struct ref_operand *want = &sides->ref.out[o];
        int64_t count = want->rows * want->columns, all = want->padded_rows * want->columns;
        double typical = fmax(root_mean_square(want), c->terms * root_mean_square(&sides->ref.in[0]));
        double unit = unit_of(got->dtype), of_inputs = size_of_inputs(sides);
        int roundings = c->roundings + library_roundings(c->op, sides->ref.compute,
                                                         sides->call.in[0].stride > sides->call.in[0].columns);
        for (int64_t at = 0; at < all; at++) {
            double value = get(sides->result[o], got->dtype, at), expected = at >= count         ? 0
                                                                             : got->dtype == I32 ? want->i[at]
                                                                                                 : want->d[at];
            double size = fmax(fabs(expected), typical);
            double bound = at >= count || got->dtype == I32 || got->dtype == U8
                               ? 0
                               : c->growth * 0x1p-24 * size +
                                     unit * 1.01 * fmax(fabs(expected), least_normal(got->dtype)) +
                                     roundings * unit_of(sides->ref.compute) * fmax(size, of_inputs);
            if (!(fabs(value - expected) <= bound))
                fail_msg("%s, %s, output %s, element %lld (row %lld of %lld): %.9g, expected %.9g within %.2g",
                         info->name, where, info->out[o].name, (long long)at, (long long)(at / want->columns),
                         (long long)want->rows, value, expected, bound);
        }
    }
}

static struct attr attr_of(const struct shape *shape, enum activation act) {
    return (struct attr){.probability = 0.1f,
                         .site = 5,
                         .act = act,
                         .epsilon = 1e-12f,
                         .scale = 1 / sqrtf((float)shape->head_size),
                         .classes = shape->classes};
}

static void check_attr(const struct shape *shape, const struct op_case *c, enum dtype compute, struct attr attr,
                       bool accumulate, bool evaluate, bool beside) {
    static struct tokens t;
    struct sides sides;
    char where[100];
    snprintf(where, sizeof where, "%s, %s, activation %d%s%s%s%s", shape->name, dtype_name(compute), attr.act,
             attr.probability > 0 ? "" : ", without dropout", accumulate ? ", accumulating" : "",
             evaluate ? ", evaluating" : "", beside ? ", side by side" : "");
    lay_out(shape, &t);
    make_sides(shape, &t, c, compute, &attr, beside, &sides);
    sides.call.accumulate = sides.ref.accumulate = accumulate;
    sides.call.evaluate = sides.ref.evaluate = evaluate;
    assert_true(reference_run(&sides.ref));
    run(&sides, false);
    compare(&sides, c, where);
    if (op_info(c->op)->in_place >= 0) {
        run(&sides, true);
        strcat(where, ", in place");
        compare(&sides, c, where);
    }
    free_sides(&sides);
}

static void check_case(const struct shape *shape, const struct op_case *c, enum dtype compute, enum activation act,
                       bool accumulate, bool evaluate, bool beside) {
    check_attr(shape, c, compute, attr_of(shape, act), accumulate, evaluate, beside);
}

/* --- tests --- */

static int setup(void **state) {
    (void)state;
    return test_backend_new(&backend) == OK ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    if (backend)
        backend->free(backend);
    return 0;
}

static bool in_table(enum op op) {
    for (int c = 0; c < CASES; c++)
        if (cases[c].op == op)
            return true;
    return false;
}

static void test_no_operator_is_left_out(void **state) {
    (void)state;
    for (int op = 0; op < OP_COUNT; op++) {
        bool of_optimizer = op_info(op)->kind == UPDATE || op == OP_grad_norm; /* tests/optim */
        if (!of_optimizer && !in_table(op))
            fail_msg("operator %s has no case in this table", op_info(op)->name);
        for (int compute = F32; compute <= F16; compute++)
            assert_true(backend->supports(backend, op, compute));
    }
}

static bool has_act(enum op op) {
    return op == OP_act || op == OP_act_dx || op == OP_linear_act || op == OP_linear_dx_act || op == OP_brd ||
           op == OP_bdrb;
}

static bool has_dropout(enum op op) {
    return strstr(op_info(op)->name, "dropout") || strstr(op_info(op)->meaning, "dropout");
}

static bool accumulates(enum op op) {
    bool any = false;
    for (int i = 0; i < op_info(op)->outputs; i++)
        any |= op_info(op)->out[i].accumulated;
    return any;
}

static bool has_beside(enum op op) {
    bool any = false;
    for (int i = 0; i < MAX_OPERANDS; i++)
        any |= op_info(op)->in[i].beside || op_info(op)->out[i].beside;
    return any;
}

/* From the command line: the operators to look at; NULL: all. */
static char **only;

static bool is_left_out(enum op op) {
    char **name = only;
    while (name && *name && strcmp(*name, op_info(op)->name) != 0)
        name++;
    return name && !*name;
}

/* The shapes, then the long ones. */
static int shapes_of(enum op op) {
    if (is_left_out(op))
        return 0;
    if (is_contraction(op))
        return SHAPES;
    return SHAPES + (op_info(op)->kind == CONTRACTION ? (int)WITH_CONTRACTIONS : (int)LONG_SHAPES);
}

static void all_cases(enum dtype compute) {
    for (int c = 0; c < CASES; c++)
        for (int s = 0; s < shapes_of(cases[c].op); s++)
            for (int act = ACT_GELU; act <= (has_act(cases[c].op) ? ACT_TANH : ACT_GELU); act++)
                for (int evaluate = 0; evaluate <= has_dropout(cases[c].op); evaluate++)
                    for (int accumulate = 0; accumulate <= accumulates(cases[c].op); accumulate++)
                        for (int beside = 0; beside <= has_beside(cases[c].op); beside++)
                            check_case(s < SHAPES ? &shapes[s] : &long_shapes[s - SHAPES], &cases[c], compute, act,
                                       accumulate, evaluate, beside);
}

static void test_f32(void **state) {
    (void)state;
    all_cases(F32);
}

static void test_bf16(void **state) {
    (void)state;
    all_cases(BF16);
}

static void test_f16(void **state) {
    (void)state;
    all_cases(F16);
}

static void test_bits_do_not_depend_on_threads(void **state) {
    (void)state;
    static struct tokens t;
    const struct shape *shape = &shapes[2];
    struct attr attr = attr_of(shape, ACT_GELU);
    lay_out(shape, &t);
    for (int c = 0; c < CASES; c++) {
        bool by_library = test_on_cuda() || strcmp(products_name(), "library") == 0; /* may split sums by threads */
        if ((is_contraction(cases[c].op) && by_library) || is_left_out(cases[c].op))
            continue;
        struct sides sides;
        make_sides(shape, &t, &cases[c], F32, &attr, false, &sides);
        void *first = xmalloc(sides.out_bytes[0] + 1);
        for (int threads = 1; threads <= 2; threads++) {
            parallel_set_threads(threads);
            run(&sides, false);
            if (threads == 1)
                memcpy(first, sides.result[0], sides.out_bytes[0]);
            else if (memcmp(first, sides.result[0], sides.out_bytes[0]) != 0)
                fail_msg("%s: other bits with two threads", op_info(cases[c].op)->name);
        }
        free(first);
        free_sides(&sides);
    }
    parallel_set_threads(0);
}

/* Attention's backward pass on sequences of one block of keys, of several, and of both, by each of the ways that the
 * CUDA backend can be told to take. Of the long ones a few forms
 * only: they take the emulator long. */
static void test_attention_of_many_keys(void **state) {
    (void)state;
    static const struct shape many[] = {
        {"384 and fewer keys, heads of 64", 5, {1, 127, 129, 200, 384}, 1, 64, 64, 8, 64, 61, 0},
        {"512 keys, heads of 64", 1, {512}, 1, 64, 64, 8, 64, 61, 0},
        {"heads of 32", 3, {130, 257, 1}, 2, 32, 64, 8, 64, 61, 0},
        {"heads of 40", 2, {161, 3}, 2, 40, 80, 8, 64, 61, 0},
        {"heads of 27", 2, {2, 150}, 1, 27, 27, 8, 64, 61, 0},
        {"heads of 128", 3, {129, 1, 66}, 1, 128, 128, 8, 64, 61, 0},
    };
    static const char *const ways[] = {"auto", "whole", "blocks"};
    struct backend *usual = backend;
    for (int way = test_on_cuda() ? 1 : 0; way < (test_on_cuda() ? 3 : 1) && !is_left_out(OP_attention_dx); way++) {
        setenv("BERTH_ATTENTION_DX", ways[way], 1);
        must(test_backend_new(&backend));
        for (enum dtype compute = F32; compute <= F16; compute++)
            for (size_t s = compute == F32 ? 2 : 0; s < sizeof many / sizeof *many; s++)
                for (int beside = 0; beside < 2; beside++) {
                    struct attr attr = attr_of(&many[s], ACT_GELU);
                    if (s < 2 && beside != (compute == BF16))
                        continue;
                    attr.probability = beside ? 0.1f : 0;
                    check_attr(&many[s], case_of(OP_attention_dx), compute, attr, false, false, beside);
                }
        backend->free(backend);
    }
    unsetenv("BERTH_ATTENTION_DX");
    backend = usual;
}

static void test_old_device_is_named(void **state) {
    (void)state;
    struct backend *refused;
    if (!test_on_cuda())
        skip();
    setenv("BERTH_EMU_SM", "75", 1);
    status code = test_backend_new(&refused);
    unsetenv("BERTH_EMU_SM");
    if (code == OK) { /* a device, which is new enough */
        refused->free(refused);
        skip();
    }
    assert_int_equal(code, BAD_INPUT);
    assert_non_null(strstr(status_message(), "sm_75: expected sm_80 or later"));
}

static void test_attention_way_is_named(void **state) {
    (void)state;
    struct backend *refused;
    if (!test_on_cuda())
        skip();
    setenv("BERTH_ATTENTION_DX", "half", 1);
    assert_int_equal(test_backend_new(&refused), BAD_INPUT);
    assert_non_null(strstr(status_message(), "BERTH_ATTENTION_DX=half: expected auto, whole or blocks"));
    unsetenv("BERTH_ATTENTION_DX");
}

static const char *const isas[] = {"amx", "avx512", "avx2", "plain", "amx-emulated", "avx512-emulated"};

static void check_instruction_sets(const struct shape *shape, const struct op_case *c, enum dtype compute,
                                   bool accumulate) {
    static struct tokens t;
    struct attr attr = attr_of(shape, ACT_GELU);
    struct sides sides;
    lay_out(shape, &t);
    make_sides(shape, &t, c, compute, &attr, false, &sides);
    sides.call.accumulate = sides.ref.accumulate = accumulate;
    assert_true(reference_run(&sides.ref));
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        char where[100];
        if (products_choose(isas[i]) != OK) /* said by the test */
            continue;
        snprintf(where, sizeof where, "%s, %s, %s%s", isas[i], shape->name, dtype_name(compute),
                 accumulate ? ", accumulating" : "");
        run(&sides, false);
        compare(&sides, c, where);
    }
    free_sides(&sides);
}

/* Every operator by every instruction set that the processor has, or that C stands in for; contractions on more than
 * whole blocks too: tokens, columns and hidden size are multiples of nothing, and larger than a block of any of them.
 */
static void test_instruction_sets(void **state) {
    (void)state;
    static const struct shape large = {"large", 2, {258, 31}, 3, 177, 531, 263, 320, 317, 131};
    if (test_on_cuda())
        skip();
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++)
        if (products_choose(isas[i]) != OK)
            print_message("%s\n", status_message());
        else
            assert_string_equal(products_name(), isas[i]);
    for (int c = 0; c < CASES; c++)
        for (int s = 0; s < SHAPES + is_contraction(cases[c].op) && !is_left_out(cases[c].op); s++)
            for (int accumulate = 0; accumulate <= accumulates(cases[c].op); accumulate++)
                for (enum dtype compute = F32; compute <= F16; compute++)
                    check_instruction_sets(s < SHAPES ? &shapes[s] : &large, &cases[c], compute, accumulate);
    assert_int_equal(products_choose(getenv("BERTH_ISA")), OK);
}

static void test_isa_is_named(void **state) {
    (void)state;
    const char *chosen = getenv("BERTH_ISA");
    struct backend *refused;
    char *before = chosen ? xstrdup(chosen) : NULL;
    setenv("BERTH_ISA", "avx3", 1);
    assert_int_equal(cpu_backend_new(&refused, 0), BAD_INPUT);
    assert_non_null(strstr(status_message(), "BERTH_ISA=avx3: expected amx, avx512, avx2, plain"));
    unsetenv("BERTH_ISA");
    if (before)
        setenv("BERTH_ISA", before, 1);
    free(before);
}

/* A backward operator and the forward one whose output's gradient it takes: it must give the slope of w·y along any
 * direction of one of its inputs. Both sides in double: the kernels are held against these references above. */
struct pair {
    enum op forward;
    int input; /* the operand that is moved */
    enum op backward;
    int output;    /* of the backward operator: the gradient of that operand */
    int inputs[6]; /* where the backward operator's inputs come from: Y the output gradient; n input, 10 + n output n */
};
enum { Y = 100, SCALE = 101, NONE = -1 };

static const struct pair pairs[] = {
    {OP_linear, 0, OP_linear_dx, 0, {Y, 1, NONE}},
    {OP_linear, 1, OP_linear_dw, 0, {Y, 0, NONE}},
    {OP_bias, 1, OP_bias_dw, 0, {Y, NONE}},
    {OP_act, 0, OP_act_dx, 0, {0, Y, NONE}},
    {OP_layernorm, 0, OP_layernorm_dx, 0, {Y, 0, 11, 12, 1, NONE}},
    {OP_layernorm, 1, OP_layernorm_dw, 0, {Y, 0, 11, 12, NONE}},
    {OP_layernorm, 2, OP_layernorm_dw, 1, {Y, 0, 11, 12, NONE}},
    {OP_dropout, 0, OP_dropout_dx, 0, {Y, 11, NONE}},
    {OP_attn_scores, 0, OP_attn_scores_dq, 0, {Y, 1, NONE}},
    {OP_attn_scores, 1, OP_attn_scores_dk, 0, {Y, 0, NONE}},
    {OP_attn_context, 0, OP_attn_context_dp, 0, {Y, 1, NONE}},
    {OP_attn_context, 1, OP_attn_context_dv, 0, {0, Y, NONE}},
    {OP_attn_dropout, 0, OP_attn_dropout_dx, 0, {Y, 11, NONE}},
    {OP_softmax, 0, OP_softmax_dx, 0, {Y, 10, NONE}},
};

static double weighted_sum(const struct ref_operand *y, const double *weights) {
    double sum = 0;
    for (int64_t at = 0; at < y->rows * y->columns; at++)
        sum += y->d[at] * weights[at];
    return sum;
}

static void check_pair(const struct pair *pair, enum activation act) {
    static struct tokens t;
    const struct shape *shape = &shapes[1];
    struct attr attr = attr_of(shape, act);
    struct sides forward, backward;
    struct random_stream random = random_open(12, RANDOM_TEST, 0);
    lay_out(shape, &t);
    make_sides(shape, &t, case_of(pair->forward), F32, &attr, false, &forward);
    make_sides(shape, &t, case_of(pair->backward), F32, &attr, false, &backward);
    struct ref_operand *x = &forward.ref.in[pair->input], *y = &forward.ref.out[0];
    assert_true(reference_run(&forward.ref));
    double *weights = xcalloc((size_t)(y->padded_rows * y->columns), sizeof *weights);
    for (int64_t at = 0; at < y->rows * y->columns; at++)
        weights[at] = random_normal(&random);
    struct ref_call call = backward.ref;
    for (int i = 0; pair->inputs[i] != NONE; i++)
        call.in[i].d = pair->inputs[i] == Y    ? weights
                       : pair->inputs[i] >= 10 ? forward.ref.out[pair->inputs[i] - 10].d
                                               : forward.ref.in[pair->inputs[i]].d;
    assert_true(reference_run(&call));
    const struct ref_operand *gradient = &call.out[pair->output];
    double dot = 0, h = 1e-5, sides_of[2];
    double *direction = xcalloc((size_t)(x->padded_rows * x->columns), sizeof *direction);
    for (int64_t at = 0; at < x->rows * x->columns; at++) {
        direction[at] = random_normal(&random);
        dot += direction[at] * gradient->d[at];
    }
    for (int side = 0; side < 2; side++) {
        for (int64_t at = 0; at < x->rows * x->columns; at++)
            x->d[at] += (side ? -2 : 1) * h * direction[at];
        reference_run(&forward.ref);
        sides_of[side] = weighted_sum(y, weights);
    }
    double numeric = (sides_of[0] - sides_of[1]) / (2 * h);
    if (!(fabs(numeric - dot) <= 1e-6 * (1 + fabs(dot))))
        fail_msg("%s: slope %.9g, but %s gives %.9g", op_info(pair->forward)->name, numeric,
                 op_info(pair->backward)->name, dot);
    free(weights), free(direction);
    free_sides(&forward), free_sides(&backward);
}

static void test_gradients(void **state) {
    (void)state;
    for (size_t p = 0; p < sizeof pairs / sizeof *pairs; p++)
        for (int act = ACT_GELU; act <= (has_act(pairs[p].forward) ? ACT_TANH : ACT_GELU); act++)
            check_pair(&pairs[p], act);
}

/* The gradient of the mean loss, row by row: d loss[r] / d logits = xent_dx with scale 1. */
static void test_gradient_of_cross_entropy(void **state) {
    (void)state;
    static struct tokens t;
    const struct shape *shape = &shapes[2];
    struct attr attr = attr_of(shape, ACT_GELU);
    struct sides forward, backward;
    lay_out(shape, &t);
    make_sides(shape, &t, case_of(OP_xent), F32, &attr, false, &forward);
    make_sides(shape, &t, case_of(OP_xent_dx), F32, &attr, false, &backward);
    struct ref_operand *logits = &forward.ref.in[0];
    assert_true(reference_run(&forward.ref));
    struct ref_call call = backward.ref;
    double one = 1, h = 1e-5;
    call.in[0].d = logits->d, call.in[1].d = forward.ref.out[0].d, call.in[2].i = forward.ref.in[1].i,
    call.in[3].d = &one;
    assert_true(reference_run(&call));
    for (int64_t row = 0; row < logits->rows; row++)
        for (int64_t c = row % 3; c < logits->columns; c += 17) {
            double *at = &logits->d[row * logits->columns + c], loss[2];
            for (int side = 0; side < 2; side++) {
                *at += (side ? -2 : 1) * h;
                reference_run(&forward.ref);
                loss[side] = forward.ref.out[1].d[row];
            }
            *at += h;
            assert_true(fabs((loss[0] - loss[1]) / (2 * h) - call.out[0].d[row * logits->columns + c]) < 1e-8);
        }
    free_sides(&forward), free_sides(&backward);
}

/* Share of kept elements, and their scale: p = 0.1 becomes 26/256. */
static void test_dropout_rate(void **state) {
    (void)state;
    static struct tokens t;
    struct shape shape = {"rate", 4, {100, 100, 100, 100}, 4, 64, 256, 8, 64, 8, 1};
    struct attr attr = attr_of(&shape, ACT_GELU);
    struct sides sides;
    lay_out(&shape, &t);
    make_sides(&shape, &t, case_of(OP_dropout), F32, &attr, false, &sides);
    run(&sides, false);
    int64_t kept = 0, count = 400 * 256;
    const float *x = sides.in_data[0], *y = sides.result[0];
    for (int64_t at = 0; at < count; at++) {
        kept += ((const uint8_t *)sides.result[1])[at];
        assert_true(y[at] == 0 || fabsf(y[at] / x[at] - 256.0f / 230) < 1e-6f);
    }
    double rate = (double)kept / (double)count, deviation = sqrt(230.0 / 256 * 26 / 256 / (double)count);
    assert_true(fabs(rate - 230.0 / 256) < 4 * deviation);
    free_sides(&sides);
}

/* --- perf --- */

/* Bytes as the accounts count them: every operand once; of a table of which an index names rows, only those. */
static double bytes_of(const struct sides *sides) {
    const struct op_info *info = op_info(sides->call.op);
    double bytes = 0;
    for (int i = 0; i < info->inputs + info->outputs; i++) {
        bool input = i < info->inputs;
        int at = input ? i : i - info->inputs;
        const struct operand *operand = input ? &sides->call.in[at] : &sides->call.out[at];
        bool rows_only = input ? info->in[at].rows_only : info->out[at].rows_only;
        int64_t rows = rows_only ? sides->call.in[input ? at + 1 : 0].rows : operand->padded_rows;
        bytes += (double)(rows * operand->columns) * (double)dtype_size(operand->dtype);
    }
    return bytes;
}

static double flop_of(const struct shape *shape, const struct tokens *t, const struct op_case *c) {
    const struct op_info *info = op_info(c->op);
    double flop = info->flop;
    for (const char *letter = info->space; *letter; letter++) {
        int64_t n, padded;
        size_of(shape, t, c, *letter, &n, &padded);
        flop *= (double)n;
    }
    return flop;
}

/* Reads more than a last-level cache holds, so that operands are found in memory, as in a step of training. */
static double empty_caches(void) {
    enum { DOUBLES = 12 << 20 };
    static double *memory;
    double sum = 0;
    if (test_on_cuda())
        return 0;
    if (!memory)
        memset(memory = xmalloc(DOUBLES * sizeof *memory), 1, DOUBLES * sizeof *memory);
    for (int64_t i = 0; i < DOUBLES; i += 8)
        sum += memory[i];
    return sum;
}

/* Seconds of the fastest of some runs. */
static double time_of(const struct op_call *call) {
    double best = INFINITY, all = 0;
    for (int i = 0; i < 100 && (i < 5 || all < 0.15); i++) {
        volatile double read = empty_caches();
        (void)read;
        double began = clock_seconds();
        must(backend->run(backend, call));
        must(backend->wait(backend));
        double seconds = clock_seconds() - began;
        best = fmin(best, seconds);
        all += seconds;
    }
    return best;
}

static void perf_line(const char *name, enum dtype dtype, double seconds, double bytes, double flop,
                      bool is_contraction) {
    double memory = backend->bandwidth(backend), peak = is_contraction ? backend->peak_flops(backend, dtype) : INFINITY;
    double floor = fmax(memory > 0 ? bytes / memory : 0, peak > 0 ? flop / peak : 0);
    printf("%-20s %5s %10.1f %8.2f %10.2f %6.1f\n", name, dtype_name(dtype), seconds * 1e6, bytes / seconds / 1e9,
           flop / seconds / 1e9, 100 * floor / seconds);
}

/* --- the operators of the update: on flat buffers, which have no case above --- */

enum { PERF_CHUNKS = 1024 };

static void flat_operand(const struct operand_info *info, enum dtype compute, struct operand *operand, double *bytes) {
    int64_t count = 1;
    for (const char *letter = info->letters; *letter; letter++)
        count *= *letter == 'f' ? (int64_t)PERF_CHUNKS * CHUNK : *letter == 'z' ? PERF_CHUNKS : *letter == 's' ? 2 : 1;
    *operand =
        (struct operand){.dtype = info->fixed_dtype ? info->dtype : compute, .rows = count, .columns = 1, .stride = 1};
    char *values = xcalloc((size_t)count, dtype_size(operand->dtype));
    for (int64_t i = 0; i < count && operand->dtype != I64; i++)
        put(values, operand->dtype, i, 0.5 + (double)(i % 7));
    operand->data = on_device(values, (size_t)count * dtype_size(operand->dtype));
    operand->padded_rows = count;
    *bytes += (double)count * (double)dtype_size(operand->dtype) * (info->updated ? 2 : 1);
    free(values);
}

static void perf_update(enum op op, enum dtype compute) {
    const struct op_info *info = op_info(op);
    static struct chunk chunks[PERF_CHUNKS];
    const struct parameter parameter = {.name = "all", .rank = 1, .rows = PERF_CHUNKS * CHUNK, .decay = true};
    struct attr attr = {.beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = 0.01, .clip = 1};
    struct op_call call = {.op = op,
                           .attr = &attr,
                           .chunks = chunks,
                           .chunk_count = PERF_CHUNKS,
                           .parameters = &parameter,
                           .parameter_count = 1};
    double bytes = 0;
    for (int c = 0; c < PERF_CHUNKS; c++)
        chunks[c] = (struct chunk){.offset = (int64_t)c * CHUNK, .count = CHUNK};
    for (int i = 0; i < info->inputs; i++)
        flat_operand(&info->in[i], compute, &call.in[i], &bytes);
    for (int i = 0; i < info->outputs; i++)
        flat_operand(&info->out[i], compute, &call.out[i], &bytes);
    struct operand *last = &call.out[info->outputs - 1];
    if (compute == F32 && strcmp(info->out[info->outputs - 1].name, "weights") == 0) { /* they are the master weights */
        backend->memory_free(backend, last->data);
        last->data = call.out[0].data;
        bytes -= (double)last->rows * sizeof(float);
    }
    must(backend->run(backend, &call));
    perf_line(info->name, compute, time_of(&call), bytes, info->flop * (double)PERF_CHUNKS * CHUNK, false);
    if (last != &call.out[0] && last->data == call.out[0].data)
        last->data = NULL;
    for (int i = 0; i < MAX_OPERANDS; i++) {
        backend->memory_free(backend, call.in[i].data);
        backend->memory_free(backend, call.out[i].data);
    }
}

static int perf(int argc, char **argv) {
    int numbers = 2;
    while (numbers < argc && atoi(argv[numbers]) > 0)
        numbers++;
    struct shape shape = {
        "perf", 8, {0}, numbers > 4 ? atoi(argv[4]) : 12, 0, 0, 0, numbers > 5 ? atoi(argv[5]) : 30528, 0, 0};
    int64_t tokens = numbers > 2 ? atoi(argv[2]) : 1024, hidden = numbers > 3 ? atoi(argv[3]) : 768;
    only = numbers < argc ? argv + numbers : NULL;
    shape.head_size = hidden / shape.heads;
    shape.other = 4 * hidden;
    shape.classes = shape.vocabulary;
    shape.masked = tokens * 15 / 100;
    for (int s = 0; s < 8; s++)
        shape.lengths[s] = (int)(tokens / 8);
    static struct tokens t;
    if (tokens > MOST_TOKENS || test_backend_new(&backend) != OK)
        return 1;
    lay_out(&shape, &t);
    struct attr attr = attr_of(&shape, ACT_GELU);
    printf(
        "%lld tokens, hidden %lld, %lld heads, vocabulary %lld, %d threads, %.1f GB/s\n%-20s %5s %10s %8s %10s %6s\n",
        (long long)tokens, (long long)hidden, (long long)shape.heads, (long long)shape.vocabulary, parallel_threads(),
        backend->bandwidth(backend) / 1e9, "operator", "dtype", "us", "GB/s", "GFLOP/s", "roof %");
    for (int c = 0; c < CASES; c++)
        for (enum dtype compute = F32; compute <= F16 && !is_left_out(cases[c].op); compute++) {
            struct sides sides;
            make_sides(&shape, &t, &cases[c], compute, &attr, false, &sides);
            run(&sides, false);
            perf_line(op_info(cases[c].op)->name, compute, time_of(&sides.call), bytes_of(&sides),
                      flop_of(&shape, &t, &cases[c]), op_info(cases[c].op)->kind == CONTRACTION);
            free_sides(&sides);
        }
    static const enum op updates[] = {OP_grad_norm, OP_adam, OP_lamb_moments, OP_lamb_apply};
    for (size_t i = 0; i < sizeof updates / sizeof *updates; i++)
        for (enum dtype compute = F32; compute <= BF16 && !is_left_out(updates[i]); compute++)
            perf_update(updates[i], compute);
    backend->free(backend);
    return 0;
}

static int support(void) {
    if (test_backend_new(&backend) != OK)
        return 1;
    printf("%-20s %4s %5s %4s  %s\n", "operator", "f32", "bf16", "f16", backend->name);
    for (int op = 0; op < OP_COUNT; op++)
        printf("%-20s %4s %5s %4s\n", op_info(op)->name, backend->supports(backend, op, F32) ? "yes" : "no",
               backend->supports(backend, op, BF16) ? "yes" : "no", backend->supports(backend, op, F16) ? "yes" : "no");
    backend->free(backend);
    return 0;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_operator_is_left_out),
        cmocka_unit_test(test_f32),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_f16),
        cmocka_unit_test(test_attention_of_many_keys),
        cmocka_unit_test(test_bits_do_not_depend_on_threads),
        cmocka_unit_test(test_instruction_sets),
        cmocka_unit_test(test_isa_is_named),
        cmocka_unit_test(test_attention_way_is_named),
        cmocka_unit_test(test_old_device_is_named),
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_gradient_of_cross_entropy),
        cmocka_unit_test(test_dropout_rate),
    };
    const struct CMUnitTest kernels[] = {
        cmocka_unit_test(test_f32),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_f16),
        cmocka_unit_test(test_attention_of_many_keys),
        cmocka_unit_test(test_bits_do_not_depend_on_threads),
        cmocka_unit_test(test_instruction_sets),
    };
    if (argc > 1 && strcmp(argv[1], "perf") == 0)
        return perf(argc, argv);
    if (argc > 1 && strcmp(argv[1], "support") == 0)
        return support();
    if (argc > 2 && strcmp(argv[1], "only") == 0) {
        only = argv + 2;
        return cmocka_run_group_tests(kernels, setup, teardown);
    }
    return cmocka_run_group_tests(tests, setup, teardown);
}
