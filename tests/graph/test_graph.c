/* The graph's own promises: the verifier refuses what op.def forbids, no two live activations share memory, counts of
 * flop and bytes agree with hand calculation. The graphs are small chains made here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "graph/graph.h"
#include "graph/plan.h"

static struct sizes small_sizes(void) {
    struct sizes sizes = {0};
    sizes_set_ragged(&sizes, DIM_T, 300);
    sizes_set_ragged(&sizes, DIM_M, 10);
    sizes_set_ragged(&sizes, DIM_B, 4);
    sizes_set_ragged(&sizes, DIM_E, 30000);
    sizes_set(&sizes, DIM_I, 32);
    sizes_set(&sizes, DIM_U, 128);
    sizes_set(&sizes, DIM_V, 192);
    sizes_set(&sizes, DIM_L, 128);
    sizes_set(&sizes, DIM_H, 4);
    return sizes;
}

static struct graph *small_graph(void) {
    struct sizes sizes = small_sizes();
    return graph_new(F32, &sizes);
}

static int act_tensor(struct graph *g, const char *letters, const char *name) {
    return graph_tensor(g, TENSOR_ACTIVATION, F32, letters, "%s", name);
}

static void test_ragged_rounding(void **state) {
    (void)state;
    struct sizes sizes = small_sizes();
    assert_int_equal(sizes.padded[DIM_T], 512);
    assert_int_equal(sizes.padded[DIM_M], 64);
    assert_int_equal(sizes.padded[DIM_B], 64);
    assert_int_equal(sizes.padded[DIM_E], 30000);
    sizes_set_ragged(&sizes, DIM_T, 256);
    assert_int_equal(sizes.padded[DIM_T], 256);
    sizes_set_ragged(&sizes, DIM_M, 0);
    assert_int_equal(sizes.padded[DIM_M], 0);
}

static void test_op_table_parses(void **state) {
    (void)state;
    for (int op = 0; op < OP_COUNT; op++) {
        const struct op_info *info = op_info(op);
        assert_true(info->inputs >= 1 && info->outputs >= 1);
        assert_true(info->in_place < info->inputs);
    }
    const struct op_info *gather = op_info(OP_gather);
    assert_string_equal(gather->in[0].letters, "nc");
    assert_true(gather->in[0].rows_only);
    assert_true(gather->in[1].fixed_dtype && gather->in[1].dtype == I32);
    assert_true(op_info(OP_adam)->out[0].updated);
    assert_true(op_info(OP_linear_dw)->out[0].accumulated);
}

static void test_verifier_accepts_a_chain(void **state) {
    (void)state;
    struct graph *g = small_graph();
    int w = graph_parameter(g, "ui", INIT_NORMAL, true, "w");
    graph_close_parameters(g);
    int x = graph_tensor(g, TENSOR_INPUT, F32, "ti", "x"), y = act_tensor(g, "tu", "y");
    graph_node(g, OP_linear, PASS_FORWARD, -1, (int[]){x, g->parameters[w].weight}, &y);
    assert_int_equal(graph_verify(g), OK);
    graph_free(g);
}

static void expect_refusal(struct graph *g, const char *word) {
    assert_int_equal(graph_verify(g), FAILED);
    if (!strstr(status_message(), word))
        fail_msg("message '%s' does not say '%s'", status_message(), word);
    graph_free(g);
}

static void test_verifier_refuses(void **state) {
    (void)state;
    struct graph *g = small_graph();
    int a = act_tensor(g, "ti", "a"), b = graph_tensor(g, TENSOR_INPUT, F32, "ti", "b"), c = act_tensor(g, "ti", "c");
    graph_node(g, OP_add, PASS_FORWARD, -1, (int[]){a, b}, &c);
    expect_refusal(g, "before anything produced it");

    g = small_graph();
    a = graph_tensor(g, TENSOR_INPUT, F32, "ti", "a"), b = graph_tensor(g, TENSOR_INPUT, F32, "tu", "b");
    c = act_tensor(g, "ti", "c");
    graph_node(g, OP_add, PASS_FORWARD, -1, (int[]){a, b}, &c);
    expect_refusal(g, "a dim differs");

    g = small_graph();
    a = graph_tensor(g, TENSOR_INPUT, BF16, "ti", "a"), c = act_tensor(g, "ti", "c");
    graph_node(g, OP_add, PASS_FORWARD, -1, (int[]){a, a}, &c);
    expect_refusal(g, "f32");

    g = small_graph();
    a = graph_tensor(g, TENSOR_INPUT, F32, "ti", "a"), c = act_tensor(g, "ti", "c");
    graph_node(g, OP_add, PASS_FORWARD, -1, (int[]){a, a}, &c);
    graph_node(g, OP_add, PASS_FORWARD, -1, (int[]){a, a}, &c);
    expect_refusal(g, "two producers");

    g = small_graph();
    graph_parameter(g, "i", INIT_ZERO, false, "bias");
    int other = graph_parameter(g, "i", INIT_ZERO, false, "forgotten");
    (void)other;
    graph_close_parameters(g);
    a = graph_tensor(g, TENSOR_INPUT, F32, "ti", "a");
    graph_node(g, OP_bias_dw, PASS_BACKWARD, -1, &a, &g->parameters[0].gradient);
    expect_refusal(g, "grad.forgotten");
}

enum beside_case { ALL_MARKED, ONE_READ_BY_ANOTHER, NO_WHOLE_PACKS };

/* q, k and v of OP_qkv, which OP_attention reads. */
static void check_beside(enum beside_case which) {
    struct sizes sizes = small_sizes();
    sizes_set(&sizes, DIM_I, which == NO_WHOLE_PACKS ? 36 : 32);
    struct graph *g = graph_new(F32, &sizes);
    int in[7] = {graph_tensor(g, TENSOR_INPUT, F32, "ti", "x")}, out[3], y[2], again[2];
    int sum = act_tensor(g, "ti", "sum"), later = act_tensor(g, "ti", "later");
    for (int i = 1; i < 7; i++) {
        int parameter = graph_parameter(g, i < 4 ? "ii" : "i", INIT_NORMAL, true, "p%d", i);
        in[i] = g->parameters[parameter].weight;
    }
    graph_close_parameters(g);
    for (int i = 0; i < 3; i++)
        out[i] = graph_tensor(g, TENSOR_ACTIVATION, F32, "ti", "%c", "qkv"[i]);
    y[0] = act_tensor(g, "ti", "y"), y[1] = act_tensor(g, "th", "lse");
    again[0] = act_tensor(g, "ti", "y again"), again[1] = act_tensor(g, "th", "lse again");
    graph_node(g, OP_qkv, PASS_FORWARD, 0, in, out);
    graph_node(g, OP_attention, PASS_FORWARD, 0, out, y);
    graph_node(g, OP_add, PASS_FORWARD, 0, (int[]){y[0], which == ONE_READ_BY_ANOTHER ? out[1] : in[0]}, &sum);
    graph_node(g, OP_act, PASS_FORWARD, 0, &sum, &later);
    graph_node(g, OP_attention, PASS_FORWARD, 0, (int[]){out[2], out[2], out[2]}, again); /* v outlives q and k */
    assert_int_equal(graph_verify(g), OK);
    struct plan plan;
    assert_int_equal(plan_make(g, &plan), OK);
    int64_t row = sizes.n[DIM_I] * 4;
    for (int i = 0; i < 3; i++) {
        int64_t distance = plan.offset[out[i]] - plan.offset[out[0]];
        assert_int_equal(plan.beside[out[i]], which == ALL_MARKED ? 3 : 1);
        if (which == ALL_MARKED)
            assert_int_equal(distance, i * row);
        else if (i > 0)
            assert_true(distance >= 512 * row || distance <= -512 * row);
        int64_t from_y = plan.offset[y[0]] - plan.offset[out[0]]; /* is alive with them */
        assert_true(from_y >= (which == ALL_MARKED ? 3 : 1) * 512 * row || from_y <= -512 * row);
    }
    int64_t from_later = plan.offset[later] - plan.offset[out[which == ALL_MARKED ? 0 : 2]]; /* alive with v */
    assert_true(from_later >= (which == ALL_MARKED ? 3 : 1) * 512 * row || from_later <= -512 * row);
    plan_free(&plan);
    graph_free(g);
}

static void test_columns_of_one_matrix(void **state) {
    (void)state;
    for (enum beside_case which = ALL_MARKED; which <= NO_WHOLE_PACKS; which++)
        check_beside(which);
}

/* A chain with branches: offsets of tensors alive together must not overlap; in-place chains may. */
static void test_plan_never_overlaps(void **state) {
    (void)state;
    enum { STEPS = 40 };
    struct graph *g = small_graph();
    int x = graph_tensor(g, TENSOR_INPUT, F32, "ti", "x"), values[STEPS + 1] = {x};
    for (int i = 1; i <= STEPS; i++) {
        values[i] = graph_tensor(g, TENSOR_ACTIVATION, F32, "ti", "v%d", i);
        int far = values[i > 7 && i % 3 == 0 ? i - 7 : i - 1];
        if (i % 2) /* not an in-place operator */
            graph_node(g, OP_act, PASS_FORWARD, -1, &far, &values[i]);
        else
            graph_node(g, OP_add, PASS_FORWARD, -1, (int[]){values[i - 1], far}, &values[i]);
    }
    assert_int_equal(graph_verify(g), OK);
    struct plan plan;
    assert_int_equal(plan_make(g, &plan), OK);
    int64_t bytes = 512 * 32 * 4, shared = 0;
    for (int a = 1; a <= STEPS; a++)
        for (int b = a + 1; b <= STEPS; b++) {
            int ta = values[a], tb = values[b];
            bool overlap = plan.offset[ta] < plan.offset[tb] + bytes && plan.offset[tb] < plan.offset[ta] + bytes;
            bool hand_over =
                g->nodes[b - 1].op == OP_add && plan.first[tb] == b - 1; /* b may take over a dying input */
            if (overlap && plan.last[ta] >= plan.first[tb] && !(hand_over && plan.offset[ta] == plan.offset[tb]))
                fail_msg("v%d and v%d are alive together and overlap", a, b);
            shared += overlap;
        }
    assert_true(shared > 0); /* memory is reused at all */
    assert_true(plan.arena_bytes >= plan.live_bytes);
    assert_true((double)plan.arena_bytes <= 1.1 * (double)plan.live_bytes);
    plan_free(&plan);
    graph_free(g);
}

static void test_counts(void **state) {
    (void)state;
    struct graph *g = small_graph();
    int w = graph_parameter(g, "ui", INIT_NORMAL, true, "w"),
        table = graph_parameter(g, "vi", INIT_NORMAL, true, "table");
    graph_close_parameters(g);
    int x = graph_tensor(g, TENSOR_INPUT, F32, "ti", "x"), ids = graph_tensor(g, TENSOR_INPUT, I32, "t", "ids");
    int y = act_tensor(g, "tu", "y"), e = act_tensor(g, "ti", "e"), s = act_tensor(g, "he", "s");
    struct node *linear = graph_node(g, OP_linear, PASS_FORWARD, -1, (int[]){x, g->parameters[w].weight}, &y);
    double in, out;
    node_bytes(g, linear, &g->capacity, &in, &out);
    assert_true(in == 4.0 * (300 * 32 + 128 * 32) && out == 4.0 * 300 * 128);
    assert_true(node_flop(g, linear, &g->capacity) == 2.0 * 300 * 128 * 32);
    struct node *gather = graph_node(g, OP_gather, PASS_FORWARD, -1, (int[]){g->parameters[table].weight, ids}, &e);
    node_bytes(g, gather, &g->capacity, &in, &out);
    assert_true(in == 4.0 * (300 * 32 + 300) && out == 4.0 * 300 * 32);
    struct node *scores = graph_node(g, OP_attn_scores, PASS_FORWARD, -1, (int[]){e, e}, &s);
    assert_true(node_flop(g, scores, &g->capacity) == 2.0 * 30000 * 32);
    graph_free(g);
}

static void test_parameters_in_chunks(void **state) {
    (void)state;
    struct graph *g = small_graph();
    graph_parameter(g, "i", INIT_ZERO, false, "small");
    graph_parameter(g, "vu", INIT_NORMAL, true, "large"); /* 192 x 128 = 24,576 elements: two chunks */
    graph_close_parameters(g);
    assert_int_equal(g->chunk_count, 3);
    assert_int_equal(g->chunks[1].offset, 32);
    assert_int_equal(g->chunks[1].count, CHUNK);
    assert_int_equal(g->chunks[2].count, 24576 - CHUNK);
    assert_int_equal(g->chunks[2].parameter, 1);
    assert_int_equal(g->flat_count, 32 + 24576);
    graph_free(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ragged_rounding),
        cmocka_unit_test(test_op_table_parses),
        cmocka_unit_test(test_verifier_accepts_a_chain),
        cmocka_unit_test(test_verifier_refuses),
        cmocka_unit_test(test_columns_of_one_matrix),
        cmocka_unit_test(test_plan_never_overlaps),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_parameters_in_chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
