#include "base/clock.h"

#include <time.h>

static double read_clock(clockid_t id) {
    struct timespec now;
    clock_gettime(id, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

double clock_seconds(void) { return read_clock(CLOCK_MONOTONIC); }

double clock_unix(void) { return read_clock(CLOCK_REALTIME); }
