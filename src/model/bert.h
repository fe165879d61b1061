/* BERT, written once as a graph of unfused operators, forward and backward. The names of the configuration are those of
 * HuggingFace's BertConfig. */
#ifndef BERTH_MODEL_BERT_H
#define BERTH_MODEL_BERT_H

#include "graph/graph.h"

struct bert_config {
    int64_t vocab_size, hidden_size, num_hidden_layers, num_attention_heads, intermediate_size;
    int64_t max_position_embeddings, type_vocab_size;
    enum activation hidden_act;
    double hidden_dropout_prob, attention_probs_dropout_prob, layer_norm_eps, initializer_range;
    bool nsp; /* next sentence prediction: pooler, NSP head and loss; false: MLM only, BertForMaskedLM */
};

/* The largest micro-batch that the graph is planned for. */
struct bert_shape {
    int64_t sequences, seq_len, max_predictions;
    int64_t short_sequences; /* the same tokens and masks may stand in so many shorter sequences; 0: `sequences` */
};

/* Tensors that the trainer feeds and reads. */
struct bert_tensors {
    /* inputs of a micro-batch; t, m, b entries */
    int ids, positions, types;                  /* [t] i32 */
    int word_order, position_order, type_order; /* [t] i32: rows sorted (stably) by ids, positions, types */
    int masked_rows, masked_labels;             /* [m] i32 */
    int first_rows, nsp_labels;                 /* [b] i32: rows of [CLS]; -1 without NSP */
    int attention_mask;                         /* [t] f32: 0, as there is no padding; never uploaded */
    /* inputs of a step: 1/M and 1/B of the global batch (0 where a count is 0) */
    int mlm_scale, nsp_scale; /* [1] f32; nsp_scale -1 without NSP */
    /* results of a step: [sum of losses, number of right predictions] over its micro-batches */
    int mlm_sums, nsp_sums;     /* [s] f64; nsp_sums -1 without NSP */
    int mlm_logits, nsp_logits; /* [m,v], [b,n] activations, for tests */
};

/* Parameters and operators of passes forward and backward. BAD_INPUT if the configuration is impossible. */
status bert_build(const struct bert_config *config, const struct bert_shape *shape, enum dtype compute,
                  struct graph **out, struct bert_tensors *tensors);

/* Initial value of a parameter (HuggingFace's file_rows x columns, padding rows zero): N(0, initializer_range)
 * truncated at two standard deviations, 0 or 1. A pure function of seed and name. `values` holds rows x columns. */
void bert_init_parameter(const struct bert_config *config, const struct parameter *parameter, uint64_t seed,
                         float *values);

/* Model flop of one sequence, forward and backward: 6 * encoder weights * length + 12 L h length^2 + heads over the
 * masked positions. */
double bert_flop(const struct bert_config *config, int64_t length, int64_t masked);

#endif
