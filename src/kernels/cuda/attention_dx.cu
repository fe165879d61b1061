/* Backward of fused attention; what attention.cu says of tiles and warps holds here.
 *
 * There are no float atomics, so that the bits do not depend on the order of blocks. Summing dq from every block of
 * keys would need them, or partial sums in memory. So a block owns 128 keys (64 or 32 where tiles are larger) with
 * their dk and dv, and walks over all queries. If the sequence has no more keys, as all of pretraining's sequences of
 * 128, then it has all that dq is the sum of, and writes it: five products, as few as there can be, and every operand
 * read once. That pass is bound by memory: 80 flop a byte. For longer sequences a second kernel computes dq by blocks
 * of queries: seven products, and probabilities made twice, but blocks enough to fill a device. Keeping dq of 512
 * queries as floats in shared memory would take 128 KB and leave one block of a whole head to a multiprocessor; partial
 * sums of dq in memory, four of them written and read as floats, would take longer than the two products.
 *
 * Dropout: where keys are rows, a lane makes the bytes of one query with 16 keys, and takes its own two keys' bits of
 * any query from the lane that has them. */
#include "kernels/cuda/attention.cuh"

/* --- backward: what belongs to a row of probabilities --- */

struct row_facts {
    float lse_log2; /* log2 of the sum of exponentials */
    float sum;      /* dy . y: the sum over keys of p times its gradient */
};

/* facts[h,t] from dy, y and lse: each is read once, 8 bytes a row and head written. Eight threads a row and head. */
template <typename T>
__global__ void __launch_bounds__(256)
    row_facts_kernel(const T *dy, const T *y, const float *lse, row_facts *facts, attention_call a) {
    int64_t at = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 8;
    bool there = at < a.tokens * a.heads;
    int64_t first = at * a.p; /* as hidden = h·p, rows and heads together are rows of p */
    int lane = (int)threadIdx.x % 8, width = a.packs ? PACK<T> : 1;
    float sum = 0;
    for (int c = lane * width; there && c < a.p; c += 8 * width)
        if (a.packs) {
            float left[PACK<T>], right[PACK<T>];
            load(left, dy + first + c);
            load(right, y + first + c);
#pragma unroll
            for (int e = 0; e < PACK<T>; e++)
                sum = fmaf(left[e], right[e], sum);
        } else {
            sum = fmaf(to_float(dy[first + c]), to_float(y[first + c]), sum);
        }
#pragma unroll
    for (int distance = 4; distance > 0; distance /= 2)
        sum += __shfl_xor_sync(ALL_LANES, sum, distance);
    if (there && lane == 0)
        facts[at % a.heads * a.tokens + at / a.heads] = {lse[at] * LOG2_E, sum};
}

__device__ inline const row_facts *facts_of(const row_facts *facts, const attention_call &a, const head_rows &head,
                                            int query) {
    return facts + head.number * a.tokens + head.token + query;
}

/* --- backward: dk and dv, and dq where a block has all keys --- */

template <typename T, int P>
struct keys_shape {
    static constexpr bool FLOATS = sizeof(T) == 4;
    static constexpr int WARPS = FLOATS && P == 128 ? 2 : 4, M = FLOATS || P == 128 ? 1 : 2;
    static constexpr int KEYS = 16 * M * WARPS, THREADS = WARP * WARPS, BLOCKS_AT_ONCE = FLOATS ? 1 : 2;
    static constexpr int QUERIES = FLOATS && P == 128 ? 32 : 64, PART = WARP; /* queries with scores in registers */
    using key_tile = tile<T, KEYS, P>;
    using query_tile = tile<T, QUERIES, P>;
    using score_tile = tile<T, KEYS, QUERIES>;
    static constexpr int FIXED = 2 * key_tile::ELEMENTS + score_tile::ELEMENTS, STAGE = 2 * query_tile::ELEMENTS;
    static constexpr int bytes(int stages) {
        return (int)sizeof(T) * (FIXED + stages * STAGE) + stages * QUERIES * (int)sizeof(row_facts);
    }
    static constexpr int STAGES = bytes(2) <= SHARED_MOST ? 2 : 1, BYTES = bytes(STAGES);
    static_assert(BYTES <= SHARED_MOST, "tiles too large");
};

/* What makes scores probabilities, dropped ones, and gradients, for the two keys g and g+8 of a lane. */
struct lane_keys {
    bool there[2];
    uint32_t bits; /* kept_bits of the query that is the lane's number */
    int shift;     /* to this lane's bits in those of any query: bit 0 is key g, bit 2 key g+8 */
};

/* s [16 keys, PART queries] becomes dropped probabilities (but for their scale), ds from the gradients of these the
 * gradients of scores (but for the scale of scores). */
template <int BLOCKS>
__device__ inline void gradients_of_scores(float (&s)[BLOCKS][4], float (&ds)[BLOCKS][4], const attention_call &a,
                                           const lane_keys &own, const row_facts *facts) {
    int t = lane_id() % 4;
#pragma unroll
    for (int i = 0; i < BLOCKS; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int column = 8 * i + 2 * t + e;
            row_facts fact = facts[column];
            uint32_t bits = 5;
            if (a.drop.threshold > 0)
                bits = __shfl_sync(ALL_LANES, own.bits, column) >> own.shift;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float &x = s[i][2 * half + e], &dx = ds[i][2 * half + e];
                bool keep = bits >> 2 * half & 1;
                float p = own.there[half] ? exp2_fast(fmaf(x, a.scale_log2, -fact.lse_log2)) : 0;
                dx = p * ((keep ? dx * a.drop.scale : 0) - fact.sum);
                x = keep ? p : 0;
            }
        }
}

/* dq of a tile of queries = scale ds^T k, in pieces of 16 queries and 32 columns. `stage` is a tile that nobody reads
 * any more. */
template <typename SHAPE, typename T, int P>
__device__ inline void write_dq(T *dq, const attention_call &a, const head_rows &head, int first_query,
                                typename SHAPE::score_tile ds, typename SHAPE::key_tile keys,
                                typename SHAPE::query_tile stage) {
    constexpr int COLUMNS = 32, PIECES = SHAPE::QUERIES / 16 * (P / COLUMNS);
#pragma unroll 1
    for (int piece = (int)threadIdx.x / WARP; piece < PIECES; piece += SHAPE::WARPS) {
        int row = piece % (SHAPE::QUERIES / 16) * 16, column = piece / (SHAPE::QUERIES / 16) * COLUMNS;
        if (first_query + row >= head.n)
            continue;
        float out[1][COLUMNS / 8][4];
        set_zero(out);
#pragma unroll 2
        for (int key = 0; key < head.n; key += 16) { /* at most KEYS */
            fragment_a<T> own[1];
            read_a_transposed(own[0], ds, key, row);
            multiply_columns(out, own, keys, key / 8, column);
        }
        scale_by(out, a.scale);
        write_rows(rows_of(dq, a.stride_dx, a, head).from_row(first_query + row).from_column(column), out, stage, row,
                   column);
    }
}

/* Reads k and v once, q, dy and the facts once for each block of KEYS keys; writes dk and dv once, and dq if the
 * sequence has at most KEYS keys: then 7 t h p elements and 8 t h bytes. Grid (key blocks, h, b + 1); warps of 16 M
 * keys. Shared memory: tiles of keys and values, STAGES tiles of queries and of dy with the rows' facts, and the
 * gradients of a tile's scores, from which dq is summed. */
template <typename T, int P>
__global__ void __launch_bounds__(keys_shape<T, P>::THREADS, keys_shape<T, P>::BLOCKS_AT_ONCE)
    attention_keys_kernel(const T *dy, const T *q, const T *k, const T *v, const row_facts *facts, T *dq, T *dk, T *dv,
                          attention_call a) {
    using shape = keys_shape<T, P>;
    using query_tile = typename shape::query_tile;
    constexpr int M = shape::M, PART = shape::PART;
    DYNAMIC_SHARED(T, shared);
    if (is_tail_block(a)) {
        zero_tail(dq, a.stride_dx, a);
        zero_tail(dk, a.stride_dx, a);
        zero_tail(dv, a.stride_dx, a);
        return;
    }
    head_rows head = head_of_block(a);
    int first_key = (int)blockIdx.x * shape::KEYS;
    if (first_key >= head.n)
        return;
    bool whole = head.n <= shape::KEYS;
    typename shape::key_tile keys = {shared}, values = {shared + shape::key_tile::ELEMENTS};
    typename shape::score_tile gradients = {shared + 2 * shape::key_tile::ELEMENTS};
    T *stages = shared + shape::FIXED;
    row_facts *stage_facts = reinterpret_cast<row_facts *>(stages + shape::STAGES * shape::STAGE);
    auto fill_stage = [&](int query) {
        head_rows head = head_of_block(a);
        int number = query / shape::QUERIES % shape::STAGES;
        T *stage = stages + number * shape::STAGE;
        fill<shape::THREADS>(query_tile{stage}, rows_of(q, a.stride, a, head).from_row(query));
        fill<shape::THREADS>(query_tile{stage + query_tile::ELEMENTS}, rows_of(dy, a, head).from_row(query));
        for (int i = (int)threadIdx.x; i < shape::QUERIES; i += shape::THREADS) {
            bool there = query + i < head.n;
            copy_async<sizeof(row_facts)>(stage_facts + number * shape::QUERIES + i,
                                          facts_of(facts, a, head, there ? query + i : 0), there);
        }
        copy_async_commit();
    };
    fill<shape::THREADS>(keys, rows_of(k, a.stride, a, head).from_row(first_key));
    fill<shape::THREADS>(values, rows_of(v, a.stride, a, head).from_row(first_key));
    fill_stage(0);

    int row = (int)threadIdx.x / WARP * 16 * M, g = lane_id() / 4;
    bool idle = first_key + row >= head.n; /* it still copies, meets the others, and has its share of dq */
    lane_keys own[M];
#pragma unroll
    for (int m = 0; m < M; m++)
        own[m] = {
            {first_key + row + 16 * m + g < head.n, first_key + row + 16 * m + g + 8 < head.n}, 0, g % 4 * 8 + g / 4};
    float sum_k[M][P / 8][4], sum_v[M][P / 8][4];
    set_zero(sum_k);
    set_zero(sum_v);
    for (int query = 0; query < head.n; query += shape::QUERIES) {
        if (query > 0 && shape::STAGES == 1) {
            __syncthreads();
            fill_stage(query);
        }
        copy_async_wait<0>();
        __syncthreads(); /* the tile is there, and nobody reads the other one or the gradients any more */
        if (shape::STAGES == 2 && query + shape::QUERIES < head.n)
            fill_stage(query + shape::QUERIES);
        int number = query / shape::QUERIES % shape::STAGES;
        query_tile queries = {stages + number * shape::STAGE}, outputs = {queries.data + query_tile::ELEMENTS};
#pragma unroll 1
        for (int part = 0; part < shape::QUERIES && !idle; part += PART) {
            if (a.drop.threshold > 0)
#pragma unroll
                for (int m = 0; m < M; m++)
                    own[m].bits = kept_bits(a, head_of_block(a), query + part + lane_id(), first_key + row + 16 * m);
            float s[M][PART / 8][4], ds[M][PART / 8][4];
            set_zero(s);
            set_zero(ds);
            multiply_tiles(s, keys, row, queries, part / 8);
            multiply_tiles(ds, values, row, outputs, part / 8);
#pragma unroll
            for (int m = 0; m < M; m++)
                gradients_of_scores(s[m], ds[m], a, own[m], stage_facts + number * shape::QUERIES + part);
#pragma unroll
            for (int i = 0; i < PART / 8; i += 2) {
                fragment_a<T> p[M], dp[M];
                operands_of(p, s, i);
                multiply_columns(sum_v, p, outputs, part / 8 + i, 0);
                operands_of(dp, ds, i);
                multiply_columns(sum_k, dp, queries, part / 8 + i, 0);
            }
            if (whole)
                put(gradients, row, part, ds);
        }
        if (whole) {
            __syncthreads();
            write_dq<shape, T, P>(dq, a, head_of_block(a), query, gradients, keys, queries);
        }
    }
    if (idle)
        return;
    scale_by(sum_v, a.drop.scale);
    scale_by(sum_k, a.scale);
    head = head_of_block(a);
    /* only this warp reads these rows of the tile of values */
    write_rows(rows_of(dv, a.stride_dx, a, head).from_row(first_key + row), sum_v, values, row, 0);
    write_rows(rows_of(dk, a.stride_dx, a, head).from_row(first_key + row), sum_k, values, row, 0);
}

/* --- backward: dq of sequences whose keys are several blocks of the kernel above --- */

template <typename T, int P>
struct queries_shape {
    static constexpr bool FLOATS = sizeof(T) == 4;
    static constexpr int WARPS = FLOATS && P == 128 ? 2 : 4, M = FLOATS || P == 128 ? 1 : 2;
    static constexpr int QUERIES = 16 * M * WARPS, THREADS = WARP * WARPS, BLOCKS_AT_ONCE = FLOATS ? 1 : 2;
    static constexpr int KEYS = FLOATS && P == 128 ? 32 : 64, RUN = KEYS / 4;
    using query_tile = tile<T, QUERIES, P>;
    using key_tile = tile<T, KEYS, P, RUN>;
    static constexpr int bytes(int stages) {
        return (int)sizeof(T) * (2 * query_tile::ELEMENTS + 2 * stages * key_tile::ELEMENTS);
    }
    static constexpr int STAGES = bytes(2) <= SHARED_MOST ? 2 : 1, BYTES = bytes(STAGES);
    static_assert(BYTES <= SHARED_MOST, "tiles too large");
};

/* Reads q, dy and the facts once, k and v once for each block of QUERIES queries; writes dq once: 5 t h p elements.
 * Grid (query blocks, h, b); warps of 16 M queries. Shared memory: tiles of queries and dy, STAGES tiles of keys and of
 * values. */
template <typename T, int P>
__global__ void __launch_bounds__(queries_shape<T, P>::THREADS, queries_shape<T, P>::BLOCKS_AT_ONCE)
    attention_queries_kernel(const T *dy, const T *q, const T *k, const T *v, const row_facts *facts, T *dq,
                             attention_call a) {
    using shape = queries_shape<T, P>;
    using query_tile = typename shape::query_tile;
    constexpr int BLOCKS = shape::KEYS / 16, M = shape::M; /* half a tile of scores in registers */
    DYNAMIC_SHARED(T, shared);
    head_rows head = head_of_block(a);
    int first_query = (int)blockIdx.x * shape::QUERIES;
    if (first_query >= head.n || head.n <= keys_shape<T, P>::KEYS)
        return;
    query_tile queries = {shared}, outputs = {shared + query_tile::ELEMENTS};
    key_stages<shape, T> stages = {shared + 2 * query_tile::ELEMENTS, k, v, a, head};
    fill<shape::THREADS>(queries, rows_of(q, a.stride, a, head).from_row(first_query));
    fill<shape::THREADS>(outputs, rows_of(dy, a, head).from_row(first_query));
    stages.ask_for(0);

    int row = (int)threadIdx.x / WARP * 16 * M, query = first_query + row + lane_id() / 4;
    bool idle = first_query + row >= head.n;
    row_facts fact[M][2] = {};
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (query + 16 * m + 8 * half < head.n)
                fact[m][half] = *facts_of(facts, a, head, query + 16 * m + 8 * half);
    float out[M][P / 8][4];
    set_zero(out);
    for (int key = 0; key < head.n; key += shape::KEYS) {
        stages.wait_for(key);
        stages.ask_for_next(key);
        if (idle)
            continue;
        auto keys = stages.keys(key), values = stages.values(key);
        int run = run_of_lane<shape::RUN>(key);
        kept_run<shape::RUN> keep[M];
#pragma unroll
        for (int m = 0; m < M && a.drop.threshold > 0; m++)
            keep[m].make(a, head, query + 16 * m, run);
#pragma unroll
        for (int part = 0; part < shape::KEYS / 8; part += BLOCKS) {
            float s[M][BLOCKS][4], ds[M][BLOCKS][4];
            set_zero(s);
            set_zero(ds);
            multiply_tiles(s, queries, row, keys, part);
            multiply_tiles(ds, outputs, row, values, part);
#pragma unroll
            for (int m = 0; m < M; m++) {
                if (key + shape::KEYS > head.n)
                    mask_keys<shape::RUN>(s[m], run + 2 * part, head.n);
                if (a.drop.threshold > 0)
                    keep[m].apply(ds[m], part);
#pragma unroll
                for (int i = 0; i < BLOCKS; i++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        float p = exp2_fast(fmaf(s[m][i][e], a.scale_log2, -fact[m][e / 2].lse_log2));
                        ds[m][i][e] = p * fmaf(ds[m][i][e], a.drop.scale, -fact[m][e / 2].sum);
                    }
            }
#pragma unroll
            for (int i = 0; i < BLOCKS; i += 2) {
                fragment_a<T> dp[M];
                operands_of(dp, ds, i);
                multiply_columns(out, dp, keys, part + i, 0);
            }
        }
    }
    if (idle)
        return;
    scale_by(out, a.scale);
    write_rows(rows_of(dq, a.stride_dx, a, head_of_block(a)).from_row(first_query + row), out, queries, row, 0);
}

/* --- launching --- */

template <typename T, int P>
static status backward(struct cuda *cuda, const struct op_call *call) {
    using shape = keys_shape<T, P>;
    using queries = queries_shape<T, P>;
    const T *dy = (const T *)call->in[0].data, *q = (const T *)call->in[1].data, *k = (const T *)call->in[2].data,
            *v = (const T *)call->in[3].data, *y = (const T *)call->in[4].data;
    T *dq = (T *)call->out[0].data, *dk = (T *)call->out[1].data, *dv = (T *)call->out[2].data;
    row_facts *facts = (row_facts *)cuda_workspace(cuda);
    cudaStream_t stream = cuda_stream(cuda);
    attention_call a;
    TRY(describe_call<T>(call, &call->in[1], &call->out[0], &a));
    int64_t rows = a.tokens * a.heads;
    if (rows * (int64_t)sizeof *facts > CUDA_WORKSPACE_BYTES)
        return failed("attention: %lld tokens of %d heads do not fit the workspace: lower train.micro_batch",
                      (long long)a.tokens, a.heads);
    if (rows > 0)
        LAUNCH((row_facts_kernel<T>), dim3((unsigned)((rows + 31) / 32)), dim3(256), 0, stream, dy, y,
               (const float *)call->in[5].data, facts, a);
    TRY(allow_shared(cuda, attention_keys_kernel<T, P>, shape::BYTES));
    dim3 grid(blocks_of(call->ragged->longest, shape::KEYS), (unsigned)a.heads, (unsigned)a.sequences + 1);
    LAUNCH((attention_keys_kernel<T, P>), grid, dim3(shape::THREADS), shape::BYTES, stream, dy, q, k, v, facts, dq, dk,
           dv, a);
    if (call->ragged->longest <= shape::KEYS)
        return OK;
    TRY(allow_shared(cuda, attention_queries_kernel<T, P>, queries::BYTES));
    grid = dim3(blocks_of(call->ragged->longest, queries::QUERIES), (unsigned)a.heads, (unsigned)a.sequences);
    LAUNCH((attention_queries_kernel<T, P>), grid, dim3(queries::THREADS), queries::BYTES, stream, dy, q, k, v, facts,
           dq, a);
    return OK;
}

extern "C" status cuda_attention_dx(struct cuda *cuda, const struct op_call *call) {
    int64_t p = call->hidden / call->heads;
    WITH_STORAGE(call->in[0].dtype, return p <= 32   ? backward<T, 32>(cuda, call)
                                           : p <= 64 ? backward<T, 64>(cuda, call)
                                                     : backward<T, 128>(cuda, call));
    return OK;
}
