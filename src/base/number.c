#include "base/number.h"

const char *dtype_name(enum dtype dtype) {
    static const char *const name[DTYPE_COUNT] = {
        [F32] = "f32", [BF16] = "bf16", [F16] = "f16", [F64] = "f64", [I32] = "i32", [I64] = "i64", [U8] = "u8"};
    return name[dtype];
}
