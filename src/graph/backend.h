/* What the executor asks of a device. kernels/cpu and kernels/cuda each provide one; nothing else knows the device. */
#ifndef BERTH_GRAPH_BACKEND_H
#define BERTH_GRAPH_BACKEND_H

#include "graph/graph.h"

/* An operand as a kernel sees it: device memory and its shape now. rows is the first dim, columns the product of the
 * others; rows begin `stride` elements apart, which are more than columns for "|" operands only (op.def). For [h,e]
 * matrices rows = h and columns = e; see op.def for the order inside. */
struct operand {
    void *data;
    enum dtype dtype;
    int64_t rows, padded_rows, columns, stride;
};

/* How the tokens of the micro-batch fall into sequences. Pointers are device memory. */
struct ragged {
    int64_t sequences, tokens, longest;
    const int32_t *starts;           /* [b+1] first token of each sequence */
    const int64_t *square_starts;    /* [b+1] sums of squared lengths before each sequence; entry b is e */
    const int32_t *token_sequence;   /* [t] the sequence a token belongs to */
    const int64_t *sequence_numbers; /* [b] number in the global stream, keys dropout */
};

/* One operator to run. Everything a kernel may read; nothing is allocated. */
struct op_call {
    enum op op;
    const struct attr *attr;
    struct operand in[MAX_OPERANDS], out[MAX_OPERANDS];
    bool accumulate;                 /* add to "~" outputs instead of overwriting them */
    bool evaluate;                   /* dropout is the identity (its mask is all ones) */
    uint64_t seed;                   /* dropout */
    int64_t heads, longest_position; /* h; Lmax of the dropout counters (max_position_embeddings) */
    int64_t hidden;                  /* i: dropout's elements are position * hidden + column */
    const struct ragged *ragged;
    /* [f] the f32 parameters, and the same in the compute dtype (device memory): a bias that is read as f32 at
     * master + i stands in the compute dtype at weights + i. NULL: not known. */
    const float *master;
    const void *weights;
    /* update operators: the chunks of the flat buffers and the parameters they belong to (host memory; constant for the
     * life of the graph, a device backend copies them once) */
    const struct chunk *chunks;
    int64_t chunk_count;
    const struct parameter *parameters;
    int parameter_count;
};

enum { BACKEND_MARKS = 3 };

/* What the launches of a series of operators depend on, beside what device memory holds. Fields of 8 bytes: compared as
 * bytes. */
struct series {
    struct {
        int64_t owner, passes, first, evaluate, tokens, masked, sequences;
    } rounded; /* two series that differ below only are the same operators on rows that round to the same */
    int64_t tokens, masked, sequences, entries, longest;
};

struct backend {
    void *stream; /* the device's order of work as its library knows it (a cudaStream_t); NULL: memory is the host's,
                     and what was asked for is done */
    const char *name;                                                                          /* "cpu" */
    status (*memory_new)(struct backend *backend, void **out, size_t bytes, const char *what); /* zeroed */
    void (*memory_free)(struct backend *backend, void *memory);
    status (*upload)(struct backend *backend, void *to, const void *from_host, size_t bytes);
    status (*download)(struct backend *backend, void *to_host, const void *from,
                       size_t bytes); /* after all work before it */
    /* As download, but it may return before it is done: a mark set behind it tells when. `to_host` is of
     * host_memory_new. */
    status (*download_later)(struct backend *backend, void *to_host, const void *from, size_t bytes);
    status (*clear)(struct backend *backend, void *memory, size_t bytes);         /* zeros, in the order of work */
    status (*host_memory_new)(struct backend *backend, void **out, size_t bytes); /* zeroed */
    void (*host_memory_free)(struct backend *backend, void *memory);
    /* Marks, numbered from 0: set behind all work so far; waited for; the seconds between two that were reached. */
    status (*mark)(struct backend *backend, int mark);
    status (*reach)(struct backend *backend, int mark);
    double (*seconds_between)(struct backend *backend, int from, int to);
    bool (*supports)(const struct backend *backend, enum op op, enum dtype compute);
    status (*run)(struct backend *backend, const struct op_call *call); /* may return before the work is done */
    status (*wait)(struct backend *backend);                            /* until it is */
    /* Does what walk(ctx), which calls `run` for operator after operator, does: calls it, or launches again what an
     * earlier walk of the same series launched. NULL: nothing is gained by that. */
    status (*run_series)(struct backend *backend, const struct series *series, status (*walk)(void *ctx), void *ctx);
    /* What is chosen by timing is, from now on, what the file says, so that another process computes the same bits;
     * what it does not say is added where `write`. BAD_INPUT: the file is broken. NULL: nothing is chosen by timing. */
    status (*keep_choices)(struct backend *backend, const char *path, bool write);
    /* Measured dense contraction rate in flop/s for a compute dtype, or 0 where unknown. Takes a fraction of a second
     * the first time it is asked. */
    double (*peak_flops)(struct backend *backend, enum dtype compute);
    /* Measured rate in bytes/s at which arrays far larger than any cache are read and written, or 0 where unknown.
     * Takes less than half a second the first time it is asked. */
    double (*bandwidth)(struct backend *backend);
    /* Bytes that can still be allocated, or 0 where unknown. */
    int64_t (*memory_left)(const struct backend *backend);
    void (*describe)(const struct backend *backend, char *line, size_t size); /* "cpu: 2 threads, AVX2, oneDNN 2.6.3" */
    void (*free)(struct backend *backend);
};

#endif
