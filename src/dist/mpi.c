/* Processes that an MPI launcher started. MPI moves bytes; wire.c adds. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "dist/dist.h"
#include "dist/wire.h"

enum { MOST_AT_ONCE = 1 << 24 }; /* bytes */

struct mpi {
    struct wire wire;
    int *copies, *places; /* [ranks] of this rank's slices */
};

static status check(int code, const char *what) {
    char text[MPI_MAX_ERROR_STRING];
    int length;
    if (code == MPI_SUCCESS)
        return OK;
    MPI_Error_string(code, text, &length);
    return failed("MPI: %s: %s", what, text);
}
#define MPI_TRY(function, ...) TRY(check(function(__VA_ARGS__), #function))

static status all_to_all(struct wire *wire, const char *from, const int *counts, const int *starts, char *to) {
    struct mpi *mpi = (struct mpi *)wire;
    int own = counts[wire->comm.rank];
    for (int r = 0; r < wire->comm.ranks; r++) {
        mpi->copies[r] = own;
        mpi->places[r] = r * own;
    }
    MPI_TRY(MPI_Alltoallv, from, counts, starts, MPI_BYTE, to, mpi->copies, mpi->places, MPI_BYTE, MPI_COMM_WORLD);
    return OK;
}

static status all_gather(struct wire *wire, char *bytes, const int *counts, const int *starts) {
    (void)wire;
    MPI_TRY(MPI_Allgatherv, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, bytes, counts, starts, MPI_BYTE, MPI_COMM_WORLD);
    return OK;
}

static status broadcast(struct comm *comm, int root, void *bytes, int64_t count) {
    (void)comm;
    for (int64_t done = 0; done < count; done += MOST_AT_ONCE) {
        int n = (int)(count - done < MOST_AT_ONCE ? count - done : MOST_AT_ONCE);
        MPI_TRY(MPI_Bcast, (char *)bytes + done, n, MPI_BYTE, root, MPI_COMM_WORLD);
    }
    return OK;
}

static void abort_all(struct comm *comm, int code) {
    (void)comm;
    MPI_Abort(MPI_COMM_WORLD, code);
}

static void mpi_free(struct comm *comm) {
    struct mpi *mpi = (struct mpi *)comm;
    wire_close(&mpi->wire);
    free(mpi->copies);
    free(mpi);
    /* a launcher that sees one process fail ends the others, which may still have to say why */
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
}

/* "MPI 3.1 (Open MPI v4.1.4)" */
static void describe(char *line, size_t size) {
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
    int length, version, subversion;
    MPI_Get_library_version(library, &length);
    library[strcspn(library, ",\n")] = 0;
    for (char *tab = library; (tab = strchr(tab, '\t'));)
        *tab = ' ';
    MPI_Get_version(&version, &subversion);
    snprintf(line, size, "MPI %d.%d (%.60s)", version, subversion, library);
}

status comm_mpi_new(struct comm **out) {
    int provided;
    char library[80];
    MPI_TRY(MPI_Init_thread, NULL, NULL, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    struct mpi *mpi = xcalloc(1, sizeof *mpi);
    struct comm *comm = &mpi->wire.comm;
    MPI_Comm_rank(MPI_COMM_WORLD, &comm->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &comm->ranks);
    mpi->copies = xcalloc(2 * (size_t)comm->ranks, sizeof *mpi->copies);
    mpi->places = mpi->copies + comm->ranks;
    mpi->wire.all_to_all = all_to_all;
    mpi->wire.all_gather = all_gather;
    comm->broadcast = broadcast;
    comm->abort = abort_all;
    comm->free = mpi_free;
    *out = comm;
    wire_open(&mpi->wire);
    describe(library, sizeof library);
    return wire_meet(&mpi->wire, library);
}
