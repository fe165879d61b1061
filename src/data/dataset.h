/* What reader.c sees of a data set. */
#ifndef BERTH_DATA_DATASET_H
#define BERTH_DATA_DATASET_H

#include <stdbool.h>

#include "data/shard_read.h"

struct dataset {
    struct shard *shards; /* [count] */
    int64_t count, capacity;
    int64_t rows, seq_len, max_predictions; /* sum; largest */
    bool skip_bad;
};

#endif
