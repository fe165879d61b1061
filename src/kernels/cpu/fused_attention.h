/* What the two forms of fused attention share: of floats (fused_attention.c), and of tiles of bf16 (tile_attention.c).
 */
#ifndef BERTH_KERNELS_CPU_FUSED_ATTENTION_H
#define BERTH_KERNELS_CPU_FUSED_ATTENTION_H

#include "kernels/cpu/heads.h"

/* Asks for a row of the head in a [t,i] tensor: short pieces far apart, which processors do not foresee. */
enum { AHEAD = 8 };
void foresee(const struct operand *operand, const struct head *head, int64_t row);
/* Rows [first, first + count) of the head, from rows `stride` floats apart. */
void write_rows(const struct operand *operand, const struct head *head, int64_t first, int64_t count, const float *from,
                int64_t stride);
/* Hands out pieces of one scratch, each of whole cache lines. */
float *take(float **rest, int64_t count);

/* n scores become e^(scaled score - the largest one): the probabilities but for a factor. Returns it. */
float softmax_row(float *s, int64_t n, float scale, float *lse);
void scale_row(float *y, int64_t n, float factor);
/* Rows of scores [rows, n], `stride` apart, and of dy v^T, beginning with query `first`, become what is multiplied
 * next: probabilities after dropout, times `kept`, and gradients of unscaled scores. mask: [n], all ones without
 * dropout. */
void backward_rows(const struct op_call *call, const struct head *head, int64_t first, int64_t rows, float *scores,
                   float *gradients, int64_t stride, float kept, uint8_t *mask);
/* 1 without dropout. */
float kept_scale(const struct head *head);
float *lse_of(const struct op_call *call, const struct operand *operand, const struct head *head, int64_t query);

status tile_attention(struct cpu *cpu, const struct op_call *call, const struct head *head);
status tile_attention_dx(struct cpu *cpu, const struct op_call *call, const struct head *head);

#endif
