#include "data/dataset.h"

#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"
#include "data/reader.h"

/* --- finding files --- */

static status add_file(struct dataset *dataset, const char *path) {
    GROW(dataset->shards, dataset->count, dataset->capacity);
    struct shard *shard = &dataset->shards[dataset->count];
    status code = shard_check(path, shard);
    if (code == BAD_INPUT && dataset->skip_bad) {
        log_warn("left out: %s", status_message());
        return OK;
    }
    TRY(code);
    dataset->count++;
    dataset->rows += shard->rows;
    dataset->seq_len = shard->seq_len > dataset->seq_len ? shard->seq_len : dataset->seq_len;
    dataset->max_predictions =
        shard->max_predictions > dataset->max_predictions ? shard->max_predictions : dataset->max_predictions;
    return OK;
}

/* In a folder a shard is a file that says so by its ending, or, with any other name, by its first bytes. */
static bool is_shard(const char *path) {
    if (ends_with(path, ".hdf5") || ends_with(path, ".h5") || ends_with(path, ".hdf"))
        return true;
    int descriptor;
    char magic[8] = {0};
    int64_t bytes;
    if (file_size(path, &bytes) != OK || bytes < 8 || file_open_read(path, &descriptor) != OK)
        return false;
    status code = file_read_at(descriptor, path, 0, magic, sizeof magic);
    close(descriptor);
    return code == OK && memcmp(magic, "\x89HDF\r\n\x1a\n", 8) == 0;
}

static status add_folder(struct dataset *dataset, const char *path) {
    char **names;
    int64_t count, before = dataset->count;
    TRY(folder_list(path, &names, &count));
    status code = OK;
    for (int64_t i = 0; i < count && code == OK; i++) {
        char *full = path_join(path, names[i]);
        if (names[i][0] != '.' && file_exists(full) && is_shard(full))
            code = add_file(dataset, full);
        free(full);
    }
    names_free(names, count);
    if (code == OK && dataset->count == before)
        return bad_input("%s: no HDF5 shards in this folder", path);
    return code;
}

static status add_glob(struct dataset *dataset, const char *pattern) {
    glob_t found;
    int result = glob(pattern, 0, NULL, &found);
    status code =
        result == 0 ? OK : bad_input("%s: no such file or folder, and no file matches it as a pattern", pattern);
    for (size_t i = 0; result == 0 && i < found.gl_pathc && code == OK; i++)
        if (!folder_exists(found.gl_pathv[i]))
            code = add_file(dataset, found.gl_pathv[i]);
    globfree(&found);
    return code;
}

static status add_path(struct dataset *dataset, const char *path) {
    if (folder_exists(path))
        return add_folder(dataset, path);
    return file_exists(path) ? add_file(dataset, path) : add_glob(dataset, path);
}

/* Cuts ":WEIGHT" off an item, unless all of it is a path. False if none stands there. */
static bool split_weight(char *item, double *weight) {
    char *colon = strrchr(item, ':'), *end;
    if (!colon || file_exists(item) || folder_exists(item))
        return false;
    *weight = strtod(colon + 1, &end);
    if (end == colon + 1 || *end)
        return false;
    *colon = 0;
    return true;
}

static status add_item(struct dataset *dataset, char *item) {
    double weight = 0;
    int64_t first = dataset->count;
    bool weighted = split_weight(item, &weight);
    if (first > 0 && weighted != (dataset->source_count > 0))
        return bad_input("'%s': either every item of the list has a weight (a/:0.7,b/:0.3), or none", item);
    if (weighted && !(weight > 0 && weight < 1e9))
        return bad_input("'%s': the weight is %g, expected more than 0", item, weight);
    TRY(add_path(dataset, item));
    if (weighted && dataset->count > first) {
        GROW(dataset->sources, dataset->source_count, dataset->source_capacity);
        dataset->sources[dataset->source_count++] =
            (struct source){xstrdup(item), weight, first, dataset->count - first};
    }
    return OK;
}

static status add_list(struct dataset *dataset, const char *paths) {
    char *copy = xstrdup(paths), *rest = copy;
    status code = OK;
    for (char *path; code == OK && (path = strsep(&rest, ","));) {
        while (*path == ' ')
            path++;
        size_t length = strlen(path);
        while (length && path[length - 1] == ' ')
            path[--length] = 0;
        if (length)
            code = add_item(dataset, path);
    }
    free(copy);
    double sum = 0;
    for (int64_t i = 0; i < dataset->source_count; i++)
        sum += dataset->sources[i].share;
    for (int64_t i = 0; i < dataset->source_count; i++)
        dataset->sources[i].share /= sum;
    return code;
}

/* --- the data set --- */

static int by_content(const void *a, const void *b) {
    const struct shard *const *x = a, *const *y = b;
    if ((*x)->hash != (*y)->hash)
        return (*x)->hash < (*y)->hash ? -1 : 1;
    return (*x)->rows < (*y)->rows ? -1 : (*x)->rows > (*y)->rows;
}

static void warn_of_copies(const char *setting, const struct dataset *dataset) {
    const struct shard **sorted = xmalloc((size_t)(dataset->count + 1) * sizeof *sorted);
    for (int64_t i = 0; i < dataset->count; i++)
        sorted[i] = &dataset->shards[i];
    qsort(sorted, (size_t)dataset->count, sizeof *sorted, by_content);
    int64_t copies = 0, first = 0;
    for (int64_t i = 1; i < dataset->count; i++)
        if (by_content(&sorted[i - 1], &sorted[i]) == 0 && copies++ == 0)
            first = i;
    if (copies)
        log_warn("%s: %s and %s seem to hold the same sequences (%lld such copies in all)", setting,
                 sorted[first - 1]->path, sorted[first]->path, (long long)copies);
    free(sorted);
}

status dataset_open(const char *setting, const char *paths, bool skip_bad, struct dataset **out) {
    struct dataset *dataset = xcalloc(1, sizeof *dataset);
    dataset->skip_bad = skip_bad;
    status code = add_list(dataset, paths);
    if (code == OK && dataset->count == 0)
        code = bad_input("'%s' names no shards, expected a file, a folder, a pattern or a list of these", paths);
    if (code == OK && dataset->source_count && strcmp(setting, "data.train") != 0)
        code = bad_input("'%s': weights are for data.train", paths);
    if (code != OK) {
        dataset_free(dataset);
        *out = NULL;
        return status_context(code, "%s", setting);
    }
    warn_of_copies(setting, dataset);
    *out = dataset;
    return OK;
}

void dataset_free(struct dataset *dataset) {
    if (!dataset)
        return;
    for (int64_t i = 0; i < dataset->count; i++)
        shard_free(&dataset->shards[i]);
    for (int64_t i = 0; i < dataset->source_count; i++)
        free(dataset->sources[i].name);
    free(dataset->sources);
    free(dataset->shards);
    free(dataset);
}

int64_t dataset_rows(const struct dataset *dataset) { return dataset->rows; }
int64_t dataset_files(const struct dataset *dataset) { return dataset->count; }
int64_t dataset_seq_len(const struct dataset *dataset) { return dataset->seq_len; }
int64_t dataset_max_predictions(const struct dataset *dataset) { return dataset->max_predictions; }

void dataset_describe_sources(const struct dataset *dataset, struct text *out) {
    for (int64_t i = 0; i < dataset->source_count; i++)
        text_printf(out, "%s%.4g %% %s", i ? ", " : "", 100 * dataset->sources[i].share, dataset->sources[i].name);
}

status dataset_check_vocab(const struct dataset *dataset, int64_t entries, int64_t vocab_size) {
    for (int64_t i = 0; i < dataset->count; i++) {
        const struct shard *shard = &dataset->shards[i];
        if (shard->vocab_size && entries && shard->vocab_size != entries)
            return bad_input("%s: was made with a vocabulary of %lld entries, but that of the model has %lld",
                             shard->path, (long long)shard->vocab_size, (long long)entries);
        if (shard->vocab_size > vocab_size)
            return bad_input("%s: was made with a vocabulary of %lld entries, more than model.vocab_size = %lld",
                             shard->path, (long long)shard->vocab_size, (long long)vocab_size);
    }
    return OK;
}

/* --- the manifest --- */

/* The share of the source that shard i belongs to; 0 where there are no weights. */
static double share_of(const struct dataset *dataset, int64_t shard) {
    for (int64_t i = 0; i < dataset->source_count; i++)
        if (shard < dataset->sources[i].first + dataset->sources[i].count)
            return dataset->sources[i].share;
    return 0;
}

void dataset_manifest(const struct dataset *dataset, struct text *out) {
    text_add(out, "[");
    for (int64_t i = 0; i < dataset->count; i++) {
        const struct shard *shard = &dataset->shards[i];
        text_add(out, i ? ", {\"name\": " : "{\"name\": ");
        json_add_string(out, path_name(shard->path));
        text_printf(out, ", \"bytes\": %lld, \"rows\": %lld", (long long)shard->bytes, (long long)shard->rows);
        if (dataset->source_count) {
            text_add(out, ", \"share\": ");
            json_add_double(out, share_of(dataset, i));
        }
        text_add(out, "}");
    }
    text_add(out, "]");
}

static status compare_entry(const struct dataset *dataset, const json *entry, int64_t number) {
    const struct shard *shard = &dataset->shards[number];
    const char *name;
    int64_t bytes, rows;
    double share = 0, share_now = share_of(dataset, number);
    TRY(json_get_string("manifest", entry, "name", &name));
    TRY(json_get_int("manifest", entry, "bytes", &bytes));
    TRY(json_get_int("manifest", entry, "rows", &rows));
    if (json_get(entry, "share"))
        TRY(json_get_double("manifest", entry, "share", &share));
    if (share != share_now)
        return bad_input("shard %lld, %s, belonged to a source with a share of %.4g, now %.4g (0: no weights)",
                         (long long)number + 1, path_name(shard->path), share, share_now);
    if (strcmp(name, path_name(shard->path)) == 0 && bytes == shard->bytes && rows == shard->rows)
        return OK;
    return bad_input("shard %lld was %s (%lld bytes, %lld rows), now %s (%lld bytes, %lld rows)", (long long)number + 1,
                     name, (long long)bytes, (long long)rows, path_name(shard->path), (long long)shard->bytes,
                     (long long)shard->rows);
}

status dataset_compare(const struct dataset *dataset, const char *manifest) {
    json *root;
    TRY(json_parse("manifest", manifest, strlen(manifest), &root));
    status code = OK;
    if (json_count(root) != dataset->count)
        code = bad_input("there were %lld shards, now %lld", (long long)json_count(root), (long long)dataset->count);
    int64_t i = 0;
    for (const json *entry = json_first(root); entry && code == OK; entry = json_next(entry), i++)
        code = compare_entry(dataset, entry, i);
    json_free(root);
    return code;
}
