/* CUDA kernels on the host: what stands behind the built-ins that our `.cu` files use, a fiber for each CUDA thread.
 * Included after CUDA's own headers, which give vector types, bf16 and half. See README.md of this folder. */
#ifndef BERTH_TESTS_CUDAEMU_H
#define BERTH_TESTS_CUDAEMU_H

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <functional>
#include <tuple>
#include <type_traits>

namespace emu {

/* --- launching --- */

/* A call of a kernel with the arguments as they are now: it may run later. */
template <typename... Parameters, typename... Arguments>
auto call_of(void (*kernel)(Parameters...), Arguments &&...arguments) {
    static_assert((std::is_trivially_copyable<Parameters>::value && ...), "arguments of a kernel are copied as bytes");
    std::tuple<Parameters...> all(std::forward<Arguments>(arguments)...);
    return [kernel, all] { std::apply(kernel, all); };
}

/* Runs `thread`, a call_of the kernel, for every thread of the grid, when the stream comes to it. `function` is the
 * kernel's address, by which cudaFuncSetAttribute knows it. */
void launch(const char *kernel, const void *function, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
            std::function<void()> thread);

/* --- the thread that runs now --- */

extern uint3 thread_index, block_index;
extern dim3 block_dimension, grid_dimension;
extern int lane; /* in its warp */

/* The dynamic shared memory of the block, aligned to 128 bytes. */
void *dynamic_shared();

/* Stops unless [p, p + bytes) is shared memory of this block, dynamic or of one variable, and aligned. */
void shared_pointer_check(const void *p, size_t bytes, size_t alignment);

/* Stops unless a warp's ldmatrix, whose lane i points to row i % 8 of matrix i / 8, finds the rows of each matrix in
 * different banks: in one step of shared memory. */
void bank_check(const void *const rows[32]);

void misaligned(const void *p, size_t alignment);

/* Of a vector access. */
__attribute__((always_inline)) inline void check_access(const void *p, size_t alignment) {
    if (__builtin_expect(((uintptr_t)p & (alignment - 1)) != 0, 0))
        misaligned(p, alignment);
}

/* --- meeting others --- */

/* Where in the source something is called; as a default argument, the place of the call. */
struct place {
    const char *file;
    int line;
};
#define EMU_HERE \
    { __builtin_FILE(), __builtin_LINE() }

void barrier(place where);

constexpr int EVERY_LANE = -1;

/* Waits until all lanes of `mask` that the warp has came to the same call. Then out[bytes] is what was at `mine` of
 * lane `source`; of EVERY_LANE: out[32][bytes] of all lanes of the mask. */
void meet(const char *what, unsigned mask, const void *mine, size_t bytes, int source, void *out, place where);

inline void warp_exchange(const void *mine, size_t bytes, void *all, unsigned mask, place where = EMU_HERE) {
    meet("a warp's exchange", mask, mine, bytes, EVERY_LANE, all, where);
}

template <typename T>
T shuffle(const char *what, unsigned mask, T value, int source, place where) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a register or two");
    T result = value;
    meet(what, mask, &value, sizeof value, source, &result, where);
    return result;
}

/* --- asynchronous copies of a thread to shared memory --- */

/* `bytes` of which the first `source_bytes` are copied and the rest is zero. Until the thread waits for it, poison. */
void cp_async(void *shared, const void *global, int bytes, int source_bytes);
void cp_async_commit();
void cp_async_wait(int groups_left);

/* --- atomics --- */

/* The race checker sees plain accesses by the compiler's instrumentation. An atomic hides from that, and says itself
 * what it does. */
#if defined(__SANITIZE_THREAD__)
#define EMU_ATOMIC __attribute__((no_sanitize("thread"), noinline))
#else
#define EMU_ATOMIC
#endif
void atomic_access(const void *p, size_t bytes, const void *return_address);

/* An argument of this type takes no part in finding T. */
template <typename T>
struct same_type {
    using type = T;
};
template <typename T>
using same = typename same_type<T>::type;

}  // namespace emu

/* --- words of the language --- */

/* The tag is part of the symbol's name: by it the emulator finds these variables, to poison them for each block. */
#undef __shared__
#define __shared__ static __attribute__((abi_tag("berth_shared")))
/* Variables of kernels that only this file knows are apart from each other with the address sanitizer. */
#undef __global__
#define __global__ static __attribute__((unused))
#undef __launch_bounds__
#define __launch_bounds__(...)

#define threadIdx (emu::thread_index)
#define blockIdx (emu::block_index)
#define blockDim (emu::block_dimension)
#define gridDim (emu::grid_dimension)

/* --- barriers and shuffles, of whole warps --- */

#define __syncthreads() emu::barrier({__FILE__, __LINE__})

inline void __syncwarp(unsigned mask = 0xFFFFFFFFu, emu::place where = EMU_HERE) {
    emu::meet("__syncwarp", mask, nullptr, 0, emu::EVERY_LANE, nullptr, where);
}

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, emu::place where = EMU_HERE) {
    return emu::shuffle("__shfl_sync", mask, value, source & 31, where);
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int distance, emu::place where = EMU_HERE) {
    return emu::shuffle("__shfl_xor_sync", mask, value, (emu::lane ^ distance) & 31, where);
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance, emu::place where = EMU_HERE) {
    unsigned source = emu::lane + distance;
    return emu::shuffle("__shfl_down_sync", mask, value, source < 32 ? (int)source : emu::lane, where);
}

/* `becomes` is what *p gets of its old value and the argument. Fibers are not switched within. */
#define EMU_ATOMICS(name, becomes)                                     \
    template <typename T>                                              \
    EMU_ATOMIC T name(T *p, emu::same<T> value) {                      \
        emu::atomic_access(p, sizeof *p, __builtin_return_address(0)); \
        T old = *p;                                                    \
        *p = becomes;                                                  \
        return old;                                                    \
    }
EMU_ATOMICS(atomicAdd, old + value)
EMU_ATOMICS(atomicMin, old < value ? old : value)

/* --- arithmetic; macros where some C library declares the name --- */

#define rsqrtf(x) (1.0f / sqrtf(x))
#define __fdividef(x, y) ((float)(x) / (float)(y))

template <typename A, typename B>
constexpr std::common_type_t<A, B> min(A a, B b) {
    using T = std::common_type_t<A, B>;
    return (T)b < (T)a ? (T)b : (T)a;
}

inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }

#endif
