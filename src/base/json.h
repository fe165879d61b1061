/* JSON: reading through cJSON, behind a few calls that name what is missing; writing as text. */
#ifndef BERTH_BASE_JSON_H
#define BERTH_BASE_JSON_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

typedef struct cJSON json;

/* `source` names the document in messages. Free the root with json_free. BAD_INPUT names the byte where it broke. */
status json_parse(const char *source, const char *bytes, size_t length, json **out);
status json_read_file(const char *path, json **out);
void json_free(json *root);

json *json_get(const json *object, const char *key); /* NULL if absent */
json *json_first(const json *container); /* children in order: for (j = json_first(x); j; j = json_next(j)) */
json *json_next(const json *item);
const char *json_key(const json *item);
bool json_is_null(const json *item);

/* Typed access: BAD_INPUT names `source`, key and expected type. Integers must be whole and below 2^53. */
status json_get_int(const char *source, const json *object, const char *key, int64_t *out);
status json_get_double(const char *source, const json *object, const char *key, double *out);
status json_get_bool(const char *source, const json *object, const char *key, bool *out);
status json_get_string(const char *source, const json *object, const char *key, const char **out); /* owned by root */
status json_get_array(const char *source, const json *object, const char *key, json **out);
status json_get_object(const char *source, const json *object, const char *key, json **out);
int64_t json_count(const json *container);
bool json_value_int(const json *item, int64_t *out); /* false if not a whole number */
bool json_value_double(const json *item, double *out);
const char *json_value_string(const json *item); /* NULL if not a string */

/* Writing: a quoted, escaped string (valid UTF-8 passes through); a double in the fewest digits that read back as the
 * same value (NaN and infinities, which JSON lacks, become null). */
void json_add_string(struct text *out, const char *string);
void json_add_double(struct text *out, double value);
void json_add_value(struct text *out, const json *value); /* a parsed value again, on one line */

#endif
