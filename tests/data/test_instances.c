/* Instances from a corpus in which every token of the text occurs once, so that each one can be traced to its place. */
#include "text_fixture.h"

#include "base/parallel.h"
#include "data/instances.h"

enum { DOCUMENTS = 40, FIRST_WORD = 5 };

struct traced {
    struct vocab *vocab;
    struct corpus corpus;
    int64_t all[DOCUMENTS];
    int32_t document_of[100000]; /* by token */
};

/* Document d has 1 + d % 9 sentences of 1 to 30 tokens; token ids count up. Every third entry is a "##" piece. */
static void setup(struct traced *traced) {
    memset(traced, 0, sizeof *traced);
    struct corpus *corpus = &traced->corpus;
    struct text entries = {0};
    int32_t id = FIRST_WORD;
    for (int d = 0; d < DOCUMENTS; d++) {
        traced->all[d] = d;
        for (int s = 0; s < 1 + d % 9; s++) {
            for (int t = 0; t < 1 + (7 * d + 11 * s) % 30; t++, id++) {
                text_printf(&entries, "%sw%d\n", id % 3 == 2 && t ? "##" : "", id);
                traced->document_of[id] = d;
                GROW(corpus->tokens.ids, corpus->tokens.count, corpus->tokens.capacity);
                corpus->tokens.ids[corpus->tokens.count++] = id;
            }
            GROW(corpus->sentence_ends, corpus->sentences, corpus->sentence_capacity);
            corpus->sentence_ends[corpus->sentences++] = corpus->tokens.count;
        }
        GROW(corpus->document_ends, corpus->documents, corpus->document_capacity);
        corpus->document_ends[corpus->documents++] = corpus->sentences;
    }
    text_add(&entries, "[unused1]\n");
    traced->vocab = fixture_vocab(entries.data);
    text_free(&entries);
}

static void teardown(struct traced *traced) {
    vocab_free(traced->vocab);
    corpus_free(&traced->corpus);
}

static const struct instance_options usual = {
    .seq_len = 64, .max_predictions = 6, .masked_lm_prob = 0.15, .short_seq_prob = 0.1, .nsp = true, .seed = 5};

/* The instance with its masks undone. */
static void unmask(const struct instance *instance, int32_t *ids) {
    memcpy(ids, instance->ids, (size_t)instance->length * sizeof *ids);
    for (int i = 0; i < instance->masked; i++)
        ids[instance->positions[i]] = instance->labels[i];
}

/* A run of text without a gap, from one document. */
static void check_run(const struct traced *traced, const int32_t *ids, int length) {
    assert_true(length > 0);
    for (int i = 0; i < length; i++) {
        assert_int_equal(ids[i], ids[0] + i);
        assert_int_equal(traced->document_of[ids[i]], traced->document_of[ids[0]]);
    }
}

static void test_pairs(void **state) {
    (void)state;
    struct traced *traced = xcalloc(1, sizeof *traced);
    setup(traced);
    struct instance_options options = usual;
    struct instance_list list = {0};
    for (uint64_t pass = 0; pass < 20; pass++)
        instances_make(&traced->corpus, traced->vocab, traced->all, DOCUMENTS, &options, pass << 40, &list);
    int64_t random = 0, longest = 0, masked = 0, tokens = 0, kinds[3] = {0};
    assert_true(list.count > 20 * DOCUMENTS);
    for (int64_t n = 0; n < list.count; n++) {
        const struct instance *instance = &list.items[n];
        int32_t ids[64];
        assert_in_range(instance->length, 5, 64);
        unmask(instance, ids);
        int a_length = instance->b_begin - 2, b_length = instance->length - instance->b_begin - 1;
        assert_int_equal(ids[0], 2);
        assert_int_equal(ids[instance->b_begin - 1], 3);
        assert_int_equal(ids[instance->length - 1], 3);
        check_run(traced, ids + 1, a_length);
        check_run(traced, ids + instance->b_begin, b_length);
        int32_t a = traced->document_of[ids[1]], b = traced->document_of[ids[instance->b_begin]];
        assert_int_equal(instance->label, a != b);
        if (!instance->label) /* B comes after A; truncation may leave a gap between */
            assert_true(ids[instance->b_begin] > ids[a_length]);
        int percents = 15 * instance->length, expected = percents / 100, rest = percents % 100;
        expected += rest > 50 || (rest == 50 && expected % 2); /* half to even */
        assert_int_equal(instance->masked, expected < 1 ? 1 : expected > 6 ? 6 : expected);
        for (int i = 0; i < instance->masked; i++) {
            assert_true(i == 0 || instance->positions[i] > instance->positions[i - 1]);
            int32_t now = instance->ids[instance->positions[i]];
            assert_true(instance->labels[i] >= FIRST_WORD);
            assert_true(now == 4 || vocab_ordinary(traced->vocab, now));
            kinds[now == 4 ? 0 : now == instance->labels[i] ? 1 : 2]++;
        }
        random += instance->label;
        longest += instance->length > 55;
        masked += instance->masked;
        tokens += instance->length;
    }
    assert_int_equal(list.masked, masked);
    assert_int_equal(list.tokens, tokens);
    /* 80, 10, 10 %, half of the pairs random or more: single sentences always are */
    assert_in_range(1000 * kinds[0] / masked, 770, 830);
    assert_in_range(1000 * kinds[1] / masked, 80, 120);
    assert_in_range(1000 * kinds[2] / masked, 80, 120);
    assert_in_range(1000 * random / list.count, 500, 800);
    assert_true(longest > list.count / 5);
    instances_free(&list);
    teardown(traced);
    free(traced);
}

static void test_whole_words(void **state) {
    (void)state;
    struct traced *traced = xcalloc(1, sizeof *traced);
    setup(traced);
    struct instance_options options = usual;
    options.whole_word = true;
    struct instance_list list = {0};
    instances_make(&traced->corpus, traced->vocab, traced->all, DOCUMENTS, &options, 0, &list);
    int64_t longer = 0;
    for (int64_t n = 0; n < list.count; n++) {
        const struct instance *instance = &list.items[n];
        bool chosen[65] = {false};
        int32_t ids[64];
        unmask(instance, ids);
        for (int i = 0; i < instance->masked; i++)
            chosen[instance->positions[i]] = true;
        for (int i = 2; i < instance->length; i++)
            if (ids[i] >= FIRST_WORD && ids[i - 1] >= FIRST_WORD && vocab_token(traced->vocab, ids[i])[0] == '#') {
                assert_int_equal(chosen[i], chosen[i - 1]);
                longer += chosen[i];
            }
        assert_true(instance->masked <= 6);
    }
    assert_true(longer > list.count);
    instances_free(&list);
    teardown(traced);
    free(traced);
}

/* Without pairs, every token of the text comes exactly once, in order. */
static void test_no_pairs(void **state) {
    (void)state;
    struct traced *traced = xcalloc(1, sizeof *traced);
    setup(traced);
    struct instance_options options = usual;
    options.nsp = false;
    options.seq_len = 24; /* shorter than the longest sentences */
    struct instance_list list = {0};
    instances_make(&traced->corpus, traced->vocab, traced->all, DOCUMENTS, &options, 0, &list);
    int32_t next = FIRST_WORD;
    for (int64_t n = 0; n < list.count; n++) {
        const struct instance *instance = &list.items[n];
        int32_t ids[24];
        assert_in_range(instance->length, 3, 24);
        assert_int_equal(instance->b_begin, instance->length);
        assert_int_equal(instance->label, 0);
        unmask(instance, ids);
        check_run(traced, ids + 1, instance->length - 2);
        assert_int_equal(ids[1], next);
        next += instance->length - 2;
    }
    assert_int_equal(next, FIRST_WORD + traced->corpus.tokens.count);
    instances_free(&list);
    teardown(traced);
    free(traced);
}

static bool same(const struct instance_list *a, const struct instance_list *b) {
    if (a->count != b->count || a->tokens != b->tokens)
        return false;
    for (int64_t i = 0; i < a->count; i++)
        if (a->items[i].length != b->items[i].length ||
            memcmp(a->items[i].ids, b->items[i].ids, (size_t)a->items[i].length * sizeof(int32_t)) != 0)
            return false;
    return true;
}

static void test_deterministic(void **state) {
    (void)state;
    struct traced *traced = xcalloc(1, sizeof *traced);
    setup(traced);
    struct instance_options options = usual;
    struct instance_list one = {0}, four = {0}, other = {0};
    parallel_set_threads(1);
    instances_make(&traced->corpus, traced->vocab, traced->all, DOCUMENTS, &options, 0, &one);
    parallel_set_threads(4);
    instances_make(&traced->corpus, traced->vocab, traced->all, DOCUMENTS, &options, 0, &four);
    options.seed = 6;
    instances_make(&traced->corpus, traced->vocab, traced->all, DOCUMENTS, &options, 0, &other);
    assert_true(same(&one, &four));
    assert_false(same(&one, &other));
    instances_free(&one);
    instances_free(&four);
    instances_free(&other);
    teardown(traced);
    free(traced);
}

/* A split of one document has nowhere else to take a random B from. */
static void test_one_document(void **state) {
    (void)state;
    struct traced *traced = xcalloc(1, sizeof *traced);
    setup(traced);
    struct instance_list list = {0};
    instances_make(&traced->corpus, traced->vocab, (int64_t[]){8}, 1, &usual, 0, &list);
    assert_true(list.count > 0);
    for (int64_t n = 0; n < list.count; n++) {
        int32_t ids[64];
        unmask(&list.items[n], ids);
        check_run(traced, ids + list.items[n].b_begin, list.items[n].length - list.items[n].b_begin - 1);
        assert_int_equal(traced->document_of[ids[list.items[n].b_begin]], 8);
    }
    instances_free(&list);
    teardown(traced);
    free(traced);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pairs), cmocka_unit_test(test_whole_words),
                                       cmocka_unit_test(test_no_pairs), cmocka_unit_test(test_deterministic),
                                       cmocka_unit_test(test_one_document)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
