/* Internal: the settings of every matrix of a model, a plain table made and checked before any
 * work.
 *
 * Values are applied in this order, later ones win: the encoder's, the preset's, single
 * settings (these three are the defaults of all matrices), the rules of a recipe.  Bit
 * allocation changes v, k and k_res of rows that are not pinned, between vptq_settings_resolve
 * and vptq_settings_check. */
#ifndef VPTQ_QUANTIZE_SETTINGS_H
#define VPTQ_QUANTIZE_SETTINGS_H

#include "formats/json.h"
#include "formats/model_desc.h"
#include "formats/text_file.h"
#include "lib/encoder/settings.h"
#include "lib/vptq.h"

typedef struct vptq_matrix_settings {
    uint32_t layer;
    vptq_linear linear;
    bool pinned; /* a recipe rule sets something that is stored: allocation skips the row */
    bool skip;   /* a recipe rule keeps the matrix plain, in 16 bits */
    vptq_short_name name; /* of the linear layer */
    vptq_encoder_settings settings;
} vptq_matrix_settings;

/* Makes the defaults of all matrices.  encoder: "best", "upstream" or NULL (best); preset: a
 * name of lib/encoder/presets.h or NULL; given [count]: single settings.  VPTQ_E_ARG with the
 * setting.
 */
vptq_status vptq_settings_defaults(const char *encoder, const char *preset,
                                   const vptq_setting_text *given, size_t count,
                                   vptq_encoder_settings *s, vptq_err *err) VPTQ_MUST_CHECK;

enum { VPTQ_RECIPE_LIMIT = 1 << 20 }; /* bytes */

/* Makes rows [layers * vptq_linear_count] in `arena`, row vptq_linear_index:
 * the defaults, changed by the rules of a recipe (NULL = none; docs/formats/work.md), with
 * group sizes that fit the columns where fit_groups is set.
 * *rules = its list of rules, NULL without a recipe; the caller releases it with
 * json_decref. VPTQ_E_FORMAT with file, rule and key for unknown keys and values, and for rules
 * that match no matrix of the model. */
vptq_status vptq_settings_resolve(const vptq_model_desc *d,
                                  const vptq_encoder_settings *defaults,
                                  const vptq_text_file *recipe, vptq_arena *arena,
                                  vptq_matrix_settings **rows, json_t **rules,
                                  vptq_err *err) VPTQ_MUST_CHECK;

/* Checks the settings of every matrix: VPTQ_E_ARG with matrix and setting. */
vptq_status vptq_settings_check(const vptq_model_desc *d, const vptq_matrix_settings *rows,
                                vptq_err *err) VPTQ_MUST_CHECK;

/* VPTQ_E_ARG if the method of s does not use the setting. */
vptq_status vptq_settings_check_used(const vptq_setting *t, const vptq_encoder_settings *s,
                                     vptq_err *err) VPTQ_MUST_CHECK;

/* The settings that the method uses as a JSON object: those that differ from `unlike`, or
 * without it (NULL) all but newer ones that say nothing (codebook_grid `none`, method `vptq`,
 * activation_bits 0, fit_groups false); NULL when out of memory. */
json_t *vptq_settings_json(const vptq_encoder_settings *s, const vptq_encoder_settings *unlike);

/* A JSON value as the text of a setting, possibly in `text`; NULL for an object, list or null.
 */
enum { VPTQ_SETTING_TEXT = 64 };
const char *vptq_settings_value_text(const json_t *value, char text[VPTQ_SETTING_TEXT]);

/* Whether a recipe's pattern (* any run of characters, ? one character) matches a matrix name,
 * or the rest of it after any dot. */
bool vptq_recipe_match(const char *pattern, const char *name);

#endif
