/* Text of several parts into shards: everything once, the same for any number of threads and after any crash. */
#include "text_fixture.h"

#include <sys/wait.h>

#include "base/parallel.h"
#include "data/shard_make.h"
#include "data/shard_read.h"

enum { DOCUMENTS = 60, S = 16, P = 3, PART_TOKENS = 150 };

struct scene {
    char *folder, *text, *output;
    struct vocab *vocab;
    struct wordpiece *wordpiece;
    int64_t words;
};

/* Document d has 1 + d % 5 lines of some words; every word of the text is an entry of its own, in order. */
static void setup(struct scene *scene) {
    struct text entries = {0}, text = {0};
    *scene = (struct scene){.folder = fixture_folder()};
    for (int d = 0; d < DOCUMENTS; d++) {
        for (int line = 0; line < 1 + d % 5; line++) {
            for (int w = 0; w < 3 + (5 * d + 3 * line) % 8; w++, scene->words++) {
                text_printf(&entries, "w%lld\n", (long long)scene->words);
                text_printf(&text, "w%lld ", (long long)scene->words);
            }
            text_add(&text, "\n");
        }
        text_add(&text, "\n");
    }
    scene->text = path_join(scene->folder, "text");
    scene->output = path_join(scene->folder, "shards");
    assert_int_equal(file_write_all(scene->text, text.data, text.length), OK);
    scene->vocab = fixture_vocab(entries.data);
    struct wordpiece_options options = wordpiece_defaults(false);
    scene->wordpiece = wordpiece_new(scene->vocab, &options);
    text_free(&entries);
    text_free(&text);
}

static void teardown(struct scene *scene) {
    assert_int_equal(folder_remove(scene->folder), OK);
    wordpiece_free(scene->wordpiece);
    vocab_free(scene->vocab);
    free(scene->text);
    free(scene->output);
    free(scene->folder);
}

/* Makes shards of the text; `change` may alter the job first. The counts stay in *out, if wanted. */
static status make(const struct scene *scene, void (*change)(struct shard_job *job), struct shard_job *out) {
    struct shard_job job = {.instances = {S, P, .masked_lm_prob = 0.15, .short_seq_prob = 0.1, .seed = 9},
                            .shape = {S, P, .compression = 1, .vocab_size = vocab_size(scene->vocab)},
                            .dupe_factor = 2,
                            .rows_per_shard = 50,
                            .part_tokens = PART_TOKENS,
                            .held_out = 0.1,
                            .sentence_a_line = true,
                            .vocab = scene->vocab,
                            .wordpiece = scene->wordpiece,
                            .output = scene->output};
    const struct document_options plain = {0};
    if (change)
        change(&job);
    status code = documents_open((char *const *)&scene->text, 1, &plain, &job.source);
    if (code == OK)
        code = shards_make(&job);
    shard_job_free(&job);
    documents_close(job.source);
    if (out)
        *out = job;
    return code;
}

/* Names, sizes and bytes of all files below a folder, as one text. */
static void add_files(const char *folder, struct text *out) {
    char **names;
    int64_t count;
    assert_int_equal(folder_list(folder, &names, &count), OK);
    for (int64_t i = 0; i < count; i++) {
        char *path = path_join(folder, names[i]);
        text_printf(out, "%s:", names[i]);
        if (folder_exists(path))
            add_files(path, out);
        else
            assert_int_equal(file_read(path, out), OK);
        free(path);
    }
    names_free(names, count);
}

static void assert_same_files(const struct scene *scene, const struct text *expected) {
    struct text found = {0};
    add_files(scene->output, &found);
    assert_int_equal(found.length, expected->length);
    assert_memory_equal(found.data, expected->data, found.length);
    text_free(&found);
}

/* Counts each word in the shards of a folder, and the neighbouring rows that come from far apart in the text. */
static int64_t count_words(const char *folder, int64_t vocab, int32_t *seen, int64_t *far_apart) {
    char **names;
    int64_t count, rows = 0;
    assert_int_equal(folder_list(folder, &names, &count), OK);
    for (int64_t n = 0; n < count; n++) {
        char *path = path_join(folder, names[n]);
        struct shard shard;
        struct block block;
        struct shard_limits limits = {vocab, S, P};
        assert_int_equal(shard_check(path, &shard), OK);
        assert_in_range(shard.rows, 1, 50);
        struct extent extent = shard_block(&shard, 0);
        assert_int_equal(extent.sequences, shard.rows);
        assert_int_equal(shard_read(&shard, &extent, &limits, &block), OK);
        int64_t before = -1;
        for (int64_t r = 0; r < shard.rows; r++) {
            int64_t begin = block.token_starts[r], length = block.token_starts[r + 1] - begin;
            int32_t ids[S];
            for (int64_t i = 0; i < length; i++)
                ids[i] = (int32_t)(number_at(&block.tokens, begin + i) >> 1);
            for (int64_t m = block.mask_starts[r]; m < block.mask_starts[r + 1]; m++)
                ids[number_at(&block.positions, m)] = (int32_t)number_at(&block.labels, m);
            for (int64_t i = 1; i + 1 < length; i++)
                seen[ids[i]]++;
            *far_apart += before >= 0 && llabs(ids[1] - before) > 2 * PART_TOKENS;
            before = ids[1];
        }
        rows += shard.rows;
        block_free(&block);
        shard_free(&shard);
        free(path);
    }
    names_free(names, count);
    return rows;
}

static void test_everything_once(void **state) {
    (void)state;
    struct scene scene;
    struct shard_job job;
    setup(&scene);
    assert_int_equal(make(&scene, NULL, &job), OK);
    const struct shard_split *splits = job.splits;
    assert_true(job.parts > 5);
    assert_int_equal(splits[SPLIT_TRAIN].documents + splits[SPLIT_EVAL].documents, DOCUMENTS);
    assert_int_equal(splits[SPLIT_EVAL].documents, DOCUMENTS / 10);
    assert_int_equal(splits[SPLIT_TRAIN].tokens + splits[SPLIT_EVAL].tokens, scene.words);
    assert_true(splits[SPLIT_TRAIN].files > 2);
    int32_t *seen = xcalloc((size_t)vocab_size(scene.vocab), sizeof *seen);
    int64_t far_apart = 0;
    for (int s = 0; s < SPLIT_COUNT; s++) {
        char *folder = path_join(scene.output, split_folder(s));
        assert_int_equal(count_words(folder, vocab_size(scene.vocab), seen, &far_apart), splits[s].instances);
        free(folder);
    }
    for (int64_t w = 0; w < scene.words; w++)
        assert_int_equal(seen[5 + w], 2); /* dupe_factor */
    /* rows of some 7 parts of equal size in random order: 5/7 of the neighbours or so come from parts that do not touch
     */
    assert_true(far_apart > splits[SPLIT_TRAIN].instances / 2);
    char *work = path_join(scene.output, "unfinished");
    assert_false(folder_exists(work));
    free(work);
    free(seen);
    teardown(&scene);
}

static void with_pairs(struct shard_job *job) { job->instances.nsp = true; }

/* Killed at every file operation in turn, and called again after each; on other numbers of threads too. */
static void test_crashes_and_threads(void **state) {
    (void)state;
    struct scene scene;
    struct text expected = {0};
    setup(&scene);
    parallel_set_threads(1); /* OpenMP's threads do not live through a fork */
    assert_int_equal(make(&scene, with_pairs, NULL), OK);
    add_files(scene.output, &expected);
    int crashes = 0;
    for (int step = 1; step < 10; step += 4) { /* dies at every `step`-th operation until it is done */
        assert_int_equal(folder_remove(scene.output), OK);
        for (int ended = 0; !ended; crashes++) {
            pid_t child = fork();
            if (child == 0) {
                file_fault(20 + step + crashes % 7, true);
                _exit(make(&scene, with_pairs, NULL) == OK ? 0 : 9);
            }
            int result;
            assert_int_equal(waitpid(child, &result, 0), child);
            ended = WIFEXITED(result) && WEXITSTATUS(result) == 0;
            assert_true(ended || !WIFEXITED(result) || WEXITSTATUS(result) != 9);
            assert_true(crashes < 500);
        }
        assert_same_files(&scene, &expected);
    }
    assert_true(crashes > 10);
    assert_int_equal(folder_remove(scene.output), OK);
    /* a full disk is said, and the work kept */
    for (int failures = 0;; failures++) {
        file_fault(25, false);
        status code = make(&scene, with_pairs, NULL);
        file_fault(0, false);
        if (code == OK)
            break;
        assert_int_equal(code, FAILED);
        assert_non_null(strstr(status_message(), scene.output));
        assert_true(failures < 500);
    }
    assert_same_files(&scene, &expected);
    assert_int_equal(folder_remove(scene.output), OK);
    parallel_set_threads(3);
    assert_int_equal(make(&scene, with_pairs, NULL), OK);
    assert_same_files(&scene, &expected);
    text_free(&expected);
    teardown(&scene);
}

static void other_length(struct shard_job *job) { job->instances.seq_len = job->shape.seq_len = 2 * S; }

/* Unfinished work of another call is neither used nor lost. */
static void test_other_call(void **state) {
    (void)state;
    struct scene scene;
    struct text before = {0}, expected = {0};
    setup(&scene);
    assert_int_equal(make(&scene, NULL, NULL), OK);
    add_files(scene.output, &expected);
    assert_int_equal(make(&scene, NULL, NULL), BAD_INPUT);
    assert_non_null(strstr(status_message(), "is not empty"));
    assert_same_files(&scene, &expected);
    assert_int_equal(folder_remove(scene.output), OK);
    file_fault(40, false);
    assert_int_equal(make(&scene, NULL, NULL), FAILED);
    file_fault(0, false);
    add_files(scene.output, &before);
    assert_int_equal(make(&scene, other_length, NULL), BAD_INPUT);
    assert_non_null(strstr(status_message(), "then: seq_len 16; now: seq_len 32"));
    assert_same_files(&scene, &before);
    assert_int_equal(make(&scene, NULL, NULL), OK);
    assert_same_files(&scene, &expected);
    text_free(&before);
    text_free(&expected);
    teardown(&scene);
}

/* What cannot become shards leaves nothing behind. */
static void test_no_text(void **state) {
    (void)state;
    struct scene scene;
    setup(&scene);
    assert_int_equal(file_write_all(scene.text, "\n \n", 3), OK);
    assert_int_equal(make(&scene, NULL, NULL), BAD_INPUT);
    assert_string_equal(status_message(), "the input holds no text");
    assert_false(folder_exists(scene.output));
    assert_int_equal(file_write_all(scene.text, "w1 w2\n", 6), OK);
    assert_int_equal(make(&scene, NULL, NULL), BAD_INPUT);
    assert_non_null(strstr(status_message(), "one document"));
    assert_false(folder_exists(scene.output));
    teardown(&scene);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_everything_once),
                                       cmocka_unit_test(test_crashes_and_threads), cmocka_unit_test(test_other_call),
                                       cmocka_unit_test(test_no_text)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
