/* The safetensors file format: 8 bytes little-endian header length, a JSON header {name: {dtype, shape, data_offsets}}
 * padded with spaces to a multiple of 8, then the tensors' bytes, row-major, without gaps. All offsets are 64-bit. */
#ifndef BERTH_TRAIN_SAFETENSORS_H
#define BERTH_TRAIN_SAFETENSORS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/file.h"
#include "base/status.h"

enum { SAFETENSORS_RANK = 8 }; /* more dims than any tensor of ours */

struct safetensors_tensor {
    char *name;
    char type[8]; /* as the file says: "F32", "F16", "BF16"; others are listed, but cannot be read */
    int rank;     /* 0: a scalar */
    int64_t shape[SAFETENSORS_RANK];
    int64_t count;      /* elements */
    int64_t begin, end; /* bytes, counted from the start of the file */
};

/* ---- reading ---- */
struct safetensors {
    char *path;
    int descriptor;
    struct safetensors_tensor *tensors; /* [count], in the order of their bytes */
    int64_t count;
    int64_t step; /* of our own checkpoints, from __metadata__; -1 elsewhere */
};

/* Reads and checks the header: every dtype, shape and offset against the file's size. BAD_INPUT names file and tensor.
 */
status safetensors_open(const char *path, struct safetensors *out);
void safetensors_close(struct safetensors *file);
const struct safetensors_tensor *safetensors_find(const struct safetensors *file,
                                                  const char *name); /* NULL if absent */
/* `count` elements from element `first`, converted to float (F32 as it is, bit for bit). BAD_INPUT for other dtypes. */
status safetensors_read(const struct safetensors *file, const struct safetensors_tensor *tensor, int64_t first,
                        int64_t count, float *values);
/* "30522x128"; "scalar" for rank 0. */
void safetensors_shape(const struct safetensors_tensor *tensor, char *out, size_t size);

/* ---- writing, all tensors F32 ---- */
struct safetensors_entry {
    const char *name; /* unique; must live until the header is written */
    int rank;         /* 1 or 2 */
    int64_t shape[2];
};
struct safetensors_writer {
    struct file_out file;
    int64_t end; /* size of the finished file */
};
/* Writes the header for all tensors; their values follow in the same order. `step` goes into __metadata__, -1: none. */
status safetensors_create(struct safetensors_writer *writer, const char *path, const struct safetensors_entry *entries,
                          int64_t count, int64_t step);
/* The next `count` values; a tensor may come in pieces. */
status safetensors_write(struct safetensors_writer *writer, const float *values, int64_t count);
/* FAILED if fewer or more bytes came than the header says. Either of these ends the writer. */
status safetensors_commit(struct safetensors_writer *writer);
void safetensors_abandon(struct safetensors_writer *writer);

#endif
