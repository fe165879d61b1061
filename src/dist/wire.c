#include "dist/wire.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/parallel.h"

/* A piece is what is summed at once: enough that the latency of messages does not count, few enough that sizes in bytes
 * fit an int and the scratch memory stays small. */
enum { PIECE = 1 << 22, PIECE_F64 = 64, GRAIN = 4096 };

static int least(int64_t a, int most) { return a < most ? (int)a : most; }

/* Slices of the same size for all ranks. */
static status gather(struct wire *wire, void *bytes, int bytes_each) {
    for (int r = 0; r < wire->comm.ranks; r++) {
        wire->counts[r] = bytes_each;
        wire->starts[r] = r * bytes_each;
    }
    return wire->all_gather(wire, bytes, wire->counts, wire->starts);
}

static status sum_f64(struct comm *comm, double *values, int64_t count) {
    struct wire *wire = (struct wire *)comm;
    for (int64_t done = 0; done < count; done += PIECE_F64) {
        int n = least(count - done, PIECE_F64);
        double *sums = values + done;
        memcpy(wire->values + comm->rank * n, sums, (size_t)n * sizeof *sums);
        TRY(gather(wire, wire->values, n * (int)sizeof *sums));
        memcpy(sums, wire->values, (size_t)n * sizeof *sums);
        for (int rank = 1; rank < comm->ranks; rank++)
            for (int i = 0; i < n; i++)
                sums[i] += wire->values[rank * n + i];
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
static status sum_piece(struct wire *wire, float *values, int count) {
    int64_t ranks = wire->comm.ranks;
    for (int64_t r = 0; r < ranks; r++) {
        int64_t begin = count * r / ranks, end = count * (r + 1) / ranks;
        wire->starts[r] = (int)(begin * (int64_t)sizeof *values);
        wire->counts[r] = (int)((end - begin) * (int64_t)sizeof *values);
    }
    TRY(wire->all_to_all(wire, (const char *)values, wire->counts, wire->starts, (char *)wire->parts));
    int64_t begin = count * wire->comm.rank / ranks, own = count * (wire->comm.rank + 1) / ranks - begin;
    struct addition addition = {wire->parts, values + begin, ranks, own};
    parallel_for(own, GRAIN, add_parts, &addition);
    return wire->all_gather(wire, (char *)values, wire->counts, wire->starts);
}

static status sum_f32(struct comm *comm, float *values, int64_t count) {
    for (int64_t done = 0; done < count; done += PIECE)
        TRY(sum_piece((struct wire *)comm, values + done, least(count - done, PIECE)));
    return OK;
}

void wire_open(struct wire *wire) {
    size_t ranks = (size_t)wire->comm.ranks;
    wire->parts = xmalloc((PIECE + ranks) * sizeof *wire->parts); /* slices differ by one */
    wire->values = xmalloc(ranks * PIECE_F64 * sizeof *wire->values);
    wire->counts = xcalloc(2 * ranks, sizeof *wire->counts);
    wire->starts = wire->counts + ranks;
    wire->comm.sum_f64 = sum_f64;
    wire->comm.sum_f32 = sum_f32;
}

void wire_close(struct wire *wire) {
    free(wire->parts);
    free(wire->values);
    free(wire->counts);
}

/* Launchers may bind each process to cores of its own; processes whose cores are the same have to share them. */
struct home {
    char machine[256];
    cpu_set_t cores;
};

status wire_meet(struct wire *wire, const char *library) {
    struct comm *comm = &wire->comm;
    struct home *homes = xcalloc((size_t)comm->ranks, sizeof *homes), *own = &homes[comm->rank];
    double machines = 1;
    gethostname(own->machine, sizeof own->machine - 1);
    sched_getaffinity(0, sizeof own->cores, &own->cores);
    status code = gather(wire, homes, sizeof *homes);
    for (int r = 0; r < comm->ranks; r++) {
        bool here = strcmp(homes[r].machine, own->machine) == 0;
        comm->local_ranks += here;
        comm->local_rank += here && r < comm->rank;
        comm->sharers += here && CPU_EQUAL(&own->cores, &homes[r].cores);
    }
    free(homes);
    TRY(code);
    machines = comm->local_rank == 0;
    TRY(sum_f64(comm, &machines, 1));
    snprintf(comm->name, sizeof comm->name, "%d processes on %.0f machine%s, %s", comm->ranks, machines,
             machines == 1 ? "" : "s", library);
    return OK;
}
