#include "data/instances.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "base/philox.h"
#include "data/masking.h"

enum { BLOCK_DOCUMENTS = 8, SPECIALS_PAIR = 3, SPECIALS_SINGLE = 2 };

/* What every thread reads. */
struct recipe {
    const struct corpus *corpus;
    const int64_t *documents; /* [document_count] */
    int64_t document_count;
    const struct instance_options *options;
    uint64_t stream;
    struct special_ids special;
    struct masking *masking;
    struct block *blocks;
};

/* The instances of a few documents, as records. */
struct block {
    int32_t *words;
    int64_t used, capacity, instances;
};

/* A thread's working memory. */
struct maker {
    const struct recipe *recipe;
    struct random_stream random;
    int32_t *a, *b; /* [longest run] */
    int64_t a_length, b_length, a_capacity, b_capacity;
    int32_t *ids;                /* [S] */
    int32_t *positions, *labels; /* [P] */
    struct masking_scratch scratch;
};

/* min ≤ result ≤ max */
static int64_t draw(struct maker *maker, int64_t min, int64_t max) {
    return min + (int64_t)random_below(&maker->random, (uint64_t)(max - min + 1));
}

static bool chance(struct maker *maker, double probability) { return random_uniform(&maker->random) < probability; }

/* Appends sentences [begin, end) to a run of tokens. */
static void add_sentences(const struct corpus *corpus, int64_t begin, int64_t end, int32_t **run, int64_t *length,
                          int64_t *capacity) {
    int64_t from = sentence_begin(corpus, begin), count = sentence_begin(corpus, end) - from;
    if (*length + count > *capacity) {
        *capacity = 2 * (*length + count);
        *run = xrealloc(*run, (size_t)*capacity * sizeof **run);
    }
    memcpy(*run + *length, corpus->tokens.ids + from, (size_t)count * sizeof **run);
    *length += count;
}

static int32_t *block_room(struct block *block, int64_t more) {
    if (block->used + more > block->capacity) {
        block->capacity = 2 * (block->used + more);
        block->words = xrealloc(block->words, (size_t)block->capacity * sizeof *block->words);
    }
    int32_t *at = block->words + block->used;
    block->used += more;
    return at;
}

/* Masks the sequence in maker->ids and adds it as a record. One without a masked token, where no whole word is short
 * enough, teaches nothing and is left out. */
static void emit(struct maker *maker, struct block *block, int64_t length, int64_t b_begin, int32_t label) {
    const struct recipe *recipe = maker->recipe;
    int64_t masked = masking_apply(recipe->masking, &maker->random, &maker->scratch, recipe->options->max_predictions,
                                   length, maker->ids, maker->positions, maker->labels);
    if (!masked)
        return;
    int32_t *record = block_room(block, 4 + length + 2 * masked), *ids = record + 4;
    record[0] = (int32_t)length;
    record[1] = (int32_t)b_begin;
    record[2] = label;
    record[3] = (int32_t)masked;
    memcpy(ids, maker->ids, (size_t)length * sizeof *ids);
    memcpy(ids + length, maker->positions, (size_t)masked * sizeof *ids);
    memcpy(ids + length + masked, maker->labels, (size_t)masked * sizeof *ids);
    block->instances++;
}

/* [CLS] A [SEP] B [SEP], from a and b, or [CLS] A [SEP] if b is empty. */
static void emit_pair(struct maker *maker, struct block *block, const int32_t *a, int64_t a_length, const int32_t *b,
                      int64_t b_length, int32_t label) {
    const struct special_ids *special = &maker->recipe->special;
    int64_t at = 0;
    maker->ids[at++] = special->cls;
    memcpy(maker->ids + at, a, (size_t)a_length * sizeof *a);
    at += a_length;
    maker->ids[at++] = special->sep;
    int64_t b_begin = at;
    if (b_length) {
        memcpy(maker->ids + at, b, (size_t)b_length * sizeof *b);
        at += b_length;
        maker->ids[at++] = special->sep;
    }
    emit(maker, block, at, b_begin, label);
}

/* Cuts tokens off the longer of A and B, at a random end each, until both fit. */
static void truncate_pair(struct maker *maker, int64_t room, int64_t *a_begin, int64_t *b_begin) {
    *a_begin = *b_begin = 0;
    while (maker->a_length - *a_begin + maker->b_length - *b_begin > room) {
        bool from_a = maker->a_length - *a_begin > maker->b_length - *b_begin;
        if (chance(maker, 0.5))
            ++*(from_a ? a_begin : b_begin);
        else
            --*(from_a ? &maker->a_length : &maker->b_length);
    }
}

/* Fills b from a random sentence on of a random other document. */
static void random_b(struct maker *maker, int64_t document, int64_t wanted) {
    const struct recipe *recipe = maker->recipe;
    int64_t other = document;
    if (recipe->document_count > 1)
        while (other == document)
            other = recipe->documents[random_below(&maker->random, (uint64_t)recipe->document_count)];
    int64_t end = recipe->corpus->document_ends[other];
    int64_t sentence = draw(maker, document_begin(recipe->corpus, other), end - 1);
    do {
        add_sentences(recipe->corpus, sentence, sentence + 1, &maker->b, &maker->b_length, &maker->b_capacity);
        sentence++;
    } while (sentence < end && maker->b_length < wanted);
}

static int64_t draw_target(struct maker *maker, int64_t room) {
    return chance(maker, maker->recipe->options->short_seq_prob) ? draw(maker, 2, room) : room;
}

static void make_pairs(struct maker *maker, struct block *block, int64_t document) {
    const struct corpus *corpus = maker->recipe->corpus;
    int64_t room = maker->recipe->options->seq_len - SPECIALS_PAIR, end = corpus->document_ends[document];
    for (int64_t begin = document_begin(corpus, document); begin < end;) {
        int64_t target = draw_target(maker, room), from = sentence_begin(corpus, begin), next = begin + 1;
        while (next < end && sentence_begin(corpus, next) - from < target)
            next++;
        int64_t a_end = next - begin > 1 ? draw(maker, begin + 1, next - 1) : next;
        maker->a_length = maker->b_length = 0;
        add_sentences(corpus, begin, a_end, &maker->a, &maker->a_length, &maker->a_capacity);
        bool random = next - begin == 1 || chance(maker, 0.5);
        if (random) {
            random_b(maker, document, target - maker->a_length);
            next = a_end;
        } else {
            add_sentences(corpus, a_end, next, &maker->b, &maker->b_length, &maker->b_capacity);
        }
        int64_t a_begin, b_begin;
        truncate_pair(maker, room, &a_begin, &b_begin);
        emit_pair(maker, block, maker->a + a_begin, maker->a_length - a_begin, maker->b + b_begin,
                  maker->b_length - b_begin, random);
        begin = next;
    }
}

/* As many whole sentences as fit; a sentence longer than that is cut, and goes on in the next instance. */
static void make_singles(struct maker *maker, struct block *block, int64_t document) {
    const struct corpus *corpus = maker->recipe->corpus;
    int64_t room = maker->recipe->options->seq_len - SPECIALS_SINGLE;
    int64_t sentence = document_begin(corpus, document), end = corpus->document_ends[document];
    for (int64_t from = sentence_begin(corpus, sentence); sentence < end;) {
        int64_t target = draw_target(maker, room), to = from;
        while (sentence < end && corpus->sentence_ends[sentence] - from <= target)
            to = corpus->sentence_ends[sentence++];
        if (to == from)
            to = from + target;
        emit_pair(maker, block, corpus->tokens.ids + from, to - from, NULL, 0, 0);
        from = to;
    }
}

/* Documents [begin, end) of the list. */
static void make_blocks(void *ctx, int64_t begin, int64_t end) {
    const struct recipe *recipe = ctx;
    size_t most = (size_t)recipe->options->max_predictions;
    struct maker maker = {.recipe = recipe,
                          .ids = xcalloc((size_t)recipe->options->seq_len, sizeof *maker.ids),
                          .positions = xcalloc(most, sizeof *maker.positions),
                          .labels = xcalloc(most, sizeof *maker.labels)};
    for (int64_t i = begin; i < end; i++) {
        int64_t document = recipe->documents[i];
        struct block *block = &recipe->blocks[i / BLOCK_DOCUMENTS];
        maker.random = random_open(recipe->options->seed, RANDOM_INSTANCES, recipe->stream + (uint64_t)document);
        if (recipe->options->nsp)
            make_pairs(&maker, block, document);
        else
            make_singles(&maker, block, document);
    }
    free(maker.a);
    free(maker.b);
    free(maker.ids);
    free(maker.positions);
    free(maker.labels);
    masking_scratch_free(&maker.scratch);
}

void instances_take_records(struct instance_list *list, int32_t *words, int64_t count) {
    const int32_t *at = words;
    for (int64_t i = 0; i < count; i++) {
        struct instance instance = {.length = at[0], .b_begin = at[1], .label = at[2], .masked = at[3], .ids = at + 4};
        instance.positions = instance.ids + instance.length;
        instance.labels = instance.positions + instance.masked;
        at = instance.labels + instance.masked;
        GROW(list->items, list->count, list->capacity);
        list->items[list->count++] = instance;
        list->tokens += instance.length;
        list->masked += instance.masked;
    }
    GROW(list->blocks, list->block_count, list->block_capacity);
    list->blocks[list->block_count++] = words;
}

void instances_make(const struct corpus *corpus, const struct vocab *vocab, const int64_t *documents, int64_t count,
                    const struct instance_options *options, uint64_t stream, struct instance_list *out) {
    int64_t blocks = (count + BLOCK_DOCUMENTS - 1) / BLOCK_DOCUMENTS;
    const struct masking_options masking = {options->masked_lm_prob, 0.8, 0.1, options->whole_word};
    struct recipe recipe = {corpus,
                            documents,
                            count,
                            options,
                            stream,
                            vocab_special(vocab),
                            masking_new(vocab, &masking),
                            xcalloc((size_t)blocks, sizeof(struct block))};
    parallel_for(count, BLOCK_DOCUMENTS, make_blocks, &recipe);
    for (int64_t i = 0; i < blocks; i++)
        instances_take_records(out, recipe.blocks[i].words, recipe.blocks[i].instances);
    free(recipe.blocks);
    masking_free(recipe.masking);
}

void instances_free(struct instance_list *list) {
    for (int64_t i = 0; i < list->block_count; i++)
        free(list->blocks[i]);
    free(list->blocks);
    free(list->items);
    *list = (struct instance_list){0};
}
