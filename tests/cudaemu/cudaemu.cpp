/* Blocks, warps and their meetings. The blocks of a grid run one after another. Within a block every thread is a fiber
 * that runs until it waits for others, or ends; then the schedule says who goes on. */
#include "cudaemu.h"

#include <sys/mman.h>

#include <cstddef>
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

struct fiber {
    context at;
    uint3 index;
    unsigned number;
    int groups; /* of asynchronous copies, committed */
    std::vector<copy> copies;
};

/* A collective that a lane waits in. */
struct call {
    collective_function function;
    const char *what;
    unsigned mask;
    place where;
};

struct warp {
    /* sets of lanes: that there are, may run, wait in a collective, have ended */
    unsigned lanes, ready, waiting, exited;
    /* the first call that lanes wait in, and those that wait in just that one */
    call first;
    unsigned in_first;
    call calls[LANES];
    void *brought[LANES];
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

/* Waits, or has ended. */
static void leave(fiber *self) {
    warp *own = &block.warps[self->number / LANES];
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

static bool same_place(place a, place b) {
    return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

void barrier(place where) {
    fiber *self = block.now;
    if (block.arrived == 0)
        block.barrier = where;
    else if (!same_place(where, block.barrier))
        stop(place_name(where), "divergent barrier: %d of %d threads wait at %s", block.arrived, running.threads,
             place_name(block.barrier).c_str());
    if (++block.arrived < running.threads) {
        leave(self);
        switch_away(false);
        return;
    }
    block.arrived = 0;
    for (int i = 0; i * LANES < running.threads; i++)
        make_ready(i, block.warps[i].lanes);
    if (race)
        race->barrier();
    switch_away(false);
}

/* --- collectives of a warp --- */

static void meet(void *const *, unsigned) {}

static bool same_call(const call &a, const call &b) {
    return a.mask == b.mask && a.function == b.function && (a.function == meet || same_place(a.where, b.where));
}

/* A lane comes to its call. Almost always, all lanes that wait do so in the same one. */
static void come(warp *own, const call &mine) {
    unsigned bit = 1u << lane;
    if (!own->in_first)
        own->first = mine;
    if (!own->in_first || same_call(mine, own->first))
        own->in_first |= bit;
    own->calls[lane] = mine;
    own->waiting |= bit;
}

/* Do all lanes of the mask wait in the same call? */
static bool all_came(const warp *own, const call &mine) {
    if ((own->waiting & mine.mask) != mine.mask)
        return false;
    if ((own->in_first & mine.mask) == mine.mask)
        return true;
    for (unsigned left = mine.mask; left; left &= left - 1)
        if (!same_call(own->calls[__builtin_ctz(left)], mine))
            return false;
    return true;
}

void collective(collective_function function, const char *what, unsigned mask, void *mine, place where) {
    int number = block.now->number / LANES;
    warp *own = &block.warps[number];
    if (!(mask >> lane & 1))
        stop(place_name(where), "%s: lane %d calls with mask 0x%08x, which it is not in", what, lane, mask);
    mask &= own->lanes;
    call made = {function, what, mask, where};
    own->brought[lane] = mine;
    come(own, made);
    if (!all_came(own, made)) {
        leave(block.now);
        switch_away(false);
        return;
    }
    function(own->brought, mask);
    if (race && function == meet)
        race->warp_barrier(number, mask);
    own->waiting &= ~mask;
    own->in_first &= ~mask;
    make_ready(number, mask);
    switch_away(false);
}

void warp_barrier(unsigned mask, place where) { collective(meet, "__syncwarp", mask, nullptr, where); }

void bad_source(int reader, int source, unsigned mask) {
    const call &own = block.warps[block.now->number / LANES].calls[reader];
    stop(place_name(own.where), "%s: lane %d reads lane %d, which is not among the lanes 0x%08x", own.what, reader,
         source, mask);
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

/* What is wrong with a copy, or nullptr. */
static const char *fault_of(const copy &c) {
    if (c.bytes != 4 && c.bytes != 8 && c.bytes != 16)
        return "only 4, 8 or 16 bytes can be copied";
    if (c.source_bytes < 0 || c.source_bytes > c.bytes)
        return "more bytes from the source than are copied";
    if ((uintptr_t)c.from % c.bytes != 0)
        return "the source is not aligned to the bytes copied";
    return c.source_bytes == 0 || is_device_memory(c.from, c.source_bytes) ? nullptr
                                                                           : "the source is not device memory";
}

void cp_async(void *shared, const void *global, int bytes, int source_bytes) {
    fiber *self = block.now;
    copy made = {shared, global, bytes, source_bytes, self->groups, __builtin_return_address(0)};
    if (const char *fault = fault_of(made))
        stop(place_name(made.return_address), "cp.async: %s", fault);
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
        f->groups = 0;
        size_t used = STACK_BYTES - i * 7 % 61 * 64;
        context_make(&f->at, const_cast<void *>(f->at.stack), used, run_thread);
    }
    for (int i = 0; i * LANES < running.threads; i++) {
        int lanes = running.threads - i * LANES;
        warp *w = &block.warps[i];
        w->lanes = lanes >= LANES ? 0xFFFFFFFFu : (1u << lanes) - 1;
        w->ready = w->waiting = w->exited = w->in_first = 0;
        make_ready(i, w->lanes);
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
    block.warps[self->number / LANES].exited |= 1u << lane;
    leave(self);
    switch_away(true);
    __builtin_unreachable();
}

[[noreturn]] static void report_collective(int number, int waiting) {
    const warp &w = block.warps[number];
    const call &c = w.calls[waiting];
    unsigned came = 0;
    for (unsigned left = c.mask & w.waiting; left; left &= left - 1)
        came |= (unsigned)same_call(w.calls[__builtin_ctz(left)], c) << __builtin_ctz(left);
    unsigned exited = c.mask & w.exited;
    running.thread = number * LANES + waiting;
    stop(place_name(c.where),
         "%s: wrong mask, or divergence: of the lanes 0x%08x came 0x%08x, 0x%08x have exited, 0x%08x wait elsewhere",
         c.what, c.mask, came, exited, c.mask & ~came & ~exited);
}

/* Nobody can run, but not all have ended: says what they wait for. */
[[noreturn]] static void report_deadlock() {
    running.in_thread = true;
    int last = 0;
    for (int i = 0; i * LANES < running.threads; i++) {
        const warp &w = block.warps[i];
        if (w.waiting)
            report_collective(i, __builtin_ctz(w.waiting));
        if (w.lanes & ~w.exited)
            last = i;
    }
    running.thread = last * LANES + __builtin_ctz(block.warps[last].lanes & ~block.warps[last].exited);
    stop(place_name(block.barrier), "divergent barrier: %d of %d threads arrived, %d have exited", block.arrived,
         running.threads, block.exited);
}

static void run_block() {
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
    check_shared();
    running.in_block = false;
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

/* What is known when a kernel is launched, and its arguments. */
struct launched {
    const char *kernel;
    dim3 grid, threads;
    size_t shared_bytes;
    thread_function run;
    std::vector<std::max_align_t> body;
};

static void run_launch(const launched &l) {
    static std::mutex one_at_a_time;
    std::lock_guard<std::mutex> guard(one_at_a_time);
    running.kernel = l.kernel;
    grid_dimension = l.grid;
    block_dimension = l.threads;
    running.threads = l.threads.x * l.threads.y * l.threads.z;
    thread_run = l.run;
    thread_body = l.body.data();
    place_shared(l.shared_bytes);
    schedule_launch();
    if (race)
        race->launch_begins();
    run_grid();
    check_guards();
    if (race)
        race->launch_ends();
    running.kernel = nullptr;
}

static bool shared_memory_fits(const launched &l, const void *function) {
    if (l.shared_bytes <= shared_limit(function))
        return true;
    warn("%s: %zu bytes of dynamic shared memory, but %zu are allowed", l.kernel, l.shared_bytes,
         shared_limit(function));
    return false;
}

void launch_grid(const char *kernel, const void *function, dim3 grid, dim3 threads, size_t shared_bytes,
                 cudaStream_t stream, thread_function run, const void *body, size_t body_bytes) {
    static std::once_flag initialized;
    std::call_once(initialized, initialize);
    launched made = {kernel, grid, threads, shared_bytes, run, {}};
    running.kernel = kernel;
    check_dimensions(grid, threads);
    if (!stream_is_known(stream))
        stop("", "launched on a stream that does not exist");
    bool fits = shared_memory_fits(made, function);
    running.kernel = nullptr;
    made.body.resize((body_bytes + sizeof made.body[0] - 1) / sizeof made.body[0]);
    memcpy(made.body.data(), body, body_bytes);
    set_error(fits ? submit(stream, work_kind::KERNEL, [made] { run_launch(made); }) : cudaErrorInvalidValue);
}

}  // namespace emu
