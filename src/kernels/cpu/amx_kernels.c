/* Products of bf16 with AMX: two by two tiles of c, [32, 32], from a as [16 lines][32 of k] and b as [16 pairs of k][16
 * lines][2]. Packed, the tiles of 16 lines follow each other along k. */
#include "kernels/cpu/products.h"

#if defined(__x86_64__) && !defined(__clang__)
#include <immintrin.h>

enum {
    TILE_LINES = 16,
    STEP = 32, /* of k in a tile */
    DEPTH = 512,
    BLOCK_ROWS = 256,
    FETCH = 8, /* cache lines asked for in a step of k */
    TILE_BYTES = TILE_LINES * STEP * 2,
    LINE_OF_TILES = DEPTH / STEP * TILE_BYTES
};

#define INLINE static inline __attribute__((always_inline))

INLINE int64_t up_to(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

/* --- packing: a tile at a time, in pieces of eight numbers --- */

typedef bf16 eight __attribute__((vector_size(16)));
typedef bf16 eight_unaligned __attribute__((vector_size(16), aligned(2), may_alias));
typedef uint32_t four_pairs __attribute__((vector_size(16)));

INLINE eight load_eight(const bf16 *from) { return *(const eight_unaligned *)from; }
INLINE void store_eight(bf16 *to, eight value) { *(eight_unaligned *)to = value; }

/* `n` rows of memory from `row` on, eight numbers of each from `at` on. Not `whole`: only `rows` rows and `count`
 * numbers are there; the others are zeros. */
INLINE void load_rows(const struct matrix *m, bool whole, int64_t row, int64_t rows, int64_t at, int64_t count, int n,
                      eight out[]) {
    const bf16 *from = (const bf16 *)m->data + row * m->stride + at;
    for (int i = 0; i < n; i++, from += m->stride) {
        bf16 buffer[8] = {0};
        int64_t there = i < rows ? count : 0;
        if (!whole && there < 8) {
            memcpy(buffer, from, there > 0 ? (size_t)there * sizeof *from : 0);
            out[i] = load_eight(buffer);
        } else
            out[i] = load_eight(from);
    }
}

/* Pairs from two vectors in turn: low halves, high halves. */
INLINE eight low_pairs(eight a, eight b) { return __builtin_shuffle(a, b, (eight){0, 8, 1, 9, 2, 10, 3, 11}); }
INLINE eight high_pairs(eight a, eight b) { return __builtin_shuffle(a, b, (eight){4, 12, 5, 13, 6, 14, 7, 15}); }

INLINE void transpose_eight(eight v[8]) {
    eight w[8];
    for (int round = 0; round < 3; round++) { /* three perfect shuffles of all 64 numbers' places */
        for (int i = 0; i < 4; i++) {
            w[2 * i] = low_pairs(v[i], v[i + 4]);
            w[2 * i + 1] = high_pairs(v[i], v[i + 4]);
        }
        for (int i = 0; i < 8; i++)
            v[i] = w[i];
    }
}

INLINE void transpose_pairs(eight v[4]) {
    four_pairs a = (four_pairs)v[0], b = (four_pairs)v[1], c = (four_pairs)v[2], d = (four_pairs)v[3];
    four_pairs ac = __builtin_shuffle(a, c, (four_pairs){0, 4, 1, 5}),
               bd = __builtin_shuffle(b, d, (four_pairs){0, 4, 1, 5});
    v[0] = (eight)__builtin_shuffle(ac, bd, (four_pairs){0, 4, 1, 5});
    v[1] = (eight)__builtin_shuffle(ac, bd, (four_pairs){2, 6, 3, 7});
    ac = __builtin_shuffle(a, c, (four_pairs){2, 6, 3, 7}), bd = __builtin_shuffle(b, d, (four_pairs){2, 6, 3, 7});
    v[2] = (eight)__builtin_shuffle(ac, bd, (four_pairs){0, 4, 1, 5});
    v[3] = (eight)__builtin_shuffle(ac, bd, (four_pairs){2, 6, 3, 7});
}

/* The tile of a line and a k, both multiples of its size. */
INLINE bf16 *tile_at(void *packed, int64_t line, int64_t k) {
    return (bf16 *)packed + (line / TILE_LINES * LINE_OF_TILES + k / STEP * TILE_BYTES) / (int64_t)sizeof(bf16);
}

/* A tile of 16 lines and 32 k: [line][k] if `across`, as a's are; else b's, [k / 2][line][2]. */
INLINE void pack_tile(const struct matrix *m, const struct piece *piece, bool whole, int64_t line, int64_t k,
                      bool across, bf16 *to) {
    const int64_t from_line = piece->line + line, lines = piece->lines - line, from_k = piece->k + k,
                  ks = piece->depth - k;
    eight v[8];
    for (int l = 0; l < TILE_LINES; l += 8)
        for (int i = 0; i < STEP && m->lines_are_next && across; i += 8) {
            load_rows(m, whole, from_k + i, ks - i, from_line + l, lines - l, 8, v);
            transpose_eight(v);
            for (int j = 0; j < 8; j++)
                store_eight(to + (l + j) * STEP + i, v[j]);
        }
    for (int i = 0; i < STEP && m->lines_are_next && !across; i += 2)
        for (int l = 0; l < TILE_LINES; l += 8) {
            load_rows(m, whole, from_k + i, ks - i, from_line + l, lines - l, 2, v);
            store_eight(to + i * TILE_LINES + 2 * l, low_pairs(v[0], v[1]));
            store_eight(to + i * TILE_LINES + 2 * l + 8, high_pairs(v[0], v[1]));
        }
    for (int l = 0; l < TILE_LINES && !m->lines_are_next && across; l++)
        for (int i = 0; i < STEP; i += 8) {
            load_rows(m, whole, from_line + l, lines - l, from_k + i, ks - i, 1, v);
            store_eight(to + l * STEP + i, v[0]);
        }
    for (int l = 0; l < TILE_LINES && !m->lines_are_next && !across; l += 4)
        for (int i = 0; i < STEP; i += 8) {
            load_rows(m, whole, from_line + l, lines - l, from_k + i, ks - i, 4, v);
            transpose_pairs(v);
            for (int j = 0; j < 4; j++)
                store_eight(to + (i + 2 * j) * TILE_LINES + 2 * l, v[j]);
        }
}

INLINE void pack_tile_at(const struct matrix *m, const struct piece *piece, int64_t line, int64_t k, bool across,
                         void *packed) {
    if (line + TILE_LINES <= piece->lines && k + STEP <= piece->depth)
        pack_tile(m, piece, true, line, k, across, tile_at(packed, line, k));
    else
        pack_tile(m, piece, false, line, k, across, tile_at(packed, line, k));
}

/* All tiles of a piece, [line / 16][k / 32], with lines up to whole squares; along the rows of memory. */
INLINE void pack_tiles(const struct matrix *m, const struct piece *piece, bool across, void *packed) {
    const int64_t lines = up_to(piece->lines, 2 * TILE_LINES);
    for (int64_t k = 0; k < piece->depth && m->lines_are_next; k += STEP)
        for (int64_t line = 0; line < lines; line += TILE_LINES)
            pack_tile_at(m, piece, line, k, across, packed);
    for (int64_t line = 0; line < lines && !m->lines_are_next; line += TILE_LINES)
        for (int64_t k = 0; k < piece->depth; k += STEP)
            pack_tile_at(m, piece, line, k, across, packed);
}

/* Sums over k of the packed numbers, beyond the last of which are zeros. */
INLINE void sum_rows(void *block, const struct piece *piece, float *sums) {
    for (int64_t line = 0; line < piece->lines; line++) {
        float lanes[STEP] = {0}, sum = 0;
        for (int64_t k = 0; k < piece->depth; k += STEP) {
            const bf16 *from = tile_at(block, line, k) + line % TILE_LINES * STEP;
            for (int i = 0; i < STEP; i++)
                lanes[i] += bf16_to_float(from[i]);
        }
        for (int i = 0; i < STEP; i++)
            sum += lanes[i];
        sums[line] = sum;
    }
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
