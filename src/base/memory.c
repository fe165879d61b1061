#include "base/memory.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/parallel.h"

static atomic_llong allocations;

long long memory_allocations(void) { return allocations; }

static void *must(void *memory, size_t bytes) {
    allocations++;
    if (!memory && bytes) {
        fprintf(stderr, "berth: out of memory (%zu bytes asked)\n", bytes);
        exit(FAILED);
    }
    return memory;
}

void *xmalloc(size_t bytes) { return must(malloc(bytes ? bytes : 1), bytes); }

void *xcalloc(size_t count, size_t bytes) { return must(calloc(count ? count : 1, bytes ? bytes : 1), bytes); }

void *xrealloc(void *old, size_t bytes) { return must(realloc(old, bytes ? bytes : 1), bytes); }

char *xstrdup(const char *text) {
    size_t bytes = strlen(text) + 1;
    return memcpy(xmalloc(bytes), text, bytes);
}

static char *format_into(char *(*get)(void *ctx, size_t bytes), void *ctx, const char *format, va_list args) {
    va_list again;
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    char *text = get(ctx, (size_t)length + 1);
    vsnprintf(text, (size_t)length + 1, format, again);
    va_end(again);
    return text;
}

static char *from_heap(void *ctx, size_t bytes) {
    (void)ctx;
    return xmalloc(bytes);
}

char *xasprintf(const char *format, ...) {
    va_list args;
    va_start(args, format);
    char *text = format_into(from_heap, NULL, format, args);
    va_end(args);
    return text;
}

enum { ALIGNMENT = 64, HUGE_PAGE = 2 << 20 };

static void zero_pages(void *memory, int64_t begin, int64_t end) {
    memset((char *)memory + begin, 0, (size_t)(end - begin));
}

/* Large memory comes in huge pages where the system has them: it is there hundreds of times sooner than in pages of 4
 * KB, and rows far apart are found without walking page tables. */
status memory_new(void **out, size_t bytes, const char *what) {
    allocations++;
    size_t alignment = bytes < 2 * HUGE_PAGE ? ALIGNMENT : HUGE_PAGE;
    size_t rounded = (bytes / alignment + 1) * alignment;
    *out = bytes <= INT64_MAX - HUGE_PAGE ? aligned_alloc(alignment, rounded) : NULL;
    if (!*out)
        return failed("out of memory: %s needs %.1f MB", what, (double)bytes / 1e6);
    if (alignment == HUGE_PAGE)
        madvise(*out, rounded, MADV_HUGEPAGE);
    parallel_for((int64_t)rounded, HUGE_PAGE, zero_pages, *out);
    return OK;
}

void memory_free(void *memory) { free(memory); }

struct arena_block {
    struct arena_block *previous;
    size_t padding; /* keeps what follows aligned to 16 */
};

void *arena_alloc(struct arena *arena, size_t bytes) {
    bytes = (bytes + 15) / 16 * 16;
    if (!arena->last || arena->size - arena->used < bytes) {
        size_t size = bytes > 65536 ? bytes : 65536;
        struct arena_block *block = xmalloc(sizeof *block + size);
        block->previous = arena->last;
        arena->last = block;
        arena->used = 0;
        arena->size = size;
    }
    void *memory = (char *)(arena->last + 1) + arena->used;
    arena->used += bytes;
    return memset(memory, 0, bytes);
}

char *arena_strdup(struct arena *arena, const char *text) {
    size_t bytes = strlen(text) + 1;
    return memcpy(arena_alloc(arena, bytes), text, bytes);
}

static char *from_arena(void *ctx, size_t bytes) { return arena_alloc(ctx, bytes); }

char *arena_printf(struct arena *arena, const char *format, ...) {
    va_list args;
    va_start(args, format);
    char *text = format_into(from_arena, arena, format, args);
    va_end(args);
    return text;
}

void arena_free(struct arena *arena) {
    while (arena->last) {
        struct arena_block *previous = arena->last->previous;
        free(arena->last);
        arena->last = previous;
    }
    arena->used = arena->size = 0;
}
