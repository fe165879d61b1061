/* Contractions whose result is worked on tile by tile while it is still in the cache, before it is stored. */
#ifndef BERTH_KERNELS_CPU_TILES_H
#define BERTH_KERNELS_CPU_TILES_H

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/squares.h"

enum { TILE_ROWS = 256, TILE_COLUMNS = 256, MOST_TERMS = 3 };

/* A tile of the product number `part`: rows [row, row + rows) and columns [column, column + columns) stand in
 * values[rows][stride]. */
struct tile {
    int part;
    int64_t row, rows, column, columns, stride;
    float *values;
};

struct tile_job;
typedef void (*tile_epilogue)(const struct tile_job *job, const struct tile *tile);

/* y = sum over terms of op(x) op(w), for every part. x: [rows, k], or [k, rows] where it goes `down`; w: [n, k] where
 * `transposed`, else [k, n]. */
struct tile_job {
    struct cpu *cpu;
    const struct op_call *call;
    int parts, terms;
    const struct operand *x[MOST_TERMS], *w[MOST_TERMS]; /* [parts] or [terms]: one of both is 1 */
    bool down, transposed;
    int64_t rows, columns, k; /* rows and columns of y, true ones */
    int64_t column_step;      /* of a tile; 0: as is best, and different on other machines */
    /* NULL: y is call->out[part], of floats, and is added to where `add` */
    tile_epilogue epilogue;
    const struct operand *beside; /* what it reads or writes where its tile lies, beside its part of y; or NULL */
    bool add;
    float *sums; /* [rows] sums of op(x) over k, written or added to as y is; NULL: not wanted */
    void *context;
};
status tiles_run(const struct tile_job *job);

/* Jobs of an operator whose inputs are x and then its `parts` weights [n, k], or first its `terms` x and then as many
 * weights [k, n]; y is as large as its first output. */
struct tile_job forward_tiles(struct cpu *cpu, const struct op_call *call, int parts, tile_epilogue epilogue);
struct tile_job backward_tiles(struct cpu *cpu, const struct op_call *call, int terms, tile_epilogue epilogue);
/* The epilogue that only stores. */
void store_tile(const struct tile_job *job, const struct tile *tile);

/* linear_dw, and db = sum over rows of dy unless NULL: one pass over dy where the products are our own. */
status linear_dw_sums(struct cpu *cpu, const struct op_call *call, const struct operand *db);

/* Where columns from `column` on of a row stand. */
static inline void *segment(const struct operand *operand, int64_t row, int64_t column) {
    return (char *)operand->data + (size_t)(row_offset(operand, row) + column) * dtype_size(operand->dtype);
}

/* An epilogue from `name`_rows(job, tile, columns, dtype), compiled once more for squares of bf16. */
#define TILE_EPILOGUE(name)                                                                   \
    PER_ISA(void, name, (const struct tile_job *job, const struct tile *tile), (job, tile)) { \
        if (tile->columns == SIDE && job->call->out[tile->part].dtype == BF16)                \
            name##_rows(job, tile, SIDE, BF16);                                               \
        else                                                                                  \
            name##_rows(job, tile, tile->columns, job->call->out[tile->part].dtype);          \
    }

/* The whole operand as floats with a row stride: in place, or in shared scratch `slot`. A `down` operand is walked down
 * its columns: one whose rows lie whole pages apart is copied too, as it would meet the same few cache sets. */
const float *operand_floats(struct cpu *cpu, const struct operand *operand, int slot, bool down, int64_t *stride);

#endif
