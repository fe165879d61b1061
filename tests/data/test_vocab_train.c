#include "text_fixture.h"

#include <stdio.h>

#include "base/philox.h"
#include "data/vocab_train.h"

static char *train(const struct word_counts *counts, int64_t size, int64_t min_frequency, int64_t limit_alphabet) {
    struct vocab_train_options options = {size, min_frequency, limit_alphabet};
    struct text out = {0};
    int64_t entries;
    assert_int_equal(vocab_train(counts, &options, &out, &entries), OK);
    int64_t lines = 0;
    for (size_t i = 0; i < out.length; i++)
        lines += out.data[i] == '\n';
    assert_int_equal(lines, entries);
    return out.data;
}

static void add(struct word_counts *counts, const char *word, int64_t times) {
    word_counts_add(counts, word, strlen(word), times);
}

/* By hand: "hug" 10, "pug" 5, "pun" 12, "bun" 4, "hugs" 5. Pairs: u-g 20, u-n 16, h-u 15, p-u 17. u-g first; then
 * u-n and h-ug: 16 and 15; then p-un 12, ug-s 5 of which hug takes all (hug 15 before). */
static void test_by_hand(void **state) {
    (void)state;
    struct word_counts counts = {0};
    add(&counts, "hug", 10);
    add(&counts, "pug", 5);
    add(&counts, "pun", 12);
    add(&counts, "bun", 4);
    add(&counts, "hugs", 5);
    char *vocabulary = train(&counts, 22, 2, 1000);
    assert_string_equal(vocabulary,
                        "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nb\ng\nh\nn\np\ns\nu\n##g\n##n\n##s\n##u\n"
                        "##ug\n##un\nhug\npun\npug\nhugs\n");
    free(vocabulary);
    vocabulary = train(&counts, 100, 5, 1000); /* "bun" occurs 4 times, so it is never made */
    assert_null(strstr(vocabulary, "bun"));
    assert_non_null(strstr(vocabulary, "hugs\n"));
    free(vocabulary);
    vocabulary = train(&counts, 100, 2, 3); /* u 36, g 20, p 17 stay: h and n do not, nor what holds them */
    assert_null(strstr(vocabulary, "h"));
    assert_non_null(strstr(vocabulary, "pug\n"));
    free(vocabulary);
    word_counts_free(&counts);
}

static void test_errors(void **state) {
    (void)state;
    struct word_counts counts = {0};
    struct vocab_train_options options = {10, 2, 1000};
    struct text out = {0};
    int64_t entries;
    assert_int_equal(vocab_train(&counts, &options, &out, &entries), BAD_INPUT);
    add(&counts, "abcdef", 1);
    assert_int_equal(vocab_train(&counts, &options, &out, &entries), BAD_INPUT);
    assert_non_null(strstr(status_message(), "are 16"));
    word_counts_free(&counts);
    text_free(&out);
}

/* The same by brute force: every round counts every pair of every word anew. */
enum { WORDS = 60, LONGEST = 12, ENTRIES = 400, ENTRY_BYTES = 32 };
struct slow {
    char entries[ENTRIES][ENTRY_BYTES];
    int count, words[WORDS][LONGEST], lengths[WORDS], times[WORDS];
};

static int slow_id(struct slow *slow, const char *entry) {
    for (int i = 0; i < slow->count; i++)
        if (strcmp(slow->entries[i], entry) == 0)
            return i;
    strcpy(slow->entries[slow->count], entry);
    return slow->count++;
}

static int64_t slow_best(const struct slow *slow, int *left, int *right) {
    static int64_t pairs[ENTRIES][ENTRIES];
    memset(pairs, 0, sizeof pairs);
    for (int w = 0; w < WORDS; w++)
        for (int i = 0; i + 1 < slow->lengths[w]; i++)
            pairs[slow->words[w][i]][slow->words[w][i + 1]] += slow->times[w];
    int64_t best = 0;
    for (int a = 0; a < slow->count; a++)
        for (int b = 0; b < slow->count; b++)
            if (pairs[a][b] > best) {
                best = pairs[a][b];
                *left = a;
                *right = b;
            }
    return best;
}

static void slow_merge(struct slow *slow, int left, int right) {
    char merged[2 * ENTRY_BYTES];
    strcpy(merged, slow->entries[left]);
    strcat(merged, slow->entries[right] + 2);
    int id = slow_id(slow, merged);
    for (int w = 0; w < WORDS; w++) {
        int out = 0;
        for (int i = 0; i < slow->lengths[w]; i++) {
            bool pair = slow->words[w][i] == left && i + 1 < slow->lengths[w] && slow->words[w][i + 1] == right;
            slow->words[w][out++] = pair ? id : slow->words[w][i];
            i += pair;
        }
        slow->lengths[w] = out;
    }
}

/* Words of few letters, so that pairs overlap ("aaa") and pieces arise in several ways. Counts are powers of two apart
 * from one another, or all alike: ties must break the same way. */
static void test_against_brute_force(void **state) {
    (void)state;
    for (uint64_t round = 0; round < 20; round++) {
        struct random_stream random = random_open(round, RANDOM_TEST, 1);
        struct slow *slow = xcalloc(1, sizeof *slow);
        struct word_counts counts = {0}, reversed = {0};
        char words[WORDS][LONGEST + 1];
        for (int w = 0; w < WORDS; w++) {
            slow->lengths[w] = 1 + (int)random_below(&random, LONGEST);
            slow->times[w] = round % 2 ? 1 : 1 + (int)random_below(&random, 50);
            for (int i = 0; i < slow->lengths[w]; i++)
                words[w][i] = (char)('a' + random_below(&random, 2 + round % 3));
            words[w][slow->lengths[w]] = 0;
            add(&counts, words[w], slow->times[w]);
        }
        for (int w = WORDS - 1; w >= 0; w--)
            add(&reversed, words[w], slow->times[w]);
        static const char *const first[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
        for (int i = 0; i < 5; i++)
            slow_id(slow, first[i]);
        for (int inside = 0; inside < 2; inside++)
            for (char c = 'a'; c <= 'd'; c++)
                for (int w = 0; w < WORDS; w++)
                    if (strchr(words[w] + inside, c))
                        slow_id(slow, (char[]){inside ? '#' : c, inside ? '#' : 0, c, 0});
        for (int w = 0; w < WORDS; w++)
            for (int i = 0; i < slow->lengths[w]; i++)
                slow->words[w][i] = slow_id(slow, i ? (char[]){'#', '#', words[w][i], 0} : (char[]){words[w][i], 0});
        int left = 0, right = 0;
        while (slow->count < 150 && slow_best(slow, &left, &right) >= 2)
            slow_merge(slow, left, right);
        struct text expected = {0};
        for (int i = 0; i < slow->count; i++)
            text_printf(&expected, "%s\n", slow->entries[i]);
        char *got = train(&counts, 150, 2, 1000), *again = train(&reversed, 150, 2, 1000);
        assert_string_equal(got, expected.data);
        assert_string_equal(again, expected.data);
        free(got);
        free(again);
        free(slow);
        text_free(&expected);
        word_counts_free(&counts);
        word_counts_free(&reversed);
    }
}

static void test_word_counts(void **state) {
    (void)state;
    struct word_counts some = {0}, more = {0};
    char word[8];
    for (int i = 0; i < 5000; i++) {
        snprintf(word, sizeof word, "w%d", i % 3000);
        add(i % 2 ? &some : &more, word, 1);
    }
    word_counts_merge(&some, &more);
    assert_int_equal(some.count, 3000);
    int64_t all = 0;
    for (int64_t i = 0; i < some.count; i++)
        all += some.words[i].count;
    assert_int_equal(all, 5000);
    assert_int_equal(some.words[word_counts_add(&some, "w7", 2, 0)].count, 2);
    word_counts_free(&some);
    word_counts_free(&more);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_by_hand), cmocka_unit_test(test_errors),
                                       cmocka_unit_test(test_against_brute_force), cmocka_unit_test(test_word_counts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
