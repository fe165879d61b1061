/* Stand-ins of the NCCL functions that src/dist/nccl.c calls: sums over the processes of one machine, each with a
 * device of its own, through shared memory that the unique id names. As with the library, a sum is work of the stream,
 * and all ranks have to ask for the same sums in the same order. Another function, type or operation fails. */
#if __has_include(<nccl.h>)
#include <fcntl.h>
#include <nccl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "internal.h"

namespace {

constexpr int RANKS_MOST = 16;
constexpr size_t PIECE = 1 << 14; /* floats that are summed at once */

struct meeting {
    std::atomic<bool> ready; /* the barrier is made */
    pthread_barrier_t barrier;
    size_t counts[RANKS_MOST]; /* of the sums that the ranks asked for */
    float pieces[RANKS_MOST][PIECE];
};

thread_local std::string last_error;

ncclResult_t refuse(ncclResult_t result, const std::string &why) {
    emu::warn("NCCL: %s", why.c_str());
    last_error = why;
    return result;
}

/* What rank 0 makes, the others find as soon as it has its size. */
meeting *attach(const char *name, int ranks, int rank) {
    int file = -1;
    off_t size = 0;
    for (int tries = 0; tries < 60000 && size < (off_t)sizeof(meeting); tries++, usleep(1000)) {
        if (file < 0)
            file = shm_open(name, rank == 0 ? O_RDWR | O_CREAT | O_EXCL : O_RDWR, 0600);
        if (file >= 0 && rank == 0 && ftruncate(file, sizeof(meeting)) != 0)
            return nullptr;
        size = file < 0 ? 0 : lseek(file, 0, SEEK_END);
    }
    void *memory = file < 0 ? MAP_FAILED : mmap(nullptr, sizeof(meeting), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED || size < (off_t)sizeof(meeting))
        return nullptr;
    meeting *made = static_cast<meeting *>(memory);
    if (rank == 0) {
        pthread_barrierattr_t attributes;
        pthread_barrierattr_init(&attributes);
        pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
        pthread_barrier_init(&made->barrier, &attributes, (unsigned)ranks);
        made->ready = true;
    }
    while (!made->ready)
        usleep(100);
    return made;
}

}  // namespace

struct ncclComm {
    meeting *shared;
    int ranks, rank;
};

/* What the stream does when it comes to a sum: in rank order, so that all ranks have the same bits. */
static void sum(const ncclComm *comm, float *values, size_t count) {
    meeting *shared = comm->shared;
    shared->counts[comm->rank] = count;
    for (size_t done = 0; done < count; done += PIECE) {
        size_t n = std::min(PIECE, count - done);
        memcpy(shared->pieces[comm->rank], values + done, n * sizeof(float));
        pthread_barrier_wait(&shared->barrier);
        for (int r = 0; r < comm->ranks; r++)
            if (shared->counts[r] != count)
                emu::stop("", "ncclAllReduce of %zu elements on rank %d, of %zu on rank %d", count, comm->rank,
                          shared->counts[r], r);
        for (size_t i = 0; i < n; i++) {
            float total = shared->pieces[0][i];
            for (int r = 1; r < comm->ranks; r++)
                total += shared->pieces[r][i];
            values[done + i] = total;
        }
        pthread_barrier_wait(&shared->barrier);
    }
}

extern "C" {

const char *ncclGetErrorString(ncclResult_t result) {
    return result == ncclSuccess ? "no error" : result == ncclInvalidArgument ? "invalid argument" : "invalid usage";
}

const char *ncclGetLastError(ncclComm_t) { return last_error.c_str(); }

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    unsigned long long number = 0;
    if (getrandom(&number, sizeof number, 0) != sizeof number)
        return refuse(ncclSystemError, "no random number for the unique id");
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "/berth-emu-nccl-%016llx", number);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t *out, int ranks, ncclUniqueId id, int rank) {
    if (rank < 0 || rank >= ranks || ranks > RANKS_MOST)
        return refuse(ncclInvalidArgument, emu::text("rank %d of %d, at most %d", rank, ranks, RANKS_MOST));
    meeting *shared = attach(id.internal, ranks, rank);
    if (!shared)
        return refuse(ncclSystemError, emu::text("shared memory %s", id.internal));
    *out = new ncclComm{shared, ranks, rank};
    pthread_barrier_wait(&shared->barrier);
    if (rank == 0)
        shm_unlink(id.internal);
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t *result) {
    *result = ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t operation,
                           ncclComm_t comm, cudaStream_t stream) {
    if (from != to || type != ncclFloat32 || operation != ncclSum)
        return refuse(ncclInvalidArgument, "ncclAllReduce: only sums of floats in place are known here");
    if (!emu::is_device_memory(to, count * sizeof(float)))
        return refuse(ncclInvalidArgument, "ncclAllReduce: not within device memory");
    if (!emu::stream_is_known(stream) || emu::is_capturing(stream))
        return refuse(ncclInvalidUsage, "ncclAllReduce: a stream that is not there, or captures (not done by berth)");
    emu::submit(stream, emu::work_kind::KERNEL, [=] { sum(comm, static_cast<float *>(to), count); });
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    munmap(comm->shared, sizeof(meeting));
    delete comm;
    return ncclSuccess;
}

}  // extern "C"
#endif
