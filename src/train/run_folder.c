#include "train/run_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "train/checkpoint.h"

/* The lock goes with the process, however it ends: nothing stale can be left by a crash. */
static status take_lock(struct run_folder *run) {
    char *path = path_join(run->path, "lock");
    status code = OK;
    run->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (run->lock < 0)
        code = failed("%s: cannot create: %s", path, strerror(errno));
    else if (flock(run->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        code = bad_input("%s: another process is writing this run: wait for it, or give another checkpoint.dir", path);
    free(path);
    return code; /* a file system without locks: go on without */
}

static status refuse_used(const char *path) {
    char **names;
    int64_t count;
    const char *found = NULL;
    TRY(folder_list(path, &names, &count));
    for (int64_t i = 0; i < count && !found; i++)
        if (strcmp(names[i], "lock") != 0)
            found = names[i];
    status code = OK;
    if (found)
        code = bad_input(
            "%s: the run folder is not empty (it holds %s) and checkpoint.resume=never: give another "
            "checkpoint.dir, or checkpoint.resume=auto to go on",
            path, found);
    names_free(names, count);
    return code;
}

/* When run->resume is one of the run's own checkpoints (through any links), it becomes `latest`: metrics will be cut
 * there, so a crash before the next checkpoint must not bring a later one back. */
static status adopt_own(struct run_folder *run) {
    char *checkpoint = realpath(run->resume, NULL), *real = realpath(run->path, NULL),
         *link = path_join(run->path, "latest");
    char *slash = checkpoint ? strrchr(checkpoint, '/') : NULL;
    status code = OK;
    if (slash && real && checkpoint_step(slash + 1) >= 0) {
        *slash = 0;
        run->resumes_own = strcmp(checkpoint, real) == 0;
        if (run->resumes_own)
            code = link_replace(slash + 1, link);
    }
    free(checkpoint);
    free(real);
    free(link);
    return code;
}

static status decide(const char *resume, struct run_folder *run) {
    if (strcmp(resume, "never") == 0)
        return refuse_used(run->path);
    TRY(checkpoint_clean(run->path));
    if (strcmp(resume, "auto") == 0) {
        TRY(checkpoint_latest(run->path, &run->resume));
    } else {
        status code = checkpoint_resolve(resume, &run->resume);
        if (code != OK)
            return status_context(code, "checkpoint.resume");
    }
    return run->resume ? adopt_own(run) : OK;
}

status run_folder_open(const char *path, const char *resume, struct run_folder *out) {
    *out = (struct run_folder){.path = xstrdup(path), .lock = -1};
    status code = folder_create(path);
    if (code == OK)
        code = take_lock(out);
    if (code == OK)
        code = decide(resume, out);
    if (code != OK)
        run_folder_close(out);
    return code;
}

void run_folder_close(struct run_folder *run) {
    if (!run->path)
        return;
    if (run->lock >= 0)
        close(run->lock);
    free(run->path);
    free(run->resume);
    *run = (struct run_folder){.lock = -1};
}

void run_folder_abandon(struct run_folder *run) {
    char **names = NULL;
    int64_t count = 0;
    char *lock = run->path ? path_join(run->path, "lock") : NULL;
    if (lock && folder_list(run->path, &names, &count) == OK && count == 1 && strcmp(names[0], "lock") == 0) {
        unlink(lock);
        rmdir(run->path);
    }
    names_free(names, count);
    free(lock);
    run_folder_close(run);
}

status run_folder_write_config(const struct run_folder *run, const char *ini) {
    char *path = path_join(run->path, "config.ini");
    status code = file_write_all(path, ini, strlen(ini));
    free(path);
    return code;
}
