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

/* Writes the rows of one dataset, a chunk at a time. */
static status write_rows(hid_t dataset, hid_t type, const struct dataset_form *form, const struct shard_rows *rows,
                         int64_t width, const char *path) {
    char *chunk = xmalloc(CHUNK_ROWS * (size_t)width * form->bytes);
    status code = OK;
    for (int64_t begin = 0; begin < rows->count && code == OK; begin += CHUNK_ROWS) {
        int64_t count = rows->count - begin < CHUNK_ROWS ? rows->count - begin : CHUNK_ROWS;
        memset(chunk, 0, (size_t)(count * width) * form->bytes);
        for (int64_t i = 0; i < count; i++)
            form->fill(&rows->list->items[rows->order[begin + i]], chunk + (size_t)(i * width) * form->bytes);
        int rank = form->width == WIDTH_NONE ? 1 : 2;
        hsize_t start[2] = {(hsize_t)begin, 0}, size[2] = {(hsize_t)count, (hsize_t)width};
        hid_t file_space = H5Dget_space(dataset), memory_space = H5Screate_simple(rank, size, NULL);
        herr_t result = H5Sselect_hyperslab(file_space, H5S_SELECT_SET, start, NULL, size, NULL);
        if (result >= 0)
            result = H5Dwrite(dataset, type, memory_space, file_space, H5P_DEFAULT, chunk);
        H5Sclose(memory_space);
        H5Sclose(file_space);
        code = hdf5_check(result, path, "compress the rows");
    }
    free(chunk);
    return code;
}

static status write_dataset(hid_t file, const struct dataset_form *form, const struct shard_rows *rows,
                            const char *path) {
    int64_t width = form->width == WIDTH_S   ? rows->shape->seq_len
                    : form->width == WIDTH_P ? rows->shape->max_predictions
                                             : 1;
    int rank = form->width == WIDTH_NONE ? 1 : 2;
    hsize_t size[2] = {(hsize_t)rows->count, (hsize_t)width};
    hsize_t chunk[2] = {(hsize_t)(rows->count < CHUNK_ROWS ? rows->count : CHUNK_ROWS), (hsize_t)width};
    hid_t stored = form->bytes == 4 ? H5T_STD_I32LE : H5T_STD_I8LE;
    hid_t native = form->bytes == 4 ? H5T_NATIVE_INT32 : H5T_NATIVE_INT8;
    hid_t space = H5Screate_simple(rank, size, NULL), creation = H5Pcreate(H5P_DATASET_CREATE), dataset = -1;
    H5Pset_obj_track_times(creation, 0); /* the same rows give the same bytes */
    status code = hdf5_check(H5Pset_chunk(creation, rank, chunk), path, "set the chunks");
    if (code == OK)
        code = hdf5_check(H5Pset_deflate(creation, (unsigned)rows->shape->compression), path, "set the compression");
    if (code == OK) {
        dataset = H5Dcreate2(file, form->name, stored, space, H5P_DEFAULT, creation, H5P_DEFAULT);
        code = hdf5_check(dataset, path, "create a dataset");
    }
    if (code == OK)
        code = write_rows(dataset, native, form, rows, width, path);
    if (dataset >= 0 && H5Dclose(dataset) < 0 && code == OK)
        code = failed("%s: HDF5 cannot finish dataset %s", path, form->name);
    H5Pclose(creation);
    H5Sclose(space);
    return code;
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
    status code = OK;
    for (size_t i = 0; i < sizeof forms / sizeof *forms && code == OK; i++)
        code = write_dataset(file, &forms[i], &rows, path);
    if (code == OK)
        code = save_image(file, path);
    H5Fclose(file);
    return code;
}
