#include "train/hf_folder.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"

int64_t hf_scratch_count(const struct graph *graph) {
    int64_t largest = 0;
    for (int p = 0; p < graph->parameter_count; p++) {
        int64_t count = graph->parameters[p].rows * graph->parameters[p].columns;
        largest = count > largest ? count : largest;
    }
    return largest;
}

void hf_entry(const struct parameter *parameter, const char *name, struct safetensors_entry *out) {
    *out = (struct safetensors_entry){
        .name = name, .rank = parameter->rank, .shape = {parameter->file_rows, parameter->columns}};
}

static status write_slice(const struct hf_model *model, const struct hf_slice *slice, struct safetensors_writer *writer,
                          float *scratch) {
    const struct parameter *p = &model->graph->parameters[slice->parameter];
    TRY(exec_download_slice(model->exec, slice->tensor, slice->parameter, scratch));
    return safetensors_write(writer, scratch, p->file_rows * p->columns);
}

status hf_write_slices(const char *path, const struct hf_model *model, const struct hf_slice *slices, int64_t count,
                       int64_t step) {
    struct safetensors_entry *entries = xcalloc((size_t)count, sizeof *entries);
    void *scratch = NULL;
    struct safetensors_writer writer;
    for (int64_t i = 0; i < count; i++)
        hf_entry(&model->graph->parameters[slices[i].parameter], slices[i].name, &entries[i]);
    status code = memory_new(&scratch, (size_t)hf_scratch_count(model->graph) * sizeof(float), "the largest tensor");
    if (code == OK)
        code = safetensors_create(&writer, path, entries, count, step);
    if (code == OK) {
        for (int64_t i = 0; i < count && code == OK; i++)
            code = write_slice(model, &slices[i], &writer, scratch);
        if (code == OK)
            code = safetensors_commit(&writer);
        else
            safetensors_abandon(&writer);
    }
    memory_free(scratch);
    free(entries);
    return code;
}

status hf_check_slice(const struct hf_model *model, int parameter, const struct safetensors *file, const char *name,
                      int64_t old_rows) {
    const struct parameter *p = &model->graph->parameters[parameter];
    const struct safetensors_tensor *tensor = safetensors_find(file, name);
    if (!tensor)
        return bad_input("%s: tensor %s is missing", file->path, name);
    bool rows = tensor->rank && (old_rows ? tensor->shape[0] >= old_rows : tensor->shape[0] == p->file_rows);
    if (!rows || tensor->rank != p->rank || (p->rank > 1 && tensor->shape[1] != p->columns)) {
        char shape[128], expected[64];
        struct safetensors_tensor ours = {.rank = p->rank, .shape = {old_rows ? old_rows : p->file_rows, p->columns}};
        safetensors_shape(tensor, shape, sizeof shape);
        safetensors_shape(&ours, expected, sizeof expected);
        return bad_input("%s: tensor %s is %s, the model needs %s%s", file->path, name, shape, expected,
                         old_rows ? " or more rows" : "");
    }
    if (strcmp(tensor->type, "F32") != 0 && strcmp(tensor->type, "F16") != 0 && strcmp(tensor->type, "BF16") != 0)
        return bad_input("%s: tensor %s has dtype %s, expected F32, F16 or BF16", file->path, name, tensor->type);
    return OK;
}

status hf_read_slice(const struct hf_model *model, int tensor, int parameter, const struct safetensors *file,
                     const char *name, float *scratch) {
    const struct parameter *p = &model->graph->parameters[parameter];
    int64_t in_file = p->file_rows * p->columns, count = p->rows * p->columns;
    TRY(hf_check_slice(model, parameter, file, name, 0));
    TRY(safetensors_read(file, safetensors_find(file, name), 0, in_file, scratch));
    memset(scratch + in_file, 0, (size_t)(count - in_file) * sizeof *scratch);
    return exec_upload_slice(model->exec, tensor, parameter, scratch);
}

static status write_weights(const char *path, const struct hf_model *model, int64_t step) {
    const struct graph *graph = model->graph;
    struct hf_slice *slices = xcalloc((size_t)graph->parameter_count, sizeof *slices);
    for (int p = 0; p < graph->parameter_count; p++)
        slices[p] = (struct hf_slice){.name = graph->parameters[p].name, .tensor = graph->master, .parameter = p};
    status code = hf_write_slices(path, model, slices, graph->parameter_count, step);
    free(slices);
    return code;
}

status hf_folder_write(const char *folder, const struct hf_model *model, int64_t step) {
    const struct hf_tokenizer *tokenizer = model->tokenizer;
    TRY(hf_config_write(folder, model->config, tokenizer ? vocab_special(tokenizer->vocab).pad : 0));
    if (tokenizer)
        TRY(hf_tokenizer_write(folder, tokenizer, model->config->max_position_embeddings));
    char *path = path_join(folder, "model.safetensors");
    status code = write_weights(path, model, step);
    free(path);
    return code;
}
