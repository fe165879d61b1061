#include "train/progress.h"

#include <math.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"

static void add_duration(struct text *line, double seconds) {
    long long s = (long long)(seconds + 0.5);
    if (s >= 86400)
        text_printf(line, "%lldd%02lldh", s / 86400, s / 3600 % 24);
    else if (s >= 3600)
        text_printf(line, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    else
        text_printf(line, "%lld:%02lld", s / 60, s % 60);
}

/* Three significant digits or more, and a unit: 7.31, 812, 31.2k, 1.25M. */
static void add_rate(struct text *line, double rate) {
    const char *units[] = {"", "k", "M", "G"};
    int unit = 0;
    for (; rate >= (unit ? 999.5 : 9999.5) && unit < 3; unit++)
        rate /= 1000;
    text_printf(line, "%.*f%s", rate < 9.995 ? 2 : rate < 99.95 ? 1 : 0, rate, units[unit]);
}

void progress_format(const struct metrics_step *step, int64_t steps, double eta_seconds, char *line, size_t size) {
    struct text text = {0};
    text_printf(&text, "step %lld/%lld  loss %.4f", (long long)step->step, (long long)steps, step->loss);
    if (!isnan(step->nsp_loss))
        text_printf(&text, " (mlm %.4f nsp %.4f)", step->mlm_loss, step->nsp_loss);
    text_printf(&text, "  lr %.2e  |g| %.3g  ", step->lr, step->grad_norm);
    add_rate(&text, step->sequences_per_s);
    text_add(&text, " seq/s  ");
    add_rate(&text, step->tokens_per_s);
    text_add(&text, " tok/s");
    if (!isnan(step->mfu))
        text_printf(&text, "  MFU %.1f%%", 100 * step->mfu);
    if (!isnan(eta_seconds)) {
        text_add(&text, "  ETA ");
        add_duration(&text, eta_seconds);
    }
    snprintf(line, size, "%s", text.data);
    text_free(&text);
}

void progress_format_eval(const struct metrics_eval *eval, char *line, size_t size) {
    struct text text = {0};
    text_printf(&text, "held out at step %lld: loss %.4f", (long long)eval->step, eval->loss);
    text_printf(&text, "  mlm %.4f (accuracy %.1f%%)", eval->mlm_loss, 100 * eval->mlm_accuracy);
    if (!isnan(eval->nsp_loss))
        text_printf(&text, "  nsp %.4f (accuracy %.1f%%)", eval->nsp_loss, 100 * eval->nsp_accuracy);
    text_printf(&text, "  %lld sequences", (long long)eval->sequences);
    snprintf(line, size, "%s", text.data);
    text_free(&text);
}

void progress_update(struct progress *progress, const struct metrics_step *step, double seconds) {
    /* a plain mean at first, then an exponential one: the first steps are often slow */
    int64_t counted = step->step - progress->first_step;
    double weight = 1.0 / (double)(counted < 20 ? counted : 20);
    progress->seconds_a_step += weight * (seconds - progress->seconds_a_step);

    double now = clock_seconds();
    bool edge = counted == 1 || step->step >= progress->steps;
    bool due = progress->terminal ? now - progress->last_drawn >= 0.1 : step->step % progress->every == 0;
    if (!edge && !due)
        return;
    progress->last_drawn = now;
    char line[256];
    double left = (double)(progress->steps - step->step);
    progress_format(step, progress->steps, left * progress->seconds_a_step, line, sizeof line);
    log_progress(line);
}
