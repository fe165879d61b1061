/* Stand-ins of the CUDA runtime's functions that the backend calls: one device, whose memory is a reserved part of the
 * host's addresses. Streams, events and graphs are in streams.cpp. Another function does not link. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <map>
#include <memory>
#include <mutex>

#include "internal.h"

namespace emu {

/* Of the race checker. */
const race_checker *race;

uintptr_t device_begin, device_end;

/* Around each allocation, and a page that nothing can touch between any two. */
constexpr size_t GUARD = 256, PAGE = 4096;
constexpr unsigned char GUARD_BYTE = 0xA5;

/* By the first byte of their pages. */
struct pages {
    allocation inner;
    size_t bytes;
};
static std::map<uintptr_t, pages> device_memory;
static std::map<uintptr_t, size_t> host_memory; /* pinned: its bytes */
static size_t device_used;
static std::mutex mutex; /* of all the above */
static thread_local cudaError_t last_error;

static size_t number_from(const char *name, size_t otherwise) {
    const char *value = getenv(name);
    return value && *value ? strtoull(value, nullptr, 10) : otherwise;
}

static size_t device_bytes() {
    static const size_t bytes = number_from("BERTH_EMU_MEMORY", (size_t)8 << 30) / PAGE * PAGE;
    return bytes;
}

void set_error(cudaError_t error) {
    if (error != cudaSuccess)
        last_error = error;
}

cudaError_t result(cudaError_t error) {
    set_error(error);
    return error;
}

/* --- device memory --- */

static void reserve() {
    void *memory = mmap(nullptr, device_bytes(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        stop("", "%zu bytes of addresses cannot be reserved: set BERTH_EMU_MEMORY", device_bytes());
    device_begin = (uintptr_t)memory;
    device_end = device_begin + device_bytes();
}

/* The first gap that is large enough, or 0. */
static uintptr_t find_gap(size_t bytes) {
    uintptr_t begin = device_begin;
    for (const auto &entry : device_memory) {
        if (entry.first - begin >= bytes + PAGE)
            return begin;
        begin = entry.first + entry.second.bytes + PAGE;
    }
    return device_end - begin >= bytes + PAGE && begin < device_end ? begin : 0;
}

static void set_guards(const pages &p, uintptr_t first) {
    uintptr_t end = first + p.bytes;
    memset((void *)first, GUARD_BYTE, p.inner.begin - first);
    memset((void *)p.inner.begin, POISON, p.inner.end - p.inner.begin);
    memset((void *)p.inner.end, GUARD_BYTE, end - p.inner.end);
    ASAN_POISON_MEMORY_REGION((void *)first, p.inner.begin - first);
    ASAN_POISON_MEMORY_REGION((void *)p.inner.end, end - p.inner.end);
}

static cudaError_t allocate(void **out, size_t bytes) {
    *out = nullptr;
    if (bytes == 0)
        return cudaSuccess;
    if (bytes > device_bytes() - device_used)
        return cudaErrorMemoryAllocation;
    if (!device_begin)
        reserve();
    size_t all = (GUARD + bytes + GUARD + PAGE - 1) / PAGE * PAGE;
    uintptr_t first = find_gap(all);
    if (!first || mprotect((void *)first, all, PROT_READ | PROT_WRITE) != 0)
        return cudaErrorMemoryAllocation;
    pages made = {{first + GUARD, first + GUARD + bytes}, all};
    set_guards(made, first);
    device_memory[first] = made;
    device_used += all;
    *out = (void *)made.inner.begin;
    return cudaSuccess;
}

static const pages *pages_at(const void *p) {
    auto next = device_memory.upper_bound((uintptr_t)p);
    if (next == device_memory.begin())
        return nullptr;
    --next;
    return (uintptr_t)p < next->first + next->second.bytes ? &next->second : nullptr;
}

const allocation *allocation_at(const void *p) {
    const pages *found = pages_at(p);
    return found ? &found->inner : nullptr;
}

bool is_device_memory(const void *p, size_t bytes) {
    const allocation *found = allocation_at(p);
    return found && (uintptr_t)p >= found->begin && (uintptr_t)p + bytes <= found->end;
}

/* The first changed byte of a guard ends the process. */
static void check_guard(uintptr_t begin, uintptr_t end, const allocation &guarded) {
    if (EMU_SANITIZED)
        return;
    const unsigned char *bytes = (const unsigned char *)begin;
    if (*bytes == GUARD_BYTE && memcmp(bytes, bytes + 1, end - begin - 1) == 0)
        return; /* all the same */
    for (uintptr_t at = begin; at < end; at++)
        if (*(const unsigned char *)at != GUARD_BYTE)
            stop("", "out-of-bounds write: byte %td of an allocation of %zu bytes of device memory",
                 (ptrdiff_t)(at - guarded.begin), (size_t)(guarded.end - guarded.begin));
}

static void check_guards_of(uintptr_t first, const pages &p) {
    check_guard(first, p.inner.begin, p.inner);
    check_guard(p.inner.end, first + p.bytes, p.inner);
}

void check_guards() {
    std::lock_guard<std::mutex> guard(mutex);
    for (const auto &entry : device_memory)
        check_guards_of(entry.first, entry.second);
}

static cudaError_t release(void *p) {
    if (!p)
        return cudaSuccess;
    auto found = device_memory.find((uintptr_t)p - GUARD);
    if (found == device_memory.end()) {
        warn("cudaFree of %p, which is not the begin of an allocation", p);
        return cudaErrorInvalidValue;
    }
    check_guards_of(found->first, found->second);
    void *first = (void *)found->first;
    ASAN_UNPOISON_MEMORY_REGION(first, found->second.bytes);
    mmap(first, found->second.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    device_used -= found->second.bytes;
    device_memory.erase(found);
    return cudaSuccess;
}

/* --- copies --- */

static bool in_device_addresses(const void *p) { return (uintptr_t)p >= device_begin && (uintptr_t)p < device_end; }

/* One side of a copy: is it where it has to be? */
static bool range_is_right(const char *what, const void *p, size_t bytes, bool on_device) {
    if (on_device ? is_device_memory(p, bytes) : !in_device_addresses(p) && p)
        return true;
    const allocation *near = allocation_at(p);
    if (on_device && near)
        warn("%s: %zu bytes from byte %td of an allocation of %zu bytes of device memory", what, bytes,
             (ptrdiff_t)((uintptr_t)p - near->begin), (size_t)(near->end - near->begin));
    else
        warn("%s: %p is %s", what, p, on_device ? "not device memory" : p ? "not host memory" : "no memory");
    return false;
}

/* The kind without `default`; cudaSuccess if both sides are where they have to be. */
static cudaError_t check_copy(void *to, const void *from, size_t bytes, cudaMemcpyKind *kind) {
    std::lock_guard<std::mutex> guard(mutex);
    if (*kind == cudaMemcpyDefault)
        *kind = in_device_addresses(to) ? in_device_addresses(from) ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice
                : in_device_addresses(from) ? cudaMemcpyDeviceToHost
                                            : cudaMemcpyHostToHost;
    bool to_device = *kind == cudaMemcpyHostToDevice || *kind == cudaMemcpyDeviceToDevice;
    bool from_device = *kind == cudaMemcpyDeviceToHost || *kind == cudaMemcpyDeviceToDevice;
    return range_is_right("cudaMemcpy to", to, bytes, to_device) &&
                   range_is_right("cudaMemcpy from", from, bytes, from_device)
               ? cudaSuccess
               : cudaErrorInvalidValue;
}

static bool is_pinned(const void *p, size_t bytes) {
    std::lock_guard<std::mutex> guard(mutex);
    auto next = host_memory.upper_bound((uintptr_t)p);
    if (next == host_memory.begin())
        return false;
    --next;
    return (uintptr_t)p + bytes <= next->first + next->second;
}

/* Host memory that is not pinned is read before the call returns, and written before it returns. */
static cudaError_t copy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    if (bytes == 0)
        return cudaSuccess;
    cudaError_t error = check_copy(to, from, bytes, &kind);
    if (error != cudaSuccess)
        return error;
    if (kind != cudaMemcpyDeviceToDevice && is_capturing(stream))
        return refuse_in_capture("cudaMemcpyAsync from or to the host, which would see what is there at each launch");
    if (kind == cudaMemcpyHostToDevice && !is_pinned(from, bytes)) {
        std::shared_ptr<char> staged(new char[bytes], std::default_delete<char[]>());
        memcpy(staged.get(), from, bytes);
        return submit(stream, work_kind::COPY, [=] { memcpy(to, staged.get(), bytes); });
    }
    error = submit(stream, work_kind::COPY, [=] { memmove(to, from, bytes); });
    if (error == cudaSuccess && kind == cudaMemcpyDeviceToHost && !is_pinned(to, bytes))
        error = finish(stream);
    return error;
}

static cudaError_t fill(void *to, int value, size_t bytes, cudaStream_t stream) {
    {
        std::lock_guard<std::mutex> guard(mutex);
        if (bytes > 0 && !range_is_right("cudaMemset", to, bytes, true))
            return cudaErrorInvalidValue;
    }
    return submit(stream, work_kind::FILL, [=] { memset(to, value, bytes); });
}

/* --- the device --- */

constexpr int SHARED_DEFAULT = 48 << 10, SHARED_RESERVED = 1 << 10;

static int shared_optin() {
    static const int bytes = (int)number_from("BERTH_EMU_SHARED", 227 << 10);
    return bytes < (256 << 10) ? bytes : 256 << 10;
}

static std::map<const void *, int> shared_allowed; /* by cudaFuncSetAttribute */

size_t shared_limit(const void *function) {
    std::lock_guard<std::mutex> guard(mutex);
    int most = SHARED_DEFAULT;
    for (const auto &entry : shared_allowed)
        if ((!function || entry.first == function) && entry.second > most)
            most = entry.second;
    return (size_t)most;
}

static cudaError_t attribute(cudaDeviceAttr name, int *out) {
    const struct {
        cudaDeviceAttr name;
        int value;
    } known[] = {
        {cudaDevAttrComputeCapabilityMajor, (int)number_from("BERTH_EMU_SM", 90) / 10},
        {cudaDevAttrComputeCapabilityMinor, (int)number_from("BERTH_EMU_SM", 90) % 10},
        {cudaDevAttrMultiProcessorCount, 4}, /* few, so that grids made by it stay small */
        {cudaDevAttrMaxSharedMemoryPerBlock, SHARED_DEFAULT},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, shared_optin()},
        {cudaDevAttrMaxSharedMemoryPerMultiprocessor, shared_optin() + SHARED_RESERVED},
        {cudaDevAttrReservedSharedMemoryPerBlock, SHARED_RESERVED},
        {cudaDevAttrWarpSize, LANES},
        {cudaDevAttrMaxThreadsPerBlock, THREADS_MOST},
        {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
        {cudaDevAttrMaxBlocksPerMultiprocessor, 32},
        {cudaDevAttrMaxRegistersPerBlock, 65536},
        {cudaDevAttrMaxRegistersPerMultiprocessor, 65536},
        {cudaDevAttrL2CacheSize, 50 << 20},
    };
    for (const auto &k : known)
        if (k.name == name) {
            *out = k.value;
            return cudaSuccess;
        }
    warn("cudaDeviceGetAttribute: attribute %d is not known here", (int)name);
    return cudaErrorInvalidValue;
}

static int attribute(cudaDeviceAttr name) {
    int value = 0;
    attribute(name, &value);
    return value;
}

static void describe(cudaDeviceProp *out) {
    *out = {};
    snprintf(out->name, sizeof out->name, "berth emulator");
    out->totalGlobalMem = device_bytes();
    out->major = attribute(cudaDevAttrComputeCapabilityMajor);
    out->minor = attribute(cudaDevAttrComputeCapabilityMinor);
    out->multiProcessorCount = attribute(cudaDevAttrMultiProcessorCount);
    out->sharedMemPerBlock = SHARED_DEFAULT;
    out->sharedMemPerBlockOptin = shared_optin();
    out->sharedMemPerMultiprocessor = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    out->reservedSharedMemPerBlock = SHARED_RESERVED;
    out->warpSize = LANES;
    out->maxThreadsPerBlock = THREADS_MOST;
    out->maxThreadsPerMultiProcessor = attribute(cudaDevAttrMaxThreadsPerMultiProcessor);
    out->maxBlocksPerMultiProcessor = attribute(cudaDevAttrMaxBlocksPerMultiprocessor);
    const int threads[] = {1024, 1024, 64}, grid[] = {0x7FFFFFFF, 65535, 65535};
    for (int i = 0; i < 3; i++) {
        out->maxThreadsDim[i] = threads[i];
        out->maxGridSize[i] = grid[i];
    }
    out->regsPerBlock = out->regsPerMultiprocessor = attribute(cudaDevAttrMaxRegistersPerBlock);
    out->l2CacheSize = attribute(cudaDevAttrL2CacheSize);
}

}  // namespace emu

/* --- CUDA's names --- */

using namespace emu;

extern "C" {

cudaError_t cudaGetDeviceCount(int *count) {
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) { return result(device == 0 ? cudaSuccess : cudaErrorInvalidDevice); }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int device) {
    if (device != 0)
        return result(cudaErrorInvalidDevice);
    describe(out);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr name, int device) {
    return result(device == 0 ? attribute(name, value) : cudaErrorInvalidDevice);
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *unused, size_t *total) {
    std::lock_guard<std::mutex> guard(mutex);
    *total = device_bytes();
    *unused = *total - device_used;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t bytes) {
    cudaError_t error = refuse_in_capture("cudaMalloc");
    std::lock_guard<std::mutex> guard(mutex);
    return result(error == cudaSuccess ? allocate(out, bytes) : error);
}

/* It waits for all work. */
cudaError_t cudaFree(void *p) {
    cudaError_t error = refuse_in_capture("cudaFree");
    if (error != cudaSuccess)
        return result(error);
    finish_all();
    std::lock_guard<std::mutex> guard(mutex);
    return result(release(p));
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned int) {
    cudaError_t error = refuse_in_capture("cudaHostAlloc");
    *out = error == cudaSuccess ? aligned_alloc(PAGE, (bytes + PAGE - 1) / PAGE * PAGE) : nullptr;
    if (!*out)
        return result(error == cudaSuccess ? cudaErrorMemoryAllocation : error);
    memset(*out, POISON, bytes);
    std::lock_guard<std::mutex> guard(mutex);
    host_memory[(uintptr_t)*out] = bytes;
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **out, size_t bytes) { return cudaHostAlloc(out, bytes, cudaHostAllocDefault); }

cudaError_t cudaFreeHost(void *p) {
    finish_all();
    std::lock_guard<std::mutex> guard(mutex);
    if (p && host_memory.erase((uintptr_t)p) == 0) {
        warn("cudaFreeHost of %p, which cudaMallocHost did not give", p);
        return result(cudaErrorInvalidValue);
    }
    free(p);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
    cudaError_t error = refuse_in_capture("cudaMemcpy");
    return result(error == cudaSuccess ? copy(to, from, bytes, kind, nullptr) : error);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    return result(stream_is_known(stream) ? copy(to, from, bytes, kind, stream) : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    cudaError_t error = refuse_in_capture("cudaMemset");
    return result(error == cudaSuccess ? fill(to, value, bytes, nullptr) : error);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    return result(stream_is_known(stream) ? fill(to, value, bytes, stream) : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void) { return last_error; }

/* Those that these stand-ins return; name and message. */
static const struct {
    cudaError_t error;
    const char *name, *message;
} ERRORS[] = {{cudaSuccess, "cudaSuccess", "no error"},
              {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
              {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
              {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
              {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
              {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
              {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
              {cudaErrorIllegalState, "cudaErrorIllegalState", "the operation cannot be performed in this state"},
              {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
               "operation not permitted when stream is capturing"},
              {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
               "operation failed due to a previous error during capture"},
              {cudaErrorGraphExecUpdateFailure, "cudaErrorGraphExecUpdateFailure",
               "the graph update was not performed because it included changes which violated constraints"}};

const char *cudaGetErrorString(cudaError_t error) {
    for (const auto &known : ERRORS)
        if (known.error == error)
            return known.message;
    return "unrecognized error code";
}

const char *cudaGetErrorName(cudaError_t error) {
    for (const auto &known : ERRORS)
        if (known.error == error)
            return known.name;
    return "unrecognized error code";
}

cudaError_t cudaFuncSetAttribute(const void *function, cudaFuncAttribute name, int value) {
    std::lock_guard<std::mutex> guard(mutex);
    if (name == cudaFuncAttributePreferredSharedMemoryCarveout)
        return cudaSuccess;
    if (name != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 || value > shared_optin()) {
        warn("cudaFuncSetAttribute: attribute %d cannot be %d", (int)name, value);
        return result(cudaErrorInvalidValue);
    }
    shared_allowed[function] = value;
    return cudaSuccess;
}

}  // extern "C"
