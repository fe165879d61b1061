/* Instances on disk while there are more than memory holds: runs one after another in one file, each in random order.
 * Drawn from the runs at random, each with the weight of what is left in it, they come in a random order of all. */
#ifndef BERTH_DATA_SPILL_H
#define BERTH_DATA_SPILL_H

#include <stdint.h>

#include "base/philox.h"
#include "base/status.h"
#include "data/instances.h"

/* What is left of a run: `rows` records between two bytes of the file. */
struct spill_run {
    int64_t rows, begin, end;
};

/* A caller who keeps `bytes` and the runs can open the file again as it was then. */
struct spill {
    char *path;
    int descriptor, reader;  /* for writing, and, once records are taken, for reading; -1 when closed */
    int64_t bytes;           /* written so far */
    struct spill_run *runs;  /* [count] */
    int64_t count, capacity; /* of runs */
    struct spill_cursor *cursors;
};

/* Creates the file, or cuts it to `bytes`. Zero-initialize the spill, or set bytes and runs. */
status spill_open(struct spill *spill, const char *path);
/* Writes all instances in random order as one run, and flushes it to the disk. */
status spill_append(struct spill *spill, const struct instance_list *list, struct random_stream *random);
/* The next `rows` in random order, into an empty list; there must be as many. */
status spill_take(struct spill *spill, int64_t rows, struct random_stream *random, struct instance_list *out);
int64_t spill_rows(const struct spill *spill);  /* left in all runs */
int64_t spill_taken(const struct spill *spill); /* bytes of the records taken */
void spill_close(struct spill *spill);          /* the file stays */

#endif
