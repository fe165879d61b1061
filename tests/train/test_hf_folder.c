/* HuggingFace folders: what is written, and what can be read of the many kinds that exist. */
#include "host_model.h"

#include <stdio.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"

static char folder[] = "/tmp/berth-folder-XXXXXX";

static int new_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/berth-folder-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    return folder_remove(folder) == OK ? 0 : -1;
}

static void write_file(const char *name, const char *text) {
    char *path = path_join(folder, name);
    assert_int_equal(file_write_all(path, text, strlen(text)), OK);
    free(path);
}

static json *read_json(const char *name) {
    char *path = path_join(folder, name);
    json *root;
    if (json_read_file(path, &root) != OK)
        fail_msg("%s", status_message());
    free(path);
    return root;
}

static void assert_string(const json *object, const char *key, const char *expected) {
    const char *value;
    assert_int_equal(json_get_string("file", object, key, &value), OK);
    assert_string_equal(value, expected);
}

static void assert_int(const json *object, const char *key, int64_t expected) {
    int64_t value;
    assert_int_equal(json_get_int("file", object, key, &value), OK);
    assert_int_equal(value, expected);
}

static void assert_bool(const json *object, const char *key, bool expected) {
    bool value;
    assert_int_equal(json_get_bool("file", object, key, &value), OK);
    assert_int_equal(value, expected);
}

static void test_config_round_trip(void **unused) {
    (void)unused;
    for (int variant = 0; variant < 6; variant++) {
        struct bert_config in = small_config(variant & 1), out;
        const enum activation activations[] = {ACT_GELU, ACT_GELU_NEW, ACT_RELU};
        in.hidden_act = activations[variant / 2];
        assert_int_equal(hf_config_write(folder, &in, 5), OK);
        assert_int_equal(hf_folder_read_config(folder, &out), OK);
        assert_int_equal(out.vocab_size, 101);
        assert_int_equal(out.hidden_size, 8);
        assert_int_equal(out.num_hidden_layers, 2);
        assert_int_equal(out.num_attention_heads, 2);
        assert_int_equal(out.intermediate_size, 24);
        assert_int_equal(out.max_position_embeddings, 16);
        assert_int_equal(out.type_vocab_size, 2);
        assert_int_equal(out.hidden_act, in.hidden_act);
        assert_true(out.hidden_dropout_prob == 0.1 && out.attention_probs_dropout_prob == 0.2);
        assert_true(out.layer_norm_eps == 1e-12 && out.initializer_range == 0.02);
        assert_int_equal(out.nsp, in.nsp);
        json *root = read_json("config.json");
        assert_string(root, "model_type", "bert");
        assert_int(root, "pad_token_id", 5);
        const char *names[] = {"gelu", "gelu_new", "relu"};
        assert_string(root, "hidden_act", names[variant / 2]);
        assert_string_equal(json_value_string(json_first(json_get(root, "architectures"))),
                            in.nsp ? "BertForPreTraining" : "BertForMaskedLM");
        json_free(root);
    }
}

static void test_foreign_configs(void **unused) {
    (void)unused;
    struct bert_config config;
    write_file("config.json", "{\"hidden_size\": 128, \"architectures\": [\"BertModel\"]}");
    assert_int_equal(hf_folder_read_config(folder, &config), OK);
    assert_int_equal(config.hidden_size, 128);
    assert_int_equal(config.vocab_size, 30522); /* BertConfig's defaults */
    assert_true(config.layer_norm_eps == 1e-12 && config.hidden_act == ACT_GELU && !config.nsp);
    static const struct {
        const char *text, *message;
    } wrong[] = {
        {"{\"model_type\": \"roberta\"}", "model_type is \"roberta\""},
        {"{\"position_embedding_type\": \"relative_key\"}", "position_embedding_type"},
        {"{\"hidden_act\": \"silu\"}", "hidden_act is \"silu\""},
        {"{\"hidden_size\": \"768\"}", "\"hidden_size\" has the wrong type"},
        {"{\"num_hidden_layers\": 0}", "\"num_hidden_layers\" must be at least 1"},
        {"{", "not valid JSON"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        write_file("config.json", wrong[i].text);
        assert_int_equal(hf_folder_read_config(folder, &config), BAD_INPUT);
        assert_message(wrong[i].message);
        assert_message("config.json");
    }
}

static const char *const entries[] = {"[UNK]", "the", "\"",          "[MASK]", "##s",
                                      "[PAD]", "\\",  "caf\xC3\xA9", "[SEP]",  "[CLS]"};
enum { ENTRIES = sizeof entries / sizeof *entries };

static void test_tokenizer_files(void **unused) {
    (void)unused;
    for (int cased = 0; cased < 2; cased++) {
        struct text vocab = {0}, copy = {0};
        for (int i = 0; i < ENTRIES; i++)
            text_printf(&vocab, "%s\n", cased && i == 1 ? "The" : entries[i]);
        write_file("in.txt", vocab.data);
        char *in = path_join(folder, "in.txt"), *out = path_join(folder, "vocab.txt");
        struct hf_tokenizer *tokenizer;
        assert_int_equal(hf_tokenizer_read(in, &tokenizer), OK);
        assert_int_equal(unlink(in), 0); /* not needed again */
        assert_int_equal(tokenizer->lower_case, !cased);
        assert_int_equal(hf_tokenizer_write(folder, tokenizer, 64), OK);
        assert_int_equal(file_read(out, &copy), OK);
        assert_string_equal(copy.data, vocab.data);

        json *config = read_json("tokenizer_config.json"), *fast = read_json("tokenizer.json");
        assert_bool(config, "do_lower_case", !cased);
        assert_int(config, "model_max_length", 64);
        assert_string(config, "tokenizer_class", "BertTokenizer");
        assert_string(config, "mask_token", "[MASK]");
        assert_bool(json_get(fast, "normalizer"), "lowercase", !cased);
        const json *table = json_get(json_get(fast, "model"), "vocab");
        assert_int_equal(json_count(table), ENTRIES);
        for (int i = 0; i < ENTRIES; i++)
            assert_int(table, cased && i == 1 ? "The" : entries[i], i);
        /* added tokens in the order of their ids */
        const int ids[] = {0, 3, 5, 8, 9};
        const json *added = json_first(json_get(fast, "added_tokens"));
        for (int i = 0; i < 5; i++, added = json_next(added)) {
            assert_int(added, "id", ids[i]);
            assert_string(added, "content", entries[ids[i]]);
        }
        assert_null(added);
        json_free(config);
        json_free(fast);
        hf_tokenizer_free(tokenizer);
        for (int lower_case = 0; lower_case < 2; lower_case++) { /* the model's own word on it counts */
            write_file("tokenizer_config.json",
                       lower_case ? "{\"do_lower_case\": true}" : "{\"do_lower_case\": false}");
            assert_int_equal(hf_tokenizer_read(out, &tokenizer), OK);
            assert_int_equal(tokenizer->lower_case, lower_case);
            hf_tokenizer_free(tokenizer);
        }
        write_file("tokenizer_config.json", "{\"do_lower_case\": \"no\"}");
        assert_int_equal(hf_tokenizer_read(out, &tokenizer), BAD_INPUT);
        assert_non_null(strstr(status_message(), "tokenizer_config.json"));
        text_free(&vocab);
        text_free(&copy);
        free(in);
        free(out);
    }
}

/* Renames of tensor names in a file that is written for import; returns NULL to leave the tensor out. */
typedef char *(*renamer)(const char *name);

/* A model.safetensors with every parameter of `model`, filled by seed 3, under other names, and some tensors more. */
static void write_foreign(struct host_model *model, renamer rename) {
    const struct graph *graph = model->graph;
    struct safetensors_entry *list = xcalloc((size_t)graph->parameter_count + 2, sizeof *list);
    float *values = xcalloc((size_t)hf_scratch_count(graph), sizeof *values);
    int count = 0;
    for (int p = 0; p < graph->parameter_count; p++) {
        char *name = rename(graph->parameters[p].name);
        if (name)
            hf_entry(&graph->parameters[p], name, &list[count++]);
    }
    list[count++] = (struct safetensors_entry){xstrdup("classifier.weight"), 2, {2, 8}};
    list[count++] = (struct safetensors_entry){xstrdup("cls.predictions.decoder.weight"), 2, {101, 8}};
    char *path = path_join(folder, "model.safetensors");
    struct safetensors_writer writer;
    assert_int_equal(safetensors_create(&writer, path, list, count, -1), OK);
    for (int p = 0; p < graph->parameter_count; p++) {
        const struct parameter *parameter = &graph->parameters[p];
        char *name = rename(parameter->name);
        expected_slice(parameter, 3, 0, values);
        if (name)
            assert_int_equal(safetensors_write(&writer, values, parameter->file_rows * parameter->columns), OK);
        free(name);
    }
    assert_int_equal(safetensors_write(&writer, values, 16), OK);
    for (int row = 0; row < 101; row++)
        assert_int_equal(safetensors_write(&writer, values, 8), OK);
    assert_int_equal(safetensors_commit(&writer), OK);
    for (int i = 0; i < count; i++)
        free((char *)list[i].name);
    free(list);
    free(values);
    free(path);
}

/* Names of 2018: gamma and beta, a wrapper in front. */
static char *old_names(const char *name) {
    if (ends_with(name, "LayerNorm.weight"))
        return xasprintf("module.%.*sgamma", (int)(strlen(name) - strlen("weight")), name);
    if (ends_with(name, "LayerNorm.bias"))
        return xasprintf("module.%.*sbeta", (int)(strlen(name) - strlen("bias")), name);
    return xasprintf("module.%s", name);
}

/* NVIDIA's dense layers with their activation; the head's bias under the decoder's name. */
static char *act_names(const char *name) {
    const char *dense = strstr(name, ".dense.");
    if (strcmp(name, "cls.predictions.bias") == 0)
        return xstrdup("cls.predictions.decoder.bias");
    if (dense && (strstr(name, "intermediate") || strstr(name, "pooler") || strstr(name, "transform")))
        return xasprintf("%.*s.dense_act.%s", (int)(dense - name), name, dense + strlen(".dense."));
    return xstrdup(name);
}

/* A bare BertModel: no prefix, no heads. */
static char *bare_names(const char *name) {
    return starts_with(name, "bert.") && !strstr(name, "pooler") ? xstrdup(name + strlen("bert.")) : NULL;
}

static char *no_word_embeddings(const char *name) { return strstr(name, "word_emb") ? NULL : xstrdup(name); }

static void test_foreign_names(void **unused) {
    (void)unused;
    struct bert_config config = small_config(true);
    const renamer whole[] = {old_names, act_names};
    for (int i = 0; i < 2; i++) {
        struct host_model model;
        host_model_new(&model, &config);
        write_foreign(&model, whole[i]);
        if (hf_folder_load(folder, &model.checkpoint.hf, NULL, 1) != OK)
            fail_msg("%s", status_message());
        assert_filled(&model, 3, 0, 0);
        host_model_free(&model);
    }
}

static void test_missing_heads(void **unused) {
    (void)unused;
    struct bert_config config = small_config(true);
    struct host_model model;
    host_model_new(&model, &config);
    write_foreign(&model, bare_names);
    host_model_fill(&model, 9); /* what must be overwritten */
    assert_int_equal(hf_folder_load(folder, &model.checkpoint.hf, NULL, 77), OK);
    float *values = xcalloc((size_t)hf_scratch_count(model.graph), sizeof *values),
          *expected = xcalloc((size_t)hf_scratch_count(model.graph), sizeof *expected);
    int heads = 0;
    for (int p = 0; p < model.graph->parameter_count; p++) {
        const struct parameter *parameter = &model.graph->parameters[p];
        bool head = starts_with(parameter->name, "cls.") || strstr(parameter->name, "pooler");
        if (head)
            bert_init_parameter(&config, parameter, 77, expected);
        else
            expected_slice(parameter, 3, 0, expected);
        assert_int_equal(exec_download_slice(model.checkpoint.hf.exec, model.graph->master, p, values), OK);
        assert_memory_equal(values, expected, (size_t)(parameter->rows * parameter->columns) * sizeof *values);
        heads += head;
    }
    assert_int_equal(heads, 9);
    free(values);
    free(expected);
    host_model_free(&model);
}

static void refuse_load(struct host_model *model, const char *message) {
    assert_int_equal(hf_folder_load(folder, &model->checkpoint.hf, NULL, 1), BAD_INPUT);
    assert_message(message);
}

static void test_wrong_folders(void **unused) {
    (void)unused;
    struct bert_config config = small_config(true);
    struct host_model model, other;
    host_model_new(&model, &config);
    refuse_load(&model, "model.safetensors: cannot open");
    write_file("pytorch_model.bin", "PK");
    refuse_load(&model, "save_pretrained");
    write_foreign(&model, no_word_embeddings);
    refuse_load(&model, "bert.embeddings.word_embeddings.weight is missing");
    config.max_position_embeddings = 32;
    host_model_new(&other, &config);
    write_foreign(&model, old_names);
    refuse_load(&other, "module.bert.embeddings.position_embeddings.weight is 16x8, the model needs 32x8");
    host_model_free(&other);
    host_model_free(&model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(function) cmocka_unit_test_setup_teardown(function, new_folder, remove_folder)
        TEST(test_config_round_trip), TEST(test_foreign_configs), TEST(test_tokenizer_files),
        TEST(test_foreign_names),     TEST(test_missing_heads),   TEST(test_wrong_folders),
#undef TEST
    };
    log_set_quiet(true);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
