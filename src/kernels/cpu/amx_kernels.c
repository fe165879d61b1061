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

/* --- packing: everything is copied in pieces of eight numbers --- */

typedef bf16 eight __attribute__((vector_size(16)));
typedef bf16 eight_unaligned __attribute__((vector_size(16), aligned(2), may_alias));
typedef uint32_t four_pairs __attribute__((vector_size(16)));

static const bf16 zeros[8];

INLINE eight load_eight(const bf16 *from) { return *(const eight_unaligned *)from; }
INLINE void store_eight(bf16 *to, eight value) { *(eight_unaligned *)to = value; }

/* `count` numbers, zeros up to eight */
INLINE eight load_some(const bf16 *from, int64_t count) {
    bf16 buffer[8] = {0};
    if (count >= 8)
        return load_eight(from);
    for (int64_t i = 0; i < count; i++)
        buffer[i] = from[i];
    return load_eight(buffer);
}

/* From lines i of `lines`: eight numbers from `at` on, of which `count` are there; zeros for lines that are not. */
INLINE void load_lines(const struct matrix *m, int64_t line, int64_t lines, int64_t at, int64_t count, int n,
                       eight out[]) {
    const bf16 *data = m->data;
    for (int i = 0; i < n; i++)
        out[i] = i < lines ? load_some(data + (line + i) * m->stride + at, count) : load_eight(zeros);
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

/* The tile of a line and a k, in units of whole tiles */
INLINE bf16 *tile_at(void *packed, int64_t line, int64_t k) {
    return (bf16 *)packed + (line / TILE_LINES * LINE_OF_TILES + k / STEP * TILE_BYTES) / (int64_t)sizeof(bf16);
}

/* block[line / 16][k / 32][16][32] */
INLINE void pack_rows(const struct matrix *a, const struct piece *piece, void *block) {
    int64_t lines = (piece->lines + 2 * TILE_LINES - 1) / (2 * TILE_LINES) * (2 * TILE_LINES);
    int64_t depth = (piece->depth + STEP - 1) / STEP * STEP;
    for (int64_t k = 0; k < depth && a->lines_are_next; k += 8)
        for (int64_t line = 0; line < lines; line += 8) {
            eight v[8];
            load_lines(a, piece->k + k, piece->depth - k, piece->line + line, piece->lines - line, 8, v);
            transpose_eight(v);
            bf16 *to = tile_at(block, line, k) + line % TILE_LINES * STEP + k % STEP;
            for (int i = 0; i < 8; i++)
                store_eight(to + i * STEP, v[i]);
        }
    for (int64_t line = 0; line < lines && !a->lines_are_next; line++)
        for (int64_t k = 0; k < depth; k += 8) {
            eight v;
            load_lines(a, piece->line + line, piece->lines - line, piece->k + k, piece->depth - k, 1, &v);
            store_eight(tile_at(block, line, k) + line % TILE_LINES * STEP + k % STEP, v);
        }
}

/* panels[line / 16][k / 32][k % 32 / 2][16][2] */
INLINE void pack_pairs(const struct matrix *b, const struct piece *piece, void *panels) {
    int64_t lines = (piece->lines + 2 * TILE_LINES - 1) / (2 * TILE_LINES) * (2 * TILE_LINES);
    int64_t depth = (piece->depth + STEP - 1) / STEP * STEP;
    for (int64_t k = 0; k < depth && b->lines_are_next; k += 2)
        for (int64_t line = 0; line < lines; line += 8) {
            eight v[2];
            load_lines(b, piece->k + k, piece->depth - k, piece->line + line, piece->lines - line, 2, v);
            bf16 *to = tile_at(panels, line, k) + k % STEP * TILE_LINES + line % TILE_LINES * 2;
            store_eight(to, low_pairs(v[0], v[1]));
            store_eight(to + 8, high_pairs(v[0], v[1]));
        }
    for (int64_t line = 0; line < lines && !b->lines_are_next; line += 4)
        for (int64_t k = 0; k < depth; k += 8) {
            eight v[4];
            load_lines(b, piece->line + line, piece->lines - line, piece->k + k, piece->depth - k, 4, v);
            transpose_pairs(v);
            bf16 *to = tile_at(panels, line, k) + k % STEP * TILE_LINES + line % TILE_LINES * 2;
            for (int i = 0; i < 4; i++)
                store_eight(to + i * 2 * TILE_LINES, v[i]);
        }
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
    uint8_t data[8][16][64];
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
