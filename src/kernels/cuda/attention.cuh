/* What the two directions of fused attention share. */
#ifndef BERTH_KERNELS_CUDA_ATTENTION_CUH
#define BERTH_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/heads.cuh"

constexpr float LOG2_E = 1.44269504088896f;

/* Shared memory that every device from sm_80 on gives to a block. */
constexpr int SHARED_MOST = 99 * 1024;

/* --- what the kernels are told --- */

struct attention_call : ragged_heads {
    int stride, stride_dx;   /* between rows of q, k, v; of their gradients */
    float scale, scale_log2; /* of scores; that of exponents of 2 */
    dropout drop;
    uint32_t reach, either;   /* of kept_of */
    int64_t longest_position; /* queries of a head in dropout's elements */
    int key_blocks;           /* of 16 keys of a query there */
};

/* --- dropout --- */

/* The four bytes of a word, 1 for those that keep their element. All are compared at once: added to a byte's lower
 * seven bits, `reach` carries into the eighth if they are at least the threshold's lower seven. A threshold below 128
 * is met by that or by the byte's own eighth bit, a higher one only by both. */
__device__ inline uint32_t kept_of(uint32_t bytes, const attention_call &a) {
    uint32_t carry = (bytes & 0x7F7F7F7Fu) + a.reach;
    return ((carry & bytes) | ((carry | bytes) & a.either)) >> 7 & 0x01010101u;
}

inline void compare_with(int threshold, attention_call *a) {
    a->reach = 0x01010101u * (uint32_t)(128 - (threshold & 127));
    a->either = threshold < 128 ? 0xFFFFFFFFu : 0;
}

__device__ inline uint4 bytes_of_keys(const attention_call &a, const head_rows &head, int query, int key) {
    int64_t row = head.number * a.longest_position + query;
    return random_bytes(a.drop, head.stream, (uint32_t)(row * a.key_blocks + key / 16));
}

/* Of the RUN keys from `key` on, with the two queries `query` and `query` + 8 that a lane has rows of. */
template <int RUN>
struct kept_run {
    uint32_t words[2][RUN / 4];

    __device__ void make(const attention_call &a, const head_rows &head, int query, int key) {
        bool upper = RUN == 8 && key % 16 == 8;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint4 bytes = bytes_of_keys(a, head, query + 8 * half, key);
            const uint32_t all[4] = {upper ? bytes.z : bytes.x, upper ? bytes.w : bytes.y, bytes.z, bytes.w};
#pragma unroll
            for (int i = 0; i < RUN / 4; i++)
                words[half][i] = kept_of(all[i], a);
        }
    }

    /* x, which are blocks of a product's result from `block` on, becomes 0 where it is dropped. */
    template <int BLOCKS>
    __device__ void apply(float (&x)[BLOCKS][4], int block) const {
#pragma unroll
        for (int i = 0; i < BLOCKS; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                x[i][e] = words[e / 2][(block + i) / 2] >> 8 * ((block + i) % 2 * 2 + e % 2) & 1 ? x[i][e] : 0;
    }
};

/* One bit for each of the 16 keys from `key` on, with one query: key 4w + i has bit 8i + w. */
__device__ inline uint32_t kept_bits(const attention_call &a, const head_rows &head, int query, int key) {
    uint4 bytes = bytes_of_keys(a, head, query, key);
    return kept_of(bytes.x, a) | kept_of(bytes.y, a) << 1 | kept_of(bytes.z, a) << 2 | kept_of(bytes.w, a) << 3;
}

/* --- tiles of keys in runs, as the forward kernel and that of dq walk over them --- */

/* The first of this lane's keys in a tile. */
template <int RUN>
__device__ inline int run_of_lane(int first) {
    return first + RUN * (lane_id() % 4);
}

/* -infinity for keys that are not there. */
template <int RUN, int BLOCKS>
__device__ inline void mask_keys(float (&s)[BLOCKS][4], int run, int n) {
#pragma unroll
    for (int i = 0; i < BLOCKS; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[i][e] = run + 2 * i + e % 2 < n ? s[i][e] : -INFINITY;
}

/* Tiles of keys and of values in SHAPE::STAGES stages, filled in turn. */
template <typename SHAPE, typename T>
struct key_stages {
    using tile = typename SHAPE::key_tile;
    T *data; /* [STAGES][2] tiles */
    const T *k, *v;
    const attention_call &a;
    const head_rows &head;

    __device__ tile keys(int key) const { return {data + key / SHAPE::KEYS % SHAPE::STAGES * 2 * tile::ELEMENTS}; }
    __device__ tile values(int key) const { return {keys(key).data + tile::ELEMENTS}; }
    __device__ void ask_for(int key) const {
        head_rows again = head_of_block(a); /* rather than what `head` would keep in registers */
        fill<SHAPE::THREADS>(keys(key), rows_of(k, a.stride, a, again).from_row(key));
        fill<SHAPE::THREADS>(values(key), rows_of(v, a.stride, a, again).from_row(key));
        copy_async_commit();
    }
    /* Until the tiles from `key` on are there, which one stage alone can only ask for now. */
    __device__ void wait_for(int key) const {
        if (SHAPE::STAGES == 1 && key > 0) {
            __syncthreads();
            ask_for(key);
        }
        copy_async_wait<0>();
        __syncthreads(); /* the tiles are there, and nobody reads the others any more */
    }
    __device__ void ask_for_next(int key) const {
        if (SHAPE::STAGES == 2 && key + SHAPE::KEYS < head.n)
            ask_for(key + SHAPE::KEYS);
    }
};

/* --- launching --- */

template <typename KERNEL>
inline status allow_shared(struct cuda *cuda, KERNEL kernel, int bytes) {
    if (bytes > cuda_shared_limit(cuda))
        return failed(
            "attention needs %d bytes of shared memory in a block, but this device has %d: sm_80 or newer is needed",
            bytes, cuda_shared_limit(cuda));
    /* and as many blocks on a multiprocessor as its shared memory holds, not its default share of it */
    CUDA_TRY(cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                  cudaSharedmemCarveoutMaxShared));
    return cuda_check(cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                      "shared memory");
}

/* q: operands q, k, v; dq: their gradients, or q again. */
template <typename T>
inline status describe_call(const struct op_call *call, const struct operand *q, const struct operand *dq,
                            attention_call *a) {
    int64_t key_blocks = (call->longest_position + 15) / 16;
    TRY(heads_of<T>(call, q, a));
    a->stride = (int)q->stride;
    a->stride_dx = (int)dq->stride;
    for (int i = 1; i < 3; i++)
        if (q[i].stride != q->stride || dq[i].stride != dq->stride)
            return failed("attention: q, k and v must have rows as far apart");
    a->scale = call->attr->scale;
    a->scale_log2 = a->scale * LOG2_E;
    a->drop = dropout_of(call);
    a->longest_position = call->longest_position;
    a->key_blocks = (int)key_blocks;
    compare_with(a->drop.threshold, a);
    if (a->p > 128)
        return failed("attention: heads of %d columns: at most 128", a->p);
    if (a->drop.threshold > 255)
        return failed("attention: a dropout of %g keeps nothing", (double)call->attr->probability);
    if (a->drop.threshold > 0 && call->heads * call->longest_position * key_blocks > (int64_t)UINT32_MAX)
        return failed(
            "attention: dropout counts up to 2^36 probabilities of a sequence, not %lld heads of %lld queries",
            (long long)call->heads, (long long)call->longest_position);
    return OK;
}

#endif
