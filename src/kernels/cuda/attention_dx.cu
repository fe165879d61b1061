/* Backward of fused attention; what attention.cu says of tiles and warps holds here.
 *
 * There are no float atomics, so that the bits do not depend on the order of blocks. Summing dq from every block of
 * keys would need them, or partial sums in memory. So a block owns 128 keys (64 or 32 where tiles are larger) with
 * their dk and dv, and walks over all queries. If the sequence has no more keys, as all of pretraining's sequences of
 * 128, then it has all that dq is the sum of, and writes it: five products, as few as there can be, and every operand
 * read once. That pass is bound by memory: 80 flop a byte. Longer sequences go one of two ways:
 *   whole   attention_dx_whole.cuh: a block has all keys, one tile after another, and dq in shared memory: five
 *           products, and a head to a multiprocessor.
 *   blocks  a second kernel computes dq by blocks of queries: seven products, and probabilities made twice, but blocks
 *           enough to fill a device, and no limit of length or size.
 * goes_whole() chooses; BERTH_ATTENTION_DX=whole or blocks forces one, the first where it fits.
 *
 * Dropout: where keys are rows, a lane makes the bytes of one query with 16 keys, and takes its own two keys' bits of
 * any query from the lane that has them. */
#include "kernels/cuda/attention_dx.cuh"
#include "kernels/cuda/attention_dx_whole.cuh"

/* --- dk and dv, and dq where a block has all keys --- */

template <typename T, int P, bool ONE_BLOCK>
struct keys_shape {
    static constexpr bool FLOATS = sizeof(T) == 4;
    static constexpr int WARPS = FLOATS && P == 128 ? 2 : 4, M = FLOATS || P == 128 ? 1 : 2;
    static constexpr int KEYS = 16 * M * WARPS, THREADS = WARP * WARPS, BLOCKS_AT_ONCE = FLOATS ? 1 : 2;
    static constexpr int QUERIES = ONE_BLOCK || (FLOATS && P == 128) ? WARP : 2 * WARP;
    using key_tile = tile<T, KEYS, P>;
    using query_tile = tile<T, QUERIES, P>;
    using score_tile = tile<T, KEYS, QUERIES>;
    static constexpr int FIXED = 2 * key_tile::ELEMENTS + (ONE_BLOCK ? score_tile::ELEMENTS : 0);
    static constexpr int STAGE = 2 * query_tile::ELEMENTS;
    static constexpr int FACTS = ONE_BLOCK ? KEYS : 2 * QUERIES; /* of a whole sequence, or of stages in turn */
    static constexpr int bytes(int stages) {
        return (int)sizeof(T) * (FIXED + stages * STAGE) + FACTS * (int)sizeof(row_facts);
    }
    static constexpr int STAGES = bytes(2) <= SHARED_MOST ? 2 : 1, BYTES = bytes(STAGES);
    static_assert(BYTES <= SHARED_MOST && KEYS % QUERIES == 0, "tiles too large");
};

/* facts[h,t] of the sequences of more keys than a block has, from dy, y and lse: each is read once. Grid (1, h, b).
 */
template <typename T, int P>
__global__ void __launch_bounds__(256)
    row_facts_kernel(const T *dy, const T *y, const float *lse, row_facts *facts, attention_call a) {
    head_rows head = head_of_block(a);
    if (head.n > keys_shape<T, P, false>::KEYS)
        make_facts<256, P>(facts_of(facts, a, head, 0), head.n, dy, y, lse, a, head);
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

/* Reads k and v once, q and dy once for each block of KEYS keys; writes dk and dv once. ONE_BLOCK: for sequences of at
 * most KEYS keys. It makes the facts from y, lse and dy itself, while its tiles are under way, and writes dq: 8 t h p
 * elements and 4 t h bytes, in five products. Otherwise for longer ones, whose facts are read once for each block.
 *
 * Grid (key blocks, h, b), and in the first case (1, h, b + 1); warps of 16 M keys. Shared memory: tiles of keys and
 * values, STAGES tiles of queries and of dy, facts, and with ONE_BLOCK the gradients of a tile's scores, from which dq
 * is summed. For 64 columns of 16 bits that are 65 KB, or 73, so that two blocks are on a multiprocessor of sm_80 too.
 */
template <typename T, int P, bool ONE_BLOCK>
__global__ void __launch_bounds__(keys_shape<T, P, ONE_BLOCK>::THREADS, keys_shape<T, P, ONE_BLOCK>::BLOCKS_AT_ONCE)
    attention_keys_kernel(const T *dy, const T *q, const T *k, const T *v, const T *y, const float *lse,
                          row_facts *facts, T *dq, T *dk, T *dv, attention_call a) {
    using shape = keys_shape<T, P, ONE_BLOCK>;
    using query_tile = typename shape::query_tile;
    constexpr int M = shape::M;
    DYNAMIC_SHARED(T, shared);
    if (ONE_BLOCK && is_tail_block(a)) {
        zero_tail(dq, a.stride_dx, a);
        zero_tail(dk, a.stride_dx, a);
        zero_tail(dv, a.stride_dx, a);
        return;
    }
    head_rows head = head_of_block(a);
    int first_key = ONE_BLOCK ? 0 : (int)blockIdx.x * shape::KEYS;
    if (first_key >= head.n || (head.n <= shape::KEYS) != ONE_BLOCK)
        return;
    typename shape::key_tile keys = {shared}, values = {shared + shape::key_tile::ELEMENTS};
    typename shape::score_tile gradients = {shared + 2 * shape::key_tile::ELEMENTS};
    T *stages = shared + shape::FIXED;
    row_facts *stage_facts = reinterpret_cast<row_facts *>(stages + shape::STAGES * shape::STAGE);
    auto stage_of = [](int query) { return query / shape::QUERIES % shape::STAGES; };
    auto facts_in_stage = [=](int query) { return stage_facts + query % shape::FACTS; };
    auto fill_stage = [&](int query, const head_rows &rows) {
        T *stage = stages + stage_of(query) * shape::STAGE;
        fill<shape::THREADS>(query_tile{stage}, rows_of(q, a.stride, a, rows).from_row(query));
        fill<shape::THREADS>(query_tile{stage + query_tile::ELEMENTS}, rows_of(dy, a, rows).from_row(query));
        if (!ONE_BLOCK)
            copy_facts(facts_in_stage(query), shape::QUERIES, facts, a, rows, query);
        copy_async_commit();
    };
    fill<shape::THREADS>(keys, rows_of(k, a.stride, a, head).from_row(first_key));
    fill<shape::THREADS>(values, rows_of(v, a.stride, a, head).from_row(first_key));
    fill_stage(0, head);
    if (ONE_BLOCK)
        make_facts<shape::THREADS, P>(stage_facts, shape::KEYS, dy, y, lse, a, head);

    int row = (int)threadIdx.x / WARP * 16 * M;
    bool idle = first_key + row >= head.n; /* it still copies, meets the others, and has its share of dq */
    float sum_k[M][P / 8][4], sum_v[M][P / 8][4];
    set_zero(sum_k);
    set_zero(sum_v);
#pragma unroll 1
    for (int query = 0; query < head.n; query += shape::QUERIES) {
        if (query > 0 && shape::STAGES == 1) {
            __syncthreads();
            fill_stage(query, head_of_block(a));
        }
        copy_async_wait<0>();
        __syncthreads(); /* the tile is there, and nobody reads the other one or the gradients any more */
        if (shape::STAGES == 2 && query + shape::QUERIES < head.n)
            fill_stage(query + shape::QUERIES, head_of_block(a));
        query_tile queries = {stages + stage_of(query) * shape::STAGE}, outputs = {queries.data + query_tile::ELEMENTS};
#pragma unroll 1
        for (int part = 0; part < shape::QUERIES && !idle; part += WARP) {
            uint32_t bits[M] = {};
            if (a.drop.threshold > 0)
#pragma unroll
                for (int m = 0; m < M; m++)
                    bits[m] = kept_bits(a, head_of_block(a), query + part + lane_id(), first_key + row + 16 * m);
            float s[M][WARP / 8][4], ds[M][WARP / 8][4];
            set_zero(s);
            set_zero(ds);
            multiply_tiles(s, keys, row, queries, part / 8);
            multiply_tiles(ds, values, row, outputs, part / 8);
#pragma unroll
            for (int m = 0; m < M; m++) {
                lane_keys own = keys_of_lane(first_key + row + 16 * m, head.n);
                own.bits = bits[m];
                gradients_of_scores(s[m], ds[m], a, own, facts_in_stage(query + part));
            }
            if (ONE_BLOCK)
                put(gradients, row, part, ds);
#pragma unroll
            for (int i = 0; i < WARP / 8; i += 2) {
                fragment_a<T> p[M], dp[M];
                operands_of(p, s, i);
                multiply_columns(sum_v, p, outputs, part / 8 + i, 0);
                operands_of(dp, ds, i);
                multiply_columns(sum_k, dp, queries, part / 8 + i, 0);
            }
        }
        if (ONE_BLOCK) {
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
    attention_queries_kernel(const T *dy, const T *q, const T *k, const T *v, row_facts *facts, T *dq,
                             attention_call a) {
    using shape = queries_shape<T, P>;
    using query_tile = typename shape::query_tile;
    constexpr int BLOCKS = shape::KEYS / 16, M = shape::M; /* half a tile of scores in registers */
    DYNAMIC_SHARED(T, shared);
    head_rows head = head_of_block(a);
    int first_query = (int)blockIdx.x * shape::QUERIES;
    if (first_query >= head.n || head.n <= keys_shape<T, P, true>::KEYS)
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

template <typename T>
struct backward_operands {
    const T *dy, *q, *k, *v, *y;
    const float *lse;
    T *dq, *dk, *dv;
    row_facts *facts;
};

template <typename T, int P, bool ONE_BLOCK>
static status launch_keys(struct cuda *cuda, const backward_operands<T> &o, const attention_call &a, dim3 grid) {
    using shape = keys_shape<T, P, ONE_BLOCK>;
    TRY(allow_shared(cuda, attention_keys_kernel<T, P, ONE_BLOCK>, shape::BYTES));
    LAUNCH((attention_keys_kernel<T, P, ONE_BLOCK>), grid, dim3(shape::THREADS), shape::BYTES, cuda_stream(cuda), o.dy,
           o.q, o.k, o.v, o.y, o.lse, o.facts, o.dq, o.dk, o.dv, a);
    return OK;
}

/* Of sequences of more keys than a block has: by blocks of keys, and of queries for dq. */
template <typename T, int P>
static status launch_blocks(struct cuda *cuda, const backward_operands<T> &o, const attention_call &a,
                            int64_t longest) {
    using shape = queries_shape<T, P>;
    unsigned heads = (unsigned)a.heads, sequences = (unsigned)a.sequences;
    LAUNCH((row_facts_kernel<T, P>), dim3(1, heads, sequences), dim3(256), 0, cuda_stream(cuda), o.dy, o.y, o.lse,
           o.facts, a);
    TRY((launch_keys<T, P, false>(cuda, o, a,
                                  dim3(blocks_of(longest, keys_shape<T, P, false>::KEYS), heads, sequences))));
    TRY(allow_shared(cuda, attention_queries_kernel<T, P>, shape::BYTES));
    LAUNCH((attention_queries_kernel<T, P>), dim3(blocks_of(longest, shape::QUERIES), heads, sequences),
           dim3(shape::THREADS), shape::BYTES, cuda_stream(cuda), o.dy, o.q, o.k, o.v, o.facts, o.dq, a);
    return OK;
}

/* The same by whole sequences. */
template <typename T, int P>
static status launch_whole(struct cuda *cuda, const backward_operands<T> &o, const attention_call &a, int64_t longest) {
    using shape = whole_shape<T, P>;
    int bytes = (int)shape::bytes(longest);
    /* always as much: a recorded launch must not find that a call for shorter sequences has allowed less since */
    TRY(allow_shared(cuda, attention_whole_kernel<T, P>, cuda_shared_limit(cuda)));
    LAUNCH((attention_whole_kernel<T, P>), dim3(1, (unsigned)a.heads, (unsigned)a.sequences), dim3(shape::THREADS),
           bytes, cuda_stream(cuda), o.dy, o.q, o.k, o.v, o.y, o.lse, o.facts, o.dq, o.dk, o.dv, a,
           keys_shape<T, P, true>::KEYS);
    return OK;
}

/* Which of the two? Whole sequences have heads of up to 64 columns and must fit into shared memory: 512 tokens in 16
 * bits do on sm_80 and sm_90, 256 on sm_86 and sm_89. They take five products instead of seven, but a block has a
 * multiprocessor to itself: the work is 5 for every round of blocks, beside 7 that smaller blocks share evenly. */
template <typename T, int P>
static bool goes_whole(const struct cuda *cuda, const attention_call &a, int64_t longest) {
    enum attention_way way = cuda_attention_way(cuda);
    int64_t blocks = (int64_t)a.sequences * a.heads, at_once = cuda_multiprocessors(cuda);
    if (whole_shape<T, P>::bytes(longest) > cuda_shared_limit(cuda))
        return false;
    return way == ATTENTION_WAY_AUTO ? 5 * ((blocks + at_once - 1) / at_once) * at_once <= 7 * blocks
                                     : way == ATTENTION_WAY_WHOLE;
}

template <typename T, int P>
static status backward(struct cuda *cuda, const struct op_call *call) {
    const struct operand *in = call->in, *out = call->out;
    backward_operands<T> o = {(const T *)in[0].data, (const T *)in[1].data,
                              (const T *)in[2].data, (const T *)in[3].data,
                              (const T *)in[4].data, (const float *)in[5].data,
                              (T *)out[0].data,      (T *)out[1].data,
                              (T *)out[2].data,      (row_facts *)cuda_workspace(cuda)};
    int64_t longest = call->ragged->longest;
    attention_call a;
    TRY(describe_call<T>(call, &in[1], &out[0], &a));
    TRY((launch_keys<T, P, true>(cuda, o, a, dim3(1, (unsigned)a.heads, (unsigned)a.sequences + 1))));
    if (longest <= keys_shape<T, P, true>::KEYS)
        return OK;
    if (a.tokens * a.heads * (int64_t)sizeof *o.facts > CUDA_WORKSPACE_BYTES)
        return failed("attention: %lld tokens of %d heads do not fit the workspace: lower train.micro_batch",
                      (long long)a.tokens, a.heads);
    if constexpr (P <= 64)
        if (goes_whole<T, P>(cuda, a, longest))
            return launch_whole<T, P>(cuda, o, a, longest);
    return launch_blocks<T, P>(cuda, o, a, longest);
}

extern "C" status cuda_attention_dx(struct cuda *cuda, const struct op_call *call) {
    int64_t p = call->hidden / call->heads;
    WITH_STORAGE(call->in[0].dtype, return p <= 32   ? backward<T, 32>(cuda, call)
                                           : p <= 64 ? backward<T, 64>(cuda, call)
                                                     : backward<T, 128>(cuda, call));
    return OK;
}
