/* Fusion: rewrites the unfused graph by the rules of fuse.def, so that less is moved. All levels compute the same
 * function. */
#ifndef BERTH_GRAPH_FUSE_H
#define BERTH_GRAPH_FUSE_H

#include "graph/graph.h"

/* NONE: an eager framework's operators. PAPER: the kernels of "Data Movement Is All You Need". FULL: all that can be
 * fused. */
enum fusion { FUSION_NONE, FUSION_PAPER, FUSION_FULL, FUSION_COUNT };
const char *fusion_name(enum fusion level); /* "none" */

/* Applies the rules of a level in the order of the table, each wherever it matches; before a plan is made. `again`:
 * those too that save memory by making activations again. `without`: the name of a rule that is left out, for tests; or
 * NULL. */
status graph_fuse(struct graph *graph, enum fusion level, bool again, const char *without);

const char *fusion_rule(int number); /* the name of a rule, by its place in the table; NULL behind the last */
bool fusion_uses(enum fusion level, bool again, int number);

#endif
