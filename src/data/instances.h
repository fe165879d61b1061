/* BERT's training instances from tokenized documents: [CLS] A [SEP] B [SEP], masked, with a next-sentence label.
 *
 * A document is cut into chunks of up to seq_len - 3 tokens, whole sentences, of a shorter length with probability
 * `short_seq_prob`. A chunk is split at a random sentence into A and B; with probability 1/2, and always when it is one
 * sentence, B is instead a run of sentences from another document, and the sentences not used open the next chunk. A
 * and B are cut at a random end to fit. Without `nsp` an instance is [CLS] A [SEP], A being as many sentences as fit.
 *
 * min(max_predictions, max(1, round(masked_lm_prob · length))) tokens are chosen, never specials; of these 80 % become
 * [MASK], 10 % a random ordinary entry, 10 % stay. With `whole_word` all pieces of a word are chosen together. */
#ifndef BERTH_DATA_INSTANCES_H
#define BERTH_DATA_INSTANCES_H

#include <stdbool.h>
#include <stdint.h>

#include "data/corpus.h"

struct instance_options {
    int64_t seq_len, max_predictions; /* S ≥ 8, P ≥ 1 */
    double masked_lm_prob, short_seq_prob;
    bool whole_word, nsp;
    uint64_t seed;
};

struct instance {
    int32_t length;           /* 3 ≤ length ≤ S */
    int32_t b_begin;          /* where type 1 begins; length if there is no B */
    int32_t label;            /* 0: B follows A, 1: random B */
    int32_t masked;           /* 1 ≤ masked ≤ P */
    const int32_t *ids;       /* [length] */
    const int32_t *positions; /* [masked] ascending */
    const int32_t *labels;    /* [masked] the original ids there */
};

/* Zero-initialize; free with instances_free. */
struct instance_list {
    struct instance *items; /* [count] */
    int64_t count, capacity;
    int64_t tokens, masked; /* sums over the instances: real tokens, specials included; masked ones */
    int32_t **blocks;       /* the memory behind the items */
    int64_t block_count, block_capacity;
};

/* The instances of the documents listed in `documents` (random B only comes from these; from the same document if there
 * is but one), in their order: a function of the seed and of `stream`, whatever the number of threads. Document d of
 * the corpus draws from random stream `stream` + d. */
void instances_make(const struct corpus *corpus, const struct vocab *vocab, const int64_t *documents, int64_t count,
                    const struct instance_options *options, uint64_t stream, struct instance_list *out);
/* Adds `count` instances that stand as records one after another: length, b_begin, label, masked, ids, positions,
 * labels. The list frees `words`, which xmalloc made. */
void instances_take_records(struct instance_list *list, int32_t *words, int64_t count);
void instances_free(struct instance_list *list);

#endif
