/* What a run starts from. Parts of training_open. */
#ifndef BERTH_TRAIN_START_H
#define BERTH_TRAIN_START_H

#include "train/setup.h"

/* Resume: settings that were not given now come from the run; what was given and differs is printed. */
status start_adopt_settings(struct training *training, struct settings *settings);

/* Weights, moments and state: of the checkpoint in training->run.resume, of model.init, or fresh. */
status start_load(struct training *training);

/* BAD_INPUT where ranks do not agree: in settings, data and kind of device; in what was loaded. */
status start_compare_inputs(struct training *training, const char *device);
status start_compare_weights(struct training *training);

#endif
