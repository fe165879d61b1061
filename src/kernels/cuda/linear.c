/* Products with weights. What cuBLASLt's epilogues do not have for a shape or a type, a kernel does afterwards:
 * those products store and read their result once more than op.def counts. Every operator here runs over padded rows,
 * whose inputs are zero; what a bias makes of them is set to zero again.
 *
 * A bias must have the dtype of the result, so that in bf16 and f16 its copy in the compute dtype is taken. */
#include "kernels/cuda/contraction.h"

/* --- query, key and value as one --- */

/* Three operands as blocks of columns of one matrix, or as one matrix below the other (vectors: one behind the other);
 * false where they do not lie like that. */
static bool beside(const struct operand *three, struct operand *one) {
    int64_t columns = three->columns, bytes = columns * (int64_t)dtype_size(three->dtype);
    *one = *three;
    one->columns = one->stride = 3 * columns;
    return three->stride == 3 * columns && (char *)three[1].data == (char *)three->data + bytes &&
           (char *)three[2].data == (char *)three->data + 2 * bytes;
}

static bool below(const struct operand *three, struct operand *one) {
    int64_t bytes = three->rows * three->columns * (int64_t)dtype_size(three->dtype);
    *one = *three;
    one->rows = one->padded_rows = 3 * three->rows;
    return (char *)three[1].data == (char *)three->data + bytes &&
           (char *)three[2].data == (char *)three->data + 2 * bytes;
}

/* Where blocks of columns have weights that do not lie alike. */
static status torn(const struct op_call *call) {
    return failed("%s: three operands are columns of one matrix, but their weights lie apart", op_info(call->op)->name);
}

/* --- the three products of a weight w[o,k] --- */

static struct product forward(const struct operand *x, const struct operand *w, const struct operand *y) {
    return (struct product){.transpose_b = true,
                            .m = y->padded_rows,
                            .n = y->columns,
                            .k = x->columns,
                            .dtype = x->dtype,
                            .dtype_c = y->dtype,
                            .a = x->data,
                            .b = w->data,
                            .c = y->data};
}

static struct product backward(const struct operand *dy, const struct operand *w, const struct operand *dx) {
    return (struct product){.m = dx->padded_rows,
                            .n = dx->columns,
                            .k = dy->columns,
                            .dtype = dy->dtype,
                            .dtype_c = dx->dtype,
                            .a = dy->data,
                            .b = w->data,
                            .c = dx->data};
}

static struct product gradient(const struct operand *dy, const struct operand *x, const struct operand *dw,
                               bool accumulate) {
    return (struct product){.transpose_a = true,
                            .m = dw->rows,
                            .n = dw->columns,
                            .k = x->padded_rows,
                            .dtype = x->dtype,
                            .dtype_c = dw->dtype,
                            .a = dy->data,
                            .b = x->data,
                            .z = accumulate ? dw->data : NULL,
                            .c = dw->data};
}

static status run(struct cuda *cuda, const struct product *product) { return lt_multiply(cuda_lt(cuda), product); }

/* With the library's epilogue where it has that for this shape and these types; *done says so. */
static status run_fused(struct cuda *cuda, const struct product *product, bool possible, bool *done) {
    *done = false;
    return possible ? lt_multiply_if_supported(cuda_lt(cuda), product, done) : OK;
}

static status zero_tail(struct cuda *cuda, const struct operand *operand) {
    size_t row = (size_t)operand->columns * dtype_size(operand->dtype);
    if (operand->padded_rows > operand->rows)
        CUDA_TRY(cudaMemsetAsync((char *)operand->data + (size_t)operand->rows * row, 0,
                                 (size_t)(operand->padded_rows - operand->rows) * row, cuda_stream(cuda)));
    return OK;
}

status cuda_linear(struct cuda *cuda, const struct op_call *call) {
    struct product product = forward(&call->in[0], &call->in[1], &call->out[0]);
    return run(cuda, &product);
}

status cuda_linear_dx(struct cuda *cuda, const struct op_call *call) {
    struct product product = backward(&call->in[0], &call->in[1], &call->out[0]);
    return run(cuda, &product);
}

status cuda_linear_dw(struct cuda *cuda, const struct op_call *call) {
    struct product product = gradient(&call->in[0], &call->in[1], &call->out[0], call->accumulate);
    return run(cuda, &product);
}

/* --- biases --- */

/* The f32 bias in the dtype of the result: its neighbour in the flat weights, or converted. */
static status bias_as(struct cuda *cuda, const struct op_call *call, const struct operand *bias, enum dtype dtype,
                      void **out) {
    if (dtype == F32) {
        *out = bias->data;
        return OK;
    }
    ptrdiff_t at = (const float *)bias->data - call->master;
    if (call->master && at >= 0 && at < call->chunks[call->chunk_count - 1].offset + CHUNK) {
        *out = (char *)call->weights + (size_t)at * dtype_size(dtype);
        return OK;
    }
    return cuda_converted(cuda, bias->data, bias->rows * bias->columns, dtype, out);
}

/* y = x w^T + b */
static status add_bias(struct cuda *cuda, const struct op_call *call, const struct operand *x, const struct operand *w,
                       const struct operand *b, const struct operand *y) {
    struct product product = forward(x, w, y);
    product.epilogue = EPILOGUE_BIAS;
    TRY(bias_as(cuda, call, b, y->dtype, &product.vector));
    TRY(run(cuda, &product));
    return zero_tail(cuda, y);
}

status cuda_linear_bias(struct cuda *cuda, const struct op_call *call) {
    return add_bias(cuda, call, &call->in[0], &call->in[1], &call->in[2], &call->out[0]);
}

/* db += sums */
static status add_sums(struct cuda *cuda, const struct op_call *call, const struct operand *db, float *sums) {
    struct op_call add = *call;
    int64_t count = db->rows * db->columns;
    add.op = OP_add;
    add.in[0] = (struct operand){
        .data = db->data, .dtype = F32, .rows = 1, .padded_rows = 1, .columns = count, .stride = count};
    add.in[1] = add.out[0] = add.in[0];
    add.in[1].data = sums;
    return cuda_add(cuda, &add);
}

/* dw = dy^T x and db = the column sums of dy, which is the same product with a column of ones. The library writes these
 * sums, it cannot add to them: where they are added, it writes them elsewhere, so that dy is read once all the same. */
static status gradients(struct cuda *cuda, const struct op_call *call, const struct operand *dy,
                        const struct operand *x, const struct operand *dw, const struct operand *db) {
    struct product product = gradient(dy, x, dw, call->accumulate), fused = product;
    bool fits = product.m <= CUDA_CONVERTED_MOST / 2, done; /* floats, in memory of so many numbers of 16 bits */
    fused.epilogue = EPILOGUE_ROW_SUMS;
    fused.vector = call->accumulate ? cuda_converted_memory(cuda) : db->data;
    TRY(run_fused(cuda, &fused, product.k > 0 && (fits || !call->accumulate), &done));
    if (done)
        return call->accumulate ? add_sums(cuda, call, db, fused.vector) : OK;
    TRY(run(cuda, &product));
    struct op_call sums = *call;
    sums.op = OP_bias_dw;
    sums.in[0] = *dy;
    sums.out[0] = *db;
    return cuda_bias_dw(cuda, &sums);
}

status cuda_linear_dw_bias(struct cuda *cuda, const struct op_call *call) {
    return gradients(cuda, call, &call->in[0], &call->in[1], &call->out[0], &call->out[1]);
}

/* --- activations --- */

/* cuBLASLt's GELU is the tanh form, and wants rows that are whole packs. */
static bool library_has_act(const struct op_call *call, const struct product *product) {
    return call->attr->act == ACT_GELU_NEW && product->n % 8 == 0;
}

status cuda_linear_act(struct cuda *cuda, const struct op_call *call) {
    const struct operand *h = &call->out[0], *y = &call->out[1];
    struct product fused = forward(&call->in[0], &call->in[1], y);
    bool done;
    fused.epilogue = EPILOGUE_GELU_BIAS;
    fused.aux = h->data;
    TRY(bias_as(cuda, call, &call->in[2], y->dtype, &fused.vector));
    TRY(run_fused(cuda, &fused, library_has_act(call, &fused), &done));
    if (done) {
        TRY(zero_tail(cuda, h));
        return zero_tail(cuda, y);
    }
    TRY(add_bias(cuda, call, &call->in[0], &call->in[1], &call->in[2], h));
    struct op_call act = *call;
    act.op = OP_act;
    act.in[0] = *h;
    act.out[0] = *y;
    return cuda_act(cuda, &act);
}

status cuda_linear_dx_act(struct cuda *cuda, const struct op_call *call) {
    const struct operand *h = &call->in[2], *dx = &call->out[0];
    struct product product = backward(&call->in[0], &call->in[1], dx), fused = product;
    bool done;
    fused.epilogue = EPILOGUE_DGELU;
    fused.aux = h->data;
    TRY(run_fused(cuda, &fused, library_has_act(call, &fused), &done));
    if (done)
        return OK;
    TRY(run(cuda, &product));
    struct op_call act = *call;
    act.op = OP_act_dx;
    act.in[0] = *h;
    act.in[1] = act.out[0] = *dx;
    return cuda_act_dx(cuda, &act);
}

status cuda_linear_xent(struct cuda *cuda, const struct op_call *call) {
    TRY(add_bias(cuda, call, &call->in[0], &call->in[1], &call->in[2], &call->out[0]));
    struct op_call xent = *call;
    xent.op = OP_xent;
    xent.in[0] = call->out[0];
    xent.in[1] = call->in[3];
    for (int i = 0; i < 3; i++)
        xent.out[i] = call->out[1 + i];
    return cuda_xent(cuda, &xent);
}

/* --- sums of products --- */

/* dx = dy[0] w[0] + … + residual, where there is one */
static status sum(struct cuda *cuda, const struct op_call *call, int terms, const struct operand *residual) {
    const void *so_far = residual ? residual->data : NULL;
    for (int i = 0; i < terms; i++) {
        struct product product = backward(&call->in[i], &call->in[terms + i], &call->out[0]);
        product.z = so_far;
        TRY(run(cuda, &product));
        so_far = product.c;
    }
    return OK;
}

status cuda_linear_dx_add(struct cuda *cuda, const struct op_call *call) { return sum(cuda, call, 1, &call->in[2]); }
status cuda_qkv_linear_dx(struct cuda *cuda, const struct op_call *call) { return sum(cuda, call, 3, NULL); }

/* --- three weights --- */

status cuda_qkv(struct cuda *cuda, const struct op_call *call) {
    struct operand y, w, b;
    if (beside(&call->out[0], &y))
        return below(&call->in[1], &w) && below(&call->in[4], &b) ? add_bias(cuda, call, &call->in[0], &w, &b, &y)
                                                                  : torn(call);
    for (int i = 0; i < 3; i++)
        TRY(add_bias(cuda, call, &call->in[0], &call->in[1 + i], &call->in[4 + i], &call->out[i]));
    return OK;
}

status cuda_qkv_dx(struct cuda *cuda, const struct op_call *call) {
    struct op_call one = *call;
    if (!beside(&call->in[0], &one.in[0]))
        return sum(cuda, call, 3, &call->in[6]);
    return below(&call->in[3], &one.in[1]) ? sum(cuda, &one, 1, &call->in[6]) : torn(call);
}

status cuda_qkv_dw(struct cuda *cuda, const struct op_call *call) {
    struct operand dy, dw, db;
    if (beside(&call->in[0], &dy))
        return below(&call->out[0], &dw) && below(&call->out[3], &db)
                   ? gradients(cuda, call, &dy, &call->in[3], &dw, &db)
                   : torn(call);
    for (int i = 0; i < 3; i++)
        TRY(gradients(cuda, call, &call->in[i], &call->in[3], &call->out[i], &call->out[3 + i]));
    return OK;
}

status cuda_qkv_linear(struct cuda *cuda, const struct op_call *call) {
    for (int i = 0; i < 3; i++) {
        struct product product = forward(&call->in[0], &call->in[1 + i], &call->out[i]);
        TRY(run(cuda, &product));
    }
    return OK;
}

status cuda_qkv_linear_dw(struct cuda *cuda, const struct op_call *call) {
    for (int i = 0; i < 3; i++) {
        struct product product = gradient(&call->in[i], &call->in[3], &call->out[i], call->accumulate);
        TRY(run(cuda, &product));
    }
    return OK;
}
