#include "text_fixture.h"

#include "data/documents.h"

static void put(const char *folder, const char *name, const char *bytes) {
    char *path = path_join(folder, name);
    assert_int_equal(file_write_all(path, bytes, strlen(bytes)), OK);
    free(path);
}

/* All documents of a source, batch after batch, '|' between them and '/' between batches. */
static void check(char *const *patterns, int count, int64_t cut_bytes, int64_t batch_bytes, const char *expected) {
    struct document_source *source;
    struct document_batch batch = {0};
    struct text got = {0};
    text_append(&got, "", 0);
    assert_int_equal(documents_open(patterns, count, cut_bytes, &source), OK);
    for (;;) {
        assert_int_equal(documents_next(source, batch_bytes, &batch), OK);
        if (batch.count == 0)
            break;
        if (got.length)
            text_add(&got, "/");
        for (int64_t i = 0; i < batch.count; i++) {
            int64_t begin = i ? batch.ends[i - 1] : 0;
            text_add(&got, i ? "|" : "");
            text_append(&got, batch.text.data + begin, (size_t)(batch.ends[i] - begin));
        }
    }
    assert_string_equal(got.data, expected);
    assert_int_equal(documents_read(source), documents_bytes(source));
    document_batch_free(&batch);
    documents_close(source);
    text_free(&got);
}

static void test_documents(void **state) {
    (void)state;
    char *folder = fixture_folder(), *inner = path_join(folder, "inner"), *glob = path_join(folder, "*.txt");
    put(folder, "b.txt", "\n\nthree\r\n \r\nfour\nfour too");
    put(folder, "a.txt", "one\n\n\n\ntwo\n");
    put(folder, ".hidden", "no");
    put(folder, "empty.txt", "");
    assert_int_equal(folder_create(inner), OK);
    put(inner, "c", "five\n\n\n");
    check(&folder, 1, 0, 1000, "one\n|two\n|three\r\n|four\nfour too|five\n");
    check(&glob, 1, 0, 1000, "one\n|two\n|three\r\n|four\nfour too");
    check((char *[]){inner, folder}, 2, 0, 10, "five\n|one\n|two\n/three\r\n|four\nfour too/five\n");
    check(&folder, 1, 1, 1000, "one\n|two\n|three\r\n|four\n|four too|five\n");
    struct document_source *source;
    char *absent = path_join(folder, "absent");
    assert_int_equal(documents_open(&absent, 1, 0, &source), BAD_INPUT);
    assert_non_null(strstr(status_message(), absent));
    assert_int_equal(folder_remove(folder), OK);
    free(absent);
    free(glob);
    free(inner);
    free(folder);
}

/* Lines and documents longer than what is read at once. */
static void test_long_lines(void **state) {
    (void)state;
    char *folder = fixture_folder();
    struct text text = {0};
    for (int document = 0; document < 3; document++) {
        for (int i = 0; i < 500000; i++)
            text_add(&text, "word ");
        text_add(&text, document < 2 ? "\n\n" : "");
    }
    put(folder, "long", text.data);
    struct document_source *source;
    struct document_batch batch = {0};
    assert_int_equal(documents_open(&folder, 1, 0, &source), OK);
    for (int document = 0; document < 3; document++) {
        assert_int_equal(documents_next(source, 1, &batch), OK);
        assert_int_equal(batch.count, 1);
        assert_int_equal(batch.ends[0], 2500000 + (document < 2));
        assert_memory_equal(batch.text.data, text.data, 2500000);
    }
    assert_int_equal(documents_next(source, 1, &batch), OK);
    assert_int_equal(batch.count, 0);
    documents_close(source);
    document_batch_free(&batch);
    text_free(&text);
    assert_int_equal(folder_remove(folder), OK);
    free(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_documents), cmocka_unit_test(test_long_lines)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
