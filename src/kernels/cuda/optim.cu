/* The update operators on the flat buffers: a block a chunk (at most CHUNK elements of one parameter), so that the
 * table of chunks is all that tells the parameters apart, and one launch serves all. What changes from step to step
 * (norm, step, rate) is read on the device: the host waits for nothing. Sums of a chunk are in double, of a fixed
 * order. See optim/optim.h for the formulas. */
#include "kernels/cuda/device.cuh"

namespace {

constexpr int THREADS = 256, WARPS = THREADS / WARP, ITEM = 4;

/* --- sums in double --- */

/* The sums over the block, in thread 0: lanes by halves, then warps in order. */
template <int COUNT>
__device__ inline void block_sums(double (&x)[COUNT]) {
    __shared__ double of_warp[COUNT][WARPS];
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        for (int distance = WARP / 2; distance > 0; distance /= 2)
            x[i] += __shfl_down_sync(ALL_LANES, x[i], distance);
        if (lane == 0)
            of_warp[i][warp] = x[i];
    }
    __syncthreads();
    if (threadIdx.x == 0)
        for (int i = 0; i < COUNT; i++)
            for (int w = 1; w < WARPS; w++)
                x[i] += of_warp[i][w];
}

template <int N>
__device__ inline void add_squares(const float (&x)[N], double &sum) {
#pragma unroll
    for (int i = 0; i < N; i++)
        sum += (double)x[i] * x[i];
}

/* --- walking a chunk: ITEM elements at a time where they are whole, then one at a time. Chunks start at multiples of
 * 16 elements. --- */

template <typename BODY>
__device__ inline void each_item(const chunk &part, BODY body) {
    int whole = part.count / ITEM * ITEM;
    for (int i = (int)threadIdx.x * ITEM; i < whole; i += THREADS * ITEM)
        body.template run<ITEM>(part.offset + i);
    for (int i = whole + (int)threadIdx.x; i < part.count; i += THREADS)
        body.template run<1>(part.offset + i);
}

/* --- grad_norm --- */

struct squares {
    const float *grad;
    double *sum;
    template <int N>
    __device__ void run(int64_t at) {
        float g[N];
        load(g, grad + at);
        add_squares(g, *sum);
    }
};

/* partial[z] of grad[f]: 4 bytes read an element. A block a chunk. */
__global__ void __launch_bounds__(THREADS) squares_kernel(const float *grad, const chunk *chunks, double *partial) {
    double sum[1] = {0};
    each_item(chunks[blockIdx.x], squares{grad, sum});
    block_sums(sum);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = sum[0];
}

/* norm[1] = sqrt(sum of partial[count]), by one block. */
__global__ void __launch_bounds__(THREADS) norm_kernel(const double *partial, int64_t count, double *norm) {
    double sum[1] = {0};
    for (int64_t i = threadIdx.x; i < count; i += THREADS)
        sum[0] += partial[i];
    block_sums(sum);
    if (threadIdx.x == 0)
        *norm = sqrt(sum[0]);
}

/* --- what all updates share --- */

/* What attr says, in the precision that the kernels use it. */
struct settings {
    double beta1, beta2, clip;
    float one_minus_beta1, one_minus_beta2, epsilon, weight_decay;
    bool bias_correction, decoupled, scaled; /* scaled: norm[1] is the loss scale of the gradients */
};

/* Scalars of the update number step[0] + 1. */
struct scalars {
    float beta1, beta2, clip_scale, inverse1, inverse_root2;
};

settings settings_of(const attr *attr, const operand &norm) {
    return {attr->beta1,
            attr->beta2,
            attr->clip,
            (float)(1 - attr->beta1),
            (float)(1 - attr->beta2),
            (float)attr->epsilon,
            (float)attr->weight_decay,
            attr->bias_correction,
            attr->decoupled,
            norm.rows > 1};
}

__device__ inline scalars scalars_of(const settings &set, const double *norm, int64_t step) {
    double t = (double)step + 1;
    double correct1 = set.bias_correction ? 1 - pow(set.beta1, t) : 1;
    double correct2 = set.bias_correction ? 1 - pow(set.beta2, t) : 1;
    double clip_scale = (set.clip > 0 && *norm > set.clip ? set.clip / *norm : 1) / (set.scaled ? norm[1] : 1);
    return {(float)set.beta1, (float)set.beta2, (float)clip_scale, (float)(1 / correct1), (float)(1 / sqrt(correct2))};
}

/* The same for all threads of a block, made by one. */
__device__ inline scalars block_scalars(const settings &set, const double *norm, int64_t step) {
    __shared__ scalars shared;
    if (threadIdx.x == 0)
        shared = scalars_of(set, norm, step);
    __syncthreads();
    return shared;
}

/* Moments of one element; returns m / b1t / (sqrt(v / b2t) + epsilon). */
__device__ inline float moments(const settings &set, const scalars &now, float g, float &m, float &v) {
    m = now.beta1 * m + set.one_minus_beta1 * g;
    v = now.beta2 * v + set.one_minus_beta2 * g * g;
    return m * now.inverse1 / (sqrtf(v) * now.inverse_root2 + set.epsilon);
}

/* --- adam --- */

template <typename T>
struct adam_update {
    const float *grad;
    float *master, *m, *v;
    T *weights; /* NULL where master is what operators read */
    settings set;
    scalars now;
    float rate, decay;
    template <int N>
    __device__ void run(int64_t at) {
        float g[N], p[N], first[N], second[N];
        float added = set.decoupled ? 0 : decay, kept = set.decoupled ? decay : 0;
        load(g, grad + at);
        load(p, master + at);
        load(first, m + at);
        load(second, v + at);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float u = moments(set, now, g[i] * now.clip_scale + added * p[i], first[i], second[i]);
            p[i] -= rate * (u + kept * p[i]);
        }
        store(m + at, first);
        store(v + at, second);
        store(master + at, p);
        if (weights)
            store(weights + at, p);
    }
};

/* 16 bytes read and 12 written an element, and the weight in the compute dtype. A block a chunk. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    adam_kernel(const float *grad, const double *norm, const float *rates, const int64_t *step, float *master, float *m,
                float *v, T *weights, const chunk *chunks, const parameter *parameters, settings set) {
    if (!isfinite(*norm))
        return;
    scalars now = block_scalars(set, norm, *step);
    const chunk &part = chunks[blockIdx.x];
    float decay = parameters[part.parameter].decay ? set.weight_decay : 0;
    each_item(part, adam_update<T>{grad, master, m, v, weights, set, now, rates[*step], decay});
}

/* --- lamb --- */

struct lamb_update {
    const float *master;
    float *grad, *m, *v;
    settings set;
    scalars now;
    float decay;
    double *sums; /* of p squared, of u squared */
    template <int N>
    __device__ void run(int64_t at) {
        float g[N], p[N], first[N], second[N];
        load(g, grad + at);
        load(p, master + at);
        load(first, m + at);
        load(second, v + at);
#pragma unroll
        for (int i = 0; i < N; i++)
            g[i] = moments(set, now, g[i] * now.clip_scale, first[i], second[i]) + decay * p[i];
        store(m + at, first);
        store(v + at, second);
        store(grad + at, g);
        add_squares(p, sums[0]);
        add_squares(g, sums[1]);
    }
};

/* The update takes the place of the gradient; norms[z,2]. 16 bytes read and 12 written an element. A block a chunk. */
__global__ void __launch_bounds__(THREADS)
    lamb_moments_kernel(const double *norm, const int64_t *step, const float *master, float *grad, float *m, float *v,
                        double *norms, const chunk *chunks, const parameter *parameters, settings set) {
    if (!isfinite(*norm))
        return;
    scalars now = block_scalars(set, norm, *step);
    const chunk &part = chunks[blockIdx.x];
    float decay = parameters[part.parameter].decay ? set.weight_decay : 0;
    double sums[2] = {0, 0};
    each_item(part, lamb_update{master, grad, m, v, set, now, decay, sums});
    block_sums(sums);
    if (threadIdx.x == 0) {
        norms[2 * (int64_t)blockIdx.x] = sums[0];
        norms[2 * (int64_t)blockIdx.x + 1] = sums[1];
    }
}

/* The first chunk of a parameter or of one behind it: chunks ascend by parameter. */
__device__ inline int64_t first_chunk(const chunk *chunks, int64_t count, int parameter) {
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (chunks[middle].parameter < parameter)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* ratio[parameters] of norms[z,2]: a block a parameter. */
__global__ void __launch_bounds__(THREADS)
    trust_ratio_kernel(const double *norms, const chunk *chunks, int64_t count, const parameter *parameters,
                       float weight_decay, float *ratio) {
    int number = blockIdx.x;
    int64_t begin = first_chunk(chunks, count, number), end = first_chunk(chunks, count, number + 1);
    double sums[2] = {0, 0};
    for (int64_t c = begin + threadIdx.x; c < end; c += THREADS) {
        sums[0] += norms[2 * c];
        sums[1] += norms[2 * c + 1];
    }
    block_sums(sums);
    bool trusted = parameters[number].decay && weight_decay != 0 && sums[0] > 0 && sums[1] > 0;
    if (threadIdx.x == 0)
        ratio[number] = trusted ? (float)(sqrt(sums[0]) / sqrt(sums[1])) : 1.0f;
}

template <typename T>
struct lamb_step {
    const float *update;
    float *master;
    T *weights;
    float rate;
    template <int N>
    __device__ void run(int64_t at) {
        float u[N], p[N];
        load(u, update + at);
        load(p, master + at);
#pragma unroll
        for (int i = 0; i < N; i++)
            p[i] -= rate * u[i];
        store(master + at, p);
        if (weights)
            store(weights + at, p);
    }
};

/* 8 bytes read and 4 written an element, and the weight in the compute dtype. A block a chunk. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    lamb_apply_kernel(const float *update, const double *norm, const float *rates, const int64_t *step,
                      const float *ratio, float *master, T *weights, const chunk *chunks) {
    if (!isfinite(*norm))
        return;
    const chunk &part = chunks[blockIdx.x];
    each_item(part, lamb_step<T>{update, master, weights, rates[*step] * ratio[part.parameter]});
}

__global__ void step_advance_kernel(const double *norm, int64_t *step) { step[isfinite(*norm) ? 0 : 1]++; }

/* --- the loss scale of f16, a thread each: scale[2] is the scale and the steps since it changed --- */

__global__ void scale_loss_kernel(const float *inverse, const double *scale, float *out) {
    *out = (float)(*inverse * *scale);
}

__global__ void unscale_norm_kernel(const double *norm, const double *scale, double *unscaled) {
    unscaled[0] = *norm / *scale;
    unscaled[1] = *scale;
}

__global__ void loss_scale_advance_kernel(const double *norm, double interval, double *scale) {
    double steps = scale[1] + 1;
    bool overflow = !isfinite(*norm), grows = !overflow && steps >= interval;
    if (overflow)
        scale[0] = fmax(scale[0] / 2, LOSS_SCALE_LEAST);
    else if (grows)
        scale[0] = fmin(scale[0] * 2, LOSS_SCALE_MOST);
    scale[1] = overflow || grows ? 0 : steps;
}

/* --- launching --- */

struct tables {
    const chunk *chunks;
    const parameter *parameters;
};

status tables_of(struct cuda *cuda, const struct op_call *call, tables *out) {
    const void *chunks, *parameters;
    TRY(cuda_constant(cuda, call->chunks, (size_t)call->chunk_count * sizeof *call->chunks, &chunks));
    TRY(cuda_constant(cuda, call->parameters, (size_t)call->parameter_count * sizeof *call->parameters, &parameters));
    *out = {(const chunk *)chunks, (const parameter *)parameters};
    return OK;
}

/* NULL where the weights that operators read are the master weights. */
void *separate_weights(const operand &master, const operand &weights) {
    return weights.data == master.data ? nullptr : weights.data;
}

}  // namespace

extern "C" status cuda_grad_norm(struct cuda *cuda, const struct op_call *call) {
    tables on_device;
    TRY(tables_of(cuda, call, &on_device));
    double *partial = (double *)call->out[0].data;
    LAUNCH(squares_kernel, dim3((unsigned)call->chunk_count), dim3(THREADS), 0, cuda_stream(cuda),
           (const float *)call->in[0].data, on_device.chunks, partial);
    LAUNCH(norm_kernel, dim3(1), dim3(THREADS), 0, cuda_stream(cuda), partial, call->chunk_count,
           (double *)call->out[1].data);
    return OK;
}

extern "C" status cuda_adam(struct cuda *cuda, const struct op_call *call) {
    tables on_device;
    TRY(tables_of(cuda, call, &on_device));
    void *weights = separate_weights(call->out[0], call->out[3]);
    WITH_STORAGE(call->out[3].dtype,
                 LAUNCH((adam_kernel<T>), dim3((unsigned)call->chunk_count), dim3(THREADS), 0, cuda_stream(cuda),
                        (const float *)call->in[0].data, (const double *)call->in[1].data,
                        (const float *)call->in[2].data, (const int64_t *)call->in[3].data, (float *)call->out[0].data,
                        (float *)call->out[1].data, (float *)call->out[2].data, (T *)weights, on_device.chunks,
                        on_device.parameters, settings_of(call->attr, call->in[1])));
    return OK;
}

extern "C" status cuda_lamb_moments(struct cuda *cuda, const struct op_call *call) {
    tables on_device;
    TRY(tables_of(cuda, call, &on_device));
    LAUNCH(lamb_moments_kernel, dim3((unsigned)call->chunk_count), dim3(THREADS), 0, cuda_stream(cuda),
           (const double *)call->in[0].data, (const int64_t *)call->in[1].data, (const float *)call->in[2].data,
           (float *)call->out[0].data, (float *)call->out[1].data, (float *)call->out[2].data,
           (double *)call->out[3].data, on_device.chunks, on_device.parameters, settings_of(call->attr, call->in[0]));
    return OK;
}

extern "C" status cuda_lamb_apply(struct cuda *cuda, const struct op_call *call) {
    tables on_device;
    TRY(tables_of(cuda, call, &on_device));
    void *weights = separate_weights(call->out[0], call->out[1]);
    float *ratio = (float *)cuda_workspace(cuda);
    if ((size_t)call->parameter_count * sizeof *ratio > CUDA_WORKSPACE_BYTES)
        return failed("lamb: %d parameters do not fit the workspace", call->parameter_count);
    LAUNCH(trust_ratio_kernel, dim3((unsigned)call->parameter_count), dim3(THREADS), 0, cuda_stream(cuda),
           (const double *)call->in[1].data, on_device.chunks, call->chunk_count, on_device.parameters,
           (float)call->attr->weight_decay, ratio);
    WITH_STORAGE(
        call->out[1].dtype,
        LAUNCH((lamb_apply_kernel<T>), dim3((unsigned)call->chunk_count), dim3(THREADS), 0, cuda_stream(cuda),
               (const float *)call->in[0].data, (const double *)call->in[2].data, (const float *)call->in[3].data,
               (const int64_t *)call->in[4].data, ratio, (float *)call->out[0].data, (T *)weights, on_device.chunks));
    return OK;
}

extern "C" status cuda_step_advance(struct cuda *cuda, const struct op_call *call) {
    LAUNCH(step_advance_kernel, dim3(1), dim3(1), 0, cuda_stream(cuda), (const double *)call->in[0].data,
           (int64_t *)call->out[0].data);
    return OK;
}

extern "C" status cuda_scale_loss(struct cuda *cuda, const struct op_call *call) {
    LAUNCH(scale_loss_kernel, dim3(1), dim3(1), 0, cuda_stream(cuda), (const float *)call->in[0].data,
           (const double *)call->in[1].data, (float *)call->out[0].data);
    return OK;
}

extern "C" status cuda_unscale_norm(struct cuda *cuda, const struct op_call *call) {
    LAUNCH(unscale_norm_kernel, dim3(1), dim3(1), 0, cuda_stream(cuda), (const double *)call->in[0].data,
           (const double *)call->in[1].data, (double *)call->out[0].data);
    return OK;
}

extern "C" status cuda_loss_scale_advance(struct cuda *cuda, const struct op_call *call) {
    LAUNCH(loss_scale_advance_kernel, dim3(1), dim3(1), 0, cuda_stream(cuda), (const double *)call->in[0].data,
           (double)call->attr->growth_interval, (double *)call->out[0].data);
    return OK;
}
