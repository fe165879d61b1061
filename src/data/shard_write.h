/* Shards out, in NVIDIA's HDF5 form: input_ids [N,S] i4, input_mask [N,S] i1, segment_ids [N,S] i1, masked_lm_positions
 * [N,P] i4, masked_lm_ids [N,P] i4, next_sentence_labels [N] i1; padding is 0; chunks of whole rows, compressed by
 * gzip. Or, variable, in MLPerf's: ids and positions variable-length i2 (i4 where ids need it), segment_ids
 * variable-length i1, labels as above, no mask. The root's attributes seq_len, max_predictions and vocab_size say what
 * to expect. */
#ifndef BERTH_DATA_SHARD_WRITE_H
#define BERTH_DATA_SHARD_WRITE_H

#include <stdint.h>

#include "base/status.h"
#include "data/instances.h"

struct shard_shape {
    int64_t seq_len, max_predictions; /* S, P */
    int64_t compression;              /* gzip level, 0 (none) to 9; of the padded form only */
    bool variable;                    /* rows of their own length, as MLPerf has them, instead of padded ones */
    int64_t vocab_size;               /* ids lie below: says which integers hold them */
};

/* Writes the rows as a new file, whole or not at all, compressing on all threads. The file is made in memory (it is
 * about a third of count · S · 6 bytes). Not to be called by two threads at once: HDF5 allows one. */
status shard_write(const char *path, const struct shard_shape *shape, const struct instance *rows, int64_t count);

#endif
