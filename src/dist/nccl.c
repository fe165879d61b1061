/* Sums of gradients between GPUs. The functions of NCCL are found when the first communicator is made: the library has
 * hundreds of megabytes, and the program starts where it is not there. */
#include "dist/dist.h"

#ifndef BERTH_NCCL

status nccl_new(struct nccl **out, struct comm *comm, void *stream) {
    (void)out, (void)stream;
    return bad_input(
        "device.type = cuda with %d processes: this berth was built without NCCL ('make features' says why)",
        comm->ranks);
}

status nccl_sum_f32(struct nccl *nccl, float *values, int64_t count) {
    (void)nccl, (void)values, (void)count;
    return failed("this berth was built without NCCL");
}

void nccl_free(struct nccl *nccl) { (void)nccl; }

#else

#include <dlfcn.h>
#include <nccl.h>
#include <stdlib.h>

#include "base/memory.h"

#define NCCL_FUNCTIONS(FUNCTION) \
    FUNCTION(GetErrorString)     \
    FUNCTION(GetLastError)       \
    FUNCTION(GetUniqueId)        \
    FUNCTION(CommInitRank)       \
    FUNCTION(CommGetAsyncError)  \
    FUNCTION(CommDestroy)        \
    FUNCTION(AllReduce)

/* library.AllReduce is ncclAllReduce, and so on; NULL before load. */
static struct library {
#define FUNCTION(name) __typeof__(&nccl##name) name;
    NCCL_FUNCTIONS(FUNCTION)
#undef FUNCTION
} library;

#if defined(BERTH_EMU) || defined(BERTH_NCCL_LINKED)
/* The stand-ins of the emulator are linked in; and a check of the build links against the library itself. */
static status load(void) {
#define FUNCTION(name) library.name = nccl##name;
    NCCL_FUNCTIONS(FUNCTION)
#undef FUNCTION
    return OK;
}
#else
#define TEXT(number) #number
#define LIBRARY(major) "libnccl.so." TEXT(major)

static status load(void) {
    static const struct function {
        const char *name;
        size_t place;
    } functions[] = {
#define FUNCTION(name) {"nccl" #name, offsetof(struct library, name)},
        NCCL_FUNCTIONS(FUNCTION)
#undef FUNCTION
    };
    void *file = dlopen(LIBRARY(NCCL_MAJOR), RTLD_NOW | RTLD_LOCAL); /* and stays: no dlclose */
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *found = file ? dlsym(file, functions[i].name) : NULL;
        if (!found)
            return failed(
                "NCCL, which sums gradients between GPUs, cannot be loaded: %s; LD_LIBRARY_PATH can name its folder",
                dlerror());
        *(void **)((char *)&library + functions[i].place) = found;
    }
    return OK;
}
#endif

struct nccl {
    ncclComm_t comm;
    cudaStream_t stream;
};

static status check(struct nccl *nccl, ncclResult_t result, const char *what) {
    if (result == ncclSuccess)
        return OK;
    const char *more = library.GetLastError(nccl->comm);
    return failed("NCCL: %s: %s%s%s", what, library.GetErrorString(result), more && *more ? ": " : "",
                  more ? more : "");
}

static status first_of_all(struct nccl *nccl, const struct comm *comm, ncclUniqueId *id) {
    /* Sums that switches make (NVLS) differ in their last bits from call to call. Who set it wants it so. */
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    TRY(load());
    return comm->rank == 0 ? check(nccl, library.GetUniqueId(id), "ncclGetUniqueId") : OK;
}

status nccl_new(struct nccl **out, struct comm *comm, void *stream) {
    struct nccl *nccl = xcalloc(1, sizeof *nccl);
    ncclUniqueId id;
    nccl->stream = stream;
    *out = nccl;
    TRY(comm_agree(comm, first_of_all(nccl, comm, &id)));
    TRY(comm->broadcast(comm, 0, &id, sizeof id));
    ncclResult_t result = library.CommInitRank(&nccl->comm, comm->ranks, id, comm->rank);
    /* not agreed on: the others may still wait in there for the one that failed, which then ends all */
    return check(nccl, result, "ncclCommInitRank (has each process a GPU of its own?)");
}

status nccl_sum_f32(struct nccl *nccl, float *values, int64_t count) {
    ncclResult_t earlier = ncclSuccess;
    TRY(check(nccl, library.CommGetAsyncError(nccl->comm, &earlier), "ncclCommGetAsyncError"));
    TRY(check(nccl, earlier, "a sum over processes"));
    return check(nccl, library.AllReduce(values, values, (size_t)count, ncclFloat32, ncclSum, nccl->comm, nccl->stream),
                 "ncclAllReduce");
}

void nccl_free(struct nccl *nccl) {
    if (nccl && nccl->comm)
        library.CommDestroy(nccl->comm);
    free(nccl);
}

#endif
