/* Each case is a text with a '|' wherever a sentence must end. */
#include "text_fixture.h"

#include "base/text.h"
#include "data/sentences.h"

static void check(const char *marked) {
    struct text plain = {0}, got = {0};
    for (const char *c = marked; *c; c++)
        if (*c != '|')
            text_append(&plain, c, 1);
    struct span_list sentences = {0};
    sentences_split(plain.data, plain.length, &sentences);
    for (int64_t i = 0; i < sentences.count; i++) {
        if (i)
            text_add(&got, "|");
        text_append(&got, plain.data + sentences.items[i].begin, sentences.items[i].end - sentences.items[i].begin);
    }
    /* white space between sentences belongs to none */
    struct text expected = {0};
    for (const char *c = marked; *c; c++) {
        text_append(&expected, c, 1);
        if (*c == '|')
            c += strspn(c + 1, " \n");
    }
    assert_string_equal(got.data, expected.data);
    free(sentences.items);
    text_free(&plain);
    text_free(&got);
    text_free(&expected);
}

static void test_running_text(void **state) {
    (void)state;
    check("It rained.| We went home.| Did you?| No!| Well");
    check("He met Mr. Brown and Dr. Green at St. Paul's.| They spoke.");
}

static void test_abbreviations(void **state) {
    (void)state;
    check("The U.S. Congress met in Washington, D. C.| It adjourned.");
    check("He came back to the U.S.| The war was over.");
    check("Write to J. R. R. Tolkien or George W. Bush.| They answer.");
    check("Fruits, e.g. Apples, i.e. Pears, etc., sell well.| Corn, etc.| The rest fell.");
    check("It cost $3.50 in No. 5, vol. 2, p. 17.| He said no.| Then he left.");
    check("On Jan. 5 and in Dec. 1941.| In the month of Jan.| We wait.");
    check("at 9 a.m. Monday.| We met at 5 p.m.| The others came later.");
    check("See www.example.com for 1.5 million.| 3 came.");
    check("1. The first point.| 2. The second point.");
    check("Smith vs. Jones, Acme Inc. Boston, and others.");
}

static void test_quotes_and_ellipses(void **state) {
    (void)state;
    check("\"Go!\" he cried.| \"Why?\" she asked.| (He went.)| She did not.");
    check("He said, \"Come in.\"| \"I will,\" she said.");
    check("\xE2\x80\x9CStop.\xE2\x80\x9D| He stopped.| \xE2\x80\x98No.\xE2\x80\x99| Yes.");
    check("Wait... what?| Wait...| Then go.| So . . . it was.");
    check("Made in the \"U.S.A.\"| Listen.");
    check("What?!| Really.");
}

static void test_other_scripts(void **state) {
    (void)state;
    check(
        "\xE4\xBB\x8A\xE5\xA4\xA9\xE3\x80\x82|\xE6\x98\x8E\xE5\xA4\xA9\xEF\xBC\x9F|"
        "\xE3\x80\x8C\xE5\xA5\xBD\xE3\x80\x82\xE3\x80\x8D|"
        "\xE5\xA5\xBD");
    check("\xD0\x94\xD0\xB0.| \xD0\x9D\xD0\xB5\xD1\x82.");        /* Да. Нет. */
    check("\xE0\xA4\xB9\xE0\xA4\xBE\xE0\xA5\xA4| \xE0\xA4\xA8");  /* danda */
    check("\xD9\x87\xD9\x84\xD8\x9F| \xD9\x86\xD8\xB9\xD9\x85."); /* Arabic question mark */
}

static void test_lines(void **state) {
    (void)state;
    check("CHAPTER I|\nThe story begins on a day in the early spring of\nthat year.| It ends\nin autumn.");
    check("Roses are red|\nViolets are blue");
    check("A line of more than forty bytes that was wrapped by Mr.\nSmith.");
    check("One.|\n\n\nTwo.|\n  Three.");
    struct span_list sentences = {0};
    const char lines[] = "One. Two.\r\n\n  three \nfour";
    sentences_lines(lines, sizeof lines - 1, &sentences);
    assert_int_equal(sentences.count, 3);
    assert_int_equal(sentences.items[0].end, 9);
    assert_memory_equal(lines + sentences.items[1].begin, "three", 5);
    assert_int_equal(sentences.items[1].end - sentences.items[1].begin, 5);
    sentences_split("", 0, &sentences);
    assert_int_equal(sentences.count, 0);
    sentences_split(" \n\n ", 4, &sentences);
    assert_int_equal(sentences.count, 0);
    free(sentences.items);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_running_text), cmocka_unit_test(test_abbreviations),
                                       cmocka_unit_test(test_quotes_and_ellipses), cmocka_unit_test(test_other_scripts),
                                       cmocka_unit_test(test_lines)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
