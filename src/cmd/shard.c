/* berth shard: text into HDF5 shards of masked instances. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/philox.h"
#include "cmd/text_tools.h"
#include "data/shard_write.h"

enum { BATCH_BYTES = 1 << 23 };

struct shard_job {
    struct option_list input;
    const char *vocab_path, *output, *format;
    struct instance_options instances;
    struct shard_shape shape; /* seq_len and max_predictions are those of `instances` */
    int64_t seed, rows_per_shard;
    double held_out;
    bool sentence_a_line, no_nsp;
    struct text_options text;
    struct document_options documents;
    struct vocab *vocab;
    struct corpus corpus;
};

/* What is written and counted apart. */
struct split {
    const char *folder, *prefix; /* NVIDIA's loaders look for "training" and "test" in the name */
    int64_t *documents;          /* [document_count] of the corpus */
    int64_t document_count;
    struct instance_list instances;
    int64_t files;
};

static status read_corpus(struct shard_job *job) {
    struct wordpiece_options options = wordpiece_defaults(false);
    TRY(text_options_apply("shard", &job->text, job->vocab, &options.normalize));
    struct document_source *source;
    TRY(documents_open(job->input.items, job->input.count, &job->documents, &source));
    struct wordpiece *wordpiece = wordpiece_new(job->vocab, &options);
    struct document_batch batch = {0};
    struct progress progress = {0};
    status code;
    for (;;) {
        progress_bytes(&progress, "reading text", documents_read(source), documents_bytes(source));
        code = documents_next(source, BATCH_BYTES, &batch);
        if (code != OK || batch.count == 0)
            break;
        corpus_add(&job->corpus, wordpiece, job->sentence_a_line, &batch);
    }
    log_progress_end();
    if (code == OK)
        warn_broken(job->corpus.broken);
    if (code == OK && job->corpus.documents == 0)
        code = bad_input("%s: the input holds no text", job->input.items[0]);
    document_batch_free(&batch);
    wordpiece_free(wordpiece);
    documents_close(source);
    return code;
}

/* Draws the held-out documents: a share of them, at least one of each kind. Both lists keep the order of the text. */
static status split_documents(const struct shard_job *job, struct split *train, struct split *eval) {
    int64_t count = job->corpus.documents, held_out = llrint((double)count * job->held_out);
    if (job->held_out > 0 && count < 2)
        return bad_input(
            "the input is one document, of which none can be held out: put an empty line between documents, or "
            "use --held-out 0");
    if (job->held_out > 0)
        held_out = held_out < 1 ? 1 : held_out > count - 1 ? count - 1 : held_out;
    int64_t *order = xcalloc((size_t)count, sizeof *order);
    bool *is_held_out = xcalloc((size_t)count, sizeof *is_held_out);
    struct random_stream random = random_open(job->instances.seed, RANDOM_ORDER, 0);
    random_permutation(&random, count, order);
    for (int64_t i = 0; i < held_out; i++)
        is_held_out[order[i]] = true;
    train->documents = xcalloc((size_t)count, sizeof *train->documents);
    eval->documents = xcalloc((size_t)count, sizeof *eval->documents);
    for (int64_t d = 0; d < count; d++) {
        struct split *split = is_held_out[d] ? eval : train;
        split->documents[split->document_count++] = d;
    }
    free(order);
    free(is_held_out);
    if (held_out == 1 && job->instances.nsp)
        log_warn("one document is held out: its random next sentences are its own");
    return OK;
}

/* Writes the instances of a split in random order, spread evenly over its files. `stream` keeps the splits' orders
 * apart. */
static status write_split(const struct shard_job *job, struct split *split, uint64_t stream) {
    int64_t rows = split->instances.count;
    int64_t files = (rows + job->rows_per_shard - 1) / job->rows_per_shard;
    char *folder = path_join(job->output, split->folder);
    int64_t *order = xcalloc((size_t)rows, sizeof *order);
    struct random_stream random = random_open(job->instances.seed, RANDOM_ORDER, stream);
    random_permutation(&random, rows, order);
    status code = folder_create(folder);
    for (; split->files < files && code == OK; split->files++) {
        char *path = xasprintf("%s/%s_%04lld.hdf5", folder, split->prefix, (long long)split->files);
        char *line = xasprintf("writing %s", path);
        int64_t begin = rows * split->files / files, end = rows * (split->files + 1) / files;
        if (log_is_terminal())
            log_progress(line);
        code = shard_write(path, &job->shape, &split->instances, order + begin, end - begin);
        free(line);
        free(path);
    }
    log_progress_end();
    if (code == OK)
        code = folder_sync(folder);
    free(order);
    free(folder);
    return code;
}

static void print_split(const struct shard_job *job, const struct split *split) {
    const struct corpus *corpus = &job->corpus;
    int64_t sentences = 0, tokens = 0;
    for (int64_t i = 0; i < split->document_count; i++) {
        int64_t begin = document_begin(corpus, split->documents[i]), end = corpus->document_ends[split->documents[i]];
        sentences += end - begin;
        tokens += sentence_begin(corpus, end) - sentence_begin(corpus, begin);
    }
    printf("%-8s %10lld %10lld %12lld %10lld %12lld %10lld %8lld\n", split->folder, (long long)split->document_count,
           (long long)sentences, (long long)tokens, (long long)split->instances.count,
           (long long)split->instances.tokens, (long long)split->instances.masked, (long long)split->files);
}

static status make_shards(struct shard_job *job, struct split *train, struct split *eval) {
    TRY(split_documents(job, train, eval));
    struct split *splits[] = {train, eval};
    for (int i = 0; i < 2; i++) {
        struct split *split = splits[i];
        if (!split->document_count)
            continue;
        instances_make(&job->corpus, job->vocab, split->documents, split->document_count, &job->instances,
                       &split->instances);
        if (split->instances.count == 0)
            return bad_input("%s: the text gives no instance to train on", job->input.items[0]);
        TRY(write_split(job, split, 1 + (uint64_t)i));
    }
    printf("%-8s %10s %10s %12s %10s %12s %10s %8s\n", "split", "documents", "sentences", "tokens", "instances",
           "their_tokens", "masked", "shards");
    for (int i = 0; i < 2; i++)
        if (splits[i]->document_count)
            print_split(job, splits[i]);
    return OK;
}

static status check_output(const char *folder) {
    char **names = NULL;
    int64_t count = 0;
    if (file_exists(folder))
        return bad_input("%s: is a file, expected a new folder", folder);
    if (folder_exists(folder))
        TRY(folder_list(folder, &names, &count));
    names_free(names, count);
    return count ? bad_input("%s: is not empty; name a new folder, or remove this one", folder) : OK;
}

static status run_job(struct shard_job *job) {
    if (job->instances.max_predictions >= job->instances.seq_len)
        return bad_input("shard: --max-predictions is %lld, expected less than --seq-len, %lld",
                         (long long)job->instances.max_predictions, (long long)job->instances.seq_len);
    job->instances.nsp = !job->no_nsp;
    job->instances.seed = (uint64_t)job->seed;
    job->shape.seq_len = job->instances.seq_len;
    job->shape.max_predictions = job->instances.max_predictions;
    job->shape.variable = strcmp(job->format, "varlen") == 0;
    if (!job->shape.variable && strcmp(job->format, "nvidia") != 0)
        return bad_input("shard: --format is \"%s\", expected nvidia or varlen", job->format);
    TRY(check_output(job->output));
    TRY(vocab_read(job->vocab_path, &job->vocab));
    job->shape.vocab_size = vocab_size(job->vocab);
    struct split train = {.folder = "train", .prefix = "train_training"},
                 eval = {.folder = "eval", .prefix = "eval_test"};
    status code = read_corpus(job);
    if (code == OK)
        code = make_shards(job, &train, &eval);
    instances_free(&train.instances);
    instances_free(&eval.instances);
    free(train.documents);
    free(eval.documents);
    corpus_free(&job->corpus);
    vocab_free(job->vocab);
    return code;
}

static const char usage[] =
    "usage: berth shard --input PATH... --vocab FILE --output FOLDER [options]\n\n"
    "Turns text into shards for pretraining, in NVIDIA's HDF5 form: FOLDER/train/*.hdf5 and, of the documents that are "
    "held\n"
    "out, FOLDER/eval/*.hdf5. A PATH is a file (plain, .gz or .zst), a folder, a glob, or - for the standard "
    "input; a\n"
    "document ends at an empty line and at the end of a file, or is a line of JSON (.jsonl, --json-key).\n"
    "The casing is that of the vocabulary unless told. The same seed gives the same shards, on any number of "
    "threads.\n\n"
    "  berth shard --input books/ --vocab vocab.txt --output shards --seq-len 128 --max-predictions 20 --held-out 0.02";

status cmd_shard(int argc, char **argv) {
    struct shard_job job = {.instances = {.seq_len = 128,
                                          .max_predictions = 20,
                                          .masked_lm_prob = 0.15,
                                          .short_seq_prob = 0.1,
                                          .dupe_factor = 1},
                            .shape = {.compression = 4},
                            .format = "nvidia",
                            .rows_per_shard = 65536,
                            .held_out = 0.01};
    struct instance_options *recipe = &job.instances;
    const struct option options[] = {
        {"--input", OPTION_LIST, &job.input, "PATH...", "the text", 0, 0, 1},
        {"--vocab", OPTION_STRING, &job.vocab_path, "FILE", "the vocabulary, an entry a line", 0, 0, 1},
        {"--output", OPTION_STRING, &job.output, "FOLDER", "a new or empty folder", 0, 0, 1},
        {"--seq-len", OPTION_INT, &recipe->seq_len, "S", "longest sequence, in tokens", 8, 65536, 0},
        {"--max-predictions", OPTION_INT, &recipe->max_predictions, "P", "most masked tokens of a sequence", 1, 65535,
         0},
        {"--held-out", OPTION_DOUBLE, &job.held_out, "SHARE", "share of the documents to evaluate on; 0: none", 0, 0.9,
         0},
        {"--seed", OPTION_INT, &job.seed, "K", "of all random choices", 0, 9e15, 0},
        {"--dupe-factor", OPTION_INT, &recipe->dupe_factor, "N", "times over the text, masked anew", 1, 10000, 0},
        {"--short-seq-prob", OPTION_DOUBLE, &recipe->short_seq_prob, "X", "share of sequences made shorter", 0, 1, 0},
        {"--masked-lm-prob", OPTION_DOUBLE, &recipe->masked_lm_prob, "X", "share of tokens masked", 0.001, 0.9, 0},
        {"--whole-word-mask", OPTION_FLAG, &recipe->whole_word, NULL, "mask all pieces of a word together", 0, 0, 0},
        {"--no-nsp", OPTION_FLAG, &job.no_nsp, NULL, "no pairs, no next-sentence task", 0, 0, 0},
        {"--sentences-per-line", OPTION_FLAG, &job.sentence_a_line, NULL,
         "a line is a sentence; else sentences are found", 0, 0, 0},
        {"--cased", OPTION_FLAG, &job.text.cased, NULL, "keep upper case and accents", 0, 0, 0},
        {"--uncased", OPTION_FLAG, &job.text.uncased, NULL, "drop them", 0, 0, 0},
        {"--rows-per-shard", OPTION_INT, &job.rows_per_shard, "N", "most sequences of a file", 1, 1e9, 0},
        {"--format", OPTION_STRING, &job.format, "nvidia|varlen", "padded rows, or rows of their own length", 0, 0, 0},
        {"--compression", OPTION_INT, &job.shape.compression, "N", "gzip level of padded rows; 0: none", 0, 9, 0},
        DOCUMENT_OPTIONS(job.documents),
        TEXT_OPTIONS(job.text),
    };
    int help;
    TRY(options_parse(argc, argv, usage, options, sizeof options / sizeof *options, NULL, &help));
    return help ? OK : run_job(&job);
}
