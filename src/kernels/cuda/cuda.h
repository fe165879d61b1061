/* The CUDA backend: one NVIDIA device. A program built without CUDA has none of this folder; the same sources built
 * against tests/cudaemu run on the host. */
#ifndef BERTH_KERNELS_CUDA_CUDA_H
#define BERTH_KERNELS_CUDA_CUDA_H

#include "graph/backend.h"

/* Devices that this process can use: 0 without a driver. */
int cuda_device_count(void);

/* "NVIDIA H100 80GB HBM3, sm_90, 80 GB" of a device; false if there is none of that number. */
bool cuda_device_describe(int device, char *line, size_t size);

/* When the launches of a series of operators are recorded into a CUDA graph, to be launched as one. */
enum recording {
    RECORD_SAME,    /* where all counts of the series come again */
    RECORD_ROUNDED, /* where the rounded counts do; where only these do, it is recorded anew */
    RECORD_NEVER,
};

struct cuda_options {
    int device;
    bool tf32; /* products of floats may round their inputs to 10 bits of mantissa */
    enum recording recording;
};

/* Free with backend->free. BAD_INPUT where the driver, or a device of that number, is not there. */
status cuda_backend_new(struct backend **out, const struct cuda_options *options);

/* Graphs made, taken over by an earlier graph's executable, and launched again as they were. */
struct recorded {
    int64_t made, updated, replayed;
};
struct recorded cuda_recorded(const struct backend *backend);

#endif
