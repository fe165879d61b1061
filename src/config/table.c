#include "config/table.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

#define OFFSET(section, key) offsetof(struct settings, section.key)

const struct setting setting_table[SETTING_COUNT] = {
#define SECTION(name, doc)
#define END(name)
#define INT(section, key, number, minimum, maximum, doc) \
    {#section, #key, SETTING_INT, OFFSET(section, key), number, NULL, minimum, maximum, NULL, doc},
#define REAL(section, key, number, minimum, maximum, doc) \
    {#section, #key, SETTING_REAL, OFFSET(section, key), number, NULL, minimum, maximum, NULL, doc},
#define FLAG(section, key, number, doc) \
    {#section, #key, SETTING_FLAG, OFFSET(section, key), number, NULL, 0, 1, NULL, doc},
#define TEXT(section, key, text, doc) {#section, #key, SETTING_TEXT, OFFSET(section, key), 0, text, 0, 0, NULL, doc},
#define CHOICE(section, key, prefix, number, choices, doc) \
    {#section, #key, SETTING_CHOICE, OFFSET(section, key), number, NULL, 0, 0, choices, doc},
#include "config/settings.def"
};

const struct setting_section setting_sections[] = {
#define SECTION(name, doc) {#name, doc},
#define END(name)
#define INT(...)
#define REAL(...)
#define FLAG(...)
#define TEXT(...)
#define CHOICE(...)
#include "config/settings.def"
    {NULL, NULL}};

int setting_find(const char *section, const char *key) {
    for (int id = 0; id < SETTING_COUNT; id++)
        if (strcmp(setting_table[id].section, section) == 0 && strcmp(setting_table[id].key, key) == 0)
            return id;
    return -1;
}

int setting_find_section(const char *section) {
    for (int i = 0; setting_sections[i].name; i++)
        if (strcmp(setting_sections[i].name, section) == 0)
            return i;
    return -1;
}

int setting_nearest(const char *section, const char *key) {
    int best = 0, best_distance = INT_MAX;
    for (int id = 0; id < SETTING_COUNT; id++) {
        /* the right key under another section is nearer than another key of the same section */
        int distance = 2 * edit_distance(key, setting_table[id].key);
        distance += !section || strcmp(section, setting_table[id].section) != 0;
        if (distance < best_distance) {
            best_distance = distance;
            best = id;
        }
    }
    return best;
}

const char *setting_nearest_section(const char *section) {
    const char *best = setting_sections[0].name;
    for (int i = 1; setting_sections[i].name; i++)
        if (edit_distance(section, setting_sections[i].name) < edit_distance(section, best))
            best = setting_sections[i].name;
    return best;
}

static bool parse_int(const char *value, int64_t *out) {
    char *end;
    errno = 0;
    *out = strtoll(value, &end, 10);
    return end != value && *end == 0 && errno == 0;
}

static bool parse_real(const char *value, double *out) {
    char *end;
    *out = strtod(value, &end);
    return end != value && *end == 0 && isfinite(*out);
}

/* Index of `value` in "a|b|c", or -1. */
static int choice_index(const char *choices, const char *value) {
    size_t length = strlen(value);
    for (int index = 0;; index++) {
        size_t span = strcspn(choices, "|");
        if (span == length && strncmp(choices, value, length) == 0)
            return index;
        if (!choices[span])
            return -1;
        choices += span + 1;
    }
}

bool setting_parse(struct settings *settings, int id, const char *value) {
    const struct setting *setting = &setting_table[id];
    void *to = setting_value(settings, id);
    int64_t whole;
    double real;
    int index;
    switch (setting->type) {
        case SETTING_INT:
            if (!parse_int(value, &whole) || (double)whole < setting->minimum || (double)whole > setting->maximum)
                return false;
            *(int64_t *)to = whole;
            return true;
        case SETTING_REAL:
            if (!parse_real(value, &real) || real < setting->minimum || real > setting->maximum)
                return false;
            *(double *)to = real;
            return true;
        case SETTING_FLAG:
            index = choice_index("false|true", value);
            if (index < 0)
                return false;
            *(bool *)to = index;
            return true;
        case SETTING_TEXT:
            if (strpbrk(value, "\n\r"))
                return false;
            *(const char **)to = arena_strdup(&settings->arena, value);
            return true;
        case SETTING_CHOICE:
            index = choice_index(setting->choices, value);
            if (index < 0)
                return false;
            *(int *)to = index;
            return true;
    }
    return false;
}

static void print_choice(const char *choices, int index, struct text *out) {
    while (index--)
        choices += strcspn(choices, "|") + 1;
    text_append(out, choices, strcspn(choices, "|"));
}

void setting_print_value(const struct settings *settings, int id, struct text *out) {
    const void *from = setting_value_const(settings, id);
    switch (setting_table[id].type) {
        case SETTING_INT:
            text_printf(out, "%lld", (long long)*(const int64_t *)from);
            return;
        case SETTING_REAL:
            json_add_double(out, *(const double *)from);
            return;
        case SETTING_FLAG:
            text_add(out, *(const bool *)from ? "true" : "false");
            return;
        case SETTING_TEXT:
            text_add(out, *(const char *const *)from);
            return;
        case SETTING_CHOICE:
            print_choice(setting_table[id].choices, *(const int *)from, out);
            return;
    }
}

void setting_print_range(int id, struct text *out) {
    const struct setting *setting = &setting_table[id];
    switch (setting->type) {
        case SETTING_INT:
        case SETTING_REAL:
            text_add(out, setting->type == SETTING_INT ? "whole number" : "number");
            text_add(out, setting->maximum == NO_LIMIT ? ", at least " : " from ");
            json_add_double(out, setting->minimum);
            if (setting->maximum != NO_LIMIT) {
                text_add(out, " to ");
                json_add_double(out, setting->maximum);
            }
            return;
        case SETTING_FLAG:
            text_add(out, "true or false");
            return;
        case SETTING_TEXT:
            text_add(out, "text on one line");
            return;
        case SETTING_CHOICE:
            for (const char *c = setting->choices; *c; c++) {
                if (*c != '|')
                    text_append(out, c, 1);
                else
                    text_add(out, strchr(c + 1, '|') ? ", " : " or ");
            }
            return;
    }
}
