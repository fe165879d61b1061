/* Number types that C lacks: conversions between float and bfloat16 / IEEE half, and the dtypes of tensors and files.
 */
#ifndef BERTH_BASE_NUMBER_H
#define BERTH_BASE_NUMBER_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint16_t bf16;

enum dtype { F32, BF16, F16, F64, I32, I64, U8, DTYPE_COUNT };

static inline size_t dtype_size(enum dtype dtype) {
    return dtype == F64 || dtype == I64 ? 8 : dtype == F32 || dtype == I32 ? 4 : dtype == U8 ? 1 : 2;
}
const char *dtype_name(enum dtype dtype); /* "f32", "bf16", … */

static inline float bf16_to_float(bf16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Round to nearest, ties to even; NaN stays NaN. */
static inline bf16 bf16_from_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1)) >> 16;
    return (bf16)((bits & 0x7FFFFFFFu) > 0x7F800000u ? bits >> 16 | 0x40 : rounded);
}

float f16_to_float(uint16_t x);
uint16_t f16_from_float(float value); /* to nearest, ties to even; beyond 65504 infinity */

#endif
