/* The products of attention with its matrices in memory (fusion levels none and paper), for each head of each sequence:
 *
 *   by rows      y[n,n] = a[n,p] b[n,p]^T      scores = q k^T, dp = dy v^T
 *   plain        y[n,p] = a[n,n] b[n,p]        context = p v, dq = ds k
 *   transposed   y[n,p] = a[n,n]^T b[n,p]      dk = ds^T q, dv = p^T dy
 *
 * where matrices [n,n] stand in [h,e] tensors and rows [n,p] in [t, h·p] ones. Sequences of odd lengths make matrices
 * whose rows begin anywhere: those are copied element by element. */
#include "kernels/cuda/heads.cuh"

enum form { BY_ROWS, PLAIN, TRANSPOSED };

constexpr int SIDE = 64, DEPTH = 32, THREADS = 128;

/* A tile of SIDE x SIDE of the result, 16 rows a warp, from tiles DEPTH deep. */
template <typename T, form FORM>
struct product_tiles {
    using a = std::conditional_t<FORM == TRANSPOSED, tile<T, DEPTH, SIDE>, tile<T, SIDE, DEPTH>>;
    using b = std::conditional_t<FORM == BY_ROWS, tile<T, SIDE, DEPTH>, tile<T, DEPTH, SIDE>>;
    using y = tile<T, SIDE, SIDE>;
    static constexpr int STAGE = a::ELEMENTS + b::ELEMENTS, BYTES = 2 * STAGE * (int)sizeof(T);
    static_assert(BYTES <= 48 * 1024 && y::ELEMENTS <= 2 * STAGE, "no more than any kernel may have");
};

/* Reads a and b once for each tile of the result, from the L2 cache but for the first; writes y once, and zeros behind
 * the last token where y is [t, h·p]. Grid (tiles of the longest sequence, h, b + 1); shared memory: two stages of
 * tiles of a and b, and in the same place the result on its way out. */
template <typename T, form FORM>
__global__ void __launch_bounds__(THREADS)
    product_kernel(const T *a, const T *b, T *y, ragged_heads heads, int column_tiles) {
    using tiles = product_tiles<T, FORM>;
    DYNAMIC_SHARED(T, shared);
    if (is_tail_block(heads)) {
        zero_tail(y, heads);
        return;
    }
    head_rows head = head_of_block(heads);
    int first_row = (int)blockIdx.x / column_tiles * SIDE, first_column = (int)blockIdx.x % column_tiles * SIDE;
    int columns = FORM == BY_ROWS ? head.n : heads.p, depth = FORM == BY_ROWS ? heads.p : head.n;
    if (first_row >= head.n || first_column >= columns)
        return;
    auto fill_stage = [&](int k) {
        T *stage = shared + k / DEPTH % 2 * tiles::STAGE;
        typename tiles::a tile_a = {stage};
        typename tiles::b tile_b = {stage + tiles::a::ELEMENTS};
        if constexpr (FORM == BY_ROWS) {
            fill<THREADS>(tile_a, rows_of(a, heads, head).from_row(first_row).from_column(k));
            fill<THREADS>(tile_b, rows_of(b, heads, head).from_row(first_column).from_column(k));
        } else {
            matrix<const T> whole = matrix_of(a, heads, head);
            fill<THREADS>(tile_a, FORM == PLAIN ? whole.from_row(first_row).from_column(k)
                                                : whole.from_row(k).from_column(first_row));
            fill<THREADS>(tile_b, rows_of(b, heads, head).from_row(k).from_column(first_column));
        }
        copy_async_commit();
    };
    int row = (int)threadIdx.x / WARP * 16;
    float out[1][SIDE / 8][4];
    set_zero(out);
    fill_stage(0);
    for (int k = 0; k < depth; k += DEPTH) {
        copy_async_wait<0>();
        __syncthreads(); /* the tiles are there, and nobody reads the others any more */
        if (k + DEPTH < depth)
            fill_stage(k + DEPTH);
        T *stage = shared + k / DEPTH % 2 * tiles::STAGE;
        typename tiles::a tile_a = {stage};
        typename tiles::b tile_b = {stage + tiles::a::ELEMENTS};
#pragma unroll
        for (int step = 0; step < DEPTH; step += 16) {
            fragment_a<T> own[1];
            if constexpr (FORM == TRANSPOSED)
                read_a_transposed(own[0], tile_a, step, row);
            else
                read_a(own[0], tile_a, row, step);
            if constexpr (FORM == BY_ROWS)
                multiply_rows(out, own, tile_b, 0, step);
            else
                multiply_columns(out, own, tile_b, step / 8, 0);
        }
    }
    __syncthreads();
    matrix<T> result;
    if constexpr (FORM == BY_ROWS)
        result = matrix_of(y, heads, head);
    else
        result = rows_of(y, heads, head);
    write_rows(result.from_row(first_row + row).from_column(first_column), out, typename tiles::y{shared}, row, 0);
}

template <typename T, form FORM>
static status product(struct cuda *cuda, const struct op_call *call) {
    using tiles = product_tiles<T, FORM>;
    ragged_heads heads;
    TRY(heads_of<T>(call, &call->in[1], &heads));
    unsigned rows = blocks_of(call->ragged->longest, SIDE), columns = FORM == BY_ROWS ? rows : blocks_of(heads.p, SIDE);
    dim3 grid(rows * columns, (unsigned)heads.heads, (unsigned)heads.sequences + (FORM == BY_ROWS ? 0 : 1));
    if (grid.z > 0)
        LAUNCH((product_kernel<T, FORM>), grid, dim3(THREADS), tiles::BYTES, cuda_stream(cuda),
               (const T *)call->in[0].data, (const T *)call->in[1].data, (T *)call->out[0].data, heads, (int)columns);
    return OK;
}

template <form FORM>
static status product_of_any(struct cuda *cuda, const struct op_call *call) {
    WITH_STORAGE(call->out[0].dtype, return product<T, FORM>(cuda, call));
}

extern "C" status cuda_attn_scores(struct cuda *cuda, const struct op_call *call) {
    return product_of_any<BY_ROWS>(cuda, call);
}
extern "C" status cuda_attn_context_dp(struct cuda *cuda, const struct op_call *call) {
    return product_of_any<BY_ROWS>(cuda, call);
}
extern "C" status cuda_attn_context(struct cuda *cuda, const struct op_call *call) {
    return product_of_any<PLAIN>(cuda, call);
}
extern "C" status cuda_attn_scores_dq(struct cuda *cuda, const struct op_call *call) {
    return product_of_any<PLAIN>(cuda, call);
}
extern "C" status cuda_attn_scores_dk(struct cuda *cuda, const struct op_call *call) {
    return product_of_any<TRANSPOSED>(cuda, call);
}
extern "C" status cuda_attn_context_dv(struct cuda *cuda, const struct op_call *call) {
    return product_of_any<TRANSPOSED>(cuda, call);
}
