/* What the two directions of fused attention share. */
#ifndef BERTH_KERNELS_CUDA_ATTENTION_CUH
#define BERTH_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/tiles.cuh"

constexpr float LOG2_E = 1.44269504088896f;

/* Shared memory that every device from sm_80 on gives to a block. */
constexpr int SHARED_MOST = 99 * 1024;

constexpr int larger(int a, int b) { return a > b ? a : b; }

/* --- what the kernels are told --- */

struct attention_call {
    const int32_t *starts;
    const int64_t *numbers;
    int sequences, heads, p;
    int64_t tokens, padded, hidden;
    bool packs; /* rows of a head can be moved 16 bytes at a time */
    float scale;
    dropout drop;
    int64_t longest_position;
    int key_blocks; /* of 16 keys, in a row of dropout's elements */
};

/* One head of one sequence. */
struct head_rows {
    int n;         /* tokens */
    int64_t token; /* the first one */
    int number;
    int64_t sequence; /* in dropout's stream */
};

__device__ inline head_rows head_of_block(const attention_call &a) {
    int sequence = (int)blockIdx.z;
    int start = a.starts[sequence];
    return {a.starts[sequence + 1] - start, start, (int)blockIdx.y, a.numbers[sequence]};
}

/* Its rows of a [t, h·p] tensor, from row `first` on. */
template <typename T>
__device__ inline matrix<T> rows_of(T *data, const attention_call &a, const head_rows &head, int first) {
    return {data + (head.token + first) * a.hidden + head.number * a.p, a.hidden, head.n - first, a.p, a.packs};
}

__device__ inline bool is_tail_block(const attention_call &a) { return (int)blockIdx.z == a.sequences; }

/* The head's columns behind the last token, by all blocks of this head. */
template <typename T>
__device__ inline void zero_tail(T *data, const attention_call &a) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (a.padded - a.tokens) * a.p; i += step)
        data[(a.tokens + i / a.p) * a.hidden + blockIdx.y * a.p + i % a.p] = from_float<T>(0);
}

/* --- dropout: the top bit of a byte says whether its element is kept --- */

/* Of the four bytes of a word. A byte is compared without touching its neighbours: the carry of its lower seven bits says
 * whether these reach those of the threshold; the threshold's eighth bit, whether that is needed beside the byte's own
 * top bit or does instead of it. */
__device__ inline uint32_t kept_of(uint32_t bytes, const dropout &drop) {
    uint32_t reach = 0x01010101u * (uint32_t)(128 - (drop.threshold & 127));
    uint32_t either = drop.threshold < 128 ? 0xFFFFFFFFu : 0;
    uint32_t carry = (bytes & 0x7F7F7F7Fu) + reach;
    return (carry & bytes) | ((carry | bytes) & either);
}

__device__ inline float kept(uint32_t word, int byte, float x) { return word >> (8 * byte + 7) & 1 ? x : 0; }

__device__ inline uint4 bytes_of_keys(const attention_call &a, const head_rows &head, int query, int key) {
    int64_t row = head.number * a.longest_position + query;
    return random_bytes(a.drop, head.sequence, (uint32_t)(row * a.key_blocks + key / 16));
}

/* Of the RUN keys from `key` on, with one query. */
template <int RUN>
struct kept_run {
    uint32_t words[RUN / 4];

    __device__ kept_run(const attention_call &a, const head_rows &head, int query, int key) {
        uint4 bytes = bytes_of_keys(a, head, query, key);
        bool upper = RUN == 8 && key % 16 == 8;
        const uint32_t all[4] = {upper ? bytes.z : bytes.x, upper ? bytes.w : bytes.y, bytes.z, bytes.w};
#pragma unroll
        for (int i = 0; i < RUN / 4; i++)
            words[i] = kept_of(all[i], a.drop);
    }

    /* x, or 0 if the key of element e in block `block` of a product's result is dropped */
    __device__ float apply(int block, int e, float x) const { return kept(words[block / 2], block % 2 * 2 + e, x); }
};

/* One bit for each of the 16 keys from `key` on, with one query: key 4w + i has bit 8i + w. */
__device__ inline uint32_t kept_bits(const attention_call &a, const head_rows &head, int query, int key) {
    uint4 bytes = bytes_of_keys(a, head, query, key);
    return (kept_of(bytes.x, a.drop) >> 7 & 0x01010101u) | (kept_of(bytes.y, a.drop) >> 6 & 0x02020202u) |
           (kept_of(bytes.z, a.drop) >> 5 & 0x04040404u) | (kept_of(bytes.w, a.drop) >> 4 & 0x08080808u);
}

/* --- tiles of keys in runs, as the forward kernel and that of dq walk over them --- */

/* The first of this lane's keys in a tile. */
template <int RUN>
__device__ inline int run_of_lane(int first) {
    return first + RUN * (lane_id() % 4);
}

/* x for keys that are not there. */
template <int RUN, int BLOCKS>
__device__ inline void mask_keys(float (&s)[BLOCKS][4], int run, int n, float x) {
#pragma unroll
    for (int i = 0; i < BLOCKS; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[i][e] = run + 2 * i + e % 2 < n ? s[i][e] : x;
}

template <int RUN, int BLOCKS>
__device__ inline void drop_probabilities(float (&s)[BLOCKS][4], const attention_call &a, const head_rows &head,
                                          int query, int run) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        kept_run<RUN> keep(a, head, query + 8 * half, run);
#pragma unroll
        for (int i = 0; i < BLOCKS; i++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                s[i][2 * half + e] = keep.apply(i, e, s[i][2 * half + e]);
    }
}

/* --- launching --- */

template <typename KERNEL>
inline status allow_shared(struct cuda *cuda, KERNEL kernel, int bytes) {
    if (bytes > cuda_shared_limit(cuda))
        return failed("attention needs %d bytes of shared memory in a block, but this device has %d: sm_80 or newer is needed",
                      bytes, cuda_shared_limit(cuda));
    return cuda_check(
        cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory");
}

/* `rows` is an operand [t, h·p]. */
template <typename T>
inline status describe_call(const struct op_call *call, const struct operand *rows, attention_call *a) {
    int64_t p = call->hidden / call->heads, key_blocks = (call->longest_position + 15) / 16;
    const struct ragged *ragged = call->ragged;
    bool packs = true;
    for (int i = 0; i < op_info(call->op)->inputs; i++)
        packs = packs && (call->in[i].dtype != rows->dtype || packs_fit<T>(call->in[i].data, p, PACK<T>));
    for (int i = 0; i < op_info(call->op)->outputs; i++)
        packs = packs && packs_fit<T>(call->out[i].data, p, PACK<T>);
    *a = {ragged->starts,
          ragged->sequence_numbers,
          (int)ragged->sequences,
          (int)call->heads,
          (int)p,
          rows->rows,
          rows->padded_rows,
          call->hidden,
          packs,
          call->attr->scale,
          dropout_of(call),
          call->longest_position,
          (int)key_blocks};
    if (p > 128)
        return failed("attention: heads of %lld columns: at most 128", (long long)p);
    if (ragged->sequences >= 65535 || call->heads > 65535)
        return failed("attention: %lld sequences of %lld heads: at most 65534 of 65535", (long long)ragged->sequences,
                      (long long)call->heads);
    if (a->drop.threshold > 0 && call->heads * call->longest_position * key_blocks > (int64_t)UINT32_MAX)
        return failed("attention: dropout counts to 2^36 probabilities of a sequence, not %lld heads of %lld queries",
                      (long long)call->heads, (long long)call->longest_position);
    if (a->drop.threshold > 255)
        return failed("attention: a dropout of %g keeps nothing", (double)call->attr->probability);
    return OK;
}

inline unsigned blocks_of(int64_t n, int size) { return (unsigned)larger(1, (int)((n + size - 1) / size)); }

#endif
