/* JSON over jansson, with the bounds that hostile files need: size, depth (jansson's 2048), no
 * duplicate keys, no bytes behind the value; and typed look-ups whose errors name file and key.
 */
#ifndef VPTQ_FORMATS_JSON_H
#define VPTQ_FORMATS_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/mem.h"
#include "lib/base/status.h"

/* `name` is what errors call it (a path).  The caller owns *out (json_decref). */
vptq_status vptq_json_parse(const char *text, size_t len, const char *name, json_t **out,
                            vptq_err *err) VPTQ_MUST_CHECK;
/* As parse, for a text that begins in that line of a file (1 = its first). */
vptq_status vptq_json_parse_at(const char *text, size_t len, const char *name, size_t line,
                               json_t **out, vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_json_load(const char *path, size_t limit, json_t **out,
                           vptq_err *err) VPTQ_MUST_CHECK;
/* As parse, for files that hold integers beyond 64 bits (tokenizer_config.json's
 * model_max_length): every number comes as a real. */
vptq_status vptq_json_parse_reals(const char *text, size_t len, const char *name, json_t **out,
                                  vptq_err *err) VPTQ_MUST_CHECK;
/* Indented, keys in the order they were set, numbers with the fewest digits that read back the
 * same; no newline at the end.  The caller frees *text with free(). */
vptq_status vptq_json_text(const json_t *value, const char *name, char **text,
                           vptq_err *err) VPTQ_MUST_CHECK;
/* The same on one line. */
vptq_status vptq_json_line(const json_t *value, const char *name, char **text,
                           vptq_err *err) VPTQ_MUST_CHECK;
/* Indented, keys in the order they were set, a newline at the end; atomic. */
vptq_status vptq_json_save(const char *path, const json_t *value,
                           vptq_err *err) VPTQ_MUST_CHECK;

/* Getters from an object.  A missing key is VPTQ_E_FORMAT ("FILE: key 'x' is missing") unless a
 * default is given through the _or form, a wrong type always an error; null counts as missing.
 */
vptq_status vptq_json_u64(const json_t *obj, const char *name, const char *key, uint64_t max,
                          uint64_t *out, vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_json_u64_or(const json_t *obj, const char *name, const char *key, uint64_t max,
                             uint64_t fallback, uint64_t *out, vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_json_f64_or(const json_t *obj, const char *name, const char *key,
                             double fallback, double *out, vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_json_bool_or(const json_t *obj, const char *name, const char *key,
                              bool fallback, bool *out, vptq_err *err) VPTQ_MUST_CHECK;
/* Borrowed from obj; NULL fallback = the key must be there. */
vptq_status vptq_json_str_or(const json_t *obj, const char *name, const char *key,
                             const char *fallback, const char **out,
                             vptq_err *err) VPTQ_MUST_CHECK;

#endif
