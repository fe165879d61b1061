/* Stand-ins of the CUDA runtime's functions that the backend calls: one device, whose memory is a reserved part of the
 * host's addresses. Streams, events and graphs are in streams.cpp. Another function does not link. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <map>
#include <memory>

#include "internal.h"

namespace emu {

const race_checker *race;
uintptr_t device_begin, device_end;

constexpr unsigned char GUARD_BYTE = 0xA5;

static size_t rounded(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

/* An allocation ends where its pages do, but for its alignment, and a page that nothing can touch lies behind it: what
 * goes beyond it faults at once, or changes a guard. */
static std::map<uintptr_t, allocation> device_memory; /* by the first byte of its pages, which a guard begins */
static std::map<uintptr_t, size_t> host_memory;       /* pinned: its bytes */
static size_t device_used;
static cudaError_t last_error;

static uintptr_t pages_end(const allocation &a) { return rounded(a.end, PAGE); }

static size_t number_from(const char *name, size_t otherwise) {
    const char *value = getenv(name);
    return value && *value ? strtoull(value, nullptr, 10) : otherwise;
}

static size_t device_bytes() {
    static const size_t bytes = number_from("BERTH_EMU_MEMORY", (size_t)8 << 30) / PAGE * PAGE;
    return bytes;
}

/* berth gives a device work from one thread only, so that nothing here is locked. */
cudaError_t result(cudaError_t error) {
    static const pthread_t caller = pthread_self();
    if (!pthread_equal(caller, pthread_self()))
        stop("", "functions of the runtime are called by two threads of the host");
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

/* --- device memory --- */

void set_guard(uintptr_t begin, uintptr_t end) {
    memset((void *)begin, GUARD_BYTE, end - begin);
    ASAN_POISON_MEMORY_REGION((void *)begin, end - begin);
}

void check_guard(uintptr_t begin, uintptr_t end) {
    const unsigned char *bytes = (const unsigned char *)begin;
    if (EMU_SANITIZED || begin == end || (*bytes == GUARD_BYTE && memcmp(bytes, bytes + 1, end - begin - 1) == 0))
        return; /* all the same */
    while (*bytes == GUARD_BYTE)
        bytes++;
    stop("", "out-of-bounds write: %s", memory_name(bytes).c_str());
}

static void check_guards_of(const allocation &a) {
    check_guard(a.begin - GUARD, a.begin);
    check_guard(a.end, pages_end(a));
}

void check_guards() {
    for (const auto &entry : device_memory)
        check_guards_of(entry.second);
}

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
        begin = pages_end(entry.second) + PAGE;
    }
    return begin + bytes + PAGE <= device_end ? begin : 0;
}

static cudaError_t allocate(void **out, size_t bytes) {
    *out = nullptr;
    if (bytes == 0)
        return cudaSuccess;
    if (!device_begin)
        reserve();
    size_t all = rounded(GUARD + rounded(bytes, GUARD), PAGE);
    uintptr_t first = bytes <= device_bytes() - device_used ? find_gap(all) : 0;
    if (!first || mprotect((void *)first, all, PROT_READ | PROT_WRITE) != 0)
        return cudaErrorMemoryAllocation;
    uintptr_t begin = first + all - rounded(bytes, GUARD);
    allocation made = {begin, begin + bytes};
    set_guard(first, made.begin);
    memset((void *)made.begin, POISON, bytes);
    set_guard(made.end, first + all);
    device_memory[first] = made;
    device_used += all;
    *out = (void *)made.begin;
    return cudaSuccess;
}

const allocation *allocation_at(const void *p) {
    auto next = device_memory.upper_bound((uintptr_t)p);
    if (next == device_memory.begin())
        return nullptr;
    --next;
    return (uintptr_t)p < pages_end(next->second) + PAGE ? &next->second : nullptr;
}

bool is_device_memory(const void *p, size_t bytes) {
    const allocation *found = allocation_at(p);
    return found && (uintptr_t)p >= found->begin && (uintptr_t)p + bytes <= found->end;
}

static cudaError_t release(void *p) {
    if (!p)
        return cudaSuccess;
    auto found = device_memory.upper_bound((uintptr_t)p);
    if (found == device_memory.begin() || (--found)->second.begin != (uintptr_t)p) {
        warn("cudaFree of %p, which is not the begin of an allocation", p);
        return cudaErrorInvalidValue;
    }
    check_guards_of(found->second);
    void *first = (void *)found->first;
    size_t all = pages_end(found->second) - found->first;
    ASAN_UNPOISON_MEMORY_REGION(first, all);
    mmap(first, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    device_used -= all;
    device_memory.erase(found);
    return cudaSuccess;
}

/* --- copies --- */

/* One side of a copy: is it where it has to be? */
static bool range_is_right(const char *what, const void *p, size_t bytes, bool on_device) {
    bool in_device = (uintptr_t)p >= device_begin && (uintptr_t)p < device_end;
    if (on_device ? is_device_memory(p, bytes) : !in_device && p)
        return true;
    warn("%s: %zu bytes from %s: not %s memory", what, bytes, memory_name(p).c_str(), on_device ? "device" : "host");
    return false;
}

static bool is_pinned(const void *p, size_t bytes) {
    auto next = host_memory.upper_bound((uintptr_t)p);
    if (next == host_memory.begin())
        return false;
    --next;
    return (uintptr_t)p + bytes <= next->first + next->second;
}

/* Host memory that is not pinned is read before the call returns, and written before it returns. */
static cudaError_t copy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (bytes == 0)
        return cudaSuccess;
    if (!(to_device || from_device) || !range_is_right("cudaMemcpy to", to, bytes, to_device) ||
        !range_is_right("cudaMemcpy from", from, bytes, from_device))
        return cudaErrorInvalidValue;
    if (!(to_device && from_device) && is_capturing(stream))
        return refuse_in_capture("cudaMemcpyAsync from or to the host, which would see what is there at each launch");
    if (!from_device && !is_pinned(from, bytes)) {
        std::shared_ptr<char> staged(new char[bytes], std::default_delete<char[]>());
        memcpy(staged.get(), from, bytes);
        return submit(stream, work_kind::COPY, [=] { memcpy(to, staged.get(), bytes); });
    }
    cudaError_t error = submit(stream, work_kind::COPY, [=] { memmove(to, from, bytes); });
    return error == cudaSuccess && !to_device && !is_pinned(to, bytes) ? finish(stream) : error;
}

/* --- the device --- */

constexpr size_t SHARED_DEFAULT = 48 << 10;

static size_t shared_optin() {
    static const size_t bytes = std::min(number_from("BERTH_EMU_SHARED", 227 << 10), SHARED_MOST);
    return bytes;
}

static std::map<const void *, size_t> shared_allowed; /* by cudaFuncSetAttribute */

size_t shared_limit(const void *function) {
    auto found = shared_allowed.find(function);
    return std::max(SHARED_DEFAULT, found == shared_allowed.end() ? 0 : found->second);
}

}  // namespace emu

/* --- CUDA's names --- */

using namespace emu;

extern "C" {

cudaError_t cudaGetDeviceCount(int *count) {
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) { return result(device == 0 ? cudaSuccess : cudaErrorInvalidDevice); }

/* What berth reads; the rest is poison. */
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int device) {
    if (device != 0)
        return result(cudaErrorInvalidDevice);
    memset((void *)out, POISON, sizeof *out);
    snprintf(out->name, sizeof out->name, "berth emulator");
    out->totalGlobalMem = device_bytes();
    const int capability = (int)number_from("BERTH_EMU_SM", 90);
    out->major = capability / 10;
    out->minor = capability % 10;
    out->multiProcessorCount = 4; /* few, so that grids made by it stay small */
    out->sharedMemPerBlockOptin = shared_optin();
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *unused, size_t *total) {
    *total = device_bytes();
    *unused = *total - device_used;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t bytes) {
    cudaError_t error = refuse_in_capture("cudaMalloc");
    return result(error == cudaSuccess ? allocate(out, bytes) : error);
}

/* It waits for all work. */
cudaError_t cudaFree(void *p) {
    cudaError_t error = refuse_in_capture("cudaFree");
    if (error != cudaSuccess)
        return result(error);
    finish_all();
    return result(release(p));
}

cudaError_t cudaMallocHost(void **out, size_t bytes) {
    cudaError_t error = refuse_in_capture("cudaMallocHost");
    *out = error == cudaSuccess ? aligned_alloc(PAGE, rounded(bytes, PAGE)) : nullptr;
    if (!*out)
        return result(error == cudaSuccess ? cudaErrorMemoryAllocation : error);
    memset(*out, POISON, bytes);
    host_memory[(uintptr_t)*out] = bytes;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *p) {
    finish_all();
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
    return result(copy(to, from, bytes, kind, stream));
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    if (bytes > 0 && !range_is_right("cudaMemset", to, bytes, true))
        return result(cudaErrorInvalidValue);
    return result(submit(stream, work_kind::FILL, [=] { memset(to, value, bytes); }));
}

cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

/* Those that these stand-ins return. */
#define NAMED(error) error, #error
static const struct known_error {
    cudaError_t error;
    const char *name, *message;
} ERRORS[] = {{NAMED(cudaSuccess), "no error"},
              {NAMED(cudaErrorInvalidValue), "invalid argument"},
              {NAMED(cudaErrorMemoryAllocation), "out of memory"},
              {NAMED(cudaErrorInvalidDevice), "invalid device ordinal"},
              {NAMED(cudaErrorInvalidResourceHandle), "invalid resource handle"},
              {NAMED(cudaErrorNotReady), "device not ready"},
              {NAMED(cudaErrorNotSupported), "operation not supported"},
              {NAMED(cudaErrorIllegalState), "the operation cannot be performed in this state"},
              {NAMED(cudaErrorStreamCaptureUnsupported), "operation not permitted when stream is capturing"},
              {NAMED(cudaErrorStreamCaptureInvalidated), "operation failed due to a previous error during capture"},
              {NAMED(cudaErrorGraphExecUpdateFailure), "the graph cannot be updated"},
              {NAMED(cudaErrorUnknown), "unknown error"}};

static const known_error &known(cudaError_t error) {
    const known_error *k = ERRORS;
    while (k->error != error && k->error != cudaErrorUnknown)
        k++;
    return *k;
}

const char *cudaGetErrorString(cudaError_t error) { return known(error).message; }
const char *cudaGetErrorName(cudaError_t error) { return known(error).name; }

cudaError_t cudaFuncSetAttribute(const void *function, cudaFuncAttribute name, int value) {
    if (name == cudaFuncAttributePreferredSharedMemoryCarveout && value >= -1 && value <= 100)
        return cudaSuccess; /* a wish */
    if (name != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 || (size_t)value > shared_optin()) {
        warn("cudaFuncSetAttribute: attribute %d cannot be %d", (int)name, value);
        return result(cudaErrorInvalidValue);
    }
    shared_allowed[function] = (size_t)value;
    return cudaSuccess;
}

}  // extern "C"
