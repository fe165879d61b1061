/* Algorithms that were chosen by timing, kept in a file, so that another process takes the same and gets the same bits.
 *
 * {"device": NAME, "library": NAME, "products": {PRODUCT: BYTES, ...}}: what was chosen on a device with a version of
 * the library is worth nothing on another. PRODUCT is what decides, in words; BYTES the library's algorithm,
 * hexadecimal. */
#ifndef BERTH_KERNELS_CUDA_CHOICES_H
#define BERTH_KERNELS_CUDA_CHOICES_H

#include <stdbool.h>

#include "base/status.h"

enum { CHOICE_BYTES = 64 }; /* of an algorithm */

struct choices;

/* Those of the file, or none where there is no file, or, with a line in the log, where it is of another device or
 * library. `write`: the file gets what is added. BAD_INPUT: it is broken. */
status choices_open(struct choices **out, const char *path, const char *device, const char *library, bool write);
void choices_free(struct choices *choices); /* NULL does nothing */

bool choices_find(const struct choices *choices, const char *product, void *bytes);
/* Replaces the file in one piece. */
status choices_add(struct choices *choices, const char *product, const void *bytes);

#endif
