/* WordPiece: BERT's normalization and the greedy longest-match-first split into vocabulary entries. */
#ifndef BERTH_DATA_WORDPIECE_H
#define BERTH_DATA_WORDPIECE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct vocab;

/* A vocabulary file: one entry a line, the line number (from 0) is the id. BAD_INPUT if a special token is missing
 * ([PAD] [UNK] [CLS] [SEP] [MASK], found by name), a line is empty, not UTF-8, or stands twice: names file and line. */
status vocab_read(const char *path, struct vocab **out);
void vocab_free(struct vocab *vocab);
int64_t vocab_size(const struct vocab *vocab);
const char *vocab_token(const struct vocab *vocab, int64_t id);
int64_t vocab_id(const struct vocab *vocab, const char *token); /* -1 if absent */
bool vocab_cased(const struct vocab *vocab); /* an ordinary entry holds an upper-case letter */

struct special_ids {
    int32_t pad, unk, cls, sep, mask;
};
struct special_ids vocab_special(const struct vocab *vocab);
/* Ordinary entries: not [PAD]-like specials, not [unusedN]. What a random replacement is drawn from. */
bool vocab_ordinary(const struct vocab *vocab, int64_t id);

#endif
