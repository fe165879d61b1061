/* How threads share tensors. A thread works on an item at a time: ITEM neighbouring elements, moved by one access of 16
 * bytes (two for floats), or a single element where rows or addresses do not allow packs. */
#ifndef BERTH_KERNELS_CUDA_ITEMS_CUH
#define BERTH_KERNELS_CUDA_ITEMS_CUH

#include <type_traits>

#include "kernels/cuda/device.cuh"

constexpr int ITEM = 8;

/* Run `...` with N being the elements of an item. */
#define WITH_ITEMS(packed, ...)     \
    do {                            \
        if (packed) {               \
            constexpr int N = ITEM; \
            __VA_ARGS__;            \
        } else {                    \
            constexpr int N = 1;    \
            __VA_ARGS__;            \
        }                           \
    } while (0)

/* Do all operands of a call begin where packs may? */
inline bool operands_aligned(const struct op_call *call) {
    const struct op_info *info = op_info(call->op);
    uintptr_t bits = 0;
    for (int i = 0; i < info->inputs; i++)
        bits |= (uintptr_t)call->in[i].data;
    for (int i = 0; i < info->outputs; i++)
        bits |= (uintptr_t)call->out[i].data;
    return bits % 16 == 0;
}

/* May rows of `columns` elements of all operands of a call be walked by packs? */
inline bool rows_packed(const struct op_call *call, int64_t columns) {
    return columns % ITEM == 0 && operands_aligned(call);
}

/* --- moving items; uint8_t is the storage of dropout's masks --- */

template <>
__device__ inline uint8_t from_float<uint8_t>(float x) {
    return (uint8_t)x;
}

template <typename T, int N>
__device__ inline void load_item(float (&to)[N], const T *from) {
    constexpr int STEP = N < PACK<T> ? N : PACK<T>;
#pragma unroll
    for (int first = 0; first < N; first += STEP) {
        float part[STEP];
        load(part, from + first);
#pragma unroll
        for (int i = 0; i < STEP; i++)
            to[first + i] = part[i];
    }
}

template <typename T, int N>
__device__ inline void store_item(T *to, const float (&from)[N]) {
    constexpr int STEP = N < PACK<T> ? N : PACK<T>;
#pragma unroll
    for (int first = 0; first < N; first += STEP) {
        float part[STEP];
#pragma unroll
        for (int i = 0; i < STEP; i++)
            part[i] = from[first + i];
        store(to + first, part);
    }
}

template <int N>
__device__ inline void fill(float (&x)[N], float value) {
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = value;
}

template <typename T, int N>
__device__ inline void store_zeros(T *to) {
    float zeros[N];
    fill(zeros, 0);
    store_item(to, zeros);
}

/* A parameter of this type takes no part in finding I. */
template <typename I>
using same = std::common_type_t<I>;

/* Elements at, at + 1, … of `from`, of which those in [begin, end) are read; the others are `outside`. Where N is not
 * 1, `at` must be a multiple of it. */
template <typename T, int N, typename I>
__device__ inline void load_part(float (&to)[N], const T *from, I at, same<I> begin, same<I> end, float outside) {
    if (at >= begin && at + N <= end)
        load_item(to, from + at);
    else
#pragma unroll
        for (int i = 0; i < N; i++)
            to[i] = at + i >= begin && at + i < end ? to_float(from[at + i]) : outside;
}

/* The same for writing: only those in [begin, end). */
template <typename T, int N, typename I>
__device__ inline void store_part(T *to, const float (&from)[N], I at, same<I> begin, same<I> end) {
    if (at >= begin && at + N <= end)
        store_item(to + at, from);
    else
#pragma unroll
        for (int i = 0; i < N; i++)
            if (at + i >= begin && at + i < end)
                to[at + i] = from_float<T>(from[i]);
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t at_least_1(int64_t x) { return x > 1 ? x : 1; }

/* Blocks for `work` pieces, one block each; more than `most` a multiprocessor take turns. At least one. */
inline unsigned blocks_for(const struct cuda *cuda, int64_t work, int64_t most) {
    int64_t limit = most * cuda_multiprocessors(cuda);
    return (unsigned)at_least_1(work < limit ? work : limit);
}

/* --- flat: a tensor as one line of elements, whatever its rows --- */

constexpr int FLAT_THREADS = 256, FLAT_BLOCKS = 8; /* of a block; blocks a multiprocessor */

template <int N>
__device__ inline int64_t flat_first() {
    return ((int64_t)blockIdx.x * FLAT_THREADS + threadIdx.x) * N;
}
template <int N>
__device__ inline int64_t flat_step() {
    return (int64_t)gridDim.x * FLAT_THREADS * N;
}
inline dim3 flat_grid(const struct cuda *cuda, int64_t count, int n) {
    return dim3(blocks_for(cuda, ceil_div(count, (int64_t)FLAT_THREADS * n), FLAT_BLOCKS));
}

/* Zeros in the rows from the true count up to the padded one; every thread of a grid of one dimension calls it. */
template <typename T, int N>
__device__ inline void zero_tail(T *y, int64_t rows, int64_t padded_rows, int64_t columns) {
    int64_t step = (int64_t)gridDim.x * blockDim.x * N;
    for (int64_t at = rows * columns + ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N; at < padded_rows * columns;
         at += step)
        store_zeros<T, N>(y + at);
}

/* --- tiles: a thread keeps its N columns and walks down the rows; nothing is divided --- */

constexpr int TILE_WARPS = 8, TILE_BLOCKS = 8; /* of a block, each on another row; blocks a multiprocessor */

/* Column and first row of this thread, and from row to row. A column may lie beyond the last. */
struct tile {
    int64_t column, row, step;
};

template <int N>
__device__ inline tile my_tile() {
    return {((int64_t)blockIdx.x * WARP + threadIdx.x) * N, (int64_t)blockIdx.y * TILE_WARPS + threadIdx.y,
            (int64_t)gridDim.y * TILE_WARPS};
}

inline dim3 tile_block() { return dim3(WARP, TILE_WARPS); }

/* Up to three tensors of one shape are worked on side by side, each by the blocks of one blockIdx.z. (Chosen so, and
 * not by an index, that the array stays where kernels' arguments are.) */
template <typename P>
__device__ inline P of_part(P const (&parts)[3]) {
    return blockIdx.z == 0 ? parts[0] : blockIdx.z == 1 ? parts[1] : parts[2];
}

inline dim3 tile_grid(const struct cuda *cuda, int64_t rows, int64_t columns, int n, int parts) {
    int64_t across = at_least_1(ceil_div(columns, (int64_t)WARP * n)), down = at_least_1(ceil_div(rows, TILE_WARPS));
    int64_t limit = at_least_1((int64_t)TILE_BLOCKS * cuda_multiprocessors(cuda) / (across * parts));
    return dim3((unsigned)across, (unsigned)(down < limit ? down : limit), (unsigned)parts);
}

#endif
