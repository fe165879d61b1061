/* Softmax cross-entropy over the first attr.classes columns of rows of any length, its gradient, and sums of losses. */
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/rows.cuh"

constexpr float LOG2_E = 1.442695041f, LOWEST = -1e37f;
constexpr double LN_2 = 0.6931471805599453;

/* --- xent --- */

template <typename T>
struct xent_operands {
    const T *logits;
    const int32_t *labels;
    float *lse, *loss;
    int32_t *hit;
    int64_t rows, padded_rows, columns;
    int classes;
};

/* The sum of e^x over what came along, as sum 2^scaled(), where `most` is the largest x so far. Exponents are made with
 * one rounding, and always against the same rounded product, so that nothing is lost for large x. */
struct running_sum {
    float most = LOWEST, sum = 0;

    __device__ float scaled() const { return most * LOG2_E; }

    __device__ void rise(float larger) {
        float before = scaled();
        most = larger;
        sum *= exp2_fast(before - scaled());
    }

    /* None is larger than `most`. */
    template <int N>
    __device__ void add(const float (&x)[N]) {
#pragma unroll
        for (int i = 0; i < N; i++)
            sum += exp2_fast(fmaf(x[i], LOG2_E, -scaled()));
    }
};

/* What a thread has seen of a row. */
template <typename T, int N>
struct row_scan {
    int label;
    float of_label;
    running_sum total;
    bool beaten; /* by a larger logit, or one as large in front of it */

    /* Items of columns first, first + step, …, all loaded before the first is used. CUT: those from `classes` on do not
     * count; an item is there as far as the row is. */
    template <int ITEMS, bool CUT>
    __device__ void take(const T *logits, int first, int step, int classes) {
        float x[ITEMS][N], largest = LOWEST;
#pragma unroll
        for (int item = 0; item < ITEMS; item++)
            load_item(x[item], logits + first + item * step);
#pragma unroll
        for (int item = 0; item < ITEMS; item++)
#pragma unroll
            for (int i = 0; i < N; i++) {
                if (CUT && first + item * step + i >= classes)
                    x[item][i] = -INFINITY;
                largest = fmaxf(largest, x[item][i]);
            }
        beaten |= largest > of_label;
        if (largest == of_label)
#pragma unroll
            for (int item = 0; item < ITEMS; item++)
#pragma unroll
                for (int i = 0; i < N; i++)
                    beaten |= x[item][i] == of_label && first + item * step + i < label;
        if (largest > total.most)
            total.rise(largest);
#pragma unroll
        for (int item = 0; item < ITEMS; item++)
            total.add(x[item]);
    }
};

constexpr int XENT_BATCH = 4;

/* A group of warps a row; each thread reads every so many items of it once, XENT_BATCH at a time, so that their loads
 * are under way together. The label is hit if no other logit is larger, and none in front of it as large. Reads the
 * logits and 4 bytes a row, writes 12 bytes a row. Any number of columns. */
template <typename T, int N, int WARPS>
__global__ void __launch_bounds__(ROW_THREADS<WARPS>) xent_kernel(const xent_operands<T> o) {
    constexpr int STEP = WARPS * WARP * N;
    for (int64_t first = block_row<WARPS>(); first < o.rows; first += block_step<WARPS>()) {
        int64_t row = first + my_group<WARPS>();
        bool alive = row < o.rows;
        const T *logits = o.logits + row * o.columns;
        int classes = alive ? o.classes : 0, in_batches = classes / (XENT_BATCH * STEP) * (XENT_BATCH * STEP);
        row_scan<T, N> scan = {};
        scan.label = alive ? o.labels[row] : 0;
        scan.of_label = alive ? to_float(logits[scan.label]) : 0;
        int column = item_column<N, WARPS>(0);
        for (; column < in_batches; column += XENT_BATCH * STEP)
            scan.template take<XENT_BATCH, false>(logits, column, STEP, classes);
        for (; column < classes; column += STEP)
            scan.template take<1, true>(logits, column, STEP, classes);
        scan.total.rise(group_max<WARPS>(scan.total.most));
        float sums[2] = {scan.total.sum, scan.beaten ? 1.0f : 0.0f};
        group_sums<WARPS>(sums);
        if (alive && item_column<1, WARPS>(0) == 0) {
            float lse = (float)(LN_2 * scan.total.scaled() + log((double)sums[0]));
            o.lse[row] = lse;
            o.loss[row] = lse - scan.of_label;
            o.hit[row] = sums[1] == 0;
        }
    }
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t row = o.rows + (int64_t)blockIdx.x * blockDim.x + threadIdx.x; row < o.padded_rows; row += step)
        o.lse[row] = o.loss[row] = 0, o.hit[row] = 0;
}

constexpr int XENT_BLOCKS = 8; /* a multiprocessor */

template <typename T, int N, int WARPS>
static status run_xent(struct cuda *cuda, const xent_operands<T> &o) {
    unsigned grid = blocks_for(cuda, ceil_div(o.padded_rows, GROUPS<WARPS>), XENT_BLOCKS);
    LAUNCH((xent_kernel<T, N, WARPS>), grid, ROW_THREADS<WARPS>, 0, cuda_stream(cuda), o);
    return OK;
}

extern "C" status cuda_xent(struct cuda *cuda, const struct op_call *call) {
    const struct operand *logits = &call->in[0], *lse = &call->out[0];
    constexpr int SHORT = 1024; /* columns for one warp */
    WITH_STORAGE(logits->dtype, {
        xent_operands<T> o = {(const T *)logits->data,
                              (const int32_t *)call->in[1].data,
                              (float *)lse->data,
                              (float *)call->out[1].data,
                              (int32_t *)call->out[2].data,
                              lse->rows,
                              lse->padded_rows,
                              logits->columns,
                              (int)call->attr->classes};
        WITH_ITEMS(rows_packed(call, logits->columns), {
            if (logits->columns <= SHORT)
                TRY((run_xent<T, N, 1>(cuda, o)));
            else
                TRY((run_xent<T, N, 8>(cuda, o)));
        });
    });
    return OK;
}

/* --- xent_dx --- */

constexpr int DX_THREADS = 256;

/* dx[rows, columns] = scale (exp(logits - lse) - onehot(label)), 0 from `classes` on and in rows behind the true ones.
 * Reads and writes a logit once; may work in place. A block a row. */
template <typename T, int N>
__global__ void __launch_bounds__(DX_THREADS)
    xent_dx_kernel(const T *logits, const float *lse, const int32_t *labels, const float *scale, int64_t rows,
                   int64_t columns, int classes, T *dx) {
    int64_t row = blockIdx.x;
    bool real = row < rows;
    float sum = real ? lse[row] : 0, factor = *scale;
    int label = real ? labels[row] : -1;
    for (int64_t column = (int64_t)threadIdx.x * N; column < columns; column += DX_THREADS * N) {
        float x[N] = {0};
        if (real) {
            load_item(x, logits + row * columns + column);
#pragma unroll
            for (int i = 0; i < N; i++)
                x[i] = column + i < classes ? factor * (expf(x[i] - sum) - (column + i == label ? 1.0f : 0.0f)) : 0.0f;
        }
        store_item(dx + row * columns + column, x);
    }
}

extern "C" status cuda_xent_dx(struct cuda *cuda, const struct op_call *call) {
    const struct operand *logits = &call->in[0];
    dim3 grid((unsigned)call->out[0].padded_rows), block(DX_THREADS);
    if (grid.x == 0)
        return OK;
    const float *lse = (const float *)call->in[1].data, *scale = (const float *)call->in[3].data;
    const int32_t *labels = (const int32_t *)call->in[2].data;
    int classes = (int)call->attr->classes;
    WITH_STORAGE(logits->dtype, WITH_ITEMS(rows_packed(call, logits->columns),
                                           LAUNCH((xent_dx_kernel<T, N>), grid, block, 0, cuda_stream(cuda),
                                                  (const T *)logits->data, lse, labels, scale, logits->rows,
                                                  logits->columns, classes, (T *)call->out[0].data)));
    return OK;
}

/* --- loss_sum --- */

constexpr int SUM_WARPS = 32;

/* One block adds all rows, 8 bytes each, in double precision and in an order that depends on their number alone. */
__global__ void __launch_bounds__(SUM_WARPS *WARP)
    loss_sum_kernel(const float *loss, const int32_t *hit, double *out, int64_t rows, bool accumulate) {
    double sums[2] = {0, 0};
    for (int64_t row = threadIdx.x; row < rows; row += SUM_WARPS * WARP) {
        sums[0] += loss[row];
        sums[1] += hit[row];
    }
    group_sums<SUM_WARPS>(sums);
    if (threadIdx.x == 0)
        for (int i = 0; i < 2; i++)
            out[i] = (accumulate ? out[i] : 0) + sums[i];
}

extern "C" status cuda_loss_sum(struct cuda *cuda, const struct op_call *call) {
    LAUNCH(loss_sum_kernel, 1, SUM_WARPS * WARP, 0, cuda_stream(cuda), (const float *)call->in[0].data,
           (const int32_t *)call->in[1].data, (double *)call->out[0].data, call->in[0].rows, call->accumulate);
    return OK;
}
