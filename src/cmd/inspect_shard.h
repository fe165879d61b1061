/* The part of `berth inspect` that shows a shard. */
#ifndef BERTH_CMD_INSPECT_SHARD_H
#define BERTH_CMD_INSPECT_SHARD_H

#include <stdint.h>

#include "base/status.h"

/* Prints what the shards at `path` (file, folder, pattern) hold, over all their rows, and the first sample, decoded if
 * there is a vocabulary (`vocab_path` NULL: ids). Every row is checked on the way. */
status inspect_shard(const char *path, const char *vocab_path);

/* Prints a line "FILE SEQUENCE" for each of the first `count` samples that training with `seed` takes from the shards
 * at `path`, so that another program can be given the same batches. */
status inspect_order(const char *path, int64_t count, uint64_t seed);

#endif
