/* parallel_for covers its range once, in whole blocks; memory comes zeroed and aligned; arenas keep their pointers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "base/parallel.h"

/* An allocation that cannot succeed must return an error under the sanitizers too. */
const char *__asan_default_options(void);
const char *__tsan_default_options(void);
const char *__asan_default_options(void) { return "allocator_may_return_null=1"; }
const char *__tsan_default_options(void) { return "allocator_may_return_null=1"; }

struct cover {
    int64_t n, grain;
    int *visits;     /* [n] */
    double *partial; /* [blocks] sum over each block of grain */
    int wrong;       /* ranges that do not begin and end at a block */
};

static void visit(void *ctx, int64_t begin, int64_t end) {
    struct cover *cover = ctx;
    if (begin % cover->grain || (end % cover->grain && end != cover->n) || parallel_thread() >= parallel_threads())
        __atomic_fetch_add(&cover->wrong, 1, __ATOMIC_RELAXED);
    for (int64_t i = begin; i < end; i++) {
        cover->visits[i]++;
        cover->partial[i / cover->grain] += 1.0 / (double)(i + 1);
    }
}

static double harmonic(int64_t n, int64_t grain) {
    int64_t blocks = (n + grain - 1) / grain;
    struct cover cover = {.n = n,
                          .grain = grain,
                          .visits = xcalloc((size_t)n + 1, sizeof(int)),
                          .partial = xcalloc((size_t)blocks + 1, sizeof(double))};
    parallel_for(n, grain, visit, &cover);
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        assert_int_equal(cover.visits[i], 1);
    for (int64_t i = 0; i < blocks; i++)
        sum += cover.partial[i];
    assert_int_equal(cover.wrong, 0);
    free(cover.visits);
    free(cover.partial);
    return sum;
}

static void test_parallel_for(void **state) {
    (void)state;
    const int64_t sizes[] = {0, 1, 7, 64, 1000, 100003}, grains[] = {1, 16, 1000};
    for (int s = 0; s < 6; s++)
        for (int g = 0; g < 3; g++) {
            parallel_set_threads(1);
            assert_int_equal(parallel_threads(), 1);
            double one = harmonic(sizes[s], grains[g]);
            for (int threads = 2; threads <= 5; threads++) {
                parallel_set_threads(threads);
                assert_true(harmonic(sizes[s], grains[g]) == one); /* to the bit */
            }
        }
    parallel_set_threads(0);
    assert_true(parallel_threads() >= 1);
}

static void nested(void *ctx, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++)
        ((double *)ctx)[i] = harmonic(100, 8);
}

static void test_nested(void **state) {
    (void)state;
    double sums[64];
    parallel_set_threads(4);
    parallel_for(64, 1, nested, sums);
    for (int i = 1; i < 64; i++)
        assert_true(sums[i] == sums[0]);
    parallel_set_threads(0);
}

/* Many short loops, some after everybody fell asleep; each of two threads counts its own. */
static void *many_loops(void *wrong) {
    int visits[40];
    double partial[40];
    for (int loop = 0; loop < 3000; loop++) {
        struct cover cover = {.n = 1 + loop % 40, .grain = 1, .visits = visits, .partial = partial};
        memset(visits, 0, sizeof visits);
        memset(partial, 0, sizeof partial);
        if (loop % 500 == 0)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        parallel_for(cover.n, cover.grain, visit, &cover);
        for (int64_t i = 0; i < cover.n; i++)
            *(int *)wrong += visits[i] != 1;
        *(int *)wrong += cover.wrong;
    }
    return NULL;
}

static void test_many_loops(void **state) {
    (void)state;
    int wrong[2] = {0};
    pthread_t other;
    for (int threads = 2; threads <= 6; threads += 2) {
        parallel_set_threads(threads);
        assert_int_equal(pthread_create(&other, NULL, many_loops, &wrong[1]), 0);
        many_loops(&wrong[0]);
        pthread_join(other, NULL);
    }
    assert_int_equal(wrong[0] + wrong[1], 0);
    parallel_set_threads(0);
}

static void test_memory(void **state) {
    (void)state;
    void *memory;
    assert_int_equal(memory_new(&memory, 1000, "a thing"), OK);
    assert_int_equal((uintptr_t)memory % 64, 0);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(((char *)memory)[i], 0);
    memory_free(memory);
    memory_free(NULL);
    assert_int_equal(memory_new(&memory, (size_t)1 << 60, "the moments"), FAILED);
    assert_non_null(strstr(status_message(), "the moments"));
}

static void test_arena(void **state) {
    (void)state;
    struct arena arena = {0};
    char *strings[3000];
    for (int i = 0; i < 3000; i++)
        strings[i] = i % 2 ? arena_printf(&arena, "%d %0*d", i, i % 200, 0) : arena_strdup(&arena, "even");
    double *numbers = arena_alloc(&arena, 200000 * sizeof *numbers); /* more than a block */
    for (int i = 0; i < 200000; i++)
        assert_true(numbers[i] == 0);
    for (int i = 0; i < 3000; i++) {
        char expected[256] = "even";
        if (i % 2)
            snprintf(expected, sizeof expected, "%d %0*d", i, i % 200, 0);
        assert_string_equal(strings[i], expected);
        assert_int_equal((uintptr_t)strings[i] % 16, 0);
    }
    arena_free(&arena);
    assert_null(arena.last);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parallel_for), cmocka_unit_test(test_nested), cmocka_unit_test(test_many_loops),
        cmocka_unit_test(test_memory),       cmocka_unit_test(test_arena),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
