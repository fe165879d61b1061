/* Writing checkpoints and finding them again. */
#include "train/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"

/* ---- names: step-00001000, and with .tmp while it is written, .old while a new one takes its place ---- */

static char *checkpoint_path(const char *run, int64_t step, const char *suffix) {
    return xasprintf("%s/step-%08lld%s", run, (long long)step, suffix);
}

int64_t checkpoint_step(const char *name) {
    if (!starts_with(name, "step-"))
        return -1;
    const char *digits = name + strlen("step-");
    size_t length = strspn(digits, "0123456789");
    return length >= 8 && length < 18 && !digits[length] ? atoll(digits) : -1;
}

static bool holds(const char *folder, const char *name) {
    char *path = path_join(folder, name);
    bool found = file_exists(path);
    free(path);
    return found;
}

/* A folder has its final name only once it is whole; this catches what people and broken disks do later. */
static bool is_complete(const char *folder) {
    return holds(folder, "config.json") && holds(folder, "model.safetensors") &&
           holds(folder, "optimizer.safetensors") && holds(folder, "trainer.json");
}

/* Steps of the complete checkpoints in `run`, ascending. The caller frees the list. */
static status list_steps(const char *run, int64_t **steps, int64_t *count) {
    char **names;
    int64_t name_count;
    TRY(folder_list(run, &names, &name_count));
    *steps = xcalloc((size_t)name_count + 1, sizeof **steps);
    *count = 0;
    for (int64_t i = 0; i < name_count; i++) {
        int64_t step = checkpoint_step(names[i]), at = *count;
        char *path = path_join(run, names[i]);
        if (step >= 0 && is_complete(path)) {
            for (; at > 0 && (*steps)[at - 1] > step; at--)
                (*steps)[at] = (*steps)[at - 1];
            (*steps)[at] = step;
            ++*count;
        }
        free(path);
    }
    names_free(names, name_count);
    return OK;
}

/* The step that a link in the run folder names, -1 if it is absent, foreign, or its checkpoint is not complete. */
static int64_t link_step(const char *run, const char *name) {
    char target[64], *link = path_join(run, name);
    ssize_t length = readlink(link, target, sizeof target - 1);
    free(link);
    if (length <= 0)
        return -1;
    target[length] = 0;
    int64_t step = checkpoint_step(target);
    char *folder = path_join(run, target);
    bool complete = step >= 0 && is_complete(folder);
    free(folder);
    return complete ? step : -1;
}

status checkpoint_latest(const char *run, char **folder) {
    int64_t *steps, count, step = link_step(run, "latest");
    *folder = NULL;
    if (step < 0) {
        TRY(list_steps(run, &steps, &count));
        step = count ? steps[count - 1] : -1;
        free(steps);
    }
    if (step >= 0)
        *folder = checkpoint_path(run, step, "");
    return OK;
}

status checkpoint_resolve(const char *path, char **folder) {
    *folder = NULL;
    if (!folder_exists(path))
        return bad_input("%s: no such folder, expected a run or a checkpoint", path);
    if (holds(path, "config.json") || holds(path, "model.safetensors")) {
        *folder = xstrdup(path);
        return OK;
    }
    TRY(checkpoint_latest(path, folder));
    return *folder ? OK : bad_input("%s: neither a model folder nor a run with a checkpoint", path);
}

/* ---- writing ---- */

static status write_moments(const char *path, const struct checkpoint_model *model, int64_t step) {
    const struct graph *graph = model->hf.graph;
    const int tensors[] = {model->moment1, model->moment2};
    static const char *const prefixes[] = {"m", "v"};
    int n = graph->parameter_count;
    struct arena names = {0};
    struct hf_slice *slices = xcalloc(2 * (size_t)n, sizeof *slices);
    for (int i = 0; i < 2 * n; i++)
        slices[i] =
            (struct hf_slice){.name = arena_printf(&names, "%s.%s", prefixes[i / n], graph->parameters[i % n].name),
                              .tensor = tensors[i / n],
                              .parameter = i % n};
    status code = hf_write_slices(path, &model->hf, slices, 2 * n, step);
    free(slices);
    arena_free(&names);
    return code;
}

static status write_state(const char *path, const struct trainer_state *state) {
    struct text text = {0};
    trainer_state_print(state, &text);
    status code = file_write_all(path, text.data, text.length);
    text_free(&text);
    return code;
}

static status write_folder(const char *folder, const struct checkpoint_model *model,
                           const struct trainer_state *state) {
    char *moments = path_join(folder, "optimizer.safetensors"), *trainer = path_join(folder, "trainer.json");
    status code = folder_create(folder);
    if (code == OK)
        code = hf_folder_write(folder, &model->hf, state->step);
    if (code == OK)
        code = write_moments(moments, model, state->step);
    if (code == OK)
        code = write_state(trainer, state);
    if (code == OK)
        code = folder_sync(folder);
    free(moments);
    free(trainer);
    return code;
}

/* Rename `fresh` to `place`. A checkpoint of the same step from an earlier attempt steps aside first; should the
 * program end between the two renames, checkpoint_clean puts it back. */
static status move_into_place(const char *run, const char *fresh, const char *place, const char *aside) {
    bool replaced = folder_exists(place);
    if (replaced)
        TRY(file_rename(place, aside));
    status code = file_rename(fresh, place);
    if (code != OK && replaced)
        rename(aside, place);
    if (code == OK)
        code = folder_sync(run);
    if (code == OK && replaced)
        code = folder_remove(aside);
    return code;
}

/* Remove what the rotation does not keep, oldest first, up to `step`. What cannot be removed does no harm but to space.
 */
static status rotate(const char *run, const struct checkpoint_rotation *rotation, int64_t step) {
    int64_t *steps, count, best = link_step(run, "best"), milestone = rotation->milestone_every;
    if (rotation->keep <= 0)
        return OK;
    TRY(list_steps(run, &steps, &count));
    while (count && steps[count - 1] > step)
        count--;
    for (int64_t i = 0; i < count - rotation->keep; i++) {
        if (steps[i] == best || (milestone > 0 && steps[i] % milestone == 0))
            continue;
        /* out of the way by one rename, so that a crash cannot leave half a checkpoint under its name */
        char *path = checkpoint_path(run, steps[i], ""), *aside = checkpoint_path(run, steps[i], ".tmp");
        if (file_rename(path, aside) != OK || folder_remove(aside) != OK)
            log_warn("%s", status_message());
        free(path);
        free(aside);
    }
    free(steps);
    return OK;
}

static status set_link(const char *run, const char *name, const char *folder) {
    char *link = path_join(run, name);
    status code = link_replace(path_name(folder), link);
    free(link);
    return code;
}

status checkpoint_save(const char *run, const struct checkpoint_rotation *rotation,
                       const struct checkpoint_model *model, const struct trainer_state *state, bool best) {
    char *place = checkpoint_path(run, state->step, ""), *fresh = checkpoint_path(run, state->step, ".tmp"),
         *aside = checkpoint_path(run, state->step, ".old");
    if (!model->hf.tokenizer && link_step(run, "latest") < 0)
        log_info("%s: no vocabulary was given (model.vocab): checkpoints hold no tokenizer files", run);
    status code = folder_exists(fresh) ? folder_remove(fresh) : OK;
    if (code == OK)
        code = write_folder(fresh, model, state);
    if (code == OK)
        code = move_into_place(run, fresh, place, aside);
    if (code == OK)
        code = set_link(run, "latest", place);
    if (code == OK && best)
        code = set_link(run, "best", place);
    if (code == OK)
        code = folder_sync(run);
    if (code == OK)
        code = rotate(run, rotation, state->step);
    if (code != OK && folder_exists(fresh)) { /* give the space back, keep the first failure's message */
        char *message = xstrdup(status_message());
        folder_remove(fresh);
        status_set(code, message);
        free(message);
    }
    free(place);
    free(fresh);
    free(aside);
    return code;
}

/* ---- after a crash ---- */

static status clean_entry(const char *run, const char *name) {
    char *stem = xstrdup(name), *dot = strrchr(stem, '.');
    char *path = path_join(run, name);
    status code = OK;
    if (dot && (strcmp(dot, ".tmp") == 0 || strcmp(dot, ".old") == 0)) {
        *dot = 0;
        char *place = path_join(run, stem);
        if (strcmp(dot + 1, "old") == 0 && checkpoint_step(stem) >= 0 && !folder_exists(place))
            code = file_rename(path, place);
        else if (checkpoint_step(stem) >= 0)
            code = folder_remove(path);
        else if (strcmp(dot + 1, "tmp") == 0 && (strcmp(stem, "latest") == 0 || strcmp(stem, "best") == 0))
            unlink(path);
        free(place);
    }
    free(path);
    free(stem);
    return code;
}

status checkpoint_clean(const char *run) {
    char **names;
    int64_t count;
    TRY(folder_list(run, &names, &count));
    status code = OK;
    for (int64_t i = 0; i < count && code == OK; i++)
        code = clean_entry(run, names[i]);
    names_free(names, count);
    return code;
}
