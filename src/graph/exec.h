/* The executor: owns the device memory of a planned graph and walks its nodes. Steps allocate nothing. */
#ifndef BERTH_GRAPH_EXEC_H
#define BERTH_GRAPH_EXEC_H

#include "graph/backend.h"
#include "graph/graph.h"
#include "graph/plan.h"

struct exec;

/* Plans memory, allocates it on the device, and checks that the backend has every operator. Takes no ownership. `seed`
 * keys dropout. */
status exec_new(struct exec **out, struct graph *graph, struct backend *backend, uint64_t seed);
void exec_free(struct exec *exec);

/* How the tokens of the next micro-batch fall into sequences (host arrays, copied): sets the sizes of dims t, b, e and,
 * from `masked`, of m. BAD_INPUT if they exceed the planned capacity. */
status exec_set_ragged(struct exec *exec, int64_t sequences, const int32_t *starts, const int64_t *sequence_numbers,
                       int64_t masked);

/* Host to device and back, whole tensors of kinds INPUT, STATE, RESULT, WEIGHT, GRADIENT (any kind for download,
 * between passes). `count` elements from the tensor's start; dtype is the tensor's. */
status exec_upload(struct exec *exec, int tensor, const void *host, int64_t count);
status exec_download(struct exec *exec, int tensor, void *host, int64_t count);
/* As exec_download, but there only when a mark set behind it is reached (backend.h). */
status exec_download_later(struct exec *exec, int tensor, void *host, int64_t count);
/* A parameter's slice of a flat state tensor (master weights, moments): `parameter` selects offset and count. */
status exec_upload_slice(struct exec *exec, int tensor, int parameter, const void *host);
status exec_download_slice(struct exec *exec, int tensor, int parameter, void *host);

/* The flat gradients, f32, as device memory: [flat_count of the graph]. */
float *exec_gradients(const struct exec *exec);
/* What micro-steps add up becomes zero (gradients, results): for a step without any. */
status exec_clear(struct exec *exec);

/* Run the nodes of the given passes (a set of enum pass). `first`: this is the first micro-step of its step, so
 * gradients and sums are overwritten rather than added to. `evaluate`: dropout off. */
status exec_run(struct exec *exec, int passes, bool first, bool evaluate);

/* From now on exec_run waits for each node and adds the seconds that it took to seconds[node]; NULL: no more. The array
 * is the caller's. */
void exec_profile(struct exec *exec, double *seconds);

const struct plan *exec_plan(const struct exec *exec);
struct backend *exec_backend(const struct exec *exec);

#endif
