/* Series of operators as CUDA graphs: launches recorded once, and launched again as one. */
#ifndef BERTH_KERNELS_CUDA_RECORDER_H
#define BERTH_KERNELS_CUDA_RECORDER_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/kernels.h"

struct recorder;
struct recorder *recorder_new(enum recording recording, cudaStream_t stream);
void recorder_free(struct recorder *recorder);

/* backend->run_series */
status recorder_run(struct recorder *recorder, const struct series *series, status (*walk)(void *ctx), void *ctx);

/* Memory that recordings may point to is gone. */
void recorder_forget(struct recorder *recorder);

/* Is a walk being recorded now? */
bool recorder_records(const struct recorder *recorder);

struct recorded recorder_counts(const struct recorder *recorder);

#endif
