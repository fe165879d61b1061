#include "train/hf_remap.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

/* The longest old entry that `text` begins with, as the first piece of a word or as a later one; 0: none. */
static size_t longest_piece(const struct vocab *old, const char *text, bool first, int32_t *id) {
    char *piece = xasprintf("##%s", text);
    size_t length = strlen(text);
    for (; length > 0; length--) {
        piece[2 + length] = 0;
        *id = (int32_t)vocab_id(old, first ? piece + 2 : piece);
        if (*id >= 0)
            break;
    }
    free(piece);
    return length;
}

/* Appends the rows that `token` starts from to map->rows. */
static void add_rows(const struct vocab *old, const char *token, struct row_map *map, int64_t *count,
                     int64_t *capacity) {
    int64_t begin = *count, same = vocab_id(old, token);
    bool continues = strncmp(token, "##", 2) == 0 && token[2];
    const char *at = continues ? token + 2 : token;
    int32_t id = (int32_t)same;
    size_t length = strlen(at);
    for (bool first = !continues; *at; at += length, first = false) {
        if (same < 0)
            length = longest_piece(old, at, first, &id);
        if (length == 0) { /* what cannot be split is unknown as a whole */
            *count = begin;
            id = vocab_special(old).unk;
        }
        GROW(map->rows, *count, *capacity);
        map->rows[(*count)++] = id;
        if (length == 0)
            break;
    }
    map->kept += same >= 0;
    map->made += same < 0;
}

void row_map_of_vocab(const struct vocab *old, const struct vocab *new, struct row_map *out) {
    int64_t count = 0, capacity = 0;
    *out = (struct row_map){.entries = vocab_size(new)};
    out->starts = xcalloc((size_t)out->entries + 1, sizeof *out->starts);
    for (int64_t e = 0; e < out->entries; e++) {
        add_rows(old, vocab_token(new, e), out, &count, &capacity);
        out->starts[e + 1] = count;
    }
}

void row_map_tiled(int64_t old_rows, int64_t rows, struct row_map *out) {
    *out = (struct row_map){.entries = rows, .kept = rows < old_rows ? rows : old_rows};
    out->made = rows - out->kept;
    out->starts = xcalloc((size_t)rows + 1, sizeof *out->starts);
    out->rows = xcalloc((size_t)rows, sizeof *out->rows);
    for (int64_t e = 0; e < rows; e++) {
        out->rows[e] = (int32_t)(e % old_rows);
        out->starts[e + 1] = e + 1;
    }
}

void row_map_free(struct row_map *map) {
    free(map->starts);
    free(map->rows);
    *map = (struct row_map){0};
}

bool hf_is_vocabulary(const struct parameter *parameter) {
    return strcmp(parameter->name, "bert.embeddings.word_embeddings.weight") == 0 ||
           strcmp(parameter->name, "cls.predictions.bias") == 0;
}

bool hf_is_positions(const struct parameter *parameter) {
    return strcmp(parameter->name, "bert.embeddings.position_embeddings.weight") == 0;
}

status hf_read_mapped(const struct hf_model *model, int parameter, const struct safetensors *file, const char *name,
                      const struct row_map *map, float *scratch) {
    const struct parameter *p = &model->graph->parameters[parameter];
    const struct safetensors_tensor *tensor = safetensors_find(file, name);
    int64_t n = p->columns;
    void *old;
    TRY(memory_new(&old, (size_t)tensor->count * sizeof(float), "the old embedding"));
    status code = safetensors_read(file, tensor, 0, tensor->count, old);
    memset(scratch, 0, (size_t)(p->rows * n) * sizeof *scratch);
    for (int64_t e = 0; e < map->entries && code == OK; e++) {
        int64_t pieces = map->starts[e + 1] - map->starts[e];
        for (int64_t i = map->starts[e]; i < map->starts[e + 1]; i++)
            for (int64_t c = 0; c < n; c++)
                scratch[e * n + c] += ((float *)old)[map->rows[i] * n + c] / (float)pieces;
    }
    memory_free(old);
    return code == OK ? exec_upload_slice(model->exec, model->graph->master, parameter, scratch) : code;
}
