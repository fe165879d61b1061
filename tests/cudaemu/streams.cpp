/* Streams, events and graphs. A stream is a list of work; it is done when it is asked for, but that of the stream that
 * BERTH_EMU_LATE numbers is done only when somebody waits for it, so that a missing wait shows. While a stream records,
 * its work goes to the graph instead. */
#include <stdlib.h>
#include <time.h>

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "internal.h"

namespace emu {

struct node {
    work_kind kind;
    std::function<void()> work;
};

using nodes = std::vector<node>;

struct stream {
    bool waits_for_default, late;
    std::deque<std::function<void()>> work;
    std::unique_ptr<nodes> recorded; /* what a capture has seen so far; none: not capturing */
    bool invalid;                    /* the capture had a call in it that none may have */
};

/* Records are counted: a stream waits for the one that was the last when it was told to. */
struct event {
    unsigned asked, done;
    std::shared_ptr<stream> where; /* of the last record asked for */
    double seconds;                /* of the last one done */
    bool has_time;
};

static std::map<const void *, std::shared_ptr<stream>> streams;
static std::map<const void *, std::shared_ptr<event>> events;
static std::map<const void *, nodes> graphs, executables;
static std::recursive_mutex mutex; /* of all the above; work may ask for more work */

using guard = std::lock_guard<std::recursive_mutex>;

/* --- faults that a test plants --- */

static bool names(const char *variable, const char *function) {
    const char *value = getenv(variable);
    return value && strcmp(value, function) == 0;
}

static bool is_ignored(const char *function) { return names("BERTH_EMU_IGNORE", function); }
static bool is_refused(const char *function) { return names("BERTH_EMU_REFUSE", function); }

/* --- work --- */

static bool is_default(cudaStream_t handle) {
    return !handle || handle == cudaStreamLegacy || handle == cudaStreamPerThread;
}

static std::shared_ptr<stream> stream_of(cudaStream_t handle) {
    static const std::shared_ptr<stream> default_stream = std::make_shared<stream>();
    if (is_default(handle))
        return default_stream;
    auto found = streams.find(handle);
    return found == streams.end() ? nullptr : found->second;
}

bool stream_is_known(cudaStream_t handle) {
    guard lock(mutex);
    return stream_of(handle) != nullptr;
}

static void do_first(stream &s) {
    std::function<void()> work = std::move(s.work.front());
    s.work.pop_front();
    work();
}

static void do_all(stream &s) {
    while (!s.work.empty())
        do_first(s);
}

/* Until record `number` of an event of this stream is done. */
static void do_until(stream &s, const event &e, unsigned number) {
    while (e.done < number && !s.work.empty())
        do_first(s);
}

void finish_all() {
    guard lock(mutex);
    for (auto &entry : streams)
        do_all(*entry.second);
}

cudaError_t submit(cudaStream_t handle, work_kind kind, std::function<void()> work) {
    guard lock(mutex);
    std::shared_ptr<stream> s = stream_of(handle);
    if (!s)
        return cudaErrorInvalidResourceHandle;
    if (s->recorded) {
        if (s->invalid)
            return cudaErrorStreamCaptureInvalidated;
        s->recorded->push_back({kind, std::move(work)});
        return cudaSuccess;
    }
    if (is_default(handle))
        for (auto &entry : streams)
            if (entry.second->waits_for_default)
                do_all(*entry.second);
    s->work.push_back(std::move(work));
    if (!s->late)
        do_all(*s);
    return cudaSuccess;
}

cudaError_t finish(cudaStream_t handle) {
    guard lock(mutex);
    std::shared_ptr<stream> s = stream_of(handle);
    if (!s)
        return cudaErrorInvalidResourceHandle;
    do_all(*s);
    return cudaSuccess;
}

/* --- what may not be captured --- */

bool is_capturing(cudaStream_t handle) {
    guard lock(mutex);
    std::shared_ptr<stream> s = stream_of(handle);
    return s && s->recorded;
}

static cudaError_t invalidate(stream &s, const char *function) {
    warn("%s: not while a stream captures", function);
    s.invalid = true;
    return cudaErrorStreamCaptureUnsupported;
}

cudaError_t refuse_in_capture(const char *function) {
    guard lock(mutex);
    cudaError_t error = cudaSuccess;
    for (auto &entry : streams)
        if (entry.second->recorded)
            error = invalidate(*entry.second, function);
    return error;
}

/* --- graphs --- */

static cudaError_t begin_capture(cudaStream_t handle) {
    std::shared_ptr<stream> s = stream_of(handle);
    if (!s || is_default(handle))
        return s ? cudaErrorStreamCaptureUnsupported : cudaErrorInvalidResourceHandle;
    if (s->recorded)
        return cudaErrorIllegalState;
    s->recorded.reset(new nodes);
    s->invalid = false;
    return cudaSuccess;
}

template <typename Handle>
static Handle keep(std::map<const void *, nodes> &where, nodes made) {
    Handle handle = reinterpret_cast<Handle>(new char);
    where[handle] = std::move(made);
    return handle;
}

static cudaError_t drop(std::map<const void *, nodes> &where, const void *handle) {
    if (where.erase(handle) == 0)
        return cudaErrorInvalidValue;
    delete static_cast<const char *>(handle);
    return cudaSuccess;
}

static cudaError_t end_capture(cudaStream_t handle, cudaGraph_t *out) {
    std::shared_ptr<stream> s = stream_of(handle);
    *out = nullptr;
    if (!s || !s->recorded)
        return s ? cudaErrorIllegalState : cudaErrorInvalidResourceHandle;
    nodes made = std::move(*s->recorded);
    s->recorded.reset();
    if (s->invalid)
        return cudaErrorStreamCaptureInvalidated;
    *out = keep<cudaGraph_t>(graphs, std::move(made));
    return cudaSuccess;
}

/* An executable can take over a graph of the same nodes in the same order. */
static bool same_nodes(const nodes &a, const nodes &b) {
    if (a.size() != b.size())
        return false;
    for (size_t i = 0; i < a.size(); i++)
        if (a[i].kind != b[i].kind)
            return false;
    return true;
}

static cudaError_t update(const void *executable, const void *graph, cudaGraphExecUpdateResultInfo *out) {
    *out = {};
    auto to = executables.find(executable), from = graphs.find(graph);
    if (to == executables.end() || from == graphs.end())
        return cudaErrorInvalidValue;
    if (!same_nodes(to->second, from->second)) {
        out->result = cudaGraphExecUpdateErrorTopologyChanged;
        return cudaErrorGraphExecUpdateFailure;
    }
    to->second = from->second;
    return cudaSuccess;
}

static cudaError_t launch_graph(const void *executable, cudaStream_t stream) {
    auto found = executables.find(executable);
    if (found == executables.end())
        return cudaErrorInvalidValue;
    if (is_capturing(stream))
        return cudaErrorStreamCaptureUnsupported; /* a child graph: nothing here needs one */
    nodes all = found->second;                    /* as it is now, whatever becomes of the executable */
    return submit(stream, work_kind::GRAPH, [all] {
        for (const node &n : all)
            n.work();
    });
}

/* --- events --- */

static std::shared_ptr<event> event_of(cudaEvent_t handle) {
    auto found = events.find(handle);
    return found == events.end() ? nullptr : found->second;
}

static double seconds_now() {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static cudaError_t record(cudaEvent_t handle, cudaStream_t on) {
    std::shared_ptr<event> e = event_of(handle);
    std::shared_ptr<stream> s = stream_of(on);
    if (!e || !s)
        return cudaErrorInvalidResourceHandle;
    if (s->recorded)
        return invalidate(*s, "cudaEventRecord, which this emulator does not capture");
    unsigned number = ++e->asked;
    e->where = s;
    return submit(on, work_kind::EVENT, [e, number] {
        e->done = number;
        e->seconds = seconds_now();
    });
}

static cudaError_t wait(cudaStream_t handle, cudaEvent_t for_event) {
    std::shared_ptr<event> e = event_of(for_event);
    std::shared_ptr<stream> s = stream_of(handle);
    if (!e || !s)
        return cudaErrorInvalidResourceHandle;
    if (s->recorded)
        return invalidate(*s, "cudaStreamWaitEvent, which this emulator does not capture");
    std::shared_ptr<stream> where = e->where;
    unsigned number = e->asked;
    return number == 0 ? cudaSuccess
                       : submit(handle, work_kind::EVENT, [e, where, number] { do_until(*where, *e, number); });
}

}  // namespace emu

/* --- CUDA's names --- */

using namespace emu;

extern "C" {

/* BERTH_EMU_LATE counts the streams that are there, in the order in which they were made. */
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned int flags) {
    guard lock(mutex);
    const char *late = getenv("BERTH_EMU_LATE");
    auto made = std::make_shared<stream>();
    made->waits_for_default = !(flags & cudaStreamNonBlocking);
    made->late = late && *late && atoi(late) == (int)streams.size();
    *out = reinterpret_cast<cudaStream_t>(new char);
    streams[*out] = made;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
    guard lock(mutex);
    if (streams.count(handle) == 0)
        return result(cudaErrorInvalidResourceHandle);
    finish(handle);
    streams.erase(handle);
    delete reinterpret_cast<char *>(handle);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    guard lock(mutex);
    std::shared_ptr<stream> s = stream_of(handle);
    if (s && s->recorded)
        return result(invalidate(*s, "cudaStreamSynchronize"));
    return is_ignored("cudaStreamSynchronize") ? cudaSuccess : result(finish(handle));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
    guard lock(mutex);
    return is_ignored("cudaStreamWaitEvent") ? cudaSuccess : result(wait(stream, event));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned int flags) {
    guard lock(mutex);
    *out = reinterpret_cast<cudaEvent_t>(new char);
    events[*out] = std::make_shared<event>();
    events[*out]->has_time = !(flags & cudaEventDisableTiming);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    guard lock(mutex);
    return result(record(event, stream));
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
    guard lock(mutex);
    std::shared_ptr<event> e = event_of(handle);
    cudaError_t error = e ? refuse_in_capture("cudaEventSynchronize") : cudaErrorInvalidResourceHandle;
    if (error == cudaSuccess && e->where && !is_ignored("cudaEventSynchronize"))
        do_until(*e->where, *e, e->asked);
    return result(error);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end) {
    guard lock(mutex);
    std::shared_ptr<event> a = event_of(begin), b = event_of(end);
    if (!a || !b || a->asked == 0 || b->asked == 0 || !a->has_time || !b->has_time)
        return result(cudaErrorInvalidResourceHandle);
    if (a->done < a->asked || b->done < b->asked)
        return result(cudaErrorNotReady);
    *milliseconds = (float)(1e3 * (b->seconds - a->seconds));
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
    guard lock(mutex);
    if (events.erase(handle) == 0)
        return result(cudaErrorInvalidResourceHandle);
    delete reinterpret_cast<char *>(handle);
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
    cudaError_t error = refuse_in_capture("cudaDeviceSynchronize");
    if (error == cudaSuccess)
        finish_all();
    return result(error);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    guard lock(mutex);
    return result(is_refused("cudaStreamBeginCapture") ? cudaErrorNotSupported : begin_capture(stream));
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out) {
    guard lock(mutex);
    return result(end_capture(stream, out));
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long) {
    guard lock(mutex);
    if (graphs.count(graph) == 0)
        return result(cudaErrorInvalidValue);
    if (is_refused("cudaGraphInstantiate"))
        return result(cudaErrorMemoryAllocation);
    *out = keep<cudaGraphExec_t>(executables, graphs[graph]);
    return cudaSuccess;
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t executable, cudaGraph_t graph, cudaGraphExecUpdateResultInfo *out) {
    guard lock(mutex);
    return result(update(executable, graph, out));
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
    guard lock(mutex);
    return result(launch_graph(executable, stream));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    guard lock(mutex);
    return result(drop(graphs, graph));
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
    guard lock(mutex);
    return result(drop(executables, executable));
}

}  // extern "C"
