/* metrics.jsonl: one JSON object a line, one line a step, and lines with eval_ keys. Two runs that compute the same
 * thing write the same lines but for these keys: time, elapsed, *_per_s, mfu, waited_share. */
#ifndef BERTH_TRAIN_METRICS_H
#define BERTH_TRAIN_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* One step. A NAN value has no line entry (nsp_loss without NSP, mfu where the peak is unknown). */
struct metrics_step {
    int64_t step;                             /* 1-based */
    double loss;                              /* mlm_loss + nsp_loss, nats */
    double mlm_loss, nsp_loss;                /* means over the global batch, nats */
    double mlm_accuracy;                      /* share of masked tokens predicted right, in training (dropout on) */
    double lr, grad_norm;                     /* grad_norm before clipping */
    double loss_scale;                        /* NAN unless fp16 */
    int64_t epoch;                            /* from 0 */
    int64_t skipped;                          /* so far */
    int64_t sequences, tokens, masked_tokens; /* of this step, all ranks, real ones (nothing is padding) */
    double sequences_per_s, tokens_per_s;
    double padded_tokens_per_s; /* as if every sequence were padded to the shards' length, as others count */
    double mfu;                 /* model flop utilization, 0..1 */
    double waited_share;        /* share of the step spent waiting for data */
    double elapsed;             /* seconds of training so far, over all processes of the run */
    double time;                /* clock_unix() */
};

/* An evaluation on held-out data after `step`. NAN: no entry. */
struct metrics_eval {
    int64_t step;
    double loss, mlm_loss, mlm_accuracy, nsp_loss, nsp_accuracy;
    int64_t sequences, masked_tokens;
    double sequences_per_s, time;
};

struct metrics {
    char *path;
    int descriptor; /* -1: closed */
    int64_t offset; /* bytes in the file */
};

/* Opens RUN/metrics.jsonl and cuts it at `offset` bytes: 0 for a fresh run, trainer_state.metrics_offset on resume. A
 * shorter file (someone removed it) is continued with a warning. Zero-initialize; not on ranks above 0. */
status metrics_open(struct metrics *metrics, const char *run, int64_t offset);
void metrics_close(struct metrics *metrics);
status metrics_add_step(struct metrics *metrics, const struct metrics_step *step);
status metrics_add_eval(struct metrics *metrics, const struct metrics_eval *eval);
/* Before a checkpoint: flush to disk, and the byte offset to keep in it. */
status metrics_sync(struct metrics *metrics, int64_t *offset);

#endif
