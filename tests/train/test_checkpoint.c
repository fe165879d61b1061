/* Checkpoints: bit-exact, atomic under every failing or crashing file operation, rotated, and checked when they are
 * read. */
#include "host_model.h"

#include <math.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "train/run_folder.h"

static const struct checkpoint_rotation keep_all = {0};
static char run[] = "/tmp/berth-checkpoint-XXXXXX";

static int new_run(void **state) {
    (void)state;
    snprintf(run, sizeof run, "/tmp/berth-checkpoint-XXXXXX");
    return mkdtemp(run) ? 0 : -1;
}

static int remove_run(void **state) {
    (void)state;
    file_fault(0, false);
    return folder_remove(run) == OK ? 0 : -1;
}

static struct trainer_state state_at(int64_t step) {
    return (struct trainer_state){.step = step,
                                  .skipped = 3,
                                  .consumed = 5000000000,
                                  .epoch = 2,
                                  .epoch_consumed = 17,
                                  .seed = UINT64_MAX,
                                  .threads = 4,
                                  .ranks = 1,
                                  .precision = "bf16",
                                  .loss_scale = NAN,
                                  .manifest = "[{\"name\":\"a.hdf5\",\"bytes\":6000000000,\"rows\":7}]",
                                  .settings = "[model]\nvocab = \"a b\"\n",
                                  .metrics_offset = 1234,
                                  .best_eval_loss = NAN,
                                  .elapsed_seconds = 1.0 / 3};
}

/* A checkpoint of `step` whose numbers are those of seed `step`. */
static status save(struct host_model *model, const struct checkpoint_rotation *rotation, int64_t step, bool best) {
    host_model_fill(model, (uint64_t)step);
    struct trainer_state state = state_at(step);
    return checkpoint_save(run, rotation, &model->checkpoint, &state, best);
}

/* Loads what a resume would take into an empty model, checks it to the bit, and returns its step (-1: none). */
static int64_t resumed_step(const struct bert_config *config) {
    char *folder;
    assert_int_equal(checkpoint_latest(run, &folder), OK);
    if (!folder)
        return -1;
    struct host_model model;
    struct trainer_state state;
    host_model_new(&model, config);
    if (checkpoint_load(folder, &model.checkpoint, &state) != OK)
        fail_msg("%s", status_message());
    int64_t step = state.step;
    assert_filled(&model, (uint64_t)step, 0, 2);
    trainer_state_free(&state);
    host_model_free(&model);
    free(folder);
    return step;
}

static char *listing(void) {
    char **names;
    int64_t count;
    struct text text = {0};
    assert_int_equal(folder_list(run, &names, &count), OK);
    text_add(&text, "");
    for (int64_t i = 0; i < count; i++)
        text_printf(&text, "%s%s", i ? " " : "", names[i]);
    names_free(names, count);
    return text.data;
}

static void assert_listing(const char *expected) {
    char *found = listing();
    assert_string_equal(found, expected);
    free(found);
}

static void test_round_trip(void **unused) {
    (void)unused;
    for (int nsp = 0; nsp < 2; nsp++) {
        struct bert_config config = small_config(nsp);
        struct host_model model;
        host_model_new(&model, &config);
        assert_int_equal(save(&model, &keep_all, 1000 + nsp, false), OK);
        host_model_free(&model);
        assert_int_equal(resumed_step(&config), 1000 + nsp);
    }
    assert_listing("latest step-00001000 step-00001001");
}

static void test_state(void **unused) {
    (void)unused;
    struct trainer_state in = state_at(7), out;
    for (int i = 0; i < 2; i++) {
        in.best_eval_loss = i ? 6.1000000000000005 : NAN;
        in.loss_scale = i ? 4096 : NAN;
        in.loss_scale_steps = i ? 1999 : 0;
        struct text json = {0};
        char *path = path_join(run, "trainer.json");
        trainer_state_print(&in, &json);
        assert_int_equal(file_write_all(path, json.data, json.length), OK);
        assert_int_equal(trainer_state_read(path, &out), OK);
        assert_int_equal(out.step, 7);
        assert_int_equal(out.skipped, 3);
        assert_int_equal(out.consumed, 5000000000);
        assert_int_equal(out.epoch, 2);
        assert_int_equal(out.epoch_consumed, 17);
        assert_true(out.seed == UINT64_MAX);
        assert_int_equal(out.threads, 4);
        assert_int_equal(out.ranks, 1);
        assert_string_equal(out.precision, "bf16");
        assert_string_equal(out.manifest, in.manifest);
        assert_string_equal(out.settings, in.settings);
        assert_int_equal(out.metrics_offset, 1234);
        assert_true(i ? out.best_eval_loss == in.best_eval_loss : isnan(out.best_eval_loss));
        assert_true(out.elapsed_seconds == in.elapsed_seconds);
        assert_true(i ? out.loss_scale == 4096 : isnan(out.loss_scale));
        assert_int_equal(out.loss_scale_steps, in.loss_scale_steps);
        trainer_state_free(&out);
        in.loss_scale = 0; /* would divide gradients by it */
        struct text impossible = {0};
        trainer_state_print(&in, &impossible);
        assert_int_equal(file_write_all(path, impossible.data, impossible.length), OK);
        assert_int_equal(trainer_state_read(path, &out), BAD_INPUT);
        assert_message("loss_scale 0");
        text_free(&impossible);
        assert_int_equal(file_write_all(path, json.data, json.length / 2), OK);
        assert_int_equal(trainer_state_read(path, &out), BAD_INPUT);
        assert_message("not valid JSON");
        assert_int_equal(file_write_all(path, "{\"format\": 2}", 13), OK);
        assert_int_equal(trainer_state_read(path, &out), BAD_INPUT);
        assert_message("format 2");
        text_free(&json);
        free(path);
    }
}

static void test_rotation(void **unused) {
    (void)unused;
    struct bert_config config = small_config(true);
    struct host_model model;
    const struct checkpoint_rotation rotation = {.keep = 2, .milestone_every = 30};
    host_model_new(&model, &config);
    for (int64_t step = 10; step <= 80; step += 10)
        assert_int_equal(save(&model, &rotation, step, step == 40), OK);
    assert_listing("best latest step-00000030 step-00000040 step-00000060 step-00000070 step-00000080");
    /* a new best frees the old one */
    assert_int_equal(save(&model, &rotation, 90, true), OK);
    assert_listing("best latest step-00000030 step-00000060 step-00000080 step-00000090");
    /* after a resume at an earlier step, later checkpoints stay until they are replaced, and `latest` is what was saved
     */
    assert_int_equal(save(&model, &rotation, 70, false), OK);
    assert_listing("best latest step-00000030 step-00000060 step-00000070 step-00000080 step-00000090");
    assert_int_equal(resumed_step(&config), 70);
    assert_int_equal(save(&model, &rotation, 80, false), OK);
    assert_int_equal(resumed_step(&config), 80);
    char target[64] = {0}, *link = path_join(run, "latest");
    assert_int_equal(readlink(link, target, sizeof target - 1), strlen("step-00000080"));
    assert_string_equal(target, "step-00000080"); /* relative: the run folder can be moved */
    free(link);
    host_model_free(&model);
}

static void test_latest_lost(void **unused) {
    (void)unused;
    struct bert_config config = small_config(true);
    struct host_model model;
    host_model_new(&model, &config);
    assert_int_equal(resumed_step(&config), -1);
    for (int64_t step = 10; step <= 30; step += 10)
        assert_int_equal(save(&model, &keep_all, step, false), OK);
    char *link = path_join(run, "latest"), *weights = path_join(run, "step-00000030/model.safetensors");
    assert_int_equal(unlink(link), 0);
    assert_int_equal(resumed_step(&config), 30);
    assert_int_equal(symlink("step-00000099", link), 0);
    assert_int_equal(resumed_step(&config), 30);
    assert_int_equal(unlink(weights), 0);
    assert_int_equal(resumed_step(&config), 20);
    free(link);
    free(weights);
    host_model_free(&model);
}

/* Saves step 20 over a run that holds step 10 (and, when `again`, an older step 20), with the n-th file operation
 * failing or the process ending there. Whatever happens, a whole checkpoint of the old or the new state is found and
 * loads. */
static bool survive(int64_t n, bool crash, bool again) {
    struct bert_config config = small_config(false);
    struct host_model model;
    const struct checkpoint_rotation rotation = {.keep = 1};
    host_model_new(&model, &config);
    assert_int_equal(save(&model, &keep_all, 10, false), OK);
    if (again)
        assert_int_equal(save(&model, &keep_all, 20, false), OK);
    status code = OK;
    if (crash) {
        pid_t child = fork();
        if (child == 0) {
            file_fault(n, true);
            _exit(save(&model, &rotation, 20, false));
        }
        int result;
        assert_int_equal(waitpid(child, &result, 0), child);
        assert_true(WIFEXITED(result));
        code = (status)WEXITSTATUS(result);
    } else {
        file_fault(n, false);
        code = save(&model, &rotation, 20, false);
        file_fault(0, false);
        if (code != OK) {
            assert_int_equal(code, FAILED);
            assert_message("No space left");
        }
    }
    assert_int_equal(checkpoint_clean(run), OK);
    int64_t step = resumed_step(&config);
    if (code == OK || again)
        assert_int_equal(step, 20);
    else
        assert_true(step == 10 || step == 20);
    /* nothing is left over, and the next attempt succeeds */
    char *left = listing();
    assert_null(strstr(left, ".tmp"));
    assert_null(strstr(left, ".old"));
    free(left);
    assert_int_equal(save(&model, &rotation, 20, false), OK);
    assert_listing("latest step-00000020");
    host_model_free(&model);
    return code == OK;
}

static void survive_every(bool crash, bool again) {
    int64_t n = 1;
    for (; !survive(n, crash, again); n++) {
        assert_true(n < 200);
        assert_int_equal(remove_run(NULL), 0);
        assert_int_equal(new_run(NULL), 0);
    }
    assert_true(n > 15); /* the operations of four files, folders, renames and links were all tried */
}

static void test_disk_full(void **unused) {
    (void)unused;
    survive_every(false, false);
}

static void test_disk_full_again(void **unused) {
    (void)unused;
    survive_every(false, true);
}

static void test_crash(void **unused) {
    (void)unused;
    survive_every(true, false);
}

static void test_crash_again(void **unused) {
    (void)unused;
    survive_every(true, true);
}

/* Replaces a file of checkpoint `to` by that of checkpoint `from`. */
static void copy_file(const char *from, const char *to, const char *name) {
    char *a = xasprintf("%s/%s/%s", run, from, name), *b = xasprintf("%s/%s/%s", run, to, name);
    struct text bytes = {0};
    assert_int_equal(file_read(a, &bytes), OK);
    assert_int_equal(file_write_all(b, bytes.data, bytes.length), OK);
    text_free(&bytes);
    free(a);
    free(b);
}

static void refuse(const char *checkpoint, const struct bert_config *config, const char *message) {
    struct host_model model;
    struct trainer_state state;
    char *folder = path_join(run, checkpoint);
    host_model_new(&model, config);
    assert_int_equal(checkpoint_load(folder, &model.checkpoint, &state), BAD_INPUT);
    assert_message(message);
    host_model_free(&model);
    free(folder);
}

static void test_mismatches_are_refused(void **unused) {
    (void)unused;
    struct bert_config config = small_config(false), other = small_config(true);
    struct host_model model;
    host_model_new(&model, &config);
    for (int64_t step = 10; step <= 30; step += 10)
        assert_int_equal(save(&model, &keep_all, step, false), OK);
    refuse("step-00000010", &other, "model.safetensors: tensor bert.pooler.dense.weight is missing");
    other = config;
    other.intermediate_size = 32;
    refuse("step-00000010", &other,
           "tensor bert.encoder.layer.0.intermediate.dense.weight is 24x8, the model needs 32x8");
    other = config;
    other.num_hidden_layers = 1;
    refuse("step-00000010", &other, "has 42 tensors, the model has 26");
    other = config;
    other.num_attention_heads = 4;
    refuse("step-00000010", &other, "num_attention_heads is 2, the settings say 4");
    other = config;
    other.hidden_act = ACT_GELU;
    refuse("step-00000010", &other, "hidden_act");
    copy_file("step-00000030", "step-00000020", "optimizer.safetensors");
    refuse("step-00000020", &config, "was written at step 30");
    copy_file("step-00000010", "step-00000030", "trainer.json");
    refuse("step-00000030", &config, "named step-00000030");
    refuse("step-00000040", &config, "trainer.json: cannot open");
    host_model_free(&model);
}

static void test_moments_alone(void **unused) {
    (void)unused;
    struct bert_config config = small_config(true);
    struct host_model model, fresh;
    host_model_new(&model, &config);
    assert_int_equal(save(&model, &keep_all, 10, false), OK);
    host_model_free(&model);
    host_model_new(&fresh, &config);
    host_model_fill(&fresh, 5);
    char *folder = path_join(run, "step-00000010"), *moments = path_join(folder, "optimizer.safetensors");
    assert_int_equal(checkpoint_load_moments(folder, &fresh.checkpoint), OK);
    assert_filled(&fresh, 10, 1, 2);
    assert_filled(&fresh, 5, 0, 0);
    assert_int_equal(unlink(moments), 0);
    assert_int_equal(checkpoint_load_moments(folder, &fresh.checkpoint), BAD_INPUT);
    assert_message("optimizer.safetensors: cannot open");
    free(folder);
    free(moments);
    host_model_free(&fresh);
}

static void test_run_folder(void **unused) {
    (void)unused;
    struct bert_config config = small_config(true);
    struct host_model model;
    struct run_folder first, second;
    host_model_new(&model, &config);
    char *inner = path_join(run, "a/b"), *step = path_join(run, "step-00000010");
    assert_int_equal(run_folder_open(inner, "never", &first), OK);
    assert_null(first.resume);
    assert_int_equal(run_folder_open(inner, "auto", &second), BAD_INPUT);
    assert_message("another process");
    assert_int_equal(run_folder_write_config(&first, "[model]\n"), OK);
    run_folder_close(&first);
    assert_int_equal(run_folder_open(inner, "never", &first), BAD_INPUT);
    assert_message("config.ini");
    assert_int_equal(run_folder_open(inner, "auto", &first), OK); /* ended before its first checkpoint */
    assert_null(first.resume);
    run_folder_close(&first);

    assert_int_equal(save(&model, &keep_all, 10, false), OK);
    assert_int_equal(save(&model, &keep_all, 20, false), OK);
    assert_int_equal(run_folder_open(run, "auto", &first), OK);
    assert_non_null(strstr(first.resume, "step-00000020"));
    assert_true(first.resumes_own);
    run_folder_close(&first);
    assert_int_equal(run_folder_open(run, step, &first), OK);
    assert_string_equal(first.resume, step);
    assert_true(first.resumes_own);
    run_folder_close(&first);
    assert_int_equal(resumed_step(&config), 10); /* from here on, also after a crash before the next checkpoint */
    char *latest = path_join(run, "latest");
    assert_int_equal(run_folder_open(run, latest, &first), OK);
    assert_true(first.resumes_own);
    run_folder_close(&first);
    assert_int_equal(resumed_step(&config), 10);
    free(latest);
    assert_int_equal(run_folder_open(inner, run, &first), OK);
    assert_non_null(strstr(first.resume, "step-00000010"));
    assert_false(first.resumes_own);
    run_folder_close(&first);
    assert_int_equal(run_folder_open(inner, inner, &first), BAD_INPUT);
    assert_message("checkpoint.resume: ");
    assert_int_equal(run_folder_open(run, "/nowhere", &first), BAD_INPUT);
    assert_message("no such folder");
    free(inner);
    free(step);
    host_model_free(&model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(function) cmocka_unit_test_setup_teardown(function, new_run, remove_run)
        TEST(test_round_trip),    TEST(test_state),       TEST(test_rotation),
        TEST(test_latest_lost),   TEST(test_disk_full),   TEST(test_disk_full_again),
        TEST(test_crash),         TEST(test_crash_again), TEST(test_mismatches_are_refused),
        TEST(test_moments_alone), TEST(test_run_folder),
#undef TEST
    };
    log_set_quiet(true);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
