/* The HDF5 side of a shard: its datasets, its form, and rows as they stand in the file. The HDF5 library is not safe
 * for several threads: callers hold the lock of shard_read.c. */
#ifndef BERTH_DATA_SHARD_FILE_H
#define BERTH_DATA_SHARD_FILE_H

#include <hdf5.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "data/shard_chunks.h"

enum column {
    INPUT_IDS,
    INPUT_MASK,
    SEGMENT_IDS,
    MASKED_POSITIONS,
    MASKED_IDS,
    NSP_LABELS,
    PACKED_LENGTHS, /* tokens of each sequence of a pack */
    PACKED_MASKS,   /* masked positions of each */
    COLUMNS
};

enum shard_form {
    FORM_FIXED,    /* a row is a padded sequence: [rows, S] */
    FORM_VARIABLE, /* a row is a sequence without padding: HDF5 variable-length rows */
    FORM_PACKED,   /* a row is several sequences, one after another: variable-length rows */
    FORMS
};

struct shard_file {
    const char *path;
    enum shard_form form;
    int64_t rows, chunk_rows;   /* chunk_rows: that HDF5 reads at once; 1 if not chunked */
    hid_t id, dataset[COLUMNS]; /* -1: absent */
    int64_t width[COLUMNS];     /* numbers a row, where all rows have as many */
    bool variable[COLUMNS];
    struct chunk_form chunks[COLUMNS];
    bool signed16[COLUMNS]; /* stored as i2: large ids look negative */
};

/* Opens the file and checks its datasets, their types and shapes. BAD_INPUT names file and dataset, what was found and
 * what was expected. `path` must outlive the file. Close it in any case. */
status shard_file_open(const char *path, struct shard_file *file);
void shard_file_close(struct shard_file *file);
int64_t shard_file_attribute(const struct shard_file *file, const char *name); /* of berth's own shards; 0: not there */

const char *column_name(enum column column);

/* Rows of one dataset: row r is values[starts[r] … starts[r+1]). */
struct stored_rows {
    int64_t *starts; /* [count+1] */
    int32_t *values; /* numbers beyond 32 bits are cut to the nearest that fits, which no check lets pass */
};
status shard_file_read(const struct shard_file *file, enum column column, int64_t first, int64_t count,
                       struct stored_rows *out);
void stored_rows_free(struct stored_rows *rows);

#endif
