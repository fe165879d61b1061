/* LayerNorm with what stands before and behind it, forward. The row stays in registers from its load to its store, so
 * that mean and variance can be taken in two passes over it. */
#include "kernels/cuda/rows.cuh"

/* What is normalized. */
enum norm_input {
    NORM_PLAIN,         /* x */
    NORM_RESIDUAL,      /* dropout(x) + residual */
    NORM_BIAS_RESIDUAL, /* dropout(x + bias) + residual */
    NORM_EMBEDDING,     /* the sum of a row of each of three tables; the result is dropped */
};

template <typename T>
struct norm_operands {
    const T *x, *residual;
    const float *bias;
    const T *table[3];
    const int32_t *index[3];
    const float *gamma, *beta;
    T *y, *sum; /* sum: what is normalized, but for NORM_PLAIN */
    float *mean, *rstd;
    float epsilon;
    int64_t rows, padded_rows;
    int columns;
    float share; /* 1/columns */
    dropout drop;
    token_places places;
};

template <typename T, int N>
__device__ inline void add_item(float (&x)[N], const T *from) {
    float other[N];
    load_item(other, from);
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] += other[i];
}

/* This thread's items of a row before normalization; zero beyond its columns, of which a row beyond the last has none.
 */
template <typename T, int N, int ITEMS, int WARPS, norm_input INPUT>
__device__ inline void load_input(const norm_operands<T> &o, int64_t row, int columns, row_bytes<N, ITEMS, WARPS> &room,
                                  float (&x)[ITEMS][N]) {
    constexpr bool RESIDUAL = INPUT == NORM_RESIDUAL || INPUT == NORM_BIAS_RESIDUAL;
    float residual[RESIDUAL ? ITEMS : 1][N];
#pragma unroll
    for (int item = 0; item < ITEMS; item++) {
        int column = item_column<N, WARPS>(item);
        fill(x[item], 0);
        if (column >= columns)
            continue;
        if constexpr (INPUT == NORM_EMBEDDING) {
#pragma unroll
            for (int table = 0; table < 3; table++)
                add_item(x[item], o.table[table] + o.index[table][row] * (int64_t)columns + column);
        } else {
            load_item(x[item], o.x + row * columns + column);
            if constexpr (INPUT == NORM_BIAS_RESIDUAL)
                add_item(x[item], o.bias + column);
            if constexpr (RESIDUAL)
                load_item(residual[item], o.residual + row * columns + column);
        }
    }
    if constexpr (RESIDUAL) {
        const uint8_t *bytes = token_bytes(room, o.drop, o.places, row, columns);
#pragma unroll
        for (int item = 0; item < ITEMS; item++) {
            int column = item_column<N, WARPS>(item);
            if (column >= columns)
                continue;
            if (bytes)
                drop_item(o.drop, bytes + column, x[item]);
#pragma unroll
            for (int i = 0; i < N; i++)
                x[item][i] += residual[item][i];
        }
    }
}

/* Mean and 1/standard deviation of a row, of which the elements below `columns` are there; `share` is 1/their number.
 */
template <int N, int ITEMS, int WARPS>
__device__ inline void row_statistics(const float (&x)[ITEMS][N], int columns, float share, float epsilon, float &mean,
                                      float &rstd) {
    float sum = 0, squares = 0;
#pragma unroll
    for (int item = 0; item < ITEMS; item++)
#pragma unroll
        for (int i = 0; i < N; i++)
            sum += x[item][i];
    mean = group_sum<WARPS>(sum) * share;
#pragma unroll
    for (int item = 0; item < ITEMS; item++)
        if (item_column<N, WARPS>(item) < columns)
#pragma unroll
            for (int i = 0; i < N; i++)
                squares += (x[item][i] - mean) * (x[item][i] - mean);
    rstd = rsqrtf(group_sum<WARPS>(squares) * share + epsilon);
}

/* A group of warps a row, which takes turns with those that the grid has too few groups for. Elements of storage read
 * and written once each: PLAIN 1 and 1, the others 2 (EMBEDDING 3) and 2; gamma, beta and bias come from the cache.
 * Dropout's bytes are made while the loads are under way. */
template <typename T, int N, int ITEMS, int WARPS, norm_input INPUT>
__global__ void __launch_bounds__(ROW_THREADS<WARPS>) norm_kernel(const norm_operands<T> o) {
    __shared__ row_bytes<N, ITEMS, WARPS> rooms[GROUPS<WARPS>];
    row_bytes<N, ITEMS, WARPS> &room = rooms[my_group<WARPS>()];
    for (int64_t first = block_row<WARPS>(); first < o.rows; first += block_step<WARPS>()) {
        int64_t row = first + my_group<WARPS>();
        int columns = row < o.rows ? o.columns : 0;
        float x[ITEMS][N], mean, rstd;
        load_input<T, N, ITEMS, WARPS, INPUT>(o, row, columns, room, x);
        row_statistics<N, ITEMS, WARPS>(x, columns, o.share, o.epsilon, mean, rstd);
        const uint8_t *bytes = nullptr;
        if (INPUT == NORM_EMBEDDING)
            bytes = token_bytes(room, o.drop, o.places, row, columns);
#pragma unroll
        for (int item = 0; item < ITEMS; item++) {
            int column = item_column<N, WARPS>(item);
            if (column >= columns)
                continue;
            float y[N], gamma[N], beta[N];
            load_item(gamma, o.gamma + column);
            load_item(beta, o.beta + column);
#pragma unroll
            for (int i = 0; i < N; i++)
                y[i] = (x[item][i] - mean) * rstd * gamma[i] + beta[i];
            if (bytes)
                drop_item(o.drop, bytes + column, y);
            if constexpr (INPUT != NORM_PLAIN)
                store_item(o.sum + row * columns + column, x[item]);
            store_item(o.y + row * columns + column, y);
        }
        if (item_column<N, WARPS>(0) == 0 && columns) {
            o.mean[row] = mean;
            o.rstd[row] = rstd;
        }
    }
    zero_tail<T, N>(o.y, o.rows, o.padded_rows, o.columns);
    if constexpr (INPUT != NORM_PLAIN)
        zero_tail<T, N>(o.sum, o.rows, o.padded_rows, o.columns);
    zero_tail<float, 1>(o.mean, o.rows, o.padded_rows, 1);
    zero_tail<float, 1>(o.rstd, o.rows, o.padded_rows, 1);
}

constexpr int NORM_BLOCKS = 16; /* a multiprocessor */

/* Inputs and outputs of `o` are those of the call from `vectors` (gamma, then beta) and from `statistics` (mean, then
 * rstd) on; the rest is filled in. */
template <norm_input INPUT, typename T>
static status normalize(struct cuda *cuda, const struct op_call *call, norm_operands<T> o, int vectors,
                        int statistics) {
    const struct operand *y = &call->out[0];
    o.gamma = (const float *)call->in[vectors].data;
    o.beta = (const float *)call->in[vectors + 1].data;
    o.y = (T *)y->data;
    o.sum = (T *)call->out[1].data;
    o.mean = (float *)call->out[statistics].data;
    o.rstd = (float *)call->out[statistics + 1].data;
    o.epsilon = (float)call->attr->epsilon;
    o.rows = y->rows;
    o.padded_rows = y->padded_rows;
    o.columns = (int)y->columns;
    o.share = 1.0f / (float)y->columns;
    if (INPUT != NORM_PLAIN) {
        o.drop = dropout_of(call);
        o.places = token_places_of(call);
    }
    WITH_ROW(rows_packed(call, y->columns), y->columns, {
        unsigned grid = blocks_for(cuda, ceil_div(y->padded_rows, GROUPS<WARPS>), NORM_BLOCKS);
        LAUNCH((norm_kernel<T, N, ITEMS, WARPS, INPUT>), grid, ROW_THREADS<WARPS>, 0, cuda_stream(cuda), o);
    });
    return OK;
}

extern "C" status cuda_layernorm(struct cuda *cuda, const struct op_call *call) {
    WITH_STORAGE(call->out[0].dtype, {
        norm_operands<T> o = {};
        o.x = (const T *)call->in[0].data;
        TRY(normalize<NORM_PLAIN>(cuda, call, o, 1, 1));
    });
    return OK;
}

extern "C" status cuda_residual_norm(struct cuda *cuda, const struct op_call *call) {
    WITH_STORAGE(call->out[0].dtype, {
        norm_operands<T> o = {};
        o.x = (const T *)call->in[0].data;
        o.residual = (const T *)call->in[1].data;
        TRY(normalize<NORM_RESIDUAL>(cuda, call, o, 2, 2));
    });
    return OK;
}

extern "C" status cuda_bdrln(struct cuda *cuda, const struct op_call *call) {
    WITH_STORAGE(call->out[0].dtype, {
        norm_operands<T> o = {};
        o.x = (const T *)call->in[0].data;
        o.bias = (const float *)call->in[1].data;
        o.residual = (const T *)call->in[2].data;
        TRY(normalize<NORM_BIAS_RESIDUAL>(cuda, call, o, 3, 2));
    });
    return OK;
}

extern "C" status cuda_embedding(struct cuda *cuda, const struct op_call *call) {
    WITH_STORAGE(call->out[0].dtype, {
        norm_operands<T> o = {};
        for (int table = 0; table < 3; table++) {
            o.table[table] = (const T *)call->in[2 * table].data;
            o.index[table] = (const int32_t *)call->in[2 * table + 1].data;
        }
        TRY(normalize<NORM_EMBEDDING>(cuda, call, o, 6, 2));
    });
    return OK;
}
