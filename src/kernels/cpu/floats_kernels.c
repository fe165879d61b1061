/* Products of floats: one source in vectors for all instruction sets. 16-bit operands become floats as they are packed,
 * which is no pass of its own. */
#include "kernels/cpu/products.h"
#include "kernels/cpu/vector.h"

enum {
    DEPTH = 384,
    ROWS_DEPTH = 256, /* of small products: so much of a panel stays in the first-level cache */
    BLOCK_ROWS = 96,
    FETCH = 4,            /* steps of k for which one cache line is asked for */
    A_STRIDE = DEPTH + 16 /* rows a power of two apart would meet in the same few cache sets */
};

#define INLINE static inline __attribute__((always_inline)) /* so that they use the instructions of their caller */

/* --- packing --- */

/* to[j * stride + i] = from[i][j] for i < count ≤ 4, j < n; zeros for the other i below 4. */
INLINE void transpose_rows(const float *const from[4], int count, int64_t n, float *to, int64_t stride) {
    int64_t j = 0;
    for (; count == 4 && j + 4 <= n; j += 4)
        transpose_four(from, j, to + j * stride, stride);
    for (; j < n; j++)
        for (int i = 0; i < 4; i++)
            to[j * stride + i] = i < count ? from[i][j] : 0;
}

/* Asks for the lines of a step of k that comes AHEAD steps later: they lie too far apart for the processor to foresee.
 */
INLINE void fetch_step(const struct matrix *matrix, const struct piece *piece, int64_t k) {
    enum { AHEAD = 8 };
    int64_t bytes = (int64_t)dtype_size(matrix->dtype);
    const char *from = (const char *)matrix->data + ((piece->k + k + AHEAD) * matrix->stride + piece->line) * bytes;
    for (int64_t at = 0; at < piece->lines * bytes && k + AHEAD < piece->depth; at += 64)
        __builtin_prefetch(from + at);
}

/* block[BLOCK_ROWS][A_STRIDE], with zeros up to a whole number of `rows`. */
INLINE void pack_lines(const struct matrix *a, const struct piece *piece, int rows, float *block, float *sums) {
    for (int64_t k = 0; a->lines_are_next && k < piece->depth; k += 4) {
        float buffer[4][BLOCK_ROWS];
        const float *from[4];
        int count = piece->depth - k < 4 ? (int)(piece->depth - k) : 4;
        for (int i = 0; i < count; i++) {
            fetch_step(a, piece, k + i);
            from[i] =
                floats_read(a->data, a->dtype, (piece->k + k + i) * a->stride + piece->line, piece->lines, buffer[i]);
        }
        transpose_rows(from, count, piece->lines, block + k, A_STRIDE);
    }
    for (int64_t line = 0; !a->lines_are_next && line < piece->lines; line++)
        floats_copy(a->data, a->dtype, (piece->line + line) * a->stride + piece->k, piece->depth,
                    block + line * A_STRIDE);
    for (int64_t line = piece->lines; line % rows; line++)
        memset(block + line * A_STRIDE, 0, (size_t)piece->depth * sizeof *block);
    for (int64_t line = 0; sums && line < piece->lines; line++)
        sums[line] = vector_sum(block + line * A_STRIDE, piece->depth);
}

/* panels[…][DEPTH][width], with zeros up to a whole panel. */
INLINE void pack_panels(const struct matrix *b, const struct piece *piece, int width, float *panels) {
    int64_t whole = (piece->lines + width - 1) / width * width;
    for (int64_t k = 0; b->lines_are_next && k < piece->depth; k++) {
        float buffer[TILE_COLUMNS], *to = panels + k * width;
        fetch_step(b, piece, k);
        const float *from =
            floats_read(b->data, b->dtype, (piece->k + k) * b->stride + piece->line, piece->lines, buffer);
        int64_t line = 0;
        for (; line + width <= piece->lines; line += width, to += DEPTH * width)
            memcpy(to, from + line, (size_t)width * sizeof *to);
        for (int64_t i = line; i < whole; i++)
            to[i - line] = i < piece->lines ? from[i] : 0;
    }
    for (int64_t line = 0; !b->lines_are_next && line < whole; line += 4) {
        float buffer[4][DEPTH];
        const float *from[4];
        int64_t left = piece->lines - line;
        int count = left < 0 ? 0 : left < 4 ? (int)left : 4;
        for (int i = 0; i < count; i++)
            from[i] = floats_read(b->data, b->dtype, (piece->line + line + i) * b->stride + piece->k, piece->depth,
                                  buffer[i]);
        transpose_rows(from, count, piece->depth, panels + line / width * DEPTH * width + line % width, width);
    }
}

/* --- the instruction sets: one at least runs everywhere --- */

#define NAME(x) x##_plain
#define VECTOR_BYTES 16
#define ROWS 4
#include "kernels/cpu/floats_kernel.h"

#if defined(__x86_64__) && !defined(__clang__)

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#define NAME(x) x##_avx2
#define VECTOR_BYTES 32
#define ROWS 6
#include "kernels/cpu/floats_kernel.h"

/* the vectors of AVX-512 for a processor without it, two instructions for one: for tests */
#define NAME(x) x##_avx512_emulated
#define VECTOR_BYTES 64
#define ROWS 12
#include "kernels/cpu/floats_kernel.h"
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,fma,f16c,prefer-vector-width=512")
#define NAME(x) x##_avx512
#define VECTOR_BYTES 64
#define ROWS 12
#include "kernels/cpu/floats_kernel.h"
#pragma GCC pop_options

#endif
