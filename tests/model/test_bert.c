/* The graph of BERT as a whole: verified, with HuggingFace's parameters, planned close to the live set, flop as
 * published. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "graph/checkpoint.h"
#include "graph/fuse.h"
#include "graph/plan.h"
#include "model/bert.h"

static const struct bert_config base = {.vocab_size = 30522,
                                        .hidden_size = 768,
                                        .num_hidden_layers = 12,
                                        .num_attention_heads = 12,
                                        .intermediate_size = 3072,
                                        .max_position_embeddings = 512,
                                        .type_vocab_size = 2,
                                        .hidden_act = ACT_GELU,
                                        .hidden_dropout_prob = 0.1,
                                        .attention_probs_dropout_prob = 0.1,
                                        .layer_norm_eps = 1e-12,
                                        .initializer_range = 0.02,
                                        .nsp = true};
static const struct bert_shape shape = {.sequences = 8, .seq_len = 128, .max_predictions = 20};

static struct graph *build(const struct bert_config *config, enum dtype compute, struct bert_tensors *tensors) {
    struct graph *graph;
    assert_int_equal(bert_build(config, &shape, compute, &graph, tensors), OK);
    return graph;
}

static void test_every_variant_verifies(void **state) {
    (void)state;
    for (int variant = 0; variant < 8; variant++) {
        struct bert_config config = base;
        config.nsp = variant & 1;
        config.hidden_dropout_prob = config.attention_probs_dropout_prob = variant & 2 ? 0.1 : 0;
        struct bert_tensors tensors;
        struct graph *graph = build(&config, variant & 4 ? BF16 : F32, &tensors);
        if (graph_verify(graph) != OK)
            fail_msg("variant %d: %s", variant, status_message());
        assert_int_equal(tensors.nsp_sums >= 0, config.nsp);
        graph_free(graph);
    }
}

static void test_parameters(void **state) {
    (void)state;
    struct bert_tensors tensors;
    struct graph *graph = build(&base, F32, &tensors);
    int64_t count = 0;
    for (int p = 0; p < graph->parameter_count; p++)
        count += graph->parameters[p].file_rows * graph->parameters[p].columns;
    assert_int_equal(count, 110106428); /* transformers: BertForPreTraining(BertConfig()).num_parameters() */
    assert_int_equal(graph->parameter_count, 5 + 12 * 16 + 2 + 5 + 2);
    int q = graph_find_parameter(graph, "bert.encoder.layer.3.attention.self.query.weight");
    assert_true(q >= 0);
    /* stacked: query, key and value weights side by side */
    assert_int_equal(graph->parameters[q + 1].offset, graph->parameters[q].offset + 768 * 768);
    assert_int_equal(graph->parameters[q + 2].offset, graph->parameters[q].offset + 2 * 768 * 768);
    assert_true(graph->parameters[q].decay && !graph->parameters[q + 3].decay);
    int word = graph_find_parameter(graph, "bert.embeddings.word_embeddings.weight");
    assert_int_equal(graph->parameters[word].rows, 30528);
    assert_int_equal(graph->parameters[word].file_rows, 30522);
    graph_free(graph);
}

static void test_plan_is_close_to_the_live_set(void **state) {
    (void)state;
    for (int variant = 0; variant < 2 * FUSION_COUNT; variant++) {
        struct bert_tensors tensors;
        struct graph *graph = build(&base, BF16, &tensors);
        struct plan plan;
        enum fusion level = variant / 2;
        assert_int_equal(graph_fuse(graph, level, false, NULL), OK);
        if (variant % 2)
            graph_checkpoint(graph);
        assert_int_equal(plan_make(graph, &plan), OK);
        print_message("%s%s: arena %.1f MB, live %.1f MB\n", fusion_name(level), variant % 2 ? ", checkpointing" : "",
                      (double)plan.arena_bytes / 1e6, (double)plan.live_bytes / 1e6);
        assert_true(plan.arena_bytes >= plan.live_bytes);
        assert_true((double)plan.arena_bytes <= 1.1 * (double)plan.live_bytes);
        plan_free(&plan);
        graph_free(graph);
    }
}

/* Bytes of one layer, forward and backward, in units of t = tokens · hidden · 2 bytes: BERT-large, 8 sequences of 512,
 * bf16. The yardsticks: some 356 t unfused, 258 t with the paper's kernels, at most 100 t with all that can be fused.
 */
static void test_bytes_of_a_layer(void **state) {
    (void)state;
    static const double least[FUSION_COUNT] = {338, 200, 93}, most[FUSION_COUNT] = {374, 258, 100};
    struct bert_config large = base;
    large.hidden_size = 1024, large.num_hidden_layers = 2, large.num_attention_heads = 16;
    large.intermediate_size = 4096, large.hidden_act = ACT_GELU_NEW;
    struct bert_shape long_shape = {.sequences = 8, .seq_len = 512, .max_predictions = 80};
    for (enum fusion level = FUSION_NONE; level < FUSION_COUNT; level++) {
        struct bert_tensors tensors;
        struct graph *graph;
        double bytes = 0, in, out;
        assert_int_equal(bert_build(&large, &long_shape, BF16, &graph, &tensors), OK);
        assert_int_equal(graph_fuse(graph, level, false, NULL), OK);
        for (int n = 0; n < graph->node_count; n++)
            if (graph->nodes[n].layer == 0) {
                node_bytes(graph, &graph->nodes[n], &graph->capacity, &in, &out);
                bytes += in + out;
            }
        print_message("%s: %.1f t\n", fusion_name(level), bytes / (4096.0 * 1024 * 2));
        assert_true(bytes > least[level] * 4096 * 1024 * 2 && bytes < most[level] * 4096 * 1024 * 2);
        graph_free(graph);
    }
}

static void test_initial_weights(void **state) {
    (void)state;
    struct parameter parameter = {.name = "w", .rows = 192, .file_rows = 190, .columns = 100, .init = INIT_NORMAL};
    static float a[19200], b[19200];
    bert_init_parameter(&base, &parameter, 1, a);
    bert_init_parameter(&base, &parameter, 1, b);
    assert_memory_equal(a, b, sizeof a);
    double sum = 0, squares = 0, most = 0;
    for (int i = 0; i < 19000; i++) {
        sum += a[i];
        squares += (double)a[i] * a[i];
        most = fmax(most, fabsf(a[i]));
    }
    for (int i = 19000; i < 19200; i++)
        assert_true(a[i] == 0);
    assert_true(fabs(sum / 19000) < 0.02 * 4 / sqrt(19000));
    /* a normal truncated at two deviations has 0.87963 of its deviation left */
    assert_true(fabs(sqrt(squares / 19000) / 0.02 - 0.87963) < 0.02);
    assert_true(most <= 0.04 + 1e-7 && most > 0.039);
    parameter.name = "other";
    bert_init_parameter(&base, &parameter, 1, b);
    assert_memory_not_equal(a, b, sizeof a);
}

static void test_flop(void **state) {
    (void)state;
    struct bert_config large = base;
    large.hidden_size = 1024, large.num_hidden_layers = 24, large.num_attention_heads = 16,
    large.intermediate_size = 4096;
    assert_true(fabs(bert_flop(&large, 128, 20) / 1e9 - 240.6) < 0.1);
    assert_true(fabs(bert_flop(&large, 512, 80) / 1e9 - 1020.5) < 0.1);
    assert_true(fabs(bert_flop(&base, 128, 20) / 1e9 - 69.9) < 0.1);
    assert_true(fabs(bert_flop(&base, 512, 80) / 1e9 - 301.5) < 0.1);
}

static void test_impossible_configurations(void **state) {
    (void)state;
    struct bert_config config = base;
    struct bert_tensors tensors;
    struct graph *graph;
    config.num_attention_heads = 7;
    assert_int_equal(bert_build(&config, &shape, F32, &graph, &tensors), BAD_INPUT);
    assert_non_null(strstr(status_message(), "model.num_attention_heads = 7"));
    config = base;
    config.max_position_embeddings = 64;
    assert_int_equal(bert_build(&config, &shape, F32, &graph, &tensors), BAD_INPUT);
    assert_non_null(strstr(status_message(), "max_position_embeddings = 64"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_variant_verifies),
        cmocka_unit_test(test_parameters),
        cmocka_unit_test(test_plan_is_close_to_the_live_set),
        cmocka_unit_test(test_bytes_of_a_layer),
        cmocka_unit_test(test_initial_weights),
        cmocka_unit_test(test_flop),
        cmocka_unit_test(test_impossible_configurations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
