/* A growing string, always NUL-terminated once written to. Zero-initialize; free with text_free. */
#ifndef BERTH_BASE_TEXT_H
#define BERTH_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

struct text {
    char *data;
    size_t length, capacity;
};

void text_append(struct text *text, const char *bytes, size_t length);
void text_add(struct text *text, const char *string);
void text_printf(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_clear(struct text *text); /* length 0, memory kept */
void text_free(struct text *text);

bool starts_with(const char *string, const char *prefix);
bool ends_with(const char *string, const char *suffix);

/* Number of single-character edits between two strings: to name the nearest known key. */
int edit_distance(const char *a, const char *b);

#endif
