/* The update operators: one pass over the flat buffers, chunk by chunk. See optim/optim.h for the formulas. */
#include <math.h>

#include "kernels/cpu/kernels.h"

struct update {
    const struct op_call *call;
    float *grad, *master, *m, *v;  /* [f] */
    const struct operand *weights; /* [f] what operators read: master itself, or its copy in the compute dtype */
    double *partial;               /* [z] or [z,2] sums of a chunk */
    float clip_scale, rate;
    float beta1, beta2, one_minus_beta1, one_minus_beta2, inverse1, inverse_root2, epsilon;
    float decay_of[2]; /* weight decay of parameters without and with it */
    bool decoupled;
    const float *ratio; /* lamb: trust ratio of each parameter */
};

/* --- grad_norm --- */

static PER_ISA(double, sum_of_squares, (const float *x, int64_t n), (x, n)) {
    enum { LANES = 16 };
    double lanes[LANES] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int lane = 0; lane < LANES; lane++)
            lanes[lane] += (double)x[i + lane] * x[i + lane];
    for (; i < n; i++)
        lanes[i % LANES] += (double)x[i] * x[i];
    for (int lane = 0; lane < LANES; lane++)
        sum += lanes[lane];
    return sum;
}

static void norm_body(void *ctx, int64_t begin, int64_t end) {
    const struct update *u = ctx;
    for (int64_t c = begin; c < end; c++) {
        const struct chunk *chunk = &u->call->chunks[c];
        u->partial[c] = sum_of_squares(u->grad + chunk->offset, chunk->count);
    }
}

status cpu_grad_norm(struct cpu *cpu, const struct op_call *call) {
    (void)cpu;
    struct update u = {.call = call, .grad = call->in[0].data, .partial = call->out[0].data};
    parallel_for(call->chunk_count, 1, norm_body, &u);
    double sum = 0;
    for (int64_t c = 0; c < call->chunk_count; c++)
        sum += u.partial[c];
    *(double *)call->out[1].data = sqrt(sum);
    return OK;
}

/* --- what all updates share --- */

static bool is_overflow(const struct operand *norm) { return !isfinite(*(const double *)norm->data); }

/* Scalars of update number step[0] + 1. */
static void prepare(struct update *u, const struct operand *norm_operand, const int64_t *step) {
    const struct attr *attr = u->call->attr;
    const double *entries = norm_operand->data, norm = entries[0], loss_scale = norm_operand->rows > 1 ? entries[1] : 1;
    double t = (double)step[0] + 1;
    double correct1 = attr->bias_correction ? 1 - pow(attr->beta1, t) : 1;
    double correct2 = attr->bias_correction ? 1 - pow(attr->beta2, t) : 1;
    u->clip_scale = (float)((attr->clip > 0 && norm > attr->clip ? attr->clip / norm : 1) / loss_scale);
    u->beta1 = (float)attr->beta1;
    u->beta2 = (float)attr->beta2;
    u->one_minus_beta1 = (float)(1 - attr->beta1);
    u->one_minus_beta2 = (float)(1 - attr->beta2);
    u->inverse1 = (float)(1 / correct1);
    u->inverse_root2 = (float)(1 / sqrt(correct2));
    u->epsilon = (float)attr->epsilon;
    u->decay_of[1] = (float)attr->weight_decay;
    u->decoupled = attr->decoupled;
}

static float decay(const struct update *u, const struct chunk *chunk) {
    return u->decay_of[u->call->parameters[chunk->parameter].decay];
}

static void write_weights(const struct update *u, const struct chunk *chunk) {
    floats_write(u->weights->data, u->weights->dtype, chunk->offset, chunk->count, u->master + chunk->offset);
}

/* --- adam --- */

static PER_ISA(void, adam_chunk,
               (const struct update *u, float *restrict p, const float *restrict grad, float *restrict m,
                float *restrict v, int64_t n, float decay),
               (u, p, grad, m, v, n, decay)) {
    float added = u->decoupled ? 0 : decay, kept = u->decoupled ? decay : 0;
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * u->clip_scale + added * p[i];
        m[i] = u->beta1 * m[i] + u->one_minus_beta1 * g;
        v[i] = u->beta2 * v[i] + u->one_minus_beta2 * g * g;
        float update = m[i] * u->inverse1 / (sqrtf(v[i]) * u->inverse_root2 + u->epsilon);
        p[i] -= u->rate * (update + kept * p[i]);
    }
}

static void adam_body(void *ctx, int64_t begin, int64_t end) {
    const struct update *u = ctx;
    for (int64_t c = begin; c < end; c++) {
        const struct chunk *chunk = &u->call->chunks[c];
        int64_t at = chunk->offset;
        adam_chunk(u, u->master + at, u->grad + at, u->m + at, u->v + at, chunk->count, decay(u, chunk));
        write_weights(u, chunk);
    }
}

status cpu_adam(struct cpu *cpu, const struct op_call *call) {
    (void)cpu;
    const int64_t *step = call->in[3].data;
    if (is_overflow(&call->in[1]))
        return OK;
    struct update u = {.call = call,
                       .grad = call->in[0].data,
                       .master = call->out[0].data,
                       .m = call->out[1].data,
                       .v = call->out[2].data,
                       .weights = &call->out[3],
                       .rate = ((const float *)call->in[2].data)[step[0]]};
    prepare(&u, &call->in[1], step);
    parallel_for(call->chunk_count, 1, adam_body, &u);
    return OK;
}

/* --- lamb --- */

/* The update r takes the place of the gradient. */
static PER_ISA(void, lamb_chunk,
               (const struct update *u, const float *restrict p, float *restrict grad, float *restrict m,
                float *restrict v, int64_t n, float decay),
               (u, p, grad, m, v, n, decay)) {
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * u->clip_scale;
        m[i] = u->beta1 * m[i] + u->one_minus_beta1 * g;
        v[i] = u->beta2 * v[i] + u->one_minus_beta2 * g * g;
        grad[i] = m[i] * u->inverse1 / (sqrtf(v[i]) * u->inverse_root2 + u->epsilon) + decay * p[i];
    }
}

static void lamb_body(void *ctx, int64_t begin, int64_t end) {
    const struct update *u = ctx;
    for (int64_t c = begin; c < end; c++) {
        const struct chunk *chunk = &u->call->chunks[c];
        int64_t at = chunk->offset;
        lamb_chunk(u, u->master + at, u->grad + at, u->m + at, u->v + at, chunk->count, decay(u, chunk));
        u->partial[2 * c] = sum_of_squares(u->master + at, chunk->count);
        u->partial[2 * c + 1] = sum_of_squares(u->grad + at, chunk->count);
    }
}

status cpu_lamb_moments(struct cpu *cpu, const struct op_call *call) {
    (void)cpu;
    if (is_overflow(&call->in[0]))
        return OK;
    struct update u = {.call = call,
                       .master = call->in[2].data,
                       .grad = call->out[0].data,
                       .m = call->out[1].data,
                       .v = call->out[2].data,
                       .partial = call->out[3].data};
    prepare(&u, &call->in[0], call->in[1].data);
    parallel_for(call->chunk_count, 1, lamb_body, &u);
    return OK;
}

/* Chunks of a parameter are neighbours, so its sums are added in chunk order. */
static float trust_ratio(const struct op_call *call, const double *norms, int parameter, int64_t *chunk) {
    double weights = 0, update = 0;
    for (; *chunk < call->chunk_count && call->chunks[*chunk].parameter == parameter; (*chunk)++) {
        weights += norms[2 * *chunk];
        update += norms[2 * *chunk + 1];
    }
    bool trusted = call->parameters[parameter].decay && call->attr->weight_decay != 0 && weights > 0 && update > 0;
    return trusted ? (float)(sqrt(weights) / sqrt(update)) : 1;
}

static PER_ISA(void, apply_chunk, (float *restrict p, const float *restrict update, int64_t n, float rate),
               (p, update, n, rate)) {
    for (int64_t i = 0; i < n; i++)
        p[i] -= rate * update[i];
}

static void apply_body(void *ctx, int64_t begin, int64_t end) {
    const struct update *u = ctx;
    for (int64_t c = begin; c < end; c++) {
        const struct chunk *chunk = &u->call->chunks[c];
        apply_chunk(u->master + chunk->offset, u->grad + chunk->offset, chunk->count,
                    u->rate * u->ratio[chunk->parameter]);
        write_weights(u, chunk);
    }
}

status cpu_lamb_apply(struct cpu *cpu, const struct op_call *call) {
    const int64_t *step = call->in[4].data;
    if (is_overflow(&call->in[2]))
        return OK;
    float *ratio = cpu_scratch(cpu, 0, call->parameter_count);
    int64_t chunk = 0;
    for (int p = 0; p < call->parameter_count; p++)
        ratio[p] = trust_ratio(call, call->in[1].data, p, &chunk);
    struct update u = {.call = call,
                       .grad = call->in[0].data,
                       .master = call->out[0].data,
                       .weights = &call->out[1],
                       .rate = ((const float *)call->in[3].data)[step[0]],
                       .ratio = ratio};
    parallel_for(call->chunk_count, 1, apply_body, &u);
    return OK;
}

status cpu_step_advance(struct cpu *cpu, const struct op_call *call) {
    (void)cpu;
    int64_t *step = call->out[0].data;
    step[is_overflow(&call->in[0])]++;
    return OK;
}

/* --- the loss scale of f16 --- */

status cpu_scale_loss(struct cpu *cpu, const struct op_call *call) {
    (void)cpu;
    *(float *)call->out[0].data = (float)(*(const float *)call->in[0].data * *(const double *)call->in[1].data);
    return OK;
}

status cpu_unscale_norm(struct cpu *cpu, const struct op_call *call) {
    (void)cpu;
    double scale = *(const double *)call->in[1].data, *unscaled = call->out[0].data;
    unscaled[0] = *(const double *)call->in[0].data / scale;
    unscaled[1] = scale;
    return OK;
}

status cpu_loss_scale_advance(struct cpu *cpu, const struct op_call *call) {
    (void)cpu;
    double *scale = call->out[0].data, *steps = scale + 1;
    bool overflow = is_overflow(&call->in[0]), grows = !overflow && *steps + 1 >= (double)call->attr->growth_interval;
    if (overflow)
        *scale = fmax(*scale / 2, LOSS_SCALE_LEAST);
    else if (grows)
        *scale = fmin(*scale * 2, LOSS_SCALE_MOST);
    *steps = overflow || grows ? 0 : *steps + 1;
    return OK;
}
