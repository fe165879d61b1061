/* Text in: files, folders and globs as one stream of documents, of which only a batch is in memory at a time. */
#ifndef BERTH_DATA_DOCUMENTS_H
#define BERTH_DATA_DOCUMENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

struct document_source;

struct document_options {
    int64_t cut_bytes;    /* > 0: a longer document comes in pieces, cut at line ends, for callers who do not care */
    bool whole_files;     /* a document ends at the end of its file only, else at an empty line too */
    const char *json_key; /* a line is a JSON object, and its string of this name is a document; NULL: only in files
                             whose names end in .jsonl (.gz, .zst), where the key is "text" */
};

/* `patterns` are files (also .gz and .zst), folders (every file in them and below, hidden ones left out, in the order
 * of their names), globs, or "-", the standard input. BAD_INPUT names a pattern that leads to no file. */
status documents_open(char *const *patterns, int count, const struct document_options *options,
                      struct document_source **out);
void documents_close(struct document_source *source);
int64_t documents_bytes(const struct document_source *source); /* of all files as stored; 0: unknown (standard input) */
int64_t documents_read(const struct document_source *source);  /* of these, read so far */

/* Where the text stands between two batches. */
struct document_place {
    int64_t file, bytes, line; /* in file number `file`, behind so many bytes of unpacked text and lines */
};
struct document_place documents_place(const struct document_source *source);
/* Go on from there; for a source that was just opened. Reads over the text before the place. FAILED if the file is
 * shorter. */
status documents_seek(struct document_source *source, const struct document_place *place);
/* Adds a line for each file: its path and size. */
void documents_list(const struct document_source *source, struct text *out);

struct document_batch {
    struct text text; /* the documents one after another, lines with their '\n' */
    int64_t *ends;    /* [count] where in `text` each document ends */
    int64_t count, capacity;
};

/* Fills `batch` with whole documents until it holds at least `bytes` or the text ends; count 0: nothing left. Documents
 * without a visible character are left out. Zero-initialize the batch once and reuse it. BAD_INPUT on damaged
 * compressed files, and on lines that are not what `json_key` expects: names file and line. */
status documents_next(struct document_source *source, int64_t bytes, struct document_batch *batch);
void document_batch_free(struct document_batch *batch);

#endif
