/* JSON: what is read, how wrong input is named, and that what is written reads back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/philox.h"

static json *parse(const char *text) {
    json *root = NULL;
    assert_int_equal(json_parse("x.json", text, strlen(text), &root), OK);
    return root;
}

static void test_typed_access(void **state) {
    (void)state;
    json *root = parse("{\"a\": 3, \"b\": 0.5, \"c\": true, \"d\": \"t\\u00e9\", \"e\": [1, 2, 3], \"n\": null}");
    int64_t whole;
    double real;
    bool flag;
    const char *string;
    json *array;
    assert_int_equal(json_get_int("x.json", root, "a", &whole), OK);
    assert_int_equal(whole, 3);
    assert_int_equal(json_get_double("x.json", root, "b", &real), OK);
    assert_true(real == 0.5);
    assert_int_equal(json_get_bool("x.json", root, "c", &flag), OK);
    assert_true(flag);
    assert_int_equal(json_get_string("x.json", root, "d", &string), OK);
    assert_string_equal(string, "t\xC3\xA9");
    assert_int_equal(json_get_array("x.json", root, "e", &array), OK);
    assert_int_equal(json_count(array), 3);
    int64_t sum = 0;
    for (json *item = json_first(array); item; item = json_next(item)) {
        assert_true(json_value_int(item, &whole));
        sum = sum * 10 + whole;
    }
    assert_int_equal(sum, 123); /* in order */
    assert_true(json_is_null(json_get(root, "n")));
    assert_null(json_get(root, "A")); /* keys are case-sensitive */
    json_free(root);
}

static void test_wrong_types(void **state) {
    (void)state;
    json *root = parse("{\"a\": 3.5, \"big\": 1e300, \"s\": \"3\"}");
    int64_t whole;
    double real;
    bool flag;
    assert_int_equal(json_get_int("x.json", root, "a", &whole), BAD_INPUT);
    assert_string_equal(status_message(), "x.json: key \"a\" has the wrong type, expected an integer");
    assert_int_equal(json_get_int("x.json", root, "big", &whole), BAD_INPUT);
    assert_int_equal(json_get_double("x.json", root, "s", &real), BAD_INPUT);
    assert_int_equal(json_get_bool("x.json", root, "missing", &flag), BAD_INPUT);
    assert_string_equal(status_message(), "x.json: key \"missing\" is missing, expected true or false");
    json_free(root);
}

static void test_broken_documents(void **state) {
    (void)state;
    json *root;
    assert_int_equal(json_parse("x.json", "{\"a\": }", 7, &root), BAD_INPUT);
    assert_string_equal(status_message(), "x.json: not valid JSON at byte 6");
    assert_int_equal(json_parse("x.json", "", 0, &root), BAD_INPUT);
    assert_int_equal(json_parse("x.json", "[1, 2", 5, &root), BAD_INPUT);
    assert_int_equal(json_read_file("/nonexistent/x.json", &root), BAD_INPUT);
    assert_non_null(strstr(status_message(), "/nonexistent/x.json"));
}

static void test_strings_read_back(void **state) {
    (void)state;
    char hard[256];
    int length = 0;
    for (int c = 1; c < 128; c++)
        hard[length++] = (char)c;
    strcpy(hard + length, "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80");
    struct text out = {0};
    json_add_string(&out, hard);
    json *root = parse(out.data);
    assert_string_equal(json_value_string(root), hard);
    json_free(root);
    text_clear(&out);
    json_add_string(&out, "a\"b\\c\n");
    assert_string_equal(out.data, "\"a\\\"b\\\\c\\u000a\"");
    text_free(&out);
}

static void writes(double value, const char *expected) {
    struct text out = {0};
    json_add_double(&out, value);
    assert_string_equal(out.data, expected);
    text_free(&out);
}

static void test_doubles(void **state) {
    (void)state;
    writes(0.1, "0.1");
    writes(1e-12, "1e-12");
    writes(3, "3");
    writes(-0.5, "-0.5");
    writes(1.0 / 3, "0.3333333333333333");
    writes(9007199254740991, "9007199254740991");
    writes(NAN, "null");
    writes(-INFINITY, "null");
    struct random_stream random = random_open(1, RANDOM_TEST, 0);
    for (int i = 0; i < 20000; i++) {
        uint64_t bits = (uint64_t)random_u32(&random) << 32 | random_u32(&random);
        double value;
        memcpy(&value, &bits, sizeof value);
        if (!isfinite(value))
            continue;
        struct text out = {0};
        json_add_double(&out, value);
        assert_true(strtod(out.data, NULL) == value);
        text_free(&out);
    }
}

static void test_values_again(void **state) {
    (void)state;
    const char *document = "{\"a\":[1,2.5,\"x\",null,true],\"b\":{\"c\":false}}";
    json *root = parse(document);
    struct text out = {0};
    json_add_value(&out, root);
    assert_string_equal(out.data, document);
    text_free(&out);
    json_free(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_typed_access),     cmocka_unit_test(test_wrong_types),
        cmocka_unit_test(test_broken_documents), cmocka_unit_test(test_strings_read_back),
        cmocka_unit_test(test_doubles),          cmocka_unit_test(test_values_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
