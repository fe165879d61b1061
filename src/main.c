#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "cmd/cmd.h"

#ifndef BERTH_VERSION
#define BERTH_VERSION "0.1.0"
#endif

static const struct command {
    const char *name;
    status (*run)(int argc, char **argv);
    const char *help;
} commands[] = {
    {"vocab", cmd_vocab, "learn a WordPiece vocabulary from text"},
    {"shard", cmd_shard, "turn text into HDF5 shards for pretraining"},
    {"tokenize", cmd_tokenize, "print the token ids of lines of text"},
    {"train", cmd_train, "pretrain a model, or go on with a run"},
    {"eval", cmd_eval, "evaluate a model on held-out shards"},
    {"inspect", cmd_inspect, "show what is in a shard or a checkpoint"},
    {"analyze", cmd_analyze, "show what a training step moves and computes"},
    {"bench", cmd_bench, "time training steps on random tokens"},
    {"config", cmd_config, "list all settings, or the effective ones of a file"},
};
enum { COMMAND_COUNT = sizeof commands / sizeof *commands };

static void print_help(void) {
    printf(
        "berth pretrains BERT, from text to a model that HuggingFace transformers loads.\n\n"
        "usage: berth COMMAND [...]\n\n");
    for (int i = 0; i < COMMAND_COUNT; i++)
        printf("  %-10s %s\n", commands[i].name, commands[i].help);
    printf("\n'berth COMMAND --help' says more. 'berth --version' prints the version.\n");
}

static status unknown_command(const char *name) {
    const char *nearest = commands[0].name;
    for (int i = 1; i < COMMAND_COUNT; i++)
        if (edit_distance(name, commands[i].name) < edit_distance(name, nearest))
            nearest = commands[i].name;
    return bad_input("unknown command '%s', did you mean '%s'? 'berth --help' lists all", name, nearest);
}

static status run(int argc, char **argv) {
    if (argc < 2)
        return bad_input("no command given; 'berth --help' lists all");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_help();
        return OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("berth %s\n", BERTH_VERSION);
        return OK;
    }
    for (int i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    return unknown_command(argv[1]);
}

/* A thread of OpenMP that waits must soon sleep: by default it spins, and when another process takes a core (shared
 * machines do that all the time) everybody burns time waiting for a thread that does not run. The library reads its
 * environment as it is loaded, so it takes a second start of the program. What the user set stays. */
static void let_idle_threads_sleep(char **argv) {
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY"))
        return;
    setenv("GOMP_SPINCOUNT", "10000", 1); /* tens of microseconds */
    execv("/proc/self/exe", argv);        /* where that fails, threads spin */
}

int main(int argc, char **argv) {
    let_idle_threads_sleep(argv);
    status code = run(argc, argv);
    if (code == OK && (fflush(stdout) != 0 || ferror(stdout)))
        code = failed("cannot write to standard output");
    say_outcome(code);
    return code;
}
