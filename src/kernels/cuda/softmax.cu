/* Softmax over the keys of a query and what stands around it, on ragged matrices [h,e]. A warp a row of up to 1017
 * keys, a block a row of up to 8185. The row stays in registers; see ragged.cuh for where items lie. */
#include "kernels/cuda/ragged.cuh"

constexpr int SOFTMAX_BLOCKS = 16; /* a multiprocessor */

/* Of a row's item: its elements as far as they belong to the row. */
template <typename T, int WARPS, int ITEMS>
__device__ inline void load_row(float (&x)[ITEMS][ITEM], const T *from, const matrix_row &row, float outside) {
#pragma unroll
    for (int item = 0; item < ITEMS; item++) {
        int at = item_column<ITEM, WARPS>(item);
        if (at < row.end)
            load_part(x[item], from + row.aligned, at, row.begin, row.end, outside);
        else
            fill(x[item], outside);
    }
}

template <typename T, int WARPS, int ITEMS>
__device__ inline void store_row(T *to, const float (&x)[ITEMS][ITEM], const matrix_row &row) {
#pragma unroll
    for (int item = 0; item < ITEMS; item++) {
        int at = item_column<ITEM, WARPS>(item);
        if (at < row.end)
            store_part(to + row.aligned, x[item], at, row.begin, row.end);
    }
}

/* x = softmax(x), where elements outside of the row are -infinity and become 0. */
template <int WARPS, int ITEMS>
__device__ inline void softmax_row(float (&x)[ITEMS][ITEM]) {
    float most = -INFINITY, sum = 0;
#pragma unroll
    for (int item = 0; item < ITEMS; item++)
#pragma unroll
        for (int i = 0; i < ITEM; i++)
            most = fmaxf(most, x[item][i]);
    most = group_max<WARPS>(most);
#pragma unroll
    for (int item = 0; item < ITEMS; item++)
#pragma unroll
        for (int i = 0; i < ITEM; i++) {
            x[item][i] = expf(x[item][i] - most);
            sum += x[item][i];
        }
    float inverse = 1.0f / group_sum<WARPS>(sum);
#pragma unroll
    for (int item = 0; item < ITEMS; item++)
#pragma unroll
        for (int i = 0; i < ITEM; i++)
            x[item][i] *= inverse;
}

/* x = scale y (x - sum y x) */
template <int WARPS, int ITEMS>
__device__ inline void softmax_gradient(float (&x)[ITEMS][ITEM], const float (&y)[ITEMS][ITEM], float scale) {
    float dot = 0;
#pragma unroll
    for (int item = 0; item < ITEMS; item++)
#pragma unroll
        for (int i = 0; i < ITEM; i++)
            dot += x[item][i] * y[item][i];
    dot = group_sum<WARPS>(dot);
#pragma unroll
    for (int item = 0; item < ITEMS; item++)
#pragma unroll
        for (int i = 0; i < ITEM; i++)
            x[item][i] = scale * y[item][i] * (x[item][i] - dot);
}

/* Dropout of a row with the bytes of its keys. */
template <int WARPS, int ITEMS>
__device__ inline void drop_matrix_row(const dropout &drop, const uint8_t *bytes, const matrix_row &row,
                                       float (&x)[ITEMS][ITEM]) {
#pragma unroll
    for (int item = 0; item < ITEMS; item++)
#pragma unroll
        for (int i = 0; i < ITEM; i++) {
            int at = item_column<ITEM, WARPS>(item) + i;
            if (at >= row.begin && at < row.end)
                x[item][i] = dropped(drop, bytes[at - row.begin], x[item][i]);
        }
}

/* y = x + mask[key]: reads 1, writes 1; y may be x. A warp a row, of any length. */
template <typename T>
__global__ void __launch_bounds__(ROW_THREADS<1>)
    attn_mask_kernel(const ragged_matrices matrices, const T *x, const float *mask, T *y) {
    for (int64_t first = block_row<1>(); first < matrices.tokens; first += block_step<1>()) {
        matrix_row row = matrix_row_of(matrices, first + my_group<1>(), blockIdx.y);
        const float *row_mask = mask + row.first_key;
        for (int at = item_column<ITEM, 1>(0); at < row.end; at += ITEM * WARP) {
            float value[ITEM];
            load_part(value, x + row.aligned, at, row.begin, row.end, 0);
#pragma unroll
            for (int i = 0; i < ITEM; i++)
                if (at + i >= row.begin && at + i < row.end)
                    value[i] += row_mask[at + i - row.begin];
            store_part(y + row.aligned, value, at, row.begin, row.end);
        }
    }
}

/* y = softmax(x): reads 1, writes 1; y may be x. */
template <typename T, int ITEMS, int WARPS>
__global__ void __launch_bounds__(ROW_THREADS<WARPS>) softmax_kernel(const ragged_matrices matrices, const T *x, T *y) {
    for (int64_t first = block_row<WARPS>(); first < matrices.tokens; first += block_step<WARPS>()) {
        matrix_row row = matrix_row_of(matrices, first + my_group<WARPS>(), blockIdx.y);
        float value[ITEMS][ITEM];
        load_row<T, WARPS>(value, x, row, -INFINITY);
        softmax_row<WARPS>(value);
        store_row<T, WARPS>(y, value, row);
    }
}

/* dx = y (dy - sum y dy): reads 2, writes 1; dx may be dy. */
template <typename T, int ITEMS, int WARPS>
__global__ void __launch_bounds__(ROW_THREADS<WARPS>)
    softmax_dx_kernel(const ragged_matrices matrices, const T *dy, const T *y, T *dx) {
    for (int64_t first = block_row<WARPS>(); first < matrices.tokens; first += block_step<WARPS>()) {
        matrix_row row = matrix_row_of(matrices, first + my_group<WARPS>(), blockIdx.y);
        float d[ITEMS][ITEM], value[ITEMS][ITEM];
        load_row<T, WARPS>(d, dy, row, 0);
        load_row<T, WARPS>(value, y, row, 0);
        softmax_gradient<WARPS>(d, value, 1.0f);
        store_row<T, WARPS>(dx, d, row);
    }
}

/* p = softmax(scale x + mask), d = dropout(p): reads 1, writes 2; p may be x. */
template <typename T, int ITEMS, int WARPS>
__global__ void __launch_bounds__(ROW_THREADS<WARPS>)
    sm_kernel(const ragged_matrices matrices, const dropout drop, float scale, const T *x, const float *mask, T *p,
              T *d) {
    __shared__ row_bytes<ITEM, ITEMS, WARPS> rooms[GROUPS<WARPS>];
    for (int64_t first = block_row<WARPS>(); first < matrices.tokens; first += block_step<WARPS>()) {
        matrix_row row = matrix_row_of(matrices, first + my_group<WARPS>(), blockIdx.y);
        const float *row_mask = mask + row.first_key;
        float value[ITEMS][ITEM];
        load_row<T, WARPS>(value, x, row, -INFINITY);
#pragma unroll
        for (int item = 0; item < ITEMS; item++)
#pragma unroll
            for (int i = 0; i < ITEM; i++) {
                int at = item_column<ITEM, WARPS>(item) + i;
                if (at >= row.begin && at < row.end)
                    value[item][i] = scale * value[item][i] + row_mask[at - row.begin];
            }
        softmax_row<WARPS>(value);
        store_row<T, WARPS>(p, value, row);
        if (drop.threshold > 0) {
            const uint8_t *bytes = make_bytes(rooms[my_group<WARPS>()], drop, row.at, (int)(row.end - row.begin));
            drop_matrix_row<WARPS>(drop, bytes, row, value);
        }
        store_row<T, WARPS>(d, value, row);
    }
}

/* dp = dropout_dx(dd), dx = scale p (dp - sum p dp): reads 2, writes 1; dx may be dd. */
template <typename T, int ITEMS, int WARPS>
__global__ void __launch_bounds__(ROW_THREADS<WARPS>)
    bs_kernel(const ragged_matrices matrices, const dropout drop, float scale, const T *dd, const T *p, T *dx) {
    __shared__ row_bytes<ITEM, ITEMS, WARPS> rooms[GROUPS<WARPS>];
    for (int64_t first = block_row<WARPS>(); first < matrices.tokens; first += block_step<WARPS>()) {
        matrix_row row = matrix_row_of(matrices, first + my_group<WARPS>(), blockIdx.y);
        float d[ITEMS][ITEM], value[ITEMS][ITEM];
        load_row<T, WARPS>(d, dd, row, 0);
        load_row<T, WARPS>(value, p, row, 0);
        if (drop.threshold > 0) {
            const uint8_t *bytes = make_bytes(rooms[my_group<WARPS>()], drop, row.at, (int)(row.end - row.begin));
            drop_matrix_row<WARPS>(drop, bytes, row, d);
        }
        softmax_gradient<WARPS>(d, value, scale);
        store_row<T, WARPS>(dx, d, row);
    }
}

/* --- the operators --- */

/* Launch a kernel of template arguments <T, ITEMS, WARPS> on all rows of the call's matrices. */
#define LAUNCH_ON_ROWS(kernel, ...)                                                                                    \
    do {                                                                                                               \
        TRY(check_matrices(call));                                                                                     \
        if (call->ragged->tokens > 0)                                                                                  \
            WITH_STORAGE(call->out[0].dtype,                                                                           \
                         WITH_PACKED_ROW(matrix_columns(call),                                                         \
                                         LAUNCH((kernel<T, ITEMS, WARPS>),                                             \
                                                matrix_grid<WARPS>(cuda, call, SOFTMAX_BLOCKS), ROW_THREADS<WARPS>, 0, \
                                                cuda_stream(cuda), ragged_matrices_of(call), __VA_ARGS__)));           \
    } while (0)

extern "C" status cuda_attn_mask(struct cuda *cuda, const struct op_call *call) {
    TRY(check_matrices(call));
    if (call->ragged->tokens > 0)
        WITH_STORAGE(call->out[0].dtype,
                     LAUNCH((attn_mask_kernel<T>), matrix_grid<1>(cuda, call, SOFTMAX_BLOCKS), ROW_THREADS<1>, 0,
                            cuda_stream(cuda), ragged_matrices_of(call), (const T *)call->in[0].data,
                            (const float *)call->in[1].data, (T *)call->out[0].data));
    return OK;
}

extern "C" status cuda_softmax(struct cuda *cuda, const struct op_call *call) {
    LAUNCH_ON_ROWS(softmax_kernel, (const T *)call->in[0].data, (T *)call->out[0].data);
    return OK;
}

extern "C" status cuda_softmax_dx(struct cuda *cuda, const struct op_call *call) {
    LAUNCH_ON_ROWS(softmax_dx_kernel, (const T *)call->in[0].data, (const T *)call->in[1].data, (T *)call->out[0].data);
    return OK;
}

extern "C" status cuda_sm(struct cuda *cuda, const struct op_call *call) {
    LAUNCH_ON_ROWS(sm_kernel, dropout_of(call), call->attr->scale, (const T *)call->in[0].data,
                   (const float *)call->in[1].data, (T *)call->out[0].data, (T *)call->out[1].data);
    return OK;
}

extern "C" status cuda_bs(struct cuda *cuda, const struct op_call *call) {
    LAUNCH_ON_ROWS(bs_kernel, dropout_of(call), call->attr->scale, (const T *)call->in[0].data,
                   (const T *)call->in[1].data, (T *)call->out[0].data);
    return OK;
}
