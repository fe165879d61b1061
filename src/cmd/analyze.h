/* `berth analyze`: what its files share. analyze.c fills a struct analysis, the others print, draw or measure it. */
#ifndef BERTH_CMD_ANALYZE_H
#define BERTH_CMD_ANALYZE_H

#include "base/text.h"
#include "config/settings.h"
#include "graph/account.h"
#include "graph/backend.h"
#include "graph/fuse.h"
#include "graph/plan.h"
#include "model/bert.h"
#include "optim/optim.h"
#include "train/network.h"

/* The step as one fusion level runs it. */
struct level_analysis {
    struct graph *graph;
    struct bert_tensors io;
    struct optim_tensors optim;
    struct account layer; /* one encoder layer in the first micro-batch */
    struct account step;
    struct plan plan;
    double erf_bytes;   /* account_erf_bytes of a layer */
    int64_t peak_bytes; /* of device memory, all of it */
    int64_t largest;    /* sequences of the largest micro-batch that fits --memory; 0: none, or not asked */
};

struct analysis {
    const char *file;
    struct bert_config model;
    struct bert_shape shape; /* a micro-batch: all sequences of full length, with max_predictions masks each */
    struct optim_config optim;
    struct network_form form; /* of the settings; its level is that of each struct level_analysis here */
    bool vocab_assumed;
    int64_t steps, step_sequences, micro_batches; /* of the run; of a step */
    uint64_t seed;
    double unit;             /* t: bytes of tokens x hidden 16-bit words */
    double flops, bandwidth; /* of the device, flop/s and bytes/s; 0: unknown */
    bool flops_given, bandwidth_given;
    char device[200];
    double memory; /* bytes to fit; 0: not asked */
    struct level_analysis levels[FUSION_COUNT];
    double eager_layer, eager_step; /* bytes */
    enum fusion shown;
    struct account measured; /* one micro-batch and the update at level `shown`, with seconds; no rows: not asked */
};

/* By options; 0: as the settings say. */
struct requested_shape {
    int64_t batch, seq_len, max_predictions;
};

/* Model, micro-batch, optimizer and form of the run. BAD_INPUT for a shape that the model cannot take. */
status analysis_describe(struct analysis *analysis, const struct settings *settings,
                         const struct requested_shape *requested);

static inline double row_bytes(const struct account_row *row) { return row->bytes_in + row->bytes_out; }

/* The least seconds that one row (or a sum over operators: one at a time) can take on the device; 0 where unknown. */
double floor_seconds(const struct analysis *analysis, const struct account_row *row);
/* Sum of the floors of the rows of a class, or of all (ACCOUNT_ALL). */
double floor_total(const struct analysis *analysis, const struct account *account, int class);
/* Does arithmetic, rather than bytes, bound this row? */
bool compute_bound(const struct analysis *analysis, const struct account_row *row);

void analysis_print(const struct analysis *analysis);
void analysis_print_measured(const struct analysis *analysis);
void analysis_print_json(const struct analysis *analysis);

const char *class_color(enum op_class class); /* "#3b6ea8" */

/* Pictures: layer 0 as Graphviz before fusion and at level `shown`; bytes of a layer at all levels as SVG. */
status analysis_write_dot(const struct analysis *analysis, const char *path);
status analysis_write_svg(const struct analysis *analysis, const char *path);

/* Runs a few steps of one micro-batch of random tokens at level `shown` and fills analysis->measured. */
status analysis_measure(struct analysis *analysis, struct backend *backend);

#endif
