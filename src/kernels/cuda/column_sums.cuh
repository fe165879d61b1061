/* Sums over rows without atomics: every block adds up its rows and leaves a partial sum for each column in the
 * workspace, and a second kernel adds those in a fixed order. The same device gives the same bits every time. */
#ifndef BERTH_KERNELS_CUDA_COLUMN_SUMS_CUH
#define BERTH_KERNELS_CUDA_COLUMN_SUMS_CUH

#include "kernels/cuda/items.cuh"

/* Where the blocks of a kernel leave what they summed: [sums][blocks][columns] floats in the workspace. */
struct partials {
    float *data;
    int64_t blocks, columns;

    __device__ float *of(int64_t sum, int64_t block) const { return data + (sum * blocks + block) * columns; }
};

/* Room for `sums` sums over `blocks` blocks: fails if the workspace has not that much. */
status partials_new(struct cuda *cuda, const struct op_call *call, int sums, int64_t blocks, int64_t columns,
                    partials *out);

/* out[s][columns] = or += the partial sums of sum s, for up to three of them. */
status add_partials(struct cuda *cuda, const struct op_call *call, const partials &from, int sums,
                    const struct operand *out);

/* A block's warps hold sums of the same columns: adds them in order, and stores them as the block's partial sums from
 * sum `first_sum` on. All threads of a tile (items.cuh) call it. */
template <int N, int SUMS>
__device__ inline void store_tile_sums(const float (&sums)[SUMS][N], const partials &to, int64_t first_sum) {
    __shared__ float of_warp[TILE_WARPS][WARP * N];
    int thread = threadIdx.y * WARP + threadIdx.x;
    int64_t column = (int64_t)blockIdx.x * WARP * N + thread;
    for (int s = 0; s < SUMS; s++) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < N; i++)
            of_warp[threadIdx.y][threadIdx.x * N + i] = sums[s][i];
        __syncthreads();
        if (thread < WARP * N && column < to.columns) {
            float sum = 0;
            for (int warp = 0; warp < TILE_WARPS; warp++)
                sum += of_warp[warp][thread];
            to.of(first_sum + s, blockIdx.y)[column] = sum;
        }
    }
}

#endif
