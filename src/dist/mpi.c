/* MPI moves bytes; sums are made here, in rank order, so that they do not depend on the algorithms of a library. */
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "dist/dist.h"

/* A piece is what is summed at once: enough that the latency of messages does not count, few enough that MPI's counts,
 * which are int, and the scratch memory stay small. */
enum { PIECE = 1 << 22, PIECE_F64 = 64, GRAIN = 4096 };

struct mpi {
    struct comm comm;
    float *parts;         /* [ranks · slice] this rank's slice of a piece, from every rank; PIECE + ranks at most */
    double *values;       /* [ranks · PIECE_F64] */
    int *counts, *starts; /* [ranks] slices of a piece */
    int *copies, *places; /* [ranks] this rank's slice in `parts` */
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

/* --- sums --- */

static status sum_f64(struct comm *comm, double *values, int64_t count) {
    struct mpi *mpi = (struct mpi *)comm;
    for (int64_t done = 0; done < count; done += PIECE_F64) {
        int n = (int)(count - done < PIECE_F64 ? count - done : PIECE_F64);
        double *sums = values + done;
        MPI_TRY(MPI_Allgather, sums, n, MPI_DOUBLE, mpi->values, n, MPI_DOUBLE, MPI_COMM_WORLD);
        memcpy(sums, mpi->values, (size_t)n * sizeof *sums);
        for (int rank = 1; rank < comm->ranks; rank++)
            for (int i = 0; i < n; i++)
                sums[i] += mpi->values[rank * n + i];
    }
    return OK;
}

struct addition {
    const float *parts; /* [ranks, n] */
    float *sums;        /* [n] */
    int64_t ranks, n;
};

static void add_parts(void *ctx, int64_t begin, int64_t end) {
    const struct addition *a = ctx;
    memcpy(a->sums + begin, a->parts + begin, (size_t)(end - begin) * sizeof *a->sums);
    for (int64_t rank = 1; rank < a->ranks; rank++) {
        const float *part = a->parts + rank * a->n;
        for (int64_t i = begin; i < end; i++)
            a->sums[i] += part[i];
    }
}

/* Every rank gets its slice from all others, sums it, and gives the sums to all others: over a rank's link go twice the
 * bytes of the piece, whatever the number of ranks. */
static status sum_piece(struct mpi *mpi, float *values, int count) {
    int ranks = mpi->comm.ranks, rank = mpi->comm.rank;
    for (int r = 0; r < ranks; r++) {
        mpi->starts[r] = (int)((int64_t)count * r / ranks);
        mpi->counts[r] = (int)((int64_t)count * (r + 1) / ranks) - mpi->starts[r];
    }
    int own = mpi->counts[rank];
    for (int r = 0; r < ranks; r++) {
        mpi->copies[r] = own;
        mpi->places[r] = r * own;
    }
    MPI_TRY(MPI_Alltoallv, values, mpi->counts, mpi->starts, MPI_FLOAT, mpi->parts, mpi->copies, mpi->places, MPI_FLOAT,
            MPI_COMM_WORLD);
    struct addition addition = {mpi->parts, values + mpi->starts[rank], ranks, own};
    parallel_for(own, GRAIN, add_parts, &addition);
    MPI_TRY(MPI_Allgatherv, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, values, mpi->counts, mpi->starts, MPI_FLOAT,
            MPI_COMM_WORLD);
    return OK;
}

static status sum_f32(struct comm *comm, float *values, int64_t count) {
    for (int64_t done = 0; done < count; done += PIECE)
        TRY(sum_piece((struct mpi *)comm, values + done, (int)(count - done < PIECE ? count - done : PIECE)));
    return OK;
}

static status broadcast(struct comm *comm, int root, void *bytes, int64_t count) {
    (void)comm;
    for (int64_t done = 0; done < count; done += PIECE)
        MPI_TRY(MPI_Bcast, (char *)bytes + done, (int)(count - done < PIECE ? count - done : PIECE), MPI_BYTE, root,
                MPI_COMM_WORLD);
    return OK;
}

/* --- beginning and end --- */

static void abort_all(struct comm *comm, int code) {
    (void)comm;
    MPI_Abort(MPI_COMM_WORLD, code);
}

static void mpi_free(struct comm *comm) {
    struct mpi *mpi = (struct mpi *)comm;
    free(mpi->parts);
    free(mpi->values);
    free(mpi->counts);
    free(mpi);
    MPI_Barrier(
        MPI_COMM_WORLD); /* a launcher that sees one process fail ends the others, which may still have to say why */
    MPI_Finalize();
}

/* Launchers may bind each process to cores of its own; processes whose cores are the same have to share them. */
static status find_neighbours(struct comm *comm) {
    MPI_Comm machine;
    cpu_set_t own;
    CPU_ZERO(&own);
    sched_getaffinity(0, sizeof own, &own);
    MPI_TRY(MPI_Comm_split_type, MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, comm->rank, MPI_INFO_NULL, &machine);
    MPI_Comm_rank(machine, &comm->local_rank);
    MPI_Comm_size(machine, &comm->local_ranks);
    cpu_set_t *all = xcalloc((size_t)comm->local_ranks, sizeof *all);
    status code = check(MPI_Allgather(&own, sizeof own, MPI_BYTE, all, sizeof own, MPI_BYTE, machine), "MPI_Allgather");
    for (int r = 0; r < comm->local_ranks; r++)
        comm->sharers += CPU_EQUAL(&own, &all[r]) != 0;
    free(all);
    MPI_Comm_free(&machine);
    return code;
}

static status describe(struct comm *comm) {
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
    int length, version, subversion;
    double machines = comm->local_rank == 0;
    TRY(comm->sum_f64(comm, &machines, 1));
    MPI_Get_library_version(library, &length);
    library[strcspn(library, ",\n")] = 0;
    for (char *tab = library; (tab = strchr(tab, '\t'));)
        *tab = ' ';
    MPI_Get_version(&version, &subversion);
    snprintf(comm->name, sizeof comm->name, "%d processes on %.0f machine%s, MPI %d.%d (%.60s)", comm->ranks, machines,
             machines == 1 ? "" : "s", version, subversion, library);
    return OK;
}

status comm_mpi_new(struct comm **out) {
    int provided;
    MPI_TRY(MPI_Init_thread, NULL, NULL, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    struct mpi *mpi = xcalloc(1, sizeof *mpi);
    struct comm *comm = &mpi->comm;
    MPI_Comm_rank(MPI_COMM_WORLD, &comm->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &comm->ranks);
    size_t ranks = (size_t)comm->ranks;
    mpi->parts = xmalloc((PIECE + ranks) * sizeof *mpi->parts);
    mpi->values = xmalloc(ranks * PIECE_F64 * sizeof *mpi->values);
    mpi->counts = xcalloc(4 * ranks, sizeof *mpi->counts);
    mpi->starts = mpi->counts + ranks;
    mpi->copies = mpi->starts + ranks;
    mpi->places = mpi->copies + ranks;
    comm->sum_f64 = sum_f64;
    comm->sum_f32 = sum_f32;
    comm->broadcast = broadcast;
    comm->abort = abort_all;
    comm->free = mpi_free;
    *out = comm;
    TRY(find_neighbours(comm));
    return describe(comm);
}
