/* `berth analyze --measure`: a few steps on random tokens, timed node by node. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/philox.h"
#include "cmd/analyze.h"
#include "dist/dist.h"
#include "train/network.h"

enum { FEWEST_STEPS = 3, MOST_STEPS = 20 };
static const double ENOUGH_SECONDS = 3;

/* The arrays behind a struct batch, in one arena. */
struct synthetic {
    struct arena arena;
    struct batch batch;
};

static int32_t *new_array(struct synthetic *synthetic, int64_t count) {
    return arena_alloc(&synthetic->arena, (size_t)count * sizeof(int32_t));
}

static int32_t random_id(struct random_stream *random, const struct analysis *analysis) {
    return (int32_t)random_below(random, (uint64_t)analysis->model.vocab_size);
}

/* Uniform ids; two sentences of equal length; masks at equal distances. */
static void make_tokens(struct synthetic *synthetic, const struct analysis *analysis, struct random_stream *random) {
    struct batch *batch = &synthetic->batch;
    int64_t length = analysis->shape.seq_len;
    int32_t *ids = new_array(synthetic, batch->tokens), *positions = new_array(synthetic, batch->tokens);
    int32_t *types = new_array(synthetic, batch->tokens);
    for (int64_t t = 0; t < batch->tokens; t++) {
        ids[t] = random_id(random, analysis);
        positions[t] = (int32_t)(t % length);
        types[t] = analysis->model.type_vocab_size > 1 && positions[t] >= length / 2;
    }
    batch->ids = ids;
    batch->positions = positions;
    batch->types = types;
}

static void make_batch(struct synthetic *synthetic, const struct analysis *analysis) {
    const struct bert_shape *shape = &analysis->shape;
    int64_t b = shape->sequences, length = shape->seq_len, masks = shape->max_predictions;
    struct random_stream random = random_open(analysis->seed, RANDOM_TEST, 0);
    struct batch *batch = &synthetic->batch;
    batch->sequences = b, batch->tokens = b * length, batch->masked = b * masks;
    make_tokens(synthetic, analysis, &random);
    int32_t *starts = new_array(synthetic, b + 1), *nsp = new_array(synthetic, b);
    int32_t *rows = new_array(synthetic, batch->masked), *labels = new_array(synthetic, batch->masked);
    int64_t *numbers = arena_alloc(&synthetic->arena, (size_t)b * sizeof *numbers);
    for (int64_t s = 0; s < b; s++) {
        starts[s + 1] = (int32_t)((s + 1) * length);
        nsp[s] = (int32_t)(s % 2);
        numbers[s] = s;
        for (int64_t m = 0; m < masks; m++) {
            rows[s * masks + m] = (int32_t)(s * length + m * length / masks);
            labels[s * masks + m] = random_id(&random, analysis);
        }
    }
    batch->starts = starts;
    batch->nsp_labels = nsp;
    batch->masked_rows = rows;
    batch->masked_labels = labels;
    batch->sequence_numbers = numbers;
}

/* One step to warm up, then as many as make a few seconds. seconds: [nodes], the mean of a step. */
static status time_steps(struct network *network, const struct batch *batch, double *seconds) {
    const struct step_data data = {.micro_batches = 1,
                                   .batches = batch,
                                   .sequences = batch->sequences,
                                   .tokens = batch->tokens,
                                   .masked = batch->masked};
    struct step_result result;
    TRY(network_step(network, &data, &result));
    exec_profile(network->exec, seconds);
    double began = clock_seconds();
    int steps = 0;
    for (; steps < FEWEST_STEPS || (steps < MOST_STEPS && clock_seconds() - began < ENOUGH_SECONDS); steps++)
        TRY(network_step(network, &data, &result));
    log_info("measured %d steps of one micro-batch in %.1f s", steps, clock_seconds() - began);
    for (int n = 0; n < network->graph->node_count; n++)
        seconds[n] /= steps;
    return OK;
}

static status measure(const struct analysis *analysis, struct network *network, double *seconds) {
    struct synthetic synthetic = {0};
    TRY(comm_self_new(&network->comm));
    TRY(network_start(network, &analysis->optim, analysis->seed));
    TRY(network_init_weights(network, analysis->seed));
    make_batch(&synthetic, analysis);
    status code = time_steps(network, &synthetic.batch, seconds);
    arena_free(&synthetic.arena);
    return code;
}

status analysis_measure(struct analysis *analysis, struct backend *backend) {
    const struct level_analysis *level = &analysis->levels[analysis->shown];
    struct network network = {
        .config = analysis->model, .backend = backend, .graph = level->graph, .io = level->io, .optim = level->optim};
    double *seconds = xcalloc((size_t)level->graph->node_count, sizeof *seconds);
    status code = measure(analysis, &network, seconds);
    if (code == OK)
        account_step(level->graph, &level->graph->capacity, 1, seconds, &analysis->measured);
    network.graph = NULL; /* they stay the analysis's and the caller's */
    network.backend = NULL;
    network_free(&network);
    free(seconds);
    return code;
}
