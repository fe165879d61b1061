#include "train/network.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "dist/dist.h"
#include "graph/checkpoint.h"

/* What the device counts in a step. */
struct step_sums {
    double mlm[2], nsp[2]; /* sum of losses, number of right predictions */
    double norm[2];        /* of the gradients; in f16 the loss scale */
    int64_t step[2];       /* done, skipped */
};

const char *precision_name(enum dtype compute) { return compute == F32 ? "fp32" : compute == BF16 ? "bf16" : "fp16"; }

status network_graph(const struct bert_config *config, const struct bert_shape *shape, const struct network_form *form,
                     const struct optim_config *optim, int64_t steps, struct graph **graph, struct bert_tensors *io,
                     struct optim_tensors *optim_tensors) {
    TRY(bert_build(config, shape, form->compute, graph, io));
    if (optim) {
        sizes_set(&(*graph)->capacity, DIM_X, steps);
        TRY(optim_append(*graph, optim, optim_tensors));
    }
    TRY(graph_fuse(*graph, form->fusion, form->checkpoint, form->without));
    if (form->checkpoint)
        graph_checkpoint(*graph);
    return OK;
}

status network_start(struct network *network, const struct optim_config *optim, uint64_t seed) {
    struct backend *backend = network->backend;
    TRY(comm_agree(network->comm, exec_new(&network->exec, network->graph, backend, seed)));
    if (optim && network->comm->ranks > 1 && backend->stream)
        TRY(nccl_new(&network->nccl, network->comm, backend->stream));
    network->feed = feed_new(network->exec, network->graph, &network->config, &network->io);
    if (!optim)
        return OK;
    TRY(backend->host_memory_new(backend, (void **)&network->sums, STEPS_UNDER_WAY * sizeof *network->sums));
    return network_set_loss_scale(network, (const double[]){optim->loss_scale, 0});
}

status network_new(struct network *network, const struct bert_config *config, const struct bert_shape *shape,
                   const struct network_form *form, const struct optim_config *optim, int64_t steps, uint64_t seed,
                   struct backend *backend, struct comm *comm) {
    *network = (struct network){.config = *config, .backend = backend, .comm = comm};
    status code =
        network_graph(&network->config, shape, form, optim, steps, &network->graph, &network->io, &network->optim);
    if (code == OK)
        code = network_start(network, optim, seed);
    if (code != OK)
        network_free(network);
    return code;
}

void network_free(struct network *network) {
    feed_free(network->feed);
    if (network->sums)
        exec_backend(network->exec)->host_memory_free(exec_backend(network->exec), network->sums);
    if (network->nccl)
        network->backend->wait(network->backend);
    nccl_free(network->nccl);
    exec_free(network->exec);
    graph_free(network->graph);
    if (network->backend)
        network->backend->free(network->backend);
    *network = (struct network){0};
}

status network_init_weights(struct network *network, uint64_t seed) {
    for (int p = 0; p < network->graph->parameter_count; p++) {
        const struct parameter *parameter = &network->graph->parameters[p];
        float *values = xmalloc((size_t)(parameter->rows * parameter->columns) * sizeof *values);
        bert_init_parameter(&network->config, parameter, seed, values);
        status code = exec_upload_slice(network->exec, network->graph->master, p, values);
        free(values);
        TRY(code);
    }
    return network_sync_weights(network);
}

status network_sync_weights(struct network *network) {
    const struct graph *graph = network->graph;
    if (graph->weights == graph->master)
        return OK;
    for (int p = 0; p < graph->parameter_count; p++) {
        int64_t count = graph->parameters[p].rows * graph->parameters[p].columns;
        float *values = xmalloc((size_t)count * sizeof *values);
        uint16_t *rounded = xmalloc((size_t)count * sizeof *rounded);
        status code = exec_download_slice(network->exec, graph->master, p, values);
        for (int64_t i = 0; i < count; i++)
            rounded[i] = graph->compute == F16 ? f16_from_float(values[i]) : bf16_from_float(values[i]);
        if (code == OK)
            code = exec_upload_slice(network->exec, graph->weights, p, rounded);
        free(values);
        free(rounded);
        TRY(code);
    }
    return OK;
}

static double flop_of(const struct bert_config *config, const struct batch *batch) {
    double flop = 0;
    int64_t masked = 0; /* masked rows ascend, so they follow the sequences */
    for (int64_t s = 0; s < batch->sequences; s++) {
        int64_t begin = masked;
        while (masked < batch->masked && batch->masked_rows[masked] < batch->starts[s + 1])
            masked++;
        flop += bert_flop(config, batch->starts[s + 1] - batch->starts[s], masked - begin);
    }
    return flop;
}

/* Sums over ranks of `count` values, and of what processes ask for. */
static status sum_and_ask(struct network *network, double *values, int count) {
    double all[4 + NETWORK_ASKS];
    memcpy(all, values, (size_t)count * sizeof *values);
    memcpy(all + count, network->asks, sizeof network->asks);
    TRY(network->comm->sum_f64(network->comm, all, count + NETWORK_ASKS));
    memcpy(values, all, (size_t)count * sizeof *values);
    memcpy(network->asked, all + count, sizeof network->asked);
    return OK;
}

/* Sums over ranks of what must be known before the first forward pass. */
static status count_global_batch(struct network *network, const struct step_data *data, struct step_result *result) {
    double counts[4] = {(double)data->sequences, (double)data->tokens, (double)data->masked, 0};
    for (int64_t micro = 0; micro < data->micro_batches; micro++)
        counts[3] += flop_of(&network->config, &data->batches[micro]);
    TRY(sum_and_ask(network, counts, 4));
    result->sequences = (int64_t)counts[0];
    result->tokens = (int64_t)counts[1];
    result->masked = (int64_t)counts[2];
    result->flop = counts[3];
    return OK;
}

/* --- a step: queued, and read later --- */

static int mark_of(int64_t step) { return (int)((step + BACKEND_MARKS) % BACKEND_MARKS); }

static status queue_downloads(struct network *network, struct step_sums *sums) {
    struct exec *exec = network->exec;
    TRY(exec_download_later(exec, network->io.mlm_sums, sums->mlm, 2));
    if (network->config.nsp)
        TRY(exec_download_later(exec, network->io.nsp_sums, sums->nsp, 2));
    TRY(exec_download_later(exec, network->optim.norm, sums->norm, network->graph->loss_scale >= 0 ? 2 : 1));
    return exec_download_later(exec, network->optim.step, sums->step, 2);
}

/* Gradients of the global batch on every rank. A rank without sequences brings zeros. */
static status sum_gradients(struct network *network, const struct step_data *data) {
    struct comm *comm = network->comm;
    float *gradients = exec_gradients(network->exec);
    int64_t count = network->graph->flat_count;
    if (data->micro_batches == 0)
        TRY(exec_clear(network->exec));
    return network->nccl ? nccl_sum_f32(network->nccl, gradients, count) : comm->sum_f32(comm, gradients, count);
}

status network_queue(struct network *network, const struct step_data *data) {
    struct exec *exec = network->exec;
    struct backend *backend = network->backend;
    int slot = (int)(network->queued % STEPS_UNDER_WAY);
    struct step_result *result = &network->results[slot];
    *result = (struct step_result){0};
    if (network->under_way == STEPS_UNDER_WAY)
        return failed("a step is queued before the results of an earlier one were read");
    if (network->under_way == 0) { /* there is no end of a step to measure from */
        TRY(backend->mark(backend, mark_of(network->queued - 1)));
        result->seconds = data->waited;
    }
    TRY(count_global_batch(network, data, result));
    if (result->sequences == 0) /* the same on all ranks */
        return comm_agree(network->comm, bad_input("all sequences of a step lie in broken shards"));
    TRY(feed_scales(network->feed, result->masked, result->sequences));
    for (int64_t micro = 0; micro < data->micro_batches; micro++) {
        TRY(feed_batch(network->feed, &data->batches[micro]));
        TRY(exec_run(exec, PASS_FORWARD | PASS_BACKWARD, micro == 0, false));
    }
    TRY(sum_gradients(network, data));
    TRY(exec_run(exec, PASS_UPDATE, true, false));
    TRY(queue_downloads(network, &network->sums[slot]));
    TRY(backend->mark(backend, mark_of(network->queued)));
    network->queued++;
    network->under_way++;
    return OK;
}

static double mean(double sum, int64_t count) { return count ? sum / (double)count : 0; }

status network_result(struct network *network, struct step_result *result) {
    struct backend *backend = network->backend;
    int64_t number = network->queued - network->under_way;
    int slot = (int)(number % STEPS_UNDER_WAY);
    *result = network->results[slot];
    TRY(backend->reach(backend, mark_of(number)));
    struct step_sums sums = network->sums[slot];
    double losses[4] = {sums.mlm[0], sums.mlm[1], sums.nsp[0], sums.nsp[1]};
    TRY(sum_and_ask(network, losses, 4));
    result->seconds += backend->seconds_between(backend, mark_of(number - 1), mark_of(number));
    result->grad_norm = sums.norm[0];
    result->loss_scale = network->graph->loss_scale >= 0 ? sums.norm[1] : NAN;
    result->skipped = !isfinite(result->grad_norm);
    result->step = sums.step[0];
    result->skipped_steps = sums.step[1];
    result->mlm_loss = mean(losses[0], result->masked);
    result->mlm_accuracy = result->masked ? mean(losses[1], result->masked) : NAN;
    result->nsp_loss = network->config.nsp ? mean(losses[2], result->sequences) : NAN;
    result->loss = result->mlm_loss + (network->config.nsp ? result->nsp_loss : 0);
    network->under_way--;
    return OK;
}

status network_step(struct network *network, const struct step_data *data, struct step_result *result) {
    TRY(network_queue(network, data));
    return network_result(network, result);
}

/* --- the loss scale of f16 --- */

status network_get_loss_scale(struct network *network, double scale[2]) {
    scale[0] = scale[1] = NAN;
    return network->graph->loss_scale < 0 ? OK : exec_download(network->exec, network->graph->loss_scale, scale, 2);
}

status network_set_loss_scale(struct network *network, const double scale[2]) {
    return network->graph->loss_scale < 0 ? OK : exec_upload(network->exec, network->graph->loss_scale, scale, 2);
}

/* --- evaluation --- */

/* Sums of MLM and NSP losses and hits since the last `first` pass: [MLM loss, MLM hits, NSP loss, NSP hits]. */
static status read_sums(struct network *network, double sums[4]) {
    memset(sums, 0, 4 * sizeof *sums);
    TRY(exec_download(network->exec, network->io.mlm_sums, sums, 2));
    return network->config.nsp ? exec_download(network->exec, network->io.nsp_sums, sums + 2, 2) : OK;
}

status network_evaluate(struct network *network, const struct dataset *dataset, int64_t micro_batch, int64_t limit,
                        struct evaluation *out) {
    const struct graph *graph = network->graph;
    int64_t rows = dataset_rows(dataset);
    if (limit > 0 && limit < rows)
        rows = limit;
    struct reader_options options = {.global_batch = micro_batch,
                                     .micro_batch = micro_batch,
                                     .rank = network->comm->rank,
                                     .ranks = network->comm->ranks,
                                     .vocab_size = network->config.vocab_size,
                                     .seq_len = graph->capacity.n[DIM_T] / graph->capacity.n[DIM_B],
                                     .max_predictions = graph->capacity.n[DIM_M] / graph->capacity.n[DIM_B],
                                     .ring = 2};
    struct reader *reader;
    TRY(reader_open(dataset, &options, &reader));
    double totals[6] = {0}; /* MLM loss, MLM hits, NSP loss, NSP hits, sequences, masked tokens */
    const struct step_data *data;
    status code;
    int64_t seen = 0;
    while ((code = reader_next(reader, &data)) == OK && data && seen < rows) {
        for (int64_t micro = 0; micro < data->micro_batches && code == OK; micro++) {
            double sums[4];
            code = feed_batch(network->feed, &data->batches[micro]);
            if (code == OK)
                code = exec_run(network->exec, PASS_FORWARD, true, true);
            if (code == OK)
                code = read_sums(network, sums);
            for (int i = 0; i < 4 && code == OK; i++)
                totals[i] += sums[i];
        }
        if (code != OK)
            break;
        totals[4] += (double)data->sequences;
        totals[5] += (double)data->masked;
        seen += options.global_batch;
    }
    reader_close(reader);
    TRY(comm_agree(network->comm, code));
    TRY(network->comm->sum_f64(network->comm, totals, 6));
    *out = (struct evaluation){.mlm_loss = totals[0] / totals[5],
                               .mlm_accuracy = totals[1] / totals[5],
                               .nsp_loss = network->config.nsp ? totals[2] / totals[4] : NAN,
                               .nsp_accuracy = network->config.nsp ? totals[3] / totals[4] : NAN,
                               .sequences = (int64_t)totals[4],
                               .masked_tokens = (int64_t)totals[5]};
    return OK;
}
