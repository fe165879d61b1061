#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "reference.h"

#define IN(n) (call->in[n])
#define OUT(n) (call->out[n])

/* Values between two parts of an operator. */
static struct ref_operand make(int64_t rows, int64_t padded_rows, int64_t columns) {
    return (struct ref_operand){.rows = rows,
                                .padded_rows = padded_rows,
                                .columns = columns,
                                .d = xcalloc((size_t)(padded_rows * columns) + 1, sizeof(double)),
                                .i = xcalloc((size_t)padded_rows + 1, sizeof(int32_t))};
}

static struct ref_operand like(const struct ref_operand *other) {
    return make(other->rows, other->padded_rows, other->columns);
}

static struct ref_operand matrices(const struct ref_call *call) {
    return make(call->heads, call->heads, call->ragged->square_starts[call->ragged->sequences]);
}

static void discard(struct ref_operand *operand) {
    free(operand->d);
    free(operand->i);
}

/* A part: an operator with up to five inputs and three outputs, NULL where there are fewer. */
static void part(const struct ref_call *call, enum op op, const struct ref_operand *const in[],
                 struct ref_operand *const out[]) {
    const struct op_info *info = op_info(op);
    struct ref_call inner = *call;
    inner.op = op;
    for (int i = 0; i < info->inputs; i++)
        inner.in[i] = *in[i];
    for (int i = 0; i < info->outputs; i++)
        inner.out[i] = *out[i];
    reference_run(&inner);
}
#define PART(op, inputs, outputs) \
    part(call, OP_##op, (const struct ref_operand *const[]){inputs}, (struct ref_operand *const[]){outputs})
#define LIST(...) __VA_ARGS__

/* Rounded as a stored tensor is. */
static void store(const struct ref_call *call, struct ref_operand *operand) {
    for (int64_t at = 0; call->compute != F32 && at < operand->padded_rows * operand->columns; at++) {
        float value = (float)operand->d[at];
        operand->d[at] =
            call->compute == BF16 ? bf16_to_float(bf16_from_float(value)) : f16_to_float(f16_from_float(value));
    }
}

static void biased(struct ref_call *call, const struct ref_operand *w, const struct ref_operand *b,
                   struct ref_operand *y) {
    struct ref_operand product = like(y);
    PART(linear, LIST(&IN(0), w), &product);
    PART(bias, LIST(&product, b), y);
    discard(&product);
}

static void linear_bias(struct ref_call *call) { biased(call, &IN(1), &IN(2), &OUT(0)); }

static void qkv(struct ref_call *call) {
    for (int i = 0; i < 3; i++)
        biased(call, &IN(1 + i), &IN(4 + i), &OUT(i));
}

static void linear_act(struct ref_call *call) {
    linear_bias(call);
    PART(act, &OUT(0), &OUT(1));
}

static void linear_xent(struct ref_call *call) {
    linear_bias(call);
    store(call, &OUT(0));
    PART(xent, LIST(&OUT(0), &IN(3)), LIST(&OUT(1), &OUT(2), &OUT(3)));
}

/* Logits of all rows as they are stored. */
static struct ref_operand logits_of(struct ref_call *call) {
    struct ref_operand logits = make(IN(0).rows, IN(0).padded_rows, IN(1).rows);
    biased(call, &IN(1), &IN(2), &logits);
    store(call, &logits);
    return logits;
}

static void decoder(struct ref_call *call) {
    struct ref_operand logits = logits_of(call);
    PART(xent, LIST(&logits, &IN(3)), LIST(&OUT(0), &OUT(1), &OUT(2)));
    discard(&logits);
}

static void decoder_dx(struct ref_call *call) {
    struct ref_operand logits = logits_of(call), d = like(&logits);
    PART(xent_dx, LIST(&logits, &IN(3), &IN(4), &IN(5)), &d);
    store(call, &d);
    PART(linear_dx, LIST(&d, &IN(1)), &OUT(0));
    PART(linear_dw, LIST(&d, &IN(0)), &OUT(1));
    PART(bias_dw, &d, &OUT(2));
    discard(&logits), discard(&d);
}

static void linear_dx_act(struct ref_call *call) {
    struct ref_operand d = like(&OUT(0));
    PART(linear_dx, LIST(&IN(0), &IN(1)), &d);
    PART(act_dx, LIST(&IN(2), &d), &OUT(0));
    discard(&d);
}

static void dx_add(struct ref_call *call, int terms) {
    for (int64_t at = 0; at < OUT(0).rows * OUT(0).columns; at++)
        OUT(0).d[at] = IN(2 * terms).d[at];
    for (int i = 0; i < terms; i++) {
        struct ref_operand d = like(&OUT(0)), sum = like(&OUT(0));
        PART(linear_dx, LIST(&IN(i), &IN(terms + i)), &d);
        PART(add, LIST(&d, &OUT(0)), &sum);
        memcpy(OUT(0).d, sum.d, (size_t)(OUT(0).rows * OUT(0).columns) * sizeof(double));
        discard(&d), discard(&sum);
    }
}

static void linear_dx_add(struct ref_call *call) { dx_add(call, 1); }
static void qkv_dx(struct ref_call *call) { dx_add(call, 3); }

static void dw_bias(struct ref_call *call, int count) {
    for (int i = 0; i < count; i++) {
        PART(linear_dw, LIST(&IN(i), &IN(count)), &OUT(i));
        PART(bias_dw, &IN(i), &OUT(count + i));
    }
}

static void linear_dw_bias(struct ref_call *call) { dw_bias(call, 1); }
static void qkv_dw(struct ref_call *call) { dw_bias(call, 3); }

static void residual_norm(struct ref_call *call) {
    struct ref_operand dropped = like(&OUT(0)), mask = like(&OUT(0));
    PART(dropout, &IN(0), LIST(&dropped, &mask));
    PART(add, LIST(&dropped, &IN(1)), &OUT(1));
    PART(layernorm, LIST(&OUT(1), &IN(2), &IN(3)), LIST(&OUT(0), &OUT(2), &OUT(3)));
    discard(&dropped), discard(&mask);
}

static void residual_norm_dx(struct ref_call *call) {
    struct ref_operand unused = like(&OUT(0)), mask = like(&OUT(0));
    PART(layernorm_dx, LIST(&IN(0), &IN(1), &IN(2), &IN(3), &IN(4)), &OUT(0));
    PART(layernorm_dw, LIST(&IN(0), &IN(1), &IN(2), &IN(3)), LIST(&OUT(2), &OUT(3)));
    PART(dropout, &OUT(0), LIST(&unused, &mask));
    PART(dropout_dx, LIST(&OUT(0), &mask), &OUT(1));
    discard(&unused), discard(&mask);
}

static void layernorm_grad(struct ref_call *call) {
    struct ref_operand g = like(&OUT(0)), mask = like(&OUT(0));
    PART(dropout, &IN(0), LIST(&g, &mask)); /* the same as dropout_dx with its mask */
    PART(layernorm_dx, LIST(&g, &IN(1), &IN(2), &IN(3), &IN(4)), &OUT(0));
    PART(layernorm_dw, LIST(&g, &IN(1), &IN(2), &IN(3)), LIST(&OUT(1), &OUT(2)));
    discard(&g), discard(&mask);
}

static void embedding(struct ref_call *call) {
    struct ref_operand row = like(&OUT(0)), sum = like(&OUT(0)), y = like(&OUT(0)), mask = like(&OUT(0));
    PART(gather, LIST(&IN(0), &IN(1)), &row);
    PART(gather, LIST(&IN(2), &IN(3)), &sum);
    PART(add, LIST(&row, &sum), &y);
    PART(gather, LIST(&IN(4), &IN(5)), &row);
    PART(add, LIST(&row, &y), &OUT(1));
    PART(layernorm, LIST(&OUT(1), &IN(6), &IN(7)), LIST(&y, &OUT(2), &OUT(3)));
    PART(dropout, &y, LIST(&OUT(0), &mask));
    discard(&row), discard(&sum), discard(&y), discard(&mask);
}

/* Probabilities before and after dropout, the mask, and the log-sum-exp of each row. */
struct attention_parts {
    struct ref_operand scores, scaled, probabilities, dropped, mask;
};

static struct attention_parts attention_parts(struct ref_call *call, const struct ref_operand *q,
                                              const struct ref_operand *k, struct ref_operand *lse) {
    struct attention_parts a = {matrices(call), matrices(call), matrices(call), matrices(call), matrices(call)};
    const struct ragged *ragged = call->ragged;
    PART(attn_scores, LIST(q, k), &a.scores);
    PART(attn_scale, &a.scores, &a.scaled);
    PART(softmax, &a.scaled, &a.probabilities);
    PART(attn_dropout, &a.probabilities, LIST(&a.dropped, &a.mask));
    for (int64_t s = 0; s < ragged->sequences && lse; s++) {
        int64_t n = ragged->starts[s + 1] - ragged->starts[s];
        for (int64_t row = 0; row < call->heads * n; row++) { /* of head row / n, query row % n */
            int64_t first = call->heads * ragged->square_starts[s] + row * n;
            lse->d[(ragged->starts[s] + row % n) * call->heads + row / n] =
                a.scaled.d[first] - log(a.probabilities.d[first]);
        }
    }
    return a;
}

static void attention_discard(struct attention_parts *a) {
    discard(&a->scores), discard(&a->scaled), discard(&a->probabilities), discard(&a->dropped), discard(&a->mask);
}

static void attention(struct ref_call *call) {
    struct attention_parts a = attention_parts(call, &IN(0), &IN(1), &OUT(1));
    PART(attn_context, LIST(&a.dropped, &IN(2)), &OUT(0));
    attention_discard(&a);
}

static void attention_dx(struct ref_call *call) {
    struct attention_parts a = attention_parts(call, &IN(1), &IN(2), NULL);
    struct ref_operand d = matrices(call), e = matrices(call);
    PART(attn_context_dv, LIST(&a.dropped, &IN(0)), &OUT(2));
    PART(attn_context_dp, LIST(&IN(0), &IN(3)), &d);
    PART(attn_dropout_dx, LIST(&d, &a.mask), &e);
    PART(softmax_dx, LIST(&e, &a.probabilities), &d);
    PART(attn_scale, &d, &e);
    PART(attn_scores_dq, LIST(&e, &IN(2)), &OUT(0));
    PART(attn_scores_dk, LIST(&e, &IN(1)), &OUT(1));
    attention_discard(&a);
    discard(&d), discard(&e);
}

static void qkv_linear(struct ref_call *call) {
    for (int i = 0; i < 3; i++)
        PART(linear, LIST(&IN(0), &IN(1 + i)), &OUT(i));
}

static void qkv_linear_dx(struct ref_call *call) {
    struct ref_operand d = like(&OUT(0));
    memset(OUT(0).d, 0, (size_t)(OUT(0).padded_rows * OUT(0).columns) * sizeof(double));
    for (int i = 0; i < 3; i++) {
        PART(linear_dx, LIST(&IN(i), &IN(3 + i)), &d);
        for (int64_t at = 0; at < OUT(0).rows * OUT(0).columns; at++)
            OUT(0).d[at] += d.d[at];
    }
    discard(&d);
}

static void qkv_linear_dw(struct ref_call *call) {
    for (int i = 0; i < 3; i++)
        PART(linear_dw, LIST(&IN(i), &IN(3)), &OUT(i));
}

static void aib(struct ref_call *call) {
    for (int i = 0; i < 3; i++)
        PART(bias, LIST(&IN(i), &IN(3 + i)), &OUT(i));
}

static void baib(struct ref_call *call) {
    for (int i = 0; i < 3; i++)
        PART(bias_dw, &IN(i), &OUT(i));
}

static void sm(struct ref_call *call) {
    struct ref_operand scaled = matrices(call), masked = matrices(call), mask = matrices(call);
    PART(attn_scale, &IN(0), &scaled);
    PART(attn_mask, LIST(&scaled, &IN(1)), &masked);
    PART(softmax, &masked, &OUT(0));
    PART(attn_dropout, &OUT(0), LIST(&OUT(1), &mask));
    discard(&scaled), discard(&masked), discard(&mask);
}

static void bs(struct ref_call *call) {
    struct ref_operand d = matrices(call), mask = matrices(call), e = matrices(call);
    PART(attn_dropout, &IN(0), LIST(&d, &mask)); /* the same as attn_dropout_dx with its mask */
    PART(softmax_dx, LIST(&d, &IN(1)), &e);
    PART(attn_scale, &e, &OUT(0));
    discard(&d), discard(&mask), discard(&e);
}

static void bdrln(struct ref_call *call) {
    struct ref_operand y = like(&OUT(0)), dropped = like(&OUT(0)), mask = like(&OUT(0));
    PART(bias, LIST(&IN(0), &IN(1)), &y);
    PART(dropout, &y, LIST(&dropped, &mask));
    PART(add, LIST(&dropped, &IN(2)), &OUT(1));
    PART(layernorm, LIST(&OUT(1), &IN(3), &IN(4)), LIST(&OUT(0), &OUT(2), &OUT(3)));
    discard(&y), discard(&dropped), discard(&mask);
}

static void blnrd(struct ref_call *call) {
    struct ref_operand mask = like(&OUT(0));
    PART(layernorm_dx, LIST(&IN(0), &IN(1), &IN(2), &IN(3), &IN(4)), &OUT(0));
    PART(dropout, &OUT(0), LIST(&OUT(1), &mask));
    discard(&mask);
}

static void ebsb(struct ref_call *call) {
    PART(add, LIST(&IN(0), &IN(1)), &OUT(0));
    PART(layernorm_dw, LIST(&OUT(0), &IN(2), &IN(3), &IN(4)), LIST(&OUT(1), &OUT(2)));
    PART(bias_dw, &IN(5), &OUT(3));
}

static void brd(struct ref_call *call) {
    PART(bias, LIST(&IN(0), &IN(1)), &OUT(0));
    PART(act, &OUT(0), &OUT(1));
}

static void bdrb(struct ref_call *call) {
    PART(act_dx, LIST(&IN(0), &IN(1)), &OUT(0));
    PART(bias_dw, &OUT(0), &OUT(1));
}

static void scatter_two(struct ref_call *call) {
    struct ref_operand a = like(&OUT(0)), b = like(&OUT(0));
    PART(scatter_rows, LIST(&IN(0), &IN(1)), &a);
    PART(scatter_rows, LIST(&IN(2), &IN(3)), &b);
    PART(add, LIST(&a, &b), &OUT(0));
    discard(&a), discard(&b);
}

static void (*const references[OP_COUNT])(struct ref_call *call) = {
    [OP_embedding] = embedding,
    [OP_residual_norm] = residual_norm,
    [OP_residual_norm_dx] = residual_norm_dx,
    [OP_layernorm_grad] = layernorm_grad,
    [OP_attention] = attention,
    [OP_attention_dx] = attention_dx,
    [OP_qkv] = qkv,
    [OP_qkv_dx] = qkv_dx,
    [OP_qkv_dw] = qkv_dw,
    [OP_linear_bias] = linear_bias,
    [OP_linear_act] = linear_act,
    [OP_linear_xent] = linear_xent,
    [OP_linear_dx_act] = linear_dx_act,
    [OP_linear_dx_add] = linear_dx_add,
    [OP_linear_dw_bias] = linear_dw_bias,
    [OP_scatter_two] = scatter_two,
    [OP_decoder] = decoder,
    [OP_decoder_dx] = decoder_dx,
    [OP_qkv_linear] = qkv_linear,
    [OP_qkv_linear_dx] = qkv_linear_dx,
    [OP_qkv_linear_dw] = qkv_linear_dw,
    [OP_aib] = aib,
    [OP_baib] = baib,
    [OP_sm] = sm,
    [OP_bs] = bs,
    [OP_bdrln] = bdrln,
    [OP_blnrd] = blnrd,
    [OP_ebsb] = ebsb,
    [OP_brd] = brd,
    [OP_bdrb] = bdrb,
};

bool reference_run_fused(struct ref_call *call) {
    if (!references[call->op])
        return false;
    references[call->op](call);
    return true;
}
