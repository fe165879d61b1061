/* Text in: files, folders and globs as one stream of documents, of which only a batch is in memory at a time. */
#ifndef BERTH_DATA_DOCUMENTS_H
#define BERTH_DATA_DOCUMENTS_H

#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

struct document_source;

/* `patterns` are files, folders (every file in them and below, hidden ones left out, in the order of their names) or
 * globs. A document ends at an empty line or at the end of its file. With `cut_bytes` > 0 a longer document comes in
 * pieces, cut at line ends, for callers who do not care. BAD_INPUT names a pattern that leads to no file. */
status documents_open(char *const *patterns, int count, int64_t cut_bytes, struct document_source **out);
void documents_close(struct document_source *source);
int64_t documents_bytes(const struct document_source *source); /* of all files */
int64_t documents_read(const struct document_source *source);  /* of these, read so far */

struct document_batch {
    struct text text; /* the documents one after another, lines with their '\n' */
    int64_t *ends;    /* [count] where in `text` each document ends */
    int64_t count, capacity;
};

/* Fills `batch` with whole documents until it holds at least `bytes` or the text ends; count 0: nothing left. Documents
 * without a visible character are left out. Zero-initialize the batch once and reuse it. */
status documents_next(struct document_source *source, int64_t bytes, struct document_batch *batch);
void document_batch_free(struct document_batch *batch);

#endif
