/* Contractions with weights. Rows of tokens run over their padded count: the rows beyond the true count are zero on
 * input, and so on output. */
#include <string.h>

#include "kernels/cpu/contraction.h"
#include "kernels/cpu/products.h"
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

/* By the library: y = op(a) op(b); k and n as they are, rows padded. */
static status by_library(struct cpu *cpu, const struct op_call *call, bool transpose_a, bool transpose_b, int64_t k) {
    const struct operand *a = &call->in[0], *b = &call->in[1], *y = &call->out[0];
    struct contractions *contractions = cpu_contractions(cpu);
    struct product product = {.transpose_a = transpose_a,
                              .transpose_b = transpose_b,
                              .add = op_info(call->op)->out[0].accumulated && call->accumulate,
                              .m = y->padded_rows,
                              .n = y->columns,
                              .k = k,
                              .stride_a = a->stride,
                              .stride_b = b->stride,
                              .stride_c = y->stride};
    if (a->dtype != F32 && a->dtype == b->dtype && contractions_native(contractions, a->dtype)) {
        product.dtype_a = product.dtype_b = a->dtype, product.dtype_c = y->dtype;
        return contract(contractions, &product, a->data, b->data, y->data);
    }
    /* operands that the processor does not multiply are contracted as floats */
    const float *a_values = operand_floats(cpu, a, 0, transpose_a, &product.stride_a);
    const float *b_values = operand_floats(cpu, b, 1, false, &product.stride_b);
    bool direct = y->dtype == F32;
    float *values = direct ? y->data : cpu_shared(cpu, 2, y->padded_rows * y->columns);
    product.stride_c = direct ? y->stride : y->columns;
    TRY(contract(contractions, &product, a_values, b_values, values));
    if (!direct) {
        struct conversion job = {y, values};
        parallel_for(y->padded_rows, 16, from_float, &job);
    }
    return OK;
}

/* By tiles of our own, or by the library. */
static status multiply(struct cpu *cpu, const struct op_call *call, bool transposed) {
    const struct kernel *kernel = products_kernel(call->in[0].dtype, call->in[1].dtype);
    if (!kernel)
        return by_library(cpu, call, false, transposed, call->in[0].columns);
    tile_epilogue epilogue = call->out[0].dtype == F32 && !kernel->square ? NULL : store_tile;
    struct tile_job job = transposed ? forward_tiles(cpu, call, 1, epilogue) : backward_tiles(cpu, call, 1, epilogue);
    return tiles_run(&job);
}

/* y[r,o] = x[r,k] w[o,k]^T */
status cpu_linear(struct cpu *cpu, const struct op_call *call) { return multiply(cpu, call, true); }

/* dx[r,k] = dy[r,o] w[o,k] */
status cpu_linear_dx(struct cpu *cpu, const struct op_call *call) { return multiply(cpu, call, false); }

/* dw[o,k] = dy[r,o]^T x[r,k] */
status cpu_linear_dw(struct cpu *cpu, const struct op_call *call) { return linear_dw_sums(cpu, call, NULL); }

status linear_dw_sums(struct cpu *cpu, const struct op_call *call, const struct operand *db) {
    const struct operand *dy = &call->in[0], *x = &call->in[1], *dw = &call->out[0];
    bool own = dy->rows == 0 || products_kernel(dy->dtype, x->dtype);
    if (dy->rows == 0 && !call->accumulate)
        memset(dw->data, 0, (size_t)(dw->rows * dw->columns) * sizeof(float));
    if (db && (!own || dy->rows == 0)) {
        struct op_call bias = *call;
        bias.op = OP_bias_dw, bias.out[0] = *db;
        TRY(cpu_bias_dw(cpu, &bias));
    }
    if (dy->rows == 0)
        return OK;
    if (!own)
        return by_library(cpu, call, true, false, dy->padded_rows);
    struct tile_job job = {.cpu = cpu,
                           .call = call,
                           .parts = 1,
                           .terms = 1,
                           .x = {dy},
                           .w = {x},
                           .down = true,
                           .rows = dw->rows,
                           .columns = dw->columns,
                           .k = dy->rows,
                           .add = call->accumulate,
                           .sums = db ? db->data : NULL};
    return tiles_run(&job);
}
