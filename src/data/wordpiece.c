/* The split of words into pieces: a trie over the vocabulary's bytes, walked greedily, and in front of it a cache,
 * since text repeats its words. */
#include "data/wordpiece.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "data/hash.h"

enum { TRIE_WORDS, TRIE_PIECES, TRIE_ROOTS }; /* the roots: how a word begins, and what follows "##" */

/* A child's slot: key = parent node << 8 | byte. */
struct trie_edge {
    uint32_t key;
    int32_t child; /* 0: empty slot (no edge leads to a root) */
};

struct wordpiece {
    const struct vocab *vocab;
    struct wordpiece_options options;
    struct normalizer *normalizer;
    struct trie_edge *edges; /* [edge_slots], a power of two, at most half full */
    uint32_t edge_slots;
    int32_t *node_id; /* [nodes] the entry that ends here, or -1 */
    int64_t nodes, node_capacity;
};

/* One cached word, a cache line each. */
enum { CACHE_SLOTS = 1 << 14, CACHE_BYTES = 30, CACHE_PIECES = 8 };
struct cache_slot {
    uint8_t length, pieces; /* length 0: empty */
    uint8_t word[CACHE_BYTES];
    int32_t ids[CACHE_PIECES];
};

struct wordpiece_scratch {
    struct word_scan scan;
    struct cache_slot cache[CACHE_SLOTS];
};

struct wordpiece_options wordpiece_defaults(bool lower_case) {
    return (struct wordpiece_options){
        .normalize = {.lower_case = lower_case, .strip_accents = lower_case, .space_cjk = true}, .longest_word = 100};
}

static struct trie_edge *find_edge(const struct wordpiece *wordpiece, uint32_t node, uint8_t byte) {
    uint32_t key = node << 8 | byte, slot = (uint32_t)hash_mix(key);
    while (slot &= wordpiece->edge_slots - 1, wordpiece->edges[slot].child && wordpiece->edges[slot].key != key)
        slot++;
    return &wordpiece->edges[slot];
}

static uint32_t add_node(struct wordpiece *wordpiece) {
    GROW(wordpiece->node_id, wordpiece->nodes, wordpiece->node_capacity);
    wordpiece->node_id[wordpiece->nodes] = -1;
    return (uint32_t)wordpiece->nodes++;
}

static void add_entry(struct wordpiece *wordpiece, uint32_t node, const char *entry, int32_t id) {
    for (; *entry; entry++) {
        struct trie_edge *edge = find_edge(wordpiece, node, (uint8_t)*entry);
        if (!edge->child)
            *edge = (struct trie_edge){node << 8 | (uint8_t)*entry, (int32_t)add_node(wordpiece)};
        node = (uint32_t)edge->child;
    }
    wordpiece->node_id[node] = id;
}

struct wordpiece *wordpiece_new(const struct vocab *vocab, const struct wordpiece_options *options) {
    struct wordpiece *wordpiece = xcalloc(1, sizeof *wordpiece);
    wordpiece->vocab = vocab;
    wordpiece->options = *options;
    wordpiece->normalizer = normalizer_new(&options->normalize);
    uint64_t most = TRIE_ROOTS;
    for (int64_t id = 0; id < vocab_size(vocab); id++)
        most += 2 * strlen(vocab_token(vocab, id));
    for (wordpiece->edge_slots = 1; wordpiece->edge_slots < most; wordpiece->edge_slots *= 2)
        ;
    wordpiece->edges = xcalloc(wordpiece->edge_slots, sizeof *wordpiece->edges);
    for (int root = 0; root < TRIE_ROOTS; root++)
        add_node(wordpiece);
    for (int64_t id = 0; id < vocab_size(vocab); id++) {
        const char *token = vocab_token(vocab, id);
        if (strncmp(token, "##", 2) == 0 && token[2])
            add_entry(wordpiece, TRIE_PIECES, token + 2, (int32_t)id);
        else
            add_entry(wordpiece, TRIE_WORDS, token, (int32_t)id);
    }
    return wordpiece;
}

void wordpiece_free(struct wordpiece *wordpiece) {
    if (!wordpiece)
        return;
    normalizer_free(wordpiece->normalizer);
    free(wordpiece->edges);
    free(wordpiece->node_id);
    free(wordpiece);
}

struct wordpiece_scratch *wordpiece_scratch_new(void) {
    return xcalloc(1, sizeof(struct wordpiece_scratch));
}

void wordpiece_scratch_free(struct wordpiece_scratch *scratch) {
    if (!scratch)
        return;
    word_scan_free(&scratch->scan);
    free(scratch);
}

int64_t wordpiece_broken(const struct wordpiece_scratch *scratch) { return scratch->scan.broken; }

static void push(struct token_list *list, int32_t id) {
    GROW(list->ids, list->count, list->capacity);
    list->ids[list->count++] = id;
}

/* Greedy, longest match first; a word that cannot be covered is one [UNK]. Entries are whole characters, so a match
 * ends where a character does. */
static void split_word(const struct wordpiece *wordpiece, const uint8_t *word, size_t length, struct token_list *out) {
    int64_t start = out->count;
    for (size_t at = 0; at < length;) {
        uint32_t node = at ? TRIE_PIECES : TRIE_WORDS;
        int32_t best = -1;
        size_t best_end = at;
        for (size_t i = at; i < length; i++) {
            node = (uint32_t)find_edge(wordpiece, node, word[i])->child;
            if (!node)
                break;
            if (wordpiece->node_id[node] >= 0) {
                best = wordpiece->node_id[node];
                best_end = i + 1;
            }
        }
        if (best < 0) {
            out->count = start;
            push(out, vocab_special(wordpiece->vocab).unk);
            return;
        }
        push(out, best);
        at = best_end;
    }
}

static void encode_word(const struct wordpiece *wordpiece, struct wordpiece_scratch *scratch, struct token_list *out) {
    const struct word_scan *scan = &scratch->scan;
    if (scan->chars > wordpiece->options.longest_word) {
        push(out, vocab_special(wordpiece->vocab).unk);
        return;
    }
    if (scan->length > CACHE_BYTES) {
        split_word(wordpiece, scan->word, scan->length, out);
        return;
    }
    struct cache_slot *slot = &scratch->cache[hash_bytes(scan->word, scan->length) % CACHE_SLOTS];
    if (slot->length == scan->length && memcmp(slot->word, scan->word, scan->length) == 0) {
        for (int i = 0; i < slot->pieces; i++)
            push(out, slot->ids[i]);
        return;
    }
    int64_t start = out->count;
    split_word(wordpiece, scan->word, scan->length, out);
    if (out->count - start > CACHE_PIECES)
        return;
    slot->length = (uint8_t)scan->length;
    slot->pieces = (uint8_t)(out->count - start);
    memcpy(slot->word, scan->word, scan->length);
    memcpy(slot->ids, out->ids + start, (size_t)slot->pieces * sizeof *out->ids);
}

static void encode_plain(const struct wordpiece *wordpiece, struct wordpiece_scratch *scratch, const char *text,
                         size_t length, struct token_list *out) {
    word_scan_start(&scratch->scan, text, length);
    while (word_next(wordpiece->normalizer, &scratch->scan))
        encode_word(wordpiece, scratch, out);
}

/* The special token that is written at `at`, which is a '[', or -1. */
static int32_t written_special(const struct wordpiece *wordpiece, const char *at, const char *end, size_t *length) {
    struct special_ids ids = vocab_special(wordpiece->vocab);
    const int32_t candidates[] = {ids.pad, ids.unk, ids.cls, ids.sep, ids.mask};
    for (size_t i = 0; i < sizeof candidates / sizeof *candidates; i++) {
        const char *token = vocab_token(wordpiece->vocab, candidates[i]);
        *length = strlen(token);
        if (*length <= (size_t)(end - at) && memcmp(at, token, *length) == 0)
            return candidates[i];
    }
    return -1;
}

void wordpiece_encode(const struct wordpiece *wordpiece, struct wordpiece_scratch *scratch, const char *text,
                      size_t length, struct token_list *out) {
    const char *end = text + length, *at = text;
    while (wordpiece->options.specials && at < end && (at = memchr(at, '[', (size_t)(end - at)))) {
        size_t token_length;
        int32_t id = written_special(wordpiece, at, end, &token_length);
        if (id < 0) {
            at++;
            continue;
        }
        encode_plain(wordpiece, scratch, text, (size_t)(at - text), out);
        push(out, id);
        text = at += token_length;
    }
    encode_plain(wordpiece, scratch, text, (size_t)(end - text), out);
}
