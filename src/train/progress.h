/* The progress line. */
#ifndef BERTH_TRAIN_PROGRESS_H
#define BERTH_TRAIN_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "train/metrics.h"

/* "step 120/1000  loss 7.1234 (mlm 6.4301 nsp 0.6933)  lr 1.20e-04  |g| 1.93  412 seq/s  31.2k tok/s  MFU 41.2%  ETA
 * 12:34" At most 120 columns or so. NAN: nsp_loss, mfu or `eta_seconds` leave their part out. */
void progress_format(const struct metrics_step *step, int64_t steps, double eta_seconds, char *line, size_t size);

/* "held out at step 500: loss 6.3012  mlm 5.6120 (accuracy 12.3%)  nsp 0.6892 (accuracy 54.1%)  2000 sequences" */
void progress_format_eval(const struct metrics_eval *eval, char *line, size_t size);

/* When to draw, and how long a step takes, for the ETA. The trainer sets the first four fields, the rest begin as zero.
 */
struct progress {
    int64_t first_step, steps; /* the step this process started after; the last of the run */
    int64_t every;             /* plain lines (not a terminal): every so many steps, at least 1 */
    bool terminal;             /* log_is_terminal(): redrawn in place, at most 10 times a second */
    double last_drawn;         /* clock_seconds() */
    double seconds_a_step;     /* smoothed over about 20 steps */
};
/* After a step that took `seconds`: draws the line if it is time to, through log_progress. The first step of a
 * process and the last of the run always are. */
void progress_update(struct progress *progress, const struct metrics_step *step, double seconds);

#endif
