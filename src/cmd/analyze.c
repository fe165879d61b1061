/* `berth analyze`: what a training step moves and computes, operator by operator, at every fusion level. Builds the
 * graph that training would run, and allocates nothing of it (but with --measure). */
#include "cmd/analyze.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "cmd/cmd.h"
#include "dist/dist.h"
#include "train/device.h"
#include "train/setup.h"

static const char usage[] =
    "usage: berth analyze FILE.ini [section.key=value ...] [options]\n"
    "\n"
    "Tells what a training step of FILE.ini moves and computes, operator by operator, at the fusion levels none, "
    "paper\n"
    "and full, without training and without shards. Sequences are taken to be of full length. Every operator reads "
    "and\n"
    "writes each of its operands once; `eager` is level none with the forward biases inside the contractions. A floor\n"
    "is the time that an operator needs at least: its flop at the device's rate, or its bytes at its bandwidth.";

enum { BERT_VOCABULARY = 30522 }; /* entries of the published uncased one */

struct request {
    struct requested_shape shape;
    double memory; /* GB */
    const char *level, *dot, *svg;
    bool json, measure;
};

/* --- rates --- */

static double compute_seconds(const struct analysis *analysis, const struct account_row *row) {
    return analysis->flops > 0 ? row->flop / analysis->flops : 0;
}

static double byte_seconds(const struct analysis *analysis, const struct account_row *row) {
    return analysis->bandwidth > 0 ? row_bytes(row) / analysis->bandwidth : 0;
}

bool compute_bound(const struct analysis *analysis, const struct account_row *row) {
    return compute_seconds(analysis, row) > byte_seconds(analysis, row);
}

double floor_seconds(const struct analysis *analysis, const struct account_row *row) {
    return fmax(compute_seconds(analysis, row), byte_seconds(analysis, row));
}

double floor_total(const struct analysis *analysis, const struct account *account, int class) {
    double sum = 0;
    for (int r = 0; r < account->count; r++)
        if (class == ACCOUNT_ALL || (int)op_info(account->rows[r].op)->kind == class)
            sum += floor_seconds(analysis, &account->rows[r]);
    return sum;
}

static void ask_device(struct analysis *analysis, const struct settings *settings, struct backend *backend) {
    backend->describe(backend, analysis->device, sizeof analysis->device);
    analysis->flops_given = settings->device.peak_tflops > 0;
    analysis->bandwidth_given = settings->device.bandwidth_gbs > 0;
    analysis->flops = analysis->flops_given ? settings->device.peak_tflops * 1e12
                                            : backend->peak_flops(backend, analysis->form.compute);
    analysis->bandwidth =
        analysis->bandwidth_given ? settings->device.bandwidth_gbs * 1e9 : backend->bandwidth(backend);
}

/* --- the graph of a level --- */

static void close_level(struct level_analysis *level) {
    plan_free(&level->plan);
    graph_free(level->graph);
    *level = (struct level_analysis){.largest = level->largest};
}

/* Graph and plan for micro-batches of `shape`; to be closed, also on failure. */
static status open_level(const struct analysis *analysis, enum fusion fusion, const struct bert_shape *shape,
                         struct level_analysis *level) {
    struct network_form form = analysis->form;
    form.fusion = fusion;
    TRY(network_graph(&analysis->model, shape, &form, &analysis->optim, analysis->steps, &level->graph, &level->io,
                      &level->optim));
    TRY(graph_verify(level->graph));
    TRY(plan_make(level->graph, &level->plan));
    const struct plan *plan = &level->plan;
    level->peak_bytes =
        plan->weight_bytes + plan->gradient_bytes + plan->state_bytes + plan->input_bytes + plan->arena_bytes;
    return OK;
}

static status fits(const struct analysis *analysis, enum fusion fusion, int64_t sequences, bool *out) {
    struct level_analysis level = {0};
    struct bert_shape shape = analysis->shape;
    shape.sequences = sequences;
    status code = open_level(analysis, fusion, &shape, &level);
    *out = (double)level.peak_bytes <= analysis->memory;
    close_level(&level);
    return code;
}

/* Doubling, then bisection: more sequences never need less memory. */
static status find_largest(const struct analysis *analysis, enum fusion fusion, int64_t *largest) {
    int64_t most = INT32_MAX / analysis->shape.seq_len, good = 0, bad = 1;
    bool fit = true;
    for (; bad <= most; bad *= 2) {
        TRY(fits(analysis, fusion, bad, &fit));
        if (!fit)
            break;
        good = bad;
    }
    if (bad > most)
        bad = most + 1;
    while (bad - good > 1) {
        int64_t middle = good + (bad - good) / 2;
        TRY(fits(analysis, fusion, middle, &fit));
        *(fit ? &good : &bad) = middle;
    }
    *largest = good;
    return OK;
}

static status analyze_level(struct analysis *analysis, enum fusion fusion) {
    struct level_analysis *level = &analysis->levels[fusion];
    TRY(open_level(analysis, fusion, &analysis->shape, level));
    const struct sizes *sizes = &level->graph->capacity;
    account_layer(level->graph, sizes, NULL, &level->layer);
    account_step(level->graph, sizes, analysis->micro_batches, NULL, &level->step);
    level->erf_bytes = account_erf_bytes(level->graph, sizes);
    return analysis->memory > 0 ? find_largest(analysis, fusion, &level->largest) : OK;
}

/* --- what is asked for --- */

/* The option, else data.seq_len, else what the shards hold, else the longest that the model can take. */
static status choose_length(struct analysis *analysis, const struct settings *settings, int64_t option) {
    int64_t *length = &analysis->shape.seq_len;
    *length = option ? option : settings->data.seq_len;
    if (!*length && *settings->data.train) {
        struct dataset *dataset;
        TRY(dataset_open("data.train", settings->data.train, true, &dataset));
        *length = dataset_seq_len(dataset);
        dataset_free(dataset);
    }
    if (!*length)
        *length = analysis->model.max_position_embeddings;
    if (*length > analysis->model.max_position_embeddings)
        return bad_input("--seq-len is %lld, but model.max_position_embeddings = %lld", (long long)*length,
                         (long long)analysis->model.max_position_embeddings);
    return OK;
}

/* 15 of 100 tokens, as the recipes mask: 19 of 128, 77 of 512, within the 20 and 80 that their shards have room for. */
static status choose_masks(struct analysis *analysis, int64_t option) {
    int64_t length = analysis->shape.seq_len, usual = llround(0.15 * (double)length);
    if (option > length)
        return bad_input("--max-predictions is %lld, but a sequence has %lld tokens", (long long)option,
                         (long long)length);
    analysis->shape.max_predictions = option ? option : usual > 1 ? usual : 1;
    return OK;
}

static void choose_batch(struct analysis *analysis, const struct settings *settings, int64_t option) {
    int64_t sequences = settings->train.global_batch;
    if (settings->train.batch_tokens)
        sequences = (settings->train.batch_tokens + analysis->shape.seq_len - 1) / analysis->shape.seq_len;
    int64_t batch = option ? option : settings->train.micro_batch;
    if (!option && batch > sequences)
        batch = sequences;
    analysis->shape.sequences = batch;
    analysis->micro_batches = (sequences + batch - 1) / batch;
    analysis->step_sequences = analysis->micro_batches * batch;
}

static status choose_level(const char *name, enum fusion *level) {
    for (int known = 0; known < FUSION_COUNT; known++)
        if (strcmp(name, fusion_name(known)) == 0) {
            *level = known;
            return OK;
        }
    return bad_input("analyze: --level is \"%s\", expected none, paper or full", name);
}

status analysis_describe(struct analysis *analysis, const struct settings *settings,
                         const struct requested_shape *requested) {
    struct model_setup setup;
    TRY(setup_model(settings, &setup));
    analysis->model = setup.config;
    analysis->optim = setup.optim;
    analysis->form = setup.form;
    analysis->vocab_assumed = !analysis->model.vocab_size;
    if (analysis->vocab_assumed)
        analysis->model.vocab_size = BERT_VOCABULARY;
    TRY(choose_length(analysis, settings, requested->seq_len));
    TRY(choose_masks(analysis, requested->max_predictions));
    choose_batch(analysis, settings, requested->batch);
    analysis->steps = settings->train.steps;
    analysis->seed = (uint64_t)settings->train.seed;
    analysis->unit =
        2.0 * (double)(analysis->shape.sequences * analysis->shape.seq_len) * (double)analysis->model.hidden_size;
    return OK;
}

static status fill(struct analysis *analysis, const struct request *request, struct backend *backend) {
    for (int level = 0; level < FUSION_COUNT; level++)
        TRY(analyze_level(analysis, level));
    analysis->eager_layer = account_eager_bytes(&analysis->levels[FUSION_NONE].layer);
    analysis->eager_step = account_eager_bytes(&analysis->levels[FUSION_NONE].step);
    TRY(request->dot ? analysis_write_dot(analysis, request->dot) : OK);
    TRY(request->svg ? analysis_write_svg(analysis, request->svg) : OK);
    return request->measure ? analysis_measure(analysis, backend) : OK;
}

static status analyze(struct analysis *analysis, const struct settings *settings, const struct request *request) {
    struct backend *backend;
    TRY(analysis_describe(analysis, settings, &request->shape));
    TRY(choose_level(request->level, &analysis->shown));
    analysis->memory = request->memory * 1e9;
    TRY(device_open(settings, comm_self(), &backend));
    ask_device(analysis, settings, backend);
    status code = fill(analysis, request, backend);
    if (code == OK)
        (request->json ? analysis_print_json : analysis_print)(analysis);
    for (int level = 0; level < FUSION_COUNT; level++)
        close_level(&analysis->levels[level]);
    backend->free(backend);
    return code;
}

status cmd_analyze(int argc, char **argv) {
    struct request request = {.level = "full"};
    const struct option options[] = {
        {"--batch", OPTION_INT, &request.shape.batch, "B", "sequences of a micro-batch; 0: train.micro_batch", 0,
         1 << 20, 0},
        {"--seq-len", OPTION_INT, &request.shape.seq_len, "S", "their length; 0: that of settings, shards or model", 0,
         65536, 0},
        {"--max-predictions", OPTION_INT, &request.shape.max_predictions, "P", "masked tokens of each; 0: 15 in 100", 0,
         65536, 0},
        {"--level", OPTION_STRING, &request.level, "LEVEL", "fusion level of the tables: none, paper or full", 0, 0, 0},
        {"--memory", OPTION_DOUBLE, &request.memory, "GB", "find the largest micro-batch that fits; 0: do not", 0, 1e9,
         0},
        {"--measure", OPTION_FLAG, &request.measure, NULL, "run a few steps on random tokens and time each operator", 0,
         0, 0},
        {"--json", OPTION_FLAG, &request.json, NULL, "print one JSON object", 0, 0, 0},
        {"--dot", OPTION_STRING, &request.dot, "FILE", "write a layer's graph before and after fusion (Graphviz)", 0, 0,
         0},
        {"--svg", OPTION_STRING, &request.svg, "FILE", "write a picture of what a layer moves at each level", 0, 0, 0},
    };
    struct option_list words;
    struct settings settings;
    int help;
    TRY(options_parse(argc, argv, usage, options, sizeof options / sizeof *options, &words, &help));
    if (help)
        return OK;
    if (!words.count)
        return bad_input("analyze: no settings file given, expected: berth analyze FILE.ini [section.key=value ...]");
    TRY(settings_load(&settings, words.items[0], words.items + 1, words.count - 1));
    struct analysis *analysis = xcalloc(1, sizeof *analysis);
    analysis->file = words.items[0];
    status code = analyze(analysis, &settings, &request);
    free(analysis);
    settings_free(&settings);
    return code;
}
