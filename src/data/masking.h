/* Choosing the tokens that the model must predict: min(most, max(1, round(probability · length))) of a sequence, never
 * [CLS] or [SEP]; of these a share becomes [MASK], a share a random ordinary entry, and the rest stays. With
 * `whole_word` all pieces of a word are chosen together, or none. */
#ifndef BERTH_DATA_MASKING_H
#define BERTH_DATA_MASKING_H

#include <stdbool.h>
#include <stdint.h>

#include "base/philox.h"
#include "data/wordpiece.h"

struct masking_options {
    double probability;
    double mask_share, random_share; /* BERT: 0.8, 0.1 */
    bool whole_word;
};

/* Constant once made, shared by threads; keeps nothing of `vocab`. */
struct masking;
struct masking *masking_new(const struct vocab *vocab, const struct masking_options *options);
void masking_free(struct masking *masking);
/* The most that a sequence of this length can get. */
int64_t masking_most(const struct masking *masking, int64_t length);

/* A thread's working memory. Zero-initialize; free with masking_scratch_free. */
struct masking_scratch {
    int32_t *groups; /* [capacity] begins of words or pieces, the candidates */
    bool *chosen;    /* [capacity] */
    int64_t capacity;
};
void masking_scratch_free(struct masking_scratch *scratch);

/* Masks ids[0..length) in place; the chosen positions, ascending, and the ids that stood there go to positions and
 * labels, both with room for min(most, masking_most(length)). Returns their number: 0 only where no whole word is short
 * enough, or nothing but specials is there. Every id must lie in the vocabulary. */
int64_t masking_apply(const struct masking *masking, struct random_stream *random, struct masking_scratch *scratch,
                      int64_t most, int64_t length, int32_t *ids, int32_t *positions, int32_t *labels);

#endif
