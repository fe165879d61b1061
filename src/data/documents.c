#include "data/documents.h"

#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"

enum { READ_BYTES = 1 << 20 };

struct document_source {
    char **paths; /* [count] */
    int64_t count, capacity;
    int64_t bytes, bytes_read, cut_bytes;
    int64_t next;       /* the file to open next */
    int descriptor;     /* -1 when no file is open */
    struct text buffer; /* read but not handed out; `used` of it are */
    size_t used;
};

static status add_file(struct document_source *source, const char *path) {
    int64_t bytes;
    TRY(file_size(path, &bytes));
    source->bytes += bytes;
    GROW(source->paths, source->count, source->capacity);
    source->paths[source->count++] = xstrdup(path);
    return OK;
}

static status add_path(struct document_source *source, const char *path) {
    if (!folder_exists(path))
        return add_file(source, path);
    char **names;
    int64_t count;
    TRY(folder_list(path, &names, &count));
    status code = OK;
    for (int64_t i = 0; i < count && code == OK; i++) {
        if (names[i][0] == '.')
            continue;
        char *inner = path_join(path, names[i]);
        code = add_path(source, inner);
        free(inner);
    }
    names_free(names, count);
    return code;
}

static status add_pattern(struct document_source *source, const char *pattern) {
    int64_t before = source->count;
    if (file_exists(pattern) || folder_exists(pattern)) {
        TRY(add_path(source, pattern));
    } else {
        glob_t found;
        int result = glob(pattern, 0, NULL, &found);
        status code = OK;
        for (size_t i = 0; result == 0 && i < found.gl_pathc && code == OK; i++)
            code = add_path(source, found.gl_pathv[i]);
        globfree(&found);
        TRY(code);
    }
    return source->count > before ? OK : bad_input("%s: no such file, folder with files, or glob", pattern);
}

status documents_open(char *const *patterns, int count, int64_t cut_bytes, struct document_source **out) {
    struct document_source *source = xcalloc(1, sizeof *source);
    source->descriptor = -1;
    source->cut_bytes = cut_bytes;
    status code = OK;
    for (int i = 0; i < count && code == OK; i++)
        code = add_pattern(source, patterns[i]);
    if (code != OK) {
        documents_close(source);
        source = NULL;
    }
    *out = source;
    return code;
}

void documents_close(struct document_source *source) {
    if (!source)
        return;
    if (source->descriptor >= 0)
        close(source->descriptor);
    names_free(source->paths, source->count);
    text_free(&source->buffer);
    free(source);
}

int64_t documents_bytes(const struct document_source *source) { return source->bytes; }
int64_t documents_read(const struct document_source *source) { return source->bytes_read; }

/* Reads more of the open file into the buffer; `ended` when there is no more. */
static status fill(struct document_source *source, bool *ended) {
    size_t left = source->buffer.length - source->used;
    if (left)
        memmove(source->buffer.data, source->buffer.data + source->used, left);
    source->buffer.length = left;
    source->used = 0;
    char *chunk = xmalloc(READ_BYTES);
    ssize_t got;
    do
        got = read(source->descriptor, chunk, READ_BYTES);
    while (got < 0 && errno == EINTR);
    status code = OK;
    if (got < 0)
        code = failed("%s: cannot read: %s", source->paths[source->next - 1], strerror(errno));
    if (got > 0) {
        text_append(&source->buffer, chunk, (size_t)got);
        source->bytes_read += got;
    }
    free(chunk);
    *ended = got == 0;
    return code;
}

/* The next line with its '\n'; at a file's end `file_ended` and what stands there without one. */
static status next_line(struct document_source *source, const char **line, size_t *length, bool *file_ended) {
    size_t searched = 0;
    *file_ended = false;
    for (;;) {
        const char *begin = source->buffer.data + source->used;
        size_t left = source->buffer.length - source->used;
        const char *stop = left > searched ? memchr(begin + searched, '\n', left - searched) : NULL;
        searched = left;
        if (!stop && !*file_ended) {
            TRY(fill(source, file_ended));
            continue;
        }
        *line = begin;
        *length = stop ? (size_t)(stop - begin) + 1 : left;
        *file_ended = *file_ended && !stop;
        source->used += *length;
        return OK;
    }
}

static bool is_blank(const char *line, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (!strchr(" \t\r\n\v\f", line[i]) || !line[i])
            return false;
    return true;
}

static void end_document(struct document_batch *batch) {
    int64_t begin = batch->count ? batch->ends[batch->count - 1] : 0;
    if ((int64_t)batch->text.length == begin)
        return;
    GROW(batch->ends, batch->count, batch->capacity);
    batch->ends[batch->count++] = (int64_t)batch->text.length;
}

status documents_next(struct document_source *source, int64_t bytes, struct document_batch *batch) {
    text_clear(&batch->text);
    batch->count = 0;
    while (batch->count == 0 || batch->ends[batch->count - 1] < bytes) {
        if (source->descriptor < 0) {
            if (source->next == source->count)
                return OK;
            TRY(file_open_read(source->paths[source->next++], &source->descriptor));
        }
        const char *line;
        size_t length;
        bool file_ended;
        TRY(next_line(source, &line, &length, &file_ended));
        bool blank = is_blank(line, length);
        if (!blank)
            text_append(&batch->text, line, length);
        int64_t begin = batch->count ? batch->ends[batch->count - 1] : 0;
        bool long_enough = source->cut_bytes && (int64_t)batch->text.length - begin >= source->cut_bytes;
        if (blank || file_ended || long_enough)
            end_document(batch);
        if (file_ended) {
            close(source->descriptor);
            source->descriptor = -1;
        }
    }
    return OK;
}

void document_batch_free(struct document_batch *batch) {
    text_free(&batch->text);
    free(batch->ends);
    *batch = (struct document_batch){0};
}
