/* Backward of fused attention for sequences of several blocks of keys, in five products: a block has a whole sequence
 * and head, and keeps what it has summed of dq as floats in shared memory while it walks over the keys. */
#ifndef BERTH_KERNELS_CUDA_ATTENTION_DX_WHOLE_CUH
#define BERTH_KERNELS_CUDA_ATTENTION_DX_WHOLE_CUH

#include "kernels/cuda/attention_dx.cuh"

/* A warp has 16 keys of a tile, and after the products with them one piece of 16 x 16 of the tile's dq. */
template <typename T, int P>
struct whole_shape {
    static constexpr int WARPS = 8, THREADS = WARP * WARPS, KEYS = 16 * WARPS, QUERIES = 256 * WARPS / P;
    template <int ROWS, int COLUMNS> /* floats, read one by one, would need too many addresses */
    using any_tile = std::conditional_t<sizeof(T) == 2, swizzled_tile<T, ROWS, COLUMNS>, tile<T, ROWS, COLUMNS>>;
    using key_tile = any_tile<KEYS, P>;
    using query_tile = any_tile<QUERIES, P>;
    using score_tile = any_tile<KEYS, QUERIES>;
    static constexpr int STAGE = 2 * query_tile::ELEMENTS;
    static constexpr int ELEMENTS = key_tile::ELEMENTS + 2 * STAGE + score_tile::ELEMENTS;
    static constexpr int FACTS = 2 * QUERIES;
    static_assert(key_tile::ELEMENTS <= STAGE + score_tile::ELEMENTS && key_tile::ELEMENTS <= 2 * STAGE,
                  "values stand there, and results");
    static constexpr int64_t bytes(int64_t longest) {
        int64_t tiles = (longest + QUERIES - 1) / QUERIES;
        return (int64_t)sizeof(T) * ELEMENTS + (int64_t)sizeof(row_facts) * FACTS +
               (int64_t)sizeof(float) * (tiles - 1) * QUERIES * P;
    }
};

/* dq's sums [16,16] of a warp, by tiles of queries: as lanes hold them, in packs of 16 bytes. The first tile's stay in
 * registers, so that 512 queries of 64 columns leave room for the tiles in the 163 KB of sm_80. */
template <typename SHAPE>
struct dq_sums {
    using sums = float[1][2][4];
    sums first;
    float *others; /* [tiles - 1][2][THREADS][4] */

    __device__ float *pack_of(int tile, int i) const {
        return others + (((int64_t)(tile - 1) * 2 + i) * SHAPE::THREADS + threadIdx.x) * 4;
    }
    __device__ void get(sums &out, int tile) const {
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (tile > 0)
                load(out[0][i], pack_of(tile, i));
            else
#pragma unroll
                for (int e = 0; e < 4; e++)
                    out[0][i][e] = first[0][i][e];
    }
    __device__ void keep(const sums &in, int tile) {
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (tile > 0)
                store(pack_of(tile, i), in[0][i]);
            else
#pragma unroll
                for (int e = 0; e < 4; e++)
                    first[0][i][e] = in[0][i][e];
    }
};

/* Reads y and lse once, dy twice, the second time with k and v from the L2 cache, and q and dy again from it for every
 * other tile of KEYS keys; writes dq, dk and dv once: 8 t h p elements and 4 t h bytes, and 8 t h bytes of facts
 * written and read again for each tile of keys. Five products, 10 n^2 p flop. Grid (1, h, b); sequences of at most
 * `fewest` keys are another kernel's.
 *
 * Shared memory: the tile of keys, two stages of queries and dy with their facts, the gradients of a tile's scores
 * [KEYS,QUERIES], and dq but for its first tile. For 64 columns of 16 bits that are 40.5 KB, and 8 KB for every 32
 * queries after the first: 160.5 KB for 512. Keys and values are operands in registers while a tile lasts; of the
 * values nothing else is needed, so that they only pass through the memory of the second stage and of the gradients.
 * ldmatrix, its transposed form, the pairs of put and cp.async meet every bank once by the tiles' swizzle, dq's sums by
 * being packs of neighbouring lanes; floats, whose tiles are padded, meet some twice. */
template <typename T, int P>
__global__ void __launch_bounds__(whole_shape<T, P>::THREADS, 1)
    attention_whole_kernel(const T *dy, const T *q, const T *k, const T *v, const T *y, const float *lse,
                           row_facts *facts, T *dq, T *dk, T *dv, attention_call a, int fewest) {
    using shape = whole_shape<T, P>;
    using query_tile = typename shape::query_tile;
    DYNAMIC_SHARED(T, shared);
    head_rows head = head_of_block(a);
    if (head.n <= fewest)
        return;
    typename shape::key_tile keys = {shared}, results = {shared + shape::key_tile::ELEMENTS},
                             values = {results.data + shape::STAGE};
    typename shape::score_tile gradients = {results.data + 2 * shape::STAGE};
    row_facts *stage_facts = reinterpret_cast<row_facts *>(shared + shape::ELEMENTS);
    dq_sums<shape> sums;
    set_zero(sums.first);
    sums.others = reinterpret_cast<float *>(stage_facts + shape::FACTS);
    auto stage_of = [&](int query) { return query / shape::QUERIES % 2; };
    auto fill_stage = [&](int query, const head_rows &rows) {
        T *stage = results.data + stage_of(query) * shape::STAGE;
        fill<shape::THREADS>(query_tile{stage}, rows_of(q, a.stride, a, rows).from_row(query));
        fill<shape::THREADS>(query_tile{stage + query_tile::ELEMENTS}, rows_of(dy, a, rows).from_row(query));
        copy_facts(stage_facts + stage_of(query) * shape::QUERIES, shape::QUERIES, facts, a, rows, query);
        copy_async_commit();
    };
    make_facts<shape::THREADS, P>(facts_of(facts, a, head, 0), head.n, dy, y, lse, a, head);

    int warp = (int)threadIdx.x / WARP, row = 16 * warp;
    int piece_row = warp % (shape::QUERIES / 16) * 16, piece_column = warp / (shape::QUERIES / 16) * 16;
#pragma unroll 1
    for (int first_key = 0; first_key < head.n; first_key += shape::KEYS) {
        __syncthreads(); /* the facts are there, and nobody reads the tiles of the keys before */
        fill<shape::THREADS>(values, rows_of(v, a.stride, a, head).from_row(first_key));
        fill<shape::THREADS>(keys, rows_of(k, a.stride, a, head).from_row(first_key));
        fill_stage(0, head);
        copy_async_wait<0>();
        __syncthreads();
        fragment_a<T> own_k[P / 16][1], own_v[P / 16][1];
#pragma unroll
        for (int i = 0; i < P / 16; i++) {
            read_a(own_k[i][0], keys, row, 16 * i);
            read_a(own_v[i][0], values, row, 16 * i);
        }
        bool idle = first_key + row >= head.n, last = first_key + shape::KEYS >= head.n;
        lane_keys own = keys_of_lane(first_key + row, head.n);
        float sum_k[1][P / 8][4], sum_v[1][P / 8][4];
        set_zero(sum_k);
        set_zero(sum_v);
#pragma unroll 1
        for (int query = 0; query < head.n; query += shape::QUERIES) {
            copy_async_wait<0>();
            __syncthreads(); /* the stage is there, and nobody reads the other one, the values or the gradients */
            if (query + shape::QUERIES < head.n)
                fill_stage(query + shape::QUERIES, head_of_block(a));
            query_tile queries = {results.data + stage_of(query) * shape::STAGE},
                       outputs = {queries.data + query_tile::ELEMENTS};
#pragma unroll 1
            for (int part = 0; part < shape::QUERIES && !idle; part += WARP) {
                if (a.drop.threshold > 0)
                    own.bits = kept_bits(a, head_of_block(a), query + part + lane_id(), first_key + row);
                float s[1][WARP / 8][4], ds[1][WARP / 8][4];
                set_zero(s);
                set_zero(ds);
#pragma unroll
                for (int i = 0; i < P / 16; i++) {
                    multiply_rows(s, own_k[i], queries, part / 8, 16 * i);
                    multiply_rows(ds, own_v[i], outputs, part / 8, 16 * i);
                }
                gradients_of_scores(s[0], ds[0], a, own, stage_facts + stage_of(query) * shape::QUERIES + part);
#pragma unroll
                for (int i = 0; i < WARP / 8; i += 2) {
                    fragment_a<T> p[1], dp[1];
                    operands_of(p, s, i);
                    multiply_columns(sum_v, p, outputs, part / 8 + i, 0);
                    operands_of(dp, ds, i);
                    multiply_columns(sum_k, dp, queries, part / 8 + i, 0);
                }
                put(gradients, row, part, ds);
            }
            __syncthreads(); /* the gradients are there, and nobody reads the stage any more */
            int there = first_key + shape::KEYS < head.n ? shape::KEYS : head.n - first_key;
            float out[1][2][4];
            set_zero(out);
            if (first_key > 0)
                sums.get(out, query / shape::QUERIES);
#pragma unroll 4
            for (int key = 0; key < there; key += 16) {
                fragment_a<T> ds[1];
                read_a_transposed(ds[0], gradients, key, piece_row);
                multiply_columns(out, ds, keys, key / 8, piece_column);
            }
            if (!last) {
                sums.keep(out, query / shape::QUERIES);
                continue;
            }
            scale_by(out, a.scale);
            write_rows(
                rows_of(dq, a.stride_dx, a, head_of_block(a)).from_row(query + piece_row).from_column(piece_column),
                out, queries, piece_row, piece_column);
        }
        __syncthreads(); /* dq is written, by way of the stage too */
        if (idle)
            continue;
        scale_by(sum_v, a.drop.scale);
        scale_by(sum_k, a.scale);
        write_rows(rows_of(dv, a.stride_dx, a, head_of_block(a)).from_row(first_key + row), sum_v, results, row, 0);
        write_rows(rows_of(dk, a.stride_dx, a, head_of_block(a)).from_row(first_key + row), sum_k, results, row, 0);
    }
}

#endif
