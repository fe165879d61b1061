/* berth vocab: learn a WordPiece vocabulary from text. */
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "cmd/text_tools.h"
#include "data/documents.h"
#include "data/vocab_train.h"

enum { PIECE_BYTES = 1 << 18, BATCH_BYTES = 1 << 24 };

/* A thread's share: the words it has met. */
struct counter {
    struct word_counts words;
    struct word_scan scan;
};

struct count_job {
    const struct document_batch *batch;
    const struct normalizer *normalizer;
    struct counter *counters; /* [threads] */
};

static void count_words(void *ctx, int64_t begin, int64_t end) {
    const struct count_job *job = ctx;
    struct counter *counter = &job->counters[parallel_thread()];
    size_t from = begin ? (size_t)job->batch->ends[begin - 1] : 0;
    word_scan_start(&counter->scan, job->batch->text.data + from, (size_t)job->batch->ends[end - 1] - from);
    while (word_next(job->normalizer, &counter->scan))
        word_counts_add(&counter->words, counter->scan.word, counter->scan.length, 1);
}

static status count_all(struct document_source *source, struct count_job *job) {
    struct document_batch batch = {0};
    struct log_rate rate = {0};
    status code = OK;
    job->batch = &batch;
    for (;;) {
        log_bytes(&rate, "counting words", documents_read(source), documents_bytes(source));
        code = documents_next(source, BATCH_BYTES, &batch);
        if (code != OK || batch.count == 0)
            break;
        parallel_for(batch.count, 1, count_words, job);
    }
    log_progress_end();
    document_batch_free(&batch);
    return code;
}

/* Counts the words of the whole input. */
static status read_words(const struct option_list *input, const struct document_options *documents,
                         const struct normalize_options *normalize, struct word_counts *words) {
    struct document_source *source;
    TRY(documents_open(input->items, input->count, documents, &source));
    struct normalizer *normalizer = normalizer_new(normalize);
    struct count_job job = {.normalizer = normalizer,
                            .counters = xcalloc((size_t)parallel_threads(), sizeof *job.counters)};
    status code = count_all(source, &job);
    int64_t broken = 0;
    for (int i = 0; i < parallel_threads(); i++) {
        word_counts_merge(words, &job.counters[i].words);
        broken += job.counters[i].scan.broken;
        word_counts_free(&job.counters[i].words);
        word_scan_free(&job.counters[i].scan);
    }
    if (code == OK)
        warn_broken(broken);
    free(job.counters);
    normalizer_free(normalizer);
    documents_close(source);
    return code;
}

static const char usage[] =
    "usage: berth vocab --input PATH... --size N --output FILE [options]\n\n"
    "Learns a WordPiece vocabulary from text: [PAD] [UNK] [CLS] [SEP] [MASK], the characters, and then what merging "
    "the most\n"
    "frequent pairs of pieces gives, until there are N entries. A PATH is a file (plain, .gz or .zst), a folder, a\n"
    "glob, or - for the standard input.\n\n"
    "  berth vocab --input books/ --size 8000 --output vocab.txt";

status cmd_vocab(int argc, char **argv) {
    struct option_list input = {0};
    const char *output = NULL;
    struct vocab_train_options train = {.size = 0, .min_frequency = 2, .limit_alphabet = 1000};
    struct text_options text_options = {0};
    struct document_options documents = {.cut_bytes = PIECE_BYTES};
    const struct option options[] = {
        {"--input", OPTION_LIST, &input, "PATH...", "the text", 0, 0, 1},
        {"--size", OPTION_INT, &train.size, "N", "entries of the vocabulary", 6, 4e6, 1},
        {"--output", OPTION_STRING, &output, "FILE", "where to write it", 0, 0, 1},
        {"--cased", OPTION_FLAG, &text_options.cased, NULL, "keep upper case and accents", 0, 0, 0},
        {"--min-frequency", OPTION_INT, &train.min_frequency, "N", "a pair of pieces is merged if it occurs this often",
         1, 1e15, 0},
        {"--limit-alphabet", OPTION_INT, &train.limit_alphabet, "N", "keep this many characters, the most frequent", 1,
         1114112, 0},
        DOCUMENT_OPTIONS(documents),
        TEXT_OPTIONS(text_options),
    };
    int help;
    TRY(options_parse(argc, argv, usage, options, sizeof options / sizeof *options, NULL, &help));
    if (help)
        return OK;
    struct normalize_options normalize;
    TRY(text_options_apply(argv[0], &text_options, NULL, &normalize));
    struct word_counts words = {0};
    struct text vocabulary = {0};
    int64_t entries = 0, all = 0;
    status code = read_words(&input, &documents, &normalize, &words);
    if (code == OK)
        code = vocab_train(&words, &train, &vocabulary, &entries);
    if (code == OK)
        code = file_write_all(output, vocabulary.data, vocabulary.length);
    for (int64_t i = 0; i < words.count; i++)
        all += words.words[i].count;
    if (code == OK)
        printf("%s: %lld entries from %lld words, %lld distinct\n", output, (long long)entries, (long long)all,
               (long long)words.count);
    if (code == OK && entries < train.size)
        log_info("fewer entries than asked: no further pair occurs %lld times", (long long)train.min_frequency);
    text_free(&vocabulary);
    word_counts_free(&words);
    return code;
}
