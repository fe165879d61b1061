#include "data/shard_file.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"

enum presence { NO, MAY, MUST };

static const struct {
    const char *name;
    int rank; /* in the fixed form */
    enum presence presence[FORMS];
} columns[COLUMNS] = {
    [INPUT_IDS] = {"input_ids", 2, {MUST, MUST, MUST}},
    [INPUT_MASK] = {"input_mask", 2, {MAY, NO, NO}}, /* without it a row ends after its last id that is not 0 */
    [SEGMENT_IDS] = {"segment_ids", 2, {MUST, MUST, MUST}},
    [MASKED_POSITIONS] = {"masked_lm_positions", 2, {MUST, MUST, MUST}},
    [MASKED_IDS] = {"masked_lm_ids", 2, {MUST, MUST, MUST}},
    [NSP_LABELS] = {"next_sentence_labels", 1, {MUST, MUST, MUST}},
    [PACKED_LENGTHS] = {"packed_input_len", 2, {NO, NO, MUST}},
    [PACKED_MASKS] = {"packed_masked_lm_len", 2, {NO, NO, MUST}},
};

const char *column_name(enum column column) { return columns[column].name; }

/* --- opening --- */

static status open_file(struct shard_file *file) {
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL); /* our messages, not the library's stack */
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_file_locking(access, false, true); /* shards lie on NFS and Lustre */
    file->id = H5Fopen(file->path, H5F_ACC_RDONLY, access);
    H5Pclose(access);
    if (file->id >= 0)
        return OK;
    int descriptor;
    TRY(file_open_read(file->path, &descriptor)); /* says why it cannot be opened at all */
    char magic[8] = {0};
    status code = file_read_at(descriptor, file->path, 0, magic, sizeof magic);
    close(descriptor);
    if (code != OK || memcmp(magic, "\x89HDF\r\n\x1a\n", 8) != 0)
        return bad_input("%s: is not an HDF5 file", file->path);
    return bad_input("%s: a damaged or truncated HDF5 file", file->path);
}

static bool has(const struct shard_file *file, enum column c) {
    return H5Lexists(file->id, columns[c].name, H5P_DEFAULT) > 0;
}

static status open_dataset(struct shard_file *file, enum column c) {
    if (!has(file, c))
        return bad_input("%s: dataset %s is missing, expected integers, a row a sequence", file->path, columns[c].name);
    file->dataset[c] = H5Dopen2(file->id, columns[c].name, H5P_DEFAULT);
    if (file->dataset[c] < 0)
        return bad_input("%s: dataset %s cannot be opened: it is damaged, or no dataset", file->path, columns[c].name);
    hid_t type = H5Dget_type(file->dataset[c]);
    file->variable[c] = H5Tget_class(type) == H5T_VLEN;
    hid_t number = file->variable[c] ? H5Tget_super(type) : H5Tcopy(type);
    H5T_class_t class = H5Tget_class(number);
    file->signed16[c] = class == H5T_INTEGER && H5Tget_size(number) == 2 && H5Tget_sign(number) == H5T_SGN_2;
    H5Tclose(number);
    H5Tclose(type);
    if (class == H5T_INTEGER)
        return OK;
    return bad_input("%s: dataset %s holds %s, expected integers", file->path, columns[c].name,
                     class == H5T_FLOAT    ? "floating-point numbers"
                     : class == H5T_STRING ? "strings"
                                           : "another type");
}

static status check_shape(struct shard_file *file, enum column c) {
    static const char *const kind[] = {"rows of one length", "variable-length rows"};
    bool variable = file->form == FORM_PACKED || (file->form == FORM_VARIABLE && c != NSP_LABELS);
    if (file->variable[c] != variable)
        return bad_input("%s: dataset %s has %s, expected %s as in its other datasets", file->path, columns[c].name,
                         kind[file->variable[c]], kind[variable]);
    hsize_t dims[H5S_MAX_RANK] = {0, 1};
    hid_t space = H5Dget_space(file->dataset[c]);
    int rank = H5Sget_simple_extent_dims(space, dims, NULL), expected = variable ? 1 : columns[c].rank;
    H5Sclose(space);
    if (rank != expected)
        return bad_input("%s: dataset %s has %d dimensions, expected %d", file->path, columns[c].name, rank, expected);
    if (c == INPUT_IDS)
        file->rows = (int64_t)dims[0];
    if ((int64_t)dims[0] != file->rows)
        return bad_input("%s: dataset %s has %llu rows, but input_ids has %lld", file->path, columns[c].name,
                         (unsigned long long)dims[0], (long long)file->rows);
    file->width[c] = rank == 2 ? (int64_t)dims[1] : 1;
    if (!variable)
        file->chunks[c] = chunk_form_of(file->dataset[c], rank, file->width[c]);
    enum column like = c == MASKED_POSITIONS || c == MASKED_IDS ? MASKED_POSITIONS : INPUT_IDS;
    if (rank == 2 && file->width[c] != file->width[like])
        return bad_input("%s: dataset %s has %lld columns, but %s has %lld", file->path, columns[c].name,
                         (long long)file->width[c], columns[like].name, (long long)file->width[like]);
    return OK;
}

static status open_datasets(struct shard_file *file) {
    TRY(open_dataset(file, INPUT_IDS));
    file->form = has(file, PACKED_LENGTHS) ? FORM_PACKED : file->variable[INPUT_IDS] ? FORM_VARIABLE : FORM_FIXED;
    TRY(check_shape(file, INPUT_IDS));
    for (enum column c = INPUT_IDS + 1; c < COLUMNS; c++) {
        enum presence presence = columns[c].presence[file->form];
        if (presence == NO || (presence == MAY && !has(file, c)))
            continue;
        TRY(open_dataset(file, c));
        TRY(check_shape(file, c));
    }
    if (file->rows == 0 || file->width[INPUT_IDS] == 0)
        return bad_input("%s: holds no sequences, expected at least one", file->path);
    hsize_t chunk[H5S_MAX_RANK] = {1};
    hid_t properties = H5Dget_create_plist(file->dataset[INPUT_IDS]);
    if (H5Pget_layout(properties) == H5D_CHUNKED)
        H5Pget_chunk(properties, H5S_MAX_RANK, chunk);
    H5Pclose(properties);
    file->chunk_rows = (int64_t)chunk[0];
    return OK;
}

status shard_file_open(const char *path, struct shard_file *file) {
    *file = (struct shard_file){.path = path, .id = -1};
    for (enum column c = 0; c < COLUMNS; c++)
        file->dataset[c] = -1;
    TRY(open_file(file));
    return open_datasets(file);
}

void shard_file_close(struct shard_file *file) {
    for (enum column c = 0; c < COLUMNS; c++)
        if (file->dataset[c] >= 0)
            H5Dclose(file->dataset[c]);
    if (file->id >= 0)
        H5Fclose(file->id);
}

int64_t shard_file_attribute(const struct shard_file *file, const char *name) {
    int64_t value = 0;
    if (H5Aexists(file->id, name) <= 0)
        return 0;
    hid_t attribute = H5Aopen(file->id, name, H5P_DEFAULT), space = H5Aget_space(attribute);
    if (H5Sget_simple_extent_npoints(space) != 1 || H5Aread(attribute, H5T_NATIVE_INT64, &value) < 0 || value < 0)
        value = 0;
    H5Sclose(space);
    H5Aclose(attribute);
    return value;
}

/* --- rows --- */

static herr_t read_fixed(hid_t dataset, const struct chunk_form *chunks, hid_t to, hid_t from, int64_t first,
                         int64_t count, int64_t width, struct stored_rows *out) {
    out->values = xmalloc((size_t)(count * width) * sizeof *out->values);
    for (int64_t r = 0; r <= count; r++)
        out->starts[r] = r * width;
    if (chunks->bytes && chunks_read(dataset, chunks, first, count, out->values))
        return 0;
    return width ? H5Dread(dataset, H5T_NATIVE_INT32, to, from, H5P_DEFAULT, out->values) : 0;
}

static herr_t read_variable(hid_t dataset, hid_t to, hid_t from, int64_t count, struct stored_rows *out) {
    hvl_t *rows = xcalloc((size_t)count, sizeof *rows);
    hid_t type = H5Tvlen_create(H5T_NATIVE_INT32);
    herr_t result = H5Dread(dataset, type, to, from, H5P_DEFAULT, rows);
    for (int64_t r = 0; r < count && result >= 0; r++)
        out->starts[r + 1] = out->starts[r] + (int64_t)rows[r].len;
    out->values = xmalloc((size_t)out->starts[count] * sizeof *out->values);
    for (int64_t r = 0; r < count && result >= 0; r++)
        if (rows[r].len)
            memcpy(out->values + out->starts[r], rows[r].p, rows[r].len * sizeof *out->values);
    H5Dvlen_reclaim(type, to, H5P_DEFAULT, rows);
    H5Tclose(type);
    free(rows);
    return result;
}

status shard_file_read(const struct shard_file *file, enum column c, int64_t first, int64_t count,
                       struct stored_rows *out) {
    bool variable = file->variable[c];
    hsize_t start[2] = {(hsize_t)first, 0}, size[2] = {(hsize_t)count, (hsize_t)file->width[c]};
    *out = (struct stored_rows){.starts = xcalloc((size_t)count + 1, sizeof *out->starts)};
    hid_t from = H5Dget_space(file->dataset[c]);
    hid_t to = H5Screate_simple(variable ? 1 : columns[c].rank, size, NULL);
    herr_t result = H5Sselect_hyperslab(from, H5S_SELECT_SET, start, NULL, size, NULL);
    if (result >= 0)
        result = variable ? read_variable(file->dataset[c], to, from, count, out)
                          : read_fixed(file->dataset[c], &file->chunks[c], to, from, first, count, file->width[c], out);
    H5Sclose(from);
    H5Sclose(to);
    if (result >= 0)
        return OK;
    return bad_input("%s: dataset %s: rows %lld to %lld cannot be read: the file is damaged", file->path,
                     columns[c].name, (long long)first, (long long)(first + count - 1));
}

void stored_rows_free(struct stored_rows *rows) {
    free(rows->starts);
    free(rows->values);
    *rows = (struct stored_rows){0};
}
