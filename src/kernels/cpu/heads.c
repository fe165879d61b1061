#include "kernels/cpu/heads.h"

#include <stdatomic.h>
#include <stdio.h>

struct heads {
    struct cpu *cpu;
    const struct op_call *call;
    head_kernel kernel;
    atomic_flag failed;
    status code; /* and message: of the first head that failed */
    char message[256];
};

static struct head head_of(const struct op_call *call, int64_t sequence, int64_t number) {
    const struct ragged *ragged = call->ragged;
    int64_t n = ragged->starts[sequence + 1] - ragged->starts[sequence];
    int64_t padded_keys = (call->longest_position + 15) / 16 * 16;
    return (struct head){.number = number,
                         .n = n,
                         .p = call->hidden / call->heads,
                         .row = ragged->starts[sequence],
                         .matrix = call->heads * ragged->square_starts[sequence] + number * n * n,
                         .probability = call->evaluate ? 0 : call->attr->probability,
                         .padded_keys = padded_keys,
                         .place = {call->seed, call->attr->site, ragged->sequence_numbers[sequence],
                                   number * call->longest_position * padded_keys}};
}

static void run_heads(void *ctx, int64_t begin, int64_t end) {
    struct heads *job = ctx;
    for (int64_t i = begin; i < end; i++) {
        struct head head = head_of(job->call, i / job->call->heads, i % job->call->heads);
        status code = job->kernel(job->cpu, job->call, &head);
        if (code != OK && !atomic_flag_test_and_set(&job->failed)) {
            job->code = code;
            snprintf(job->message, sizeof job->message, "%s", status_message());
        }
    }
}

status each_head(struct cpu *cpu, const struct op_call *call, head_kernel kernel) {
    struct heads job = {.cpu = cpu, .call = call, .kernel = kernel, .failed = ATOMIC_FLAG_INIT};
    parallel_for(call->ragged->sequences * call->heads, 1, run_heads, &job);
    return job.code == OK ? OK : status_set(job.code, job.message);
}
