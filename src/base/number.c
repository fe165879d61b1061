#include "base/number.h"

#include <math.h>

const char *dtype_name(enum dtype dtype) {
    static const char *const name[DTYPE_COUNT] = {
        [F32] = "f32", [BF16] = "bf16", [F16] = "f16", [F64] = "f64", [I32] = "i32", [I64] = "i64", [U8] = "u8"};
    return name[dtype];
}

float f16_to_float(uint16_t x) {
    int exponent = x >> 10 & 31, fraction = x & 1023;
    float magnitude = exponent == 31 ? (fraction ? NAN : INFINITY)
                      : exponent     ? ldexpf((float)(1024 + fraction), exponent - 25)
                                     : ldexpf((float)fraction, -24);
    return x >> 15 ? -magnitude : magnitude;
}
