/* The training loop: steps, evaluation, checkpoints, stopping. */
#ifndef BERTH_TRAIN_LOOP_H
#define BERTH_TRAIN_LOOP_H

#include "train/setup.h"

/* Trains from where `training` stands to the last step. OK when the last step is done and saved; STOPPED when a signal
 * (SIGINT, SIGTERM, SIGUSR1) or train.max_minutes ended it after a checkpoint; FAILED or BAD_INPUT otherwise, with the
 * last good checkpoint in place. */
status train_loop(struct training *training);

#endif
