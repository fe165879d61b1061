/* Number types that C lacks: conversions between float and bfloat16 / IEEE half, and the dtypes of tensors and files.
 */
#ifndef BERTH_BASE_NUMBER_H
#define BERTH_BASE_NUMBER_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint16_t bf16, f16;

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
    bits = value != value ? bits | 0x400000 : bits + 0x7FFFu + (bits >> 16 & 1);
    return (bf16)(bits >> 16);
}

/* Half precision in arithmetic on bits without branches, which compilers turn into vectors for any processor. The
 * exponents' zeros are 112 apart. */
static inline float f16_to_float(f16 x) {
    int32_t magnitude = (x & 0x7FFF) << 13, sign = x & 0x8000;
    uint32_t bits = (uint32_t)(magnitude + (magnitude < 31 << 23 ? 112 << 23 : 224 << 23)); /* infinity and NaN stay */
    float value, subnormal = (float)(x & 0x7FFF) * 0x1p-24f;
    memcpy(&value, &bits, sizeof value);
    value = magnitude < 1 << 23 ? subnormal : value;
    memcpy(&bits, &value, sizeof bits);
    bits |= (uint32_t)sign << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Round to nearest, ties to even; from 65520 on infinity; NaN stays NaN. */
static inline f16 f16_from_float(float value) {
    int32_t bits, magnitude, subnormal;
    float aligned;
    memcpy(&bits, &value, sizeof bits);
    magnitude = bits & 0x7FFFFFFF;
    int32_t rounded = (magnitude - (112 << 23) + 0xFFF + (magnitude >> 13 & 1)) >> 13;
    memcpy(&aligned, &magnitude, sizeof aligned);
    aligned += 0.5f; /* whose last bit is 2^-24, the smallest half */
    memcpy(&subnormal, &aligned, sizeof subnormal);
    rounded = magnitude < 113 << 23 ? subnormal - (126 << 23) : rounded;
    rounded = rounded > 0x7C00 ? 0x7C00 : rounded;
    rounded = magnitude > 0x7F800000 ? 0x7E00 : rounded;
    return (f16)((bits >> 16 & 0x8000) | rounded);
}

#endif
