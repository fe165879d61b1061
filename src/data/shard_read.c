#include "data/shard_read.h"

#include <hdf5.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"

static pthread_mutex_t library = PTHREAD_MUTEX_INITIALIZER;

enum column { INPUT_IDS, INPUT_MASK, SEGMENT_IDS, MASKED_POSITIONS, MASKED_IDS, NSP_LABELS, COLUMNS };

static const struct {
    const char *name;
    int rank;
    bool optional;
} columns[COLUMNS] = {
    [INPUT_IDS] = {"input_ids", 2, false},
    [INPUT_MASK] = {"input_mask", 2, true}, /* without it a row ends after its last id that is not 0 */
    [SEGMENT_IDS] = {"segment_ids", 2, false},
    [MASKED_POSITIONS] = {"masked_lm_positions", 2, false},
    [MASKED_IDS] = {"masked_lm_ids", 2, false},
    [NSP_LABELS] = {"next_sentence_labels", 1, false},
};

struct file {
    const char *path;
    hid_t id;
    hid_t dataset[COLUMNS]; /* -1: absent */
    hsize_t dims[COLUMNS][2];
};

/* --- opening --- */

static status open_file(const char *path, struct file *file) {
    *file = (struct file){.path = path, .id = -1};
    for (int c = 0; c < COLUMNS; c++)
        file->dataset[c] = -1;
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL); /* our messages, not the library's stack */
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_file_locking(access, false, true); /* shards lie on NFS and Lustre */
    file->id = H5Fopen(path, H5F_ACC_RDONLY, access);
    H5Pclose(access);
    if (file->id >= 0)
        return OK;
    int descriptor;
    TRY(file_open_read(path, &descriptor)); /* says why it cannot be opened at all */
    char magic[8] = {0};
    status code = file_read_at(descriptor, path, 0, magic, sizeof magic);
    close(descriptor);
    if (code != OK || memcmp(magic, "\x89HDF\r\n\x1a\n", 8) != 0)
        return bad_input("%s: is not an HDF5 file", path);
    return bad_input("%s: a damaged or truncated HDF5 file", path);
}

static void close_file(struct file *file) {
    for (int c = 0; c < COLUMNS; c++)
        if (file->dataset[c] >= 0)
            H5Dclose(file->dataset[c]);
    if (file->id >= 0)
        H5Fclose(file->id);
}

static status check_type(const struct file *file, int c) {
    hid_t type = H5Dget_type(file->dataset[c]);
    H5T_class_t class = H5Tget_class(type);
    H5Tclose(type);
    if (class == H5T_INTEGER)
        return OK;
    return bad_input("%s: dataset %s holds %s, expected integers", file->path, columns[c].name,
                     class == H5T_FLOAT    ? "floating-point numbers"
                     : class == H5T_VLEN   ? "variable-length rows"
                     : class == H5T_STRING ? "strings"
                                           : "another type");
}

static status check_shape(struct file *file, int c) {
    hid_t space = H5Dget_space(file->dataset[c]);
    int rank = H5Sget_simple_extent_ndims(space);
    if (rank == columns[c].rank)
        H5Sget_simple_extent_dims(space, file->dims[c], NULL);
    H5Sclose(space);
    if (rank != columns[c].rank)
        return bad_input("%s: dataset %s has %d dimensions, expected %d", file->path, columns[c].name, rank,
                         columns[c].rank);
    if (file->dims[c][0] != file->dims[INPUT_IDS][0])
        return bad_input("%s: dataset %s has %llu rows, but input_ids has %llu", file->path, columns[c].name,
                         (unsigned long long)file->dims[c][0], (unsigned long long)file->dims[INPUT_IDS][0]);
    int like = c == MASKED_IDS ? MASKED_POSITIONS : INPUT_IDS;
    if (rank == 2 && c != MASKED_POSITIONS && file->dims[c][1] != file->dims[like][1])
        return bad_input("%s: dataset %s has %llu columns, but %s has %llu", file->path, columns[c].name,
                         (unsigned long long)file->dims[c][1], columns[like].name,
                         (unsigned long long)file->dims[like][1]);
    return OK;
}

static status open_datasets(struct file *file) {
    for (int c = 0; c < COLUMNS; c++) {
        if (H5Lexists(file->id, columns[c].name, H5P_DEFAULT) <= 0) {
            if (columns[c].optional)
                continue;
            return bad_input("%s: dataset %s is missing", file->path, columns[c].name);
        }
        file->dataset[c] = H5Dopen2(file->id, columns[c].name, H5P_DEFAULT);
        if (file->dataset[c] < 0)
            return bad_input("%s: dataset %s cannot be opened", file->path, columns[c].name);
        TRY(check_type(file, c));
        TRY(check_shape(file, c));
    }
    if (file->dims[INPUT_IDS][0] == 0 || file->dims[INPUT_IDS][1] == 0)
        return bad_input("%s: holds no sequences", file->path);
    return OK;
}

/* values: [count, width] */
static status read_rows(const struct file *file, int c, int64_t first, int64_t count, int32_t *values) {
    hsize_t start[2] = {(hsize_t)first, 0}, size[2] = {(hsize_t)count, columns[c].rank == 2 ? file->dims[c][1] : 1};
    if (size[1] == 0)
        return OK;
    hid_t from = H5Dget_space(file->dataset[c]), to = H5Screate_simple(columns[c].rank, size, NULL);
    herr_t result = H5Sselect_hyperslab(from, H5S_SELECT_SET, start, NULL, size, NULL);
    if (result >= 0)
        result = H5Dread(file->dataset[c], H5T_NATIVE_INT32, to, from, H5P_DEFAULT, values);
    H5Sclose(from);
    H5Sclose(to);
    return result >= 0 ? OK
                       : bad_input("%s: dataset %s: rows %lld to %lld cannot be read: the file is damaged", file->path,
                                   columns[c].name, (long long)first, (long long)(first + count - 1));
}

static int64_t rows_a_chunk(const struct file *file) {
    hsize_t chunk[2] = {1, 1};
    hid_t properties = H5Dget_create_plist(file->dataset[INPUT_IDS]);
    if (H5Pget_layout(properties) == H5D_CHUNKED)
        H5Pget_chunk(properties, 2, chunk);
    H5Pclose(properties);
    return (int64_t)chunk[0];
}

static status hash_first_rows(const struct file *file, uint64_t *hash) {
    int64_t rows = (int64_t)file->dims[INPUT_IDS][0], count = rows < 16 ? rows : 16;
    int64_t values = count * (int64_t)file->dims[INPUT_IDS][1];
    int32_t *ids = xmalloc((size_t)values * sizeof *ids);
    status code = read_rows(file, INPUT_IDS, 0, count, ids);
    *hash = 14695981039346656037u; /* FNV-1a */
    for (int64_t i = 0; i < values && code == OK; i++)
        *hash = (*hash ^ (uint32_t)ids[i]) * 1099511628211u;
    free(ids);
    return code;
}

static status check_locked(const char *path, struct shard *out) {
    struct file file;
    status code = open_file(path, &file);
    if (code == OK)
        code = open_datasets(&file);
    if (code == OK) {
        *out = (struct shard){.rows = (int64_t)file.dims[INPUT_IDS][0],
                              .seq_len = (int64_t)file.dims[INPUT_IDS][1],
                              .max_predictions = (int64_t)file.dims[MASKED_POSITIONS][1],
                              .chunk_rows = rows_a_chunk(&file)};
        code = hash_first_rows(&file, &out->hash);
    }
    close_file(&file);
    return code;
}

status shard_check(const char *path, struct shard *out) {
    int64_t bytes;
    TRY(file_size(path, &bytes));
    pthread_mutex_lock(&library);
    status code = check_locked(path, out);
    pthread_mutex_unlock(&library);
    if (code == OK) {
        out->path = xstrdup(path);
        out->bytes = bytes;
    }
    return code;
}

void shard_free(struct shard *shard) { free(shard->path); }

/* --- rows: checked and cut --- */

struct raw {
    const struct shard *shard;
    const struct shard_limits *limits;
    int64_t first;
    int64_t width[COLUMNS];
    int32_t *values[COLUMNS]; /* [count, width], NULL: absent */
};

static const int32_t *raw_row(const struct raw *raw, int c, int64_t row) {
    return raw->values[c] + row * raw->width[c];
}

static status bad_row(const struct raw *raw, int c, int64_t row, int64_t column, const char *expected) {
    return bad_input("%s: dataset %s, row %lld, column %lld: found %d, expected %s", raw->shard->path, columns[c].name,
                     (long long)(raw->first + row), (long long)column, raw_row(raw, c, row)[column], expected);
}

static status row_length(const struct raw *raw, int64_t row, int64_t *length) {
    int64_t n = 0, width = raw->width[INPUT_IDS];
    if (raw->values[INPUT_MASK]) {
        const int32_t *mask = raw_row(raw, INPUT_MASK, row);
        while (n < width && mask[n] == 1)
            n++;
        for (int64_t i = n; i < width; i++)
            if (mask[i] != 0)
                return bad_row(raw, INPUT_MASK, row, i, "ones, then zeros up to the end");
    } else {
        const int32_t *ids = raw_row(raw, INPUT_IDS, row);
        for (n = width; n > 0 && ids[n - 1] == 0; n--)
            continue;
    }
    *length = n;
    if (n == 0)
        return bad_input("%s: dataset %s, row %lld: the sequence is empty, expected at least one token",
                         raw->shard->path, columns[raw->values[INPUT_MASK] ? INPUT_MASK : INPUT_IDS].name,
                         (long long)(raw->first + row));
    if (n > raw->limits->seq_len)
        return bad_input("%s: row %lld has %lld tokens, more than the %lld planned for", raw->shard->path,
                         (long long)(raw->first + row), (long long)n, (long long)raw->limits->seq_len);
    return OK;
}

static status bad_id(const struct raw *raw, int c, int64_t row, int64_t column) {
    char expected[64];
    snprintf(expected, sizeof expected, "an id from 0 to %lld (the vocabulary)",
             (long long)raw->limits->vocab_size - 1);
    return bad_row(raw, c, row, column, expected);
}

static status add_tokens(const struct raw *raw, int64_t row, struct block *block) {
    int64_t length = 0, begin = block->token_starts[row];
    TRY(row_length(raw, row, &length));
    const int32_t *ids = raw_row(raw, INPUT_IDS, row), *types = raw_row(raw, SEGMENT_IDS, row);
    for (int64_t i = 0; i < length; i++) {
        if ((uint32_t)ids[i] >= (uint64_t)raw->limits->vocab_size)
            return bad_id(raw, INPUT_IDS, row, i);
        if (types[i] != 0 && types[i] != 1)
            return bad_row(raw, SEGMENT_IDS, row, i, "0 or 1");
        block->ids[begin + i] = ids[i];
        block->types[begin + i] = (uint8_t)types[i];
    }
    block->token_starts[row + 1] = begin + length;
    return OK;
}

static status add_masks(const struct raw *raw, int64_t row, struct block *block) {
    const int32_t *positions = raw_row(raw, MASKED_POSITIONS, row), *labels = raw_row(raw, MASKED_IDS, row);
    int64_t length = block->token_starts[row + 1] - block->token_starts[row], at = block->mask_starts[row], i;
    for (i = 0; i < raw->width[MASKED_POSITIONS] && positions[i] != 0;
         i++) { /* [CLS] is never masked: 0 ends the list */
        if (positions[i] < 0 || positions[i] >= length)
            return bad_row(raw, MASKED_POSITIONS, row, i, "a position inside the sequence");
        if (i > 0 && positions[i] <= positions[i - 1])
            return bad_row(raw, MASKED_POSITIONS, row, i, "ascending positions");
        if ((uint32_t)labels[i] >= (uint64_t)raw->limits->vocab_size)
            return bad_id(raw, MASKED_IDS, row, i);
        block->positions[at + i] = positions[i];
        block->labels[at + i] = labels[i];
    }
    if (i > raw->limits->max_predictions)
        return bad_input("%s: row %lld has %lld masked positions, more than the %lld planned for", raw->shard->path,
                         (long long)(raw->first + row), (long long)i, (long long)raw->limits->max_predictions);
    block->mask_starts[row + 1] = at + i;
    return OK;
}

static status add_row(const struct raw *raw, int64_t row, struct block *block) {
    TRY(add_tokens(raw, row, block));
    TRY(add_masks(raw, row, block));
    int32_t label = *raw_row(raw, NSP_LABELS, row);
    if (label != 0 && label != 1)
        return bad_row(raw, NSP_LABELS, row, 0, "0 or 1");
    block->nsp[row] = (uint8_t)label;
    return OK;
}

static status read_raw(const struct shard *shard, int64_t count, struct raw *raw) {
    struct file file;
    pthread_mutex_lock(&library);
    status code = open_file(shard->path, &file);
    if (code == OK)
        code = open_datasets(&file);
    if (code == OK && (int64_t)file.dims[INPUT_IDS][0] != shard->rows)
        code = bad_input("%s: has %llu rows, but had %lld when the run began: the file changed", shard->path,
                         (unsigned long long)file.dims[INPUT_IDS][0], (long long)shard->rows);
    for (int c = 0; c < COLUMNS && code == OK; c++) {
        if (file.dataset[c] < 0)
            continue;
        raw->width[c] = columns[c].rank == 2 ? (int64_t)file.dims[c][1] : 1;
        raw->values[c] = xmalloc((size_t)(count * raw->width[c]) * sizeof *raw->values[c]);
        code = read_rows(&file, c, raw->first, count, raw->values[c]);
    }
    close_file(&file);
    pthread_mutex_unlock(&library);
    return code;
}

/* Room for the longest rows; block_shrink gives back what was not needed. */
static void block_new(struct block *block, int64_t rows, int64_t tokens, int64_t masks) {
    *block = (struct block){.rows = rows,
                            .token_starts = xcalloc((size_t)rows + 1, sizeof *block->token_starts),
                            .mask_starts = xcalloc((size_t)rows + 1, sizeof *block->mask_starts),
                            .ids = xmalloc((size_t)tokens * sizeof *block->ids),
                            .types = xmalloc((size_t)tokens),
                            .positions = xmalloc((size_t)masks * sizeof *block->positions),
                            .labels = xmalloc((size_t)masks * sizeof *block->labels),
                            .nsp = xmalloc((size_t)rows)};
}

static void block_shrink(struct block *block) {
    size_t tokens = (size_t)block->token_starts[block->rows], masks = (size_t)block->mask_starts[block->rows];
    block->ids = xrealloc(block->ids, tokens * sizeof *block->ids);
    block->types = xrealloc(block->types, tokens);
    block->positions = xrealloc(block->positions, masks * sizeof *block->positions);
    block->labels = xrealloc(block->labels, masks * sizeof *block->labels);
}

status shard_read(const struct shard *shard, int64_t first, int64_t count, const struct shard_limits *limits,
                  struct block *out) {
    struct raw raw = {.shard = shard, .limits = limits, .first = first};
    *out = (struct block){0};
    status code = read_raw(shard, count, &raw);
    if (code == OK) {
        block_new(out, count, count * raw.width[INPUT_IDS], count * raw.width[MASKED_POSITIONS]);
        for (int64_t row = 0; row < count && code == OK; row++)
            code = add_row(&raw, row, out);
    }
    for (int c = 0; c < COLUMNS; c++)
        free(raw.values[c]);
    if (code == OK)
        block_shrink(out);
    else
        block_free(out);
    return code;
}

void block_free(struct block *block) {
    free(block->token_starts);
    free(block->mask_starts);
    free(block->ids);
    free(block->types);
    free(block->positions);
    free(block->labels);
    free(block->nsp);
    *block = (struct block){0};
}
