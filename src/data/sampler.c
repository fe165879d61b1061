#include "data/sampler.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/philox.h"

static void add_blocks(struct sampler *sampler, int64_t file) {
    const struct shard *shard = &sampler->dataset->shards[file];
    int64_t chunks = BLOCK_ROWS / shard->chunk_rows, rows = (chunks > 0 ? chunks : 1) * shard->chunk_rows;
    for (int64_t first = 0; first < shard->rows; first += rows) {
        int64_t left = shard->rows - first;
        GROW(sampler->blocks, sampler->block_count, sampler->block_capacity);
        sampler->blocks[sampler->block_count++] =
            (struct extent){.file = file, .first = first, .count = left < rows ? left : rows};
    }
}

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

void sampler_open(struct sampler *sampler, const struct dataset *dataset, uint64_t seed, bool shuffle) {
    *sampler = (struct sampler){.dataset = dataset, .seed = seed ^ hash_shards(dataset), .shuffle = shuffle};
    for (int64_t file = 0; file < dataset->count; file++)
        add_blocks(sampler, file);
    sampler->block_order = xcalloc((size_t)sampler->block_count, sizeof *sampler->block_order);
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
    free(sampler->blocks);
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

static void open_block(struct sampler *sampler, struct slot *slot) {
    free(slot->row_order);
    *slot = (struct slot){.place = -1};
    if (sampler->next_place == sampler->block_count)
        return;
    int64_t number = sampler->block_order[sampler->next_place];
    const struct extent *block = &sampler->blocks[number];
    *slot = (struct slot){
        .place = sampler->next_place++, .file = block->file, .first = block->first, .count = block->count};
    slot->row_order = xmalloc((size_t)block->count * sizeof *slot->row_order);
    permute(sampler, 1 + (uint64_t)number, block->count, slot->row_order);
}

static void start_epoch(struct sampler *sampler, int64_t epoch) {
    clear_slots(sampler);
    sampler->epoch = epoch;
    sampler->consumed = 0;
    sampler->next_place = 0;
    sampler->turn = 0;
    sampler->window = sampler->shuffle ? WINDOW : 1; /* file order needs no window */
    permute(sampler, 0, sampler->block_count, sampler->block_order);
    for (int s = 0; s < sampler->window; s++)
        open_block(sampler, &sampler->slots[s]);
}

void sampler_seek(struct sampler *sampler, int64_t epoch, int64_t consumed) {
    struct draw skipped;
    start_epoch(sampler, epoch);
    while (sampler->consumed < consumed && sampler_draw(sampler, &skipped))
        continue;
}

bool sampler_draw(struct sampler *sampler, struct draw *out) {
    if (sampler->consumed == sampler->dataset->rows)
        return false;
    struct slot *slot;
    for (;;) { /* to the next slot that holds a row: there is one */
        slot = &sampler->slots[sampler->turn];
        if (slot->place >= 0 && slot->used == slot->count)
            open_block(sampler, slot);
        if (slot->place >= 0)
            break;
        sampler->turn = (sampler->turn + 1) % sampler->window;
    }
    *out = (struct draw){.slot = sampler->turn, .row = slot->row_order[slot->used], .fresh = slot->used == 0};
    slot->used++;
    sampler->consumed++;
    sampler->turn = (sampler->turn + 1) % sampler->window;
    return true;
}
