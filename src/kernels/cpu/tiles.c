#include "kernels/cpu/tiles.h"

#include <stdatomic.h>
#include <stdio.h>

#include "kernels/cpu/contraction.h"
#include "kernels/cpu/products.h"

/* --- operands as floats --- */

struct conversion {
    const struct operand *operand;
    float *values; /* [padded_rows, stride] */
    int64_t stride;
};

static void to_float(void *ctx, int64_t begin, int64_t end) {
    const struct conversion *job = ctx;
    const struct operand *operand = job->operand;
    for (int64_t row = begin; row < end; row++)
        floats_copy(operand->data, operand->dtype, row_offset(operand, row), operand->columns,
                    job->values + row * job->stride);
}

static bool is_whole_pages(int64_t floats) { return floats * (int64_t)sizeof(float) % 4096 == 0; }

const float *operand_floats(struct cpu *cpu, const struct operand *operand, int slot, bool down, int64_t *stride) {
    *stride = operand->stride;
    if (operand->dtype == F32 && !(down && is_whole_pages(operand->stride)))
        return operand->data;
    *stride = operand->columns + (down && is_whole_pages(operand->columns) ? 16 : 0);
    struct conversion job = {operand, cpu_shared(cpu, slot, operand->padded_rows * *stride), *stride};
    parallel_for(operand->padded_rows, 16, to_float, &job);
    return job.values;
}

/* --- jobs --- */

CPU_BODY void store_tile_rows(const struct tile_job *job, const struct tile *tile, int64_t columns, enum dtype dtype) {
    for (int64_t r = 0; r < tile->rows; r++)
        numbers_write(segment(&job->call->out[tile->part], tile->row + r, tile->column), dtype, columns,
                      tile->values + r * tile->stride);
}
TILE_EPILOGUE(store_tile)

struct tile_job forward_tiles(struct cpu *cpu, const struct op_call *call, int parts, tile_epilogue epilogue) {
    struct tile_job job = {.cpu = cpu,
                           .call = call,
                           .parts = parts,
                           .terms = 1,
                           .x = {&call->in[0]},
                           .transposed = true,
                           .rows = call->out[0].rows,
                           .columns = call->out[0].columns,
                           .k = call->in[0].columns,
                           .epilogue = epilogue};
    for (int i = 0; i < parts; i++)
        job.w[i] = &call->in[1 + i];
    return job;
}

struct tile_job backward_tiles(struct cpu *cpu, const struct op_call *call, int terms, tile_epilogue epilogue) {
    struct tile_job job = {.cpu = cpu,
                           .call = call,
                           .parts = 1,
                           .terms = terms,
                           .rows = call->out[0].rows,
                           .columns = call->out[0].columns,
                           .k = call->in[0].columns,
                           .epilogue = epilogue};
    for (int i = 0; i < terms; i++) {
        job.x[i] = &call->in[i];
        job.w[i] = &call->in[terms + i];
    }
    return job;
}

/* --- tiles by the library --- */

struct run {
    const struct tile_job *job;
    const float *x[MOST_TERMS], *w[MOST_TERMS];
    int64_t x_stride[MOST_TERMS], w_stride[MOST_TERMS];
    int64_t row_tiles, column_tiles;
    atomic_flag failed;
    status code; /* and message: of the first tile that failed */
    char message[256];
};

static status run_tile(const struct run *run, int64_t number) {
    const struct tile_job *job = run->job;
    int64_t row_tile = number % run->row_tiles, rest = number / run->row_tiles;
    struct tile tile = {.part = (int)(rest / run->column_tiles),
                        .row = row_tile * TILE_ROWS,
                        .column = rest % run->column_tiles * TILE_COLUMNS,
                        .stride = TILE_COLUMNS};
    tile.rows = job->rows - tile.row < TILE_ROWS ? job->rows - tile.row : TILE_ROWS;
    tile.columns = job->columns - tile.column < TILE_COLUMNS ? job->columns - tile.column : TILE_COLUMNS;
    tile.values = cpu_scratch(job->cpu, 0, TILE_ROWS * TILE_COLUMNS);
    for (int t = 0; t < job->terms; t++) {
        int which = job->terms > 1 ? t : tile.part, input = job->terms > 1 ? t : 0;
        struct product product = {.transpose_b = job->transposed,
                                  .add = t > 0,
                                  .m = tile.rows,
                                  .n = tile.columns,
                                  .k = job->k,
                                  .stride_a = run->x_stride[input],
                                  .stride_b = run->w_stride[which],
                                  .stride_c = tile.stride};
        const float *w = run->w[which] + (job->transposed ? tile.column * run->w_stride[which] : tile.column);
        TRY(contract_f32(&product, run->x[input] + tile.row * run->x_stride[input], w, tile.values));
    }
    job->epilogue(job, &tile);
    return OK;
}

static void run_tiles(void *ctx, int64_t begin, int64_t end) {
    struct run *run = ctx;
    for (int64_t number = begin; number < end; number++) {
        status code = run_tile(run, number);
        if (code != OK && !atomic_flag_test_and_set(&run->failed)) {
            run->code = code;
            snprintf(run->message, sizeof run->message, "%s", status_message());
        }
    }
}

static status run_library(const struct tile_job *job) {
    struct run run = {.job = job, .failed = ATOMIC_FLAG_INIT};
    int weights = job->terms > 1 ? job->terms : job->parts;
    for (int t = 0; t < job->terms; t++)
        run.x[t] = operand_floats(job->cpu, job->x[t], t, false, &run.x_stride[t]);
    for (int i = 0; i < weights; i++)
        run.w[i] = operand_floats(job->cpu, job->w[i], MOST_TERMS + i, false, &run.w_stride[i]);
    run.row_tiles = (job->rows + TILE_ROWS - 1) / TILE_ROWS;
    run.column_tiles = (job->columns + TILE_COLUMNS - 1) / TILE_COLUMNS;
    parallel_for(run.row_tiles * run.column_tiles * job->parts, 1, run_tiles, &run);
    return run.code == OK ? OK : status_set(run.code, run.message);
}

status tiles_run(const struct tile_job *job) {
    const struct kernel *kernel = products_kernel(job->x[0]->dtype, job->w[0]->dtype);
    TRY(kernel ? products_run(kernel, job) : run_library(job));
    for (int i = 0; i < op_info(job->call->op)->outputs; i++)
        cpu_zero_tail(&job->call->out[i]);
    return OK;
}
