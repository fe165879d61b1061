/* Streams, events and graphs. A stream is a list of work; it is done when it is asked for, but that of the stream that
 * BERTH_EMU_LATE numbers is done only when somebody waits for it, so that a missing wait shows. While a stream records,
 * its work goes to the graph instead. */
#include <stdlib.h>
#include <time.h>

#include <deque>
#include <map>
#include <memory>

#include "internal.h"

namespace emu {

struct node {
    work_kind kind;
    std::function<void()> work;
};

/* Of a graph, and of one that can be launched. */
using nodes = std::vector<node>;

struct stream {
    bool late;
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

/* What handles point to. Work that is not done yet may still need what was destroyed. */
template <typename T>
struct objects {
    std::map<const void *, std::shared_ptr<T>> all;

    template <typename Handle>
    cudaError_t add(Handle *out, T made) {
        auto kept = std::make_shared<T>(std::move(made));
        *out = reinterpret_cast<Handle>(kept.get());
        all[*out] = kept;
        return cudaSuccess;
    }
    std::shared_ptr<T> find(const void *handle) const {
        auto found = all.find(handle);
        return found == all.end() ? nullptr : found->second;
    }
    cudaError_t drop(const void *handle) { return all.erase(handle) ? cudaSuccess : cudaErrorInvalidResourceHandle; }
};

static objects<stream> streams;
static objects<event> events;
static objects<nodes> graphs, executables;

/* --- faults that a test plants --- */

static bool names(const char *variable, const char *function) {
    const char *value = getenv(variable);
    return value && strcmp(value, function) == 0;
}

static bool is_ignored(const char *function) { return names("BERTH_EMU_IGNORE", function); }
static bool is_refused(const char *function) { return names("BERTH_EMU_REFUSE", function); }

/* --- work --- */

static std::shared_ptr<stream> stream_of(cudaStream_t handle) {
    static const auto default_stream = std::make_shared<stream>();
    return handle ? streams.find(handle) : default_stream;
}

bool stream_is_known(cudaStream_t handle) { return stream_of(handle) != nullptr; }

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
    for (auto &entry : streams.all)
        do_all(*entry.second);
}

cudaError_t submit(cudaStream_t handle, work_kind kind, std::function<void()> work) {
    std::shared_ptr<stream> s = stream_of(handle);
    if (!s)
        return cudaErrorInvalidResourceHandle;
    if (s->recorded && s->invalid)
        return cudaErrorStreamCaptureInvalidated;
    if (s->recorded) {
        s->recorded->push_back({kind, std::move(work)});
        return cudaSuccess;
    }
    s->work.push_back(std::move(work));
    if (!s->late)
        do_all(*s);
    return cudaSuccess;
}

cudaError_t finish(cudaStream_t handle) {
    std::shared_ptr<stream> s = stream_of(handle);
    if (!s)
        return cudaErrorInvalidResourceHandle;
    do_all(*s);
    return cudaSuccess;
}

/* --- what may not be captured --- */

bool is_capturing(cudaStream_t handle) {
    std::shared_ptr<stream> s = stream_of(handle);
    return s && s->recorded;
}

/* cudaSuccess if the stream does not capture. */
static cudaError_t refuse_in_capture(stream &s, const char *function) {
    if (!s.recorded)
        return cudaSuccess;
    warn("%s: not while a stream captures", function);
    s.invalid = true;
    return cudaErrorStreamCaptureUnsupported;
}

cudaError_t refuse_in_capture(const char *function) {
    cudaError_t error = cudaSuccess;
    for (auto &entry : streams.all)
        if (entry.second->recorded)
            error = refuse_in_capture(*entry.second, function);
    return error;
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

static double seconds_now() {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

}  // namespace emu

/* --- CUDA's names --- */

using namespace emu;

extern "C" {

/* BERTH_EMU_LATE counts the streams that are there, in the order in which they were made. All are apart from the
 * default stream. */
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned int flags) {
    const char *late = getenv("BERTH_EMU_LATE");
    if (flags != cudaStreamNonBlocking)
        return result(cudaErrorNotSupported);
    return streams.add(out, {late && *late && atoi(late) == (int)streams.all.size(), {}, {}, false});
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
    cudaError_t error = finish(handle);
    return result(error == cudaSuccess ? streams.drop(handle) : error);
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    std::shared_ptr<stream> s = stream_of(handle);
    cudaError_t error = s ? refuse_in_capture(*s, "cudaStreamSynchronize") : cudaErrorInvalidResourceHandle;
    return result(error == cudaSuccess && !is_ignored("cudaStreamSynchronize") ? finish(handle) : error);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t for_event, unsigned int) {
    std::shared_ptr<event> e = events.find(for_event);
    std::shared_ptr<stream> s = stream_of(handle);
    if (is_ignored("cudaStreamWaitEvent"))
        return cudaSuccess;
    cudaError_t error = e && s ? refuse_in_capture(*s, "cudaStreamWaitEvent, which this emulator does not capture")
                               : cudaErrorInvalidResourceHandle;
    if (error != cudaSuccess || e->asked == 0)
        return result(error);
    return result(
        submit(handle, work_kind::EVENT, [e, where = e->where, number = e->asked] { do_until(*where, *e, number); }));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned int flags) {
    event made = {};
    made.has_time = !(flags & cudaEventDisableTiming);
    return events.add(out, made);
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t on) {
    std::shared_ptr<event> e = events.find(handle);
    std::shared_ptr<stream> s = stream_of(on);
    cudaError_t error = e && s ? refuse_in_capture(*s, "cudaEventRecord, which this emulator does not capture")
                               : cudaErrorInvalidResourceHandle;
    if (error != cudaSuccess)
        return result(error);
    e->where = s;
    return result(submit(on, work_kind::EVENT, [e, number = ++e->asked] {
        e->done = number;
        e->seconds = seconds_now();
    }));
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
    std::shared_ptr<event> e = events.find(handle);
    cudaError_t error = e ? refuse_in_capture("cudaEventSynchronize") : cudaErrorInvalidResourceHandle;
    if (error == cudaSuccess && e->where && !is_ignored("cudaEventSynchronize"))
        do_until(*e->where, *e, e->asked);
    return result(error);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end) {
    std::shared_ptr<event> a = events.find(begin), b = events.find(end);
    if (!a || !b || a->asked == 0 || b->asked == 0 || !a->has_time || !b->has_time)
        return result(cudaErrorInvalidResourceHandle);
    if (a->done < a->asked || b->done < b->asked)
        return result(cudaErrorNotReady);
    *milliseconds = (float)(1e3 * (b->seconds - a->seconds));
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) { return result(events.drop(handle)); }

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode) {
    std::shared_ptr<stream> s = streams.find(handle);
    if (is_refused("cudaStreamBeginCapture"))
        return result(cudaErrorNotSupported);
    if (!s || s->recorded)
        return result(s ? cudaErrorIllegalState : cudaErrorInvalidResourceHandle);
    s->recorded.reset(new nodes);
    s->invalid = false;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *out) {
    std::shared_ptr<stream> s = streams.find(handle);
    *out = nullptr;
    if (!s || !s->recorded)
        return result(s ? cudaErrorIllegalState : cudaErrorInvalidResourceHandle);
    std::unique_ptr<nodes> made = std::move(s->recorded);
    return result(s->invalid ? cudaErrorStreamCaptureInvalidated : graphs.add(out, std::move(*made)));
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long) {
    std::shared_ptr<nodes> from = graphs.find(graph);
    if (!from)
        return result(cudaErrorInvalidValue);
    return result(is_refused("cudaGraphInstantiate") ? cudaErrorMemoryAllocation : executables.add(out, *from));
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t executable, cudaGraph_t graph, cudaGraphExecUpdateResultInfo *out) {
    std::shared_ptr<nodes> to = executables.find(executable), from = graphs.find(graph);
    *out = {};
    if (!to || !from)
        return result(cudaErrorInvalidValue);
    if (!same_nodes(*to, *from)) {
        out->result = cudaGraphExecUpdateErrorTopologyChanged;
        return result(cudaErrorGraphExecUpdateFailure);
    }
    *to = *from;
    return cudaSuccess;
}

/* What it is now is launched, whatever becomes of the executable. A child graph is refused: nothing here needs one. */
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
    std::shared_ptr<nodes> found = executables.find(executable);
    if (!found || is_capturing(stream))
        return result(found ? cudaErrorStreamCaptureUnsupported : cudaErrorInvalidValue);
    return result(submit(stream, work_kind::GRAPH, [all = *found] {
        for (const node &n : all)
            n.work();
    }));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return result(graphs.drop(graph)); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) { return result(executables.drop(executable)); }

}  // extern "C"
