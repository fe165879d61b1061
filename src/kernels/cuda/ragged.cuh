/* Rows of the ragged attention matrices [h,e]: those of a (sequence, head, query), as long as the sequence. They begin
 * anywhere, so that items are the aligned ones that cover a row, and the first and the last of them may be cut. */
#ifndef BERTH_KERNELS_CUDA_RAGGED_CUH
#define BERTH_KERNELS_CUDA_RAGGED_CUH

#include "kernels/cuda/rows.cuh"

struct ragged_matrices {
    const int32_t *token_sequence, *starts;
    const int64_t *square_starts, *numbers;
    int64_t heads, tokens, longest_position, padded_keys;
};

inline ragged_matrices ragged_matrices_of(const struct op_call *call) {
    const struct ragged *ragged = call->ragged;
    return {ragged->token_sequence,
            ragged->starts,
            ragged->square_starts,
            ragged->sequence_numbers,
            call->heads,
            ragged->tokens,
            call->longest_position,
            (call->longest_position + 15) / 16 * 16};
}

/* The row of a query, counted from the aligned element before its first: its entries are [begin, end) of those. */
struct matrix_row {
    int64_t aligned;
    int begin, end;
    int64_t first_key; /* token */
    place at;          /* in the random stream */
};

/* Empty beyond the last token. */
__device__ inline matrix_row matrix_row_of(const ragged_matrices &m, int64_t query_token, int64_t head) {
    if (query_token >= m.tokens)
        return {};
    int sequence = m.token_sequence[query_token];
    int64_t start = m.starts[sequence], n = m.starts[sequence + 1] - start, query = query_token - start;
    int64_t first = m.heads * m.square_starts[sequence] + (head * n + query) * n;
    int begin = (int)(first % ITEM);
    return {first - begin,
            begin,
            begin + (int)n,
            start,
            {m.numbers[sequence], (head * m.longest_position + query) * m.padded_keys}};
}

/* Rows of all heads: a group a query, blockIdx.y the head. */
template <int WARPS>
inline dim3 matrix_grid(const struct cuda *cuda, const struct op_call *call, int64_t most) {
    int64_t blocks = ceil_div(call->ragged->tokens, GROUPS<WARPS>);
    int64_t limit = at_least_1(most * cuda_multiprocessors(cuda) / call->heads);
    return dim3((unsigned)(blocks < limit ? blocks : limit), (unsigned)call->heads);
}

/* The most elements that a group must hold for a row of any sequence. */
inline int64_t matrix_columns(const struct op_call *call) { return call->ragged->longest + ITEM - 1; }

/* [h,e] tensors are walked by packs only. */
inline status check_matrices(const struct op_call *call) {
    if (!operands_aligned(call))
        return failed("%s: operands must begin at multiples of 16 bytes", op_info(call->op)->name);
    return OK;
}

#endif
