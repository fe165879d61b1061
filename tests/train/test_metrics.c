/* metrics.jsonl line by line, and the progress line. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "train/metrics.h"
#include "train/progress.h"

static char folder[] = "/tmp/berth-metrics-XXXXXX";
static char path[64];

static int make_folder(void **state) {
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    return folder_remove(folder) == OK ? 0 : -1;
}

static const struct metrics_step example = {.step = 120,
                                            .loss = 7.1233998,
                                            .mlm_loss = 6.4301,
                                            .nsp_loss = 0.1,
                                            .mlm_accuracy = 0.25,
                                            .lr = 1.2e-4,
                                            .grad_norm = 1.0 / 3,
                                            .loss_scale = 32768,
                                            .epoch = 1,
                                            .skipped = 2,
                                            .sequences = 64,
                                            .tokens = 4000,
                                            .masked_tokens = 600,
                                            .sequences_per_s = 412.25,
                                            .tokens_per_s = 31234,
                                            .padded_tokens_per_s = 52768,
                                            .mfu = NAN,
                                            .waited_share = 0.5,
                                            .elapsed = 60,
                                            .time = 1.7e9};

static void assert_file(const char *expected) {
    struct text text = {0};
    assert_int_equal(file_read(path, &text), OK);
    assert_string_equal(text.data, expected);
    text_free(&text);
}

#define STEP_LINE                                                                                               \
    "{\"step\": 120, \"loss\": 7.1233998, \"mlm_loss\": 6.4301, \"nsp_loss\": 0.1, \"mlm_accuracy\": 0.25, "    \
    "\"lr\": 0.00012, \"grad_norm\": 0.3333333333333333, \"loss_scale\": 32768, \"epoch\": 1, \"skipped\": 2, " \
    "\"sequences\": 64, "                                                                                       \
    "\"tokens\": 4000, \"masked_tokens\": 600, \"sequences_per_s\": 412.25, \"tokens_per_s\": 31234, "          \
    "\"padded_tokens_per_s\": 52768, \"waited_share\": 0.5, \"elapsed\": 60, \"time\": 1.7e+09}\n"
#define EVAL_LINE                                                                                \
    "{\"step\": 120, \"eval_loss\": 6.5, \"eval_mlm_loss\": 6.5, \"eval_mlm_accuracy\": 0.125, " \
    "\"eval_sequences\": 10, \"eval_masked_tokens\": 70, \"eval_sequences_per_s\": 5, \"time\": 1.7e+09}\n"

static void lines_and_offset(void **state) {
    (void)state;
    struct metrics metrics = {0};
    int64_t offset;
    const struct metrics_eval eval = {.step = 120,
                                      .loss = 6.5,
                                      .mlm_loss = 6.5,
                                      .mlm_accuracy = 0.125,
                                      .nsp_loss = NAN,
                                      .nsp_accuracy = NAN,
                                      .sequences = 10,
                                      .masked_tokens = 70,
                                      .sequences_per_s = 5,
                                      .time = 1.7e9};
    assert_int_equal(metrics_open(&metrics, folder, 0), OK);
    assert_int_equal(metrics_add_step(&metrics, &example), OK);
    assert_file(STEP_LINE); /* at once, not at the end */
    assert_int_equal(metrics_add_eval(&metrics, &eval), OK);
    assert_int_equal(metrics_sync(&metrics, &offset), OK);
    assert_int_equal(offset, strlen(STEP_LINE EVAL_LINE));
    metrics_close(&metrics);
    assert_file(STEP_LINE EVAL_LINE);
    json *root;
    assert_int_equal(json_parse("line", EVAL_LINE, strlen(EVAL_LINE), &root), OK);
    json_free(root);
}

/* Steps after the checkpoint, even half a line of one, are cut; then each step stands there once. */
static void resume_cuts(void **state) {
    (void)state;
    struct metrics metrics = {0};
    int64_t offset;
    assert_int_equal(metrics_open(&metrics, folder, 0), OK);
    assert_int_equal(metrics_add_step(&metrics, &example), OK);
    assert_int_equal(metrics_sync(&metrics, &offset), OK);
    assert_int_equal(metrics_add_step(&metrics, &example), OK);
    assert_int_equal(file_append(metrics.descriptor, path, "{\"step\": 1", 10), OK);
    metrics_close(&metrics);
    assert_int_equal(metrics_open(&metrics, folder, offset), OK);
    assert_file(STEP_LINE);
    assert_int_equal(metrics_add_step(&metrics, &example), OK);
    metrics_close(&metrics);
    assert_file(STEP_LINE STEP_LINE);
    /* the file was removed meanwhile: a new one, without a hole of zeros */
    assert_int_equal(file_write_all(path, "", 0), OK);
    assert_int_equal(metrics_open(&metrics, folder, offset), OK);
    assert_int_equal(metrics_add_step(&metrics, &example), OK);
    metrics_close(&metrics);
    assert_file(STEP_LINE);
}

static void full_disk_is_an_error(void **state) {
    (void)state;
    struct metrics metrics = {0};
    int64_t offset;
    file_fault(1, false);
    assert_int_equal(metrics_open(&metrics, folder, 0), FAILED);
    assert_non_null(strstr(status_message(), "metrics.jsonl"));
    assert_int_equal(metrics_open(&metrics, folder, 0), OK);
    file_fault(1, false);
    assert_int_equal(metrics_add_step(&metrics, &example), FAILED);
    file_fault(1, false);
    assert_int_equal(metrics_sync(&metrics, &offset), FAILED);
    file_fault(0, false);
    metrics_close(&metrics);
}

static void progress_lines(void **state) {
    (void)state;
    char line[256];
    struct metrics_step step = example;
    progress_format(&step, 1000, 754, line, sizeof line);
    assert_string_equal(line,
                        "step 120/1000  loss 7.1234 (mlm 6.4301 nsp 0.1000)  lr 1.20e-04  |g| 0.333  412 seq/s  "
                        "31.2k tok/s  ETA 12:34");
    step.nsp_loss = NAN;
    step.mfu = 0.4123;
    step.sequences_per_s = 7.312;
    step.tokens_per_s = 1254000;
    progress_format(&step, 1000, 45296, line, sizeof line);
    assert_string_equal(line,
                        "step 120/1000  loss 7.1234  lr 1.20e-04  |g| 0.333  7.31 seq/s  1.25M tok/s  MFU 41.2%  "
                        "ETA 12:34:56");
    progress_format(&step, 1000, NAN, line, sizeof line);
    assert_null(strstr(line, "ETA"));
    progress_format(&step, 1000, 200000, line, sizeof line);
    assert_non_null(strstr(line, "ETA 2d07h"));

    const struct metrics_eval eval = {.step = 500,
                                      .loss = 6.3012,
                                      .mlm_loss = 5.612,
                                      .mlm_accuracy = 0.123,
                                      .nsp_loss = 0.6892,
                                      .nsp_accuracy = 0.541,
                                      .sequences = 2000};
    progress_format_eval(&eval, line, sizeof line);
    assert_string_equal(line,
                        "held out at step 500: loss 6.3012  mlm 5.6120 (accuracy 12.3%)  nsp 0.6892 (accuracy 54.1%)  "
                        "2000 sequences");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_and_offset),
        cmocka_unit_test(resume_cuts),
        cmocka_unit_test(full_disk_is_an_error),
        cmocka_unit_test(progress_lines),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
