/* The reader thread. It draws samples, loads the blocks they come from, and fills a ring of steps that the trainer
 * empties. */
#include "data/reader.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "data/sampler.h"

/* A step with the memory behind its batches, which is kept from step to step. */
struct entry {
    struct step_data data;
    struct batch *batches;
    int64_t batch_capacity;
    int32_t *starts, *nsp; /* of all its micro-batches, one after another */
    int64_t *numbers;
    int64_t sequence_capacity;
    int32_t *ids, *positions, *types;
    int64_t token_capacity;
    int32_t *rows, *labels;
    int64_t mask_capacity;
    int64_t epoch, consumed; /* the place behind it */
    status code;             /* of reading it */
    char *message;
    bool end; /* the pass was over before it */
};

/* What a sampler's slot holds, for blocks of this rank. */
struct held {
    struct block block;
    bool loaded, left_out; /* left_out: broken, and that is not to stop the run */
};

struct reader {
    struct reader_options options;
    struct mixture mixture;
    struct held *held; /* [sources · WINDOW] */
    struct masking_scratch scratch;
    int64_t number; /* sequence number of the next sample */
    struct entry *ring;
    /* shared with the trainer, under the lock */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int64_t filled, taken; /* entries ever filled, and ever taken */
    bool closing;
    pthread_t thread;
    /* the trainer's */
    int64_t epoch, consumed;
};

/* --- filling a step (reader thread) --- */

static void grow_sequences(struct entry *entry, int64_t need) {
    if (need <= entry->sequence_capacity)
        return;
    entry->sequence_capacity = 2 * need;
    entry->starts = xrealloc(entry->starts, 2 * (size_t)entry->sequence_capacity * sizeof *entry->starts);
    entry->nsp = xrealloc(entry->nsp, (size_t)entry->sequence_capacity * sizeof *entry->nsp);
    entry->numbers = xrealloc(entry->numbers, (size_t)entry->sequence_capacity * sizeof *entry->numbers);
}

static void grow_tokens(struct entry *entry, int64_t need) {
    if (need <= entry->token_capacity)
        return;
    entry->token_capacity = 2 * need;
    size_t bytes = (size_t)entry->token_capacity * sizeof(int32_t);
    entry->ids = xrealloc(entry->ids, bytes);
    entry->positions = xrealloc(entry->positions, bytes);
    entry->types = xrealloc(entry->types, bytes);
}

static void grow_masks(struct entry *entry, int64_t need) {
    if (need <= entry->mask_capacity)
        return;
    entry->mask_capacity = 2 * need;
    size_t bytes = (size_t)entry->mask_capacity * sizeof(int32_t);
    entry->rows = xrealloc(entry->rows, bytes);
    entry->labels = xrealloc(entry->labels, bytes);
}

/* Batches point into arrays that move while they grow: until `finish`, only counts are kept in them. */
static bool has_room(const struct reader_options *options, const struct batch *batch, int64_t tokens, int64_t masked) {
    return batch->sequences < options->micro_batch &&
           (!options->micro_tokens || batch->tokens + tokens <= options->micro_tokens) &&
           (!options->micro_masked || batch->masked + masked <= options->micro_masked);
}

/* For a sequence of so many tokens and at most so many masks. */
static struct batch *batch_to_fill(struct reader *reader, struct entry *entry, int64_t tokens, int64_t masked) {
    struct step_data *data = &entry->data;
    struct batch *last = data->micro_batches ? &entry->batches[data->micro_batches - 1] : NULL;
    if (last && has_room(&reader->options, last, tokens, masked))
        return last;
    GROW(entry->batches, data->micro_batches, entry->batch_capacity);
    entry->batches[data->micro_batches] = (struct batch){0};
    return &entry->batches[data->micro_batches++];
}

/* Puts the sample's own ids back where the stored masks are, and masks it as its epoch wants. Room for its masks is
 * there. Returns how many it has now. */
static int64_t mask_anew(struct reader *reader, struct entry *entry, const struct draw *draw, int64_t masks,
                         int64_t length) {
    const struct step_data *data = &entry->data;
    const struct sampler *sampler = &reader->mixture.samplers[draw->source];
    int32_t *ids = entry->ids + data->tokens, *rows = entry->rows + data->masked,
            *labels = entry->labels + data->masked;
    for (int64_t i = 0; i < masks; i++)
        ids[rows[i]] = labels[i];
    struct random_stream random =
        random_open(sampler->seed, RANDOM_MASKING, ((uint64_t)sampler->epoch << 40) + (uint64_t)draw->sample);
    return masking_apply(reader->options.masking, &random, &reader->scratch, INT64_MAX, length, ids, rows, labels);
}

static void add_sample(struct reader *reader, struct entry *entry, const struct block *block, const struct draw *draw) {
    const struct masking *masking = reader->options.masking;
    struct step_data *data = &entry->data;
    int64_t row = draw->row;
    int64_t from = block->token_starts[row], length = block->token_starts[row + 1] - from;
    int64_t mask = block->mask_starts[row], masks = block->mask_starts[row + 1] - mask;
    grow_sequences(entry, data->sequences + 1);
    grow_tokens(entry, data->tokens + length);
    int64_t most = masking ? masking_most(masking, length) : 0;
    most = masks > most ? masks : most;
    grow_masks(entry, data->masked + most);
    struct batch *batch = batch_to_fill(reader, entry, length, most);
    for (int64_t i = 0; i < length; i++) {
        uint32_t token = number_at(&block->tokens, from + i);
        entry->ids[data->tokens + i] = (int32_t)(token >> 1);
        entry->types[data->tokens + i] = (int32_t)(token & 1);
        entry->positions[data->tokens + i] = (int32_t)i;
    }
    for (int64_t i = 0; i < masks; i++) {
        entry->rows[data->masked + i] = (int32_t)number_at(&block->positions, mask + i);
        entry->labels[data->masked + i] = (int32_t)number_at(&block->labels, mask + i);
    }
    if (masking)
        masks = mask_anew(reader, entry, draw, masks, length);
    for (int64_t i = 0; i < masks; i++) /* positions become rows of the batch */
        entry->rows[data->masked + i] += (int32_t)batch->tokens;
    /* each batch has one start more than sequences */
    int32_t *starts = entry->starts + data->sequences + (data->micro_batches - 1);
    starts[0] = (int32_t)batch->tokens;
    starts[1] = (int32_t)(batch->tokens + length);
    entry->nsp[data->sequences] = block->nsp[row];
    entry->numbers[data->sequences] = reader->number;
    batch->sequences++;
    batch->tokens += length;
    batch->masked += masks;
    data->sequences++;
    data->tokens += length;
    data->masked += masks;
}

static const struct slot *slot_of(const struct reader *reader, const struct draw *draw) {
    return &reader->mixture.samplers[draw->source].slots[draw->slot];
}

static struct held *held_of(const struct reader *reader, const struct draw *draw) {
    return &reader->held[draw->source * WINDOW + draw->slot];
}

/* Ranks own slots of the window in turn, and so whole blocks: of the draws that go round the window, each gets as many
 * as the others. In file order, where the window is one slot, they own its blocks in turn. */
static bool is_own(const struct reader *reader, const struct draw *draw) {
    int64_t number = reader->options.shuffle ? draw->slot : slot_of(reader, draw)->place;
    return number % reader->options.ranks == reader->options.rank;
}

static void unload(struct held *held) {
    if (held->loaded)
        block_free(&held->block);
    held->loaded = held->left_out = false;
}

/* The block behind a draw's slot, loaded at its first sample. */
static status load(struct reader *reader, const struct draw *draw) {
    const struct slot *slot = slot_of(reader, draw);
    const struct reader_options *options = &reader->options;
    struct shard_limits limits = {options->vocab_size, options->seq_len, options->max_predictions};
    struct held *held = held_of(reader, draw);
    unload(held);
    const struct dataset *view = &reader->mixture.views[draw->source];
    status code = shard_read(&view->shards[slot->file], &slot->extent, &limits, &held->block);
    if (code == BAD_INPUT && reader->mixture.dataset->skip_bad) {
        if (options->rank == 0 || !options->batch_tokens) /* where a step is filled by tokens, all read all blocks */
            log_warn_of((int)options->rank, "%lld sequences left out: %s", (long long)slot->extent.sequences,
                        status_message());
        held->left_out = true;
        return OK;
    }
    held->loaded = code == OK;
    return code;
}

static bool is_closing(struct reader *reader) {
    pthread_mutex_lock(&reader->lock);
    bool closing = reader->closing;
    pthread_mutex_unlock(&reader->lock);
    return closing;
}

static status fill(struct reader *reader, struct entry *entry) {
    const struct reader_options *options = &reader->options;
    struct draw draw;
    int64_t drawn = 0, left_out = 0, tokens = 0;
    int64_t most = options->batch_tokens ? options->batch_tokens : options->global_batch; /* a sequence has a token */
    entry->data = (struct step_data){0};
    for (; drawn < most && tokens < most && mixture_draw(&reader->mixture, &draw); drawn++, reader->number++) {
        bool own = is_own(reader, &draw);
        if (!own && !options->batch_tokens)
            continue;
        struct held *held = held_of(reader, &draw);
        if (draw.fresh || !(held->loaded || held->left_out)) {
            if (is_closing(reader)) /* a step may need the blocks of a whole window: do not keep reader_close waiting */
                return stopped("the reader was closed");
            TRY(load(reader, &draw));
        }
        left_out += held->left_out;
        if (held->loaded && own)
            add_sample(reader, entry, &held->block, &draw);
        if (held->loaded && options->batch_tokens)
            tokens += held->block.token_starts[draw.row + 1] - held->block.token_starts[draw.row];
    }
    if (left_out > 0 && left_out == drawn)
        return bad_input("all %lld sequences of a step lie in broken shards", (long long)drawn);
    entry->end = drawn == 0;
    mixture_place(&reader->mixture, &entry->epoch, &entry->consumed);
    entry->data.epoch = entry->epoch;
    entry->data.consumed = reader->number;
    return OK;
}

/* The arrays stand still now: point the batches into them. */
static void finish(struct entry *entry) {
    int64_t sequence = 0, token = 0, mask = 0;
    for (int64_t i = 0; i < entry->data.micro_batches; i++) {
        struct batch *batch = &entry->batches[i];
        batch->starts = entry->starts + sequence + i;
        batch->nsp_labels = entry->nsp + sequence;
        batch->sequence_numbers = entry->numbers + sequence;
        batch->ids = entry->ids + token;
        batch->positions = entry->positions + token;
        batch->types = entry->types + token;
        batch->masked_rows = entry->rows + mask;
        batch->masked_labels = entry->labels + mask;
        sequence += batch->sequences;
        token += batch->tokens;
        mask += batch->masked;
    }
    entry->data.batches = entry->batches;
}

/* --- the ring --- */

/* One entry is always the trainer's: the one it took last. */
static bool ring_full(const struct reader *reader) { return reader->filled - reader->taken >= reader->options.ring; }

static struct entry *ring_entry(struct reader *reader, int64_t number) {
    return &reader->ring[number % (reader->options.ring + 1)];
}

static void *reader_thread(void *argument) {
    struct reader *reader = argument;
    bool going = true;
    while (going) {
        pthread_mutex_lock(&reader->lock);
        while (ring_full(reader) && !reader->closing)
            pthread_cond_wait(&reader->changed, &reader->lock);
        going = !reader->closing;
        pthread_mutex_unlock(&reader->lock);
        if (!going)
            break;
        struct entry *entry = ring_entry(reader, reader->filled);
        entry->code = fill(reader, entry);
        if (entry->code == OK)
            finish(entry);
        else
            entry->message = xstrdup(status_message());
        going = entry->code == OK && !entry->end;
        pthread_mutex_lock(&reader->lock);
        reader->filled++;
        pthread_cond_broadcast(&reader->changed);
        pthread_mutex_unlock(&reader->lock);
    }
    return NULL;
}

status reader_open(const struct dataset *dataset, const struct reader_options *options, struct reader **out) {
    struct reader *reader = xcalloc(1, sizeof *reader);
    *reader = (struct reader){.options = *options,
                              .number = options->first_number,
                              .epoch = options->start_epoch,
                              .consumed = options->start_consumed};
    reader->ring = xcalloc((size_t)options->ring + 1, sizeof *reader->ring);
    mixture_open(&reader->mixture, dataset, options->seed, options->shuffle, options->endless);
    mixture_seek(&reader->mixture, options->start_epoch, options->start_consumed);
    reader->held = xcalloc((size_t)reader->mixture.count * WINDOW, sizeof *reader->held);
    pthread_mutex_init(&reader->lock, NULL);
    pthread_cond_init(&reader->changed, NULL);
    *out = reader;
    if (pthread_create(&reader->thread, NULL, reader_thread, reader) == 0)
        return OK;
    reader->closing = true; /* nothing to join */
    reader_close(reader);
    *out = NULL;
    return failed("cannot start the reader thread");
}

status reader_next(struct reader *reader, const struct step_data **out) {
    double began = clock_seconds();
    *out = NULL;
    pthread_mutex_lock(&reader->lock);
    while (reader->filled == reader->taken)
        pthread_cond_wait(&reader->changed, &reader->lock);
    struct entry *entry = ring_entry(reader, reader->taken);
    bool last = entry->code != OK || entry->end; /* stays in the ring: asked again, it is said again */
    if (!last) {
        reader->taken++;
        pthread_cond_broadcast(&reader->changed);
    }
    pthread_mutex_unlock(&reader->lock);
    if (entry->code != OK)
        return status_set(entry->code, entry->message);
    if (last)
        return OK;
    entry->data.waited = clock_seconds() - began;
    reader->epoch = entry->epoch;
    reader->consumed = entry->consumed;
    *out = &entry->data;
    return OK;
}

void reader_position(const struct reader *reader, int64_t *epoch, int64_t *consumed) {
    *epoch = reader->epoch;
    *consumed = reader->consumed;
}

static void free_entry(struct entry *entry) {
    void *all[] = {entry->batches,   entry->starts, entry->nsp,  entry->numbers, entry->ids,
                   entry->positions, entry->types,  entry->rows, entry->labels,  entry->message};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

void reader_close(struct reader *reader) {
    bool started = !reader->closing;
    pthread_mutex_lock(&reader->lock);
    reader->closing = true;
    pthread_cond_broadcast(&reader->changed);
    pthread_mutex_unlock(&reader->lock);
    if (started)
        pthread_join(reader->thread, NULL);
    for (int i = 0; i < reader->mixture.count * WINDOW; i++)
        unload(&reader->held[i]);
    free(reader->held);
    for (int i = 0; i <= reader->options.ring; i++)
        free_entry(&reader->ring[i]);
    free(reader->ring);
    masking_scratch_free(&reader->scratch);
    mixture_close(&reader->mixture);
    pthread_mutex_destroy(&reader->lock);
    pthread_cond_destroy(&reader->changed);
    free(reader);
}

status dataset_visit(const struct dataset *dataset, int64_t vocab_size, batch_visit visit, void *ctx) {
    struct reader_options options = {.global_batch = 256,
                                     .micro_batch = 256,
                                     .ranks = 1,
                                     .vocab_size = vocab_size,
                                     .seq_len = dataset_seq_len(dataset),
                                     .max_predictions = dataset_max_predictions(dataset),
                                     .ring = 2};
    struct reader *reader;
    TRY(reader_open(dataset, &options, &reader));
    const struct step_data *data;
    status code;
    while ((code = reader_next(reader, &data)) == OK && data)
        for (int64_t micro = 0; micro < data->micro_batches; micro++)
            visit(ctx, &data->batches[micro]);
    reader_close(reader);
    return code;
}
