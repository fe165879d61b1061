/* Host to device beside the kernels that run. */
#ifndef BERTH_KERNELS_CUDA_COPIES_H
#define BERTH_KERNELS_CUDA_COPIES_H

#include "kernels/cuda/kernels.h"

struct copies;

/* `compute`: the stream whose kernels read what is copied. Also on failure, `out` is to be freed. */
status copies_new(struct copies **out, cudaStream_t compute);
void copies_free(struct copies *copies);

/* `from_host` may be written again at once. What is on the compute stream before this call sees the old bytes of `to`,
 * what comes after it the new ones. */
status copies_upload(struct copies *copies, void *to, const void *from_host, size_t bytes);

#endif
