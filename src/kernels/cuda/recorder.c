/* The first walk of a series runs as it is: the library's algorithms are timed then, and constants copied. The next one
 * is recorded; from then on it is launched as a whole. Where only the rounded counts are the same (RECORD_ROUNDED), the
 * walk is recorded anew and the executable takes over its arguments, which is much less work than making one. */
#include "kernels/cuda/recorder.h"

#include <stdlib.h>

#include "base/log.h"
#include "base/memory.h"

enum { MOST = 64 };

struct entry {
    struct series series;
    bool used;
    cudaGraphExec_t executable; /* NULL: the series was run, but not recorded */
    int64_t when;
};

struct recorder {
    enum recording recording;
    cudaStream_t stream;
    bool records;
    struct entry entries[MOST];
    int64_t now;
    struct recorded counts;
};

struct recorder *recorder_new(enum recording recording, cudaStream_t stream) {
    struct recorder *recorder = xcalloc(1, sizeof *recorder);
    recorder->recording = recording;
    recorder->stream = stream;
    return recorder;
}

static void drop(struct entry *entry) {
    if (entry->executable)
        cudaGraphExecDestroy(entry->executable);
    *entry = (struct entry){.used = false};
}

void recorder_forget(struct recorder *recorder) {
    for (int i = 0; i < MOST; i++)
        drop(&recorder->entries[i]);
}

void recorder_free(struct recorder *recorder) {
    if (!recorder)
        return;
    recorder_forget(recorder);
    free(recorder);
}

bool recorder_records(const struct recorder *recorder) { return recorder->records; }
struct recorded recorder_counts(const struct recorder *recorder) {
    return recorder->counts;
}

/* --- entries --- */

static bool same_series(const struct series *a, const struct series *b) { return memcmp(a, b, sizeof *a) == 0; }

static bool serves(const struct recorder *recorder, const struct entry *entry, const struct series *series) {
    if (!entry->used)
        return false;
    if (recorder->recording == RECORD_ROUNDED)
        return memcmp(&entry->series.rounded, &series->rounded, sizeof series->rounded) == 0;
    return same_series(&entry->series, series);
}

static struct entry *find(struct recorder *recorder, const struct series *series) {
    for (int i = 0; i < MOST; i++)
        if (serves(recorder, &recorder->entries[i], series))
            return &recorder->entries[i];
    return NULL;
}

/* Should `a` go before `b`? Series that were not recorded first: they may never come again. */
static bool goes_first(const struct entry *a, const struct entry *b) {
    if (a->used != b->used)
        return !a->used;
    if (!a->executable != !b->executable)
        return !a->executable;
    return a->when < b->when;
}

static void add(struct recorder *recorder, const struct series *series) {
    struct entry *place = &recorder->entries[0];
    for (int i = 1; i < MOST; i++)
        if (goes_first(&recorder->entries[i], place))
            place = &recorder->entries[i];
    drop(place);
    *place = (struct entry){.series = *series, .used = true, .when = recorder->now};
}

/* --- recording --- */

/* Whatever happens, the stream no longer captures afterwards. */
static status record(struct recorder *recorder, status (*walk)(void *ctx), void *ctx, cudaGraph_t *graph) {
    CUDA_TRY(cudaStreamBeginCapture(recorder->stream, cudaStreamCaptureModeThreadLocal));
    recorder->records = true;
    status code = walk(ctx);
    recorder->records = false;
    cudaError_t ended = cudaStreamEndCapture(recorder->stream, graph);
    return code == OK ? cuda_check(ended, "cudaStreamEndCapture") : code;
}

static status take_over(struct recorder *recorder, struct entry *entry, cudaGraph_t graph) {
    cudaGraphExecUpdateResultInfo info;
    if (entry->executable && cudaGraphExecUpdate(entry->executable, graph, &info) == cudaSuccess) {
        recorder->counts.updated++;
        return OK;
    }
    cudaGetLastError(); /* refused: it has other nodes */
    if (entry->executable)
        cudaGraphExecDestroy(entry->executable);
    entry->executable = NULL;
    CUDA_TRY(cudaGraphInstantiate(&entry->executable, graph, 0));
    recorder->counts.made++;
    return OK;
}

static status make(struct recorder *recorder, struct entry *entry, const struct series *series,
                   status (*walk)(void *ctx), void *ctx) {
    cudaGraph_t graph = NULL;
    status code = record(recorder, walk, ctx, &graph);
    if (code == OK)
        code = take_over(recorder, entry, graph);
    if (graph)
        cudaGraphDestroy(graph);
    entry->series = *series;
    return code;
}

static status replay(struct recorder *recorder, struct entry *entry, const struct series *series,
                     status (*walk)(void *ctx), void *ctx) {
    bool as_recorded = entry->executable && same_series(&entry->series, series);
    if (!as_recorded)
        TRY(make(recorder, entry, series, walk, ctx));
    CUDA_TRY(cudaGraphLaunch(entry->executable, recorder->stream));
    recorder->counts.replayed += as_recorded;
    return OK;
}

/* Until it is launched nothing of a recorded walk has been done, so that it can still be run as it is. */
status recorder_run(struct recorder *recorder, const struct series *series, status (*walk)(void *ctx), void *ctx) {
    if (recorder->recording == RECORD_NEVER)
        return walk(ctx);
    struct entry *entry = find(recorder, series);
    recorder->now++;
    if (!entry) {
        add(recorder, series);
        return walk(ctx);
    }
    entry->when = recorder->now;
    if (replay(recorder, entry, series, walk, ctx) == OK)
        return OK;
    cudaGetLastError();
    log_warn("device.cuda_graphs: operators are launched one by one from now on: %s", status_message());
    recorder_forget(recorder);
    recorder->recording = RECORD_NEVER;
    return walk(ctx);
}
