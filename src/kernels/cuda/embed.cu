/* Rows moved by an index, and the gradient of an embedding table. */
#include "kernels/cuda/items.cuh"

constexpr int ROW_THREADS = 128;

/* y[r] = table[index[r]], a block a row: each row read and written once; zeros behind the true rows. */
template <typename T, int N>
__global__ void gather_kernel(const T *table, const int32_t *index, int64_t rows, int64_t columns, T *y) {
    int64_t row = blockIdx.x;
    const T *from = row < rows ? table + index[row] * columns : nullptr;
    for (int64_t column = (int64_t)threadIdx.x * N; column < columns; column += ROW_THREADS * N) {
        float x[N];
        fill(x, 0);
        if (from)
            load_item(x, from + column);
        store_item(y + row * columns + column, x);
    }
}

/* dx[index[m]] = dy[m], or added to what is there. A block a row of dy; the index has no row twice. */
template <typename T, int N>
__global__ void scatter_kernel(const T *dy, const int32_t *index, int64_t columns, bool add, T *dx) {
    int64_t row = blockIdx.x;
    T *to = dx + index[row] * columns;
    for (int64_t column = (int64_t)threadIdx.x * N; column < columns; column += ROW_THREADS * N) {
        float x[N], there[N];
        load_item(x, dy + row * columns + column);
        if (add) {
            load_item(there, to + column);
#pragma unroll
            for (int i = 0; i < N; i++)
                x[i] += there[i];
        }
        store_item(to + column, x);
    }
}

/* --- the gradient of a table: places in order of their index, so that those of one table row are a run. WINDOW places
 * are one block's. A run that lies within a window goes to the table at once; of one that goes on in the next windows,
 * each window leaves its part in the workspace, and a second kernel adds them: a row of ten thousand tokens (a token
 * type) is summed by many blocks, and in the same order whatever the device. --- */

constexpr int WINDOW = 32, BATCH = 4;

/* What windows leave: the sum of a run that began before the window, [0], and of one that begins in it and goes on,
 * [1]; and the table rows of those, or -1. */
struct window_parts {
    float *sums;   /* [windows][2][columns] */
    int32_t *rows; /* [2][windows] */
    int64_t windows, columns;

    __device__ float *sum(int part, int64_t window) const { return sums + (2 * window + part) * columns; }
    __device__ int32_t &row(int part, int64_t window) const { return rows[part * windows + window]; }
};

template <int N>
__device__ inline void add_to(float *to, const float (&x)[N]) {
    float there[N];
    load_item(there, to);
#pragma unroll
    for (int i = 0; i < N; i++)
        there[i] += x[i];
    store_item(to, there);
}

/* A block a window and a band of columns, a thread N columns. Reads dy[r, columns] once; loads of BATCH rows are under
 * way together. Each run adds its places in their order. */
template <typename T, int N>
__global__ void __launch_bounds__(ROW_THREADS)
    window_sums_kernel(const T *dy, const int32_t *order, const int32_t *index, int64_t places, float *table,
                       const window_parts parts) {
    __shared__ int32_t tokens[WINDOW], rows[WINDOW + 2]; /* rows: that before the window, those in it, that behind it */
    int64_t window = blockIdx.x, begin = window * WINDOW,
            column = ((int64_t)blockIdx.y * ROW_THREADS + threadIdx.x) * N;
    int count = (int)(places - begin < WINDOW ? places - begin : WINDOW), place = (int)threadIdx.x - 1;
    if (place <= count) {
        int64_t at = begin + place;
        int32_t token = at >= 0 && at < places ? order[at] : -1;
        rows[place + 1] = token >= 0 ? index[token] : -1;
        if (place >= 0 && place < count)
            tokens[place] = token;
    }
    __syncthreads();
    bool from_before = rows[1] == rows[0], goes_on = rows[count + 1] == rows[count];
    bool all_one = rows[1] == rows[count]; /* sorted */
    if (threadIdx.x == 0 && blockIdx.y == 0) {
        parts.row(0, window) = from_before ? rows[1] : -1;
        parts.row(1, window) = goes_on && !(from_before && all_one) ? rows[count] : -1;
    }
    if (column >= parts.columns)
        return;
    float sum[N];
    fill(sum, 0);
    for (int first = 0; first < count; first += BATCH) {
        float x[BATCH][N];
#pragma unroll
        for (int b = 0; b < BATCH; b++) /* beyond the last it is read again, and not added */
            load_item(x[b], dy + tokens[min(first + b, count - 1)] * parts.columns + column);
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            int at = first + b;
            if (at >= count)
                break;
#pragma unroll
            for (int i = 0; i < N; i++)
                sum[i] += x[b][i];
            int32_t row = rows[at + 1];
            bool last = at + 1 == count;
            if (!last && rows[at + 2] == row)
                continue;
            if (from_before && row == rows[0])
                store_item(parts.sum(0, window) + column, sum);
            else if (last && goes_on)
                store_item(parts.sum(1, window) + column, sum);
            else
                add_to(table + row * parts.columns + column, sum);
            fill(sum, 0);
        }
    }
}

constexpr int JOINERS = 8; /* warps that share the parts of a run */

/* If a run begins in window blockIdx.x and goes on: adds up its parts. Warp w takes those of windows w, w + 8, … after
 * the first; then the warps' sums are added in order. A block also takes a band of 32 N columns. */
template <int N>
__global__ void __launch_bounds__(JOINERS *WARP) join_windows_kernel(const window_parts parts, float *table) {
    __shared__ float of_warp[JOINERS][WARP * N];
    __shared__ int end; /* of the run: the first window that has no part of it */
    int64_t window = blockIdx.x, column = ((int64_t)blockIdx.y * WARP + threadIdx.x % WARP) * N;
    int32_t row = parts.row(1, window);
    if (row < 0)
        return;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (threadIdx.x == 0)
        end = (int)parts.windows;
    __syncthreads();
    for (int64_t at = window + 1 + threadIdx.x; at < parts.windows; at += JOINERS * WARP)
        if (parts.row(0, at) != row) {
            atomicMin(&end, (int)at);
            break;
        }
    __syncthreads();
    float sum[N];
    fill(sum, 0);
    if (column < parts.columns) {
        if (warp == 0)
            load_item(sum, parts.sum(1, window) + column);
#pragma unroll 4
        for (int at = (int)window + 1 + warp; at < end; at += JOINERS) {
            float x[N];
            load_item(x, parts.sum(0, at) + column);
#pragma unroll
            for (int i = 0; i < N; i++)
                sum[i] += x[i];
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        of_warp[warp][lane * N + i] = sum[i];
    __syncthreads();
    if (warp > 0 || column >= parts.columns)
        return;
    for (int other = 1; other < JOINERS; other++)
#pragma unroll
        for (int i = 0; i < N; i++)
            sum[i] += of_warp[other][lane * N + i];
    add_to(table + row * parts.columns + column, sum);
}

/* --- launching --- */

extern "C" status cuda_gather(struct cuda *cuda, const struct op_call *call) {
    const struct operand *y = &call->out[0];
    if (y->padded_rows > 0)
        WITH_STORAGE(y->dtype,
                     WITH_ITEMS(rows_packed(call, y->columns),
                                LAUNCH((gather_kernel<T, N>), dim3((unsigned)y->padded_rows), dim3(ROW_THREADS), 0,
                                       cuda_stream(cuda), (const T *)call->in[0].data,
                                       (const int32_t *)call->in[1].data, y->rows, y->columns, (T *)y->data)));
    return OK;
}

static status scatter(struct cuda *cuda, const struct op_call *call, int operand, bool add) {
    const struct operand *dy = &call->in[operand], *dx = &call->out[0];
    if (dy->rows > 0)
        WITH_STORAGE(dy->dtype,
                     WITH_ITEMS(rows_packed(call, dy->columns),
                                LAUNCH((scatter_kernel<T, N>), dim3((unsigned)dy->rows), dim3(ROW_THREADS), 0,
                                       cuda_stream(cuda), (const T *)dy->data,
                                       (const int32_t *)call->in[operand + 1].data, dy->columns, add, (T *)dx->data)));
    return OK;
}

static status set_zero(struct cuda *cuda, const struct operand *operand) {
    CUDA_TRY(cudaMemsetAsync(operand->data, 0,
                             (size_t)(operand->padded_rows * operand->columns) * dtype_size(operand->dtype),
                             cuda_stream(cuda)));
    return OK;
}

extern "C" status cuda_scatter_rows(struct cuda *cuda, const struct op_call *call) {
    TRY(set_zero(cuda, &call->out[0]));
    return scatter(cuda, call, 0, false);
}

extern "C" status cuda_scatter_two(struct cuda *cuda, const struct op_call *call) {
    TRY(set_zero(cuda, &call->out[0]));
    TRY(scatter(cuda, call, 0, false));
    return scatter(cuda, call, 2, true); /* a row may be in both */
}

extern "C" status cuda_embed_dw(struct cuda *cuda, const struct op_call *call) {
    const struct operand *dy = &call->in[0], *table = &call->out[0];
    const int32_t *order = (const int32_t *)call->in[1].data, *index = (const int32_t *)call->in[2].data;
    int64_t columns = dy->columns, windows = ceil_div(dy->rows, WINDOW);
    if (!call->accumulate)
        TRY(set_zero(cuda, table));
    if (windows == 0)
        return OK;
    window_parts parts = {(float *)cuda_workspace(cuda), nullptr, windows, columns};
    parts.rows = (int32_t *)(parts.sums + 2 * windows * columns);
    if (2 * windows * (columns + 1) * (int64_t)sizeof *parts.sums > CUDA_WORKSPACE_BYTES)
        return failed("embed_dw: %lld tokens of %lld do not fit the workspace: lower train.micro_batch",
                      (long long)dy->rows, (long long)columns);
    float *sums = (float *)table->data;
    WITH_STORAGE(dy->dtype, WITH_ITEMS(rows_packed(call, columns), {
                     dim3 grid((unsigned)windows, (unsigned)ceil_div(columns, ROW_THREADS * N));
                     LAUNCH((window_sums_kernel<T, N>), grid, dim3(ROW_THREADS), 0, cuda_stream(cuda),
                            (const T *)dy->data, order, index, dy->rows, sums, parts);
                     grid.y = (unsigned)ceil_div(columns, WARP * N);
                     LAUNCH((join_windows_kernel<N>), grid, dim3(JOINERS * WARP), 0, cuda_stream(cuda), parts, sums);
                 }));
    return OK;
}
