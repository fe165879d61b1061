/* Messages of failures, growing strings, edit distance. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "base/text.h"

static void test_messages(void **state) {
    (void)state;
    assert_int_equal(bad_input("%s:%d: wrong", "a.ini", 3), BAD_INPUT);
    assert_string_equal(status_message(), "a.ini:3: wrong");
    assert_int_equal(failed("disk"), FAILED);
    assert_int_equal(stopped("signal"), STOPPED);
    assert_string_equal(status_message(), "signal");
    assert_int_equal(failed("two\nlines\r\nhere"), FAILED);
    assert_string_equal(status_message(), "two lines  here"); /* a message is one line */
}

static void test_message_made_from_the_last_one(void **state) {
    (void)state;
    failed("inner");
    failed("outer: %s", status_message());
    assert_string_equal(status_message(), "outer: inner");
    assert_int_equal(status_context(BAD_INPUT, "shard %d", 7), BAD_INPUT);
    assert_string_equal(status_message(), "shard 7: outer: inner");
}

static void test_long_message(void **state) {
    (void)state;
    char *name = xmalloc(10001);
    memset(name, 'x', 10000);
    name[10000] = 0;
    failed("%s", name);
    status_context(FAILED, "%s", name);
    assert_in_range(strlen(status_message()), 1000, 10000); /* cut, not overrun */
    assert_non_null(strstr(status_message(), "x: x"));
    free(name);
}

static status two_steps(status first) {
    TRY(first);
    return stopped("second step");
}

static status with_label(status first) {
    status code = OK;
    TRY_GOTO(first, done);
    code = STOPPED;
done:
    return code;
}

static void test_try(void **state) {
    (void)state;
    assert_int_equal(two_steps(FAILED), FAILED);
    assert_int_equal(two_steps(OK), STOPPED);
    assert_int_equal(with_label(BAD_INPUT), BAD_INPUT);
    assert_int_equal(with_label(OK), STOPPED);
}

static void *other_thread(void *carried) {
    failed("of the other thread");
    *(char **)carried = xstrdup(status_message());
    return NULL;
}

static void test_message_belongs_to_its_thread(void **state) {
    (void)state;
    pthread_t thread;
    char *carried = NULL;
    failed("of this thread");
    assert_int_equal(pthread_create(&thread, NULL, other_thread, &carried), 0);
    pthread_join(thread, NULL);
    assert_string_equal(status_message(), "of this thread");
    assert_int_equal(status_set(FAILED, carried), FAILED);
    assert_string_equal(status_message(), "of the other thread");
    free(carried);
}

static void test_text_grows(void **state) {
    (void)state;
    struct text text = {0};
    char expected[6000] = "";
    for (int i = 0; i < 1000; i++) {
        text_printf(&text, "%d,", i);
        sprintf(expected + strlen(expected), "%d,", i);
    }
    assert_string_equal(text.data, expected);
    assert_int_equal(text.length, strlen(expected));
    text_clear(&text);
    assert_string_equal(text.data, "");
    text_append(&text, "a\0b", 3); /* bytes, not strings */
    text_add(&text, "c");
    assert_int_equal(text.length, 4);
    assert_memory_equal(text.data, "a\0bc", 5);
    text_free(&text);
    assert_null(text.data);
}

static void test_edit_distance(void **state) {
    (void)state;
    assert_int_equal(edit_distance("", ""), 0);
    assert_int_equal(edit_distance("", "abc"), 3);
    assert_int_equal(edit_distance("abc", ""), 3);
    assert_int_equal(edit_distance("kitten", "sitting"), 3);
    assert_int_equal(edit_distance("saturday", "sunday"), 3);
    assert_int_equal(edit_distance("lr", "rl"), 2); /* a swap is two edits */
}

static void test_prefix_and_suffix(void **state) {
    (void)state;
    assert_true(starts_with("data.train", "data."));
    assert_false(starts_with("dat", "data."));
    assert_true(ends_with("x.hdf5", ".hdf5"));
    assert_false(ends_with("df5", ".hdf5"));
    assert_true(ends_with("x", ""));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_message_made_from_the_last_one),
        cmocka_unit_test(test_long_message),
        cmocka_unit_test(test_try),
        cmocka_unit_test(test_message_belongs_to_its_thread),
        cmocka_unit_test(test_text_grows),
        cmocka_unit_test(test_edit_distance),
        cmocka_unit_test(test_prefix_and_suffix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
