/* Attention's unit of work: one head of one sequence. */
#ifndef BERTH_KERNELS_CPU_HEADS_H
#define BERTH_KERNELS_CPU_HEADS_H

#include "kernels/cpu/dropout.h"
#include "kernels/cpu/kernels.h"

struct head {
    int64_t number, n, p; /* which head; length of the sequence, head size */
    int64_t row;          /* the sequence's first token */
    int64_t matrix;       /* first element of the n x n matrix of this head in an [h,e] tensor */
    float probability;    /* dropout of probabilities; 0 in evaluation */
    int64_t padded_keys;
    struct dropout_place place; /* of query 0 */
};

typedef status (*head_kernel)(struct cpu *cpu, const struct op_call *call, const struct head *head);

/* Runs the kernel for every head of every sequence, in parallel; the message is that of the first that failed. */
status each_head(struct cpu *cpu, const struct op_call *call, head_kernel kernel);

/* Where the probabilities of a query stand in the random stream. */
static inline struct dropout_place query_place(const struct head *head, int64_t query) {
    struct dropout_place place = head->place;
    place.first += query * head->padded_keys;
    return place;
}

#endif
