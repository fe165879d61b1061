#include "train/setup.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "dist/dist.h"
#include "optim/schedule.h"
#include "train/device.h"
#include "train/start.h"

enum { SHORT_SEQUENCE = 16 }; /* tokens: batches filled by tokens hold no more sequences than of this length */

/* --- from settings to the structs of the folders below --- */

static enum activation activation_of(const struct settings *settings) {
    static const enum activation table[] = {
        [HIDDEN_ACT_GELU] = ACT_GELU, [HIDDEN_ACT_GELU_NEW] = ACT_GELU_NEW, [HIDDEN_ACT_RELU] = ACT_RELU};
    return table[settings->model.hidden_act];
}

static enum dtype dtype_of(const struct settings *settings) {
    int precision = settings->train.precision;
    return precision == PRECISION_BF16 ? BF16 : precision == PRECISION_FP16 ? F16 : F32;
}

static struct network_form form_of(const struct settings *settings) {
    static const enum fusion levels[] = {
        [FUSE_NONE] = FUSION_NONE, [FUSE_PAPER] = FUSION_PAPER, [FUSE_FULL] = FUSION_FULL};
    return (struct network_form){
        .compute = dtype_of(settings),
        .fusion = levels[settings->train.fuse],
        .checkpoint = settings->train.activation_checkpointing == ACTIVATION_CHECKPOINTING_LAYER};
}

static struct bert_config config_of(const struct settings *settings) {
    return (struct bert_config){
        .vocab_size = settings->model.vocab_size,
        .hidden_size = settings->model.hidden_size,
        .num_hidden_layers = settings->model.num_hidden_layers,
        .num_attention_heads = settings->model.num_attention_heads,
        .intermediate_size = settings->model.intermediate_size,
        .max_position_embeddings = settings->model.max_position_embeddings,
        .type_vocab_size = settings->model.type_vocab_size,
        .hidden_act = activation_of(settings),
        .hidden_dropout_prob = settings->model.hidden_dropout_prob,
        .attention_probs_dropout_prob = settings->model.attention_probs_dropout_prob,
        .layer_norm_eps = settings->model.layer_norm_eps,
        .initializer_range = settings->model.initializer_range,
        .nsp = settings->model.nsp,
    };
}

static struct optim_config optim_of(const struct settings *settings) {
    static const enum optim_name names[] = {
        [OPTIM_NAME_ADAM] = OPTIM_ADAM, [OPTIM_NAME_ADAMW] = OPTIM_ADAMW, [OPTIM_NAME_LAMB] = OPTIM_LAMB};
    return (struct optim_config){
        .name = names[settings->optim.name],
        .beta1 = settings->optim.beta1,
        .beta2 = settings->optim.beta2,
        .epsilon = settings->optim.eps,
        .weight_decay = settings->optim.weight_decay,
        .clip = settings->optim.clip,
        .bias_correction = settings->optim.bias_correction,
        .loss_scale = settings->optim.loss_scale,
        .growth_interval = settings->optim.loss_scale_window,
    };
}

/* --- vocabulary, data, model: checked against each other before anything is written --- */

static bool same_vocab(const struct vocab *a, const struct vocab *b) {
    bool same = vocab_size(a) == vocab_size(b);
    for (int64_t id = 0; id < vocab_size(a) && same; id++)
        same = strcmp(vocab_token(a, id), vocab_token(b, id)) == 0;
    return same;
}

/* model.vocab beside that of model.init: its ids would mean other rows of the embedding if it were another one. */
static status compare_vocabs(struct training *training, const char *initial) {
    const struct settings *settings = training->settings;
    struct vocab *old;
    TRY(vocab_read(initial, &old));
    bool same = same_vocab(old, training->tokenizer->vocab);
    if (!same && settings->model.vocab_remap)
        training->old_vocab = old;
    else
        vocab_free(old);
    return same || settings->model.vocab_remap
               ? OK
               : bad_input(
                     "model.vocab = %s is not the vocabulary of model.init, %s: leave it out, or "
                     "model.vocab_remap=true takes the embedding over by token",
                     settings->model.vocab, initial);
}

/* With model.init and no model.vocab, the vocabulary of that folder, if it has one. */
static status open_tokenizer(struct training *training) {
    const struct settings *settings = training->settings;
    char *initial = *settings->model.init ? path_join(settings->model.init, "vocab.txt") : NULL;
    if (initial && !file_exists(initial)) {
        free(initial);
        initial = NULL;
    }
    bool given = *settings->model.vocab, remap = settings->model.vocab_remap;
    const char *path = given ? settings->model.vocab : initial;
    status code = path ? hf_tokenizer_read(path, &training->tokenizer) : OK;
    if (code == OK && given && initial)
        code = compare_vocabs(training, initial);
    else if (code == OK && remap)
        code = bad_input("model.vocab_remap = true: expected model.vocab, and a vocab.txt in model.init");
    if (code == OK && remap && settings->model.init_optimizer)
        code =
            bad_input("model.vocab_remap and model.init_optimizer: expected one of them, as moments have the old rows");
    free(initial);
    if (code == OK && training->tokenizer && settings->model.do_lower_case != DO_LOWER_CASE_AUTO)
        training->tokenizer->lower_case = settings->model.do_lower_case == DO_LOWER_CASE_TRUE;
    return code;
}

static status open_data(struct training *training) {
    const struct settings *settings = training->settings;
    if (!*settings->data.train)
        return bad_input("data.train is not set: expected shards, as 'berth shard' writes them");
    bool skip = settings->data.on_bad_shard == ON_BAD_SHARD_SKIP;
    TRY(dataset_open("data.train", settings->data.train, skip, &training->train_data));
    return *settings->data.eval ? dataset_open("data.eval", settings->data.eval, false, &training->eval_data) : OK;
}

static status open_masking(struct training *training) {
    const struct settings *settings = training->settings;
    if (settings->data.masking == MASKING_STATIC)
        return OK;
    if (!training->tokenizer)
        return bad_input("data.masking = dynamic: expected model.vocab too, which tells what may be masked");
    if (settings->data.mask_token_share + settings->data.mask_random_share > 1)
        return bad_input("data.mask_token_share = %g and data.mask_random_share = %g: expected at most 1 together",
                         settings->data.mask_token_share, settings->data.mask_random_share);
    const struct masking_options options = {settings->data.mask_prob, settings->data.mask_token_share,
                                            settings->data.mask_random_share, settings->data.whole_word_mask};
    training->masking = masking_new(training->tokenizer->vocab, &options);
    return OK;
}

/* With model.init, sizes come from its config.json; a size that was given and differs is an error. */
static status adopt_initial_config(const struct training *training, struct bert_config *config) {
    const struct settings *settings = training->settings;
    struct bert_config initial;
    TRY(hf_folder_read_config(settings->model.init, &initial));
    const struct {
        const char *key;
        int setting;
        int64_t *value, initial;
    } sizes[] = {
        {"hidden_size", SETTING_model_hidden_size, &config->hidden_size, initial.hidden_size},
        {"num_hidden_layers", SETTING_model_num_hidden_layers, &config->num_hidden_layers, initial.num_hidden_layers},
        {"num_attention_heads", SETTING_model_num_attention_heads, &config->num_attention_heads,
         initial.num_attention_heads},
        {"intermediate_size", SETTING_model_intermediate_size, &config->intermediate_size, initial.intermediate_size},
        {"max_position_embeddings", SETTING_model_max_position_embeddings, &config->max_position_embeddings,
         initial.max_position_embeddings},
        {"type_vocab_size", SETTING_model_type_vocab_size, &config->type_vocab_size, initial.type_vocab_size},
        {"vocab_size", SETTING_model_vocab_size, &config->vocab_size, initial.vocab_size},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (training->old_vocab && sizes[i].setting == SETTING_model_vocab_size)
            continue; /* the new vocabulary says */
        if (settings->model.tile_positions && sizes[i].setting == SETTING_model_max_position_embeddings &&
            settings->origin[sizes[i].setting] && *sizes[i].value > sizes[i].initial)
            continue;
        if (settings->origin[sizes[i].setting] && *sizes[i].value != sizes[i].initial)
            return bad_input("%s: model.%s = %lld, but %s has %lld", settings->origin[sizes[i].setting], sizes[i].key,
                             (long long)*sizes[i].value, settings->model.init, (long long)sizes[i].initial);
        *sizes[i].value = sizes[i].initial;
    }
    if (!settings->origin[SETTING_model_hidden_act])
        config->hidden_act = initial.hidden_act;
    if (!settings->origin[SETTING_model_layer_norm_eps])
        config->layer_norm_eps = initial.layer_norm_eps;
    return OK;
}

/* All but what the data decides; vocab_size stays 0 where nothing tells it. */
static status adopt_config(const struct training *training, struct bert_config *config) {
    *config = config_of(training->settings);
    if (*training->settings->model.init)
        TRY(adopt_initial_config(training, config));
    if (!config->vocab_size && training->tokenizer)
        config->vocab_size = vocab_size(training->tokenizer->vocab);
    return OK;
}

status setup_model(const struct settings *settings, struct model_setup *out) {
    struct training training = {.settings = settings};
    *out = (struct model_setup){.optim = optim_of(settings), .form = form_of(settings)};
    status code = open_tokenizer(&training);
    if (code == OK)
        code = adopt_config(&training, &out->config);
    vocab_free(training.old_vocab);
    hf_tokenizer_free(training.tokenizer);
    return code;
}

static status make_config(const struct training *training, struct bert_config *config) {
    TRY(adopt_config(training, config));
    int64_t entries = training->tokenizer ? vocab_size(training->tokenizer->vocab) : 0;
    if (!config->vocab_size)
        return bad_input("the size of the vocabulary is unknown: expected model.vocab, model.init or model.vocab_size");
    if (entries > config->vocab_size)
        return bad_input("model.vocab: the vocabulary has %lld entries, but the model's embedding only %lld",
                         (long long)entries, (long long)config->vocab_size);
    TRY(dataset_check_vocab(training->train_data, entries, config->vocab_size));
    return training->eval_data ? dataset_check_vocab(training->eval_data, entries, config->vocab_size) : OK;
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Sizes of the largest micro-batch: those of the shards, or data.seq_len where that is larger. */
static status make_shape(const struct training *training, const struct bert_config *config, struct bert_shape *shape) {
    const struct settings *settings = training->settings;
    const struct dataset *eval = training->eval_data;
    int64_t length = larger(dataset_seq_len(training->train_data), eval ? dataset_seq_len(eval) : 0);
    int64_t masks = larger(dataset_max_predictions(training->train_data), eval ? dataset_max_predictions(eval) : 0);
    if (settings->data.seq_len && settings->data.seq_len < length)
        return bad_input("data.seq_len = %lld, but the shards hold sequences of up to %lld tokens",
                         (long long)settings->data.seq_len, (long long)length);
    if (length > config->max_position_embeddings)
        return bad_input("the shards hold sequences of up to %lld tokens, but model.max_position_embeddings = %lld",
                         (long long)length, (long long)config->max_position_embeddings);
    int64_t step =
        settings->train.batch_tokens ? settings->train.batch_tokens / length + 2 : settings->train.global_batch;
    int64_t most = settings->train.micro_batch < step ? settings->train.micro_batch : step;
    if (training->masking)
        masks = larger(masks, masking_most(training->masking, length));
    *shape = (struct bert_shape){
        .sequences = most, .seq_len = larger(length, settings->data.seq_len), .max_predictions = masks};
    if (settings->train.batch_tokens)
        shape->short_sequences = most * larger(1, shape->seq_len / SHORT_SEQUENCE);
    return OK;
}

/* --- weights and state --- */

struct checkpoint_model training_checkpoint_model(const struct training *training) {
    const struct network *network = &training->network;
    return (struct checkpoint_model){.hf = {.config = &network->config,
                                            .graph = network->graph,
                                            .exec = network->exec,
                                            .tokenizer = training->tokenizer},
                                     .moment1 = network->optim.m,
                                     .moment2 = network->optim.v};
}

/* A step of fewer sequences than processes could never keep all of them busy. */
static status check_ranks(const struct training *training) {
    const struct settings *settings = training->settings;
    int ranks = training->comm->ranks;
    if (settings->train.batch_tokens || settings->train.global_batch >= ranks)
        return OK;
    return bad_input("train.global_batch = %lld sequences, but there are %d processes: expected one for each at least",
                     (long long)settings->train.global_batch, ranks);
}

static void warn_of_idle_ranks(const struct training *training) {
    int64_t blocks = dataset_open_blocks(training->train_data);
    if (blocks < training->comm->ranks)
        log_warn(
            "data.train: sequences come from %lld block%s of rows at a time, so %lld of %d processes have none; more "
            "and smaller shards have more blocks (64 at most)",
            (long long)blocks, blocks == 1 ? "" : "s", (long long)(training->comm->ranks - blocks),
            training->comm->ranks);
}

static status make_lr_table(struct training *training) {
    const struct settings *settings = training->settings;
    static const enum schedule_kind kinds[] = {[SCHEDULE_NVIDIA_POLY] = NVIDIA_POLY,
                                               [SCHEDULE_POLY] = POLY,
                                               [SCHEDULE_LINEAR] = LINEAR,
                                               [SCHEDULE_COSINE] = COSINE,
                                               [SCHEDULE_CONSTANT] = CONSTANT};
    int64_t steps = settings->train.steps;
    struct schedule schedule = {.kind = kinds[settings->optim.schedule],
                                .rate = settings->optim.lr,
                                .steps = settings->optim.schedule_steps ? settings->optim.schedule_steps : steps,
                                .warmup_share = settings->optim.warmup,
                                .warmup_steps = settings->optim.warmup_steps,
                                .power = settings->optim.poly_power};
    training->lr_table = xmalloc((size_t)steps * sizeof *training->lr_table);
    for (int64_t t = 1; t <= steps; t++)
        training->lr_table[t - 1] = (float)schedule_rate(&schedule, t);
    return exec_upload(training->network.exec, training->network.optim.lr_table, training->lr_table, steps);
}

static status open_reader(struct training *training, const struct bert_shape *shape) {
    const struct settings *settings = training->settings;
    const struct network *network = &training->network;
    struct reader_options options = {.seed = (uint64_t)settings->train.seed,
                                     .shuffle = true,
                                     .endless = true,
                                     .global_batch = settings->train.global_batch,
                                     .batch_tokens = settings->train.batch_tokens,
                                     .micro_batch = settings->train.micro_batch,
                                     .rank = network->comm->rank,
                                     .ranks = network->comm->ranks,
                                     .vocab_size = network->config.vocab_size,
                                     .masking = training->masking,
                                     .seq_len = dataset_seq_len(training->train_data),
                                     .max_predictions = dataset_max_predictions(training->train_data),
                                     .start_epoch = training->state.epoch,
                                     .start_consumed = training->state.epoch_consumed,
                                     .first_number = training->state.consumed,
                                     .ring = (int)settings->data.read_ahead};
    if (training->masking) /* it knows the entries of the vocabulary, not the embedding's extra rows */
        options.vocab_size = vocab_size(training->tokenizer->vocab);
    if (options.batch_tokens) {
        options.micro_batch = shape->short_sequences;
        options.micro_tokens = shape->sequences * shape->seq_len;
        options.micro_masked = shape->sequences * shape->max_predictions;
    }
    return reader_open(training->train_data, &options, &training->reader);
}

/* When a run goes on, rank 0's choices are everybody's; what others chose at first is not kept. */
static status keep_choices(struct training *training) {
    struct backend *backend = training->network.backend;
    if (!backend->keep_choices)
        return OK;
    char *path = path_join(training->run.path, "algorithms.json");
    status code = backend->keep_choices(backend, path, training->comm->rank == 0);
    free(path);
    return code;
}

static status open_run_files(struct training *training) {
    struct text ini = {0};
    settings_write_ini(training->settings, &ini);
    status code = run_folder_write_config(&training->run, ini.data);
    text_free(&ini);
    TRY(code);
    return metrics_open(&training->metrics, training->run.path,
                        training->run.resumes_own ? training->state.metrics_offset : 0);
}

static void describe(const struct training *training) {
    const struct network *network = &training->network;
    const struct plan *plan = exec_plan(network->exec);
    char device[200];
    int64_t parameters = 0;
    for (int p = 0; p < network->graph->parameter_count; p++)
        parameters += network->graph->parameters[p].file_rows * network->graph->parameters[p].columns;
    network->backend->describe(network->backend, device, sizeof device);
    if (training->comm->ranks > 1)
        log_info("ranks   %s%s", training->comm->name, network->nccl ? ", gradients by NCCL" : "");
    log_info("device  %s", device);
    log_info("model   %.1f M parameters, vocabulary %lld, %s", (double)parameters / 1e6,
             (long long)network->config.vocab_size, precision_name(network->graph->compute));
    log_info("memory  %.0f MB: weights %.0f, gradients %.0f, optimizer %.0f, activations %.0f",
             1e-6 * (double)(plan->weight_bytes + plan->gradient_bytes + plan->state_bytes + plan->input_bytes +
                             plan->arena_bytes),
             1e-6 * (double)plan->weight_bytes, 1e-6 * (double)plan->gradient_bytes, 1e-6 * (double)plan->state_bytes,
             1e-6 * (double)plan->arena_bytes);
    log_info("data    %lld sequences of up to %lld tokens in %lld shards",
             (long long)dataset_rows(training->train_data), (long long)dataset_seq_len(training->train_data),
             (long long)dataset_files(training->train_data));
    struct text sources = {0};
    dataset_describe_sources(training->train_data, &sources);
    if (sources.length)
        log_info("shares  %s", sources.data);
    text_free(&sources);
    log_info("run     %s", training->run.path);
}

/* Rank 0 owns the folder; the others learn what it found there. */
static status open_folder(struct training *training) {
    const struct settings *settings = training->settings;
    struct comm *comm = training->comm;
    struct run_folder *run = &training->run;
    status code = OK;
    if (!*settings->checkpoint.dir)
        code = bad_input("checkpoint.dir is not set: expected a folder for the run");
    else if (comm->rank == 0)
        code = run_folder_open(settings->checkpoint.dir, settings->checkpoint.resume, run);
    TRY(comm_agree(comm, code));
    if (comm->rank > 0)
        run->path = xstrdup(settings->checkpoint.dir);
    return comm_share_text(comm, &run->resume);
}

/* All that can be found out, and go wrong, on one rank alone. */
static status open_inputs(struct training *training, struct settings *settings, struct bert_config *config,
                          struct bert_shape *shape, struct backend **backend) {
    if (training->run.resume)
        TRY(start_adopt_settings(training, settings));
    TRY(check_ranks(training));
    TRY(open_tokenizer(training));
    TRY(open_data(training));
    warn_of_idle_ranks(training);
    TRY(open_masking(training));
    TRY(make_config(training, config));
    TRY(make_shape(training, config, shape));
    return device_open(settings, training->comm, backend);
}

static status open_network(struct training *training, const struct bert_config *config, const struct bert_shape *shape,
                           struct backend *backend) {
    const struct settings *settings = training->settings;
    struct optim_config optim = optim_of(settings);
    struct network_form form = form_of(settings);
    TRY(network_new(&training->network, config, shape, &form, &optim, settings->train.steps,
                    (uint64_t)settings->train.seed, backend, training->comm));
    double given = settings->device.peak_tflops * 1e12;
    training->peak_flops = given > 0 ? given : backend->peak_flops(backend, dtype_of(settings));
    return training->comm->sum_f64(training->comm, &training->peak_flops, 1);
}

static status begin(struct training *training, const struct bert_shape *shape) {
    TRY(start_load(training));
    TRY(make_lr_table(training));
    return open_reader(training, shape);
}

static status open_all(struct training *training, struct settings *settings) {
    struct comm *comm = training->comm;
    struct bert_config config;
    struct bert_shape shape;
    struct backend *backend = NULL;
    TRY(open_folder(training));
    status code = comm_agree(comm, open_inputs(training, settings, &config, &shape, &backend));
    if (code == OK)
        code = start_compare_inputs(training, backend->name);
    if (code != OK && backend)
        backend->free(backend);
    TRY(code);
    TRY(open_network(training, &config, &shape, backend));
    TRY(comm_agree(comm, begin(training, &shape)));
    TRY(start_compare_weights(training));
    TRY(comm_agree(comm, keep_choices(training)));
    TRY(comm_agree(comm, comm->rank == 0 ? open_run_files(training) : OK));
    describe(training);
    return OK;
}

status training_open(struct training *training, struct settings *settings, struct comm *comm) {
    *training = (struct training){.settings = settings, .comm = comm, .run.lock = -1, .metrics.descriptor = -1};
    status code = open_all(training, settings);
    if (code != OK) {
        char *message = xstrdup(status_message()); /* giving up must not change what is said */
        if (comm->rank == 0)
            run_folder_abandon(&training->run);
        training_close(training);
        status_set(code, message);
        free(message);
    }
    return code;
}

void training_close(struct training *training) {
    if (training->reader)
        reader_close(training->reader);
    network_free(&training->network);
    metrics_close(&training->metrics);
    run_folder_close(&training->run);
    dataset_free(training->train_data);
    dataset_free(training->eval_data);
    masking_free(training->masking);
    vocab_free(training->old_vocab);
    hf_tokenizer_free(training->tokenizer);
    trainer_state_free(&training->state);
    free(training->lr_table);
    *training = (struct training){0};
}

status network_open_trained(struct network *network, const char *folder, const struct settings *settings,
                            int64_t seq_len, int64_t max_predictions, struct comm *comm) {
    struct bert_config config;
    struct network_form form = form_of(settings);
    struct backend *backend = NULL;
    status code = hf_folder_read_config(folder, &config);
    if (code == OK)
        code = device_open(settings, comm, &backend);
    code = comm_agree(comm, code);
    if (code != OK && backend)
        backend->free(backend);
    TRY(code);
    struct bert_shape shape = {
        .sequences = settings->train.micro_batch, .seq_len = seq_len, .max_predictions = max_predictions};
    TRY(network_new(network, &config, &shape, &form, NULL, 0, 0, backend, comm));
    struct hf_model model = {.config = &network->config, .graph = network->graph, .exec = network->exec};
    code = hf_folder_load(folder, &model, NULL, 0);
    if (code == OK)
        code = network_sync_weights(network);
    code = comm_agree(comm, code);
    if (code != OK)
        network_free(network);
    return code;
}
