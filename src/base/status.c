#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGE_SIZE = 2048 };

static _Thread_local char message[MESSAGE_SIZE];

static void one_line(char *text) {
    for (; *text; text++)
        if (*text == '\n' || *text == '\r')
            *text = ' ';
}

static void set_message(const char *format, va_list args) {
    char fresh[MESSAGE_SIZE]; /* the arguments may point into the old message */
    vsnprintf(fresh, sizeof fresh, format, args);
    one_line(fresh);
    memcpy(message, fresh, sizeof message);
}

status failed(const char *format, ...) {
    va_list args;
    va_start(args, format);
    set_message(format, args);
    va_end(args);
    return FAILED;
}

status bad_input(const char *format, ...) {
    va_list args;
    va_start(args, format);
    set_message(format, args);
    va_end(args);
    return BAD_INPUT;
}

status stopped(const char *format, ...) {
    va_list args;
    va_start(args, format);
    set_message(format, args);
    va_end(args);
    return STOPPED;
}

status status_context(status code, const char *format, ...) {
    char context[MESSAGE_SIZE / 2], old[MESSAGE_SIZE];
    va_list args;
    va_start(args, format);
    vsnprintf(context, sizeof context, format, args);
    va_end(args);
    one_line(context);
    memcpy(old, message, sizeof old);
    snprintf(message, sizeof message, "%s: %.*s", context, MESSAGE_SIZE / 2 - 4, old);
    return code;
}

const char *status_message(void) { return message; }

status status_set(status code, const char *text) {
    if (text != message)
        snprintf(message, sizeof message, "%s", text);
    return code;
}
