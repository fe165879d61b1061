/* The race checker: what `-fsanitize=thread` makes the kernels call at each access, with callbacks of our own instead
 * of the sanitizer's library. For every word of shared and device memory it remembers who accessed it last; two
 * accesses, at least one of them a write and not both atomic, race if nothing orders them:
 *   - a barrier of the block: time is counted in segments, from one barrier to the next. Blocks run one after another,
 *     so a segment belongs to one block of one launch, and numbers grow.
 *   - __syncwarp: each thread has a stamp that it renews there, and `known` says up to which stamp it knows another
 * lane. Shuffles and votes order no memory.
 *   - an atomic: who finds by it that other blocks were there before knows what these did before a __threadfence that
 *     came before their atomic on the same address. (It does not follow such chains further.)
 */
#include <stdlib.h>

#include <algorithm>
#include <deque>
#include <map>
#include <unordered_map>

#include "internal.h"

namespace emu {

/* --- what is remembered --- */

struct write_record {
    uint32_t segment, stamp, code;
    uint16_t thread;
    bool atomic;
    bool near, far; /* before this atomic came unordered ones: of this segment, of other blocks */
};

/* Reads by lanes of one warp. */
struct read_record {
    uint32_t segment, stamp, lanes, code; /* the oldest of their stamps */
};

/* Two warps are enough: whoever writes later is in another warp than one of them. */
constexpr int READERS = 2;

struct cell {
    write_record write;
    read_record reads[READERS];
    uint8_t warps[READERS]; /* of the reads */
    uint32_t split;         /* where the four bytes of the word are kept apart, or 0 */
};

/* The cells of a piece of memory. */
constexpr size_t PIECE_BYTES = 4096, WORD = 4, PIECE_WORDS = PIECE_BYTES / WORD;
struct piece {
    cell cells[PIECE_WORDS];
};

struct region {
    uintptr_t begin, end;
    bool shared;
    std::vector<piece *> pieces;
    std::vector<size_t> used; /* indices of pieces that there are */
};

static region device, dynamic_memory, variables;

/* The bytes of words that are accessed in parts; entry 0 is never used. */
struct bytes {
    cell cells[WORD];
};
static std::deque<bytes> splits(1);
static std::vector<uint32_t> free_splits;

static void forget(region *r) {
    for (size_t i : r->used) {
        delete r->pieces[i];
        r->pieces[i] = nullptr;
    }
    r->used.clear();
}

/* A region grows, but never moves. */
static void set_bounds(region *r, uintptr_t begin, uintptr_t end, bool shared) {
    r->begin = begin;
    r->end = end;
    r->shared = shared;
    size_t count = (end - begin) / PIECE_BYTES + 1;
    if (r->pieces.size() < count)
        r->pieces.resize(count);
}

static cell *cell_of(region *r, uintptr_t word) {
    size_t index = (word - r->begin) / PIECE_BYTES;
    piece *&at = r->pieces[index];
    if (__builtin_expect(!at, 0)) {
        at = new piece();
        r->used.push_back(index);
    }
    return &at->cells[(word - r->begin) % PIECE_BYTES / WORD];
}

/* --- time --- */

static uint32_t segment = 1, launch_first, block_first;

/* The blocks of this launch that have begun. */
struct begun_block {
    uint32_t first; /* segment */
    unsigned number;
};
static std::vector<begun_block> blocks;

static const begun_block &block_at(uint32_t at) {
    auto later = [](uint32_t s, const begun_block &b) { return s < b.first; };
    return std::upper_bound(blocks.begin(), blocks.end(), at, later)[-1];
}

/* Of the threads of the block that runs; never reset, for stamps only grow. */
static uint32_t last_stamp = 1, stamps[THREADS_MOST], known[THREADS_MOST][LANES];

/* A thread knew this when it passed a fence. */
struct release {
    uint32_t block_first, segment;
    int warp;
    uint32_t known[LANES];
};

/* The last fence of each thread, and from which segment on all of the block passed one. */
static release fences[THREADS_MOST];
static int fenced_threads;
static uint32_t all_fenced;

/* What the atomics on an address release, in the order in which they came. */
static std::unordered_map<uintptr_t, std::vector<release>> released;

/* A thread of this block did an atomic on an address, and knows the releases that were there. */
struct acquisition {
    const std::vector<release> *from;
    size_t count;
    uintptr_t address;
    uint32_t segment, stamp;
    unsigned thread;
};
static std::vector<acquisition> acquired;

/* Does the thread that runs have what a thread of its block acquired? */
static bool is_mine(const acquisition &a) {
    return a.segment < segment || a.thread == running.thread ||
           (a.thread / LANES == running.thread / LANES && a.stamp <= known[running.thread][a.thread % LANES]);
}

static bool covers(const release &r, uint32_t at, unsigned thread, uint32_t stamp) {
    return at < r.segment || (at == r.segment && (int)thread / LANES == r.warp && stamp <= r.known[thread % LANES]);
}

/* Did a thread release what it did in segment `at` of the block that began with `first`? */
static bool is_released(const acquisition &a, uint32_t first, uint32_t at, unsigned thread, uint32_t stamp) {
    auto earlier = [](const release &r, uint32_t f) { return r.block_first < f; };
    auto end = a.from->begin() + (ptrdiff_t)a.count;
    auto r = std::lower_bound(a.from->begin(), end, first, earlier);
    for (; r != end && r->block_first == first; ++r)
        if (covers(*r, at, thread, stamp))
            return true;
    return false;
}

/* Does the thread that runs know of an access by an atomic? */
static bool is_acquired(uintptr_t word, uint32_t at, unsigned thread, uint32_t stamp, bool atomic) {
    if (acquired.empty())
        return false;
    uint32_t first = block_at(at).first;
    for (const acquisition &a : acquired)
        if (is_mine(a) && ((atomic && a.address / WORD == word / WORD) || is_released(a, first, at, thread, stamp)))
            return true;
    return false;
}

/* Does an earlier access by a thread come before what the running thread does now? */
static bool is_before(const region &r, uintptr_t word, uint32_t at, unsigned thread, uint32_t stamp, bool atomic) {
    if (at < launch_first || (at < segment && at >= block_first))
        return true;
    if (at < block_first)
        return r.shared || is_acquired(word, at, thread, stamp, atomic);
    if (thread == running.thread)
        return true;
    if (thread / LANES == running.thread / LANES && stamp <= known[running.thread][thread % LANES])
        return true;
    return is_acquired(word, at, thread, stamp, atomic);
}

/* --- reports --- */

struct race_report {
    std::string line;
    uint32_t code, other_code;
};
static std::map<uint32_t, race_report> reports; /* by the place of the later access */
extern "C" char __executable_start;             /* code is kept as its distance from here */

static uint32_t code_of(const void *return_address) {
    return (uint32_t)((uintptr_t)return_address - (uintptr_t)&__executable_start);
}

static std::string code_name(uint32_t code) {
    std::string name = place_name((const void *)((uintptr_t)&__executable_start + code));
    return name.empty() ? "an unknown place" : name;
}

static std::string memory_name(const region &r, uintptr_t at) {
    if (r.begin == dynamic_memory.begin)
        return text("byte %zu of dynamic shared memory", (size_t)(at - r.begin));
    if (const variable *v = shared_variable_at((const void *)at))
        return text("byte %zu of shared %s", (size_t)(at - v->begin), v->name.c_str());
    const allocation *around = allocation_at((const void *)at);
    return text("byte %td of %zu bytes of device memory", around ? (ptrdiff_t)(at - around->begin) : 0,
                around ? (size_t)(around->end - around->begin) : 0);
}

static void report(const region &r, uintptr_t at, const char *now, const char *before, uint32_t other_segment,
                   unsigned other_thread, uint32_t other_code, uint32_t code) {
    if (reports.count(code))
        return;
    std::string line = text("kernel %s, block %s, thread %s: race: %s of %s, after a %s by block %s, thread %s",
                            running.kernel, index_name(running.block, grid_dimension).c_str(),
                            index_name(running.thread, block_dimension).c_str(), now, memory_name(r, at).c_str(),
                            before, index_name(block_at(other_segment).number, grid_dimension).c_str(),
                            index_name(other_thread, block_dimension).c_str());
    reports[code] = {line, code, other_code};
}

/* --- accesses --- */

/* The lanes of a read that are not ordered before the running thread. */
static unsigned unordered_lanes(const region &r, uintptr_t word, const read_record &read, int warp) {
    if (read.segment < launch_first || (read.segment < segment && (read.segment >= block_first || r.shared)))
        return 0;
    unsigned unordered = 0;
    for (unsigned left = read.lanes; left; left &= left - 1) {
        int i = __builtin_ctz(left);
        if (!is_before(r, word, read.segment, warp * LANES + i, read.stamp, false))
            unordered |= 1u << i;
    }
    return unordered;
}

static bool is_unordered(const region &r, uintptr_t word, const read_record &read, int warp) {
    if (read.segment < launch_first || !read.lanes)
        return false;
    int first = __builtin_ctz(read.lanes);
    return !is_before(r, word, read.segment, warp * LANES + first, read.stamp, false) ||
           unordered_lanes(r, word, read, warp) != 0;
}

/* Lanes of a warp that read at the same stamp are kept together. */
static void join_read(const region &r, uintptr_t word, read_record *read, int warp, uint32_t code) {
    uint32_t own = 1u << running.thread % LANES, stamp = stamps[running.thread];
    if (read->stamp == stamp) {
        read->lanes |= own;
        return;
    }
    unsigned kept = unordered_lanes(r, word, *read, warp) & ~own;
    *read = {segment, kept ? std::min(read->stamp, stamp) : stamp, kept | own, code};
}

/* Of two readers that are ordered, the later one is enough. */
static void record_read(const region &r, uintptr_t word, cell *c, uint32_t code) {
    int warp = running.thread / LANES;
    for (int i = 0; i < READERS; i++)
        if (c->reads[i].segment == segment && c->warps[i] == warp) {
            join_read(r, word, &c->reads[i], warp, code);
            return;
        }
    for (int i = 0; i < READERS; i++)
        if (!is_unordered(r, word, c->reads[i], c->warps[i])) {
            c->reads[i] = {segment, stamps[running.thread], 1u << running.thread % LANES, code};
            c->warps[i] = (uint8_t)warp;
            return;
        }
}

static bool has_acquired() { return std::any_of(acquired.begin(), acquired.end(), is_mine); }

static void check_against_write(const region &r, uintptr_t at, uintptr_t word, cell *c, const char *now, bool atomic,
                                uint32_t code) {
    const write_record &w = c->write;
    if (w.segment < launch_first || (w.atomic && atomic))
        return;
    bool others = (w.near && w.segment == segment) || (w.far && !r.shared && !has_acquired());
    if (others || !is_before(r, word, w.segment, w.thread, w.stamp, w.atomic))
        report(r, at, now, w.atomic ? "atomic" : "write", w.segment, w.thread, w.code, code);
}

static void record_write(const region &r, uintptr_t word, cell *c, bool atomic, uint32_t code) {
    const write_record &w = c->write;
    bool near = false, far = false;
    if (atomic && w.atomic && w.segment >= launch_first) {
        bool unordered = !is_before(r, word, w.segment, w.thread, w.stamp, true);
        near = w.segment == segment && (w.near || unordered);
        far = w.far || (w.segment < block_first && unordered);
    }
    c->write = {segment, stamps[running.thread], code, (uint16_t)running.thread, atomic, near, far};
}

enum kind { READ, WRITE, ATOMIC };

static void access_cell(const region &r, uintptr_t at, cell *c, enum kind kind, uint32_t code) {
    uintptr_t word = at / WORD * WORD;
    const char *names[] = {"read", "write", "atomic"};
    check_against_write(r, at, word, c, names[kind], kind == ATOMIC, code);
    if (kind == READ) {
        record_read(r, word, c, code);
        return;
    }
    for (int i = 0; i < READERS; i++)
        if (unsigned lanes = unordered_lanes(r, word, c->reads[i], c->warps[i]))
            report(r, at, names[kind], "read", c->reads[i].segment, c->warps[i] * LANES + __builtin_ctz(lanes),
                   c->reads[i].code, code);
    record_write(r, word, c, kind == ATOMIC, code);
    if (kind == WRITE)
        for (read_record &read : c->reads)
            read.segment = 0;
}

/* The bytes of a word are apart as long as they were accessed apart in this launch. */
static void split(cell *whole) {
    if (free_splits.empty()) {
        free_splits.push_back((uint32_t)splits.size());
        splits.emplace_back();
    }
    uint32_t to = free_splits.back();
    free_splits.pop_back();
    for (cell &c : splits[to].cells)
        c = *whole;
    whole->split = to;
}

static void unite(cell *whole) {
    free_splits.push_back(whole->split);
    *whole = {};
}

static bool is_old(const cell &c) {
    return c.write.segment < launch_first && c.reads[0].segment < launch_first && c.reads[1].segment < launch_first;
}

static void access_word(region *r, uintptr_t word, unsigned first, unsigned end, enum kind kind, uint32_t code) {
    cell *c = cell_of(r, word);
    bool all = first == 0 && end == WORD;
    if (c->split) {
        const cell *apart = splits[c->split].cells;
        if (std::all_of(apart, apart + WORD, is_old))
            unite(c);
    }
    if (!c->split && all) {
        access_cell(*r, word, c, kind, code);
        return;
    }
    if (!c->split)
        split(c);
    for (unsigned i = first; i < end; i++)
        access_cell(*r, word + i, &splits[c->split].cells[i], kind, code);
    if (all && kind == WRITE) { /* what came before comes before this write too */
        cell last = splits[c->split].cells[0];
        unite(c);
        *c = last;
        c->split = 0;
    }
}

static region *region_of(uintptr_t at) {
    if (at >= device.begin && at < device.end)
        return &device;
    if (at >= dynamic_memory.begin && at < dynamic_memory.end)
        return &dynamic_memory;
    if (at >= variables.begin && at < variables.end && shared_variable_at((const void *)at))
        return &variables;
    return nullptr;
}

static void access_range(const void *p, size_t size, enum kind kind, const void *return_address) {
    uintptr_t at = (uintptr_t)p, end = at + size;
    if (!running.in_thread || (at >= running.stack && at < running.stack_end))
        return;
    region *r = region_of(at);
    if (!r)
        return;
    uint32_t code = code_of(return_address);
    while (at < end) {
        uintptr_t word = at / WORD * WORD, next = std::min(word + WORD, end);
        access_word(r, word, (unsigned)(at - word), (unsigned)(next - word), kind, code);
        at = next;
    }
}

/* --- what the emulator tells --- */

constexpr size_t PIECES_KEPT = 4096; /* 200 MB */

static void launch_begins() {
    if (device.used.size() > PIECES_KEPT || segment > 0xF0000000u) {
        for (region *r : {&device, &dynamic_memory, &variables})
            forget(r);
        splits.resize(1);
        free_splits.clear();
        if (segment > 0xF0000000u)
            segment = 1;
    }
    set_bounds(&device, device_begin, device_end, false);
    set_bounds(&dynamic_memory, running.shared, running.shared_end, true);
    const std::vector<variable> &all = shared_variables();
    if (!all.empty())
        set_bounds(&variables, all.front().begin / WORD * WORD, all.back().end, true);
    launch_first = segment + 1;
    released.clear();
    blocks.clear();
}

static void block_begins() {
    block_first = ++segment;
    blocks.push_back({segment, running.block});
    acquired.clear();
    fenced_threads = 0;
    all_fenced = 0;
}

static void barrier_passed() {
    segment++;
    if (fenced_threads == running.threads)
        all_fenced = segment;
    fenced_threads = 0;
}

static void warp_barrier_passed(int warp, unsigned mask) {
    uint32_t joined[LANES] = {};
    for (unsigned left = mask; left; left &= left - 1) {
        int thread = warp * LANES + __builtin_ctz(left);
        known[thread][thread % LANES] = stamps[thread];
        for (int i = 0; i < LANES; i++)
            joined[i] = std::max(joined[i], known[thread][i]);
    }
    last_stamp++;
    for (unsigned left = mask; left; left &= left - 1) {
        int thread = warp * LANES + __builtin_ctz(left);
        memcpy(known[thread], joined, sizeof joined);
        stamps[thread] = last_stamp;
    }
}

static void fence_passed() {
    unsigned thread = running.thread;
    release *own = &fences[thread];
    if (own->segment != segment)
        fenced_threads++;
    *own = {block_first, segment, (int)thread / LANES, {}};
    known[thread][thread % LANES] = stamps[thread];
    memcpy(own->known, known[thread], sizeof own->known);
    stamps[thread] = ++last_stamp;
}

static void atomic(const void *p, size_t size, const void *return_address) {
    uintptr_t address = (uintptr_t)p;
    auto found = released.find(address);
    unsigned thread = running.thread;
    if (found != released.end())
        acquired.push_back({&found->second, found->second.size(), address, segment, stamps[thread], thread});
    access_range(p, size, ATOMIC, return_address);
    bool fenced = fences[thread].segment >= block_first;
    if (!fenced && !all_fenced)
        return;
    release made = fences[thread];
    if (!fenced || made.segment < all_fenced)
        made = {block_first, all_fenced, -1, {}};
    released[address].push_back(made);
}

static void access(const void *p, size_t size, bool writes, const void *return_address) {
    access_range(p, size, writes ? WRITE : READ, return_address);
}

static void launch_ends() {
    if (reports.empty())
        return;
    for (const auto &entry : reports) {
        const race_report &found = entry.second;
        warn("%s (%s after %s)", found.line.c_str(), code_name(found.code).c_str(),
             code_name(found.other_code).c_str());
    }
    fflush(stdout);
    _Exit(RACE);
}

static const race_checker checker = {launch_begins, block_begins, barrier_passed, warp_barrier_passed,
                                     atomic,        fence_passed, access,         launch_ends};

__attribute__((constructor)) static void install() {
    race = &checker;
    std::fill(stamps, stamps + THREADS_MOST, last_stamp);
}

}  // namespace emu

/* --- the sanitizer's names --- */

#define ACCESSES(name, size)                                                                              \
    void __tsan_##name##read##size(void *p) { emu::access(p, size, false, __builtin_return_address(0)); } \
    void __tsan_##name##write##size(void *p) { emu::access(p, size, true, __builtin_return_address(0)); }

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
void __tsan_read_range(void *p, size_t size) { emu::access(p, size, false, __builtin_return_address(0)); }
void __tsan_write_range(void *p, size_t size) { emu::access(p, size, true, __builtin_return_address(0)); }
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}
}
