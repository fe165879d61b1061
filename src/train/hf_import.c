/* Starting from the weights of any HuggingFace BERT folder: old and foreign names, missing heads, tensors too many. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "train/hf_remap.h"

/* What a tensor of the file is: a parameter's number, or one of these. */
enum { UNEXPECTED = -1, KNOWN_COPY = -2 /* tied to another tensor, or a constant table: nothing is lost without it */ };

/* Today's name of a tensor: "encoder.layer.0.output.LayerNorm.gamma" is "bert.encoder.layer.0.output.LayerNorm.weight";
 * NVIDIA's "dense_act" is a dense layer that applies its activation itself; "module." is left by data parallel
 * wrappers. */
static char *canonical_name(const char *name) {
    struct text text = {0};
    if (starts_with(name, "module."))
        name += strlen("module.");
    if (starts_with(name, "embeddings.") || starts_with(name, "encoder.") || starts_with(name, "pooler."))
        text_add(&text, "bert.");
    const char *end = name + strlen(name), *suffix = "";
    if (ends_with(name, ".gamma")) {
        end -= strlen("gamma");
        suffix = "weight";
    } else if (ends_with(name, ".beta")) {
        end -= strlen("beta");
        suffix = "bias";
    }
    const char *act = strstr(name, ".dense_act.");
    if (act) {
        text_append(&text, name, (size_t)(act - name));
        text_add(&text, ".dense.");
        name = act + strlen(".dense_act.");
    }
    text_append(&text, name, (size_t)(end - name));
    text_add(&text, suffix);
    return text.data;
}

/* `old_vocab` as in struct hf_changes. */
static bool same_shape(const struct safetensors_tensor *tensor, const struct parameter *parameter,
                       const struct vocab *old_vocab) {
    bool rows = old_vocab ? tensor->shape[0] >= vocab_size(old_vocab) : tensor->shape[0] == parameter->file_rows;
    return tensor->rank == parameter->rank && rows && (tensor->rank == 1 || tensor->shape[1] == parameter->columns);
}

/* The decoder is tied: its weight is the word embedding, its bias is cls.predictions.bias. */
static int find_parameter(const struct graph *graph, const struct vocab *old_vocab,
                          const struct safetensors_tensor *tensor, const char *name) {
    int found = graph_find_parameter(graph, name), tied = -1;
    if (strcmp(name, "cls.predictions.decoder.weight") == 0)
        tied = graph_find_parameter(graph, "bert.embeddings.word_embeddings.weight");
    else if (strcmp(name, "cls.predictions.decoder.bias") == 0)
        tied = graph_find_parameter(graph, "cls.predictions.bias");
    if (tied >= 0 && same_shape(tensor, &graph->parameters[tied], old_vocab))
        return KNOWN_COPY;
    if (ends_with(name, ".position_ids") || ends_with(name, ".token_type_ids"))
        return KNOWN_COPY;
    return found >= 0 ? found : UNEXPECTED;
}

/* For every parameter, the name of its tensor in the file; NULL if it is missing. `unexpected` collects the rest. */
static void match_names(const struct graph *graph, const struct vocab *old_vocab, const struct safetensors *file,
                        const char **sources, struct text *unexpected, int64_t *unexpected_count) {
    int bias = graph_find_parameter(graph, "cls.predictions.bias");
    const char *decoder_bias = NULL;
    for (int64_t i = 0; i < file->count; i++) {
        const struct safetensors_tensor *tensor = &file->tensors[i];
        char *name = canonical_name(tensor->name);
        int found = find_parameter(graph, old_vocab, tensor, name);
        if (found == KNOWN_COPY && strcmp(name, "cls.predictions.decoder.bias") == 0)
            decoder_bias = tensor->name;
        if (found >= 0 && !sources[found])
            sources[found] = tensor->name;
        else if (found != KNOWN_COPY)
            text_printf(unexpected, "%s%s", (*unexpected_count)++ ? ", " : "", tensor->name);
        free(name);
    }
    if (bias >= 0 && !sources[bias])
        sources[bias] = decoder_bias;
}

static bool is_head(const char *name) { return starts_with(name, "bert.pooler.") || starts_with(name, "cls."); }

/* The rows that the file must have for a parameter whose rows are to become others; 0: it is taken as it is. */
static int64_t mapped_rows(const struct hf_changes *changes, const struct parameter *parameter) {
    if (changes->old_vocab && hf_is_vocabulary(parameter))
        return vocab_size(changes->old_vocab);
    return changes->tile_positions && hf_is_positions(parameter);
}

static status check_sources(const struct hf_model *model, const struct hf_changes *changes,
                            const struct safetensors *file, const char **sources, struct text *missing,
                            int64_t *missing_count) {
    for (int p = 0; p < model->graph->parameter_count; p++) {
        const char *name = model->graph->parameters[p].name;
        if (sources[p]) {
            TRY(hf_check_slice(model, p, file, sources[p], mapped_rows(changes, &model->graph->parameters[p])));
            continue;
        }
        if (!is_head(name))
            return bad_input("%s: tensor %s is missing: this is not a BERT of the configured size", file->path, name);
        text_printf(missing, "%s%s", (*missing_count)++ ? ", " : "", name);
    }
    return OK;
}

/* Fills a parameter whose rows become others. */
static status fill_mapped(const struct hf_model *model, int parameter, const struct row_map *vocabulary,
                          const struct safetensors *file, const char *source, float *scratch) {
    const struct parameter *p = &model->graph->parameters[parameter];
    if (hf_is_vocabulary(p))
        return hf_read_mapped(model, parameter, file, source, vocabulary, scratch);
    struct row_map positions;
    row_map_tiled(safetensors_find(file, source)->shape[0], p->file_rows, &positions);
    status code = hf_read_mapped(model, parameter, file, source, &positions, scratch);
    if (code == OK)
        log_info("%s: %lld position embeddings, repeated to make %lld", file->path, (long long)positions.kept,
                 (long long)positions.entries);
    row_map_free(&positions);
    return code;
}

static status fill(const struct hf_model *model, const struct hf_changes *changes, const struct row_map *vocabulary,
                   const struct safetensors *file, const char **sources, uint64_t seed) {
    const struct graph *graph = model->graph;
    void *scratch;
    TRY(memory_new(&scratch, (size_t)hf_scratch_count(graph) * sizeof(float), "the largest weight tensor"));
    status code = OK;
    for (int p = 0; p < graph->parameter_count && code == OK; p++) {
        const struct parameter *parameter = &graph->parameters[p];
        if (sources[p] && mapped_rows(changes, parameter)) {
            code = fill_mapped(model, p, vocabulary, file, sources[p], scratch);
        } else if (sources[p]) {
            code = hf_read_slice(model, graph->master, p, file, sources[p], scratch);
        } else {
            bert_init_parameter(model->config, parameter, seed, scratch);
            code = exec_upload_slice(model->exec, graph->master, p, scratch);
        }
    }
    memory_free(scratch);
    return code;
}

/* `fill` with the map of the vocabulary, where that changes. */
static status fill_all(const char *folder, const struct hf_model *model, const struct hf_changes *changes,
                       const struct safetensors *file, const char **sources, uint64_t seed) {
    struct row_map map = {0};
    if (changes->old_vocab)
        row_map_of_vocab(changes->old_vocab, model->tokenizer->vocab, &map);
    status code = fill(model, changes, &map, file, sources, seed);
    if (code == OK && changes->old_vocab)
        log_info(
            "%s: of the %lld entries of the vocabulary, %lld keep their embedding, %lld start as the mean of the "
            "pieces they split into",
            folder, (long long)map.entries, (long long)map.kept, (long long)map.made);
    row_map_free(&map);
    return code;
}

static status load_file(const char *folder, const struct hf_model *model, const struct hf_changes *changes,
                        const struct safetensors *file, uint64_t seed) {
    const char **sources = xcalloc((size_t)model->graph->parameter_count, sizeof *sources);
    struct text unexpected = {0}, missing = {0};
    int64_t unexpected_count = 0, missing_count = 0;
    match_names(model->graph, changes->old_vocab, file, sources, &unexpected, &unexpected_count);
    status code = check_sources(model, changes, file, sources, &missing, &missing_count);
    if (code == OK)
        code = fill_all(folder, model, changes, file, sources, seed);
    if (code == OK && missing_count)
        log_info("%s: %lld tensors are missing and start from their initial values: %s", folder,
                 (long long)missing_count, missing.data);
    if (code == OK && unexpected_count)
        log_info("%s: %lld tensors are not part of this model and were not used: %s", folder,
                 (long long)unexpected_count, unexpected.data);
    text_free(&unexpected);
    text_free(&missing);
    free(sources);
    return code;
}

static status open_weights(const char *folder, struct safetensors *file) {
    char *path = path_join(folder, "model.safetensors"), *old = path_join(folder, "pytorch_model.bin");
    status code;
    if (!folder_exists(folder))
        code = bad_input("%s: no such folder", folder);
    else if (file_exists(path) || !file_exists(old))
        code = safetensors_open(path, file);
    else
        code = bad_input(
            "%s: only model.safetensors can be read; convert it with python3: from transformers import "
            "BertForPreTraining; BertForPreTraining.from_pretrained('%s').save_pretrained('NEW_FOLDER')",
            old, folder);
    free(path);
    free(old);
    return code;
}

status hf_folder_load(const char *folder, const struct hf_model *model, const struct hf_changes *changes,
                      uint64_t seed) {
    static const struct hf_changes none = {0};
    struct safetensors file = {0};
    TRY(open_weights(folder, &file));
    status code = load_file(folder, model, changes ? changes : &none, &file, seed);
    safetensors_close(&file);
    return code;
}
