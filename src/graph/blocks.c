#include "graph/blocks.h"

/* At most `most` rows from `first` on. */
static struct operand block_of(const struct operand *whole, int64_t first, int64_t most) {
    struct operand block = *whole;
    int64_t left = whole->rows - first;
    block.data = (char *)whole->data + first * whole->stride * (int64_t)dtype_size(whole->dtype);
    block.rows = left < 0 ? 0 : left < most ? left : most;
    block.padded_rows = whole->padded_rows - first < most ? whole->padded_rows - first : most;
    return block;
}

/* Scratch with the rows of a block. */
static struct operand scratch_for(const struct operand *scratch, const struct operand *block) {
    struct operand operand = *scratch;
    operand.rows = block->rows;
    operand.padded_rows = block->padded_rows;
    return operand;
}

static struct op_call part(const struct op_call *call, enum op op) {
    struct op_call inner = *call;
    inner.op = op;
    return inner;
}

status blocks_decoder(struct backend *backend, const struct op_call *call) {
    const struct operand *x = &call->in[0], *logits = &call->out[3];
    for (int64_t first = 0; first < x->padded_rows; first += logits->rows) {
        struct op_call inner = part(call, OP_linear_xent);
        inner.in[0] = block_of(x, first, logits->rows);
        inner.in[3] = block_of(&call->in[3], first, logits->rows);
        inner.out[0] = scratch_for(logits, &inner.in[0]);
        for (int i = 0; i < 3; i++)
            inner.out[1 + i] = block_of(&call->out[i], first, logits->rows);
        TRY(backend->run(backend, &inner));
    }
    return OK;
}

/* in: x, w, b, lse, labels, scale; out: dx, dw, db, logits */
static status decoder_dx_block(struct backend *backend, const struct op_call *call, int64_t first) {
    const struct operand *logits = &call->out[3];
    struct operand x = block_of(&call->in[0], first, logits->rows), y = scratch_for(logits, &x);
    struct op_call forward = part(call, OP_linear_bias), loss = part(call, OP_xent_dx), dx = part(call, OP_linear_dx),
                   dw = part(call, OP_linear_dw_bias);
    forward.in[0] = x;
    forward.out[0] = y;
    TRY(backend->run(backend, &forward));
    loss.in[0] = loss.out[0] = y;
    loss.in[1] = block_of(&call->in[3], first, logits->rows);
    loss.in[2] = block_of(&call->in[4], first, logits->rows);
    loss.in[3] = call->in[5];
    TRY(backend->run(backend, &loss));
    dx.in[0] = y;
    dx.out[0] = block_of(&call->out[0], first, logits->rows);
    TRY(backend->run(backend, &dx));
    dw.in[0] = y;
    dw.in[1] = x;
    dw.out[0] = call->out[1];
    dw.out[1] = call->out[2];
    dw.accumulate = call->accumulate || first > 0;
    return backend->run(backend, &dw);
}

status blocks_decoder_dx(struct backend *backend, const struct op_call *call) {
    int64_t first = 0; /* without a row, too: then the gradients become zero */
    do {
        TRY(decoder_dx_block(backend, call, first));
        first += call->out[3].rows;
    } while (first < call->in[0].padded_rows);
    return OK;
}
