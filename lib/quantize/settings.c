/* Default settings of a run, checks against a model, and settings as JSON. */
#include "lib/quantize/settings.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "lib/encoder/presets.h"
#include "lib/quantize/internal.h"

vptq_status vptq_settings_check_used(const vptq_setting *t, const vptq_encoder_settings *s,
                                     vptq_err *err)
{
    char method[VPTQ_SETTING_TEXT];
    if (vptq_setting_is_used(t, s))
        return VPTQ_OK;
    vptq_setting_print(vptq_setting_find("method"), s, method, sizeof method);
    return vptq_fail(err, VPTQ_E_ARG, "%s has no effect with method %s", t->key, method);
}

/* VPTQ_E_ARG for a setting that does not exist, or that the method does not use. */
static vptq_status set_given(const vptq_setting_text *g, vptq_encoder_settings *s,
                             vptq_err *err)
{
    const vptq_setting *t = vptq_setting_find(g->key);
    if (!t)
        return vptq_fail(err, VPTQ_E_ARG, "no such setting: '%.60s'", g->key);
    const uint32_t method = s->method;
    VPTQ_CHECK(vptq_settings_check_used(t, s, err));
    VPTQ_CHECK(vptq_setting_parse(t, g->value, s, err));
    if (s->method != method)
        vptq_encoder_set_method(s, s->method);
    return VPTQ_OK;
}

/* A preset holds the settings of vectors or those of uniform codes. */
static vptq_status check_method(const char *encoder, const char *preset, bool vectors,
                                const vptq_encoder_settings *s, vptq_err *err)
{
    if (preset && vectors != (s->method == VPTQ_METHOD_VPTQ))
        return vptq_fail(err, VPTQ_E_ARG, "preset '%.60s' is %s method vptq", preset,
                         vectors ? "only for" : "not for");
    if (encoder && s->method != VPTQ_METHOD_VPTQ)
        return vptq_fail(err, VPTQ_E_ARG, "an encoder is for method vptq only");
    return VPTQ_OK;
}

vptq_status vptq_settings_defaults(const char *encoder, const char *preset,
                                   const vptq_setting_text *given, size_t count,
                                   vptq_encoder_settings *s, vptq_err *err)
{
    *s = vptq_encoder_defaults();
    if (encoder)
        VPTQ_CHECK(vptq_encoder_set_encoder(s, encoder, err));
    if (preset)
        VPTQ_CHECK(vptq_preset_apply(preset, s, err));
    const bool vectors = s->method == VPTQ_METHOD_VPTQ; /* of the preset */
    for (size_t i = 0; i < count; i++)
        if (!strcmp(given[i].key, "method")) /* before the others: it has defaults */
            VPTQ_CHECK(set_given(&given[i], s, err));
    VPTQ_CHECK(check_method(encoder, preset, vectors, s, err));
    for (size_t i = 0; i < count; i++)
        if (strcmp(given[i].key, "method"))
            VPTQ_CHECK(set_given(&given[i], s, err));
    return VPTQ_OK;
}

vptq_status vptq_settings_new(const char *encoder, const char *preset,
                              const vptq_setting_text *given, size_t count,
                              vptq_settings **settings, vptq_err *err)
{
    *settings = NULL;
    vptq_encoder_settings *s = malloc(sizeof *s);
    if (!s)
        return vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
    const vptq_status st = vptq_settings_defaults(encoder, preset, given, count, s, err);
    if (st)
        free(s);
    else
        *settings = s;
    return st;
}

void vptq_settings_free(vptq_settings *settings)
{
    free(settings);
}

/* Rejects settings that the encoder supports, but the published layout does not. */
static vptq_status check_layout(const vptq_encoder_settings *s, vptq_err *err)
{
    if (s->k_res <= s->k)
        return VPTQ_OK;
    return vptq_fail(
        err, VPTQ_E_ARG,
        "residual is %u, expected at most centroids (%u): readers of the published "
        "layout truncate larger indices",
        s->k_res, s->k);
}

/* Lists the vector lengths that the other settings allow, as "1, 2 or 4". */
static void list_lengths(const vptq_encoder_settings *s, uint32_t out, uint32_t in,
                         char text[VPTQ_SETTING_TEXT])
{
    uint32_t lengths[VPTQ_ADDITIVE_MAX_V], count = 0;
    size_t n = 0;
    for (uint32_t v = 1; v <= VPTQ_ADDITIVE_MAX_V; v++) {
        vptq_encoder_settings t = *s;
        t.v = v;
        const vptq_additive_shape shape = vptq_additive_shape_of(&t, out, in);
        if (!vptq_encoder_check(&t, out, in, NULL) && !vptq_additive_shape_check(&shape, NULL))
            lengths[count++] = v;
    }
    text[0] = 0;
    for (uint32_t i = 0; i < count; i++)
        n += (size_t)snprintf(text + n, VPTQ_SETTING_TEXT - n, "%s%u",
                              i == 0          ? ""
                              : i + 1 < count ? ", "
                                              : " or ",
                              lengths[i]);
}

/* The vectors of these methods are columns that follow each other in a row. */
static vptq_status check_additive(const vptq_encoder_settings *s, uint32_t out, uint32_t in,
                                  vptq_err *err)
{
    const vptq_additive_shape shape = vptq_additive_shape_of(s, out, in);
    char lengths[VPTQ_SETTING_TEXT];
    if (in % shape.v == 0)
        return vptq_additive_shape_check(&shape, err);
    if (s->method & VPTQ_METHOD_QUIP)
        return vptq_fail(err, VPTQ_E_ARG,
                         "method quip# needs columns that %u divides, found %u columns",
                         shape.v, in);
    list_lengths(s, out, in, lengths);
    return vptq_fail(err, VPTQ_E_ARG,
                     "vector_length (-v) is %u, which does not divide %u columns, expected %s",
                     shape.v, in, *lengths ? lengths : "another method");
}

vptq_status vptq_settings_check(const vptq_model_desc *d, const vptq_matrix_settings *rows,
                                vptq_err *err)
{
    char name[VPTQ_NAME_MAX];

    for (size_t i = 0; i < vptq_linear_index(d, d->layers, 0); i++) {
        if (!vptq_linear_exists(d, rows[i].layer, rows[i].linear) || rows[i].skip)
            continue;
        uint32_t out, in;
        vptq_linear_shape(d, rows[i].linear, &out, &in);
        vptq_status st = vptq_encoder_check(&rows[i].settings, out, in, err);
        if (!st && vptq_method_is_additive(rows[i].settings.method))
            st = check_additive(&rows[i].settings, out, in, err);
        if (!st)
            st = check_layout(&rows[i].settings, err);
        if (st) {
            vptq_linear_full_name(d, name, rows[i].layer, rows[i].linear);
            return vptq_err_context(err, "%s", name);
        }
    }
    return VPTQ_OK;
}

/* ---- JSON ---- */

/* Integers too large for JSON become strings. */
static json_t *setting_json(const vptq_setting *t, const vptq_encoder_settings *s)
{
    char text[VPTQ_SETTING_TEXT];

    vptq_setting_print(t, s, text, sizeof text);
    switch (t->kind) {
    case VPTQ_SETTING_U32:
    case VPTQ_SETTING_POWER:
    case VPTQ_SETTING_U64: {
        uint64_t n = strtoull(text, NULL, 10);
        return n > INT64_MAX ? json_string(text) : json_integer((json_int_t)n);
    }
    case VPTQ_SETTING_BOOL:
        return json_boolean(!strcmp(text, "true"));
    case VPTQ_SETTING_DOUBLE:
        return json_real(strtod(text, NULL));
    case VPTQ_SETTING_CHOICE:
    case VPTQ_SETTING_DTYPE:
    case VPTQ_SETTING_METHOD:
        break;
    }
    return json_string(text);
}

/* These settings are newer than the format of work directories: they have the keys only where
 * they say something, so that those written before can be continued. */
static bool is_implied(const vptq_setting *t, const vptq_encoder_settings *s)
{
    return !vptq_setting_is_used(t, s) ||
           (t->offset == offsetof(vptq_encoder_settings, codebook_grid) &&
            s->codebook_grid == VPTQ_GRID_NONE) ||
           (t->offset == offsetof(vptq_encoder_settings, activation_bits) &&
            !s->activation_bits) ||
           (t->offset == offsetof(vptq_encoder_settings, fit_groups) && !s->fit_groups) ||
           (t->offset == offsetof(vptq_encoder_settings, method) &&
            s->method == VPTQ_METHOD_VPTQ);
}

json_t *vptq_settings_json(const vptq_encoder_settings *s, const vptq_encoder_settings *unlike)
{
    size_t count;
    const vptq_setting *table = vptq_setting_table(&count);
    json_t *doc = json_object();

    for (size_t i = 0; doc && i < count; i++) {
        if (unlike ? !vptq_setting_is_used(&table[i], s) ||
                         vptq_setting_equal(&table[i], s, unlike)
                   : is_implied(&table[i], s))
            continue;
        if (json_object_set_new(doc, table[i].key, setting_json(&table[i], s))) {
            json_decref(doc);
            doc = NULL;
        }
    }
    return doc;
}

const char *vptq_settings_value_text(const json_t *value, char text[VPTQ_SETTING_TEXT])
{
    switch (json_typeof(value)) {
    case JSON_STRING:
        return json_string_value(value);
    case JSON_INTEGER:
        snprintf(text, VPTQ_SETTING_TEXT, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        return text;
    case JSON_REAL:
        snprintf(text, VPTQ_SETTING_TEXT, "%.17g", json_real_value(value));
        return text;
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    case JSON_OBJECT:
    case JSON_ARRAY:
    case JSON_NULL:
        break;
    }
    return NULL;
}
