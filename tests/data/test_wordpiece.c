/* Normalization and the split into pieces. What is expected follows from BERT's rules;
 * tests/reference/tokenizer_parity.py compares with another implementation on much more text. */
#include "text_fixture.h"

#include <stdio.h>

#include "base/philox.h"
#include "base/status.h"
#include "base/text.h"

/* The normalized words of a text, separated by '|'. */
static char *words_of(const struct normalize_options *options, const char *text, size_t length) {
    struct normalizer *normalizer = normalizer_new(options);
    struct word_scan scan = {0};
    struct text words = {0};
    text_append(&words, "", 0);
    word_scan_start(&scan, text, length);
    while (word_next(normalizer, &scan)) {
        if (words.length)
            text_add(&words, "|");
        text_append(&words, (char *)scan.word, scan.length);
    }
    word_scan_free(&scan);
    normalizer_free(normalizer);
    return words.data;
}

static void check_words(bool lower, bool strip, bool cjk, const char *text, const char *expected) {
    struct normalize_options options = {lower, strip, cjk};
    char *words = words_of(&options, text, strlen(text));
    assert_string_equal(words, expected);
    free(words);
}

static void test_normalization(void **state) {
    (void)state;
    check_words(true, true, true, "  Hello,  WORLD!\r\n", "hello|,|world|!");
    check_words(false, false, true, "Hello, WORLD\t42", "Hello|,|WORLD|42");
    check_words(true, true, true, "H\xC3\xA9llo Z\xC3\xBCrich e\xCC\x81", "hello|zurich|e");
    check_words(true, false, true, "H\xC3\x89llo", "h\xC3\xA9llo");
    check_words(false, true, true, "H\xC3\x89llo", "HEllo");
    check_words(true, true, true, "\xC4\xB0stanbul", "istanbul");          /* İ: i and a dot, which goes */
    check_words(true, false, true, "\xC4\xB0", "i\xCC\x87");               /* and stays */
    check_words(true, true, true, "\xE2\x89\xA0", "=");                    /* ≠ is = and a stroke */
    check_words(true, true, true, "ab\xE4\xB8\xADz", "ab|\xE4\xB8\xAD|z"); /* an ideograph */
    check_words(true, true, false, "ab\xE4\xB8\xADz", "ab\xE4\xB8\xADz");
    check_words(true, true, true, "\xED\x95\x9C", "\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB"); /* 한 in three letters */
    check_words(true, true, true,
                "a\xE2\x80\x8B\x01\xEF\xBF\xBD"
                "b",
                "ab"); /* format, control, U+FFFD vanish */
    check_words(true, true, true,
                "a\xC2\xA0"
                "b\xE3\x80\x80"
                "c",
                "a|b|c"); /* no-break and wide space */
    check_words(true, true, true,
                "don't $5 a_b\xE2\x80\x94"
                "c",
                "don|'|t|$|5|a|_|b|\xE2\x80\x94|c");
    check_words(true, true, true, "", "");
    /* U+1D165 (class 216) before U+302E (class 224) after canonical ordering; neither is a nonspacing mark */
    check_words(true, true, true, "a\xE3\x80\xAE\xF0\x9D\x85\xA5", "a\xF0\x9D\x85\xA5\xE3\x80\xAE");
    check_words(true, false, true, "a\xE3\x80\xAE\xF0\x9D\x85\xA5", "a\xE3\x80\xAE\xF0\x9D\x85\xA5");
}

static void test_broken_utf8(void **state) {
    (void)state;
    struct normalize_options options = {true, true, true};
    struct normalizer *normalizer = normalizer_new(&options);
    struct word_scan scan = {0};
    /* cut short; overlong, 2; surrogate, 3; stray; too large, 4; then a U+FFFD that is meant */
    const char text[] = "a\xE4\xB8 \xC0\xAF \xED\xA0\x80 \xFF \xF4\x90\x80\x80 \xEF\xBF\xBD";
    word_scan_start(&scan, text, sizeof text - 1);
    int words = 0;
    while (word_next(normalizer, &scan))
        words++;
    assert_int_equal(words, 1);
    assert_int_equal(scan.broken, 1 + 2 + 3 + 1 + 4);
    word_scan_free(&scan);
    normalizer_free(normalizer);
}

static void check_ids(const struct vocab *vocab, const struct wordpiece_options *options, const char *text,
                      const char *expected) {
    struct wordpiece *wordpiece = wordpiece_new(vocab, options);
    struct wordpiece_scratch *scratch = wordpiece_scratch_new();
    struct token_list tokens = {0};
    for (int round = 0; round < 2; round++) { /* the second from the cache */
        tokens.count = 0;
        wordpiece_encode(wordpiece, scratch, text, strlen(text), &tokens);
        struct text ids = {0};
        text_append(&ids, "", 0);
        for (int64_t i = 0; i < tokens.count; i++)
            text_printf(&ids, "%s%d", i ? " " : "", tokens.ids[i]);
        assert_string_equal(ids.data, expected);
        text_free(&ids);
    }
    free(tokens.ids);
    wordpiece_scratch_free(scratch);
    wordpiece_free(wordpiece);
}

static void test_pieces(void **state) {
    (void)state;
    /*                                   5   6     7       8       9    10   11   12 13      14 */
    struct vocab *vocab = fixture_vocab("un\n##aff\n##able\n##affa\nrun\n##a\n##b\n[\n]\nmask\n");
    struct wordpiece_options options = wordpiece_defaults(true);
    check_ids(vocab, &options, "unaffable", "1"); /* greedy takes ##affa, and ##ble is not there: no way back */
    check_ids(vocab, &options, "un unaff unab", "5 5 6 5 10 11");
    check_ids(vocab, &options, "RUN runs", "9 1");
    check_ids(vocab, &options, "[MASK]", "12 14 13");
    options.specials = true;
    check_ids(vocab, &options, "un[MASK]run [mask] [MASK", "5 4 9 12 14 13 12 14");
    check_ids(vocab, &options, "[[CLS][SEP][PAD][UNK]", "12 2 3 0 1");
    options.longest_word = 3;
    check_ids(vocab, &options, "un una unab", "5 5 10 1");
    vocab_free(vocab);
}

static void test_longest_word(void **state) {
    (void)state;
    struct vocab *vocab = fixture_vocab("\xC3\xA9\n##\xC3\xA9\n");
    struct wordpiece_options options = wordpiece_defaults(false);
    struct wordpiece *wordpiece = wordpiece_new(vocab, &options);
    struct wordpiece_scratch *scratch = wordpiece_scratch_new();
    struct token_list tokens = {0};
    struct text word = {0};
    for (int i = 0; i < 100; i++)
        text_add(&word, "\xC3\xA9");
    wordpiece_encode(wordpiece, scratch, word.data, word.length, &tokens);
    assert_int_equal(tokens.count, 100); /* characters, not bytes */
    text_add(&word, "\xC3\xA9");
    wordpiece_encode(wordpiece, scratch, word.data, word.length, &tokens);
    assert_int_equal(tokens.count, 101);
    assert_int_equal(tokens.ids[100], 1);
    text_free(&word);
    free(tokens.ids);
    wordpiece_scratch_free(scratch);
    wordpiece_free(wordpiece);
    vocab_free(vocab);
}

static void test_vocabulary_file(void **state) {
    (void)state;
    struct vocab *vocab;
    assert_int_equal(fixture_vocab_status("a\r\n[MASK]\r\n[SEP]\n[CLS]\n[UNK]\n[PAD]\n[unused1]\nb", &vocab), OK);
    assert_int_equal(vocab_size(vocab), 8);
    struct special_ids ids = vocab_special(vocab);
    assert_int_equal(ids.mask, 1);
    assert_int_equal(ids.pad, 5);
    assert_int_equal(vocab_id(vocab, "b"), 7);
    assert_int_equal(vocab_id(vocab, "c"), -1);
    assert_string_equal(vocab_token(vocab, 0), "a");
    assert_true(vocab_ordinary(vocab, 0));
    assert_false(vocab_ordinary(vocab, 1));
    assert_false(vocab_ordinary(vocab, 6));
    assert_false(vocab_cased(vocab));
    vocab_free(vocab);
    vocab = fixture_vocab("a\n##\xC3\x89\n");
    assert_true(vocab_cased(vocab));
    vocab_free(vocab);
    static const struct {
        const char *lines, *says;
    } wrong[] = {{"[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n", "[MASK]"},
                 {"[PAD]\n[UNK]\n\n[CLS]\n", ":3: empty line"},
                 {"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\na\n", ":8: \"a\" stands already in line 6"},
                 {"[PAD]\n\xFF\n", ":2: not UTF-8"},
                 {"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n", "special tokens only"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(fixture_vocab_status(wrong[i].lines, &vocab), BAD_INPUT);
        assert_null(vocab);
        assert_non_null(strstr(status_message(), wrong[i].says));
    }
}

/* Random bytes and random pieces of characters: nothing breaks, every id is an id, and a warm cache gives what a cold
 * one gives. */
static void test_random_bytes(void **state) {
    (void)state;
    struct vocab *vocab = fixture_vocab("a\nb\n##a\n##b\nab\n##ab\n.\n\xE4\xB8\xAD\n##\xCC\xA7\n");
    struct wordpiece_options options = wordpiece_defaults(true);
    options.specials = true;
    struct wordpiece *wordpiece = wordpiece_new(vocab, &options);
    struct wordpiece_scratch *warm = wordpiece_scratch_new();
    struct random_stream random = random_open(1, RANDOM_TEST, 0);
    static const char *const pools[] = {NULL, "ab .[MASK]", "a\xCC\x81\xF0\x9D\x85\xA5\xE3\x80\xAE\xE1\xBB"};
    for (int round = 0; round < 400; round++) {
        size_t length = random_below(&random, 300);
        uint8_t *bytes = xmalloc(length);
        for (size_t i = 0; i < length; i++) {
            const char *pool = pools[round % 3];
            bytes[i] = (uint8_t)(pool ? (uint32_t)pool[random_below(&random, strlen(pool))] : random_u32(&random));
        }
        struct token_list once = {0}, again = {0};
        struct wordpiece_scratch *cold = wordpiece_scratch_new();
        wordpiece_encode(wordpiece, warm, (char *)bytes, length, &once);
        wordpiece_encode(wordpiece, cold, (char *)bytes, length, &again);
        assert_int_equal(once.count, again.count);
        for (int64_t i = 0; i < once.count; i++) {
            assert_int_equal(once.ids[i], again.ids[i]);
            assert_in_range(once.ids[i], 0, vocab_size(vocab) - 1);
        }
        wordpiece_scratch_free(cold);
        free(once.ids);
        free(again.ids);
        free(bytes);
    }
    wordpiece_scratch_free(warm);
    wordpiece_free(wordpiece);
    vocab_free(vocab);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_normalization),   cmocka_unit_test(test_broken_utf8),
                                       cmocka_unit_test(test_pieces),          cmocka_unit_test(test_longest_word),
                                       cmocka_unit_test(test_vocabulary_file), cmocka_unit_test(test_random_bytes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
