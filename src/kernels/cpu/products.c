/* The loop nest of our own products. The smaller operand is packed first, by all threads for all. Then threads draw
 * blocks of the other: each packs one, of all k, for itself, which stays in its caches while the shared operand passes
 * by. A tile is where a block of rows and a block of columns meet: its sums over k run block after block in fixed
 * order, whoever computes it, and the epilogue follows while it is in the cache. */
#include "kernels/cpu/products.h"

#include <stdatomic.h>

#include "kernels/cpu/contraction.h"

enum {
    SLAB_DEPTH = 2048, /* of k at a time, where the product adds to memory anyway */
    COLUMNS = 128,     /* of a tile, if rows are drawn */
    TASKS = 8,         /* a thread at least, to even out cores that are taken away */
    LINE = 64,         /* bytes: packed operands begin with a cache line */
    MOST_C = 1024      /* floats that a micro-kernel makes */
};

struct nest {
    const struct kernel *kernel;
    const struct tile_job *job;
    struct matrix a[MOST_TERMS], b[MOST_TERMS];
    int64_t k, depth;        /* the slab: of every term k [k, k + depth) */
    int64_t k_blocks, all_k; /* of one term; of all */
    bool draw_rows;          /* or columns: blocks of them are drawn, and the other operand is shared */
    int64_t row_tiles;       /* blocks of rows */
    int64_t column_step, column_blocks, column_tiles; /* column_blocks: of one part; column_tiles: of all */
    int64_t groups, tasks;                            /* a task is one block drawn and a group of the shared ones */
    char *shared;
    float *sums; /* [k_blocks][rows], or NULL */
    _Atomic int64_t next;
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t cuts(int64_t whole, int64_t part) { return (whole + part - 1) / part; }

/* Scratch is aligned for floats only. */
static void *aligned(float *scratch) { return (void *)(((uintptr_t)scratch + LINE - 1) / LINE * LINE); }
static int64_t floats_of(int64_t bytes) { return (bytes + LINE) / (int64_t)sizeof(float); }

/* --- blocks of rows and of columns --- */

static int64_t first_row(const struct nest *nest, int64_t row_tile) { return row_tile * nest->kernel->block_rows; }

static int64_t rows_of(const struct nest *nest, int64_t row_tile) {
    return least(nest->kernel->block_rows, nest->job->rows - first_row(nest, row_tile));
}

static int64_t first_column(const struct nest *nest, int64_t column_tile) {
    return column_tile % nest->column_blocks * nest->column_step;
}

static int64_t columns_of(const struct nest *nest, int64_t column_tile) {
    return least(nest->column_step, nest->job->columns - first_column(nest, column_tile));
}

static int64_t depth_of(const struct nest *nest, int64_t k_block) {
    return least(nest->kernel->depth, nest->depth - k_block * nest->kernel->depth);
}

/* --- packing: a block of rows or columns, of one block of k after the other, term after term --- */

static int64_t packed_bytes(const struct nest *nest, bool rows) {
    return rows ? nest->kernel->a_block : cuts(nest->column_step, nest->kernel->columns) * nest->kernel->b_panel;
}

static void pack(const struct nest *nest, bool rows, int64_t number, int64_t block, void *to, bool sums) {
    int64_t term = block / nest->k_blocks, k_block = block % nest->k_blocks;
    struct piece piece = {.k = nest->k + k_block * nest->kernel->depth, .depth = depth_of(nest, k_block)};
    if (rows) {
        piece.line = first_row(nest, number), piece.lines = rows_of(nest, number);
        nest->kernel->pack_a(&nest->a[term], &piece, to,
                             sums && nest->sums ? nest->sums + k_block * nest->job->rows + piece.line : NULL);
    } else {
        piece.line = first_column(nest, number), piece.lines = columns_of(nest, number);
        nest->kernel->pack_b(&nest->b[nest->job->terms > 1 ? term : number / nest->column_blocks], &piece, to);
    }
}

static void pack_shared(void *ctx, int64_t begin, int64_t end) {
    const struct nest *nest = ctx;
    for (int64_t number = begin; number < end; number++)
        pack(nest, !nest->draw_rows, number / nest->all_k, number % nest->all_k,
             nest->shared + number * packed_bytes(nest, !nest->draw_rows), true);
}

/* --- a tile --- */

/* c[rows, columns] = or += the product of one sliver and one panel, of which less than the kernel makes is wanted. */
static void multiply_edge(const struct kernel *kernel, int64_t depth, const void *a, const void *b, float *c,
                          int64_t stride_c, int64_t rows, int64_t columns, bool add) {
    float whole[MOST_C];
    kernel->multiply(depth, a, b, whole, kernel->columns, false, a);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < columns; j++)
            c[r * stride_c + j] = (add ? c[r * stride_c + j] : 0) + whole[r * kernel->columns + j];
}

/* One block of a times the panels of the same k. A panel stays in the first-level cache while the slivers of a pass by;
 * these fetch the next panel, then the next block of a. `roomy`: c has room for whole slivers and panels. */
static void multiply_block(const struct kernel *kernel, int64_t depth, const char *a, const char *b,
                           const struct tile *tile, bool add, bool roomy) {
    int64_t sliver = kernel->a_block / kernel->block_rows * kernel->rows;
    const char *next_a = a + kernel->a_block;
    for (int64_t column = 0; column < tile->columns; column += kernel->columns, b += kernel->b_panel) {
        const char *from = a, *next_b = b + kernel->b_panel;
        for (int64_t row = 0; row < tile->rows; row += kernel->rows, from += sliver) {
            float *c = tile->values + row * tile->stride + column;
            int64_t rows = tile->rows - row, columns = tile->columns - column;
            const char **next = next_b < b + 2 * kernel->b_panel ? &next_b : &next_a;
            if (roomy || (rows >= kernel->rows && columns >= kernel->columns))
                kernel->multiply(depth, from, b, c, tile->stride, add, *next);
            else
                multiply_edge(kernel, depth, from, b, c, tile->stride, least(rows, kernel->rows),
                              least(columns, kernel->columns), add);
            *next += kernel->fetched;
        }
    }
}

static void run_tile(const struct nest *nest, int64_t row_tile, int64_t column_tile, const char *a, const char *b,
                     float *values) {
    const struct tile_job *job = nest->job;
    struct tile tile = {.part = (int)(column_tile / nest->column_blocks),
                        .row = first_row(nest, row_tile),
                        .rows = rows_of(nest, row_tile),
                        .column = first_column(nest, column_tile),
                        .columns = columns_of(nest, column_tile),
                        .stride = cuts(nest->column_step, nest->kernel->columns) * nest->kernel->columns,
                        .values = values};
    if (!job->epilogue) {
        tile.stride = job->call->out[tile.part].stride;
        tile.values = (float *)job->call->out[tile.part].data + tile.row * tile.stride + tile.column;
    }
    for (int64_t block = 0; block < nest->all_k; block++)
        multiply_block(nest->kernel, depth_of(nest, block % nest->k_blocks), a + block * packed_bytes(nest, true),
                       b + block * packed_bytes(nest, false), &tile,
                       block > 0 || nest->k > 0 || (job->add && !job->epilogue), job->epilogue);
    if (job->epilogue)
        job->epilogue(job, &tile);
}

/* --- the work of a thread --- */

static void run_task(const struct nest *nest, int64_t drawn, int64_t group, const char *own, float *values) {
    int64_t shared = nest->draw_rows ? nest->column_tiles : nest->row_tiles;
    int64_t bytes = nest->all_k * packed_bytes(nest, !nest->draw_rows);
    for (int64_t i = group * shared / nest->groups; i < (group + 1) * shared / nest->groups; i++)
        if (nest->draw_rows)
            run_tile(nest, drawn, i, own, nest->shared + i * bytes, values);
        else
            run_tile(nest, i, drawn, nest->shared + i * bytes, own, values);
}

static void run_tasks(void *ctx, int64_t begin, int64_t end) {
    (void)begin, (void)end; /* threads, not tasks: those are drawn one by one */
    struct nest *nest = ctx;
    const struct kernel *kernel = nest->kernel;
    struct cpu *cpu = nest->job->cpu;
    int64_t packed = -1, bytes = packed_bytes(nest, nest->draw_rows);
    char *own = aligned(cpu_scratch(cpu, 0, floats_of(nest->all_k * bytes)));
    int64_t tile_floats = kernel->block_rows * cuts(nest->column_step, kernel->columns) * kernel->columns;
    float *values = aligned(cpu_scratch(cpu, 1, tile_floats + LINE));
    for (int64_t task; (task = atomic_fetch_add(&nest->next, 1)) < nest->tasks;) {
        int64_t drawn = task / nest->groups, group = task % nest->groups;
        for (int64_t block = 0; block < nest->all_k && drawn != packed; block++)
            pack(nest, nest->draw_rows, drawn, block, own + block * bytes, group == 0);
        packed = drawn;
        run_task(nest, drawn, group, own, values);
    }
}

/* --- slabs --- */

static void add_sums(const struct nest *nest) {
    const struct tile_job *job = nest->job;
    for (int64_t row = 0; row < job->rows; row++) {
        float sum = job->add || nest->k > 0 ? job->sums[row] : 0;
        for (int64_t block = 0; block < nest->k_blocks; block++)
            sum += nest->sums[block * job->rows + row];
        job->sums[row] = sum;
    }
}

/* Blocks that are drawn are narrow enough that every thread gets some; if they are still too few, what is shared is cut
 * into groups, and several threads may pack the same block. */
static void cut(struct nest *nest) {
    const struct tile_job *job = nest->job;
    int64_t wanted = (int64_t)TASKS * parallel_threads(), panel = nest->kernel->columns;
    int64_t columns = job->columns * job->parts, narrow = columns / wanted / panel * panel;
    nest->draw_rows = job->rows > columns;
    nest->column_step = job->column_step                      ? job->column_step
                        : nest->draw_rows || narrow > COLUMNS ? COLUMNS
                        : narrow < 2 * panel                  ? 2 * panel
                                                              : narrow;
    nest->column_blocks = cuts(job->columns, nest->column_step);
    nest->column_tiles = nest->column_blocks * job->parts;
    nest->row_tiles = cuts(job->rows, nest->kernel->block_rows);
    int64_t drawn = nest->draw_rows ? nest->row_tiles : nest->column_tiles;
    nest->groups = least(cuts(wanted, drawn), nest->row_tiles + nest->column_tiles - drawn);
    nest->tasks = drawn * nest->groups;
}

static void run_slab(struct nest *nest) {
    const struct tile_job *job = nest->job;
    nest->k_blocks = cuts(nest->depth, nest->kernel->depth);
    nest->all_k = job->terms * nest->k_blocks;
    int64_t blocks = (nest->draw_rows ? nest->column_tiles : nest->row_tiles) * nest->all_k;
    nest->shared = aligned(cpu_shared(job->cpu, 0, floats_of(blocks * packed_bytes(nest, !nest->draw_rows))));
    nest->sums = job->sums ? cpu_shared(job->cpu, 1, nest->k_blocks * job->rows) : NULL;
    parallel_for(blocks, 1, pack_shared, nest);
    atomic_store(&nest->next, 0);
    parallel_for(parallel_threads(), 1, run_tasks, nest);
    if (nest->sums)
        add_sums(nest);
}

status products_run(const struct kernel *kernel, const struct tile_job *job) {
    struct nest nest = {.kernel = kernel, .job = job};
    int weights = job->terms > 1 ? job->terms : job->parts;
    if (job->rows == 0)
        return OK;
    if (kernel->square)
        return squares_run(kernel, job);
    for (int t = 0; t < job->terms; t++)
        nest.a[t] = (struct matrix){job->x[t]->data, job->x[t]->dtype, job->down, job->x[t]->stride};
    for (int i = 0; i < weights; i++)
        nest.b[i] = (struct matrix){job->w[i]->data, job->w[i]->dtype, !job->transposed, job->w[i]->stride};
    cut(&nest);
    int64_t slab = job->down && !job->epilogue ? SLAB_DEPTH : job->k;
    for (; nest.k < job->k; nest.k += slab) {
        nest.depth = least(slab, job->k - nest.k);
        run_slab(&nest);
    }
    return OK;
}

/* --- a product of floats, packed on the stack --- */

struct small {
    const struct kernel *kernel;
    const struct product *product;
    struct matrix a, b;
    float *c;
};

static void run_small(void *ctx, int64_t begin, int64_t end) {
    enum { MOST_A = 160 << 10, MOST_B = 48 << 10 };
    const struct small *small = ctx;
    const struct kernel *kernel = small->kernel;
    const struct product *p = small->product;
    char a[MOST_A] __attribute__((aligned(LINE))), b[MOST_B] __attribute__((aligned(LINE)));
    for (int64_t row = begin; row < end; row += kernel->block_rows)
        for (int64_t k = 0; k < p->k; k += kernel->depth) {
            int64_t rows = least(end - row, kernel->block_rows), depth = least(p->k - k, kernel->depth);
            struct piece piece = {row, rows, k, depth};
            kernel->pack_a(&small->a, &piece, a, NULL);
            for (int64_t column = 0; column < p->n; column += kernel->columns) {
                struct tile tile = {.rows = rows,
                                    .columns = least(kernel->columns, p->n - column),
                                    .stride = p->stride_c,
                                    .values = small->c + row * p->stride_c + column};
                piece = (struct piece){column, tile.columns, k, depth};
                kernel->pack_b(&small->b, &piece, b);
                multiply_block(kernel, depth, a, b, &tile, p->add || k > 0, false);
            }
        }
}

void products_f32(const struct product *product, const float *a, const float *b, float *c) {
    const struct kernel *kernel = products_kernel(F32, F32);
    struct small small = {kernel,
                          product,
                          {a, F32, product->transpose_a, product->stride_a},
                          {b, F32, !product->transpose_b, product->stride_b},
                          c};
    parallel_for(product->m, kernel->block_rows, run_small, &small);
}
