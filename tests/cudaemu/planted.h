/* What the tests of the emulator share: a fault is planted in a function, and the same function without it runs clean
 * under every schedule. Every run is a process of its own, whose exit code and messages are looked at. */
#ifndef BERTH_TESTS_CUDAEMU_PLANTED_H
#define BERTH_TESTS_CUDAEMU_PLANTED_H

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "internal.h"

#define LAUNCH_ON(stream, kernel, grid, block, shared_bytes, ...) \
    emu::launch(#kernel, (const void *)(kernel), grid, block, shared_bytes, stream, emu::call_of(kernel, ##__VA_ARGS__))
#define LAUNCH(...) LAUNCH_ON(nullptr, __VA_ARGS__)

/* --- device memory that a test writes and reads --- */

template <typename T>
struct device_array {
    T *data;
    size_t count;

    explicit device_array(size_t n) : count(n) { cudaMalloc((void **)&data, n * sizeof(T)); }
    explicit device_array(const std::vector<T> &from) : device_array(from.size()) {
        cudaMemcpy(data, from.data(), count * sizeof(T), cudaMemcpyHostToDevice);
    }
    std::vector<T> host() const {
        std::vector<T> to(count);
        cudaMemcpy(to.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost);
        return to;
    }
};

/* --- which build of the emulator this is --- */

#if defined(__SANITIZE_THREAD__)
enum { RACES_SEEN = 1, ADDRESSES_SEEN = 0 };
#elif defined(__SANITIZE_ADDRESS__)
enum { RACES_SEEN = 0, ADDRESSES_SEEN = 1 };
#else
enum { RACES_SEEN = 0, ADDRESSES_SEEN = 0 };
#endif

/* Exit codes: what the emulator ends with, the address sanitizer, and a test whose numbers are wrong. */
enum { CLEAN = 0, ADDRESS = 1, WRONG = 3, FAULT = emu::FAULT, RACE = emu::RACE };
enum { OUT_OF_BOUNDS = ADDRESSES_SEEN ? ADDRESS : FAULT };

struct test {
    const char *name;
    bool (*run)();
    int code;            /* as it ends; RACE is tested only where races are seen */
    const char *message; /* part of what it says */
};

/* --- running --- */

/* A process of its own: its exit code, or 128 and the signal; `output` is what it says on stderr. */
static int run_apart(bool (*run)(), std::string *output) {
    int ends[2];
    char buffer[4096];
    int status = 0;
    if (pipe(ends) != 0)
        return -1;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        close(ends[0]);
        _exit(run() ? CLEAN : WRONG);
    }
    close(ends[1]);
    output->clear();
    for (ssize_t got; (got = read(ends[0], buffer, sizeof buffer)) > 0;)
        output->append(buffer, (size_t)got);
    close(ends[0]);
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Under each schedule: faults must be found by all of them, too. */
static bool passes(const test &t) {
    const struct {
        const char *order, *seed;
    } schedules[] = {{"order", "1"}, {"shuffle", "1"}, {"shuffle", "2"}, {"warp", "1"}, {"warp", "2"}, {"", "1"}};
    for (const auto &schedule : schedules) {
        std::string output;
        setenv("BERTH_EMU_SCHEDULE", schedule.order, 1);
        setenv("BERTH_EMU_SEED", schedule.seed, 1);
        int code = run_apart(t.run, &output);
        if (code == t.code && output.find(t.message) != std::string::npos && (code != CLEAN || output.empty()))
            continue;
        printf("# schedule '%s', seed %s: exit code %d instead of %d, and it said:\n# %s\n", schedule.order,
               schedule.seed, code, t.code, output.c_str());
        return false;
    }
    return true;
}

/* Is it for a build of another kind to find? */
static bool is_for_another_build(const test &t) {
    return (t.code == RACE && !RACES_SEEN) || (t.code == ADDRESS && !ADDRESSES_SEEN);
}

template <int COUNT>
static int run_tests(const test (&tests)[COUNT]) {
    int number = 0, failed = 0;
    emu::shared_variables(); /* once, and not in every process */
    for (const test &t : tests) {
        if (is_for_another_build(t))
            continue;
        bool good = passes(t);
        printf("%s %d - %s\n", good ? "ok" : "not ok", ++number, t.name);
        failed += !good;
    }
    printf("1..%d\n", number);
    return failed != 0;
}

#endif
