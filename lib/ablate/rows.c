/* The rows of an ablation: those of the paper, of all methods, or of a JSON list. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/ablate/ablate.h"

/* Bounds of a hostile list; MAX_FILE in bytes. */
enum { MAX_FILE = 1 << 20, MAX_ROWS = 1000, MAX_NAME = 64, MAX_SETTINGS = 64 };

/* ---- Table 10 ---- */

typedef struct paper_row {
    const char *name, *preset; /* a NULL preset is the original */
    unsigned tune;             /* vptq_tune_method; 0 = none */
    double bits, ppl[2];       /* as printed: Llama-2-13B, WikiText-2 and C4 at 4096 */
} paper_row;

static const paper_row paper[] = {
    {"original", NULL, 0, 16, {4.57, 6.05}},
    {"v2", "ablation-v2", 0, 2, {14800, 13337}},
    {"v4", "ablation-v4", 0, 2.01, {7.21, 9.78}},
    {"v6", "ablation-v6", 0, 2.02, {6.29, 8.29}},
    {"v6-together", "ablation-v6-together", 0, 2.02, {7.25, 9.8}},
    {"v8", "ablation-v8", 0, 2.19, {5.8, 7.68}},
    {"v12", "ablation-v12", 0, 2.04, {6.32, 8.29}},
    {"outliers-1", "ablation-outliers-1", 0, 2.03, {6.16, 8.08}},
    {"outliers-2", "ablation-outliers-2", 0, 2.04, {6.08, 8.12}},
    {"outliers-5", "ablation-outliers-5", 0, 2.07, {6.02, 7.96}},
    {"v6-layer", "ablation-v6", VPTQ_TUNE_LAYER, 2.02, {6.07, 7.64}},
    {"v6-all", "ablation-v6", VPTQ_TUNE_LAYER_E2E, 2.02, {5.32, 7.15}},
    {"v12-layer", "ablation-v12", VPTQ_TUNE_LAYER, 2.04, {5.71, 7.52}},
    {"groups-1", "ablation-groups-1", VPTQ_TUNE_LAYER, 2.06, {5.63, 7.45}},
    {"groups-2", "ablation-groups-2", VPTQ_TUNE_LAYER, 2.09, {5.63, 7.41}},
    {"groups-4", "ablation-groups-4", VPTQ_TUNE_LAYER, 2.17, {5.63, 7.38}},
    {"groups-8", "ablation-groups-8", VPTQ_TUNE_LAYER, 2.3, {5.55, 7.38}},
    {"3-bit", "ablation-3-bit", VPTQ_TUNE_LAYER, 3.01, {4.82, 6.37}},
    {"4-bit", "ablation-4-bit", VPTQ_TUNE_LAYER, 4.02, {4.64, 6.13}},
};

/* Names of the rows, and the paper's results. */
static vptq_status paper_rows(vptq_arena *arena, vptq_ablate_row **rows, size_t *count,
                              vptq_err *err)
{
    enum { ROWS = sizeof paper / sizeof paper[0], LABEL = 8 };
    vptq_ablate_row *made = vptq_arena_alloc(arena, ROWS, sizeof *made, err);
    char(*labels)[LABEL] = vptq_arena_alloc(arena, ROWS, sizeof *labels, err);
    if (!made || !labels)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < ROWS; i++) {
        const paper_row *p = &paper[i];
        snprintf(labels[i], LABEL, "#%zu", i + 1);
        made[i] = (vptq_ablate_row){.name = p->name,
                                    .label = labels[i],
                                    .original = !p->preset,
                                    .tune = p->tune,
                                    .paper_bits = p->bits,
                                    .paper_ppl = {p->ppl[0], p->ppl[1]}};
    }
    *rows = made;
    *count = ROWS;
    return VPTQ_OK;
}

static vptq_status set_paper_row(const vptq_ablate_options *opt, size_t i, vptq_ablate_row *row,
                                 vptq_err *err)
{
    return paper[i].preset ? vptq_settings_defaults(opt->encoder, paper[i].preset, opt->given,
                                                    opt->given_count, &row->settings, err)
                           : VPTQ_OK;
}

/* ---- all methods ---- */

#define ROW(name, settings)                                                                    \
    ", {\"name\": \"" name "\", \"optional\": true, \"settings\": {" settings "}}"
#define UNIFORM(method, bits, more)                                                            \
    ROW(method "-" bits,                                                                       \
        "\"method\": \"" method "\", \"weight_bits\": " bits ", \"fit_groups\": true" more)
#define GPTVQ(bits, rows)                                                                      \
    ROW("gptvq-" bits,                                                                         \
        "\"method\": \"gptvq\", \"weight_bits\": " bits ", \"codebook_rows\": " rows)
#define AQLM(bits)    ROW("aqlm-" bits, "\"method\": \"aqlm\", \"codebooks\": " bits)
#define QUIP(bits)    ROW("quip-" bits, "\"method\": \"quip#\", \"weight_bits\": " bits)
#define VECTORS(bits) ", {\"name\": \"vptq-" bits "\", \"optional\": true, \"bits\": " bits "}"
#define SERVED(preset)                                                                         \
    ", {\"name\": \"" preset "\", \"optional\": true, \"preset\": \"" preset "\"}"
#define BY_IMPORTANCE ", \"perm\": true"

/* At the same number of bits per code or weight, or as a budget; groups are those of the
 * methods' defaults, made to fit.  Codebooks of gptvq take an eighth of a bit per weight, as
 * those of its paper. */
/* clang-format off */
static const char methods[] =
    "[{\"name\": \"original\", \"original\": true}"
    UNIFORM("rtn", "4", "") UNIFORM("gptq", "4", BY_IMPORTANCE) UNIFORM("awq", "4", "")
    GPTVQ("4", "128") AQLM("4") QUIP("4") VECTORS("4")
    UNIFORM("rtn", "3", "") UNIFORM("gptq", "3", BY_IMPORTANCE) UNIFORM("awq", "3", "")
    GPTVQ("3", "32") AQLM("3") QUIP("3") VECTORS("3")
    UNIFORM("rtn", "2", "") UNIFORM("gptq", "2", BY_IMPORTANCE) UNIFORM("awq", "2", "")
    GPTVQ("2", "8") AQLM("2") QUIP("2") ROW("db-llm", "\"method\": \"db-llm\"") VECTORS("2")
    SERVED("w8a16_awq") SERVED("w8a16_smooth_awq") SERVED("w8a16_sparse_awq")
    SERVED("w8a8_smooth_ptq") SERVED("w8a8_smooth_gptq") SERVED("w8a8_sparse_smooth_gptq")
    "]";
/* clang-format on */

static bool is_built_in(const vptq_ablate_options *opt)
{
    return opt->rows && strcmp(opt->rows, "methods") == 0;
}

/* ---- a JSON list ---- */

typedef struct reader {
    const vptq_ablate_options *opt;
    vptq_arena *arena;
    json_t *list;  /* NULL = the rows of the paper */
    size_t number; /* of the row, from 1 */
} reader;

static vptq_status fail_row(const reader *r, const char *key, const char *what, vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_FORMAT, "%s: row %zu: %s%.60s%s%s", r->opt->rows, r->number,
                     key ? "key '" : "", key ? key : "", key ? "' " : "", what);
}

/* Reads an optional string; NULL if it is missing. */
static vptq_status take_text(reader *r, const json_t *doc, const char *key, const char **out,
                             vptq_err *err)
{
    const json_t *value = json_object_get(doc, key);
    *out = NULL;
    if (!value)
        return VPTQ_OK;
    if (!json_is_string(value) || !*json_string_value(value))
        return fail_row(r, key, "is not a non-empty string", err);
    *out = vptq_arena_strdup(r->arena, json_string_value(value), err);
    return *out ? VPTQ_OK : VPTQ_E_NOMEM;
}

static bool is_file_name(const char *name)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789._-";
    return strlen(name) <= MAX_NAME && name[0] != '.' && strspn(name, allowed) == strlen(name);
}

static vptq_status take_name(reader *r, const json_t *doc, vptq_ablate_row *row, vptq_err *err)
{
    *row = (vptq_ablate_row){.paper_bits = NAN, .paper_ppl = {NAN, NAN}};
    if (!json_is_object(doc))
        return fail_row(r, NULL, "is not an object", err);
    VPTQ_CHECK(take_text(r, doc, "name", &row->name, err));
    if (!row->name || !is_file_name(row->name))
        return fail_row(r, "name",
                        "is missing or not of 1 to 64 letters, digits, '.', '_' and '-'", err);
    VPTQ_CHECK(take_text(r, doc, "label", &row->label, err));
    if (!row->label)
        row->label = row->name;
    return VPTQ_OK;
}

static vptq_status take_flag(const reader *r, const json_t *doc, const char *key, bool *flag,
                             vptq_err *err)
{
    const json_t *value = json_object_get(doc, key);
    *flag = json_is_true(value);
    return !value || json_is_boolean(value)
               ? VPTQ_OK
               : fail_row(r, key, "is neither true nor false", err);
}

/* Reads the row's settings, which follow those of all rows. */
static vptq_status take_settings(reader *r, const json_t *doc, vptq_ablate_row *row,
                                 vptq_err *err)
{
    vptq_setting_text text[MAX_SETTINGS];
    char buffer[MAX_SETTINGS][VPTQ_SETTING_TEXT];
    const char *encoder, *preset, *key;
    const json_t *settings = json_object_get(doc, "settings");
    json_t *value;
    vptq_err why = {0};
    size_t n = 0;

    VPTQ_CHECK(take_text(r, doc, "encoder", &encoder, err));
    VPTQ_CHECK(take_text(r, doc, "preset", &preset, err));
    if (settings && !json_is_object(settings))
        return fail_row(r, "settings", "is not an object", err);
    if (r->opt->given_count + json_object_size(settings) > MAX_SETTINGS)
        return fail_row(r, "settings", "has too many settings", err);
    for (; n < r->opt->given_count; n++)
        text[n] = r->opt->given[n];
    json_object_foreach((json_t *)(uintptr_t)settings, key, value)
    {
        text[n] = (vptq_setting_text){key, vptq_settings_value_text(value, buffer[n])};
        if (!text[n].value)
            return fail_row(r, key, "is neither a number nor true, false or a string", err);
        n++;
    }
    /* the encoder of all rows is that of those with method vptq */
    vptq_status st = vptq_settings_defaults(encoder, preset, text, n, &row->settings, &why);
    if (!st && !encoder && row->settings.method == VPTQ_METHOD_VPTQ)
        st = vptq_settings_defaults(r->opt->encoder, preset, text, n, &row->settings, &why);
    return st ? fail_row(r, NULL, why.text, err) : VPTQ_OK;
}

static vptq_status take_budget(reader *r, const json_t *doc, vptq_ablate_row *row,
                               vptq_err *err)
{
    const char *allocate;
    const json_t *bits = json_object_get(doc, "bits");

    if (bits && !(json_is_number(bits) && json_number_value(bits) > 0))
        return fail_row(r, "bits", "is not a number above 0", err);
    row->bits = bits ? json_number_value(bits) : 0;
    VPTQ_CHECK(take_text(r, doc, "allocate", &allocate, err));
    if (allocate && !bits)
        return fail_row(r, "allocate", "needs key 'bits'", err);
    if (allocate && strcmp(allocate, "uniform") && strcmp(allocate, "proxy"))
        return fail_row(r, "allocate", "is neither \"uniform\" nor \"proxy\"", err);
    row->allocate =
        allocate && !strcmp(allocate, "uniform") ? VPTQ_ALLOCATE_UNIFORM : VPTQ_ALLOCATE_PROXY;
    return VPTQ_OK;
}

static vptq_status take_tuning(reader *r, const json_t *doc, vptq_ablate_row *row,
                               vptq_err *err)
{
    const char *method;
    VPTQ_CHECK(take_text(r, doc, "tune", &method, err));
    for (unsigned m = VPTQ_TUNE_LAYER; method && m <= VPTQ_TUNE_LAYER_E2E; m++)
        if (!strcmp(method, vptq_tune_method_name((vptq_tune_method)m)))
            row->tune = m;
    return method && !row->tune
               ? fail_row(r, "tune", "is none of \"layer\", \"e2e\" and \"layer,e2e\"", err)
               : VPTQ_OK;
}

/* Reads all of a row but its name. */
static vptq_status take_row(reader *r, const json_t *doc, vptq_ablate_row *row, vptq_err *err)
{
    static const char *const keys[] = {"name",     "label",    "original", "encoder",
                                       "preset",   "settings", "recipe",   "bits",
                                       "allocate", "tune",     "optional"};
    enum { KEYS = sizeof keys / sizeof keys[0], ORIGINAL_KEYS = 3 };
    const char *key;
    json_t *value;

    VPTQ_CHECK(take_flag(r, doc, "original", &row->original, err));
    json_object_foreach((json_t *)(uintptr_t)doc, key, value)
    {
        size_t i = 0;
        while (i < KEYS && strcmp(keys[i], key) != 0)
            i++;
        if (i == KEYS)
            return fail_row(r, key, "is unknown", err);
        if (row->original && i >= ORIGINAL_KEYS)
            return fail_row(r, key, "has no effect in a row with \"original\": true", err);
    }
    if (row->original)
        return VPTQ_OK;
    VPTQ_CHECK(take_flag(r, doc, "optional", &row->optional, err));
    VPTQ_CHECK(take_text(r, doc, "recipe", &row->recipe, err));
    VPTQ_CHECK(take_settings(r, doc, row, err));
    VPTQ_CHECK(take_tuning(r, doc, row, err));
    return take_budget(r, doc, row, err);
}

/* Ignores case: names are those of files, and some file systems do, too. */
static bool same_name(const char *a, const char *b)
{
    for (; *a && *b; a++, b++) {
        const char x = *a >= 'A' && *a <= 'Z' ? (char)(*a + 'a' - 'A') : *a;
        const char y = *b >= 'A' && *b <= 'Z' ? (char)(*b + 'a' - 'A') : *b;
        if (x != y)
            return false;
    }
    return *a == *b;
}

static vptq_status take_names(reader *r, vptq_ablate_row **rows, size_t *count, vptq_err *err)
{
    const size_t n = json_array_size(r->list);
    if (!json_is_array(r->list) || n == 0 || n > MAX_ROWS)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: is not a list of 1 to %d rows", r->opt->rows,
                         (int)MAX_ROWS);
    vptq_ablate_row *made = vptq_arena_alloc(r->arena, n, sizeof *made, err);
    if (!made)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        r->number = i + 1;
        VPTQ_CHECK(take_name(r, json_array_get(r->list, i), &made[i], err));
        for (size_t j = 0; j < i; j++)
            if (same_name(made[j].name, made[i].name))
                return fail_row(r, "name", "is the name of an earlier row", err);
    }
    *rows = made;
    *count = n;
    return VPTQ_OK;
}

/* Reads the list and the names of its rows. */
static vptq_status listed_rows(const vptq_ctx *ctx, reader *r, vptq_ablate_row **rows,
                               size_t *count, vptq_err *err)
{
    const vptq_ablate_options *opt = r->opt;
    vptq_encoder_settings s;
    /* wrong settings of all rows are the caller's error, not the file's */
    vptq_status st =
        vptq_settings_defaults(opt->encoder, NULL, opt->given, opt->given_count, &s, err);
    if (!st && is_built_in(opt))
        st = vptq_json_parse(methods, sizeof methods - 1, opt->rows, &r->list, err);
    else if (!st)
        st = vptq_json_read(ctx, opt->rows, MAX_FILE, &r->list, err);
    return st ? st : take_names(r, rows, count, err);
}

/* ---- choosing rows ---- */

/* "4" or "2-10": numbers from 1. */
static bool is_range(const char *text, size_t *first, size_t *last)
{
    char rest;
    unsigned a, b;
    if (strspn(text, "0123456789-") != strlen(text))
        return false;
    if (sscanf(text, "%6u-%6u%c", &a, &b, &rest) == 2) {
        *first = a;
        *last = b;
        return true;
    }
    if (sscanf(text, "%6u%c", &a, &rest) == 1) {
        *first = *last = a;
        return true;
    }
    return false;
}

/* Marks the rows that `word` names; false if there are none. */
static bool pick_rows(const vptq_ablate_row *rows, size_t count, const char *word, bool *picked)
{
    size_t first, last;
    bool found = false;
    const bool range = is_range(word, &first, &last);
    for (size_t i = 0; i < count; i++) {
        const bool match = !strcmp(rows[i].name, word) || !strcmp(rows[i].label, word) ||
                           (range && i + 1 >= first && i + 1 <= last);
        picked[i] |= match;
        found |= match;
    }
    return found;
}

/* picked [count]: the rows that --only names, or all. */
static vptq_status choose_rows(const vptq_ablate_options *opt, const vptq_ablate_row *rows,
                               size_t count, bool *picked, vptq_err *err)
{
    for (size_t i = 0; i < count; i++)
        picked[i] = !opt->only_count;
    for (size_t i = 0; i < opt->only_count; i++)
        if (!pick_rows(rows, count, opt->only[i], picked))
            return vptq_fail(
                err, VPTQ_E_ARG,
                "--only '%.60s': expected the name of a row or a number from 1 to %zu",
                opt->only[i], count);
    return VPTQ_OK;
}

/* Reads the settings of the chosen rows, and drops the others: options for all rows need not
 * fit those. */
static vptq_status take_chosen(reader *r, vptq_ablate_row *rows, size_t *count, vptq_err *err)
{
    size_t n = 0;
    bool *picked = vptq_arena_alloc(r->arena, *count, sizeof *picked, err);
    if (!picked)
        return VPTQ_E_NOMEM;
    VPTQ_CHECK(choose_rows(r->opt, rows, *count, picked, err));
    for (size_t i = 0; i < *count; i++) {
        r->number = i + 1;
        if (!picked[i])
            continue;
        VPTQ_CHECK(r->list ? take_row(r, json_array_get(r->list, i), &rows[i], err)
                           : set_paper_row(r->opt, i, &rows[i], err));
        rows[n++] = rows[i];
    }
    *count = n;
    return VPTQ_OK;
}

vptq_status vptq_ablate_rows(const vptq_ctx *ctx, const vptq_ablate_options *opt,
                             vptq_arena *arena, vptq_ablate_row **rows, size_t *count,
                             vptq_err *err)
{
    reader r = {.opt = opt, .arena = arena};
    vptq_status st = opt->rows ? listed_rows(ctx, &r, rows, count, err)
                               : paper_rows(arena, rows, count, err);
    if (!st)
        st = take_chosen(&r, *rows, count, err);
    json_decref(r.list);
    return st;
}
