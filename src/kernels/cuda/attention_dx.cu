#include "kernels/cuda/attention.cuh"

/* --- backward: what belongs to a row of probabilities --- */

struct row_facts {
    float lse_log2; /* log2 of the sum of exponentials */
    float sum;      /* dy . y: the sum over keys of p times its gradient */
};

/* facts[h,t] from dy, y and lse: each is read once, 8 bytes a row and head written. Eight threads a row and head. */
template <typename T>
__global__ void __launch_bounds__(256) row_facts_kernel(const T *dy, const T *y, const float *lse, row_facts *facts,
                                                        attention_call a) {
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
    static constexpr int WARPS = P == 128 ? (FLOATS ? 2 : 4) : FLOATS ? 4 : 8;
    static constexpr int KEYS = 16 * WARPS, THREADS = WARP * WARPS, BLOCKS_AT_ONCE = 1;
    static constexpr int QUERIES = FLOATS && P == 128 ? 32 : 64, CHUNK = 32; /* of queries in registers */
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

/* dq of a tile of queries = scale ds^T k, in pieces of 16 queries and at most 32 columns. `stage` is a tile that nobody
 * reads any more. */
template <typename SHAPE, typename T, int P>
__device__ inline void write_dq(T *dq, const attention_call &a, const head_rows &head, int first_query,
                                typename SHAPE::score_tile ds, typename SHAPE::key_tile keys,
                                typename SHAPE::query_tile stage) {
    constexpr int COLUMNS = P < 32 ? P : 32, PIECES = SHAPE::QUERIES / 16 * (P / COLUMNS);
    for (int piece = (int)threadIdx.x / WARP; piece < PIECES; piece += SHAPE::WARPS) {
        int row = piece % (SHAPE::QUERIES / 16) * 16, column = piece / (SHAPE::QUERIES / 16) * COLUMNS;
        if (first_query + row >= head.n)
            continue;
        float out[COLUMNS / 8][4];
        set_zero(out);
#pragma unroll 2
        for (int key = 0; key < SHAPE::KEYS; key += 16) {
            fragment_a<T> own;
            read_a_transposed(own, ds, key, row);
            multiply_columns(out, own, keys, key / 8, column);
        }
#pragma unroll
        for (int i = 0; i < COLUMNS / 8; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                out[i][e] *= a.scale;
        write_rows(rows_of(dq, a, head, first_query + row).from_column(column), out, stage, row, column);
    }
}

/* Reads k and v once, q, dy and the facts once for each block of KEYS keys; writes dk and dv once, and dq if the sequence
 * has at most KEYS keys. Grid (key blocks, h, b + 1); warps of 16 keys. Shared memory: tiles of keys and values, STAGES
 * tiles of queries and of dy with the rows' facts, and the gradients of a tile's scores, from which dq is summed. */
template <typename T, int P>
__global__ void __launch_bounds__(keys_shape<T, P>::THREADS, keys_shape<T, P>::BLOCKS_AT_ONCE)
    attention_keys_kernel(const T *dy, const T *q, const T *k, const T *v, const row_facts *facts, T *dq, T *dk, T *dv,
                          attention_call a) {
    using shape = keys_shape<T, P>;
    using query_tile = typename shape::query_tile;
    constexpr int CHUNK = shape::CHUNK;
    DYNAMIC_SHARED(T, shared);
    if (is_tail_block(a)) {
        zero_tail(dq, a);
        zero_tail(dk, a);
        zero_tail(dv, a);
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
        int number = query / shape::QUERIES % shape::STAGES;
        T *stage = stages + number * shape::STAGE;
        fill(query_tile{stage}, rows_of(q, a, head, query));
        fill(query_tile{stage + query_tile::ELEMENTS}, rows_of(dy, a, head, query));
        for (int i = (int)threadIdx.x; i < shape::QUERIES; i += shape::THREADS) {
            bool there = query + i < head.n;
            copy_async<sizeof(row_facts)>(stage_facts + number * shape::QUERIES + i,
                                          facts_of(facts, a, head, there ? query + i : 0), there);
        }
        copy_async_commit();
    };
    fill(keys, rows_of(k, a, head, first_key));
    fill(values, rows_of(v, a, head, first_key));
    fill_stage(0);

    int row = (int)threadIdx.x / WARP * 16, g = lane_id() / 4, t = lane_id() % 4;
    bool idle = first_key + row >= head.n && !whole;
    float scale_log2 = a.scale * LOG2_E, sum_k[P / 8][4], sum_v[P / 8][4];
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
        for (int chunk = 0; chunk < shape::QUERIES && !idle; chunk += CHUNK) {
            /* s, p, ds [16 keys, CHUNK queries] */
            const row_facts *chunk_facts = stage_facts + number * shape::QUERIES + chunk;
            float s[CHUNK / 8][4], ds[CHUNK / 8][4];
            set_zero(s);
            set_zero(ds);
#pragma unroll
            for (int i = 0; i < P / 16; i++) {
                fragment_a<T> own;
                read_a(own, keys, row, 16 * i);
                multiply_rows(s, own, queries, chunk / 8, 16 * i);
            }
#pragma unroll
            for (int i = 0; i < P / 16; i++) {
                fragment_a<T> own;
                read_a(own, values, row, 16 * i);
                multiply_rows(ds, own, outputs, chunk / 8, 16 * i);
            }
            uint32_t bits = 0; /* of query chunk + lane */
            if (a.drop.threshold > 0)
                bits = kept_bits(a, head, query + chunk + lane_id(), first_key + row);
#pragma unroll
            for (int i = 0; i < CHUNK / 8; i++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    row_facts fact = chunk_facts[8 * i + 2 * t + e];
                    uint32_t own_bits = 5;
                    if (a.drop.threshold > 0)
                        own_bits = __shfl_sync(ALL_LANES, bits, 8 * i + 2 * t + e) >> (g % 4 * 8 + g / 4);
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        float &score = s[i][2 * half + e], &gradient = ds[i][2 * half + e];
                        bool there = first_key + row + g + 8 * half < head.n;
                        bool keep = own_bits >> 2 * half & 1;
                        float p = there ? exp2_fast(fmaf(score, scale_log2, -fact.lse_log2)) : 0;
                        gradient = p * ((keep ? gradient * a.drop.scale : 0) - fact.sum);
                        score = keep ? p : 0;
                    }
                }
#pragma unroll
            for (int i = 0; i < CHUNK / 8; i += 2)
                multiply_columns(sum_v, operand_of<T>(s[i], s[i + 1]), outputs, chunk / 8 + i, 0);
#pragma unroll
            for (int i = 0; i < CHUNK / 8; i += 2)
                multiply_columns(sum_k, operand_of<T>(ds[i], ds[i + 1]), queries, chunk / 8 + i, 0);
            if (whole)
                put(gradients, row, chunk, ds);
        }
        if (whole) {
            __syncthreads();
            write_dq<shape, T, P>(dq, a, head, query, gradients, keys, queries);
        }
    }
    if (first_key + row >= head.n)
        return;
#pragma unroll
    for (int i = 0; i < P / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            sum_v[i][e] *= a.drop.scale;
            sum_k[i][e] *= a.scale;
        }
    /* only this warp reads these rows of the tile of values */
    write_rows(rows_of(dv, a, head, first_key + row), sum_v, values, row, 0);
    write_rows(rows_of(dk, a, head, first_key + row), sum_k, values, row, 0);
}

/* --- backward: dq of sequences whose keys are several blocks of the kernel above --- */

template <typename T, int P>
struct queries_shape {
    static constexpr bool FLOATS = sizeof(T) == 4;
    static constexpr int WARPS = FLOATS && P == 128 ? 2 : 4;
    static constexpr int QUERIES = 16 * WARPS, THREADS = WARP * WARPS, BLOCKS_AT_ONCE = P == 128 || FLOATS ? 1 : 3;
    static constexpr int KEYS = FLOATS && P == 128 ? 32 : 64, RUN = KEYS / 4;
    using query_tile = tile<T, QUERIES, P>;
    using key_tile = tile<T, KEYS, P, RUN>;
    static constexpr int bytes(int stages) {
        return (int)sizeof(T) * (2 * query_tile::ELEMENTS + 2 * stages * key_tile::ELEMENTS);
    }
    static constexpr int STAGES = bytes(2) <= SHARED_MOST ? 2 : 1, BYTES = bytes(STAGES);
    static_assert(BYTES <= SHARED_MOST, "tiles too large");
};

/* Reads q, dy and the facts once, k and v once for each block of QUERIES queries; writes dq once. Grid (query blocks, h,
 * b); warps of 16 queries. Shared memory: tiles of queries and dy, STAGES tiles of keys and of values. */
template <typename T, int P>
__global__ void __launch_bounds__(queries_shape<T, P>::THREADS, queries_shape<T, P>::BLOCKS_AT_ONCE)
    attention_queries_kernel(const T *dy, const T *q, const T *k, const T *v, const row_facts *facts, T *dq,
                             attention_call a) {
    using shape = queries_shape<T, P>;
    using query_tile = typename shape::query_tile;
    using key_tile = typename shape::key_tile;
    constexpr int BLOCKS = shape::KEYS / 8;
    DYNAMIC_SHARED(T, shared);
    head_rows head = head_of_block(a);
    int first_query = (int)blockIdx.x * shape::QUERIES;
    if (first_query >= head.n || head.n <= keys_shape<T, P>::KEYS)
        return;
    query_tile queries = {shared}, outputs = {shared + query_tile::ELEMENTS};
    T *stages = shared + 2 * query_tile::ELEMENTS;
    auto fill_stage = [&](int key) {
        T *stage = stages + key / shape::KEYS % shape::STAGES * 2 * key_tile::ELEMENTS;
        fill(key_tile{stage}, rows_of(k, a, head, key));
        fill(key_tile{stage + key_tile::ELEMENTS}, rows_of(v, a, head, key));
        copy_async_commit();
    };
    fill(queries, rows_of(q, a, head, first_query));
    fill(outputs, rows_of(dy, a, head, first_query));
    fill_stage(0);

    int row = (int)threadIdx.x / WARP * 16, query = first_query + row + lane_id() / 4;
    bool idle = first_query + row >= head.n;
    row_facts fact[2] = {};
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (query + 8 * half < head.n)
            fact[half] = *facts_of(facts, a, head, query + 8 * half);
    float scale_log2 = a.scale * LOG2_E, out[P / 8][4];
    set_zero(out);
    for (int key = 0; key < head.n; key += shape::KEYS) {
        if (key > 0 && shape::STAGES == 1) {
            __syncthreads();
            fill_stage(key);
        }
        copy_async_wait<0>();
        __syncthreads(); /* the tile is there, and nobody reads the other one any more */
        if (shape::STAGES == 2 && key + shape::KEYS < head.n)
            fill_stage(key + shape::KEYS);
        if (idle)
            continue;
        T *stage = stages + key / shape::KEYS % shape::STAGES * 2 * key_tile::ELEMENTS;
        key_tile keys = {stage}, values = {stage + key_tile::ELEMENTS};
        int run = run_of_lane<shape::RUN>(key);
        float s[BLOCKS][4], ds[BLOCKS][4];
        set_zero(s);
        set_zero(ds);
#pragma unroll
        for (int i = 0; i < P / 16; i++) {
            fragment_a<T> own;
            read_a(own, queries, row, 16 * i);
            multiply_rows(s, own, keys, 0, 16 * i);
        }
#pragma unroll
        for (int i = 0; i < P / 16; i++) {
            fragment_a<T> own;
            read_a(own, outputs, row, 16 * i);
            multiply_rows(ds, own, values, 0, 16 * i);
        }
        if (key + shape::KEYS > head.n)
            mask_keys<shape::RUN>(s, run, head.n, -INFINITY);
        if (a.drop.threshold > 0)
            drop_probabilities<shape::RUN>(ds, a, head, query, run);
#pragma unroll
        for (int i = 0; i < BLOCKS; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float p = exp2_fast(fmaf(s[i][e], scale_log2, -fact[e / 2].lse_log2));
                ds[i][e] = p * fmaf(ds[i][e], a.drop.scale, -fact[e / 2].sum);
            }
#pragma unroll
        for (int i = 0; i < BLOCKS; i += 2)
            multiply_columns(out, operand_of<T>(ds[i], ds[i + 1]), keys, i, 0);
    }
    if (idle)
        return;
#pragma unroll
    for (int i = 0; i < P / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            out[i][e] *= a.scale;
    write_rows(rows_of(dq, a, head, first_query + row), out, queries, row, 0);
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
    TRY(describe_call<T>(call, &call->in[0], &a));
    int64_t rows = a.tokens * a.heads;
    if (rows * (int64_t)sizeof *facts > CUDA_WORKSPACE_BYTES)
        return failed("attention: %lld tokens of %d heads do not fit the workspace: lower train.micro_batch",
                      (long long)a.tokens, a.heads);
    if (rows > 0)
        LAUNCH((row_facts_kernel<T>), dim3((unsigned)((rows + 31) / 32)), dim3(256), 0, stream, dy, y,
               (const float *)call->in[5].data, facts, a);
    auto keys_kernel = attention_keys_kernel<T, P>;
    TRY(allow_shared(cuda, keys_kernel, shape::BYTES));
    dim3 grid(blocks_of(call->ragged->longest, shape::KEYS), (unsigned)a.heads, (unsigned)a.sequences + 1);
    LAUNCH(keys_kernel, grid, dim3(shape::THREADS), shape::BYTES, stream, dy, q, k, v, facts, dq, dk, dv, a);
    if (call->ragged->longest <= shape::KEYS)
        return OK;
    auto queries_kernel = attention_queries_kernel<T, P>;
    TRY(allow_shared(cuda, queries_kernel, queries::BYTES));
    grid = dim3(blocks_of(call->ragged->longest, queries::QUERIES), (unsigned)a.heads, (unsigned)a.sequences);
    LAUNCH(queries_kernel, grid, dim3(queries::THREADS), queries::BYTES, stream, dy, q, k, v, facts, dq, a);
    return OK;
}

extern "C" status cuda_attention_dx(struct cuda *cuda, const struct op_call *call) {
    int64_t p = call->hidden / call->heads;
    WITH_STORAGE(call->in[0].dtype, return p <= 32   ? backward<T, 32>(cuda, call)
                                           : p <= 64 ? backward<T, 64>(cuda, call)
                                                     : backward<T, 128>(cuda, call));
    return OK;
}
