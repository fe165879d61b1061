/* What reader.c sees of a data set. */
#ifndef BERTH_DATA_DATASET_H
#define BERTH_DATA_DATASET_H

#include <stdbool.h>

#include "data/shard_read.h"

/* What one item of a list "a/:0.7,b/:0.3" stands for. */
struct source {
    char *name;
    double share;         /* of the samples drawn; all shares add up to 1 */
    int64_t first, count; /* of the data set's shards */
};

struct dataset {
    struct shard *shards; /* [count] */
    int64_t count, capacity;
    struct source *sources; /* [source_count] NULL if the list gives no weights */
    int64_t source_count, source_capacity;
    int64_t rows, seq_len, max_predictions; /* sum; largest */
    bool skip_bad;
};

#endif
