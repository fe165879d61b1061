/* Philox against the published vectors, what is drawn from it, bf16 and half precision. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/number.h"
#include "base/philox.h"

/* The known-answer vectors of the authors' library (Random123, kat_vectors, philox4x32 with 10 rounds). */
static void test_philox_known_answers(void **state) {
    (void)state;
    const struct {
        uint64_t key;
        uint32_t counter[4], output[4];
    } vectors[] = {
        {0, {0, 0, 0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX,
         {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822, /* the digits of pi: counter first, then the key */
         {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (int i = 0; i < 3; i++) {
        const uint32_t *c = vectors[i].counter;
        struct philox result = philox4x32(vectors[i].key, c[0], c[1], c[2], c[3]);
        assert_memory_equal(result.word, vectors[i].output, sizeof result.word);
    }
}

static void test_streams(void **state) {
    (void)state;
    /* the words of a stream are the blocks of (counter, domain, stream) one after another */
    struct random_stream random = random_open(5, RANDOM_ORDER, 0x100000002);
    for (uint32_t block = 0; block < 3; block++) {
        struct philox expected = philox4x32(5, block, RANDOM_ORDER, 2, 1);
        for (int i = 0; i < 4; i++)
            assert_int_equal(random_u32(&random), expected.word[i]);
    }
    struct random_stream a = random_open(5, RANDOM_ORDER, 0), b = random_open(5, RANDOM_MASKING, 0);
    assert_int_not_equal(random_u32(&a), random_u32(&b));
}

static void test_below(void **state) {
    (void)state;
    enum { BOUND = 7, DRAWS = 70000 };
    struct random_stream random = random_open(1, RANDOM_TEST, 0);
    int count[BOUND] = {0};
    for (int i = 0; i < DRAWS; i++)
        count[random_below(&random, BOUND)]++;
    double chi = 0;
    for (int i = 0; i < BOUND; i++)
        chi += pow(count[i] - DRAWS / BOUND, 2) / ((double)DRAWS / BOUND);
    assert_true(chi < 22.5); /* 6 degrees of freedom: one seed in a thousand is above */
    assert_int_equal(random_below(&random, 1), 0);
    for (int i = 0; i < 100; i++)
        assert_true(random_below(&random, UINT64_MAX) < UINT64_MAX);
}

static void test_moments(void **state) {
    (void)state;
    enum { DRAWS = 100000 };
    struct random_stream random = random_open(2, RANDOM_TEST, 0);
    double uniform = 0, sum = 0, square = 0, fourth = 0;
    for (int i = 0; i < DRAWS; i++) {
        double u = random_uniform(&random), x = random_normal(&random);
        assert_true(u >= 0 && u < 1 && isfinite(x));
        uniform += u;
        sum += x;
        square += x * x;
        fourth += x * x * x * x;
    }
    /* each within five standard errors */
    assert_true(fabs(uniform / DRAWS - 0.5) < 5 * sqrt(1.0 / 12 / DRAWS));
    assert_true(fabs(sum / DRAWS) < 5 * sqrt(1.0 / DRAWS));
    assert_true(fabs(square / DRAWS - 1) < 5 * sqrt(2.0 / DRAWS));
    assert_true(fabs(fourth / DRAWS - 3) < 5 * sqrt(96.0 / DRAWS));
}

static void test_permutations(void **state) {
    (void)state;
    int64_t permutation[1000];
    char seen[1000] = {0};
    struct random_stream random = random_open(3, RANDOM_TEST, 0);
    random_permutation(&random, 1000, permutation);
    for (int i = 0; i < 1000; i++)
        seen[permutation[i]]++;
    for (int i = 0; i < 1000; i++)
        assert_int_equal(seen[i], 1);
    int count[27] = {0}; /* of the six orders of three, by their digits in base 3 */
    for (int i = 0; i < 60000; i++) {
        random_permutation(&random, 3, permutation);
        count[permutation[0] * 9 + permutation[1] * 3 + permutation[2]]++;
    }
    const int orders[] = {5, 7, 11, 15, 19, 21};
    for (int i = 0; i < 6; i++)
        assert_in_range(count[orders[i]], 9500, 10500); /* 10000, five standard errors are 456 */
}

static float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void test_bf16_values(void **state) {
    (void)state;
    const struct {
        float value;
        bf16 expected;
    } rows[] = {
        {0.0f, 0x0000},
        {-0.0f, 0x8000},
        {1.0f, 0x3F80},
        {-2.0f, 0xC000},
        {3.14159265f, 0x4049},
        {1.0f + 0x1p-8f, 0x3F80},            /* a tie goes to the even neighbour below … */
        {1.0f + 0x3p-8f, 0x3F82},            /* … or above */
        {1.0f + 0x1p-8f + 0x1p-20f, 0x3F81}, /* just above a tie */
        {1.0f + 0x1p-8f - 0x1p-20f, 0x3F80}, /* just below one */
        {0x1.fep0f + 0x1p-8f, 0x4000},       /* carries into the exponent */
        {0x1.fffffep127f, 0x7F80},           /* the largest float rounds to infinity */
        {-INFINITY, 0xFF80},
        {0x1p-149f, 0x0000},
        {0x1p-133f, 0x0001}, /* subnormal */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(bf16_from_float(rows[i].value), rows[i].expected);
    assert_true(isnan(bf16_to_float(bf16_from_float(from_bits(0x7F800001))))); /* payload only in the lost bits */
    assert_true(isnan(bf16_to_float(bf16_from_float(from_bits(0xFFFFFFFF)))));
}

/* Every 16-bit number comes back, and a random float below `most` goes to the nearest, by distances in double. */
static void check_nearest(uint16_t (*from_float)(float), float (*to_float)(uint16_t), float most) {
    for (uint32_t x = 0; x <= 0xFFFF; x++) {
        float value = to_float((uint16_t)x);
        if (!isnan(value))
            assert_int_equal(from_float(value), x);
    }
    struct random_stream random = random_open(4, RANDOM_TEST, 0);
    for (int i = 0; i < 100000; i++) {
        float value = from_bits(random_u32(&random) & 0x7FFFFFFF);
        if (!(value < most))
            continue;
        uint16_t rounded = from_float(value);
        double error = fabs((double)to_float(rounded) - value);
        assert_true(error <= fabs((double)to_float((uint16_t)(rounded + 1)) - value));
        if (rounded)
            assert_true(error <= fabs((double)to_float((uint16_t)(rounded - 1)) - value));
    }
}

static void test_bf16_nearest(void **state) {
    (void)state;
    check_nearest(bf16_from_float, bf16_to_float, 0x1.fcp127f);
}

static void test_f16_nearest(void **state) {
    (void)state;
    check_nearest(f16_from_float, f16_to_float, 65504);
    assert_int_equal(f16_from_float(1 + 0x1p-11f), 0x3C00); /* ties to even */
    assert_int_equal(f16_from_float(1 + 3 * 0x1p-11f), 0x3C02);
    assert_int_equal(f16_from_float(65519.99f), 0x7BFF);
    assert_int_equal(f16_from_float(-65520), 0xFC00);
    assert_true(isnan(f16_to_float(f16_from_float(NAN))));
}

static void test_f16(void **state) {
    (void)state;
    const struct {
        uint16_t bits;
        float value;
    } rows[] = {{0x0000, 0.0f},     {0x3C00, 1.0f},     {0xC000, -2.0f},        {0x7BFF, 65504.0f},
                {0x0001, 0x1p-24f}, {0x0400, 0x1p-14f}, {0x03FF, 0x1.ff8p-15f}, {0x3555, 0x1.554p-2f},
                {0x7C00, INFINITY}, {0xFC00, -INFINITY}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_true(f16_to_float(rows[i].bits) == rows[i].value);
    assert_true(isnan(f16_to_float(0x7E00)));
    assert_true(signbit(f16_to_float(0x8000)));
}

static void test_dtypes(void **state) {
    (void)state;
    const size_t sizes[DTYPE_COUNT] = {[F32] = 4, [BF16] = 2, [F16] = 2, [F64] = 8, [I32] = 4, [I64] = 8, [U8] = 1};
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        assert_int_equal(dtype_size((enum dtype)dtype), sizes[dtype]);
        assert_non_null(dtype_name((enum dtype)dtype));
    }
    assert_string_equal(dtype_name(BF16), "bf16");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox_known_answers),
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_below),
        cmocka_unit_test(test_moments),
        cmocka_unit_test(test_permutations),
        cmocka_unit_test(test_bf16_values),
        cmocka_unit_test(test_bf16_nearest),
        cmocka_unit_test(test_f16),
        cmocka_unit_test(test_f16_nearest),
        cmocka_unit_test(test_dtypes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
