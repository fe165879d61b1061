/* Every operator once more, in double precision and as plainly as op.def says it: what the backends are held against.
 */
#ifndef BERTH_TESTS_KERNELS_REFERENCE_H
#define BERTH_TESTS_KERNELS_REFERENCE_H

#include "graph/backend.h"

/* An operand of the reference. d: [padded_rows, columns] values of any float dtype, or mask; i: the same for I32. */
struct ref_operand {
    double *d;
    int32_t *i;
    int64_t rows, padded_rows, columns;
};

struct ref_call {
    enum op op;
    struct attr attr;
    struct ref_operand in[MAX_OPERANDS], out[MAX_OPERANDS];
    bool accumulate, evaluate;
    enum dtype compute; /* rounds what stands between two parts of an operator, where op.def says that it is stored */
    uint64_t seed;
    int64_t heads, longest_position, hidden;
    const struct ragged *ragged;
};

/* Fills the outputs; false if the operator has no reference here (the optimizer's are in tests/optim). */
bool reference_run(struct ref_call *call);

/* Of the fused operators, made of the others' references; the same contract. */
bool reference_run_fused(struct ref_call *call);

#endif
