/* Blocks, warps and their meetings. The blocks of a grid run one after another. Within a block every thread is a fiber
 * that runs until it waits for others, or ends; then the schedule says who goes on. */
#include "cudaemu.h"

#include <stdlib.h>
#include <sys/mman.h>

#include <numeric>

#include "fiber.h"
#include "internal.h"

namespace emu {

uint3 thread_index, block_index;
dim3 block_dimension, grid_dimension;
int lane;
launch_state running;
uintptr_t shared_area;

/* A copy to shared memory that the thread has not waited for yet. */
struct copy {
    void *to;
    const void *from;
    int bytes, source_bytes;
    int group;
    const void *return_address;
};

struct fiber {
    context at;
    uint3 index;
    unsigned number;
    int groups; /* of asynchronous copies, committed */
    std::vector<copy> copies;
};

/* What a lane waits for in meet(). */
struct call {
    const char *what;
    unsigned mask;
    const void *mine;
    size_t bytes; /* 0: __syncwarp */
    int source;
    void *out;
    place where;
};

struct warp {
    unsigned lanes, ready, waiting, exited; /* sets of lanes: that there are, may run, wait in meet(), have ended */
    call calls[LANES];
    int first; /* of the lanes that wait; and those that wait in the same call: almost always all */
    unsigned with_first;
};

static struct {
    fiber fibers[THREADS_MOST];
    warp warps[WARPS_MOST];
    unsigned ready; /* warps with a lane that may run */
    int arrived, exited;
    place barrier; /* where the first that arrived waits */
    fiber *now;
    context host;
    std::function<void()> thread;
} block;

static warp *warp_of(const fiber *f) { return &block.warps[f->number / LANES]; }
static int warps() { return (running.threads + LANES - 1) / LANES; }

/* --- the schedule --- */

enum order { IN_ORDER, SHUFFLED, WARP_BY_WARP };

static struct {
    enum order order;
    uint64_t launches, random;
} schedule;

/* A launch's schedule follows from the settings and from how many launches came before. */
static void schedule_launch() {
    static const char *const names[] = {"order", "shuffle", "warp"};
    static const char *const name = getenv("BERTH_EMU_SCHEDULE"), *const seed = getenv("BERTH_EMU_SEED");
    uint64_t number = schedule.launches++;
    int chosen = number % 2 ? WARP_BY_WARP : SHUFFLED;
    if (name && *name) {
        for (chosen = 0; chosen < 3 && strcmp(name, names[chosen]) != 0;)
            chosen++;
        if (chosen == 3)
            stop("", "BERTH_EMU_SCHEDULE is order, shuffle or warp, not %s", name);
    }
    schedule.order = (enum order)chosen;
    schedule.random = ((seed ? strtoull(seed, nullptr, 10) : 1) << 32) + number;
}

static unsigned random_number() {
    schedule.random = schedule.random * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(schedule.random >> 32);
}

static int any_of(unsigned set) {
    unsigned by = random_number() >> 27;
    unsigned turned = set >> by | set << (-by & 31);
    return (__builtin_ctz(turned) + by) % 32;
}

/* Who runs next; nullptr if nobody can. */
static fiber *pick() {
    if (!block.ready)
        return nullptr;
    bool in_order = schedule.order == IN_ORDER;
    unsigned same = block.now ? block.now->number / LANES : 0;
    bool stays = schedule.order == WARP_BY_WARP && (block.ready >> same & 1);
    int number = stays ? same : in_order ? __builtin_ctz(block.ready) : any_of(block.ready);
    unsigned lanes = block.warps[number].ready;
    return &block.fibers[number * LANES + (in_order ? __builtin_ctz(lanes) : any_of(lanes))];
}

static void make_ready(warp *w, unsigned lanes) {
    w->ready |= lanes;
    block.ready |= 1u << (w - block.warps);
}

static void make_current(fiber *next) {
    block.now = next;
    thread_index = next->index;
    lane = next->number % LANES;
    running.thread = next->number;
    running.stack = (uintptr_t)next->at.stack;
    running.stack_end = running.stack + next->at.stack_bytes;
}

/* To whoever is next, or to the host's stack if all wait or have ended. Returns when this one is next. */
static void switch_away(bool ends) {
    fiber *self = block.now, *next = pick();
    if (next == self)
        return;
    if (next)
        make_current(next);
    else
        running.in_thread = false;
    context_switch(&self->at, next ? &next->at : &block.host, ends);
}

/* The thread that runs waits, or has ended. */
static void leave(bool ends) {
    warp *own = warp_of(block.now);
    own->ready &= ~(1u << lane);
    if (!own->ready)
        block.ready &= ~(1u << (own - block.warps));
    switch_away(ends);
}

/* --- meetings: of a block, of a warp --- */

static bool same_place(place a, place b) {
    return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

void barrier(place where) {
    if (block.arrived == 0)
        block.barrier = where;
    else if (!same_place(where, block.barrier))
        stop(place_name(where), "divergent barrier: %d of %d threads wait at %s", block.arrived, running.threads,
             place_name(block.barrier).c_str());
    if (++block.arrived < running.threads)
        return leave(false);
    block.arrived = 0;
    for (int i = 0; i < warps(); i++)
        make_ready(&block.warps[i], block.warps[i].lanes);
    if (race)
        race->barrier();
    switch_away(false);
}

/* A __syncwarp meets any other. */
static bool same_call(const call &a, const call &b) {
    return a.mask == b.mask && a.bytes == b.bytes && (a.bytes == 0 || same_place(a.where, b.where));
}

/* A lane comes to its call: do now all lanes of its mask wait there? */
static bool all_came(warp *own, const call &mine) {
    own->calls[lane] = mine;
    own->waiting |= 1u << lane;
    if (!own->with_first)
        own->first = lane;
    if (same_call(mine, own->calls[own->first]))
        own->with_first |= 1u << lane;
    if ((own->with_first & mine.mask) == mine.mask)
        return true;
    if ((own->waiting & mine.mask) != mine.mask)
        return false;
    for (int i : lanes_of{mine.mask})
        if (!same_call(own->calls[i], mine))
            return false;
    return true;
}

/* The last one does it for all: those that go on leave the place where their value is. */
static void give_each(const call *calls, unsigned mask) {
    const call &first = calls[__builtin_ctz(mask)];
    size_t bytes = first.bytes;
    if (first.source == EVERY_LANE) {
        for (int i : lanes_of{mask})
            memcpy(static_cast<char *>(first.out) + i * bytes, calls[i].mine, bytes);
        for (int i : lanes_of{mask & (mask - 1)})
            memcpy(calls[i].out, first.out, LANES * bytes);
        return;
    }
    for (int i : lanes_of{mask}) {
        const call &own = calls[i];
        if (!(mask >> own.source & 1))
            stop(place_name(own.where), "%s: lane %d reads lane %d, which is not among the lanes 0x%08x", own.what, i,
                 own.source, mask);
        if (bytes == 4) /* almost always: without a call */
            memcpy(own.out, calls[own.source].mine, 4);
        else
            memcpy(own.out, calls[own.source].mine, bytes);
    }
}

void meet(const char *what, unsigned mask, const void *mine, size_t bytes, int source, void *out, place where) {
    warp *own = warp_of(block.now);
    if (!(mask >> lane & 1))
        stop(place_name(where), "%s: lane %d calls with mask 0x%08x, which it is not in", what, lane, mask);
    mask &= own->lanes;
    if (!all_came(own, {what, mask, mine, bytes, source, out, where}))
        return leave(false);
    if (bytes)
        give_each(own->calls, mask);
    else if (race)
        race->warp_barrier((int)(own - block.warps), mask);
    own->waiting &= ~mask;
    own->with_first &= ~mask;
    make_ready(own, mask);
    switch_away(false);
}

/* --- what an access has to be --- */

static void check_aligned(const void *p, size_t alignment, const void *from_here) {
    if ((uintptr_t)p % alignment != 0)
        stop(place_name(from_here), "misaligned access: %s is not aligned to %zu bytes", memory_name(p).c_str(),
             alignment);
}

static void check_shared(const void *p, size_t bytes, size_t alignment, const void *from_here) {
    uintptr_t begin = (uintptr_t)p, end = begin + bytes;
    check_aligned(p, alignment, from_here);
    if (begin >= running.shared && end <= running.shared_end)
        return;
    const variable *v = shared_variable_at(p);
    if (!v || end > v->end)
        stop(place_name(from_here), "%zu bytes from %s: not within the block's shared memory", bytes,
             memory_name(p).c_str());
}

void shared_pointer_check(const void *p, size_t bytes, size_t alignment) {
    check_shared(p, bytes, alignment, __builtin_return_address(0));
}

void bank_check(const void *const rows[32]) {
    for (int first = 0; first < 32; first += 8)
        for (int i = first; i < first + 8; i++)
            for (int j = first; j < i; j++)
                if ((uintptr_t)rows[i] % 128 == (uintptr_t)rows[j] % 128 && rows[i] != rows[j])
                    stop(place_name(__builtin_return_address(0)),
                         "bank conflict: rows %d and %d of an 8x8 matrix, %td bytes apart in %s", j % 8, i % 8,
                         (const char *)rows[i] - (const char *)rows[j], memory_name(rows[j]).c_str());
}

void misaligned(const void *p, size_t alignment) { check_aligned(p, alignment, __builtin_return_address(0)); }

void atomic_access(const void *p, size_t bytes, const void *return_address) {
    if (race)
        race->atomic(p, bytes, return_address);
}

/* --- asynchronous copies --- */

void cp_async(void *shared, const void *global, int bytes, int source_bytes) {
    const void *from_here = __builtin_return_address(0);
    check_aligned(global, bytes, from_here);
    check_shared(shared, bytes, bytes, from_here);
    if (source_bytes && !is_device_memory(global, source_bytes))
        stop(place_name(from_here), "cp.async from %s", memory_name(global).c_str());
    if (race) {
        race->access(global, source_bytes, false, from_here);
        race->access(shared, bytes, true, from_here);
    }
    memset(shared, POISON, bytes);
    block.now->copies.push_back({shared, global, bytes, source_bytes, block.now->groups, from_here});
}

void cp_async_commit() { block.now->groups++; }

void cp_async_wait(int groups_left) {
    std::vector<copy> &copies = block.now->copies;
    size_t done = 0; /* they came group by group */
    for (; done < copies.size() && copies[done].group < block.now->groups - groups_left; done++) {
        const copy &c = copies[done];
        if (race)
            race->access(c.to, c.bytes, true, c.return_address);
        memcpy(c.to, c.from, c.source_bytes);
        memset(static_cast<char *>(c.to) + c.source_bytes, 0, c.bytes - c.source_bytes);
    }
    copies.erase(copies.begin(), copies.begin() + (ptrdiff_t)done);
}

/* --- memory of the block --- */

void *dynamic_shared() { return (void *)running.shared; }

/* It ends where the page that nothing can touch begins, but for its alignment. */
static void place_shared(size_t bytes) {
    ASAN_UNPOISON_MEMORY_REGION((void *)(shared_area - GUARD), GUARD + SHARED_MOST);
    running.shared = (shared_area + SHARED_MOST - bytes) & ~(uintptr_t)127;
    running.shared_end = running.shared + bytes;
    set_guard(running.shared - GUARD, running.shared);
    set_guard(running.shared_end, shared_area + SHARED_MOST);
}

static void poison_shared() {
    memset((void *)running.shared, POISON, running.shared_end - running.shared);
    for (const variable &v : shared_variables())
        memset((void *)v.begin, POISON, v.end - v.begin);
}

/* --- blocks --- */

/* Stacks lie apart by an odd number of cache lines, so that their ends do not share the same few sets of the cache, and
 * with a page between them that nothing can write to. */
constexpr size_t STACK_BYTES = 252 << 10, STACK_STRIDE = 256 << 10;

/* Stacks, and after them dynamic shared memory between a page that has its guard and one that nothing can touch. */
static void make_memory() {
    constexpr size_t STACKS = THREADS_MOST * STACK_STRIDE;
    char *memory = static_cast<char *>(mmap(nullptr, STACKS + PAGE + SHARED_MOST + PAGE, PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (memory == MAP_FAILED)
        stop("", "no memory for the stacks of %d threads", THREADS_MOST);
    shared_area = (uintptr_t)memory + STACKS + PAGE;
    mprotect((void *)(shared_area + SHARED_MOST), PAGE, PROT_NONE);
    for (int i = 0; i < THREADS_MOST; i++) {
        char *stack = memory + i * STACK_STRIDE;
        mprotect(stack, STACK_STRIDE - STACK_BYTES, PROT_NONE);
        block.fibers[i].at.stack = stack + (STACK_STRIDE - STACK_BYTES);
    }
}

static uint3 index_of(uint64_t number, dim3 size) {
    return {(unsigned)(number % size.x), (unsigned)(number / size.x % size.y), (unsigned)(number / size.x / size.y)};
}

static void run_thread() {
    context_entered();
    block.thread();
    fiber *self = block.now;
    if (!self->copies.empty())
        stop(place_name(self->copies[0].return_address), "the thread ends with %zu cp.async that it has not waited for",
             self->copies.size());
    block.exited++;
    warp_of(self)->exited |= 1u << lane;
    leave(true);
    __builtin_unreachable();
}

static void begin_fibers() {
    block.ready = 0;
    block.arrived = block.exited = 0;
    block.now = nullptr;
    for (int i = 0; i < running.threads; i++) {
        fiber *f = &block.fibers[i];
        f->number = i;
        f->index = index_of(i, block_dimension);
        f->groups = 0;
        context_make(&f->at, STACK_BYTES - i * 7 % 61 * 64, run_thread);
    }
    for (int i = 0; i < warps(); i++) {
        warp *w = &block.warps[i];
        int lanes = std::min(running.threads - i * LANES, LANES);
        w->lanes = ~0u >> (LANES - lanes);
        w->ready = w->waiting = w->exited = w->with_first = 0;
        make_ready(w, w->lanes);
    }
}

/* Nobody can run, but not all have ended: says what the first lane that waits for others of its warp waits for, or else
 * that a barrier is not complete. */
[[noreturn]] static void report_deadlock() {
    running.in_thread = true;
    for (int i = 0; i < warps(); i++) {
        const warp &w = block.warps[i];
        if (w.lanes != w.exited)
            running.thread = i * LANES + __builtin_ctz(w.waiting ? w.waiting : w.lanes & ~w.exited);
        if (!w.waiting)
            continue;
        const call &c = w.calls[running.thread % LANES];
        unsigned came = 0, exited = c.mask & w.exited;
        for (int l : lanes_of{c.mask & w.waiting})
            came |= (unsigned)same_call(w.calls[l], c) << l;
        stop(
            place_name(c.where),
            "%s: wrong mask, or divergence: of the lanes 0x%08x came 0x%08x, 0x%08x have exited, 0x%08x wait elsewhere",
            c.what, c.mask, came, exited, c.mask & ~came & ~exited);
    }
    stop(place_name(block.barrier), "divergent barrier: %d of %d threads arrived, %d have exited", block.arrived,
         running.threads, block.exited);
}

static void run_block(uint64_t number) {
    running.block = (unsigned)number;
    block_index = index_of(number, grid_dimension);
    running.in_block = true;
    poison_shared();
    begin_fibers();
    if (race)
        race->block_begins();
    make_current(pick());
    running.in_thread = true;
    context_switch(&block.host, &block.now->at, false);
    if (block.exited < running.threads)
        report_deadlock();
    check_guard(running.shared - GUARD, running.shared);
    check_guard(running.shared_end, shared_area + SHARED_MOST);
    running.in_block = false;
}

/* --- launches --- */

/* Every block once, in an order that the schedule shuffles too. */
static void run_grid() {
    uint64_t count = (uint64_t)grid_dimension.x * grid_dimension.y * grid_dimension.z, step = 1, number = 0;
    if (schedule.order != IN_ORDER) {
        number = random_number() % count;
        do
            step = random_number() % count + 1;
        while (std::gcd(step, count) != 1);
    }
    for (uint64_t i = 0; i < count; i++, number = (number + step) % count)
        run_block(number);
}

static void check_dimensions(dim3 grid, dim3 threads) {
    const char *wrong = nullptr;
    if (!grid.x || !grid.y || !grid.z || !threads.x || !threads.y || !threads.z)
        wrong = "nothing to run";
    else if ((uint64_t)threads.x * threads.y * threads.z > THREADS_MOST || threads.z > 64)
        wrong = "more threads than a block can have: 1024 in all, (1024,1024,64)";
    else if (grid.x > 0x7FFFFFFFu || grid.y > 65535 || grid.z > 65535)
        wrong = "more blocks than a grid can have: (2147483647,65535,65535)";
    if (wrong)
        stop("", "a grid of (%u,%u,%u) blocks of (%u,%u,%u) threads: %s", grid.x, grid.y, grid.z, threads.x, threads.y,
             threads.z, wrong);
}

static void run_launch(const char *kernel, dim3 grid, dim3 threads, size_t shared_bytes,
                       const std::function<void()> &thread) {
    running.kernel = kernel;
    grid_dimension = grid;
    block_dimension = threads;
    running.threads = threads.x * threads.y * threads.z;
    block.thread = thread;
    place_shared(shared_bytes);
    schedule_launch();
    if (race)
        race->launch_begins();
    run_grid();
    check_guards();
    if (race)
        race->launch_ends();
    running.kernel = nullptr;
}

void launch(const char *kernel, const void *function, dim3 grid, dim3 threads, size_t shared_bytes, cudaStream_t stream,
            std::function<void()> thread) {
    static const bool ready = (make_memory(), catch_faults(), true);
    (void)ready;
    running.kernel = kernel;
    check_dimensions(grid, threads);
    if (!stream_is_known(stream))
        stop("", "launched on a stream that does not exist");
    running.kernel = nullptr;
    if (shared_bytes > shared_limit(function)) {
        warn("%s: %zu bytes of dynamic shared memory, but %zu are allowed", kernel, shared_bytes,
             shared_limit(function));
        result(cudaErrorInvalidValue);
        return;
    }
    result(submit(stream, work_kind::KERNEL,
                  [=, thread = std::move(thread)] { run_launch(kernel, grid, threads, shared_bytes, thread); }));
}

}  // namespace emu
