/* INI files: `[section]`, `key = value`, comments on lines that begin with # or ;, lines of any length. */
#ifndef BERTH_CONFIG_INI_H
#define BERTH_CONFIG_INI_H

#include <stddef.h>
#include <stdint.h>

#include "base/memory.h"
#include "base/status.h"

struct ini_entry {
    const char *section, *key, *value; /* trimmed; value may be "" */
    const char *origin;                /* "FILE:LINE" */
};

struct ini {
    struct ini_entry *entries;
    int64_t count, capacity;
    struct arena arena; /* of all strings */
};

/* `source` is the file's name in messages. BAD_INPUT names the line that is neither of the above, stands before any
 * section, or gives a key again. On failure nothing needs freeing. */
status ini_parse(const char *source, const char *bytes, size_t length, struct ini *out);
void ini_free(struct ini *ini);

/* Cuts blanks from both ends of `string`, in place. */
char *trim(char *string);

#endif
