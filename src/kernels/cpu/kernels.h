/* What the CPU kernels share. */
#ifndef BERTH_KERNELS_CPU_KERNELS_H
#define BERTH_KERNELS_CPU_KERNELS_H

#include <string.h>

#include "base/parallel.h"
#include "graph/backend.h"

struct contractions;
struct cpu;

/* `count` floats of the calling thread's scratch number `slot` (0 to 3): kept from call to call, grown when first
 * needed. */
float *cpu_scratch(struct cpu *cpu, int slot, int64_t count);

/* The same for memory that all threads see, slots 0 to 6: to be asked for outside parallel regions with a count, inside
 * with 0, which gives what is there. */
enum { XENT_SLOT = 6 };
float *cpu_shared(struct cpu *cpu, int slot, int64_t count);

struct contractions *cpu_contractions(struct cpu *cpu);

/* A kernel per operator of op.def. */
#define OP(name, ...) status cpu_##name(struct cpu *cpu, const struct op_call *call);
#include "graph/op.def"
#undef OP

/* Hot loops are compiled once per instruction set, and the one runs that isa.c chose. `static PER_ISA(void, name,
 * (parameters), (arguments)) {` begins a function so; what it calls inline becomes part of each. */
enum vectors { VECTORS_PLAIN, VECTORS_AVX2, VECTORS_AVX512 };
extern enum vectors vectors_in_use;

#define CPU_BODY static inline __attribute__((always_inline))
#if defined(__x86_64__) && !defined(__clang__)
#define PER_ISA(type, name, parameters, arguments)                                                                   \
    type name parameters;                                                                                            \
    CPU_BODY type name##_body parameters;                                                                            \
    __attribute__((target("arch=x86-64-v4"))) static type name##_avx512 parameters { return name##_body arguments; } \
    __attribute__((target("arch=x86-64-v3"))) static type name##_avx2 parameters { return name##_body arguments; }   \
    type name parameters {                                                                                           \
        return vectors_in_use == VECTORS_AVX512 ? name##_avx512 arguments                                            \
               : vectors_in_use == VECTORS_AVX2 ? name##_avx2 arguments                                              \
                                                : name##_body arguments;                                             \
    }                                                                                                                \
    CPU_BODY type name##_body parameters
#else
#define PER_ISA(type, name, parameters, arguments)         \
    type name parameters;                                  \
    CPU_BODY type name##_body parameters;                  \
    type name parameters { return name##_body arguments; } \
    CPU_BODY type name##_body parameters
#endif

/* --- storage: kernels compute in floats, whatever stands in memory. Only these know the 16-bit types. --- */

void floats_from_bf16(const bf16 *x, int64_t count, float *y);
void floats_to_bf16(const float *x, int64_t count, bf16 *y);
void floats_from_f16(const f16 *x, int64_t count, float *y);
void floats_to_f16(const float *x, int64_t count, f16 *y);

/* Elements [at, at + count) as floats: where they stand (f32), or converted into `buffer`. */
static inline const float *floats_read(const void *data, enum dtype dtype, int64_t at, int64_t count, float *buffer) {
    if (dtype == F32)
        return (const float *)data + at;
    (dtype == BF16 ? floats_from_bf16 : floats_from_f16)((const uint16_t *)data + at, count, buffer);
    return buffer;
}

/* The same, always into `to`. */
static inline void floats_copy(const void *data, enum dtype dtype, int64_t at, int64_t count, float *to) {
    const float *from = floats_read(data, dtype, at, count, to);
    if (from != to)
        memcpy(to, from, (size_t)count * sizeof *to);
}

/* The other way; nothing to do where `values` are these very elements. */
static inline void floats_write(void *data, enum dtype dtype, int64_t at, int64_t count, const float *values) {
    if (dtype != F32)
        (dtype == BF16 ? floats_to_bf16 : floats_to_f16)(values, count, (uint16_t *)data + at);
    else if ((float *)data + at != values)
        memcpy((float *)data + at, values, (size_t)count * sizeof *values);
}

/* The same inside a loop that is PER_ISA: `count` numbers from or to a place in memory, by its own instructions. */
CPU_BODY void numbers_read(const void *restrict from, enum dtype dtype, int64_t count, float *restrict to) {
    const uint16_t *restrict words = from;
    if (dtype == F32)
        memcpy(to, from, (size_t)count * sizeof *to);
    for (int64_t i = 0; dtype == BF16 && i < count; i++)
        to[i] = bf16_to_float(words[i]);
    for (int64_t i = 0; dtype == F16 && i < count; i++)
        to[i] = f16_to_float(words[i]);
}

CPU_BODY void numbers_write(void *restrict to, enum dtype dtype, int64_t count, const float *restrict from) {
    uint16_t *restrict words = to;
    if (dtype == F32)
        memcpy(to, from, (size_t)count * sizeof *from);
    for (int64_t i = 0; dtype == BF16 && i < count; i++)
        words[i] = bf16_from_float(from[i]);
    for (int64_t i = 0; dtype == F16 && i < count; i++)
        words[i] = f16_from_float(from[i]);
}

/* --- rows: kernels work on a row of floats at a time --- */

static inline int64_t row_offset(const struct operand *operand, int64_t row) { return row * operand->stride; }

/* The row as floats: where it stands (f32), or converted into `buffer`. */
static inline const float *row_read(const struct operand *operand, int64_t row, float *buffer) {
    return floats_read(operand->data, operand->dtype, row_offset(operand, row), operand->columns, buffer);
}

/* Where to put the row's floats: in its place (f32), or in `buffer`; row_written then converts. */
static inline float *row_write(const struct operand *operand, int64_t row, float *buffer) {
    return operand->dtype == F32 ? (float *)operand->data + row_offset(operand, row) : buffer;
}

static inline void row_written(const struct operand *operand, int64_t row, const float *values) {
    floats_write(operand->data, operand->dtype, row_offset(operand, row), operand->columns, values);
}

/* Run `kernel` on every row of output 0, in parallel; outputs' rows beyond the true count become zero. */
typedef void (*row_kernel)(struct cpu *cpu, const struct op_call *call, int64_t row);
status cpu_rows(struct cpu *cpu, const struct op_call *call, row_kernel kernel);

/* Zero the rows from the true count up to the padded one. */
void cpu_zero_tail(const struct operand *operand);

#endif
