#include "kernels/cuda/device.cuh"

/* y[count] = x[count] in another type: 4 bytes read and sizeof(T) written an element, a thread each. */
template <typename T>
__global__ void convert_kernel(const float *x, T *y, int64_t count) {
    int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count)
        y[at] = from_float<T>(x[at]);
}

extern "C" status cuda_converted(struct cuda *cuda, const float *from, int64_t count, enum dtype dtype, void **out) {
    if (count > CUDA_CONVERTED_MOST)
        return failed("a bias of %lld elements: at most %d", (long long)count, CUDA_CONVERTED_MOST);
    *out = cuda_converted_memory(cuda);
    constexpr int THREADS = 256;
    dim3 grid((unsigned)((count + THREADS - 1) / THREADS));
    if (count > 0)
        WITH_STORAGE(dtype,
                     LAUNCH((convert_kernel<T>), grid, dim3(THREADS), 0, cuda_stream(cuda), from, (T *)*out, count));
    return OK;
}
