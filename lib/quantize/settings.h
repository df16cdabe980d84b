/* What every matrix of a model is quantized with: a plain table, made and checked whole before
 * any work.
 *
 * Values come in this order, later ones win: the encoder's, the preset's, those given by
 * themselves (these three make the defaults of all matrices), the rules of a recipe.  Whoever
 * allocates bits changes the stored part (vptq_encoder_copy_stored) of rows that are not
 * pinned, between vptq_settings_resolve and vptq_settings_check. */
#ifndef VPTQ_QUANTIZE_SETTINGS_H
#define VPTQ_QUANTIZE_SETTINGS_H

#include "formats/json.h"
#include "formats/model_desc.h"
#include "lib/encoder/settings.h"
#include "lib/vptq.h"

typedef struct vptq_matrix_settings {
    uint32_t layer;
    vptq_linear linear;
    bool pinned; /* a recipe rule says what is stored: allocation leaves the row alone */
    vptq_encoder_settings settings;
} vptq_matrix_settings;

/* The defaults of all matrices.  encoder: "best", "upstream" or NULL (best); preset: a name of
 * lib/encoder/presets.h or NULL; then the `count` given ones.  VPTQ_E_ARG naming the setting.
 */
vptq_status vptq_settings_defaults(const char *encoder, const char *preset,
                                   const vptq_setting_text *given, size_t count,
                                   vptq_encoder_settings *s, vptq_err *err) VPTQ_MUST_CHECK;

/* rows [layers * VPTQ_LINEAR_COUNT], row layer * VPTQ_LINEAR_COUNT + linear, in `arena`: the
 * defaults, and over them the rules of a recipe file (NULL = none; docs/formats.md).  *rules
 * becomes the file's list of rules (NULL without a recipe; freed by the caller with
 * json_decref).  A recipe that cannot be is VPTQ_E_FORMAT with file, rule and key: unknown keys
 * and values, rules that match no matrix of the model. */
vptq_status vptq_settings_resolve(const vptq_model_desc *d,
                                  const vptq_encoder_settings *defaults, const char *recipe,
                                  vptq_arena *arena, vptq_matrix_settings **rows,
                                  json_t **rules, vptq_err *err) VPTQ_MUST_CHECK;

/* Everything that vptq_encoder_check finds, for every matrix: VPTQ_E_ARG naming matrix and
 * setting. */
vptq_status vptq_settings_check(const vptq_model_desc *d, const vptq_matrix_settings *rows,
                                vptq_err *err) VPTQ_MUST_CHECK;

/* The settings as an object by the table's keys, those that equal `unlike` (may be NULL) left
 * out; NULL when memory is out. */
json_t *vptq_settings_json(const vptq_encoder_settings *s, const vptq_encoder_settings *unlike);

/* A JSON value in the form in which settings are given anywhere else: the value's own text, or
 * `text`; NULL for one that no setting has. */
enum { VPTQ_SETTING_TEXT = 64 };
const char *vptq_settings_value_text(const json_t *value, char text[VPTQ_SETTING_TEXT]);

/* The rules of a recipe over rows that hold the defaults (pipeline_recipe.c). */
vptq_status vptq_recipe_apply(const char *path, const vptq_model_desc *d,
                              vptq_matrix_settings *rows, json_t **rules,
                              vptq_err *err) VPTQ_MUST_CHECK;
/* Whether a recipe's pattern (* any run of characters, ? one) holds for a matrix: for its whole
 * name, or for the end of it from any dot on. */
bool vptq_recipe_match(const char *pattern, const char *name);

#endif
