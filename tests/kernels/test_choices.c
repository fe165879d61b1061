/* On a CUDA device: what was chosen by timing and kept in a file gives another process the same bits. The emulator's
 * two algorithms add up in different order, and it is told which of them is slow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "../test_backend.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/philox.h"
#include "base/text.h"

#ifdef BERTH_CUDA

enum { ROWS = 64, K = 512, N = 48 };

static char *folder, *kept;

/* y[ROWS,N] = x w^T on a new backend that keeps its choices in `path`, unless NULL. */
static status multiply(const char *path, bool write, float y[ROWS * N]) {
    static float x[ROWS * K], w[N * K];
    struct random_stream random = random_open(1, RANDOM_TEST, 0);
    for (int i = 0; i < ROWS * K; i++)
        x[i] = (float)random_below(&random, 2001) / 1000 - 1;
    for (int i = 0; i < N * K; i++)
        w[i] = (float)random_below(&random, 2001) / 1000 - 1;
    struct backend *backend = NULL;
    struct op_call call = {.op = OP_linear,
                           .in = {{NULL, F32, ROWS, ROWS, K, K}, {NULL, F32, N, N, K, K}},
                           .out = {{NULL, F32, ROWS, ROWS, N, N}}};
    TRY(cuda_backend_new(&backend, &(struct cuda_options){.recording = RECORD_SAME}));
    status code = path ? backend->keep_choices(backend, path, write) : OK;
    if (code == OK) {
        assert_int_equal(backend->memory_new(backend, &call.in[0].data, sizeof x, "x"), OK);
        assert_int_equal(backend->memory_new(backend, &call.in[1].data, sizeof w, "w"), OK);
        assert_int_equal(backend->memory_new(backend, &call.out[0].data, ROWS * N * sizeof *y, "y"), OK);
        assert_int_equal(backend->upload(backend, call.in[0].data, x, sizeof x), OK);
        assert_int_equal(backend->upload(backend, call.in[1].data, w, sizeof w), OK);
        assert_int_equal(backend->run(backend, &call), OK);
        assert_int_equal(backend->download(backend, y, call.out[0].data, ROWS * N * sizeof *y), OK);
        for (int i = 0; i < 2; i++)
            backend->memory_free(backend, call.in[i].data);
        backend->memory_free(backend, call.out[0].data);
    }
    backend->free(backend);
    return code;
}

static float first[ROWS * N], again[ROWS * N], other[ROWS * N];

static bool same(const float *a, const float *b) { return memcmp(a, b, sizeof first) == 0; }

/* Another process, where the algorithm that was chosen is the slow one. */
static void test_kept_choices_are_taken(void **state) {
    (void)state;
    if (!test_on_cuda())
        skip();
    setenv("BERTH_EMU_SLOW", "1", 1);
    assert_int_equal(multiply(kept, true, first), OK);
    setenv("BERTH_EMU_SLOW", "16", 1);
    assert_int_equal(multiply(NULL, false, other), OK);
    assert_int_equal(multiply(kept, false, again), OK);
    assert_true(same(first, again));
    if (test_on_emulator())
        assert_false(same(first, other)); /* or this test shows nothing */
}

/* The file with `from` replaced, at `path`. */
static void write_changed(const char *path, const char *from, const char *to) {
    struct text text = {0}, changed = {0};
    assert_int_equal(file_read(kept, &text), OK);
    const char *at = strstr(text.data, from);
    assert_non_null(at);
    text_append(&changed, text.data, (size_t)(at - text.data));
    text_add(&changed, to);
    text_add(&changed, at + strlen(from));
    assert_int_equal(file_write_all(path, changed.data, changed.length), OK);
    text_free(&text);
    text_free(&changed);
}

/* What was chosen elsewhere, or what the library refuses, is chosen anew, and then kept. */
static void test_others_choices_are_not_taken(void **state) {
    (void)state;
    static const char *const changes[][2] = {{"\"library\": \"", "\"library\": \"another "},
                                             {"\"device\": \"", "\"device\": \"another "},
                                             {"aligned\": \"68", "aligned\": \"69"}};
    if (!test_on_emulator())
        skip();
    char *path = path_join(folder, "others.json");
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        write_changed(path, changes[i][0], changes[i][1]);
        assert_int_equal(multiply(path, true, again), OK);
        assert_true(same(other, again));
        setenv("BERTH_EMU_SLOW", "1", 1);
        assert_int_equal(multiply(path, false, again), OK);
        assert_true(same(other, again));
        setenv("BERTH_EMU_SLOW", "16", 1);
    }
    free(path);
}

static void test_a_broken_file_is_named(void **state) {
    (void)state;
    if (!test_on_cuda())
        skip();
    static const struct {
        const char *from, *to, *said;
    } faults[] = {{"{", "[", "not valid JSON at byte 12; without this file, products are timed anew"},
                  {"\"products\"", "\"product\"", "key \"products\" is missing, expected an object"},
                  {"\"products\": {", "\"products\": [], \"others\": {",
                   "key \"products\" has the wrong type, expected an object"},
                  {"\"products\": {", "\"products\": 5, \"others\": {",
                   "key \"products\" has the wrong type, expected an object"},
                  {"\"library\"", "\"libary\"", "key \"library\" is missing, expected"},
                  {"aligned\": \"", "aligned\": \"x", "expected an algorithm of 64 bytes"}};
    char *path = path_join(folder, "broken.json");
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        write_changed(path, faults[i].from, faults[i].to);
        assert_int_equal(multiply(path, true, again), BAD_INPUT);
        assert_non_null(strstr(status_message(), path));
        assert_non_null(strstr(status_message(), faults[i].said));
    }
    free(path);
}

static int setup(void **state) {
    (void)state;
    char name[] = "/tmp/berth-choices-XXXXXX";
    if (!mkdtemp(name))
        return -1;
    folder = xstrdup(name);
    kept = path_join(folder, "algorithms.json");
    return 0;
}

static int teardown(void **state) {
    (void)state;
    status code = folder_remove(folder);
    free(folder);
    free(kept);
    return code == OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kept_choices_are_taken),
                                       cmocka_unit_test(test_others_choices_are_not_taken),
                                       cmocka_unit_test(test_a_broken_file_is_named)};
    return cmocka_run_group_tests(tests, setup, teardown);
}

#else

static void test_choices_without_cuda_backend(void **state) {
    (void)state;
    skip();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_choices_without_cuda_backend)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
