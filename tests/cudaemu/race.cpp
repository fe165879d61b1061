/* The race checker: what `-fsanitize=thread` makes the kernels call at each access, with callbacks of our own instead
 * of the sanitizer's library. For every word of shared and device memory it remembers who accessed it last; two
 * accesses, at least one of them a write and not both atomic, race if nothing orders them:
 *   - a barrier of the block: time is counted in segments, from one barrier to the next. Blocks run one after another,
 *     so a segment belongs to one block of one launch, and numbers grow.
 *   - __syncwarp: each thread has a stamp that it renews there, and `known` says up to which stamp it knows another
 *     lane. Shuffles order no memory.
 * Nothing orders blocks. */
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <map>
#include <memory>

#include "internal.h"

namespace emu {

/* --- what is remembered --- */

struct write_record {
    uint32_t segment, stamp, code;
    uint16_t thread;
    bool atomic, several; /* atomics of this segment that nothing orders; this was the last */
};

/* Reads by lanes of one warp. */
struct read_record {
    uint32_t segment, stamp, lanes, code; /* the oldest of their stamps */
    uint32_t warp;
};

/* Two warps are enough: whoever writes later is in another warp than one of them. */
struct history {
    write_record write;
    read_record reads[2];
};

constexpr size_t PIECE_BYTES = 4096, WORD = 4, PIECES_KEPT = 4096; /* 250 MB */

struct cell : history {
    std::unique_ptr<history[]> bytes; /* where the bytes of the word are kept apart */
};

struct piece {
    cell cells[PIECE_BYTES / WORD];
};

/* A region grows, but never moves. Before segment `first` is nothing that matters. */
struct region {
    uintptr_t begin, end;
    uint32_t first;
    std::vector<std::unique_ptr<piece>> pieces;
};

static region device, dynamic_memory, variables;
static size_t pieces_used;

static void set_bounds(region *r, uintptr_t begin, uintptr_t end) {
    r->begin = begin;
    r->end = end;
    r->pieces.resize(std::max(r->pieces.size(), (end - begin) / PIECE_BYTES + 1));
}

static cell *cell_of(region *r, uintptr_t word) {
    std::unique_ptr<piece> &at = r->pieces[(word - r->begin) / PIECE_BYTES];
    if (__builtin_expect(!at, 0)) {
        at.reset(new piece());
        pieces_used++;
    }
    return &at->cells[(word - r->begin) % PIECE_BYTES / WORD];
}

/* --- time --- */

static uint32_t segment = 1, block_first;

/* The segments that the blocks of this launch began with, and their numbers. */
static std::vector<std::pair<uint32_t, unsigned>> blocks;

static unsigned block_at(uint32_t at) {
    return std::upper_bound(blocks.begin(), blocks.end(), std::make_pair(at, ~0u))[-1].second;
}

/* Of the threads of the block that runs; never reset, for stamps only grow. */
static uint32_t last_stamp = 1, stamps[THREADS_MOST], known[THREADS_MOST][LANES];

/* Does an earlier access by a thread come before what the running thread does now? */
static bool is_before(const region &r, uint32_t at, unsigned thread, uint32_t stamp) {
    if (at != segment)
        return at < r.first || at >= block_first;
    return thread == running.thread ||
           (thread / LANES == running.thread / LANES && stamp <= known[running.thread][thread % LANES]);
}

/* The lanes of a read that are not ordered before the running thread. */
static unsigned unordered_lanes(const region &r, const read_record &read) {
    if (read.segment != segment)
        return is_before(r, read.segment, 0, 0) ? 0 : read.lanes;
    unsigned unordered = 0;
    for (int i : lanes_of{read.lanes})
        unordered |= (unsigned)!is_before(r, read.segment, read.warp * LANES + i, read.stamp) << i;
    return unordered;
}

/* --- reports --- */

struct race_report {
    std::string line;
    const void *now, *before; /* where the two return to */
};
static std::map<uint32_t, race_report> reports; /* by the place of the later access */
extern "C" char __executable_start;             /* code is kept as its distance from here */

static void report(uintptr_t at, const char *now, uint32_t code, const char *before, uint32_t other_segment,
                   unsigned other_thread, uint32_t other_code) {
    if (reports.count(code))
        return;
    reports[code] = {text("kernel %s, %s: race: %s of %s, after a %s by %s", running.kernel,
                          thread_name(running.block, running.thread).c_str(), now, memory_name((void *)at).c_str(),
                          before, thread_name(block_at(other_segment), other_thread).c_str()),
                     &__executable_start + code, &__executable_start + other_code};
}

/* --- accesses --- */

/* Lanes of a warp that read at the same stamp are kept together. Of two readers that are ordered, the later one is
 * enough. */
static void record_read(const region &r, history *h, uint32_t code) {
    uint32_t warp = running.thread / LANES, own = 1u << running.thread % LANES, stamp = stamps[running.thread];
    for (read_record &read : h->reads) {
        if (read.segment != segment || read.warp != warp)
            continue;
        unsigned kept = read.stamp == stamp ? read.lanes : unordered_lanes(r, read) & ~own;
        read = {segment, kept ? std::min(read.stamp, stamp) : stamp, kept | own, code, warp};
        return;
    }
    for (read_record &read : h->reads)
        if (!unordered_lanes(r, read)) {
            read = {segment, stamp, own, code, warp};
            return;
        }
}

/* Of atomics of several blocks the first is kept, with which none of the later blocks' accesses is in an order. */
static void record_write(const region &r, history *h, bool atomic, uint32_t code) {
    const write_record &w = h->write;
    bool both = atomic && w.atomic && w.segment >= r.first;
    if (both && w.segment < block_first)
        return;
    bool several = both && w.segment == segment && (w.several || !is_before(r, w.segment, w.thread, w.stamp));
    h->write = {segment, stamps[running.thread], code, (uint16_t)running.thread, atomic, several};
    if (!atomic)
        for (read_record &read : h->reads)
            read.segment = 0;
}

enum kind { READ, WRITE, ATOMIC };

static void access(const region &r, uintptr_t at, history *h, enum kind kind, uint32_t code) {
    static const char *const names[] = {"read", "write", "atomic"};
    const write_record &w = h->write;
    bool ordered = is_before(r, w.segment, w.thread, w.stamp) && !(w.several && w.segment == segment);
    if (!ordered && !(w.atomic && kind == ATOMIC))
        report(at, names[kind], code, names[w.atomic ? ATOMIC : WRITE], w.segment, w.thread, w.code);
    if (kind == READ)
        return record_read(r, h, code);
    for (const read_record &read : h->reads)
        if (unsigned lanes = unordered_lanes(r, read))
            report(at, names[kind], code, "read", read.segment, read.warp * LANES + __builtin_ctz(lanes), read.code);
    record_write(r, h, kind == ATOMIC, code);
}

/* The bytes of a word are apart as long as they were accessed apart in this launch, or block. */
static void access_word(region *r, uintptr_t word, unsigned first, unsigned end, enum kind kind, uint32_t code) {
    cell *c = cell_of(r, word);
    bool all = first == 0 && end == WORD;
    auto is_old = [=](const history &h) {
        return h.write.segment < r->first && h.reads[0].segment < r->first && h.reads[1].segment < r->first;
    };
    if (c->bytes && std::all_of(&c->bytes[0], &c->bytes[WORD], is_old))
        *c = {};
    if (!c->bytes && all)
        return access(*r, word, c, kind, code);
    if (!c->bytes) {
        c->bytes.reset(new history[WORD]);
        std::fill(&c->bytes[0], &c->bytes[WORD], (const history &)*c);
    }
    for (unsigned i = first; i < end; i++)
        access(*r, word + i, &c->bytes[i], kind, code);
    if (all && kind == WRITE) { /* what came before comes before this write too */
        (history &)*c = c->bytes[0];
        c->bytes.reset();
    }
}

static void access_range(const void *p, size_t size, enum kind kind, const void *return_address) {
    uintptr_t at = (uintptr_t)p, end = at + size;
    if (!running.in_thread || (at >= running.stack && at < running.stack_end))
        return;
    uint32_t code = (uint32_t)(static_cast<const char *>(return_address) - &__executable_start);
    for (region *r : {&device, &dynamic_memory, &variables})
        while (at >= r->begin && at < r->end && at < end) {
            uintptr_t word = at / WORD * WORD, next = std::min(word + WORD, end);
            access_word(r, word, (unsigned)(at - word), (unsigned)(next - word), kind, code);
            at = next;
        }
}

/* --- what the emulator tells --- */

static void launch_begins() {
    if (pieces_used > PIECES_KEPT || segment > 0xF0000000u) {
        for (region *r : {&device, &dynamic_memory, &variables})
            r->pieces.clear();
        pieces_used = 0;
        segment = 1;
    }
    const std::vector<variable> &all = shared_variables();
    set_bounds(&device, device_begin, device_end);
    set_bounds(&dynamic_memory, shared_area, shared_area + SHARED_MOST);
    if (!all.empty())
        set_bounds(&variables, all.front().begin / WORD * WORD, all.back().end);
    device.first = segment + 1;
    blocks.clear();
}

static void block_begins() {
    block_first = dynamic_memory.first = variables.first = ++segment;
    blocks.push_back({segment, running.block});
}

static void barrier_passed() { segment++; }

static void warp_barrier_passed(int warp, unsigned mask) {
    uint32_t joined[LANES] = {};
    for (int i : lanes_of{mask}) {
        uint32_t *own = known[warp * LANES + i];
        own[i] = stamps[warp * LANES + i];
        for (int other = 0; other < LANES; other++)
            joined[other] = std::max(joined[other], own[other]);
    }
    last_stamp++;
    for (int i : lanes_of{mask}) {
        memcpy(known[warp * LANES + i], joined, sizeof joined);
        stamps[warp * LANES + i] = last_stamp;
    }
}

static void atomic(const void *p, size_t size, const void *return_address) {
    access_range(p, size, ATOMIC, return_address);
}

static void plain_access(const void *p, size_t size, bool writes, const void *return_address) {
    access_range(p, size, writes ? WRITE : READ, return_address);
}

static void launch_ends() {
    if (reports.empty())
        return;
    for (const auto &entry : reports) {
        std::string now = place_name(entry.second.now), before = place_name(entry.second.before);
        warn("%s (%s after %s)", entry.second.line.c_str(), now.c_str(), before.c_str());
    }
    fflush(stdout);
    _Exit(RACE);
}

static const race_checker checker = {launch_begins, block_begins, barrier_passed, warp_barrier_passed,
                                     atomic,        plain_access, launch_ends};

__attribute__((constructor)) static void install() {
    race = &checker;
    std::fill(stamps, stamps + THREADS_MOST, last_stamp);
}

}  // namespace emu

/* --- the sanitizer's names --- */

#define ACCESSES(name, size)                                                                                        \
    void __tsan_##name##read##size(void *p) { emu::access_range(p, size, emu::READ, __builtin_return_address(0)); } \
    void __tsan_##name##write##size(void *p) { emu::access_range(p, size, emu::WRITE, __builtin_return_address(0)); }

extern "C" {
ACCESSES(, 1)
ACCESSES(, 2)
ACCESSES(, 4)
ACCESSES(, 8)
ACCESSES(, 16)
ACCESSES(unaligned_, 2)
ACCESSES(unaligned_, 4)
ACCESSES(unaligned_, 8)
ACCESSES(unaligned_, 16)
void __tsan_read_range(void *p, size_t size) { emu::access_range(p, size, emu::READ, __builtin_return_address(0)); }
void __tsan_write_range(void *p, size_t size) { emu::access_range(p, size, emu::WRITE, __builtin_return_address(0)); }
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}
}
