/* What the kernels of attention's backward pass share. */
#ifndef BERTH_KERNELS_CUDA_ATTENTION_DX_CUH
#define BERTH_KERNELS_CUDA_ATTENTION_DX_CUH

#include "kernels/cuda/attention.cuh"

/* --- what belongs to a row of probabilities --- */

struct row_facts {
    float lse_log2; /* log2 of the sum of exponentials */
    float sum;      /* dy . y: the sum over keys of p times its gradient */
};

/* A lane's part of the product of two rows, with seven other lanes. */
template <typename T, int P>
__device__ inline float part_of_row_product(const T *left, const T *right, const attention_call &a) {
    int lane = lane_id() % 8;
    float sum = 0;
    if (a.packs) {
#pragma unroll
        for (int c = 0; c < P; c += 8 * PACK<T>)
            if (c + lane * PACK<T> < a.p) {
                float x[PACK<T>], y[PACK<T>];
                load(x, left + c + lane * PACK<T>);
                load(y, right + c + lane * PACK<T>);
#pragma unroll
                for (int e = 0; e < PACK<T>; e++)
                    sum = fmaf(x[e], y[e], sum);
            }
    } else {
        for (int c = lane; c < a.p; c += 8)
            sum = fmaf(to_float(left[c]), to_float(right[c]), sum);
    }
    return sum;
}

/* to[0 … rows) <- the facts of the head's rows, zeros behind them, by all THREADS of a block: eight threads a row, four
 * rows of theirs under way at a time. Reads y, dy and lse once. */
template <int THREADS, int P, typename T>
__device__ inline void make_facts(row_facts *to, int rows, const T *dy, const T *y, const float *lse,
                                  const attention_call &a, const head_rows &head) {
    constexpr int AT_ONCE = 4, STEP = THREADS / 8;
#pragma unroll 1
    for (int first = (int)threadIdx.x / WARP * 4; first < rows; first += AT_ONCE * STEP) {
        float sums[AT_ONCE], logs[AT_ONCE];
        int own = first + lane_id() / 8;
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int64_t row = (int64_t)head.token + own + i * STEP, at = row * a.hidden + head.number * a.p;
            bool there = own + i * STEP < head.n;
            sums[i] = there ? part_of_row_product<T, P>(dy + at, y + at, a) : 0;
            logs[i] = there ? lse[row * a.heads + head.number] : 0;
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
#pragma unroll
            for (int distance = 4; distance > 0; distance /= 2)
                sums[i] += __shfl_xor_sync(ALL_LANES, sums[i], distance);
            if (lane_id() % 8 == 0 && own + i * STEP < rows)
                to[own + i * STEP] = {logs[i] * LOG2_E, sums[i]};
        }
    }
}

/* facts[h,t] of a call */
__device__ inline row_facts *facts_of(row_facts *facts, const attention_call &a, const head_rows &head, int query) {
    return facts + head.number * a.tokens + head.token + query;
}

/* A stage's facts of `count` queries from `query` on. */
__device__ inline void copy_facts(row_facts *to, int count, row_facts *facts, const attention_call &a,
                                  const head_rows &head, int query) {
    if ((int)threadIdx.x < count) {
        bool there = query + (int)threadIdx.x < head.n;
        copy_async<sizeof(row_facts)>(to + threadIdx.x, facts_of(facts, a, head, there ? query + (int)threadIdx.x : 0),
                                      there);
    }
}

/* --- from scores to their gradients, where keys are rows --- */

/* What makes scores probabilities, dropped ones, and gradients, for the two keys g and g+8 of a lane. */
struct lane_keys {
    int left;      /* keys of the sequence from key g on */
    uint32_t bits; /* kept_bits of the query that is the lane's number */
    int shift;     /* to this lane's bits in those of any query: bit 0 is key g, bit 2 key g+8 */
};

/* Of 16 keys from `first` on. */
__device__ inline lane_keys keys_of_lane(int first, int n) {
    int g = lane_id() / 4;
    return {n - first - g, 0, g % 4 * 8 + g / 4};
}

/* s [16 keys, a warp's width of queries] becomes dropped probabilities (but for their scale), ds from the gradients of
 * these the gradients of scores (but for the scale of scores). */
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
                float p = 8 * half < own.left ? exp2_fast(fmaf(x, a.scale_log2, -fact.lse_log2)) : 0;
                dx = p * ((keep ? dx * a.drop.scale : 0) - fact.sum);
                x = keep ? p : 0;
            }
        }
}

#endif
