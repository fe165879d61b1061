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
 * each window leaves its part in the workspace, and a second kernel adds them in order: a row of ten thousand tokens (a
 * token type) is summed by many blocks, and in the same order whatever the device. --- */

constexpr int WINDOW = 64;

/* What a window leaves: part 0 of a run that began before it, part 1 of one that begins in it and goes on. */
__device__ inline float *part_of(float *parts, int64_t window, int part, int64_t columns) {
    return parts + (2 * window + part) * columns;
}

__device__ inline int32_t index_at(const int32_t *order, const int32_t *index, int64_t place) {
    return index[order[place]];
}

/* dy[r, columns] is read once. A block a window and a band of columns. */
template <typename T, int N>
__global__ void __launch_bounds__(ROW_THREADS)
    window_sums_kernel(const T *dy, const int32_t *order, const int32_t *index, int64_t places, int64_t columns,
                       float *table, float *parts) {
    int64_t window = blockIdx.x, begin = window * WINDOW, end = begin + WINDOW < places ? begin + WINDOW : places;
    int64_t column = ((int64_t)blockIdx.y * ROW_THREADS + threadIdx.x) * N;
    if (column >= columns)
        return;
    int32_t before = begin > 0 ? index_at(order, index, begin - 1) : -1;
    int32_t after = end < places ? index_at(order, index, end) : -1;
    for (int64_t at = begin; at < end;) {
        int32_t row = index_at(order, index, at);
        float sum[N], x[N];
        fill(sum, 0);
        bool first_of_window = at == begin;
        do {
            load_item(x, dy + order[at] * columns + column);
#pragma unroll
            for (int i = 0; i < N; i++)
                sum[i] += x[i];
            at++;
        } while (at < end && index_at(order, index, at) == row);
        if (first_of_window && row == before) {
            store_item(part_of(parts, window, 0, columns) + column, sum);
        } else if (at == end && row == after) {
            store_item(part_of(parts, window, 1, columns) + column, sum);
        } else {
            load_item(x, table + row * columns + column);
#pragma unroll
            for (int i = 0; i < N; i++)
                x[i] += sum[i];
            store_item(table + row * columns + column, x);
        }
    }
}

/* Adds up the parts of the run that begins in a window and goes on, if there is one. A block a window and a band. */
template <int N>
__global__ void __launch_bounds__(ROW_THREADS)
    join_windows_kernel(const int32_t *order, const int32_t *index, int64_t places, int64_t columns, float *parts,
                        float *table) {
    int64_t window = blockIdx.x, begin = window * WINDOW, end = begin + WINDOW;
    int64_t column = ((int64_t)blockIdx.y * ROW_THREADS + threadIdx.x) * N;
    if (column >= columns || end >= places)
        return;
    int32_t row = index_at(order, index, end - 1);
    bool goes_on = index_at(order, index, end) == row;
    bool began_before = begin > 0 && index_at(order, index, begin - 1) == row; /* then it fills the window */
    if (!goes_on || began_before)
        return;
    float sum[N], x[N];
    load_item(sum, part_of(parts, window, 1, columns) + column);
    for (int64_t next = window + 1; next * WINDOW < places && index_at(order, index, next * WINDOW) == row; next++) {
        load_item(x, part_of(parts, next, 0, columns) + column);
#pragma unroll
        for (int i = 0; i < N; i++)
            sum[i] += x[i];
    }
    load_item(x, table + row * columns + column);
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] += sum[i];
    store_item(table + row * columns + column, x);
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
    float *parts = (float *)cuda_workspace(cuda), *sums = (float *)table->data;
    if (!call->accumulate)
        TRY(set_zero(cuda, table));
    if (2 * windows * columns * (int64_t)sizeof *parts > CUDA_WORKSPACE_BYTES)
        return failed("embed_dw: %lld tokens of %lld do not fit the workspace: lower train.micro_batch",
                      (long long)dy->rows, (long long)columns);
    if (windows == 0)
        return OK;
    WITH_STORAGE(dy->dtype, WITH_ITEMS(rows_packed(call, columns), {
                     dim3 grid((unsigned)windows, (unsigned)ceil_div(columns, ROW_THREADS * N));
                     LAUNCH((window_sums_kernel<T, N>), grid, dim3(ROW_THREADS), 0, cuda_stream(cuda),
                            (const T *)dy->data, order, index, dy->rows, columns, sums, parts);
                     LAUNCH((join_windows_kernel<N>), grid, dim3(ROW_THREADS), 0, cuda_stream(cuda), order, index,
                            dy->rows, columns, parts, sums);
                 }));
    return OK;
}
