#include "cmd/text_tools.h"

#include <stdio.h>

#include "base/clock.h"
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

void progress_bytes(struct progress *progress, const char *what, int64_t done, int64_t all) {
    double now = clock_seconds(), every = log_is_terminal() ? 0.2 : 10;
    if (progress->started == 0)
        progress->started = progress->shown = now;
    if (now - progress->shown < every || done == 0)
        return;
    progress->shown = now;
    double rate = (double)done / (now - progress->started), left = (double)(all - done) / rate;
    char line[160];
    if (all)
        snprintf(line, sizeof line, "%s: %.0f %% of %.1f MB, %.1f MB/s, %.0f s left", what,
                 100.0 * (double)done / (double)all, (double)all / 1e6, rate / 1e6, left > 0 ? left : 0);
    else
        snprintf(line, sizeof line, "%s: %.1f MB, %.1f MB/s", what, (double)done / 1e6, rate / 1e6);
    log_progress(line);
}

void warn_broken(int64_t broken) {
    if (broken)
        log_warn("the text is not all UTF-8: %lld invalid sequences were left out", (long long)broken);
}
