#include "text_fixture.h"

#include <unistd.h>
#include <zlib.h>
#ifdef BERTH_ZSTD
#include <zstd.h>
#endif

#include "data/documents.h"

static void put(const char *folder, const char *name, const char *bytes) {
    char *path = path_join(folder, name);
    assert_int_equal(file_write_all(path, bytes, strlen(bytes)), OK);
    free(path);
}

static const struct document_options plain = {0};

/* A source that is opened anew and put at a place gives the same next batch from there. */
static void check_from(char *const *patterns, int count, const struct document_options *options, int64_t batch_bytes,
                       const struct document_place *place, int64_t read, const struct document_batch *expected) {
    struct document_source *source;
    struct document_batch batch = {0};
    assert_int_equal(documents_open(patterns, count, options, &source), OK);
    assert_int_equal(documents_seek(source, place), OK);
    assert_int_equal(documents_next(source, batch_bytes, &batch), OK);
    assert_int_equal(batch.count, expected->count);
    for (int64_t i = 0; i < batch.count; i++)
        assert_int_equal(batch.ends[i], expected->ends[i]);
    if (batch.count)
        assert_memory_equal(batch.text.data, expected->text.data, (size_t)batch.ends[batch.count - 1]);
    assert_int_equal(documents_read(source), read);
    document_batch_free(&batch);
    documents_close(source);
}

/* All documents of a source, batch after batch, '|' between them and '/' between batches. */
static void check(char *const *patterns, int count, const struct document_options *options, int64_t batch_bytes,
                  const char *expected) {
    struct document_source *source;
    struct document_batch batch = {0};
    struct text got = {0};
    text_append(&got, "", 0);
    assert_int_equal(documents_open(patterns, count, options, &source), OK);
    for (;;) {
        struct document_place place = documents_place(source);
        assert_int_equal(documents_next(source, batch_bytes, &batch), OK);
        check_from(patterns, count, options, batch_bytes, &place, documents_read(source), &batch);
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
    check(&folder, 1, &plain, 1000, "one\n|two\n|three\r\n|four\nfour too|five\n");
    check(&glob, 1, &plain, 1000, "one\n|two\n|three\r\n|four\nfour too");
    check((char *[]){inner, folder}, 2, &plain, 10, "five\n|one\n|two\n/three\r\n|four\nfour too/five\n");
    check(&folder, 1, &(struct document_options){.cut_bytes = 1}, 1000, "one\n|two\n|three\r\n|four\n|four too|five\n");
    struct document_source *source;
    char *absent = path_join(folder, "absent");
    assert_int_equal(documents_open(&absent, 1, &plain, &source), BAD_INPUT);
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
    assert_int_equal(documents_open(&folder, 1, &plain, &source), OK);
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

/* The status of reading a file to its end, whatever comes first. */
static status read_all(char *path, const struct document_options *options) {
    struct document_source *source;
    struct document_batch batch = {0};
    status code = documents_open(&path, 1, options, &source);
    if (code != OK)
        return code;
    do
        code = documents_next(source, 1000, &batch);
    while (code == OK && batch.count);
    document_batch_free(&batch);
    documents_close(source);
    return code;
}

/* `bytes` of pseudo-random letters, so that they do not compress to nothing. */
static void add_letters(struct text *text, int bytes) {
    uint32_t state = 1;
    for (int i = 0; i < bytes; i++) {
        state = state * 1664525 + 1013904223;
        text_append(text, (char[]){(char)('a' + state % 26 * (state >> 24) / 256)}, 1);
    }
}

static void gzip(const char *path, const char *mode, const struct text *text) {
    gzFile file = gzopen(path, mode);
    assert_int_equal(gzwrite(file, text->data, (unsigned)text->length), text->length);
    assert_int_equal(gzclose(file), Z_OK);
}

static void check_packed(const char *path, const struct text *text) {
    struct text expected = {0};
    text_append(&expected, text->data, text->length - 1); /* without the empty line */
    text_add(&expected, "|");
    text_append(&expected, text->data, text->length - 1);
    check((char *[]){(char *)path}, 1, &plain, 1 << 30, expected.data);
    text_free(&expected);
}

/* Cut short anywhere, or with a byte changed in the middle, a packed file is refused by name. */
static void check_broken(const char *path) {
    struct text bytes = {0};
    assert_int_equal(file_read(path, &bytes), OK);
    size_t length = bytes.length;
    for (size_t cut = 5; cut < length; cut += length / 7) {
        assert_int_equal(file_write_all(path, bytes.data, length - cut), OK);
        assert_int_equal(read_all((char *)path, &plain), BAD_INPUT);
        assert_non_null(strstr(status_message(), path));
    }
    bytes.data[length / 2] ^= 0x55;
    assert_int_equal(file_write_all(path, bytes.data, length), OK);
    assert_int_equal(read_all((char *)path, &plain), BAD_INPUT);
    assert_non_null(strstr(status_message(), path));
    text_free(&bytes);
}

static void test_compressed(void **state) {
    (void)state;
    char *folder = fixture_folder(), *path = path_join(folder, "text.gz");
    struct text text = {0};
    add_letters(&text, 3000000);
    text_add(&text, "\n\n");
    gzip(path, "wb", &text);
    gzip(path, "ab", &text); /* a second member */
    check_packed(path, &text);
    gzip(path, "wb", &text);
    check_broken(path);
#ifdef BERTH_ZSTD
    size_t bound = ZSTD_compressBound(text.length);
    char *packed = xmalloc(2 * bound);
    ZSTD_CCtx *context = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
    size_t bytes = ZSTD_compress2(context, packed, bound, text.data, text.length);
    memcpy(packed + bytes, packed, bytes); /* a second frame */
    assert_int_equal(file_write_all(path, packed, 2 * bytes), OK);
    check_packed(path, &text);
    assert_int_equal(file_write_all(path, packed, bytes), OK);
    check_broken(path);
    ZSTD_freeCCtx(context);
    free(packed);
#else
    put(folder, "text.gz", "\x28\xB5\x2F\xFD and more");
    assert_int_equal(read_all(path, &plain), BAD_INPUT);
    assert_non_null(strstr(status_message(), "Zstandard"));
#endif
    text_free(&text);
    assert_int_equal(folder_remove(folder), OK);
    free(path);
    free(folder);
}

static void test_json_lines_and_whole_files(void **state) {
    (void)state;
    char *folder = fixture_folder(), *path = path_join(folder, "a.jsonl");
    struct document_options body = {.json_key = "body"}, whole = {.whole_files = true};
    put(folder, "a.jsonl",
        "{\"text\": \"one\\n\\ntwo \\u00e9\", \"body\": \"x\"}\n\n{\"id\": 1, \"text\": \" \", \"body\": "
        "\"y\"}\r\n{\"text\": "
        "\"three\", \"body\": \"z\"}");
    check(&path, 1, &plain, 1000, "one\n\ntwo \u00e9\n|three\n");
    check(&path, 1, &body, 1000, "x\n|y\n|z\n");
    check(&path, 1, &whole, 1000, "one\n\ntwo \u00e9\n|three\n");
    const char *wrong[] = {"{\"text\": \"a\"}\n{\"text\": 3}", "{\"text\": \"a\"}\n{\"txt\": \"b\"}",
                           "{\"text\": \"a\"}\nplain text"};
    for (int i = 0; i < 3; i++) {
        put(folder, "a.jsonl", wrong[i]);
        assert_int_equal(read_all(path, &plain), BAD_INPUT);
        assert_non_null(strstr(status_message(), "a.jsonl: line 2"));
    }
    assert_int_equal(unlink(path), 0);
    put(folder, "a.txt", "one\n\ntwo");
    put(folder, "b.txt", "\n\nthree\n");
    check(&folder, 1, &whole, 1000, "one\ntwo|three\n");
    assert_int_equal(folder_remove(folder), OK);
    free(path);
    free(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_documents), cmocka_unit_test(test_long_lines),
                                       cmocka_unit_test(test_compressed),
                                       cmocka_unit_test(test_json_lines_and_whole_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
