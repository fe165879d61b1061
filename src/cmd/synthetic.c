#include "cmd/synthetic.h"

#include "base/philox.h"

static int32_t *new_array(struct synthetic *synthetic, int64_t count) {
    return arena_alloc(&synthetic->arena, (size_t)count * sizeof(int32_t));
}

static int32_t random_id(struct random_stream *random, const struct bert_config *model) {
    return (int32_t)random_below(random, (uint64_t)model->vocab_size);
}

/* Uniform ids; two sentences of equal length; masks at equal distances. */
static void make_tokens(struct synthetic *synthetic, const struct bert_config *model, int64_t length,
                        struct random_stream *random) {
    struct batch *batch = &synthetic->batch;
    int32_t *ids = new_array(synthetic, batch->tokens), *positions = new_array(synthetic, batch->tokens);
    int32_t *types = new_array(synthetic, batch->tokens);
    for (int64_t t = 0; t < batch->tokens; t++) {
        ids[t] = random_id(random, model);
        positions[t] = (int32_t)(t % length);
        types[t] = model->type_vocab_size > 1 && positions[t] >= length / 2;
    }
    batch->ids = ids;
    batch->positions = positions;
    batch->types = types;
}

void synthetic_make(struct synthetic *synthetic, const struct bert_config *model, const struct bert_shape *shape,
                    uint64_t seed) {
    int64_t b = shape->sequences, length = shape->seq_len, masks = shape->max_predictions;
    struct random_stream random = random_open(seed, RANDOM_TEST, 0);
    struct batch *batch = &synthetic->batch;
    batch->sequences = b, batch->tokens = b * length, batch->masked = b * masks;
    make_tokens(synthetic, model, length, &random);
    int32_t *starts = new_array(synthetic, b + 1), *nsp = new_array(synthetic, b);
    int32_t *rows = new_array(synthetic, batch->masked), *labels = new_array(synthetic, batch->masked);
    int64_t *numbers = arena_alloc(&synthetic->arena, (size_t)b * sizeof *numbers);
    for (int64_t s = 0; s < b; s++) {
        starts[s + 1] = (int32_t)((s + 1) * length);
        nsp[s] = (int32_t)(s % 2);
        numbers[s] = s;
        for (int64_t m = 0; m < masks; m++) {
            rows[s * masks + m] = (int32_t)(s * length + m * length / masks);
            labels[s * masks + m] = random_id(&random, model);
        }
    }
    batch->starts = starts;
    batch->nsp_labels = nsp;
    batch->masked_rows = rows;
    batch->masked_labels = labels;
    batch->sequence_numbers = numbers;
    synthetic->step = (struct step_data){.micro_batches = 1,
                                         .batches = batch,
                                         .sequences = batch->sequences,
                                         .tokens = batch->tokens,
                                         .masked = batch->masked};
}

void synthetic_free(struct synthetic *synthetic) { arena_free(&synthetic->arena); }
