/* Products of small matrices of floats that are in the cache: what attention is made of. products.h has their form. */
#ifndef BERTH_KERNELS_CPU_PANELS_H
#define BERTH_KERNELS_CPU_PANELS_H

#include "kernels/cpu/products.h"

/* Of rows, any kernel's slivers fill SLIVER. */
enum { SLIVER = 12 };

static inline int64_t sliver_rows(int64_t m) { return (m + SLIVER - 1) / SLIVER * SLIVER; }
int64_t panel_columns(int64_t n);

void panel_product(const struct rows_product *product);

/* Panels of x[rows,columns] (b = x), and of its transpose (b = x^T), from rows without gaps. */
void panels_of(const float *x, int64_t rows, int64_t columns, float *panels); /* [columns/panel][rows][panel] */
void panels_of_transpose(const float *x, int64_t rows, int64_t columns,
                         float *panels); /* [rows/panel][columns][panel] */

#endif
