/* Squares of bf16 with AMX: two by two tiles of sums from a as [16 lines][32 of k] and b as [16 pairs of k][16
 * lines][2].
 */
#include "kernels/cpu/products.h"
#include "kernels/cpu/squares.h"

#if defined(__x86_64__) && !defined(__clang__)
#include <immintrin.h>

enum { TILE_LINES = 16, TILE_LINE = 64 /* bytes */, TILE_BYTES = TILE_LINES * TILE_LINE };

#define INLINE static inline __attribute__((always_inline))

/* --- packing: 32 lines and 32 k at a time, in vectors that are lines of tiles --- */

typedef bf16 numbers __attribute__((vector_size(TILE_LINE)));   /* 32 */
typedef uint32_t pairs __attribute__((vector_size(TILE_LINE))); /* 16 */
typedef bf16 numbers_unaligned __attribute__((vector_size(TILE_LINE), aligned(2), may_alias));

INLINE void store_line(void *to, int line, const numbers *value) {
    ((numbers *)__builtin_assume_aligned(to, TILE_LINE))[line] = *value;
}

/* Rows `row` and `row` + 1 as pairs of columns: 0 to 15, 16 to 31. */
INLINE void pair_rows(const bf16 *from, int64_t stride, int row, numbers *first, numbers *last) {
    numbers a = *(const numbers_unaligned *)(from + row * stride),
            b = *(const numbers_unaligned *)(from + (row + 1) * stride);
    *first = __builtin_shuffle(a, b, (numbers){0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                               8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47});
    *last = __builtin_shuffle(a, b, (numbers){16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
                                              24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63});
}

/* Pair j of line i becomes pair i of line j: four perfect shuffles of all places. */
INLINE void transpose_pairs(numbers lines[TILE_LINES]) {
    for (int round = 0; round < 4; round++) {
        numbers shuffled[TILE_LINES];
        for (int i = 0; i < TILE_LINES / 2; i++) {
            pairs a = (pairs)lines[i], b = (pairs)lines[i + TILE_LINES / 2];
            shuffled[2 * i] =
                (numbers)__builtin_shuffle(a, b, (pairs){0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23});
            shuffled[2 * i + 1] =
                (numbers)__builtin_shuffle(a, b, (pairs){8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31});
        }
        for (int i = 0; i < TILE_LINES; i++)
            lines[i] = shuffled[i];
    }
}

/* `from`: 32 rows of 32 numbers. Rows are lines (`rows_are_k` false) or steps of k. */
INLINE void pack_rows(const bf16 *from, int64_t stride, bool rows_are_k, bool left, bf16 *to) {
    numbers first[TILE_LINES], last[TILE_LINES];
    bf16 *second = to + TILE_BYTES / sizeof *to;
    if (rows_are_k)
        for (int i = 0; i < TILE_LINES; i++)
            pair_rows(from, stride, 2 * i, &first[i], &last[i]);
    else
        for (int i = 0; i < TILE_LINES; i++) {
            first[i] = *(const numbers_unaligned *)(from + i * stride);
            last[i] = *(const numbers_unaligned *)(from + (i + TILE_LINES) * stride);
        }
    if (rows_are_k == left) { /* a wants lines of pairs, b pairs of lines */
        transpose_pairs(first);
        transpose_pairs(last);
    }
    for (int i = 0; i < TILE_LINES; i++) {
        store_line(to, i, &first[i]);
        store_line(second, i, &last[i]);
    }
}

INLINE void pack_square(const struct matrix *m, const struct piece *piece, bool left, void *to) {
    const bool across = m->lines_are_next;
    const bf16 *from =
        (const bf16 *)m->data + (across ? piece->k * m->stride + piece->line : piece->line * m->stride + piece->k);
    bf16 filled[SIDE * SIDE];
    int64_t stride = m->stride, rows = across ? piece->depth : piece->lines,
            columns = across ? piece->lines : piece->depth;
    if (rows < SIDE || columns < SIDE) { /* zeros for what is missing */
        memset(filled, 0, sizeof filled);
        for (int64_t r = 0; r < rows && r < SIDE; r++)
            memcpy(filled + r * SIDE, from + r * stride, (size_t)(columns < SIDE ? columns : SIDE) * sizeof *from);
        from = filled, stride = SIDE;
    }
    if (across)
        pack_rows(from, stride, true, left, to);
    else
        pack_rows(from, stride, false, left, to);
}

/* Adds to the sums of each line of a packed square: of its even and its odd numbers. */
INLINE void sum_square(const void *packed, float lanes[SIDE][SUM_LANES]) {
    const bf16 *line = packed;
    for (int i = 0; i < SIDE; i++, line += SIDE)
        for (int lane = 0; lane < SUM_LANES; lane++)
            lanes[i][lane] += bf16_to_float(line[2 * lane]) + bf16_to_float(line[2 * lane + 1]);
}

/* --- the instructions --- */

struct tile_config { /* 64 bytes, as the processor reads them */
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,amx-tile,amx-bf16")
#define NAME(x) x##_amx
/* gcc 12's intrinsic says that it reads 8 bytes, and the others may be lost */
#define TILE_CONFIGURE(config) __asm__ volatile("ldtilecfg %0" ::"m"(*(config)))
#define TILE_RELEASE() _tile_release()
#define TILE_ZERO(t) _tile_zero(t)
#define TILE_LOAD(t, from, stride) _tile_loadd(t, from, stride)
#define TILE_STORE(t, to, stride) _tile_stored(t, to, stride)
#define TILE_MULTIPLY(c, a, b) _tile_dpbf16ps(c, a, b)
#include "kernels/cpu/amx_kernel.h"
#pragma GCC pop_options

/* --- the same in C, as Intel's manual describes the instructions: for tests on other processors --- */

static _Thread_local struct emulated_tiles {
    struct tile_config config;
    _Alignas(64) uint8_t data[8][16][64];
} emulated;

static void emulated_zero(int t) { memset(emulated.data[t], 0, sizeof emulated.data[t]); }

static void emulated_load(int t, const void *from, int64_t stride) {
    emulated_zero(t);
    for (int r = 0; r < emulated.config.rows[t]; r++)
        memcpy(emulated.data[t][r], (const char *)from + r * stride, emulated.config.row_bytes[t]);
}

static void emulated_store(int t, void *to, int64_t stride) {
    for (int r = 0; r < emulated.config.rows[t]; r++)
        memcpy((char *)to + r * stride, emulated.data[t][r], emulated.config.row_bytes[t]);
}

static void emulated_multiply(int c, int a, int b) {
    for (int m = 0; m < emulated.config.rows[c]; m++) {
        const bf16 *left = (const bf16 *)(void *)emulated.data[a][m];
        float *to = (float *)(void *)emulated.data[c][m], even[TILE_LINES] = {0}, odd[TILE_LINES] = {0};
        for (int pair = 0; pair < emulated.config.row_bytes[a] / 4; pair++) {
            const bf16 *right = (const bf16 *)(void *)emulated.data[b][pair];
            for (int n = 0; n < emulated.config.row_bytes[c] / 4; n++) {
                even[n] += bf16_to_float(left[2 * pair]) * bf16_to_float(right[2 * n]);
                odd[n] += bf16_to_float(left[2 * pair + 1]) * bf16_to_float(right[2 * n + 1]);
            }
        }
        for (int n = 0; n < emulated.config.row_bytes[c] / 4; n++)
            to[n] += even[n] + odd[n];
    }
}

#define NAME(x) x##_amx_emulated
#define TILE_CONFIGURE(from) emulated.config = *(from)
#define TILE_RELEASE() memset(&emulated, 0, sizeof emulated)
#define TILE_ZERO emulated_zero
#define TILE_LOAD emulated_load
#define TILE_STORE emulated_store
#define TILE_MULTIPLY emulated_multiply
#include "kernels/cpu/amx_kernel.h"

#endif
