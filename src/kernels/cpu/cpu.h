/* The CPU backend: the specification of every operator, and a first-class device. */
#ifndef BERTH_KERNELS_CPU_CPU_H
#define BERTH_KERNELS_CPU_CPU_H

#include "graph/backend.h"

/* `threads` 0: as many as the processor gives this process. */
status cpu_backend_new(struct backend **out, int threads);

#endif
