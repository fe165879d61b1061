/* The safetensors format against bytes written by hand, files over 4 GB, and damage. */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/memory.h"
#include "train/safetensors.h"

static char folder[] = "/tmp/berth-safetensors-XXXXXX";
static char path[64];

static int make_folder(void **state) {
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/x.safetensors", folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    return folder_remove(folder) == OK ? 0 : -1;
}

/* Length prefix, header, data. */
static void write_raw(const char *header, const void *data, size_t bytes) {
    struct text text = {0};
    uint64_t length = strlen(header);
    for (int i = 0; i < 8; i++)
        text_append(&text, (char[]){(char)(length >> 8 * i)}, 1);
    text_add(&text, header);
    text_append(&text, data, bytes);
    assert_int_equal(file_write_all(path, text.data, text.length), OK);
    text_free(&text);
}

static void writes_the_format(void **state) {
    (void)state;
    const struct safetensors_entry entries[] = {{"b", 2, {2, 3}}, {"a\"", 1, {1, 1}}};
    const float values[] = {1, -2, 0.5f, -0.0f, 3, 1e-40f, 7};
    struct safetensors_writer writer;
    assert_int_equal(safetensors_create(&writer, path, entries, 2, 12), OK);
    assert_int_equal(safetensors_write(&writer, values, 4), OK);
    assert_int_equal(safetensors_write(&writer, values + 4, 3), OK);
    assert_int_equal(safetensors_commit(&writer), OK);

    const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\",\"step\":\"12\"},\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],"
        "\"data_offsets\":[0,24]},\"a\\\"\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[24,28]}}";
    size_t length = (sizeof header - 1 + 7) / 8 * 8;
    struct text bytes = {0};
    assert_int_equal(file_read(path, &bytes), OK);
    assert_int_equal(bytes.length, 8 + length + sizeof values);
    assert_int_equal((unsigned char)bytes.data[0] | (unsigned char)bytes.data[1] << 8, length);
    assert_memory_equal(bytes.data + 8, header, sizeof header - 1);
    for (size_t i = 8 + sizeof header - 1; i < 8 + length; i++)
        assert_int_equal(bytes.data[i], ' ');
    assert_memory_equal(bytes.data + 8 + length, values, sizeof values);
    text_free(&bytes);
}

static void reads_back_every_bit(void **state) {
    (void)state;
    uint32_t bits[] = {0x7FC12345, 0x80000000, 1, 0xFF800000, 0x3F800000, 0x7F7FFFFF};
    float values[6], back[6];
    memcpy(values, bits, sizeof bits);
    struct safetensors_writer writer;
    const struct safetensors_entry entries[] = {{"w", 2, {3, 2}}};
    assert_int_equal(safetensors_create(&writer, path, entries, 1, -1), OK);
    assert_int_equal(safetensors_write(&writer, values, 6), OK);
    assert_int_equal(safetensors_commit(&writer), OK);
    struct safetensors file;
    assert_int_equal(safetensors_open(path, &file), OK);
    assert_int_equal(file.count, 1);
    assert_int_equal(file.step, -1);
    const struct safetensors_tensor *tensor = safetensors_find(&file, "w");
    assert_non_null(tensor);
    assert_null(safetensors_find(&file, "v"));
    assert_int_equal(tensor->rank, 2);
    assert_int_equal(tensor->shape[0], 3);
    assert_int_equal(safetensors_read(&file, tensor, 0, 6, back), OK);
    assert_memory_equal(back, bits, sizeof bits);
    assert_int_equal(safetensors_read(&file, tensor, 4, 2, back), OK);
    assert_memory_equal(back, bits + 4, 8);
    assert_int_equal(safetensors_read(&file, tensor, 5, 2, back), BAD_INPUT);
    safetensors_close(&file);
}

/* Tensors from a few bytes to several megabytes, in any succession, stay in their order. */
static void sizes_of_all_kinds(void **state) {
    (void)state;
    enum { COUNT = 9 };
    const int64_t sizes[COUNT] = {3, 150000, 5, 262144, 1, 131073, 700000, 100000, 170000};
    struct safetensors_entry entries[COUNT];
    char names[COUNT][2];
    float *values = xcalloc(700000, sizeof *values);
    struct safetensors_writer writer;
    for (int i = 0; i < COUNT; i++) {
        memcpy(names[i], (char[]){(char)('a' + i), 0}, 2);
        entries[i] = (struct safetensors_entry){names[i], 1, {sizes[i], 1}};
    }
    assert_int_equal(safetensors_create(&writer, path, entries, COUNT, -1), OK);
    for (int i = 0; i < COUNT; i++) {
        for (int64_t j = 0; j < sizes[i]; j++)
            values[j] = (float)(i * 1000000 + j);
        assert_int_equal(safetensors_write(&writer, values, sizes[i]), OK);
    }
    assert_int_equal(safetensors_commit(&writer), OK);
    struct safetensors file;
    assert_int_equal(safetensors_open(path, &file), OK);
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(safetensors_read(&file, safetensors_find(&file, names[i]), 0, sizes[i], values), OK);
        for (int64_t j = 0; j < sizes[i]; j++)
            if (values[j] != (float)(i * 1000000 + j))
                fail_msg("tensor %s, element %lld is %g", names[i], (long long)j, values[j]);
    }
    safetensors_close(&file);
    free(values);
}

static void too_few_values_are_refused(void **state) {
    (void)state;
    struct safetensors_writer writer;
    const struct safetensors_entry entries[] = {{"w", 1, {3, 1}}};
    assert_int_equal(safetensors_create(&writer, path, entries, 1, -1), OK);
    assert_int_equal(safetensors_write(&writer, (float[]){1, 2}, 2), OK);
    assert_int_equal(safetensors_commit(&writer), FAILED);
}

static void reads_half_precision(void **state) {
    (void)state;
    /* IEEE half: 1, -2, 65504, 2^-24, inf; bfloat16: 1, -2, 3.140625, 2^-133 */
    const uint16_t data[] = {0x3C00, 0xC000, 0x7BFF, 0x0001, 0x7C00, 0x3F80, 0xC000, 0x4049, 0x0001};
    write_raw(
        "{\"h\":{\"dtype\":\"F16\",\"shape\":[5],\"data_offsets\":[0,10]},"
        "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[10,18]},"
        "\"n\":{\"dtype\":\"I64\",\"shape\":[1,0],\"data_offsets\":[18,18]}}",
        data, sizeof data);
    struct safetensors file;
    float values[5];
    assert_int_equal(safetensors_open(path, &file), OK);
    assert_int_equal(safetensors_read(&file, safetensors_find(&file, "h"), 0, 5, values), OK);
    assert_true(values[0] == 1 && values[1] == -2 && values[2] == 65504 && values[3] == 0x1p-24f && isinf(values[4]));
    assert_int_equal(safetensors_read(&file, safetensors_find(&file, "b"), 0, 4, values), OK);
    assert_true(values[0] == 1 && values[1] == -2 && values[2] == 3.140625f && values[3] == 0x1p-133f);
    assert_int_equal(safetensors_read(&file, safetensors_find(&file, "n"), 0, 0, values), BAD_INPUT);
    assert_non_null(strstr(status_message(), "I64"));
    safetensors_close(&file);
}

/* A sparse file: 5 GB of zeros, with values at its far end. */
static void offsets_beyond_4_gb(void **state) {
    (void)state;
    const int64_t rows = 1250000001, first_bytes = rows * 4;
    struct text header = {0};
    text_printf(&header,
                "{\"big\":{\"dtype\":\"F32\",\"shape\":[%lld,1],\"data_offsets\":[0,%lld]},"
                "\"last\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[%lld,%lld]}}",
                (long long)rows, (long long)first_bytes, (long long)first_bytes, (long long)first_bytes + 8);
    write_raw(header.data, "", 0);
    int64_t data = 8 + (int64_t)header.length;
    const float end[] = {5, 6, 7};
    int descriptor = open(path, O_WRONLY);
    assert_true(descriptor >= 0);
    assert_int_equal(pwrite(descriptor, end, sizeof end, data + first_bytes - 4), sizeof end);
    close(descriptor);

    struct safetensors file;
    float values[2];
    assert_int_equal(safetensors_open(path, &file), OK);
    assert_int_equal(safetensors_find(&file, "big")->count, rows);
    assert_int_equal(safetensors_read(&file, safetensors_find(&file, "big"), rows - 2, 2, values), OK);
    assert_true(values[0] == 0 && values[1] == 5);
    assert_int_equal(safetensors_read(&file, safetensors_find(&file, "last"), 0, 2, values), OK);
    assert_true(values[0] == 6 && values[1] == 7);
    safetensors_close(&file);

    /* the writer computes such offsets too; its header is still in the buffer */
    const struct safetensors_entry entries[] = {{"big", 2, {rows, 3}}, {"last", 1, {2, 1}}};
    struct safetensors_writer writer;
    assert_int_equal(safetensors_create(&writer, path, entries, 2, -1), OK);
    char *written = xasprintf("%.*s", (int)writer.file.used - 8, writer.file.buffer + 8);
    assert_non_null(strstr(written, "\"shape\":[1250000001,3],\"data_offsets\":[0,15000000012]"));
    assert_non_null(strstr(written, "[15000000012,15000000020]"));
    assert_int_equal(writer.end, writer.file.offset + 15000000020);
    free(written);
    safetensors_abandon(&writer);
    text_free(&header);
}

static void damage_is_named(void **state) {
    (void)state;
    static const struct {
        const char *header, *message;
    } cases[] = {
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}", "cut short"},
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", "its header describes"},
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", "not 3 of F32"},
        {"{\"w\":{\"dtype\":\"F23\",\"shape\":[2],\"data_offsets\":[0,8]}}", "F23"},
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", "impossible shape"},
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,8]}}", "impossible shape"},
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", "begins at byte"},
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"u\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
         "begins at byte"},
        {"{\"w\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", "\"shape\" is missing"},
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", "data_offsets"},
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", "cut short"},
        {"{\"w\":", "not valid JSON"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct safetensors file;
        write_raw(cases[i].header, "\0\0\0\0\0\0\0", 8);
        assert_int_equal(safetensors_open(path, &file), BAD_INPUT);
        if (!strstr(status_message(), cases[i].message) || !strstr(status_message(), path))
            fail_msg("case %zu: %s", i, status_message());
    }
    struct safetensors file;
    assert_int_equal(file_write_all(path, "\377\377\377\377\377\377\377\377{}", 10), OK);
    assert_int_equal(safetensors_open(path, &file), BAD_INPUT);
    assert_int_equal(file_write_all(path, "\1\0\0", 3), OK);
    assert_int_equal(safetensors_open(path, &file), BAD_INPUT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_the_format),    cmocka_unit_test(sizes_of_all_kinds),
        cmocka_unit_test(reads_back_every_bit), cmocka_unit_test(too_few_values_are_refused),
        cmocka_unit_test(reads_half_precision), cmocka_unit_test(offsets_beyond_4_gb),
        cmocka_unit_test(damage_is_named),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
