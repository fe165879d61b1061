#include "train/device.h"

#include <stdio.h>

#include "kernels/cpu/cpu.h"
#ifdef BERTH_CUDA
#include "kernels/cuda/cuda.h"
#endif

static int cuda_devices(void) {
#ifdef BERTH_CUDA
    return cuda_device_count();
#else
    return 0;
#endif
}

static status open_cuda(const struct settings *settings, const struct comm *comm, struct backend **backend) {
#ifdef BERTH_CUDA
    int count = cuda_devices();
    if (count > 1 && comm->local_rank >= count)
        return bad_input(
            "device.type = cuda: %d processes on this machine, which has %d CUDA devices: expected one for "
            "each process",
            comm->local_ranks, count);
    static const enum recording recordings[] = {
        [CUDA_GRAPHS_AUTO] = RECORD_SAME, [CUDA_GRAPHS_ON] = RECORD_ROUNDED, [CUDA_GRAPHS_OFF] = RECORD_NEVER};
    const struct cuda_options options = {
        .device = count > 1 ? comm->local_rank : 0, /* where one is seen, the launcher may have chosen it */
        .tf32 = settings->train.precision == PRECISION_TF32,
        .recording = recordings[settings->device.cuda_graphs]};
    return cuda_backend_new(backend, &options);
#else
    (void)settings, (void)comm, (void)backend;
    return bad_input(
        "device.type = cuda: this berth was built without CUDA ('make features' says why); expected auto or cpu");
#endif
}

status device_open(const struct settings *settings, const struct comm *comm, struct backend **backend) {
    if (settings->device.type == DEVICE_TYPE_CUDA || (settings->device.type == DEVICE_TYPE_AUTO && cuda_devices() > 0))
        return open_cuda(settings, comm, backend);
    if (settings->train.precision == PRECISION_TF32)
        return bad_input(
            "train.precision = tf32: only CUDA devices have it, and the device is the processor; expected fp32, "
            "bf16 or fp16");
    if (settings->device.cuda_graphs == CUDA_GRAPHS_ON)
        return bad_input("device.cuda_graphs = on: the device is the processor; expected auto or off");
    return cpu_backend_new(backend, (int)settings->device.threads);
}

status devices_describe(struct text *out) {
    char line[320];
    struct backend *cpu;
    TRY(cpu_backend_new(&cpu, 0));
    cpu->describe(cpu, line, sizeof line);
    text_printf(out, "%s\n", line);
    cpu->free(cpu);
#ifdef BERTH_CUDA
    int count = cuda_devices();
    for (int device = 0; device < count; device++)
        if (cuda_device_describe(device, line, sizeof line))
            text_printf(out, "cuda: %s\n", line);
    if (count == 0)
        text_printf(out, "cuda: no device can be used (no NVIDIA driver, or none is visible)\n");
#else
    text_printf(out, "cuda: not in this build\n");
#endif
    return OK;
}
