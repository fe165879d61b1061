/* On a CUDA device: recorded launches give the same bits as launches one by one, and copies beside the kernels the same
 * as copies between them. The emulator also does the work of one stream as late as it may, and is told to leave out
 * waits, which then must show. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "../test_backend.h"
#include "dist/dist.h"
#include "tiny_model.h"

#ifdef BERTH_CUDA

enum { STEPS = 8, MICRO_BATCHES = 2 };

/* Where the sequences of a step are cut. */
static const int cuts[3][MICRO_BATCHES + 1] = {{0, 4, 6}, {1, 3, 6}, {0, 3, 5}};

/* What a series of steps comes to. */
struct outcome {
    double losses[STEPS];
    float *weights;
    int64_t count;
    struct recorded recorded;
};

static char choices[] = "/tmp/berth-recording-XXXXXX"; /* a file, of all networks */

static status open_network(enum recording recording, struct network *network) {
    struct network_form form = {.compute = BF16, .fusion = FUSION_FULL};
    struct optim_config optim = {
        .name = OPTIM_LAMB, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-6, .clip = 1, .bias_correction = true};
    struct backend *backend;
    float rates[STEPS];
    TRY(cuda_backend_new(&backend, &(struct cuda_options){.recording = recording}));
    TRY(backend->keep_choices(backend, choices, true)); /* or timing may choose other sums */
    TRY(network_new(network, &tiny, &shape, &form, &optim, STEPS, 7, backend, comm_self()));
    TRY(network_init_weights(network, 3));
    for (int i = 0; i < STEPS; i++)
        rates[i] = 1e-2f / (float)(i + 1);
    return exec_upload(network->exec, network->optim.lr_table, rates, STEPS);
}

static status run_step(struct network *network, const int *cut, double *loss) {
    struct data data[MICRO_BATCHES];
    struct batch batches[MICRO_BATCHES];
    struct step_data step = {.micro_batches = MICRO_BATCHES, .batches = batches};
    struct step_result result;
    for (int micro = 0; micro < MICRO_BATCHES; micro++) {
        batches[micro] = make_batch(&data[micro], cut[micro], cut[micro + 1]);
        step.sequences += batches[micro].sequences;
        step.tokens += batches[micro].tokens;
        step.masked += batches[micro].masked;
    }
    TRY(network_step(network, &step, &result));
    *loss = result.loss;
    return OK;
}

/* Also run where cmocka cannot take a failure: it returns it. */
static status run_steps(enum recording recording, struct outcome *out) {
    struct network network;
    TRY(open_network(recording, &network));
    for (int i = 0; i < STEPS; i++)
        TRY(run_step(&network, cuts[i % 3], &out->losses[i]));
    out->count = network.graph->flat_count;
    out->weights = calloc((size_t)out->count, sizeof *out->weights);
    TRY(exec_download(network.exec, network.graph->master, out->weights, out->count));
    out->recorded = cuda_recorded(network.backend);
    network_free(&network);
    return OK;
}

static struct outcome steps_of(enum recording recording) {
    struct outcome out = {.count = 0};
    if (run_steps(recording, &out) != OK)
        fail_msg("%s", status_message());
    return out;
}

static bool same(const struct outcome *a, const struct outcome *b) {
    return a->count == b->count && memcmp(a->losses, b->losses, sizeof a->losses) == 0 &&
           memcmp(a->weights, b->weights, (size_t)a->count * sizeof *a->weights) == 0;
}

static struct outcome one_by_one;

static int set_up(void **state) {
    (void)state;
    int file = test_on_cuda() ? mkstemp(choices) : -1;
    if (file < 0)
        return test_on_cuda() ? -1 : 0;
    close(file);
    unlink(choices);
    one_by_one = steps_of(RECORD_NEVER);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    free(one_by_one.weights);
    unlink(choices);
    return 0;
}

/* Each of three cuts is run, recorded, and launched again; so are the first and the second micro-batch, and the update:
 * of 8 steps cut 0 comes again once, cut 1 once, cut 2 not; the update six times. */
static void test_same_counts(void **state) {
    (void)state;
    if (!test_on_cuda())
        skip();
    struct outcome out = steps_of(RECORD_SAME);
    assert_true(out.losses[STEPS - 1] < out.losses[1]);
    assert_true(same(&out, &one_by_one));
    assert_int_equal(one_by_one.recorded.made, 0);
    assert_int_equal(out.recorded.made, 3 * MICRO_BATCHES + 1);
    assert_int_equal(out.recorded.updated, 0);
    assert_int_equal(out.recorded.replayed, 2 * MICRO_BATCHES + 6);
    free(out.weights);
}

/* All cuts round to the same counts: what is made at the second step serves the others with other arguments. */
static void test_rounded_counts(void **state) {
    (void)state;
    if (!test_on_cuda())
        skip();
    struct outcome out = steps_of(RECORD_ROUNDED);
    assert_true(same(&out, &one_by_one));
    assert_int_equal(out.recorded.made + out.recorded.updated, (STEPS - 1) * MICRO_BATCHES + 1);
    assert_true(out.recorded.updated > STEPS);
    assert_int_equal(out.recorded.replayed, STEPS - 2);
    free(out.weights);
}

/* --- faults that only the emulator can plant --- */

static void need_emulator(void) {
    if (!test_on_emulator())
        skip();
}

static bool steps_are_same(void) {
    struct outcome out;
    return run_steps(RECORD_SAME, &out) == OK && same(&out, &one_by_one);
}

/* More than there is room for on the way. */
static bool large_upload_arrives(void) {
    enum { COUNT = 6 << 20 };
    struct backend *backend;
    void *memory;
    int32_t *values = malloc(COUNT * sizeof *values), *back = malloc(COUNT * sizeof *back);
    for (int i = 0; i < COUNT; i++)
        values[i] = i;
    return cuda_backend_new(&backend, &(struct cuda_options){.device = 0}) == OK &&
           backend->memory_new(backend, &memory, COUNT * sizeof *values, "test") == OK &&
           backend->upload(backend, memory, values, COUNT * sizeof *values) == OK &&
           backend->download(backend, back, memory, COUNT * sizeof *back) == OK &&
           memcmp(values, back, COUNT * sizeof *back) == 0;
}

/* `check` in a process of its own, with BERTH_EMU_LATE and another variable set: is it true? `output`: what is said on
 * stderr. */
static bool holds_apart(bool (*check)(void), const char *late, const char *variable, const char *value, char *output,
                        size_t size) {
    int ends[2], status = 0;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL,
                                     SIGABRT}; /* cmocka would go on to the next test */
        for (int i = 0; i < 5; i++)
            signal(faults[i], SIG_DFL);
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
        setenv("BERTH_EMU_LATE", late, 1);
        setenv(variable, value, 1);
        _exit(!check());
    }
    close(ends[1]);
    size_t length = 0;
    for (ssize_t got; length + 1 < size && (got = read(ends[0], output + length, size - 1 - length)) > 0;)
        length += (size_t)got;
    output[length] = 0;
    close(ends[0]);
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void test_late_streams(void **state) {
    (void)state;
    char output[4096];
    need_emulator();
    for (int late = 0; late < 2; late++) {
        const char *stream = late == 0 ? "0" : "1"; /* of the kernels, of the copies */
        assert_true(holds_apart(steps_are_same, stream, "BERTH_EMU_IGNORE", "", output, sizeof output));
        assert_string_equal(output, "");
    }
    assert_false(holds_apart(steps_are_same, "1", "BERTH_EMU_IGNORE", "cudaStreamWaitEvent", output, sizeof output));
    assert_true(holds_apart(large_upload_arrives, "0", "BERTH_EMU_IGNORE", "", output, sizeof output));
    assert_false(
        holds_apart(large_upload_arrives, "0", "BERTH_EMU_IGNORE", "cudaEventSynchronize", output, sizeof output));
}

/* The run goes on, with one warning. */
static void test_cannot_record(void **state) {
    (void)state;
    static const char *const functions[] = {"cudaStreamBeginCapture", "cudaGraphInstantiate"};
    char output[4096];
    need_emulator();
    for (int i = 0; i < 2; i++) {
        assert_true(holds_apart(steps_are_same, "", "BERTH_EMU_REFUSE", functions[i], output, sizeof output));
        assert_int_equal(strncmp(output, "warning: device.cuda_graphs: ", 29), 0);
        assert_ptr_equal(strchr(output, '\n'), output + strlen(output) - 1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_counts),
        cmocka_unit_test(test_rounded_counts),
        cmocka_unit_test(test_late_streams),
        cmocka_unit_test(test_cannot_record),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

#else

static void test_recording_without_cuda_backend(void **state) {
    (void)state;
    skip();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_recording_without_cuda_backend)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
