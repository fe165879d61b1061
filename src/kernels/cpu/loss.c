/* Softmax cross-entropy over the first attr.classes columns, and its gradient. */
#include <math.h>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/vector.h"

enum { STRIDE = 256 }; /* of the search for the largest logit */

static void xent_row(struct cpu *cpu, const struct op_call *call, int64_t row) {
    int64_t classes = call->attr->classes, best = 0;
    const float *logits = row_read(&call->in[0], row, cpu_scratch(cpu, 0, call->in[0].columns));
    int32_t label = ((const int32_t *)call->in[1].data)[row];
    float most = vector_max(logits, classes);
    while (best + STRIDE < classes && vector_max(logits + best, STRIDE) < most) /* in vectors up to its neighbourhood */
        best += STRIDE;
    while (best < classes - 1 && logits[best] < most)
        best++;
    float lse = most + (float)log(vector_sum_exp(logits, most, classes));
    ((float *)call->out[0].data)[row] = lse;
    ((float *)call->out[1].data)[row] = lse - logits[label];
    ((int32_t *)call->out[2].data)[row] = best == label;
}

status cpu_xent(struct cpu *cpu, const struct op_call *call) { return cpu_rows(cpu, call, xent_row); }

status cpu_loss_sum(struct cpu *cpu, const struct op_call *call) {
    (void)cpu;
    const float *loss = call->in[0].data;
    const int32_t *hit = call->in[1].data;
    double *sums = call->out[0].data, total = 0, hits = 0;
    for (int64_t row = 0; row < call->in[0].rows; row++) {
        total += loss[row];
        hits += hit[row];
    }
    sums[0] = (call->accumulate ? sums[0] : 0) + total;
    sums[1] = (call->accumulate ? sums[1] : 0) + hits;
    return OK;
}

static PER_ISA(void, xent_dx_row, (struct cpu * cpu, const struct op_call *call, int64_t row), (cpu, call, row)) {
    int64_t classes = call->attr->classes, n = call->out[0].columns;
    const float *logits = row_read(&call->in[0], row, cpu_scratch(cpu, 0, n));
    float lse = ((const float *)call->in[1].data)[row], scale = *(const float *)call->in[3].data;
    int32_t label = ((const int32_t *)call->in[2].data)[row];
    float *dx = row_write(&call->out[0], row, cpu_scratch(cpu, 2, n));
    for (int64_t i = 0; i < classes; i++)
        dx[i] = scale * vector_exp(logits[i] - lse);
    dx[label] -= scale;
    for (int64_t i = classes; i < n; i++)
        dx[i] = 0;
    row_written(&call->out[0], row, dx);
}

status cpu_xent_dx(struct cpu *cpu, const struct op_call *call) { return cpu_rows(cpu, call, xent_dx_row); }
