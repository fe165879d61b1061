#include "train/loop.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "dist/dist.h"

/* As many overflows that no smaller loss scale can mend, and the run will not recover by itself. */
enum { SKIPS_IN_A_ROW = 10 };

struct loop {
    struct training *training;
    struct progress progress;
    double began, saved_at; /* clock_seconds */
    double elapsed_before;  /* of earlier processes of this run */
    int64_t saved;          /* sequences consumed at the last checkpoint (skipped steps consume too); -1: none */
    int skips;              /* in a row, with the smallest loss scale */
    bool leads;             /* rank 0, which alone writes */
    /* the data of the steps under way, oldest first; only its counts may be read */
    struct step_data under_way[STEPS_UNDER_WAY];
};

/* --- signals --- */

static volatile sig_atomic_t stop_signal;
static volatile double stop_signal_came; /* clock_seconds; only for the handler */

/* A signal asks for a checkpoint; the same one again ends the process at once. A launcher and its daemon may both hand
 * on one signal: what comes within two seconds is no second one. SIGUSR1, which only schedulers send, never ends it. */
static void note_signal(int number) {
    double now = clock_seconds();
    if (stop_signal != number) {
        stop_signal = number;
        stop_signal_came = now;
    } else if (number != SIGUSR1 && now - stop_signal_came >= 2) {
        signal(number, SIG_DFL);
        raise(number); /* when this returns */
    }
}

static void catch_signals(void) {
    struct sigaction action = {.sa_handler = note_signal, .sa_flags = SA_RESTART};
    stop_signal = 0;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
}

/* --- what processes ask for --- */

/* Signals reach a process, and clocks differ: what follows from them begins on all ranks after the same step. */
enum { ASK_SIGINT, ASK_SIGTERM, ASK_SIGUSR1, ASK_OUT_OF_TIME, STOPS, ASK_SAVE = STOPS };
static const char *const stop_names[] = {"SIGINT", "SIGTERM", "SIGUSR1", "train.max_minutes"};

static bool has_passed(double minutes, double since) { return minutes > 0 && clock_seconds() - since >= minutes * 60; }

/* Before the sums over ranks that a step makes, so that they carry it. */
static void ask(struct loop *loop) {
    struct training *training = loop->training;
    const struct settings *settings = training->settings;
    double *asks = training->network.asks;
    asks[ASK_SIGINT] = stop_signal == SIGINT;
    asks[ASK_SIGTERM] = stop_signal == SIGTERM;
    asks[ASK_SIGUSR1] = stop_signal == SIGUSR1;
    asks[ASK_OUT_OF_TIME] = has_passed(settings->train.max_minutes, loop->began);
    asks[ASK_SAVE] = loop->leads && has_passed(settings->checkpoint.every_minutes, loop->saved_at);
}

/* Why all stop; NULL: they go on. */
static const char *why_stop(const struct loop *loop) {
    for (int i = 0; i < STOPS; i++)
        if (loop->training->network.asked[i] > 0)
            return stop_names[i];
    return NULL;
}

/* --- checkpoints --- */

static double elapsed(const struct loop *loop) { return loop->elapsed_before + clock_seconds() - loop->began; }

static status save(struct loop *loop, bool best) {
    struct training *training = loop->training;
    const struct settings *settings = training->settings;
    struct text manifest = {0}, ini = {0};
    struct trainer_state state = training->state;
    double scale[2];
    loop->saved = training->state.consumed;
    loop->saved_at = clock_seconds();
    if (!loop->leads)
        return OK;
    TRY(network_get_loss_scale(&training->network, scale));
    TRY(metrics_sync(&training->metrics, &state.metrics_offset));
    dataset_manifest(training->train_data, &manifest);
    settings_write_ini(settings, &ini);
    reader_position(training->reader, &state.epoch, &state.epoch_consumed);
    state.seed = (uint64_t)settings->train.seed;
    state.threads = parallel_threads();
    state.ranks = training->network.comm->ranks;
    state.precision = (char *)precision_name(training->network.graph->compute);
    state.loss_scale = scale[0];
    state.loss_scale_steps = isnan(scale[0]) ? 0 : (int64_t)scale[1];
    state.manifest = manifest.data;
    state.settings = ini.data;
    state.elapsed_seconds = elapsed(loop);
    struct checkpoint_rotation rotation = {.keep = settings->checkpoint.keep,
                                           .milestone_every = settings->checkpoint.milestone_every};
    struct checkpoint_model model = training_checkpoint_model(training);
    status code = checkpoint_save(training->run.path, &rotation, &model, &state, best);
    text_free(&manifest);
    text_free(&ini);
    loop->saved_at = clock_seconds();
    return code;
}

static bool checkpoint_due(const struct loop *loop, int64_t step) {
    const struct settings *settings = loop->training->settings;
    int64_t every = settings->checkpoint.every, milestone = settings->checkpoint.milestone_every;
    return (every > 0 && step % every == 0) || (milestone > 0 && step % milestone == 0) ||
           loop->training->network.asked[ASK_SAVE] > 0;
}

/* --- evaluation --- */

static bool evaluation_due(const struct loop *loop, int64_t step) {
    const struct settings *settings = loop->training->settings;
    int64_t every = settings->train.eval_every;
    return loop->training->eval_data && every > 0 && (step % every == 0 || step == settings->train.steps);
}

static status evaluate(struct loop *loop, bool *best) {
    struct training *training = loop->training;
    const struct settings *settings = training->settings;
    struct evaluation result;
    double began = clock_seconds();
    TRY(network_evaluate(&training->network, training->eval_data, settings->train.micro_batch,
                         settings->train.eval_sequences, &result));
    struct metrics_eval line = {.step = training->state.step,
                                .mlm_loss = result.mlm_loss,
                                .mlm_accuracy = result.mlm_accuracy,
                                .nsp_loss = result.nsp_loss,
                                .nsp_accuracy = result.nsp_accuracy,
                                .loss = result.mlm_loss + (isnan(result.nsp_loss) ? 0 : result.nsp_loss),
                                .sequences = result.sequences,
                                .masked_tokens = result.masked_tokens,
                                .sequences_per_s = (double)result.sequences / (clock_seconds() - began),
                                .time = clock_unix()};
    char text[200];
    progress_format_eval(&line, text, sizeof text);
    log_info("%s", text);
    *best = isnan(training->state.best_eval_loss) || line.loss < training->state.best_eval_loss;
    if (*best)
        training->state.best_eval_loss = line.loss;
    return loop->leads ? metrics_add_eval(&training->metrics, &line) : OK;
}

/* --- a step --- */

static status note_step(struct loop *loop, const struct step_data *data, const struct step_result *result) {
    struct training *training = loop->training;
    double seconds = result->seconds;
    /* measured while the machine was busy, the peak came out too low: what was reached since is a better one */
    if (training->peak_flops > 0 && training->settings->device.peak_tflops == 0 &&
        result->flop / seconds > training->peak_flops)
        training->peak_flops = result->flop / seconds;
    double peak = training->peak_flops;
    struct metrics_step line = {
        .step = result->step,
        .loss = result->loss,
        .mlm_loss = result->mlm_loss,
        .nsp_loss = result->nsp_loss,
        .mlm_accuracy = result->mlm_accuracy,
        .lr = training->lr_table[result->step - 1],
        .grad_norm = result->grad_norm,
        .loss_scale = result->loss_scale,
        .epoch = data->epoch,
        .skipped = result->skipped_steps,
        .sequences = result->sequences,
        .tokens = result->tokens,
        .masked_tokens = result->masked,
        .sequences_per_s = (double)result->sequences / seconds,
        .tokens_per_s = (double)result->tokens / seconds,
        .padded_tokens_per_s = (double)(result->sequences * dataset_seq_len(training->train_data)) / seconds,
        .mfu = peak > 0 ? result->flop / seconds / peak : NAN,
        .waited_share = data->waited / seconds,
        .elapsed = elapsed(loop),
        .time = clock_unix()};
    progress_update(&loop->progress, &line, seconds);
    return loop->leads ? metrics_add_step(&training->metrics, &line) : OK;
}

/* The norm was not finite. Nothing was updated, the step counter stands; too many in a row that a smaller loss scale
 * could not mend end the run. */
static status note_skip(struct loop *loop, const struct step_result *result) {
    int64_t step = result->step + 1;
    char scale[64] = "";
    if (result->loss_scale > LOSS_SCALE_LEAST)
        snprintf(scale, sizeof scale, "; the loss scale, %.0f, is halved", result->loss_scale);
    double norm = fabs(result->grad_norm); /* without the sign of a NaN, which says nothing */
    log_warn("step %lld skipped: the gradient norm is %g (loss %g)%s", (long long)step, norm, result->loss, scale);
    if (result->loss_scale > LOSS_SCALE_LEAST || ++loop->skips < SKIPS_IN_A_ROW)
        return OK;
    status code = failed(
        "step %lld was skipped %d times in a row%s: gradients overflow. The last checkpoint is kept in %s; lower "
        "optim.lr%s",
        (long long)step, SKIPS_IN_A_ROW, isnan(result->loss_scale) ? "" : " with the smallest loss scale",
        loop->training->run.path, isnan(result->loss_scale) ? "" : ", or take train.precision=bf16");
    return comm_agree(loop->training->comm, code);
}

static status queue_step(struct loop *loop) {
    struct network *network = &loop->training->network;
    const struct step_data *data;
    TRY(comm_agree(loop->training->comm, reader_next(loop->training->reader, &data)));
    ask(loop);
    loop->under_way[network->under_way] = *data;
    return network_queue(network, data);
}

/* The results of the oldest step under way. */
static status finish_step(struct loop *loop) {
    struct training *training = loop->training;
    struct step_data data = loop->under_way[0];
    struct step_result result;
    ask(loop);
    TRY(network_result(&training->network, &result));
    memmove(loop->under_way, loop->under_way + 1, (STEPS_UNDER_WAY - 1) * sizeof *loop->under_way);
    training->state.consumed = data.consumed;
    training->state.step = result.step;
    training->state.skipped = result.skipped_steps;
    if (result.skipped)
        return note_skip(loop, &result);
    loop->skips = 0;
    return note_step(loop, &data, &result);
}

/* Does something follow the step of this number that needs the device as the step leaves it? */
static bool pause_due(const struct loop *loop, int64_t step) {
    return step == loop->training->settings->train.steps || evaluation_due(loop, step) || checkpoint_due(loop, step);
}

/* What follows a step: evaluation and checkpoints. */
static status after_step(struct loop *loop) {
    struct training *training = loop->training;
    int64_t step = training->state.step;
    bool best = false;
    if (evaluation_due(loop, step))
        TRY(evaluate(loop, &best));
    best = best && training->settings->checkpoint.best;
    return best || checkpoint_due(loop, step) ? save(loop, best) : OK;
}

static status stop(struct loop *loop, const char *why) {
    struct training *training = loop->training;
    if (loop->saved != training->state.consumed)
        TRY(save(loop, false));
    return stopped("stopped at step %lld of %lld (%s); checkpoint in %s/latest: the same command goes on from it",
                   (long long)training->state.step, (long long)training->settings->train.steps, why,
                   training->run.path);
}

/* A step is queued, then the results of the one before are read, so that the device never waits for the host. If it was
 * skipped, as in fp16 is found late, the step queued since is that step again. Where something may follow the queued
 * one, or the run stops, its results are read too: then nothing is under way. */
static status run_steps(struct loop *loop) {
    struct training *training = loop->training;
    struct trainer_state *state = &training->state;
    int64_t steps = training->settings->train.steps;
    while (state->step < steps) {
        TRY(queue_step(loop));
        if (training->network.under_way == STEPS_UNDER_WAY)
            TRY(finish_step(loop));
        const char *why = why_stop(loop);
        if (!why && !pause_due(loop, state->step + 1))
            continue;
        int64_t before = state->step;
        TRY(finish_step(loop));
        if (state->step > before)
            TRY(after_step(loop));
        if (why && state->step < steps)
            return stop(loop, why);
    }
    return loop->saved == state->consumed ? OK : save(loop, false);
}

status train_loop(struct training *training) {
    struct loop loop = {.training = training,
                        .progress = {.first_step = training->state.step,
                                     .steps = training->settings->train.steps,
                                     .every = training->settings->log.every,
                                     .terminal = log_is_terminal()},
                        .began = clock_seconds(),
                        .elapsed_before = training->state.elapsed_seconds,
                        .saved = training->resumed ? training->state.consumed : -1,
                        .leads = training->comm->rank == 0};
    loop.saved_at = loop.began;
    catch_signals();
    status code = run_steps(&loop);
    log_progress_end();
    return comm_alone(training->comm, code);
}
