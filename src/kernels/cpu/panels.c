#include "kernels/cpu/panels.h"

#include <string.h>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/vector.h"

enum { DEPTH = 256 }; /* of k at a time: so much of a panel stays in the first-level cache while slivers of a pass by */

/* c[ROWS][16] of one sliver and one panel, in registers: ROWS * 64 / WIDTH of them. */
#define UNROLL _Pragma("GCC unroll 16")
#define SLIVER_KERNEL(name, isa, WIDTH, ROWS)                                                                      \
    isa static void name(const struct panel_product *product, const float *a, const float *b, int64_t k, float *c, \
                         bool add) {                                                                               \
        typedef float vector __attribute__((vector_size(WIDTH)));                                                  \
        typedef float unaligned __attribute__((vector_size(WIDTH), aligned(4), may_alias));                        \
        enum { VECTORS = PANEL * 4 / WIDTH, PLACES = ROWS * VECTORS };                                             \
        const int64_t a_row = product->a_row, a_step = product->a_step, c_row = product->c_row;                    \
        vector sum[PLACES];                                                                                        \
        UNROLL for (int i = 0; i < PLACES; i++) sum[i] = (vector){0};                                              \
        for (int64_t l = 0; l < k; l++, a += a_step, b += PANEL)                                                   \
            UNROLL for (int i = 0; i < PLACES; i++) sum[i] +=                                                      \
                a[i / VECTORS * a_row] * ((const unaligned *)b)[i % VECTORS];                                      \
        UNROLL for (int i = 0; i < PLACES; i++) {                                                                  \
            unaligned *to = (unaligned *)(c + i / VECTORS * c_row) + i % VECTORS;                                  \
            if (add)                                                                                               \
                sum[i] += *to;                                                                                     \
            *to = sum[i];                                                                                          \
        }                                                                                                          \
    }
SLIVER_KERNEL(plain_sliver, , 16, 3)
#if defined(__x86_64__) && !defined(__clang__)
SLIVER_KERNEL(avx2_sliver, __attribute__((target("avx2,fma"))), 32, 6)
SLIVER_KERNEL(avx512_sliver, __attribute__((target("avx512f"))), 64, 12)
#endif

static void run(const struct panel_product *product, int rows,
                void (*sliver)(const struct panel_product *product, const float *a, const float *b, int64_t k, float *c,
                               bool add)) {
    for (int64_t first = 0; first < product->k; first += DEPTH) {
        int64_t k = product->k - first < DEPTH ? product->k - first : DEPTH;
        const float *a = product->a + first * product->a_step, *b = product->b + first * PANEL;
        for (int64_t column = 0; column < product->n; column += PANEL)
            for (int64_t row = 0; row < product->m; row += rows)
                sliver(product, a + row * product->a_row, b + column * product->k, k,
                       product->c + row * product->c_row + column, product->add || first > 0);
    }
}

void panel_product(const struct panel_product *product) {
#if defined(__x86_64__) && !defined(__clang__)
    if (vectors_in_use == VECTORS_AVX512)
        return run(product, 12, avx512_sliver);
    if (vectors_in_use == VECTORS_AVX2)
        return run(product, 6, avx2_sliver);
#endif
    run(product, 3, plain_sliver);
}

/* --- packing --- */

void panels_of(const float *x, int64_t rows, int64_t columns, float *panels) {
    for (int64_t column = 0; column < columns; column += PANEL) {
        int64_t width = columns - column < PANEL ? columns - column : PANEL;
        for (int64_t r = 0; r < rows; r++, panels += PANEL) {
            const float *from = x + r * columns + column;
            for (int i = 0; width == PANEL && i < PANEL; i++)
                panels[i] = from[i];
            for (int i = 0; width < PANEL && i < PANEL; i++)
                panels[i] = i < width ? from[i] : 0;
        }
    }
}

void panels_of_transpose(const float *x, int64_t rows, int64_t columns, float *panels) {
    for (int64_t row = 0; row < rows; row += PANEL, panels += columns * PANEL) {
        int64_t height = rows - row < PANEL ? rows - row : PANEL, fours = height / 4 * 4, column = 0;
        const float *from = x + row * columns;
        if (height < PANEL)
            memset(panels, 0, (size_t)(columns * PANEL) * sizeof *panels);
        for (; column + 4 <= columns; column += 4)
            for (int64_t r = 0; r < fours; r += 4) {
                const float *first = from + r * columns;
                const float *const row[4] = {first, first + columns, first + 2 * columns, first + 3 * columns};
                transpose_four(row, column, panels + column * PANEL + r, PANEL);
            }
        for (int64_t r = 0; r < height; r++)
            for (int64_t c = r < fours ? column : 0; c < columns; c++)
                panels[c * PANEL + r] = from[r * columns + c];
    }
}
