/* A step of one micro-batch of random tokens, for commands that time steps without shards. */
#ifndef BERTH_CMD_SYNTHETIC_H
#define BERTH_CMD_SYNTHETIC_H

#include "base/memory.h"
#include "data/reader.h"
#include "model/bert.h"

struct synthetic {
    struct arena arena; /* of the arrays behind batch */
    struct batch batch;
    struct step_data step;
};

/* All sequences of full length, with shape->max_predictions masks each. Zero-initialize; step points into `synthetic`,
 * which stays where it is. */
void synthetic_make(struct synthetic *synthetic, const struct bert_config *model, const struct bert_shape *shape,
                    uint64_t seed);
void synthetic_free(struct synthetic *synthetic);

#endif
