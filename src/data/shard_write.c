#include "data/shard_write.h"

#include <hdf5.h>
#include <stdlib.h>
#include <string.h>
#ifdef BERTH_DEFLATE
#include <libdeflate.h>
#else
#include <zlib.h>
#endif

#include "base/file.h"
#include "base/memory.h"
#include "base/parallel.h"

enum { CHUNK_ROWS = 256, CHUNKS_AT_ONCE = 64, MEMORY_STEP = 1 << 22 };

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
    const struct instance *items; /* [count] */
    int64_t count;
};

/* The gzip level; 0: none. HDF5 does not compress what is of variable length, so that form stays as it is. */
static int compression_of(const struct shard_shape *shape) { return shape->variable ? 0 : (int)shape->compression; }

static status hdf5_check(int64_t result, const char *path, const char *what) {
    return result >= 0 ? OK : failed("%s: HDF5 cannot %s", path, what);
}

/* --- padded rows: chunks are filled and compressed on all threads, and handed to HDF5 as they are to be stored --- */

struct packed_chunk {
    unsigned char *bytes; /* [used] */
    size_t used;
};

struct chunk_job {
    const struct dataset_form *form;
    const struct shard_rows *rows;
    int64_t width, chunk_rows;
    int64_t first; /* chunk of the dataset that chunks[0] is */
    struct packed_chunk *chunks;
};

/* The chunk as it is stored: compressed as zlib's format has it, which HDF5's gzip filter reads. */
static void pack(const unsigned char *plain, size_t bytes, int level, struct packed_chunk *out) {
#ifdef BERTH_DEFLATE
    struct libdeflate_compressor *compressor = libdeflate_alloc_compressor(level);
    size_t room = libdeflate_zlib_compress_bound(compressor, bytes);
    out->bytes = xmalloc(room);
    out->used = libdeflate_zlib_compress(compressor, plain, bytes, out->bytes, room);
    libdeflate_free_compressor(compressor);
#else
    uLongf used = compressBound(bytes);
    out->bytes = xmalloc(used);
    compress2(out->bytes, &used, plain, bytes, level);
    out->used = used;
#endif
}

static void make_chunks(void *ctx, int64_t begin, int64_t end) {
    const struct chunk_job *job = ctx;
    size_t stride = (size_t)job->width * job->form->bytes, bytes = (size_t)job->chunk_rows * stride;
    for (int64_t c = begin; c < end; c++) {
        unsigned char *plain = xcalloc(1, bytes);
        int64_t first = (job->first + c) * job->chunk_rows, left = job->rows->count - first;
        for (int64_t i = 0; i < job->chunk_rows && i < left; i++)
            job->form->fill(&job->rows->items[first + i], plain + (size_t)i * stride);
        int level = compression_of(job->rows->shape);
        if (level)
            pack(plain, bytes, level, &job->chunks[c]);
        else
            job->chunks[c] = (struct packed_chunk){plain, bytes};
        if (level)
            free(plain);
    }
}

/* Writes the padded rows of one dataset. */
static status write_rows(hid_t dataset, const struct dataset_form *form, const struct shard_rows *rows, int64_t width,
                         int64_t chunk_rows, const char *path) {
    struct packed_chunk chunks[CHUNKS_AT_ONCE];
    struct chunk_job job = {form, rows, width, chunk_rows, 0, chunks};
    int64_t all = (rows->count + chunk_rows - 1) / chunk_rows;
    status code = OK;
    for (; job.first < all && code == OK; job.first += CHUNKS_AT_ONCE) {
        int64_t count = all - job.first < CHUNKS_AT_ONCE ? all - job.first : CHUNKS_AT_ONCE;
        parallel_for(count, 1, make_chunks, &job);
        for (int64_t c = 0; c < count; c++) {
            hsize_t at[2] = {(hsize_t)((job.first + c) * chunk_rows), 0};
            if (code == OK)
                code = hdf5_check(H5Dwrite_chunk(dataset, H5P_DEFAULT, 0, at, chunks[c].used, chunks[c].bytes), path,
                                  "write the rows");
            free(chunks[c].bytes);
        }
    }
    return code;
}

/* --- rows of their own length: [count] of hvl_t at a time, all in one buffer --- */

static status write_slab(hid_t dataset, hid_t type, int64_t begin, int64_t count, const hvl_t *values,
                         const char *path) {
    hsize_t start = (hsize_t)begin, size = (hsize_t)count;
    hid_t file_space = H5Dget_space(dataset), memory_space = H5Screate_simple(1, &size, NULL);
    herr_t result = H5Sselect_hyperslab(file_space, H5S_SELECT_SET, &start, NULL, &size, NULL);
    if (result >= 0)
        result = H5Dwrite(dataset, type, memory_space, file_space, H5P_DEFAULT, values);
    H5Sclose(memory_space);
    H5Sclose(file_space);
    return hdf5_check(result, path, "write the rows");
}

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
            const struct instance *row = &rows->items[begin + i];
            char *to = values + (size_t)i * stride;
            form->fill(row, to);
            chunk[i] = (hvl_t){(size_t)(form->width == WIDTH_S ? row->length : row->masked), to};
        }
        code = write_slab(dataset, type, begin, count, chunk, path);
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

static int64_t chunk_rows_of(const struct shard_rows *rows) {
    return rows->count < CHUNK_ROWS ? rows->count : CHUNK_ROWS;
}

static status create_dataset(hid_t file, const struct dataset_form *form, const struct shard_rows *rows, hid_t stored,
                             int rank, int64_t width, const char *path, hid_t *dataset) {
    const struct shard_shape *shape = rows->shape;
    hsize_t size[2] = {(hsize_t)rows->count, (hsize_t)width};
    hsize_t chunk[2] = {(hsize_t)chunk_rows_of(rows), (hsize_t)width};
    hid_t space = H5Screate_simple(rank, size, NULL), creation = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_obj_track_times(creation, 0); /* the same rows give the same bytes */
    status code = hdf5_check(H5Pset_chunk(creation, rank, chunk), path, "set the chunks");
    if (code == OK && compression_of(shape))
        code = hdf5_check(H5Pset_deflate(creation, (unsigned)compression_of(shape)), path, "set the compression");
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
    if (code == OK && variable)
        code = write_variable_rows(dataset, types.native, form, rows, width, path);
    else if (code == OK)
        code = write_rows(dataset, form, rows, width, chunk_rows_of(rows), path);
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

status shard_write(const char *path, const struct shard_shape *shape, const struct instance *items, int64_t count) {
    struct shard_rows rows = {shape, items, count};
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
