#include "base/json.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

status json_parse(const char *source, const char *bytes, size_t length, json **out) {
    const char *end = bytes;
    *out = cJSON_ParseWithLengthOpts(bytes, length, &end, 0);
    if (!*out)
        return bad_input("%s: not valid JSON at byte %lld", source, (long long)(end - bytes));
    return OK;
}

status json_read_file(const char *path, json **out) {
    struct text text = {0};
    status code = file_read(path, &text);
    if (code == OK)
        code = json_parse(path, text.data, text.length, out);
    text_free(&text);
    return code;
}

void json_free(json *root) { cJSON_Delete(root); }

json *json_get(const json *object, const char *key) { return cJSON_GetObjectItemCaseSensitive(object, key); }

json *json_first(const json *container) { return container ? container->child : NULL; }

json *json_next(const json *item) { return item->next; }

const char *json_key(const json *item) { return item->string ? item->string : ""; }

bool json_is_null(const json *item) { return cJSON_IsNull(item); }

bool json_value_int(const json *item, int64_t *out) {
    if (!cJSON_IsNumber(item) || item->valuedouble != floor(item->valuedouble) || fabs(item->valuedouble) > 0x1p53)
        return false;
    *out = (int64_t)item->valuedouble;
    return true;
}

bool json_value_double(const json *item, double *out) {
    if (!cJSON_IsNumber(item))
        return false;
    *out = item->valuedouble;
    return true;
}

const char *json_value_string(const json *item) { return cJSON_IsString(item) ? item->valuestring : NULL; }

static status expected(const char *source, const json *object, const char *key, const char *type) {
    if (!json_get(object, key))
        return bad_input("%s: key \"%s\" is missing, expected %s", source, key, type);
    return bad_input("%s: key \"%s\" has the wrong type, expected %s", source, key, type);
}

status json_get_int(const char *source, const json *object, const char *key, int64_t *out) {
    return json_value_int(json_get(object, key), out) ? OK : expected(source, object, key, "an integer");
}

status json_get_double(const char *source, const json *object, const char *key, double *out) {
    return json_value_double(json_get(object, key), out) ? OK : expected(source, object, key, "a number");
}

status json_get_bool(const char *source, const json *object, const char *key, bool *out) {
    const json *item = json_get(object, key);
    if (!cJSON_IsBool(item))
        return expected(source, object, key, "true or false");
    *out = cJSON_IsTrue(item);
    return OK;
}

status json_get_string(const char *source, const json *object, const char *key, const char **out) {
    *out = json_value_string(json_get(object, key));
    return *out ? OK : expected(source, object, key, "a string");
}

status json_get_array(const char *source, const json *object, const char *key, json **out) {
    *out = json_get(object, key);
    return cJSON_IsArray(*out) ? OK : expected(source, object, key, "an array");
}

status json_get_object(const char *source, const json *object, const char *key, json **out) {
    *out = json_get(object, key);
    return cJSON_IsObject(*out) ? OK : expected(source, object, key, "an object");
}

int64_t json_count(const json *container) { return cJSON_GetArraySize(container); }

void json_add_string(struct text *out, const char *string) {
    text_add(out, "\"");
    for (; *string; string++) {
        unsigned char c = (unsigned char)*string;
        if (c == '"' || c == '\\')
            text_printf(out, "\\%c", c);
        else if (c < 0x20)
            text_printf(out, "\\u%04x", c);
        else
            text_append(out, string, 1);
    }
    text_add(out, "\"");
}

void json_add_double(struct text *out, double value) {
    if (!isfinite(value)) {
        text_add(out, "null");
        return;
    }
    char digits[40];
    for (int precision = 6; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, value);
        if (strtod(digits, NULL) == value)
            break;
    }
    text_add(out, digits);
}

void json_add_value(struct text *out, const json *value) {
    char *printed = cJSON_PrintUnformatted(value);
    text_add(out, printed);
    cJSON_free(printed);
}
