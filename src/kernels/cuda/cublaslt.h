/* The functions of cuBLASLt that berth calls, found when the first device is opened: the library has half a gigabyte
 * and takes a fifth of a second to load, which runs on the processor need not wait for, and the program starts where it
 * is not there. */
#ifndef BERTH_KERNELS_CUDA_CUBLASLT_H
#define BERTH_KERNELS_CUDA_CUBLASLT_H

#include <cublasLt.h>

#include "base/status.h"

#define CUBLASLT_FUNCTIONS(FUNCTION)       \
    FUNCTION(Create)                       \
    FUNCTION(Destroy)                      \
    FUNCTION(GetStatusString)              \
    FUNCTION(GetVersion)                   \
    FUNCTION(Matmul)                       \
    FUNCTION(MatmulAlgoCheck)              \
    FUNCTION(MatmulAlgoGetHeuristic)       \
    FUNCTION(MatmulDescCreate)             \
    FUNCTION(MatmulDescDestroy)            \
    FUNCTION(MatmulDescSetAttribute)       \
    FUNCTION(MatmulPreferenceCreate)       \
    FUNCTION(MatmulPreferenceDestroy)      \
    FUNCTION(MatmulPreferenceSetAttribute) \
    FUNCTION(MatrixLayoutCreate)           \
    FUNCTION(MatrixLayoutDestroy)

/* cublaslt.Create is cublasLtCreate, and so on; NULL before cublaslt_load. */
struct cublaslt {
#define FUNCTION(name) __typeof__(&cublasLt##name) name;
    CUBLASLT_FUNCTIONS(FUNCTION)
#undef FUNCTION
};
extern struct cublaslt cublaslt;

/* Fails, with the loader's words, where the library or one of the functions is not there. */
status cublaslt_load(void);

#endif
