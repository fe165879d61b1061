/* Learning a WordPiece vocabulary: byte-pair merges over the words of a text, as HuggingFace's WordPieceTrainer does
 * it. The text itself is not needed, only how often each distinct word occurs. */
#ifndef BERTH_DATA_VOCAB_TRAIN_H
#define BERTH_DATA_VOCAB_TRAIN_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

/* Distinct words and their counts. Zero-initialize; free with word_counts_free. */
struct word_count {
    size_t begin; /* the word in `bytes` */
    uint32_t length;
    uint64_t hash;
    int64_t count;
};
struct word_counts {
    struct text bytes;
    struct word_count *words; /* [count] */
    int64_t count, capacity;
    int64_t *slots; /* [slot_count] index + 1, 0 where empty */
    uint64_t slot_count;
};
int64_t word_counts_add(struct word_counts *counts, const void *word, size_t length, int64_t times); /* its index */
void word_counts_merge(struct word_counts *into, const struct word_counts *from);
void word_counts_free(struct word_counts *counts);

struct vocab_train_options {
    int64_t size;          /* entries, at most; merges end there, or when no pair is frequent enough */
    int64_t min_frequency; /* of a pair, to be merged */
    int64_t
        limit_alphabet; /* the most frequent characters are kept; words are learned as if the others were not there */
};

/* Writes the vocabulary, an entry a line, to `out`: the special tokens [PAD] [UNK] [CLS] [SEP] [MASK], the characters,
 * the characters as continuations ("##x"), then what merges made, in that order; `entries` is their number. The same
 * counts give the same vocabulary whatever their order. Of pairs equally frequent, the one whose parts came first wins.
 * BAD_INPUT if there are no words, or if `size` does not hold the alphabet. */
status vocab_train(const struct word_counts *counts, const struct vocab_train_options *options, struct text *out,
                   int64_t *entries);

#endif
