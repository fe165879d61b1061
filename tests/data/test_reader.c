/* The reader on HDF5 files made here: which samples come out, in which order, and that they are whole. */
#include "shard_fixture.h"

#include <math.h>

/* Three files of different size in folder "set". */
enum { FILES = 3, TOTAL = 3500 + 37 + 1200 };
static const int file_rows[FILES] = {3500, 37, 1200};

static struct dataset *open_set(void) {
    struct dataset *dataset;
    char *path = path_join(folder, "set");
    status code = dataset_open("data.train", path, false, &dataset);
    if (code != OK)
        fail_msg("%s", status_message());
    free(path);
    return dataset;
}

static int setup(void **state) {
    if (make_folder(state) != 0)
        return -1;
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

static int64_t delivered; /* sequences, by all read_stream so far */

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
        delivered += sequences;
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
    static const int numbers[] = {2, 3, 5, 11}; /* the set has 7 blocks: of 11 ranks some have nothing to do */
    for (int n = 0; n < 4; n++) {
        int ranks = numbers[n];
        memset(parts, -1, sizeof parts);
        delivered = 0;
        for (int rank = 0; rank < ranks; rank++) {
            options.ranks = ranks;
            options.rank = rank;
            assert_int_equal(read_stream(dataset, &options, steps, parts, 0), steps);
        }
        assert_int_equal(delivered, steps * 64); /* no sample by two ranks */
        assert_memory_equal(whole, parts, (size_t)(steps * 64) * sizeof *whole);
    }
    dataset_free(dataset);
}

/* A step goes round the blocks: a rank's share is that of its blocks, step after step, as long as all are open. */
static void test_ranks_share_evenly(void **state) {
    (void)state;
    struct dataset *dataset = open_set();
    struct reader_options options = options_of(7 * 12);
    assert_int_equal(dataset_open_blocks(dataset), 7);
    options.ranks = 3;
    for (options.rank = 0; options.rank < 3; options.rank++) {
        struct reader *reader;
        const struct step_data *data;
        assert_int_equal(reader_open(dataset, &options, &reader), OK);
        for (int step = 0; step < 3; step++) { /* the smallest block has 37 rows */
            assert_int_equal(reader_next(reader, &data), OK);
            assert_int_equal(data->sequences, options.rank == 0 ? 36 : 24);
        }
        reader_close(reader);
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

/* Evaluation: one pass over all ranks, every row once, in as many steps for each rank. */
static void test_one_pass_over_ranks(void **state) {
    (void)state;
    struct dataset *dataset = open_set();
    struct reader_options options = options_of(100);
    static int stream[TOTAL + 100];
    options.shuffle = options.endless = false;
    options.ranks = 3;
    memset(stream, -1, sizeof stream);
    delivered = 0;
    for (options.rank = 0; options.rank < 3; options.rank++)
        assert_int_equal(read_stream(dataset, &options, 1000, stream, 0), (TOTAL + 99) / 100);
    for (int i = 0; i < TOTAL; i++)
        assert_int_equal(stream[i], i);
    assert_int_equal(stream[TOTAL], -1);
    assert_int_equal(delivered, TOTAL);
    dataset_free(dataset);
}

/* A step larger than the set goes through several epochs. */
static void test_set_smaller_than_a_step(void **state) {
    (void)state;
    enum { ROWS = 37, BATCH = 100, STEPS = 37 };
    struct dataset *dataset;
    char *path = path_join(folder, "set/b_no_ending");
    static int stream[BATCH * STEPS], again[BATCH];
    struct reader_options options = options_of(BATCH);
    assert_int_equal(dataset_open("data.train", path, false, &dataset), OK);
    read_stream(dataset, &options, STEPS, stream, 0);
    for (int epoch = 0; epoch < BATCH * STEPS / ROWS; epoch++) {
        int seen[ROWS] = {0};
        for (int i = 0; i < ROWS; i++)
            seen[stream[epoch * ROWS + i] - file_rows[0]]++;
        for (int i = 0; i < ROWS; i++)
            assert_int_equal(seen[i], 1);
    }
    options.start_epoch = 2 * BATCH / ROWS; /* behind the second step */
    options.start_consumed = 2 * BATCH % ROWS;
    options.first_number = 2 * BATCH;
    read_stream(dataset, &options, 1, again, 2 * BATCH);
    assert_memory_equal(again, stream + 2 * BATCH, sizeof again);
    free(path);
    dataset_free(dataset);
}

/* --- masks drawn anew --- */

/* What a step handed out for one sequence: its ids, and those with the masks undone. */
struct seen {
    int32_t length, masked;
    int32_t ids[S], original[S];
    int8_t is_masked[S];
};

static void collect(const struct dataset *dataset, const struct reader_options *options, int steps, struct seen *seen,
                    int64_t first) {
    struct reader *reader;
    const struct step_data *data;
    assert_int_equal(reader_open(dataset, options, &reader), OK);
    for (int step = 0; step < steps; step++) {
        assert_int_equal(reader_next(reader, &data), OK);
        for (int64_t i = 0; i < data->micro_batches; i++) {
            const struct batch *batch = &data->batches[i];
            int64_t mask = 0;
            for (int64_t s = 0; s < batch->sequences; s++) {
                struct seen *out = &seen[batch->sequence_numbers[s] - first];
                int64_t from = batch->starts[s], to = batch->starts[s + 1];
                memset(out, 0, sizeof *out);
                out->length = (int32_t)(to - from);
                memcpy(out->ids, batch->ids + from, (size_t)(to - from) * sizeof *out->ids);
                memcpy(out->original, out->ids, sizeof out->ids);
                for (; mask < batch->masked && batch->masked_rows[mask] < to; mask++, out->masked++) {
                    out->original[batch->masked_rows[mask] - from] = batch->masked_labels[mask];
                    out->is_masked[batch->masked_rows[mask] - from]++;
                }
            }
            assert_int_equal(mask, batch->masked);
        }
    }
    reader_close(reader);
}

static struct masking *masking_of(double probability, double mask_share, double random_share) {
    struct text entries = {0};
    struct vocab *vocab;
    char *path = path_join(folder, "vocab.txt");
    text_add(&entries, "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n");
    for (int id = 5; id < VOCAB; id++)
        text_printf(&entries, "w%d\n", id);
    assert_int_equal(file_write_all(path, entries.data, entries.length), OK);
    assert_int_equal(vocab_read(path, &vocab), OK);
    struct masking *masking =
        masking_new(vocab, &(struct masking_options){probability, mask_share, random_share, false});
    vocab_free(vocab);
    text_free(&entries);
    free(path);
    return masking;
}

static void test_masks_drawn_anew(void **state) {
    (void)state;
    enum { BATCH = 100, STEPS = TOTAL / BATCH };
    static struct seen stored[BATCH * STEPS], drawn[BATCH * STEPS], again[BATCH * STEPS];
    struct dataset *dataset = open_set();
    struct reader_options options = options_of(BATCH), anew = options;
    struct masking *masking = masking_of(0.4, 0.5, 0.3);
    anew.masking = masking;
    collect(dataset, &options, STEPS, stored, 0);
    collect(dataset, &anew, STEPS, drawn, 0);
    int64_t masked = 0, as_mask = 0, kept = 0;
    for (int n = 0; n < BATCH * STEPS; n++) {
        const struct seen *seen = &drawn[n];
        assert_int_equal(seen->length, stored[n].length);
        assert_memory_equal(seen->original, stored[n].original, sizeof seen->original); /* the text is the same */
        assert_int_equal(seen->masked, lrint(0.4 * seen->length));
        for (int i = 0; i < S; i++) {
            assert_in_range(seen->is_masked[i], 0, 1);
            masked += seen->is_masked[i];
            as_mask += seen->is_masked[i] && seen->ids[i] == 4;
            kept += seen->is_masked[i] && seen->ids[i] == seen->original[i];
        }
    }
    double deviation = 5 * sqrt(0.25 * (double)masked); /* five of a coin's */
    assert_true(fabs((double)as_mask - 0.5 * (double)masked) < deviation);
    assert_true(fabs((double)kept - 0.2 * (double)masked) < deviation);
    /* a function of the sample and the epoch: the same over ranks, and after a resume */
    for (anew.rank = 0, anew.ranks = 3; anew.rank < 3; anew.rank++)
        collect(dataset, &anew, STEPS, again, 0);
    assert_memory_equal(drawn, again, sizeof drawn);
    anew.rank = 0, anew.ranks = 1;
    anew.start_consumed = anew.first_number = 17 * BATCH;
    collect(dataset, &anew, 3, again, 17 * BATCH);
    assert_memory_equal(drawn + 17 * BATCH, again, 3 * BATCH * sizeof *drawn);
    masking_free(masking);
    dataset_free(dataset);
}

static void test_each_epoch_has_its_masks(void **state) {
    (void)state;
    enum { ROWS = 37 };
    static struct seen epochs[2][ROWS];
    struct dataset *dataset;
    char *path = path_join(folder, "set/b_no_ending");
    struct masking *masking = masking_of(0.3, 0.8, 0.1);
    struct reader_options options = options_of(ROWS);
    options.shuffle = false; /* both epochs in file order */
    options.masking = masking;
    assert_int_equal(dataset_open("data.train", path, false, &dataset), OK);
    collect(dataset, &options, 2, epochs[0], 0);
    int same = 0;
    for (int n = 0; n < ROWS; n++) {
        assert_memory_equal(epochs[0][n].original, epochs[1][n].original, sizeof epochs[0][n].original);
        same += memcmp(epochs[0][n].is_masked, epochs[1][n].is_masked, S) == 0;
    }
    assert_true(same < ROWS / 2);
    masking_free(masking);
    dataset_free(dataset);
    free(path);
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

/* Steps and micro-batches filled by tokens: as few steps as that takes, the same stream for any number of ranks. */
static void test_batches_by_tokens(void **state) {
    (void)state;
    enum { STEPS = 40, TOKENS = 700, MICRO = 200, MASKED = 12 };
    struct dataset *dataset = open_set();
    static int64_t first_number[3][STEPS], tokens[3][STEPS];
    for (int ranks = 1; ranks <= 2; ranks++)
        for (int rank = 0; rank < ranks; rank++) {
            struct reader_options options = options_of(1);
            struct reader *reader;
            int run = ranks - 1 + rank;
            options.batch_tokens = TOKENS;
            options.micro_batch = 1000;
            options.micro_tokens = MICRO;
            options.micro_masked = MASKED;
            options.endless = options.shuffle = true;
            options.ranks = ranks;
            options.rank = rank;
            assert_int_equal(reader_open(dataset, &options, &reader), OK);
            int64_t number = options.first_number;
            for (int step = 0; step < STEPS; step++) {
                const struct step_data *data;
                assert_int_equal(reader_next(reader, &data), OK);
                first_number[run][step] = number;
                number = data->consumed;
                tokens[run][step] = data->tokens;
                for (int64_t i = 0; i < data->micro_batches; i++) {
                    const struct batch *batch = &data->batches[i];
                    check_batch(batch);
                    assert_true(batch->tokens <= MICRO && batch->masked <= MASKED);
                    int64_t next = i + 1 < data->micro_batches ? batch[1].starts[1] : MICRO;
                    assert_true(batch->tokens + next > MICRO || batch->masked + 2 > MASKED ||
                                i + 1 == data->micro_batches);
                }
            }
            reader_close(reader);
        }
    for (int step = 0; step < STEPS; step++) {
        assert_true(tokens[0][step] >= TOKENS && tokens[0][step] < TOKENS + S);
        assert_int_equal(tokens[1][step] + tokens[2][step], tokens[0][step]);
        assert_int_equal(first_number[1][step], first_number[0][step]);
        assert_int_equal(first_number[2][step], first_number[0][step]);
    }
    dataset_free(dataset);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_sample_once_an_epoch),
        cmocka_unit_test(test_any_number_of_ranks_gives_the_same_stream),
        cmocka_unit_test(test_ranks_share_evenly),
        cmocka_unit_test(test_resume_anywhere),
        cmocka_unit_test(test_seed_and_names_make_the_order),
        cmocka_unit_test(test_one_pass_in_file_order),
        cmocka_unit_test(test_one_pass_over_ranks),
        cmocka_unit_test(test_set_smaller_than_a_step),
        cmocka_unit_test(test_masks_drawn_anew),
        cmocka_unit_test(test_each_epoch_has_its_masks),
        cmocka_unit_test(test_batches_by_tokens),
        cmocka_unit_test(test_closing_early),
    };
    return cmocka_run_group_tests(tests, setup, remove_folder);
}
