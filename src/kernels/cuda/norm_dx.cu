/* LayerNorm backward: dx in one pass over dy and x, and in the same pass the sums over rows that are the gradients of
 * gamma and beta. x hat comes from x and the row's statistics, never by dividing by gamma. */
#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/rows.cuh"

template <typename T>
struct norm_dx_operands {
    const T *dy, *x;
    const float *mean, *rstd, *gamma;
    T *dx, *dropped; /* dropped: dropout_dx(dx) */
    int64_t rows, padded_rows;
    int columns;
    float share; /* 1/columns */
    dropout drop;
    token_places places;
};

/* What is made beside dx. */
enum norm_dx_parts {
    DROP_DY = 1,   /* dy is dropped before all else */
    DROP_DX = 2,   /* a second output: dropout_dx(dx) */
    WITH_SUMS = 4, /* partial sums of dy xhat and of dy */
};

/* With sums, every thread also keeps two for each of its columns. Four items of those are too many for the registers of
 * a multiprocessor that is to hold enough warps: four warps share such a row instead. */
template <int ITEMS, int WARPS, int PARTS>
constexpr bool SPREAD = (PARTS & WITH_SUMS) && ITEMS == 4 && WARPS == 1;

/* Blocks that a multiprocessor holds at once. */
template <int ITEMS, int WARPS>
constexpr int NORM_DX_BLOCKS = WARPS == 1   ? (ITEMS >= 3 ? 3 : 4)
                               : WARPS == 4 ? 6
                                            : (ITEMS == 2 ? 2 : 1);

/* A block's warps hold sums over their rows, of the same columns: adds them in order and stores them. */
template <int N, int ITEMS, int WARPS>
__device__ inline void store_row_sums(const float (&sums)[2][ITEMS][N], const partials &to) {
    if constexpr (WARPS > 1) { /* one group: every column is in one thread */
#pragma unroll
        for (int s = 0; s < 2; s++)
#pragma unroll
            for (int item = 0; item < ITEMS; item++)
                if (item_column<N, WARPS>(item) < to.columns)
#pragma unroll
                    for (int i = 0; i < N; i++)
                        to.of(s, blockIdx.x)[item_column<N, WARPS>(item) + i] = sums[s][item][i];
    } else {
        __shared__ float total[N * ITEMS * WARP];
#pragma unroll
        for (int s = 0; s < 2; s++) {
            for (int group = 0; group < GROUPS<WARPS>; group++) {
                __syncthreads();
                if (group != my_group<WARPS>())
                    continue;
#pragma unroll
                for (int item = 0; item < ITEMS; item++)
#pragma unroll
                    for (int i = 0; i < N; i++) {
                        int column = item_column<N, WARPS>(item) + i;
                        total[column] = (group > 0 ? total[column] : 0) + sums[s][item][i];
                    }
            }
            __syncthreads();
            for (int column = threadIdx.x; column < to.columns; column += ROW_THREADS<WARPS>)
                to.of(s, blockIdx.x)[column] = total[column];
        }
    }
}

/* A group of warps a row, several rows one after another. Reads dy and x, writes dx and, with DROP_DX, dropped: once
 * each. The row's g = gamma dy and x hat stay in registers between the two sums over them and their use. */
template <typename T, int N, int ITEMS, int WARPS, int PARTS>
__global__ void __launch_bounds__(ROW_THREADS<WARPS>, NORM_DX_BLOCKS<ITEMS, WARPS>)
    norm_dx_kernel(const norm_dx_operands<T> o, const partials to) {
    __shared__ row_bytes<N, ITEMS, WARPS> rooms[GROUPS<WARPS>];
    row_bytes<N, ITEMS, WARPS> &room = rooms[my_group<WARPS>()];
    float sums[2][PARTS & WITH_SUMS ? ITEMS : 1][N];
    if constexpr (PARTS & WITH_SUMS)
#pragma unroll
        for (int s = 0; s < 2; s++)
#pragma unroll
            for (int item = 0; item < ITEMS; item++)
                fill(sums[s][item], 0);
    for (int64_t first = block_row<WARPS>(); first < o.rows; first += block_step<WARPS>()) {
        int64_t row = first + my_group<WARPS>();
        int columns = row < o.rows ? o.columns : 0;
        float g[ITEMS][N], xhat[ITEMS][N], means[2] = {0, 0};
        float mean = columns ? o.mean[row] : 0, rstd = columns ? o.rstd[row] : 0;
#pragma unroll
        for (int item = 0; item < ITEMS; item++) {
            int column = item_column<N, WARPS>(item);
            if (column >= columns)
                continue;
            load_item(g[item], o.dy + row * columns + column);
            load_item(xhat[item], o.x + row * columns + column);
        }
        const uint8_t *bytes = nullptr;
        if (PARTS & (DROP_DY | DROP_DX))
            bytes = token_bytes(room, o.drop, o.places, row, columns);
#pragma unroll
        for (int item = 0; item < ITEMS; item++) {
            int column = item_column<N, WARPS>(item);
            if (column >= columns)
                continue;
            float gamma[N];
            load_item(gamma, o.gamma + column);
            if (PARTS & DROP_DY && bytes)
                drop_item(o.drop, bytes + column, g[item]);
#pragma unroll
            for (int i = 0; i < N; i++) {
                xhat[item][i] = (xhat[item][i] - mean) * rstd;
                if constexpr (PARTS & WITH_SUMS) {
                    sums[0][item][i] += g[item][i] * xhat[item][i];
                    sums[1][item][i] += g[item][i];
                }
                g[item][i] *= gamma[i];
                means[0] += g[item][i];
                means[1] += g[item][i] * xhat[item][i];
            }
        }
        group_sums<WARPS>(means);
        means[0] *= o.share;
        means[1] *= o.share;
#pragma unroll
        for (int item = 0; item < ITEMS; item++) {
            int column = item_column<N, WARPS>(item);
            if (column >= columns)
                continue;
            float dx[N];
#pragma unroll
            for (int i = 0; i < N; i++)
                dx[i] = rstd * (g[item][i] - means[0] - xhat[item][i] * means[1]);
            store_item(o.dx + row * columns + column, dx);
            if constexpr (PARTS & DROP_DX) {
                if (bytes)
                    drop_item(o.drop, bytes + column, dx);
                store_item(o.dropped + row * columns + column, dx);
            }
        }
    }
    zero_tail<T, N>(o.dx, o.rows, o.padded_rows, o.columns);
    if constexpr (PARTS & DROP_DX)
        zero_tail<T, N>(o.dropped, o.rows, o.padded_rows, o.columns);
    if constexpr (PARTS & WITH_SUMS)
        store_row_sums<N, ITEMS, WARPS>(sums, to);
}

/* Inputs 0 to 4 of all these operators are dy, x, mean, rstd, gamma; outputs are dx, then dropped where it is made,
 * then the two sums where they are. */
template <int PARTS>
static status norm_gradient(struct cuda *cuda, const struct op_call *call) {
    const struct operand *in = call->in, *dx = &call->out[0];
    WITH_STORAGE(dx->dtype, {
        norm_dx_operands<T> o = {(const T *)in[0].data,
                                 (const T *)in[1].data,
                                 (const float *)in[2].data,
                                 (const float *)in[3].data,
                                 (const float *)in[4].data,
                                 (T *)dx->data,
                                 PARTS & DROP_DX ? (T *)call->out[1].data : nullptr,
                                 dx->rows,
                                 dx->padded_rows,
                                 (int)dx->columns,
                                 1.0f / (float)dx->columns,
                                 {},
                                 {}};
        if (PARTS & (DROP_DY | DROP_DX)) {
            o.drop = dropout_of(call);
            o.places = token_places_of(call);
        }
        WITH_ROW(rows_packed(call, dx->columns), dx->columns, {
            constexpr int I = SPREAD<ITEMS, WARPS, PARTS> ? 1 : ITEMS, W = SPREAD<ITEMS, WARPS, PARTS> ? 4 : WARPS;
            unsigned grid = blocks_for(cuda, ceil_div(dx->padded_rows, GROUPS<W>), NORM_DX_BLOCKS<I, W>);
            partials to = {};
            if (PARTS & WITH_SUMS)
                TRY(partials_new(cuda, call, 2, grid, dx->columns, &to));
            LAUNCH((norm_dx_kernel<T, N, I, W, PARTS>), grid, ROW_THREADS<W>, 0, cuda_stream(cuda), o, to);
            if (PARTS & WITH_SUMS)
                TRY(add_partials(cuda, call, to, 2, call->out + (PARTS & DROP_DX ? 2 : 1)));
        });
    });
    return OK;
}

extern "C" status cuda_layernorm_dx(struct cuda *cuda, const struct op_call *call) {
    return norm_gradient<0>(cuda, call);
}

extern "C" status cuda_blnrd(struct cuda *cuda, const struct op_call *call) {
    return norm_gradient<DROP_DX>(cuda, call);
}

extern "C" status cuda_residual_norm_dx(struct cuda *cuda, const struct op_call *call) {
    return norm_gradient<DROP_DX | WITH_SUMS>(cuda, call);
}

extern "C" status cuda_layernorm_grad(struct cuda *cuda, const struct op_call *call) {
    return norm_gradient<DROP_DY | WITH_SUMS>(cuda, call);
}
