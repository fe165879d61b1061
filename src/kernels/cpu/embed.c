/* The gradient of an embedding table: rows of dy summed per index. */
#include <string.h>

#include "kernels/cpu/kernels.h"

enum { COLUMNS = 64 }; /* a thread's share: a band of columns, so that no two threads write one element */

static void embed_band(void *ctx, int64_t begin, int64_t end) {
    const struct op_call *call = ctx;
    const struct operand *dy = &call->in[0], *table = &call->out[0];
    const int32_t *order = call->in[1].data, *index = call->in[2].data;
    int64_t n = table->columns;
    float *sums = table->data;
    if (!call->accumulate)
        for (int64_t row = 0; row < table->rows; row++)
            memset(sums + row * n + begin, 0, (size_t)(end - begin) * sizeof *sums);
    for (int64_t place = 0; place < dy->rows; place++) {
        int64_t row = order[place];
        float *to = sums + index[row] * n;
        for (int64_t at = begin; at < end; at += COLUMNS) {
            int64_t count = end - at < COLUMNS ? end - at : COLUMNS;
            float buffer[COLUMNS];
            const float *from = floats_read(dy->data, dy->dtype, row * n + at, count, buffer);
            for (int64_t i = 0; i < count; i++)
                to[at + i] += from[i];
        }
    }
}

status cpu_embed_dw(struct cpu *cpu, const struct op_call *call) {
    (void)cpu;
    parallel_for(call->out[0].columns, COLUMNS, embed_band, (void *)call);
    return OK;
}
