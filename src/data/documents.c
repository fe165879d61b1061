#include "data/documents.h"

#include <glob.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "data/text_file.h"

enum { READ_BYTES = 1 << 20 };

struct document_source {
    struct document_options options;
    char **paths;   /* [count] */
    int64_t *sizes; /* [count] as stored; 0 for the standard input */
    int64_t count, capacity, size_capacity;
    bool standard_input; /* among them */
    int64_t bytes, bytes_closed;
    int64_t next;           /* the file to open next */
    struct text_file *file; /* NULL when none is open */
    const char *json_key;   /* of the open file; NULL: plain text */
    int64_t line, taken;    /* of it, handed out: lines, and bytes of text */
    struct text buffer;     /* read but not handed out; `used` of it are */
    size_t used;
};

static void keep_path(struct document_source *source, const char *path, int64_t bytes) {
    int64_t sizes = source->count;
    GROW(source->sizes, sizes, source->size_capacity);
    source->sizes[sizes] = bytes;
    GROW(source->paths, source->count, source->capacity);
    source->paths[source->count++] = xstrdup(path);
    source->bytes += bytes;
}

static status add_file(struct document_source *source, const char *path) {
    int64_t bytes;
    TRY(file_size(path, &bytes));
    keep_path(source, path, bytes);
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
    if (strcmp(pattern, "-") == 0) {
        keep_path(source, pattern, 0);
        source->standard_input = true;
        return OK;
    }
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

status documents_open(char *const *patterns, int count, const struct document_options *options,
                      struct document_source **out) {
    struct document_source *source = xcalloc(1, sizeof *source);
    source->options = *options;
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
    text_file_close(source->file);
    names_free(source->paths, source->count);
    free(source->sizes);
    text_free(&source->buffer);
    free(source);
}

int64_t documents_bytes(const struct document_source *source) { return source->standard_input ? 0 : source->bytes; }

int64_t documents_read(const struct document_source *source) {
    return source->bytes_closed + (source->file ? text_file_consumed(source->file) : 0);
}

static bool is_json_lines(const char *path) {
    return ends_with(path, ".jsonl") || ends_with(path, ".jsonl.gz") || ends_with(path, ".jsonl.zst");
}

static status open_next(struct document_source *source) {
    const char *path = source->paths[source->next];
    TRY(text_file_open(path, &source->file));
    source->next++;
    source->line = source->taken = 0;
    source->json_key = source->options.json_key ? source->options.json_key : is_json_lines(path) ? "text" : NULL;
    return OK;
}

static void close_file(struct document_source *source) {
    source->bytes_closed += text_file_consumed(source->file);
    text_file_close(source->file);
    source->file = NULL;
}

/* Reads more of the open file into the buffer; `ended` when there is no more. */
static status fill(struct document_source *source, bool *ended) {
    size_t left = source->buffer.length - source->used, got;
    if (left)
        memmove(source->buffer.data, source->buffer.data + source->used, left);
    source->buffer.length = left;
    source->used = 0;
    char *chunk = xmalloc(READ_BYTES);
    status code = text_file_read(source->file, chunk, READ_BYTES, &got);
    if (code == OK && got > 0)
        text_append(&source->buffer, chunk, got);
    free(chunk);
    *ended = code == OK && got == 0;
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
        source->taken += (int64_t)*length;
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

/* A line of JSON: its document, with a line end behind it. */
static status add_json(const struct document_source *source, const char *line, size_t length, struct text *to) {
    char *place = xasprintf("%s: line %lld", source->paths[source->next - 1], (long long)source->line);
    json *object = NULL;
    const char *document;
    status code = json_parse(place, line, length, &object);
    if (code == OK)
        code = json_get_string(place, object, source->json_key, &document);
    if (code == OK && !is_blank(document, strlen(document))) {
        text_add(to, document);
        text_add(to, "\n");
    }
    json_free(object);
    free(place);
    return code;
}

/* The next line goes to the batch; a document may end with it. */
static status take_line(struct document_source *source, struct document_batch *batch) {
    const char *line;
    size_t length;
    bool file_ended;
    TRY(next_line(source, &line, &length, &file_ended));
    source->line++;
    bool blank = is_blank(line, length), ends;
    if (source->json_key) {
        if (!blank)
            TRY(add_json(source, line, length, &batch->text));
        ends = true;
    } else {
        if (!blank)
            text_append(&batch->text, line, length);
        int64_t begin = batch->count ? batch->ends[batch->count - 1] : 0, cut = source->options.cut_bytes;
        ends = (blank && !source->options.whole_files) || (cut && (int64_t)batch->text.length - begin >= cut);
    }
    if (ends || file_ended)
        end_document(batch);
    if (file_ended)
        close_file(source);
    return OK;
}

status documents_next(struct document_source *source, int64_t bytes, struct document_batch *batch) {
    text_clear(&batch->text);
    batch->count = 0;
    while (batch->count == 0 || batch->ends[batch->count - 1] < bytes) {
        if (!source->file) {
            if (source->next == source->count)
                return OK;
            TRY(open_next(source));
        }
        TRY(take_line(source, batch));
    }
    return OK;
}

struct document_place documents_place(const struct document_source *source) {
    if (!source->file)
        return (struct document_place){.file = source->next};
    return (struct document_place){source->next - 1, source->taken, source->line};
}

status documents_seek(struct document_source *source, const struct document_place *place) {
    for (; source->next < place->file && source->next < source->count; source->next++)
        source->bytes_closed += source->sizes[source->next];
    if (!place->bytes)
        return OK;
    TRY(open_next(source));
    while (source->taken < place->bytes) {
        bool ended;
        TRY(fill(source, &ended));
        int64_t left = place->bytes - source->taken, got = (int64_t)(source->buffer.length - source->used);
        if (ended)
            return failed("%s: ends early: an earlier run read %lld bytes of text from it",
                          source->paths[source->next - 1], (long long)place->bytes);
        source->used += (size_t)(got < left ? got : left);
        source->taken += got < left ? got : left;
    }
    source->line = place->line;
    return OK;
}

void documents_list(const struct document_source *source, struct text *out) {
    for (int64_t i = 0; i < source->count; i++)
        text_printf(out, "input %s, %lld bytes\n", source->paths[i], (long long)source->sizes[i]);
}

void document_batch_free(struct document_batch *batch) {
    text_free(&batch->text);
    free(batch->ends);
    *batch = (struct document_batch){0};
}
