/* Our own products beside the library's.
 *
 *   test_products              every instruction set, also those that this processor lacks, on shapes with tails
 *   test_products perf [PART]  one line a shape whose name holds PART: "gemm NAME berth library ratio", GFLOP/s; best
 * of rounds that alternate between the two */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "base/philox.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/products.h"

static struct backend *backend;

/* --- operands --- */

/* [rows, columns] of noise, with rows of zeros up to the padded ones as op.def wants it */
static struct operand operand_new(int64_t rows, int64_t padded_rows, int64_t columns, enum dtype dtype, uint64_t seed) {
    struct operand operand = {NULL, dtype, rows, padded_rows, columns};
    struct random_stream random = random_open(seed, RANDOM_TEST, 0);
    operand.data = xcalloc((size_t)(padded_rows * columns) + 1, dtype_size(dtype));
    for (int64_t at = 0; at < rows * columns; at++) {
        float value = (float)random_below(&random, 2001) / 1000 - 1;
        floats_write(operand.data, dtype, at, 1, &value);
    }
    return operand;
}

/* --- perf --- */

enum what { FORWARD, FORWARD_ACT, BACKWARD, WEIGHTS, WHATS };
static const char *const what_names[] = {"y", "y+bias+gelu", "dx", "dw"};
static const enum op what_ops[] = {OP_linear, OP_linear_act, OP_linear_dx, OP_linear_dw};

static struct op_call call_new(enum what what, int64_t m, int64_t n, int64_t k, enum dtype dtype) {
    static const struct attr attr = {.act = ACT_GELU};
    struct op_call call = {.op = what_ops[what], .attr = &attr};
    int64_t padded = (m + 255) / 256 * 256;
    bool forward = what == FORWARD || what == FORWARD_ACT;
    call.in[0] = operand_new(m, padded, forward ? k : n, dtype, 1);
    call.in[1] = what == WEIGHTS ? operand_new(m, padded, k, dtype, 2) : operand_new(n, n, k, dtype, 2);
    call.in[2] = what == FORWARD_ACT ? operand_new(n, n, 1, F32, 3) : (struct operand){0};
    call.out[0] = what == WEIGHTS ? operand_new(n, n, k, F32, 4) : operand_new(m, padded, forward ? n : k, dtype, 4);
    call.out[1] = what == FORWARD_ACT ? operand_new(m, padded, n, dtype, 5) : (struct operand){0};
    return call;
}

static void call_free(struct op_call *call) {
    for (int i = 0; i < MAX_OPERANDS; i++)
        free(call->in[i].data), free(call->out[i].data);
}

static status seconds_of(const struct op_call *call, const char *isa, double *best) {
    TRY(products_choose(isa));
    double began = clock_seconds();
    TRY(backend->run(backend, call));
    *best = fmin(*best, clock_seconds() - began);
    return OK;
}

static status measure(const char *name, enum what what, int64_t m, int64_t n, int64_t k, enum dtype dtype) {
    struct op_call call = call_new(what, m, n, k, dtype);
    double flop = 2.0 * (double)m * (double)n * (double)k, own = INFINITY, library = INFINITY, none = INFINITY;
    double began = clock_seconds();
    status code = OK;
    for (int round = 0; code == OK && (round < 4 || (round < 30 && clock_seconds() - began < 1)); round++) {
        code = seconds_of(&call, getenv("BERTH_ISA"), round ? &own : &none);
        if (code == OK)
            code = seconds_of(&call, "library", round ? &library : &none);
    }
    call_free(&call);
    if (code == OK)
        printf("gemm %s %.1f %.1f %.2f\n", name, flop / own / 1e9, flop / library / 1e9, library / own);
    fflush(stdout);
    return code;
}

static int perf(const char *part) {
    static const int64_t shapes[][2] = {{768, 768}, {3072, 768}, {768, 3072}, {1024, 1024}, {4096, 1024}, {1024, 4096}};
    static const int64_t rows[] = {1024, 2048, 4096, 16384, 1777};
    if (cpu_backend_new(&backend, 0) != OK) {
        fprintf(stderr, "%s\n", status_message());
        return BAD_INPUT;
    }
    for (int s = 0; s < 6; s++)
        for (int r = 0; r < 5; r++)
            for (enum what what = 0; what < WHATS; what++)
                for (enum dtype dtype = F32; dtype <= BF16; dtype++) {
                    char name[100];
                    snprintf(name, sizeof name, "%s-%lldx%lldx%lld-%s", what_names[what], (long long)rows[r],
                             (long long)shapes[s][0], (long long)shapes[s][1], dtype_name(dtype));
                    if (part && !strstr(name, part))
                        continue;
                    status code = measure(name, what, rows[r], shapes[s][0], shapes[s][1], dtype);
                    if (code != OK) {
                        fprintf(stderr, "%s\n", status_message());
                        return code;
                    }
                }
    backend->free(backend);
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "perf") == 0)
        return perf(argc > 2 ? argv[2] : NULL);
    return 0;
}
