#include "data/corpus.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "data/sentences.h"

/* A range of a batch's documents, tokenized: a corpus of its own, whose offsets begin at 0. */
struct batch_job {
    const struct document_batch *batch;
    const struct wordpiece *wordpiece;
    bool sentence_a_line;
    struct corpus *parts; /* [documents of the batch] */
};

static void end_sentence(struct corpus *corpus) {
    if (corpus->tokens.count == sentence_begin(corpus, corpus->sentences))
        return;
    GROW(corpus->sentence_ends, corpus->sentences, corpus->sentence_capacity);
    corpus->sentence_ends[corpus->sentences++] = corpus->tokens.count;
}

static void end_document(struct corpus *corpus) {
    if (corpus->sentences == document_begin(corpus, corpus->documents))
        return;
    GROW(corpus->document_ends, corpus->documents, corpus->document_capacity);
    corpus->document_ends[corpus->documents++] = corpus->sentences;
}

static void tokenize_documents(void *ctx, int64_t begin, int64_t end) {
    const struct batch_job *job = ctx;
    struct wordpiece_scratch *scratch = wordpiece_scratch_new();
    struct span_list sentences = {0};
    struct corpus *part = &job->parts[begin];
    for (int64_t d = begin; d < end; d++) {
        int64_t from = d ? job->batch->ends[d - 1] : 0;
        const char *text = job->batch->text.data + from;
        size_t length = (size_t)(job->batch->ends[d] - from);
        if (job->sentence_a_line)
            sentences_lines(text, length, &sentences);
        else
            sentences_split(text, length, &sentences);
        for (int64_t s = 0; s < sentences.count; s++) {
            const struct span *span = &sentences.items[s];
            wordpiece_encode(job->wordpiece, scratch, text + span->begin, span->end - span->begin, &part->tokens);
            end_sentence(part);
        }
        end_document(part);
    }
    part->broken = wordpiece_broken(scratch);
    free(sentences.items);
    wordpiece_scratch_free(scratch);
}

static void append_part(struct corpus *corpus, const struct corpus *part) {
    struct token_list *tokens = &corpus->tokens;
    int64_t first_token = tokens->count, first_sentence = corpus->sentences;
    if (tokens->count + part->tokens.count > tokens->capacity) {
        tokens->capacity = 2 * (tokens->count + part->tokens.count);
        tokens->ids = xrealloc(tokens->ids, (size_t)tokens->capacity * sizeof *tokens->ids);
    }
    memcpy(tokens->ids + tokens->count, part->tokens.ids, (size_t)part->tokens.count * sizeof *tokens->ids);
    tokens->count += part->tokens.count;
    for (int64_t s = 0; s < part->sentences; s++) {
        GROW(corpus->sentence_ends, corpus->sentences, corpus->sentence_capacity);
        corpus->sentence_ends[corpus->sentences++] = first_token + part->sentence_ends[s];
    }
    for (int64_t d = 0; d < part->documents; d++) {
        GROW(corpus->document_ends, corpus->documents, corpus->document_capacity);
        corpus->document_ends[corpus->documents++] = first_sentence + part->document_ends[d];
    }
}

void corpus_add(struct corpus *corpus, const struct wordpiece *wordpiece, bool sentence_a_line,
                const struct document_batch *batch) {
    struct batch_job job = {batch, wordpiece, sentence_a_line, xcalloc((size_t)batch->count, sizeof(struct corpus))};
    parallel_for(batch->count, 1, tokenize_documents, &job);
    for (int64_t i = 0; i < batch->count; i++) {
        if (job.parts[i].tokens.count)
            append_part(corpus, &job.parts[i]);
        corpus->broken += job.parts[i].broken;
        corpus_free(&job.parts[i]);
    }
    free(job.parts);
}

void corpus_free(struct corpus *corpus) {
    free(corpus->tokens.ids);
    free(corpus->sentence_ends);
    free(corpus->document_ends);
    *corpus = (struct corpus){0};
}
