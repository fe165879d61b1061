#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/memory.h"
#include "base/number.h"
#include "train/safetensors.h"

enum { HEADER_LIMIT = 100 << 20 }; /* the format's own limit */

/* Bytes of an element; 0 for a type that the format does not have. */
static int64_t type_size(const char *type) {
    static const struct {
        const char *name;
        int64_t size;
    } types[] = {{"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F64", 8}, {"I64", 8},     {"I32", 4},     {"I16", 2}, {"I8", 1},
                 {"U64", 8}, {"U32", 4}, {"U16", 2},  {"U8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"BOOL", 1}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(type, types[i].name) == 0)
            return types[i].size;
    return 0;
}

/* Whether `begin` and `end`, already file offsets, hold what type and shape say. */
static status check_bytes(const char *path, const struct safetensors_tensor *tensor, int64_t file_bytes) {
    int64_t size = type_size(tensor->type), bytes;
    if (size == 0)
        return bad_input("%s: tensor %s has unknown dtype \"%s\"", path, tensor->name, tensor->type);
    if (tensor->begin < 0 || tensor->begin > tensor->end || tensor->end > file_bytes)
        return bad_input(
            "%s: tensor %s lies at bytes %lld to %lld, outside of the file's %lld: the file is cut short or damaged",
            path, tensor->name, (long long)tensor->begin, (long long)tensor->end, (long long)file_bytes);
    if (__builtin_mul_overflow(tensor->count, size, &bytes) || bytes != tensor->end - tensor->begin) {
        char shape[128];
        safetensors_shape(tensor, shape, sizeof shape);
        return bad_input("%s: tensor %s has %lld bytes, which is not %s of %s", path, tensor->name,
                         (long long)(tensor->end - tensor->begin), shape, tensor->type);
    }
    return OK;
}

static status read_tensor(const char *path, const json *item, int64_t data_begin, int64_t file_bytes,
                          struct safetensors_tensor *tensor) {
    *tensor = (struct safetensors_tensor){.name = xstrdup(json_key(item)), .count = 1};
    const char *type;
    json *shape, *offsets;
    TRY(json_get_string(tensor->name, item, "dtype", &type));
    TRY(json_get_array(tensor->name, item, "shape", &shape));
    TRY(json_get_array(tensor->name, item, "data_offsets", &offsets));
    snprintf(tensor->type, sizeof tensor->type, "%s", type);
    if (json_count(shape) > SAFETENSORS_RANK)
        return bad_input("tensor %s has %lld dims, at most %d are supported", tensor->name,
                         (long long)json_count(shape), SAFETENSORS_RANK);
    for (const json *dim = json_first(shape); dim; dim = json_next(dim)) {
        int64_t *n = &tensor->shape[tensor->rank++];
        if (!json_value_int(dim, n) || *n < 0 || __builtin_mul_overflow(tensor->count, *n, &tensor->count))
            return bad_input("tensor %s has an impossible shape", tensor->name);
    }
    const json *begin = json_first(offsets);
    if (json_count(offsets) != 2 || !json_value_int(begin, &tensor->begin) ||
        !json_value_int(json_next(begin), &tensor->end))
        return bad_input("tensor %s: data_offsets must be two integers", tensor->name);
    tensor->begin += data_begin;
    tensor->end += data_begin;
    return check_bytes(path, tensor, file_bytes);
}

static int by_begin(const void *a, const void *b) {
    const struct safetensors_tensor *x = a, *y = b;
    int order = (x->begin > y->begin) - (x->begin < y->begin);
    return order ? order : (x->end > y->end) - (x->end < y->end);
}

/* The tensors must tile the file's data: no gap, no overlap, nothing left over. */
static status check_tiling(struct safetensors *out, int64_t data_begin, int64_t file_bytes) {
    if (out->count)
        qsort(out->tensors, (size_t)out->count, sizeof *out->tensors, by_begin);
    int64_t at = data_begin;
    for (int64_t i = 0; i < out->count; i++) {
        if (out->tensors[i].begin != at)
            return bad_input("%s: tensor %s begins at byte %lld, expected %lld", out->path, out->tensors[i].name,
                             (long long)out->tensors[i].begin, (long long)at);
        at = out->tensors[i].end;
    }
    return at == file_bytes ? OK
                            : bad_input("%s: the file has %lld bytes, its header describes %lld", out->path,
                                        (long long)file_bytes, (long long)at);
}

/* Offsets are whole numbers below 2^53, so JSON's doubles hold them exactly. */
static status read_header(struct safetensors *out, const json *root, int64_t data_begin, int64_t file_bytes) {
    out->tensors = xcalloc((size_t)json_count(root) + 1, sizeof *out->tensors);
    for (const json *item = json_first(root); item; item = json_next(item)) {
        if (strcmp(json_key(item), "__metadata__") == 0) {
            const char *step = json_value_string(json_get(item, "step"));
            out->step = step ? atoll(step) : -1;
            continue;
        }
        TRY(read_tensor(out->path, item, data_begin, file_bytes, &out->tensors[out->count++]));
    }
    return check_tiling(out, data_begin, file_bytes);
}

status safetensors_open(const char *path, struct safetensors *out) {
    *out = (struct safetensors){.path = xstrdup(path), .descriptor = -1, .step = -1};
    char *header = NULL;
    json *root = NULL;
    int64_t file_bytes = 0, length = 0;
    unsigned char prefix[8];
    status code;
    TRY_GOTO(file_open_read(path, &out->descriptor), done);
    TRY_GOTO(file_size(path, &file_bytes), done);
    TRY_GOTO(file_read_at(out->descriptor, path, 0, prefix, sizeof prefix), done);
    for (int i = 7; i >= 0; i--)
        length = (int64_t)((uint64_t)length << 8 | prefix[i]);
    if (length < 2 || length > HEADER_LIMIT || length > file_bytes - 8) {
        code = bad_input("%s: not a safetensors file: a header of %lld bytes in a file of %lld", path,
                         (long long)length, (long long)file_bytes);
        goto done;
    }
    header = xmalloc((size_t)length);
    TRY_GOTO(file_read_at(out->descriptor, path, 8, header, (size_t)length), done);
    TRY_GOTO(json_parse(path, header, (size_t)length, &root), done);
    code = read_header(out, root, 8 + length, file_bytes);
    if (code != OK && !starts_with(status_message(), path))
        status_context(code, "%s", path);
done:
    json_free(root);
    free(header);
    if (code != OK)
        safetensors_close(out);
    return code;
}

void safetensors_close(struct safetensors *file) {
    if (!file->path)
        return;
    for (int64_t i = 0; i < file->count; i++)
        free(file->tensors[i].name);
    free(file->tensors);
    free(file->path);
    if (file->descriptor >= 0)
        close(file->descriptor);
    *file = (struct safetensors){.descriptor = -1};
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *file, const char *name) {
    for (int64_t i = 0; i < file->count; i++)
        if (strcmp(file->tensors[i].name, name) == 0)
            return &file->tensors[i];
    return NULL;
}

/* In place: 16-bit numbers stand in the upper half of the buffer, so that widening from the front never overtakes them.
 */
static void widen(float *values, int64_t count, float (*convert)(uint16_t)) {
    const char *from = (const char *)values + 2 * count;
    for (int64_t i = 0; i < count; i++) {
        uint16_t bits;
        memcpy(&bits, from + 2 * i, sizeof bits);
        values[i] = convert(bits);
    }
}

status safetensors_read(const struct safetensors *file, const struct safetensors_tensor *tensor, int64_t first,
                        int64_t count, float *values) {
    int64_t size = type_size(tensor->type);
    if (first < 0 || count < 0 || first > tensor->count - count)
        return bad_input("%s: tensor %s has %lld elements, %lld from %lld asked for", file->path, tensor->name,
                         (long long)tensor->count, (long long)count, (long long)first);
    if (strcmp(tensor->type, "F32") == 0)
        return file_read_at(file->descriptor, file->path, tensor->begin + first * size, values, (size_t)(count * size));
    bool half = strcmp(tensor->type, "F16") == 0;
    if (!half && strcmp(tensor->type, "BF16") != 0)
        return bad_input("%s: tensor %s has dtype %s, expected F32, F16 or BF16", file->path, tensor->name,
                         tensor->type);
    TRY(file_read_at(file->descriptor, file->path, tensor->begin + first * size, (char *)values + 2 * count,
                     (size_t)(count * size)));
    widen(values, count, half ? f16_to_float : bf16_to_float);
    return OK;
}

void safetensors_shape(const struct safetensors_tensor *tensor, char *out, size_t size) {
    struct text text = {0};
    text_add(&text, tensor->rank ? "" : "scalar");
    for (int i = 0; i < tensor->rank; i++)
        text_printf(&text, "%s%lld", i ? "x" : "", (long long)tensor->shape[i]);
    snprintf(out, size, "%s", text.data);
    text_free(&text);
}
