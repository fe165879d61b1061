/* `berth analyze` as text. MB and GB are 10^6 and 10^9 bytes. */
#include <stdio.h>
#include <string.h>

#include "cmd/analyze.h"

static double percent_less(double bytes, double than) { return than > 0 ? 100 * (1 - bytes / than) : 0; }

static double share(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

/* --- what was asked --- */

static void print_head(const struct analysis *analysis) {
    static const char *const optimizers[] = {[OPTIM_ADAM] = "adam", [OPTIM_ADAMW] = "adamw", [OPTIM_LAMB] = "lamb"};
    const struct bert_config *model = &analysis->model;
    const struct bert_shape *shape = &analysis->shape;
    printf("model    %lld layers, hidden %lld, %lld heads, feed-forward %lld, vocabulary %lld%s, %s\n",
           (long long)model->num_hidden_layers, (long long)model->hidden_size, (long long)model->num_attention_heads,
           (long long)model->intermediate_size, (long long)model->vocab_size,
           analysis->vocab_assumed ? " (not given: BERT's)" : "", precision_name(analysis->form.compute));
    printf("step     %lld micro-batch%s of %lld sequences of %lld tokens, %lld of them masked; %s\n",
           (long long)analysis->micro_batches, analysis->micro_batches == 1 ? "" : "es", (long long)shape->sequences,
           (long long)shape->seq_len, (long long)shape->max_predictions, optimizers[analysis->optim.name]);
    printf("device   %s; %.3f Tflop/s (%s), %.1f GB/s (%s)\n", analysis->device, 1e-12 * analysis->flops,
           analysis->flops_given ? "given" : "measured", 1e-9 * analysis->bandwidth,
           analysis->bandwidth_given ? "given" : "measured");
    if (analysis->bandwidth > 0)
        printf("         arithmetic bounds operators of more than %.1f flop per byte, bandwidth the others\n",
               analysis->flops / analysis->bandwidth);
    printf("units    MB = 10^6 bytes; t = tokens x hidden 16-bit words = %.2f MB\n", 1e-6 * analysis->unit);
}

/* --- operators --- */

/* What tables count in. */
struct scale {
    const char *bytes, *flop, *seconds; /* "MB", "Gflop", "ms" */
    double a_byte, a_flop, a_second;    /* in these */
};
static const struct scale layer_scale = {"MB", "Gflop", "ms", 1e-6, 1e-9, 1e3};
static const struct scale step_scale = {"GB", "Tflop", "s", 1e-9, 1e-12, 1};

static void print_amounts(const struct analysis *analysis, const struct scale *scale, const struct account_row *row) {
    double bytes = row_bytes(row);
    printf(" %9lld %11.3f %11.2f %11.2f %12.2f %8.2f", (long long)row->count, scale->a_flop * row->flop,
           scale->a_byte * row->bytes_in, scale->a_byte * row->bytes_out, bytes / analysis->unit,
           bytes > 0 ? row->flop / bytes : 0);
}

static void print_operators(const struct analysis *analysis, const struct account *account, const struct scale *scale,
                            const char *title) {
    struct account_row total = account_total(account, ACCOUNT_ALL);
    printf("\n%s, level %s\n", title, fusion_name(analysis->shown));
    printf("%-16s %-8s %-13s %9s %11s %8s in %7s out %12s %8s %-9s %5s %s\n", "operator", "pass", "class", "count",
           scale->flop, scale->bytes, scale->bytes, "t", "flop/B", "bound by", "floor", scale->seconds);
    for (int r = 0; r < account->count; r++) {
        const struct account_row *row = &account->rows[r];
        printf("%-16s %-8s %-13s", op_info(row->op)->name, pass_name(row->pass), op_class_name(op_info(row->op)->kind));
        print_amounts(analysis, scale, row);
        printf(" %-9s %8.3f\n", compute_bound(analysis, row) ? "compute" : "bandwidth",
               scale->a_second * floor_seconds(analysis, row));
    }
    printf("%-16s %-8s %-13s", "all", "", "");
    print_amounts(analysis, scale, &total);
    printf(" %-9s %8.3f\n", "", scale->a_second * floor_total(analysis, account, ACCOUNT_ALL));
}

static void print_classes(const struct analysis *analysis, const struct account *account, const struct scale *scale,
                          const char *title) {
    struct account_row all = account_total(account, ACCOUNT_ALL);
    double floor = floor_total(analysis, account, ACCOUNT_ALL);
    printf("\n%s by class, level %s\n", title, fusion_name(analysis->shown));
    printf("%-14s %11s %6s %11s %6s %8s %-2s %6s\n", "class", scale->bytes, "%", scale->flop, "%", "floor",
           scale->seconds, "%");
    for (int class = CONTRACTION; class <= UPDATE; class ++) {
        struct account_row row = account_total(account, class);
        double least = floor_total(analysis, account, class);
        if (row.count)
            printf("%-14s %11.2f %6.1f %11.3f %6.1f %11.3f %6.1f\n", op_class_name(class),
                   scale->a_byte * row_bytes(&row), share(row_bytes(&row), row_bytes(&all)), scale->a_flop * row.flop,
                   share(row.flop, all.flop), scale->a_second * least, share(least, floor));
    }
}

/* --- levels --- */

static void print_level(const char *name, double bytes, const struct scale *scale, double unit, const double *others) {
    printf("%-8s %12.2f %14.2f", name, scale->a_byte * bytes, bytes / unit);
    for (int i = 0; i < 3; i++)
        printf(" %9.1f", percent_less(bytes, others[i]));
    printf("\n");
}

/* Bytes at each level, and how much less than at eager, none and paper that is. */
static void print_levels(const struct analysis *analysis, bool step, const struct scale *scale) {
    double bytes[FUSION_COUNT];
    for (int level = 0; level < FUSION_COUNT; level++) {
        const struct level_analysis *from = &analysis->levels[level];
        struct account_row total = account_total(step ? &from->step : &from->layer, ACCOUNT_ALL);
        bytes[level] = row_bytes(&total);
    }
    const double others[3] = {step ? analysis->eager_step : analysis->eager_layer, bytes[FUSION_NONE],
                              bytes[FUSION_PAPER]};
    printf("%-8s %12s %14s %9s %9s %9s\n", "level", scale->bytes, "t", "% < eager", "% < none", "% < paper");
    print_level("eager", others[0], scale, analysis->unit, others);
    for (int level = 0; level < FUSION_COUNT; level++)
        print_level(fusion_name(level), bytes[level], scale, analysis->unit, others);
}

static void print_totals(const struct analysis *analysis) {
    printf("\none encoder layer, forward and backward of the first micro-batch of a step\n");
    print_levels(analysis, false, &layer_scale);
    printf("each later micro-batch also reads the gradients that it adds to:");
    for (int level = 0; level < FUSION_COUNT; level++) {
        struct account_row total = account_total(&analysis->levels[level].layer, ACCOUNT_ALL);
        printf("%s %s %.2f t", level ? "," : "", fusion_name(level),
               (row_bytes(&total) + total.accumulated) / analysis->unit);
    }
    double erf = analysis->levels[FUSION_FULL].erf_bytes;
    if (erf > 0)
        printf(
            "\non a CUDA device full moves %.2f t more: the erf form of GELU is a kernel behind the product "
            "(model.hidden_act=gelu_new: inside it)",
            erf / analysis->unit);
    printf("\n\nthe whole step\n");
    print_levels(analysis, true, &step_scale);
    printf("\n%-8s %12s %14s %14s %14s\n", "level", "layer Gflop", "layer floor ms", "step Tflop", "step floor s");
    for (int level = 0; level < FUSION_COUNT; level++) {
        const struct level_analysis *from = &analysis->levels[level];
        printf("%-8s %12.3f %14.3f %14.4f %14.3f\n", fusion_name(level),
               1e-9 * account_total(&from->layer, ACCOUNT_ALL).flop,
               1e3 * floor_total(analysis, &from->layer, ACCOUNT_ALL),
               1e-12 * account_total(&from->step, ACCOUNT_ALL).flop, floor_total(analysis, &from->step, ACCOUNT_ALL));
    }
}

static void print_memory(const struct analysis *analysis) {
    printf("\npeak memory in MB (live: the largest set of activations alive at once, which the arena cannot beat)\n");
    printf("%-8s %10s %10s %10s %10s %10s %10s %10s\n", "level", "all", "weights", "gradients", "optimizer", "inputs",
           "arena", "live");
    for (int level = 0; level < FUSION_COUNT; level++) {
        const struct level_analysis *from = &analysis->levels[level];
        const struct plan *plan = &from->plan;
        printf("%-8s %10.1f %10.1f %10.1f %10.1f %10.1f %10.1f %10.1f\n", fusion_name(level),
               1e-6 * (double)from->peak_bytes, 1e-6 * (double)plan->weight_bytes, 1e-6 * (double)plan->gradient_bytes,
               1e-6 * (double)plan->state_bytes, 1e-6 * (double)plan->input_bytes, 1e-6 * (double)plan->arena_bytes,
               1e-6 * (double)plan->live_bytes);
    }
    for (int level = 0; level < FUSION_COUNT && analysis->memory > 0; level++)
        printf("%s%-8s %lld sequences of %lld tokens\n",
               level ? "" : "\nlargest micro-batch that fits the memory given\n", fusion_name(level),
               (long long)analysis->levels[level].largest, (long long)analysis->shape.seq_len);
}

/* --- measured --- */

static void print_measured_operator(const struct analysis *analysis, const struct account_row *row, double all) {
    double bandwidth = row->seconds > 0 ? row_bytes(row) / row->seconds : 0;
    printf("%-18s %-8s %-13s %7lld %12.4f %6.1f %9.2f %10.2f %7.1f %7.1f\n", op_info(row->op)->name,
           pass_name(row->pass), op_class_name(op_info(row->op)->kind), (long long)row->count, 1e3 * row->seconds,
           share(row->seconds, all), 1e-9 * bandwidth, row->seconds > 0 ? 1e-9 * row->flop / row->seconds : 0,
           share(floor_seconds(analysis, row), row->seconds), share(bandwidth, analysis->bandwidth));
}

/* MUE of the whole: what the graph at level full would have to move, over what this one moves, times the bandwidth
 * reached over the device's. */
static void print_mue(const struct analysis *analysis, const struct account_row *all) {
    struct account least;
    const struct graph *full = analysis->levels[FUSION_FULL].graph;
    account_step(full, &full->capacity, 1, NULL, &least);
    struct account_row minimum = account_total(&least, ACCOUNT_ALL);
    double reached = row_bytes(all) / all->seconds;
    printf("\nMUE of the step: %.1f MB at level full / %.1f MB moved x %.2f / %.2f GB/s = %.1f %%\n",
           1e-6 * row_bytes(&minimum), 1e-6 * row_bytes(all), 1e-9 * reached, 1e-9 * analysis->bandwidth,
           share(row_bytes(&minimum) / row_bytes(all) * reached, analysis->bandwidth));
}

void analysis_print_measured(const struct analysis *analysis) {
    const struct account *measured = &analysis->measured;
    struct account_row all = account_total(measured, ACCOUNT_ALL);
    printf("\nmeasured: one micro-batch and the update, level %s\n", fusion_name(analysis->shown));
    printf("roof: floor / measured; more than 100 where operands were in a cache\n");
    printf("MUE of an operator: bandwidth reached / bandwidth, as its bytes are the fewest that it can move\n");
    printf("%-18s %-8s %-13s %7s %12s %6s %9s %10s %7s %7s\n", "operator", "pass", "class", "count", "ms", "%", "GB/s",
           "Gflop/s", "roof %", "MUE %");
    for (int r = 0; r < measured->count; r++)
        print_measured_operator(analysis, &measured->rows[r], all.seconds);
    printf("\n%-14s %12s %6s %9s %10s %7s\n", "class", "ms", "%", "GB/s", "Gflop/s", "roof %");
    for (int class = CONTRACTION; class <= UPDATE; class ++) {
        struct account_row row = account_total(measured, class);
        if (row.seconds > 0)
            printf("%-14s %12.3f %6.1f %9.2f %10.2f %7.1f\n", op_class_name(class), 1e3 * row.seconds,
                   share(row.seconds, all.seconds), 1e-9 * row_bytes(&row) / row.seconds, 1e-9 * row.flop / row.seconds,
                   share(floor_total(analysis, measured, class), row.seconds));
    }
    printf("%-14s %12.3f %6.1f %9.2f %10.2f %7.1f\n", "all", 1e3 * all.seconds, 100.0,
           1e-9 * row_bytes(&all) / all.seconds, 1e-9 * all.flop / all.seconds,
           share(floor_total(analysis, measured, ACCOUNT_ALL), all.seconds));
    print_mue(analysis, &all);
}

void analysis_print(const struct analysis *analysis) {
    const struct level_analysis *shown = &analysis->levels[analysis->shown];
    print_head(analysis);
    print_operators(analysis, &shown->layer, &layer_scale, "one encoder layer, forward and backward");
    print_classes(analysis, &shown->layer, &layer_scale, "one encoder layer");
    print_operators(analysis, &shown->step, &step_scale, "the whole step");
    print_classes(analysis, &shown->step, &step_scale, "the whole step");
    print_totals(analysis);
    print_memory(analysis);
    if (analysis->measured.count)
        analysis_print_measured(analysis);
}
