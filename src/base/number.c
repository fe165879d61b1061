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

uint16_t f16_from_float(float value) {
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    float magnitude = fabsf(value);
    if (isnan(value))
        return sign | 0x7E00;
    if (magnitude >= 65520) /* halfway to what would be 2^16 */
        return sign | 0x7C00;
    if (magnitude < 0x1p-14f) /* in units of 2^-24; 1024 of them are the smallest normal number */
        return sign | (uint16_t)nearbyintf(magnitude * 0x1p24f);
    int exponent = ilogbf(magnitude);
    float fraction = nearbyintf(ldexpf(magnitude, 10 - exponent)); /* 1024 to 2048, which carries into the exponent */
    return sign | (uint16_t)((exponent + 15) * 1024 + (int)fraction - 1024);
}
