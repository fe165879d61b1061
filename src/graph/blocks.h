/* Operators that are made of others, run for a block of rows at a time: the same for every backend. */
#ifndef BERTH_GRAPH_BLOCKS_H
#define BERTH_GRAPH_BLOCKS_H

#include "graph/backend.h"

/* OP_decoder and OP_decoder_dx, whose rows op.def has. */
status blocks_decoder(struct backend *backend, const struct op_call *call);
status blocks_decoder_dx(struct backend *backend, const struct op_call *call);

#endif
