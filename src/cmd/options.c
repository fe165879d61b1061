/* Command-line options from one table: parsing, help, and errors that name what was meant. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "cmd/cmd.h"

static const struct option *find_option(const struct option *options, int count, const char *name, size_t length) {
    for (int i = 0; i < count; i++)
        if (strlen(options[i].name) == length && memcmp(options[i].name, name, length) == 0)
            return &options[i];
    return NULL;
}

static status unknown_option(const char *command, const struct option *options, int count, const char *name) {
    const char *nearest = NULL;
    int best = 4; /* further away than this it is no slip of the finger */
    for (int i = 0; i < count; i++) {
        int distance = edit_distance(name, options[i].name);
        if (distance < best) {
            best = distance;
            nearest = options[i].name;
        }
    }
    if (nearest)
        return bad_input("%s: unknown option %s; did you mean %s?", command, name, nearest);
    return bad_input("%s: unknown option %s; 'berth %s --help' lists the options", command, name, command);
}

static status parse_number(const char *command, const struct option *option, const char *text) {
    char *end;
    errno = 0;
    double value;
    if (option->type == OPTION_INT) {
        long long whole = strtoll(text, &end, 10);
        value = (double)whole;
        if (end != text && !*end && !errno)
            *(int64_t *)option->value = whole;
    } else {
        value = strtod(text, &end);
        if (end != text && !*end)
            *(double *)option->value = value;
    }
    const char *kind = option->type == OPTION_INT ? "a whole number" : "a number";
    if (end == text || *end || isnan(value) || errno || value < option->minimum || value > option->maximum)
        return bad_input("%s: %s is \"%s\", expected %s from %.15g to %.15g", command, option->name, text, kind,
                         option->minimum, option->maximum);
    return OK;
}

static bool is_option(const char *argument) { return argument[0] == '-' && argument[1]; }

/* Takes the value of `option`, which may stand after '=' (`attached`) or in the arguments from *next on. */
static status take_value(const char *command, const struct option *option, char *attached, int argc, char **argv,
                         int *next) {
    if (option->type == OPTION_FLAG) {
        *(bool *)option->value = true;
        return attached ? bad_input("%s: %s takes no value", command, option->name) : OK;
    }
    if (option->type == OPTION_LIST && !attached) {
        struct option_list *list = option->value;
        if (list->count)
            return bad_input("%s: %s is given twice; list all its values after one", command, option->name);
        list->items = argv + *next;
        while (*next < argc && !is_option(argv[*next])) {
            list->count++;
            (*next)++;
        }
        return list->count ? OK : bad_input("%s: %s needs a value (%s)", command, option->name, option->argument);
    }
    if (option->type == OPTION_LIST)
        return bad_input("%s: write %s %s, without '='", command, option->name, option->argument);
    char *value = attached;
    if (!value && *next < argc && (!is_option(argv[*next]) || option->type != OPTION_STRING))
        value = argv[(*next)++];
    if (!value || !*value)
        return bad_input("%s: %s needs a value (%s)", command, option->name, option->argument);
    if (option->type == OPTION_STRING) {
        *(const char **)option->value = value;
        return OK;
    }
    return parse_number(command, option, value);
}

static void print_help(const char *usage, const struct option *options, int count) {
    printf("%s\n\noptions:\n", usage);
    for (int i = 0; i < count; i++) {
        const struct option *option = &options[i];
        struct text left = {0};
        text_printf(&left, "  %s%s%s", option->name, option->argument ? " " : "",
                    option->argument ? option->argument : "");
        printf("%-32s %s", left.data, option->help);
        text_free(&left);
        const char *string = option->type == OPTION_STRING ? *(const char **)option->value : NULL;
        if (option->required)
            printf(" (required)");
        else if (option->type == OPTION_INT)
            printf(" (default %lld)", (long long)*(int64_t *)option->value);
        else if (option->type == OPTION_DOUBLE)
            printf(" (default %g)", *(double *)option->value);
        else if (string)
            printf(" (default %s)", string);
        printf("\n");
    }
    printf("%-32s %s\n", "  --help", "show this");
}

status options_parse(int argc, char **argv, const char *usage, const struct option *options, int option_count,
                     struct option_list *positional, int *help) {
    const char *command = argv[0];
    *help = 0;
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_help(usage, options, option_count);
            *help = 1;
            return OK;
        }
    bool *given = xcalloc((size_t)option_count, sizeof *given);
    status code = OK;
    int next = 1;
    if (positional)
        *positional = (struct option_list){argv + 1, 0};
    while (next < argc && code == OK) {
        char *name = argv[next++], *equals = strchr(name, '=');
        if (positional && !is_option(name)) {
            char **place = &positional->items[positional->count++];
            memmove(place + 1, place, (size_t)(&argv[next - 1] - place) * sizeof *place);
            *place = name;
            continue;
        }
        size_t length = equals ? (size_t)(equals - name) : strlen(name);
        const struct option *option = find_option(options, option_count, name, length);
        if (option) {
            given[option - options] = true;
            code = take_value(command, option, equals ? equals + 1 : NULL, argc, argv, &next);
        } else if (is_option(name)) {
            code = unknown_option(command, options, option_count, name);
        } else {
            code = bad_input("%s: \"%s\" stands where an option was expected; see 'berth %s --help'", command, name,
                             command);
        }
    }
    for (int i = 0; i < option_count && code == OK; i++)
        if (options[i].required && !given[i])
            code = bad_input("%s: %s is missing (%s); see 'berth %s --help'", command, options[i].name, options[i].help,
                             command);
    free(given);
    return code;
}
