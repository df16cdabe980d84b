/* Settings of all matrices: the defaults, changed by the rules of a recipe
 * (docs/formats/work.md, "Recipe"). */
#include <stdio.h>
#include <string.h>

#include "lib/quantize/settings.h"

/* MAX_RULES and MAX_PATTERN bound the time that a hostile file can cost. */
enum { MAX_RULES = 1024, MAX_PATTERN = 256 };

typedef struct rule {
    const char *path; /* of the recipe */
    size_t number;    /* from 1 */
    const char *pattern;
    const char *encoder;    /* or NULL */
    const json_t *settings; /* NULL = skip the matrices */
    uint32_t first, last;
} rule;

/* ---- matching ---- */

static bool glob(const char *pattern, const char *text)
{
    const char *star = NULL, *retry = NULL;

    while (*text) {
        if (*pattern == '*') {
            star = ++pattern;
            retry = text;
        } else if (*pattern == '?' || *pattern == *text) {
            pattern++;
            text++;
        } else if (star) { /* the last star matches one more character */
            pattern = star;
            text = ++retry;
        } else {
            return false;
        }
    }
    while (*pattern == '*')
        pattern++;
    return !*pattern;
}

bool vptq_recipe_match(const char *pattern, const char *name)
{
    for (; name; name = strchr(name, '.')) {
        name += *name == '.';
        if (glob(pattern, name))
            return true;
    }
    return false;
}

/* ---- one rule ---- */

static vptq_status bad_rule(const rule *r, const char *key, const char *what, vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_FORMAT, "%s: rule %zu: %s%.60s%s%s", r->path, r->number,
                     key ? "key '" : "", key ? key : "", key ? "' " : "", what);
}

static vptq_status check_keys(const rule *r, const json_t *doc, vptq_err *err)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)doc, key, value)
    {
        if (strcmp(key, "match") && strcmp(key, "layers") && strcmp(key, "settings") &&
            strcmp(key, "skip"))
            return bad_rule(r, key, "is unknown, expected match, layers, settings or skip",
                            err);
    }
    return VPTQ_OK;
}

/* Parses digits and moves *text past them; too large a number becomes UINT32_MAX. */
static bool parse_number(const char **text, uint32_t *n)
{
    const char *begin = *text;
    uint64_t x = 0;

    for (; **text >= '0' && **text <= '9'; ++*text)
        x = x < UINT32_MAX ? x * 10 + (uint64_t)(**text - '0') : x;
    *n = x < UINT32_MAX ? (uint32_t)x : UINT32_MAX;
    return *text > begin;
}

/* Parses "3" or "0-3"; NULL = all layers. */
static vptq_status parse_layers(rule *r, const json_t *value, uint32_t layers, vptq_err *err)
{
    char what[96];
    const char *text = json_string_value(value);
    const char *p = text;

    r->first = 0;
    r->last = layers - 1;
    if (!value)
        return VPTQ_OK;
    bool good = p && parse_number(&p, &r->first);
    r->last = r->first;
    if (good && *p == '-') {
        p++;
        good = parse_number(&p, &r->last);
    }
    if (!good || *p)
        return bad_rule(r, "layers", "is not a string like \"0-3\" or \"3\"", err);
    if (r->first <= r->last && r->last < layers)
        return VPTQ_OK;
    snprintf(what, sizeof what, "is '%.40s', expected layers from 0 to %u", text, layers - 1);
    return bad_rule(r, "layers", what, err);
}

/* A rule has settings, or skips. */
static vptq_status parse_what(rule *r, const json_t *doc, vptq_err *err)
{
    const json_t *skip = json_object_get(doc, "skip");
    r->settings = json_object_get(doc, "settings");
    if (skip && !json_is_true(skip))
        return bad_rule(r, "skip", "is not true", err);
    if (skip && r->settings)
        return bad_rule(r, "skip", "does not go with settings", err);
    if (!skip && (!json_is_object(r->settings) || !json_object_size(r->settings)))
        return bad_rule(r, "settings", "is missing or not an object with settings", err);
    return VPTQ_OK;
}

static vptq_status parse_rule(rule *r, const json_t *doc, uint32_t layers, vptq_err *err)
{
    const json_t *encoder;

    if (!json_is_object(doc))
        return bad_rule(r, NULL, "is not an object", err);
    VPTQ_CHECK(check_keys(r, doc, err));
    r->pattern = json_string_value(json_object_get(doc, "match"));
    if (!r->pattern || !*r->pattern || strlen(r->pattern) > MAX_PATTERN)
        return bad_rule(r, "match", "is missing or not a pattern of 1 to 256 characters", err);
    VPTQ_CHECK(parse_what(r, doc, err));
    encoder = json_object_get(r->settings, "encoder");
    r->encoder = json_string_value(encoder);
    if (encoder && !r->encoder)
        return bad_rule(r, "encoder", "is not a string", err);
    return parse_layers(r, json_object_get(doc, "layers"), layers, err);
}

static vptq_status set_one(const rule *r, const char *key, const json_t *value,
                           vptq_matrix_settings *m, vptq_err *err)
{
    char buffer[VPTQ_SETTING_TEXT];
    vptq_err why = {0};
    const vptq_setting *t = vptq_setting_find(key);
    const char *text = vptq_settings_value_text(value, buffer);

    if (!t)
        return bad_rule(r, key, "is not a setting", err);
    if (t->kind == VPTQ_SETTING_DTYPE)
        return bad_rule(r, key, "applies to the whole model and cannot differ by matrix", err);
    if (!text)
        return bad_rule(r, key, "is not a number, true, false or a string", err);
    const uint32_t method = m->settings.method;
    if (vptq_settings_check_used(t, &m->settings, &why) ||
        vptq_setting_parse(t, text, &m->settings, &why))
        return bad_rule(r, NULL, why.text, err);
    if (m->settings.method != method)
        vptq_encoder_set_method(&m->settings, m->settings.method);
    m->pinned |= t->stored;
    return VPTQ_OK;
}

static vptq_status set_all(const rule *r, vptq_matrix_settings *m, vptq_err *err)
{
    vptq_err why = {0};
    const char *key;
    json_t *value;

    m->skip = !r->settings;
    value = json_object_get(r->settings, "method");
    if (value) /* before the others: it has defaults */
        VPTQ_CHECK(set_one(r, "method", value, m, err));
    if (r->encoder && m->settings.method != VPTQ_METHOD_VPTQ)
        return bad_rule(r, "encoder", "is for method vptq only", err);
    if (r->encoder && vptq_encoder_set_encoder(&m->settings, r->encoder, &why))
        return bad_rule(r, NULL, why.text, err);
    json_object_foreach((json_t *)(uintptr_t)r->settings, key, value)
    {
        if (strcmp(key, "encoder") && strcmp(key, "method"))
            VPTQ_CHECK(set_one(r, key, value, m, err));
    }
    return VPTQ_OK;
}

static vptq_status apply_rule(const rule *r, const vptq_model_desc *d,
                              vptq_matrix_settings *rows, vptq_err *err)
{
    char name[VPTQ_NAME_MAX], what[MAX_PATTERN + 64];
    size_t matched = 0;

    for (uint32_t layer = r->first; layer <= r->last; layer++)
        for (int l = 0; l < vptq_linear_count(d); l++) {
            if (!vptq_linear_exists(d, layer, l))
                continue;
            vptq_linear_full_name(d, name, layer, (vptq_linear)l);
            if (!vptq_recipe_match(r->pattern, name))
                continue;
            VPTQ_CHECK(set_all(r, &rows[vptq_linear_index(d, layer, l)], err));
            matched++;
        }
    if (matched)
        return VPTQ_OK;
    snprintf(what, sizeof what, "is '%s', which matches no matrix of layers %u-%u", r->pattern,
             r->first, r->last);
    return bad_rule(r, "match", what, err);
}

/* ---- the file ---- */

static vptq_status apply_all(const char *path, const json_t *list, const vptq_model_desc *d,
                             vptq_matrix_settings *rows, vptq_err *err)
{
    if (json_array_size(list) > MAX_RULES)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: %zu rules, expected at most %d", path,
                         json_array_size(list), (int)MAX_RULES);
    for (size_t i = 0; i < json_array_size(list); i++) {
        rule r = {.path = path, .number = i + 1};
        VPTQ_CHECK(parse_rule(&r, json_array_get(list, i), d->layers, err));
        VPTQ_CHECK(apply_rule(&r, d, rows, err));
    }
    return VPTQ_OK;
}

/* Applies the rules of a recipe to rows that have the defaults. */
static vptq_status apply_recipe(const vptq_text_file *recipe, const vptq_model_desc *d,
                                vptq_matrix_settings *rows, json_t **rules, vptq_err *err)
{
    json_t *doc = NULL;
    const char *key;
    json_t *value;
    const char *path = recipe->name;
    vptq_status st = vptq_json_parse(recipe->data, recipe->size, path, &doc, err);

    *rules = NULL;
    if (st)
        return st;
    json_t *list = json_object_get(doc, "rules");
    json_object_foreach(doc, key, value)
    {
        if (strcmp(key, "rules"))
            st = vptq_fail(err, VPTQ_E_FORMAT, "%s: key '%.60s' is unknown, expected rules",
                           path, key);
    }
    if (!st && !json_is_array(list))
        st = vptq_fail(err, VPTQ_E_FORMAT, "%s: key 'rules' is missing or not a list", path);
    if (!st)
        st = apply_all(path, list, d, rows, err);
    if (!st)
        *rules = json_incref(list);
    json_decref(doc);
    return st;
}

static void fit_groups(const vptq_model_desc *d, vptq_matrix_settings *m)
{
    uint32_t out, in;
    vptq_linear_shape(d, m->linear, &out, &in);
    if (m->settings.fit_groups && vptq_method_has_codes(m->settings.method))
        m->settings.group_size = vptq_encoder_fit_groups(&m->settings, in);
}

vptq_status vptq_settings_resolve(const vptq_model_desc *d,
                                  const vptq_encoder_settings *defaults,
                                  const vptq_text_file *recipe, vptq_arena *arena,
                                  vptq_matrix_settings **rows, json_t **rules, vptq_err *err)
{
    const size_t per_layer = (size_t)vptq_linear_count(d), count = d->layers * per_layer;
    vptq_matrix_settings *made = vptq_arena_alloc(arena, count, sizeof *made, err);

    *rules = NULL;
    if (!made)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < count; i++)
        made[i] =
            (vptq_matrix_settings){.layer = (uint32_t)(i / per_layer),
                                   .linear = (vptq_linear)(i % per_layer),
                                   .name = vptq_linear_name(d, (vptq_linear)(i % per_layer)),
                                   .settings = *defaults};
    *rows = made;
    if (recipe)
        VPTQ_CHECK(apply_recipe(recipe, d, made, rules, err));
    for (size_t i = 0; i < count; i++)
        if (vptq_linear_exists(d, made[i].layer, made[i].linear))
            fit_groups(d, &made[i]);
    return VPTQ_OK;
}
