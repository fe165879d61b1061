/* What a run starts from: a checkpoint, an initial model, or fresh weights. On all ranks the same. */
#include "train/start.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "dist/dist.h"

status start_adopt_settings(struct training *training, struct settings *settings) {
    struct trainer_state saved;
    struct text changed = {0};
    TRY(checkpoint_read_state(training->run.resume, &saved));
    status code = settings_adopt(settings, saved.settings, training->run.resume, &changed);
    for (char *line = changed.data, *end; code == OK && line && (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        log_info("changed since the checkpoint: %s", line);
    }
    text_free(&changed);
    trainer_state_free(&saved);
    return code;
}

static status check_manifest(struct training *training) {
    struct trainer_state *state = &training->state;
    if (dataset_compare(training->train_data, state->manifest) == OK)
        return OK;
    if (training->settings->data.on_change == ON_CHANGE_ERROR)
        return bad_input(
            "data.train is not what the run was trained on: %s; data.on_change=next_epoch takes the new data",
            status_message());
    log_info("data.train changed (%s): going on with epoch %lld of the new data", status_message(),
             (long long)state->epoch + 1);
    state->epoch++;
    state->epoch_consumed = 0;
    return OK;
}

static status resume(struct training *training) {
    struct checkpoint_model model = training_checkpoint_model(training);
    struct network *network = &training->network;
    TRY(checkpoint_load(training->run.resume, &model, &training->state));
    TRY(check_manifest(training));
    TRY(network_sync_weights(network));
    int64_t steps[2] = {training->state.step, training->state.skipped};
    TRY(exec_upload(network->exec, network->optim.step, steps, 2));
    if (!isnan(training->state.loss_scale)) /* else the run had another precision so far */
        TRY(network_set_loss_scale(
            network, (const double[]){training->state.loss_scale, (double)training->state.loss_scale_steps}));
    training->resumed = true;
    if (training->state.threads != parallel_threads())
        log_warn("the run used %lld threads, now %d: the last bits of its numbers may differ",
                 (long long)training->state.threads, parallel_threads());
    if (training->state.ranks != training->comm->ranks)
        log_info(
            "the run used %lld process%s, now %d: the order of the data is the same, the last bits of its numbers may "
            "differ",
            (long long)training->state.ranks, training->state.ranks == 1 ? "" : "es", training->comm->ranks);
    log_info("resuming %s at step %lld", training->run.resume, (long long)training->state.step);
    return OK;
}

static status begin(struct training *training) {
    const struct settings *settings = training->settings;
    struct network *network = &training->network;
    training->state.best_eval_loss = NAN;
    if (!*settings->model.init)
        return network_init_weights(network, (uint64_t)settings->train.seed);
    struct checkpoint_model model = training_checkpoint_model(training);
    struct hf_changes changes = {training->old_vocab, settings->model.tile_positions};
    TRY(hf_folder_load(settings->model.init, &model.hf, &changes, (uint64_t)settings->train.seed));
    if (settings->model.init_optimizer)
        TRY(checkpoint_load_moments(settings->model.init, &model));
    return network_sync_weights(network);
}

status start_load(struct training *training) { return training->run.resume ? resume(training) : begin(training); }

/* --- the same on all ranks --- */

static uint64_t hash_text(const struct text *text) { return comm_hash(HASH_START, text->data, text->length); }

status start_compare_inputs(struct training *training, const char *device) {
    struct text text = {0};
    TRY(comm_same(training->comm, "the kind of device", comm_hash(HASH_START, device, strlen(device))));
    settings_write_ini(training->settings, &text);
    status code = comm_same(training->comm, "the settings", hash_text(&text));
    text_free(&text);
    TRY(code);
    dataset_manifest(training->train_data, &text);
    code = comm_same(training->comm, "data.train (names, sizes and rows of shards)", hash_text(&text));
    text_free(&text);
    return code;
}

static status hash_tensor(struct training *training, int tensor, uint64_t *hash) {
    const struct graph *graph = training->network.graph;
    for (int p = 0; p < graph->parameter_count; p++) {
        size_t bytes = (size_t)(graph->parameters[p].rows * graph->parameters[p].columns) * sizeof(float);
        void *values = xmalloc(bytes);
        status code = exec_download_slice(training->network.exec, tensor, p, values);
        *hash = comm_hash(*hash, values, bytes);
        free(values);
        TRY(code);
    }
    return OK;
}

static status hash_all(struct training *training, uint64_t *hash) {
    const struct network *network = &training->network;
    const int64_t state[] = {training->state.step, training->state.consumed};
    *hash = comm_hash(HASH_START, state, sizeof state);
    TRY(hash_tensor(training, network->graph->master, hash));
    TRY(hash_tensor(training, network->optim.m, hash));
    return hash_tensor(training, network->optim.v, hash);
}

status start_compare_weights(struct training *training) {
    uint64_t hash = 0;
    if (training->comm->ranks == 1)
        return OK;
    TRY(comm_agree(training->comm, hash_all(training, &hash)));
    return comm_same(training->comm, "weights, moments and steps at the start", hash);
}
