/* What every file of kernels starts with: launching, storage types, packs of 16 bytes, sums over warps and blocks, and
 * dropout's random bytes. With BERTH_EMU the same kernels are compiled for the host (tests/cudaemu). */
#ifndef BERTH_KERNELS_CUDA_DEVICE_CUH
#define BERTH_KERNELS_CUDA_DEVICE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>

#include "kernels/cuda/kernels.h"

#ifdef BERTH_EMU
#include <cudaemu.h>
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                          \
    do {                                                                                \
        emu::launch(#kernel, (const void *)(kernel), grid, block, shared_bytes, stream, \
                    emu::call_of(kernel, __VA_ARGS__));                                 \
        TRY(cuda_check(cudaGetLastError(), #kernel));                                   \
    } while (0)
#define DYNAMIC_SHARED(type, name) type *name = (type *)emu::dynamic_shared()
#else
/* In a function that returns status. A kernel that is a template with several arguments stands in parentheses. */
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)      \
    do {                                                            \
        kernel<<<grid, block, shared_bytes, stream>>>(__VA_ARGS__); \
        TRY(cuda_check(cudaGetLastError(), #kernel));               \
    } while (0)
#define DYNAMIC_SHARED(type, name)                                 \
    extern __shared__ __align__(128) unsigned char berth_shared[]; \
    type *name = reinterpret_cast<type *>(berth_shared)
#endif

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xFFFFFFFFu;

/* Run `...` with T being the storage type of a dtype. */
#define WITH_STORAGE(dtype, ...)                                       \
    switch (dtype) {                                                   \
        case F32: {                                                    \
            using T = float;                                           \
            __VA_ARGS__;                                               \
            break;                                                     \
        }                                                              \
        case BF16: {                                                   \
            using T = __nv_bfloat16;                                   \
            __VA_ARGS__;                                               \
            break;                                                     \
        }                                                              \
        case F16: {                                                    \
            using T = __half;                                          \
            __VA_ARGS__;                                               \
            break;                                                     \
        }                                                              \
        default:                                                       \
            return failed("no CUDA kernel for %s", dtype_name(dtype)); \
    }

/* --- storage: arithmetic is in float whatever the type in memory --- */

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float to_float(__half x) { return __half2float(x); }

template <typename T>
__device__ inline T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
    return x;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
    return __float2bfloat16_rn(x);
}
template <>
__device__ inline __half from_float<__half>(float x) {
    return __float2half_rn(x);
}

/* N neighbouring elements, moved by one access: of at most 16 bytes, and aligned to their size. */
template <typename T, int N>
struct alignas(N * sizeof(T)) pack {
    T at[N];
};

/* Elements of a 16-byte access. */
template <typename T>
constexpr int PACK = 16 / (int)sizeof(T);

template <typename T, int N>
__device__ inline void load(float (&to)[N], const T *from) {
    static_assert(N * sizeof(T) <= 16, "one access");
#ifdef BERTH_EMU
    emu::check_access(from, N * sizeof(T));
#endif
    pack<T, N> raw = *reinterpret_cast<const pack<T, N> *>(from);
#pragma unroll
    for (int i = 0; i < N; i++)
        to[i] = to_float(raw.at[i]);
}

template <typename T, int N>
__device__ inline void store(T *to, const float (&from)[N]) {
    static_assert(N * sizeof(T) <= 16, "one access");
    pack<T, N> raw;
#pragma unroll
    for (int i = 0; i < N; i++)
        raw.at[i] = from_float<T>(from[i]);
#ifdef BERTH_EMU
    emu::check_access(to, N * sizeof(T));
#endif
    *reinterpret_cast<pack<T, N> *>(to) = raw;
}

/* May rows of `columns` elements at `data` be read by packs of N? */
template <typename T>
inline bool packs_fit(const void *data, int64_t columns, int n) {
    return columns % n == 0 && (uintptr_t)data % (n * sizeof(T)) == 0;
}

/* --- sums --- */

/* V: float or double. */
template <typename V>
__device__ inline V warp_sum(V x) {
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2)
        x += __shfl_xor_sync(ALL_LANES, x, distance);
    return x;
}

__device__ inline float warp_max(float x) {
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2)
        x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, distance));
    return x;
}

/* --- dropout: see op.def for which byte belongs to which element --- */

/* A byte below the threshold drops its element; kept values are scaled. Threshold 0: nothing is dropped. */
struct dropout {
    uint64_t seed;
    uint32_t site;
    int threshold;
    float scale;
};

/* Of a call: off in evaluation. */
inline dropout dropout_of(const struct op_call *call) {
    int threshold = call->evaluate ? 0 : (int)lrintf(256 * call->attr->probability);
    return {call->seed, call->attr->site, threshold, 256.0f / (float)(256 - threshold)};
}

/* The 16 bytes of elements 16 block to 16 block + 15 of a sequence, byte i at bits 8 (i % 4) of word i / 4. */
__device__ inline uint4 random_bytes(const dropout &drop, int64_t sequence, uint32_t block) {
    uint32_t k0 = (uint32_t)drop.seed, k1 = (uint32_t)(drop.seed >> 32);
    uint32_t c0 = block, c1 = drop.site, c2 = (uint32_t)sequence, c3 = (uint32_t)(sequence >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint32_t low0 = 0xD2511F53u * c0, high0 = __umulhi(0xD2511F53u, c0);
        uint32_t low1 = 0xCD9E8D57u * c2, high1 = __umulhi(0xCD9E8D57u, c2);
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return make_uint4(c0, c1, c2, c3);
}

#endif
