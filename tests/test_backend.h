/* The device that a test runs on: the CPU, or what BERTH_TEST_DEVICE=cuda names where the build has it. */
#ifndef BERTH_TESTS_TEST_BACKEND_H
#define BERTH_TESTS_TEST_BACKEND_H

#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#ifdef BERTH_CUDA
#include "kernels/cuda/cuda.h"
#endif

static inline bool test_on_cuda(void) {
    const char *device = getenv("BERTH_TEST_DEVICE");
    return device && strcmp(device, "cuda") == 0;
}

/* On the CUDA backend, and its device is that of tests/cudaemu. */
static inline bool test_on_emulator(void) {
#ifdef BERTH_CUDA
    char line[320];
    return test_on_cuda() && cuda_device_describe(0, line, sizeof line) && strstr(line, "emulator");
#else
    return false;
#endif
}

static inline status test_backend_new(struct backend **out) {
#ifdef BERTH_CUDA
    if (test_on_cuda())
        return cuda_backend_new(out, &(struct cuda_options){.recording = RECORD_SAME});
#endif
    return test_on_cuda() ? failed("this build has no CUDA backend") : cpu_backend_new(out, 0);
}

#endif
