/* What a graph moves and computes, against hand calculation on a small one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "graph/account.h"

enum { T = 300, I = 32, U = 128 };

/* Layer 0: y = x w^T + b, and the gradients of both; outside of it a second bias, a second contribution to its
 * gradient, and an update. */
static struct graph *small_graph(void) {
    struct sizes sizes = {0};
    sizes_set_ragged(&sizes, DIM_T, T);
    sizes_set(&sizes, DIM_I, I);
    sizes_set(&sizes, DIM_U, U);
    struct graph *g = graph_new(BF16, &sizes);
    int w = graph_parameter(g, "ui", INIT_NORMAL, true, "w"), b = graph_parameter(g, "u", INIT_ZERO, false, "b");
    graph_close_parameters(g);
    int x = graph_tensor(g, TENSOR_INPUT, BF16, "ti", "x"), y[3], dw = g->parameters[w].gradient;
    int db = g->parameters[b].gradient, partial, norm;
    for (int i = 0; i < 3; i++)
        y[i] = graph_tensor(g, TENSOR_ACTIVATION, BF16, "tu", "y%d", i);
    graph_node(g, OP_linear, PASS_FORWARD, 0, (int[]){x, g->parameters[w].weight}, &y[0]);
    graph_node(g, OP_bias, PASS_FORWARD, 0, (int[]){y[0], g->parameters[b].weight}, &y[1]);
    graph_node(g, OP_bias, PASS_FORWARD, -1, (int[]){y[1], g->parameters[b].weight}, &y[2]);
    graph_node(g, OP_linear_dw, PASS_BACKWARD, 0, (int[]){y[2], x}, &dw);
    graph_node(g, OP_bias_dw, PASS_BACKWARD, 0, &y[2], &db);
    graph_node(g, OP_bias_dw, PASS_BACKWARD, -1, &y[1], &db)->attr.add_always = true;
    partial = graph_tensor(g, TENSOR_ACTIVATION, F64, "z", "partial");
    norm = graph_tensor(g, TENSOR_RESULT, F64, "1", "norm");
    graph_node(g, OP_grad_norm, PASS_UPDATE, -1, &g->gradients, (int[]){partial, norm});
    return g;
}

static const struct account_row *find(const struct account *account, enum op op, enum pass pass) {
    for (int r = 0; r < account->count; r++)
        if (account->rows[r].op == op && account->rows[r].pass == pass)
            return &account->rows[r];
    fail_msg("no row %s", op_info(op)->name);
    return NULL;
}

static void test_layer(void **state) {
    (void)state;
    struct graph *g = small_graph();
    struct account account;
    account_layer(g, &g->capacity, NULL, &account);
    assert_int_equal(account.count, 4);
    const struct account_row *linear = find(&account, OP_linear, PASS_FORWARD);
    assert_int_equal(linear->count, 1);
    assert_true(linear->flop == 2.0 * T * I * U);
    assert_true(linear->bytes_in == 2.0 * (T * I + U * I) && linear->bytes_out == 2.0 * T * U);
    assert_true(linear->accumulated == 0);
    /* gradients are f32: written at first, then read too */
    const struct account_row *dw = find(&account, OP_linear_dw, PASS_BACKWARD);
    assert_true(dw->bytes_in == 2.0 * (T * U + T * I) && dw->bytes_out == 4.0 * U * I);
    assert_true(dw->accumulated == 4.0 * U * I);
    struct account_row total = account_total(&account, ACCOUNT_ALL);
    struct account_row elementwise = account_total(&account, ELEMENTWISE);
    double bias = 2.0 * 2 * T * U + 4.0 * U;
    assert_true(elementwise.bytes_in + elementwise.bytes_out == bias);
    assert_true(account_eager_bytes(&account) == total.bytes_in + total.bytes_out - bias);
    graph_free(g);
}

static void test_step(void **state) {
    (void)state;
    struct graph *g = small_graph();
    struct account account;
    account_step(g, &g->capacity, 5, NULL, &account);
    assert_int_equal(account.count, 5);
    assert_int_equal(find(&account, OP_bias, PASS_FORWARD)->count, 10);
    assert_int_equal(find(&account, OP_grad_norm, PASS_UPDATE)->count, 1);
    /* the second contribution reads the gradient in all five micro-batches, the first in four */
    const struct account_row *db = find(&account, OP_bias_dw, PASS_BACKWARD);
    assert_true(db->bytes_in == 10 * 2.0 * T * U + 9 * 4.0 * U);
    assert_true(db->bytes_out == 10 * 4.0 * U && db->accumulated == 4.0 * U);
    struct account once;
    account_step(g, &g->capacity, 1, NULL, &once);
    struct account_row five = account_total(&account, CONTRACTION), one = account_total(&once, CONTRACTION);
    assert_true(five.flop == 5 * one.flop);
    assert_true(five.bytes_in == 5 * one.bytes_in + 4 * one.accumulated);
    graph_free(g);
}

static void test_seconds(void **state) {
    (void)state;
    struct graph *g = small_graph();
    struct account account;
    const double seconds[] = {1, 2, 4, 8, 16, 32, 64};
    account_step(g, &g->capacity, 3, seconds, &account);
    assert_true(find(&account, OP_bias, PASS_FORWARD)->seconds == 3 * (2 + 4));
    assert_true(account_total(&account, ACCOUNT_ALL).seconds == 3 * 63 + 64);
    account_layer(g, &g->capacity, seconds, &account);
    assert_true(account_total(&account, ACCOUNT_ALL).seconds == 1 + 2 + 8 + 16);
    graph_free(g);
}

/* bf16 weights are written beside the master weights; f32 ones are the master weights, and are written once. */
static void test_weights_are_written_once(void **state) {
    (void)state;
    for (int compute = F32; compute <= BF16; compute++) {
        struct sizes sizes = {0};
        double in, out;
        sizes_set(&sizes, DIM_I, I);
        sizes_set(&sizes, DIM_X, 1);
        struct graph *g = graph_new(compute, &sizes);
        graph_parameter(g, "ii", INIT_NORMAL, true, "w");
        graph_close_parameters(g);
        int norm = graph_tensor(g, TENSOR_RESULT, F64, "1", "norm"), m = graph_tensor(g, TENSOR_STATE, F32, "f", "m");
        int v = graph_tensor(g, TENSOR_STATE, F32, "f", "v"), table = graph_tensor(g, TENSOR_STATE, F32, "x", "table");
        int step = graph_tensor(g, TENSOR_STATE, I64, "s", "step");
        struct node *adam = graph_node(g, OP_adam, PASS_UPDATE, -1, (int[]){g->gradients, norm, table, step},
                                       (int[]){g->master, m, v, g->weights});
        node_bytes(g, adam, &g->capacity, &in, &out);
        assert_true(out == (compute == F32 ? 12.0 : 14.0) * I * I);
        assert_true(in == 16.0 * I * I + 8 + 4 + 16);
        graph_free(g);
    }
}

static void test_names(void **state) {
    (void)state;
    assert_string_equal(op_class_name(op_info(OP_softmax)->kind), "normalization");
    assert_string_equal(op_class_name(UPDATE), "update");
    assert_string_equal(pass_name(PASS_BACKWARD), "backward");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layer), cmocka_unit_test(test_step),
                                       cmocka_unit_test(test_seconds), cmocka_unit_test(test_weights_are_written_once),
                                       cmocka_unit_test(test_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
