/* Files: atomic replacement, every operation failing in turn, a crash at every operation, offsets beyond 4 GB. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"

static char folder[] = "/tmp/berth-file-XXXXXX";
static char path[64], temporary[64];

static int make_folder(void **state) {
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/file", folder);
    snprintf(temporary, sizeof temporary, "%s/file.tmp", folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    return folder_remove(folder);
}

static int switch_faults_off(void **state) {
    (void)state;
    file_fault(0, false);
    return 0;
}

static void holds(const char *file, const char *expected) {
    struct text text = {0};
    assert_int_equal(file_read(file, &text), OK);
    assert_string_equal(text.data, expected);
    text_free(&text);
}

static void test_read_and_write(void **state) {
    (void)state;
    enum { BYTES = 3000001 }; /* over several buffers */
    char *bytes = xmalloc(BYTES);
    for (int i = 0; i < BYTES; i++)
        bytes[i] = (char)(i * 31 + i / 1000);
    struct file_out file;
    assert_int_equal(file_create(&file, path), OK);
    for (int at = 0, piece = 1; at < BYTES; at += piece, piece = piece * 3 % 800001 + 1) {
        if (piece > BYTES - at)
            piece = BYTES - at;
        assert_int_equal(file.offset, at);
        assert_int_equal(file_write(&file, bytes + at, (size_t)piece), OK);
    }
    assert_false(file_exists(path)); /* not before the commit */
    assert_int_equal(file_commit(&file), OK);
    file_abandon(&file);
    assert_false(file_exists(temporary));
    struct text text = {0};
    int64_t size;
    assert_int_equal(file_read(path, &text), OK);
    assert_int_equal(file_size(path, &size), OK);
    assert_int_equal(size, BYTES);
    assert_int_equal(text.length, BYTES);
    assert_memory_equal(text.data, bytes, BYTES);
    text_free(&text);
    free(bytes);
}

/* The rename would put a plain file in the place of a device. */
static void test_only_files_are_replaced(void **state) {
    (void)state;
    struct file_out file;
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0); /* of the kind, and harmless */
    assert_int_equal(file_create(&file, path), BAD_INPUT);
    assert_non_null(strstr(status_message(), ": is there and not a file"));
    file_abandon(&file);
    assert_int_equal(file_write_all(folder, "x", 1), BAD_INPUT);
    struct stat info;
    assert_true(stat(path, &info) == 0 && S_ISFIFO(info.st_mode));
    unlink(path);
}

static void test_abandon(void **state) {
    (void)state;
    assert_int_equal(file_write_all(path, "old", 3), OK);
    struct file_out file;
    assert_int_equal(file_create(&file, path), OK);
    assert_int_equal(file_write(&file, "new", 3), OK);
    file_abandon(&file);
    holds(path, "old");
    assert_false(file_exists(temporary));
}

/* The first operation fails, then the second, …: each time the old file stands, the message names it, and nothing else
 * is left. */
static void test_every_operation_fails(void **state) {
    (void)state;
    assert_int_equal(file_write_all(path, "old", 3), OK);
    int failures = 0;
    for (int nth = 1;; nth++) {
        file_fault(nth, false);
        status code = file_write_all(path, "new", 3);
        file_fault(0, false);
        if (code == OK)
            break;
        failures++;
        assert_int_equal(code, FAILED);
        assert_non_null(strstr(status_message(), path));
        assert_non_null(strstr(status_message(), "No space left on device"));
        holds(path, "old");
        assert_false(file_exists(temporary));
    }
    assert_int_equal(failures, 4); /* create, write, flush, rename */
    holds(path, "new");
}

static void test_crash_at_every_operation(void **state) {
    (void)state;
    for (int nth = 1, result = 137; result == 137; nth++) {
        assert_int_equal(file_write_all(path, "old", 3), OK);
        pid_t child = fork();
        if (child == 0) {
            file_fault(nth, true);
            _exit(file_write_all(path, "new", 3));
        }
        int how;
        assert_int_equal(waitpid(child, &how, 0), child);
        result = WEXITSTATUS(how);
        holds(path, result == 137 ? "old" : "new");
        assert_true(result == 137 || (result == 0 && nth == 5));
    }
}

static void test_files_that_are_not_there(void **state) {
    (void)state;
    struct text text = {0};
    int descriptor;
    int64_t size;
    assert_int_equal(file_read("/nonexistent/a", &text), BAD_INPUT);
    assert_string_equal(status_message(), "/nonexistent/a: cannot open: No such file or directory");
    assert_int_equal(file_open_read(folder, &descriptor), BAD_INPUT);
    assert_non_null(strstr(status_message(), "is a folder, expected a file"));
    assert_int_equal(file_size("/nonexistent/a", &size), BAD_INPUT);
    assert_int_equal(file_write_all("/nonexistent/a", "x", 1), FAILED);
    assert_false(file_exists(folder));
    assert_true(folder_exists(folder));
}

static void test_read_at_large_offsets(void **state) {
    (void)state;
    const int64_t offset = 5 * (int64_t)1000000000;
    int descriptor = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (pwrite(descriptor, "behind", 6, offset) != 6) { /* a hole and six bytes */
        close(descriptor);
        print_message("skipped: the file system of /tmp cannot hold a file with a hole of 5 GB\n");
        skip();
    }
    char bytes[6];
    int64_t size;
    assert_int_equal(file_size(path, &size), OK);
    assert_int_equal(size, offset + 6);
    assert_int_equal(file_read_at(descriptor, path, offset, bytes, 6), OK);
    assert_memory_equal(bytes, "behind", 6);
    assert_int_equal(file_read_at(descriptor, path, offset + 3, bytes, 6), BAD_INPUT);
    assert_non_null(strstr(status_message(), "the file ends at byte 5000000006, expected 3 bytes more"));
    close(descriptor);
    unlink(path);
}

static void test_append(void **state) {
    (void)state;
    int descriptor;
    assert_int_equal(file_write_all(path, "one\ntwo\nthree\n", 14), OK);
    assert_int_equal(file_open_append(path, 8, &descriptor), OK); /* cut behind "two" */
    assert_int_equal(file_append(descriptor, path, "four\n", 5), OK);
    assert_int_equal(file_flush(descriptor, path), OK);
    close(descriptor);
    holds(path, "one\ntwo\nfour\n");
    file_fault(1, false);
    assert_int_equal(file_open_append(path, 0, &descriptor), FAILED);
    assert_int_equal(descriptor, -1);
    file_fault(0, false);
    holds(path, "one\ntwo\nfour\n");
}

static void test_folders(void **state) {
    (void)state;
    char *deep = path_join(folder, "tree/b/c"), *tree = path_join(folder, "tree"), *kept = path_join(folder, "kept");
    assert_int_equal(folder_create(deep), OK);
    assert_int_equal(folder_create(deep), OK);
    assert_int_equal(file_write_all(kept, "x", 1), OK);
    assert_int_equal(folder_create(kept), FAILED);
    char *link = path_join(tree, "a"), *file = path_join(tree, "Z");
    assert_int_equal(symlink(folder, link), 0); /* removing the tree must not follow it */
    assert_int_equal(file_write_all(file, "", 0), OK);
    char **names;
    int64_t count;
    assert_int_equal(folder_list(tree, &names, &count), OK);
    assert_int_equal(count, 3);
    assert_string_equal(names[0], "Z"); /* by byte value */
    assert_string_equal(names[1], "a");
    assert_string_equal(names[2], "b");
    names_free(names, count);
    assert_int_equal(folder_sync(tree), OK);
    assert_int_equal(folder_remove(tree), OK);
    assert_false(folder_exists(tree));
    assert_true(file_exists(kept));
    assert_int_equal(folder_list(tree, &names, &count), BAD_INPUT);
    free(deep), free(tree), free(kept), free(link), free(file);
}

static void test_links(void **state) {
    (void)state;
    char *link = path_join(folder, "latest"), target[64] = "";
    assert_int_equal(link_replace("step-1", link), OK);
    assert_int_equal(link_replace("step-2", link), OK);
    assert_int_equal(readlink(link, target, sizeof target - 1), 6);
    assert_string_equal(target, "step-2");
    for (int nth = 1; nth <= 2; nth++) {
        file_fault(nth, false);
        assert_int_equal(link_replace("step-3", link), FAILED);
        file_fault(0, false);
        assert_int_equal(readlink(link, target, sizeof target - 1), 6);
        assert_string_equal(target, "step-2");
    }
    free(link);
}

static void test_paths(void **state) {
    (void)state;
    char *a = path_join("a", "b"), *b = path_join("a/", "b"), *c = path_join("", "b");
    assert_string_equal(a, "a/b");
    assert_string_equal(b, "a/b");
    assert_string_equal(path_name("a/b/c.ini"), "c.ini");
    assert_string_equal(path_name("c.ini"), "c.ini");
    free(a), free(b), free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read_and_write),
        cmocka_unit_test(test_only_files_are_replaced),
        cmocka_unit_test(test_abandon),
        cmocka_unit_test_teardown(test_every_operation_fails, switch_faults_off),
        cmocka_unit_test(test_crash_at_every_operation),
        cmocka_unit_test(test_files_that_are_not_there),
        cmocka_unit_test(test_read_at_large_offsets),
        cmocka_unit_test_teardown(test_append, switch_faults_off),
        cmocka_unit_test(test_folders),
        cmocka_unit_test_teardown(test_links, switch_faults_off),
        cmocka_unit_test(test_paths),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
