#include "kernels/cuda/choices.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"

struct entry {
    char *product;
    unsigned char bytes[CHOICE_BYTES];
};

struct choices {
    char *path, *device, *library;
    bool write;
    struct entry *entries;
    int count, capacity;
};

/* --- reading --- */

static bool bytes_of(const char *hexadecimal, unsigned char bytes[CHOICE_BYTES]) {
    unsigned value;
    if (!hexadecimal || strspn(hexadecimal, "0123456789abcdef") != 2 * CHOICE_BYTES || hexadecimal[2 * CHOICE_BYTES])
        return false;
    for (int i = 0; i < CHOICE_BYTES && sscanf(hexadecimal + 2 * i, "%2x", &value) == 1; i++)
        bytes[i] = (unsigned char)value;
    return true;
}

static struct entry *entry_of(const struct choices *choices, const char *product) {
    for (int i = 0; i < choices->count; i++)
        if (strcmp(choices->entries[i].product, product) == 0)
            return &choices->entries[i];
    return NULL;
}

static void put(struct choices *choices, const char *product, const unsigned char bytes[CHOICE_BYTES]) {
    struct entry *entry = entry_of(choices, product);
    if (!entry) {
        GROW(choices->entries, choices->count, choices->capacity);
        entry = &choices->entries[choices->count++];
        entry->product = xstrdup(product);
    }
    memcpy(entry->bytes, bytes, CHOICE_BYTES);
}

static status read_entries(struct choices *choices, const json *root) {
    const char *device, *library;
    json *products;
    unsigned char bytes[CHOICE_BYTES];
    TRY(json_get_string(choices->path, root, "device", &device));
    TRY(json_get_string(choices->path, root, "library", &library));
    TRY(json_get_object(choices->path, root, "products", &products));
    if (strcmp(device, choices->device) != 0 || strcmp(library, choices->library) != 0) {
        log_warn(
            "%s: chosen on %s with %s, this is %s with %s: products are timed anew, and sums may differ in the last "
            "bits",
            choices->path, device, library, choices->device, choices->library);
        return OK;
    }
    for (const json *item = json_first(products); item; item = json_next(item)) {
        if (!bytes_of(json_value_string(item), bytes))
            return bad_input("%s: product \"%s\": expected an algorithm of %d bytes, hexadecimal", choices->path,
                             json_key(item), CHOICE_BYTES);
        put(choices, json_key(item), bytes);
    }
    return OK;
}

status choices_open(struct choices **out, const char *path, const char *device, const char *library, bool write) {
    struct choices *choices = xcalloc(1, sizeof *choices);
    json *root = NULL;
    *choices =
        (struct choices){.path = xstrdup(path), .device = xstrdup(device), .library = xstrdup(library), .write = write};
    status code = file_exists(path) || folder_exists(path) ? json_read_file(path, &root) : OK;
    if (code == OK && root)
        code = read_entries(choices, root);
    json_free(root);
    if (code != OK) {
        char *said = xasprintf("%s; without this file, products are timed anew", status_message());
        status_set(code, said);
        free(said);
        choices_free(choices);
    } else
        *out = choices;
    return code;
}

void choices_free(struct choices *choices) {
    if (!choices)
        return;
    for (int i = 0; i < choices->count; i++)
        free(choices->entries[i].product);
    free(choices->entries);
    free(choices->path);
    free(choices->device);
    free(choices->library);
    free(choices);
}

bool choices_find(const struct choices *choices, const char *product, void *bytes) {
    const struct entry *entry = entry_of(choices, product);
    if (entry)
        memcpy(bytes, entry->bytes, CHOICE_BYTES);
    return entry != NULL;
}

/* --- writing --- */

status choices_add(struct choices *choices, const char *product, const void *bytes) {
    struct text text = {0};
    put(choices, product, bytes);
    if (!choices->write)
        return OK;
    text_add(&text, "{\n  \"device\": ");
    json_add_string(&text, choices->device);
    text_add(&text, ",\n  \"library\": ");
    json_add_string(&text, choices->library);
    text_add(&text, ",\n  \"products\": {");
    for (int i = 0; i < choices->count; i++) {
        text_add(&text, i ? ",\n    " : "\n    ");
        json_add_string(&text, choices->entries[i].product);
        text_add(&text, ": \"");
        for (int b = 0; b < CHOICE_BYTES; b++)
            text_printf(&text, "%02x", choices->entries[i].bytes[b]);
        text_add(&text, "\"");
    }
    text_add(&text, "\n  }\n}\n");
    status code = file_write_all(choices->path, text.data, text.length);
    text_free(&text);
    return code;
}
