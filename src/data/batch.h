/* What the trainer takes from the data side: token sequences without padding. Plain host arrays, owned by the reader.
 */
#ifndef BERTH_DATA_BATCH_H
#define BERTH_DATA_BATCH_H

#include <stdint.h>

/* One micro-batch. Dims: b sequences, t tokens (all sequences one after another), m masked positions. */
struct batch {
    int64_t sequences, tokens, masked; /* b, t, m: true counts, no padding anywhere */
    const int32_t *starts;             /* [b+1] first token of each sequence; starts[b] = t */
    const int32_t *ids;                /* [t] token ids, 0 ≤ id < vocab_size */
    const int32_t *positions;          /* [t] position in its sequence, from 0 */
    const int32_t *types;              /* [t] 0 for sentence A, 1 for B */
    const int32_t *masked_rows;        /* [m] rows in [0,t) that the MLM head predicts, ascending */
    const int32_t *masked_labels;      /* [m] the original ids there */
    const int32_t *nsp_labels;         /* [b] 0: B follows A, 1: random B */
    const int64_t *sequence_numbers;   /* [b] place in the global stream of consumed sequences, from 0: keys dropout */
};

/* A rank's share of one optimizer step. With few ranks' blocks in the window a share may hold more or fewer sequences
 * than global_batch / ranks; it may even be empty (micro_batches = 0). */
struct step_data {
    int64_t micro_batches;
    const struct batch *batches;       /* [micro_batches] */
    int64_t sequences, tokens, masked; /* sums over this rank's micro-batches */
    int64_t epoch;                     /* from 0, of the step's last sequence */
    int64_t consumed;                  /* sequences of the global stream consumed once this step is done (all ranks) */
    double waited;                     /* seconds the trainer waited for this step */
};

#endif
