/* berth shard: text into HDF5 shards of masked instances. */
#include <stdio.h>
#include <string.h>

#include "cmd/text_tools.h"
#include "data/shard_make.h"

enum { PART_TOKENS = 1 << 25 }; /* 200 MB of text, and less than 1 GB of memory */

struct shard_command {
    struct option_list input;
    const char *vocab_path, *format;
    int64_t seed;
    bool no_nsp;
    struct text_options text;
    struct document_options documents;
    struct shard_job job;
};

static void print_counts(const struct shard_job *job) {
    printf("%-8s %10s %10s %12s %10s %12s %10s %8s\n", "split", "documents", "sentences", "tokens", "instances",
           "their_tokens", "masked", "shards");
    for (int s = 0; s < SPLIT_COUNT; s++) {
        const struct shard_split *split = &job->splits[s];
        if (split->documents)
            printf("%-8s %10lld %10lld %12lld %10lld %12lld %10lld %8lld\n", split_folder(s),
                   (long long)split->documents, (long long)split->sentences, (long long)split->tokens,
                   (long long)split->instances, (long long)split->instance_tokens, (long long)split->masked,
                   (long long)split->files);
    }
}

/* What text comes out of the input, beside the files themselves. */
static void describe_text(struct shard_command *command, const struct wordpiece_options *options) {
    text_printf(&command->job.command, "cased %d\nstrip_accents %d\ncjk_spacing %d\njson_key %s\ndocument_a_file %d\n",
                !options->normalize.lower_case, options->normalize.strip_accents, options->normalize.space_cjk,
                command->documents.json_key ? command->documents.json_key : "-", command->documents.whole_files);
}

static status make_shards(struct shard_command *command) {
    struct shard_job *job = &command->job;
    struct wordpiece_options options = wordpiece_defaults(false);
    struct wordpiece *wordpiece;
    TRY(text_options_apply("shard", &command->text, job->vocab, &options.normalize));
    TRY(documents_open(command->input.items, command->input.count, &command->documents, &job->source));
    describe_text(command, &options);
    job->wordpiece = wordpiece = wordpiece_new(job->vocab, &options);
    status code = shards_make(job);
    if (code == OK) {
        warn_broken(job->broken);
        print_counts(job);
    }
    shard_job_free(job);
    wordpiece_free(wordpiece);
    documents_close(job->source);
    return code;
}

static status run_command(struct shard_command *command) {
    struct shard_job *job = &command->job;
    struct vocab *vocab;
    if (job->instances.max_predictions >= job->instances.seq_len)
        return bad_input("shard: --max-predictions is %lld, expected less than --seq-len, %lld",
                         (long long)job->instances.max_predictions, (long long)job->instances.seq_len);
    job->instances.nsp = !command->no_nsp;
    job->instances.seed = (uint64_t)command->seed;
    job->shape.seq_len = job->instances.seq_len;
    job->shape.max_predictions = job->instances.max_predictions;
    job->shape.variable = strcmp(command->format, "varlen") == 0;
    if (!job->shape.variable && strcmp(command->format, "nvidia") != 0)
        return bad_input("shard: --format is \"%s\", expected nvidia or varlen", command->format);
    TRY(vocab_read(command->vocab_path, &vocab));
    job->vocab = vocab;
    job->shape.vocab_size = vocab_size(vocab);
    status code = make_shards(command);
    vocab_free(vocab);
    return code;
}

static const char usage[] =
    "usage: berth shard --input PATH... --vocab FILE --output FOLDER [options]\n\n"
    "Turns text into shards for pretraining, in NVIDIA's HDF5 form: FOLDER/train/*.hdf5 and, of the documents that are "
    "held\n"
    "out, FOLDER/eval/*.hdf5. A PATH is a file (plain, .gz or .zst), a folder, a glob, or - for the standard "
    "input; a\n"
    "document ends at an empty line and at the end of a file, or is a line of JSON (.jsonl, --json-key).\n"
    "The casing is that of the vocabulary unless told. The same seed gives the same shards, on any number of threads.\n"
    "Memory does not grow with the text; FOLDER needs room for the text and its shards. Stopped at any moment, the "
    "same\n"
    "command goes on.\n\n"
    "  berth shard --input books/ --vocab vocab.txt --output shards --seq-len 128 --max-predictions 20 --held-out 0.02";

status cmd_shard(int argc, char **argv) {
    struct shard_command command = {
        .format = "nvidia",
        .job = {.instances = {.seq_len = 128, .max_predictions = 20, .masked_lm_prob = 0.15, .short_seq_prob = 0.1},
                .shape = {.compression = 4},
                .dupe_factor = 1,
                .rows_per_shard = 65536,
                .part_tokens = PART_TOKENS,
                .held_out = 0.01}};
    struct shard_job *job = &command.job;
    struct instance_options *recipe = &job->instances;
    const struct option options[] = {
        {"--input", OPTION_LIST, &command.input, "PATH...", "the text", 0, 0, 1},
        {"--vocab", OPTION_STRING, &command.vocab_path, "FILE", "the vocabulary, an entry a line", 0, 0, 1},
        {"--output", OPTION_STRING, &job->output, "FOLDER", "a new or empty folder", 0, 0, 1},
        {"--seq-len", OPTION_INT, &recipe->seq_len, "S", "longest sequence, in tokens", 8, 65536, 0},
        {"--max-predictions", OPTION_INT, &recipe->max_predictions, "P", "most masked tokens of a sequence", 1, 65535,
         0},
        {"--held-out", OPTION_DOUBLE, &job->held_out, "SHARE", "share of the documents to evaluate on; 0: none", 0, 0.9,
         0},
        {"--seed", OPTION_INT, &command.seed, "K", "of all random choices", 0, 9e15, 0},
        {"--dupe-factor", OPTION_INT, &job->dupe_factor, "N", "times over the text, masked anew", 1, 10000, 0},
        {"--short-seq-prob", OPTION_DOUBLE, &recipe->short_seq_prob, "X", "share of sequences made shorter", 0, 1, 0},
        {"--masked-lm-prob", OPTION_DOUBLE, &recipe->masked_lm_prob, "X", "share of tokens masked", 0.001, 0.9, 0},
        {"--whole-word-mask", OPTION_FLAG, &recipe->whole_word, NULL, "mask all pieces of a word together", 0, 0, 0},
        {"--no-nsp", OPTION_FLAG, &command.no_nsp, NULL, "no pairs, no next-sentence task", 0, 0, 0},
        {"--sentences-per-line", OPTION_FLAG, &job->sentence_a_line, NULL,
         "a line is a sentence; else sentences are found", 0, 0, 0},
        {"--cased", OPTION_FLAG, &command.text.cased, NULL, "keep upper case and accents", 0, 0, 0},
        {"--uncased", OPTION_FLAG, &command.text.uncased, NULL, "drop them", 0, 0, 0},
        {"--rows-per-shard", OPTION_INT, &job->rows_per_shard, "N", "most sequences of a file", 1, 1e9, 0},
        {"--format", OPTION_STRING, &command.format, "nvidia|varlen", "padded rows, or rows of their own length", 0, 0,
         0},
        {"--compression", OPTION_INT, &job->shape.compression, "N", "gzip level of padded rows; 0: none", 0, 9, 0},
        DOCUMENT_OPTIONS(command.documents),
        TEXT_OPTIONS(command.text),
    };
    int help;
    TRY(options_parse(argc, argv, usage, options, sizeof options / sizeof *options, NULL, &help));
    return help ? OK : run_command(&command);
}
