/* The subcommands. Each takes what follows its name (argv[0] is the name itself), prints results on standard output and
 * progress on standard error, and returns a status, which main prints and turns into the exit code. */
#ifndef BERTH_CMD_CMD_H
#define BERTH_CMD_CMD_H

#include "base/status.h"
#include "graph/comm.h"

status cmd_train(int argc, char **argv);
status cmd_eval(int argc, char **argv);
status cmd_vocab(int argc, char **argv);
status cmd_shard(int argc, char **argv);
status cmd_tokenize(int argc, char **argv);
status cmd_inspect(int argc, char **argv);
status cmd_analyze(int argc, char **argv);
status cmd_bench(int argc, char **argv);
status cmd_config(int argc, char **argv);

/* Runs a command that several processes may run together. What comes of it is the same on all of them, and one says it.
 */
status with_processes(status (*run)(struct comm *comm, int argc, char **argv), int argc, char **argv);

/* The line of an outcome, if it has one. */
void say_outcome(status code);

/* Command-line options of the tools that take no INI file. One table describes an option, its help and where its value
 * goes; parsing, --help and the errors (unknown option with the nearest known one, missing or bad value) come from it.
 */
enum option_type {
    OPTION_FLAG,   /* bool: present or not */
    OPTION_INT,    /* int64_t */
    OPTION_DOUBLE, /* double */
    OPTION_STRING, /* const char * */
    OPTION_LIST,   /* struct option_list: one or more values up to the next option */
};

struct option_list {
    char **items; /* points into argv */
    int count;
};

struct option {
    const char *name; /* "--size" */
    enum option_type type;
    void *value;          /* holds the default before parsing */
    const char *argument; /* "N", for the help */
    const char *help;
    double minimum, maximum; /* numbers: the range, both ends included */
    int required;            /* an error if not given */
};

/* Words that are no options nor their values go to `positional`, in their order, which moves them to the front of argv
 * (may be NULL: none allowed; not with an OPTION_LIST, which would take them). With --help, prints `usage`, then the
 * table with defaults, and sets *help. */
status options_parse(int argc, char **argv, const char *usage, const struct option *options, int option_count,
                     struct option_list *positional, int *help);

#endif
