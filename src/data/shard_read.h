/* Shards as the reader sees them: lists of sequences, cut into blocks that are read, checked and unpadded at once.
 * Every call takes the one lock that guards the HDF5 library, which is not safe for several threads. */
#ifndef BERTH_DATA_SHARD_READ_H
#define BERTH_DATA_SHARD_READ_H

#include <stdint.h>

#include "base/status.h"

enum {
    BLOCK_ROWS = 1024,      /* about so many rows make a block */
    BLOCK_TOKENS = 1 << 20, /* and at most so many tokens: the 64 blocks of a reader then take some 170 MB */
};

struct shard {
    char *path;
    int64_t bytes;                    /* of the file */
    int64_t rows;                     /* sequences in it: what everybody counts */
    int64_t stored_rows;              /* rows of its datasets: fewer where a row packs several sequences */
    int64_t seq_len, max_predictions; /* S, P: as stored, or the largest found where rows differ in length */
    int64_t vocab_size;               /* of the vocabulary it was made with; 0: not told */
    int64_t block_rows;               /* stored rows of a block; whole HDF5 chunks if these are not too large */
    int32_t *block_sequences;         /* [shard_blocks] where rows are packed, else NULL */
    uint64_t hash;                    /* of the first rows, to notice copies */
};

/* A block: neighbouring rows of one shard. */
struct extent {
    int64_t first, stored; /* stored rows first … first + stored - 1 */
    int64_t sequences;
    int64_t first_sequence; /* of the shard's */
};

/* Opens the file, checks its datasets, types and shapes, closes it. BAD_INPUT names file and dataset. */
status shard_check(const char *path, struct shard *out);
void shard_free(struct shard *shard);
int64_t shard_blocks(const struct shard *shard);
struct extent shard_block(const struct shard *shard, int64_t number);

/* What the values of rows must satisfy. */
struct shard_limits {
    int64_t vocab_size, seq_len, max_predictions;
};

/* Numbers of 16 bits where these hold every value that can occur, else of 32. */
struct numbers {
    uint16_t *narrow;
    uint32_t *wide; /* one of the two is NULL */
};
static inline uint32_t number_at(const struct numbers *numbers, int64_t i) {
    return numbers->narrow ? numbers->narrow[i] : numbers->wide[i];
}

/* The sequences of a block, in as little memory as is simple. */
struct block {
    int64_t sequences;
    int64_t *token_starts;    /* [sequences+1] */
    int64_t *mask_starts;     /* [sequences+1] */
    struct numbers tokens;    /* [tokens] 2 · id + segment */
    struct numbers positions; /* [masks] masked positions in their sequences, ascending */
    struct numbers labels;    /* [masks] original ids there */
    uint8_t *nsp;             /* [sequences] */
};

/* BAD_INPUT names file, dataset, stored row, value and what was expected. */
status shard_read(const struct shard *shard, const struct extent *extent, const struct shard_limits *limits,
                  struct block *out);
void block_free(struct block *block);

#endif
