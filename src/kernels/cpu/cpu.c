#include "kernels/cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "graph/blocks.h"
#include "kernels/cpu/contraction.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/products.h"

enum { SLOTS = 4, SHARED_SLOTS = 7 };

struct cpu {
    struct backend backend;
    int threads;
    struct contractions *contractions;
    struct scratch {
        float *data;
        int64_t count;
    } * scratch, shared[SHARED_SLOTS]; /* [threads][SLOTS]; of all threads */
    double peak[DTYPE_COUNT];          /* flop/s, measured once */
    double bandwidth;                  /* bytes/s, measured once */
    double marks[BACKEND_MARKS];       /* clock_seconds: work is done when it is given */
};

typedef status (*kernel)(struct cpu *cpu, const struct op_call *call);
static const kernel kernels[OP_COUNT] = {
#define OP(name, ...) [OP_##name] = cpu_##name,
#include "graph/op.def"
#undef OP
};

status cpu_decoder(struct cpu *cpu, const struct op_call *call) { return blocks_decoder(&cpu->backend, call); }
status cpu_decoder_dx(struct cpu *cpu, const struct op_call *call) { return blocks_decoder_dx(&cpu->backend, call); }

static float *grow(struct scratch *scratch, int64_t count) {
    if (scratch->count < count) {
        free(scratch->data);
        scratch->data = xmalloc((size_t)count * sizeof *scratch->data);
        scratch->count = count;
    }
    return scratch->data;
}

float *cpu_scratch(struct cpu *cpu, int slot, int64_t count) {
    return grow(&cpu->scratch[parallel_thread() * SLOTS + slot], count);
}

float *cpu_shared(struct cpu *cpu, int slot, int64_t count) { return grow(&cpu->shared[slot], count); }

struct contractions *cpu_contractions(struct cpu *cpu) {
    return cpu->contractions;
}

void cpu_zero_tail(const struct operand *operand) {
    size_t size = dtype_size(operand->dtype);
    for (int64_t row = operand->rows; row < operand->padded_rows; row++)
        memset((char *)operand->data + (size_t)(row * operand->stride) * size, 0, (size_t)operand->columns * size);
}

struct row_job {
    struct cpu *cpu;
    const struct op_call *call;
    row_kernel kernel;
};

static void run_rows(void *ctx, int64_t begin, int64_t end) {
    struct row_job *job = ctx;
    for (int64_t row = begin; row < end; row++)
        job->kernel(job->cpu, job->call, row);
}

status cpu_rows(struct cpu *cpu, const struct op_call *call, row_kernel kernel) {
    struct row_job job = {cpu, call, kernel};
    parallel_for(call->out[0].rows, 8, run_rows, &job);
    for (int i = 0; i < op_info(call->op)->outputs; i++)
        cpu_zero_tail(&call->out[i]);
    return OK;
}

/* --- the interface of graph/backend.h --- */

static status cpu_memory_new(struct backend *backend, void **out, size_t bytes, const char *what) {
    (void)backend;
    return memory_new(out, bytes, what);
}

static void cpu_memory_free(struct backend *backend, void *memory) {
    (void)backend;
    memory_free(memory);
}

static status cpu_clear(struct backend *backend, void *memory, size_t bytes) {
    (void)backend;
    memset(memory, 0, bytes);
    return OK;
}

static status cpu_copy(struct backend *backend, void *to, const void *from, size_t bytes) {
    (void)backend;
    if (bytes)
        memcpy(to, from, bytes);
    return OK;
}

static status cpu_host_memory_new(struct backend *backend, void **out, size_t bytes) {
    return cpu_memory_new(backend, out, bytes, "results");
}

static status cpu_mark(struct backend *backend, int mark) {
    ((struct cpu *)backend)->marks[mark] = clock_seconds();
    return OK;
}

static status cpu_reach(struct backend *backend, int mark) {
    (void)backend, (void)mark;
    return OK;
}

static double cpu_seconds_between(struct backend *backend, int from, int to) {
    const double *marks = ((struct cpu *)backend)->marks;
    return marks[to] - marks[from];
}

static bool cpu_supports(const struct backend *backend, enum op op, enum dtype compute) {
    (void)backend;
    return kernels[op] && (compute == F32 || compute == BF16 || compute == F16);
}

/* Which thread takes what differs from run to run: a thread that has not met an operator yet gets the memory that
 * others needed, so that no later step allocates. */
static void level_scratch(struct cpu *cpu) {
    for (int slot = 0; slot < SLOTS; slot++) {
        int64_t most = 0;
        for (int thread = 0; thread < cpu->threads; thread++)
            most = cpu->scratch[thread * SLOTS + slot].count > most ? cpu->scratch[thread * SLOTS + slot].count : most;
        for (int thread = 0; thread < cpu->threads; thread++)
            grow(&cpu->scratch[thread * SLOTS + slot], most);
    }
}

static status cpu_run(struct backend *backend, const struct op_call *call) {
    struct cpu *cpu = (struct cpu *)backend;
    TRY(kernels[call->op](cpu, call));
    level_scratch(cpu);
    return OK;
}

static status cpu_wait(struct backend *backend) {
    (void)backend;
    return OK;
}

/* The rate of a square contraction, best of a few. */
static double measure_peak(struct cpu *cpu, enum dtype dtype) {
    enum { N = 512 };
    size_t bytes = (size_t)N * N * dtype_size(dtype);
    void *x = xmalloc(bytes), *w = xmalloc(bytes), *y = xmalloc(bytes);
    for (int64_t i = 0; i < (int64_t)N * N; i++) {
        float value = 0.001f * (float)(i % 1000) - 0.5f; /* not zeros: those are faster on some processors */
        floats_write(x, dtype, i, 1, &value);
        floats_write(w, dtype, i, 1, &value);
    }
    struct operand side = {.dtype = dtype, .rows = N, .padded_rows = N, .columns = N, .stride = N};
    struct op_call call = {.op = OP_linear, .in = {side, side}, .out = {side}};
    call.in[0].data = x, call.in[1].data = w, call.out[0].data = y;
    double best = 0, began = clock_seconds();
    for (int round = 0; round < 50 && (round < 3 || clock_seconds() - began < 0.05); round++) {
        double start = clock_seconds();
        cpu_linear(cpu, &call);
        double rate = 2.0 * N * N * N / (clock_seconds() - start);
        best = rate > best ? rate : best;
    }
    free(x);
    free(w);
    free(y);
    return best;
}

static double cpu_peak_flops(struct backend *backend, enum dtype compute) {
    struct cpu *cpu = (struct cpu *)backend;
    if (!cpu->peak[compute])
        cpu->peak[compute] = measure_peak(cpu, compute);
    return cpu->peak[compute];
}

/* a = 0.5 a + b: as the triad of the STREAM benchmark, but in place, so that a cache that reads lines before they are
 * written moves no more than is counted. */
struct stream {
    double *a, *b;
};

static void run_stream(void *ctx, int64_t begin, int64_t end) {
    const struct stream *stream = ctx;
    double *restrict a = stream->a;
    const double *restrict b = stream->b;
    for (int64_t i = begin; i < end; i++)
        a[i] = 0.5 * a[i] + b[i];
}

static void touch_stream(void *ctx, int64_t begin, int64_t end) {
    const struct stream *stream = ctx;
    for (int64_t i = begin; i < end; i++)
        stream->a[i] = stream->b[i] = 1;
}

/* Together the arrays are larger than the last-level cache, but for one of more than 256 MB, of which a virtual machine
 * has a share. */
static double measure_bandwidth(void) {
    enum { SMALLEST = 32 << 20, LARGEST = 192 << 20, GRAIN = 1 << 14 };
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    int64_t bytes = cache < SMALLEST ? SMALLEST : cache > LARGEST ? LARGEST : cache;
    int64_t count = bytes / (int64_t)sizeof(double);
    struct stream stream = {xmalloc((size_t)bytes), xmalloc((size_t)bytes)};
    double best = 0, began = clock_seconds();
    parallel_for(count, GRAIN, touch_stream, &stream);
    for (int round = 0; round < 20 && (round < 2 || clock_seconds() - began < 0.35); round++) {
        double start = clock_seconds();
        parallel_for(count, GRAIN, run_stream, &stream);
        double rate = 3.0 * (double)bytes / (clock_seconds() - start);
        best = rate > best ? rate : best;
    }
    free(stream.a);
    free(stream.b);
    return best;
}

static double cpu_bandwidth(struct backend *backend) {
    struct cpu *cpu = (struct cpu *)backend;
    if (!cpu->bandwidth)
        cpu->bandwidth = measure_bandwidth();
    return cpu->bandwidth;
}

/* The number behind `key` in a file of the kernel's, or -1: not there, or "max". */
static int64_t kernel_number(const char *path, const char *key) {
    char line[256];
    long long number = -1;
    FILE *file = fopen(path, "r");
    while (file && number < 0 && fgets(line, sizeof line, file))
        if (strncmp(line, key, strlen(key)) == 0 && sscanf(line + strlen(key), "%lld", &number) != 1)
            number = -1;
    if (file)
        fclose(file);
    return number;
}

/* What the machine has free, or less where a control group allows less. */
static int64_t cpu_memory_left(const struct backend *backend) {
    (void)backend;
    static const struct {
        const char *limit, *used, *parts, *files[2]; /* files: cached ones, which give way */
    } groups[] = {{"/sys/fs/cgroup/memory.max",
                   "/sys/fs/cgroup/memory.current",
                   "/sys/fs/cgroup/memory.stat",
                   {"active_file ", "inactive_file "}},
                  {"/sys/fs/cgroup/memory/memory.limit_in_bytes",
                   "/sys/fs/cgroup/memory/memory.usage_in_bytes",
                   "/sys/fs/cgroup/memory/memory.stat",
                   {"total_active_file ", "total_inactive_file "}}};
    int64_t left = kernel_number("/proc/meminfo", "MemAvailable:") * 1024;
    for (int i = 0; i < 2; i++) {
        int64_t limit = kernel_number(groups[i].limit, ""), used = kernel_number(groups[i].used, "");
        for (int part = 0; part < 2 && used >= 0; part++) {
            int64_t cached = kernel_number(groups[i].parts, groups[i].files[part]);
            used -= cached > 0 && cached <= used ? cached : 0;
        }
        if (limit > 0 && used >= 0 && (left <= 0 || limit - used < left))
            left = limit > used ? limit - used : 1;
    }
    return left > 0 ? left : 0;
}

static void cpu_describe(const struct backend *backend, char *line, size_t size) {
    const struct cpu *cpu = (const struct cpu *)backend;
    char library[64];
    contractions_describe(library, sizeof library);
    snprintf(line, size, "cpu: %d thread%s, %s products, %s", cpu->threads, cpu->threads == 1 ? "" : "s",
             products_name(), library);
}

static void cpu_free(struct backend *backend) {
    struct cpu *cpu = (struct cpu *)backend;
    for (int i = 0; i < cpu->threads * SLOTS; i++)
        free(cpu->scratch[i].data);
    free(cpu->scratch);
    for (int i = 0; i < SHARED_SLOTS; i++)
        free(cpu->shared[i].data);
    contractions_free(cpu->contractions);
    free(cpu);
}

status cpu_backend_new(struct backend **out, int threads) {
    TRY(products_choose(getenv("BERTH_ISA")));
    struct cpu *cpu = xcalloc(1, sizeof *cpu);
    parallel_set_threads(threads);
    cpu->threads = parallel_threads();
    cpu->scratch = xcalloc((size_t)cpu->threads * SLOTS, sizeof *cpu->scratch);
    cpu->contractions = contractions_new();
    cpu->backend = (struct backend){.name = "cpu",
                                    .memory_new = cpu_memory_new,
                                    .memory_free = cpu_memory_free,
                                    .upload = cpu_copy,
                                    .download = cpu_copy,
                                    .download_later = cpu_copy,
                                    .clear = cpu_clear,
                                    .host_memory_new = cpu_host_memory_new,
                                    .host_memory_free = cpu_memory_free,
                                    .mark = cpu_mark,
                                    .reach = cpu_reach,
                                    .seconds_between = cpu_seconds_between,
                                    .supports = cpu_supports,
                                    .run = cpu_run,
                                    .wait = cpu_wait,
                                    .peak_flops = cpu_peak_flops,
                                    .bandwidth = cpu_bandwidth,
                                    .memory_left = cpu_memory_left,
                                    .describe = cpu_describe,
                                    .free = cpu_free};
    *out = &cpu->backend;
    return OK;
}
