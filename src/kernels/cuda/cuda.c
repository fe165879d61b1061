#include "kernels/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "graph/blocks.h"
#include "kernels/cuda/contraction.h"
#include "kernels/cuda/copies.h"
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/recorder.h"

struct constant {
    const void *host;
    void *device;
    size_t bytes;
};

struct cuda {
    struct backend backend;
    struct cuda_options options;
    struct cudaDeviceProp properties;
    cudaStream_t stream;
    struct copies *copies;
    struct recorder *recorder;
    struct lt *lt;
    enum attention_way attention_way;
    void *workspace, *converted;
    struct constant *constants;
    int constant_count, constant_capacity;
    cudaEvent_t marks[BACKEND_MARKS];
    double peak[DTYPE_COUNT]; /* flop/s, measured once */
    double bandwidth;         /* bytes/s, measured once */
};

typedef status (*kernel)(struct cuda *cuda, const struct op_call *call);
static const kernel kernels[OP_COUNT] = {
#define OP(name, ...) [OP_##name] = cuda_##name,
#include "graph/op.def"
#undef OP
};

status cuda_decoder(struct cuda *cuda, const struct op_call *call) { return blocks_decoder(&cuda->backend, call); }
status cuda_decoder_dx(struct cuda *cuda, const struct op_call *call) {
    return blocks_decoder_dx(&cuda->backend, call);
}

/* --- what kernels ask --- */

cudaStream_t cuda_stream(struct cuda *cuda) { return cuda->stream; }
int cuda_multiprocessors(const struct cuda *cuda) { return cuda->properties.multiProcessorCount; }
int cuda_shared_limit(const struct cuda *cuda) { return (int)cuda->properties.sharedMemPerBlockOptin; }
enum attention_way cuda_attention_way(const struct cuda *cuda) { return cuda->attention_way; }
void *cuda_workspace(struct cuda *cuda) { return cuda->workspace; }
void *cuda_converted_memory(struct cuda *cuda) { return cuda->converted; }

bool cuda_records(const struct cuda *cuda) { return recorder_records(cuda->recorder); }

struct lt *cuda_lt(struct cuda *cuda) {
    return cuda->lt;
}

struct recorded cuda_recorded(const struct backend *backend) {
    return recorder_counts(((const struct cuda *)backend)->recorder);
}

status cuda_check(cudaError_t error, const char *what) {
    if (error == cudaSuccess)
        return OK;
    return failed("CUDA: %s: %s (%s)", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

status cuda_constant(struct cuda *cuda, const void *host, size_t bytes, const void **out) {
    for (int i = 0; i < cuda->constant_count; i++)
        if (cuda->constants[i].host == host && cuda->constants[i].bytes == bytes) {
            *out = cuda->constants[i].device;
            return OK;
        }
    void *device;
    TRY(cuda->backend.memory_new(&cuda->backend, &device, bytes, "constants"));
    GROW(cuda->constants, cuda->constant_count, cuda->constant_capacity);
    cuda->constants[cuda->constant_count++] = (struct constant){.host = host, .device = device, .bytes = bytes};
    *out = device;
    return cuda->backend.upload(&cuda->backend, device, host, bytes);
}

/* --- the interface of graph/backend.h --- */

static status memory_on_device(struct backend *backend, void **out, size_t bytes, const char *what) {
    struct cuda *cuda = (struct cuda *)backend;
    size_t left = 0, total = 0;
    *out = NULL;
    if (cudaMalloc(out, bytes ? bytes : 1) != cudaSuccess) {
        cudaGetLastError();
        cudaMemGetInfo(&left, &total);
        return failed(
            "out of device memory: %s needs %.3f GB, %s has %.3f GB left: lower train.micro_batch, or set "
            "train.activation_checkpointing=layer",
            what, 1e-9 * (double)bytes, cuda->properties.name, 1e-9 * (double)left);
    }
    CUDA_TRY(cudaMemsetAsync(*out, 0, bytes, cuda->stream));
    return OK;
}

static void free_on_device(struct backend *backend, void *memory) {
    recorder_forget(((struct cuda *)backend)->recorder);
    cudaFree(memory);
}

static status upload(struct backend *backend, void *to, const void *from_host, size_t bytes) {
    return copies_upload(((struct cuda *)backend)->copies, to, from_host, bytes);
}

static status wait_for_work(struct backend *backend) {
    CUDA_TRY(cudaStreamSynchronize(((struct cuda *)backend)->stream));
    return OK;
}

static status download(struct backend *backend, void *to_host, const void *from, size_t bytes) {
    struct cuda *cuda = (struct cuda *)backend;
    if (bytes)
        CUDA_TRY(cudaMemcpyAsync(to_host, from, bytes, cudaMemcpyDeviceToHost, cuda->stream));
    return wait_for_work(backend);
}

static status download_later(struct backend *backend, void *to_host, const void *from, size_t bytes) {
    CUDA_TRY(cudaMemcpyAsync(to_host, from, bytes, cudaMemcpyDeviceToHost, ((struct cuda *)backend)->stream));
    return OK;
}

static status clear(struct backend *backend, void *memory, size_t bytes) {
    CUDA_TRY(cudaMemsetAsync(memory, 0, bytes, ((struct cuda *)backend)->stream));
    return OK;
}

static status host_memory_new(struct backend *backend, void **out, size_t bytes) {
    (void)backend;
    *out = NULL;
    CUDA_TRY(cudaMallocHost(out, bytes));
    memset(*out, 0, bytes);
    return OK;
}

static void host_memory_free(struct backend *backend, void *memory) {
    (void)backend;
    cudaFreeHost(memory);
}

static status mark(struct backend *backend, int mark) {
    struct cuda *cuda = (struct cuda *)backend;
    CUDA_TRY(cudaEventRecord(cuda->marks[mark], cuda->stream));
    return OK;
}

static status reach(struct backend *backend, int mark) {
    CUDA_TRY(cudaEventSynchronize(((struct cuda *)backend)->marks[mark]));
    return OK;
}

static double seconds_between(struct backend *backend, int from, int to) {
    const cudaEvent_t *marks = ((struct cuda *)backend)->marks;
    float milliseconds = 0;
    if (cudaEventElapsedTime(&milliseconds, marks[from], marks[to]) != cudaSuccess)
        cudaGetLastError(); /* or the next launch would find it */
    return 1e-3 * milliseconds;
}

static bool supports(const struct backend *backend, enum op op, enum dtype compute) {
    (void)backend;
    return kernels[op] && (compute == F32 || compute == BF16 || compute == F16);
}

static status run(struct backend *backend, const struct op_call *call) {
    return kernels[call->op]((struct cuda *)backend, call);
}

static status run_series(struct backend *backend, const struct series *series, status (*walk)(void *ctx), void *ctx) {
    return recorder_run(((struct cuda *)backend)->recorder, series, walk, ctx);
}

/* --- measured rates --- */

enum { ROUNDS = 5 };

/* Between two events; 0 if a run fails. */
static double seconds_of_run(struct cuda *cuda, status (*work)(struct cuda *cuda, void *ctx), void *ctx,
                             cudaEvent_t began, cudaEvent_t ended) {
    float milliseconds = 0;
    bool done = cudaEventRecord(began, cuda->stream) == cudaSuccess && work(cuda, ctx) == OK &&
                cudaEventRecord(ended, cuda->stream) == cudaSuccess && cudaEventSynchronize(ended) == cudaSuccess &&
                cudaEventElapsedTime(&milliseconds, began, ended) == cudaSuccess;
    if (!done)
        cudaGetLastError(); /* or the next launch would find it */
    return done ? 1e-3 * milliseconds : 0;
}

double cuda_time(struct cuda *cuda, status (*work)(struct cuda *cuda, void *ctx), void *ctx, int rounds) {
    double best = 0;
    cudaEvent_t began = NULL, ended = NULL;
    if (cudaEventCreateWithFlags(&began, cudaEventDefault) == cudaSuccess &&
        cudaEventCreateWithFlags(&ended, cudaEventDefault) == cudaSuccess &&
        seconds_of_run(cuda, work, ctx, began, ended) > 0)
        for (int round = 0; round < rounds; round++) {
            double seconds = seconds_of_run(cuda, work, ctx, began, ended);
            if (seconds > 0 && (best == 0 || seconds < best))
                best = seconds;
        }
    if (began)
        cudaEventDestroy(began);
    if (ended)
        cudaEventDestroy(ended);
    return best;
}

static status square_product(struct cuda *cuda, void *ctx) { return lt_multiply(cuda->lt, ctx); }

/* A square product whose operands are random enough: not zeros, which take less power. */
static double measure_peak(struct cuda *cuda, enum dtype dtype) {
    int64_t n = cuda->properties.multiProcessorCount >= 16 ? 8192 : 64; /* the host's emulator reports 4 */
    size_t bytes = (size_t)(n * n) * dtype_size(dtype);
    void *data[3] = {NULL};
    double seconds = 0;
    bool room = true;
    for (int i = 0; i < 3; i++)
        room = room && memory_on_device(&cuda->backend, &data[i], bytes, "measurement") == OK;
    for (int i = 0; i < 2 && room; i++)
        room = cudaMemsetAsync(data[i], 0x3c + i, bytes, cuda->stream) == cudaSuccess;
    struct product product = {
        .m = n, .n = n, .k = n, .dtype = dtype, .dtype_c = dtype, .a = data[0], .b = data[1], .c = data[2]};
    if (room)
        seconds = cuda_time(cuda, square_product, &product, ROUNDS);
    for (int i = 0; i < 3; i++)
        cudaFree(data[i]);
    return seconds > 0 ? 2.0 * (double)n * (double)n * (double)n / seconds : 0;
}

static double peak_flops(struct backend *backend, enum dtype compute) {
    struct cuda *cuda = (struct cuda *)backend;
    if (!cuda->peak[compute])
        cuda->peak[compute] = measure_peak(cuda, compute);
    return cuda->peak[compute];
}

struct copy {
    char *from, *to;
    size_t bytes;
};

static status copy_on_device(struct cuda *cuda, void *ctx) {
    struct copy *copy = ctx;
    return cuda_check(cudaMemcpyAsync(copy->to, copy->from, copy->bytes, cudaMemcpyDeviceToDevice, cuda->stream),
                      "copy");
}

static double bandwidth(struct backend *backend) {
    struct cuda *cuda = (struct cuda *)backend;
    if (cuda->bandwidth)
        return cuda->bandwidth;
    struct copy copy = {.bytes = cuda->properties.multiProcessorCount >= 16 ? (size_t)1 << 30 : (size_t)1 << 20};
    if (memory_on_device(backend, (void **)&copy.from, copy.bytes, "measurement") == OK &&
        memory_on_device(backend, (void **)&copy.to, copy.bytes, "measurement") == OK) {
        double seconds = cuda_time(cuda, copy_on_device, &copy, ROUNDS);
        cuda->bandwidth = seconds > 0 ? 2.0 * (double)copy.bytes / seconds : 0;
    }
    cudaFree(copy.from);
    cudaFree(copy.to);
    return cuda->bandwidth;
}

static int64_t memory_left(const struct backend *backend) {
    (void)backend;
    size_t left = 0, total = 0;
    return cudaMemGetInfo(&left, &total) == cudaSuccess ? (int64_t)left : 0;
}

/* --- beginning and end --- */

int cuda_device_count(void) {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    return count;
}

static void describe_properties(const struct cudaDeviceProp *properties, char *line, size_t size) {
    snprintf(line, size, "%s, sm_%d%d, %d multiprocessors, %.0f GB", properties->name, properties->major,
             properties->minor, properties->multiProcessorCount, 1e-9 * (double)properties->totalGlobalMem);
}

bool cuda_device_describe(int device, char *line, size_t size) {
    struct cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    describe_properties(&properties, line, size);
    return true;
}

static status keep_choices(struct backend *backend, const char *path, bool write) {
    struct cuda *cuda = (struct cuda *)backend;
    char device[320];
    describe_properties(&cuda->properties, device, sizeof device);
    return lt_keep_choices(cuda->lt, path, device, write);
}

static void describe(const struct backend *backend, char *line, size_t size) {
    const struct cuda *cuda = (const struct cuda *)backend;
    char device[320], library[64];
    describe_properties(&cuda->properties, device, sizeof device);
    lt_describe(cuda->lt, library, sizeof library);
    snprintf(line, size, "cuda: %s, %s", device, library);
}

static void cuda_free(struct backend *backend) {
    struct cuda *cuda = (struct cuda *)backend;
    if (cuda->stream)
        cudaStreamSynchronize(cuda->stream);
    recorder_free(cuda->recorder);
    copies_free(cuda->copies);
    lt_free(cuda->lt);
    for (int i = 0; i < cuda->constant_count; i++)
        cudaFree(cuda->constants[i].device);
    free(cuda->constants);
    cudaFree(cuda->workspace);
    cudaFree(cuda->converted);
    for (int i = 0; i < BACKEND_MARKS; i++)
        if (cuda->marks[i])
            cudaEventDestroy(cuda->marks[i]);
    if (cuda->stream)
        cudaStreamDestroy(cuda->stream);
    free(cuda);
}

static status choose_attention_way(enum attention_way *way) {
    const char *chosen = getenv("BERTH_ATTENTION_DX");
    if (!chosen || strcmp(chosen, "auto") == 0)
        *way = ATTENTION_WAY_AUTO;
    else if (strcmp(chosen, "whole") == 0)
        *way = ATTENTION_WAY_WHOLE;
    else if (strcmp(chosen, "blocks") == 0)
        *way = ATTENTION_WAY_BLOCKS;
    else
        return bad_input("BERTH_ATTENTION_DX=%s: expected auto, whole or blocks", chosen);
    return OK;
}

static status open_device(struct cuda *cuda) {
    TRY(choose_attention_way(&cuda->attention_way));
    int count = cuda_device_count();
    if (count == 0)
        return bad_input(
            "device.type=cuda, but no CUDA device can be used: no NVIDIA driver, or no device is visible "
            "(CUDA_VISIBLE_DEVICES); device.type=cpu trains without one");
    if (cuda->options.device >= count)
        return bad_input("CUDA device %d was asked for, but there are only %d", cuda->options.device, count);
    CUDA_TRY(cudaSetDevice(cuda->options.device));
    CUDA_TRY(cudaGetDeviceProperties(&cuda->properties, cuda->options.device));
    if (cuda->properties.major < 8)
        return bad_input("CUDA device %d is %s, sm_%d%d: expected sm_80 or later", cuda->options.device,
                         cuda->properties.name, cuda->properties.major, cuda->properties.minor);
    TRY(cublaslt_load());
    CUDA_TRY(cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking));
    cuda->backend.stream = cuda->stream;
    cuda->recorder = recorder_new(cuda->options.recording, cuda->stream);
    TRY(copies_new(&cuda->copies, cuda->stream));
    for (int i = 0; i < BACKEND_MARKS; i++)
        CUDA_TRY(cudaEventCreateWithFlags(&cuda->marks[i], cudaEventDefault));
    TRY(memory_on_device(&cuda->backend, &cuda->workspace, CUDA_WORKSPACE_BYTES, "workspace"));
    TRY(memory_on_device(&cuda->backend, &cuda->converted, (size_t)CUDA_CONVERTED_MOST * 2, "biases"));
    return lt_new(&cuda->lt, cuda, cuda->options.tf32);
}

status cuda_backend_new(struct backend **out, const struct cuda_options *options) {
    struct cuda *cuda = xcalloc(1, sizeof *cuda);
    cuda->options = *options;
    cuda->backend = (struct backend){.name = "cuda",
                                     .memory_new = memory_on_device,
                                     .memory_free = free_on_device,
                                     .upload = upload,
                                     .download = download,
                                     .download_later = download_later,
                                     .clear = clear,
                                     .host_memory_new = host_memory_new,
                                     .host_memory_free = host_memory_free,
                                     .mark = mark,
                                     .reach = reach,
                                     .seconds_between = seconds_between,
                                     .supports = supports,
                                     .run = run,
                                     .wait = wait_for_work,
                                     .run_series = run_series,
                                     .keep_choices = keep_choices,
                                     .peak_flops = peak_flops,
                                     .bandwidth = bandwidth,
                                     .memory_left = memory_left,
                                     .describe = describe,
                                     .free = cuda_free};
    status code = open_device(cuda);
    if (code != OK) {
        cuda_free(&cuda->backend);
        return code;
    }
    *out = &cuda->backend;
    return OK;
}
