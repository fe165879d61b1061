/* Contractions with weights. Rows of tokens run over their padded count: the rows beyond the true count are zero on
 * input, and so on output. */
#include <string.h>

#include "kernels/cpu/contraction.h"
#include "kernels/cpu/tiles.h"

struct conversion {
    const struct operand *operand;
    const float *values; /* [padded_rows, columns] */
};

static void from_float(void *ctx, int64_t begin, int64_t end) {
    const struct conversion *job = ctx;
    for (int64_t row = begin; row < end; row++)
        row_written(job->operand, row, job->values + row * job->operand->columns);
}

/* y = op(a) op(b), for row-major operands without gaps; k and n as they are, rows padded. */
static status multiply(struct cpu *cpu, const struct op_call *call, bool transpose_a, bool transpose_b, int64_t k) {
    const struct operand *a = &call->in[0], *b = &call->in[1], *y = &call->out[0];
    struct contractions *contractions = cpu_contractions(cpu);
    struct product product = {.transpose_a = transpose_a,
                              .transpose_b = transpose_b,
                              .add = op_info(call->op)->out[0].accumulated && call->accumulate,
                              .m = y->padded_rows,
                              .n = y->columns,
                              .k = k,
                              .stride_a = a->columns,
                              .stride_b = b->columns,
                              .stride_c = y->columns};
    if (a->dtype != F32 && a->dtype == b->dtype && contractions_native(contractions, a->dtype)) {
        product.dtype_a = product.dtype_b = a->dtype, product.dtype_c = y->dtype;
        return contract(contractions, &product, a->data, b->data, y->data);
    }
    /* operands that the processor does not multiply are contracted as floats */
    const float *a_values = operand_floats(cpu, a, 0, transpose_a, &product.stride_a);
    const float *b_values = operand_floats(cpu, b, 1, false, &product.stride_b);
    bool direct = y->dtype == F32;
    float *values = direct ? y->data : cpu_shared(cpu, 2, y->padded_rows * y->columns);
    TRY(contract(contractions, &product, a_values, b_values, values));
    if (!direct) {
        struct conversion job = {y, values};
        parallel_for(y->padded_rows, 16, from_float, &job);
    }
    return OK;
}

/* y[r,o] = x[r,k] w[o,k]^T */
status cpu_linear(struct cpu *cpu, const struct op_call *call) {
    return multiply(cpu, call, false, true, call->in[0].columns);
}

/* dx[r,k] = dy[r,o] w[o,k] */
status cpu_linear_dx(struct cpu *cpu, const struct op_call *call) {
    return multiply(cpu, call, false, false, call->in[0].columns);
}

/* dw[o,k] = dy[r,o]^T x[r,k] */
status cpu_linear_dw(struct cpu *cpu, const struct op_call *call) {
    const struct operand *dw = &call->out[0];
    if (call->in[0].padded_rows == 0) {
        if (!call->accumulate)
            memset(dw->data, 0, (size_t)(dw->rows * dw->columns) * sizeof(float));
        return OK;
    }
    return multiply(cpu, call, true, false, call->in[0].padded_rows);
}
