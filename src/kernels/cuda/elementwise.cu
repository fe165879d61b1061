/* Operators that touch every element once: sums, activations, biases, masks of dropout. What does not depend on rows
 * and columns walks the tensor as one line, 8 elements a thread at a time; rows beyond the true count come out as zero
 * because their inputs are taken to be zero, without being read. */
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/rows.cuh"

/* Where a flat tensor's true elements end, and where its rows beyond the true count do. */
struct line {
    int64_t count, padded;
};

static line line_of(const struct operand *y) { return {y->rows * y->columns, y->padded_rows * y->columns}; }

/* --- flat --- */

/* y = a + b. Reads 2 and writes 1 element of storage each; y may be a. */
template <typename T, int N>
__global__ void __launch_bounds__(FLAT_THREADS) add_kernel(const T *a, const T *b, T *y, line n) {
    for (int64_t at = flat_first<N>(); at < n.padded; at += flat_step<N>()) {
        float sum[N], other[N];
        load_part(sum, a, at, 0, n.count, 0);
        load_part(other, b, at, 0, n.count, 0);
#pragma unroll
        for (int i = 0; i < N; i++)
            sum[i] += other[i];
        store_part(y, sum, at, 0, n.padded);
    }
}

extern "C" status cuda_add(struct cuda *cuda, const struct op_call *call) {
    const struct operand *y = &call->out[0];
    line n = line_of(y);
    WITH_STORAGE(y->dtype,
                 WITH_ITEMS(operands_aligned(call),
                            LAUNCH((add_kernel<T, N>), flat_grid(cuda, n.padded, N), FLAT_THREADS, 0, cuda_stream(cuda),
                                   (const T *)call->in[0].data, (const T *)call->in[1].data, (T *)y->data, n)));
    return OK;
}

/* y = act(x): reads 1 and writes 1. */
template <typename T, int N>
__global__ void __launch_bounds__(FLAT_THREADS) act_kernel(enum activation act, const T *x, T *y, line n) {
    for (int64_t at = flat_first<N>(); at < n.padded; at += flat_step<N>()) {
        float value[N];
        load_part(value, x, at, 0, n.count, 0);
        activate(act, value);
        store_part(y, value, at, 0, n.padded);
    }
}

extern "C" status cuda_act(struct cuda *cuda, const struct op_call *call) {
    const struct operand *y = &call->out[0];
    line n = line_of(y);
    WITH_STORAGE(y->dtype,
                 WITH_ITEMS(operands_aligned(call),
                            LAUNCH((act_kernel<T, N>), flat_grid(cuda, n.padded, N), FLAT_THREADS, 0, cuda_stream(cuda),
                                   call->attr->act, (const T *)call->in[0].data, (T *)y->data, n)));
    return OK;
}

/* dx = dy act'(x): reads 2 and writes 1; dx may be dy. */
template <typename T, int N>
__global__ void __launch_bounds__(FLAT_THREADS)
    act_dx_kernel(enum activation act, const T *x, const T *dy, T *dx, line n) {
    for (int64_t at = flat_first<N>(); at < n.padded; at += flat_step<N>()) {
        float value[N], d[N];
        load_part(value, x, at, 0, n.count, 0);
        load_part(d, dy, at, 0, n.count, 0);
        activation_gradient(act, value, d);
        store_part(dx, d, at, 0, n.padded);
    }
}

extern "C" status cuda_act_dx(struct cuda *cuda, const struct op_call *call) {
    const struct operand *dx = &call->out[0];
    line n = line_of(dx);
    WITH_STORAGE(dx->dtype, WITH_ITEMS(operands_aligned(call),
                                       LAUNCH((act_dx_kernel<T, N>), flat_grid(cuda, n.padded, N), FLAT_THREADS, 0,
                                              cuda_stream(cuda), call->attr->act, (const T *)call->in[0].data,
                                              (const T *)call->in[1].data, (T *)dx->data, n)));
    return OK;
}

/* y = scale x: reads 1 and writes 1; y may be x. */
template <typename T, int N>
__global__ void __launch_bounds__(FLAT_THREADS) scale_kernel(float scale, const T *x, T *y, line n) {
    for (int64_t at = flat_first<N>(); at < n.padded; at += flat_step<N>()) {
        float value[N];
        load_part(value, x, at, 0, n.count, 0);
#pragma unroll
        for (int i = 0; i < N; i++)
            value[i] *= scale;
        store_part(y, value, at, 0, n.padded);
    }
}

extern "C" status cuda_attn_scale(struct cuda *cuda, const struct op_call *call) {
    const struct operand *y = &call->out[0];
    line n = line_of(y);
    WITH_STORAGE(y->dtype,
                 WITH_ITEMS(operands_aligned(call), LAUNCH((scale_kernel<T, N>), flat_grid(cuda, n.padded, N),
                                                           FLAT_THREADS, 0, cuda_stream(cuda), call->attr->scale,
                                                           (const T *)call->in[0].data, (T *)y->data, n)));
    return OK;
}

/* dx = mask ? scale dy : 0: reads 1 and a byte, and writes 1; dx may be dy. */
template <typename T, int N>
__global__ void __launch_bounds__(FLAT_THREADS)
    mask_kernel(float scale, const T *dy, const uint8_t *mask, T *dx, line n) {
    for (int64_t at = flat_first<N>(); at < n.padded; at += flat_step<N>()) {
        float d[N], kept[N];
        load_part(d, dy, at, 0, n.count, 0);
        load_part(kept, mask, at, 0, n.count, 0);
#pragma unroll
        for (int i = 0; i < N; i++)
            d[i] = kept[i] != 0.0f ? d[i] * scale : 0.0f;
        store_part(dx, d, at, 0, n.padded);
    }
}

extern "C" status cuda_dropout_dx(struct cuda *cuda, const struct op_call *call) {
    const struct operand *dx = &call->out[0];
    line n = line_of(dx);
    float scale = dropout_of(call).scale;
    WITH_STORAGE(dx->dtype, WITH_ITEMS(operands_aligned(call),
                                       LAUNCH((mask_kernel<T, N>), flat_grid(cuda, n.padded, N), FLAT_THREADS, 0,
                                              cuda_stream(cuda), scale, (const T *)call->in[0].data,
                                              (const uint8_t *)call->in[1].data, (T *)dx->data, n)));
    return OK;
}

extern "C" status cuda_attn_dropout_dx(struct cuda *cuda, const struct op_call *call) {
    return cuda_dropout_dx(cuda, call);
}

/* --- biases --- */

/* Up to three tensors and their biases. */
template <typename T>
struct biased {
    const T *x[3];
    const float *b[3];
    T *y[3];
};

/* An item of x + bias; zeros where it is not there. */
template <typename T, int N>
__device__ inline void load_biased(float (&value)[N], const T *x, const float (&bias)[N], bool there) {
    fill(value, 0);
    if (!there)
        return;
    load_item(value, x);
#pragma unroll
    for (int i = 0; i < N; i++)
        value[i] += bias[i];
}

/* y = x + b of the part blockIdx.z: reads 1 and writes 1; y may be x. A thread keeps the bias of its columns. */
template <typename T, int N>
__global__ void __launch_bounds__(TILE_WARPS *WARP)
    bias_kernel(const biased<T> parts, int64_t rows, int64_t padded_rows, int64_t columns) {
    tile my = my_tile<N>();
    if (my.column >= columns)
        return;
    const T *x = of_part(parts.x);
    T *y = of_part(parts.y);
    float bias[N];
    load_item(bias, of_part(parts.b) + my.column);
    for (int64_t row = my.row; row < padded_rows; row += my.step) {
        int64_t at = row * columns + my.column;
        float value[N];
        load_biased(value, x + at, bias, row < rows);
        store_item(y + at, value);
    }
}

static status add_biases(struct cuda *cuda, const struct op_call *call, int parts) {
    const struct operand *y = &call->out[0];
    if (y->padded_rows * y->columns == 0)
        return OK;
    WITH_STORAGE(y->dtype, {
        biased<T> all = {};
        for (int part = 0; part < parts; part++) {
            all.x[part] = (const T *)call->in[part].data;
            all.b[part] = (const float *)call->in[parts + part].data;
            all.y[part] = (T *)call->out[part].data;
        }
        WITH_ITEMS(rows_packed(call, y->columns),
                   LAUNCH((bias_kernel<T, N>), tile_grid(cuda, y->padded_rows, y->columns, N, parts), tile_block(), 0,
                          cuda_stream(cuda), all, y->rows, y->padded_rows, y->columns));
    });
    return OK;
}

extern "C" status cuda_bias(struct cuda *cuda, const struct op_call *call) { return add_biases(cuda, call, 1); }

extern "C" status cuda_aib(struct cuda *cuda, const struct op_call *call) { return add_biases(cuda, call, 3); }

/* h = x + b, y = act(h): reads 1 and writes 2; h may be x. A thread keeps the bias of its columns. */
template <typename T, int N>
__global__ void __launch_bounds__(TILE_WARPS *WARP)
    bias_act_kernel(enum activation act, const T *x, const float *b, T *h, T *y, int64_t rows, int64_t padded_rows,
                    int64_t columns) {
    tile my = my_tile<N>();
    if (my.column >= columns)
        return;
    float bias[N];
    load_item(bias, b + my.column);
    for (int64_t row = my.row; row < padded_rows; row += my.step) {
        int64_t at = row * columns + my.column;
        float value[N];
        load_biased(value, x + at, bias, row < rows);
        store_item(h + at, value);
        activate(act, value);
        store_item(y + at, value);
    }
}

extern "C" status cuda_brd(struct cuda *cuda, const struct op_call *call) {
    const struct operand *h = &call->out[0];
    if (h->padded_rows * h->columns == 0)
        return OK;
    WITH_STORAGE(h->dtype, WITH_ITEMS(rows_packed(call, h->columns),
                                      LAUNCH((bias_act_kernel<T, N>), tile_grid(cuda, h->padded_rows, h->columns, N, 1),
                                             tile_block(), 0, cuda_stream(cuda), call->attr->act,
                                             (const T *)call->in[0].data, (const float *)call->in[1].data, (T *)h->data,
                                             (T *)call->out[1].data, h->rows, h->padded_rows, h->columns)));
    return OK;
}
