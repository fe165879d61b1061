/* Lines for a person, on standard error. Results that scripts read go to standard output instead, by printf. */
#ifndef BERTH_BASE_LOG_H
#define BERTH_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

/* Plain line; "warning: " line; "berth: " line, for an error. Only rank 0 prints info and warnings
 * (`log_set_quiet(true)` elsewhere). A line never breaks into a progress line: that one is cleared first and drawn
 * again by its next update. */
void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A warning that no other rank can give: said by any, which is named unless it is 0. */
void log_warn_of(int rank, const char *format, ...) __attribute__((format(printf, 2, 3)));
void log_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_set_quiet(bool quiet);

/* Draw `line` in place of the last progress line if standard error is a terminal (`log_is_terminal`); a line of its
 * own otherwise. `log_progress_end` leaves the last one standing and moves on. */
void log_progress(const char *line);
void log_progress_end(void);
bool log_is_terminal(void);

/* A progress line like "reading text: 40 % of 10.8 MB, 31.2 MB/s, 1 s left", drawn now and then; `all` 0: unknown.
 * Zero-initialize; what is done at the first call counts as done before. */
struct log_rate {
    double started, shown;
    int64_t before;
};
void log_bytes(struct log_rate *rate, const char *what, int64_t done, int64_t all);

#endif
