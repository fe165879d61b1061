/* A tokenized text in memory: tokens, cut into sentences, cut into documents. */
#ifndef BERTH_DATA_CORPUS_H
#define BERTH_DATA_CORPUS_H

#include <stdbool.h>
#include <stdint.h>

#include "data/documents.h"
#include "data/wordpiece.h"

/* Zero-initialize; free with corpus_free. Sentence s is tokens [sentence_ends[s-1], sentence_ends[s]), document d is
 * sentences [document_ends[d-1], document_ends[d]); none is empty. */
struct corpus {
    struct token_list tokens;
    int64_t *sentence_ends; /* [sentences] */
    int64_t sentences, sentence_capacity;
    int64_t *document_ends; /* [documents] */
    int64_t documents, document_capacity;
    int64_t broken; /* invalid UTF-8 sequences that were left out */
};

static inline int64_t sentence_begin(const struct corpus *corpus, int64_t sentence) {
    return sentence ? corpus->sentence_ends[sentence - 1] : 0;
}
static inline int64_t document_begin(const struct corpus *corpus, int64_t document) {
    return document ? corpus->document_ends[document - 1] : 0;
}

/* Splits and tokenizes the documents of a batch on all threads and appends them in their order. Documents without a
 * token are left out. */
void corpus_add(struct corpus *corpus, const struct wordpiece *wordpiece, bool sentence_a_line,
                const struct document_batch *batch);
void corpus_free(struct corpus *corpus);

#endif
