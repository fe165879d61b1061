/* A very small BERT whose tensors live in host memory: enough to move weights and moments to files and back. */
#ifndef BERTH_TESTS_HOST_MODEL_H
#define BERTH_TESTS_HOST_MODEL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/philox.h"
#include "train/checkpoint.h"

static inline status host_memory_new(struct backend *backend, void **out, size_t bytes, const char *what) {
    (void)backend;
    return memory_new(out, bytes, what);
}
static inline void host_memory_free(struct backend *backend, void *memory) {
    (void)backend;
    memory_free(memory);
}
static inline status host_copy(struct backend *backend, void *to, const void *from, size_t bytes) {
    (void)backend;
    memcpy(to, from, bytes);
    return OK;
}
static inline bool host_supports(const struct backend *backend, enum op op, enum dtype compute) {
    (void)backend, (void)op, (void)compute;
    return true;
}

static inline int64_t host_memory_left(const struct backend *backend) {
    (void)backend;
    return 0;
}

struct host_model {
    struct bert_config config;
    struct bert_tensors tensors;
    struct graph *graph;
    struct backend backend;
    struct checkpoint_model checkpoint;
};

/* Vocabulary of 101 entries, planned as 128: there is padding to cut and to restore. */
static inline struct bert_config small_config(bool nsp) {
    return (struct bert_config){.vocab_size = 101,
                                .hidden_size = 8,
                                .num_hidden_layers = 2,
                                .num_attention_heads = 2,
                                .intermediate_size = 24,
                                .max_position_embeddings = 16,
                                .type_vocab_size = 2,
                                .hidden_act = ACT_GELU_NEW,
                                .hidden_dropout_prob = 0.1,
                                .attention_probs_dropout_prob = 0.2,
                                .layer_norm_eps = 1e-12,
                                .initializer_range = 0.02,
                                .nsp = nsp};
}

static inline void host_model_new(struct host_model *model, const struct bert_config *config) {
    const struct bert_shape shape = {.sequences = 2, .seq_len = 16, .max_predictions = 4};
    *model = (struct host_model){.config = *config};
    model->backend = (struct backend){.name = "host",
                                      .memory_new = host_memory_new,
                                      .memory_free = host_memory_free,
                                      .upload = host_copy,
                                      .download = host_copy,
                                      .supports = host_supports,
                                      .memory_left = host_memory_left};
    assert_int_equal(bert_build(config, &shape, F32, &model->graph, &model->tensors), OK);
    struct checkpoint_model *c = &model->checkpoint;
    c->hf = (struct hf_model){.config = &model->config, .graph = model->graph};
    c->moment1 = graph_tensor(model->graph, TENSOR_STATE, F32, "f", "m");
    c->moment2 = graph_tensor(model->graph, TENSOR_STATE, F32, "f", "v");
    if (exec_new(&c->hf.exec, model->graph, &model->backend, 1) != OK)
        fail_msg("%s", status_message());
}

static inline void host_model_free(struct host_model *model) {
    exec_free(model->checkpoint.hf.exec);
    graph_free(model->graph);
}

/* A number for every element that a checkpoint must keep: any bits but signalling NaNs, which some processors change.
 */
static inline float element(uint64_t seed, int tensor, int64_t i) {
    struct philox words = philox4x32(seed, (uint32_t)tensor, (uint32_t)i, (uint32_t)(i >> 32), 0);
    if ((words.word[0] & 0x7F800000u) == 0x7F800000u)
        words.word[0] |= 0x400000u;
    float value;
    memcpy(&value, &words.word[0], sizeof value);
    return value;
}

/* Every parameter of a flat tensor becomes element(seed, which, position), vocabulary padding zero. */
static inline void expected_slice(const struct parameter *p, uint64_t seed, int which, float *values) {
    for (int64_t i = 0; i < p->rows * p->columns; i++)
        values[i] = i < p->file_rows * p->columns ? element(seed, which, p->offset + i) : 0;
}

static inline void host_model_fill(struct host_model *model, uint64_t seed) {
    const int tensors[] = {model->graph->master, model->checkpoint.moment1, model->checkpoint.moment2};
    float *values = xcalloc((size_t)hf_scratch_count(model->graph), sizeof *values);
    for (int p = 0; p < model->graph->parameter_count; p++)
        for (int which = 0; which < 3; which++) {
            expected_slice(&model->graph->parameters[p], seed, which, values);
            assert_int_equal(exec_upload_slice(model->checkpoint.hf.exec, tensors[which], p, values), OK);
        }
    free(values);
}

/* Weights (which = 0) and moments (1, 2) are those of host_model_fill, to the bit. */
static inline void assert_filled(struct host_model *model, uint64_t seed, int first, int last) {
    const int tensors[] = {model->graph->master, model->checkpoint.moment1, model->checkpoint.moment2};
    size_t count = (size_t)hf_scratch_count(model->graph);
    float *values = xcalloc(count, sizeof *values), *expected = xcalloc(count, sizeof *expected);
    for (int p = 0; p < model->graph->parameter_count; p++)
        for (int which = first; which <= last; which++) {
            const struct parameter *parameter = &model->graph->parameters[p];
            expected_slice(parameter, seed, which, expected);
            assert_int_equal(exec_download_slice(model->checkpoint.hf.exec, tensors[which], p, values), OK);
            if (memcmp(values, expected, (size_t)(parameter->rows * parameter->columns) * sizeof *values) != 0)
                fail_msg("%s of flat tensor %d differs", parameter->name, which);
        }
    free(values);
    free(expected);
}

/* The message of the last failure holds `part`. */
static inline void assert_message(const char *part) {
    if (!strstr(status_message(), part))
        fail_msg("expected \"%s\" in: %s", part, status_message());
}

#endif
