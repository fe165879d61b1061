/* Fused attention over ragged sequences: scores and probabilities live only in registers, forward and backward
 * (attention_dx.cu). A block works on one head of one sequence (heads.cuh), and there on a block of queries or of keys:
 * gridDim.x counts those of the longest sequence, and blocks behind a sequence's end return.
 *
 * Head sizes of 32, 64 and 128 are whole tiles; others, up to 128, stand in the next of them with zeros in shared
 * memory. 16-bit types go through the tensor cores, where probabilities and gradients of scores are rounded to the
 * type; floats are multiplied as floats, to be exact rather than fast.
 *
 * A warp has 32 rows of a product's result (M = 2) where registers allow: reading fragments from shared memory takes as
 * long as their products with 16 rows, on sm_90 longer. That costs all 255 registers, so 8 warps are on a
 * multiprocessor, in two blocks, of which one computes while the other waits for its tiles.
 *
 * Forward: a block keeps its queries' running maximum, sum and result in registers and walks over tiles of keys and
 * values, of which the next is copied while one is worked on.
 *
 * Dropout: one call of Philox gives the 16 bytes of 16 neighbouring keys of a query. Tiles of keys are multiplied in
 * runs (tiles.cuh), so that these 16 scores lie in one lane. */
#include "kernels/cuda/attention.cuh"

/* --- forward --- */

template <typename T, int P>
struct forward_shape {
    static constexpr bool FLOATS = sizeof(T) == 4;
    static constexpr int WARPS = FLOATS && P == 128 ? 2 : 4, M = FLOATS || P == 128 ? 1 : 2;
    static constexpr int QUERIES = 16 * M * WARPS, THREADS = WARP * WARPS, BLOCKS_AT_ONCE = FLOATS ? 1 : 2;
    static constexpr int KEYS = FLOATS && P == 128 ? 32 : 64, RUN = KEYS / 4;
    using query_tile = tile<T, QUERIES, P>;
    using key_tile = tile<T, KEYS, P, RUN>;
    static constexpr int bytes(int stages) {
        return (int)sizeof(T) * (query_tile::ELEMENTS + 2 * stages * key_tile::ELEMENTS);
    }
    static constexpr int STAGES = bytes(2) <= SHARED_MOST ? 2 : 1, BYTES = bytes(STAGES);
    static_assert(BYTES <= SHARED_MOST, "tiles too large");
};

/* Running maximum (of unscaled scores) and sum of the lane's rows g and g+8; the sum is of the lane's own columns. */
struct softmax_rows {
    float most[2], sum[2];
};

/* Of the four lanes that share a row. */
__device__ inline float sum_of_group(float x) {
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}
__device__ inline float most_of_group(float x) {
    x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
    return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
}

/* Scores become exp(scale (s - most)); what is there already shrinks as the maximum grows. */
template <int BLOCKS, int COLUMNS>
__device__ inline void softmax_step(float (&s)[BLOCKS][4], softmax_rows &rows, float (&out)[COLUMNS][4],
                                    float scale_log2) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float most = rows.most[half];
#pragma unroll
        for (int i = 0; i < BLOCKS; i++)
            most = fmaxf(most, fmaxf(s[i][2 * half], s[i][2 * half + 1]));
        most = most_of_group(most);
        float shrink = exp2_fast((rows.most[half] - most) * scale_log2), sum = rows.sum[half] * shrink;
#pragma unroll
        for (int i = 0; i < BLOCKS; i++)
#pragma unroll
            for (int e = 2 * half; e < 2 * half + 2; e++) {
                s[i][e] = exp2_fast(fmaf(s[i][e], scale_log2, -most * scale_log2));
                sum += s[i][e];
            }
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) {
            out[i][2 * half] *= shrink;
            out[i][2 * half + 1] *= shrink;
        }
        rows.most[half] = most;
        rows.sum[half] = sum;
    }
}

/* y = dropout(softmax(scale q k^T)) v, lse.
 *
 * Reads q once, k and v once for each block of QUERIES queries, again from the L2 cache; writes y and lse once: 4 t h p
 * elements and 4 t h bytes. Grid (query blocks, h, b + 1); warps of 16 M queries. Shared memory: a tile of queries,
 * STAGES tiles of keys and of values. */
template <typename T, int P>
__global__ void __launch_bounds__(forward_shape<T, P>::THREADS, forward_shape<T, P>::BLOCKS_AT_ONCE)
    attention_kernel(const T *q, const T *k, const T *v, T *y, float *lse, attention_call a) {
    using shape = forward_shape<T, P>;
    constexpr int M = shape::M;
    DYNAMIC_SHARED(T, shared);
    if (is_tail_block(a)) {
        zero_tail(y, a);
        for (int64_t row = a.tokens + threadIdx.x; row < a.padded && blockIdx.x == 0; row += blockDim.x)
            lse[row * a.heads + blockIdx.y] = 0;
        return;
    }
    head_rows head = head_of_block(a);
    int first_query = (int)blockIdx.x * shape::QUERIES;
    if (first_query >= head.n)
        return;
    typename shape::query_tile queries = {shared};
    key_stages<shape, T> stages = {shared + shape::query_tile::ELEMENTS, k, v, a, head};
    fill<shape::THREADS>(queries, rows_of(q, a.stride, a, head).from_row(first_query));
    stages.ask_for(0);
    stages.wait_for(0);

    int row = (int)threadIdx.x / WARP * 16 * M, query = first_query + row + lane_id() / 4;
    bool idle = first_query + row >= head.n; /* it still copies, and meets the others */
    fragment_a<T> own[P / 16][M];
#pragma unroll
    for (int i = 0; i < P / 16; i++)
#pragma unroll
        for (int m = 0; m < M; m++)
            read_a(own[i][m], queries, row + 16 * m, 16 * i);
    float out[M][P / 8][4];
    softmax_rows rows[M];
#pragma unroll
    for (int m = 0; m < M; m++)
        rows[m] = {{-INFINITY, -INFINITY}, {0, 0}};
    set_zero(out);
    for (int key = 0; key < head.n; key += shape::KEYS) {
        if (key > 0)
            stages.wait_for(key);
        stages.ask_for_next(key);
        if (idle)
            continue;
        auto keys = stages.keys(key), values = stages.values(key);
        int run = run_of_lane<shape::RUN>(key);
        float s[M][shape::KEYS / 8][4];
        set_zero(s);
#pragma unroll
        for (int i = 0; i < P / 16; i++)
            multiply_rows(s, own[i], keys, 0, 16 * i);
#pragma unroll
        for (int m = 0; m < M; m++) {
            if (key + shape::KEYS > head.n)
                mask_keys<shape::RUN>(s[m], run, head.n);
            softmax_step(s[m], rows[m], out[m], a.scale_log2);
            if (a.drop.threshold > 0) {
                kept_run<shape::RUN> keep;
                keep.make(a, head, query + 16 * m, run);
                keep.apply(s[m], 0);
            }
        }
#pragma unroll
        for (int i = 0; i < shape::KEYS / 8; i += 2) {
            fragment_a<T> p[M];
            operands_of(p, s, i);
            multiply_columns(out, p, values, i, 0);
        }
    }
    if (idle)
        return;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int own_query = query + 16 * m + 8 * half;
            float sum = sum_of_group(rows[m].sum[half]), factor = a.drop.scale / sum;
#pragma unroll
            for (int i = 0; i < P / 8; i++) {
                out[m][i][2 * half] *= factor;
                out[m][i][2 * half + 1] *= factor;
            }
            if (lane_id() % 4 == 0 && own_query < head.n)
                lse[((int64_t)head.token + own_query) * a.heads + head.number] =
                    a.scale * rows[m].most[half] + logf(sum);
        }
    write_rows(rows_of(y, a, head).from_row(first_query + row), out, queries, row, 0);
}

/* --- launching --- */

template <typename T, int P>
static status forward(struct cuda *cuda, const struct op_call *call) {
    using shape = forward_shape<T, P>;
    const struct operand *in = call->in, *out = call->out;
    attention_call a;
    TRY(describe_call<T>(call, &in[0], &in[0], &a));
    TRY(allow_shared(cuda, attention_kernel<T, P>, shape::BYTES));
    dim3 grid(blocks_of(call->ragged->longest, shape::QUERIES), (unsigned)a.heads, (unsigned)a.sequences + 1);
    LAUNCH((attention_kernel<T, P>), grid, dim3(shape::THREADS), shape::BYTES, cuda_stream(cuda), (const T *)in[0].data,
           (const T *)in[1].data, (const T *)in[2].data, (T *)out[0].data, (float *)out[1].data, a);
    return OK;
}

extern "C" status cuda_attention(struct cuda *cuda, const struct op_call *call) {
    int64_t p = call->hidden / call->heads;
    WITH_STORAGE(call->in[0].dtype, return p <= 32   ? forward<T, 32>(cuda, call)
                                           : p <= 64 ? forward<T, 64>(cuda, call)
                                                     : forward<T, 128>(cuda, call));
    return OK;
}
