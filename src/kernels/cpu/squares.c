/* The loop nests of squares.h. y = x w: threads draw blocks of rows; every panel of 32 columns of w passes by a block,
 * which stays in the second-level cache; a tile of finished sums is a row of few squares, small enough for the
 * first-level cache, and its epilogue goes on while the next one is multiplied. dw = dy^T x: threads draw blocks of
 * dw's rows, whose part of dy is packed while the block before is multiplied. */
#include "kernels/cpu/squares.h"

#include <stdatomic.h>

#include "base/parallel.h"
#include "kernels/cpu/products.h"

enum {
    BLOCK_BYTES = 1 << 20, /* of a packed block: half of the second-level cache */
    BLOCK_ROWS = 256,
    FEW_ROWS = 512, /* are one block, and threads draw columns */
    /* of the panels of a tile, which are used again and again; more columns, but not too many, are written in longer
     * runs: memory takes single lines far apart at a tenth of its rate */
    PANELS_BYTES = 200 << 10,
    MOST_PANELS = 8,
    SLAB_DEPTH = 2048, /* rows of dy and x at a time */
    TASKS = 8,         /* a thread at least, to even out cores that are taken away */
    LINE = 64          /* bytes */
};

/* One side of the product: where its squares are. Packed: [panel][terms][k / 32] squares. */
struct side {
    struct matrix matrices[MOST_TERMS];
    int64_t lines;
    char *packed;
};

struct nest {
    const struct kernel *kernel;
    const struct tile_job *job;
    struct side a, b;
    int64_t k, depth, steps, all_steps; /* a slab of k and its steps: of one term, of all */
    int64_t packed_row;                 /* rows from here on are packed, in a.packed; those above are read in place */
    int64_t block_rows, row_blocks;
    int64_t column_step, column_tiles; /* of all parts */
    int64_t groups, tasks;             /* a task is a block of rows and a group of column tiles */
    bool shares_b;                     /* packed once for all; or by each task for itself */
    float *sums;                       /* [rows] of this slab, or NULL */
    _Atomic int64_t next;
};

/* What a thread has under way. */
struct work {
    struct interlude interlude; /* first: its `run` is given this one */
    struct nest *nest;
    /* y: the tile before, whose epilogue is not done, and the one that is being made */
    struct tile before, tile;
    float *values[2];
    char *own; /* a task's panels of b */
    /* dw: the blocks at hand and next, packed, with sums of their lines */
    int64_t blocks[2];
    char *packed[2];
    float (*lanes[2])[SUM_LANES];
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t cuts(int64_t whole, int64_t part) { return (whole + part - 1) / part; }
static int64_t up_to(int64_t n, int64_t step) { return cuts(n, step) * step; }

/* Scratch is aligned for floats only. */
static void *aligned(float *scratch) { return (void *)(((uintptr_t)scratch + LINE - 1) / LINE * LINE); }
static int64_t floats_of(int64_t bytes) { return (bytes + LINE) / (int64_t)sizeof(float); }

static int64_t panel_bytes(const struct nest *nest) { return nest->all_steps * SQUARE_BYTES; }

/* --- packing --- */

static void pack_square(const struct nest *nest, const struct matrix *m, int64_t line, int64_t lines, int64_t step,
                        bool left, char *to) {
    struct piece piece = {line, lines - line, nest->k + step * SIDE, nest->depth - step * SIDE};
    nest->kernel->pack_square(m, &piece, left, to);
}

/* 32 lines of a, or of b's part. Along the rows of memory. */
static void pack_panel(const struct nest *nest, bool left, int part, int64_t line, char *to) {
    const struct side *side = left ? &nest->a : &nest->b;
    for (int term = 0; term < nest->job->terms; term++)
        for (int64_t step = 0; step < nest->steps; step++, to += SQUARE_BYTES)
            pack_square(nest, &side->matrices[term + part], line, side->lines, step, left, to);
}

static int64_t panels_of_part(const struct nest *nest) { return cuts(nest->b.lines, SIDE); }

static void pack_shared(void *ctx, int64_t begin, int64_t end) {
    const struct nest *nest = ctx;
    const int64_t of_b = nest->shares_b ? panels_of_part(nest) * nest->job->parts : 0;
    for (int64_t i = begin; i < end; i++)
        if (i < of_b)
            pack_panel(nest, false, (int)(i / panels_of_part(nest)), i % panels_of_part(nest) * SIDE,
                       nest->b.packed + i * panel_bytes(nest));
        else
            pack_panel(nest, true, 0, nest->packed_row + (i - of_b) * SIDE,
                       nest->a.packed + (i - of_b) * panel_bytes(nest));
}

/* Panels of x for dw: a row of memory is one step of k of all panels. */
static void pack_steps(void *ctx, int64_t begin, int64_t end) {
    const struct nest *nest = ctx;
    for (int64_t step = begin; step < end; step++)
        for (int64_t line = 0; line < nest->b.lines; line += SIDE)
            pack_square(nest, &nest->b.matrices[0], line, nest->b.lines, step, false,
                        nest->b.packed + line / SIDE * panel_bytes(nest) + step * SQUARE_BYTES);
}

/* --- a square --- */

/* Sums over all terms of 32 rows from `row` on and a panel of b. */
static void multiply(const struct nest *nest, int64_t row, const char *b, float *c, int64_t c_row, const char *next,
                     int lines, struct interlude *interlude) {
    struct square square = {.steps = nest->all_steps,
                            .a = nest->a.packed + (row - nest->packed_row) / SIDE * panel_bytes(nest),
                            .a_line = LINE,
                            .a_low = SQUARE_BYTES / 2,
                            .a_step = SQUARE_BYTES,
                            .b = b,
                            .b_right = SQUARE_BYTES / 2,
                            .b_step = SQUARE_BYTES,
                            .c = c,
                            .c_row = c_row,
                            .next = next,
                            .lines = lines,
                            .interlude = interlude};
    if (row >= nest->packed_row) {
        nest->kernel->square(&square);
        return;
    }
    square.steps = nest->steps;
    for (int term = 0; term < nest->job->terms; term++) {
        const struct matrix *a = &nest->a.matrices[term];
        square.a = (const char *)((const bf16 *)a->data + row * a->stride);
        square.a_line = a->stride * (int64_t)sizeof(bf16), square.a_low = SIDE / 2 * square.a_line,
        square.a_step = LINE;
        nest->kernel->square(&square);
        square.b += nest->steps * SQUARE_BYTES, square.next += nest->steps * lines * LINE, square.add = true;
    }
}

/* --- y = x w --- */

/* Asks for what an epilogue will read and write beside the sums: rows too far apart for the processor to foresee. */
static void fetch_rows(const struct operand *operand, const struct tile *tile, int64_t row, int64_t count) {
    const int64_t size = (int64_t)dtype_size(operand->dtype);
    for (int64_t r = row; r < row + count && r < tile->rows; r++) {
        const char *from = (const char *)operand->data + (row_offset(operand, tile->row + r) + tile->column) * size;
        for (int64_t at = 0; at < tile->columns * size; at += LINE)
            __builtin_prefetch(from + at, 1);
    }
}

static void run_epilogue(struct interlude *interlude, int64_t count) {
    struct work *work = (struct work *)interlude;
    const struct tile_job *job = work->nest->job;
    struct tile rows = work->before;
    int64_t row = rows.rows - interlude->left;
    fetch_rows(&job->call->out[work->tile.part], &work->tile, row, count);
    if (job->beside)
        fetch_rows(job->beside, &work->tile, row, count);
    rows.row += row, rows.values += row * rows.stride, rows.rows = count;
    job->epilogue(job, &rows);
}

static void finish(struct work *work) {
    if (work->interlude.left > 0)
        work->interlude.run(&work->interlude, work->interlude.left);
    work->interlude.left = 0;
}

/* `pieces` of work while `steps` steps of k are multiplied. */
static void put_off(struct interlude *interlude, void (*run)(struct interlude *, int64_t), int64_t pieces,
                    int64_t steps) {
    *interlude = (struct interlude){.run = run, .left = pieces, .count = cuts(pieces, steps)};
    interlude->every = most(1, steps * interlude->count / most(pieces, 1));
}

/* Which columns a tile has; its number counts through all parts. */
static struct tile tile_of(const struct nest *nest, int64_t number) {
    int64_t of_part = nest->column_tiles / nest->job->parts;
    struct tile tile = {.part = (int)(number / of_part), .column = number % of_part * nest->column_step};
    tile.columns = least(nest->column_step, nest->b.lines - tile.column);
    tile.stride = up_to(tile.columns, SIDE);
    return tile;
}

/* The panels of a column tile: shared, or packed here. */
static const char *panels_of(struct work *work, const struct tile *tile) {
    const struct nest *nest = work->nest;
    if (nest->shares_b)
        return nest->b.packed + (tile->part * panels_of_part(nest) + tile->column / SIDE) * panel_bytes(nest);
    for (int64_t column = 0; column < tile->columns; column += SIDE)
        pack_panel(nest, false, tile->part, tile->column + column, work->own + column / SIDE * panel_bytes(nest));
    return work->own;
}

/* All rows of a block with one tile's columns. The squares fetch the panels of the next tile, in equal parts. */
static void run_columns(struct work *work, int64_t first, int64_t end, int64_t number) {
    const struct nest *nest = work->nest;
    struct tile tile = tile_of(nest, number);
    const char *panels = panels_of(work, &tile);
    const int64_t squares = cuts(end - first, SIDE) * tile.stride / SIDE,
                  bytes = tile.stride / SIDE * panel_bytes(nest);
    const int lines = nest->shares_b ? (int)cuts(bytes / LINE, squares * nest->all_steps) : 0;
    const char *next = panels + bytes, *last = next + bytes;
    for (int64_t row = first; row < end; row += SIDE) {
        tile.row = row, tile.rows = least(SIDE, end - row), tile.values = work->values[0];
        work->tile = tile;
        for (int64_t column = 0; column < tile.columns; column += SIDE) {
            multiply(nest, row, panels + column / SIDE * panel_bytes(nest), tile.values + column, tile.stride, next,
                     next < last ? lines : 0, &work->interlude);
            next += nest->all_steps * lines * LINE;
        }
        finish(work);
        work->before = tile, work->values[0] = work->values[1], work->values[1] = tile.values;
        put_off(&work->interlude, run_epilogue, tile.rows, tile.stride / SIDE * nest->all_steps);
    }
}

static void run_rows(void *ctx, int64_t begin, int64_t end) {
    (void)begin, (void)end; /* threads, not tasks: those are drawn one by one */
    struct nest *nest = ctx;
    struct cpu *cpu = nest->job->cpu;
    const int64_t floats = SIDE * up_to(nest->column_step, SIDE);
    float *values = aligned(cpu_scratch(cpu, 1, 2 * floats + LINE));
    int64_t own = nest->shares_b ? 0 : cuts(nest->column_step, SIDE) * panel_bytes(nest);
    struct work work = {
        .nest = nest, .values = {values, values + floats}, .own = aligned(cpu_scratch(cpu, 0, floats_of(own)))};
    nest->kernel->begin();
    for (int64_t task; (task = atomic_fetch_add(&nest->next, 1)) < nest->tasks;) {
        int64_t first = task / nest->groups * nest->block_rows, group = task % nest->groups,
                last = (group + 1) * nest->column_tiles / nest->groups;
        for (int64_t number = group * nest->column_tiles / nest->groups; number < last; number++)
            run_columns(&work, first, least(first + nest->block_rows, nest->a.lines), number);
    }
    finish(&work);
    nest->kernel->end();
}

static void product(struct nest *nest) {
    const struct tile_job *job = nest->job;
    const int64_t wanted = (int64_t)TASKS * parallel_threads();
    const int64_t fitting = most(BLOCK_BYTES / panel_bytes(nest), 1) * SIDE; /* its panel would be as large packed */
    nest->block_rows =
        job->rows <= FEW_ROWS && job->rows <= fitting ? up_to(job->rows, SIDE) : least(BLOCK_ROWS, fitting);
    nest->row_blocks = cuts(job->rows, nest->block_rows);
    nest->shares_b = nest->row_blocks > 1;
    nest->column_step =
        job->column_step ? job->column_step : SIDE * most(1, least(MOST_PANELS, PANELS_BYTES / panel_bytes(nest)));
    nest->column_tiles = cuts(job->columns, nest->column_step) * job->parts;
    nest->groups = least(cuts(wanted, nest->row_blocks), nest->column_tiles);
    nest->tasks = nest->row_blocks * nest->groups;
    nest->packed_row = nest->depth % SIDE ? 0 : job->rows / SIDE * SIDE; /* rows or ends of rows that are not whole */
    const int64_t of_a = cuts(job->rows - nest->packed_row, SIDE),
                  of_b = nest->shares_b ? panels_of_part(nest) * job->parts : 0;
    nest->b.packed = aligned(cpu_shared(job->cpu, 0, floats_of((of_a + of_b) * panel_bytes(nest))));
    nest->a.packed = nest->b.packed + of_b * panel_bytes(nest);
    parallel_for(of_a + of_b, 1, pack_shared, nest);
    parallel_for(parallel_threads(), 1, run_rows, nest);
}

/* --- dw = dy^T x, to memory --- */

static int64_t rows_of(const struct nest *nest, int64_t block) {
    return least(nest->block_rows, nest->a.lines - block * nest->block_rows);
}

/* Squares of the block to come, in the order of dy's memory. */
static void pack_next(struct interlude *interlude, int64_t count) {
    struct work *work = (struct work *)interlude;
    const struct nest *nest = work->nest;
    const int64_t first = work->blocks[1] * nest->block_rows, slivers = cuts(rows_of(nest, work->blocks[1]), SIDE);
    for (int64_t i = slivers * nest->steps - interlude->left; count > 0; i++, count--) {
        int64_t sliver = i % slivers, step = i / slivers;
        char *to = work->packed[1] + sliver * panel_bytes(nest) + step * SQUARE_BYTES;
        pack_square(nest, &nest->a.matrices[0], first + sliver * SIDE, nest->a.lines, step, true, to);
        if (nest->sums)
            nest->kernel->sum_square(to, work->lanes[1] + sliver * SIDE);
    }
}

static void store_sums(const struct nest *nest, int64_t block, float lanes[][SUM_LANES]) {
    const int64_t first = block * nest->block_rows;
    for (int64_t row = 0; row < rows_of(nest, block); row++) {
        float sum = nest->job->add || nest->k > 0 ? nest->job->sums[first + row] : 0;
        for (int lane = 0; lane < SUM_LANES; lane++)
            sum += lanes[row][lane];
        nest->job->sums[first + row] = sum;
    }
}

/* Begins to pack the next block that there is, during `steps` steps. */
static void draw(struct work *work, int64_t steps) {
    struct nest *nest = work->nest;
    work->blocks[1] = atomic_fetch_add(&nest->next, 1);
    work->interlude.left = 0;
    if (work->blocks[1] >= nest->row_blocks)
        return;
    memset(work->lanes[1], 0, (size_t)nest->block_rows * sizeof *work->lanes[1]);
    put_off(&work->interlude, pack_next, cuts(rows_of(nest, work->blocks[1]), SIDE) * nest->steps, steps);
}

/* Sums of a square to dw; if less than a square is wanted, by way of a buffer. */
static void square_to(const struct work *work, const char *a, const char *b, int64_t row, int64_t column,
                      const char *next, int lines) {
    const struct nest *nest = work->nest;
    const struct operand *dw = &nest->job->call->out[0];
    const int64_t rows = least(SIDE, nest->a.lines - row), columns = least(SIDE, nest->b.lines - column);
    const bool whole = rows == SIDE && columns == SIDE, add = nest->job->add || nest->k > 0;
    float buffer[SIDE * SIDE], *c = (float *)dw->data + row * dw->stride + column;
    struct square square = {nest->steps,
                            a,
                            LINE,
                            SQUARE_BYTES / 2,
                            SQUARE_BYTES,
                            b,
                            SQUARE_BYTES / 2,
                            SQUARE_BYTES,
                            whole ? c : buffer,
                            whole ? dw->stride : SIDE,
                            whole && add,
                            next,
                            lines,
                            (struct interlude *)&work->interlude};
    nest->kernel->square(&square);
    for (int64_t r = 0; r < rows && !whole; r++)
        for (int64_t j = 0; j < columns; j++)
            c[r * dw->stride + j] = (add ? c[r * dw->stride + j] : 0) + buffer[r * SIDE + j];
}

static void run_block(const struct work *work) {
    const struct nest *nest = work->nest;
    const int64_t first = work->blocks[0] * nest->block_rows, rows = rows_of(nest, work->blocks[0]),
                  bytes = panel_bytes(nest);
    const int lines = (int)cuts(SQUARE_BYTES / LINE, cuts(rows, SIDE));
    const char *b = nest->b.packed;
    for (int64_t column = 0; column < nest->b.lines; column += SIDE, b += bytes) {
        const char *next = b + bytes, *last = next + bytes;
        for (int64_t row = 0; row < rows; row += SIDE, next += nest->steps * lines * LINE)
            square_to(work, work->packed[0] + row / SIDE * bytes, b, first + row, column, next,
                      next < last ? lines : 0);
    }
}

static void run_blocks(void *ctx, int64_t begin, int64_t end) {
    (void)begin, (void)end;
    struct nest *nest = ctx;
    struct cpu *cpu = nest->job->cpu;
    const int64_t bytes = nest->block_rows / SIDE * panel_bytes(nest), floats = nest->block_rows * SUM_LANES;
    char *packed = aligned(cpu_scratch(cpu, 0, floats_of(2 * bytes)));
    float *lanes = aligned(cpu_scratch(cpu, 1, 2 * floats + LINE));
    struct work work = {.nest = nest,
                        .packed = {packed, packed + bytes},
                        .lanes = {(float(*)[SUM_LANES])lanes, (float(*)[SUM_LANES])(lanes + floats)}};
    nest->kernel->begin();
    draw(&work, 1);
    while (work.blocks[1] < nest->row_blocks) {
        finish(&work);
        packed = work.packed[0], work.packed[0] = work.packed[1], work.packed[1] = packed;
        float(*swap)[SUM_LANES] = work.lanes[0];
        work.lanes[0] = work.lanes[1], work.lanes[1] = swap;
        work.blocks[0] = work.blocks[1];
        if (nest->sums)
            store_sums(nest, work.blocks[0], work.lanes[0]);
        draw(&work, cuts(rows_of(nest, work.blocks[0]), SIDE) * panels_of_part(nest) * nest->steps);
        run_block(&work);
    }
    nest->kernel->end();
}

static void gradient(struct nest *nest) {
    const struct tile_job *job = nest->job;
    const int64_t fitting = most(BLOCK_BYTES / 2 / panel_bytes(nest), 1) * SIDE,
                  fair = up_to(cuts(job->rows, (int64_t)TASKS / 2 * parallel_threads()), SIDE);
    nest->block_rows = least(BLOCK_ROWS, least(fitting, most(fair, 2 * SIDE)));
    nest->row_blocks = cuts(job->rows, nest->block_rows);
    nest->sums = job->sums;
    nest->b.packed = aligned(cpu_shared(job->cpu, 0, floats_of(panels_of_part(nest) * panel_bytes(nest))));
    parallel_for(nest->steps, 1, pack_steps, nest);
    parallel_for(parallel_threads(), 1, run_blocks, nest);
}

status squares_run(const struct kernel *kernel, const struct tile_job *job) {
    struct nest nest = {.kernel = kernel, .job = job, .a.lines = job->rows, .b.lines = job->columns};
    const int weights = job->terms > 1 ? job->terms : job->parts;
    for (int t = 0; t < job->terms; t++)
        nest.a.matrices[t] = (struct matrix){job->x[t]->data, job->x[t]->dtype, job->down, job->x[t]->stride};
    for (int i = 0; i < weights; i++)
        nest.b.matrices[i] = (struct matrix){job->w[i]->data, job->w[i]->dtype, !job->transposed, job->w[i]->stride};
    const int64_t slab = job->down ? SLAB_DEPTH : job->k;
    for (; nest.k < job->k; nest.k += slab) {
        nest.depth = least(slab, job->k - nest.k);
        nest.steps = cuts(nest.depth, SIDE), nest.all_steps = job->terms * nest.steps;
        atomic_store(&nest.next, 0);
        (job->down ? gradient : product)(&nest);
    }
    return OK;
}
