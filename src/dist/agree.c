/* Processes find out whether all of them are well, and say it once if not. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "dist/dist.h"

struct outcome {
    status code;
    char message[2000];
};

/* The lowest rank that failed; there is one. */
static status first_failure(struct comm *comm, status code, int *first) {
    double *codes = xcalloc((size_t)comm->ranks, sizeof *codes);
    codes[comm->rank] = code;
    status summed = comm->sum_f64(comm, codes, comm->ranks);
    for (*first = 0; summed == OK && *first < comm->ranks - 1 && codes[*first] == OK;)
        ++*first;
    free(codes);
    return summed;
}

status comm_agree(struct comm *comm, status code) {
    struct outcome outcome = {.code = code};
    double failures = code != OK;
    int first;
    if (comm->ranks == 1)
        return code;
    if (code != OK)
        snprintf(outcome.message, sizeof outcome.message, "%s", status_message());
    TRY(comm->sum_f64(comm, &failures, 1));
    if (failures == 0)
        return OK;
    TRY(first_failure(comm, code, &first));
    TRY(comm->broadcast(comm, first, &outcome, sizeof outcome));
    comm->agreed = true;
    status_set(outcome.code, outcome.message);
    return first ? status_context(outcome.code, "rank %d", first) : outcome.code;
}

status comm_alone(struct comm *comm, status code) {
    if (comm->ranks == 1 || code == OK || code == STOPPED || comm->agreed)
        return code;
    log_progress_end();
    log_error("rank %d: %s", comm->rank, status_message());
    comm->abort(comm, code);
    return code;
}

/* FNV-1a over words of 8 bytes, the last one filled up with zeros. */
uint64_t comm_hash(uint64_t hash, const void *bytes, size_t count) {
    const char *from = bytes;
    for (; count >= sizeof hash; from += sizeof hash, count -= sizeof hash) {
        uint64_t word;
        memcpy(&word, from, sizeof word);
        hash = (hash ^ word) * 1099511628211u;
    }
    uint64_t rest = 0;
    memcpy(&rest, from, count);
    return (hash ^ rest ^ count << 56) * 1099511628211u;
}

status comm_same(struct comm *comm, const char *what, uint64_t hash) {
    uint64_t first = hash;
    if (comm->ranks == 1)
        return OK;
    TRY(comm->broadcast(comm, 0, &first, sizeof first));
    return comm_agree(comm, hash == first ? OK : bad_input("%s: expected the same as on rank 0", what));
}

status comm_share_text(struct comm *comm, char **text) {
    int64_t bytes = comm->rank == 0 && *text ? (int64_t)strlen(*text) + 1 : 0;
    TRY(comm->broadcast(comm, 0, &bytes, sizeof bytes));
    if (comm->rank > 0)
        *text = bytes ? xmalloc((size_t)bytes) : NULL;
    return bytes ? comm->broadcast(comm, 0, *text, bytes) : OK;
}
