/* Blocks, warps and their meetings. The blocks of a grid run one after another. Within a block every thread is a fiber
 * that runs until it waits for others, or ends; then the schedule says who goes on. */
#include "cudaemu.h"

#include <sys/mman.h>

#include <mutex>

#include "fiber.h"
#include "internal.h"

namespace emu {

uint3 thread_index, block_index;
dim3 block_dimension, grid_dimension;
int lane;
launch_state running;

/* A copy to shared memory that the thread has not waited for yet. */
struct copy {
    void *to;
    const void *from;
    int bytes, source_bytes;
    int group;
    const void *return_address;
};

enum state { READY, AT_BARRIER, AT_COLLECTIVE, EXITED };

struct fiber {
    context at;
    uint3 index;
    unsigned number;
    enum state state;
    place where; /* it waits */
    /* of a collective */
    unsigned mask;
    collective_function function;
    const char *what;
    void *brought;
    /* of asynchronous copies */
    std::vector<copy> copies;
    int groups; /* committed */
};

struct warp {
    unsigned lanes, ready, waiting; /* sets of lanes: that there are, may run, wait in a collective */
};

static struct {
    fiber fibers[THREADS_MOST];
    warp warps[WARPS_MOST];
    unsigned ready; /* warps with a lane that may run */
    int arrived, exited;
    place barrier; /* where the first that arrived waits */
    fiber *now;
    context host;
} block;

/* --- the schedule --- */

enum order { IN_ORDER, SHUFFLED, WARP_BY_WARP };

static struct {
    uint64_t seed, launches, random;
    bool alternates;
    enum order order, given;
} schedule;

static void read_schedule() {
    const char *seed = getenv("BERTH_EMU_SEED"), *name = getenv("BERTH_EMU_SCHEDULE");
    schedule.seed = seed ? strtoull(seed, nullptr, 10) : 1;
    schedule.alternates = !name || !*name;
    if (schedule.alternates)
        return;
    if (strcmp(name, "order") != 0 && strcmp(name, "shuffle") != 0 && strcmp(name, "warp") != 0)
        stop("", "BERTH_EMU_SCHEDULE is order, shuffle or warp, not %s", name);
    schedule.given = name[0] == 'o' ? IN_ORDER : name[0] == 's' ? SHUFFLED : WARP_BY_WARP;
}

/* A launch's schedule follows from the seed and from how many launches came before. */
static void schedule_launch() {
    uint64_t number = schedule.launches++;
    schedule.order = !schedule.alternates ? schedule.given : number % 2 ? WARP_BY_WARP : SHUFFLED;
    schedule.random = (schedule.seed << 32) + number;
}

static unsigned random_number() {
    schedule.random = schedule.random * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(schedule.random >> 32);
}

static int any_of(unsigned set) {
    unsigned by = random_number() >> 27;
    unsigned turned = by ? set >> by | set << (32 - by) : set;
    return (__builtin_ctz(turned) + by) % 32;
}

/* Who runs next; nullptr if nobody can. */
static fiber *pick() {
    if (!block.ready)
        return nullptr;
    if (schedule.order == IN_ORDER) {
        int first = __builtin_ctz(block.ready);
        return &block.fibers[first * LANES + __builtin_ctz(block.warps[first].ready)];
    }
    int same = block.now ? block.now->number / LANES : 0;
    bool stays = schedule.order == WARP_BY_WARP && block.now && (block.ready >> same & 1);
    int number = stays ? same : any_of(block.ready);
    return &block.fibers[number * LANES + any_of(block.warps[number].ready)];
}

static void make_ready(int number, unsigned lanes) {
    block.warps[number].ready |= lanes;
    block.ready |= 1u << number;
}

static void make_wait(fiber *self, enum state state) {
    warp *own = &block.warps[self->number / LANES];
    self->state = state;
    own->ready &= ~(1u << self->number % LANES);
    if (!own->ready)
        block.ready &= ~(1u << self->number / LANES);
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

/* --- barrier of the block --- */

static bool same_place(place a, place b) { return a.line == b.line && strcmp(a.file, b.file) == 0; }

void barrier(place where) {
    fiber *self = block.now;
    if (block.arrived == 0)
        block.barrier = where;
    else if (!same_place(where, block.barrier))
        stop(place_name(where), "divergent barrier: %d of %d threads wait at %s", block.arrived, running.threads,
             place_name(block.barrier).c_str());
    self->where = where;
    if (++block.arrived < running.threads) {
        make_wait(self, AT_BARRIER);
        switch_away(false);
        return;
    }
    block.arrived = 0;
    for (int i = 0; i < running.threads; i++)
        block.fibers[i].state = READY;
    for (int i = 0; i * LANES < running.threads; i++)
        make_ready(i, block.warps[i].lanes);
    if (race)
        race->barrier();
    switch_away(false);
}

/* --- collectives of a warp --- */

static void meet(void *const *, unsigned) {}

/* Do all lanes of the mask wait in the same call? */
static bool all_came(const warp *own, const fiber *lanes, const fiber *self) {
    if ((own->waiting & self->mask) != self->mask)
        return false;
    for (unsigned left = self->mask; left; left &= left - 1) {
        const fiber *other = &lanes[__builtin_ctz(left)];
        if (other->mask != self->mask || other->function != self->function ||
            (self->function != meet && !same_place(other->where, self->where)))
            return false;
    }
    return true;
}

void collective(collective_function function, const char *what, unsigned mask, void *mine, place where) {
    fiber *self = block.now;
    int number = self->number / LANES;
    warp *own = &block.warps[number];
    fiber *lanes = &block.fibers[number * LANES];
    if (!(mask >> lane & 1))
        stop(place_name(where), "%s: lane %d calls with mask 0x%08x, which it is not in", what, lane, mask);
    self->where = where;
    self->mask = mask & own->lanes;
    self->function = function;
    self->what = what;
    self->brought = mine;
    own->waiting |= 1u << lane;
    if (!all_came(own, lanes, self)) {
        make_wait(self, AT_COLLECTIVE);
        switch_away(false);
        return;
    }
    void *brought[LANES];
    for (unsigned left = self->mask; left; left &= left - 1) {
        int i = __builtin_ctz(left);
        brought[i] = lanes[i].brought;
        lanes[i].state = READY;
    }
    function(brought, self->mask);
    if (race && function == meet)
        race->warp_barrier(number, self->mask);
    own->waiting &= ~self->mask;
    make_ready(number, self->mask);
    switch_away(false);
}

void warp_barrier(unsigned mask, place where) { collective(meet, "__syncwarp", mask, nullptr, where); }

void bad_source(int reader, int source, unsigned mask) {
    stop(place_name(block.now->where), "%s: lane %d reads lane %d, which is not among the lanes 0x%08x",
         block.now->what, reader, source, mask);
}

struct vote {
    bool predicate;
    unsigned result;
};

static void count_votes(void *const *lanes, unsigned mask) {
    unsigned votes = 0;
    for (unsigned left = mask; left; left &= left - 1) {
        int i = __builtin_ctz(left);
        votes |= (unsigned)static_cast<vote *>(lanes[i])->predicate << i;
    }
    for (unsigned left = mask; left; left &= left - 1)
        static_cast<vote *>(lanes[__builtin_ctz(left)])->result = votes;
}

unsigned ballot(unsigned mask, bool predicate, place where) {
    vote mine = {predicate, 0};
    collective(count_votes, "a vote", mask, &mine, where);
    return mine.result;
}

struct exchange {
    const void *mine;
    size_t bytes;
    void *all;
};

static void exchange_all(void *const *lanes, unsigned mask) {
    const exchange *first = static_cast<exchange *>(lanes[__builtin_ctz(mask)]);
    size_t bytes = first->bytes;
    for (unsigned left = mask; left; left &= left - 1) {
        int i = __builtin_ctz(left);
        memcpy(static_cast<char *>(first->all) + i * bytes, static_cast<exchange *>(lanes[i])->mine, bytes);
    }
    for (unsigned left = mask & (mask - 1); left; left &= left - 1)
        memcpy(static_cast<exchange *>(lanes[__builtin_ctz(left)])->all, first->all, LANES * bytes);
}

void warp_exchange(const void *mine, size_t bytes, void *all, unsigned mask, place where) {
    exchange own = {mine, bytes, all};
    collective(exchange_all, "a warp's exchange", mask, &own, where);
}

/* --- asynchronous copies --- */

static void check_copy(const copy &c) {
    std::string place = place_name(c.return_address);
    if (c.bytes != 4 && c.bytes != 8 && c.bytes != 16)
        stop(place, "cp.async of %d bytes: only 4, 8 and 16 can be copied", c.bytes);
    if (c.source_bytes < 0 || c.source_bytes > c.bytes)
        stop(place, "cp.async: %d of %d bytes from the source", c.source_bytes, c.bytes);
    if ((uintptr_t)c.from % c.bytes != 0)
        stop(place, "cp.async: the source is not aligned to %d bytes", c.bytes);
    if (!is_device_memory(c.from, c.source_bytes))
        stop(place, "cp.async: the source is not device memory");
}

void cp_async(void *shared, const void *global, int bytes, int source_bytes) {
    fiber *self = block.now;
    copy made = {shared, global, bytes, source_bytes, self->groups, __builtin_return_address(0)};
    bool looks_right = (bytes == 4 || bytes == 8 || bytes == 16) && source_bytes >= 0 && source_bytes <= bytes &&
                       (uintptr_t)global % bytes == 0 && is_device_memory(global, source_bytes);
    if (!looks_right)
        check_copy(made);
    shared_pointer_check(shared, bytes, bytes);
    if (race) {
        race->access(global, source_bytes, false, made.return_address);
        race->access(shared, bytes, true, made.return_address);
    }
    memset(shared, POISON, bytes);
    self->copies.push_back(made);
}

void cp_async_commit() { block.now->groups++; }

void cp_async_wait(int groups_left) {
    fiber *self = block.now;
    size_t kept = 0;
    for (const copy &c : self->copies) {
        if (c.group >= self->groups - groups_left) {
            self->copies[kept++] = c;
            continue;
        }
        if (race)
            race->access(c.to, c.bytes, true, c.return_address);
        memcpy(c.to, c.from, c.source_bytes);
        memset(static_cast<char *>(c.to) + c.source_bytes, 0, c.bytes - c.source_bytes);
    }
    self->copies.resize(kept);
}

/* --- memory of the block --- */

constexpr size_t SHARED_MOST = 256 << 10, SHARED_GUARD = 256;
constexpr unsigned char GUARD_BYTE = 0xA5;
alignas(128) static unsigned char shared_memory[SHARED_GUARD + SHARED_MOST + SHARED_GUARD];

void *dynamic_shared() { return (void *)running.shared; }

void shared_pointer_check(const void *p, size_t bytes, size_t alignment) {
    uintptr_t begin = (uintptr_t)p, end = begin + bytes;
    if (begin % alignment != 0)
        stop(place_name(__builtin_return_address(0)), "shared memory is accessed by %zu bytes, but not aligned to %zu",
             bytes, alignment);
    if (begin >= running.shared && end <= running.shared_end)
        return;
    const variable *v = shared_variable_at(p);
    if (!v)
        stop(place_name(__builtin_return_address(0)), "an address that is not in the block's shared memory");
    if (end > v->end)
        stop(place_name(__builtin_return_address(0)), "an access beyond the end of %s", v->name.c_str());
}

void misaligned(const void *p, size_t alignment) {
    stop(place_name(__builtin_return_address(0)), "misaligned access: %p is not aligned to %zu bytes", p, alignment);
}

void atomic_access(const void *p, size_t bytes, const void *return_address) {
    if (race && running.in_thread)
        race->atomic(p, bytes, return_address);
}

void fence() {
    if (race)
        race->fence();
}

static void place_shared(size_t bytes) {
    running.shared = (uintptr_t)shared_memory + SHARED_GUARD;
    running.shared_end = running.shared + bytes;
    ASAN_UNPOISON_MEMORY_REGION(shared_memory, sizeof shared_memory);
    memset(shared_memory, GUARD_BYTE, SHARED_GUARD);
    memset((void *)running.shared_end, GUARD_BYTE, SHARED_GUARD);
    ASAN_POISON_MEMORY_REGION(shared_memory, SHARED_GUARD);
    ASAN_POISON_MEMORY_REGION((void *)running.shared_end, SHARED_GUARD);
}

static void poison_shared() {
    memset((void *)running.shared, POISON, running.shared_end - running.shared);
    for (const variable &v : shared_variables())
        memset((void *)v.begin, POISON, v.end - v.begin);
}

static void check_shared() {
    if (EMU_SANITIZED)
        return;
    const unsigned char *before = shared_memory, *after = (const unsigned char *)running.shared_end;
    for (int i = 0; i < (int)SHARED_GUARD; i++) {
        if (before[i] != GUARD_BYTE)
            stop("", "out-of-bounds write: %d bytes before the dynamic shared memory", (int)SHARED_GUARD - i);
        if (after[i] != GUARD_BYTE)
            stop("", "out-of-bounds write: byte %zu of %zu bytes of dynamic shared memory",
                 (size_t)(running.shared_end - running.shared) + i, (size_t)(running.shared_end - running.shared));
    }
}

/* --- blocks --- */

static void run_thread();
static thread_function thread_run;
static const void *thread_body;

/* Stacks lie apart by an odd number of cache lines, so that their ends do not share the same few sets of the cache, and
 * with a page between them that nothing can write to. */
constexpr size_t STACK_BYTES = 252 << 10, STACK_STRIDE = 256 << 10;

static void make_stacks() {
    char *memory = static_cast<char *>(mmap(nullptr, THREADS_MOST * STACK_STRIDE, PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (memory == MAP_FAILED)
        stop("", "no memory for the stacks of %d threads", THREADS_MOST);
    for (int i = 0; i < THREADS_MOST; i++) {
        char *stack = memory + i * STACK_STRIDE;
        mprotect(stack, STACK_STRIDE - STACK_BYTES, PROT_NONE);
        block.fibers[i].at.stack = stack + (STACK_STRIDE - STACK_BYTES);
        block.fibers[i].at.stack_bytes = STACK_BYTES;
    }
}

static void begin_fibers() {
    block.ready = 0;
    block.arrived = block.exited = 0;
    block.now = nullptr;
    for (int i = 0; i < running.threads; i++) {
        fiber *f = &block.fibers[i];
        f->number = i;
        f->index = {i % block_dimension.x, i / block_dimension.x % block_dimension.y,
                    i / block_dimension.x / block_dimension.y};
        f->state = READY;
        f->groups = 0;
        size_t used = STACK_BYTES - i * 7 % 61 * 64;
        context_make(&f->at, const_cast<void *>(f->at.stack), used, run_thread);
    }
    for (int i = 0; i * LANES < running.threads; i++) {
        int lanes = running.threads - i * LANES;
        block.warps[i] = {lanes >= LANES ? 0xFFFFFFFFu : (1u << lanes) - 1, 0, 0};
        make_ready(i, block.warps[i].lanes);
    }
}

static void run_thread() {
    context_entered();
    thread_run(thread_body);
    fiber *self = block.now;
    if (!self->copies.empty())
        stop(place_name(self->copies[0].return_address), "the thread ends with %zu cp.async that it has not waited for",
             self->copies.size());
    block.exited++;
    make_wait(self, EXITED);
    switch_away(true);
    __builtin_unreachable();
}

/* Nobody can run, but not all have ended: says what they wait for. */
[[noreturn]] static void report_deadlock() {
    running.in_thread = true;
    for (int i = 0; i < running.threads; i++) {
        const fiber *f = &block.fibers[i];
        if (f->state != AT_COLLECTIVE)
            continue;
        unsigned came = 0, exited = 0;
        for (unsigned left = f->mask; left; left &= left - 1) {
            const fiber *other = &block.fibers[i / LANES * LANES + __builtin_ctz(left)];
            bool here = other->state == AT_COLLECTIVE && other->mask == f->mask && other->function == f->function &&
                        same_place(other->where, f->where);
            came |= (unsigned)here << other->number % LANES;
            exited |= (unsigned)(other->state == EXITED) << other->number % LANES;
        }
        running.thread = i;
        stop(
            place_name(f->where),
            "%s: wrong mask, or divergence: of the lanes 0x%08x came 0x%08x, 0x%08x have exited, 0x%08x wait elsewhere",
            f->what, f->mask, came, exited, f->mask & ~came & ~exited);
    }
    running.thread = 0;
    while (block.fibers[running.thread].state != AT_BARRIER)
        running.thread++;
    stop(place_name(block.barrier), "divergent barrier: %d of %d threads arrived, %d have exited", block.arrived,
         running.threads, block.exited);
}

static void run_block() {
    poison_shared();
    begin_fibers();
    if (race)
        race->block_begins();
    make_current(pick());
    running.in_thread = true;
    context_switch(&block.host, &block.now->at, false);
    if (block.exited < running.threads)
        report_deadlock();
    check_shared();
}

/* --- launches --- */

static uint64_t gcd(uint64_t a, uint64_t b) {
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Every block once, in an order that the schedule shuffles too. */
static void run_grid() {
    uint64_t count = (uint64_t)grid_dimension.x * grid_dimension.y * grid_dimension.z, step = 1, number = 0;
    if (schedule.order != IN_ORDER) {
        number = random_number() % count;
        do
            step = random_number() % count + 1;
        while (gcd(step, count) != 1);
    }
    for (uint64_t i = 0; i < count; i++) {
        running.block = (unsigned)number;
        block_index = {(unsigned)(number % grid_dimension.x), (unsigned)(number / grid_dimension.x % grid_dimension.y),
                       (unsigned)(number / grid_dimension.x / grid_dimension.y)};
        run_block();
        number = (number + step) % count;
    }
}

static void check_dimensions(dim3 grid, dim3 threads) {
    std::string name = text("a grid of (%u,%u,%u) blocks of (%u,%u,%u) threads", grid.x, grid.y, grid.z, threads.x,
                            threads.y, threads.z);
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || threads.x == 0 || threads.y == 0 || threads.z == 0)
        stop("", "%s: nothing to run", name.c_str());
    if ((uint64_t)threads.x * threads.y * threads.z > THREADS_MOST || threads.x > 1024 || threads.y > 1024 ||
        threads.z > 64)
        stop("", "%s: more threads than a block can have: 1024 in all, (1024,1024,64)", name.c_str());
    if (grid.x > 0x7FFFFFFFu || grid.y > 65535 || grid.z > 65535)
        stop("", "%s: more blocks than a grid can have: (2147483647,65535,65535)", name.c_str());
}

static void initialize() {
    read_schedule();
    make_stacks();
    catch_faults();
}

void launch_grid(const char *kernel, const void *function, dim3 grid, dim3 threads, size_t shared_bytes,
                 cudaStream_t stream, thread_function run, const void *body) {
    static std::mutex one_at_a_time;
    static std::once_flag initialized;
    std::lock_guard<std::mutex> guard(one_at_a_time);
    std::call_once(initialized, initialize);
    running.kernel = kernel;
    check_dimensions(grid, threads);
    if (!stream_is_known(stream))
        stop("", "launched on a stream that does not exist");
    if (shared_bytes > shared_limit(function)) {
        warn("%s: %zu bytes of dynamic shared memory, but %zu are allowed", kernel, shared_bytes,
             shared_limit(function));
        running.kernel = nullptr;
        set_error(cudaErrorInvalidValue);
        return;
    }
    grid_dimension = grid;
    block_dimension = threads;
    running.threads = threads.x * threads.y * threads.z;
    thread_run = run;
    thread_body = body;
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

}  // namespace emu
