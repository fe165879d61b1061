/* The only way to use more than one core. */
#ifndef BERTH_BASE_PARALLEL_H
#define BERTH_BASE_PARALLEL_H

#include <stdint.h>

/* body(ctx, begin, end) is called with ranges that together cover [0, n) once; ranges are multiples of `grain` long
 * (but the last), so that fixed-size blocks stay whole: a reduction over blocks of `grain` does not depend on the
 * number of threads. Ranges are handed out as threads ask for them. Runs inline inside another loop's body, and while
 * another thread's loop runs. */
typedef void (*parallel_body)(void *ctx, int64_t begin, int64_t end);
void parallel_for(int64_t n, int64_t grain, parallel_body body, void *ctx);

/* 0 ≤ parallel_thread() < parallel_threads(): for per-thread scratch. */
int parallel_thread(void);
int parallel_threads(void);
void parallel_set_threads(int threads); /* 0: as many as the processor gives this process, or its part of them */
/* So many processes, this one included, divide the processor among them. */
void parallel_set_sharers(int processes);

#endif
