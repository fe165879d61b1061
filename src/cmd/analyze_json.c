/* `berth analyze --json`: one object. Bytes, flop and seconds are plain numbers. */
#include <stdio.h>

#include "base/json.h"
#include "cmd/analyze.h"

static void add_number(struct text *out, const char *key, double value, bool first) {
    text_printf(out, "%s\"%s\": ", first ? "" : ", ", key);
    json_add_double(out, value);
}

static void add_string(struct text *out, const char *key, const char *value, bool first) {
    text_printf(out, "%s\"%s\": ", first ? "" : ", ", key);
    json_add_string(out, value);
}

static void add_memory(struct text *out, const struct analysis *analysis, const struct level_analysis *level) {
    const struct plan *plan = &level->plan;
    const struct {
        const char *key;
        int64_t bytes;
    } rows[] = {{"weights", plan->weight_bytes},  {"gradients", plan->gradient_bytes},
                {"optimizer", plan->state_bytes}, {"inputs", plan->input_bytes},
                {"arena", plan->arena_bytes},     {"live_activations", plan->live_bytes}};
    add_number(out, "peak_memory_bytes", (double)level->peak_bytes, false);
    text_add(out, ", \"memory\": {");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        add_number(out, rows[i].key, (double)rows[i].bytes, i == 0);
    text_add(out, "}");
    if (analysis->memory > 0)
        add_number(out, "largest_micro_batch", (double)level->largest, false);
}

static void add_level(struct text *out, const struct analysis *analysis, const struct level_analysis *level) {
    struct account_row layer = account_total(&level->layer, ACCOUNT_ALL);
    struct account_row step = account_total(&level->step, ACCOUNT_ALL);
    text_add(out, "{");
    add_number(out, "layer_bytes", row_bytes(&layer), true);
    add_number(out, "layer_bytes_accumulating", row_bytes(&layer) + layer.accumulated, false);
    add_number(out, "layer_erf_gelu_bytes_on_cuda", level->erf_bytes, false);
    add_number(out, "layer_flop", layer.flop, false);
    add_number(out, "layer_floor_seconds", floor_total(analysis, &level->layer, ACCOUNT_ALL), false);
    add_number(out, "step_bytes", row_bytes(&step), false);
    add_number(out, "step_flop", step.flop, false);
    add_number(out, "step_floor_seconds", floor_total(analysis, &level->step, ACCOUNT_ALL), false);
    add_memory(out, analysis, level);
    text_add(out, "}");
}

static void add_levels(struct text *out, const struct analysis *analysis) {
    text_add(out, ", \"levels\": {");
    for (int level = 0; level < FUSION_COUNT; level++) {
        text_printf(out, "%s\"%s\": ", level ? ", " : "", fusion_name(level));
        add_level(out, analysis, &analysis->levels[level]);
    }
    text_add(out, "}, \"eager\": {");
    add_number(out, "layer_bytes", analysis->eager_layer, true);
    add_number(out, "step_bytes", analysis->eager_step, false);
    text_add(out, "}");
}

static void add_rows(struct text *out, const struct account *account, enum fusion level, bool *first) {
    for (int r = 0; r < account->count; r++) {
        const struct account_row *row = &account->rows[r];
        text_add(out, *first ? "{" : ", {");
        add_string(out, "level", fusion_name(level), true);
        add_string(out, "name", op_info(row->op)->name, false);
        add_string(out, "pass", pass_name(row->pass), false);
        add_string(out, "class", op_class_name(op_info(row->op)->kind), false);
        add_number(out, "count", (double)row->count, false);
        add_number(out, "flop", row->flop, false);
        add_number(out, "bytes_in", row->bytes_in, false);
        add_number(out, "bytes_out", row->bytes_out, false);
        add_number(out, "bytes_accumulating", row->accumulated, false);
        if (row->seconds > 0)
            add_number(out, "seconds", row->seconds, false);
        text_add(out, "}");
        *first = false;
    }
}

static void add_operators(struct text *out, const struct analysis *analysis, const char *key, bool step) {
    bool first = true;
    text_printf(out, ", \"%s\": [", key);
    for (int level = 0; level < FUSION_COUNT; level++)
        add_rows(out, step ? &analysis->levels[level].step : &analysis->levels[level].layer, level, &first);
    text_add(out, "]");
}

static void add_head(struct text *out, const struct analysis *analysis) {
    add_string(out, "file", analysis->file, true);
    add_string(out, "precision", precision_name(analysis->form.compute), false);
    add_number(out, "batch", (double)analysis->shape.sequences, false);
    add_number(out, "seq_len", (double)analysis->shape.seq_len, false);
    add_number(out, "max_predictions", (double)analysis->shape.max_predictions, false);
    add_number(out, "micro_batches", (double)analysis->micro_batches, false);
    add_number(out, "t_bytes", analysis->unit, false);
    text_add(out, ", \"device\": {");
    add_string(out, "name", analysis->device, true);
    add_number(out, "flops", analysis->flops, false);
    add_number(out, "bytes_per_s", analysis->bandwidth, false);
    text_add(out, "}");
}

void analysis_print_json(const struct analysis *analysis) {
    struct text out = {0};
    bool first = true;
    text_add(&out, "{");
    add_head(&out, analysis);
    add_levels(&out, analysis);
    add_operators(&out, analysis, "operators", true);
    add_operators(&out, analysis, "layer_operators", false);
    if (analysis->measured.count) {
        text_add(&out, ", \"measured\": [");
        add_rows(&out, &analysis->measured, analysis->shown, &first);
        text_add(&out, "]");
    }
    text_add(&out, "}");
    puts(out.data);
    text_free(&out);
}
