#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "data/hash.h"
#include "data/vocab_train.h"

static void rehash(struct word_counts *counts) {
    counts->slot_count = counts->slot_count ? 2 * counts->slot_count : 1024;
    free(counts->slots);
    counts->slots = xcalloc(counts->slot_count, sizeof *counts->slots);
    for (int64_t i = 0; i < counts->count; i++) {
        uint64_t slot = counts->words[i].hash;
        while (slot &= counts->slot_count - 1, counts->slots[slot])
            slot++;
        counts->slots[slot] = i + 1;
    }
}

static int64_t add(struct word_counts *counts, uint64_t hash, const void *word, size_t length, int64_t times) {
    if (2 * (uint64_t)counts->count >= counts->slot_count)
        rehash(counts);
    uint64_t slot = hash;
    while (slot &= counts->slot_count - 1, counts->slots[slot]) {
        struct word_count *known = &counts->words[counts->slots[slot] - 1];
        if (known->hash == hash && known->length == length &&
            memcmp(counts->bytes.data + known->begin, word, length) == 0) {
            known->count += times;
            return counts->slots[slot] - 1;
        }
        slot++;
    }
    GROW(counts->words, counts->count, counts->capacity);
    counts->words[counts->count++] = (struct word_count){counts->bytes.length, (uint32_t)length, hash, times};
    counts->slots[slot] = counts->count;
    text_append(&counts->bytes, word, length);
    return counts->count - 1;
}

int64_t word_counts_add(struct word_counts *counts, const void *word, size_t length, int64_t times) {
    return add(counts, hash_bytes(word, length), word, length, times);
}

void word_counts_merge(struct word_counts *into, const struct word_counts *from) {
    for (int64_t i = 0; i < from->count; i++) {
        const struct word_count *word = &from->words[i];
        add(into, word->hash, from->bytes.data + word->begin, word->length, word->count);
    }
}

void word_counts_free(struct word_counts *counts) {
    text_free(&counts->bytes);
    free(counts->words);
    free(counts->slots);
    *counts = (struct word_counts){0};
}
