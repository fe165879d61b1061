/* The dataflow graph of a training step: tensors with named dims, operators from op.def in execution order, and the
 * table of parameters. It is built once (model/, optim/), rewritten by passes, planned, and then walked by exec. */
#ifndef BERTH_GRAPH_GRAPH_H
#define BERTH_GRAPH_GRAPH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/memory.h"
#include "base/number.h"
#include "base/status.h"

enum dim {
#define DIM(id, letter, ragged, meaning) DIM_##id,
#include "graph/dim.def"
#undef DIM
    DIM_COUNT
};
char dim_letter(enum dim dim);

/* Sizes of all dims. n: true counts. padded: what is allocated and what contractions may run over; equal to n for all
 * but the ragged dims t, m, b, which are rounded up so that library primitives are made once per bucket. */
struct sizes {
    int64_t n[DIM_COUNT], padded[DIM_COUNT];
};
/* Set a ragged dim: n and its rounded count (t to a multiple of 256, m and b to one of 64; e is not rounded). */
void sizes_set_ragged(struct sizes *sizes, enum dim dim, int64_t n);
void sizes_set(struct sizes *sizes, enum dim dim, int64_t n);

enum op {
#define OP(name, class, inputs, outputs, space, flop, in_place, meaning) OP_##name,
#include "graph/op.def"
#undef OP
    OP_COUNT
};

enum op_class { CONTRACTION, NORMALIZATION, ELEMENTWISE, UPDATE };

enum { MAX_OPERANDS = 8, MAX_RANK = 3 };

/* A row of op.def, parsed. */
struct op_info {
    const char *name, *meaning;
    enum op_class kind;
    int inputs, outputs, in_place;
    struct operand_info {
        char name[16], letters[8];
        bool rows_only;   /* [n]: bytes count only the rows an index touches */
        bool updated;     /* + */
        bool accumulated; /* ~ */
        bool scratch;     /* ? */
        bool beside;      /* | */
        bool fixed_dtype; /* dtype below; otherwise the graph's compute dtype */
        enum dtype dtype;
    } in[MAX_OPERANDS], out[MAX_OPERANDS];
    const char *space;
    double flop;
};
const struct op_info *op_info(enum op op);

enum activation { ACT_GELU, ACT_GELU_NEW, ACT_RELU, ACT_TANH };

/* What an operator needs beside its operands; each uses the few fields that its row in op.def names. */
struct attr {
    float probability; /* dropout */
    uint32_t site;     /* dropout: place in the network, see model/bert.h */
    enum activation act;
    double epsilon; /* layernorm, optimizer */
    float scale;    /* attn_scale */
    int64_t classes;
    bool add_always; /* a second contribution to a gradient within one micro-step: never overwrite */
    /* optimizer */
    double beta1, beta2, weight_decay, clip; /* clip 0: off */
    bool decoupled, bias_correction;
    int64_t growth_interval; /* loss_scale_advance */
};

enum tensor_kind {
    TENSOR_WEIGHT,     /* a parameter as the operators read it: matrices in the compute dtype, vectors in f32 */
    TENSOR_GRADIENT,   /* f32, in the flat gradient buffer */
    TENSOR_STATE,      /* lives as long as the run: flat master weights, moments, counters, tables */
    TENSOR_INPUT,      /* uploaded before a micro-batch or a step */
    TENSOR_ACTIVATION, /* lives between its producer and its last reader */
    TENSOR_RESULT,     /* read by the host after a step */
};

struct tensor {
    const char *name; /* "layer.3.attention.scores" */
    enum dtype dtype;
    enum tensor_kind kind;
    int rank;
    enum dim dims[MAX_RANK];
    int parameter; /* WEIGHT, GRADIENT: first parameter it covers (a stacked tensor covers several); else -1 */
};

enum pass { PASS_FORWARD = 1, PASS_BACKWARD = 2, PASS_UPDATE = 4 };

struct node {
    enum op op;
    enum pass pass;
    int layer;                               /* encoder layer, or -1 */
    int in[MAX_OPERANDS], out[MAX_OPERANDS]; /* tensor numbers */
    struct attr attr;
};

enum parameter_init { INIT_ZERO, INIT_ONE, INIT_NORMAL };

/* A parameter is one tensor of the HuggingFace model. All lie one after another in flat f32 buffers (master weights,
 * gradients, moments), each starting at a multiple of PARAMETER_ALIGNMENT elements, in the order of the table. */
enum { PARAMETER_ALIGNMENT = 16 };
struct parameter {
    const char *name; /* HuggingFace's, "bert.embeddings.word_embeddings.weight" */
    int rank;
    enum dim dims[2];
    int64_t rows, columns; /* as planned; a vector is rows x 1 */
    int64_t file_rows;     /* rows that checkpoints hold: vocabulary padding is cut */
    int64_t offset;        /* elements into the flat buffers */
    bool decay;            /* weight decay applies (neither bias nor LayerNorm) */
    enum parameter_init init;
    int weight, gradient; /* tensors */
};

/* The flat buffers are worked on in chunks of at most CHUNK elements, each inside one parameter: every norm is a double
 * sum per chunk, added in chunk order, so it is the same on any number of threads and ranks. */
enum { CHUNK = 16384 };
/* Between these the loss scale of f16 moves, by factors of two. */
#define LOSS_SCALE_LEAST 1.0
#define LOSS_SCALE_MOST 0x1p30
struct chunk {
    int64_t offset;
    int32_t count, parameter;
};

struct graph {
    enum dtype compute; /* F32, BF16 or F16 */
    struct sizes capacity;
    struct tensor *tensors;
    int tensor_count, tensor_capacity;
    struct node *nodes;
    int node_count, node_capacity;
    struct parameter *parameters;
    int parameter_count, parameter_capacity;
    struct chunk *chunks;
    int64_t chunk_count;
    int64_t flat_count; /* elements of a flat buffer */
    /* Whole flat buffers as tensors [f], made by graph_close_parameters: f32 master weights (STATE), the weights in the
     * compute dtype (STATE; the same tensor as `master` when that is f32), gradients (GRADIENT). */
    int master, weights, gradients;
    int loss_scale;     /* [s] f64: the factor of all gradients, steps since it changed; STATE; -1 unless f16 */
    struct arena arena; /* names */
};

struct graph *graph_new(enum dtype compute, const struct sizes *capacity);
void graph_free(struct graph *graph);

/* New tensor; letters as in dim.def ("ti", "he", "1"). The name is printf-style and copied. Returns its number. */
int graph_tensor(struct graph *graph, enum tensor_kind kind, enum dtype dtype, const char *letters, const char *name,
                 ...) __attribute__((format(printf, 5, 6)));
/* New parameter with its weight and gradient tensors; returns its number. Vectors are f32, matrices of the compute
 * dtype. */
int graph_parameter(struct graph *graph, const char *letters, enum parameter_init init, bool decay, const char *name,
                    ...) __attribute__((format(printf, 5, 6)));
/* After the last parameter: chunks, flat_count, sizes of dims f and z. */
void graph_close_parameters(struct graph *graph);
int graph_find_parameter(const struct graph *graph, const char *name); /* -1 if absent */

/* Append an operator; `in` and `out` hold as many tensors as its row has operands. */
struct node *graph_node(struct graph *graph, enum op op, enum pass pass, int layer, const int *in, const int *out);

int64_t tensor_count(const struct tensor *tensor, const struct sizes *sizes);  /* true elements */
int64_t tensor_padded(const struct tensor *tensor, const struct sizes *sizes); /* allocated elements */

/* Checks dims, dtypes, order of production and single producers against op.def. A failure is a bug in a builder or a
 * pass; the message names node, operand and expectation. */
status graph_verify(const struct graph *graph);

/* Counts from op.def for one node at given sizes. */
double node_flop(const struct graph *graph, const struct node *node, const struct sizes *sizes);
void node_bytes(const struct graph *graph, const struct node *node, const struct sizes *sizes, double *in, double *out);

#endif
