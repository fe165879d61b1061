/* berth against PyTorch and transformers: loss, logits, the gradient of every parameter, and weights after ten steps of
 * AdamW and LAMB. The reference files and the errors that bound ours are made by make_reference.py beside this test. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../test_backend.h"
#include "base/json.h"
#include "dist/dist.h"
#include "train/network.h"
#include "train/safetensors.h"

enum { MOST = 200, STEPS = 10 };

struct reference {
    json *root;
    struct safetensors tensors;
    bool nsp;
    double f32_error, bf16_error, loss, mlm_loss, nsp_loss;
    int32_t starts[MOST], ids[MOST], types[MOST], positions[MOST], rows[MOST], labels[MOST], nsp_labels[MOST];
    int64_t sequences, tokens, masked;
};

static int64_t ints(const json *object, const char *key, int32_t *out) {
    int64_t count = 0, value = 0;
    for (const json *item = json_first(json_get(object, key)); item; item = json_next(item)) {
        assert_true(count < MOST && json_value_int(item, &value));
        out[count++] = (int32_t)value;
    }
    return count;
}

static void open_reference(const char *name, struct reference *r) {
    char path[200];
    *r = (struct reference){0};
    snprintf(path, sizeof path, "tests/reference/%s.json", name);
    if (json_read_file(path, &r->root) != OK)
        fail_msg("%s", status_message());
    assert_int_equal(json_get_bool(path, r->root, "nsp", &r->nsp), OK);
    assert_int_equal(json_get_double(path, r->root, "f32_error", &r->f32_error), OK);
    assert_int_equal(json_get_double(path, r->root, "bf16_error", &r->bf16_error), OK);
    assert_int_equal(json_get_double(path, r->root, "loss", &r->loss), OK);
    assert_int_equal(json_get_double(path, r->root, "mlm_loss", &r->mlm_loss), OK);
    if (r->nsp)
        assert_int_equal(json_get_double(path, r->root, "nsp_loss", &r->nsp_loss), OK);
    const json *batch = json_get(r->root, "batch");
    r->sequences = ints(batch, "starts", r->starts) - 1;
    r->tokens = ints(batch, "ids", r->ids);
    r->masked = ints(batch, "masked_rows", r->rows);
    assert_int_equal(ints(batch, "types", r->types), r->tokens);
    assert_int_equal(ints(batch, "masked_labels", r->labels), r->masked);
    assert_int_equal(ints(batch, "nsp_labels", r->nsp_labels), r->sequences);
    assert_int_equal(r->starts[r->sequences], r->tokens);
    for (int64_t s = 0; s < r->sequences; s++)
        for (int32_t i = r->starts[s]; i < r->starts[s + 1]; i++)
            r->positions[i] = i - r->starts[s];
    snprintf(path, sizeof path, "tests/reference/%s.safetensors", name);
    if (safetensors_open(path, &r->tensors) != OK)
        fail_msg("%s", status_message());
}

static void close_reference(struct reference *r) {
    json_free(r->root);
    safetensors_close(&r->tensors);
}

/* A tensor of the reference, into `values`, which holds `room` floats; returns its count. */
static int64_t fetch(const struct reference *r, const char *prefix, const char *name, float *values, int64_t room) {
    char full[200];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    const struct safetensors_tensor *tensor = safetensors_find(&r->tensors, full);
    if (!tensor)
        fail_msg("the reference has no %s", full);
    assert_true(tensor->count <= room);
    assert_int_equal(safetensors_read(&r->tensors, tensor, 0, tensor->count, values), OK);
    return tensor->count;
}

static void open_network(const char *name, const struct reference *r, enum dtype compute, enum optim_name optimizer,
                         struct network *network) {
    struct bert_config config = {.vocab_size = 99,
                                 .hidden_size = 32,
                                 .num_hidden_layers = 2,
                                 .num_attention_heads = 4,
                                 .intermediate_size = 64,
                                 .max_position_embeddings = 40,
                                 .type_vocab_size = 2,
                                 .layer_norm_eps = 1e-12,
                                 .nsp = r->nsp,
                                 .hidden_act = strcmp(name, "gelu") == 0       ? ACT_GELU
                                               : strcmp(name, "gelu_new") == 0 ? ACT_GELU_NEW
                                                                               : ACT_RELU};
    struct bert_shape shape = {.sequences = r->sequences, .seq_len = 40, .max_predictions = 10};
    struct optim_config optim = {.name = optimizer,
                                 .beta1 = 0.9,
                                 .beta2 = 0.999,
                                 .epsilon = 1e-6,
                                 .weight_decay = 0.01,
                                 .clip = 1,
                                 .bias_correction = true};
    struct backend *backend;
    assert_int_equal(test_backend_new(&backend), OK);
    if (network_new(network, &config, &shape, &(struct network_form){.compute = compute, .fusion = FUSION_FULL}, &optim,
                    STEPS, 0, backend, comm_self()) != OK)
        fail_msg("%s", status_message());
    for (int p = 0; p < network->graph->parameter_count; p++) {
        const struct parameter *parameter = &network->graph->parameters[p];
        int64_t count = parameter->rows * parameter->columns;
        float *values = calloc((size_t)count, sizeof *values);
        fetch(r, "", parameter->name, values, count);
        assert_int_equal(exec_upload_slice(network->exec, network->graph->master, p, values), OK);
        free(values);
    }
    assert_int_equal(network_sync_weights(network), OK);
    float rates[STEPS];
    for (int i = 0; i < STEPS; i++)
        rates[i] = 1e-3f;
    assert_int_equal(exec_upload(network->exec, network->optim.lr_table, rates, STEPS), OK);
}

/* The batch cut into `parts` micro-batches of neighbouring sequences. */
struct cut {
    struct batch batches[5];
    int32_t starts[5][MOST], rows[5][MOST];
    int64_t numbers[MOST];
    struct step_data data;
};

static void cut_batch(const struct reference *r, int64_t parts, struct cut *cut) {
    int64_t mask = 0;
    *cut = (struct cut){0};
    for (int64_t part = 0; part < parts; part++) {
        int64_t from = part * r->sequences / parts, to = (part + 1) * r->sequences / parts, first = r->starts[from];
        struct batch *batch = &cut->batches[part];
        *batch = (struct batch){.sequences = to - from,
                                .tokens = r->starts[to] - first,
                                .starts = cut->starts[part],
                                .ids = r->ids + first,
                                .positions = r->positions + first,
                                .types = r->types + first,
                                .masked_rows = cut->rows[part],
                                .masked_labels = r->labels + mask,
                                .nsp_labels = r->nsp_labels + from,
                                .sequence_numbers = cut->numbers};
        for (int64_t s = from; s <= to; s++)
            cut->starts[part][s - from] = r->starts[s] - (int32_t)first;
        for (; mask < r->masked && r->rows[mask] < r->starts[to]; mask++)
            cut->rows[part][batch->masked++] = r->rows[mask] - (int32_t)first;
    }
    cut->data = (struct step_data){.micro_batches = parts,
                                   .batches = cut->batches,
                                   .sequences = r->sequences,
                                   .tokens = r->tokens,
                                   .masked = r->masked};
}

static double norm_of(const float *x, const float *y, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += ((double)x[i] - (y ? y[i] : 0)) * ((double)x[i] - (y ? y[i] : 0));
    return sqrt(sum);
}

/* Largest error of a gradient in the norm of docs/architecture.md. */
static double gradient_error(const struct reference *r, struct network *network, const char **worst) {
    const struct graph *graph = network->graph;
    double everything = 0, largest = 0;
    static float want[40000], got[40000];
    for (int p = 0; p < graph->parameter_count; p++)
        everything += pow(norm_of(want, NULL, fetch(r, "grad.", graph->parameters[p].name, want, 40000)), 2);
    everything = sqrt(everything);
    for (int p = 0; p < graph->parameter_count; p++) {
        const struct parameter *parameter = &graph->parameters[p];
        int64_t count = fetch(r, "grad.", parameter->name, want, 40000);
        assert_int_equal(exec_download_slice(network->exec, graph->gradients, p, got), OK);
        if (strstr(parameter->name, "self.key.bias")) { /* zero but for rounding */
            assert_true(norm_of(got, NULL, count) < (graph->compute == F32 ? 1e-6 : 1e-2) * everything);
            continue;
        }
        double floor = 1e-3 * everything / sqrt(graph->parameter_count);
        double error = norm_of(got, want, count) / fmax(norm_of(want, NULL, count), floor);
        if (error > largest) {
            largest = error;
            *worst = parameter->name;
        }
    }
    return largest;
}

static void check_logits(const struct reference *r, struct network *network, double tolerance) {
    static float want[20000], got[20000];
    int64_t count = fetch(r, "", "mlm_logits", want, 20000), padded = network->graph->capacity.n[DIM_V];
    assert_int_equal(count, r->masked * 99);
    assert_int_equal(exec_download(network->exec, network->io.mlm_logits, got, r->masked * padded), OK);
    for (int64_t m = 0; m < r->masked; m++)
        for (int64_t v = 0; v < 99; v++)
            if (!(fabs(got[m * padded + v] - want[m * 99 + v]) <= tolerance))
                fail_msg("logit %lld, %lld: %g, expected %g", (long long)m, (long long)v, got[m * padded + v],
                         want[m * 99 + v]);
    if (!r->nsp)
        return;
    count = fetch(r, "", "nsp_logits", want, 20000);
    assert_int_equal(exec_download(network->exec, network->io.nsp_logits, got, count), OK);
    for (int64_t i = 0; i < count; i++)
        assert_true(fabs(got[i] - want[i]) <= tolerance);
}

static void check_gradients(const char *name, enum dtype compute, int64_t parts) {
    struct reference r;
    struct network network;
    struct cut cut;
    struct step_result result;
    const char *worst = "";
    open_reference(name, &r);
    open_network(name, &r, compute, OPTIM_ADAMW, &network);
    cut_batch(&r, parts, &cut);
    if (parts == 1 && compute == F32) { /* between the passes: the backward pass takes their memory */
        assert_int_equal(feed_batch(network.feed, &cut.batches[0]), OK);
        assert_int_equal(exec_run(network.exec, PASS_FORWARD, true, false), OK);
        check_logits(&r, &network, 2e-5);
    }
    if (network_step(&network, &cut.data, &result) != OK)
        fail_msg("%s", status_message());
    double error = gradient_error(&r, &network, &worst), theirs = compute == F32 ? r.f32_error : r.bf16_error;
    double of_loss = compute == F32 ? 2e-6 : 1e-2; /* a few units of f32; two of bf16 in the logits */
    print_message("%s, %s, %d micro-batches: gradient error %.2e (%s), PyTorch's own %.2e\n", name, dtype_name(compute),
                  (int)parts, error, worst, theirs);
    assert_true(error <= (compute == F32 ? 4 : 1.5) * theirs);
    assert_true(fabs(result.loss - r.loss) <= of_loss * r.loss);
    assert_true(fabs(result.mlm_loss - r.mlm_loss) <= of_loss * r.loss);
    if (r.nsp)
        assert_true(fabs(result.nsp_loss - r.nsp_loss) <= of_loss * r.loss);
    network_free(&network);
    close_reference(&r);
}

static void test_f32(void **state) {
    (void)state;
    static const char *const names[] = {"gelu", "gelu_new", "relu_mlm"};
    for (int i = 0; i < 3; i++)
        for (int64_t parts = 1; parts <= 5; parts += 2)
            check_gradients(names[i], F32, parts);
}

static void test_bf16(void **state) {
    (void)state;
    static const char *const names[] = {"gelu", "gelu_new", "relu_mlm"};
    for (int i = 0; i < 3; i++)
        check_gradients(names[i], BF16, 2);
}

/* Weights after ten steps. Where a gradient is next to nothing, Adam's update is its sign, which rounding decides: the
 * error is measured against what the steps changed, over all parameters but key biases, whose gradient is zero but for
 * rounding. */
static void check_training(const char *prefix, enum optim_name optimizer) {
    struct reference r;
    struct network network;
    struct cut cut;
    struct step_result result;
    static float start[40000], want[40000], got[40000];
    char key[40];
    double moved = 0, wrong = 0, loss;
    open_reference("gelu", &r);
    open_network("gelu", &r, F32, optimizer, &network);
    cut_batch(&r, 2, &cut);
    snprintf(key, sizeof key, "%slosses", prefix);
    key[strlen(prefix) - 1] = '_';
    const json *losses = json_first(json_get(r.root, key));
    for (int step = 0; step < STEPS; step++, losses = json_next(losses)) {
        assert_int_equal(network_step(&network, &cut.data, &result), OK);
        assert_true(losses && json_value_double(losses, &loss));
        assert_true(fabs(result.loss - loss) <= 1e-5 * loss);
    }
    for (int p = 0; p < network.graph->parameter_count; p++) {
        const char *name = network.graph->parameters[p].name;
        int64_t count = fetch(&r, prefix, name, want, 40000);
        fetch(&r, "", name, start, 40000);
        assert_int_equal(exec_download_slice(network.exec, network.graph->master, p, got), OK);
        if (strstr(name, "self.key.bias"))
            continue;
        moved += pow(norm_of(want, start, count), 2);
        wrong += pow(norm_of(want, got, count), 2);
    }
    print_message("%s weights: error %.2e of the way moved\n", prefix, sqrt(wrong / moved));
    assert_true(moved > 0 && sqrt(wrong / moved) < 1e-3);
    network_free(&network);
    close_reference(&r);
}

static void test_adamw(void **state) {
    (void)state;
    check_training("adamw.", OPTIM_ADAMW);
}

static void test_lamb(void **state) {
    (void)state;
    check_training("lamb.", OPTIM_LAMB);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_adamw),
        cmocka_unit_test(test_lamb),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
