/* What the CUDA kernels and their host side share. Included from C and from CUDA C. */
#ifndef BERTH_KERNELS_CUDA_KERNELS_H
#define BERTH_KERNELS_CUDA_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "graph/backend.h"

struct cuda;

/* The stream that all operators run on, in order. */
cudaStream_t cuda_stream(struct cuda *cuda);

/* Multiprocessors, and the most shared memory in bytes that a block may ask for (99 KB on sm_86, 227 KB on sm_90). */
int cuda_multiprocessors(const struct cuda *cuda);
int cuda_shared_limit(const struct cuda *cuda);

/* BERTH_ATTENTION_DX, for tests and measurements: which way attention's backward pass takes for sequences of several
 * blocks of keys (attention_dx.cu). */
enum attention_way { ATTENTION_WAY_AUTO, ATTENTION_WAY_WHOLE, ATTENTION_WAY_BLOCKS };
enum attention_way cuda_attention_way(const struct cuda *cuda);

/* Device memory for what lives only within one operator: partial sums, split products. All operators use the same. */
enum { CUDA_WORKSPACE_BYTES = 64 << 20 };
void *cuda_workspace(struct cuda *cuda);

/* A copy on the device of host memory that is constant for the life of the graph (chunks, parameters): made the first
 * time it is asked for, found by its address later. */
status cuda_constant(struct cuda *cuda, const void *host, size_t bytes, const void **out);

/* `count` floats as another float dtype, in memory that holds them until the next call; at most CUDA_CONVERTED_MOST. */
enum { CUDA_CONVERTED_MOST = 1 << 20 };
status cuda_converted(struct cuda *cuda, const float *from, int64_t count, enum dtype dtype, void **out);
void *cuda_converted_memory(struct cuda *cuda);

/* Device seconds of `work`, the best of `rounds` runs after one that does not count; 0 if it does not run. */
double cuda_time(struct cuda *cuda, status (*work)(struct cuda *cuda, void *ctx), void *ctx, int rounds);

/* Are launches being recorded? Then nothing may wait, be measured or allocated. */
bool cuda_records(const struct cuda *cuda);

/* The result of a call of the runtime, or of a launch, as a status; `what` names it. */
status cuda_check(cudaError_t error, const char *what);
#define CUDA_TRY(call) TRY(cuda_check((call), #call))

/* An operator per row of op.def. */
#define OP(name, ...) status cuda_##name(struct cuda *cuda, const struct op_call *call);
#include "graph/op.def"
#undef OP

#ifdef __cplusplus
}
#endif

#endif
