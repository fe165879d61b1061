/* Whose code runs on this processor: products, attention's panels, dropout, and every loop that is PER_ISA. */
#include <stdlib.h>
#include <string.h>
#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "kernels/cpu/products.h"

static bool always(void) { return true; }

#if defined(__x86_64__) && !defined(__clang__)
/* and what else compilers take for granted with it: level 3 of the architecture, level 4 below */
static bool has_avx2(void) { return __builtin_cpu_supports("x86-64-v3"); }

static bool has_avx512(void) { return __builtin_cpu_supports("x86-64-v4"); }

/* The instructions, an operating system that saves the tiles, and its leave to use them, which all threads get. */
static bool has_amx(void) {
    enum { AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24, OSXSAVE = 1 << 27, TILE_STATE = 3 << 17 };
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM of asm/prctl.h */
    unsigned a, b, c, d, state, high;
    if (!has_avx512() || !__get_cpuid(1, &a, &b, &c, &d) || !(c & OSXSAVE) ||
        !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & AMX_BF16) || !(d & AMX_TILE))
        return false;
    __asm__("xgetbv" : "=a"(state), "=d"(high) : "c"(0));
    return (state & TILE_STATE) == TILE_STATE && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

#endif

/* Best first. `library`: products are oneDNN's, where the build has it, unless BERTH_ISA asks for the row. make
 * bench-gemm measures who is faster: docs/performance.md has AVX2's figures; AVX-512 and AMX were not measured. */
static const struct isa {
    const char *name;
    bool (*is_there)(void);
    enum vectors vectors;
    const struct kernel *f32, *bf16; /* bf16 NULL: its operands are multiplied as floats */
    bool library, test_only;
} isas[] = {
#if defined(__x86_64__) && !defined(__clang__)
    {"amx", has_amx, VECTORS_AVX512, &kernel_avx512, &kernel_amx, false, false},
    {"avx512", has_avx512, VECTORS_AVX512, &kernel_avx512, NULL, false, false},
    {"avx2", has_avx2, VECTORS_AVX2, &kernel_avx2, NULL, false, false},
    {"plain", always, VECTORS_PLAIN, &kernel_plain, NULL, true, false},
    /* the same code on other processors: for tests */
    {"amx-emulated", has_avx2, VECTORS_AVX2, &kernel_avx512_emulated, &kernel_amx_emulated, false, true},
    {"avx512-emulated", has_avx2, VECTORS_AVX2, &kernel_avx512_emulated, NULL, false, true},
#else
    {"plain", always, VECTORS_PLAIN, &kernel_plain, NULL, true, false},
#endif
};
enum { ISAS = sizeof isas / sizeof *isas };

static const struct isa *in_use = &isas[0];
enum vectors vectors_in_use = VECTORS_PLAIN; /* safe before a choice */
static bool by_library;

static void use(const struct isa *isa, bool library) {
    in_use = isa;
    vectors_in_use = isa->vectors;
    by_library = library;
}

static const struct isa *named(const char *name) {
    for (int i = 0; i < ISAS; i++)
        if (name ? strcmp(isas[i].name, name) == 0 : !isas[i].test_only && isas[i].is_there())
            return &isas[i];
    return NULL;
}

#ifdef BERTH_ONEDNN
static const bool has_library = true;
#else
static const bool has_library = false;
#endif

status products_choose(const char *name) {
    if (name && strcmp(name, "library") == 0 && has_library) {
        use(named(NULL), true);
        return OK;
    }
    const struct isa *isa = named(name);
    if (!isa)
        return bad_input(
            "BERTH_ISA=%s: expected amx, avx512, avx2, plain%s, or nothing: the best that the processor has", name,
            has_library ? ", library (oneDNN)" : "");
    if (!isa->is_there())
        return bad_input("BERTH_ISA=%s: this processor does not have it; its best is %s", name, named(NULL)->name);
    use(isa, !name && isa->library && has_library);
    return OK;
}

const struct kernel *products_kernel(enum dtype a, enum dtype b) {
    if (by_library)
        return NULL;
    return a == BF16 && b == BF16 && in_use->bf16 ? in_use->bf16 : in_use->f32;
}

const struct kernel *rows_kernel(enum dtype dtype) {
    return dtype == F32 ? in_use->f32 : dtype == BF16 ? in_use->bf16 : NULL;
}

const char *products_name(void) { return by_library ? "library" : in_use->name; }
