/* WordPiece: BERT's normalization and the greedy longest-match-first split into vocabulary entries. */
#ifndef BERTH_DATA_WORDPIECE_H
#define BERTH_DATA_WORDPIECE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "data/normalize.h"

struct vocab;

/* A vocabulary file: one entry a line, the line number (from 0) is the id. BAD_INPUT if a special token is missing
 * ([PAD] [UNK] [CLS] [SEP] [MASK], found by name), a line is empty, not UTF-8, or stands twice: names file and line. */
status vocab_read(const char *path, struct vocab **out);
void vocab_free(struct vocab *vocab);
int64_t vocab_size(const struct vocab *vocab);
const char *vocab_token(const struct vocab *vocab, int64_t id);
int64_t vocab_id(const struct vocab *vocab, const char *token); /* -1 if absent */
/* What do_lower_case of a tokenizer_config.json beside the file denies; without one: an ordinary entry holds an
 * upper-case letter. */
bool vocab_cased(const struct vocab *vocab);

struct special_ids {
    int32_t pad, unk, cls, sep, mask;
};
struct special_ids vocab_special(const struct vocab *vocab);
/* Ordinary entries: not [PAD]-like specials, not [unusedN]. What a random replacement is drawn from. */
bool vocab_ordinary(const struct vocab *vocab, int64_t id);

/* Tokens, appended to. Zero-initialize; the owner frees `ids`. */
struct token_list {
    int32_t *ids; /* [count] */
    int64_t count, capacity;
};

struct wordpiece_options {
    struct normalize_options normalize;
    int64_t longest_word; /* characters; a longer word is [UNK] */
    bool specials;        /* [MASK] and the like, written in the text, are those tokens; else they are plain text */
};
/* BERT's: words of at most 100 characters, accents stripped where case is; specials as plain text. */
struct wordpiece_options wordpiece_defaults(bool lower_case);

/* The tokenizer: constant once made, shared by threads. It keeps `vocab`, which must outlive it. */
struct wordpiece;
struct wordpiece *wordpiece_new(const struct vocab *vocab, const struct wordpiece_options *options);
void wordpiece_free(struct wordpiece *wordpiece);

/* A thread's own working memory: a word buffer and a cache of words already split. */
struct wordpiece_scratch;
struct wordpiece_scratch *wordpiece_scratch_new(void);
void wordpiece_scratch_free(struct wordpiece_scratch *scratch);
int64_t wordpiece_broken(const struct wordpiece_scratch *scratch); /* invalid UTF-8 sequences met so far */

/* Appends the tokens of `text` to `out`, without [CLS] and [SEP]. Any bytes are fine. A scratch belongs to one
 * tokenizer. */
void wordpiece_encode(const struct wordpiece *wordpiece, struct wordpiece_scratch *scratch, const char *text,
                      size_t length, struct token_list *out);

#endif
