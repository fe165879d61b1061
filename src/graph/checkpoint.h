/* Activation checkpointing: of an encoder layer only its input is kept from the forward pass; what its backward pass
 * reads is made once more, by copies of the forward nodes that stand before it. The same numbers, for a third more
 * flop. */
#ifndef BERTH_GRAPH_CHECKPOINT_H
#define BERTH_GRAPH_CHECKPOINT_H

#include "graph/graph.h"

/* Rewrites a graph that has a backward pass; after fusion, before a plan is made. */
void graph_checkpoint(struct graph *graph);

#endif
