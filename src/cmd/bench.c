/* `berth bench`: how fast training steps run on this device, without shards. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"
#include "base/memory.h"
#include "cmd/analyze.h"
#include "cmd/cmd.h"
#include "cmd/synthetic.h"
#include "dist/dist.h"
#include "train/device.h"

static const char usage[] =
    "usage: berth bench FILE.ini [section.key=value ...] [options]\n"
    "\n"
    "Runs optimizer steps of one micro-batch each on random tokens, and prints the median of their rates: sequences\n"
    "and tokens per second, model flop utilization, and the device memory that was planned. Sequences are of full\n"
    "length; no shards are read and nothing is written. Some steps before those that count warm up.";

enum { MOST_STEPS = 100000 };

struct request {
    struct requested_shape shape;
    int64_t steps, warm_up;
    bool json;
};

struct result {
    struct analysis *analysis; /* what is run */
    double seconds;            /* of a step, the median */
    double flop;               /* of a step */
    int64_t steps, memory;     /* bytes */
};

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int64_t count) {
    qsort(values, (size_t)count, sizeof *values, ascending);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

/* As training does it: a step is queued before the results of the one before it are read. seconds: [steps]. */
static status time_steps(struct network *network, const struct step_data *data, const struct request *request,
                         double *seconds, struct step_result *result) {
    int64_t all = request->warm_up + request->steps;
    for (int64_t step = 0; step <= all; step++) {
        if (step < all)
            TRY(network_queue(network, data));
        if (step == 0)
            continue;
        TRY(network_result(network, result));
        if (step > request->warm_up)
            seconds[step - 1 - request->warm_up] = result->seconds;
    }
    return OK;
}

static status run(struct network *network, const struct request *request, struct result *result) {
    const struct analysis *analysis = result->analysis;
    const struct plan *plan = exec_plan(network->exec);
    struct synthetic synthetic = {0};
    struct step_result last;
    TRY(network_init_weights(network, analysis->seed));
    synthetic_make(&synthetic, &analysis->model, &analysis->shape, analysis->seed);
    double *seconds = xcalloc((size_t)request->steps, sizeof *seconds);
    status code = time_steps(network, &synthetic.step, request, seconds, &last);
    if (code == OK) {
        result->seconds = median(seconds, request->steps);
        result->steps = request->steps;
        result->flop = last.flop;
        result->memory =
            plan->weight_bytes + plan->gradient_bytes + plan->state_bytes + plan->input_bytes + plan->arena_bytes;
    }
    free(seconds);
    synthetic_free(&synthetic);
    return code;
}

static void print(const struct result *result) {
    const struct bert_shape *shape = &result->analysis->shape;
    double sequences = (double)shape->sequences / result->seconds, rate = result->flop / result->seconds;
    printf("%s\n", result->analysis->device);
    printf("%lld x %lld tokens, median of %lld steps: %.2f sequences/s, %.0f tokens/s, ", (long long)shape->sequences,
           (long long)shape->seq_len, (long long)result->steps, sequences, sequences * (double)shape->seq_len);
    if (result->analysis->flops > 0)
        printf("MFU %.1f %% of %.1f Tflop/s, ", 100 * rate / result->analysis->flops, 1e-12 * result->analysis->flops);
    printf("%.3f GB planned\n", 1e-9 * (double)result->memory);
}

static void print_json(const struct result *result) {
    const struct analysis *analysis = result->analysis;
    double sequences = (double)analysis->shape.sequences / result->seconds;
    const struct {
        const char *key;
        double value;
    } numbers[] = {
        {"micro_batch", (double)analysis->shape.sequences},
        {"seq_len", (double)analysis->shape.seq_len},
        {"steps", (double)result->steps},
        {"step_seconds", result->seconds},
        {"sequences_per_s", sequences},
        {"tokens_per_s", sequences * (double)analysis->shape.seq_len},
        {"mfu", analysis->flops > 0 ? result->flop / result->seconds / analysis->flops : NAN},
        {"memory_bytes", (double)result->memory},
    };
    struct text out = {0};
    text_add(&out, "{\"device\": ");
    json_add_string(&out, analysis->device);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        text_printf(&out, ", \"%s\": ", numbers[i].key);
        json_add_double(&out, numbers[i].value);
    }
    printf("%s}\n", out.data);
    text_free(&out);
}

/* The device's rate comes after the steps: to measure it takes a few hundred MB for a while. */
static status bench(struct analysis *analysis, const struct settings *settings, const struct request *request) {
    struct result result = {.analysis = analysis};
    struct network network;
    struct backend *backend;
    TRY(analysis_describe(analysis, settings, &request->shape));
    TRY(device_open(settings, comm_self(), &backend));
    backend->describe(backend, analysis->device, sizeof analysis->device);
    TRY(network_new(&network, &analysis->model, &analysis->shape, &analysis->form, &analysis->optim, MOST_STEPS,
                    analysis->seed, backend, comm_self()));
    status code = run(&network, request, &result);
    if (code == OK) {
        double given = settings->device.peak_tflops * 1e12;
        analysis->flops = given > 0 ? given : backend->peak_flops(backend, analysis->form.compute);
        (request->json ? print_json : print)(&result);
    }
    network_free(&network);
    return code;
}

status cmd_bench(int argc, char **argv) {
    struct request request = {.steps = 20, .warm_up = 3};
    const struct option options[] = {
        {"--batch", OPTION_INT, &request.shape.batch, "B", "sequences of a step; 0: train.micro_batch", 0, 1 << 20, 0},
        {"--seq-len", OPTION_INT, &request.shape.seq_len, "S", "their length; 0: that of settings, shards or model", 0,
         65536, 0},
        {"--max-predictions", OPTION_INT, &request.shape.max_predictions, "P", "masked tokens of each; 0: 15 in 100", 0,
         65536, 0},
        {"--steps", OPTION_INT, &request.steps, "N", "steps that count", 1, MOST_STEPS / 2, 0},
        {"--warm-up", OPTION_INT, &request.warm_up, "N", "steps before them", 0, MOST_STEPS / 2, 0},
        {"--json", OPTION_FLAG, &request.json, NULL, "print one JSON object", 0, 0, 0},
    };
    struct option_list words;
    struct settings settings;
    int help;
    TRY(options_parse(argc, argv, usage, options, sizeof options / sizeof *options, &words, &help));
    if (help)
        return OK;
    if (!words.count)
        return bad_input("bench: no settings file given, expected: berth bench FILE.ini [section.key=value ...]");
    TRY(settings_load(&settings, words.items[0], words.items + 1, words.count - 1));
    struct analysis *analysis = xcalloc(1, sizeof *analysis);
    analysis->file = words.items[0];
    status code = bench(analysis, &settings, &request);
    free(analysis);
    settings_free(&settings);
    return code;
}
