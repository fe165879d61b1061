/* The memory plan: activations get offsets in one arena by their lifetimes; all other tensors have memory of their own.
 * Three outputs of an operator that all who touch them take as blocks of columns ("|" in op.def) become one matrix, so
 * that a product may read or write them as one operand. */
#ifndef BERTH_GRAPH_PLAN_H
#define BERTH_GRAPH_PLAN_H

#include "graph/graph.h"

struct plan {
    int64_t *offset;     /* [tensors] bytes into the arena; -1 for tensors that do not live there */
    int *beside;         /* [tensors] how many tensors lie side by side in its rows: 1, or 3 */
    int *first, *last;   /* [tensors] node numbers of producer and last reader */
    int64_t arena_bytes; /* what the offsets need */
    int64_t live_bytes;  /* the largest sum of live activations at any node: the floor for arena_bytes */
    int64_t weight_bytes, gradient_bytes, state_bytes, input_bytes; /* result tensors count as inputs */
};

status plan_make(const struct graph *graph, struct plan *out);
void plan_free(struct plan *plan);

#endif
