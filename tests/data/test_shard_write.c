/* Shards as HDF5's own calls read them: names, types, shapes, values. */
#include "text_fixture.h"

#include <hdf5.h>

#include <unistd.h>

#include "data/shard_read.h"
#include "data/shard_write.h"

enum { ROWS = 700, S = 16, P = 4 };

static int32_t ids[ROWS][S], positions[ROWS][P], labels[ROWS][P];

static void make_rows(struct instance_list *list) {
    for (int n = 0; n < ROWS; n++) {
        struct instance row = {.length = 5 + n % (S - 4), .label = n % 2, .masked = 1 + n % P};
        row.b_begin = n % 3 ? 3 : row.length;
        for (int i = 0; i < row.length; i++)
            ids[n][i] = 100000 * (i == 1) + n + i + 1;
        for (int i = 0; i < row.masked; i++) {
            positions[n][i] = i + 1;
            labels[n][i] = 7 * n + i + 1;
        }
        row.ids = ids[n];
        row.positions = positions[n];
        row.labels = labels[n];
        GROW(list->items, list->count, list->capacity);
        list->items[list->count++] = row;
    }
}

/* Reads a dataset as int64, after a look at its type and shape. */
static void read_dataset(hid_t file, const char *name, size_t bytes, int64_t width, int64_t *values) {
    hid_t dataset = H5Dopen2(file, name, H5P_DEFAULT), type = H5Dget_type(dataset), space = H5Dget_space(dataset);
    assert_true(dataset >= 0);
    assert_true(H5Tget_class(type) == H5T_INTEGER && H5Tget_sign(type) == H5T_SGN_2);
    assert_int_equal(H5Tget_size(type), bytes);
    hsize_t size[2] = {0, 1}, chunk[2] = {0, 1};
    assert_int_equal(H5Sget_simple_extent_ndims(space), width ? 2 : 1);
    H5Sget_simple_extent_dims(space, size, NULL);
    assert_int_equal(size[0], ROWS);
    assert_int_equal(size[1], width ? width : 1);
    hid_t creation = H5Dget_create_plist(dataset);
    assert_int_equal(H5Pget_layout(creation), H5D_CHUNKED);
    H5Pget_chunk(creation, 2, chunk);
    assert_int_equal(chunk[1], width ? width : 1);
    unsigned flags;
    size_t parameters = 0;
    assert_int_equal(H5Pget_nfilters(creation), 1);
    assert_int_equal(H5Pget_filter2(creation, 0, &flags, &parameters, NULL, 0, NULL, NULL), H5Z_FILTER_DEFLATE);
    assert_true(H5Dread(dataset, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
    H5Pclose(creation);
    H5Sclose(space);
    H5Tclose(type);
    H5Dclose(dataset);
}

static void test_values(void **state) {
    (void)state;
    char *folder = fixture_folder(), *path = path_join(folder, "x_training_0.hdf5");
    struct instance_list list = {0};
    make_rows(&list);
    struct shard_shape shape = {S, P, .compression = 4, .vocab_size = 200000};
    assert_int_equal(shard_write(path, &shape, list.items, ROWS), OK);
    hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    assert_true(file >= 0);
    static int64_t input_ids[ROWS][S], mask[ROWS][S], segments[ROWS][S], at[ROWS][P], label[ROWS][P], next[ROWS];
    read_dataset(file, "input_ids", 4, S, input_ids[0]);
    read_dataset(file, "input_mask", 1, S, mask[0]);
    read_dataset(file, "segment_ids", 1, S, segments[0]);
    read_dataset(file, "masked_lm_positions", 4, P, at[0]);
    read_dataset(file, "masked_lm_ids", 4, P, label[0]);
    read_dataset(file, "next_sentence_labels", 1, 0, next);
    H5Fclose(file);
    for (int n = 0; n < ROWS; n++) {
        const struct instance *row = &list.items[n];
        for (int i = 0; i < S; i++) {
            bool real = i < row->length;
            assert_int_equal(input_ids[n][i], real ? row->ids[i] : 0);
            assert_int_equal(mask[n][i], real);
            assert_int_equal(segments[n][i], real && i >= row->b_begin);
        }
        for (int i = 0; i < P; i++) {
            assert_int_equal(at[n][i], i < row->masked ? row->positions[i] : 0);
            assert_int_equal(label[n][i], i < row->masked ? row->labels[i] : 0);
        }
        assert_int_equal(next[n], row->label);
    }
    free(list.items);
    assert_int_equal(folder_remove(folder), OK);
    free(path);
    free(folder);
}

/* The same rows give the same bytes, also a second later: no time of day is stored. */
static void test_same_bytes(void **state) {
    (void)state;
    char *folder = fixture_folder(), *path = path_join(folder, "shard.hdf5");
    struct instance_list list = {0};
    struct shard_shape shape = {S, P, .compression = 4, .vocab_size = 200000};
    struct text first = {0}, second = {0};
    make_rows(&list);
    assert_int_equal(shard_write(path, &shape, list.items, ROWS), OK);
    assert_int_equal(file_read(path, &first), OK);
    sleep(1);
    assert_int_equal(shard_write(path, &shape, list.items, ROWS), OK);
    assert_int_equal(file_read(path, &second), OK);
    assert_int_equal(first.length, second.length);
    assert_memory_equal(first.data, second.data, first.length);
    text_free(&first);
    text_free(&second);
    free(list.items);
    assert_int_equal(folder_remove(folder), OK);
    free(path);
    free(folder);
}

/* A disk that fills up at any moment leaves no file. */
static void test_disk_full(void **state) {
    (void)state;
    char *folder = fixture_folder(), *path = path_join(folder, "shard.hdf5");
    struct instance_list list = {0};
    make_rows(&list);
    struct shard_shape shape = {S, P, .vocab_size = 200000};
    int failures = 0;
    for (status code = FAILED; code != OK; failures++) {
        file_fault(failures + 1, false);
        code = shard_write(path, &shape, list.items, ROWS);
        file_fault(0, false);
        assert_int_equal(file_exists(path), code == OK);
        assert_true(code == OK || strstr(status_message(), path));
        assert_true(failures < 20);
    }
    assert_true(failures > 3); /* create, write, flush, rename */
    char **names;
    int64_t count;
    assert_int_equal(folder_list(folder, &names, &count), OK);
    assert_int_equal(count, 1);
    names_free(names, count);
    free(list.items);
    assert_int_equal(folder_remove(folder), OK);
    free(path);
    free(folder);
}

static void assert_numbers_equal(const struct numbers *a, const struct numbers *b, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        assert_int_equal(number_at(a, i), number_at(b, i));
}

/* Both forms hold the same sequences, in integers that hold every id. */
static void test_variable(void **state) {
    (void)state;
    char *folder = fixture_folder(), *padded = path_join(folder, "padded.hdf5"),
         *variable = path_join(folder, "v.hdf5");
    struct instance_list list = {0};
    make_rows(&list);
    for (int wide = 0; wide < 2; wide++) {
        for (int n = 0; n < ROWS; n++)
            ids[n][1] = wide ? 100000 : 32767;
        struct shard_shape shape = {S, P, .compression = 4, .vocab_size = wide ? 100001 : 32768};
        assert_int_equal(shard_write(padded, &shape, list.items, ROWS), OK);
        shape.variable = true;
        assert_int_equal(shard_write(variable, &shape, list.items, ROWS), OK);
        hid_t file = H5Fopen(variable, H5F_ACC_RDONLY, H5P_DEFAULT), dataset = H5Dopen2(file, "input_ids", H5P_DEFAULT);
        hid_t type = H5Dget_type(dataset), number = H5Tget_super(type);
        assert_int_equal(H5Tget_size(number), wide ? 4 : 2);
        assert_int_equal(H5Lexists(file, "input_mask", H5P_DEFAULT), 0);
        H5Tclose(number);
        H5Tclose(type);
        H5Dclose(dataset);
        H5Fclose(file);
        struct shard shards[2];
        struct block blocks[2];
        struct shard_limits limits = {shape.vocab_size, S, P};
        for (int i = 0; i < 2; i++) {
            assert_int_equal(shard_check(i ? variable : padded, &shards[i]), OK);
            struct extent extent = shard_block(&shards[i], 0);
            assert_int_equal(extent.sequences, ROWS);
            assert_int_equal(shards[i].seq_len, S);
            assert_int_equal(shards[i].max_predictions, P);
            assert_int_equal(shards[i].vocab_size, shape.vocab_size);
            assert_int_equal(shard_read(&shards[i], &extent, &limits, &blocks[i]), OK);
        }
        assert_memory_equal(blocks[0].token_starts, blocks[1].token_starts, (ROWS + 1) * sizeof(int64_t));
        assert_memory_equal(blocks[0].mask_starts, blocks[1].mask_starts, (ROWS + 1) * sizeof(int64_t));
        assert_memory_equal(blocks[0].nsp, blocks[1].nsp, ROWS);
        assert_numbers_equal(&blocks[0].tokens, &blocks[1].tokens, blocks[0].token_starts[ROWS]);
        assert_numbers_equal(&blocks[0].positions, &blocks[1].positions, blocks[0].mask_starts[ROWS]);
        assert_numbers_equal(&blocks[0].labels, &blocks[1].labels, blocks[0].mask_starts[ROWS]);
        for (int i = 0; i < 2; i++) {
            block_free(&blocks[i]);
            shard_free(&shards[i]);
        }
        assert_int_equal(unlink(padded), 0); /* a shard is not written over */
        assert_int_equal(unlink(variable), 0);
    }
    free(list.items);
    assert_int_equal(folder_remove(folder), OK);
    free(padded);
    free(variable);
    free(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values), cmocka_unit_test(test_same_bytes),
                                       cmocka_unit_test(test_disk_full), cmocka_unit_test(test_variable)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
