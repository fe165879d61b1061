/* What the parts of the emulator share; kernels see cudaemu.h only. */
#ifndef BERTH_TESTS_CUDAEMU_INTERNAL_H
#define BERTH_TESTS_CUDAEMU_INTERNAL_H

#include <functional>
#include <string>
#include <vector>

#include "cudaemu.h"

/* With the address sanitizer, which stops a wrong access itself, guard bytes are not checked. */
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define EMU_SANITIZED true
#else
#define EMU_SANITIZED false
#define ASAN_POISON_MEMORY_REGION(begin, bytes) ((void)(begin), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(begin, bytes) ((void)(begin), (void)(bytes))
#endif

namespace emu {

constexpr int LANES = 32, THREADS_MOST = 1024, WARPS_MOST = THREADS_MOST / LANES;
constexpr size_t SHARED_MOST = 256 << 10;
constexpr unsigned char POISON = 0xFF;     /* as floats of any size: NaN */
constexpr size_t PAGE = 4096, GUARD = 256; /* bytes before an allocation, and what it is aligned to */

/* For each lane of a set of them: for (int i : lanes_of{set}). */
struct lanes_of {
    unsigned left;
    lanes_of begin() const { return *this; }
    lanes_of end() const { return {0}; }
    int operator*() const { return __builtin_ctz(left); }
    void operator++() { left &= left - 1; }
    bool operator!=(const lanes_of &other) const { return left != other.left; }
};

/* Exit codes. */
enum { FAULT = 96, RACE = 97 };

/* --- report.cpp --- */

/* One line "berth emulator: kernel K, block (x,y,z), thread (x,y,z), PLACE: TEXT" on stderr, as far as it is known, and
 * the end of the process. */
[[noreturn]] void stop(const std::string &place, const char *format, ...) __attribute__((format(printf, 2, 3)));
void warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
std::string text(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* "file.cu:12" of a place, or of code that returns to an address. */
std::string place_name(place where);
std::string place_name(const void *return_address);

/* "block (0,0,0), thread (1,0,0)" by their numbers. */
std::string thread_name(unsigned block, unsigned thread);
/* "byte 4 of 64 bytes of device memory". */
std::string memory_name(const void *p);

/* The program's `__shared__` variables, by address. */
struct variable {
    uintptr_t begin, end;
    std::string name;
};
const std::vector<variable> &shared_variables();
const variable *shared_variable_at(const void *p); /* nullptr: none */

/* Faults of the processor within a kernel are reported with the kernel's name. */
void catch_faults();

/* --- cudaemu.cpp --- */

/* The launch that runs now; kernel is nullptr when none does. */
struct launch_state {
    const char *kernel;
    int threads;              /* of a block */
    unsigned thread, block;   /* numbers of those that run now */
    bool in_block, in_thread; /* one of the grid runs; a fiber runs, not the scheduler */
    uintptr_t stack, stack_end;
    uintptr_t shared, shared_end; /* dynamic */
};
extern launch_state running;
extern uintptr_t
    shared_area; /* the SHARED_MOST bytes that dynamic shared memory is the end of, but for its alignment */

/* --- runtime.cpp --- */

cudaError_t result(cudaError_t error); /* what a call returns, and cudaGetLastError gives next */

/* The most dynamic shared memory that a launch of a kernel may ask for. */
size_t shared_limit(const void *function);

/* Bytes that nobody may write; check_guard, and check_guards of all device memory, stop where one has changed. */
void set_guard(uintptr_t begin, uintptr_t end);
void check_guard(uintptr_t begin, uintptr_t end);
void check_guards();

struct allocation {
    uintptr_t begin, end;
};
/* Device memory around p or with p in its guards, or in the page behind it; or nullptr. */
const allocation *allocation_at(const void *p);
bool is_device_memory(const void *p, size_t bytes);

/* The addresses that device memory can have. */
extern uintptr_t device_begin, device_end;

/* --- streams.cpp --- */

enum class work_kind { KERNEL, COPY, FILL, PRODUCT, EVENT, GRAPH };

bool stream_is_known(cudaStream_t stream);

/* Work of a stream, after what it was given before; recorded instead while the stream captures. */
cudaError_t submit(cudaStream_t stream, work_kind kind, std::function<void()> work);
/* Until all work of a stream, or of all, is done. */
cudaError_t finish(cudaStream_t stream);
void finish_all();

bool is_capturing(cudaStream_t stream);
/* The error of a call that may not be made while a stream captures, and that makes the capture invalid; or success. */
cudaError_t refuse_in_capture(const char *function);

/* --- race.cpp: only linked where kernels are instrumented --- */

struct race_checker {
    void (*launch_begins)();
    void (*block_begins)();
    void (*barrier)();
    void (*warp_barrier)(int warp, unsigned mask);
    void (*atomic)(const void *p, size_t bytes, const void *return_address);
    void (*access)(const void *p, size_t bytes, bool writes, const void *return_address);
    void (*launch_ends)(); /* reports, and ends the process if there was a race */
};
extern const race_checker *race; /* nullptr: not linked */

}  // namespace emu

#endif
