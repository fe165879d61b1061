/* Checkpoints. One is a folder RUN/step-00001000/: a HuggingFace model folder (hf_folder.h) with two more files,
 *     optimizer.safetensors   both moments of every parameter, f32, as "m.<HuggingFace name>" and "v.<HuggingFace
 * name>" trainer.json            struct trainer_state It is written as step-00001000.tmp/, every file flushed, and
 * renamed into place; then the relative symlink RUN/latest is replaced by rename; then old checkpoints go. Whatever
 * stops this at any point, the previous checkpoint stays usable. */
#ifndef BERTH_TRAIN_CHECKPOINT_H
#define BERTH_TRAIN_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "train/hf_folder.h"

/* Everything beside weights and moments that a run needs to go on exactly where it was. Strings are owned (heap). */
struct trainer_state {
    int64_t step;           /* optimizer steps done, skipped ones not counted */
    int64_t skipped;        /* steps skipped because a gradient overflowed */
    int64_t consumed;       /* sequences of the global stream consumed since the start of the run */
    int64_t epoch;          /* place in the data, as reader_position gives it: epoch, ... */
    int64_t epoch_consumed; /* ... and sequences of it consumed */
    uint64_t seed;
    int64_t threads, ranks;
    char *precision;          /* "fp32", "bf16", "fp16" */
    double loss_scale;        /* of fp16; NAN: none */
    int64_t loss_scale_steps; /* since it changed */
    char *manifest;           /* JSON text of dataset_manifest() */
    char *settings;           /* effective settings as INI text */
    int64_t metrics_offset;   /* bytes of metrics.jsonl that belong to this checkpoint: resume cuts it there */
    double best_eval_loss;    /* NAN: none yet */
    double elapsed_seconds;   /* spent training, over all processes of the run */
};
void trainer_state_free(struct trainer_state *state); /* frees the strings and zeroes the struct */
void trainer_state_print(const struct trainer_state *state, struct text *json);
/* BAD_INPUT if the file is missing, damaged, or of another format version. */
status trainer_state_read(const char *path, struct trainer_state *state);

struct checkpoint_model {
    struct hf_model hf;
    int moment1, moment2; /* flat STATE tensors [f] f32 */
};

struct checkpoint_rotation {
    int64_t keep;            /* newest checkpoints kept; 0: all */
    int64_t milestone_every; /* checkpoints at multiples of this step are kept for good; 0: none */
};

/* Write a checkpoint for state->step into `run` (which must exist), move `latest` to it, and with `best` the symlink
 * `best` too; then remove older checkpoints: all but the newest `keep`, milestones and the targets of `latest` and
 * `best`. Checkpoints of later steps (from before a resume at an earlier one) are left alone until they are replaced.
 * The caller flushes metrics first. An error leaves the previous checkpoint and its `latest`. Only rank 0 calls this.
 */
status checkpoint_save(const char *run, const struct checkpoint_rotation *rotation,
                       const struct checkpoint_model *model, const struct trainer_state *state, bool best);

/* At the start of a run, under its lock: finish or undo what a crash left (step-*.tmp, step-*.old, half-made links). */
status checkpoint_clean(const char *run);

/* The checkpoint a run goes on from: where `latest` points if that is complete, else the newest complete one;
 * *folder = NULL if there is none. The caller frees it. */
status checkpoint_latest(const char *run, char **folder);

/* The step in a checkpoint folder's name, "step-00001000"; -1 for any other name. */
int64_t checkpoint_step(const char *name);

/* For commands that take "a run or a checkpoint": a run folder becomes its latest checkpoint, a folder with config.json
 * or model.safetensors stays as it is. BAD_INPUT if it is neither. The caller frees *folder. */
status checkpoint_resolve(const char *path, char **folder);

/* trainer.json. BAD_INPUT if it is missing, damaged, of a newer format, or its step is not that of the folder's name.
 */
status checkpoint_read_state(const char *folder, struct trainer_state *state);

/* Resume: weights (into `master` only, see hf_folder_load) and moments, bit for bit, and the state. Every tensor of
 * both files is checked (present, shape, written at this step) before the first is loaded; config.json must describe
 * the same shapes. BAD_INPUT in one line otherwise. */
status checkpoint_load(const char *folder, const struct checkpoint_model *model, struct trainer_state *state);

/* `model.init_optimizer`: the moments alone, into a fresh run that took its weights from the same folder. */
status checkpoint_load_moments(const char *folder, const struct checkpoint_model *model);

#endif
