/* The functions of floats keep the errors that vector.h promises, against double precision; attention's small products
 * are right at every edge. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/philox.h"
#include "kernels/cpu/panels.h"
#include "kernels/cpu/products.h"
#include "kernels/cpu/vector.h"

enum { POINTS = 2000000 };

static float point(int i, float low, float high) { return low + (high - low) * ((float)i / POINTS); }

static void test_exp(void **state) {
    (void)state;
    double worst = 0;
    for (int i = 0; i <= POINTS; i++) {
        float x = point(i, -87, 88);
        worst = fmax(worst, fabs(vector_exp(x) / exp(x) - 1));
    }
    assert_true(worst < 1e-7);
    assert_true(vector_exp(0) == 1);
    assert_true(vector_exp(-1000) == vector_exp(-87) && vector_exp(-INFINITY) == vector_exp(-87));
    assert_true(vector_exp(1000) == vector_exp(88) && isfinite(vector_exp(INFINITY)));
    assert_true(isnan(vector_exp(NAN)));
}

static void test_normal(void **state) {
    (void)state;
    for (int i = 0; i <= POINTS; i++) {
        float x = point(i, -NORMAL_END, NORMAL_END), bell, below = vector_normal(x, &bell);
        double half_square = 0.5 * (double)x * x;
        assert_true(fabs(below / (0.5 * erfc(-x / sqrt(2))) - 1) < 2e-6 + (fabsf(x) > 6 ? 0x1p-24 * half_square : 0));
        assert_true(fabs(bell / exp(-half_square) - 1) < 1e-7 + 0x1p-23 * half_square + 0x1p-24);
    }
    float bell;
    assert_true(isnan(vector_normal(NAN, &bell)));
    for (float x = 12.91f; x < 1e20f; x *= 2) {
        assert_true(vector_normal(x, &bell) == 1 && bell == 0);
        assert_true(vector_normal(-x, &bell) == 0 && bell == 0);
    }
}

static void test_tanh(void **state) {
    (void)state;
    double worst = 0;
    for (int i = 0; i <= POINTS; i++) {
        float x = point(i, -20, 20);
        worst = fmax(worst, fabs(vector_tanh(x) - tanh(x)));
    }
    assert_true(worst < 2e-7);
    assert_true(vector_tanh(INFINITY) == 1 && vector_tanh(-INFINITY) == -1 && isnan(vector_tanh(NAN)));
}

/* --- small products --- */

static float *numbers(int64_t count, struct random_stream *random) {
    float *x = xcalloc((size_t)count + 1, sizeof *x);
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)random_normal(random);
    return x;
}

/* y = a b with b as it is or transposed before its panels are made, and a as it is or transposed. */
static void check_product(int64_t m, int64_t n, int64_t k, bool down, bool across, bool add) {
    struct random_stream random = random_open(5, RANDOM_TEST, 0);
    int64_t rows = sliver_rows(m), wide = panel_columns(n);
    float *a = numbers(rows * k, &random), *b = numbers(n * k, &random), *c = numbers(rows * wide, &random);
    float *panels = numbers(wide * k, &random), *before = numbers(rows * wide, &random);
    for (int64_t i = 0; i < rows * wide; i++)
        before[i] = c[i];
    across ? panels_of_transpose(b, n, k, panels) : panels_of(b, k, n, panels);
    panel_product(&(struct rows_product){m, n, k, a, down ? 1 : k, down ? rows : 1, panels, c, wide, add});
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = add ? before[i * wide + j] : 0, magnitude = fabs(sum);
            for (int64_t l = 0; l < k; l++) {
                double term = (double)a[down ? l * rows + i : i * k + l] * b[across ? j * k + l : l * n + j];
                sum += term;
                magnitude += fabs(term);
            }
            assert_true(fabs(c[i * wide + j] - sum) <= 0x1p-20 * magnitude);
        }
    free(a), free(b), free(c), free(panels), free(before);
}

static void test_products(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {{1, 1, 1},   {7, 5, 3},     {12, 16, 64}, {13, 17, 33},
                                       {48, 64, 8}, {11, 32, 300}, {96, 100, 5}, {25, 130, 513}};
    static const char *const isas[] = {"avx512", "avx2", "plain"};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes * 3; s++)
        for (int form = 0; form < 8 && products_choose(isas[s % 3]) == OK; form++)
            check_product(sizes[s / 3][0], sizes[s / 3][1], sizes[s / 3][2], form & 1, form & 2, form & 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_normal),
        cmocka_unit_test(test_tanh),
        cmocka_unit_test(test_products),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
