/* Host memory. Small allocations (lists, names, tables) cannot usefully fail: these end the program with one line.
 * Large ones, whose size the user's settings decide, go through `memory_new`, which returns a status. */
#ifndef BERTH_BASE_MEMORY_H
#define BERTH_BASE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

void *xmalloc(size_t bytes);
void *xcalloc(size_t count, size_t bytes); /* zeroed */
void *xrealloc(void *old, size_t bytes);
char *xstrdup(const char *text);
char *xasprintf(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* `bytes` of zeroed memory, aligned to 64; `what` names it in the message. Free with `memory_free`. */
status memory_new(void **out, size_t bytes, const char *what);
void memory_free(void *memory);

/* How often the functions of this header have allocated: for the test that steps do not. */
long long memory_allocations(void);

/* Make room for one more element in a growing array. `items` is the pointer, `count` the number in use. */
#define GROW(items, count, capacity)                                           \
    do {                                                                       \
        if ((count) == (capacity)) {                                           \
            (capacity) = (capacity) ? 2 * (capacity) : 16;                     \
            (items) = xrealloc((items), (size_t)(capacity) * sizeof *(items)); \
        }                                                                      \
    } while (0)

/* An arena: many small allocations with one lifetime. Zero-initialize it; pointers stay where they are. */
struct arena {
    struct arena_block *last;
    size_t used, size; /* bytes in the last block */
};
void *arena_alloc(struct arena *arena, size_t bytes); /* zeroed, aligned to 16 */
char *arena_strdup(struct arena *arena, const char *text);
char *arena_printf(struct arena *arena, const char *format, ...) __attribute__((format(printf, 2, 3)));
void arena_free(struct arena *arena);

#endif
