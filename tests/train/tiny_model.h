/* A BERT that trains in no time, and ragged micro-batches for it. */
#ifndef BERTH_TESTS_TRAIN_TINY_MODEL_H
#define BERTH_TESTS_TRAIN_TINY_MODEL_H

#include "base/philox.h"
#include "train/network.h"

enum { VOCAB = 90, SEQUENCES = 6, LONGEST = 24, MASKS = 4, TOKENS = SEQUENCES * LONGEST };

static const struct bert_config tiny = {.vocab_size = VOCAB,
                                        .hidden_size = 32,
                                        .num_hidden_layers = 2,
                                        .num_attention_heads = 4,
                                        .intermediate_size = 64,
                                        .max_position_embeddings = 32,
                                        .type_vocab_size = 2,
                                        .hidden_act = ACT_GELU,
                                        .hidden_dropout_prob = 0.1,
                                        .attention_probs_dropout_prob = 0.1,
                                        .layer_norm_eps = 1e-12,
                                        .initializer_range = 0.1,
                                        .nsp = true};
static const struct bert_shape shape = {.sequences = SEQUENCES, .seq_len = LONGEST, .max_predictions = MASKS};

struct data {
    int32_t starts[SEQUENCES + 1], ids[TOKENS], positions[TOKENS], types[TOKENS], rows[SEQUENCES * MASKS];
    int32_t labels[SEQUENCES * MASKS], nsp[SEQUENCES];
    int64_t numbers[SEQUENCES];
};

/* Sequences from..to of a fixed random set with ragged lengths, as a micro-batch. Number 0 has no mask, number 1 is one
 * token, number 2 as long as can be. */
static inline struct batch make_batch(struct data *data, int from, int to) {
    int32_t token = 0, masked = 0;
    for (int s = from; s < to; s++) {
        struct random_stream random = random_open(5, RANDOM_TEST, (uint64_t)s);
        int32_t length = (int32_t)(3 + random_below(&random, LONGEST - 3)), masks = s % (MASKS + 1);
        length = s == 1 ? 1 : s == 2 ? LONGEST : length;
        data->starts[s - from] = token;
        data->numbers[s - from] = 1000 + s;
        data->nsp[s - from] = (int32_t)random_below(&random, 2);
        for (int32_t p = 0; p < length; p++) {
            if (p > 0 && masks > 0 && p % 2 == 1) {
                data->rows[masked] = token;
                data->labels[masked++] = (int32_t)random_below(&random, VOCAB);
                masks--;
            }
            data->ids[token] = (int32_t)random_below(&random, VOCAB);
            data->positions[token] = p;
            data->types[token++] = p > length / 2;
        }
    }
    data->starts[to - from] = token;
    return (struct batch){.sequences = to - from,
                          .tokens = token,
                          .masked = masked,
                          .starts = data->starts,
                          .ids = data->ids,
                          .positions = data->positions,
                          .types = data->types,
                          .masked_rows = data->rows,
                          .masked_labels = data->labels,
                          .nsp_labels = data->nsp,
                          .sequence_numbers = data->numbers};
}

#endif
