/* The instructions that CUDA C++ has no words for: matrices from shared memory, the tensor cores' product, asynchronous
 * copies. The only file with assembly. Each has a branch for the host (BERTH_EMU), where a warp's lanes exchange what
 * the hardware would pass between them, so that kernels run unchanged in tests/cudaemu.
 *
 * How a warp holds matrices (PTX ISA, "Matrix Fragments for mma.m16n8k16"), with g = lane / 4 and t = lane % 4:
 *
 *   a[16,16]  row g     columns 2t, 2t+1: at[0]     columns 2t+8, 2t+9: at[2]
 *             row g+8                     at[1]                         at[3]
 *   b[16,8]   column g  rows    2t, 2t+1: at[0]     rows    2t+8, 2t+9: at[1]
 *   c[16,8]   row g     columns 2t, 2t+1: c[0], c[1]
 *             row g+8                     c[2], c[3]
 *
 * A word holds two neighbours of 16 bits, the first in its low half. Floats have the same layout with two floats for a
 * word; there are no such instructions for them, and their product below is exact in the sense of fmaf. */
#ifndef BERTH_KERNELS_CUDA_PTX_CUH
#define BERTH_KERNELS_CUDA_PTX_CUH

#include "kernels/cuda/device.cuh"

template <typename T>
struct fragment_a {
    uint32_t at[4];
};
template <>
struct fragment_a<float> {
    float at[8];
};

template <typename T>
struct fragment_b {
    uint32_t at[2];
};
template <>
struct fragment_b<float> {
    float at[4];
};

__device__ inline int lane_id() { return (int)(threadIdx.x % WARP); }

#ifdef BERTH_EMU
namespace host {
/* What ldmatrix gives this lane: of matrix i, whose rows the lanes 8i to 8i+7 point to, elements (g, 2t) and (g, 2t+1),
 * or (2t, g) and (2t+1, g) of it transposed. */
template <typename T>
void load_matrices(uint32_t (&to)[4], const T *row, bool transposed) {
    const T *rows[WARP];
    emu::shared_pointer_check(row, 16, 16);
    emu::warp_exchange(&row, sizeof row, rows, ALL_LANES);
    if (lane_id() == 0)
        emu::bank_check(reinterpret_cast<const void *const *>(rows));
    int g = lane_id() / 4, t = lane_id() % 4;
    for (int i = 0; i < 4; i++) {
        T pair[2];
        for (int e = 0; e < 2; e++)
            pair[e] = transposed ? rows[8 * i + 2 * t + e][g] : rows[8 * i + g][2 * t + e];
        memcpy(&to[i], pair, sizeof pair);
    }
}

template <typename T>
void multiply(float (&c)[4], const fragment_a<T> &a, const fragment_b<T> &b) {
    struct operands {
        T a[8], b[4];
    } mine, all[WARP];
    memcpy(mine.a, a.at, sizeof mine.a);
    memcpy(mine.b, b.at, sizeof mine.b);
    emu::warp_exchange(&mine, sizeof mine, all, ALL_LANES);
    int g = lane_id() / 4, t = lane_id() % 4;
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 16; k++)
            c[i] = fmaf(to_float(all[4 * g + k % 8 / 2].a[k / 8 * 4 + i / 2 * 2 + k % 2]),
                        to_float(all[4 * (2 * t + i % 2) + k % 8 / 2].b[k / 8 * 2 + k % 2]), c[i]);
}
}  // namespace host
#else
__device__ inline uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
#endif

/* --- ldmatrix: four 8x8 matrices of 16-bit elements. Lane i points to row i % 8 of matrix i / 8, 16 bytes in shared
 * memory; word i of the result belongs to matrix i. --- */

template <typename T>
__device__ inline void load_matrices(uint32_t (&to)[4], const T *row) {
    static_assert(sizeof(T) == 2, "16 bits");
#ifdef BERTH_EMU
    host::load_matrices(to, row, false);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
#endif
}

template <typename T>
__device__ inline void load_matrices_transposed(uint32_t (&to)[4], const T *row) {
    static_assert(sizeof(T) == 2, "16 bits");
#ifdef BERTH_EMU
    host::load_matrices(to, row, true);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
#endif
}

/* --- c += a b --- */

__device__ inline void multiply(float (&c)[4], const fragment_a<__nv_bfloat16> &a, const fragment_b<__nv_bfloat16> &b) {
#ifdef BERTH_EMU
    host::multiply(c, a, b);
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b.at[0]), "r"(b.at[1]));
#endif
}

__device__ inline void multiply(float (&c)[4], const fragment_a<__half> &a, const fragment_b<__half> &b) {
#ifdef BERTH_EMU
    host::multiply(c, a, b);
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b.at[0]), "r"(b.at[1]));
#endif
}

/* Floats: each lane gets the two rows of a from its own four lanes, and its two columns of b from the four lanes that
 * hold each: 64 shuffles for 64 fmaf, at about a quarter of the rate of floats. */
__device__ inline void multiply(float (&c)[4], const fragment_a<float> &a, const fragment_b<float> &b) {
    int group = lane_id() / 4 * 4, left = lane_id() % 4 * 8;
#pragma unroll 1 /* there are many of these products in a kernel */
    for (int t = 0; t < 4; t++)
#pragma unroll
        for (int k = 0; k < 4; k++) { /* of the four k that lane t of a group holds */
            float upper = __shfl_sync(ALL_LANES, a.at[k / 2 * 4 + k % 2], group + t);
            float lower = __shfl_sync(ALL_LANES, a.at[k / 2 * 4 + 2 + k % 2], group + t);
            float b0 = __shfl_sync(ALL_LANES, b.at[k], left + t), b1 = __shfl_sync(ALL_LANES, b.at[k], left + 4 + t);
            c[0] = fmaf(upper, b0, c[0]);
            c[1] = fmaf(upper, b1, c[1]);
            c[2] = fmaf(lower, b0, c[2]);
            c[3] = fmaf(lower, b1, c[3]);
        }
}

/* --- cp.async: BYTES from global to shared memory, both aligned to BYTES, or zeros if there is nothing --- */

template <int BYTES>
__device__ inline void copy_async(void *shared, const void *global, bool there) {
    static_assert(BYTES == 8 || BYTES == 16, "see PTX");
#ifdef BERTH_EMU
    emu::shared_pointer_check(shared, BYTES, BYTES);
    emu::check_access(global, BYTES);
    emu::cp_async(shared, global, BYTES, there ? BYTES : 0);
#else
    /* 16 bytes: past the L1 cache, which would not see them again */
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
                     "r"(there ? BYTES : 0)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(shared)), "l"(global),
                     "r"(there ? BYTES : 0)
                     : "memory");
#endif
}

/* Those of this thread since the last commit are a group. */
__device__ inline void copy_async_commit() {
#ifdef BERTH_EMU
    emu::cp_async_commit();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Until at most LEFT groups of this thread are under way. */
template <int LEFT>
__device__ inline void copy_async_wait() {
#ifdef BERTH_EMU
    emu::cp_async_wait(LEFT);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

/* 2^x to 2 units in the last place; 0 for -infinity. */
__device__ inline float exp2_fast(float x) {
#ifdef BERTH_EMU
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

#endif
