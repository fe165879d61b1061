/* Which files make a data set, what is refused in them, and the manifest. */
#include "shard_fixture.h"

static status open_values(struct values *v) {
    char *path = write_values("bad.hdf5", v);
    struct dataset *dataset;
    status code = dataset_open("data.train", path, false, &dataset);
    if (code == OK)
        dataset_free(dataset);
    unlink(path);
    free(path);
    return code;
}

static status read_values(struct values *v) {
    char *path = write_values("bad.hdf5", v);
    struct dataset *dataset;
    struct reader_options options = options_of(8);
    options.shuffle = options.endless = false;
    if (dataset_open("data.train", path, false, &dataset) != OK)
        fail_msg("%s", status_message());
    status code = read_all(dataset, &options);
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

    EXPECT(dataset_open("data.eval", "/nowhere/x*.hdf5", false, &dataset), "data.eval", "/nowhere/x*.hdf5");
    EXPECT(dataset_open("data.eval", " , ", false, &dataset), "data.eval", "names no shards");
    char *path = path_join(folder, "text.hdf5");
    assert_int_equal(file_write_all(path, "just some text, not a shard", 27), OK);
    EXPECT(dataset_open("data.train", path, false, &dataset), "text.hdf5", "not an HDF5 file");
    free(path);

    path = write_values("cut.hdf5", make_values(0, 3000));
    assert_int_equal(truncate(path, 20000), 0);
    EXPECT(dataset_open("data.train", path, false, &dataset), "cut.hdf5", "truncated");
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
    v->positions[6][2] = 3; /* behind the zero that ends the list */
    EXPECT(read_values(v), "masked_lm_positions", "row 6", "column 2", "found 3", "zeros up to the end");
    v = make_values(0, 20);
    v->positions[6][0] = -1;
    EXPECT(read_values(v), "masked_lm_positions", "row 6", "-1", "inside the sequence");
    v = make_values(0, 20);
    v->labels[9][1] = 5000;
    EXPECT(read_values(v), "masked_lm_ids", "row 9", "5000");
    v = make_values(0, 20);
    v->nsp[19] = 2;
    EXPECT(read_values(v), "next_sentence_labels", "row 19", "0 or 1");
    assert_int_equal(read_values(make_values(0, 20)), OK);
}

/* The message names the row of the file, not of the block, and comes at its step: the steps before it are good. */
static void test_an_error_comes_at_its_step(void **state) {
    (void)state;
    struct values *v = make_values(0, 3000);
    v->nsp[2500] = 7;
    char *path = write_values("late.hdf5", v);
    struct dataset *dataset;
    struct reader *reader;
    struct reader_options options = options_of(100);
    const struct step_data *data;
    options.shuffle = options.endless = false;
    assert_int_equal(dataset_open("data.train", path, false, &dataset), OK);
    assert_int_equal(reader_open(dataset, &options, &reader), OK);
    for (int step = 0; step < 20; step++) /* rows 0 … 1999, in two blocks of 1,000 */
        assert_int_equal(reader_next(reader, &data), OK);
    for (int again = 0; again < 2; again++)
        EXPECT(reader_next(reader, &data), "late.hdf5", "next_sentence_labels", "row 2500", "found 7");
    reader_close(reader);

    /* longer than what the model was planned for */
    options.seq_len = S - 1;
    EXPECT(read_all(dataset, &options), "late.hdf5", "row 8", "12 tokens", "the 11 planned for");
    options.seq_len = S;
    options.max_predictions = 1;
    EXPECT(read_all(dataset, &options), "late.hdf5", "row 1", "2 masked positions", "the 1 planned for");

    /* a file that changes, or goes, under a run */
    options.max_predictions = P;
    free(path);
    path = write_values("late.hdf5", make_values(0, 2999));
    EXPECT(read_all(dataset, &options), "late.hdf5", "2999 rows", "3000", "changed");
    unlink(path);
    EXPECT(read_all(dataset, &options), "late.hdf5", "No such file");
    free(path);
    dataset_free(dataset);
}

static int64_t files_in(const char *format, const char *more) {
    struct dataset *dataset;
    char *paths = xasprintf(format, folder, more);
    if (dataset_open("data.train", paths, false, &dataset) != OK)
        fail_msg("%s", status_message());
    int64_t files = dataset_files(dataset);
    dataset_free(dataset);
    free(paths);
    return files;
}

static void test_files_folders_patterns_and_lists(void **state) {
    (void)state;
    char *path = path_join(folder, "find");
    assert_int_equal(folder_create(path), OK);
    free(path);
    path = path_join(folder, "find/below.hdf5"); /* a folder, whatever its name */
    assert_int_equal(folder_create(path), OK);
    free(path);
    static const char *const names[] = {"find/a.hdf5", "find/b.h5", "find/c.hdf", "find/part-00000-of-00500",
                                        "find/.hidden.hdf5"};
    for (int i = 0; i < 5; i++)
        free(write_values(names[i], make_values(i, 5 + i)));
    path = path_join(folder, "find/notes.txt");
    assert_int_equal(file_write_all(path, "not a shard", 11), OK);
    assert_int_equal(files_in("%s/find%s", ""), 4);
    assert_int_equal(files_in("%s/find/%s", "*.h*5"), 2);
    assert_int_equal(files_in("%s/find/%s", "part-00000-of-00500"), 1);
    char *two = xasprintf("a.hdf5, %s/find/b.h5 ,%s/find/part*", folder, folder);
    assert_int_equal(files_in("%s/find/%s", two), 3);
    free(two);

    struct dataset *dataset;
    EXPECT(dataset_open("data.train", path, false, &dataset), "data.train", "notes.txt", "not an HDF5 file");
    free(path);
    path = path_join(folder, "empty");
    assert_int_equal(folder_create(path), OK);
    EXPECT(dataset_open("data.train", path, false, &dataset), "empty", "no HDF5 shards");
    free(path);
    /* in a folder too, a file that calls itself a shard must be one */
    static const char *const endings[] = {"find/d.hdf5", "find/d.h5", "find/d.hdf"};
    char *find = path_join(folder, "find");
    for (int i = 0; i < 3; i++) {
        path = path_join(folder, endings[i]);
        assert_int_equal(file_write_all(path, "", 0), OK);
        EXPECT(dataset_open("data.train", find, false, &dataset), endings[i], "not an HDF5 file");
        unlink(path);
        free(path);
    }
    free(find);
}

/* Wherever a file ends too early, opening or reading it says so. */
static void test_truncated_anywhere(void **state) {
    (void)state;
    struct reader_options options = options_of(8);
    options.shuffle = options.endless = false;
    struct values *v = make_values(0, 1500);
    char *path = write_values("cut.hdf5", v);
    struct text whole = {0};
    assert_int_equal(file_read(path, &whole), OK);
    for (size_t length = 0; length < whole.length; length += whole.length / 23) {
        struct dataset *dataset;
        assert_int_equal(file_write_all(path, whole.data, length), OK);
        status code = dataset_open("data.train", path, false, &dataset);
        if (code == OK) {
            code = read_all(dataset, &options);
            dataset_free(dataset);
        }
        EXPECT(code, "cut.hdf5");
    }
    text_free(&whole);
    unlink(path);
    free(path);
}

/* data.on_bad_shard=skip: a broken file, and the block of a broken row, are left out, and nothing else. */
static void test_broken_shards_left_out(void **state) {
    (void)state;
    struct values *v = make_values(1, 3000);
    v->nsp[2500] = 7;
    char *cut = write_values("bad_cut.hdf5", make_values(0, 3000)), *late = write_values("bad_late.hdf5", v);
    char *list = xasprintf("%s,%s", cut, late);
    assert_int_equal(truncate(cut, 20000), 0);
    struct dataset *dataset;
    struct reader *reader;
    struct reader_options options = options_of(100);
    const struct step_data *data;
    options.shuffle = options.endless = false;
    EXPECT(dataset_open("data.train", list, false, &dataset), "bad_cut.hdf5");
    assert_int_equal(dataset_open("data.train", list, true, &dataset), OK);
    assert_int_equal(dataset_files(dataset), 1);
    assert_int_equal(dataset_rows(dataset), 3000);
    options.shuffle = true; /* blocks of 1,000 rows, drawn in turn: a third of each step is left out */
    assert_int_equal(reader_open(dataset, &options, &reader), OK);
    int64_t sequences = 0;
    for (int step = 1; step <= 30; step++) {
        assert_int_equal(reader_next(reader, &data), OK);
        assert_int_equal(data->consumed, 100 * step);
        assert_in_range(data->sequences, 66, 67);
        sequences += data->sequences;
    }
    assert_int_equal(sequences, 2000);
    reader_close(reader);
    options.shuffle = false; /* in file order whole steps are */
    EXPECT(read_all(dataset, &options), "all 100 sequences of a step", "broken");
    dataset_free(dataset);
    EXPECT(dataset_open("data.train", cut, true, &dataset), "names no shards");
    char *all[] = {cut, late, list};
    for (int i = 0; i < 3; i++) {
        if (i < 2)
            unlink(all[i]);
        free(all[i]);
    }
}

/* What dataset_open writes to standard error. */
static char *warnings_of(const char *paths) {
    char *path = path_join(folder, "stderr"), *said;
    int kept = dup(STDERR_FILENO);
    assert_non_null(freopen(path, "w", stderr));
    struct dataset *dataset;
    status code = dataset_open("data.train", paths, false, &dataset);
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(kept);
    assert_int_equal(code, OK);
    dataset_free(dataset);
    struct text text = {0};
    assert_int_equal(file_read(path, &text), OK);
    said = xstrdup(text.data ? text.data : "");
    text_free(&text);
    free(path);
    return said;
}

static void test_copies_are_noticed(void **state) {
    (void)state;
    char *a = write_values("one.hdf5", make_values(0, 30)), *b = write_values("two.hdf5", make_values(1, 30));
    char *copy = write_values("copy.hdf5", make_values(0, 30)), *list = xasprintf("%s,%s", a, b);
    char *said = warnings_of(list);
    assert_string_equal(said, "");
    free(said);
    free(list);
    list = xasprintf("%s,%s,%s", a, b, copy);
    said = warnings_of(list);
    assert_non_null(strstr(said, "warning: data.train: "));
    assert_non_null(strstr(said, "one.hdf5"));
    assert_non_null(strstr(said, "copy.hdf5"));
    assert_null(strstr(said, "two.hdf5"));
    char *all[] = {a, b, copy, list, said};
    for (int i = 0; i < 5; i++) {
        if (i < 3)
            unlink(all[i]);
        free(all[i]);
    }
}

static void test_manifest(void **state) {
    (void)state;
    struct dataset *two, *one;
    struct text manifest = {0}, bent = {0};
    char *a = write_values("m_a.hdf5", make_values(0, 30)), *b = write_values("m_b.hdf5", make_values(1, 40));
    char *list = xasprintf("%s,%s", a, b);
    assert_int_equal(dataset_open("data.train", list, false, &two), OK);
    assert_int_equal(dataset_open("data.train", b, false, &one), OK);
    assert_int_equal(dataset_rows(two), 70);
    dataset_manifest(two, &manifest);
    assert_non_null(strstr(manifest.data, "{\"name\": \"m_a.hdf5\", \"bytes\": "));
    assert_int_equal(dataset_compare(two, manifest.data), OK);
    EXPECT(dataset_compare(one, manifest.data), "2 shards", "now 1");
    dataset_manifest(one, &bent);
    bent.data[strlen(bent.data) - 3]++; /* another number of rows */
    EXPECT(dataset_compare(one, bent.data), "m_b.hdf5", "41 rows", "now", "40 rows");
    text_free(&bent);
    text_free(&manifest);
    dataset_free(one);
    dataset_free(two);
    char *all[] = {a, b, list};
    for (int i = 0; i < 3; i++)
        free(all[i]);
}

static void test_weights(void **state) {
    (void)state;
    struct dataset *dataset, *other;
    struct text manifest = {0}, sources = {0};
    char *a = write_values("w_a.hdf5", make_values(0, 30)), *b = write_values("w_b:2.hdf5", make_values(1, 40));
    char *list = xasprintf("%s:3, %s:1", a, b), *changed = xasprintf("%s:3,%s:2", a, b),
         *none = xasprintf("%s,%s", a, b), *mixed = xasprintf("%s:3,%s", a, b), *zero = xasprintf("%s:0", a),
         *odd = xasprintf("%s:3x", a);
    assert_int_equal(dataset_open("data.train", list, false, &dataset), OK);
    assert_int_equal(dataset_rows(dataset), 70);
    dataset_describe_sources(dataset, &sources);
    assert_non_null(strstr(sources.data, "75 % "));
    assert_non_null(strstr(sources.data, "25 % "));
    dataset_manifest(dataset, &manifest);
    assert_int_equal(dataset_compare(dataset, manifest.data), OK);
    assert_int_equal(dataset_open("data.train", changed, false, &other), OK);
    EXPECT(dataset_compare(other, manifest.data), "shard 1, w_a.hdf5", "share of 0.75, now 0.6");
    dataset_free(other);
    assert_int_equal(dataset_open("data.train", none, false, &other), OK); /* a colon may be part of a name */
    EXPECT(dataset_compare(other, manifest.data), "share of 0.75, now 0 ");
    dataset_free(other);
    EXPECT(dataset_open("data.train", mixed, false, &other), "w_b:2.hdf5", "every item");
    EXPECT(dataset_open("data.train", zero, false, &other), "the weight is 0");
    EXPECT(dataset_open("data.train", odd, false, &other), "w_a.hdf5:3x", "no such file");
    EXPECT(dataset_open("data.eval", list, false, &other), "data.eval", "weights are for data.train");
    text_free(&sources);
    text_free(&manifest);
    dataset_free(dataset);
    char *all[] = {a, b, list, changed, none, mixed, zero, odd};
    for (int i = 0; i < 8; i++) {
        if (i < 2)
            unlink(all[i]);
        free(all[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_bad_values),
        cmocka_unit_test(test_an_error_comes_at_its_step),
        cmocka_unit_test(test_files_folders_patterns_and_lists),
        cmocka_unit_test(test_truncated_anywhere),
        cmocka_unit_test(test_broken_shards_left_out),
        cmocka_unit_test(test_copies_are_noticed),
        cmocka_unit_test(test_manifest),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
