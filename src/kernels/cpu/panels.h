/* Products of small matrices that are in the cache, by one thread: what attention is made of. */
#ifndef BERTH_KERNELS_CPU_PANELS_H
#define BERTH_KERNELS_CPU_PANELS_H

#include <stdbool.h>
#include <stdint.h>

/* Columns of a panel; rows of c that are made at once are SLIVER or a part of it. */
enum { PANEL = 16, SLIVER = 12 };

static inline int64_t panel_columns(int64_t n) { return (n + PANEL - 1) / PANEL * PANEL; }
static inline int64_t sliver_rows(int64_t m) { return (m + SLIVER - 1) / SLIVER * SLIVER; }

/* c[m,n] = a[m,k] b[k,n], or added to. Element (i, l) of a stands at a[i * a_row + l * a_step], so that a may be
 * transposed. b stands in panels: its columns 16 by 16, [n/16][k][16], the last one filled up with zeros. c and a must
 * have room for sliver_rows(m) rows, and c for panel_columns(n) columns: what stands there afterwards says nothing. */
struct panel_product {
    int64_t m, n, k;
    const float *a;
    int64_t a_row, a_step;
    const float *b;
    float *c;
    int64_t c_row;
    bool add;
};
void panel_product(const struct panel_product *product);

/* Panels of x[rows,columns] (b = x), and of its transpose (b = x^T), from rows without gaps. */
void panels_of(const float *x, int64_t rows, int64_t columns, float *panels);           /* [columns/16][rows][16] */
void panels_of_transpose(const float *x, int64_t rows, int64_t columns, float *panels); /* [rows/16][columns][16] */

#endif
