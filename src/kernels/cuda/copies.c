/* An upload goes from pinned memory, by a stream of its own, to a landing place on the device, and from there, in the
 * order of the compute stream, to where it belongs: the slow way over the bus overlaps with kernels that still read the
 * old bytes, and a copy within the device takes microseconds. Pinned memory and landing place are cut into segments,
 * used one after another; a segment is used again when the compute stream has taken all of it. */
#include "kernels/cuda/copies.h"

#include <stdlib.h>

#include "base/memory.h"

enum { SEGMENTS = 4, SEGMENT_BYTES = 4 << 20, ALIGNMENT = 64 };

struct copies {
    cudaStream_t stream, compute;
    char *pinned, *landing; /* [SEGMENTS][SEGMENT_BYTES] on the host, on the device */
    cudaEvent_t landed, taken[SEGMENTS];
    int segment;
    size_t used; /* bytes of the current segment */
};

status copies_new(struct copies **out, cudaStream_t compute) {
    struct copies *copies = xcalloc(1, sizeof *copies);
    copies->compute = compute;
    *out = copies;
    CUDA_TRY(cudaStreamCreateWithFlags(&copies->stream, cudaStreamNonBlocking));
    CUDA_TRY(cudaEventCreateWithFlags(&copies->landed, cudaEventDisableTiming));
    for (int i = 0; i < SEGMENTS; i++)
        CUDA_TRY(cudaEventCreateWithFlags(&copies->taken[i], cudaEventDisableTiming));
    CUDA_TRY(cudaMallocHost((void **)&copies->pinned, (size_t)SEGMENTS * SEGMENT_BYTES));
    CUDA_TRY(cudaMalloc((void **)&copies->landing, (size_t)SEGMENTS * SEGMENT_BYTES));
    return OK;
}

void copies_free(struct copies *copies) {
    if (!copies)
        return;
    if (copies->stream)
        cudaStreamSynchronize(copies->stream);
    cudaFree(copies->landing);
    if (copies->pinned)
        cudaFreeHost(copies->pinned);
    for (int i = 0; i < SEGMENTS; i++)
        if (copies->taken[i])
            cudaEventDestroy(copies->taken[i]);
    if (copies->landed)
        cudaEventDestroy(copies->landed);
    if (copies->stream)
        cudaStreamDestroy(copies->stream);
    free(copies);
}

/* Room for at most `bytes`, at *at of pinned memory and landing place; sets how many there are. */
static status make_room(struct copies *copies, size_t bytes, size_t *at, size_t *count) {
    if (copies->used == SEGMENT_BYTES) {
        CUDA_TRY(cudaEventRecord(copies->taken[copies->segment], copies->compute));
        copies->segment = (copies->segment + 1) % SEGMENTS;
        copies->used = 0;
        CUDA_TRY(cudaEventSynchronize(copies->taken[copies->segment]));
    }
    size_t left = SEGMENT_BYTES - copies->used;
    *count = bytes < left ? bytes : left;
    *at = (size_t)copies->segment * SEGMENT_BYTES + copies->used;
    copies->used += (*count + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; /* a segment is a multiple of it */
    return OK;
}

status copies_upload(struct copies *copies, void *to, const void *from_host, size_t bytes) {
    for (size_t done = 0, at, count; done < bytes; done += count) {
        TRY(make_room(copies, bytes - done, &at, &count));
        memcpy(copies->pinned + at, (const char *)from_host + done, count);
        CUDA_TRY(
            cudaMemcpyAsync(copies->landing + at, copies->pinned + at, count, cudaMemcpyHostToDevice, copies->stream));
        CUDA_TRY(cudaEventRecord(copies->landed, copies->stream));
        CUDA_TRY(cudaStreamWaitEvent(copies->compute, copies->landed, 0));
        CUDA_TRY(
            cudaMemcpyAsync((char *)to + done, copies->landing + at, count, cudaMemcpyDeviceToDevice, copies->compute));
    }
    return OK;
}
