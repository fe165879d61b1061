/* The files that make transformers' AutoTokenizer split text as `berth shard` does: vocab.txt and tokenizer_config.json
 * for the Python tokenizer, tokenizer.json for the one in Rust. */
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "train/hf_folder.h"

/* BERT's special tokens, by the names that tokenizer_config.json gives them. */
static const struct {
    const char *role, *token;
} specials[] = {{"pad_token", "[PAD]"},
                {"unk_token", "[UNK]"},
                {"cls_token", "[CLS]"},
                {"sep_token", "[SEP]"},
                {"mask_token", "[MASK]"}};
enum { SPECIAL_COUNT = sizeof specials / sizeof *specials };

status hf_tokenizer_read(const char *vocab_path, struct hf_tokenizer **out) {
    struct hf_tokenizer *tokenizer = xcalloc(1, sizeof *tokenizer);
    status code = vocab_read(vocab_path, &tokenizer->vocab);
    if (code == OK)
        code = file_read(vocab_path, &tokenizer->bytes);
    if (code == OK) {
        tokenizer->lower_case = !vocab_cased(tokenizer->vocab);
    } else {
        hf_tokenizer_free(tokenizer);
        tokenizer = NULL;
    }
    *out = tokenizer;
    return code;
}

void hf_tokenizer_free(struct hf_tokenizer *tokenizer) {
    if (!tokenizer)
        return;
    if (tokenizer->vocab)
        vocab_free(tokenizer->vocab);
    text_free(&tokenizer->bytes);
    free(tokenizer);
}

/* Special tokens in the order of their ids: the order in which added tokens must be listed. */
static void special_order(const struct vocab *vocab, int order[SPECIAL_COUNT]) {
    for (int i = 0; i < SPECIAL_COUNT; i++) {
        int at = i;
        for (; at > 0 && vocab_id(vocab, specials[order[at - 1]].token) > vocab_id(vocab, specials[i].token); at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
}

static const char added_token[] =
    "\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true";

static void add_tokenizer_config(const struct hf_tokenizer *tokenizer, int64_t longest, struct text *out) {
    const char *lower = tokenizer->lower_case ? "true" : "false";
    text_printf(out,
                "{\n  \"tokenizer_class\": \"BertTokenizer\",\n  \"do_lower_case\": %s,\n  \"strip_accents\": null,\n"
                "  \"tokenize_chinese_chars\": true,\n  \"do_basic_tokenize\": true,\n  \"never_split\": null,\n"
                "  \"clean_up_tokenization_spaces\": true,\n  \"model_max_length\": %lld,\n",
                lower, (long long)longest);
    for (int i = 0; i < SPECIAL_COUNT; i++)
        text_printf(out, "  \"%s\": \"%s\",\n", specials[i].role, specials[i].token);
    text_add(out, "  \"added_tokens_decoder\": {");
    int order[SPECIAL_COUNT];
    special_order(tokenizer->vocab, order);
    for (int i = 0; i < SPECIAL_COUNT; i++) {
        const char *token = specials[order[i]].token;
        text_printf(out, "%s\n    \"%lld\": {", i ? "," : "", (long long)vocab_id(tokenizer->vocab, token));
        text_printf(out, added_token, token);
        text_add(out, "}");
    }
    text_add(out, "\n  }\n}\n");
}

static void add_specials_map(struct text *out) {
    text_add(out, "{");
    for (int i = 0; i < SPECIAL_COUNT; i++)
        text_printf(out, "%s\n  \"%s\": \"%s\"", i ? "," : "", specials[i].role, specials[i].token);
    text_add(out, "\n}\n");
}

/* A text is [CLS] A [SEP], a pair [CLS] A [SEP] B [SEP] with type 1 from B on. */
static void add_template(const struct vocab *vocab, struct text *out) {
    static const char cls[] = "{\"SpecialToken\":{\"id\":\"[CLS]\",\"type_id\":0}}",
                      a[] = "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}",
                      b[] = "{\"Sequence\":{\"id\":\"B\",\"type_id\":1}}",
                      sep[] = "{\"SpecialToken\":{\"id\":\"[SEP]\",\"type_id\":%d}}";
    struct special_ids ids = vocab_special(vocab);
    text_printf(out, "{\"type\":\"TemplateProcessing\",\n\"single\":[%s,%s,", cls, a);
    text_printf(out, sep, 0);
    text_printf(out, "],\n\"pair\":[%s,%s,", cls, a);
    text_printf(out, sep, 0);
    text_printf(out, ",%s,", b);
    text_printf(out, sep, 1);
    text_printf(out,
                "],\n\"special_tokens\":{\"[CLS]\":{\"id\":\"[CLS]\",\"ids\":[%d],\"tokens\":[\"[CLS]\"]},"
                "\"[SEP]\":{\"id\":\"[SEP]\",\"ids\":[%d],\"tokens\":[\"[SEP]\"]}}}",
                ids.cls, ids.sep);
}

static void add_tokenizer_json(const struct hf_tokenizer *tokenizer, struct text *out) {
    const struct vocab *vocab = tokenizer->vocab;
    int order[SPECIAL_COUNT];
    special_order(vocab, order);
    text_add(out, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\n\"added_tokens\":[");
    for (int i = 0; i < SPECIAL_COUNT; i++) {
        const char *token = specials[order[i]].token;
        text_printf(out, "%s\n{\"id\":%lld,", i ? "," : "", (long long)vocab_id(vocab, token));
        text_printf(out, added_token, token);
        text_add(out, "}");
    }
    text_printf(out,
                "],\n\"normalizer\":{\"type\":\"BertNormalizer\",\"clean_text\":true,\"handle_chinese_chars\":true,"
                "\"strip_accents\":null,\"lowercase\":%s},\n\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},\n"
                "\"post_processor\":",
                tokenizer->lower_case ? "true" : "false");
    add_template(vocab, out);
    text_add(out,
             ",\n\"decoder\":{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true},\n"
             "\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"[UNK]\",\"continuing_subword_prefix\":\"##\","
             "\"max_input_chars_per_word\":100,\"vocab\":{");
    for (int64_t id = 0; id < vocab_size(vocab); id++) {
        text_add(out, id ? ",\n" : "\n");
        json_add_string(out, vocab_token(vocab, id));
        text_printf(out, ":%lld", (long long)id);
    }
    text_add(out, "}}}\n");
}

static status write_file(const char *folder, const char *name, const struct text *text) {
    char *path = path_join(folder, name);
    status code = file_write_all(path, text->data, text->length);
    free(path);
    return code;
}

status hf_tokenizer_write(const char *folder, const struct hf_tokenizer *tokenizer, int64_t longest) {
    struct text config = {0}, map = {0}, fast = {0};
    add_tokenizer_config(tokenizer, longest, &config);
    add_specials_map(&map);
    add_tokenizer_json(tokenizer, &fast);
    status code = write_file(folder, "vocab.txt", &tokenizer->bytes);
    if (code == OK)
        code = write_file(folder, "tokenizer_config.json", &config);
    if (code == OK)
        code = write_file(folder, "special_tokens_map.json", &map);
    if (code == OK)
        code = write_file(folder, "tokenizer.json", &fast);
    text_free(&config);
    text_free(&map);
    text_free(&fast);
    return code;
}
