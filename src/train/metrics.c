#include "train/metrics.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"

status metrics_open(struct metrics *metrics, const char *run, int64_t offset) {
    *metrics = (struct metrics){.path = path_join(run, "metrics.jsonl"), .descriptor = -1, .offset = offset};
    int64_t bytes = 0;
    status code = OK;
    if (file_exists(metrics->path))
        code = file_size(metrics->path, &bytes);
    if (code == OK && bytes < offset) {
        log_warn("%s: has %lld bytes, the checkpoint knew of %lld: earlier lines are lost", metrics->path,
                 (long long)bytes, (long long)offset);
        metrics->offset = bytes;
    }
    if (code == OK)
        code = file_open_append(metrics->path, metrics->offset, &metrics->descriptor);
    if (code != OK)
        metrics_close(metrics);
    return code;
}

void metrics_close(struct metrics *metrics) {
    if (!metrics->path)
        return;
    if (metrics->descriptor >= 0)
        close(metrics->descriptor);
    free(metrics->path);
    *metrics = (struct metrics){.descriptor = -1};
}

static void add_int(struct text *line, const char *key, int64_t value) {
    text_printf(line, "%s\"%s\": %lld", line->length > 1 ? ", " : "", key, (long long)value);
}

static void add_real(struct text *line, const char *key, double value) {
    if (isnan(value))
        return;
    text_printf(line, "%s\"%s\": ", line->length > 1 ? ", " : "", key);
    json_add_double(line, value);
}

/* One write a line, so that a reader of the growing file sees whole lines. */
static status end_line(struct metrics *metrics, struct text *line) {
    text_add(line, "}\n");
    status code = file_append(metrics->descriptor, metrics->path, line->data, line->length);
    if (code == OK)
        metrics->offset += (int64_t)line->length;
    text_free(line);
    return code;
}

status metrics_add_step(struct metrics *metrics, const struct metrics_step *step) {
    struct text line = {0};
    text_add(&line, "{");
    add_int(&line, "step", step->step);
    add_real(&line, "loss", step->loss);
    add_real(&line, "mlm_loss", step->mlm_loss);
    add_real(&line, "nsp_loss", step->nsp_loss);
    add_real(&line, "mlm_accuracy", step->mlm_accuracy);
    add_real(&line, "lr", step->lr);
    add_real(&line, "grad_norm", step->grad_norm);
    add_real(&line, "loss_scale", step->loss_scale);
    add_int(&line, "epoch", step->epoch);
    add_int(&line, "skipped", step->skipped);
    add_int(&line, "sequences", step->sequences);
    add_int(&line, "tokens", step->tokens);
    add_int(&line, "masked_tokens", step->masked_tokens);
    add_real(&line, "sequences_per_s", step->sequences_per_s);
    add_real(&line, "tokens_per_s", step->tokens_per_s);
    add_real(&line, "padded_tokens_per_s", step->padded_tokens_per_s);
    add_real(&line, "mfu", step->mfu);
    add_real(&line, "waited_share", step->waited_share);
    add_real(&line, "elapsed", step->elapsed);
    add_real(&line, "time", step->time);
    return end_line(metrics, &line);
}

status metrics_add_eval(struct metrics *metrics, const struct metrics_eval *eval) {
    struct text line = {0};
    text_add(&line, "{");
    add_int(&line, "step", eval->step);
    add_real(&line, "eval_loss", eval->loss);
    add_real(&line, "eval_mlm_loss", eval->mlm_loss);
    add_real(&line, "eval_mlm_accuracy", eval->mlm_accuracy);
    add_real(&line, "eval_nsp_loss", eval->nsp_loss);
    add_real(&line, "eval_nsp_accuracy", eval->nsp_accuracy);
    add_int(&line, "eval_sequences", eval->sequences);
    add_int(&line, "eval_masked_tokens", eval->masked_tokens);
    add_real(&line, "eval_sequences_per_s", eval->sequences_per_s);
    add_real(&line, "time", eval->time);
    return end_line(metrics, &line);
}

status metrics_sync(struct metrics *metrics, int64_t *offset) {
    *offset = metrics->offset;
    return file_flush(metrics->descriptor, metrics->path);
}
