/* Dropout with a mask in memory, as an operator of its own. */
#include "kernels/cuda/ragged.cuh"

/* A warp drops a row in pieces: 512 elements, a counter a lane. */
constexpr int PIECE = 16 * WARP;
using piece_bytes = row_bytes<1, 16, 1>;

/* Elements [begin, end) of x, at `at` in the random stream: y = kept ? scale x : 0, mask = kept. The bytes of a piece
 * are made in shared memory, since its elements need not begin where a counter does. */
template <typename T, int N>
__device__ inline void drop_row(piece_bytes &room, const dropout &drop, place at, const T *x, T *y, uint8_t *mask,
                                int64_t begin, int64_t end) {
    for (; begin < end; begin += PIECE, at.element += PIECE) {
        int64_t piece_end = min(begin + PIECE, end);
        const uint8_t *bytes = make_bytes(room, drop, at, (int)(piece_end - begin));
        for (int64_t item = begin / N * N + threadIdx.x % WARP * N; item < piece_end; item += WARP * N) {
            float value[N], kept[N];
            load_part(value, x, item, begin, piece_end, 0);
#pragma unroll
            for (int i = 0; i < N; i++) {
                bool inside = item + i >= begin && item + i < piece_end;
                uint32_t byte = inside ? bytes[item + i - begin] : 0;
                kept[i] = (int)byte >= drop.threshold;
                value[i] = dropped(drop, byte, value[i]);
            }
            store_part(y, value, item, begin, piece_end);
            store_part(mask, kept, item, begin, piece_end);
        }
    }
}

template <typename T, int N>
__device__ inline void zero_row(T *y, uint8_t *mask, int64_t begin, int64_t end) {
    float zeros[N];
    fill(zeros, 0);
    for (int64_t item = begin / N * N + threadIdx.x % WARP * N; item < end; item += WARP * N) {
        store_part(y, zeros, item, begin, end);
        store_part(mask, zeros, item, begin, end);
    }
}

/* [t,i]: a warp a token. Reads 1, writes 1 and a byte an element; y may be x. */
template <typename T, int N>
__global__ void __launch_bounds__(ROW_THREADS<1>)
    dropout_kernel(const dropout drop, const token_places places, const T *x, T *y, uint8_t *mask, int64_t rows,
                   int64_t padded_rows, int64_t columns) {
    __shared__ piece_bytes rooms[GROUPS<1>];
    for (int64_t row = block_row<1>() + my_group<1>(); row < padded_rows; row += block_step<1>())
        if (row < rows)
            drop_row<T, N>(rooms[my_group<1>()], drop, places.of(row), x, y, mask, row * columns, (row + 1) * columns);
        else
            zero_row<T, N>(y, mask, row * columns, (row + 1) * columns);
}

/* [h,e]: a warp a query of a head. Reads 1, writes 1 and a byte an element; y may be x. */
template <typename T>
__global__ void __launch_bounds__(ROW_THREADS<1>)
    attn_dropout_kernel(const dropout drop, const ragged_matrices matrices, const T *x, T *y, uint8_t *mask) {
    __shared__ piece_bytes rooms[GROUPS<1>];
    for (int64_t token = block_row<1>() + my_group<1>(); token < matrices.tokens; token += block_step<1>()) {
        matrix_row row = matrix_row_of(matrices, token, blockIdx.y);
        drop_row<T, ITEM>(rooms[my_group<1>()], drop, row.at, x, y, mask, row.aligned + row.begin,
                          row.aligned + row.end);
    }
}

constexpr int DROPOUT_BLOCKS = 16; /* a multiprocessor */

extern "C" status cuda_dropout(struct cuda *cuda, const struct op_call *call) {
    const struct operand *y = &call->out[0];
    unsigned grid = blocks_for(cuda, ceil_div(y->padded_rows, GROUPS<1>), DROPOUT_BLOCKS);
    WITH_STORAGE(y->dtype,
                 WITH_ITEMS(operands_aligned(call),
                            LAUNCH((dropout_kernel<T, N>), grid, ROW_THREADS<1>, 0, cuda_stream(cuda), dropout_of(call),
                                   token_places_of(call), (const T *)call->in[0].data, (T *)y->data,
                                   (uint8_t *)call->out[1].data, y->rows, y->padded_rows, y->columns)));
    return OK;
}

extern "C" status cuda_attn_dropout(struct cuda *cuda, const struct op_call *call) {
    const struct operand *y = &call->out[0];
    TRY(check_matrices(call));
    if (call->ragged->tokens == 0)
        return OK;
    WITH_STORAGE(y->dtype, LAUNCH((attn_dropout_kernel<T>), matrix_grid<1>(cuda, call, DROPOUT_BLOCKS), ROW_THREADS<1>,
                                  0, cuda_stream(cuda), dropout_of(call), ragged_matrices_of(call),
                                  (const T *)call->in[0].data, (T *)y->data, (uint8_t *)call->out[1].data));
    return OK;
}
