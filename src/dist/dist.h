/* Communicators behind graph/comm.h. */
#ifndef BERTH_DIST_DIST_H
#define BERTH_DIST_DIST_H

#include "graph/comm.h"

/* One process: rank 0 of 1; sums are what they are. */
status comm_self_new(struct comm **out);

#endif
