/* The emulator finds faults that are planted in kernels and in calls of the library. */
#include <cublasLt.h>
#include <cuda_bf16.h>

#include <thread>

#include "planted.h"

constexpr unsigned ALL = 0xFFFFFFFFu;
constexpr int N = 256; /* threads of most blocks */

static std::vector<float> counted(size_t n) {
    std::vector<float> made(n);
    for (size_t i = 0; i < n; i++)
        made[i] = (float)(i % 101);
    return made;
}

static float sum_of(const std::vector<float> &x) {
    float sum = 0;
    for (float value : x)
        sum += value;
    return sum;
}

/* --- barriers and shared memory --- */

__device__ float warp_sum(float x) {
    for (int distance = 16; distance > 0; distance /= 2)
        x += __shfl_xor_sync(ALL, x, distance);
    return x;
}

enum missing { NOTHING, AFTER_WRITE, BEFORE_REUSE };

/* Sums of rows, one after another through the same shared memory. */
template <missing MISSING>
__global__ void sum_rows(float *out, const float *x, int rows) {
    __shared__ float part[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int row = 0; row < rows; row++) {
        float sum = warp_sum(x[row * N + threadIdx.x]);
        if (lane == 0)
            part[warp] = sum;
        if (MISSING != AFTER_WRITE)
            __syncthreads();
        sum = warp_sum(lane < N / 32 ? part[lane] : 0);
        if (threadIdx.x == 0)
            out[row] = sum;
        if (MISSING != BEFORE_REUSE)
            __syncthreads();
    }
}

template <missing MISSING>
static bool sums_of_rows() {
    device_array<float> x(counted(4 * N)), out(4);
    LAUNCH((sum_rows<MISSING>), 1, N, 0, out.data, x.data, 4);
    std::vector<float> all = counted(4 * N), sums = out.host();
    for (int row = 0; row < 4; row++)
        if (sums[row] != sum_of({all.begin() + row * N, all.begin() + (row + 1) * N}))
            return false;
    return true;
}

/* A warp turns its 32 values around through shared memory. */
template <bool SYNC>
__global__ void reverse(float *out) {
    __shared__ float values[32];
    values[threadIdx.x] = (float)threadIdx.x;
    if (SYNC)
        __syncwarp();
    else
        __shfl_sync(ALL, 1, 0); /* orders no memory */
    out[threadIdx.x] = values[31 - threadIdx.x];
}

template <bool SYNC>
static bool reversed() {
    device_array<float> out(32);
    LAUNCH(reverse<SYNC>, 1, 32, 0, out.data);
    return out.host()[0] == 31 && out.host()[31] == 0;
}

/* Two threads of different warps read, and then one of them writes. */
template <bool BARRIER>
__global__ void two_readers(float *out) {
    __shared__ float value;
    if (threadIdx.x == 0)
        value = 1;
    __syncthreads();
    float seen = threadIdx.x % 32 == 0 ? value : 1;
    if (BARRIER)
        __syncthreads();
    if (threadIdx.x == 32)
        value = 2;
    out[threadIdx.x] = seen;
}

template <bool BARRIER>
static bool read_twice() {
    device_array<float> out(64);
    LAUNCH(two_readers<BARRIER>, 1, 64, 0, out.data);
    return !BARRIER || sum_of(out.host()) == 64;
}

enum divergence { NONE, SOME_EXIT, TWO_PLACES };

template <divergence KIND>
__global__ void diverge(float *out) {
    if (KIND == SOME_EXIT && threadIdx.x >= 48)
        return;
    if (KIND == TWO_PLACES && threadIdx.x < 10)
        __syncthreads();
    else
        __syncthreads();
    out[threadIdx.x] = 1;
}

template <divergence KIND>
static bool diverged() {
    device_array<float> out(64);
    LAUNCH(diverge<KIND>, 1, 64, 0, out.data);
    return sum_of(out.host()) == 64;
}

/* Shared memory is poison when a block begins, for the second one too. */
__global__ void see_shared(float *out) {
    __shared__ float fixed[4];
    float *dynamic = (float *)emu::dynamic_shared();
    out[blockIdx.x * 2] = fixed[threadIdx.x];
    out[blockIdx.x * 2 + 1] = dynamic[threadIdx.x];
    fixed[threadIdx.x] = dynamic[threadIdx.x] = 1;
}

static bool shared_is_poison() {
    device_array<float> out(6);
    LAUNCH(see_shared, 3, 1, 16, out.data);
    for (float value : out.host())
        if (!isnan(value))
            return false;
    return true;
}

/* --- threads and blocks that write to the same --- */

template <bool ATOMIC>
__global__ void histogram(int *counts, const int *x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    if (ATOMIC)
        atomicAdd(&counts[x[i]], 1);
    else
        counts[x[i]] = counts[x[i]] + 1;
}

template <bool ATOMIC>
static bool counted_in_buckets() {
    std::vector<int> which(1000), zero(16);
    for (int i = 0; i < 1000; i++)
        which[i] = i * 7 % 16;
    device_array<int> x(which), counts(zero);
    LAUNCH((histogram<ATOMIC>), 4, N, 0, counts.data, x.data, 1000);
    int all = 0;
    for (int count : counts.host())
        all += count;
    return all == 1000;
}

/* The last block adds up what the others wrote: nothing orders them. */
__global__ void sum_all(float *out, float *partial, unsigned *counter, const float *x) {
    float sum = warp_sum(x[blockIdx.x * 32 + threadIdx.x]);
    if (threadIdx.x != 0)
        return;
    partial[blockIdx.x] = sum;
    if (atomicAdd(counter, 1) < gridDim.x - 1)
        return;
    for (unsigned i = 0; i < gridDim.x; i++)
        *out += partial[i];
}

static bool last_block_sums() {
    device_array<float> x(counted(32 * 50)), partial(50), out(1);
    device_array<unsigned> counter(std::vector<unsigned>(1));
    LAUNCH(sum_all, 50, 32, 0, out.data, partial.data, counter.data, x.data);
    return true;
}

/* Every thread changes its own bf16, beside those of others; APART: or that of its neighbour. */
template <bool APART>
__global__ void double_each(__nv_bfloat16 *x, unsigned char *bytes) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, from = APART ? i : i ^ 1;
    x[i] = __float2bfloat16_rn(2 * __bfloat162float(x[from]));
    bytes[i] = (unsigned char)(bytes[from] + 1);
}

/* The same memory, by whole words. */
__global__ void double_pairs(uint32_t *x) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    x[i] += 0x00800080u; /* the exponents of two bf16 */
}

template <bool APART>
static bool doubled() {
    std::vector<__nv_bfloat16> ones(2 * N, __float2bfloat16_rn(1));
    device_array<__nv_bfloat16> x(ones);
    device_array<unsigned char> bytes(std::vector<unsigned char>(2 * N, 6));
    for (int time = 0; time < 2; time++) {
        LAUNCH((double_each<APART>), 2, N, 0, x.data, bytes.data);
        LAUNCH(double_pairs, 1, N, 0, (uint32_t *)x.data);
    }
    return __bfloat162float(x.host()[2 * N - 1]) == 16 && bytes.host()[3] == 8;
}

template <bool APART>
__global__ void write_blocks(float *out) {
    out[APART ? blockIdx.x : 0] = 1;
}

template <bool APART>
static bool blocks_write() {
    device_array<float> out(4);
    LAUNCH(write_blocks<APART>, 4, 1, 0, out.data);
    return true;
}

/* --- bounds and alignment --- */

template <int EXTRA>
__global__ void fill(float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n + EXTRA)
        out[i] = 1;
}

template <int EXTRA>
static bool filled() {
    device_array<float> out(100);
    LAUNCH(fill<EXTRA>, 1, N, 0, out.data, 100);
    return sum_of(out.host()) == 100;
}

template <int EXTRA>
__global__ void fill_dynamic(float *out) {
    float *values = (float *)emu::dynamic_shared();
    values[(int)threadIdx.x + EXTRA] = 1;
    __syncthreads();
    out[threadIdx.x] = values[(int)threadIdx.x + EXTRA];
}

template <int EXTRA>
static bool filled_dynamic() {
    device_array<float> out(64);
    LAUNCH(fill_dynamic<EXTRA>, 1, 64, 256, out.data);
    return sum_of(out.host()) == 64;
}

template <int EXTRA>
__global__ void fill_fixed(float *out) {
    __shared__ float values[64];
    float *at = values + threadIdx.x + EXTRA;
    asm volatile("" : "+r"(at)); /* the compiler is not to see where it points */
    *at = 1;
    __syncthreads();
    out[threadIdx.x] = *at;
}

template <int EXTRA>
static bool filled_fixed() {
    device_array<float> out(64);
    LAUNCH(fill_fixed<EXTRA>, 1, 64, 0, out.data);
    return sum_of(out.host()) == 64;
}

__global__ void load_four(float *out, const float *x) {
    emu::check_access(x + 4 * threadIdx.x, sizeof(float4));
    float4 four = *(const float4 *)(x + 4 * threadIdx.x);
    out[threadIdx.x] = four.x + four.y + four.z + four.w;
}

template <int BY>
static bool loaded_by_four() {
    device_array<float> x(counted(136)), out(32);
    LAUNCH(load_four, 1, 32, 0, out.data, x.data + BY);
    return out.host()[1] == 4 + 5 + 6 + 7;
}

/* Eight rows of 16 bytes, STRIDE bytes apart. */
template <int STRIDE>
__global__ void read_matrices(float *out) {
    alignas(16) __shared__ char rows[8 * 144];
    const void *row = rows + threadIdx.x % 8 * STRIDE, *all[32];
    emu::warp_exchange(&row, sizeof row, all, ALL);
    if (threadIdx.x == 0)
        emu::bank_check(all);
    out[threadIdx.x] = STRIDE;
}

template <int STRIDE>
static bool matrices_read() {
    device_array<float> out(32);
    LAUNCH(read_matrices<STRIDE>, 1, 32, 0, out.data);
    return out.host()[31] == STRIDE;
}

template <bool FREED>
static bool after_free() {
    device_array<float> out(100);
    if (FREED)
        cudaFree(out.data);
    LAUNCH(fill<0>, 1, N, 0, out.data, 100);
    return true;
}

/* --- collectives --- */

enum mask_fault { RIGHT, NOT_IN_MASK, NEVER_COMES, BAD_SOURCE };

template <mask_fault FAULT>
__global__ void half_warps(float *out) {
    float x = (float)threadIdx.x;
    unsigned half = threadIdx.x < 16 ? 0xFFFFu : 0xFFFF0000u;
    if (FAULT == NOT_IN_MASK)
        half = 0xFFFF;
    if (FAULT == NEVER_COMES && threadIdx.x == 20)
        return;
    out[threadIdx.x] = __shfl_xor_sync(half, x, FAULT == BAD_SOURCE ? 16 : 1);
}

template <mask_fault FAULT>
static bool in_halves() {
    device_array<float> out(32);
    LAUNCH(half_warps<FAULT>, 1, 32, 0, out.data);
    return out.host()[6] == 7 && out.host()[31] == 30;
}

/* One value for each built-in, of lane 5 and lane 30. */
constexpr int VALUES = 5;

__global__ void collectives(float *out) {
    int lane = threadIdx.x;
    float x = (float)lane, all[32][2], mine[2] = {x, -x};
    emu::warp_exchange(mine, sizeof mine, all, ALL);
    float values[VALUES] = {__shfl_down_sync(ALL, x, 3), __shfl_sync(ALL, x, 35), __shfl_xor_sync(ALL, x, 6),
                            (float)__shfl_xor_sync(ALL, (double)x, 1), all[9][1]};
    if (lane == 5 || lane == 30)
        for (int i = 0; i < VALUES; i++)
            out[(lane == 30) * VALUES + i] = values[i];
}

static bool collective_values() {
    device_array<float> out(2 * VALUES);
    LAUNCH(collectives, 1, 32, 0, out.data);
    return out.host() == std::vector<float>{8, 3, 3, 4, -9, 30, 3, 24, 31, -9};
}

__global__ void atomics(int *ints) {
    atomicMin(&ints[0], (int)threadIdx.x);
    atomicAdd(&ints[1], 2);
}

static bool atomic_values() {
    device_array<int> ints(std::vector<int>{99, 1});
    LAUNCH(atomics, 1, 64, 0, ints.data);
    return ints.host() == std::vector<int>{0, 129};
}

/* --- asynchronous copies --- */

enum wait_fault { WAITS, READS_EARLY, NEVER_WAITS };

template <wait_fault FAULT>
__global__ void copy_in(float *out, const float *x) {
    float *values = (float *)emu::dynamic_shared();
    for (int stage = 0; stage < 2; stage++) {
        emu::cp_async(values + 4 * (stage * 32 + threadIdx.x), x + 4 * (stage * 32 + threadIdx.x), 16, 12);
        emu::cp_async_commit();
    }
    if (FAULT == WAITS)
        emu::cp_async_wait(1);
    __syncthreads();
    out[threadIdx.x] = values[4 * (31 - threadIdx.x) + 2] + values[4 * (31 - threadIdx.x) + 3];
    if (FAULT != NEVER_WAITS)
        emu::cp_async_wait(0);
}

template <wait_fault FAULT>
static bool copied_in() {
    device_array<float> x(counted(256)), out(32);
    LAUNCH(copy_in<FAULT>, 1, 32, 1024, out.data, x.data);
    std::vector<float> sums = out.host();
    for (int i = 0; i < 32; i++)
        if (sums[i] != (float)((4 * (31 - i) + 2) % 101))
            return false;
    return true;
}

/* --- launches and the runtime --- */

__global__ void nothing() {}

template <int SHARED, bool ALLOWED>
static bool launched() {
    if (ALLOWED &&
        cudaFuncSetAttribute((const void *)nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED) != cudaSuccess)
        return false;
    LAUNCH(nothing, 1, 32, SHARED);
    return cudaGetLastError() == cudaSuccess && cudaGetLastError() == cudaSuccess;
}

template <int THREADS>
static bool many_threads() {
    LAUNCH(nothing, 1, THREADS, 0);
    return true;
}

template <int ROWS>
static bool large_grid() {
    LAUNCH(nothing, dim3(1, ROWS, 1), 1, 0);
    return true;
}

template <int BYTES>
static bool copied_out() {
    device_array<float> x(counted(100));
    char to[1024];
    return cudaMemcpy(to, (char *)x.data + 100, BYTES, cudaMemcpyDeviceToHost) == cudaSuccess;
}

/* The runtime is called by two threads of the host. */
static bool called_by_two() {
    device_array<float> x(1);
    std::thread([] { device_array<float> y(1); }).join();
    return true;
}

/* --- the library: f32, D[3,2] = A^T B with a bias, and its gradient --- */

static bool multiplied(uint32_t epilogue, int64_t rows_of_b, const std::vector<float> &expected) {
    device_array<float> a(std::vector<float>{1, 2, 3, 4, 5, 6}), b(std::vector<float>{1, 0, -1, 2});
    device_array<float> bias(std::vector<float>{10, 20, 30}), d(6);
    cublasLtHandle_t library;
    cublasLtMatmulDesc_t how;
    cublasLtMatrixLayout_t la, lb, ld;
    cublasLtMatmulPreference_t wish;
    cublasLtMatmulHeuristicResult_t found;
    int32_t transposed = CUBLAS_OP_T;
    int count;
    float one = 1, zero = 0;
    cublasLtCreate(&library);
    cublasLtMatmulDescCreate(&how, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(how, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    cublasLtMatmulDescSetAttribute(how, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    cublasLtMatmulDescSetAttribute(how, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias.data, sizeof bias.data);
    cublasLtMatrixLayoutCreate(&la, CUDA_R_32F, 2, 3, 2);
    cublasLtMatrixLayoutCreate(&lb, CUDA_R_32F, rows_of_b, 2, rows_of_b);
    cublasLtMatrixLayoutCreate(&ld, CUDA_R_32F, 3, 2, 3);
    cublasLtMatmulPreferenceCreate(&wish);
    if (cublasLtMatmulAlgoGetHeuristic(library, how, la, lb, ld, ld, wish, 1, &found, &count) !=
            CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmul(library, how, &one, a.data, la, b.data, lb, &zero, d.data, ld, d.data, ld, &found.algo, nullptr,
                       0, nullptr) != CUBLAS_STATUS_SUCCESS)
        return false;
    return (epilogue == CUBLASLT_EPILOGUE_BGRADB ? bias.host() : d.host()) == expected;
}

static bool product_with_bias() { return multiplied(CUBLASLT_EPILOGUE_BIAS, 2, {11, 23, 35, 13, 25, 37}); }
static bool bias_gradient() { return multiplied(CUBLASLT_EPILOGUE_BGRADB, 2, {1, 1, 30}); }
static bool unknown_epilogue() { return multiplied(CUBLASLT_EPILOGUE_RELU, 2, {1}); }
static bool shapes_do_not_fit() { return multiplied(CUBLASLT_EPILOGUE_DEFAULT, 1, {1}); }

static const test TESTS[] = {
    {"sums through shared memory", sums_of_rows<NOTHING>, CLEAN, ""},
    {"a missing barrier after a write", sums_of_rows<AFTER_WRITE>, RACE,
     "of shared part, after a write by block (0,0,0)"},
    {"a missing barrier before reuse", sums_of_rows<BEFORE_REUSE>, RACE,
     "of shared part, after a read by block (0,0,0)"},
    {"a warp's exchange through shared memory", reversed<true>, CLEAN, ""},
    {"a missing __syncwarp", reversed<false>, RACE, "of shared values, after a "},
    {"two readers and a barrier", read_twice<true>, CLEAN, ""},
    {"two readers, of which one writes", read_twice<false>, RACE, "of byte 0 of shared value, after a "},
    {"a barrier for all", diverged<NONE>, CLEAN, ""},
    {"a barrier that some exit before", diverged<SOME_EXIT>, FAULT, "divergent barrier: 48 of 64 threads arrived"},
    {"barriers at two places", diverged<TWO_PLACES>, FAULT, "threads wait at tests/cudaemu/test_emulator.cpp:"},
    {"shared memory is poison", shared_is_poison, CLEAN, ""},
    {"a histogram with atomics", counted_in_buckets<true>, CLEAN, ""},
    {"a lost update", counted_in_buckets<false>, RACE, "of 64 bytes of device memory, after a "},
    {"sums of blocks, by the last one", last_block_sums, RACE, "of 200 bytes of device memory, after a write"},
    {"threads change neighbouring bf16 and bytes", doubled<true>, CLEAN, ""},
    {"threads read their neighbour's bf16", doubled<false>, RACE, "of device memory, after a "},
    {"blocks write apart", blocks_write<true>, CLEAN, ""},
    {"blocks write to one place", blocks_write<false>, RACE, "race: write of byte 0 of 16 bytes of device memory"},
    {"a write within bounds", filled<0>, CLEAN, ""},
    {"a write beyond device memory", filled<1>, OUT_OF_BOUNDS,
     ADDRESSES_SEEN ? "AddressSanitizer" : "out-of-bounds write: byte 400 of 400 bytes of device memory"},
    {"a write within dynamic shared memory", filled_dynamic<0>, CLEAN, ""},
    {"a write beyond dynamic shared memory", filled_dynamic<1>, OUT_OF_BOUNDS,
     ADDRESSES_SEEN ? "AddressSanitizer" : "invalid address: byte 256 of 256 bytes of dynamic shared memory"},
    {"a write before dynamic shared memory", filled_dynamic<-1>, OUT_OF_BOUNDS,
     ADDRESSES_SEEN ? "AddressSanitizer" : "out-of-bounds write: byte -4 of 256 bytes of dynamic shared memory"},
    {"a write within a shared variable", filled_fixed<0>, CLEAN, ""},
    {"a write beyond a shared variable", filled_fixed<1>, ADDRESS, "AddressSanitizer: global-buffer-overflow"},
    {"aligned vectors", loaded_by_four<0>, CLEAN, ""},
    {"a misaligned vector", loaded_by_four<1>, FAULT, "misaligned access"},
    {"rows of a matrix in different banks", matrices_read<144>, CLEAN, ""},
    {"rows of a matrix in the same banks", matrices_read<64>, FAULT,
     "bank conflict: rows 0 and 2 of an 8x8 matrix, 128 bytes apart in byte 0 of shared rows"},
    {"a read beyond device memory", loaded_by_four<100>, OUT_OF_BOUNDS,
     ADDRESSES_SEEN ? "AddressSanitizer" : " of 544 bytes of device memory"},
    {"memory in use", after_free<false>, CLEAN, ""},
    {"memory that was freed", after_free<true>, OUT_OF_BOUNDS, ADDRESSES_SEEN ? "AddressSanitizer" : "invalid address"},
    {"shuffles of half warps", in_halves<RIGHT>, CLEAN, ""},
    {"a lane that is not in its mask", in_halves<NOT_IN_MASK>, FAULT, "which it is not in"},
    {"a lane of the mask that never comes", in_halves<NEVER_COMES>, FAULT, "0x00100000 have exited"},
    {"a source that is not in the mask", in_halves<BAD_SOURCE>, FAULT, "which is not among the lanes 0x"},
    {"values of shuffles and votes", collective_values, CLEAN, ""},
    {"values of atomics", atomic_values, CLEAN, ""},
    {"cp.async and its wait", copied_in<WAITS>, CLEAN, ""},
    {"a missing wait reads poison", copied_in<READS_EARLY>, RACES_SEEN ? RACE : WRONG, ""},
    {"cp.async that is never waited for", copied_in<NEVER_WAITS>, FAULT, "2 cp.async that it has not waited for"},
    {"48 KB of shared memory", launched<48 << 10, false>, CLEAN, ""},
    {"64 KB of shared memory, allowed", launched<64 << 10, true>, CLEAN, ""},
    {"64 KB of shared memory, not allowed", launched<64 << 10, false>, WRONG, "65536 bytes of dynamic shared memory"},
    {"more shared memory than there is", launched<228 << 10, true>, WRONG, "cannot be 233472"},
    {"1024 threads", many_threads<1024>, CLEAN, ""},
    {"1025 threads", many_threads<1025>, FAULT, "more threads than a block can have"},
    {"65535 rows of blocks", large_grid<65535>, CLEAN, ""},
    {"65536 rows of blocks", large_grid<65536>, FAULT, "more blocks than a grid can have"},
    {"a copy within bounds", copied_out<300>, CLEAN, ""},
    {"a copy beyond the end", copied_out<301>, WRONG, "301 bytes from byte 100 of 400 bytes of device memory"},
    {"two threads of the host", called_by_two, FAULT, "called by two threads of the host"},
    {"a product with a bias", product_with_bias, CLEAN, ""},
    {"a bias's gradient", bias_gradient, CLEAN, ""},
    {"a product of shapes that do not fit", shapes_do_not_fit, WRONG,
     "the shapes of A, B, C and D do not fit together"},
    {"a product with an epilogue that nobody uses", unknown_epilogue, WRONG, "an epilogue that the emulator does not"},
};

int main() { return run_tests(TESTS); }
