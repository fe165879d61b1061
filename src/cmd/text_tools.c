#include "cmd/text_tools.h"

#include "base/log.h"
#include "base/parallel.h"

status text_options_apply(const char *command, const struct text_options *options, const struct vocab *vocab,
                          struct normalize_options *normalize) {
    if (options->cased && options->uncased)
        return bad_input("%s: --cased and --uncased exclude each other", command);
    if (options->strip_accents && options->keep_accents)
        return bad_input("%s: --strip-accents and --keep-accents exclude each other", command);
    bool cased = options->cased || (!options->uncased && vocab && vocab_cased(vocab));
    normalize->lower_case = !cased;
    normalize->strip_accents = options->strip_accents || (!cased && !options->keep_accents);
    normalize->space_cjk = !options->no_cjk_spacing;
    parallel_set_threads((int)options->threads);
    return OK;
}

void warn_broken(int64_t broken) {
    if (broken)
        log_warn("the text is not all UTF-8: %lld invalid sequences were left out", (long long)broken);
}
