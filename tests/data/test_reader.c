/* Data set, sampler and reader on HDF5 files made here. Sample r of file f is recognisable: its second token is 10·f +
 * r/100 coded in ids, so that order and completeness can be seen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <hdf5.h>

#include "base/file.h"
#include "base/memory.h"
#include "data/reader.h"
#include "data/sampler.h"

enum { S = 12, P = 3, VOCAB = 1000, FIRST_ID = 10 };

static char folder[] = "/tmp/berth-reader-XXXXXX";

/* Values of a shard, to be bent by tests before it is written. */
struct values {
    int rows;
    int8_t mask[4000][S], types[4000][S], nsp[4000];
    int32_t ids[4000][S], positions[4000][P], labels[4000][P];
    int skip_dataset; /* index of one to leave out, or -1 */
    hid_t ids_type;
    int positions_rows; /* rows of masked_lm_positions, if not all */
};

static int length_of(int sample) { return 4 + sample % (S - 3); }

static struct values *make_values(int file, int rows) {
    struct values *v = xcalloc(1, sizeof *v);
    v->rows = v->positions_rows = rows;
    v->skip_dataset = -1;
    v->ids_type = H5T_STD_I32LE;
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

static void put(hid_t file, const char *name, int rank, int rows, int columns, hid_t type, hid_t memory,
                const void *data) {
    hsize_t dims[2] = {(hsize_t)rows, (hsize_t)columns},
            chunk[2] = {rows < 100 ? (hsize_t)(rows ? rows : 1) : 100, (hsize_t)columns};

    hid_t space = H5Screate_simple(rank, dims, NULL), properties = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(properties, rank, chunk);
    H5Pset_deflate(properties, 1);
    hid_t dataset = H5Dcreate2(file, name, type, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    assert_true(dataset >= 0);
    if (rows)
        assert_true(H5Dwrite(dataset, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0);
    H5Dclose(dataset);
    H5Pclose(properties);
    H5Sclose(space);
}

static char *write_values(const char *name, struct values *v) {
    char *path = path_join(folder, name);
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    assert_true(file >= 0);
    if (v->skip_dataset != 0)
        put(file, "input_ids", 2, v->rows, S, v->ids_type, H5T_NATIVE_INT32, v->ids);
    if (v->skip_dataset != 1)
        put(file, "input_mask", 2, v->rows, S, H5T_STD_I8LE, H5T_NATIVE_INT8, v->mask);
    if (v->skip_dataset != 2)
        put(file, "segment_ids", 2, v->rows, S, H5T_STD_I8LE, H5T_NATIVE_INT8, v->types);
    if (v->skip_dataset != 3)
        put(file, "masked_lm_positions", 2, v->positions_rows, P, H5T_STD_I32LE, H5T_NATIVE_INT32, v->positions);
    if (v->skip_dataset != 4)
        put(file, "masked_lm_ids", 2, v->rows, P, H5T_STD_I32LE, H5T_NATIVE_INT32, v->labels);
    if (v->skip_dataset != 5)
        put(file, "next_sentence_labels", 1, v->rows, 1, H5T_STD_I8LE, H5T_NATIVE_INT8, v->nsp);
    H5Fclose(file);
    free(v);
    return path;
}

/* Three files of different size in folder "set". */
enum { FILES = 3, TOTAL = 3500 + 37 + 1200 };
static const int file_rows[FILES] = {3500, 37, 1200};

static struct dataset *open_set(void) {
    struct dataset *dataset;
    char *path = path_join(folder, "set");
    status code = dataset_open("data.train", path, &dataset);
    if (code != OK)
        fail_msg("%s", status_message());
    free(path);
    return dataset;
}

static int setup(void **state) {
    (void)state;
    assert_non_null(mkdtemp(folder));
    char *set = path_join(folder, "set");
    assert_int_equal(folder_create(set), OK);
    free(set);
    free(write_values("set/a_training_0.hdf5", make_values(0, file_rows[0])));
    free(write_values("set/b_no_ending", make_values(1, file_rows[1])));
    free(write_values("set/c.h5", make_values(2, file_rows[2])));
    char *notes = path_join(folder, "set/notes.txt");
    assert_int_equal(file_write_all(notes, "not a shard", 11), OK);
    free(notes);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    return folder_remove(folder) == OK ? 0 : -1;
}

static struct reader_options options_of(int64_t batch) {
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

/* Which sample sequence s of a batch is, and that it is whole. */
static int sample_of(const struct batch *batch, int64_t s) {
    const int32_t *ids = batch->ids + batch->starts[s];
    int file = ids[1] - FIRST_ID, row = (ids[2] - FIRST_ID) + 900 * (ids[3] - FIRST_ID), base = 0;
    assert_true(file >= 0 && file < FILES && row < file_rows[file]);
    assert_int_equal(batch->starts[s + 1] - batch->starts[s], length_of(row));
    assert_int_equal(batch->nsp_labels[s], row % 2);
    for (int i = 0; i < length_of(row); i++) {
        int64_t token = batch->starts[s] + i;
        assert_int_equal(batch->positions[token], i);
        assert_int_equal(batch->types[token], i >= length_of(row) / 2);
    }
    for (int f = 0; f < file; f++)
        base += file_rows[f];
    return base + row;
}

static void check_batch(const struct batch *batch) {
    int64_t mask = 0;
    for (int64_t s = 0; s < batch->sequences; s++) {
        int row = batch->ids[batch->starts[s] + 2] - FIRST_ID + 900 * (batch->ids[batch->starts[s] + 3] - FIRST_ID);
        for (int m = 0; m < 1 + row % 2; m++, mask++) {
            assert_int_equal(batch->masked_rows[mask], batch->starts[s] + 1 + m);
            assert_int_equal(batch->masked_labels[mask], 100 + m);
        }
    }
    assert_int_equal(mask, batch->masked);
}

/* `steps` steps of a reader: the samples by sequence number go to stream[number - first]. Returns steps read. */
static int read_stream(const struct dataset *dataset, const struct reader_options *options, int steps, int *stream,
                       int64_t first) {
    struct reader *reader;
    assert_int_equal(reader_open(dataset, options, &reader), OK);
    int step = 0;
    for (; step < steps; step++) {
        const struct step_data *data;
        if (reader_next(reader, &data) != OK)
            fail_msg("%s", status_message());
        if (!data)
            break;
        int64_t sequences = 0, tokens = 0, masked = 0;
        for (int64_t i = 0; i < data->micro_batches; i++) {
            const struct batch *batch = &data->batches[i];
            assert_true(batch->sequences >= 1 && batch->sequences <= options->micro_batch);
            assert_int_equal(batch->starts[0], 0);
            assert_int_equal(batch->starts[batch->sequences], batch->tokens);
            check_batch(batch);
            for (int64_t s = 0; s < batch->sequences; s++)
                stream[batch->sequence_numbers[s] - first] = sample_of(batch, s);
            sequences += batch->sequences, tokens += batch->tokens, masked += batch->masked;
        }
        assert_int_equal(sequences, data->sequences);
        assert_int_equal(tokens, data->tokens);
        assert_int_equal(masked, data->masked);
    }
    reader_close(reader);
    return step;
}

static void test_each_sample_once_an_epoch(void **state) {
    (void)state;
    struct dataset *dataset = open_set();
    assert_int_equal(dataset_rows(dataset), TOTAL);
    assert_int_equal(dataset_files(dataset), FILES);
    assert_int_equal(dataset_seq_len(dataset), S);
    assert_int_equal(dataset_max_predictions(dataset), P);
    struct reader_options options = options_of(50);
    static int stream[3 * TOTAL], seen[TOTAL];
    int steps = 2 * TOTAL / 50;
    assert_int_equal(read_stream(dataset, &options, steps, stream, 0), steps);
    for (int i = 0; i < TOTAL; i++)
        seen[stream[i]]++;
    for (int i = 0; i < TOTAL; i++)
        assert_int_equal(seen[i], 1);
    int same = 0, sorted = 0;
    for (int i = 0; i + TOTAL < steps * 50; i++)
        same += stream[i] == stream[i + TOTAL];
    for (int i = 1; i < TOTAL; i++)
        sorted += stream[i] == stream[i - 1] + 1;
    assert_true(same < TOTAL / 100);   /* the second epoch has another order */
    assert_true(sorted < TOTAL / 100); /* and neither is that of the files */
    dataset_free(dataset);
}

static void test_any_number_of_ranks_gives_the_same_stream(void **state) {
    (void)state;
    struct dataset *dataset = open_set();
    struct reader_options options = options_of(64);
    static int whole[TOTAL + 640], parts[TOTAL + 640];
    int steps = TOTAL / 64 + 5;
    read_stream(dataset, &options, steps, whole, 0);
    for (int ranks = 2; ranks <= 7; ranks += ranks == 3 ? 4 : 1) {
        memset(parts, -1, sizeof parts);
        for (int rank = 0; rank < ranks; rank++) {
            options.ranks = ranks;
            options.rank = rank;
            assert_int_equal(read_stream(dataset, &options, steps, parts, 0), steps);
        }
        assert_memory_equal(whole, parts, (size_t)(steps * 64) * sizeof *whole);
    }
    dataset_free(dataset);
}

static void test_resume_anywhere(void **state) {
    (void)state;
    struct dataset *dataset = open_set();
    struct reader_options options = options_of(61);
    static int whole[2 * TOTAL], rest[61 * 4];
    struct reader *reader;
    int steps = 2 * TOTAL / 61 - 5;
    read_stream(dataset, &options, steps, whole, 0);
    assert_int_equal(reader_open(dataset, &options, &reader), OK);
    for (int step = 1; step + 4 < steps; step++) {
        const struct step_data *data;
        assert_int_equal(reader_next(reader, &data), OK);
        assert_int_equal(data->consumed, step * 61);
        if (step % 7 && step * 61 / TOTAL == (step + 1) * 61 / TOTAL) /* a spread, and around the end of the epoch */
            continue;
        struct reader_options later = options;
        reader_position(reader, &later.start_epoch, &later.start_consumed);
        later.first_number = data->consumed;
        read_stream(dataset, &later, 3, rest, data->consumed);
        assert_memory_equal(rest, whole + step * 61, 3 * 61 * sizeof *rest);
    }
    reader_close(reader);
    dataset_free(dataset);
}

static void test_seed_and_names_make_the_order(void **state) {
    (void)state;
    struct dataset *dataset = open_set();
    struct reader_options options = options_of(100);
    static int a[1000], b[1000];
    read_stream(dataset, &options, 10, a, 0);
    read_stream(dataset, &options, 10, b, 0);
    assert_memory_equal(a, b, sizeof a);
    options.seed = 4;
    read_stream(dataset, &options, 10, b, 0);
    assert_memory_not_equal(a, b, sizeof a);
    dataset_free(dataset);
}

static void test_one_pass_in_file_order(void **state) {
    (void)state;
    struct dataset *dataset = open_set();
    struct reader_options options = options_of(100);
    options.shuffle = options.endless = false;
    static int stream[TOTAL + 100];
    assert_int_equal(read_stream(dataset, &options, 1000, stream, 0), (TOTAL + 99) / 100);
    for (int i = 0; i < TOTAL; i++)
        assert_int_equal(stream[i], i);
    dataset_free(dataset);
}

static void test_closing_early(void **state) {
    (void)state;
    struct dataset *dataset = open_set();
    struct reader_options options = options_of(1000);
    for (int i = 0; i < 20; i++) {
        struct reader *reader;
        const struct step_data *data;
        assert_int_equal(reader_open(dataset, &options, &reader), OK);
        if (i % 2)
            assert_int_equal(reader_next(reader, &data), OK);
        reader_close(reader);
    }
    dataset_free(dataset);
}

/* --- what is refused --- */

static void expect_message(status code, const char *const *words) {
    assert_int_equal(code, BAD_INPUT);
    for (; *words; words++)
        if (!strstr(status_message(), *words))
            fail_msg("message '%s' does not say '%s'", status_message(), *words);
    assert_null(strchr(status_message(), '\n'));
}
#define EXPECT(code, ...) expect_message(code, (const char *const[]){__VA_ARGS__, NULL})

static status open_values(struct values *v) {
    char *path = write_values("bad.hdf5", v);
    struct dataset *dataset;
    status code = dataset_open("data.train", path, &dataset);
    if (code == OK)
        dataset_free(dataset);
    unlink(path);
    free(path);
    return code;
}

static status read_values(struct values *v) {
    char *path = write_values("bad.hdf5", v);
    struct dataset *dataset;
    struct reader *reader;
    struct reader_options options = options_of(8);
    const struct step_data *data;
    options.shuffle = options.endless = false;
    if (dataset_open("data.train", path, &dataset) != OK)
        fail_msg("%s", status_message());
    assert_int_equal(reader_open(dataset, &options, &reader), OK);
    status code = OK;
    do
        code = reader_next(reader, &data);
    while (code == OK && data);
    reader_close(reader);
    dataset_free(dataset);
    unlink(path);
    free(path);
    return code;
}

static void test_bad_files(void **state) {
    (void)state;
    struct dataset *dataset;
    static const char *const names[] = {
        "input_ids", "", "segment_ids", "masked_lm_positions", "masked_lm_ids", "next_sentence_labels"};
    for (int d = 0; d < 6; d++) {
        struct values *v = make_values(0, 20);
        v->skip_dataset = d;
        if (d == 1) /* the mask can be derived */
            assert_int_equal(read_values(v), OK);
        else
            EXPECT(open_values(v), "data.train", "bad.hdf5", names[d], "missing");
    }
    struct values *v = make_values(0, 20);
    v->ids_type = H5T_IEEE_F32LE;
    EXPECT(open_values(v), "bad.hdf5", "input_ids", "floating-point", "expected integers");
    v = make_values(0, 20);
    v->positions_rows = 19;
    EXPECT(open_values(v), "masked_lm_positions", "19", "20");
    EXPECT(open_values(make_values(0, 0)), "bad.hdf5", "no sequences");

    EXPECT(dataset_open("data.eval", "/nowhere/x*.hdf5", &dataset), "data.eval", "/nowhere/x*.hdf5");
    EXPECT(dataset_open("data.eval", " , ", &dataset), "data.eval", "names no shards");
    char *path = path_join(folder, "text.hdf5");
    assert_int_equal(file_write_all(path, "just some text, not a shard", 27), OK);
    EXPECT(dataset_open("data.train", path, &dataset), "text.hdf5", "not an HDF5 file");
    free(path);

    path = write_values("cut.hdf5", make_values(0, 3000));
    assert_int_equal(truncate(path, 20000), 0);
    EXPECT(dataset_open("data.train", path, &dataset), "cut.hdf5", "truncated");
    unlink(path);
    free(path);
}

static void test_bad_values(void **state) {
    (void)state;
    struct values *v = make_values(0, 20);
    v->ids[7][2] = VOCAB;
    EXPECT(read_values(v), "bad.hdf5", "input_ids", "row 7", "column 2", "1000", "0 to 999");
    v = make_values(0, 20);
    v->ids[7][2] = -5;
    EXPECT(read_values(v), "input_ids", "row 7", "-5");
    v = make_values(0, 20);
    v->mask[3][1] = 0;
    EXPECT(read_values(v), "input_mask", "row 3");
    v = make_values(0, 20);
    v->mask[3][0] = 2;
    EXPECT(read_values(v), "input_mask", "row 3", "2");
    v = make_values(0, 20);
    memset(v->mask[4], 0, S);
    EXPECT(read_values(v), "input_mask", "row 4", "empty");
    v = make_values(0, 20);
    v->types[5][1] = 3;
    EXPECT(read_values(v), "segment_ids", "row 5", "3", "0 or 1");
    v = make_values(0, 20);
    v->positions[6][0] = S - 1; /* row 6 has 10 tokens */
    EXPECT(read_values(v), "masked_lm_positions", "row 6", "11", "inside the sequence");
    v = make_values(0, 20);
    v->positions[9][1] = 1;
    EXPECT(read_values(v), "masked_lm_positions", "row 9", "ascending");
    v = make_values(0, 20);
    v->labels[9][1] = 5000;
    EXPECT(read_values(v), "masked_lm_ids", "row 9", "5000");
    v = make_values(0, 20);
    v->nsp[19] = 2;
    EXPECT(read_values(v), "next_sentence_labels", "row 19", "0 or 1");
    assert_int_equal(read_values(make_values(0, 20)), OK);
}

static void test_manifest(void **state) {
    (void)state;
    struct dataset *dataset = open_set(), *other;
    struct text manifest = {0};
    dataset_manifest(dataset, &manifest);
    assert_non_null(strstr(manifest.data, "{\"name\": \"a_training_0.hdf5\", \"bytes\": "));
    assert_int_equal(dataset_compare(dataset, manifest.data), OK);
    char *path = path_join(folder, "set/c.h5");
    assert_int_equal(dataset_open("data.train", path, &other), OK);
    EXPECT(dataset_compare(other, manifest.data), "3 shards", "now 1");
    struct text one = {0};
    dataset_manifest(other, &one);
    one.data[strlen(one.data) - 3]++; /* another number of rows */
    EXPECT(dataset_compare(other, one.data), "c.h5", "now");
    text_free(&one);
    text_free(&manifest);
    free(path);
    dataset_free(other);
    dataset_free(dataset);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_sample_once_an_epoch),
        cmocka_unit_test(test_any_number_of_ranks_gives_the_same_stream),
        cmocka_unit_test(test_resume_anywhere),
        cmocka_unit_test(test_seed_and_names_make_the_order),
        cmocka_unit_test(test_one_pass_in_file_order),
        cmocka_unit_test(test_closing_early),
        cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_bad_values),
        cmocka_unit_test(test_manifest),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
