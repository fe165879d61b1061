/* The loss to beat: a predictor that knows only how often each token occurs. */
#ifndef BERTH_TRAIN_UNIGRAM_H
#define BERTH_TRAIN_UNIGRAM_H

#include "data/reader.h"

/* Mean cross-entropy, in nats, of the masked tokens of `eval` under the token frequencies of `train` (masks undone,
 * [CLS] and [SEP] left out, one added to every count). Reads both data sets once. */
status unigram_loss(const struct dataset *train, const struct dataset *eval, int64_t vocab_size, double *loss);

#endif
