#include "base/json.h"
#include "base/text.h"
#include "train/safetensors.h"

static void add_header(struct text *header, const struct safetensors_entry *entries, int64_t count, int64_t step,
                       int64_t *data_bytes) {
    /* "format": "pt" is what transformers insists on */
    text_add(header, "{\"__metadata__\":{\"format\":\"pt\"");
    if (step >= 0)
        text_printf(header, ",\"step\":\"%lld\"", (long long)step);
    text_add(header, "}");
    int64_t at = 0;
    for (int64_t i = 0; i < count; i++) {
        const struct safetensors_entry *entry = &entries[i];
        int64_t bytes = 4 * entry->shape[0] * (entry->rank == 2 ? entry->shape[1] : 1);
        text_add(header, ",");
        json_add_string(header, entry->name);
        text_printf(header, ":{\"dtype\":\"F32\",\"shape\":[%lld", (long long)entry->shape[0]);
        if (entry->rank == 2)
            text_printf(header, ",%lld", (long long)entry->shape[1]);
        text_printf(header, "],\"data_offsets\":[%lld,%lld]}", (long long)at, (long long)(at + bytes));
        at += bytes;
    }
    text_add(header, "}");
    while (header->length % 8)
        text_add(header, " ");
    *data_bytes = at;
}

status safetensors_create(struct safetensors_writer *writer, const char *path, const struct safetensors_entry *entries,
                          int64_t count, int64_t step) {
    struct text header = {0};
    int64_t data_bytes;
    add_header(&header, entries, count, step, &data_bytes);
    unsigned char prefix[8];
    for (int i = 0; i < 8; i++)
        prefix[i] = (unsigned char)((uint64_t)header.length >> 8 * i);
    writer->end = 8 + (int64_t)header.length + data_bytes;
    status code = file_create(&writer->file, path);
    if (code == OK)
        code = file_write(&writer->file, prefix, sizeof prefix);
    if (code == OK)
        code = file_write(&writer->file, header.data, header.length);
    if (code != OK)
        safetensors_abandon(writer);
    text_free(&header);
    return code;
}

status safetensors_write(struct safetensors_writer *writer, const float *values, int64_t count) {
    return file_write(&writer->file, values, (size_t)count * sizeof *values);
}

status safetensors_commit(struct safetensors_writer *writer) {
    if (writer->file.offset != writer->end) {
        status code = failed("%s: %lld bytes were written, the header describes %lld", writer->file.path,
                             (long long)writer->file.offset, (long long)writer->end);
        safetensors_abandon(writer);
        return code;
    }
    return file_commit(&writer->file);
}

void safetensors_abandon(struct safetensors_writer *writer) { file_abandon(&writer->file); }
