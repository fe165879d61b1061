/* The optimizers, as operators appended to the graph: they run once a step, on the flat buffers.
 *
 * With g the gradient, c = clip / max(clip, norm) (1 when clip is 0), t the update from 1, b1t = 1 - beta1^t and
 * b2t = 1 - beta2^t (both 1 without bias correction), d = weight_decay where the parameter decays and 0 elsewhere:
 *
 *   all      m = beta1 m + (1 - beta1) g',  v = beta2 v + (1 - beta2) g'^2,  u = (m / b1t) / (sqrt(v / b2t) + epsilon)
 *   adam     g' = c g + d p       p = p - lr u
 *   adamw    g' = c g             p = p - lr (u + d p)
 *   lamb     g' = c g             r = u + d p per parameter tensor; p = p - lr (|p| / |r|) r, with ratio 1 where
 *                                 d = 0 or a norm is 0
 *
 * adamw decays by lr·d like torch.optim.AdamW. Nothing changes in a step whose gradient norm is not finite.
 *
 * In f16 the gradients in memory are g times the loss scale: of it the norm, and all else above, is freed. An overflow
 * halves the scale, growth_interval updates since it last changed double it. */
#ifndef BERTH_OPTIM_OPTIM_H
#define BERTH_OPTIM_OPTIM_H

#include "graph/graph.h"

enum optim_name { OPTIM_ADAM, OPTIM_ADAMW, OPTIM_LAMB };

struct optim_config {
    enum optim_name name;
    double beta1, beta2, epsilon, weight_decay, clip;
    bool bias_correction;
    double loss_scale; /* of f16, at the start of a run; from LOSS_SCALE_LEAST to LOSS_SCALE_MOST */
    int64_t growth_interval;
};

struct optim_tensors {
    int m, v;     /* [f] f32 moments, STATE */
    int step;     /* [s] i64: updates done, updates skipped; STATE */
    int lr_table; /* [x] f32: entry 0 is the rate of the first update; STATE */
    int norm; /* [1] f64: gradient norm before clipping; in f16 [s], with the loss scale that it is freed of; RESULT */
};

/* Appends the update pass to a graph whose parameters are closed. DIM_X of its capacity must be set: the number of
 * steps. */
status optim_append(struct graph *graph, const struct optim_config *config, struct optim_tensors *out);

#endif
