/* The settings table, the INI reader, overrides, presets, what a resumed run adopts, and the configurations we ship. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "config/ini.h"
#include "config/settings.h"
#include "config/table.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static char folder[] = "/tmp/berth-settings-XXXXXX";
static char ini_path[64];

static int make_folder(void **state) {
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(ini_path, sizeof ini_path, "%s/run.ini", folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    return folder_remove(folder);
}

static status load_text(struct settings *settings, const char *ini) {
    assert_int_equal(file_write_all(ini_path, ini, strlen(ini)), OK);
    return settings_load(settings, ini_path, NULL, 0);
}

/* Loading `ini` fails with BAD_INPUT and a message that is "FOLDER/run.ini" followed by `message`. */
static void refuses(const char *ini, const char *message) {
    struct settings settings;
    assert_int_equal(load_text(&settings, ini), BAD_INPUT);
    char expected[2048], rest[900];
    snprintf(rest, sizeof rest, "%s", message);
    char *again = strstr(rest, "%s"); /* the path may stand in the message once more */
    if (again) {
        *again = 0;
        again += 2;
    }
    snprintf(expected, sizeof expected, "%s%s%s%s", ini_path, rest, again ? ini_path : "", again ? again : "");
    assert_string_equal(status_message(), expected);
}

static void refuses_argument(char *argument, const char *message) {
    struct settings settings;
    assert_int_equal(settings_load(&settings, NULL, &argument, 1), BAD_INPUT);
    assert_string_equal(status_message(), message);
}

static void test_defaults(void **state) {
    (void)state;
    struct settings settings;
    assert_int_equal(settings_load(&settings, NULL, NULL, 0), OK);
    assert_int_equal(settings.model.hidden_size, 256);
    assert_int_equal(settings.model.num_hidden_layers, 4);
    assert_int_equal(settings.model.hidden_act, HIDDEN_ACT_GELU);
    assert_true(settings.model.layer_norm_eps == 1e-12);
    assert_int_equal(settings.optim.name, OPTIM_NAME_ADAMW);
    assert_int_equal(settings.optim.schedule, SCHEDULE_LINEAR);
    assert_true(settings.optim.lr == 1e-4);
    assert_true(settings.optim.bias_correction);
    assert_string_equal(settings.checkpoint.resume, "auto");
    assert_string_equal(settings.data.train, "");
    for (int id = 0; id < SETTING_COUNT; id++)
        assert_null(settings.origin[id]);
    settings_free(&settings);
}

static void test_forms_of_a_file(void **state) {
    (void)state;
    struct settings settings;
    assert_int_equal(
        load_text(
            &settings,
            "\xEF\xBB\xBF# a comment\r\n ; another\n\n[data]\r\n\ttrain = a # no comment ; b  \r\neval=\n[train]\n"
            "steps=7\n[data]\nseq_len = 128\n[optim]\nlr = 6e-3\nbias_correction = false"),
        OK);
    assert_string_equal(settings.data.train, "a # no comment ; b");
    assert_string_equal(settings.data.eval, "");
    assert_int_equal(settings.train.steps, 7);
    assert_int_equal(settings.data.seq_len, 128);
    assert_true(settings.optim.lr == 6e-3);
    assert_false(settings.optim.bias_correction);
    char origin[80];
    snprintf(origin, sizeof origin, "%s:8", ini_path);
    assert_string_equal(settings.origin[SETTING_train_steps], origin);
    assert_string_equal(settings.checkpoint.dir, "runs/run");
    settings_free(&settings);
}

static void test_long_lines(void **state) {
    (void)state;
    struct text ini = {0};
    text_add(&ini, "[data]\ntrain = ");
    for (int i = 0; i < 20000; i++)
        text_printf(&ini, "%sshards/part-%05d.hdf5", i ? "," : "", i);
    struct settings settings;
    assert_int_equal(load_text(&settings, ini.data), OK);
    assert_int_equal(strlen(settings.data.train), ini.length - strlen("[data]\ntrain = "));
    assert_true(ends_with(settings.data.train, ",shards/part-19999.hdf5"));
    settings_free(&settings);
    text_free(&ini);
}

static void test_refused_files(void **state) {
    (void)state;
    refuses("[model]\n\nhiden_size = 3\n",
            ":3: unknown key 'model.hiden_size'; nearest: model.hidden_size ('berth config' lists all)");
    refuses("[train]\nlr = 3\n", ":2: unknown key 'train.lr'; nearest: optim.lr ('berth config' lists all)");
    refuses("[modle]\nhidden_size = 3\n", ":2: there is no section [modle] (key 'hidden_size'); nearest: [model]");
    refuses("[train]\nsteps = 0\n", ":2: train.steps = '0': expected whole number, at least 1");
    refuses("[train]\nsteps = 1e3\n", ":2: train.steps = '1e3': expected whole number, at least 1");
    refuses("[train]\nsteps = 99999999999999999999\n",
            ":2: train.steps = '99999999999999999999': expected whole number, at least 1");
    refuses("[train]\nsteps =\n", ":2: train.steps = '': expected whole number, at least 1");
    refuses("[model]\nhidden_size = 65537\n", ":2: model.hidden_size = '65537': expected whole number from 1 to 65536");
    refuses("[model]\nhidden_dropout_prob = 1\n", ":2: model.hidden_dropout_prob = '1': expected number from 0 to 0.9");
    refuses("[optim]\nlr = nan\n", ":2: optim.lr = 'nan': expected number from 0 to 100");
    refuses("[optim]\nlr = 1e-4x\n", ":2: optim.lr = '1e-4x': expected number from 0 to 100");
    refuses("[optim]\nbeta2 = 1\n", ":2: optim.beta2 = '1': expected number from 0 to 0.999999999");
    refuses("[model]\nnsp = yes\n", ":2: model.nsp = 'yes': expected true or false");
    refuses("[model]\nhidden_act = swish\n", ":2: model.hidden_act = 'swish': expected gelu, gelu_new or relu");
    refuses("[train]\nsteps = 5\n[data]\n[train]\nsteps = 6\n",
            ":5: train.steps is given again; it stands in line 2 already");
    refuses("steps = 5\n", ":1: 'steps = 5' stands before any [section]");
    refuses("[train]\nsteps 5\n", ":2: expected 'key = value', '[section]' or a comment, got 'steps 5'");
    refuses("[train\nsteps = 5\n", ":1: expected '[section]', got '[train'");
    struct settings settings;
    assert_int_equal(settings_load(&settings, "/nonexistent/x.ini", NULL, 0), BAD_INPUT);
    assert_non_null(strstr(status_message(), "/nonexistent/x.ini"));
}

static void test_refused_combinations(void **state) {
    (void)state;
    refuses_argument(
        "model.num_attention_heads=3",
        "model.hidden_size = 256 (default): expected a multiple of model.num_attention_heads = 3 (command line)");
    char *both[] = {"optim.warmup=0.1", "optim.warmup_steps=10"};
    struct settings settings;
    assert_int_equal(settings_load(&settings, NULL, both, 2), BAD_INPUT);
    assert_string_equal(status_message(),
                        "optim.warmup = 0.1 (command line) and optim.warmup_steps = 10 (command line): both give the "
                        "warm-up; expected one of them");
    refuses_argument(
        "optim.schedule_steps=999",
        "optim.schedule_steps = 999 (command line): the schedule would end before the run; expected 0 or at "
        "least train.steps = 1000 (default)");
    refuses_argument(
        "data.seq_len=513",
        "data.seq_len = 513 (command line): expected at most model.max_position_embeddings = 512 (default)");
    refuses_argument(
        "model.init_optimizer=true",
        "model.init_optimizer = true (command line): needs model.init, the folder to take the moments from");
}

static void test_overrides(void **state) {
    (void)state;
    char *overrides[] = {"train.steps=5", " data.train = a=b,c ", "train.steps=6", "train.global_batch=8"};
    struct settings settings;
    assert_int_equal(file_write_all(ini_path, "[train]\nsteps = 9\nseed = 1\n", 26), OK);
    assert_int_equal(settings_load(&settings, ini_path, overrides, COUNT(overrides)), OK);
    assert_int_equal(settings.train.steps, 6);
    assert_int_equal(settings.train.seed, 1);
    assert_string_equal(settings.data.train, "a=b,c");
    assert_string_equal(settings.origin[SETTING_train_steps], "command line");
    assert_int_equal(settings.train.micro_batch, 8); /* a maximum: never more than the global batch */
    settings_free(&settings);
    refuses_argument(
        "train.stepz=5",
        "argument 'train.stepz=5': unknown key 'train.stepz'; nearest: train.steps ('berth config' lists all)");
    refuses_argument("steps=5",
                     "argument 'steps=5': unknown key 'steps'; nearest: train.steps ('berth config' lists all)");
    refuses_argument("train.steps", "argument 'train.steps': expected section.key=value");
    refuses_argument("train.fuse=all", "argument 'train.fuse=all': train.fuse = 'all': expected none or full");
}

static void test_presets(void **state) {
    (void)state;
    /* hidden size, layers, heads, feed-forward: Turc et al., arXiv 1908.08962, table 1, and Devlin et al., section 3 */
    const struct {
        char *argument;
        int64_t hidden, layers, heads, intermediate;
    } sizes[] = {{"model.preset=tiny", 128, 2, 2, 512},    {"model.preset=mini", 256, 4, 4, 1024},
                 {"model.preset=small", 512, 4, 8, 2048},  {"model.preset=medium", 512, 8, 8, 2048},
                 {"model.preset=base", 768, 12, 12, 3072}, {"model.preset=large", 1024, 24, 16, 4096}};
    struct settings settings;
    for (int i = 0; i < COUNT(sizes); i++) {
        char *arguments[] = {sizes[i].argument};
        assert_int_equal(settings_load(&settings, NULL, arguments, 1), OK);
        assert_int_equal(settings.model.hidden_size, sizes[i].hidden);
        assert_int_equal(settings.model.num_hidden_layers, sizes[i].layers);
        assert_int_equal(settings.model.num_attention_heads, sizes[i].heads);
        assert_int_equal(settings.model.intermediate_size, sizes[i].intermediate);
        settings_free(&settings);
    }
    char *arguments[] = {"model.num_hidden_layers=3",
                         "model.preset=base"}; /* a size that is given wins, in any order */
    assert_int_equal(settings_load(&settings, NULL, arguments, 2), OK);
    assert_int_equal(settings.model.num_hidden_layers, 3);
    assert_int_equal(settings.model.hidden_size, 768);
    assert_string_equal(settings.origin[SETTING_model_hidden_size], "preset base");
    assert_string_equal(settings.origin[SETTING_model_num_hidden_layers], "command line");
    settings_free(&settings);
}

static void assert_same(const struct settings *a, const struct settings *b) {
    for (int id = 0; id < SETTING_COUNT; id++) {
        const void *x = setting_value_const(a, id), *y = setting_value_const(b, id);
        switch (setting_table[id].type) {
            case SETTING_INT:
                assert_true(*(const int64_t *)x == *(const int64_t *)y);
                break;
            case SETTING_REAL:
                assert_true(*(const double *)x == *(const double *)y);
                break;
            case SETTING_FLAG:
                assert_true(*(const bool *)x == *(const bool *)y);
                break;
            case SETTING_TEXT:
                assert_string_equal(*(const char *const *)x, *(const char *const *)y);
                break;
            case SETTING_CHOICE:
                assert_true(*(const int *)x == *(const int *)y);
                break;
        }
    }
}

static void test_written_settings_read_back(void **state) {
    (void)state;
    char *overrides[] = {"model.preset=small",         "model.num_hidden_layers=3", "optim.lr=0.1234567890123456789",
                         "model.layer_norm_eps=1e-12", "data.train=#odd, ;names",   "train.seed=9007199254740991",
                         "train.precision=bf16",       "model.nsp=false",           "optim.warmup=0.2843",
                         "checkpoint.dir=out"};
    struct settings settings, again;
    assert_int_equal(settings_load(&settings, NULL, overrides, COUNT(overrides)), OK);
    struct text ini = {0};
    settings_write_ini(&settings, &ini);
    assert_int_equal(load_text(&again, ini.data), OK);
    assert_same(&settings, &again);
    settings_free(&settings);
    settings_free(&again);
    text_free(&ini);
}

static void test_resume_adopts(void **state) {
    (void)state;
    const char *saved =
        "[train]\nsteps = 1000\nseed = 7\n[optim]\nwarmup = 0.1\nlr = 1e-3\n[checkpoint]\ndir = other\n";
    char *now[] = {"train.steps=2000", "optim.warmup_steps=10", "optim.lr=0.001"};
    struct settings settings;
    struct text changed = {0};
    assert_int_equal(settings_load(&settings, NULL, now, COUNT(now)), OK);
    assert_int_equal(settings_adopt(&settings, saved, "old/config.ini", &changed), OK);
    assert_int_equal(settings.train.steps, 2000);      /* given now */
    assert_int_equal(settings.train.seed, 7);          /* adopted */
    assert_true(settings.optim.warmup == 0);           /* replaced by warmup_steps */
    assert_int_equal(settings.optim.warmup_steps, 10); /* given now */
    assert_string_equal(settings.checkpoint.dir, "");  /* belongs to this start */
    assert_string_equal(settings.origin[SETTING_train_seed], "old/config.ini");
    assert_string_equal(changed.data,
                        "train.steps: 1000 -> 2000\noptim.warmup: 0.1 -> 0\noptim.warmup_steps: 0 -> 10\n");
    assert_int_equal(settings_adopt(&settings, "[train]\nbogus = 1\n", "old/config.ini", &changed), BAD_INPUT);
    assert_true(starts_with(status_message(), "old/config.ini:2: unknown key 'train.bogus'"));
    settings_free(&settings);
    text_free(&changed);
}

static void test_describe(void **state) {
    (void)state;
    struct text out = {0};
    settings_describe(&out);
    for (int id = 0; id < SETTING_COUNT; id++) {
        char line[64];
        snprintf(line, sizeof line, "\n  %s ", setting_table[id].key);
        assert_non_null(strstr(out.data, line));
    }
    for (char *line = strtok(out.data, "\n"); line; line = strtok(NULL, "\n")) {
        int columns = 0;
        for (const char *c = line; *c; c++)
            columns += (*c & 0xC0) != 0x80;
        assert_in_range(columns, 1, 100);
    }
    text_free(&out);
}

/* Each default lies in its own range, and the table finds every key. */
static void test_table(void **state) {
    (void)state;
    struct settings settings;
    assert_int_equal(settings_load(&settings, NULL, NULL, 0), OK);
    for (int id = 0; id < SETTING_COUNT; id++) {
        struct text value = {0};
        setting_print_value(&settings, id, &value); /* still the default */
        assert_true(setting_parse(&settings, id, value.data));
        assert_int_equal(setting_find(setting_table[id].section, setting_table[id].key), id);
        assert_true(setting_find_section(setting_table[id].section) >= 0);
        text_free(&value);
    }
    settings_free(&settings);
}

static void test_shipped_configurations(void **state) {
    (void)state;
    char **names;
    int64_t count, loaded = 0;
    assert_int_equal(folder_list("configs", &names, &count), OK);
    for (int64_t i = 0; i < count; i++) {
        char *path = path_join("configs", names[i]);
        struct settings settings;
        if (settings_load(&settings, path, NULL, 0) != OK)
            fail_msg("%s", status_message());
        assert_non_null(settings.origin[SETTING_model_hidden_act]); /* the two GELUs differ: always say which */
        settings_free(&settings);
        free(path);
        loaded++;
    }
    names_free(names, count);
    assert_int_equal(loaded, 8);
}

/* The recipe's table, by its numbers. */
static void test_recipe(void **state) {
    (void)state;
    const struct {
        const char *path;
        int64_t hidden, seq_len, batch, steps;
        double lr, warmup;
    } rows[] = {{"configs/bert-base-phase1.ini", 768, 128, 65536, 7038, 6e-3, 0.2843},
                {"configs/bert-base-phase2.ini", 768, 512, 32768, 1563, 4e-3, 0.128},
                {"configs/bert-large-phase1.ini", 1024, 128, 65536, 7038, 6e-3, 0.2843},
                {"configs/bert-large-phase2.ini", 1024, 512, 32768, 1563, 4e-3, 0.128}};
    for (int i = 0; i < COUNT(rows); i++) {
        struct settings settings;
        assert_int_equal(settings_load(&settings, rows[i].path, NULL, 0), OK);
        assert_int_equal(settings.model.hidden_size, rows[i].hidden);
        assert_int_equal(settings.data.seq_len, rows[i].seq_len);
        assert_int_equal(settings.train.global_batch, rows[i].batch);
        assert_int_equal(settings.train.steps, rows[i].steps);
        assert_true(settings.optim.lr == rows[i].lr);
        assert_true(settings.optim.warmup == rows[i].warmup);
        assert_int_equal(settings.optim.name, OPTIM_NAME_LAMB);
        assert_int_equal(settings.optim.schedule, SCHEDULE_NVIDIA_POLY);
        assert_true(settings.optim.eps == 1e-6 && settings.optim.weight_decay == 0.01 && settings.optim.clip == 1);
        assert_true(settings.optim.beta1 == 0.9 && settings.optim.beta2 == 0.999 && settings.optim.bias_correction);
        assert_true(settings.optim.poly_power == 0.5);
        settings_free(&settings);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_forms_of_a_file),
        cmocka_unit_test(test_long_lines),
        cmocka_unit_test(test_refused_files),
        cmocka_unit_test(test_refused_combinations),
        cmocka_unit_test(test_overrides),
        cmocka_unit_test(test_presets),
        cmocka_unit_test(test_written_settings_read_back),
        cmocka_unit_test(test_resume_adopts),
        cmocka_unit_test(test_describe),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_shipped_configurations),
        cmocka_unit_test(test_recipe),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
