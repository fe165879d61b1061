#include "data/masking.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

struct masking {
    struct masking_options options;
    struct special_ids special;
    int32_t *ordinary; /* [ordinary_count] ids that a random replacement may be */
    int64_t ordinary_count;
    bool *continues; /* [entries] the entry is a "##" piece */
};

struct masking *masking_new(const struct vocab *vocab, const struct masking_options *options) {
    struct masking *masking = xcalloc(1, sizeof *masking);
    masking->options = *options;
    masking->special = vocab_special(vocab);
    int64_t entries = vocab_size(vocab);
    masking->ordinary = xcalloc((size_t)entries, sizeof *masking->ordinary);
    masking->continues = xcalloc((size_t)entries, sizeof *masking->continues);
    for (int64_t id = 0; id < entries; id++) {
        const char *token = vocab_token(vocab, id);
        masking->continues[id] = strncmp(token, "##", 2) == 0 && token[2];
        if (vocab_ordinary(vocab, id))
            masking->ordinary[masking->ordinary_count++] = (int32_t)id;
    }
    return masking;
}

void masking_free(struct masking *masking) {
    if (!masking)
        return;
    free(masking->ordinary);
    free(masking->continues);
    free(masking);
}

int64_t masking_most(const struct masking *masking, int64_t length) {
    int64_t most = lrint((double)length * masking->options.probability);
    return most < 1 ? 1 : most;
}

void masking_scratch_free(struct masking_scratch *scratch) {
    free(scratch->groups);
    free(scratch->chosen);
    *scratch = (struct masking_scratch){0};
}

static void grow(struct masking_scratch *scratch, int64_t length) {
    if (length <= scratch->capacity)
        return;
    scratch->capacity = 2 * length;
    scratch->groups = xrealloc(scratch->groups, (size_t)scratch->capacity * sizeof *scratch->groups);
    scratch->chosen = xrealloc(scratch->chosen, (size_t)scratch->capacity * sizeof *scratch->chosen);
}

static bool continues(const struct masking *masking, int32_t id) {
    return masking->options.whole_word && masking->continues[id];
}

/* Marks the positions to mask in scratch->chosen. */
static void choose(const struct masking *masking, struct random_stream *random, struct masking_scratch *scratch,
                   int64_t most, int64_t length, const int32_t *ids) {
    int64_t wanted = masking_most(masking, length), groups = 0, chosen = 0;
    wanted = wanted > most ? most : wanted;
    memset(scratch->chosen, 0, (size_t)length * sizeof *scratch->chosen);
    for (int64_t i = 0; i < length; i++)
        if (ids[i] != masking->special.cls && ids[i] != masking->special.sep && !continues(masking, ids[i]))
            scratch->groups[groups++] = (int32_t)i;
    for (int64_t left = groups; left > 0 && chosen < wanted; left--) { /* groups in random order */
        int64_t pick = (int64_t)random_below(random, (uint64_t)left);
        int32_t begin = scratch->groups[pick], end = begin + 1;
        scratch->groups[pick] = scratch->groups[left - 1];
        while (end < length && continues(masking, ids[end]))
            end++;
        if (chosen + end - begin > wanted)
            continue;
        for (int32_t i = begin; i < end; i++)
            scratch->chosen[i] = true;
        chosen += end - begin;
    }
}

static int32_t replacement(const struct masking *masking, struct random_stream *random, int32_t original) {
    double kind = random_uniform(random);
    if (kind < masking->options.mask_share)
        return masking->special.mask;
    if (kind < 1 - masking->options.random_share)
        return original;
    return masking->ordinary[random_below(random, (uint64_t)masking->ordinary_count)];
}

int64_t masking_apply(const struct masking *masking, struct random_stream *random, struct masking_scratch *scratch,
                      int64_t most, int64_t length, int32_t *ids, int32_t *positions, int32_t *labels) {
    grow(scratch, length);
    choose(masking, random, scratch, most, length, ids);
    int64_t masked = 0;
    for (int64_t i = 0; i < length; i++) {
        if (!scratch->chosen[i])
            continue;
        positions[masked] = (int32_t)i;
        labels[masked++] = ids[i];
        ids[i] = replacement(masking, random, ids[i]);
    }
    return masked;
}
