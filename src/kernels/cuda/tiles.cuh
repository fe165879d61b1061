/* Tiles in shared memory, and a warp's products with them. Matrices are filled from rows of global memory with zeros
 * around them, so that products need not ask where a sequence or a head ends. */
#ifndef BERTH_KERNELS_CUDA_TILES_CUH
#define BERTH_KERNELS_CUDA_TILES_CUH

#include <type_traits>

#include "kernels/cuda/ptx.cuh"

/* ROWS x COLUMNS, row by row. Eight elements behind each row make the rows of an 8x8 matrix start in different banks.
 *
 * As an operand of a product a tile's rows come in blocks of 8. Block b is rows 8b to 8b+7; or, with RUN > 0, row c of
 * it is row RUN (c / 2) + 2b + c % 2 of the tile: then lane t of each group of four, which holds columns 2t and 2t+1 of
 * every block of a product's result, holds the RUN neighbours that begin at RUN t. A gap after each run keeps the rows
 * of a block in different banks. */
template <typename T, int ROWS_, int COLUMNS_, int RUN = 0>
struct tile {
    using type = T;
    static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_, STRIDE = COLUMNS + 8, GAP = RUN > 0 ? 16 : 0;
    static constexpr int ELEMENTS = ROWS * STRIDE + (RUN > 0 ? ROWS / RUN * GAP : 0);
    static_assert(RUN == 0 || ROWS == 4 * RUN, "a run for each lane of a group");
    T *data;

    __device__ T *at(int row, int column) const {
        return data + row * STRIDE + (RUN > 0 ? row / (RUN > 0 ? RUN : 1) * GAP : 0) + column;
    }
    __device__ static int row_of(int block, int c) {
        return RUN > 0 ? RUN * (c / 2) + 2 * block + c % 2 : 8 * block + c;
    }
};

/* The same without runs and without a byte between rows, for kernels that have registers to spare for addresses: packs
 * of 16 bytes change places within a row, so that those of eight rows below each other stand in different banks. Pack c
 * of row r stands at place c ^ r; rows shorter than all banks, LINE of them in one line, at c ^ r / LINE. */
template <typename T, int ROWS_, int COLUMNS_>
struct swizzled_tile {
    using type = T;
    static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_, ELEMENTS = ROWS * COLUMNS, BANKS = 128 / (int)sizeof(T);
    static constexpr int LINE = COLUMNS < BANKS ? BANKS / COLUMNS : 1;
    static constexpr int PLACES = (COLUMNS < BANKS ? COLUMNS : BANKS) / PACK<T>;
    T *data;

    __device__ T *at(int row, int column) const {
        return data + row * COLUMNS + (column ^ row / LINE % PLACES * PACK<T>);
    }
    __device__ static int row_of(int block, int c) { return 8 * block + c; }
};

/* Rows of a matrix in global memory; those from `rows` and columns from `columns` on are zero. */
template <typename T>
struct matrix {
    T *data;
    int64_t stride;
    int rows, columns;
    bool packs; /* all rows begin on 16 bytes, and columns is a whole number of packs */

    __device__ matrix from_row(int row) const { return {data + row * stride, stride, rows - row, columns, packs}; }
    __device__ matrix from_column(int column) const { return {data + column, stride, rows, columns - column, packs}; }
};

/* Tile <- the upper left of the matrix, by all THREADS of the block. Packs are copied asynchronously: commit, wait. */
template <int THREADS, typename TILE, typename T>
__device__ inline void fill(TILE to, const matrix<T> &from) {
    using S = typename TILE::type;
    constexpr int PACKS = TILE::COLUMNS / PACK<S>, STEP = THREADS / PACKS;
    static_assert(THREADS % PACKS == 0 && TILE::ROWS % STEP == 0, "a pack for each thread at a time");
    if (!from.packs) {
#pragma unroll 1
        for (int i = (int)threadIdx.x; i < TILE::ROWS * TILE::COLUMNS; i += THREADS) {
            int row = i / TILE::COLUMNS, column = i % TILE::COLUMNS;
            bool there = row < from.rows && column < from.columns;
            *to.at(row, column) = there ? from.data[row * from.stride + column] : from_float<S>(0);
        }
        return;
    }
    int row = (int)threadIdx.x / PACKS, column = (int)threadIdx.x % PACKS * PACK<S>;
    const S *source = from.data + row * from.stride + column;
#pragma unroll
    for (int i = 0; i < TILE::ROWS; i += STEP) {
        bool there = row + i < from.rows && column < from.columns;
        copy_async<16>(to.at(row + i, column), there ? source : from.data, there);
        source += STEP * from.stride;
    }
}

/* --- fragments; t and g as in ptx.cuh --- */

/* a[16,16] from rows and columns of a tile */
template <typename TILE, typename T>
__device__ inline void read_a(fragment_a<T> &a, TILE from, int row, int column) {
    if constexpr (sizeof(T) == 2) {
        int lane = lane_id();
        load_matrices(a.at, from.at(row + lane % 16, column + lane / 16 * 8));
    } else {
        int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
        for (int i = 0; i < 8; i++)
            a.at[i] = *from.at(row + g + i / 2 % 2 * 8, column + 2 * t + i / 4 * 8 + i % 2);
    }
}

/* a[16,16] from a tile that holds it transposed: a's rows are columns of the tile */
template <typename TILE, typename T>
__device__ inline void read_a_transposed(fragment_a<T> &a, TILE from, int row, int column) {
    if constexpr (sizeof(T) == 2) {
        int lane = lane_id();
        load_matrices_transposed(a.at, from.at(row + lane % 8 + lane / 16 * 8, column + lane / 8 % 2 * 8));
    } else {
        int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
        for (int i = 0; i < 8; i++)
            a.at[i] = *from.at(row + 2 * t + i / 4 * 8 + i % 2, column + g + i / 2 % 2 * 8);
    }
}

/* Two b[16,8]: their columns are the tile's blocks of rows `block` and `block` + 1, their rows 16 of its columns. */
template <typename TILE, typename T>
__device__ inline void read_b(fragment_b<T> (&b)[2], TILE from, int block, int column) {
    if constexpr (sizeof(T) == 2) {
        int lane = lane_id();
        uint32_t words[4];
        load_matrices(words, from.at(TILE::row_of(block + lane / 16, lane % 8), column + lane / 8 % 2 * 8));
#pragma unroll
        for (int i = 0; i < 4; i++)
            b[i / 2].at[i % 2] = words[i];
    } else {
        int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
        for (int i = 0; i < 8; i++)
            b[i / 4].at[i % 4] = *from.at(TILE::row_of(block + i / 4, g), column + 2 * t + i / 2 % 2 * 8 + i % 2);
    }
}

/* Two b[16,8]: their rows are the tile's blocks of rows `block` and `block` + 1, their columns 16 of its columns. */
template <typename TILE, typename T>
__device__ inline void read_b_transposed(fragment_b<T> (&b)[2], TILE from, int block, int column) {
    if constexpr (sizeof(T) == 2) {
        int lane = lane_id();
        uint32_t words[4];
        load_matrices_transposed(words, from.at(TILE::row_of(block + lane / 8 % 2, lane % 8), column + lane / 16 * 8));
#pragma unroll
        for (int i = 0; i < 4; i++)
            b[i / 2].at[i % 2] = words[i];
    } else {
        int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
        for (int i = 0; i < 8; i++)
            b[i / 4].at[i % 4] = *from.at(TILE::row_of(block + i / 2 % 2, 2 * t + i % 2), column + g + i / 4 * 8);
    }
}

template <typename T>
__device__ inline uint32_t word_of(float low, float high) {
    uint32_t word;
    if constexpr (std::is_same<T, __half>::value) {
        __half2 pair = __floats2half2_rn(low, high);
        memcpy(&word, &pair, sizeof word);
    } else {
        __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        memcpy(&word, &pair, sizeof word);
    }
    return word;
}

/* Results c[16,16], two blocks of 8 columns, as the operand a of the next product: lanes hold what they held. */
template <typename T>
__device__ inline fragment_a<T> operand_of(const float (&left)[4], const float (&right)[4]) {
    fragment_a<T> a;
#pragma unroll
    for (int half = 0; half < 2; half++)
        if constexpr (sizeof(T) == 2) {
            a.at[half] = word_of<T>(left[2 * half], left[2 * half + 1]);
            a.at[half + 2] = word_of<T>(right[2 * half], right[2 * half + 1]);
        } else {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                a.at[2 * half + e] = left[2 * half + e];
                a.at[2 * half + e + 4] = right[2 * half + e];
            }
        }
    return a;
}

/* Blocks `block` and `block` + 1 of each of M results. */
template <typename T, int M, int BLOCKS>
__device__ inline void operands_of(fragment_a<T> (&a)[M], const float (&c)[M][BLOCKS][4], int block) {
#pragma unroll
    for (int m = 0; m < M; m++)
        a[m] = operand_of<T>(c[m][block], c[m][block + 1]);
}

/* --- products of a warp: results c[16 M, 8 BLOCKS], M times 16 rows that use each fragment of b together --- */

/* c += a b^T: a are 16 columns, from `column` on, of a matrix; b the tile's blocks of rows from `block` on */
template <int M, int BLOCKS, typename TILE, typename T>
__device__ inline void multiply_rows(float (&c)[M][BLOCKS][4], const fragment_a<T> (&a)[M], TILE tile, int block,
                                     int column) {
#pragma unroll
    for (int i = 0; i < BLOCKS; i += 2) {
        fragment_b<T> b[2];
        read_b(b, tile, block + i, column);
#pragma unroll
        for (int m = 0; m < M; m++) {
            multiply(c[m][i], a[m], b[0]);
            multiply(c[m][i + 1], a[m], b[1]);
        }
    }
}

/* c += a b: the 16 columns of a are the tile's blocks of rows `block`, `block` + 1; b its columns from `column` on */
template <int M, int BLOCKS, typename TILE, typename T>
__device__ inline void multiply_columns(float (&c)[M][BLOCKS][4], const fragment_a<T> (&a)[M], TILE tile, int block,
                                        int column) {
#pragma unroll
    for (int i = 0; i < BLOCKS; i += 2) {
        fragment_b<T> b[2];
        read_b_transposed(b, tile, block, column + 8 * i);
#pragma unroll
        for (int m = 0; m < M; m++) {
            multiply(c[m][i], a[m], b[0]);
            multiply(c[m][i + 1], a[m], b[1]);
        }
    }
}

/* c += a b^T for the whole of a: rows [row, row + 16 M) of a tile that has as many columns as b's */
template <int M, int BLOCKS, typename TILE_A, typename TILE_B>
__device__ inline void multiply_tiles(float (&c)[M][BLOCKS][4], TILE_A tile_a, int row, TILE_B tile_b, int block) {
#pragma unroll
    for (int column = 0; column < TILE_A::COLUMNS; column += 16) {
        fragment_a<typename TILE_A::type> a[M];
#pragma unroll
        for (int m = 0; m < M; m++)
            read_a(a[m], tile_a, row + 16 * m, column);
        multiply_rows(c, a, tile_b, block, column);
    }
}

template <int M, int BLOCKS>
__device__ inline void set_zero(float (&c)[M][BLOCKS][4]) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < BLOCKS; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                c[m][i][e] = 0;
}

template <int M, int BLOCKS>
__device__ inline void scale_by(float (&c)[M][BLOCKS][4], float factor) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < BLOCKS; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                c[m][i][e] *= factor;
}

template <int M, int BLOCKS, typename TILE>
__device__ inline void put(TILE to, int row, int column, const float (&c)[M][BLOCKS][4]) {
    int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < BLOCKS; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float pair[2] = {c[m][i][2 * half], c[m][i][2 * half + 1]};
                store(to.at(row + 16 * m + 8 * half + g, column + 8 * i + 2 * t), pair);
            }
}

/* The upper left of the matrix <- c, by way of the rows and columns of a tile that no other warp uses: lanes hold
 * pairs, but whole packs are written. */
template <int M, int BLOCKS, typename TILE, typename T>
__device__ inline void write_rows(const matrix<T> &to, const float (&c)[M][BLOCKS][4], TILE stage, int row,
                                  int column) {
    constexpr int PACKS = 8 * BLOCKS / PACK<T>, COLUMNS = 8 * BLOCKS;
    __syncwarp();
    put(stage, row, column, c);
    __syncwarp();
    if (to.packs) {
#pragma unroll
        for (int i = lane_id(); i < 16 * M * PACKS; i += WARP) {
            int r = i / PACKS, at = i % PACKS * PACK<T>;
            if (r < to.rows && at < to.columns)
                *reinterpret_cast<pack<T, PACK<T>> *>(to.data + r * to.stride + at) =
                    *reinterpret_cast<const pack<T, PACK<T>> *>(stage.at(row + r, column + at));
        }
    } else {
#pragma unroll 1
        for (int i = lane_id(); i < 16 * M * COLUMNS; i += WARP) {
            int r = i / COLUMNS, at = i % COLUMNS;
            if (r < to.rows && at < to.columns)
                to.data[r * to.stride + at] = *stage.at(row + r, column + at);
        }
    }
}

#endif
