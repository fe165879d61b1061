/* The emulator finds faults between streams and in what is captured into graphs. */
#include "planted.h"

constexpr int N = 64;

enum { BOTH_IN_ORDER = -1, COMPUTE = 0, COPIES = 1 }; /* streams, in the order in which they are made */

struct two_streams {
    cudaStream_t compute, copies;
    cudaEvent_t event;

    explicit two_streams(int late) {
        setenv("BERTH_EMU_LATE", std::to_string(late).c_str(), 1);
        cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking);
        cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking);
        cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    }
    void wait(cudaStream_t waits, cudaStream_t for_stream) const {
        cudaEventRecord(event, for_stream);
        cudaStreamWaitEvent(waits, event, 0);
    }
};

struct pinned {
    float *data;
    explicit pinned(float value) {
        cudaMallocHost((void **)&data, N * sizeof(float));
        set(value);
    }
    void set(float value) {
        for (int i = 0; i < N; i++)
            data[i] = value;
    }
};

__global__ void add_to(float *out, const float *x, float scale) { out[threadIdx.x] += scale * x[threadIdx.x]; }

static std::vector<float> all(float value) { return std::vector<float>(N, value); }

static bool sums_to(const two_streams &s, const device_array<float> &out, float expected) {
    cudaStreamSynchronize(s.compute);
    return out.host() == all(expected);
}

/* --- one stream waits for another --- */

/* The kernel reads what was copied just before. */
template <int LATE, bool WAIT>
static bool read_after_copy() {
    two_streams s(LATE);
    device_array<float> x(all(0)), out(all(0));
    pinned from(3);
    cudaMemcpyAsync(x.data, from.data, N * sizeof(float), cudaMemcpyHostToDevice, s.copies);
    if (WAIT)
        s.wait(s.compute, s.copies);
    LAUNCH_ON(s.compute, add_to, 1, N, 0, out.data, x.data, 1.0f);
    return sums_to(s, out, 3);
}

/* The copy is not to overwrite what the kernel before it reads. */
template <int LATE, bool WAIT>
static bool copy_after_read() {
    two_streams s(LATE);
    device_array<float> x(all(3)), out(all(0));
    pinned from(5);
    LAUNCH_ON(s.compute, add_to, 1, N, 0, out.data, x.data, 1.0f);
    if (WAIT)
        s.wait(s.copies, s.compute);
    cudaMemcpyAsync(x.data, from.data, N * sizeof(float), cudaMemcpyHostToDevice, s.copies);
    return sums_to(s, out, 3);
}

/* Pinned memory is read when the copy is done, not when it is asked for. */
template <int LATE, bool WAIT>
static bool pinned_is_reused() {
    two_streams s(LATE);
    device_array<float> x(all(0));
    pinned from(3);
    cudaMemcpyAsync(x.data, from.data, N * sizeof(float), cudaMemcpyHostToDevice, s.copies);
    cudaEventRecord(s.event, s.copies);
    if (WAIT)
        cudaEventSynchronize(s.event);
    from.set(5);
    cudaStreamSynchronize(s.copies);
    return x.host() == all(3);
}

/* Memory that is not pinned may be written again at once. */
static bool pageable_is_reused() {
    two_streams s(COPIES);
    device_array<float> x(all(0));
    std::vector<float> from = all(3), to = all(0);
    cudaMemcpyAsync(x.data, from.data(), N * sizeof(float), cudaMemcpyHostToDevice, s.copies);
    from = all(5);
    cudaMemcpyAsync(to.data(), x.data, N * sizeof(float), cudaMemcpyDeviceToHost, s.copies);
    return to == all(3);
}

/* --- graphs --- */

/* Captures kernels that add x times `scale`. */
static cudaGraph_t capture(const two_streams &s, const device_array<float> &out, const device_array<float> &x,
                           float scale, int kernels) {
    cudaGraph_t graph;
    cudaStreamBeginCapture(s.compute, cudaStreamCaptureModeThreadLocal);
    for (int i = 0; i < kernels; i++)
        LAUNCH_ON(s.compute, add_to, 1, N, 0, out.data, x.data, scale);
    return cudaStreamEndCapture(s.compute, &graph) == cudaSuccess ? graph : nullptr;
}

/* Nothing runs while it is captured; each launch runs all of it, on what the memory then holds. */
static bool launched_twice() {
    two_streams s(BOTH_IN_ORDER);
    device_array<float> x(all(1)), out(all(0));
    cudaGraphExec_t executable;
    cudaGraph_t graph = capture(s, out, x, 2, 2);
    if (!graph || cudaGraphInstantiate(&executable, graph, 0) != cudaSuccess || !sums_to(s, out, 0))
        return false;
    cudaGraphDestroy(graph);
    cudaGraphLaunch(executable, s.compute);
    cudaMemcpy(x.data, all(10).data(), N * sizeof(float), cudaMemcpyHostToDevice);
    cudaGraphLaunch(executable, s.compute);
    return sums_to(s, out, 4 + 40) && cudaGraphExecDestroy(executable) == cudaSuccess;
}

/* Other arguments can be taken over, more kernels cannot. */
template <int KERNELS>
static bool updated() {
    two_streams s(BOTH_IN_ORDER);
    device_array<float> x(all(1)), out(all(0));
    cudaGraphExec_t executable;
    cudaGraphExecUpdateResultInfo info;
    cudaGraphInstantiate(&executable, capture(s, out, x, 2, 2), 0);
    cudaError_t error = cudaGraphExecUpdate(executable, capture(s, out, x, 3, KERNELS), &info);
    cudaGraphLaunch(executable, s.compute);
    return KERNELS == 2 ? error == cudaSuccess && sums_to(s, out, 6)
                        : error == cudaErrorGraphExecUpdateFailure &&
                              info.result == cudaGraphExecUpdateErrorTopologyChanged && sums_to(s, out, 4);
}

/* A call that may not be captured is an error, and no graph comes of it. */
template <typename CALL>
static bool captured(CALL call) {
    two_streams s(BOTH_IN_ORDER);
    device_array<float> x(all(1)), out(all(0));
    cudaGraph_t graph = nullptr;
    cudaStreamBeginCapture(s.compute, cudaStreamCaptureModeThreadLocal);
    cudaError_t error = call(s, x);
    LAUNCH_ON(s.compute, add_to, 1, N, 0, out.data, x.data, 1.0f);
    return error == cudaSuccess && cudaStreamEndCapture(s.compute, &graph) == cudaSuccess && graph;
}

static bool captures_fill() {
    return captured([](const two_streams &s, const device_array<float> &x) {
        return cudaMemsetAsync(x.data, 0, N * sizeof(float), s.compute);
    });
}

static bool captures_wait() {
    return captured([](const two_streams &s, const device_array<float> &) { return cudaStreamSynchronize(s.compute); });
}

static bool captures_allocation() {
    return captured([](const two_streams &, const device_array<float> &) {
        void *memory;
        return cudaMalloc(&memory, 16);
    });
}

static bool captures_copy() {
    return captured([](const two_streams &, const device_array<float> &x) {
        return cudaMemcpy(x.data, all(1).data(), N * sizeof(float), cudaMemcpyHostToDevice);
    });
}

static bool captures_host_memory() {
    pinned from(1);
    return captured([&](const two_streams &s, const device_array<float> &x) {
        return cudaMemcpyAsync(x.data, from.data, N * sizeof(float), cudaMemcpyHostToDevice, s.compute);
    });
}

/* The error may be overlooked: no graph comes of it all the same. */
static bool overlooks_error() {
    two_streams s(BOTH_IN_ORDER);
    cudaGraph_t graph;
    cudaStreamBeginCapture(s.compute, cudaStreamCaptureModeThreadLocal);
    cudaEventSynchronize(s.event);
    return cudaStreamEndCapture(s.compute, &graph) == cudaSuccess || graph;
}

template <unsigned FLAGS>
static bool has_time() {
    two_streams s(BOTH_IN_ORDER);
    cudaEvent_t event;
    float milliseconds = -1;
    cudaEventCreateWithFlags(&event, FLAGS);
    cudaEventRecord(event, s.compute);
    cudaEventSynchronize(event);
    return cudaEventElapsedTime(&milliseconds, event, event) == cudaSuccess && milliseconds == 0;
}

static const test TESTS[] = {
    {"a kernel waits for a late copy", read_after_copy<COPIES, true>, CLEAN, ""},
    {"a kernel does not wait for a late copy", read_after_copy<COPIES, false>, WRONG, ""},
    {"a late kernel reads what was copied", read_after_copy<COMPUTE, true>, CLEAN, ""},
    {"a copy waits for a late kernel", copy_after_read<COMPUTE, true>, CLEAN, ""},
    {"a copy does not wait for a late kernel", copy_after_read<COMPUTE, false>, WRONG, ""},
    {"a late copy comes after a kernel", copy_after_read<COPIES, true>, CLEAN, ""},
    {"pinned memory is written after the copy", pinned_is_reused<COPIES, true>, CLEAN, ""},
    {"pinned memory is written before the copy", pinned_is_reused<COPIES, false>, WRONG, ""},
    {"other memory is written at once", pageable_is_reused, CLEAN, ""},
    {"the time of an event", has_time<cudaEventDefault>, CLEAN, ""},
    {"the time of an event without one", has_time<cudaEventDisableTiming>, WRONG, ""},
    {"a graph launched twice", launched_twice, CLEAN, ""},
    {"a graph with other arguments", updated<2>, CLEAN, ""},
    {"a graph with more kernels", updated<3>, CLEAN, ""},
    {"a fill is captured", captures_fill, CLEAN, ""},
    {"a wait is captured", captures_wait, WRONG, "cudaStreamSynchronize: not while a stream captures"},
    {"an allocation is captured", captures_allocation, WRONG, "cudaMalloc: not while a stream captures"},
    {"a copy that waits is captured", captures_copy, WRONG, "cudaMemcpy: not while a stream captures"},
    {"a copy from the host is captured", captures_host_memory, WRONG, "from or to the host"},
    {"a capture that was made invalid", overlooks_error, WRONG, "cudaEventSynchronize: not while a stream captures"},
};

int main() { return run_tests(TESTS); }
