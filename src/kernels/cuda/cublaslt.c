#include "kernels/cuda/cublaslt.h"

#include <dlfcn.h>
#include <stddef.h>

struct cublaslt cublaslt;

#ifdef BERTH_EMU
/* The stand-ins of the emulator are linked in. */
status cublaslt_load(void) {
#define FUNCTION(name) cublaslt.name = cublasLt##name;
    CUBLASLT_FUNCTIONS(FUNCTION)
#undef FUNCTION
    return OK;
}
#else
#define TEXT(number) #number
#define LIBRARY(major) "libcublasLt.so." TEXT(major)

status cublaslt_load(void) {
    static const struct function {
        const char *name;
        size_t place;
    } functions[] = {
#define FUNCTION(name) {"cublasLt" #name, offsetof(struct cublaslt, name)},
        CUBLASLT_FUNCTIONS(FUNCTION)
#undef FUNCTION
    };
    void *library = dlopen(LIBRARY(CUBLAS_VER_MAJOR), RTLD_NOW | RTLD_LOCAL); /* and stays: no dlclose */
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *found = library ? dlsym(library, functions[i].name) : NULL;
        if (!found)
            return failed("cuBLASLt cannot be loaded: %s; LD_LIBRARY_PATH can name its folder", dlerror());
        *(void **)((char *)&cublaslt + functions[i].place) = found;
    }
    return OK;
}
#endif
