/* Reading checkpoints: everything is checked before anything is loaded. */
#include <math.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/memory.h"
#include "train/checkpoint.h"

status checkpoint_read_state(const char *folder, struct trainer_state *state) {
    char *path = path_join(folder, "trainer.json"), *real = realpath(folder, NULL);
    status code = trainer_state_read(path, state);
    int64_t named = real ? checkpoint_step(path_name(real)) : -1;
    if (code == OK && named >= 0 && named != state->step) {
        code =
            bad_input("%s: is of step %lld, but the folder is named %s", path, (long long)state->step, path_name(real));
        trainer_state_free(state);
    }
    free(path);
    free(real);
    return code;
}

/* A file of the checkpoint as flat tensors: prefixes[i] in front of the parameters' names, for flat tensor tensors[i].
 */
struct part {
    struct safetensors file;
    const char *prefixes[2];
    int tensors[2];
    int count;
};

static struct part weights_part(const struct checkpoint_model *model) {
    return (struct part){.prefixes = {""}, .tensors = {model->hf.graph->master}, .count = 1};
}

static struct part moments_part(const struct checkpoint_model *model) {
    return (struct part){.prefixes = {"m.", "v."}, .tensors = {model->moment1, model->moment2}, .count = 2};
}

static status open_part(const char *folder, const char *name, const struct checkpoint_model *model, struct part *part) {
    char *path = path_join(folder, name);
    status code = safetensors_open(path, &part->file);
    free(path);
    const struct graph *graph = model->hf.graph;
    int n = graph->parameter_count;
    for (int i = 0; i < part->count * n && code == OK; i++) {
        char *tensor = xasprintf("%s%s", part->prefixes[i / n], graph->parameters[i % n].name);
        code = hf_check_slice(&model->hf, i % n, &part->file, tensor, 0);
        free(tensor);
    }
    if (code == OK && part->file.count != (int64_t)part->count * n)
        code = bad_input("%s: has %lld tensors, the model has %lld: it is of another model", part->file.path,
                         (long long)part->file.count, (long long)part->count * n);
    return code;
}

static status load_part(const struct part *part, const struct checkpoint_model *model, float *scratch) {
    const struct graph *graph = model->hf.graph;
    int n = graph->parameter_count;
    status code = OK;
    for (int i = 0; i < part->count * n && code == OK; i++) {
        char *tensor = xasprintf("%s%s", part->prefixes[i / n], graph->parameters[i % n].name);
        code = hf_read_slice(&model->hf, part->tensors[i / n], i % n, &part->file, tensor, scratch);
        free(tensor);
    }
    return code;
}

static status check_step(const struct part *part, const struct trainer_state *state) {
    if (part->file.step == state->step)
        return OK;
    return bad_input(
        "%s: was written at step %lld, trainer.json beside it says %lld: files of two checkpoints are mixed",
        part->file.path, (long long)part->file.step, (long long)state->step);
}

/* What the tensors' shapes do not show. */
static status check_config(const char *folder, const struct bert_config *ours) {
    struct bert_config saved;
    TRY(hf_folder_read_config(folder, &saved));
    if (saved.num_attention_heads != ours->num_attention_heads)
        return bad_input("%s/config.json: num_attention_heads is %lld, the settings say %lld", folder,
                         (long long)saved.num_attention_heads, (long long)ours->num_attention_heads);
    if (saved.hidden_act != ours->hidden_act)
        return bad_input("%s/config.json: hidden_act is not the one of the settings", folder);
    return OK;
}

status checkpoint_load(const char *folder, const struct checkpoint_model *model, struct trainer_state *state) {
    struct part weights = weights_part(model), moments = moments_part(model);
    void *scratch = NULL;
    TRY(checkpoint_read_state(folder, state));
    status code;
    TRY_GOTO(check_config(folder, model->hf.config), done);
    TRY_GOTO(open_part(folder, "model.safetensors", model, &weights), done);
    TRY_GOTO(open_part(folder, "optimizer.safetensors", model, &moments), done);
    TRY_GOTO(check_step(&weights, state), done);
    TRY_GOTO(check_step(&moments, state), done);
    TRY_GOTO(
        memory_new(&scratch, (size_t)hf_scratch_count(model->hf.graph) * sizeof(float), "the largest weight tensor"),
        done);
    TRY_GOTO(load_part(&weights, model, scratch), done);
    TRY_GOTO(load_part(&moments, model, scratch), done);
done:
    safetensors_close(&weights.file);
    safetensors_close(&moments.file);
    memory_free(scratch);
    if (code != OK)
        trainer_state_free(state);
    return code;
}

status checkpoint_load_moments(const char *folder, const struct checkpoint_model *model) {
    struct part moments = moments_part(model);
    void *scratch = NULL;
    status code = open_part(folder, "optimizer.safetensors", model, &moments);
    if (code == OK)
        code = memory_new(&scratch, (size_t)hf_scratch_count(model->hf.graph) * sizeof(float),
                          "the largest moment tensor");
    if (code == OK)
        code = load_part(&moments, model, scratch);
    safetensors_close(&moments.file);
    memory_free(scratch);
    return code;
}
