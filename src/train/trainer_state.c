/* trainer.json: what a run needs beside weights and moments. */
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "train/checkpoint.h"

enum { FORMAT_VERSION = 1 };

/* A row a key; apart stand seed and manifest, which JSON needs in another form, and the loss scale, which only fp16
 * has. */
static const struct {
    const char *key;
    enum { COUNT, REAL, STRING } type;
    size_t offset;
} keys[] = {
#define KEY(name, type) \
    { #name, type, offsetof(struct trainer_state, name) }
    KEY(step, COUNT),           KEY(skipped, COUNT),       KEY(consumed, COUNT),       KEY(epoch, COUNT),
    KEY(epoch_consumed, COUNT), KEY(threads, COUNT),       KEY(ranks, COUNT),          KEY(precision, STRING),
    KEY(metrics_offset, COUNT), KEY(best_eval_loss, REAL), KEY(elapsed_seconds, REAL), KEY(settings, STRING),
#undef KEY
};
enum { KEY_COUNT = sizeof keys / sizeof *keys };

void trainer_state_free(struct trainer_state *state) {
    free(state->precision);
    free(state->manifest);
    free(state->settings);
    *state = (struct trainer_state){0};
}

void trainer_state_print(const struct trainer_state *state, struct text *out) {
    text_printf(out, "{\n  \"format\": %d,\n", FORMAT_VERSION);
    for (int i = 0; i < KEY_COUNT; i++) {
        const char *field = (const char *)state + keys[i].offset;
        text_printf(out, "  \"%s\": ", keys[i].key);
        if (keys[i].type == COUNT)
            text_printf(out, "%lld", (long long)*(const int64_t *)field);
        else if (keys[i].type == REAL)
            json_add_double(out, *(const double *)field);
        else
            json_add_string(out, *(char *const *)field);
        text_add(out, ",\n");
    }
    if (!isnan(state->loss_scale)) {
        text_add(out, "  \"loss_scale\": ");
        json_add_double(out, state->loss_scale);
        text_printf(out, ",\n  \"loss_scale_steps\": %lld,\n", (long long)state->loss_scale_steps);
    }
    /* a string: JSON's numbers end at 2^53 */
    text_printf(out, "  \"seed\": \"%llu\",\n  \"manifest\": %s\n}\n", (unsigned long long)state->seed,
                state->manifest);
}

static status read_key(const char *path, const json *root, int i, struct trainer_state *state) {
    char *field = (char *)state + keys[i].offset;
    const char *string;
    switch (keys[i].type) {
        case COUNT:
            TRY(json_get_int(path, root, keys[i].key, (int64_t *)field));
            return *(int64_t *)field >= 0 ? OK : bad_input("%s: key \"%s\" is negative", path, keys[i].key);
        case REAL: /* null stands for "none yet" */
            *(double *)field = NAN;
            return json_is_null(json_get(root, keys[i].key))
                       ? OK
                       : json_get_double(path, root, keys[i].key, (double *)field);
        default:
            TRY(json_get_string(path, root, keys[i].key, &string));
            *(char **)field = xstrdup(string);
            return OK;
    }
}

static status read_loss_scale(const char *path, const json *root, struct trainer_state *state) {
    state->loss_scale = NAN;
    if (!json_get(root, "loss_scale"))
        return OK;
    TRY(json_get_double(path, root, "loss_scale", &state->loss_scale));
    TRY(json_get_int(path, root, "loss_scale_steps", &state->loss_scale_steps));
    return state->loss_scale >= LOSS_SCALE_LEAST && state->loss_scale <= LOSS_SCALE_MOST && state->loss_scale_steps >= 0
               ? OK
               : bad_input("%s: loss_scale %g after %lld steps: expected a scale from %g to %g", path,
                           state->loss_scale, (long long)state->loss_scale_steps, LOSS_SCALE_LEAST, LOSS_SCALE_MOST);
}

/* The manifest goes back to the form that dataset_compare takes. */
static status read_manifest(const char *path, const json *root, struct trainer_state *state) {
    json *list;
    TRY(json_get_array(path, root, "manifest", &list));
    struct text text = {0};
    json_add_value(&text, list);
    state->manifest = text.data;
    return OK;
}

static status read_state(const char *path, const json *root, struct trainer_state *state) {
    int64_t version;
    const char *seed;
    char *end;
    TRY(json_get_int(path, root, "format", &version));
    if (version != FORMAT_VERSION)
        return bad_input("%s: format %lld, this program reads format %d", path, (long long)version, FORMAT_VERSION);
    for (int i = 0; i < KEY_COUNT; i++)
        TRY(read_key(path, root, i, state));
    TRY(read_loss_scale(path, root, state));
    TRY(json_get_string(path, root, "seed", &seed));
    errno = 0;
    state->seed = strtoull(seed, &end, 10);
    if (errno || end == seed || *end)
        return bad_input("%s: seed \"%s\" is not a number", path, seed);
    return read_manifest(path, root, state);
}

status trainer_state_read(const char *path, struct trainer_state *state) {
    json *root = NULL;
    *state = (struct trainer_state){0};
    status code = json_read_file(path, &root);
    if (code == OK)
        code = read_state(path, root, state);
    if (code != OK)
        trainer_state_free(state);
    json_free(root);
    return code;
}
