/* The folder of a run (setting checkpoint.dir): config.ini, metrics.jsonl, checkpoints step-N, latest, best, lock, and
 * on CUDA algorithms.json. */
#ifndef BERTH_TRAIN_RUN_FOLDER_H
#define BERTH_TRAIN_RUN_FOLDER_H

#include <stdbool.h>

#include "base/status.h"

struct run_folder {
    char *path;
    int lock;         /* descriptor of RUN/lock, held by flock while the process lives */
    char *resume;     /* checkpoint folder to go on from; NULL: a fresh run */
    bool resumes_own; /* `resume` lies in this run folder, so metrics.jsonl goes on from the checkpoint's offset;
                       * otherwise it starts empty */
};

/* Creates the folder if need be, takes its lock (BAD_INPUT if another process writes this run), cleans up after a crash
 * (checkpoint_clean) and decides how to start. `resume` is the setting checkpoint.resume:
 *     auto    from the newest checkpoint if there is one, else fresh
 *     never   fresh; BAD_INPUT if anything but `lock` is in the folder
 *     PATH    from that checkpoint, or from the latest one of that run folder; BAD_INPUT if there is none
 * `setting` values come from the user: messages name the keys. Rank 0 only. */
status run_folder_open(const char *path, const char *resume, struct run_folder *out);
void run_folder_close(struct run_folder *run);
/* As close, for a run that never began: a folder that holds nothing but the lock goes again. */
void run_folder_abandon(struct run_folder *run);

/* RUN/config.ini, replaced in one piece. */
status run_folder_write_config(const struct run_folder *run, const char *ini);

#endif
