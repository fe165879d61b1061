/* `berth analyze --measure`: a few steps on random tokens, timed node by node. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "cmd/analyze.h"
#include "cmd/synthetic.h"
#include "dist/dist.h"
#include "train/network.h"

enum { FEWEST_STEPS = 3, MOST_STEPS = 20 };
static const double ENOUGH_SECONDS = 3;

/* One step to warm up, then as many as make a few seconds. seconds: [nodes], the mean of a step. */
static status time_steps(struct network *network, const struct step_data *data, double *seconds) {
    struct step_result result;
    TRY(network_step(network, data, &result));
    exec_profile(network->exec, seconds);
    double began = clock_seconds();
    int steps = 0;
    for (; steps < FEWEST_STEPS || (steps < MOST_STEPS && clock_seconds() - began < ENOUGH_SECONDS); steps++)
        TRY(network_step(network, data, &result));
    log_info("measured %d steps of one micro-batch in %.1f s", steps, clock_seconds() - began);
    for (int n = 0; n < network->graph->node_count; n++)
        seconds[n] /= steps;
    return OK;
}

static status measure(const struct analysis *analysis, struct network *network, double *seconds) {
    struct synthetic synthetic = {0};
    TRY(network_start(network, &analysis->optim, analysis->seed));
    TRY(network_init_weights(network, analysis->seed));
    synthetic_make(&synthetic, &analysis->model, &analysis->shape, analysis->seed);
    status code = time_steps(network, &synthetic.step, seconds);
    synthetic_free(&synthetic);
    return code;
}

status analysis_measure(struct analysis *analysis, struct backend *backend) {
    const struct level_analysis *level = &analysis->levels[analysis->shown];
    struct network network = {.config = analysis->model,
                              .backend = backend,
                              .comm = comm_self(),
                              .graph = level->graph,
                              .io = level->io,
                              .optim = level->optim};
    double *seconds = xcalloc((size_t)level->graph->node_count, sizeof *seconds);
    status code = measure(analysis, &network, seconds);
    if (code == OK)
        account_step(level->graph, &level->graph->capacity, 1, seconds, &analysis->measured);
    network.graph = NULL; /* they stay the analysis's and the caller's */
    network.backend = NULL;
    network_free(&network);
    free(seconds);
    return code;
}
