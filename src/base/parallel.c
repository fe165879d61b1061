#include "base/parallel.h"

#ifdef BERTH_OPENMP
#include <omp.h>
#include <sched.h>

static int threads_set;

static int available_cores(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : omp_get_num_procs();
}

int parallel_thread(void) { return omp_get_thread_num(); }

int parallel_threads(void) {
    if (!threads_set)
        parallel_set_threads(0);
    return threads_set;
}

void parallel_set_threads(int threads) {
    threads_set = threads > 0 ? threads : available_cores();
    omp_set_num_threads(threads_set); /* oneDNN's regions follow this too */
}

void parallel_for(int64_t n, int64_t grain, parallel_body body, void *ctx) {
    if (n <= 0)
        return;
    int64_t blocks = (n + grain - 1) / grain;
    int threads = parallel_threads();
    if (blocks == 1 || threads == 1 || omp_in_parallel()) {
        body(ctx, 0, n);
        return;
    }
    /* a few ranges a thread: enough to even out a core that was taken away, few enough to keep overhead low */
    int64_t per_range = (blocks + threads * 4 - 1) / (threads * 4);
    int64_t ranges = (blocks + per_range - 1) / per_range;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t range = 0; range < ranges; range++) {
        int64_t begin = range * per_range * grain, end = begin + per_range * grain;
        body(ctx, begin, end < n ? end : n);
    }
}

#else

int parallel_thread(void) { return 0; }
int parallel_threads(void) { return 1; }
void parallel_set_threads(int threads) { (void)threads; }

void parallel_for(int64_t n, int64_t grain, parallel_body body, void *ctx) {
    (void)grain;
    if (n > 0)
        body(ctx, 0, n);
}

#endif
