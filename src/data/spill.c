#include "data/spill.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"

enum { WRITE_BYTES = 1 << 22, READ_BYTES = 1 << 26, READ_LEAST = 1 << 14, READ_MOST = 1 << 20, HEAD_WORDS = 4 };

/* What was read ahead of a run: bytes [used, count) of `data`. */
struct spill_cursor {
    char *data;
    int64_t used, count, size;
};

status spill_open(struct spill *spill, const char *path) {
    spill->path = xstrdup(path);
    spill->reader = -1;
    return file_open_append(path, spill->bytes, &spill->descriptor);
}

/* --- writing --- */

static status write_out(struct spill *spill, struct text *buffer) {
    TRY(file_append(spill->descriptor, spill->path, buffer->data, buffer->length));
    spill->bytes += (int64_t)buffer->length;
    text_clear(buffer);
    return OK;
}

status spill_append(struct spill *spill, const struct instance_list *list, struct random_stream *random) {
    int64_t *order = xcalloc((size_t)list->count, sizeof *order), begin = spill->bytes;
    struct text buffer = {0};
    status code = OK;
    random_permutation(random, list->count, order);
    for (int64_t i = 0; i < list->count && code == OK; i++) {
        const struct instance *row = &list->items[order[i]];
        const int32_t head[HEAD_WORDS] = {row->length, row->b_begin, row->label, row->masked};
        text_append(&buffer, (const char *)head, sizeof head);
        text_append(&buffer, (const char *)row->ids, (size_t)row->length * sizeof *row->ids);
        text_append(&buffer, (const char *)row->positions, (size_t)row->masked * sizeof *row->positions);
        text_append(&buffer, (const char *)row->labels, (size_t)row->masked * sizeof *row->labels);
        if (buffer.length >= WRITE_BYTES || i + 1 == list->count)
            code = write_out(spill, &buffer);
    }
    text_free(&buffer);
    free(order);
    if (code == OK)
        code = file_flush(spill->descriptor, spill->path);
    if (code == OK && list->count) {
        GROW(spill->runs, spill->count, spill->capacity);
        spill->runs[spill->count++] = (struct spill_run){list->count, begin, spill->bytes};
    }
    return code;
}

/* --- taking: a tree of sums finds the run that holds the n-th of what is left --- */

/* Node n ≥ 1 has the children 2n and 2n + 1; leaf `leaves` + r is run r. */
struct sum_tree {
    int64_t leaves;
    int64_t *sums; /* [2 · leaves] */
};

static struct sum_tree sum_tree_new(const struct spill *spill) {
    struct sum_tree tree = {.leaves = 1};
    while (tree.leaves < spill->count)
        tree.leaves *= 2;
    tree.sums = xcalloc(2 * (size_t)tree.leaves, sizeof *tree.sums);
    for (int64_t r = 0; r < spill->count; r++)
        tree.sums[tree.leaves + r] = spill->runs[r].rows;
    for (int64_t n = tree.leaves - 1; n > 0; n--)
        tree.sums[n] = tree.sums[2 * n] + tree.sums[2 * n + 1];
    return tree;
}

/* The run of the n-th row left, which is one row shorter from now on. */
static int64_t sum_tree_take(struct sum_tree *tree, int64_t n) {
    int64_t node = 1;
    tree->sums[node]--;
    while (node < tree->leaves) {
        node *= 2;
        if (n >= tree->sums[node])
            n -= tree->sums[node++];
        tree->sums[node]--;
    }
    return node - tree->leaves;
}

static status open_cursors(struct spill *spill) {
    if (spill->cursors)
        return OK;
    TRY(file_open_read(spill->path, &spill->reader));
    spill->cursors = xcalloc((size_t)spill->count, sizeof *spill->cursors);
    int64_t size = READ_BYTES / (spill->count ? spill->count : 1);
    size = size < READ_LEAST ? READ_LEAST : size > READ_MOST ? READ_MOST : size;
    for (int64_t r = 0; r < spill->count; r++)
        spill->cursors[r].size = size;
    return OK;
}

/* At least `bytes` of run r, behind what was taken of it: read ahead as far as the buffer reaches. */
static status look_at(struct spill *spill, int64_t r, int64_t bytes) {
    struct spill_cursor *cursor = &spill->cursors[r];
    const struct spill_run *run = &spill->runs[r];
    int64_t held = cursor->count - cursor->used, left = run->end - run->begin;
    if (held >= bytes)
        return OK;
    if (bytes > left)
        return failed("%s: is damaged: a record runs on behind byte %lld", spill->path, (long long)run->end);
    int64_t want = bytes > cursor->size ? bytes : cursor->size;
    want = want < left ? want : left;
    if (!cursor->data || want > cursor->size) {
        cursor->size = want > cursor->size ? want : cursor->size;
        cursor->data = xrealloc(cursor->data, (size_t)cursor->size);
    }
    memmove(cursor->data, cursor->data + cursor->used, (size_t)held);
    cursor->used = 0;
    cursor->count = want;
    return file_read_at(spill->reader, spill->path, run->begin + held, cursor->data + held, (size_t)(want - held));
}

/* The next record of run r, added to `words`. */
static status take_record(struct spill *spill, int64_t r, struct text *words) {
    int32_t head[HEAD_WORDS];
    struct spill_cursor *cursor = &spill->cursors[r];
    TRY(look_at(spill, r, sizeof head));
    memcpy(head, cursor->data + cursor->used, sizeof head);
    if (head[0] < 0 || head[3] < 0)
        return failed("%s: is damaged near byte %lld", spill->path, (long long)spill->runs[r].begin);
    int64_t bytes = (HEAD_WORDS + (int64_t)head[0] + 2 * (int64_t)head[3]) * (int64_t)sizeof *head;
    TRY(look_at(spill, r, bytes));
    text_append(words, cursor->data + cursor->used, (size_t)bytes);
    cursor->used += bytes;
    spill->runs[r].begin += bytes;
    spill->runs[r].rows--;
    return OK;
}

status spill_take(struct spill *spill, int64_t rows, struct random_stream *random, struct instance_list *out) {
    TRY(open_cursors(spill));
    struct sum_tree tree = sum_tree_new(spill);
    struct text words = {0};
    status code = OK;
    for (int64_t i = 0; i < rows && code == OK; i++) {
        int64_t n = (int64_t)random_below(random, (uint64_t)tree.sums[1]);
        code = take_record(spill, sum_tree_take(&tree, n), &words);
    }
    free(tree.sums);
    if (code == OK && rows)
        instances_take_records(out, (int32_t *)(void *)words.data, rows);
    else
        text_free(&words);
    return code;
}

int64_t spill_rows(const struct spill *spill) {
    int64_t rows = 0;
    for (int64_t r = 0; r < spill->count; r++)
        rows += spill->runs[r].rows;
    return rows;
}

int64_t spill_taken(const struct spill *spill) {
    int64_t left = 0;
    for (int64_t r = 0; r < spill->count; r++)
        left += spill->runs[r].end - spill->runs[r].begin;
    return spill->bytes - left;
}

void spill_close(struct spill *spill) {
    if (!spill->path)
        return;
    if (spill->descriptor >= 0)
        close(spill->descriptor);
    if (spill->reader >= 0)
        close(spill->reader);
    for (int64_t r = 0; spill->cursors && r < spill->count; r++)
        free(spill->cursors[r].data);
    free(spill->cursors);
    free(spill->runs);
    free(spill->path);
    *spill = (struct spill){.descriptor = -1, .reader = -1};
}
