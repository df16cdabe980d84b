/* Parses, formats and looks up JSON on top of jansson. */
#include "formats/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/lfs.h"
#include "formats/text_file.h"
#include "lib/base/file.h"
#include "lib/base/utf8.h"

/* Bound on the estimated number of values of a text: one for every BYTES_PER_VALUE bytes, and
 * FEW_VALUES more.  jansson needs a few hundred bytes for a container and a few dozen for any
 * other value, so a parse takes at most about 17 times the bytes of the text, and half a
 * gigabyte.  Tokenizers, the densest of real files, have a value for every five bytes. */
enum { CONTAINER_WEIGHT = 4, BYTES_PER_VALUE = 4, FEW_VALUES = 1 << 16, MAX_WEIGHT = 1 << 23 };
enum { MAX_KEY = 200 }; /* bytes of a key in a message */

static size_t text_weight(const char *text, size_t len)
{
    size_t weight = 0;
    bool in_string = false;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            weight += CONTAINER_WEIGHT;
        } else if (c == ',') {
            weight++;
        }
    }
    return weight;
}

/* Returns the offset of the quote that opens the string which ends at `end`; `end` = none. */
static size_t opening_quote(const char *text, size_t end)
{
    for (size_t at = end; at-- > 0;) {
        size_t slashes = 0;
        if (text[at] != '"')
            continue;
        while (slashes < at && text[at - 1 - slashes] == '\\')
            slashes++;
        if (slashes % 2 == 0)
            return at;
    }
    return end;
}

/* Says why jansson refused a text that begins at line `line` of a file. */
static vptq_status fail_parse(const char *text, size_t len, const char *name, size_t line,
                              const json_error_t *je, vptq_err *err)
{
    const size_t at = line + (size_t)(je->line > 0 ? je->line - 1 : 0);
    const size_t end = je->position > 0 ? (size_t)je->position - 1 : 0;
    const size_t start = end < len && text[end] == '"' ? opening_quote(text, end) : end;
    VPTQ_CHECK(vptq_lfs_check(name, text, len, "JSON file", err));
    if (json_error_code(je) == json_error_out_of_memory)
        return vptq_fail(err, VPTQ_E_NOMEM, "%s: out of memory while reading JSON", name);
    if (json_error_code(je) == json_error_duplicate_key && start < end) {
        const size_t n = end - start - 1;
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: line %zu, column %d: duplicate key '%.*s'",
                         name, at, je->column, (int)(n < MAX_KEY ? n : MAX_KEY),
                         text + start + 1);
    }
    return vptq_fail(err, VPTQ_E_FORMAT, "%s: line %zu, column %d: not valid JSON: %s", name,
                     at, je->column, je->text);
}

/* `line`: that of the file on which the text begins. */
static vptq_status parse(const char *text, size_t len, const char *name, size_t line,
                         size_t flags, json_t **out, vptq_err *err)
{
    size_t weight = text_weight(text, len), limit = FEW_VALUES + len / BYTES_PER_VALUE;
    limit = limit < MAX_WEIGHT ? limit : MAX_WEIGHT;
    if (weight > limit)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: the JSON of %zu bytes has about %zu values, expected at most %zu",
                         name, len, weight, limit);
    json_error_t je;
    json_t *value =
        json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | flags, &je);
    if (!value)
        return fail_parse(text, len, name, line, &je, err);
    if (memchr(text, 0, len)) { /* jansson takes it for the end */
        json_decref(value);
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: not valid JSON: a zero byte after the value",
                         name);
    }
    *out = value;
    return VPTQ_OK;
}

vptq_status vptq_json_parse(const char *text, size_t len, const char *name, json_t **out,
                            vptq_err *err)
{
    return parse(text, len, name, 1, 0, out, err);
}

vptq_status vptq_json_parse_at(const char *text, size_t len, const char *name, size_t line,
                               json_t **out, vptq_err *err)
{
    return parse(text, len, name, line, 0, out, err);
}

vptq_status vptq_json_parse_reals(const char *text, size_t len, const char *name, json_t **out,
                                  vptq_err *err)
{
    return parse(text, len, name, 1, JSON_DECODE_INT_AS_REAL, out, err);
}

vptq_status vptq_json_load(const char *path, size_t limit, json_t **out, vptq_err *err)
{
    char *text = NULL;
    size_t len = 0;
    VPTQ_CHECK(vptq_file_read(path, limit, NULL, &text, &len, err));
    vptq_status st = parse(text, len, path, 1, 0, out, err);
    vptq_mem_free(NULL, text);
    return st;
}

vptq_status vptq_json_read(const vptq_ctx *ctx, const char *path, size_t limit, json_t **out,
                           vptq_err *err)
{
    vptq_text_file t;
    VPTQ_CHECK(vptq_text_file_open(ctx, path, VPTQ_TEXT_JSON, limit, &t, err));
    const vptq_status st = parse(t.data, t.size, t.name, 1, 0, out, err);
    vptq_text_file_close(&t);
    return st;
}

/* Formats with the fewest digits (0.1, not 0.10000000000000001) that read back as the same
 * value; NULL if out of memory. */
static char *exact_text(const json_t *value, size_t flags)
{
    for (unsigned digits = 15; digits <= 17; digits++) {
        char *text = json_dumps(value, flags | JSON_ENCODE_ANY | JSON_REAL_PRECISION(digits));
        json_t *again = text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
        bool same = again && json_equal(value, again);
        json_decref(again);
        if (!text || same || digits == 17)
            return text;
        free(text);
    }
    return NULL;
}

vptq_status vptq_json_text(const json_t *value, const char *name, bool indent, char **text,
                           vptq_err *err)
{
    *text = exact_text(value, indent ? JSON_INDENT(2) : 0);
    if (!*text)
        return vptq_fail(err, VPTQ_E_NOMEM, "%s: out of memory while writing JSON", name);
    return VPTQ_OK;
}

vptq_status vptq_json_save(const char *path, const json_t *value, vptq_err *err)
{
    char *text = NULL;
    VPTQ_CHECK(vptq_json_text(value, path, true, &text, err));
    size_t len = strlen(text);
    text[len] = '\n'; /* replaces the 0, which the writer does not need */
    vptq_status st = vptq_file_replace(path, text, len + 1, err);
    free(text);
    return st;
}

/* ---- checksums ---- */

static const char seal_key[] = "xxh3";

/* The checksum of an object without the key. */
static vptq_status seal_of(const json_t *object, const char *path, char hex[17], vptq_err *err)
{
    char *text = NULL;
    VPTQ_CHECK(vptq_json_text(object, path, false, &text, err));
    snprintf(hex, 17, "%016" PRIx64, vptq_hash(text, strlen(text), 0));
    free(text);
    return VPTQ_OK;
}

vptq_status vptq_json_seal(json_t *object, const char *path, vptq_err *err)
{
    char hex[17];
    (void)json_object_del(object, seal_key); /* of an earlier save */
    VPTQ_CHECK(seal_of(object, path, hex, err));
    if (json_object_set_new(object, seal_key, json_string(hex)))
        return vptq_fail(err, VPTQ_E_NOMEM, "%s: out of memory while writing JSON", path);
    return VPTQ_OK;
}

vptq_status vptq_json_save_sealed(const char *path, json_t *object, vptq_err *err)
{
    VPTQ_CHECK(vptq_json_seal(object, path, err));
    return vptq_json_save(path, object, err);
}

vptq_status vptq_json_unseal(json_t *object, const char *path, vptq_err *err)
{
    const char *recorded = json_string_value(json_object_get(object, seal_key));
    char found[17], expected[17];
    if (!recorded)
        return vptq_fail(err, VPTQ_E_CHECKSUM,
                         "%s: has no checksum (key '%s'), so damage could not be seen", path,
                         seal_key);
    snprintf(expected, sizeof expected, "%.16s", recorded);
    const bool whole = strlen(recorded) == 16;
    (void)json_object_del(object, seal_key);
    VPTQ_CHECK(seal_of(object, path, found, err));
    if (whole && strcmp(found, expected) == 0)
        return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_CHECKSUM,
                     "%s: the file is damaged: its checksum is %s, expected %s", path, found,
                     expected);
}

vptq_status vptq_json_unseal_if(json_t *object, const char *path, vptq_err *err)
{
    return json_object_get(object, seal_key) ? vptq_json_unseal(object, path, err) : VPTQ_OK;
}

vptq_status vptq_json_check_text(const char *name, const char *what, const char *text,
                                 vptq_err *err)
{
    const size_t n = strlen(text);
    if (vptq_utf8_valid_prefix(text, n) == n)
        return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_FORMAT, "%s: %s '%.200s' is not valid UTF-8, as JSON must be",
                     name, what, text);
}

/* ---- getters ---- */

static const char *const type_names[] = {
    [JSON_OBJECT] = "an object",    [JSON_ARRAY] = "an array",
    [JSON_STRING] = "a string",     [JSON_INTEGER] = "a whole number",
    [JSON_REAL] = "a fraction",     [JSON_TRUE] = "true or false",
    [JSON_FALSE] = "true or false", [JSON_NULL] = "null",
};

static vptq_status wrong_type(const json_t *value, const char *name, const char *key,
                              const char *expected, vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_FORMAT, "%s: key '%s' is %s, expected %s", name, key,
                     type_names[json_typeof(value)], expected);
}

static vptq_status missing(const char *name, const char *key, vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_FORMAT, "%s: key '%s' is missing", name, key);
}

/* The value of a key; NULL if missing or null. */
static const json_t *present(const json_t *obj, const char *key)
{
    const json_t *value = json_object_get(obj, key);
    return json_is_null(value) ? NULL : value;
}

vptq_status vptq_json_u64(const json_t *obj, const char *name, const char *key, uint64_t max,
                          uint64_t *out, vptq_err *err)
{
    if (!present(obj, key))
        return missing(name, key, err);
    return vptq_json_u64_or(obj, name, key, max, 0, out, err);
}

vptq_status vptq_json_u64_or(const json_t *obj, const char *name, const char *key, uint64_t max,
                             uint64_t fallback, uint64_t *out, vptq_err *err)
{
    const json_t *value = present(obj, key);
    if (value && !json_is_integer(value))
        return wrong_type(value, name, key, "a whole number", err);
    json_int_t n = json_integer_value(value);
    if (n < 0 || (uint64_t)n > max)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: key '%s' is %lld, expected 0 to %llu", name,
                         key, (long long)n, (unsigned long long)max);
    *out = value ? (uint64_t)n : fallback;
    return VPTQ_OK;
}

vptq_status vptq_json_f64_or(const json_t *obj, const char *name, const char *key,
                             double fallback, double *out, vptq_err *err)
{
    const json_t *value = present(obj, key);
    if (value && !json_is_number(value))
        return wrong_type(value, name, key, "a number", err);
    *out = value ? json_number_value(value) : fallback;
    return VPTQ_OK;
}

vptq_status vptq_json_bool_or(const json_t *obj, const char *name, const char *key,
                              bool fallback, bool *out, vptq_err *err)
{
    const json_t *value = present(obj, key);
    if (value && !json_is_boolean(value))
        return wrong_type(value, name, key, "true or false", err);
    *out = value ? json_is_true(value) : fallback;
    return VPTQ_OK;
}

vptq_status vptq_json_str_or(const json_t *obj, const char *name, const char *key,
                             const char *fallback, const char **out, vptq_err *err)
{
    const json_t *value = present(obj, key);
    if (!value && !fallback)
        return missing(name, key, err);
    if (value && !json_is_string(value))
        return wrong_type(value, name, key, "a string", err);
    *out = value ? json_string_value(value) : fallback;
    return VPTQ_OK;
}
