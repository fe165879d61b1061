/* What a graph moves and computes, operator by operator, counted from op.def without running anything.
 *
 * The counting rule: every operator reads each of its inputs and writes each of its outputs once, whole; what a cache
 * might keep between two operators is not subtracted. A gradient ("~" in op.def) is written alone in the first
 * micro-batch of a step and read too in the later ones. */
#ifndef BERTH_GRAPH_ACCOUNT_H
#define BERTH_GRAPH_ACCOUNT_H

#include "graph/graph.h"

/* All nodes of one operator in one pass. */
struct account_row {
    enum op op;
    enum pass pass;
    int64_t count;              /* times it runs */
    double flop;                /* floating-point operations */
    double bytes_in, bytes_out; /* bytes read, bytes written */
    double accumulated;         /* bytes that each later micro-batch reads more than the first, to add to gradients */
    double seconds;             /* measured; 0 if nothing was */
};

enum { ACCOUNT_ROWS = 3 * OP_COUNT }; /* an operator may stand in three passes */

struct account {
    int count;
    struct account_row rows[ACCOUNT_ROWS]; /* in the order of their first nodes */
};

/* One encoder layer in the first micro-batch of a step: all nodes of layer 0. `seconds`: [nodes] measured, or NULL. */
void account_layer(const struct graph *graph, const struct sizes *sizes, const double *seconds, struct account *out);

/* A whole step: forward and backward of `micro_batches` micro-batches of these sizes, and the update once. The reads of
 * later micro-batches are part of bytes_in. `seconds`: [nodes] of one run each, or NULL. */
void account_step(const struct graph *graph, const struct sizes *sizes, int64_t micro_batches, const double *seconds,
                  struct account *out);

/* Sums of the rows of a class, or of all with class ACCOUNT_ALL; op and pass of the result mean nothing. */
enum { ACCOUNT_ALL = -1 };
struct account_row account_total(const struct account *account, int class);

/* An eager framework runs the biases of the forward pass inside its contractions: is the row of an unfused graph one of
 * these? And the bytes without them. */
bool account_in_contraction(const struct account_row *row);
double account_eager_bytes(const struct account *unfused);

/* Bytes that a layer moves beyond its count on a CUDA device if its GELU is the erf form, which cuBLASLt's epilogues
 * lack: the kernel behind the product reads h again, and the product's result goes through memory before its act'(h). 0
 * for others. */
double account_erf_bytes(const struct graph *graph, const struct sizes *sizes);

const char *op_class_name(enum op_class class); /* "contraction" */
const char *pass_name(enum pass pass);          /* "forward" */

#endif
