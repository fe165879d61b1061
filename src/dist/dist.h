/* Communicators behind graph/comm.h, and what is made of them. */
#ifndef BERTH_DIST_DIST_H
#define BERTH_DIST_DIST_H

#include "graph/comm.h"

/* One process: rank 0 of 1; sums are what they are. Needs no freeing. */
struct comm *comm_self(void);

/* All processes that a launcher started together with this one, as environment variables tell: mpirun's, mpiexec's or
 * srun's, by MPI; or RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, by TCP. One process where there are none. BAD_INPUT
 * where they cannot be reached: no MPI in this build, or one that this launcher does not serve. */
status comm_open(struct comm **out);
status comm_mpi_new(struct comm **out);
/* `patience`: seconds for all to come. */
status comm_tcp_new(int rank, int ranks, const char *host, const char *port, int patience, struct comm **out);

/* --- agreement --- */

/* OK if `code` is OK on all ranks; else, on all of them, the code and the message of the lowest rank that failed, which
 * is named if it is not 0. Whoever may fail alone asks here before the next sum, so that nobody waits for him. */
status comm_agree(struct comm *comm, status code);

/* A failure that the others do not know of, as it was met beyond that: says it and ends all processes. Returns `code`
 * where there is none, or where it was agreed on. */
status comm_alone(struct comm *comm, status code);

/* BAD_INPUT, on all ranks, unless `hash` is the same on all; `what` names what it was made of. */
status comm_same(struct comm *comm, const char *what, uint64_t hash);
/* Goes on with `hash` (HASH_START at first). */
#define HASH_START 14695981039346656037u
uint64_t comm_hash(uint64_t hash, const void *bytes, size_t count);

/* Rank 0's text, or NULL, on all ranks: there *text becomes a copy, which the caller frees. */
status comm_share_text(struct comm *comm, char **text);

/* --- NCCL: sums in the memory of GPUs --- */

struct nccl;
/* `stream` is a cudaStream_t, the order of work of this process's GPU; all ranks call this. The library is loaded now.
 * BAD_INPUT where this build has no NCCL. */
status nccl_new(struct nccl **out, struct comm *comm, void *stream);
/* As sum_f32, in device memory: queued on the stream, the host does not wait. The same bits on every rank. */
status nccl_sum_f32(struct nccl *nccl, float *values, int64_t count);
void nccl_free(struct nccl *nccl); /* the stream's work is done */

#endif
