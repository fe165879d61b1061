/* The whole network on synthetic batches: gradients against finite differences of the loss (dropout on: so the backward
 * pass must use the forward pass's masks), independence of how a step is cut, and that it learns. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../test_backend.h"
#include "dist/dist.h"
#include "tiny_model.h"

static bool checkpoint; /* how networks are opened */

static struct network open_fused(const struct bert_config *config, enum dtype compute, enum optim_name name,
                                 enum fusion fusion, const char *without) {
    struct network network;
    struct network_form form = {.compute = compute, .fusion = fusion, .checkpoint = checkpoint, .without = without};
    struct backend *backend;
    struct optim_config optim = {.name = name,
                                 .beta1 = 0.9,
                                 .beta2 = 0.999,
                                 .epsilon = 1e-6,
                                 .clip = 1,
                                 .weight_decay = 0.01,
                                 .bias_correction = true,
                                 .loss_scale = 1024,
                                 .growth_interval = 20};
    assert_int_equal(test_backend_new(&backend), OK);
    status code = network_new(&network, config, &shape, &form, &optim, 200, 7, backend, comm_self());
    if (code != OK)
        fail_msg("%s", status_message());
    assert_int_equal(network_init_weights(&network, 3), OK);
    float rates[200];
    for (int i = 0; i < 200; i++)
        rates[i] = 3e-3f;
    assert_int_equal(exec_upload(network.exec, network.optim.lr_table, rates, 200), OK);
    return network;
}

static struct network open_network(const struct bert_config *config, enum dtype compute, enum optim_name name) {
    return open_fused(config, compute, name, FUSION_FULL, NULL);
}

static double loss_of(struct network *network, const struct batch *batch, int passes) {
    double mlm[2], nsp[2] = {0};
    assert_int_equal(feed_scales(network->feed, batch->masked, batch->sequences), OK);
    assert_int_equal(feed_batch(network->feed, batch), OK);
    if (exec_run(network->exec, passes, true, false) != OK)
        fail_msg("%s", status_message());
    assert_int_equal(exec_download(network->exec, network->io.mlm_sums, mlm, 2), OK);
    if (network->config.nsp)
        assert_int_equal(exec_download(network->exec, network->io.nsp_sums, nsp, 2), OK);
    return mlm[0] / (double)batch->masked + nsp[0] / (double)batch->sequences;
}

/* Along a random direction in each parameter: (loss(w + h d) - loss(w - h d)) / 2h against g . d */
static void check_gradients(const struct bert_config *config) {
    struct network network = open_network(config, F32, OPTIM_ADAMW);
    struct data data;
    struct batch batch = make_batch(&data, 0, SEQUENCES);
    loss_of(&network, &batch, PASS_FORWARD | PASS_BACKWARD);
    for (int p = 0; p < network.graph->parameter_count; p++) {
        const struct parameter *parameter = &network.graph->parameters[p];
        int64_t n = parameter->rows * parameter->columns, used = parameter->file_rows * parameter->columns;
        float *w = calloc((size_t)n, 4), *moved = calloc((size_t)n, 4), *g = calloc((size_t)n, 4),
              *d = calloc((size_t)n, 4);
        exec_download_slice(network.exec, network.graph->master, p, w);
        exec_download_slice(network.exec, network.graph->gradients, p, g);
        struct random_stream random = random_open(9, RANDOM_TEST, (uint64_t)p);
        double dot = 0, norm = 0, size = 0;
        for (int64_t i = 0; i < used; i++)
            d[i] = (float)(random_normal(&random) * 0.5) +
                   (g[i] > 0 ? 0.5f : -0.5f); /* a slope that stands out of the noise */
        for (int64_t i = 0; i < n; i++) {
            dot += (double)g[i] * d[i];
            norm += (double)g[i] * g[i];
            size += (double)d[i] * d[i];
        }
        double h = 2e-2 / sqrt(size), losses[2];
        for (int side = 0; side < 2; side++) {
            for (int64_t i = 0; i < n; i++)
                moved[i] = w[i] + (float)(side ? -h : h) * d[i];
            exec_upload_slice(network.exec, network.graph->master, p, moved);
            losses[side] = loss_of(&network, &batch, PASS_FORWARD);
        }
        exec_upload_slice(network.exec, network.graph->master, p, w);
        double numeric = (losses[0] - losses[1]) / (2 * h);
        /* f32 losses carry noise of about 1e-6 over a step of 2e-2, and the curvature adds a relative part */
        double bound = 3e-4 * sqrt(size) + 0.02 * fabs(dot);
        if (!(fabs(numeric - dot) <= bound))
            fail_msg("%s: numeric %g, analytic %g (norm %g)", parameter->name, numeric, dot, sqrt(norm));
        for (int64_t i = used; i < n; i++)
            assert_true(g[i] == 0); /* vocabulary padding */
        free(w), free(moved), free(g), free(d);
    }
    network_free(&network);
}

static void test_gradients_with_dropout(void **state) {
    (void)state;
    check_gradients(&tiny);
}

static void test_gradients_mlm_only(void **state) {
    (void)state;
    struct bert_config config = tiny;
    config.nsp = false;
    config.hidden_act = ACT_GELU_NEW;
    config.hidden_dropout_prob = 0;
    check_gradients(&config);
}

/* After a step whose loss was scaled by `scale`. */
static float *all_gradients(struct network *network, double scale) {
    float *g = calloc((size_t)network->graph->flat_count, sizeof *g);
    exec_download(network->exec, network->graph->gradients, g, network->graph->flat_count);
    for (int64_t i = 0; i < network->graph->flat_count && !isnan(scale); i++)
        g[i] /= (float)scale;
    return g;
}

/* One micro-batch of six, or micro-batches of 1, 3 and 2 sequences: the same loss and gradients but for rounding. */
static void test_cut_does_not_matter(void **state) {
    (void)state;
    struct network network = open_network(&tiny, F32, OPTIM_ADAMW);
    struct data data, parts[3];
    struct batch whole = make_batch(&data, 0, SEQUENCES);
    struct batch cut[3] = {make_batch(&parts[0], 0, 1), make_batch(&parts[1], 1, 4),
                           make_batch(&parts[2], 4, SEQUENCES)};
    struct step_data steps[2] = {{.micro_batches = 1,
                                  .batches = &whole,
                                  .sequences = whole.sequences,
                                  .tokens = whole.tokens,
                                  .masked = whole.masked},
                                 {.micro_batches = 3,
                                  .batches = cut,
                                  .sequences = whole.sequences,
                                  .tokens = whole.tokens,
                                  .masked = whole.masked}};
    struct step_result results[2];
    float *g[2];
    for (int i = 0; i < 2; i++) {
        network_init_weights(&network, 3);
        if (network_step(&network, &steps[i], &results[i]) != OK)
            fail_msg("%s", status_message());
        g[i] = all_gradients(&network, NAN);
    }
    double error = 0, norm = 0;
    for (int64_t i = 0; i < network.graph->flat_count; i++) {
        error += ((double)g[0][i] - g[1][i]) * ((double)g[0][i] - g[1][i]);
        norm += (double)g[0][i] * g[0][i];
    }
    assert_true(norm > 0 && sqrt(error / norm) < 1e-6);
    assert_true(fabs(results[0].loss - results[1].loss) < 1e-6);
    assert_true(fabs(results[0].grad_norm / sqrt(norm) - 1) < 1e-6);
    assert_int_equal(results[0].sequences, SEQUENCES);
    assert_int_equal(results[1].step, 2);
    free(g[0]), free(g[1]);
    network_free(&network);
}

/* No masked token anywhere: MLM loss 0 and finite gradients. */
static void test_no_masked_token(void **state) {
    (void)state;
    struct network network = open_network(&tiny, F32, OPTIM_LAMB);
    struct data data;
    struct batch batch = make_batch(&data, 0, 1); /* sequence 0 has no mask */
    assert_int_equal(batch.masked, 0);
    struct step_data step = {.micro_batches = 1, .batches = &batch, .sequences = 1, .tokens = batch.tokens};
    struct step_result result;
    assert_int_equal(network_step(&network, &step, &result), OK);
    assert_true(result.mlm_loss == 0 && isfinite(result.grad_norm) && result.grad_norm > 0 && !result.skipped);
    network_free(&network);
}

static void *gradients_of(const struct network *network) {
    int64_t count = network->graph->flat_count;
    float *gradients = malloc((size_t)count * sizeof *gradients);
    assert_int_equal(exec_download(network->exec, network->graph->gradients, gradients, count), OK);
    return gradients;
}

/* A process whose share has no masked token, or no sequence, adds nothing of an earlier step to the sums over
 * processes. */
static void test_nothing_of_the_step_before(void **state) {
    (void)state;
    static const enum dtype dtypes[] = {F32, BF16};
    static const enum fusion levels[] = {FUSION_NONE, FUSION_PAPER, FUSION_FULL};
    struct data data, other;
    struct batch batch = make_batch(&data, 0, SEQUENCES), unmasked = make_batch(&other, 0, 1);
    for (int i = 0; i < 6; i++) {
        struct network fresh = open_fused(&tiny, dtypes[i / 3], OPTIM_ADAMW, levels[i % 3], NULL);
        struct network used = open_fused(&tiny, dtypes[i / 3], OPTIM_ADAMW, levels[i % 3], NULL);
        size_t bytes = (size_t)fresh.graph->flat_count * sizeof(float);
        loss_of(&used, &batch, PASS_FORWARD | PASS_BACKWARD);
        float *earlier = gradients_of(&used), *zeros = calloc(1, bytes);
        assert_memory_not_equal(earlier, zeros, bytes);
        loss_of(&fresh, &unmasked, PASS_FORWARD | PASS_BACKWARD);
        loss_of(&used, &unmasked, PASS_FORWARD | PASS_BACKWARD);
        float *expected = gradients_of(&fresh), *seen = gradients_of(&used);
        assert_memory_equal(seen, expected, bytes);
        double sums[2];
        assert_int_equal(exec_clear(used.exec), OK);
        float *cleared = gradients_of(&used);
        assert_memory_equal(cleared, zeros, bytes);
        assert_int_equal(exec_download(used.exec, used.io.nsp_sums, sums, 2), OK);
        assert_true(sums[0] == 0 && sums[1] == 0);
        free(earlier), free(zeros), free(expected), free(seen), free(cleared);
        network_free(&fresh);
        network_free(&used);
    }
}

static void test_overflow_is_skipped(void **state) {
    (void)state;
    struct network network = open_network(&tiny, F32, OPTIM_ADAMW);
    struct data data;
    struct batch batch = make_batch(&data, 0, SEQUENCES);
    struct step_data step = {
        .micro_batches = 1, .batches = &batch, .sequences = SEQUENCES, .tokens = batch.tokens, .masked = batch.masked};
    int p = graph_find_parameter(network.graph, "cls.predictions.bias");
    float bias[VOCAB + 64] = {0}, before[VOCAB + 64], after[VOCAB + 64];
    bias[3] = INFINITY;
    exec_upload_slice(network.exec, network.graph->master, p, bias);
    struct step_result result;
    exec_download_slice(network.exec, network.graph->master, p, before);
    assert_int_equal(network_step(&network, &step, &result), OK);
    exec_download_slice(network.exec, network.graph->master, p, after);
    assert_true(result.skipped);
    assert_int_equal(result.step, 0);
    assert_int_equal(result.skipped_steps, 1);
    assert_memory_equal(before, after, 128 * sizeof(float));
    network_free(&network);
}

/* A scale that overflows is halved until it does not, every good step counts towards the next doubling, and what the
 * skipped steps leave behind is nothing: the weights are those of a run that started with the scale found. */
static void test_loss_scale_is_found(void **state) {
    (void)state;
    struct data data;
    struct batch batch = make_batch(&data, 0, SEQUENCES);
    struct step_data step = {
        .micro_batches = 1, .batches = &batch, .sequences = SEQUENCES, .tokens = batch.tokens, .masked = batch.masked};
    struct step_result result;
    float *weights[2];
    double found = 0;
    for (int run = 0; run < 2; run++) {
        struct network network = open_network(&tiny, F16, OPTIM_ADAMW);
        assert_int_equal(network_set_loss_scale(&network, (const double[]){run ? found : LOSS_SCALE_MOST, 0}), OK);
        double expected = run ? found : LOSS_SCALE_MOST;
        for (int good = 0; good < 5; good += !result.skipped) {
            assert_int_equal(network_step(&network, &step, &result), OK);
            assert_true(result.loss_scale == expected && expected > 1 && isfinite(result.loss));
            expected = result.skipped ? expected / 2 : expected;
        }
        assert_int_equal(result.step, 5);
        assert_true(run ? result.skipped_steps == 0 : result.skipped_steps > 5);
        double scale[2];
        assert_int_equal(network_get_loss_scale(&network, scale), OK);
        assert_true(scale[0] == expected && scale[1] == 5);
        found = expected;
        size_t count = (size_t)network.graph->flat_count;
        weights[run] = calloc(count, sizeof(float));
        exec_download(network.exec, network.graph->master, weights[run], (int64_t)count);
        if (run)
            assert_memory_equal(weights[0], weights[1], count * sizeof(float));
        network_free(&network);
    }
    free(weights[0]), free(weights[1]);
}

/* Results read when the next step was queued are those of steps one by one. */
static void test_results_come_late(void **state) {
    (void)state;
    enum { STEPS = 5 };
    struct step_result one_by_one[STEPS], late[STEPS];
    struct data data[STEPS];
    struct batch batches[STEPS];
    struct step_data steps[STEPS];
    for (int i = 0; i < STEPS; i++) {
        batches[i] = make_batch(&data[i], i % 2, 3 + i % 3);
        steps[i] = (struct step_data){.micro_batches = 1,
                                      .batches = &batches[i],
                                      .sequences = batches[i].sequences,
                                      .tokens = batches[i].tokens,
                                      .masked = batches[i].masked};
    }
    struct network network = open_network(&tiny, F16, OPTIM_LAMB);
    for (int i = 0; i < STEPS; i++)
        assert_int_equal(network_step(&network, &steps[i], &one_by_one[i]), OK);
    network_free(&network);
    network = open_network(&tiny, F16, OPTIM_LAMB);
    for (int i = 0; i < STEPS; i++) {
        assert_int_equal(network_queue(&network, &steps[i]), OK);
        if (network.under_way == STEPS_UNDER_WAY)
            assert_int_equal(network_result(&network, &late[i - 1]), OK);
    }
    assert_int_equal(network_result(&network, &late[STEPS - 1]), OK);
    assert_int_equal(network.under_way, 0);
    network_free(&network);
    for (int i = 0; i < STEPS; i++) {
        assert_true(one_by_one[i].seconds > 0 && late[i].seconds > 0);
        assert_true(late[i].loss == one_by_one[i].loss && late[i].grad_norm == one_by_one[i].grad_norm);
        assert_true(late[i].mlm_accuracy == one_by_one[i].mlm_accuracy && late[i].flop == one_by_one[i].flop);
        assert_int_equal(late[i].step, i + 1);
        assert_int_equal(late[i].tokens, steps[i].tokens);
    }
}

static double train(enum dtype compute, enum optim_name name) {
    struct bert_config config = tiny;
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0;
    struct network network = open_network(&config, compute, name);
    struct data data;
    struct batch batch = make_batch(&data, 0, SEQUENCES);
    struct step_data step = {
        .micro_batches = 1, .batches = &batch, .sequences = SEQUENCES, .tokens = batch.tokens, .masked = batch.masked};
    struct step_result result = {0};
    double first = 0;
    for (int i = 0; i < 100; i++) {
        assert_int_equal(network_step(&network, &step, &result), OK);
        first = i == 0 ? result.loss : first;
    }
    print_message("%s, optimizer %d: loss %.4f -> %.4f\n", dtype_name(compute), name, first, result.loss);
    assert_true(fabs(first - log(VOCAB) - log(2)) < 1);
    network_free(&network);
    return result.loss;
}

static void test_learns_a_batch_by_heart(void **state) {
    (void)state;
    assert_true(train(F32, OPTIM_ADAMW) < 0.1);
    assert_true(train(BF16, OPTIM_ADAMW) < 0.1);
    assert_true(train(F16, OPTIM_ADAMW) < 0.1);
    assert_true(train(F16, OPTIM_LAMB) < 3);
    assert_true(train(F32, OPTIM_ADAM) < 0.1);
    assert_true(train(F32, OPTIM_LAMB) < 3);
}

/* The loss and all gradients at a level of fusion, of two micro-batches: the second adds to the first's gradients. */
static float *fused_step(const struct bert_config *config, enum dtype compute, enum fusion fusion, const char *without,
                         struct step_result *result, int *nodes) {
    struct network network = open_fused(config, compute, OPTIM_ADAMW, fusion, without);
    struct data parts[2];
    struct batch batches[2] = {make_batch(&parts[0], 0, 4), make_batch(&parts[1], 4, SEQUENCES)};
    struct step_data step = {.micro_batches = 2,
                             .batches = batches,
                             .sequences = SEQUENCES,
                             .tokens = batches[0].tokens + batches[1].tokens,
                             .masked = batches[0].masked + batches[1].masked};
    if (network_step(&network, &step, result) != OK)
        fail_msg("%s", status_message());
    float *gradients = all_gradients(&network, result->loss_scale);
    *nodes = network.graph->node_count;
    network_free(&network);
    return gradients;
}

static double norm_of(const float *x, const struct parameter *parameter) {
    double squares = 0;
    for (int64_t i = parameter->offset; i < parameter->offset + parameter->rows * parameter->columns; i++)
        squares += (double)x[i] * x[i];
    return sqrt(squares);
}

static bool is_key_bias(const struct parameter *parameter) { return strstr(parameter->name, "self.key.bias"); }

/* A key's bias adds the same to all scores of a query, so that its gradient is zero, and what is there is rounding: of
 * the gradients of scores, that no longer add up to zero over a query's keys, and of the outputs from which these are
 * made; half a unit each. It is the sum over tokens of what makes the gradient of the weights, there times inputs whose
 * root mean square is one; so a unit of that gradient is the most it may be. The largest share of it. */
static double key_bias_noise(const struct graph *graph, const float *gradients) {
    double worst = 0;
    for (int b = 0; b < graph->parameter_count; b++) {
        const struct parameter *bias = &graph->parameters[b];
        size_t prefix = strlen(bias->name) - strlen("bias");
        for (int w = 0; w < graph->parameter_count && is_key_bias(bias); w++) {
            const struct parameter *weight = &graph->parameters[w];
            if (strncmp(weight->name, bias->name, prefix) == 0 && strcmp(weight->name + prefix, "weight") == 0)
                worst = fmax(worst, norm_of(gradients, bias) / norm_of(gradients, weight));
        }
    }
    assert_true(worst > 0);
    return worst;
}

/* The largest difference of a parameter's gradients, by the measure of docs/architecture.md; but for key biases. */
static double worst_difference(const struct graph *graph, const float *a, const float *b) {
    double all = 0, worst = 0;
    for (int64_t i = 0; i < graph->flat_count; i++)
        all += (double)b[i] * b[i];
    for (int p = 0; p < graph->parameter_count; p++) {
        const struct parameter *parameter = &graph->parameters[p];
        double error = 0, least = 1e-3 * sqrt(all / graph->parameter_count);
        for (int64_t i = parameter->offset; i < parameter->offset + parameter->rows * parameter->columns; i++)
            error += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        if (!is_key_bias(parameter))
            worst = fmax(worst, sqrt(error) / fmax(norm_of(b, parameter), least));
    }
    return worst;
}

/* Every level, and the full one without each rule in turn, computes what the unfused graph does: dropout on and off,
 * with and without NSP, with activations made again in one of the variants, all in f32, whose rounding explains 1e-5.
 */
static void test_fusion_changes_nothing(void **state) {
    (void)state;
    bool fires[64] = {false}; /* a rule is needed somewhere: without it more operators are left */
    for (int variant = 0; variant < 4; variant++) {
        struct bert_config config = tiny;
        if (variant == 3)
            config.hidden_size = 21, config.num_attention_heads = 3, config.intermediate_size = 37;
        if (variant == 1)
            config.hidden_dropout_prob = 0, config.nsp = false, config.hidden_act = ACT_GELU_NEW;
        if (variant == 2)
            config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0, config.hidden_act = ACT_RELU;
        struct network network = open_network(&config, F32, OPTIM_ADAMW);
        struct step_result expected, result;
        int nodes, least = 0;
        float *unfused = fused_step(&config, F32, FUSION_NONE, NULL, &expected, &nodes);
        for (enum fusion level = FUSION_PAPER; level <= FUSION_FULL; level++)
            for (int rule = -1; rule < 0 || fusion_rule(rule); rule++) {
                checkpoint = variant == 2;
                if (rule >= 0 && (variant % 2 || !fusion_uses(level, checkpoint, rule)))
                    continue;
                const char *without = rule < 0 ? NULL : fusion_rule(rule);
                float *fused = fused_step(&config, F32, level, without, &result, &nodes);
                double worst = worst_difference(network.graph, fused, unfused),
                       loss = fabs(result.loss - expected.loss);
                double noise = key_bias_noise(network.graph, fused);
                if (!(worst < 1e-5 && loss < 2e-6 && noise < 1e-5))
                    fail_msg("variant %d, %s without %s: gradients differ by %g, loss by %g, noise %g", variant,
                             fusion_name(level), without ? without : "nothing", worst, loss, noise);
                if (rule < 0)
                    least = nodes;
                else
                    fires[rule] |= nodes > least;
                free(fused);
            }
        checkpoint = false;
        free(unfused);
        network_free(&network);
    }
    for (int rule = 0; fusion_rule(rule); rule++)
        if (!fires[rule])
            fail_msg("rule %s changes nothing", fusion_rule(rule));
}

/* In 16 bits a fused level is no further from the unfused f32 gradients than the unfused graph is: it rounds less
 * often. Halves have three bits more than bf16. */
static void check_fusion_in(enum dtype compute, double unit) {
    struct step_result result;
    int nodes;
    float *exact = fused_step(&tiny, F32, FUSION_NONE, NULL, &result, &nodes);
    double loss = result.loss, unfused = 0;
    struct network network = open_network(&tiny, F32, OPTIM_ADAMW);
    for (enum fusion level = FUSION_NONE; level <= FUSION_FULL; level++) {
        float *gradients = fused_step(&tiny, compute, level, NULL, &result, &nodes);
        double worst = worst_difference(network.graph, gradients, exact),
               noise = key_bias_noise(network.graph, gradients) / unit;
        print_message("%s, %s: gradients differ from f32 by %.4f, loss by %.5f, key biases are %.2f units\n",
                      dtype_name(compute), fusion_name(level), worst, fabs(result.loss - loss), noise);
        unfused = level == FUSION_NONE ? worst : unfused;
        assert_true(worst <= 1.25 * unfused && fabs(result.loss - loss) < 2.5 * unit && noise < 1);
        free(gradients);
    }
    assert_true(unfused < 25 * unit);
    network_free(&network);
    free(exact);
}

static void test_fusion_in_16_bits(void **state) {
    (void)state;
    check_fusion_in(BF16, 0x1p-8);
    check_fusion_in(F16, 0x1p-11);
}

/* Made again, activations have the same bits, and so have the gradients; the arena shrinks. */
static void test_checkpointing(void **state) {
    (void)state;
    for (enum fusion level = FUSION_NONE; level <= FUSION_FULL; level++) {
        struct step_result results[2];
        float *gradients[2];
        int nodes[2];
        int64_t arena[2];
        for (int i = 0; i < 2; i++) {
            checkpoint = i;
            gradients[i] = fused_step(&tiny, F32, level, NULL, &results[i], &nodes[i]);
            struct network network = open_fused(&tiny, F32, OPTIM_ADAMW, level, NULL);
            arena[i] = exec_plan(network.exec)->arena_bytes;
            if (i == 1) {
                size_t count = (size_t)network.graph->flat_count;
                assert_memory_equal(gradients[0], gradients[1], count * sizeof(float));
            }
            network_free(&network);
        }
        checkpoint = false;
        assert_true(nodes[1] > nodes[0] && arena[1] < arena[0]);
        assert_true(results[0].loss == results[1].loss);
        free(gradients[0]), free(gradients[1]);
    }
}

/* After the first step nothing is allocated any more, at any level, whatever follows that is no larger. */
static void test_steps_allocate_nothing(void **state) {
    (void)state;
    for (enum fusion level = FUSION_NONE; level <= FUSION_FULL; level++)
        for (int compute = F32; compute <= F16; compute++) {
            struct network network = open_fused(&tiny, compute, OPTIM_LAMB, level, NULL);
            struct data parts[2];
            struct batch batches[2] = {make_batch(&parts[0], 0, SEQUENCES), make_batch(&parts[1], 1, 3)};
            struct step_result result;
            long long before = 0;
            for (int i = 0; i < 5; i++) {
                const struct batch *batch = &batches[i % 2];
                struct step_data step = {.micro_batches = 1,
                                         .batches = (struct batch *)batch,
                                         .sequences = batch->sequences,
                                         .tokens = batch->tokens,
                                         .masked = batch->masked};
                assert_int_equal(network_step(&network, &step, &result), OK);
                if (i == 1) /* the library prepares its primitives for each size when it meets it */
                    before = memory_allocations();
            }
            assert_int_equal(memory_allocations(), before);
            network_free(&network);
        }
}

static int64_t little_memory(const struct backend *device) {
    (void)device;
    return 1000000;
}

/* What does not fit is refused before anything is allocated. */
static void test_too_large_for_the_device(void **state) {
    (void)state;
    struct network network;
    struct backend *backend;
    struct optim_config optim = {.name = OPTIM_ADAMW, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-6};
    struct network_form form = {.compute = F32, .fusion = FUSION_FULL};
    assert_int_equal(test_backend_new(&backend), OK);
    backend->memory_left = little_memory;
    assert_int_equal(network_new(&network, &tiny, &shape, &form, &optim, 10, 7, backend, comm_self()), BAD_INPUT);
    assert_non_null(strstr(status_message(), "has 0.00 GB left: lower train.micro_batch"));
}

/* BERTH_TEST_ONLY: that test alone. */
int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients_with_dropout),     cmocka_unit_test(test_gradients_mlm_only),
        cmocka_unit_test(test_cut_does_not_matter),        cmocka_unit_test(test_no_masked_token),
        cmocka_unit_test(test_nothing_of_the_step_before), cmocka_unit_test(test_fusion_changes_nothing),
        cmocka_unit_test(test_fusion_in_16_bits),          cmocka_unit_test(test_checkpointing),
        cmocka_unit_test(test_steps_allocate_nothing),     cmocka_unit_test(test_too_large_for_the_device),
        cmocka_unit_test(test_overflow_is_skipped),        cmocka_unit_test(test_loss_scale_is_found),
        cmocka_unit_test(test_results_come_late),          cmocka_unit_test(test_learns_a_batch_by_heart),
    };
    if (getenv("BERTH_TEST_ONLY"))
        cmocka_set_test_filter(getenv("BERTH_TEST_ONLY"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
