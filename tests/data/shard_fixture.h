/* Shards made by the HDF5 library itself, for the tests of reading. Sample r of file f is recognisable: its second
 * token is FIRST_ID + f, its third and fourth spell r, so that order and completeness can be seen. */
#ifndef BERTH_TESTS_SHARD_FIXTURE_H
#define BERTH_TESTS_SHARD_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* after the headers above */
#include <cmocka.h>
#include <hdf5.h>

#include "base/file.h"
#include "base/memory.h"
#include "data/reader.h"

enum { S = 12, P = 3, VOCAB = 1000, FIRST_ID = 10 };

static char folder[] = "/tmp/berth-shards-XXXXXX"; /* made by make_folder */

static inline int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static inline int remove_folder(void **state) {
    (void)state;
    return folder_remove(folder) == OK ? 0 : -1;
}

/* Values of a shard, to be bent by tests before it is written. */
struct values {
    int rows;
    int8_t mask[4000][S], types[4000][S], nsp[4000];
    int32_t ids[4000][S], positions[4000][P], labels[4000][P];
    int skip_dataset;          /* index of one to leave out, or -1 */
    hid_t ids_type, mask_type; /* of the four i4, of the i1 datasets */
    int positions_rows;        /* rows of masked_lm_positions, if not all */
    hsize_t chunk[2];
};

static inline int length_of(int sample) { return 4 + sample % (S - 3); }

static inline struct values *make_values(int file, int rows) {
    struct values *v = xcalloc(1, sizeof *v);
    v->rows = v->positions_rows = rows;
    v->skip_dataset = -1;
    v->ids_type = H5T_STD_I32LE;
    v->mask_type = H5T_STD_I8LE;
    v->chunk[0] = 100;
    v->chunk[1] = S;
    for (int r = 0; r < rows; r++) {
        int n = length_of(r);
        for (int i = 0; i < n; i++) {
            v->ids[r][i] = 20 + (r + i) % 50;
            v->mask[r][i] = 1;
            v->types[r][i] = i >= n / 2;
        }
        v->ids[r][1] = FIRST_ID + file;
        v->ids[r][2] = FIRST_ID + r % 900;
        v->ids[r][3] = FIRST_ID + r / 900;
        for (int m = 0; m < 1 + r % 2 && m + 1 < n; m++) {
            v->positions[r][m] = 1 + m;
            v->labels[r][m] = 100 + m;
        }
        v->nsp[r] = r % 2;
    }
    return v;
}

/* v->chunk[0] 0: contiguous, without compression */
static inline void put(hid_t file, const char *name, int rank, int rows, int columns, const struct values *v,
                       hid_t type, hid_t memory, const void *data) {
    hsize_t dims[2] = {(hsize_t)rows, (hsize_t)columns}, chunk[2] = {v->chunk[0], v->chunk[1]};
    chunk[0] = chunk[0] > dims[0] && rows ? dims[0] : chunk[0];
    chunk[1] = chunk[1] > dims[1] && columns ? dims[1] : chunk[1];
    hid_t space = H5Screate_simple(rank, dims, NULL), properties = H5Pcreate(H5P_DATASET_CREATE);
    if (v->chunk[0]) {
        H5Pset_chunk(properties, rank, chunk);
        H5Pset_deflate(properties, 1);
    }
    hid_t dataset = H5Dcreate2(file, name, type, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    assert_true(dataset >= 0);
    if (rows && columns)
        assert_true(H5Dwrite(dataset, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0);
    H5Dclose(dataset);
    H5Pclose(properties);
    H5Sclose(space);
}

static inline char *write_values(const char *name, struct values *v) {
    char *path = path_join(folder, name);
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    assert_true(file >= 0);
    if (v->skip_dataset != 0)
        put(file, "input_ids", 2, v->rows, S, v, v->ids_type, H5T_NATIVE_INT32, v->ids);
    if (v->skip_dataset != 1)
        put(file, "input_mask", 2, v->rows, S, v, v->mask_type, H5T_NATIVE_INT8, v->mask);
    if (v->skip_dataset != 2)
        put(file, "segment_ids", 2, v->rows, S, v, v->mask_type, H5T_NATIVE_INT8, v->types);
    if (v->skip_dataset != 3)
        put(file, "masked_lm_positions", 2, v->positions_rows, P, v, v->ids_type, H5T_NATIVE_INT32, v->positions);
    if (v->skip_dataset != 4)
        put(file, "masked_lm_ids", 2, v->rows, P, v, v->ids_type, H5T_NATIVE_INT32, v->labels);
    if (v->skip_dataset != 5)
        put(file, "next_sentence_labels", 1, v->rows, 1, v, v->mask_type, H5T_NATIVE_INT8, v->nsp);
    H5Fclose(file);
    free(v);
    return path;
}

static inline struct reader_options options_of(int64_t batch) {
    return (struct reader_options){.seed = 3,
                                   .shuffle = true,
                                   .endless = true,
                                   .global_batch = batch,
                                   .micro_batch = 7,
                                   .ranks = 1,
                                   .vocab_size = VOCAB,
                                   .seq_len = S,
                                   .max_predictions = P,
                                   .ring = 3};
}

static inline void expect_message(status code, const char *const *words) {
    assert_int_equal(code, BAD_INPUT);
    for (; *words; words++)
        if (!strstr(status_message(), *words))
            fail_msg("message '%s' does not say '%s'", status_message(), *words);
    assert_null(strchr(status_message(), '\n'));
}
#define EXPECT(code, ...) expect_message(code, (const char *const[]){__VA_ARGS__, NULL})

/* Reads a data set in file order up to its end, or the first failure. */
static inline status read_all(const struct dataset *dataset, const struct reader_options *options) {
    struct reader *reader;
    const struct step_data *data;
    assert_int_equal(reader_open(dataset, options, &reader), OK);
    status code;
    while ((code = reader_next(reader, &data)) == OK && data)
        continue;
    reader_close(reader);
    return code;
}

#endif
