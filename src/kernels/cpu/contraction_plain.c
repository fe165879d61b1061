/* Contractions in plain C, for builds without oneDNN: correct, and slow. */
#ifndef BERTH_ONEDNN
#include <stdio.h>

#include "kernels/cpu/contraction.h"
#include "kernels/cpu/kernels.h"

enum { PANEL = 16, ROWS = 4, DEPTH = 4096 }; /* a panel of b: [DEPTH][PANEL] floats at most, on the stack */

struct contraction {
    const struct product *shape;
    const float *a, *b;
    float *c;
};

/* panel[k][PANEL] = columns first… of b, zero beyond n. */
static void pack_panel(const struct contraction *g, int64_t first, int64_t k0, int64_t depth, float *panel) {
    int64_t columns = g->shape->n - first < PANEL ? g->shape->n - first : PANEL;
    for (int64_t k = 0; k < depth; k++)
        for (int64_t j = 0; j < PANEL; j++)
            panel[k * PANEL + j] = j >= columns            ? 0
                                   : g->shape->transpose_b ? g->b[(first + j) * g->shape->stride_b + k0 + k]
                                                           : g->b[(k0 + k) * g->shape->stride_b + first + j];
}

/* ROWS rows of c times one panel. */
CPU_DISPATCH static void micro(const struct contraction *g, int64_t row, int64_t first, int64_t k0, int64_t depth,
                               const float *restrict panel) {
    float sum[ROWS][PANEL] = {{0}};
    int64_t rows = g->shape->m - row < ROWS ? g->shape->m - row : ROWS,
            columns = g->shape->n - first < PANEL ? g->shape->n - first : PANEL;
    const float *a[ROWS];
    for (int r = 0; r < ROWS; r++) { /* rows beyond the last repeat it: computed, not stored */
        int64_t at = row + (r < rows ? r : rows - 1);
        a[r] = g->shape->transpose_a ? g->a + k0 * g->shape->stride_a + at : g->a + at * g->shape->stride_a + k0;
    }
    int64_t step = g->shape->transpose_a ? g->shape->stride_a : 1;
    for (int64_t k = 0; k < depth; k++)
        for (int r = 0; r < ROWS; r++)
            for (int j = 0; j < PANEL; j++)
                sum[r][j] += a[r][k * step] * panel[k * PANEL + j];
    for (int64_t r = 0; r < rows; r++) {
        float *c = g->c + (row + r) * g->shape->stride_c + first;
        for (int64_t j = 0; j < columns; j++)
            c[j] = (g->shape->add || k0 > 0 ? c[j] : 0) + sum[r][j];
    }
}

static void contract_panels(void *ctx, int64_t begin, int64_t end) {
    const struct contraction *g = ctx;
    float panel[DEPTH * PANEL] __attribute__((aligned(64)));
    for (int64_t block = begin; block < end; block++)
        for (int64_t k0 = 0; k0 < g->shape->k || k0 == 0; k0 += DEPTH) {
            int64_t depth = g->shape->k - k0 < DEPTH ? g->shape->k - k0 : DEPTH;
            pack_panel(g, block * PANEL, k0, depth, panel);
            for (int64_t row = 0; row < g->shape->m; row += ROWS)
                micro(g, row, block * PANEL, k0, depth, panel);
        }
}

struct contractions *contractions_new(void) {
    return NULL;
} /* nothing to prepare */
void contractions_free(struct contractions *contractions) { (void)contractions; }

bool contractions_native(const struct contractions *contractions, enum dtype dtype) {
    (void)contractions;
    return dtype == F32;
}

void contractions_describe(const struct contractions *contractions, char *out, size_t size) {
    (void)contractions;
    snprintf(out, size, "plain C contractions, bf16 as floats");
}

status contract(struct contractions *contractions, const struct product *product, const void *a, const void *b,
                void *c) {
    (void)contractions;
    return contract_f32(product, a, b, c);
}

status contract_f32(const struct product *product, const float *a, const float *b, float *c) {
    struct contraction g = {product, a, b, c};
    parallel_for((product->n + PANEL - 1) / PANEL, 1, contract_panels, &g);
    return OK;
}

#endif
