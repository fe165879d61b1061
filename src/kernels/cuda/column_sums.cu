/* Gradients of vectors: sums over rows, some of them of what the same pass makes. A thread keeps its columns, 8 or 1,
 * and walks down the rows; see column_sums.cuh for how blocks' sums come together. */
#include "kernels/cuda/column_sums.cuh"

#include "kernels/cuda/activation.cuh"

/* --- adding up what blocks left --- */

constexpr int ADDERS = 32; /* threads that share the blocks of a column */

struct sum_outputs {
    float *data[3];
};

/* A block adds 32 columns of sum blockIdx.y: thread row r takes blocks r, r + 32, …; then the 32 results in order.
 * Reads every partial sum once, writes (and with `accumulate` reads) the columns. */
__global__ void __launch_bounds__(WARP *ADDERS)
    add_partials_kernel(const partials from, const sum_outputs out, bool accumulate) {
    __shared__ float of_row[ADDERS][WARP];
    int64_t column = (int64_t)blockIdx.x * WARP + threadIdx.x;
    float sum = 0;
    if (column < from.columns)
        for (int64_t block = threadIdx.y; block < from.blocks; block += ADDERS)
            sum += from.of(blockIdx.y, block)[column];
    of_row[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || column >= from.columns)
        return;
    float *to = (blockIdx.y == 0 ? out.data[0] : blockIdx.y == 1 ? out.data[1] : out.data[2]) + column;
    sum = accumulate ? *to : 0;
    for (int row = 0; row < ADDERS; row++)
        sum += of_row[row][threadIdx.x];
    *to = sum;
}

status partials_new(struct cuda *cuda, const struct op_call *call, int sums, int64_t blocks, int64_t columns,
                    partials *out) {
    int64_t bytes = sums * blocks * columns * (int64_t)sizeof(float);
    if (bytes > CUDA_WORKSPACE_BYTES)
        return failed("%s: sums of %lld columns need %lld bytes of workspace, there are %d", op_info(call->op)->name,
                      (long long)columns, (long long)bytes, CUDA_WORKSPACE_BYTES);
    *out = {(float *)cuda_workspace(cuda), blocks, columns};
    return OK;
}

status add_partials(struct cuda *cuda, const struct op_call *call, const partials &from, int sums,
                    const struct operand *out) {
    sum_outputs outputs = {};
    for (int s = 0; s < sums; s++)
        outputs.data[s] = (float *)out[s].data;
    dim3 grid((unsigned)ceil_div(from.columns, WARP), (unsigned)sums);
    LAUNCH(add_partials_kernel, grid, dim3(WARP, ADDERS), 0, cuda_stream(cuda), from, outputs, call->accumulate);
    return OK;
}

/* --- bias_dw, baib --- */

template <typename T>
struct summed {
    const T *dy[3];
};

/* The columns of up to three tensors: reads each element once. */
template <typename T, int N>
__global__ void __launch_bounds__(TILE_WARPS *WARP)
    column_sums_kernel(const summed<T> parts, int64_t rows, int64_t columns, const partials to) {
    tile my = my_tile<N>();
    const T *dy = of_part(parts.dy);
    float sums[1][N];
    fill(sums[0], 0);
    if (my.column < columns)
        for (int64_t row = my.row; row < rows; row += my.step) {
            float value[N];
            load_item(value, dy + row * columns + my.column);
#pragma unroll
            for (int i = 0; i < N; i++)
                sums[0][i] += value[i];
        }
    store_tile_sums<N, 1>(sums, to, blockIdx.z);
}

static status sum_columns(struct cuda *cuda, const struct op_call *call, int parts) {
    const struct operand *dy = &call->in[0];
    partials to;
    WITH_STORAGE(dy->dtype, {
        summed<T> all = {};
        for (int part = 0; part < parts; part++)
            all.dy[part] = (const T *)call->in[part].data;
        WITH_ITEMS(rows_packed(call, dy->columns), {
            dim3 grid = tile_grid(cuda, dy->rows, dy->columns, N, parts);
            TRY(partials_new(cuda, call, parts, grid.y, dy->columns, &to));
            LAUNCH((column_sums_kernel<T, N>), grid, tile_block(), 0, cuda_stream(cuda), all, dy->rows, dy->columns,
                   to);
        });
    });
    return add_partials(cuda, call, to, parts, call->out);
}

extern "C" status cuda_bias_dw(struct cuda *cuda, const struct op_call *call) { return sum_columns(cuda, call, 1); }

extern "C" status cuda_baib(struct cuda *cuda, const struct op_call *call) { return sum_columns(cuda, call, 3); }

/* --- layernorm_dw, ebsb --- */

/* Sums of dy xhat and of dy: reads dy and x once, and each row's mean and rstd. */
template <typename T, int N>
__global__ void __launch_bounds__(TILE_WARPS *WARP)
    layernorm_dw_kernel(const T *dy, const T *x, const float *mean, const float *rstd, int64_t rows, int64_t columns,
                        const partials to) {
    tile my = my_tile<N>();
    float sums[2][N];
    fill(sums[0], 0);
    fill(sums[1], 0);
    if (my.column < columns)
        for (int64_t row = my.row; row < rows; row += my.step) {
            int64_t at = row * columns + my.column;
            float d[N], value[N], center = mean[row], scale = rstd[row];
            load_item(d, dy + at);
            load_item(value, x + at);
#pragma unroll
            for (int i = 0; i < N; i++) {
                sums[0][i] += d[i] * ((value[i] - center) * scale);
                sums[1][i] += d[i];
            }
        }
    store_tile_sums<N, 2>(sums, to, 0);
}

extern "C" status cuda_layernorm_dw(struct cuda *cuda, const struct op_call *call) {
    const struct operand *dy = &call->in[0];
    partials to;
    WITH_STORAGE(dy->dtype, WITH_ITEMS(rows_packed(call, dy->columns), {
                     dim3 grid = tile_grid(cuda, dy->rows, dy->columns, N, 1);
                     TRY(partials_new(cuda, call, 2, grid.y, dy->columns, &to));
                     LAUNCH((layernorm_dw_kernel<T, N>), grid, tile_block(), 0, cuda_stream(cuda), (const T *)dy->data,
                            (const T *)call->in[1].data, (const float *)call->in[2].data,
                            (const float *)call->in[3].data, dy->rows, dy->columns, to);
                 }));
    return add_partials(cuda, call, to, 2, call->out);
}

template <typename T>
struct ebsb_operands {
    const T *a, *b, *x, *last;
    const float *mean, *rstd;
    T *dy;
    int64_t rows, padded_rows, columns;
};

/* dy = a + b; sums of dy xhat, of dy, and of `last`. Reads 4 and writes 1. */
template <typename T, int N>
__global__ void __launch_bounds__(TILE_WARPS *WARP) ebsb_kernel(const ebsb_operands<T> o, const partials to) {
    tile my = my_tile<N>();
    float sums[3][N];
    for (int s = 0; s < 3; s++)
        fill(sums[s], 0);
    if (my.column < o.columns)
        for (int64_t row = my.row; row < o.padded_rows; row += my.step) {
            int64_t at = row * o.columns + my.column;
            float d[N], other[N], value[N], last[N];
            if (row >= o.rows) {
                store_zeros<T, N>(o.dy + at);
                continue;
            }
            float center = o.mean[row], scale = o.rstd[row];
            load_item(d, o.a + at);
            load_item(other, o.b + at);
            load_item(value, o.x + at);
            load_item(last, o.last + at);
#pragma unroll
            for (int i = 0; i < N; i++) {
                d[i] += other[i];
                sums[0][i] += d[i] * ((value[i] - center) * scale);
                sums[1][i] += d[i];
                sums[2][i] += last[i];
            }
            store_item(o.dy + at, d);
        }
    store_tile_sums<N, 3>(sums, to, 0);
}

extern "C" status cuda_ebsb(struct cuda *cuda, const struct op_call *call) {
    const struct operand *in = call->in, *dy = &call->out[0];
    partials to;
    WITH_STORAGE(dy->dtype, {
        ebsb_operands<T> o = {(const T *)in[0].data,
                              (const T *)in[1].data,
                              (const T *)in[2].data,
                              (const T *)in[5].data,
                              (const float *)in[3].data,
                              (const float *)in[4].data,
                              (T *)dy->data,
                              dy->rows,
                              dy->padded_rows,
                              dy->columns};
        WITH_ITEMS(rows_packed(call, dy->columns), {
            dim3 grid = tile_grid(cuda, dy->padded_rows, dy->columns, N, 1);
            TRY(partials_new(cuda, call, 3, grid.y, dy->columns, &to));
            LAUNCH((ebsb_kernel<T, N>), grid, tile_block(), 0, cuda_stream(cuda), o, to);
        });
    });
    return add_partials(cuda, call, to, 3, call->out + 1);
}

/* --- bdrb --- */

/* dx = dy act'(h) and its sums: reads 2 and writes 1; dx may be dy. */
template <typename T, int N>
__global__ void __launch_bounds__(TILE_WARPS *WARP)
    act_dx_sums_kernel(enum activation act, const T *h, const T *dy, T *dx, int64_t rows, int64_t padded_rows,
                       int64_t columns, const partials to) {
    tile my = my_tile<N>();
    float sums[1][N];
    fill(sums[0], 0);
    if (my.column < columns)
        for (int64_t row = my.row; row < padded_rows; row += my.step) {
            int64_t at = row * columns + my.column;
            float value[N], d[N];
            if (row >= rows) {
                store_zeros<T, N>(dx + at);
                continue;
            }
            load_item(value, h + at);
            load_item(d, dy + at);
            activation_gradient(act, value, d);
#pragma unroll
            for (int i = 0; i < N; i++)
                sums[0][i] += d[i];
            store_item(dx + at, d);
        }
    store_tile_sums<N, 1>(sums, to, 0);
}

extern "C" status cuda_bdrb(struct cuda *cuda, const struct op_call *call) {
    const struct operand *dx = &call->out[0];
    partials to;
    WITH_STORAGE(dx->dtype, WITH_ITEMS(rows_packed(call, dx->columns), {
                     dim3 grid = tile_grid(cuda, dx->padded_rows, dx->columns, N, 1);
                     TRY(partials_new(cuda, call, 1, grid.y, dx->columns, &to));
                     LAUNCH((act_dx_sums_kernel<T, N>), grid, tile_block(), 0, cuda_stream(cuda), call->attr->act,
                            (const T *)call->in[0].data, (const T *)call->in[1].data, (T *)dx->data, dx->rows,
                            dx->padded_rows, dx->columns, to);
                 }));
    return add_partials(cuda, call, to, 1, call->out + 1);
}
