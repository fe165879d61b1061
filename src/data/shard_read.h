/* One HDF5 shard: what it holds, and its rows. Every call takes the one lock that guards the HDF5 library, which is not
 * safe for several threads. */
#ifndef BERTH_DATA_SHARD_READ_H
#define BERTH_DATA_SHARD_READ_H

#include <stdint.h>

#include "base/status.h"

struct shard {
    char *path;
    int64_t bytes, rows;              /* of the file; sequences in it */
    int64_t seq_len, max_predictions; /* S, P */
    int64_t chunk_rows;               /* rows that HDF5 reads at once; 1 if not chunked */
    uint64_t hash;                    /* of the first rows, to notice copies */
};

/* Opens the file, checks its datasets, types and shapes, closes it. BAD_INPUT names file and dataset. */
status shard_check(const char *path, struct shard *out);
void shard_free(struct shard *shard);

/* What the values of rows must satisfy. */
struct shard_limits {
    int64_t vocab_size, seq_len, max_predictions;
};

/* Some rows of a shard, cut to their real lengths. */
struct block {
    int64_t rows;
    int64_t *token_starts; /* [rows+1] */
    int64_t *mask_starts;  /* [rows+1] */
    int32_t *ids;          /* [tokens] */
    uint8_t *types;        /* [tokens] */
    int32_t *positions;    /* [masks] masked positions in their rows, ascending */
    int32_t *labels;       /* [masks] original ids there */
    uint8_t *nsp;          /* [rows] */
};

/* Rows first … first + count - 1. BAD_INPUT names file, dataset, row, value and what was expected. */
status shard_read(const struct shard *shard, int64_t first, int64_t count, const struct shard_limits *limits,
                  struct block *out);
void block_free(struct block *block);

#endif
