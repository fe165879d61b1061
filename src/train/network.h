/* A BERT on a device: graph, executor and what feeds it. What a step and an evaluation do, without files or settings.
 */
#ifndef BERTH_TRAIN_NETWORK_H
#define BERTH_TRAIN_NETWORK_H

#include "data/reader.h"
#include "graph/comm.h"
#include "graph/exec.h"
#include "graph/fuse.h"
#include "model/bert.h"
#include "optim/optim.h"
#include "train/feed.h"

/* A step's results are read when the next one is queued, so that the device never waits for the host. */
enum { STEPS_UNDER_WAY = 2 };

struct step_result {
    int64_t step, skipped_steps;       /* optimizer steps done and skipped so far, this one included */
    double mlm_loss, nsp_loss, loss;   /* means over the global batch, before the update; nsp_loss NAN without NSP */
    double mlm_accuracy;               /* NAN where no token is masked */
    double grad_norm;                  /* before clipping */
    double loss_scale;                 /* of this step's gradients; NAN unless f16 */
    bool skipped;                      /* the norm was not finite: nothing was updated */
    int64_t sequences, tokens, masked; /* of the global batch */
    double flop;                       /* model flop of the global batch, forward and backward */
    double seconds; /* since the step before it was done; where none was under way, what the data took and the step */
};

/* What a process may ask all others for (the trainer decides what each number means). */
enum { NETWORK_ASKS = 8 };

struct network {
    struct bert_config config;
    struct backend *backend; /* owned */
    struct comm *comm;       /* the caller's */
    struct nccl *nccl;       /* sums gradients on the device; NULL: comm does, on the host */
    /* The trainer sets what this process asks for; `asked` is how many processes asked, the same on all ranks, since
     * the last sum over them: each step makes two. */
    double asks[NETWORK_ASKS], asked[NETWORK_ASKS];
    struct graph *graph;
    struct bert_tensors io;
    struct optim_tensors optim;
    struct exec *exec;
    struct feed *feed;
    /* steps under way: their results, in memory of the host that the device writes, and what is known without it */
    struct step_sums *sums; /* [STEPS_UNDER_WAY] */
    struct step_result results[STEPS_UNDER_WAY];
    int64_t queued; /* steps so far */
    int under_way;  /* of these, the last ones, whose results were not read */
};

/* How a network is computed; what it computes does not depend on it, but for rounding. */
struct network_form {
    enum dtype compute; /* F32, BF16 or F16 */
    enum fusion fusion;
    bool checkpoint;     /* of a layer keep only the input (graph/checkpoint.h) */
    const char *without; /* a fusion rule to leave out, for tests; NULL: none */
};

/* The graph of a step; `optim` as below. For who owns no network, too. */
status network_graph(const struct bert_config *config, const struct bert_shape *shape, const struct network_form *form,
                     const struct optim_config *optim, int64_t steps, struct graph **graph, struct bert_tensors *io,
                     struct optim_tensors *optim_tensors);

/* Builds graph, plan and device memory; weights are left zero. Takes the backend over, also on failure; comm outlives
 * the network. `optim` NULL: for evaluation only; `seed` keys dropout; `steps` is the length of the learning-rate
 * table. */
status network_new(struct network *network, const struct bert_config *config, const struct bert_shape *shape,
                   const struct network_form *form, const struct optim_config *optim, int64_t steps, uint64_t seed,
                   struct backend *backend, struct comm *comm);
/* The last part of it: for a network whose graph, tensors, backend and comm are there. */
status network_start(struct network *network, const struct optim_config *optim, uint64_t seed);
void network_free(struct network *network);
/* "fp32", "bf16", "fp16": the dtype as settings and checkpoints call it. */
const char *precision_name(enum dtype compute);
/* Fresh weights from the seed, and the copies in the compute dtype. */
status network_init_weights(struct network *network, uint64_t seed);
/* After master weights were uploaded: rewrite their copies in the compute dtype. */
status network_sync_weights(struct network *network);

/* Hands one optimizer step over this rank's share of a global batch to the device. At most STEPS_UNDER_WAY at once. */
status network_queue(struct network *network, const struct step_data *data);
/* Waits for the oldest step under way. */
status network_result(struct network *network, struct step_result *result);
/* Both: no other step may be under way. */
status network_step(struct network *network, const struct step_data *data, struct step_result *result);

/* f16: the loss scale and the steps since it changed. NAN, and nothing, in other precisions. */
status network_get_loss_scale(struct network *network, double scale[2]);
status network_set_loss_scale(struct network *network, const double scale[2]);

struct evaluation {
    double mlm_loss, mlm_accuracy, nsp_loss,
        nsp_accuracy; /* means over all masked tokens, all sequences; NAN for none */
    int64_t sequences, masked_tokens;
};

/* Forward passes over a data set in file order, dropout off: every row once, or the first `limit` rows,
 * rounded up to whole micro-batches (0: all). */
status network_evaluate(struct network *network, const struct dataset *dataset, int64_t micro_batch, int64_t limit,
                        struct evaluation *out);

#endif
