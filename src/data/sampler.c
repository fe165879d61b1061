#include "data/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/philox.h"

/* The list of shards takes part in the order: names and rows, not where they lie. */
static uint64_t hash_shards(const struct dataset *dataset) {
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (int64_t i = 0; i < dataset->count; i++) {
        for (const char *c = path_name(dataset->shards[i].path); *c; c++)
            hash = (hash ^ (unsigned char)*c) * 1099511628211u;
        hash = (hash ^ (uint64_t)dataset->shards[i].rows) * 1099511628211u;
    }
    return hash;
}

static int64_t block_count(const struct sampler *sampler) { return sampler->first_block[sampler->dataset->count]; }

void sampler_open(struct sampler *sampler, const struct dataset *dataset, uint64_t seed, bool shuffle) {
    *sampler = (struct sampler){.dataset = dataset, .seed = seed ^ hash_shards(dataset), .shuffle = shuffle};
    sampler->first_block = xcalloc((size_t)dataset->count + 1, sizeof *sampler->first_block);
    sampler->first_row = xcalloc((size_t)dataset->count + 1, sizeof *sampler->first_row);
    for (int64_t file = 0; file < dataset->count; file++)
        sampler->first_row[file + 1] = sampler->first_row[file] + dataset->shards[file].rows;
    for (int64_t file = 0; file < dataset->count; file++)
        sampler->first_block[file + 1] = sampler->first_block[file] + shard_blocks(&dataset->shards[file]);
    sampler->block_order = xcalloc((size_t)block_count(sampler), sizeof *sampler->block_order);
    sampler_seek(sampler, 0, 0);
}

static void clear_slots(struct sampler *sampler) {
    for (int s = 0; s < WINDOW; s++) {
        free(sampler->slots[s].row_order);
        sampler->slots[s] = (struct slot){.place = -1};
    }
}

void sampler_close(struct sampler *sampler) {
    clear_slots(sampler);
    free(sampler->first_row);
    free(sampler->first_block);
    free(sampler->block_order);
}

/* The streams of an epoch: number 0 orders the blocks, number 1 + b the rows of block b. */
static void permute(const struct sampler *sampler, uint64_t number, int64_t n, int64_t *order) {
    struct random_stream random = random_open(sampler->seed, RANDOM_ORDER, ((uint64_t)sampler->epoch << 40) + number);
    if (sampler->shuffle)
        random_permutation(&random, n, order);
    else
        for (int64_t i = 0; i < n; i++)
            order[i] = i;
}

/* The file that holds a block. */
static int64_t file_of(const struct sampler *sampler, int64_t block) {
    int64_t low = 0, high = sampler->dataset->count; /* first_block[low] ≤ block < first_block[high] */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (sampler->first_block[middle] <= block)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static int64_t left_in(const struct slot *slot) { return slot->extent.sequences - slot->used; }

/* Puts the next blocks of the permutation into a slot that is used up, until it holds a sequence or none are left. */
static void refill(struct sampler *sampler, struct slot *slot) {
    while (slot->place >= 0 && left_in(slot) == 0) {
        free(slot->row_order);
        *slot = (struct slot){.place = -1};
        if (sampler->next_place == block_count(sampler))
            return;
        int64_t block = sampler->block_order[sampler->next_place], file = file_of(sampler, block);
        *slot =
            (struct slot){.place = sampler->next_place++,
                          .file = file,
                          .extent = shard_block(&sampler->dataset->shards[file], block - sampler->first_block[file])};
    }
}

static void start_epoch(struct sampler *sampler, int64_t epoch) {
    clear_slots(sampler);
    sampler->epoch = epoch;
    sampler->consumed = 0;
    sampler->next_place = 0;
    sampler->turn = 0;
    sampler->window = sampler->shuffle ? WINDOW : 1; /* file order needs no window */
    permute(sampler, 0, block_count(sampler), sampler->block_order);
    for (int s = 0; s < sampler->window; s++) {
        sampler->slots[s].place = 0; /* as if it held a block that is used up */
        refill(sampler, &sampler->slots[s]);
    }
}

/* Skips whole rounds of the window, as many as leave every block at least empty and skip at most `wanted` samples. */
static void skip_rounds(struct sampler *sampler, int64_t wanted) {
    int64_t open = 0, rounds = wanted;
    for (int s = 0; s < sampler->window; s++) {
        struct slot *slot = &sampler->slots[s];
        refill(sampler, slot);
        if (slot->place < 0)
            continue;
        open++;
        rounds = left_in(slot) < rounds ? left_in(slot) : rounds;
    }
    rounds = open && wanted / open < rounds ? wanted / open : rounds;
    for (int s = 0; s < sampler->window; s++)
        if (sampler->slots[s].place >= 0)
            sampler->slots[s].used += rounds;
    sampler->consumed += rounds * open;
}

void sampler_seek(struct sampler *sampler, int64_t epoch, int64_t consumed) {
    struct draw skipped;
    start_epoch(sampler, epoch);
    if (consumed > sampler->dataset->rows)
        consumed = sampler->dataset->rows;
    while (consumed - sampler->consumed >= sampler->window)
        skip_rounds(sampler, consumed - sampler->consumed);
    while (sampler->consumed < consumed && sampler_draw(sampler, &skipped))
        continue;
}

bool sampler_draw(struct sampler *sampler, struct draw *out) {
    if (sampler->consumed == sampler->dataset->rows)
        return false;
    struct slot *slot;
    for (;;) { /* to the next slot that holds a sample: there is one */
        slot = &sampler->slots[sampler->turn];
        refill(sampler, slot);
        if (slot->place >= 0)
            break;
        sampler->turn = (sampler->turn + 1) % sampler->window;
    }
    if (!slot->row_order) {
        int64_t block = sampler->block_order[slot->place];
        slot->row_order = xmalloc((size_t)slot->extent.sequences * sizeof *slot->row_order);
        permute(sampler, 1 + (uint64_t)block, slot->extent.sequences, slot->row_order);
    }
    int64_t row = slot->row_order[slot->used];
    *out = (struct draw){.slot = sampler->turn,
                         .row = row,
                         .sample = sampler->first_row[slot->file] + slot->extent.first_sequence + row,
                         .fresh = slot->used == 0};
    slot->used++;
    sampler->consumed++;
    sampler->turn = (sampler->turn + 1) % sampler->window;
    return true;
}

int64_t dataset_open_blocks(const struct dataset *dataset) {
    const struct source all = {NULL, 1, 0, dataset->count};
    int64_t most = 0;
    for (int64_t s = 0; s < (dataset->source_count ? dataset->source_count : 1); s++) {
        const struct source *source = dataset->source_count ? &dataset->sources[s] : &all;
        int64_t blocks = 0;
        for (int64_t i = 0; i < source->count && blocks < WINDOW; i++)
            blocks += shard_blocks(&dataset->shards[source->first + i]);
        blocks = blocks < WINDOW ? blocks : WINDOW;
        most = blocks > most ? blocks : most;
    }
    return most;
}

/* --- several sources --- */

void mixture_open(struct mixture *mixture, const struct dataset *dataset, uint64_t seed, bool shuffle, bool endless) {
    int64_t count = endless && dataset->source_count ? dataset->source_count : 1;
    *mixture = (struct mixture){.dataset = dataset, .count = (int)count, .endless = endless};
    mixture->views = xcalloc((size_t)count, sizeof *mixture->views);
    mixture->samplers = xcalloc((size_t)count, sizeof *mixture->samplers);
    mixture->shares = xcalloc((size_t)count, sizeof *mixture->shares);
    mixture->drawn = xcalloc((size_t)count, sizeof *mixture->drawn);
    for (int s = 0; s < count; s++) {
        struct source all = {NULL, 1, 0, dataset->count};
        const struct source *source = count > 1 ? &dataset->sources[s] : &all;
        struct dataset *view = &mixture->views[s];
        *view = (struct dataset){.shards = dataset->shards + source->first, .count = source->count};
        for (int64_t i = 0; i < view->count; i++)
            view->rows += view->shards[i].rows;
        mixture->shares[s] = source->share;
        sampler_open(&mixture->samplers[s], view, seed, shuffle);
    }
}

void mixture_close(struct mixture *mixture) {
    for (int s = 0; s < mixture->count; s++)
        sampler_close(&mixture->samplers[s]);
    free(mixture->samplers);
    free(mixture->views);
    free(mixture->shares);
    free(mixture->drawn);
}

/* The source of the next sample, which counts as drawn from now on. */
static int next_source(struct mixture *mixture) {
    int next = 0;
    double most = -INFINITY;
    mixture->total++;
    for (int s = 0; s < mixture->count; s++) {
        double lag = mixture->shares[s] * (double)mixture->total - (double)mixture->drawn[s];
        if (lag > most) {
            most = lag;
            next = s;
        }
    }
    mixture->drawn[next]++;
    return next;
}

void mixture_seek(struct mixture *mixture, int64_t epoch, int64_t consumed) {
    if (mixture->count == 1) {
        sampler_seek(&mixture->samplers[0], epoch, consumed);
        return;
    }
    mixture->total = 0;
    memset(mixture->drawn, 0, (size_t)mixture->count * sizeof *mixture->drawn);
    for (int64_t n = epoch * mixture->dataset->rows + consumed; n > 0; n--)
        next_source(mixture);
    for (int s = 0; s < mixture->count; s++)
        sampler_seek(&mixture->samplers[s], mixture->drawn[s] / mixture->views[s].rows,
                     mixture->drawn[s] % mixture->views[s].rows);
}

void mixture_place(const struct mixture *mixture, int64_t *epoch, int64_t *consumed) {
    bool one = mixture->count == 1;
    *epoch = one ? mixture->samplers[0].epoch : mixture->total / mixture->dataset->rows;
    *consumed = one ? mixture->samplers[0].consumed : mixture->total % mixture->dataset->rows;
}

bool mixture_draw(struct mixture *mixture, struct draw *out) {
    int source = mixture->count == 1 ? 0 : next_source(mixture);
    struct sampler *sampler = &mixture->samplers[source];
    bool drawn = sampler_draw(sampler, out);
    if (!drawn && mixture->endless) {
        sampler_seek(sampler, sampler->epoch + 1, 0);
        drawn = sampler_draw(sampler, out);
    }
    out->source = source;
    return drawn;
}
