/* Contractions in builds without oneDNN: all are products of our own. */
#ifndef BERTH_ONEDNN
#include <stdio.h>

#include "kernels/cpu/contraction.h"
#include "kernels/cpu/products.h"

struct contractions *contractions_new(void) {
    return NULL;
} /* nothing to prepare */
void contractions_free(struct contractions *contractions) { (void)contractions; }

bool contractions_native(const struct contractions *contractions, enum dtype dtype) {
    (void)contractions;
    return dtype == F32;
}

void contractions_describe(const struct contractions *contractions, char *out, size_t size) {
    (void)contractions;
    snprintf(out, size, "no oneDNN");
}

status contract(struct contractions *contractions, const struct product *product, const void *a, const void *b,
                void *c) {
    (void)contractions;
    return contract_f32(product, a, b, c);
}

status contract_f32(const struct product *product, const float *a, const float *b, float *c) {
    products_f32(product, a, b, c);
    return OK;
}

#endif
