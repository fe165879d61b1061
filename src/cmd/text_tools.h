/* What the commands that read text share: their options. */
#ifndef BERTH_CMD_TEXT_TOOLS_H
#define BERTH_CMD_TEXT_TOOLS_H

#include <stdbool.h>
#include <stdint.h>

#include "cmd/cmd.h"
#include "data/documents.h"
#include "data/wordpiece.h"

struct text_options {
    bool cased, uncased, keep_accents, strip_accents, no_cjk_spacing;
    int64_t threads;
};

/* Their rows of an option table. */
#define TEXT_OPTIONS(t)                                                                                                 \
    {"--strip-accents", OPTION_FLAG, &(t).strip_accents, NULL, "drop accents in cased text too", 0, 0, 0},              \
        {"--keep-accents", OPTION_FLAG, &(t).keep_accents, NULL, "keep accents in uncased text too", 0, 0, 0},          \
        {"--no-cjk-spacing", OPTION_FLAG, &(t).no_cjk_spacing, NULL, "do not make a word of every ideograph", 0, 0, 0}, \
    {                                                                                                                   \
        "--threads", OPTION_INT, &(t).threads, "N", "threads; 0: as many as there are processors", 0, 4096, 0           \
    }

/* Rows of the commands that read documents. */
#define DOCUMENT_OPTIONS(d)                                                                                        \
    {"--json-key",                                                                                                 \
     OPTION_STRING,                                                                                                \
     &(d).json_key,                                                                                                \
     "KEY",                                                                                                        \
     "lines are JSON objects with the text under KEY (*.jsonl: text)",                                             \
     0,                                                                                                            \
     0,                                                                                                            \
     0},                                                                                                           \
    {                                                                                                              \
        "--document-a-file", OPTION_FLAG, &(d).whole_files, NULL, "an empty line does not end a document", 0, 0, 0 \
    }

/* Checks them, sets the number of threads, and fills `normalize`. `vocab` tells the casing where no option does;
 * without a vocabulary (NULL) text is uncased unless told. */
status text_options_apply(const char *command, const struct text_options *options, const struct vocab *vocab,
                          struct normalize_options *normalize);

void warn_broken(int64_t broken); /* that many invalid UTF-8 sequences were met; silent if none */

#endif
