/* The settings of a run: one struct, filled from defaults, a preset, an INI file and overrides, in this order. */
#ifndef BERTH_CONFIG_SETTINGS_H
#define BERTH_CONFIG_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/memory.h"
#include "base/status.h"
#include "base/text.h"

/* Values of the CHOICE settings, in the order that settings.def lists them. */
enum { PRESET_NONE, PRESET_TINY, PRESET_MINI, PRESET_SMALL, PRESET_MEDIUM, PRESET_BASE, PRESET_LARGE };
enum { HIDDEN_ACT_GELU, HIDDEN_ACT_GELU_NEW, HIDDEN_ACT_RELU };
enum { DO_LOWER_CASE_AUTO, DO_LOWER_CASE_TRUE, DO_LOWER_CASE_FALSE };
enum { ON_CHANGE_ERROR, ON_CHANGE_NEXT_EPOCH };
enum { ON_BAD_SHARD_STOP, ON_BAD_SHARD_SKIP };
enum { MASKING_STATIC, MASKING_DYNAMIC };
enum { PRECISION_FP32, PRECISION_BF16, PRECISION_TF32, PRECISION_FP16 };
enum { ACTIVATION_CHECKPOINTING_NONE, ACTIVATION_CHECKPOINTING_LAYER };
enum { FUSE_NONE, FUSE_PAPER, FUSE_FULL };
enum { OPTIM_NAME_ADAM, OPTIM_NAME_ADAMW, OPTIM_NAME_LAMB };
enum { SCHEDULE_NVIDIA_POLY, SCHEDULE_POLY, SCHEDULE_LINEAR, SCHEDULE_COSINE, SCHEDULE_CONSTANT };
enum { DEVICE_TYPE_AUTO, DEVICE_TYPE_CPU, DEVICE_TYPE_CUDA };
enum { CUDA_GRAPHS_AUTO, CUDA_GRAPHS_ON, CUDA_GRAPHS_OFF };

enum {
#define SECTION(name, doc)
#define END(name)
#define INT(section, key, ...) SETTING_##section##_##key,
#define REAL(section, key, ...) SETTING_##section##_##key,
#define FLAG(section, key, ...) SETTING_##section##_##key,
#define TEXT(section, key, ...) SETTING_##section##_##key,
#define CHOICE(section, key, ...) SETTING_##section##_##key,
#include "config/settings.def"
    SETTING_COUNT
};

struct settings {
#define SECTION(name, doc) struct {
#define END(name) \
    }             \
    name;
#define INT(section, key, ...) int64_t key;
#define REAL(section, key, ...) double key;
#define FLAG(section, key, ...) bool key;
#define TEXT(section, key, ...) const char *key;
#define CHOICE(section, key, ...) int key;
#include "config/settings.def"
    /* Where each value came from: NULL for a default, else "preset base", "run.ini:12", "command line" … */
    const char *origin[SETTING_COUNT];
    struct arena arena; /* of all strings */
};

/* Defaults, then model.preset, then `file` (NULL: none), then `overrides` ("section.key=value"). BAD_INPUT names file,
 * line and key, or the argument, and what was expected. On failure nothing needs freeing. */
status settings_load(struct settings *settings, const char *file, char *const *overrides, int count);
void settings_free(struct settings *settings);

/* Resume: every key that is still at its default in `settings` takes its value from `ini`, the INI text a run saved
 * (named `source` in messages). Values that were given and differ are listed, a line each, in `changed`
 * ("train.steps: 1000 -> 2000"). */
status settings_adopt(struct settings *settings, const char *ini, const char *source, struct text *changed);

/* Effective values as an INI file that reads back to the same values. */
void settings_write_ini(const struct settings *settings, struct text *out);
/* `berth config`: every key with type, default, range and meaning. `berth config FILE`: values and origins. */
void settings_describe(struct text *out);
void settings_list(const struct settings *settings, struct text *out);

#endif
