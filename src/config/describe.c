/* Settings as text for a person or a file. */
#include <stdlib.h>
#include <string.h>

#include "config/table.h"

enum { COLUMNS = 100 };

/* `doc` in lines of at most COLUMNS characters, each begun with `indent`. */
static void add_wrapped(struct text *out, const char *indent, const char *doc) {
    size_t room = COLUMNS - strlen(indent);
    while (*doc) {
        size_t length = strlen(doc);
        if (length > room) {
            length = room;
            while (length > 1 && doc[length] != ' ')
                length--;
        }
        text_printf(out, "%s%.*s\n", indent, (int)length, doc);
        doc += length;
        doc += strspn(doc, " ");
    }
}

static bool in_section(int id, int section) {
    return strcmp(setting_table[id].section, setting_sections[section].name) == 0;
}

void settings_write_ini(const struct settings *settings, struct text *out) {
    for (int section = 0; setting_sections[section].name; section++) {
        text_printf(out, "%s[%s]\n", section ? "\n" : "", setting_sections[section].name);
        for (int id = 0; id < SETTING_COUNT; id++) {
            if (!in_section(id, section))
                continue;
            add_wrapped(out, "# ", setting_table[id].doc);
            text_printf(out, "%s = ", setting_table[id].key);
            setting_print_value(settings, id, out);
            text_add(out, "\n");
        }
    }
}

void settings_describe(struct text *out) {
    struct settings defaults;
    settings_set_defaults(&defaults);
    for (int section = 0; setting_sections[section].name; section++) {
        text_printf(out, "%s[%s]  %s\n", section ? "\n" : "", setting_sections[section].name,
                    setting_sections[section].doc);
        for (int id = 0; id < SETTING_COUNT; id++) {
            if (!in_section(id, section))
                continue;
            struct text value = {0};
            setting_print_value(&defaults, id, &value);
            text_printf(out, "  %-30s default %-12s ", setting_table[id].key, value.length ? value.data : "(empty)");
            setting_print_range(id, out);
            text_add(out, "\n");
            add_wrapped(out, "      ", setting_table[id].doc);
            text_free(&value);
        }
    }
}

void settings_list(const struct settings *settings, struct text *out) {
    for (int section = 0; setting_sections[section].name; section++) {
        text_printf(out, "%s[%s]\n", section ? "\n" : "", setting_sections[section].name);
        for (int id = 0; id < SETTING_COUNT; id++) {
            if (!in_section(id, section))
                continue;
            struct text value = {0};
            setting_print_value(settings, id, &value);
            text_printf(out, "  %-30s %-34s %s\n", setting_table[id].key, value.length ? value.data : "(empty)",
                        settings->origin[id] ? settings->origin[id] : "default");
            text_free(&value);
        }
    }
}
