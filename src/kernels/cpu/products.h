/* Products of our own: micro-kernels for the instruction sets, and the loop nest around them. */
#ifndef BERTH_KERNELS_CPU_PRODUCTS_H
#define BERTH_KERNELS_CPU_PRODUCTS_H

#include "base/number.h"
#include "base/status.h"
#include "kernels/cpu/squares.h"
#include "kernels/cpu/tiles.h"

/* An operand of a product as it lies in memory, seen as [lines, k]: lines are the rows of a or the columns of b. Steps
 * along k are 1 and along lines `stride`, or the other way round where `lines_are_next`. */
struct matrix {
    const void *data;
    enum dtype dtype;
    bool lines_are_next;
    int64_t stride;
};

/* A piece of it: lines [line, line + lines), and of them k from `k` on, `depth` many. */
struct piece {
    int64_t line, lines, k, depth;
};

/* A product of small matrices in the cache, by one thread: c[m,n] = a b, or added to.
 *
 * Floats: element (i, l) of a stands at a[i * a_row + l * a_step], so that a may be transposed. b stands in panels of
 * the kernel's columns: [n/columns][k][columns], the last one filled up with zeros. a and c must have room for whole
 * slivers of rows, and c for whole panels of columns: what stands there afterwards says nothing.
 * bf16: a_step is 1; b stands in pairs of k, [n/16][k/2][16][2]; m, n and k are multiples of ROWS_PRODUCT. */
enum { ROWS_PRODUCT = SIDE };
struct rows_product {
    int64_t m, n, k;
    const void *a;
    int64_t a_row, a_step;
    const void *b;
    float *c;
    int64_t c_row;
    bool add;
};

/* How an instruction set multiplies. Operands are packed first, each block in one piece of memory: of a [block_rows,
 * depth], whatever its order inside, but slivers of `rows` rows follow each other; of b panels [depth, columns]. What
 * is missing of a sliver or a panel is packed as zeros. */
struct kernel {
    int rows, columns;        /* of c that `multiply` makes in registers */
    int depth;                /* of a block: k is cut into such pieces */
    int block_rows;           /* a multiple of rows */
    int64_t a_block, b_panel; /* bytes */
    int64_t fetched;          /* bytes from `next` on that `multiply` asks for when depth is whole */
    /* sums, where not NULL: [lines] sums over k of the piece */
    void (*pack_a)(const struct matrix *a, const struct piece *piece, void *block, float *sums);
    void (*pack_b)(const struct matrix *b, const struct piece *piece, void *panels);
    /* c[rows, columns] = a b (+ c), and fetches into the second-level cache what will be wanted next */
    void (*multiply)(int64_t depth, const void *a, const void *b, float *c, int64_t stride_c, bool add,
                     const char *next);
    /* Not NULL: it multiplies squares (squares.h), and has these three instead of what stands above. Packs a square of
     * 32 lines and 32 k of `left` or right side from the beginning of a piece that may be smaller or larger. */
    void (*square)(const struct square *square);
    void (*pack_square)(const struct matrix *m, const struct piece *piece, bool left, void *packed);
    void (*sum_square)(const void *packed, float lanes[SIDE][SUM_LANES]); /* of a left side: sums over k */
    void (*multiply_rows)(const struct rows_product *product);
    void (*begin)(void), (*end)(void); /* around the work of a thread; NULL: nothing to do */
};

/* Use the products of this instruction set, as BERTH_ISA names it, from now on; NULL: the best of the processor. */
status products_choose(const char *name);
const char *products_name(void); /* "avx2", or "library" */

/* What multiplies operands of these dtypes; NULL: the library. */
const struct kernel *products_kernel(enum dtype a, enum dtype b);

/* What multiplies small matrices of this dtype: always our own. NULL: they are multiplied as floats. */
const struct kernel *rows_kernel(enum dtype dtype);

/* Every tile of the job, on all threads. */
status products_run(const struct kernel *kernel, const struct tile_job *job);

/* One product of floats as contraction.h describes it; in a parallel region, by the calling thread. */
struct product;
void products_f32(const struct product *product, const float *a, const float *b, float *c);

extern const struct kernel kernel_plain;
#if defined(__x86_64__) && !defined(__clang__)
extern const struct kernel kernel_avx2, kernel_avx512, kernel_avx512_emulated, kernel_amx, kernel_amx_emulated;
#endif

#endif
