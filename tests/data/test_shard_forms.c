/* The forms in which sequences are stored: whatever the integers, the chunks, and padded, variable-length or packed
 * rows, the same sequences come out. */
#include "shard_fixture.h"

#include "data/shard_chunks.h"

#include "data/shard_read.h"

enum { ROWS = 2600 };

/* Everything a reader hands out in file order, one number after another. */
struct stream {
    int32_t *items;
    int64_t count, capacity;
};

static void add(struct stream *stream, int64_t value) {
    GROW(stream->items, stream->count, stream->capacity);
    stream->items[stream->count++] = (int32_t)value;
}

static void add_batch(struct stream *stream, const struct batch *batch) {
    int64_t mask = 0;
    for (int64_t s = 0; s < batch->sequences; s++) {
        add(stream, batch->sequence_numbers[s]);
        add(stream, batch->nsp_labels[s]);
        for (int32_t i = batch->starts[s]; i < batch->starts[s + 1]; i++) {
            add(stream, batch->ids[i]);
            add(stream, batch->types[i]);
            add(stream, batch->positions[i]);
        }
        for (; mask < batch->masked && batch->masked_rows[mask] < batch->starts[s + 1]; mask++) {
            add(stream, batch->masked_rows[mask] - batch->starts[s]);
            add(stream, batch->masked_labels[mask]);
        }
    }
}

static status read_file(const char *path, int64_t vocab_size, struct stream *stream) {
    struct dataset *dataset;
    struct reader *reader;
    struct reader_options options = options_of(64);
    const struct step_data *data;
    options.shuffle = options.endless = false;
    options.vocab_size = vocab_size;
    TRY(dataset_open("data.train", path, false, &dataset));
    assert_int_equal(dataset_seq_len(dataset), S);
    assert_int_equal(reader_open(dataset, &options, &reader), OK);
    status code;
    while ((code = reader_next(reader, &data)) == OK && data)
        for (int64_t i = 0; i < data->micro_batches; i++)
            add_batch(stream, &data->batches[i]);
    reader_close(reader);
    dataset_free(dataset);
    return code;
}

/* Takes `path`, and the values of the expected stream from the NVIDIA form. */
static void expect_same(char *path) {
    struct stream stream = {0}, expected = {0};
    char *nvidia = write_values("nvidia.hdf5", make_values(0, ROWS));
    assert_int_equal(read_file(nvidia, VOCAB, &expected), OK);
    if (read_file(path, VOCAB, &stream) != OK)
        fail_msg("%s", status_message());
    assert_true(expected.count > ROWS * 3 * 4);
    assert_int_equal(stream.count, expected.count);
    assert_memory_equal(stream.items, expected.items, (size_t)expected.count * sizeof *expected.items);
    free(stream.items);
    free(expected.items);
    unlink(nvidia);
    unlink(path);
    free(nvidia);
    free(path);
}

static void test_any_integers(void **state) {
    (void)state;
    const hid_t types[][2] = {{H5T_STD_I16LE, H5T_STD_I8LE},  {H5T_STD_U16BE, H5T_STD_U8LE},
                              {H5T_STD_I64LE, H5T_STD_I64LE}, {H5T_STD_I32BE, H5T_STD_I32LE},
                              {H5T_STD_U32LE, H5T_STD_U16LE}, {H5T_STD_U64LE, H5T_STD_I16LE}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct values *v = make_values(0, ROWS);
        v->ids_type = types[i][0];
        v->mask_type = types[i][1];
        expect_same(write_values("integers.hdf5", v));
    }
}

static void test_any_chunks(void **state) {
    (void)state;
    static const hsize_t chunks[][2] = {{0, 0}, {1, 1}, {7, 3}, {325, 2}, {1300, 2}, {2600, 12}, {4000, 12}};
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        struct values *v = make_values(0, ROWS);
        memcpy(v->chunk, chunks[i], sizeof v->chunk);
        expect_same(write_values("chunks", v));
    }
}

/* A block is whole chunks of about 1,024 rows; a chunk of too many tokens is cut into equal blocks. */
static void test_block_sizes(void **state) {
    (void)state;
    static const struct {
        int columns;
        hsize_t chunk;
        int64_t block, blocks;
    } cases[] = {{2048, 2600, 867, 3}, {2048, 1000, 1000, 3}, {512, 2600, 1300, 2}, {128, 2600, 2600, 1},
                 {128, 300, 900, 3},   {128, 1, 1024, 3},     {128, 0, 1024, 3}};
    int8_t *zeros = xcalloc(ROWS, 2048);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct values layout = {.chunk = {cases[i].chunk, 64}};
        struct shard shard;
        char *path = path_join(folder, "sizes");
        hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
        put(file, "input_ids", 2, ROWS, cases[i].columns, &layout, H5T_STD_I8LE, H5T_NATIVE_INT8, zeros);
        put(file, "segment_ids", 2, ROWS, cases[i].columns, &layout, H5T_STD_I8LE, H5T_NATIVE_INT8, zeros);
        put(file, "masked_lm_positions", 2, ROWS, P, &layout, H5T_STD_I8LE, H5T_NATIVE_INT8, zeros);
        put(file, "masked_lm_ids", 2, ROWS, P, &layout, H5T_STD_I8LE, H5T_NATIVE_INT8, zeros);
        put(file, "next_sentence_labels", 1, ROWS, 1, &layout, H5T_STD_I8LE, H5T_NATIVE_INT8, zeros);
        H5Fclose(file);
        assert_int_equal(shard_check(path, &shard), OK);
        assert_int_equal(shard.block_rows, cases[i].block);
        assert_int_equal(shard_blocks(&shard), cases[i].blocks);
        struct extent last = shard_block(&shard, cases[i].blocks - 1);
        assert_int_equal(last.first + last.stored, ROWS);
        assert_int_equal(last.sequences, last.stored);
        shard_free(&shard);
        free(path);
    }
    free(zeros);
}

static void test_without_input_mask(void **state) {
    (void)state;
    struct values *v = make_values(0, ROWS);
    v->skip_dataset = 1;
    expect_same(write_values("no_mask.hdf5", v));
}

/* i2 read as unsigned where the vocabulary needs it, and only there. */
static void test_large_ids_in_two_bytes(void **state) {
    (void)state;
    struct values *v = make_values(0, 20);
    struct stream stream = {0};
    v->ids_type = H5T_STD_I16LE;
    v->ids[0][2] = 40000 - 65536;
    v->labels[0][0] = 65535 - 65536;
    char *path = write_values("large.hdf5", v);
    assert_int_equal(read_file(path, 65536, &stream), OK);
    assert_int_equal(stream.items[2 + 3 * 2], 40000); /* number, nsp, then id, type and position of each token */
    assert_int_equal(stream.items[2 + 3 * 4], 1);
    assert_int_equal(stream.items[2 + 3 * 4 + 1], 65535);
    EXPECT(read_file(path, 30000, &stream), "large.hdf5", "input_ids", "row 0", "-25536", "0 to 29999");
    free(stream.items);
    unlink(path);
    free(path);
}

/* --- variable-length rows --- */

/* One dataset of variable-length rows, growing. */
struct ragged {
    int32_t values[ROWS * S];
    int starts[ROWS + 1], rows;
};

static void add_value(struct ragged *ragged, int32_t value) {
    ragged->values[ragged->starts[ragged->rows + 1]++] = value;
}

static void end_row(struct ragged *ragged) {
    ragged->rows++;
    if (ragged->rows < ROWS)
        ragged->starts[ragged->rows + 1] = ragged->starts[ragged->rows];
}

static void put_ragged(hid_t file, const char *name, const struct ragged *ragged, hid_t number) {
    hsize_t rows = (hsize_t)ragged->rows;
    hvl_t *items = xcalloc((size_t)rows + 1, sizeof *items);
    for (hsize_t r = 0; r < rows; r++)
        items[r] = (hvl_t){(size_t)(ragged->starts[r + 1] - ragged->starts[r]),
                           (void *)(uintptr_t)(ragged->values + ragged->starts[r])};
    hid_t space = H5Screate_simple(1, &rows, NULL), type = H5Tvlen_create(number);
    hid_t memory = H5Tvlen_create(H5T_NATIVE_INT32);
    hid_t dataset = H5Dcreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    assert_true(dataset >= 0 && H5Dwrite(dataset, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, items) >= 0);
    H5Dclose(dataset);
    H5Tclose(memory);
    H5Tclose(type);
    H5Sclose(space);
    free(items);
}

enum { IDS, TYPES, POSITIONS, LABELS, NSP, LENGTHS, MASKS, PARTS };
static const char *const part_names[PARTS] = {"input_ids",           "segment_ids",          "masked_lm_positions",
                                              "masked_lm_ids",       "next_sentence_labels", "packed_input_len",
                                              "packed_masked_lm_len"};

/* The sequences of `v`, unpadded: `pack(row)` of them in a row. */
static struct ragged *make_parts(const struct values *v, int (*pack)(int row)) {
    struct ragged *parts = xcalloc(PARTS, sizeof *parts);
    for (int r = 0, row = 0; r < v->rows; row++) {
        int offset = 0;
        for (int end = r + pack(row); r < end && r < v->rows; r++) {
            int length = 0, masks = 0;
            for (; length < S && v->mask[r][length]; length++) {
                add_value(&parts[IDS], v->ids[r][length]);
                add_value(&parts[TYPES], v->types[r][length]);
            }
            for (; masks < P && v->positions[r][masks]; masks++) {
                add_value(&parts[POSITIONS], offset + v->positions[r][masks]);
                add_value(&parts[LABELS], v->labels[r][masks]);
            }
            add_value(&parts[NSP], v->nsp[r]);
            add_value(&parts[LENGTHS], length);
            add_value(&parts[MASKS], masks);
            offset += length;
        }
        for (int part = 0; part < PARTS; part++)
            end_row(&parts[part]);
    }
    return parts;
}

static int one(int row) {
    (void)row;
    return 1;
}

static int one_to_three(int row) { return 1 + row % 3; }

/* `skip`: a part to leave out, or -1. Frees `parts`. */
static char *write_parts(const char *name, struct ragged *parts, bool packed, int skip) {
    char *path = path_join(folder, name);
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    for (int part = 0; part < (packed ? PARTS : NSP); part++)
        if (part != skip)
            put_ragged(file, part_names[part], &parts[part],
                       part == TYPES || part == NSP ? H5T_STD_I8LE : H5T_STD_I16LE);
    if (!packed) {
        struct values plain = {0};
        int32_t *labels = parts[NSP].values; /* one a row */
        put(file, part_names[NSP], 1, parts[NSP].rows, 1, &plain, H5T_STD_I8LE, H5T_NATIVE_INT32, labels);
    }
    H5Fclose(file);
    free(parts);
    return path;
}

static void test_variable_length(void **state) {
    (void)state;
    struct values *v = make_values(0, ROWS);
    expect_same(write_parts("part_00000_of_04320.hdf5", make_parts(v, one), false, -1));
    free(v);
}

static void test_packed(void **state) {
    (void)state;
    struct values *v = make_values(0, ROWS);
    struct dataset *dataset;
    char *path = write_parts("part_00000_of_04320", make_parts(v, one_to_three), true, -1);
    assert_int_equal(dataset_open("data.train", path, false, &dataset), OK);
    assert_int_equal(dataset_rows(dataset), ROWS); /* sequences, not rows */
    assert_int_equal(dataset_max_predictions(dataset), 2);
    dataset_free(dataset);
    expect_same(path);
    free(v);
}

/* A packed shard with one number bent: part, row (of 10), place in it (-1: one number too many), value. */
static status read_bent(bool packed, int part, int row, int place, int value) {
    struct values *v = make_values(0, 20);
    struct ragged *parts = make_parts(v, packed ? one_to_three : one), *bent = &parts[part];
    if (place >= 0)
        bent->values[bent->starts[row] + place] = value;
    else /* its neighbour loses it, so that the row after is wrong too: the first one is reported */
        bent->starts[row + 1]++;
    char *path = write_parts("bent", parts, packed, -1);
    struct stream stream = {0};
    status code = read_file(path, VOCAB, &stream);
    free(stream.items);
    free(v);
    unlink(path);
    free(path);
    return code;
}

static void test_bad_rows(void **state) {
    (void)state;
    EXPECT(read_bent(false, IDS, 3, 2, 1000), "bent", "input_ids", "row 3", "column 2", "found 1000", "0 to 999");
    EXPECT(read_bent(false, TYPES, 3, -1, 0), "segment_ids", "row 3", "found 8 numbers", "expected 7");
    EXPECT(read_bent(false, LABELS, 3, -1, 0), "masked_lm_ids", "row 3", "found 3 numbers", "expected 2");
    EXPECT(read_bent(false, POSITIONS, 0, 0, 4), "masked_lm_positions", "row 0", "found 4", "inside the sequence");
    EXPECT(read_bent(false, NSP, 5, 0, 2), "next_sentence_labels", "row 5", "found 2", "0 or 1");
    /* row 2 of the packed form holds samples 3, 4 and 5, of 7, 8 and 9 tokens and 2, 1 and 2 masked positions */
    EXPECT(read_bent(true, LENGTHS, 2, 1, 0), "packed_input_len", "row 2", "column 1", "found 0", "add up");
    EXPECT(read_bent(true, LENGTHS, 2, 2, 10), "packed_input_len", "row 2", "column 2", "found 10", "add up");
    EXPECT(read_bent(true, LENGTHS, 2, 2, 8), "packed_input_len", "row 2", "found 23", "expected 24");
    EXPECT(read_bent(true, MASKS, 2, 2, 1), "packed_masked_lm_len", "row 2", "found 4", "expected 5");
    EXPECT(read_bent(true, MASKS, 2, 0, -1), "packed_masked_lm_len", "row 2", "found -1", "add up");
    EXPECT(read_bent(true, MASKS, 2, -1, 0), "packed_masked_lm_len", "row 2", "found 4 numbers", "expected 3");
    EXPECT(read_bent(true, NSP, 2, -1, 0), "next_sentence_labels", "row 2", "found 4 numbers", "expected 3");
    /* a masked position in another sequence of the pack */
    EXPECT(read_bent(true, POSITIONS, 2, 2, 6), "masked_lm_positions", "row 2", "column 2", "inside the sequence");
    EXPECT(read_bent(true, POSITIONS, 2, 1, 7), "masked_lm_positions", "row 2", "column 1", "inside the sequence");
}

static void test_bad_datasets(void **state) {
    (void)state;
    struct dataset *dataset;
    struct values *v = make_values(0, 20);
    for (int part = 0; part < PARTS; part++) {
        if (part == LENGTHS)
            continue; /* without it the form is another one: below */
        char *path = write_parts("less", make_parts(v, one_to_three), true, part);
        EXPECT(dataset_open("data.train", path, false, &dataset), "less", part_names[part], "missing");
        free(path);
    }
    char *path = write_parts("less", make_parts(v, one_to_three), true, LENGTHS);
    EXPECT(dataset_open("data.train", path, false, &dataset), "less", "next_sentence_labels", "variable-length rows",
           "rows of one length");
    free(path);
    free(v);
}

/* What is read past HDF5 is what HDF5 reads, to the extremes of every type. */
static void test_chunks_read_past_the_library(void **state) {
    (void)state;
    enum { ROWS = 20, WIDTH = 5 };
    const hid_t types[] = {H5T_STD_U8LE,  H5T_STD_I8LE,  H5T_STD_U16LE, H5T_STD_I16LE, H5T_STD_U32LE,
                           H5T_STD_I32LE, H5T_STD_U64LE, H5T_STD_I64LE, H5T_STD_I32BE};
    unsigned char bytes[ROWS * WIDTH * 8];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i % 40 < 16 ? (i / 8 % 2 ? 0xFF : 0) : i * 151 >> 3); /* -1, 0 and others */
    char *path = path_join(folder, "types.hdf5");
    for (int shuffled = 0; shuffled < 2; shuffled++)
        for (int t = 0; t < 9; t++) {
            hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
            hid_t space = H5Screate_simple(2, (hsize_t[]){ROWS, WIDTH}, NULL), creation = H5Pcreate(H5P_DATASET_CREATE);
            H5Pset_chunk(creation, 2, (hsize_t[]){7, WIDTH});
            if (shuffled)
                H5Pset_shuffle(creation);
            H5Pset_deflate(creation, 6);
            hid_t dataset = H5Dcreate2(file, "x", types[t], space, H5P_DEFAULT, creation, H5P_DEFAULT);
            assert_true(H5Dwrite(dataset, types[t], H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes) >= 0);
            H5Dclose(dataset); /* the chunks are in the file now */
            dataset = H5Dopen2(file, "x", H5P_DEFAULT);
            int32_t whole[ROWS][WIDTH], part[13][WIDTH];
            assert_true(H5Dread(dataset, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, whole) >= 0);
            struct chunk_form form = chunk_form_of(dataset, 2, WIDTH);
#ifdef BERTH_DEFLATE
            assert_int_equal(form.bytes, shuffled || t == 8 ? 0 : 1 << t / 2);
#else
            assert_int_equal(form.bytes, 0);
#endif
            if (form.bytes) {
                assert_true(chunks_read(dataset, &form, 5, 13, part[0]));
                assert_memory_equal(part, whole[5], sizeof part);
            }
            H5Dclose(dataset);
            H5Pclose(creation);
            H5Sclose(space);
            H5Fclose(file);
        }
    unlink(path);
    free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_integers),
        cmocka_unit_test(test_any_chunks),
        cmocka_unit_test(test_block_sizes),
        cmocka_unit_test(test_without_input_mask),
        cmocka_unit_test(test_large_ids_in_two_bytes),
        cmocka_unit_test(test_variable_length),
        cmocka_unit_test(test_packed),
        cmocka_unit_test(test_bad_rows),
        cmocka_unit_test(test_bad_datasets),
        cmocka_unit_test(test_chunks_read_past_the_library),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
