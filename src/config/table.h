/* settings.def as data: one row per key, for code that goes over all of them. */
#ifndef BERTH_CONFIG_TABLE_H
#define BERTH_CONFIG_TABLE_H

#include <stddef.h>

#include "config/settings.h"

enum setting_type { SETTING_INT, SETTING_REAL, SETTING_FLAG, SETTING_TEXT, SETTING_CHOICE };

struct setting {
    const char *section, *key;
    enum setting_type type;
    size_t offset;           /* of the value in struct settings */
    double number;           /* default of INT, REAL, FLAG (0 or 1) and CHOICE (index) */
    const char *text;        /* default of TEXT */
    double minimum, maximum; /* INT and REAL, both included */
    const char *choices;     /* CHOICE: "a|b|c" */
    const char *doc;
};

struct setting_section {
    const char *name, *doc;
};

extern const struct setting setting_table[SETTING_COUNT];
extern const struct setting_section setting_sections[]; /* ends with a NULL name */

static inline void *setting_value(struct settings *settings, int id) {
    return (char *)settings + setting_table[id].offset;
}
static inline const void *setting_value_const(const struct settings *settings, int id) {
    return (const char *)settings + setting_table[id].offset;
}

/* -1 if there is no such key or section. */
int setting_find(const char *section, const char *key);
int setting_find_section(const char *section);
/* By edit distance; `section` may be NULL or unknown. */
int setting_nearest(const char *section, const char *key);
const char *setting_nearest_section(const char *section);

/* Reads `value` into the settings (strings go to its arena). False if it has the wrong form or is out of range. */
bool setting_parse(struct settings *settings, int id, const char *value);
void setting_print_value(const struct settings *settings, int id, struct text *out);
void settings_set_defaults(struct settings *settings); /* no preset, no file; nothing needs freeing */
void setting_print_range(int id, struct text *out);    /* "whole number from 1 to 8", "a or b", … */

#endif
