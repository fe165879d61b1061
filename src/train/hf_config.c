/* config.json, in both directions from one table. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "train/hf_folder.h"

static const struct {
    const char *key;
    bool whole;      /* int64_t, or else double */
    size_t offset;   /* in struct bert_config */
    double fallback; /* BertConfig's default, for folders that leave the key out */
} fields[] = {
#define WHOLE(name, fallback) \
    { #name, true, offsetof(struct bert_config, name), fallback }
#define REAL(name, fallback) \
    { #name, false, offsetof(struct bert_config, name), fallback }
    WHOLE(vocab_size, 30522),       WHOLE(hidden_size, 768),        WHOLE(num_hidden_layers, 12),
    WHOLE(num_attention_heads, 12), WHOLE(intermediate_size, 3072), WHOLE(max_position_embeddings, 512),
    WHOLE(type_vocab_size, 2),      REAL(hidden_dropout_prob, 0.1), REAL(attention_probs_dropout_prob, 0.1),
    REAL(layer_norm_eps, 1e-12),    REAL(initializer_range, 0.02),
#undef WHOLE
#undef REAL
};
enum { FIELD_COUNT = sizeof fields / sizeof *fields };

static const char *const activation_names[] = {[ACT_GELU] = "gelu", [ACT_GELU_NEW] = "gelu_new", [ACT_RELU] = "relu"};
enum { ACTIVATION_COUNT = sizeof activation_names / sizeof *activation_names };

const char *hf_activation_name(enum activation activation) { return activation_names[activation]; }

status hf_config_write(const char *folder, const struct bert_config *config, int64_t pad_token_id) {
    struct text text = {0};
    text_printf(&text, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"bert\",\n  \"hidden_act\": \"%s\",\n",
                config->nsp ? "BertForPreTraining" : "BertForMaskedLM", hf_activation_name(config->hidden_act));
    for (int i = 0; i < FIELD_COUNT; i++) {
        const char *field = (const char *)config + fields[i].offset;
        text_printf(&text, "  \"%s\": ", fields[i].key);
        if (fields[i].whole)
            text_printf(&text, "%lld", (long long)*(const int64_t *)field);
        else
            json_add_double(&text, *(const double *)field);
        text_add(&text, ",\n");
    }
    text_printf(&text,
                "  \"pad_token_id\": %lld,\n  \"position_embedding_type\": \"absolute\",\n"
                "  \"classifier_dropout\": null,\n  \"use_cache\": true,\n  \"torch_dtype\": \"float32\"\n}\n",
                (long long)pad_token_id);
    char *path = path_join(folder, "config.json");
    status code = file_write_all(path, text.data, text.length);
    free(path);
    text_free(&text);
    return code;
}

static status read_fields(const char *path, const json *root, struct bert_config *out) {
    for (int i = 0; i < FIELD_COUNT; i++) {
        char *field = (char *)out + fields[i].offset;
        bool absent = !json_get(root, fields[i].key);
        if (fields[i].whole && absent)
            *(int64_t *)field = (int64_t)fields[i].fallback;
        else if (fields[i].whole)
            TRY(json_get_int(path, root, fields[i].key, (int64_t *)field));
        else if (absent)
            *(double *)field = fields[i].fallback;
        else
            TRY(json_get_double(path, root, fields[i].key, (double *)field));
        if (fields[i].whole ? *(int64_t *)field < 1 : !(*(double *)field >= 0))
            return bad_input("%s: key \"%s\" must be %s", path, fields[i].key,
                             fields[i].whole ? "at least 1" : "0 or more");
    }
    return OK;
}

static status read_activation(const char *path, const json *root, enum activation *out) {
    const char *name = activation_names[ACT_GELU];
    if (json_get(root, "hidden_act"))
        TRY(json_get_string(path, root, "hidden_act", &name));
    for (int i = 0; i < ACTIVATION_COUNT; i++)
        if (strcmp(name, activation_names[i]) == 0) {
            *out = (enum activation)i;
            return OK;
        }
    return bad_input("%s: hidden_act is \"%s\", expected gelu, gelu_new or relu", path, name);
}

/* `root` says `expected` under `key`, or nothing. */
static status expect_string(const char *path, const json *root, const char *key, const char *expected) {
    const json *item = json_get(root, key);
    const char *value = item ? json_value_string(item) : expected;
    if (value && strcmp(value, expected) == 0)
        return OK;
    return bad_input("%s: %s is \"%s\", expected \"%s\"", path, key, value ? value : "not a string", expected);
}

static status read_config(const char *path, const json *root, struct bert_config *out) {
    TRY(expect_string(path, root, "model_type", "bert"));
    TRY(expect_string(path, root, "position_embedding_type", "absolute"));
    TRY(read_fields(path, root, out));
    TRY(read_activation(path, root, &out->hidden_act));
    const char *architecture = json_value_string(json_first(json_get(root, "architectures")));
    out->nsp = !architecture || strcmp(architecture, "BertForPreTraining") == 0 ||
               strcmp(architecture, "BertForNextSentencePrediction") == 0;
    return OK;
}

status hf_folder_read_config(const char *folder, struct bert_config *out) {
    char *path = path_join(folder, "config.json");
    json *root = NULL;
    *out = (struct bert_config){0};
    status code = json_read_file(path, &root);
    if (code == OK)
        code = read_config(path, root, out);
    json_free(root);
    free(path);
    return code;
}
