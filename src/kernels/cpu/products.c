/* The loop nest of our own products. Operand a (activations) is packed once for all threads, in blocks; then threads
 * draw blocks of columns: each packs its part of b (weights), of all k, for itself, which lies in the second-level
 * cache while the rows pass by. A tile is [block_rows, columns of the block]; its sums over k run block after block in
 * fixed order, whoever computes it, and the epilogue follows while it is in the cache. */
#include "kernels/cpu/products.h"

#include <stdatomic.h>

#include "kernels/cpu/contraction.h"

enum {
    SLAB_ROWS = 2048,      /* of a, packed at a time, */
    SLAB_FLOATS = 8 << 20, /* and no more than this, so that it stays in the last-level cache */
    SLAB_DEPTH = 2048,     /* of a product that adds to memory anyway */
    TASKS = 8,             /* a thread at least, to even out cores that are taken away */
    LINE = 64,             /* bytes: packed operands begin with a cache line */
    MOST_C = 1024          /* floats that a micro-kernel makes */
};

struct nest {
    const struct kernel *kernel;
    const struct tile_job *job;
    struct matrix a[MOST_TERMS], b[MOST_TERMS];
    int64_t row, rows, k, depth; /* the slab: rows [row, row + rows) of c, and of every term k [k, k + depth) */
    int64_t row_tiles, k_blocks; /* k_blocks: of one term */
    int64_t column_step, column_blocks, row_groups, tasks; /* column_blocks: of one part */
    char *packed_a;
    float *sums; /* [k_blocks][row_tiles * block_rows], or NULL */
    _Atomic int64_t next;
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t cuts(int64_t whole, int64_t part) { return (whole + part - 1) / part; }

/* Scratch is aligned for floats; packed operands want whole cache lines. */
static void *aligned(float *scratch) { return (void *)(((uintptr_t)scratch + LINE - 1) / LINE * LINE); }

static int64_t floats_of(int64_t bytes) { return (bytes + LINE) / (int64_t)sizeof(float); }

/* --- packing --- */

static struct piece piece_of(const struct nest *nest, int64_t line, int64_t lines, int64_t k_block) {
    int64_t k = k_block * nest->kernel->depth;
    return (struct piece){line, lines, nest->k + k, least(nest->kernel->depth, nest->depth - k)};
}

/* A block is number (row tile, term, block of k). */
static void pack_blocks(void *ctx, int64_t begin, int64_t end) {
    const struct nest *nest = ctx;
    int64_t rows = nest->kernel->block_rows;
    for (int64_t number = begin; number < end; number++) {
        int64_t k_block = number % nest->k_blocks, rest = number / nest->k_blocks;
        int64_t term = rest % nest->job->terms, line = rest / nest->job->terms * rows;
        struct piece piece = piece_of(nest, nest->row + line, least(rows, nest->rows - line), k_block);
        float *sums = nest->sums ? nest->sums + k_block * nest->row_tiles * rows + line : NULL;
        nest->kernel->pack_a(&nest->a[term], &piece, nest->packed_a + number * nest->kernel->a_block, sums);
    }
}

static int64_t panels_of(const struct nest *nest) { return cuts(nest->column_step, nest->kernel->columns); }

/* Panels of b are number (term, block of k, panel). */
static void pack_columns(const struct nest *nest, int part, int64_t column, int64_t columns, char *to) {
    int64_t block = panels_of(nest) * nest->kernel->b_panel;
    for (int term = 0; term < nest->job->terms; term++)
        for (int64_t k_block = 0; k_block < nest->k_blocks; k_block++, to += block) {
            struct piece piece = piece_of(nest, column, columns, k_block);
            nest->kernel->pack_b(&nest->b[nest->job->terms > 1 ? term : part], &piece, to);
        }
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

static void run_tile(const struct nest *nest, int64_t row_tile, struct tile *tile, const char *packed_b) {
    const struct kernel *kernel = nest->kernel;
    const struct tile_job *job = nest->job;
    int64_t line = row_tile * kernel->block_rows, blocks = job->terms * nest->k_blocks;
    tile->row = nest->row + line;
    tile->rows = least(kernel->block_rows, nest->rows - line);
    if (!job->epilogue) {
        tile->stride = job->columns;
        tile->values = (float *)job->call->out[tile->part].data + tile->row * tile->stride + tile->column;
    }
    const char *a = nest->packed_a + row_tile * blocks * kernel->a_block;
    for (int64_t block = 0; block < blocks; block++)
        multiply_block(kernel, piece_of(nest, 0, 0, block % nest->k_blocks).depth, a + block * kernel->a_block,
                       packed_b + block * panels_of(nest) * kernel->b_panel, tile,
                       block > 0 || nest->k > 0 || (job->add && !job->epilogue), job->epilogue);
    if (job->epilogue)
        job->epilogue(job, tile);
}

/* --- the work of a thread --- */

static int64_t b_bytes(const struct nest *nest) {
    return nest->job->terms * nest->k_blocks * panels_of(nest) * nest->kernel->b_panel;
}

static void run_tasks(void *ctx, int64_t begin, int64_t end) {
    (void)begin, (void)end; /* threads, not tasks: those are drawn one by one */
    struct nest *nest = ctx;
    const struct tile_job *job = nest->job;
    int64_t packed = -1, width = panels_of(nest) * nest->kernel->columns;
    char *b = aligned(cpu_scratch(job->cpu, 0, floats_of(b_bytes(nest))));
    int64_t tile_bytes = nest->kernel->block_rows * width * (int64_t)sizeof(float);
    float *values = job->epilogue ? aligned(cpu_scratch(job->cpu, 1, floats_of(tile_bytes))) : NULL;
    if (nest->kernel->begin)
        nest->kernel->begin();
    for (int64_t task; (task = atomic_fetch_add(&nest->next, 1)) < nest->tasks;) {
        int64_t block = task / nest->row_groups, group = task % nest->row_groups;
        struct tile tile = {.part = (int)(block / nest->column_blocks),
                            .column = block % nest->column_blocks * nest->column_step,
                            .values = values,
                            .stride = width};
        tile.columns = least(nest->column_step, job->columns - tile.column);
        if (block != packed)
            pack_columns(nest, tile.part, tile.column, tile.columns, b);
        packed = block;
        for (int64_t row_tile = group * nest->row_tiles / nest->row_groups;
             row_tile < (group + 1) * nest->row_tiles / nest->row_groups; row_tile++)
            run_tile(nest, row_tile, &tile, b);
    }
    if (nest->kernel->end)
        nest->kernel->end();
}

/* --- slabs --- */

static void add_sums(const struct nest *nest) {
    float *to = nest->job->sums;
    for (int64_t row = 0; row < nest->rows; row++) {
        float sum = nest->job->add || nest->k > 0 ? to[nest->row + row] : 0;
        for (int64_t block = 0; block < nest->k_blocks; block++)
            sum += nest->sums[block * nest->row_tiles * nest->kernel->block_rows + row];
        to[nest->row + row] = sum;
    }
}

/* Blocks of columns narrow enough that every thread gets some tasks; then groups of rows, if they are still too few. */
static void cut(struct nest *nest) {
    const struct tile_job *job = nest->job;
    int64_t wanted = (int64_t)TASKS * parallel_threads(), panel = nest->kernel->columns;
    int64_t narrow = job->columns * job->parts / wanted / panel * panel;
    nest->column_step =
        job->column_step ? job->column_step : least(narrow < 2 * panel ? 2 * panel : narrow, TILE_COLUMNS);
    nest->column_blocks = cuts(job->columns, nest->column_step);
    nest->row_groups = least(nest->row_tiles, cuts(wanted, nest->column_blocks * job->parts));
    nest->tasks = nest->column_blocks * job->parts * nest->row_groups;
}

static void run_slab(struct nest *nest) {
    const struct tile_job *job = nest->job;
    nest->row_tiles = cuts(nest->rows, nest->kernel->block_rows);
    nest->k_blocks = cuts(nest->depth, nest->kernel->depth);
    cut(nest);
    int64_t blocks = nest->row_tiles * job->terms * nest->k_blocks;
    nest->packed_a = aligned(cpu_shared(job->cpu, 0, floats_of(blocks * nest->kernel->a_block)));
    if (job->sums)
        nest->sums = cpu_shared(job->cpu, 1, nest->k_blocks * nest->row_tiles * nest->kernel->block_rows);
    parallel_for(blocks, 1, pack_blocks, nest);
    if (job->sums)
        add_sums(nest);
    atomic_store(&nest->next, 0);
    parallel_for(parallel_threads(), 1, run_tasks, nest);
}

status products_run(const struct kernel *kernel, const struct tile_job *job) {
    struct nest nest = {.kernel = kernel, .job = job};
    if (job->rows == 0)
        return OK;
    int weights = job->terms > 1 ? job->terms : job->parts;
    for (int t = 0; t < job->terms; t++)
        nest.a[t] = (struct matrix){job->x[t]->data, job->x[t]->dtype, job->down, job->x[t]->columns};
    for (int i = 0; i < weights; i++)
        nest.b[i] = (struct matrix){job->w[i]->data, job->w[i]->dtype, !job->transposed, job->w[i]->columns};
    int64_t slab_depth = job->down && !job->epilogue ? least(job->k, SLAB_DEPTH) : job->k;
    int64_t most = least(SLAB_FLOATS / (job->terms * slab_depth), SLAB_ROWS);
    int64_t slabs = cuts(job->rows, most < kernel->block_rows ? kernel->block_rows : most);
    int64_t slab_rows = cuts(cuts(job->rows, slabs), kernel->block_rows) * kernel->block_rows;
    for (nest.k = 0; nest.k < job->k; nest.k += slab_depth)
        for (nest.row = 0; nest.row < job->rows; nest.row += slab_rows) {
            nest.depth = least(slab_depth, job->k - nest.k);
            nest.rows = least(slab_rows, job->rows - nest.row);
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
