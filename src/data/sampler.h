/* The order of samples. The unit is a block: some 1,024 neighbouring rows of one file (shard_block). Blocks are
 * permuted by (seed, epoch, list of shards). A window of WINDOW slots is open at a time, each holding a block; samples
 * are drawn from the slots in turn; a block that is used up is followed in its slot by the next one of the permutation.
 * Rows are permuted inside each block. The order is the same for any number of ranks: a rank owns every ranks-th slot,
 * and takes the samples that come from the blocks in it (reader.c). Nothing here reads a file. */
#ifndef BERTH_DATA_SAMPLER_H
#define BERTH_DATA_SAMPLER_H

#include <stdbool.h>

#include "data/dataset.h"

enum { WINDOW = 64 };

struct slot {
    int64_t place; /* of its block in the permutation; -1: empty */
    int64_t file;
    struct extent extent;
    int64_t used;       /* sequences drawn from it */
    int64_t *row_order; /* [extent.sequences]; NULL until the first is drawn */
};

struct sampler {
    const struct dataset *dataset;
    uint64_t seed;
    bool shuffle;
    int64_t epoch, consumed; /* where it stands */
    int64_t *first_row;      /* [files+1] the sequences of all files are numbered in file order */
    int64_t *first_block;    /* [files+1] the blocks of all files are numbered in file order */
    int64_t *block_order;    /* [first_block[files]] of this epoch */
    int64_t next_place;      /* of the next block to open */
    struct slot slots[WINDOW];
    int window, turn;
};

/* One sample: the slot it comes from, and which of its block's sequences, and of all. `fresh`: the slot's block is
 * newly opened. */
struct draw {
    int source; /* of the mixture's samplers; 0 from a sampler */
    int slot;
    int64_t row, sample;
    bool fresh;
};

void sampler_open(struct sampler *sampler, const struct dataset *dataset, uint64_t seed, bool shuffle);
void sampler_close(struct sampler *sampler);
/* Stand at the start of an epoch, or behind `consumed` samples of it. Takes no time for samples, only for blocks. */
void sampler_seek(struct sampler *sampler, int64_t epoch, int64_t consumed);
/* False at the end of the epoch. */
bool sampler_draw(struct sampler *sampler, struct draw *out);

/* The samplers of sources with weights. Of the first n samples, source s gives n · share to within one or so: sample n
 * comes from the source that lags most behind its share. Each source goes through epochs of its own. An epoch of the
 * mixture is as many samples as the data set holds. Without weights, or in file order, all shards are one source. */
struct mixture {
    const struct dataset *dataset;
    struct dataset *views;    /* [count] the shards of a source */
    struct sampler *samplers; /* [count] */
    double *shares;           /* [count] */
    int64_t *drawn;           /* [count] since epoch 0 */
    int count;
    bool endless;
    int64_t total; /* drawn from all */
};

void mixture_open(struct mixture *mixture, const struct dataset *dataset, uint64_t seed, bool shuffle, bool endless);
void mixture_close(struct mixture *mixture);
void mixture_seek(struct mixture *mixture, int64_t epoch, int64_t consumed);
void mixture_place(const struct mixture *mixture, int64_t *epoch, int64_t *consumed); /* behind the last draw */
/* False at the end of a pass that is not endless. */
bool mixture_draw(struct mixture *mixture, struct draw *out);

#endif
