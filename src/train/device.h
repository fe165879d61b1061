/* Which device a run takes. */
#ifndef BERTH_TRAIN_DEVICE_H
#define BERTH_TRAIN_DEVICE_H

#include "base/text.h"
#include "config/settings.h"
#include "graph/backend.h"
#include "graph/comm.h"

/* By device.type: auto is a CUDA device where there is one, else the processor; of several, that of the process's local
 * rank. BAD_INPUT where a device is asked for that is not there. */
status device_open(const struct settings *settings, const struct comm *comm, struct backend **backend);

/* Lines "name: description" of all devices that device.type can choose. */
status devices_describe(struct text *out);

#endif
