#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "data/hash.h"
#include "data/utf8.h"
#include "data/wordpiece.h"

/* Also keeps the tokenizer's trie below 2^24 nodes. */
enum { LARGEST_FILE = 1 << 24 };

struct vocab {
    struct text bytes; /* the file; every line end is a NUL */
    char **tokens;     /* [count] into bytes */
    int64_t count, capacity;
    int32_t *slots; /* [slot_count] id + 1, 0 where empty; a power of two, at most half full */
    uint64_t slot_count;
    struct special_ids special;
    bool cased;
};

int64_t vocab_size(const struct vocab *vocab) { return vocab->count; }
const char *vocab_token(const struct vocab *vocab, int64_t id) { return vocab->tokens[id]; }
struct special_ids vocab_special(const struct vocab *vocab) {
    return vocab->special;
}

void vocab_free(struct vocab *vocab) {
    if (!vocab)
        return;
    text_free(&vocab->bytes);
    free(vocab->tokens);
    free(vocab->slots);
    free(vocab);
}

/* The slot that holds `token`, or the empty one where it belongs. */
static uint64_t find_slot(const struct vocab *vocab, const char *token) {
    uint64_t slot = hash_bytes(token, strlen(token));
    while (slot &= vocab->slot_count - 1,
           vocab->slots[slot] && strcmp(vocab->tokens[vocab->slots[slot] - 1], token) != 0)
        slot++;
    return slot;
}

int64_t vocab_id(const struct vocab *vocab, const char *token) {
    return (int64_t)vocab->slots[find_slot(vocab, token)] - 1;
}

/* Cuts the file into lines, in place. */
static status split_lines(struct vocab *vocab, const char *path) {
    char *at = vocab->bytes.data, *end = at + vocab->bytes.length;
    while (at < end) {
        char *stop = memchr(at, '\n', (size_t)(end - at));
        stop = stop ? stop : end;
        char *last = stop > at && stop[-1] == '\r' ? stop - 1 : stop;
        long long line = (long long)vocab->count + 1;
        if (last == at)
            return bad_input("%s:%lld: empty line, expected a vocabulary entry", path, line);
        if (memchr(at, 0, (size_t)(last - at)))
            return bad_input("%s:%lld: a NUL byte, expected text", path, line);
        *last = 0;
        for (const uint8_t *c = (uint8_t *)at; c < (uint8_t *)last;) {
            uint32_t character;
            size_t length = utf8_decode(c, (uint8_t *)last, &character);
            if (utf8_broken(c, length, character))
                return bad_input("%s:%lld: not UTF-8", path, line);
            c += length;
        }
        GROW(vocab->tokens, vocab->count, vocab->capacity);
        vocab->tokens[vocab->count++] = at;
        at = stop + 1;
    }
    return OK;
}

static status index_tokens(struct vocab *vocab, const char *path) {
    vocab->slot_count = 64;
    while (vocab->slot_count < 2 * (uint64_t)vocab->count)
        vocab->slot_count *= 2;
    vocab->slots = xcalloc(vocab->slot_count, sizeof *vocab->slots);
    for (int64_t id = 0; id < vocab->count; id++) {
        uint64_t slot = find_slot(vocab, vocab->tokens[id]);
        if (vocab->slots[slot])
            return bad_input("%s:%lld: \"%s\" stands already in line %d", path, (long long)id + 1, vocab->tokens[id],
                             vocab->slots[slot]);
        vocab->slots[slot] = (int32_t)id + 1;
    }
    return OK;
}

static status find_special(const struct vocab *vocab, const char *path, const char *token, int32_t *id) {
    *id = (int32_t)vocab_id(vocab, token);
    return *id >= 0 ? OK
                    : bad_input("%s: lacks the special token %s, which must stand on a line of its own", path, token);
}

static status vocab_load(struct vocab *vocab, const char *path) {
    int64_t bytes;
    TRY(file_size(path, &bytes));
    if (bytes > LARGEST_FILE)
        return bad_input("%s: %lld bytes, too large for a vocabulary (one entry a line)", path, (long long)bytes);
    TRY(file_read(path, &vocab->bytes));
    TRY(split_lines(vocab, path));
    TRY(index_tokens(vocab, path));
    TRY(find_special(vocab, path, "[PAD]", &vocab->special.pad));
    TRY(find_special(vocab, path, "[UNK]", &vocab->special.unk));
    TRY(find_special(vocab, path, "[CLS]", &vocab->special.cls));
    TRY(find_special(vocab, path, "[SEP]", &vocab->special.sep));
    TRY(find_special(vocab, path, "[MASK]", &vocab->special.mask));
    for (int64_t id = 0; id < vocab->count; id++)
        if (vocab_ordinary(vocab, id))
            return OK;
    return bad_input("%s: holds special tokens only, expected words and pieces of words too", path);
}

static bool has_upper_case(const struct vocab *vocab) {
    for (int64_t id = 0; id < vocab->count; id++) {
        if (!vocab_ordinary(vocab, id))
            continue;
        const uint8_t *at = (const uint8_t *)vocab->tokens[id], *end = at + strlen(vocab->tokens[id]);
        while (at < end) {
            uint32_t character;
            at += utf8_decode(at, end, &character);
            if (utf8proc_tolower((utf8proc_int32_t)character) != (utf8proc_int32_t)character)
                return true;
        }
    }
    return false;
}

/* In a model folder, where it is called vocab.txt, what tokenizer_config.json says, or else the entries. */
static status find_casing(struct vocab *vocab, const char *path) {
    const char *name = path_name(path);
    char *beside = xasprintf("%.*stokenizer_config.json", (int)(name - path), path);
    json *root = NULL;
    bool lower_case;
    status code = OK;
    vocab->cased = has_upper_case(vocab);
    if (strcmp(name, "vocab.txt") == 0 && file_exists(beside)) {
        code = json_read_file(beside, &root);
        if (code == OK && json_get(root, "do_lower_case")) {
            code = json_get_bool(beside, root, "do_lower_case", &lower_case);
            vocab->cased = code == OK && !lower_case;
        }
        json_free(root);
    }
    free(beside);
    return code;
}

bool vocab_cased(const struct vocab *vocab) { return vocab->cased; }

status vocab_read(const char *path, struct vocab **out) {
    struct vocab *vocab = xcalloc(1, sizeof *vocab);
    status code = vocab_load(vocab, path);
    if (code == OK)
        code = find_casing(vocab, path);
    if (code != OK) {
        vocab_free(vocab);
        vocab = NULL;
    }
    *out = vocab;
    return code;
}

bool vocab_ordinary(const struct vocab *vocab, int64_t id) {
    const char *token = vocab->tokens[id];
    size_t length = strlen(token);
    return !(length > 2 && token[0] == '[' && token[length - 1] == ']');
}
