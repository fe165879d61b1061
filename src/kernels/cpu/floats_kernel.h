/* The kernel of floats for one instruction set: floats_kernels.c includes this once for each, with
 *   NAME(x)        x with the name of the instruction set
 *   VECTOR_BYTES   of a register
 *   ROWS           of c in registers; its columns are two vectors
 * A packed block of a is [BLOCK_ROWS][A_STRIDE], a panel of b [DEPTH][two vectors]. */

typedef float NAME(vector) __attribute__((vector_size(VECTOR_BYTES)));
typedef float NAME(unaligned) __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
enum { NAME(COLUMNS) = 2 * VECTOR_BYTES / 4 };

#define sliver NAME(sliver)

/* c[ROWS][two vectors] = or += a b. Element (r, k) of a stands at a[r * a_row + k * a_step]. `next`: what to fetch
 * meanwhile, with the sliver after this one, in steps of FETCH; NULL: nothing. */
INLINE void sliver(int64_t depth, const float *a, int64_t a_row, int64_t a_step, const float *b, float *c,
                   int64_t stride_c, bool add, const char *next) {
    const NAME(unaligned) *panel = (const NAME(unaligned) *)b;
    const char *following = (const char *)(a + ROWS * a_row);
    const int64_t fetch = next ? FETCH : depth;
    NAME(vector) left[ROWS], right[ROWS]; /* in registers, as every loop over rows is unrolled */
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) {
        left[r] = right[r] = (NAME(vector)){0};
        if (next)
            __builtin_prefetch(c + r * stride_c, 1);
    }
    for (int64_t k = 0; k < depth; k += fetch) {
        if (next) {
            __builtin_prefetch(next, 0, 2);
            __builtin_prefetch(following);
            __builtin_prefetch(following + 64);
            next += 64, following += 2 * 64;
        }
        int64_t end = depth - k < fetch ? depth - k : fetch;
        for (int64_t i = 0; i < end; i++, a += a_step, panel += 2)
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; r++) {
                left[r] += a[r * a_row] * panel[0];
                right[r] += a[r * a_row] * panel[1];
            }
    }
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++, c += stride_c) {
        NAME(unaligned) *to = (NAME(unaligned) *)c;
        if (add) {
            left[r] += to[0];
            right[r] += to[1];
        }
        to[0] = left[r];
        to[1] = right[r];
    }
}

static void NAME(multiply)(int64_t depth, const void *a_block, const void *b_panel, float *c, int64_t stride_c,
                           bool add, const char *next) {
    sliver(depth, a_block, A_STRIDE, 1, b_panel, c, stride_c, add, next);
}

static void NAME(multiply_rows)(const struct rows_product *p) {
    for (int64_t first = 0; first < p->k; first += ROWS_DEPTH) {
        const int64_t depth = p->k - first < ROWS_DEPTH ? p->k - first : ROWS_DEPTH;
        const float *a = (const float *)p->a + first * p->a_step, *b = (const float *)p->b + first * NAME(COLUMNS);
        for (int64_t column = 0; column < p->n; column += NAME(COLUMNS))
            for (int64_t row = 0; row < p->m; row += ROWS)
                sliver(depth, a + row * p->a_row, p->a_row, p->a_step, b + column * p->k,
                       p->c + row * p->c_row + column, p->c_row, p->add || first > 0, NULL);
    }
}

static void NAME(pack_a)(const struct matrix *a, const struct piece *piece, void *block, float *sums) {
    pack_lines(a, piece, ROWS, block, sums);
}

static void NAME(pack_b)(const struct matrix *b, const struct piece *piece, void *panels) {
    pack_panels(b, piece, NAME(COLUMNS), panels);
}

const struct kernel NAME(kernel) = {.rows = ROWS,
                                    .columns = NAME(COLUMNS),
                                    .depth = DEPTH,
                                    .block_rows = BLOCK_ROWS,
                                    .a_block = BLOCK_ROWS * A_STRIDE * sizeof(float),
                                    .b_panel = (int64_t)DEPTH * NAME(COLUMNS) * sizeof(float),
                                    .fetched = DEPTH / FETCH * 64,
                                    .pack_a = NAME(pack_a),
                                    .pack_b = NAME(pack_b),
                                    .multiply = NAME(multiply),
                                    .multiply_rows = NAME(multiply_rows)};
#undef sliver
#undef NAME
#undef VECTOR_BYTES
#undef ROWS
