/* BERT's normalization, and the split of text into words that goes with it:
 *   control, format and private-use characters, U+0000 and U+FFFD vanish; every white space is a space;
 *   an ideograph stands alone (`space_cjk`); accents go: canonical decomposition (NFD), nonspacing marks dropped
 *   (`strip_accents`); lower case (`lower_case`); then words are what white space separates, and every punctuation
 *   character is a word of its own.
 * Character for character this is what HuggingFace's `tokenizers` (BertNormalizer, BertPreTokenizer) does. Invalid
 * UTF-8 counts as U+FFFD. */
#ifndef BERTH_DATA_NORMALIZE_H
#define BERTH_DATA_NORMALIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct normalize_options {
    bool lower_case, strip_accents, space_cjk;
};

/* A table over all of Unicode (about 5 MB); constant once made, so that threads share it. */
struct normalizer;
struct normalizer *normalizer_new(const struct normalize_options *options);
void normalizer_free(struct normalizer *normalizer);

/* A walk over the words of a text. Zero-initialize it once and reuse it: it keeps its buffer; free with word_scan_free.
 */
struct word_scan {
    uint8_t *word;  /* [length] the current word, normalized UTF-8; not NUL-terminated; valid until the next call */
    size_t length;  /* bytes */
    int64_t chars;  /* characters */
    int64_t broken; /* invalid UTF-8 sequences met since the scan was zeroed */
    /* the walk's own */
    const uint8_t *at, *end;
    const uint32_t *pending; /* what is left of a character that became several */
    uint32_t pending_count;
    size_t run, capacity; /* `run`: where the marks begin that canonical ordering may still swap */
};
void word_scan_start(struct word_scan *scan, const char *text, size_t length);
bool word_next(const struct normalizer *normalizer, struct word_scan *scan); /* false at the end of the text */
void word_scan_free(struct word_scan *scan);

#endif
