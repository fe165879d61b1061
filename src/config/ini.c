#include "config/ini.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

char *trim(char *string) {
    while (isspace((unsigned char)*string))
        string++;
    char *end = string + strlen(string);
    while (end > string && isspace((unsigned char)end[-1]))
        *--end = 0;
    return string;
}

static status add_entry(struct ini *ini, const char *origin, const char *section, char *line) {
    char *equals = strchr(line, '=');
    if (!equals || equals == line)
        return bad_input("%s: expected 'key = value', '[section]' or a comment, got '%.60s'", origin, line);
    if (!section)
        return bad_input("%s: '%.60s' stands before any [section]", origin, line);
    *equals = 0;
    char *key = trim(line), *value = trim(equals + 1);
    for (int64_t i = 0; i < ini->count; i++)
        if (strcmp(ini->entries[i].section, section) == 0 && strcmp(ini->entries[i].key, key) == 0)
            return bad_input("%s: %s.%s is given again; it stands in line %s already", origin, section, key,
                             strrchr(ini->entries[i].origin, ':') + 1);
    GROW(ini->entries, ini->count, ini->capacity);
    ini->entries[ini->count++] = (struct ini_entry){.section = section, .key = key, .value = value, .origin = origin};
    return OK;
}

/* `line` is trimmed and lives in the arena. */
static status parse_line(struct ini *ini, const char *origin, char *line, const char **section) {
    if (!*line || *line == '#' || *line == ';')
        return OK;
    if (*line != '[')
        return add_entry(ini, origin, *section, line);
    size_t length = strlen(line);
    if (line[length - 1] != ']')
        return bad_input("%s: expected '[section]', got '%.60s'", origin, line);
    line[length - 1] = 0;
    *section = trim(line + 1);
    return OK;
}

status ini_parse(const char *source, const char *bytes, size_t length, struct ini *out) {
    *out = (struct ini){0};
    const char *section = NULL, *end = bytes + length;
    status code = OK;
    if (length >= 3 && memcmp(bytes, "\xEF\xBB\xBF", 3) == 0)
        bytes += 3; /* a byte order mark, which some editors write */
    for (int64_t number = 1; bytes < end && code == OK; number++) {
        const char *newline = memchr(bytes, '\n', (size_t)(end - bytes));
        size_t count = (size_t)((newline ? newline : end) - bytes);
        char *line = arena_alloc(&out->arena, count + 1);
        memcpy(line, bytes, count);
        char *origin = arena_printf(&out->arena, "%s:%lld", source, (long long)number);
        if (memchr(line, 0, count))
            code = bad_input("%s: a zero byte: this is not an INI file", origin);
        else
            code = parse_line(out, origin, trim(line), &section);
        bytes += count + 1;
    }
    if (code != OK)
        ini_free(out);
    return code;
}

void ini_free(struct ini *ini) {
    free(ini->entries);
    arena_free(&ini->arena);
    *ini = (struct ini){0};
}
