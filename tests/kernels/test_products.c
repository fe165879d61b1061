/* Our own products beside the library's.
 *
 *   test_products              every instruction set, also those that this processor lacks, on shapes with tails
 *   test_products perf [PART]  one line a shape whose name holds PART: "gemm NAME berth library ratio", GFLOP/s; best
 * of rounds that alternate between the two */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "base/philox.h"
#include "kernels/cpu/contraction.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/products.h"

static struct backend *backend;

/* --- operands --- */

/* [rows, columns] of noise, with rows of zeros up to the padded ones */
static struct operand operand_new(int64_t rows, int64_t padded_rows, int64_t columns, enum dtype dtype, uint64_t seed) {
    struct operand operand = {NULL, dtype, rows, padded_rows < rows ? rows : padded_rows, columns, columns};
    struct random_stream random = random_open(seed, RANDOM_TEST, 0);
    size_t bytes = ((size_t)(operand.padded_rows * columns) + 1) * dtype_size(dtype);
    if (memory_new(&operand.data, bytes, "an operand") != OK) { /* in huge pages, as in training */
        fprintf(stderr, "%s\n", status_message());
        exit(FAILED);
    }
    for (int64_t at = 0; at < rows * columns; at++) {
        float value = (float)random_below(&random, 2001) / 1000 - 1;
        floats_write(operand.data, dtype, at, 1, &value);
    }
    return operand;
}

/* --- tests --- */

static const char *const isas[] = {"amx", "avx512", "avx2", "plain", "amx-emulated", "avx512-emulated"};

static double value_at(const struct operand *operand, int64_t row, int64_t column) {
    float buffer;
    return *floats_read(operand->data, operand->dtype, row * operand->columns + column, 1, &buffer);
}

/* Sums of `terms` products of numbers below one, in floats, whose root mean square is a third of sqrt(terms). */
static void expect(double got, double expected, int64_t terms, const char *isa, const char *what) {
    double bound = 128 * 0x1p-24 * (fabs(expected) + sqrt((double)terms) / 3);
    if (!(fabs(got - expected) <= bound))
        fail_msg("%s, %s: %.9g, expected %.9g within %.2g", isa, what, got, expected, bound);
}

static struct op_call gradients_new(int64_t rows, int64_t n, int64_t k, enum dtype dtype) {
    return (struct op_call){.op = OP_linear_dw_bias,
                            .in = {operand_new(rows, rows, n, dtype, 1), operand_new(rows, rows, k, dtype, 2)},
                            .out = {operand_new(n, n, k, F32, 3), operand_new(n, n, 1, F32, 4)},
                            .accumulate = true};
}

static void call_free(struct op_call *call) {
    for (int i = 0; i < MAX_OPERANDS; i++)
        memory_free(call->in[i].data), memory_free(call->out[i].data);
}

/* More rows than a slab is deep: weight gradients and sums of dy add up over slabs, on top of what was there. */
static void check_slabs(const char *isa, enum dtype dtype) {
    enum { ROWS = 4100, N = 67, K = 35 };
    struct op_call call = gradients_new(ROWS, N, K, dtype);
    const struct operand *dy = &call.in[0], *x = &call.in[1], *dw = &call.out[0], *db = &call.out[1];
    double *expected = xcalloc((size_t)N * (K + 1), sizeof *expected);
    for (int64_t n = 0; n < N; n++) {
        for (int64_t k = 0; k < K; k++)
            expected[n * (K + 1) + k] = value_at(dw, n, k);
        expected[n * (K + 1) + K] = value_at(db, n, 0);
    }
    for (int64_t row = 0; row < ROWS; row++)
        for (int64_t n = 0; n < N; n++) {
            for (int64_t k = 0; k < K; k++)
                expected[n * (K + 1) + k] += value_at(dy, row, n) * value_at(x, row, k);
            expected[n * (K + 1) + K] += value_at(dy, row, n);
        }
    assert_int_equal(backend->run(backend, &call), OK);
    for (int64_t n = 0; n < N; n++) {
        for (int64_t k = 0; k < K; k++)
            expect(value_at(dw, n, k), expected[n * (K + 1) + k], ROWS, isa, "weight gradient");
        expect(value_at(db, n, 0), expected[n * (K + 1) + K], ROWS, isa, "bias gradient");
    }
    free(expected);
    call_free(&call);
}

/* More rows than a slab has, and odd sizes. */
static void check_forward(const char *isa, enum dtype dtype) {
    enum { ROWS = 2500, N = 45, K = 99 };
    struct operand x = operand_new(ROWS, ROWS + 3, K, dtype, 1), w = operand_new(N, N, K, dtype, 2);
    struct operand y = operand_new(ROWS + 3, ROWS + 3, N, F32, 3);
    y.rows = ROWS;
    struct op_call call = {.op = OP_linear, .in = {x, w}, .out = {y}};
    assert_int_equal(backend->run(backend, &call), OK);
    for (int64_t row = 0; row < ROWS + 3; row++)
        for (int64_t n = 0; n < N; n++) {
            double sum = 0;
            for (int64_t k = 0; k < K && row < ROWS; k++)
                sum += value_at(&x, row, k) * value_at(&w, n, k);
            if (row < ROWS)
                expect(value_at(&y, row, n), sum, K, isa, "forward");
            else
                assert_true(value_at(&y, row, n) == 0);
        }
    call_free(&call);
}

static void test_slabs(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++)
        for (enum dtype dtype = F32; dtype <= BF16 && products_choose(isas[i]) == OK; dtype++) {
            check_slabs(isas[i], dtype);
            check_forward(isas[i], dtype);
        }
    assert_int_equal(products_choose(NULL), OK);
}

/* The same bits on any number of threads, although tiles are cut otherwise. */
static void test_bits_do_not_depend_on_threads(void **state) {
    (void)state;
    enum { ROWS = 2500, N = 613, K = 129 };
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++)
        for (enum dtype dtype = F32; dtype <= BF16 && products_choose(isas[i]) == OK; dtype++) {
            struct op_call once = gradients_new(ROWS, N, K, dtype), again = gradients_new(ROWS, N, K, dtype);
            parallel_set_threads(1);
            assert_int_equal(backend->run(backend, &once), OK);
            parallel_set_threads(0);
            assert_int_equal(backend->run(backend, &again), OK);
            assert_memory_equal(once.out[0].data, again.out[0].data, sizeof(float) * N * K);
            assert_memory_equal(once.out[1].data, again.out[1].data, sizeof(float) * N);
            call_free(&once), call_free(&again);
        }
    assert_int_equal(products_choose(NULL), OK);
}

static void check_floats(const char *isa, bool transpose_a, bool transpose_b, bool add) {
    enum { M = 101, N = 41, K = 401, GAP = 5 };
    struct operand a = operand_new(transpose_a ? K : M, 0, (transpose_a ? M : K) + GAP, F32, 1);
    struct operand b = operand_new(transpose_b ? N : K, 0, (transpose_b ? K : N) + GAP, F32, 2);
    struct operand c = operand_new(M, 0, N + GAP, F32, 3), before = operand_new(M, 0, N + GAP, F32, 3);
    struct product product = {.transpose_a = transpose_a,
                              .transpose_b = transpose_b,
                              .add = add,
                              .m = M,
                              .n = N,
                              .k = K,
                              .stride_a = a.columns,
                              .stride_b = b.columns,
                              .stride_c = c.columns};
    products_f32(&product, a.data, b.data, c.data);
    for (int64_t m = 0; m < M; m++)
        for (int64_t n = 0; n < N + GAP; n++) {
            double sum = add || n >= N ? value_at(&before, m, n) : 0;
            for (int64_t k = 0; k < K && n < N; k++)
                sum += (transpose_a ? value_at(&a, k, m) : value_at(&a, m, k)) *
                       (transpose_b ? value_at(&b, n, k) : value_at(&b, k, n));
            expect(value_at(&c, m, n), sum, n < N ? K : 0, isa, "floats");
        }
    memory_free(a.data), memory_free(b.data), memory_free(c.data), memory_free(before.data);
}

static void test_products_of_floats(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++)
        for (int form = 0; form < 8 && products_choose(isas[i]) == OK; form++)
            check_floats(isas[i], form & 1, form & 2, form & 4);
    assert_int_equal(products_choose(NULL), OK);
}

/* --- perf --- */

enum what { FORWARD, FORWARD_ACT, BACKWARD, WEIGHTS, WHATS };
static const char *const what_names[] = {"y", "y+bias+gelu", "dx", "dw+db"};
static const enum op what_ops[] = {OP_linear, OP_linear_act, OP_linear_dx, OP_linear_dw_bias};

static struct op_call call_new(enum what what, int64_t m, int64_t n, int64_t k, enum dtype dtype) {
    static const struct attr attr = {.act = ACT_GELU};
    struct op_call call = {.op = what_ops[what], .attr = &attr};
    int64_t padded = (m + 255) / 256 * 256;
    bool forward = what == FORWARD || what == FORWARD_ACT;
    call.in[0] = operand_new(m, padded, forward ? k : n, dtype, 1);
    call.in[1] = what == WEIGHTS ? operand_new(m, padded, k, dtype, 2) : operand_new(n, n, k, dtype, 2);
    call.in[2] = what == FORWARD_ACT ? operand_new(n, n, 1, F32, 3) : (struct operand){0};
    call.out[0] = what == WEIGHTS ? operand_new(n, n, k, F32, 4) : operand_new(m, padded, forward ? n : k, dtype, 4);
    if (what == FORWARD_ACT)
        call.out[1] = operand_new(m, padded, n, dtype, 5);
    if (what == WEIGHTS)
        call.out[1] = operand_new(n, n, 1, F32, 5);
    return call;
}

/* With one thread the processor's time, which does not run while another program has the core. */
static double bench_seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return parallel_threads() > 1 ? clock_seconds() : (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static status seconds_of(const struct op_call *call, const char *isa, double *best) {
    TRY(products_choose(isa));
    double began = bench_seconds();
    TRY(backend->run(backend, call));
    *best = fmin(*best, bench_seconds() - began);
    return OK;
}

static status measure(const char *name, enum what what, int64_t m, int64_t n, int64_t k, enum dtype dtype) {
    struct op_call call = call_new(what, m, n, k, dtype);
    double flop = 2.0 * (double)m * (double)n * (double)k, own = INFINITY, library = INFINITY, none = INFINITY;
    double began = clock_seconds();
    status code = OK;
    for (int round = 0; code == OK && (round < 4 || (round < 30 && clock_seconds() - began < 0.7)); round++) {
        code = seconds_of(&call, getenv("BERTH_ISA"), round ? &own : &none);
        if (code == OK)
            code = seconds_of(&call, "library", round ? &library : &none);
    }
    call_free(&call);
    if (code == OK)
        printf("gemm %s %.1f %.1f %.2f\n", name, flop / own / 1e9, flop / library / 1e9, library / own);
    fflush(stdout);
    return code;
}

static int perf(const char *part) {
    static const int64_t shapes[][2] = {{768, 768}, {3072, 768}, {768, 3072}, {1024, 1024}, {4096, 1024}, {1024, 4096}};
    static const int64_t rows[] = {1024, 2048, 4096, 16384, 1777};
    if (cpu_backend_new(&backend, 0) != OK) {
        fprintf(stderr, "%s\n", status_message());
        return BAD_INPUT;
    }
    for (int s = 0; s < 6; s++)
        for (int r = 0; r < 5; r++)
            for (enum what what = 0; what < WHATS; what++)
                for (enum dtype dtype = F32; dtype <= BF16; dtype++) {
                    char name[100];
                    snprintf(name, sizeof name, "%s-%lldx%lldx%lld-%s", what_names[what], (long long)rows[r],
                             (long long)shapes[s][0], (long long)shapes[s][1], dtype_name(dtype));
                    if (part && !strstr(name, part))
                        continue;
                    status code = measure(name, what, rows[r], shapes[s][0], shapes[s][1], dtype);
                    if (code != OK) {
                        fprintf(stderr, "%s\n", status_message());
                        return code;
                    }
                }
    backend->free(backend);
    return 0;
}

static int setup(void **state) {
    (void)state;
    return cpu_backend_new(&backend, 0) == OK ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    backend->free(backend);
    return 0;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_slabs),
                                       cmocka_unit_test(test_bits_do_not_depend_on_threads),
                                       cmocka_unit_test(test_products_of_floats)};
    if (argc > 1 && strcmp(argv[1], "perf") == 0)
        return perf(argc > 2 ? argv[2] : NULL);
    return cmocka_run_group_tests(tests, setup, teardown);
}
