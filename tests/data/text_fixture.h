/* A vocabulary from a list of entries, for the tests of the text side. */
#ifndef BERTH_TESTS_TEXT_FIXTURE_H
#define BERTH_TESTS_TEXT_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* after the headers above */
#include <cmocka.h>

#include "base/file.h"
#include "base/memory.h"
#include "data/wordpiece.h"

static const char fixture_specials[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";

/* A new folder under the system's place for temporary files; the caller removes and frees it. */
static inline char *fixture_folder(void) {
    const char *parent = getenv("TMPDIR");
    char *path = xasprintf("%s/berth-test-XXXXXX", parent ? parent : "/tmp");
    assert_non_null(mkdtemp(path));
    return path;
}

/* Reads `lines` as a vocabulary file. */
static inline status fixture_vocab_status(const char *lines, struct vocab **out) {
    char *folder = fixture_folder(), *path = path_join(folder, "vocab.txt");
    assert_int_equal(file_write_all(path, lines, strlen(lines)), OK);
    status code = vocab_read(path, out);
    assert_int_equal(folder_remove(folder), OK);
    free(path);
    free(folder);
    return code;
}

/* The special tokens are 0 to 4; `entries`, each with its '\n', follow from 5 on. */
static inline struct vocab *fixture_vocab(const char *entries) {
    char *lines = xasprintf("%s%s", fixture_specials, entries);
    struct vocab *vocab;
    assert_int_equal(fixture_vocab_status(lines, &vocab), OK);
    free(lines);
    return vocab;
}

#endif
