/* From the reader's host arrays to the graph's input tensors. */
#ifndef BERTH_TRAIN_FEED_H
#define BERTH_TRAIN_FEED_H

#include "data/batch.h"
#include "graph/exec.h"
#include "model/bert.h"

struct feed;

struct feed *feed_new(struct exec *exec, const struct graph *graph, const struct bert_config *config,
                      const struct bert_tensors *io);
void feed_free(struct feed *feed);

/* Upload a micro-batch: tokens, positions, masked rows, labels, and the sorted orders that the embedding gradients
 * walk. */
status feed_batch(struct feed *feed, const struct batch *batch);
/* Upload 1/masked and 1/sequences of the step's global batch (0 for a count of 0). */
status feed_scales(struct feed *feed, int64_t masked, int64_t sequences);

#endif
