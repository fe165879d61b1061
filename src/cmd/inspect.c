/* `berth inspect`: what a shard, a checkpoint or a safetensors file holds. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "cmd/cmd.h"
#include "cmd/inspect_shard.h"
#include "train/checkpoint.h"

static void print_config(const struct bert_config *config) {
    printf("model       %s: %lld layers, hidden %lld, %lld heads, feed-forward %lld, %s\n",
           config->nsp ? "MLM and NSP" : "MLM only", (long long)config->num_hidden_layers,
           (long long)config->hidden_size, (long long)config->num_attention_heads, (long long)config->intermediate_size,
           hf_activation_name(config->hidden_act));
    printf("inputs      vocabulary %lld, positions %lld, token types %lld\n", (long long)config->vocab_size,
           (long long)config->max_position_embeddings, (long long)config->type_vocab_size);
    printf("dropout     %g, attention %g; LayerNorm epsilon %g; initializer range %g\n", config->hidden_dropout_prob,
           config->attention_probs_dropout_prob, config->layer_norm_eps, config->initializer_range);
}

static void print_state(const struct trainer_state *state) {
    printf("step        %lld (%lld skipped), %.0f s of training\n", (long long)state->step, (long long)state->skipped,
           state->elapsed_seconds);
    printf("data        %lld sequences consumed; epoch %lld, %lld sequences into it\n", (long long)state->consumed,
           (long long)state->epoch, (long long)state->epoch_consumed);
    printf("run         seed %llu, %s, %lld threads, %lld ranks\n", (unsigned long long)state->seed, state->precision,
           (long long)state->threads, (long long)state->ranks);
    if (!isnan(state->best_eval_loss))
        printf("held out    best loss %.4f\n", state->best_eval_loss);
}

/* Euclidean norm in double, and how many values are NaN or infinite (these are left out of the norm). */
static status tensor_norm(const struct safetensors *file, const struct safetensors_tensor *tensor, double *norm,
                          int64_t *not_finite) {
    enum { PIECE = 1 << 16 };
    float *values = xmalloc(PIECE * sizeof *values);
    double sum = 0;
    status code = OK;
    *not_finite = 0;
    for (int64_t first = 0; first < tensor->count && code == OK; first += PIECE) {
        int64_t left = tensor->count - first, count = left < PIECE ? left : PIECE;
        code = safetensors_read(file, tensor, first, count, values);
        for (int64_t i = 0; i < count && code == OK; i++) {
            if (isfinite(values[i]))
                sum += (double)values[i] * values[i];
            else
                ++*not_finite;
        }
    }
    free(values);
    *norm = sqrt(sum);
    return code;
}

static bool is_float(const struct safetensors_tensor *tensor) {
    return strcmp(tensor->type, "F32") == 0 || strcmp(tensor->type, "F16") == 0 || strcmp(tensor->type, "BF16") == 0;
}

static status print_tensors(const char *path) {
    struct safetensors file;
    TRY(safetensors_open(path, &file));
    int64_t parameters = 0;
    int width = 6;
    for (int64_t i = 0; i < file.count; i++) {
        int length = (int)strlen(file.tensors[i].name);
        width = length > width ? length : width;
        parameters += file.tensors[i].count;
    }
    printf("parameters  %lld in %lld tensors\n\n%-*s  %-5s %12s %14s\n", (long long)parameters, (long long)file.count,
           width, "tensor", "dtype", "shape", "norm");
    status code = OK;
    for (int64_t i = 0; i < file.count && code == OK; i++) {
        const struct safetensors_tensor *tensor = &file.tensors[i];
        char shape[128];
        double norm;
        int64_t not_finite;
        safetensors_shape(tensor, shape, sizeof shape);
        printf("%-*s  %-5s %12s", width, tensor->name, tensor->type, shape);
        if (is_float(tensor)) {
            code = tensor_norm(&file, tensor, &norm, &not_finite);
            printf(" %14.6g", norm);
            if (not_finite)
                printf("  %lld values are not finite", (long long)not_finite);
        }
        printf("\n");
    }
    safetensors_close(&file);
    return code;
}

static status print_folder(const char *folder) {
    char *trainer = path_join(folder, "trainer.json"), *weights = path_join(folder, "model.safetensors");
    struct bert_config config;
    struct trainer_state state = {0};
    printf("checkpoint  %s\n", folder);
    status code = hf_folder_read_config(folder, &config);
    if (code == OK)
        print_config(&config);
    if (code == OK && file_exists(trainer)) {
        code = checkpoint_read_state(folder, &state);
        if (code == OK)
            print_state(&state);
    }
    if (code == OK)
        code = print_tensors(weights);
    trainer_state_free(&state);
    free(trainer);
    free(weights);
    return code;
}

status cmd_inspect(int argc, char **argv) {
    static const char usage[] =
        "Usage: berth inspect PATH [--vocab FILE] [--order N [--seed K]]\n\n"
        "PATH is a shard (its data sets and a decoded sample), a run folder (its latest checkpoint), a checkpoint or "
        "any\n"
        "HuggingFace BERT folder (configuration, tensors with shapes and norms, where training stands), or a\n"
        ".safetensors file.\n";
    const char *vocab = NULL;
    int64_t order = 0, seed = 42;
    const struct option options[] = {
        {"--vocab", OPTION_STRING, &vocab, "FILE", "vocabulary that decodes the sample of a shard", 0, 0, 0},
        {"--order", OPTION_INT, &order, "N", "file and sequence of the first N samples that training takes; 0: no", 0,
         9e15, 0},
        {"--seed", OPTION_INT, &seed, "K", "of that order: train.seed", 0, 9e15, 0}};
    struct option_list paths = {0};
    int help = 0;
    TRY(options_parse(argc, argv, usage, options, sizeof options / sizeof *options, &paths, &help));
    if (help)
        return OK;
    if (paths.count != 1)
        return bad_input("inspect: expected one PATH, got %d: see berth inspect --help", paths.count);
    const char *path = paths.items[0];
    if (order)
        return inspect_order(path, order, (uint64_t)seed);
    if (ends_with(path, ".safetensors") && file_exists(path))
        return print_tensors(path);
    if (!folder_exists(path))
        return inspect_shard(path, vocab);
    char *folder;
    status found = checkpoint_resolve(path, &folder);
    if (found != OK) /* not a model: a folder of shards, then */
        return inspect_shard(path, vocab) == OK
                   ? OK
                   : bad_input("inspect: %s: neither a model, nor a run, nor shards (%s)", path, status_message());
    status code = print_folder(folder);
    free(folder);
    return code;
}
