/* Lines for a person, on standard error. Results that scripts read go to standard output instead, by printf. */
#ifndef BERTH_BASE_LOG_H
#define BERTH_BASE_LOG_H

#include <stdbool.h>

/* Plain line; "warning: " line; "berth: " line, for an error. Only rank 0 prints info and warnings
 * (`log_set_quiet(true)` elsewhere). A line never breaks into a progress line: that one is cleared first and drawn
 * again by its next update. */
void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_set_quiet(bool quiet);

/* Draw `line` in place of the last progress line if standard error is a terminal (`log_is_terminal`); a line of its
 * own otherwise. `log_progress_end` leaves the last one standing and moves on. */
void log_progress(const char *line);
void log_progress_end(void);
bool log_is_terminal(void);

#endif
