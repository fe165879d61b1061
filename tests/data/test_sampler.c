/* The order of samples against a slow and plain reading of its definition. No files: the shards are only numbers. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
/* after the headers above */
#include <cmocka.h>

#include "base/memory.h"
#include "base/philox.h"
#include "data/sampler.h"

enum { FILES = 4, LARGEST = 6000, MOST_BLOCKS = 1000 };

/* Blocks of 7 to 64 sequences: 134 in all, so that the window of 64 is refilled; a file of one block, and a packed one
 * whose 5 blocks hold 3 + 0 + 9 + 1 + 20 sequences (a block may hold none). */
static int32_t packed[5] = {3, 0, 9, 1, 20};
static struct shard shards[FILES] = {
    {.path = "x/a.hdf5", .rows = 700, .stored_rows = 700, .block_rows = 7},
    {.path = "x/b.hdf5", .rows = 5, .stored_rows = 5, .block_rows = 1000},
    {.path = "x/c.hdf5", .rows = 1790, .stored_rows = 1790, .block_rows = 64},
    {.path = "x/d", .rows = 33, .stored_rows = 49, .block_rows = 10, .block_sequences = packed},
};
static const struct dataset dataset = {.shards = shards, .count = FILES, .rows = 700 + 5 + 1790 + 33};

/* A sample as one number: file, and place in the file. */
static int64_t sample_number(int64_t file, int64_t block, int64_t row) {
    int64_t number = file * LARGEST + row;
    for (int64_t b = 0; b < block; b++)
        number += shard_block(&shards[file], b).sequences;
    return number;
}

/* An epoch by the definition: `order` receives dataset.rows sample numbers. */
static void plain_epoch(uint64_t seed, int64_t epoch, int64_t *order) {
    static int64_t rows[MOST_BLOCKS][2000];
    int64_t file[MOST_BLOCKS], block[MOST_BLOCKS], count[MOST_BLOCKS], place[MOST_BLOCKS], blocks = 0;
    for (int64_t f = 0; f < FILES; f++)
        for (int64_t b = 0; b < shard_blocks(&shards[f]); b++, blocks++) {
            file[blocks] = f;
            block[blocks] = b;
            count[blocks] = shard_block(&shards[f], b).sequences;
            struct random_stream random =
                random_open(seed, RANDOM_ORDER, ((uint64_t)epoch << 40) + 1 + (uint64_t)blocks);
            random_permutation(&random, count[blocks], rows[blocks]);
        }
    struct random_stream random = random_open(seed, RANDOM_ORDER, (uint64_t)epoch << 40);
    random_permutation(&random, blocks, place);
    int64_t kept = 0, next = 0, window[WINDOW], used[WINDOW] = {0}, made = 0;
    for (int64_t b = 0; b < blocks; b++) /* a block of nothing is as if it were not there */
        if (count[place[b]] > 0)
            place[kept++] = place[b];
    blocks = kept;
    for (int s = 0; s < WINDOW; s++)
        window[s] = next < blocks ? place[next++] : -1;
    for (int s = 0; made < dataset.rows; s = (s + 1) % WINDOW) {
        if (window[s] >= 0 && used[s] == count[window[s]]) {
            window[s] = next < blocks ? place[next++] : -1;
            used[s] = 0;
        }
        if (window[s] >= 0)
            order[made++] = sample_number(file[window[s]], block[window[s]], rows[window[s]][used[s]++]);
    }
}

static int64_t draw_number(struct sampler *sampler) {
    struct draw draw;
    assert_true(sampler_draw(sampler, &draw));
    const struct slot *slot = &sampler->slots[draw.slot];
    int64_t block = slot->extent.first / shards[slot->file].block_rows;
    assert_int_equal(draw.fresh, slot->used == 1);
    int64_t number = sample_number(slot->file, block, draw.row), in_files_before = 0;
    for (int64_t f = 0; f < slot->file; f++)
        in_files_before += shards[f].rows;
    assert_int_equal(draw.sample, in_files_before + number - slot->file * LARGEST);
    return number;
}

static void test_order_is_the_one_defined(void **state) {
    (void)state;
    struct sampler sampler;
    struct draw draw;
    int64_t *expected = xmalloc((size_t)dataset.rows * sizeof *expected);
    sampler_open(&sampler, &dataset, 17, true);
    for (int64_t epoch = 0; epoch < 3; epoch++) {
        plain_epoch(sampler.seed, epoch, expected);
        sampler_seek(&sampler, epoch, 0);
        for (int64_t i = 0; i < dataset.rows; i++)
            assert_int_equal(draw_number(&sampler), expected[i]);
        assert_false(sampler_draw(&sampler, &draw));
    }
    free(expected);
    sampler_close(&sampler);
}

static void test_each_sample_once(void **state) {
    (void)state;
    static int seen[FILES * LARGEST];
    struct sampler sampler;
    sampler_open(&sampler, &dataset, 1, true);
    for (int64_t i = 0; i < dataset.rows; i++)
        seen[draw_number(&sampler)]++;
    for (int64_t f = 0; f < FILES; f++)
        for (int64_t r = 0; r < shards[f].rows; r++)
            assert_int_equal(seen[f * LARGEST + r], 1);
    sampler_close(&sampler);
}

static void check_seek(bool shuffle) {
    struct sampler sampler, other;
    int64_t *order = xmalloc((size_t)dataset.rows * sizeof *order);
    sampler_open(&sampler, &dataset, 5, shuffle);
    sampler_open(&other, &dataset, 5, shuffle);
    sampler_seek(&sampler, 2, 0);
    for (int64_t i = 0; i < dataset.rows; i++)
        order[i] = draw_number(&sampler);
    for (int64_t start = 0; start <= dataset.rows; start++) {
        sampler_seek(&other, 2, start);
        assert_int_equal(other.consumed, start);
        for (int64_t i = start; i < dataset.rows && i < start + 150; i++)
            assert_int_equal(draw_number(&other), order[i]);
    }
    free(order);
    sampler_close(&sampler);
    sampler_close(&other);
}

static void test_seek_to_every_place(void **state) {
    (void)state;
    check_seek(true);
    check_seek(false);
}

static void test_file_order(void **state) {
    (void)state;
    struct sampler sampler;
    sampler_open(&sampler, &dataset, 1, false);
    for (int64_t f = 0; f < FILES; f++)
        for (int64_t r = 0; r < shards[f].rows; r++)
            assert_int_equal(draw_number(&sampler), f * LARGEST + r);
    sampler_close(&sampler);
}

/* The share of places at which two orders have the same sample. */
static double agreement(uint64_t seed, int64_t epoch, const struct dataset *other, uint64_t other_seed,
                        int64_t other_epoch) {
    struct sampler a, b;
    int64_t same = 0;
    sampler_open(&a, &dataset, seed, true);
    sampler_open(&b, other, other_seed, true);
    sampler_seek(&a, epoch, 0);
    sampler_seek(&b, other_epoch, 0);
    for (int64_t i = 0; i < dataset.rows; i++)
        same += draw_number(&a) == draw_number(&b);
    sampler_close(&a);
    sampler_close(&b);
    return (double)same / (double)dataset.rows;
}

static void test_what_the_order_depends_on(void **state) {
    (void)state;
    struct shard moved[FILES], renamed[FILES];
    memcpy(moved, shards, sizeof shards);
    memcpy(renamed, shards, sizeof shards);
    moved[0].path = "elsewhere/deep/a.hdf5";
    renamed[0].path = "x/a2.hdf5";
    struct dataset same = dataset, other = dataset;
    same.shards = moved;
    other.shards = renamed;
    assert_true(agreement(3, 1, &same, 3, 1) == 1);
    assert_true(agreement(3, 1, &dataset, 4, 1) < 0.02);
    assert_true(agreement(3, 1, &dataset, 3, 2) < 0.02);
    assert_true(agreement(3, 1, &other, 3, 1) < 0.02);
}

/* Sources of one shard each, b of 5 rows gone through many times: exact shares at every place, each source in the order
 * it has alone, and any place found again. */
static void test_mixture(void **state) {
    (void)state;
    enum { DRAWS = 6000 };
    static struct source sources[] = {{"a", 0.55, 0, 1}, {"b", 0.01, 1, 1}, {"c", 0.3, 2, 1}, {"d", 0.14, 3, 1}};
    struct dataset mixed = dataset;
    mixed.sources = sources;
    mixed.source_count = FILES;
    static int64_t sample[DRAWS], drawn[FILES];
    static int source[DRAWS];
    struct sampler alone[FILES];
    struct dataset views[FILES];
    struct mixture mixture, other;
    struct draw draw;
    mixture_open(&mixture, &mixed, 21, true, true);
    for (int s = 0; s < FILES; s++) {
        views[s] = (struct dataset){.shards = &shards[s], .count = 1, .rows = shards[s].rows};
        sampler_open(&alone[s], &views[s], 21, true);
    }
    for (int64_t n = 0; n < DRAWS; n++) {
        struct draw expected;
        assert_true(mixture_draw(&mixture, &draw));
        sample[n] = draw.sample;
        source[n] = draw.source;
        drawn[draw.source]++;
        for (int s = 0; s < FILES; s++)
            assert_true(llabs(llrint(100 * ((double)drawn[s] - (double)(n + 1) * sources[s].share))) <= 100);
        if (!sampler_draw(&alone[draw.source], &expected)) {
            sampler_seek(&alone[draw.source], alone[draw.source].epoch + 1, 0);
            assert_true(sampler_draw(&alone[draw.source], &expected));
        }
        assert_int_equal(draw.sample, expected.sample);
    }
    assert_true(alone[1].epoch > 10 && alone[0].epoch > 3);
    mixture_open(&other, &mixed, 21, true, true);
    for (int64_t start = 0; start < DRAWS - 100; start += 37) {
        int64_t epoch, consumed;
        mixture_seek(&other, start / mixed.rows, start % mixed.rows);
        mixture_place(&other, &epoch, &consumed);
        assert_int_equal(epoch * mixed.rows + consumed, start);
        for (int64_t n = start; n < start + 100; n++) {
            assert_true(mixture_draw(&other, &draw));
            assert_int_equal(draw.sample, sample[n]);
            assert_int_equal(draw.source, source[n]);
        }
    }
    for (int s = 0; s < FILES; s++)
        sampler_close(&alone[s]);
    mixture_close(&mixture);
    mixture_close(&other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_is_the_one_defined),  cmocka_unit_test(test_each_sample_once),
        cmocka_unit_test(test_seek_to_every_place),       cmocka_unit_test(test_file_order),
        cmocka_unit_test(test_what_the_order_depends_on), cmocka_unit_test(test_mixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
