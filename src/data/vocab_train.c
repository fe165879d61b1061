/* Every word is a list of symbols (entries). The most frequent pair of neighbours becomes a new entry and is replaced
 * everywhere, again and again. A pair keeps its count and the list of words it occurs in, so that a merge touches only
 * those; a heap yields the most frequent pair, its counts corrected when they come up. */
#include "data/vocab_train.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "data/hash.h"
#include "data/utf8.h"

enum { CODE_POINTS = 0x110000 };
static const char *const specials[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
static const char continuation[] = "##";
enum { CONTINUATION_LENGTH = sizeof continuation - 1 };

struct link {           /* of a pair's list of words, or of the list of unused links */
    int64_t word, next; /* next: index + 1, 0 at the end */
};

struct pair {
    uint64_t key;         /* left symbol << 32 | right symbol; 0: empty slot (no pair has [PAD] on both sides) */
    int64_t count, words; /* words: first link + 1 */
    int64_t changed_by;   /* the merge that last added to it */
};

struct candidate { /* of the heap; `count` may be out of date, but is never too low */
    uint64_t key;
    int64_t count;
};

struct trainer {
    struct word_counts entries;  /* the vocabulary: a string's index is its id; the counts are not used */
    int32_t *first_id, *next_id; /* [CODE_POINTS] the entry of a character at a word's beginning and inside; 0: none */
    int32_t *symbols;            /* all words one after another */
    int64_t *word_begin, *word_length, *word_times; /* [words] symbols of a word; how often it occurs */
    struct pair *pairs;                             /* [pair_slots] */
    uint64_t pair_slots, pair_count;
    struct link *links;
    int64_t link_count, link_capacity, unused; /* unused: first link + 1 */
    struct candidate *heap;
    int64_t heap_count, heap_capacity;
    uint64_t *changed; /* keys of pairs that the current merge made more frequent */
    int64_t changed_count, changed_capacity, merges;
};

/* The id of an entry, made if it is new. */
static int32_t entry_id(struct trainer *trainer, const void *string, size_t length) {
    return (int32_t)word_counts_add(&trainer->entries, string, length, 1);
}

/* Heap order: more frequent first, then the pair of earlier entries. */
static bool before(const struct candidate *a, const struct candidate *b) {
    return a->count != b->count ? a->count > b->count : a->key < b->key;
}

static void heap_push(struct trainer *trainer, uint64_t key, int64_t count) {
    GROW(trainer->heap, trainer->heap_count, trainer->heap_capacity);
    struct candidate *heap = trainer->heap, added = {key, count};
    int64_t at = trainer->heap_count++;
    for (; at > 0 && before(&added, &heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = added;
}

static struct candidate heap_pop(struct trainer *trainer) {
    struct candidate *heap = trainer->heap, top = heap[0], moved = heap[--trainer->heap_count];
    int64_t at = 0, count = trainer->heap_count;
    for (int64_t child; (child = 2 * at + 1) < count; at = child) {
        child += child + 1 < count && before(&heap[child + 1], &heap[child]);
        if (!before(&heap[child], &moved))
            break;
        heap[at] = heap[child];
    }
    heap[at] = moved;
    return top;
}

static struct pair *find_pair(const struct trainer *trainer, uint64_t key) {
    uint64_t slot = hash_mix(hash_mix(key));
    while (slot &= trainer->pair_slots - 1, trainer->pairs[slot].key && trainer->pairs[slot].key != key)
        slot++;
    return &trainer->pairs[slot];
}

static void grow_pairs(struct trainer *trainer) {
    struct pair *old = trainer->pairs;
    uint64_t old_slots = trainer->pair_slots;
    trainer->pair_slots = old_slots ? 2 * old_slots : 1 << 16;
    trainer->pairs = xcalloc(trainer->pair_slots, sizeof *trainer->pairs);
    for (uint64_t i = 0; i < old_slots; i++)
        if (old[i].key)
            *find_pair(trainer, old[i].key) = old[i];
    free(old);
}

static void add_link(struct trainer *trainer, struct pair *pair, int64_t word) {
    if (pair->words && trainer->links[pair->words - 1].word == word)
        return;
    int64_t link = trainer->unused;
    if (link) {
        trainer->unused = trainer->links[link - 1].next;
    } else {
        GROW(trainer->links, trainer->link_count, trainer->link_capacity);
        link = ++trainer->link_count;
    }
    trainer->links[link - 1] = (struct link){word, pair->words};
    pair->words = link;
}

/* `times` more, or fewer, occurrences of a pair of neighbours in `word`. */
static void change_pair(struct trainer *trainer, int32_t left, int32_t right, int64_t word, int64_t times) {
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    if (2 * trainer->pair_count >= trainer->pair_slots)
        grow_pairs(trainer);
    struct pair *pair = find_pair(trainer, key);
    if (!pair->key) {
        *pair = (struct pair){.key = key};
        trainer->pair_count++;
    }
    pair->count += times;
    if (times < 0)
        return;
    add_link(trainer, pair, word);
    if (pair->changed_by == trainer->merges + 1)
        return;
    pair->changed_by = trainer->merges + 1;
    GROW(trainer->changed, trainer->changed_count, trainer->changed_capacity);
    trainer->changed[trainer->changed_count++] = key;
}

/* Pairs that became more frequent are candidates anew. */
static void push_changed(struct trainer *trainer) {
    for (int64_t i = 0; i < trainer->changed_count; i++)
        heap_push(trainer, trainer->changed[i], find_pair(trainer, trainer->changed[i])->count);
    trainer->changed_count = 0;
    trainer->merges++;
}

static void merge_in_word(struct trainer *trainer, int64_t word, int32_t left, int32_t right, int32_t merged) {
    int32_t *symbols = trainer->symbols + trainer->word_begin[word];
    int64_t length = trainer->word_length[word], times = trainer->word_times[word], out = 0;
    for (int64_t i = 0; i < length;) {
        if (symbols[i] != left || i + 1 == length || symbols[i + 1] != right) {
            symbols[out++] = symbols[i++];
            continue;
        }
        if (out > 0) {
            change_pair(trainer, symbols[out - 1], left, word, -times);
            change_pair(trainer, symbols[out - 1], merged, word, times);
        }
        if (i + 2 < length) {
            change_pair(trainer, right, symbols[i + 2], word, -times);
            change_pair(trainer, merged, symbols[i + 2], word, times);
        }
        symbols[out++] = merged;
        i += 2;
    }
    trainer->word_length[word] = out;
}

/* The entry that two neighbours make together. It may be there already, from other parts. */
static int32_t merged_entry(struct trainer *trainer, int32_t left, int32_t right, struct text *string) {
    const struct word_count *a = &trainer->entries.words[left], *b = &trainer->entries.words[right];
    const char *bytes = trainer->entries.bytes.data;
    text_clear(string);
    text_append(string, bytes + a->begin, a->length);
    text_append(string, bytes + b->begin + CONTINUATION_LENGTH, b->length - CONTINUATION_LENGTH);
    return entry_id(trainer, string->data, string->length);
}

static void merge_pairs(struct trainer *trainer, const struct vocab_train_options *options) {
    struct text string = {0};
    while (trainer->entries.count < options->size && trainer->heap_count) {
        struct candidate top = heap_pop(trainer);
        struct pair *pair = find_pair(trainer, top.key);
        if (pair->count != top.count) {
            if (pair->count > 0)
                heap_push(trainer, top.key, pair->count);
            continue;
        }
        if (top.count < 1 || top.count < options->min_frequency)
            break;
        int32_t left = (int32_t)(top.key >> 32), right = (int32_t)(uint32_t)top.key;
        int32_t merged = merged_entry(trainer, left, right, &string);
        int64_t link = pair->words;
        pair->words = 0;
        while (link) {
            struct link *at = &trainer->links[link - 1];
            int64_t word = at->word, next = at->next;
            at->next = trainer->unused;
            trainer->unused = link;
            merge_in_word(trainer, word, left, right, merged);
            link = next;
        }
        find_pair(trainer, top.key)->count = 0; /* the table may have moved */
        push_changed(trainer);
    }
    text_free(&string);
}

struct frequency {
    uint32_t character;
    int64_t times;
};

static int by_frequency(const void *a, const void *b) {
    const struct frequency *x = a, *y = b;
    if (x->times != y->times)
        return x->times > y->times ? -1 : 1;
    return x->character < y->character ? -1 : 1;
}

static int by_character(const void *a, const void *b) {
    const struct frequency *x = a, *y = b;
    return x->character < y->character ? -1 : 1;
}

/* Counts characters, and which of them occur inside words; makes entries of the most frequent. */
static void choose_alphabet(struct trainer *trainer, const struct word_counts *counts, int64_t limit) {
    int64_t *times = xcalloc(CODE_POINTS, sizeof *times);
    bool *inside = xcalloc(CODE_POINTS, sizeof *inside);
    for (int64_t w = 0; w < counts->count; w++) {
        const uint8_t *begin = (const uint8_t *)counts->bytes.data + counts->words[w].begin;
        const uint8_t *end = begin + counts->words[w].length;
        uint32_t character;
        for (const uint8_t *at = begin; at < end;) {
            bool first = at == begin;
            at += utf8_decode(at, end, &character);
            times[character] += counts->words[w].count;
            inside[character] |= !first;
        }
    }
    struct frequency *alphabet = NULL;
    int64_t count = 0, capacity = 0;
    for (uint32_t c = 0; c < CODE_POINTS; c++)
        if (times[c]) {
            GROW(alphabet, count, capacity);
            alphabet[count++] = (struct frequency){c, times[c]};
        }
    if (count > limit) {
        qsort(alphabet, (size_t)count, sizeof *alphabet, by_frequency);
        count = limit;
        qsort(alphabet, (size_t)count, sizeof *alphabet, by_character);
    }
    char string[CONTINUATION_LENGTH + UTF8_LONGEST];
    memcpy(string, continuation, CONTINUATION_LENGTH);
    for (int round = 0; round < 2; round++)
        for (int64_t i = 0; i < count; i++) {
            uint32_t c = alphabet[i].character;
            size_t length = utf8_encode(c, (uint8_t *)string + CONTINUATION_LENGTH);
            if (round == 0)
                trainer->first_id[c] = entry_id(trainer, string + CONTINUATION_LENGTH, length);
            else if (inside[c])
                trainer->next_id[c] = entry_id(trainer, string, CONTINUATION_LENGTH + length);
        }
    free(alphabet);
    free(inside);
    free(times);
}

/* Words as symbols. The table of pairs and the heap follow from them. */
static void spell_words(struct trainer *trainer, const struct word_counts *counts) {
    trainer->symbols = xmalloc((counts->bytes.length + 1) * sizeof *trainer->symbols);
    trainer->word_begin = xcalloc((size_t)counts->count, sizeof *trainer->word_begin);
    trainer->word_length = xcalloc((size_t)counts->count, sizeof *trainer->word_length);
    trainer->word_times = xcalloc((size_t)counts->count, sizeof *trainer->word_times);
    int64_t used = 0;
    for (int64_t w = 0; w < counts->count; w++) {
        const uint8_t *begin = (const uint8_t *)counts->bytes.data + counts->words[w].begin;
        const uint8_t *end = begin + counts->words[w].length;
        trainer->word_begin[w] = used;
        trainer->word_times[w] = counts->words[w].count;
        for (const uint8_t *at = begin; at < end;) {
            uint32_t character;
            const int32_t *ids = at == begin ? trainer->first_id : trainer->next_id;
            at += utf8_decode(at, end, &character);
            if (ids[character])
                trainer->symbols[used++] = ids[character];
        }
        trainer->word_length[w] = used - trainer->word_begin[w];
        const int32_t *symbols = trainer->symbols + trainer->word_begin[w];
        for (int64_t i = 0; i + 1 < trainer->word_length[w]; i++)
            change_pair(trainer, symbols[i], symbols[i + 1], w, trainer->word_times[w]);
    }
    push_changed(trainer);
}

static void trainer_free(struct trainer *trainer) {
    word_counts_free(&trainer->entries);
    free(trainer->first_id);
    free(trainer->next_id);
    free(trainer->symbols);
    free(trainer->word_begin);
    free(trainer->word_length);
    free(trainer->word_times);
    free(trainer->pairs);
    free(trainer->links);
    free(trainer->heap);
    free(trainer->changed);
}

status vocab_train(const struct word_counts *counts, const struct vocab_train_options *options, struct text *out,
                   int64_t *entries) {
    if (counts->count == 0)
        return bad_input("the input holds no words: nothing to learn a vocabulary from");
    struct trainer trainer = {.first_id = xcalloc(CODE_POINTS, sizeof(int32_t)),
                              .next_id = xcalloc(CODE_POINTS, sizeof(int32_t))};
    for (size_t i = 0; i < sizeof specials / sizeof *specials; i++)
        entry_id(&trainer, specials[i], strlen(specials[i]));
    choose_alphabet(&trainer, counts, options->limit_alphabet);
    status code = OK;
    if (trainer.entries.count > options->size) {
        code = bad_input(
            "a vocabulary of %lld entries does not hold the alphabet of this text: the special tokens and its "
            "characters are %lld; raise --size or lower --limit-alphabet",
            (long long)options->size, (long long)trainer.entries.count);
    } else {
        spell_words(&trainer, counts);
        merge_pairs(&trainer, options);
        for (int64_t id = 0; id < trainer.entries.count; id++) {
            const struct word_count *entry = &trainer.entries.words[id];
            text_append(out, trainer.entries.bytes.data + entry->begin, entry->length);
            text_append(out, "\n", 1);
        }
        *entries = trainer.entries.count;
    }
    trainer_free(&trainer);
    return code;
}
