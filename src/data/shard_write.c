#include "data/shard_write.h"

#include <hdf5.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"

enum { CHUNK_ROWS = 256, MEMORY_STEP = 1 << 22 };

/* Fills one row of a dataset; what it leaves is 0. */
typedef void (*fill_row)(const struct instance *row, void *to);

static void fill_ids(const struct instance *row, void *to) {
    memcpy(to, row->ids, (size_t)row->length * sizeof *row->ids);
}

static void fill_mask(const struct instance *row, void *to) { memset(to, 1, (size_t)row->length); }

static void fill_segments(const struct instance *row, void *to) {
    memset((int8_t *)to + row->b_begin, 1, (size_t)(row->length - row->b_begin));
}

static void fill_positions(const struct instance *row, void *to) {
    memcpy(to, row->positions, (size_t)row->masked * sizeof *row->positions);
}

static void fill_labels(const struct instance *row, void *to) {
    memcpy(to, row->labels, (size_t)row->masked * sizeof *row->labels);
}

static void fill_next(const struct instance *row, void *to) { *(int8_t *)to = (int8_t)row->label; }

enum row_width { WIDTH_S, WIDTH_P, WIDTH_NONE };
static const struct dataset_form {
    const char *name;
    size_t bytes; /* of an element: a signed integer, little-endian in the file */
    enum row_width width;
    fill_row fill;
} forms[] = {
    {"input_ids", 4, WIDTH_S, fill_ids},        {"input_mask", 1, WIDTH_S, fill_mask},
    {"segment_ids", 1, WIDTH_S, fill_segments}, {"masked_lm_positions", 4, WIDTH_P, fill_positions},
    {"masked_lm_ids", 4, WIDTH_P, fill_labels}, {"next_sentence_labels", 1, WIDTH_NONE, fill_next},
};

struct shard_rows {
    const struct shard_shape *shape;
    const struct instance_list *list;
    const int64_t *order;
    int64_t count;
};

static status hdf5_check(int64_t result, const char *path, const char *what) {
    return result >= 0 ? OK : failed("%s: HDF5 cannot %s", path, what);
}

/* Rows begin … begin + count - 1 of a dataset of `rank` 1 or 2. */
static status write_slab(hid_t dataset, hid_t type, int rank, int64_t begin, int64_t count, int64_t width,
                         const void *values, const char *path) {
    hsize_t start[2] = {(hsize_t)begin, 0}, size[2] = {(hsize_t)count, (hsize_t)width};
    hid_t file_space = H5Dget_space(dataset), memory_space = H5Screate_simple(rank, size, NULL);
    herr_t result = H5Sselect_hyperslab(file_space, H5S_SELECT_SET, start, NULL, size, NULL);
    if (result >= 0)
        result = H5Dwrite(dataset, type, memory_space, file_space, H5P_DEFAULT, values);
    H5Sclose(memory_space);
    H5Sclose(file_space);
    return hdf5_check(result, path, "write the rows");
}

/* Writes the padded rows of one dataset, a chunk at a time. */
static status write_rows(hid_t dataset, hid_t type, const struct dataset_form *form, const struct shard_rows *rows,
                         int64_t width, const char *path) {
    char *chunk = xmalloc(CHUNK_ROWS * (size_t)width * form->bytes);
    status code = OK;
    for (int64_t begin = 0; begin < rows->count && code == OK; begin += CHUNK_ROWS) {
        int64_t count = rows->count - begin < CHUNK_ROWS ? rows->count - begin : CHUNK_ROWS;
        memset(chunk, 0, (size_t)(count * width) * form->bytes);
        for (int64_t i = 0; i < count; i++)
            form->fill(&rows->list->items[rows->order[begin + i]], chunk + (size_t)(i * width) * form->bytes);
        code = write_slab(dataset, type, form->width == WIDTH_NONE ? 1 : 2, begin, count, width, chunk, path);
    }
    free(chunk);
    return code;
}

/* The same for rows of their own length: [count] of hvl_t at a time, all in one buffer. */
static status write_variable_rows(hid_t dataset, hid_t type, const struct dataset_form *form,
                                  const struct shard_rows *rows, int64_t width, const char *path) {
    size_t stride = (size_t)width * form->bytes;
    char *values = xmalloc(CHUNK_ROWS * stride);
    hvl_t chunk[CHUNK_ROWS];
    status code = OK;
    for (int64_t begin = 0; begin < rows->count && code == OK; begin += CHUNK_ROWS) {
        int64_t count = rows->count - begin < CHUNK_ROWS ? rows->count - begin : CHUNK_ROWS;
        memset(values, 0, (size_t)count * stride);
        for (int64_t i = 0; i < count; i++) {
            const struct instance *row = &rows->list->items[rows->order[begin + i]];
            char *to = values + (size_t)i * stride;
            form->fill(row, to);
            chunk[i] = (hvl_t){(size_t)(form->width == WIDTH_S ? row->length : row->masked), to};
        }
        code = write_slab(dataset, type, 1, begin, count, 1, chunk, path);
    }
    free(values);
    return code;
}

/* How a dataset's elements lie in the file and in memory. */
struct element_types {
    hid_t stored, native;
};

static struct element_types types_of(const struct dataset_form *form, const struct shard_shape *shape, bool variable) {
    struct element_types types = {H5T_STD_I8LE, H5T_NATIVE_INT8};
    if (form->bytes == 4)
        types = (struct element_types){variable && shape->vocab_size <= 32768 ? H5T_STD_I16LE : H5T_STD_I32LE,
                                       H5T_NATIVE_INT32};
    return (struct element_types){variable ? H5Tvlen_create(types.stored) : H5Tcopy(types.stored),
                                  variable ? H5Tvlen_create(types.native) : H5Tcopy(types.native)};
}

static status create_dataset(hid_t file, const struct dataset_form *form, const struct shard_rows *rows, hid_t stored,
                             int rank, int64_t width, const char *path, hid_t *dataset) {
    const struct shard_shape *shape = rows->shape;
    hsize_t size[2] = {(hsize_t)rows->count, (hsize_t)width};
    hsize_t chunk[2] = {(hsize_t)(rows->count < CHUNK_ROWS ? rows->count : CHUNK_ROWS), (hsize_t)width};
    hid_t space = H5Screate_simple(rank, size, NULL), creation = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_obj_track_times(creation, 0); /* the same rows give the same bytes */
    status code = hdf5_check(H5Pset_chunk(creation, rank, chunk), path, "set the chunks");
    if (code == OK && shape->compression && !shape->variable)
        code = hdf5_check(H5Pset_deflate(creation, (unsigned)shape->compression), path, "set the compression");
    if (code == OK) {
        *dataset = H5Dcreate2(file, form->name, stored, space, H5P_DEFAULT, creation, H5P_DEFAULT);
        code = hdf5_check(*dataset, path, "create a dataset");
    }
    H5Pclose(creation);
    H5Sclose(space);
    return code;
}

static status write_dataset(hid_t file, const struct dataset_form *form, const struct shard_rows *rows,
                            const char *path) {
    const struct shard_shape *shape = rows->shape;
    bool variable = shape->variable && form->width != WIDTH_NONE;
    int64_t width = form->width == WIDTH_S ? shape->seq_len : form->width == WIDTH_P ? shape->max_predictions : 1;
    struct element_types types = types_of(form, shape, variable);
    hid_t dataset = -1;
    status code = create_dataset(file, form, rows, types.stored, form->width == WIDTH_NONE || variable ? 1 : 2, width,
                                 path, &dataset);
    if (code == OK)
        code = (variable ? write_variable_rows : write_rows)(dataset, types.native, form, rows, width, path);
    if (dataset >= 0 && H5Dclose(dataset) < 0 && code == OK)
        code = failed("%s: HDF5 cannot finish dataset %s", path, form->name);
    H5Tclose(types.stored);
    H5Tclose(types.native);
    return code;
}

static status write_attribute(hid_t file, const char *name, int64_t value, const char *path) {
    hid_t space = H5Screate(H5S_SCALAR);
    hid_t attribute = H5Acreate2(file, name, H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT);
    herr_t result = attribute < 0 ? -1 : H5Awrite(attribute, H5T_NATIVE_INT64, &value);
    if (attribute >= 0)
        H5Aclose(attribute);
    H5Sclose(space);
    return hdf5_check(result, path, "write an attribute");
}

/* The finished file, out of HDF5's memory and onto the disk in one piece. */
static status save_image(hid_t file, const char *path) {
    TRY(hdf5_check(H5Fflush(file, H5F_SCOPE_GLOBAL), path, "finish the file"));
    ssize_t bytes = H5Fget_file_image(file, NULL, 0);
    TRY(hdf5_check(bytes, path, "say how large the file is"));
    char *image = xmalloc((size_t)bytes);
    status code = hdf5_check(H5Fget_file_image(file, image, (size_t)bytes), path, "hand out the file");
    if (code == OK)
        code = file_write_all(path, image, (size_t)bytes);
    free(image);
    return code;
}

status shard_write(const char *path, const struct shard_shape *shape, const struct instance_list *list,
                   const int64_t *order, int64_t count) {
    struct shard_rows rows = {shape, list, order, count};
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL); /* our message replaces HDF5's trace */
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_fapl_core(access, MEMORY_STEP, 0);
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    H5Pclose(access);
    TRY(hdf5_check(file, path, "create a file in memory"));
    status code = write_attribute(file, "seq_len", shape->seq_len, path);
    if (code == OK)
        code = write_attribute(file, "max_predictions", shape->max_predictions, path);
    if (code == OK)
        code = write_attribute(file, "vocab_size", shape->vocab_size, path);
    for (size_t i = 0; i < sizeof forms / sizeof *forms && code == OK; i++)
        if (!(shape->variable && forms[i].fill == fill_mask)) /* there the length is the mask */
            code = write_dataset(file, &forms[i], &rows, path);
    if (code == OK)
        code = save_image(file, path);
    H5Fclose(file);
    return code;
}
