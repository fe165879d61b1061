/* Softmax cross-entropy of long rows (a vocabulary), and sums of losses. */
#include "kernels/cuda/items.cuh"

namespace {

constexpr int THREADS = 256, WARPS = THREADS / WARP;

/* What is known of some of a row's logits: their maximum, the sum of exp(logit - maximum), and where the maximum first
 * stands. */
struct seen {
    float most, sum;
    int first;
};

__device__ inline seen merge(const seen &a, const seen &b) {
    const seen &higher = a.most > b.most || (a.most == b.most && a.first <= b.first) ? a : b;
    const seen &lower = &higher == &a ? b : a;
    if (lower.sum == 0)
        return higher;
    return {higher.most, higher.sum + lower.sum * expf(lower.most - higher.most), higher.first};
}

template <int N>
__device__ inline seen add(seen so_far, const float (&x)[N], int column, int count) {
    seen now = {-INFINITY, 0, column};
#pragma unroll
    for (int i = 0; i < N; i++)
        if (i < count && x[i] > now.most)
            now.most = x[i], now.first = column + i;
#pragma unroll
    for (int i = 0; i < N; i++)
        if (i < count)
            now.sum += expf(x[i] - now.most);
    return merge(so_far, now);
}

/* Of all threads, in thread 0. */
__device__ inline seen block_merge(seen mine) {
    __shared__ seen of_warp[WARPS];
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        seen other = {__shfl_down_sync(ALL_LANES, mine.most, distance), __shfl_down_sync(ALL_LANES, mine.sum, distance),
                      __shfl_down_sync(ALL_LANES, mine.first, distance)};
        if (threadIdx.x % WARP + distance < WARP)
            mine = merge(mine, other);
    }
    if (threadIdx.x % WARP == 0)
        of_warp[threadIdx.x / WARP] = mine;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int w = 1; w < WARPS; w++)
            mine = merge(mine, of_warp[w]);
    return mine;
}

/* lse, loss and hit of logits[rows, columns] over the first `classes` columns: the logits are read once. A block a row;
 * the rows behind the true ones become zero. */
template <typename T, int N>
__global__ void __launch_bounds__(THREADS)
    xent_kernel(const T *logits, const int32_t *labels, int64_t rows, int64_t columns, int classes, float *lse,
                float *loss, int32_t *hit) {
    int64_t row = blockIdx.x;
    if (row >= rows) {
        if (threadIdx.x == 0)
            lse[row] = loss[row] = 0, hit[row] = 0;
        return;
    }
    const T *of_row = logits + row * columns;
    seen mine = {-INFINITY, 0, 0x7FFFFFFF};
    for (int column = (int)threadIdx.x * N; column < classes; column += THREADS * N) {
        float x[N];
        load_item(x, of_row + column);
        mine = add(mine, x, column, classes - column);
    }
    mine = block_merge(mine);
    if (threadIdx.x == 0) {
        float sum = mine.most + logf(mine.sum);
        int label = labels[row];
        lse[row] = sum;
        loss[row] = sum - to_float(of_row[label]);
        hit[row] = mine.first == label;
    }
}

/* dx[rows, columns] = scale (exp(logits - lse) - onehot(label)), 0 from `classes` on and in rows behind the true ones.
 * Reads and writes a logit once; may work in place. A block a row. */
template <typename T, int N>
__global__ void __launch_bounds__(THREADS)
    xent_dx_kernel(const T *logits, const float *lse, const int32_t *labels, const float *scale, int64_t rows,
                   int64_t columns, int classes, T *dx) {
    int64_t row = blockIdx.x;
    bool real = row < rows;
    float sum = real ? lse[row] : 0, factor = *scale;
    int label = real ? labels[row] : -1;
    for (int64_t column = (int64_t)threadIdx.x * N; column < columns; column += THREADS * N) {
        float x[N] = {0};
        if (real) {
            load_item(x, logits + row * columns + column);
#pragma unroll
            for (int i = 0; i < N; i++)
                x[i] = column + i < classes ? factor * (expf(x[i] - sum) - (column + i == label ? 1.0f : 0.0f)) : 0.0f;
        }
        store_item(dx + row * columns + column, x);
    }
}

/* sums[2] = the sums of loss[rows] and hit[rows], or added to what is there. One block, in a fixed order. */
__global__ void __launch_bounds__(THREADS)
    loss_sum_kernel(const float *loss, const int32_t *hit, int64_t rows, bool accumulate, double *sums) {
    __shared__ double of_thread[2][THREADS];
    double losses = 0, hits = 0;
    for (int64_t row = threadIdx.x; row < rows; row += THREADS) {
        losses += loss[row];
        hits += hit[row];
    }
    of_thread[0][threadIdx.x] = losses;
    of_thread[1][threadIdx.x] = hits;
    __syncthreads();
    if (threadIdx.x < 2) {
        double sum = accumulate ? sums[threadIdx.x] : 0;
        for (int t = 0; t < THREADS; t++)
            sum += of_thread[threadIdx.x][t];
        sums[threadIdx.x] = sum;
    }
}

}  // namespace

extern "C" status cuda_xent(struct cuda *cuda, const struct op_call *call) {
    const struct operand *logits = &call->in[0];
    dim3 grid((unsigned)call->out[0].padded_rows), block(THREADS);
    if (grid.x == 0)
        return OK;
    const int32_t *labels = (const int32_t *)call->in[1].data;
    float *lse = (float *)call->out[0].data, *loss = (float *)call->out[1].data;
    int32_t *hit = (int32_t *)call->out[2].data;
    int classes = (int)call->attr->classes;
    WITH_STORAGE(logits->dtype,
                 WITH_ITEMS(rows_packed(call, logits->columns),
                            LAUNCH((xent_kernel<T, N>), grid, block, 0, cuda_stream(cuda), (const T *)logits->data,
                                   labels, logits->rows, logits->columns, classes, lse, loss, hit)));
    return OK;
}

extern "C" status cuda_xent_dx(struct cuda *cuda, const struct op_call *call) {
    const struct operand *logits = &call->in[0];
    dim3 grid((unsigned)call->out[0].padded_rows), block(THREADS);
    if (grid.x == 0)
        return OK;
    const float *lse = (const float *)call->in[1].data, *scale = (const float *)call->in[3].data;
    const int32_t *labels = (const int32_t *)call->in[2].data;
    int classes = (int)call->attr->classes;
    WITH_STORAGE(logits->dtype, WITH_ITEMS(rows_packed(call, logits->columns),
                                           LAUNCH((xent_dx_kernel<T, N>), grid, block, 0, cuda_stream(cuda),
                                                  (const T *)logits->data, lse, labels, scale, logits->rows,
                                                  logits->columns, classes, (T *)call->out[0].data)));
    return OK;
}

extern "C" status cuda_loss_sum(struct cuda *cuda, const struct op_call *call) {
    LAUNCH(loss_sum_kernel, dim3(1), dim3(THREADS), 0, cuda_stream(cuda), (const float *)call->in[0].data,
           (const int32_t *)call->in[1].data, call->in[0].rows, call->accumulate, (double *)call->out[0].data);
    return OK;
}
