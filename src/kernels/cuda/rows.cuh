/* Rows that are kept in registers: a group of WARPS warps has a row, each thread ITEMS items of N elements of it. One
 * warp where that is enough, so that nothing waits for a barrier; a block of eight for longer rows. */
#ifndef BERTH_KERNELS_CUDA_ROWS_CUH
#define BERTH_KERNELS_CUDA_ROWS_CUH

#include "kernels/cuda/items.cuh"

constexpr int LONGEST_ROW = 8192, LONGEST_ROW_UNPACKED = 2048;

/* Run `...` with N, ITEMS and WARPS such that a group holds rows of so many columns; returns with a message if none
 * does. In a function with `call`. */
#define WITH_ROW_SHAPE(n, items, warps, ...)                                \
    {                                                                       \
        [[maybe_unused]] constexpr int N = n, ITEMS = items, WARPS = warps; \
        __VA_ARGS__;                                                        \
    }
#define WITH_PACKED_ROW(columns, ...)                   \
    do {                                                \
        TRY(check_columns(call, columns, LONGEST_ROW)); \
        if ((columns) <= 256)                           \
            WITH_ROW_SHAPE(ITEM, 1, 1, __VA_ARGS__)     \
        else if ((columns) <= 512)                      \
            WITH_ROW_SHAPE(ITEM, 2, 1, __VA_ARGS__)     \
        else if ((columns) <= 768)                      \
            WITH_ROW_SHAPE(ITEM, 3, 1, __VA_ARGS__)     \
        else if ((columns) <= 1024)                     \
            WITH_ROW_SHAPE(ITEM, 4, 1, __VA_ARGS__)     \
        else if ((columns) <= 4096)                     \
            WITH_ROW_SHAPE(ITEM, 2, 8, __VA_ARGS__)     \
        else                                            \
            WITH_ROW_SHAPE(ITEM, 4, 8, __VA_ARGS__)     \
    } while (0)
#define WITH_ROW(packed, columns, ...)                           \
    do {                                                         \
        if (packed) {                                            \
            WITH_PACKED_ROW(columns, __VA_ARGS__);               \
            break;                                               \
        }                                                        \
        TRY(check_columns(call, columns, LONGEST_ROW_UNPACKED)); \
        if ((columns) <= 128)                                    \
            WITH_ROW_SHAPE(1, 4, 1, __VA_ARGS__)                 \
        else                                                     \
            WITH_ROW_SHAPE(1, 8, 8, __VA_ARGS__)                 \
    } while (0)

inline status check_columns(const struct op_call *call, int64_t columns, int most) {
    if (columns > most)
        return failed("%s: rows of %lld elements: at most %d are supported, %d where that is no multiple of %d",
                      op_info(call->op)->name, (long long)columns, LONGEST_ROW, LONGEST_ROW_UNPACKED, ITEM);
    return OK;
}

/* Groups of a block, and threads. */
template <int WARPS>
constexpr int GROUPS = WARPS == 1 ? 4 : 1;
template <int WARPS>
constexpr int ROW_THREADS = GROUPS<WARPS> *WARPS *WARP;

template <int WARPS>
__device__ inline int my_group() {
    return WARPS == 1 ? threadIdx.x / WARP : 0;
}

/* This thread's item number `item` of a row: its first column. */
template <int N, int WARPS>
__device__ inline int item_column(int item) {
    return (item * WARPS * WARP + (int)threadIdx.x % (WARPS * WARP)) * N;
}

/* A block's first row, and from row to row; those of its groups are neighbours. All groups of a block take as many
 * turns, some of them with a row beyond the last: then the compiler knows that a warp's lanes are together at every
 * shuffle, and needs no calls to collect them. */
template <int WARPS>
__device__ inline int64_t block_row() {
    return (int64_t)blockIdx.x * GROUPS<WARPS>;
}
template <int WARPS>
__device__ inline int64_t block_step() {
    return (int64_t)gridDim.x * GROUPS<WARPS>;
}

template <int WARPS>
__device__ inline void group_barrier() {
    if constexpr (WARPS == 1)
        __syncwarp();
    else
        __syncthreads();
}

/* Each of x becomes its sum over the group's threads: over lanes, then over warps in order. V: float or double. */
template <int WARPS, int COUNT, typename V>
__device__ inline void group_sums(V (&x)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        x[i] = warp_sum(x[i]);
    if constexpr (WARPS > 1) {
        __shared__ V of_warp[COUNT][WARPS];
        __syncthreads(); /* all have read those of the last time */
        if (threadIdx.x % WARP == 0)
            for (int i = 0; i < COUNT; i++)
                of_warp[i][threadIdx.x / WARP] = x[i];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            x[i] = 0;
            for (int warp = 0; warp < WARPS; warp++)
                x[i] += of_warp[i][warp];
        }
    }
}

template <int WARPS>
__device__ inline float group_sum(float x) {
    float one[1] = {x};
    group_sums<WARPS>(one);
    return one[0];
}

template <int WARPS>
__device__ inline float group_max(float x) {
    x = warp_max(x);
    if constexpr (WARPS > 1) {
        __shared__ float of_warp[WARPS];
        __syncthreads();
        if (threadIdx.x % WARP == 0)
            of_warp[threadIdx.x / WARP] = x;
        __syncthreads();
        for (int warp = 0; warp < WARPS; warp++)
            x = fmaxf(x, of_warp[warp]);
    }
    return x;
}

/* --- dropout of rows: a group makes the random bytes of its row in shared memory, each counter once --- */

/* Where a row stands in the random stream: the element of its first column in a sequence. */
struct place {
    int64_t sequence, element;
};

/* Room for a row, which may begin inside the 16 bytes of a counter. */
template <int N, int ITEMS, int WARPS>
struct row_bytes {
    uint4 blocks[N * ITEMS * WARPS * WARP / 16 + 1];
};

/* Fills `room` with the bytes of `count` elements and returns that of the first. All threads of the block call it. */
template <int N, int ITEMS, int WARPS>
__device__ inline const uint8_t *make_bytes(row_bytes<N, ITEMS, WARPS> &room, const dropout &drop, const place &at,
                                            int count) {
    int skip = (int)(at.element % 16);
    uint32_t first = (uint32_t)(at.element / 16);
    group_barrier<WARPS>(); /* the bytes of the last row were read */
    for (int block = threadIdx.x % (WARPS * WARP); block * 16 < skip + count; block += WARPS * WARP)
        room.blocks[block] = random_bytes(drop, at.sequence, first + (uint32_t)block);
    group_barrier<WARPS>();
    return reinterpret_cast<const uint8_t *>(room.blocks) + skip;
}

/* x = kept ? scale x : 0 */
__device__ inline float dropped(const dropout &drop, uint32_t byte, float x) {
    return (int)byte >= drop.threshold ? x * drop.scale : 0.0f;
}

/* An item whose bytes begin at a multiple of its size, as those of packed rows do. */
template <int N>
__device__ inline void drop_item(const dropout &drop, const uint8_t *bytes, float (&x)[N]) {
    if constexpr (N == ITEM) {
        uint2 words = *reinterpret_cast<const uint2 *>(bytes);
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = dropped(drop, (i < 4 ? words.x : words.y) >> 8 * (i % 4) & 0xFF, x[i]);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = dropped(drop, bytes[i], x[i]);
    }
}

/* Tokens' places in the random stream, and what is needed to find them. */
struct token_places {
    const int32_t *token_sequence, *starts;
    const int64_t *numbers;
    int64_t hidden;

    __device__ place of(int64_t token) const {
        int sequence = token_sequence[token];
        return {numbers[sequence], (token - starts[sequence]) * hidden};
    }
};

/* make_bytes for a token's row of `columns` elements, of which a row beyond the last has none; NULL if nothing is
 * dropped. */
template <int N, int ITEMS, int WARPS>
__device__ inline const uint8_t *token_bytes(row_bytes<N, ITEMS, WARPS> &room, const dropout &drop,
                                             const token_places &places, int64_t token, int columns) {
    if (drop.threshold == 0)
        return nullptr;
    place at = {0, 0};
    if (columns > 0)
        at = places.of(token);
    return make_bytes(room, drop, at, columns);
}

inline token_places token_places_of(const struct op_call *call) {
    const struct ragged *ragged = call->ragged;
    return {ragged->token_sequence, ragged->starts, ragged->sequence_numbers, call->hidden};
}

#endif
