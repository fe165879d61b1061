/* CUDA kernels on the host: what stands behind the built-ins that our `.cu` files use, a fiber for each CUDA thread.
 * Included after CUDA's own headers, which give vector types, bf16 and half. See README.md of this folder. */
#ifndef BERTH_TESTS_CUDAEMU_H
#define BERTH_TESTS_CUDAEMU_H

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <tuple>
#include <type_traits>
#include <utility>

/* The race checker sees plain accesses by the compiler's instrumentation. What is an access of another kind (an atomic)
 * hides from that, and says itself what it does. */
#if defined(__SANITIZE_THREAD__)
#define EMU_ATOMIC __attribute__((no_sanitize("thread"), noinline))
#define EMU_SEE_ATOMIC(pointer) emu::atomic_access(pointer, sizeof *(pointer), __builtin_return_address(0))
#else
#define EMU_ATOMIC
#define EMU_SEE_ATOMIC(pointer) (void)0
#endif

namespace emu {

/* --- launching --- */

using thread_function = void (*)(const void *body);
void launch_grid(const char *kernel, const void *function, dim3 grid, dim3 block, size_t shared_bytes,
                 cudaStream_t stream, thread_function run, const void *body, size_t body_bytes);

/* Runs `body`, which calls the kernel, for every thread of the grid, when the stream comes to it. `function` is the
 * kernel's address, by which cudaFuncSetAttribute knows it; where it is not given, attributes set for any kernel count.
 */
template <typename F>
void launch(const char *kernel, const void *function, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
            const F &body) {
    static_assert(std::is_trivially_copy_constructible<F>::value && std::is_trivially_destructible<F>::value,
                  "arguments of a kernel are copied as bytes");
    thread_function run = [](const void *f) { (*static_cast<const F *>(f))(); };
    launch_grid(kernel, function, grid, block, shared_bytes, stream, run, &body, sizeof body);
}

template <typename F>
void launch(const char *kernel, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream, const F &body) {
    launch(kernel, nullptr, grid, block, shared_bytes, stream, body);
}

/* --- the thread that runs now --- */

extern uint3 thread_index, block_index;
extern dim3 block_dimension, grid_dimension;
extern int lane; /* in its warp */

/* The dynamic shared memory of the block, aligned to 128 bytes. */
void *dynamic_shared();

/* Stops unless [p, p + bytes) is shared memory of this block, dynamic or of one variable, and aligned. */
void shared_pointer_check(const void *p, size_t bytes, size_t alignment);

[[noreturn]] void misaligned(const void *p, size_t alignment);

/* Of a vector access. */
__attribute__((always_inline)) inline void check_access(const void *p, size_t alignment) {
    if (__builtin_expect(((uintptr_t)p & (alignment - 1)) != 0, 0))
        misaligned(p, alignment);
}

/* For the race checker. */
void atomic_access(const void *p, size_t bytes, const void *return_address);
void fence();

/* An argument of this type takes no part in finding T. */
template <typename T>
struct same_type {
    using type = T;
};
template <typename T>
using same = typename same_type<T>::type;

/* Is T one of these types? */
template <typename T, typename... Types>
constexpr bool is_one_of = (std::is_same<T, Types>::value || ...);

/* --- meeting others --- */

/* Where in the source something is called; as a default argument, the place of the call. */
struct place {
    const char *file;
    int line;
};

void barrier(place where);

/* What the last lane that comes does for all lanes of the mask; lanes[i] is what lane i brought. */
using collective_function = void (*)(void *const *lanes, unsigned mask);

/* Waits until all lanes of `mask` that the warp has brought theirs to the same function, `what` is its name. */
void collective(collective_function function, const char *what, unsigned mask, void *mine, place where);

/* all[32][bytes] becomes what each lane of the mask gave. */
void warp_exchange(const void *mine, size_t bytes, void *all, unsigned mask,
                   place where = {__builtin_FILE(), __builtin_LINE()});

void warp_barrier(unsigned mask, place where);
unsigned ballot(unsigned mask, bool predicate, place where);
[[noreturn]] void bad_source(int reader, int source, unsigned mask);

template <typename T>
struct shuffle {
    T value, result;
    int source;

    static void all(void *const *lanes, unsigned mask) {
        for (unsigned left = mask; left; left &= left - 1) {
            int reader = __builtin_ctz(left);
            shuffle *own = static_cast<shuffle *>(lanes[reader]);
            if (!(mask >> own->source & 1))
                bad_source(reader, own->source, mask);
            own->result = static_cast<shuffle *>(lanes[own->source])->value;
        }
    }
};

template <typename T>
T shuffle_from(const char *what, unsigned mask, T value, int source, place where) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a register or two");
    shuffle<T> mine = {value, value, source};
    collective(shuffle<T>::all, what, mask, &mine, where);
    return mine.result;
}

/* --- asynchronous copies of a thread to shared memory --- */

/* `bytes` of which the first `source_bytes` are copied and the rest is zero. Until the thread waits for it, poison. */
void cp_async(void *shared, const void *global, int bytes, int source_bytes);
void cp_async_commit();
void cp_async_wait(int groups_left);

/* A call of a kernel with the arguments as they are now: it may run later. */
template <typename... Parameters, typename... Arguments>
auto call_of(void (*kernel)(Parameters...), Arguments &&...arguments) {
    std::tuple<Parameters...> all(std::forward<Arguments>(arguments)...);
    return [kernel, all] { std::apply(kernel, all); };
}

}  // namespace emu

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
constexpr int warpSize = 32;

/* --- barriers, shuffles, votes --- */

#define EMU_HERE \
    { __builtin_FILE(), __builtin_LINE() }
#define __syncthreads() emu::barrier({__FILE__, __LINE__})

inline void __syncwarp(unsigned mask = 0xFFFFFFFFu, emu::place where = EMU_HERE) { emu::warp_barrier(mask, where); }
inline void __threadfence() { emu::fence(); }

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize, emu::place where = EMU_HERE) {
    int first = emu::lane & -width;
    return emu::shuffle_from("__shfl_sync", mask, value, first + (source & (width - 1)), where);
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int distance, int width = warpSize, emu::place where = EMU_HERE) {
    int source = emu::lane ^ distance, end = (emu::lane & -width) + width;
    return emu::shuffle_from("__shfl_xor_sync", mask, value, source < end ? source : emu::lane, where);
}

template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = warpSize, emu::place where = EMU_HERE) {
    int source = emu::lane - (int)distance, first = emu::lane & -width;
    return emu::shuffle_from("__shfl_up_sync", mask, value, source >= first ? source : emu::lane, where);
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = warpSize, emu::place where = EMU_HERE) {
    int source = emu::lane + (int)distance, end = (emu::lane & -width) + width;
    return emu::shuffle_from("__shfl_down_sync", mask, value, source < end ? source : emu::lane, where);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, emu::place where = EMU_HERE) {
    return emu::ballot(mask, predicate != 0, where);
}
inline int __any_sync(unsigned mask, int predicate, emu::place where = EMU_HERE) {
    return emu::ballot(mask, predicate != 0, where) != 0;
}
inline int __all_sync(unsigned mask, int predicate, emu::place where = EMU_HERE) {
    return emu::ballot(mask, predicate == 0, where) == 0;
}

/* --- atomics: fibers are not switched within --- */

template <typename T>
EMU_ATOMIC T atomicAdd(T *p, emu::same<T> value) {
    static_assert(emu::is_one_of<T, int, unsigned, unsigned long long, float, double>, "no such atomicAdd");
    EMU_SEE_ATOMIC(p);
    T old = *p;
    *p = old + value;
    return old;
}

template <typename T>
EMU_ATOMIC T atomicMax(T *p, emu::same<T> value) {
    static_assert(emu::is_one_of<T, int, unsigned, unsigned long long>, "no such atomicMax");
    EMU_SEE_ATOMIC(p);
    T old = *p;
    *p = old > value ? old : value;
    return old;
}

template <typename T>
EMU_ATOMIC T atomicMin(T *p, emu::same<T> value) {
    static_assert(emu::is_one_of<T, int, unsigned, unsigned long long>, "no such atomicMin");
    EMU_SEE_ATOMIC(p);
    T old = *p;
    *p = old < value ? old : value;
    return old;
}

template <typename T>
EMU_ATOMIC T atomicExch(T *p, emu::same<T> value) {
    static_assert(emu::is_one_of<T, int, unsigned, unsigned long long, float>, "no such atomicExch");
    EMU_SEE_ATOMIC(p);
    T old = *p;
    *p = value;
    return old;
}

template <typename T>
EMU_ATOMIC T atomicCAS(T *p, emu::same<T> compare, emu::same<T> value) {
    static_assert(emu::is_one_of<T, int, unsigned, unsigned long long>, "no such atomicCAS");
    EMU_SEE_ATOMIC(p);
    T old = *p;
    *p = old == compare ? value : old;
    return old;
}

template <typename T>
EMU_ATOMIC T atomicInc(T *p, emu::same<T> limit) {
    static_assert(emu::is_one_of<T, unsigned>, "no such atomicInc");
    EMU_SEE_ATOMIC(p);
    T old = *p;
    *p = old >= limit ? 0 : old + 1;
    return old;
}

/* --- loads and stores with a cache hint, which does nothing here; vectors have to be aligned --- */

#define EMU_LOAD(name)                    \
    template <typename T>                 \
    T name(const T *p) {                  \
        emu::check_access(p, alignof(T)); \
        return *p;                        \
    }
#define EMU_STORE(name)                   \
    template <typename T>                 \
    void name(T *p, emu::same<T> value) { \
        emu::check_access(p, alignof(T)); \
        *p = value;                       \
    }
EMU_LOAD(__ldg)
EMU_LOAD(__ldcs)
EMU_LOAD(__ldcg)
EMU_STORE(__stcs)
EMU_STORE(__stcg)
EMU_STORE(__stwt)

/* --- arithmetic; macros where some C library declares the name --- */

#define rsqrtf(x) (1.0f / sqrtf(x))
#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __fdividef(x, y) ((float)(x) / (float)(y))
#define __frcp_rn(x) (1.0f / (float)(x))

template <typename A, typename B>
constexpr std::common_type_t<A, B> min(A a, B b) {
    using T = std::common_type_t<A, B>;
    return (T)b < (T)a ? (T)b : (T)a;
}
template <typename A, typename B>
constexpr std::common_type_t<A, B> max(A a, B b) {
    using T = std::common_type_t<A, B>;
    return (T)a < (T)b ? (T)b : (T)a;
}

inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }

namespace emu {
template <typename To, typename From>
To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
}  // namespace emu
inline unsigned __float_as_uint(float x) { return emu::same_bits<unsigned>(x); }
inline int __float_as_int(float x) { return emu::same_bits<int>(x); }
inline float __uint_as_float(unsigned x) { return emu::same_bits<float>(x); }
inline float __int_as_float(int x) { return emu::same_bits<float>(x); }

#endif
