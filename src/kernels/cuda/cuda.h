/* The CUDA backend: one NVIDIA device. A program built without CUDA has none of this folder; the same sources built
 * against tests/cudaemu run on the host. */
#ifndef BERTH_KERNELS_CUDA_CUDA_H
#define BERTH_KERNELS_CUDA_CUDA_H

#include "graph/backend.h"

/* Devices that this process can use: 0 without a driver. */
int cuda_device_count(void);

/* "NVIDIA H100 80GB HBM3, sm_90, 80 GB" of a device; false if there is none of that number. */
bool cuda_device_describe(int device, char *line, size_t size);

/* Free with backend->free. BAD_INPUT where the driver, or a device of that number, is not there. `tf32`: products of
 * floats may round their inputs to 10 bits of mantissa. */
status cuda_backend_new(struct backend **out, int device, bool tf32);

#endif
