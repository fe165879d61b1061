#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

static void reserve(struct text *text, size_t more) {
    size_t need = text->length + more + 1;
    if (need <= text->capacity)
        return;
    text->capacity = need > 2 * text->capacity ? need : 2 * text->capacity;
    text->data = xrealloc(text->data, text->capacity);
}

void text_append(struct text *text, const char *bytes, size_t length) {
    reserve(text, length);
    if (length)
        memcpy(text->data + text->length, bytes, length);
    text->length += length;
    text->data[text->length] = 0;
}

void text_add(struct text *text, const char *string) { text_append(text, string, strlen(string)); }

void text_printf(struct text *text, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    reserve(text, (size_t)length);
    vsnprintf(text->data + text->length, (size_t)length + 1, format, again);
    va_end(again);
    text->length += (size_t)length;
}

void text_clear(struct text *text) {
    text->length = 0;
    if (text->data)
        text->data[0] = 0;
}

void text_free(struct text *text) {
    free(text->data);
    *text = (struct text){0};
}

bool starts_with(const char *string, const char *prefix) { return strncmp(string, prefix, strlen(prefix)) == 0; }

bool ends_with(const char *string, const char *suffix) {
    size_t a = strlen(string), b = strlen(suffix);
    return a >= b && strcmp(string + a - b, suffix) == 0;
}

int edit_distance(const char *a, const char *b) {
    size_t na = strlen(a), nb = strlen(b);
    int *row = xmalloc((nb + 1) * sizeof *row);
    for (size_t j = 0; j <= nb; j++)
        row[j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            int above = row[j], best = diagonal + (a[i - 1] != b[j - 1]);
            best = above + 1 < best ? above + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            row[j] = best;
            diagonal = above;
        }
    }
    int distance = row[nb];
    free(row);
    return distance;
}
