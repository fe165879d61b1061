#include "reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"

#define IN(n) (call->in[n])
#define OUT(n) (call->out[n])
#define AT(operand, row, column) ((operand).d[(row) * (operand).columns + (column)])

typedef void (*reference)(struct ref_call *call);

static void zero(struct ref_operand *operand) {
    memset(operand->d, 0, (size_t)(operand->padded_rows * operand->columns) * sizeof(double));
}

static void start_sum(struct ref_call *call, int output) {
    if (!call->accumulate)
        zero(&OUT(output));
}

#define EACH(operand)                            \
    for (int64_t r = 0; r < (operand).rows; r++) \
        for (int64_t c = 0; c < (operand).columns; c++)

static void gather(struct ref_call *call) { EACH(OUT(0)) AT(OUT(0), r, c) = AT(IN(0), IN(1).i[r], c); }
static void add(struct ref_call *call) { EACH(OUT(0)) AT(OUT(0), r, c) = AT(IN(0), r, c) + AT(IN(1), r, c); }
static void bias(struct ref_call *call) { EACH(OUT(0)) AT(OUT(0), r, c) = AT(IN(0), r, c) + IN(1).d[c]; }
static void attn_scale(struct ref_call *call) { EACH(OUT(0)) AT(OUT(0), r, c) = AT(IN(0), r, c) * call->attr.scale; }

static double act_of(enum activation act, double x) {
    switch (act) {
        case ACT_GELU:
            return x * 0.5 * erfc(-x / sqrt(2));
        case ACT_GELU_NEW:
            return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
        case ACT_RELU:
            return x > 0 ? x : 0;
        case ACT_TANH:
            return tanh(x);
    }
    return NAN;
}

static double slope_of(enum activation act, double x) {
    double t;
    switch (act) {
        case ACT_GELU:
            return 0.5 * erfc(-x / sqrt(2)) + x * exp(-x * x / 2) / sqrt(2 * M_PI);
        case ACT_GELU_NEW:
            t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
            return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
        case ACT_RELU:
            return x > 0;
        case ACT_TANH:
            return 1 - tanh(x) * tanh(x);
    }
    return NAN;
}

static void act(struct ref_call *call) { EACH(OUT(0)) AT(OUT(0), r, c) = act_of(call->attr.act, AT(IN(0), r, c)); }
static void act_dx(struct ref_call *call) {
    EACH(OUT(0)) AT(OUT(0), r, c) = AT(IN(1), r, c) * slope_of(call->attr.act, AT(IN(0), r, c));
}

static void layernorm(struct ref_call *call) {
    int64_t n = IN(0).columns;
    for (int64_t r = 0; r < IN(0).rows; r++) {
        double mean = 0, variance = 0;
        for (int64_t c = 0; c < n; c++)
            mean += AT(IN(0), r, c) / (double)n;
        for (int64_t c = 0; c < n; c++)
            variance += pow(AT(IN(0), r, c) - mean, 2) / (double)n;
        OUT(1).d[r] = mean;
        OUT(2).d[r] = 1 / sqrt(variance + call->attr.epsilon);
        for (int64_t c = 0; c < n; c++)
            AT(OUT(0), r, c) = (AT(IN(0), r, c) - mean) * OUT(2).d[r] * IN(1).d[c] + IN(2).d[c];
    }
}

static void layernorm_dx(struct ref_call *call) {
    int64_t n = IN(0).columns;
    for (int64_t r = 0; r < IN(0).rows; r++) {
        double mean = IN(2).d[r], rstd = IN(3).d[r], sum = 0, product = 0;
        for (int64_t c = 0; c < n; c++) {
            double g = IN(4).d[c] * AT(IN(0), r, c);
            sum += g / (double)n;
            product += g * (AT(IN(1), r, c) - mean) * rstd / (double)n;
        }
        for (int64_t c = 0; c < n; c++)
            AT(OUT(0), r, c) = rstd * (IN(4).d[c] * AT(IN(0), r, c) - sum - (AT(IN(1), r, c) - mean) * rstd * product);
    }
}

static void layernorm_dw(struct ref_call *call) {
    start_sum(call, 0);
    start_sum(call, 1);
    EACH(IN(0)) {
        OUT(0).d[c] += AT(IN(0), r, c) * (AT(IN(1), r, c) - IN(2).d[r]) * IN(3).d[r];
        OUT(1).d[c] += AT(IN(0), r, c);
    }
}

static void bias_dw(struct ref_call *call) {
    start_sum(call, 0);
    EACH(IN(0)) OUT(0).d[c] += AT(IN(0), r, c);
}

/* --- dropout --- */

static double kept(const struct ref_call *call, int64_t sequence, int64_t element) {
    int threshold = (int)lrint(256.0 * call->attr.probability);
    struct philox words = philox4x32(call->seed, (uint32_t)(element / 16), call->attr.site, (uint32_t)sequence,
                                     (uint32_t)(sequence >> 32));
    int byte = (int)(words.word[element % 16 / 4] >> (element % 4 * 8) & 255);
    return call->evaluate || byte >= threshold;
}

static double dropout_factor(const struct ref_call *call) {
    return call->evaluate ? 1 : 256.0 / (256.0 - lrint(256.0 * call->attr.probability));
}

static void dropout(struct ref_call *call) {
    EACH(OUT(0)) {
        int64_t s = call->ragged->token_sequence[r], position = r - call->ragged->starts[s];
        AT(OUT(1), r, c) = kept(call, call->ragged->sequence_numbers[s], position * call->hidden + c);
        AT(OUT(0), r, c) = AT(IN(0), r, c) * AT(OUT(1), r, c) * dropout_factor(call);
    }
}

static void dropout_dx(struct ref_call *call) {
    EACH(OUT(0)) AT(OUT(0), r, c) = AT(IN(0), r, c) * AT(IN(1), r, c) * dropout_factor(call);
}

/* --- contractions with weights --- */

static void linear(struct ref_call *call) {
    zero(&OUT(0));
    EACH(OUT(0)) for (int64_t k = 0; k < IN(0).columns; k++) AT(OUT(0), r, c) += AT(IN(0), r, k) * AT(IN(1), c, k);
}

static void linear_dx(struct ref_call *call) {
    zero(&OUT(0));
    EACH(OUT(0)) for (int64_t o = 0; o < IN(0).columns; o++) AT(OUT(0), r, c) += AT(IN(0), r, o) * AT(IN(1), o, c);
}

static void linear_dw(struct ref_call *call) {
    start_sum(call, 0);
    for (int64_t row = 0; row < IN(0).rows; row++)
        EACH(OUT(0)) AT(OUT(0), r, c) += AT(IN(0), row, r) * AT(IN(1), row, c);
}

/* --- attention: for every sequence s, head a, query j, key k --- */

#define MATRIX(call, s, n, a, j, k) ((call)->heads * (call)->ragged->square_starts[s] + ((a) * (n) + (j)) * (n) + (k))

typedef void (*entry)(struct ref_call *call, int64_t matrix, int64_t query, int64_t key, int64_t first, int64_t p);

static void each_entry(struct ref_call *call, entry visit) {
    const struct ragged *ragged = call->ragged;
    int64_t p = call->hidden / call->heads;
    for (int64_t s = 0; s < ragged->sequences; s++) {
        int64_t n = ragged->starts[s + 1] - ragged->starts[s];
        for (int64_t a = 0; a < call->heads; a++)
            for (int64_t j = 0; j < n; j++)
                for (int64_t k = 0; k < n; k++)
                    visit(call, MATRIX(call, s, n, a, j, k), ragged->starts[s] + j, ragged->starts[s] + k, a * p, p);
    }
}

static void dot_entry(struct ref_call *call, int64_t matrix, int64_t query, int64_t key, int64_t first, int64_t p) {
    OUT(0).d[matrix] = 0;
    for (int64_t c = first; c < first + p; c++)
        OUT(0).d[matrix] += AT(IN(0), query, c) * AT(IN(1), key, c);
}

/* out[query] += matrix * in[key] */
static void query_entry(struct ref_call *call, int64_t matrix, int64_t query, int64_t key, int64_t first, int64_t p) {
    for (int64_t c = first; c < first + p; c++)
        AT(OUT(0), query, c) += IN(0).d[matrix] * AT(IN(1), key, c);
}

static void key_entry(struct ref_call *call, int64_t matrix, int64_t query, int64_t key, int64_t first, int64_t p) {
    for (int64_t c = first; c < first + p; c++)
        AT(OUT(0), key, c) += IN(0).d[matrix] * AT(IN(1), query, c);
}

static void attn_dots(struct ref_call *call) { each_entry(call, dot_entry); }

static void attn_context(struct ref_call *call) {
    zero(&OUT(0));
    each_entry(call, query_entry);
}

/* dv[k] = sum_j p[j,k] dy[j]; dk[k] = sum_j ds[j,k] q[j] */
static void attn_keys(struct ref_call *call) {
    zero(&OUT(0));
    each_entry(call, key_entry);
}

typedef void (*matrix_row)(struct ref_call *call, int64_t begin, int64_t n, int64_t sequence, int64_t head,
                           int64_t query);

static void each_row(struct ref_call *call, matrix_row visit) {
    const struct ragged *ragged = call->ragged;
    for (int64_t s = 0; s < ragged->sequences; s++) {
        int64_t n = ragged->starts[s + 1] - ragged->starts[s];
        for (int64_t a = 0; a < call->heads; a++)
            for (int64_t j = 0; j < n; j++)
                visit(call, MATRIX(call, s, n, a, j, 0), n, s, a, j);
    }
}

static void softmax_row(struct ref_call *call, int64_t begin, int64_t n, int64_t s, int64_t head, int64_t query) {
    (void)s, (void)head, (void)query;
    double most = -INFINITY, sum = 0;
    for (int64_t k = begin; k < begin + n; k++)
        most = fmax(most, IN(0).d[k]);
    for (int64_t k = begin; k < begin + n; k++)
        sum += exp(IN(0).d[k] - most);
    for (int64_t k = begin; k < begin + n; k++)
        OUT(0).d[k] = exp(IN(0).d[k] - most) / sum;
}

static void softmax_dx_row(struct ref_call *call, int64_t begin, int64_t n, int64_t s, int64_t head, int64_t query) {
    (void)s, (void)head, (void)query;
    double dot = 0;
    for (int64_t k = begin; k < begin + n; k++)
        dot += IN(0).d[k] * IN(1).d[k];
    for (int64_t k = begin; k < begin + n; k++)
        OUT(0).d[k] = IN(1).d[k] * (IN(0).d[k] - dot);
}

static void attn_dropout_row(struct ref_call *call, int64_t begin, int64_t n, int64_t s, int64_t head, int64_t query) {
    int64_t padded = (call->longest_position + 15) / 16 * 16;
    for (int64_t k = 0; k < n; k++) {
        int64_t element = (head * call->longest_position + query) * padded + k;
        OUT(1).d[begin + k] = kept(call, call->ragged->sequence_numbers[s], element);
        OUT(0).d[begin + k] = IN(0).d[begin + k] * OUT(1).d[begin + k] * dropout_factor(call);
    }
}

static void softmax(struct ref_call *call) { each_row(call, softmax_row); }
static void softmax_dx(struct ref_call *call) { each_row(call, softmax_dx_row); }
static void attn_dropout(struct ref_call *call) { each_row(call, attn_dropout_row); }

/* --- losses, rows --- */

static void xent(struct ref_call *call) {
    for (int64_t r = 0; r < IN(0).rows; r++) {
        int64_t best = 0;
        double sum = 0;
        for (int64_t c = 1; c < call->attr.classes; c++)
            best = AT(IN(0), r, c) > AT(IN(0), r, best) ? c : best;
        for (int64_t c = 0; c < call->attr.classes; c++)
            sum += exp(AT(IN(0), r, c) - AT(IN(0), r, best));
        OUT(0).d[r] = AT(IN(0), r, best) + log(sum);
        OUT(1).d[r] = OUT(0).d[r] - AT(IN(0), r, IN(1).i[r]);
        OUT(2).i[r] = best == IN(1).i[r];
    }
}

static void scale_loss(struct ref_call *call) { OUT(0).d[0] = IN(0).d[0] * IN(1).d[0]; }

static void xent_dx(struct ref_call *call) {
    EACH(OUT(0)) {
        double p = c < call->attr.classes ? exp(AT(IN(0), r, c) - IN(1).d[r]) : 0;
        AT(OUT(0), r, c) = IN(3).d[0] * (p - (c == IN(2).i[r]));
    }
}

static void loss_sum(struct ref_call *call) {
    start_sum(call, 0);
    for (int64_t r = 0; r < IN(0).rows; r++) {
        OUT(0).d[0] += IN(0).d[r];
        OUT(0).d[1] += IN(1).i[r];
    }
}

static void scatter_rows(struct ref_call *call) {
    zero(&OUT(0));
    EACH(IN(0)) AT(OUT(0), IN(1).i[r], c) = AT(IN(0), r, c);
}

static void embed_dw(struct ref_call *call) {
    start_sum(call, 0);
    EACH(IN(0)) AT(OUT(0), IN(2).i[r], c) += AT(IN(0), r, c);
}

static void attn_mask(struct ref_call *call) {
    const struct ragged *ragged = call->ragged;
    for (int64_t s = 0; s < ragged->sequences; s++) {
        int64_t n = ragged->starts[s + 1] - ragged->starts[s];
        for (int64_t at = 0; at < call->heads * n * n; at++)
            OUT(0).d[call->heads * ragged->square_starts[s] + at] =
                IN(0).d[call->heads * ragged->square_starts[s] + at] + IN(1).d[ragged->starts[s] + at % n];
    }
}

static const reference references[OP_COUNT] = {
    [OP_gather] = gather,
    [OP_add] = add,
    [OP_layernorm] = layernorm,
    [OP_dropout] = dropout,
    [OP_linear] = linear,
    [OP_bias] = bias,
    [OP_act] = act,
    [OP_attn_scores] = attn_dots,
    [OP_attn_scale] = attn_scale,
    [OP_attn_mask] = attn_mask,
    [OP_softmax] = softmax,
    [OP_attn_dropout] = attn_dropout,
    [OP_attn_context] = attn_context,
    [OP_xent] = xent,
    [OP_loss_sum] = loss_sum,
    [OP_xent_dx] = xent_dx,
    [OP_scale_loss] = scale_loss,
    [OP_linear_dx] = linear_dx,
    [OP_linear_dw] = linear_dw,
    [OP_bias_dw] = bias_dw,
    [OP_act_dx] = act_dx,
    [OP_layernorm_dx] = layernorm_dx,
    [OP_layernorm_dw] = layernorm_dw,
    [OP_dropout_dx] = dropout_dx,
    [OP_attn_scores_dq] = attn_context,
    [OP_attn_scores_dk] = attn_keys,
    [OP_attn_context_dp] = attn_dots,
    [OP_attn_context_dv] = attn_keys,
    [OP_attn_dropout_dx] = dropout_dx,
    [OP_softmax_dx] = softmax_dx,
    [OP_scatter_rows] = scatter_rows,
    [OP_embed_dw] = embed_dw,
};

bool reference_run(struct ref_call *call) {
    if (!references[call->op])
        return reference_run_fused(call);
    references[call->op](call);
    return true;
}
