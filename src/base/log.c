#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool quiet, progress_shown;

bool log_is_terminal(void) { return isatty(STDERR_FILENO); }

void log_set_quiet(bool value) { quiet = value; }

static void print_line(const char *prefix, const char *format, va_list args) {
    pthread_mutex_lock(&lock);
    if (progress_shown && log_is_terminal())
        fputs("\r\033[K", stderr);
    progress_shown = false;
    fputs(prefix, stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    fflush(stderr);
    pthread_mutex_unlock(&lock);
}

void log_info(const char *format, ...) {
    if (quiet)
        return;
    va_list args;
    va_start(args, format);
    print_line("", format, args);
    va_end(args);
}

void log_warn(const char *format, ...) {
    if (quiet)
        return;
    va_list args;
    va_start(args, format);
    print_line("warning: ", format, args);
    va_end(args);
}

void log_warn_of(int rank, const char *format, ...) {
    char prefix[40] = "warning: ";
    if (rank > 0)
        snprintf(prefix, sizeof prefix, "warning: rank %d: ", rank);
    va_list args;
    va_start(args, format);
    print_line(prefix, format, args);
    va_end(args);
}

void log_error(const char *format, ...) {
    va_list args;
    va_start(args, format);
    print_line("berth: ", format, args);
    va_end(args);
}

void log_progress(const char *line) {
    if (quiet)
        return;
    pthread_mutex_lock(&lock);
    if (log_is_terminal()) {
        struct winsize size;
        int width = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1 : 1000;
        fprintf(stderr, "\r\033[K%.*s", width, line);
        progress_shown = true;
    } else {
        fprintf(stderr, "%s\n", line);
    }
    fflush(stderr);
    pthread_mutex_unlock(&lock);
}

void log_progress_end(void) {
    pthread_mutex_lock(&lock);
    if (progress_shown)
        fputc('\n', stderr);
    progress_shown = false;
    pthread_mutex_unlock(&lock);
}

void log_bytes(struct log_rate *rate, const char *what, int64_t done, int64_t all) {
    double now = clock_seconds(), every = log_is_terminal() ? 0.2 : 10;
    if (rate->started == 0)
        *rate = (struct log_rate){now, now, done};
    if (now - rate->shown < every || done == rate->before)
        return;
    rate->shown = now;
    double speed = (double)(done - rate->before) / (now - rate->started), left = (double)(all - done) / speed;
    char line[160];
    if (all)
        snprintf(line, sizeof line, "%s: %.0f %% of %.1f MB, %.1f MB/s, %.0f s left", what,
                 100.0 * (double)done / (double)all, (double)all / 1e6, speed / 1e6, left > 0 ? left : 0);
    else
        snprintf(line, sizeof line, "%s: %.1f MB, %.1f MB/s", what, (double)done / 1e6, speed / 1e6);
    log_progress(line);
}
