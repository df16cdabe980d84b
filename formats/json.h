/* Internal: JSON with the bounds that hostile files require: size, depth (jansson's 2048), no
 * duplicate keys, no bytes after the value; and typed look-ups whose errors name file and key.
 */
#ifndef VPTQ_FORMATS_JSON_H
#define VPTQ_FORMATS_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/ctx.h"
#include "lib/base/mem.h"
#include "lib/base/status.h"

/* Parses a text; `name` is its path for messages.  The caller owns *out (json_decref). */
vptq_status vptq_json_parse(const char *text, size_t len, const char *name, json_t **out,
                            vptq_err *err) VPTQ_MUST_CHECK;
/* The same for a text that begins at line `line` of a file (1 = the first). */
vptq_status vptq_json_parse_at(const char *text, size_t len, const char *name, size_t line,
                               json_t **out, vptq_err *err) VPTQ_MUST_CHECK;
/* Parses a file. */
vptq_status vptq_json_load(const char *path, size_t limit, json_t **out,
                           vptq_err *err) VPTQ_MUST_CHECK;
/* Parses a file that the user names: a pipe, standard input or a compressed one, too
 * (text_file.h). */
vptq_status vptq_json_read(const vptq_ctx *ctx, const char *path, size_t limit, json_t **out,
                           vptq_err *err) VPTQ_MUST_CHECK;
/* As vptq_json_parse, but every number becomes a real, for files with integers beyond 64 bits
 * (model_max_length in tokenizer_config.json). */
vptq_status vptq_json_parse_reals(const char *text, size_t len, const char *name, json_t **out,
                                  vptq_err *err) VPTQ_MUST_CHECK;
/* Formats a value, indented or on one line: keys in the order they were set, numbers with the
 * fewest digits that read back the same, no newline at the end.  The caller frees *text with
 * free(). */
vptq_status vptq_json_text(const json_t *value, const char *name, bool indent, char **text,
                           vptq_err *err) VPTQ_MUST_CHECK;
/* Writes a value, indented, with a newline at the end; atomic. */
vptq_status vptq_json_save(const char *path, const json_t *value,
                           vptq_err *err) VPTQ_MUST_CHECK;

/* Fails unless a text can be recorded: "NAME: WHAT 'TEXT' is not valid UTF-8, ...".  jansson
 * refuses other texts as it does without memory. */
vptq_status vptq_json_check_text(const char *name, const char *what, const char *text,
                                 vptq_err *err) VPTQ_MUST_CHECK;

/* Sealed objects have the key `xxh3`, the checksum of all others; spaces and escapes do not
 * count. */
vptq_status vptq_json_seal(json_t *object, const char *path, vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_json_save_sealed(const char *path, json_t *object,
                                  vptq_err *err) VPTQ_MUST_CHECK;
/* Removes the key; VPTQ_E_CHECKSUM if it is missing or wrong. */
vptq_status vptq_json_unseal(json_t *object, const char *path, vptq_err *err) VPTQ_MUST_CHECK;
/* The same, but the key may be missing. */
vptq_status vptq_json_unseal_if(json_t *object, const char *path,
                                vptq_err *err) VPTQ_MUST_CHECK;

/* Getters from an object.  A missing key is VPTQ_E_FORMAT ("FILE: key 'x' is missing") except
 * in the _or forms, which return `fallback`; null counts as missing.  A wrong type is an error.
 */
vptq_status vptq_json_u64(const json_t *obj, const char *name, const char *key, uint64_t max,
                          uint64_t *out, vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_json_u64_or(const json_t *obj, const char *name, const char *key, uint64_t max,
                             uint64_t fallback, uint64_t *out, vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_json_f64_or(const json_t *obj, const char *name, const char *key,
                             double fallback, double *out, vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_json_bool_or(const json_t *obj, const char *name, const char *key,
                              bool fallback, bool *out, vptq_err *err) VPTQ_MUST_CHECK;
/* *out belongs to obj.  With fallback NULL the key is required. */
vptq_status vptq_json_str_or(const json_t *obj, const char *name, const char *key,
                             const char *fallback, const char **out,
                             vptq_err *err) VPTQ_MUST_CHECK;

#endif
