#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "cmd/cmd.h"
#include "dist/dist.h"
#include "train/loop.h"

static const char usage[] =
    "usage: berth train FILE.ini [section.key=value ...]\n"
    "\n"
    "Pretrains the model that FILE.ini describes, or goes on with it: checkpoint.dir is the run folder, and the same\n"
    "command continues a run that was stopped or killed. 'berth config' lists every key.\n"
    "\n"
    "  berth train configs/bert-mini.ini model.vocab=vocab.txt data.train=shards/train data.eval=shards/eval\n"
    "\n"
    "Exit codes: 0 done, 1 failed, 2 wrong input, 3 stopped by a signal or train.max_minutes after a checkpoint.\n";

static status train(struct comm *comm, int argc, char **argv) {
    struct settings settings;
    struct training training;
    status loaded =
        argc < 2 ? bad_input("train: no settings file given, expected: berth train FILE.ini [section.key=value ...]")
                 : settings_load(&settings, argv[1], argv + 2, argc - 2);
    status code = comm_agree(comm, loaded);
    if (code == OK)
        code = training_open(&training, &settings, comm);
    if (code == OK) {
        code = train_loop(&training);
        if (code == OK)
            log_info("done: %lld steps; the model is in %s/latest", (long long)training.state.step, training.run.path);
        training_close(&training);
    }
    if (loaded == OK)
        settings_free(&settings);
    return code;
}

status cmd_train(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(usage, stdout);
            return OK;
        }
    return with_processes(train, argc, argv);
}
