/* Which communicator there is: launchers tell a process by its environment how many they started. Those of MPI come
 * first: the variables of others may be left over in what they hand on. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "dist/dist.h"

/* In this order: an mpirun or mpiexec may start its own servants by srun, whose variables are then there, too. srun's
 * are those of a step: a batch script, which has others, is one process. */
static const struct launcher {
    const char *ranks, *rank, *name;
} launchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "mpirun (Open MPI)"},
    {"PMI_SIZE", "PMI_RANK", "the launcher (PMI)"},
    {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "srun"},
};

/* Of those who start processes with their own words. */
static const char *const variables[] = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};

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

/* srun without --mpi hands out ranks, and no way to meet. */
static bool serves_mpi(const struct launcher *launcher) {
    return strcmp(launcher->name, "srun") != 0 || getenv("PMIX_RANK") || getenv("PMI_RANK");
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
/* Most libraries of MPI then end the process, with many words of which none says what to do. A few can start. */
static void warn_of_srun(const struct launcher *launcher) {
    if (!serves_mpi(launcher) && number_of(launcher->rank) == 0)
        log_warn("srun without --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH): MPI may not start");
}

static status open_mpi(const struct launcher *launcher, struct comm **out) {
    int ranks = number_of(launcher->ranks);
    warn_of_srun(launcher);
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
                                         "features' says why): expected one process, or RANK, WORLD_SIZE, MASTER_ADDR "
                                         "and MASTER_PORT for each",
                                         launcher->name, number_of(launcher->ranks)));
}
#endif

static bool has_all_variables(void) {
    bool all = true;
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        all = all && getenv(variables[i]);
    return all;
}

/* A variable that a person or a script may have set. Not there: *number stays. */
static status read_number(const char *variable, int least, int *number) {
    const char *text = getenv(variable);
    char *end;
    long value = text ? strtol(text, &end, 10) : *number;
    *number = (int)value;
    if (text && (end == text || *end || value < least || value > INT_MAX))
        return bad_input("%s = %s: expected a whole number from %d on", variable, text, least);
    return OK;
}

static status open_tcp(struct comm **out) {
    int rank = 0, ranks = 0, patience = 300;
    TRY(read_number("RANK", 0, &rank));
    TRY(read_number("WORLD_SIZE", 0, &ranks));
    TRY(read_number("BERTH_PATIENCE", 1, &patience));
    if (has_all_variables())
        return comm_tcp_new(rank, ranks, getenv("MASTER_ADDR"), getenv("MASTER_PORT"), patience, out);
    return bad_input("WORLD_SIZE = %d: expected RANK, MASTER_ADDR and MASTER_PORT, too", ranks);
}

#ifdef BERTH_MPI
enum { HAS_MPI = 1 };
#else
enum { HAS_MPI = 0 };
#endif

status comm_open(struct comm **out) {
    const struct launcher *launcher = find_launcher();
    int launched = launcher && number_of(launcher->ranks) > 1 ? number_of(launcher->ranks) : 1, own = 0;
    if (launched == 1 || has_all_variables())
        TRY(read_number("WORLD_SIZE", 0, &own));
    /* a launcher may have started others, of which each started some with words of its own; srun may have been told to
     * leave MPI alone */
    if (own > launched || (own > 1 && own == launched && !serves_mpi(launcher)) ||
        (launched > 1 && own > 1 && !HAS_MPI))
        return open_tcp(out);
    if (launched > 1)
        return open_mpi(launcher, out);
    if (!getenv("WORLD_SIZE") && getenv("RANK") && getenv("MASTER_ADDR"))
        return bad_input("RANK = %s and MASTER_ADDR = %s: expected WORLD_SIZE, too", getenv("RANK"),
                         getenv("MASTER_ADDR"));
    *out = comm_self();
    return OK;
}
