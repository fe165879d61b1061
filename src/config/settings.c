#include "config/settings.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "config/ini.h"
#include "config/table.h"

/* Sizes of the BERTs that were published under these names; the feed-forward is four times as wide as the hidden state
 * and a head has 64 elements. */
static const struct {
    const char *name;
    int64_t hidden_size, layers;
} presets[] = {
    [PRESET_TINY] = {"preset tiny", 128, 2},   [PRESET_MINI] = {"preset mini", 256, 4},
    [PRESET_SMALL] = {"preset small", 512, 4}, [PRESET_MEDIUM] = {"preset medium", 512, 8},
    [PRESET_BASE] = {"preset base", 768, 12},  [PRESET_LARGE] = {"preset large", 1024, 24},
};

void settings_set_defaults(struct settings *settings) {
    *settings = (struct settings){0};
    for (int id = 0; id < SETTING_COUNT; id++) {
        const struct setting *setting = &setting_table[id];
        void *to = setting_value(settings, id);
        switch (setting->type) {
            case SETTING_INT:
                *(int64_t *)to = (int64_t)setting->number;
                break;
            case SETTING_REAL:
                *(double *)to = setting->number;
                break;
            case SETTING_FLAG:
                *(bool *)to = setting->number != 0;
                break;
            case SETTING_TEXT:
                *(const char **)to = setting->text;
                break;
            case SETTING_CHOICE:
                *(int *)to = (int)setting->number;
                break;
        }
    }
}

static void set_sizes(struct settings *settings, int preset) {
    const struct {
        int id;
        int64_t value;
    } sizes[] = {
        {SETTING_model_hidden_size, presets[preset].hidden_size},
        {SETTING_model_num_hidden_layers, presets[preset].layers},
        {SETTING_model_num_attention_heads, presets[preset].hidden_size / 64},
        {SETTING_model_intermediate_size, presets[preset].hidden_size * 4},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        *(int64_t *)setting_value(settings, sizes[i].id) = sizes[i].value;
        settings->origin[sizes[i].id] = presets[preset].name;
    }
}

/* --- assignments: a key, a value, and where they stand --- */

static status unknown_key(const char *where, const char *section, const char *key) {
    if (section && setting_find_section(section) < 0)
        return bad_input("%s: there is no section [%s] (key '%s'); nearest: [%s]", where, section, key,
                         setting_nearest_section(section));
    const struct setting *nearest = &setting_table[setting_nearest(section, key)];
    return bad_input("%s: unknown key '%s%s%s'; nearest: %s.%s ('berth config' lists all)", where,
                     section ? section : "", section ? "." : "", key, nearest->section, nearest->key);
}

static status assign(struct settings *settings, int id, const char *value, const char *where, const char *origin) {
    if (!setting_parse(settings, id, value)) {
        struct text range = {0};
        setting_print_range(id, &range);
        status code = bad_input("%s: %s.%s = '%s': expected %s", where, setting_table[id].section,
                                setting_table[id].key, value, range.data);
        text_free(&range);
        return code;
    }
    settings->origin[id] = origin;
    return OK;
}

/* Cuts "section.key=value" into its parts. */
static status split_override(struct arena *arena, const char *argument, struct ini_entry *out) {
    char *copy = arena_strdup(arena, argument);
    out->origin = arena_printf(arena, "argument '%s'", argument);
    char *equals = strchr(copy, '=');
    if (!equals)
        return bad_input("%s: expected section.key=value", out->origin);
    *equals = 0;
    out->value = trim(equals + 1);
    char *name = trim(copy), *dot = strchr(name, '.');
    out->section = dot ? name : NULL;
    out->key = dot ? dot + 1 : name;
    if (dot)
        *dot = 0;
    return OK;
}

static status assign_entry(struct settings *settings, const struct ini_entry *entry, const char *origin) {
    int id = entry->section ? setting_find(entry->section, entry->key) : -1;
    if (id < 0)
        return unknown_key(entry->origin, entry->section, entry->key);
    return assign(settings, id, entry->value, entry->origin, origin);
}

static status assign_file(struct settings *settings, const struct ini *ini) {
    for (int64_t i = 0; i < ini->count; i++)
        TRY(assign_entry(settings, &ini->entries[i], arena_strdup(&settings->arena, ini->entries[i].origin)));
    return OK;
}

static status assign_overrides(struct settings *settings, char *const *overrides, int count) {
    for (int i = 0; i < count; i++) {
        struct ini_entry entry = {0};
        TRY(split_override(&settings->arena, overrides[i], &entry));
        TRY(assign_entry(settings, &entry, "command line"));
    }
    return OK;
}

/* --- checks between keys --- */

/* "model.hidden_size = 250 (run.ini:3)"; lives in the arena. */
static const char *name_value(struct settings *settings, int id) {
    struct text value = {0};
    setting_print_value(settings, id, &value);
    const char *origin = settings->origin[id] ? settings->origin[id] : "default";
    char *name = arena_printf(&settings->arena, "%s.%s = %s (%s)", setting_table[id].section, setting_table[id].key,
                              value.data, origin);
    text_free(&value);
    return name;
}
#define NAME(section, key) name_value(settings, SETTING_##section##_##key)

static status check_model(struct settings *settings) {
    int64_t hidden = settings->model.hidden_size, heads = settings->model.num_attention_heads;
    if (hidden % heads)
        return bad_input("%s: expected a multiple of %s", NAME(model, hidden_size), NAME(model, num_attention_heads));
    if (settings->data.seq_len > settings->model.max_position_embeddings)
        return bad_input("%s: expected at most %s", NAME(data, seq_len), NAME(model, max_position_embeddings));
    if (settings->model.init_optimizer && !*settings->model.init)
        return bad_input("%s: needs model.init, the folder to take the moments from", NAME(model, init_optimizer));
    return OK;
}

static status check_schedule(struct settings *settings) {
    int64_t total = settings->optim.schedule_steps;
    if (settings->optim.warmup > 0 && settings->optim.warmup_steps > 0)
        return bad_input("%s and %s: both give the warm-up; expected one of them", NAME(optim, warmup),
                         NAME(optim, warmup_steps));
    if (total && total < settings->train.steps && settings->optim.schedule != SCHEDULE_CONSTANT)
        return bad_input("%s: the schedule would end before the run; expected 0 or at least %s",
                         NAME(optim, schedule_steps), NAME(train, steps));
    return OK;
}

/* Fills what follows from other keys and checks what no single row of the table can. */
static status finish(struct settings *settings) {
    TRY(check_model(settings));
    TRY(check_schedule(settings));
    if (!settings->train.batch_tokens &&
        settings->train.micro_batch > settings->train.global_batch) { /* it is a maximum */
        settings->train.micro_batch = settings->train.global_batch;
        settings->origin[SETTING_train_micro_batch] = "as train.global_batch";
    }
    return OK;
}

static void name_run_folder(struct settings *settings, const char *file) {
    if (*settings->checkpoint.dir)
        return;
    const char *name = path_name(file);
    size_t length = strlen(name) - (ends_with(name, ".ini") ? 4 : 0);
    settings->checkpoint.dir = arena_printf(&settings->arena, "runs/%.*s", (int)length, name);
    settings->origin[SETTING_checkpoint_dir] = "name of the settings file";
}

static status load(struct settings *settings, const struct ini *ini, const char *file, char *const *overrides,
                   int count) {
    TRY(assign_file(settings, ini));
    TRY(assign_overrides(settings, overrides, count));
    if (settings->model.preset != PRESET_NONE) { /* known only now: size keys that were given are set once more */
        set_sizes(settings, settings->model.preset);
        TRY(assign_file(settings, ini));
        TRY(assign_overrides(settings, overrides, count));
    }
    if (file)
        name_run_folder(settings, file);
    return finish(settings);
}

status settings_load(struct settings *settings, const char *file, char *const *overrides, int count) {
    struct text text = {0};
    struct ini ini = {0};
    settings_set_defaults(settings);
    status code = OK;
    if (file)
        TRY_GOTO(file_read(file, &text), done);
    if (file)
        TRY_GOTO(ini_parse(file, text.data, text.length, &ini), done);
    code = load(settings, &ini, file, overrides, count);
done:
    ini_free(&ini);
    text_free(&text);
    if (code != OK)
        settings_free(settings);
    return code;
}

void settings_free(struct settings *settings) {
    arena_free(&settings->arena);
    *settings = (struct settings){0};
}

/* --- resume --- */

/* Keys that belong to one start of the program, not to the run. */
static bool never_adopted(const struct settings *settings, int id) {
    /* of the two ways to give the warm-up, the one given now replaces the other */
    if (id == SETTING_optim_warmup)
        return settings->origin[SETTING_optim_warmup_steps];
    if (id == SETTING_optim_warmup_steps)
        return settings->origin[SETTING_optim_warmup];
    /* where and for how long a process runs says nothing about the run */
    const char *section = setting_table[id].section;
    return id == SETTING_checkpoint_dir || id == SETTING_checkpoint_resume || id == SETTING_train_max_minutes ||
           strcmp(section, "device") == 0 || strcmp(section, "log") == 0;
}

static void note_change(const struct settings *old, const struct settings *settings, int id, struct text *changed) {
    struct text was = {0}, is = {0};
    setting_print_value(old, id, &was);
    setting_print_value(settings, id, &is);
    if (strcmp(was.data, is.data) != 0)
        text_printf(changed, "%s.%s: %s -> %s\n", setting_table[id].section, setting_table[id].key,
                    was.length ? was.data : "(empty)", is.length ? is.data : "(empty)");
    text_free(&was);
    text_free(&is);
}

status settings_adopt(struct settings *settings, const char *ini_text, const char *source, struct text *changed) {
    struct ini ini;
    struct settings old;
    TRY(ini_parse(source, ini_text, strlen(ini_text), &ini));
    settings_set_defaults(&old);
    status code = assign_file(&old, &ini);
    const char *origin = arena_strdup(&settings->arena, source);
    bool given[SETTING_COUNT];
    for (int id = 0; id < SETTING_COUNT; id++)
        given[id] = settings->origin[id] || never_adopted(settings, id);
    for (int id = 0; id < SETTING_COUNT && code == OK; id++) {
        struct text value = {0};
        setting_print_value(&old, id, &value);
        if (!given[id])
            code = assign(settings, id, value.data, source, origin);
        else if (id != SETTING_checkpoint_dir && id != SETTING_checkpoint_resume)
            note_change(&old, settings, id, changed);
        text_free(&value);
    }
    if (code == OK)
        code = finish(settings);
    settings_free(&old);
    ini_free(&ini);
    return code;
}
