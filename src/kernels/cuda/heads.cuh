/* Ragged sequences and their heads, as the kernels of attention see them: [t, h·p] tensors of which one head of one
 * sequence is n rows of p columns, and [h,e] matrices of which it has n x n entries. A block belongs to head blockIdx.y
 * of sequence blockIdx.z; the blocks of one z more write the zeros behind the last token. */
#ifndef BERTH_KERNELS_CUDA_HEADS_CUH
#define BERTH_KERNELS_CUDA_HEADS_CUH

#include "kernels/cuda/tiles.cuh"

struct ragged_heads {
    const int32_t *starts;
    const int64_t *square_starts, *numbers; /* see struct ragged */
    int sequences, heads, p;
    int64_t hidden;
    int64_t tokens, padded;
    bool packs; /* rows of a head can be moved 16 bytes at a time */
};

struct head_rows {
    int n;     /* tokens */
    int token; /* the first one */
    int number, sequence;
    int64_t stream; /* the sequence's number in dropout's counters */
};

/* Loops that need all registers call this again, for what they seldom need, rather than keep it. */
__device__ inline head_rows head_of_block(const ragged_heads &a) {
    int sequence = (int)blockIdx.z, start = a.starts[sequence];
    return {a.starts[sequence + 1] - start, start, (int)blockIdx.y, sequence, a.numbers[sequence]};
}

/* The head's rows of a [t, h·p] tensor whose rows begin `stride` elements apart. */
template <typename T>
__device__ inline matrix<T> rows_of(T *data, int stride, const ragged_heads &a, const head_rows &head) {
    return {data + (int64_t)head.token * stride + head.number * a.p, stride, head.n, a.p, a.packs};
}
template <typename T>
__device__ inline matrix<T> rows_of(T *data, const ragged_heads &a, const head_rows &head) {
    return rows_of(data, a.hidden, a, head);
}

/* The head's matrix of a [h,e] tensor. */
template <typename T>
__device__ inline matrix<T> matrix_of(T *data, const ragged_heads &a, const head_rows &head) {
    int n = head.n;
    T *first = data + a.heads * a.square_starts[head.sequence] + (int64_t)head.number * n * n;
    return {first, n, n, n, n % PACK<T> == 0 && (uintptr_t)first % 16 == 0};
}

__device__ inline bool is_tail_block(const ragged_heads &a) { return (int)blockIdx.z == a.sequences; }

/* The head's columns behind the last token, by all blocks of the head in a tail. */
template <typename T>
__device__ inline void zero_tail(T *data, int stride, const ragged_heads &a) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (a.padded - a.tokens) * a.p; i += step)
        data[(a.tokens + i / a.p) * stride + blockIdx.y * a.p + i % a.p] = from_float<T>(0);
}
template <typename T>
__device__ inline void zero_tail(T *data, const ragged_heads &a) {
    zero_tail(data, a.hidden, a);
}

/* --- launching --- */

/* `rows` is an operand [t, h·p]; all operands of its shape have its dtype. */
template <typename T>
inline status heads_of(const struct op_call *call, const struct operand *rows, ragged_heads *heads) {
    const struct ragged *ragged = call->ragged;
    int64_t p = call->hidden / call->heads;
    bool packs = true;
    for (int i = 0; i < op_info(call->op)->inputs; i++)
        packs = packs && (call->in[i].columns != rows->columns || packs_fit<T>(call->in[i].data, p, PACK<T>));
    for (int i = 0; i < op_info(call->op)->outputs; i++)
        packs = packs && (call->out[i].columns != rows->columns || packs_fit<T>(call->out[i].data, p, PACK<T>));
    if (ragged->sequences >= 65535 || call->heads > 65535)
        return failed("attention: %lld sequences of %lld heads: at most 65534 of 65535", (long long)ragged->sequences,
                      (long long)call->heads);
    *heads = {ragged->starts,
              ragged->square_starts,
              ragged->sequence_numbers,
              (int)ragged->sequences,
              (int)call->heads,
              (int)p,
              call->hidden,
              rows->rows,
              rows->padded_rows,
              packs};
    return OK;
}

/* Blocks of `size` that n needs; a grid has at least one. */
inline unsigned blocks_of(int64_t n, int size) { return n > 0 ? (unsigned)((n + size - 1) / size) : 1; }

#endif
