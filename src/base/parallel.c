#include "base/parallel.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>
#ifdef BERTH_OPENMP
#include <omp.h>
#endif

#include "base/clock.h"

/* A pool of threads that sleep when there is nothing to do. They look for the next loop for a moment first, as the
 * loops of a training step follow one another closely; a longer wait would burn time that another process could use
 * (shared machines take cores away all the time). For the same reason nobody is bound to a core, ranges are handed out
 * as threads ask for them, and whoever starts a loop waits for ranges, not for threads: one that is not running holds
 * nobody up. */
enum { MOST_THREADS = 1024, RANGES_PER_THREAD = 8 };
static const double PATIENCE = 20e-6; /* seconds of looking before sleep */

/* What there is to take, in one word, so that nobody takes a range of a loop that is over: the number of the loop, how
 * many threads may help, and how many of its ranges are left. */
static uint64_t ticket_of(uint64_t loop, int threads, int64_t left) {
    return loop << 32 | (uint64_t)threads << 16 | (uint64_t)left;
}
static int64_t left_of(uint64_t ticket) { return (int64_t)(ticket & 0xFFFF); }
static int threads_of(uint64_t ticket) { return (int)(ticket >> 16 & 0xFFFF); }

static struct {
    _Atomic uint64_t ticket;
    /* of the loop: constant while one of its ranges is taken and not done */
    parallel_body body;
    void *ctx;
    int64_t n, length, ranges;
    _Atomic int64_t undone; /* ranges */
    pthread_mutex_t mutex;
    pthread_cond_t begun, done;
    atomic_int asleep;     /* workers that wait for `begun` */
    atomic_bool is_waited; /* the thread that started the loop waits for `done` */
    atomic_bool is_busy;   /* a thread runs a loop */
    int workers;           /* threads that were started; they are numbered from 1 */
} pool = {.mutex = PTHREAD_MUTEX_INITIALIZER, .begun = PTHREAD_COND_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};

static int threads_set, sharers = 1;
static _Thread_local int thread_number;
static _Thread_local bool is_inside; /* a loop */

static int available_cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores > 0 ? (int)cores : 1;
}

/* oneDNN's own regions are OpenMP's: inside a loop it may use the calling thread alone. */
static void set_library_threads(int threads) {
#ifdef BERTH_OPENMP
    omp_set_num_threads(threads);
#else
    (void)threads;
#endif
}

int parallel_thread(void) { return thread_number; }

int parallel_threads(void) {
    if (!threads_set)
        parallel_set_threads(0);
    return threads_set;
}

void parallel_set_sharers(int processes) { sharers = processes; }

void parallel_set_threads(int threads) {
    int part = available_cores() / sharers;
    threads_set = threads > 0 ? threads : part > 0 ? part : 1;
    threads_set = threads_set < MOST_THREADS ? threads_set : MOST_THREADS;
    set_library_threads(threads_set);
}

/* --- taking ranges --- */

/* Takes ranges of the loop that runs now until there are none. */
static void take_ranges(void) {
    uint64_t ticket = atomic_load(&pool.ticket);
    while (left_of(ticket) > 0 && thread_number < threads_of(ticket)) {
        if (!atomic_compare_exchange_weak(&pool.ticket, &ticket, ticket - 1))
            continue;
        int64_t begin = (pool.ranges - left_of(ticket)) * pool.length, end = begin + pool.length;
        pool.body(pool.ctx, begin, end < pool.n ? end : pool.n);
        if (atomic_fetch_sub(&pool.undone, 1) == 1 && atomic_load(&pool.is_waited)) {
            pthread_mutex_lock(&pool.mutex);
            pthread_cond_signal(&pool.done);
            pthread_mutex_unlock(&pool.mutex);
        }
        ticket = atomic_load(&pool.ticket);
    }
}

static bool is_work(void) {
    uint64_t ticket = atomic_load(&pool.ticket);
    return left_of(ticket) > 0 && thread_number < threads_of(ticket);
}

static bool is_done(void) { return atomic_load(&pool.undone) == 0; }

/* Looks for a while; false: in vain. */
static bool comes_soon(bool (*condition)(void)) {
    double end = clock_seconds() + PATIENCE;
    while (!condition())
        if (clock_seconds() > end)
            return condition();
    return true;
}

static void sleep_until(bool (*condition)(void), pthread_cond_t *signal) {
    pthread_mutex_lock(&pool.mutex);
    while (!condition())
        pthread_cond_wait(signal, &pool.mutex);
    pthread_mutex_unlock(&pool.mutex);
}

/* --- workers --- */

static void *work(void *number) {
    thread_number = (int)(intptr_t)number;
    is_inside = true;
    set_library_threads(1);
    for (;;) {
        if (!comes_soon(is_work)) {
            atomic_fetch_add(&pool.asleep,
                             1); /* before the last look: whoever starts a loop then knows of the sleeper */
            sleep_until(is_work, &pool.begun);
            atomic_fetch_sub(&pool.asleep, 1);
        }
        take_ranges();
    }
    return NULL;
}

/* As many as there should be, or as there can be. */
static void start_workers(void) {
    while (pool.workers < threads_set - 1) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, (void *)(intptr_t)(pool.workers + 1)) != 0)
            return;
        pthread_detach(thread);
        pool.workers++;
    }
}

/* --- loops --- */

static void run_loop(int64_t n, int64_t grain, parallel_body body, void *ctx) {
    static uint64_t loop;
    int64_t blocks = (n + grain - 1) / grain, most = (int64_t)threads_set * RANGES_PER_THREAD;
    int64_t blocks_per_range = (blocks + most - 1) / most;
    pool.body = body;
    pool.ctx = ctx;
    pool.n = n;
    pool.length = blocks_per_range * grain;
    pool.ranges = (blocks + blocks_per_range - 1) / blocks_per_range;
    atomic_store(&pool.undone, pool.ranges);
    atomic_store(&pool.ticket, ticket_of(++loop, threads_set, pool.ranges));
    if (atomic_load(&pool.asleep) > 0) {
        pthread_mutex_lock(&pool.mutex);
        pthread_cond_broadcast(&pool.begun);
        pthread_mutex_unlock(&pool.mutex);
    }
    take_ranges();
    if (comes_soon(is_done))
        return;
    atomic_store(&pool.is_waited, true);
    sleep_until(is_done, &pool.done);
    atomic_store(&pool.is_waited, false);
}

void parallel_for(int64_t n, int64_t grain, parallel_body body, void *ctx) {
    if (n <= 0)
        return;
    if (n <= grain || is_inside || parallel_threads() == 1 || atomic_exchange(&pool.is_busy, true)) {
        body(ctx, 0, n); /* one range, one thread, or all others serve another thread's loop */
        return;
    }
    start_workers();
    is_inside = true;
    set_library_threads(1);
    run_loop(n, grain, body, ctx);
    set_library_threads(threads_set);
    is_inside = false;
    atomic_store(&pool.is_busy, false);
}
