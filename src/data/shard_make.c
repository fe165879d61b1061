#include "data/shard_make.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"
#include "data/hash.h"

enum { BATCH_BYTES = 1 << 23 };

static const struct {
    const char *folder, *prefix; /* NVIDIA's loaders look for "training" and "test" in the name */
} split_names[SPLIT_COUNT] = {{"train", "train_training"}, {"eval", "eval_test"}};

const char *split_folder(enum split_name split) { return split_names[split].folder; }

/* Random streams of RANDOM_ORDER that this file uses. */
enum order_kind { ORDER_HELD_OUT, ORDER_RUN, ORDER_MERGE };

static struct random_stream open_order(const struct shard_job *job, enum order_kind kind, int split, int64_t number) {
    uint64_t stream = (uint64_t)kind << 56 | (uint64_t)split << 48 | (uint64_t)number;
    return random_open(job->instances.seed, RANDOM_ORDER, stream);
}

static char *unfinished_path(const struct shard_job *job, const char *name) {
    return xasprintf("%s/unfinished/%s", job->output, name);
}

/* --- what was done, in unfinished/state.json --- */

static const struct {
    const char *name;
    size_t offset;
} split_counts[] = {
    {"documents", offsetof(struct shard_split, documents)},
    {"sentences", offsetof(struct shard_split, sentences)},
    {"tokens", offsetof(struct shard_split, tokens)},
    {"instances", offsetof(struct shard_split, instances)},
    {"masked", offsetof(struct shard_split, masked)},
    {"files", offsetof(struct shard_split, files)},
    {"instance_tokens", offsetof(struct shard_split, instance_tokens)},
    {"spilled_bytes", offsetof(struct shard_split, spill.bytes)},
};
enum { SPLIT_COUNTS = sizeof split_counts / sizeof *split_counts };

static int64_t *count_in(struct shard_split *split, int i) {
    return (int64_t *)(void *)((char *)split + split_counts[i].offset);
}

static void add_split(struct shard_split *split, struct text *out) {
    text_add(out, "{");
    for (int i = 0; i < SPLIT_COUNTS; i++)
        text_printf(out, "\"%s\":%lld,", split_counts[i].name, (long long)*count_in(split, i));
    text_add(out, "\"runs\":[");
    for (int64_t r = 0; r < split->spill.count; r++)
        text_printf(out, "%s[%lld,%lld,%lld]", r ? "," : "", (long long)split->spill.runs[r].rows,
                    (long long)split->spill.runs[r].begin, (long long)split->spill.runs[r].end);
    text_add(out, "]}");
}

static status save_state(struct shard_job *job) {
    struct document_place place = documents_place(job->source);
    struct text out = {0};
    char *path = unfinished_path(job, "state.json");
    text_add(&out, "{\"command\":");
    json_add_string(&out, job->command.data);
    text_printf(&out, ",\"parts\":%lld,\"broken\":%lld,\"file\":%lld,\"bytes\":%lld,\"line\":%lld,\"splits\":[",
                (long long)job->parts, (long long)job->broken, (long long)place.file, (long long)place.bytes,
                (long long)place.line);
    for (int s = 0; s < SPLIT_COUNT; s++) {
        add_split(&job->splits[s], &out);
        text_add(&out, s + 1 < SPLIT_COUNT ? "," : "]}\n");
    }
    status code = file_write_all(path, out.data, out.length);
    text_free(&out);
    free(path);
    return code;
}

static status read_split(const char *path, const json *from, struct shard_split *split) {
    json *runs;
    for (int i = 0; i < SPLIT_COUNTS; i++)
        TRY(json_get_int(path, from, split_counts[i].name, count_in(split, i)));
    TRY(json_get_array(path, from, "runs", &runs));
    for (const json *run = json_first(runs); run; run = json_next(run)) {
        int64_t values[3] = {0};
        int n = 0;
        for (const json *item = json_first(run); item && n < 3; item = json_next(item))
            n += json_value_int(item, &values[n]);
        if (n != 3)
            return failed("%s: a run is not three numbers", path);
        GROW(split->spill.runs, split->spill.count, split->spill.capacity);
        split->spill.runs[split->spill.count++] = (struct spill_run){values[0], values[1], values[2]};
    }
    return OK;
}

/* Names the first line of this call that differs from the crashed one's. */
static status compare_commands(const struct shard_job *job, const char *then) {
    const char *now = job->command.data;
    while (*now && *then) {
        int now_length = (int)strcspn(now, "\n"), then_length = (int)strcspn(then, "\n");
        if (now_length != then_length || memcmp(now, then, (size_t)now_length) != 0)
            return bad_input(
                "%s: holds the unfinished work of another call (then: %.*s; now: %.*s); repeat that one, "
                "or remove the folder",
                job->output, then_length, then, now_length, now);
        now += now_length + 1;
        then += then_length + 1;
    }
    return *now == *then ? OK
                         : bad_input(
                               "%s: holds the unfinished work of a call with other input files; repeat that "
                               "one, or remove the folder",
                               job->output);
}

static status read_state(struct shard_job *job, const char *path, const json *state) {
    const char *command;
    struct document_place place;
    json *splits;
    TRY(json_get_string(path, state, "command", &command));
    TRY(compare_commands(job, command));
    TRY(json_get_int(path, state, "parts", &job->parts));
    TRY(json_get_int(path, state, "broken", &job->broken));
    TRY(json_get_int(path, state, "file", &place.file));
    TRY(json_get_int(path, state, "bytes", &place.bytes));
    TRY(json_get_int(path, state, "line", &place.line));
    TRY(json_get_array(path, state, "splits", &splits));
    int s = 0;
    for (const json *split = json_first(splits); split && s < SPLIT_COUNT; split = json_next(split))
        TRY(read_split(path, split, &job->splits[s++]));
    if (job->parts)
        log_info("going on with unfinished work: %lld documents read, %lld shards written",
                 (long long)(job->splits[SPLIT_TRAIN].documents + job->splits[SPLIT_EVAL].documents),
                 (long long)(job->splits[SPLIT_TRAIN].files + job->splits[SPLIT_EVAL].files));
    return documents_seek(job->source, &place);
}

/* What the shards are a function of. */
static void describe_command(struct shard_job *job) {
    const struct instance_options *recipe = &job->instances;
    struct text *out = &job->command;
    uint64_t hash = 0;
    for (int32_t i = 0; i < vocab_size(job->vocab); i++)
        hash = hash_mix(hash ^ hash_bytes(vocab_token(job->vocab, i), strlen(vocab_token(job->vocab, i))));
    text_printf(out, "vocabulary of %lld entries, hash %016llx\n", (long long)vocab_size(job->vocab),
                (unsigned long long)hash);
    text_printf(out, "seq_len %lld\nmax_predictions %lld\n", (long long)recipe->seq_len,
                (long long)recipe->max_predictions);
    text_printf(out, "masked_lm_prob %.17g\nshort_seq_prob %.17g\n", recipe->masked_lm_prob, recipe->short_seq_prob);
    text_printf(out, "whole_word_mask %d\nnext sentences %d\nseed %lld\n", recipe->whole_word, recipe->nsp,
                (long long)recipe->seed);
    text_printf(out, "dupe_factor %lld\nrows_per_shard %lld\nheld_out %.17g\n", (long long)job->dupe_factor,
                (long long)job->rows_per_shard, job->held_out);
    text_printf(out, "compression %lld\nvarlen %d\nsentences_per_line %d\npart of %lld tokens\n",
                (long long)job->shape.compression, job->shape.variable, job->sentence_a_line,
                (long long)job->part_tokens);
    documents_list(job->source, out);
}

/* --- text into instances --- */

/* Draws the held-out documents of a part: a share of all so far, and at least one. Both lists keep the text's order. */
static void split_documents(const struct shard_job *job, int64_t count, int64_t *lists[SPLIT_COUNT],
                            int64_t counts[SPLIT_COUNT]) {
    int64_t before = job->splits[SPLIT_TRAIN].documents + job->splits[SPLIT_EVAL].documents;
    int64_t wanted = llrint((double)(before + count) * job->held_out);
    wanted = job->held_out > 0 && wanted < 1 ? 1 : wanted;
    int64_t held_out = wanted - job->splits[SPLIT_EVAL].documents;
    held_out = held_out < 0 ? 0 : held_out > count - 1 ? count - 1 : held_out;
    int64_t *order = xcalloc((size_t)count, sizeof *order);
    bool *is_held_out = xcalloc((size_t)count, sizeof *is_held_out);
    struct random_stream random = open_order(job, ORDER_HELD_OUT, 0, job->parts);
    random_permutation(&random, count, order);
    for (int64_t i = 0; i < held_out; i++)
        is_held_out[order[i]] = true;
    for (int64_t d = 0; d < count; d++) {
        int s = is_held_out[d] ? SPLIT_EVAL : SPLIT_TRAIN;
        lists[s][counts[s]++] = d;
    }
    free(order);
    free(is_held_out);
}

/* The instances of a part's documents that go to one split. `first`: how many documents of the text stand before. */
static status add_instances(struct shard_job *job, int s, const struct corpus *corpus, const int64_t *documents,
                            int64_t count, int64_t first) {
    struct shard_split *split = &job->splits[s];
    for (int64_t dupe = 0; dupe < job->dupe_factor; dupe++) {
        struct instance_list list = {0};
        struct random_stream random = open_order(job, ORDER_RUN, s, job->parts * job->dupe_factor + dupe);
        instances_make(corpus, job->vocab, documents, count, &job->instances, (uint64_t)dupe << 40 | (uint64_t)first,
                       &list);
        status code = spill_append(&split->spill, &list, &random);
        split->instances += list.count;
        split->instance_tokens += list.tokens;
        split->masked += list.masked;
        instances_free(&list);
        TRY(code);
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t begin = document_begin(corpus, documents[i]), end = corpus->document_ends[documents[i]];
        split->sentences += end - begin;
        split->tokens += sentence_begin(corpus, end) - sentence_begin(corpus, begin);
    }
    split->documents += count;
    return OK;
}

static status add_part(struct shard_job *job, const struct corpus *corpus) {
    int64_t count = corpus->documents, counts[SPLIT_COUNT] = {0};
    int64_t first = job->splits[SPLIT_TRAIN].documents + job->splits[SPLIT_EVAL].documents;
    if (job->held_out > 0 && first + count < 2)
        return bad_input(
            "the input is one document, of which none can be held out: put an empty line between documents, or "
            "use --held-out 0");
    int64_t *lists[SPLIT_COUNT];
    for (int s = 0; s < SPLIT_COUNT; s++)
        lists[s] = xcalloc((size_t)count, sizeof *lists[s]);
    split_documents(job, count, lists, counts);
    status code = OK;
    for (int s = 0; s < SPLIT_COUNT && code == OK; s++)
        if (counts[s])
            code = add_instances(job, s, corpus, lists[s], counts[s], first);
    for (int s = 0; s < SPLIT_COUNT; s++)
        free(lists[s]);
    job->broken += corpus->broken;
    job->parts++;
    return code == OK ? save_state(job) : code;
}

/* Reads documents until a part is full; `ended` when the text is over. */
static status read_part(struct shard_job *job, struct document_batch *batch, struct corpus *corpus,
                        struct log_rate *rate, bool *ended) {
    while (corpus->tokens.count < job->part_tokens) {
        log_bytes(rate, "reading text", documents_read(job->source), documents_bytes(job->source));
        TRY(documents_next(job->source, BATCH_BYTES < job->part_tokens ? BATCH_BYTES : job->part_tokens, batch));
        *ended = batch->count == 0;
        if (*ended)
            return OK;
        corpus_add(corpus, job->wordpiece, job->sentence_a_line, batch);
    }
    return OK;
}

static status read_text(struct shard_job *job) {
    struct document_batch batch = {0};
    struct log_rate rate = {0};
    status code = OK;
    for (bool ended = false; !ended && code == OK;) {
        struct corpus corpus = {0};
        code = read_part(job, &batch, &corpus, &rate, &ended);
        if (code == OK && corpus.documents)
            code = add_part(job, &corpus);
        corpus_free(&corpus);
    }
    document_batch_free(&batch);
    log_progress_end();
    if (code == OK && job->parts == 0)
        return bad_input("the input holds no text");
    for (int s = 0; s < SPLIT_COUNT && code == OK; s++)
        if (job->splits[s].documents && !job->splits[s].instances)
            return bad_input("the text gives no instance %s", s == SPLIT_TRAIN ? "to train on" : "to evaluate on");
    if (code == OK && job->splits[SPLIT_EVAL].documents == 1 && job->instances.nsp)
        log_warn("one document is held out: its random next sentences are its own");
    return code;
}

/* --- instances into shards --- */

/* Writes the next shard of a split; its instances are spread evenly over the files. */
static status write_shard(struct shard_job *job, int s, int64_t files) {
    struct shard_split *split = &job->splits[s];
    int64_t number = split->files;
    int64_t rows = split->instances * (number + 1) / files - split->instances * number / files;
    char *path =
        xasprintf("%s/%s/%s_%04lld.hdf5", job->output, split_names[s].folder, split_names[s].prefix, (long long)number);
    struct instance_list list = {0};
    struct random_stream random = open_order(job, ORDER_MERGE, s, number);
    status code = spill_take(&split->spill, rows, &random, &list);
    if (code == OK)
        code = shard_write(path, &job->shape, list.items, list.count);
    if (code == OK) {
        split->files++;
        code = save_state(job);
    }
    instances_free(&list);
    free(path);
    return code;
}

static status write_split(struct shard_job *job, int s) {
    struct shard_split *split = &job->splits[s];
    int64_t files = (split->instances + job->rows_per_shard - 1) / job->rows_per_shard;
    char *folder = path_join(job->output, split_names[s].folder);
    struct log_rate rate = {0};
    status code = folder_create(folder);
    while (split->files < files && code == OK) {
        log_bytes(&rate, "writing shards", spill_taken(&split->spill), split->spill.bytes);
        code = write_shard(job, s, files);
    }
    log_progress_end();
    if (code == OK)
        code = folder_sync(folder);
    free(folder);
    return code;
}

/* --- the whole --- */

/* `fresh`: there was no such folder, or an empty one. `unfinished`: it holds the work of an earlier call. */
static status check_output(const struct shard_job *job, bool *exists, bool *unfinished) {
    char **names = NULL, *state = unfinished_path(job, "state.json");
    int64_t count = 0;
    *unfinished = file_exists(state);
    free(state);
    if (file_exists(job->output))
        return bad_input("%s: is a file, expected a new folder", job->output);
    *exists = folder_exists(job->output);
    if (*exists)
        TRY(folder_list(job->output, &names, &count));
    bool only_ours = count == 1 && strcmp(names[0], "unfinished") == 0; /* stopped before it noted anything */
    names_free(names, count);
    if (count && !*unfinished && !only_ours)
        return bad_input("%s: is not empty; name a new folder, or remove this one", job->output);
    return OK;
}

static status open_work(struct shard_job *job, bool unfinished) {
    char *folder = unfinished_path(job, ""), *path = unfinished_path(job, "state.json");
    json *state = NULL;
    status code = folder_create(folder);
    if (code == OK && unfinished) {
        code = json_read_file(path, &state);
        if (code == OK)
            code = read_state(job, path, state);
        json_free(state);
    }
    for (int s = 0; s < SPLIT_COUNT && code == OK; s++) {
        char *spill = xasprintf("%s%s.instances", folder, split_names[s].folder);
        code = spill_open(&job->splits[s].spill, spill);
        free(spill);
    }
    if (code == OK && !unfinished)
        code = save_state(job);
    free(folder);
    free(path);
    return code;
}

/* Removes the work, and the folder if it was not there before; what is said about a failure stays said. */
static status remove_work(const struct shard_job *job, bool all) {
    char *folder = all ? xstrdup(job->output) : unfinished_path(job, "");
    status code = folder_remove(folder);
    free(folder);
    return code;
}

status shards_make(struct shard_job *job) {
    bool existed = false, unfinished = false;
    TRY(check_output(job, &existed, &unfinished));
    describe_command(job);
    TRY(open_work(job, unfinished));
    status code = read_text(job);
    if (code == BAD_INPUT) { /* the input has to change: nothing done so far can be of use */
        char *message = xstrdup(status_message());
        remove_work(job, !existed);
        status_set(code, message);
        free(message);
    }
    for (int s = 0; s < SPLIT_COUNT && code == OK; s++)
        if (job->splits[s].instances)
            code = write_split(job, s);
    return code == OK ? remove_work(job, false) : code;
}

void shard_job_free(struct shard_job *job) {
    for (int s = 0; s < SPLIT_COUNT; s++)
        spill_close(&job->splits[s].spill);
    text_free(&job->command);
}
