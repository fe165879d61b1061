#include <stdio.h>

#include "base/log.h"
#include "base/parallel.h"
#include "cmd/cmd.h"
#include "dist/dist.h"

void say_outcome(status code) {
    if (code == OK || !*status_message())
        return;
    if (code == STOPPED)
        log_info("%s", status_message());
    else
        log_error("%s", status_message());
}

/* It is said before the others are let go: a launcher that sees one process fail ends the rest. */
status with_processes(status (*run)(struct comm *comm, int argc, char **argv), int argc, char **argv) {
    struct comm *comm;
    TRY(comm_open(&comm));
    log_set_quiet(comm->rank > 0);
    parallel_set_sharers(comm->sharers);
    status code = comm_alone(comm, run(comm, argc, argv));
    if (comm->ranks > 1) {
        if (comm->rank == 0)
            say_outcome(code);
        status_set(code, "");
    }
    comm->free(comm);
    return code;
}
