/* berth tokenize: lines of text on standard input, their token ids on standard output. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "base/text.h"
#include "cmd/text_tools.h"

enum { BLOCK_BYTES = 1 << 22, GRAIN = 64 };

struct line_job {
    const struct wordpiece *wordpiece;
    const char *text;
    const int64_t *ends;  /* [lines] where in `text` each line ends, its '\n' left out; the next begins one further */
    struct text *outputs; /* [lines] what a range of lines gave stands at the range's first */
    int64_t *broken;      /* [lines] likewise */
};

static void add_id(struct text *out, int32_t id, bool first) {
    char digits[16];
    size_t at = sizeof digits;
    do
        digits[--at] = (char)('0' + id % 10);
    while (id /= 10);
    if (!first)
        digits[--at] = ' ';
    text_append(out, digits + at, sizeof digits - at);
}

static void tokenize_lines(void *ctx, int64_t begin, int64_t end) {
    const struct line_job *job = ctx;
    struct wordpiece_scratch *scratch = wordpiece_scratch_new();
    struct token_list tokens = {0};
    struct text *out = &job->outputs[begin];
    for (int64_t line = begin; line < end; line++) {
        int64_t from = line ? job->ends[line - 1] + 1 : 0;
        tokens.count = 0;
        wordpiece_encode(job->wordpiece, scratch, job->text + from, (size_t)(job->ends[line] - from), &tokens);
        for (int64_t i = 0; i < tokens.count; i++)
            add_id(out, tokens.ids[i], i == 0);
        text_append(out, "\n", 1);
    }
    job->broken[begin] = wordpiece_broken(scratch);
    free(tokens.ids);
    wordpiece_scratch_free(scratch);
}

/* Tokenizes and prints the lines of a block. */
static status print_block(const struct wordpiece *wordpiece, const char *text, size_t length, int64_t *broken) {
    int64_t *ends = NULL, lines = 0, capacity = 0;
    for (size_t at = 0; at < length;) {
        const char *stop = memchr(text + at, '\n', length - at);
        GROW(ends, lines, capacity);
        ends[lines++] = stop ? stop - text : (int64_t)length;
        at = (size_t)ends[lines - 1] + 1;
    }
    struct line_job job = {wordpiece, text, ends, xcalloc((size_t)lines, sizeof(struct text)),
                           xcalloc((size_t)lines, sizeof(int64_t))};
    parallel_for(lines, GRAIN, tokenize_lines, &job);
    status code = OK;
    for (int64_t line = 0; line < lines; line++) {
        struct text *out = &job.outputs[line];
        if (code == OK && out->length && fwrite(out->data, 1, out->length, stdout) != out->length)
            code = failed("standard output: cannot write: %s", strerror(errno));
        *broken += job.broken[line];
        text_free(out);
    }
    free(job.outputs);
    free(job.broken);
    free(ends);
    return code;
}

/* Reads standard input in blocks that end where a line does. */
static status tokenize_input(const struct wordpiece *wordpiece, int64_t *broken) {
    struct text text = {0};
    char *chunk = xmalloc(BLOCK_BYTES);
    status code = OK;
    for (bool ended = false; !ended && code == OK;) {
        size_t got = fread(chunk, 1, BLOCK_BYTES, stdin);
        ended = got == 0;
        if (ferror(stdin))
            code = failed("standard input: cannot read: %s", strerror(errno));
        text_append(&text, chunk, got);
        const char *last = text.length ? memrchr(text.data, '\n', text.length) : NULL;
        size_t whole = ended ? text.length : last ? (size_t)(last - text.data) + 1 : 0;
        if (code == OK && whole)
            code = print_block(wordpiece, text.data, whole, broken);
        memmove(text.data, text.data + whole, text.length - whole);
        text.length -= whole;
    }
    free(chunk);
    text_free(&text);
    return code;
}

static const char usage[] =
    "usage: berth tokenize --vocab FILE [options] <TEXT\n\n"
    "Prints, for every line of text on standard input, its token ids on a line, without [CLS] and [SEP]. [MASK] and "
    "the other\n"
    "special tokens, written in the text, are those tokens. The casing is that of the vocabulary unless told.\n\n"
    "  echo 'Paris is the [MASK] of France.' | berth tokenize --vocab vocab.txt";

status cmd_tokenize(int argc, char **argv) {
    const char *vocab_path = NULL;
    bool plain = false;
    struct text_options text_options = {0};
    struct wordpiece_options wordpiece_options = wordpiece_defaults(false);
    const struct option options[] = {
        {"--vocab", OPTION_STRING, &vocab_path, "FILE", "the vocabulary", 0, 0, 1},
        {"--cased", OPTION_FLAG, &text_options.cased, NULL, "keep upper case and accents", 0, 0, 0},
        {"--uncased", OPTION_FLAG, &text_options.uncased, NULL, "drop them", 0, 0, 0},
        {"--plain", OPTION_FLAG, &plain, NULL, "take a written [MASK] for plain text", 0, 0, 0},
        {"--longest-word", OPTION_INT, &wordpiece_options.longest_word, "N", "a word of more characters is [UNK]", 1,
         1e9, 0},
        TEXT_OPTIONS(text_options),
    };
    int help;
    TRY(options_parse(argc, argv, usage, options, sizeof options / sizeof *options, NULL, &help));
    if (help)
        return OK;
    struct vocab *vocab;
    TRY(vocab_read(vocab_path, &vocab));
    wordpiece_options.specials = !plain;
    int64_t broken = 0;
    status code = text_options_apply(argv[0], &text_options, vocab, &wordpiece_options.normalize);
    if (code == OK) {
        struct wordpiece *wordpiece = wordpiece_new(vocab, &wordpiece_options);
        code = tokenize_input(wordpiece, &broken);
        wordpiece_free(wordpiece);
    }
    if (code == OK)
        warn_broken(broken);
    vocab_free(vocab);
    return code;
}
