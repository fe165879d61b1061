/* Reading the usual chunks of shards past HDF5's filters and conversions, with libdeflate: twice as fast or more. Only
 * for what h5py writes by default: whole rows in chunks, gzip alone, little-endian integers. All else is HDF5's own
 * work. */
#ifndef BERTH_DATA_SHARD_CHUNKS_H
#define BERTH_DATA_SHARD_CHUNKS_H

#include <hdf5.h>
#include <stdbool.h>
#include <stdint.h>

struct chunk_form {
    int64_t rows;  /* of a chunk */
    int64_t width; /* numbers a row */
    int bytes;     /* of a number: 1, 2, 4 or 8; 0: not such a dataset */
    bool is_signed;
};

/* The form of a dataset of `rank` 1 or 2; bytes 0 if HDF5 must read it, or libdeflate is not there. */
struct chunk_form chunk_form_of(hid_t dataset, int rank, int64_t width);

/* values[count · width] of rows first … first + count - 1; numbers beyond 32 bits become the nearest that fits. False
 * if anything is not as expected: then HDF5 shall read the rows, and say what is wrong. */
bool chunks_read(hid_t dataset, const struct chunk_form *form, int64_t first, int64_t count, int32_t *values);

#endif
