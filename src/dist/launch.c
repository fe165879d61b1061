/* Which communicator there is: launchers tell a process by its environment how many they started. */
#include <stdlib.h>
#include <unistd.h>

#include "dist/dist.h"

/* In this order: an mpirun or mpiexec may start its own servants by srun, whose variables are then there, too. srun's
 * are those of a step: a batch script, which has others, is one process. */
static const struct launcher {
    const char *ranks, *rank, *name;
} launchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "mpirun (Open MPI)"},
    {"PMI_SIZE", "PMI_RANK", "mpiexec"},
    {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "srun"},
};

static int number_of(const char *variable) {
    const char *text = getenv(variable);
    return text ? atoi(text) : 0;
}

static const struct launcher *find_launcher(void) {
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++)
        if (getenv(launchers[i].ranks))
            return &launchers[i];
    return NULL;
}

/* Processes that cannot reach each other fail alike: one of them says it. The others give it time for that, as the
 * launcher ends all of them when the first one has failed. */
static status one_voice(const struct launcher *launcher, status code) {
    if (number_of(launcher->rank) == 0)
        return code;
    sleep(1);
    return status_set(code, "");
}

#ifdef BERTH_MPI
static status open_mpi(const struct launcher *launcher, struct comm **out) {
    int ranks = number_of(launcher->ranks);
    TRY(comm_mpi_new(out));
    int seen = (*out)->ranks;
    if (seen == ranks)
        return OK;
    (*out)->free(*out);
    return one_voice(launcher, bad_input("%s started %d processes, but the MPI of this build sees %d: take the "
                                         "launcher that belongs to it (with srun: --mpi=pmix or --mpi=pmi2)",
                                         launcher->name, ranks, seen));
}
#else
static status open_mpi(const struct launcher *launcher, struct comm **out) {
    (void)out;
    return one_voice(launcher, bad_input("%s started %d processes, but this berth was built without MPI ('make "
                                         "features' says why): expected one process",
                                         launcher->name, number_of(launcher->ranks)));
}
#endif

status comm_open(struct comm **out) {
    const struct launcher *launcher = find_launcher();
    if (launcher && number_of(launcher->ranks) > 1)
        return open_mpi(launcher, out);
    *out = comm_self();
    return OK;
}
