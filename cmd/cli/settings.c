/* Settings of the encoder as command-line options. */
#include "cmd/cli/settings.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { VALUE = 64 };

/* Option of a setting, if it is not plain --KEY VALUE. */
typedef struct spelling {
    const char *key;
    char letter;
    const char *arg;
    bool hidden; /* covered by an option that is not in the table */
} spelling;

static const spelling spellings[] = {
    {"vector_length", 'v', "V", false},
    {"centroids", 'k', "K", false},
    {"residual", 'r', "K", false},
    {"groups", 'g', "N", false},
    {"outliers", 0, "PERCENT[:V:K]", false},
    {"symmetric", 0, NULL, true},
    {"outlier_vector_length", 0, NULL, true}, /* --outliers */
    {"outlier_centroids", 0, NULL, true},
    {"perm", 0, NULL, true}, /* --no-perm */
    {"beam", 0, NULL, true}, /* --search */
    {"seed", 0, NULL, true}, /* common */
};

static spelling spelling_of(const vptq_setting_info *t)
{
    for (size_t i = 0; i < sizeof spellings / sizeof spellings[0]; i++)
        if (!strcmp(spellings[i].key, t->key))
            return spellings[i];
    return (spelling){.key = t->key, .arg = t->values};
}

/* "kmeans_iterations" -> "kmeans-iterations" */
static void option_name(char name[CLI_SETTINGS_NAME], const char *key)
{
    size_t n = 0;
    for (; key[n] && n + 1 < CLI_SETTINGS_NAME; n++)
        name[n] = key[n] == '_' ? '-' : key[n];
    name[n] = 0;
}

/* ---- the options ---- */

static void write_help(char help[CLI_SETTINGS_HELP], const vptq_setting_info *t)
{
    if (strcmp(t->best, t->upstream))
        snprintf(help, CLI_SETTINGS_HELP, "%s (best: %s, upstream: %s)", t->help, t->best,
                 t->upstream);
    else
        snprintf(help, CLI_SETTINGS_HELP, "%s (default: %s)", t->help, t->best);
}

typedef struct option_list {
    vptq_cli_option *items;
    size_t count, max;
} option_list;

static void add(option_list *l, char letter, const char *name, vptq_cli_type type, void *target,
                const char *arg, const char *help)
{
    assert(l->count < l->max);
    l->items[l->count++] = (vptq_cli_option){letter, name, type, target, arg, help};
}

/* Adds the options of the settings that decide what is stored, or of all others. */
static void add_table(vptq_cli_settings *s, option_list *l, bool stored)
{
    vptq_setting_info t;

    for (size_t i = 0; vptq_setting_describe(i, &t); i++) {
        const spelling sp = spelling_of(&t);
        assert(i < CLI_SETTINGS);
        if (t.stored != stored || sp.hidden)
            continue;
        option_name(s->name[i], t.key);
        write_help(s->help[i], &t);
        add(l, sp.letter, s->name[i], CLI_STRING, &s->value[i], sp.arg, s->help[i]);
    }
}

size_t vptq_cli_settings_options(vptq_cli_settings *s, vptq_cli_option *options, size_t max)
{
    option_list l = {options, 0, max};

    *s = (vptq_cli_settings){.norm = true, .perm = true};
    add(&l, 0, NULL, CLI_FLAG, NULL, NULL, "What is stored");
    add(&l, 0, "preset", CLI_STRING, &s->preset, "NAME",
        "settings of a row of the paper's tables, or of a method; list prints all");
    add_table(s, &l, true);
    add(&l, 0, "symmetric", CLI_FLAG, &s->symmetric, NULL,
        "rtn, gptq, awq: uniform codes without zero points");
    add(&l, 0, "act-order", CLI_FLAG, &s->act_order, NULL,
        "gptq: columns by decreasing importance; groups are of columns in that order");
    add(&l, 0, NULL, CLI_FLAG, NULL, NULL, "How the encoder searches");
    add(&l, 0, "encoder", CLI_STRING, &s->encoder, "best|upstream",
        "defaults of the settings below: this project's steps, or the published recipe "
        "(default: best)");
    add_table(s, &l, false);
    add(&l, 0, "no-norm", CLI_UNFLAG, &s->norm, NULL, "same as --norm none");
    add(&l, 0, "no-perm", CLI_UNFLAG, &s->perm, NULL,
        "quantize columns in their own order, not by importance");
    add(&l, 0, "search", CLI_STRING, &s->search, "greedy|beam[:N]",
        "main centroids tried per vector with a residual codebook: the nearest, or the N "
        "nearest (best: beam:16, upstream: greedy)");
    return l.count;
}

/* ---- conversion to settings ---- */

typedef struct given {
    vptq_setting_text item[CLI_SETTINGS + 8];
    size_t count;
    char text[3][VALUE]; /* parts of a composed value */
    char beam[VALUE], seed[VALUE];
} given;

static void give(given *g, const char *key, const char *value)
{
    g->item[g->count++] = (vptq_setting_text){key, value};
}

static vptq_status bad_value(const char *option, const char *value, const char *expected,
                             vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_ARG, "--%s %s: expected %s", option, *value ? value : "''",
                     expected);
}

/* PERCENT or PERCENT:V:K */
static vptq_status take_outliers(given *g, const char *value, vptq_err *err)
{
    static const char *const keys[] = {"outliers", "outlier_vector_length",
                                       "outlier_centroids"};
    const char *p = value;
    size_t parts = 0;

    for (;; p++) {
        size_t n = strcspn(p, ":");
        if (parts == 3 || n >= VALUE)
            return bad_value("outliers", value, "PERCENT[:V:K]", err);
        snprintf(g->text[parts], VALUE, "%.*s", (int)n, p);
        give(g, keys[parts], g->text[parts]);
        parts++;
        p += n;
        if (!*p)
            break;
    }
    return parts == 2 ? bad_value("outliers", value, "PERCENT[:V:K]", err) : VPTQ_OK;
}

static vptq_status take_search(given *g, const char *value, vptq_err *err)
{
    vptq_setting_info t = {.key = ""};

    if (!strcmp(value, "greedy")) {
        give(g, "beam", "1");
    } else if (!strncmp(value, "beam:", 5)) {
        give(g, "beam", value + 5);
    } else if (!strcmp(value, "beam")) {
        for (size_t i = 0; strcmp(t.key, "beam") != 0 && vptq_setting_describe(i, &t);)
            i++;
        snprintf(g->beam, sizeof g->beam, "%s", t.best);
        give(g, "beam", g->beam);
    } else {
        return bad_value("search", value, "greedy|beam[:N]", err);
    }
    return VPTQ_OK;
}

/* Checks each value alone, so that the message names the option. */
static vptq_status check_values(const vptq_cli_settings *s, const given *g, vptq_err *err)
{
    char name[CLI_SETTINGS_NAME];

    for (size_t i = 0; i < g->count; i++) {
        const char *key = g->item[i].key, *value = g->item[i].value;
        const char *option = key;
        if (!strncmp(key, "outlier", 7))
            option = "outliers";
        else if (!strcmp(key, "beam"))
            option = "search";
        else if (!strcmp(key, "norm") && !s->norm)
            option = "no-norm";
        option_name(name, option);
        if (vptq_setting_check(key, value, err))
            return vptq_err_context(err, "--%s %s", name, *value ? value : "''");
    }
    return VPTQ_OK;
}

/* The text of the setting, or NULL if it was not given. */
static const char *value_of(const vptq_cli_settings *s, const char *key)
{
    vptq_setting_info t;
    for (size_t i = 0; vptq_setting_describe(i, &t); i++)
        if (!strcmp(t.key, key))
            return s->value[i];
    return NULL;
}

/* Fails without gptq: other methods ignore the order, or have one that it would not change.
 * Presets with gptq have "ptq" in their names. */
static vptq_status check_order(const vptq_cli_settings *s, vptq_err *err)
{
    const char *method = value_of(s, "method");
    if (!s->act_order)
        return VPTQ_OK;
    if (!s->perm)
        return vptq_fail(err, VPTQ_E_ARG, "--act-order and --no-perm exclude each other");
    if (!method && s->preset)
        return strstr(s->preset, "ptq")
                   ? VPTQ_OK
                   : vptq_fail(err, VPTQ_E_ARG, "--act-order has no effect with preset %s",
                               s->preset);
    return method && strstr(method, "gptq")
               ? VPTQ_OK
               : vptq_fail(err, VPTQ_E_ARG, "--act-order has no effect with method %s",
                           method ? method : "vptq");
}

vptq_status vptq_cli_settings_take(const vptq_cli_settings *s, uint64_t seed,
                                   vptq_settings **settings, vptq_err *err)
{
    given g = {.count = 0};
    vptq_setting_info t;

    *settings = NULL;
    VPTQ_CHECK(check_order(s, err));
    for (size_t i = 0; vptq_setting_describe(i, &t); i++) {
        if (!s->value[i])
            continue;
        if (!strcmp(t.key, "norm") && !s->norm)
            return vptq_fail(err, VPTQ_E_ARG, "--norm and --no-norm exclude each other");
        if (!strcmp(t.key, "outliers"))
            VPTQ_CHECK(take_outliers(&g, s->value[i], err));
        else
            give(&g, t.key, s->value[i]);
    }
    if (!s->norm)
        give(&g, "norm", "none");
    if (!s->perm || s->act_order)
        give(&g, "perm", s->perm ? "true" : "false");
    if (s->symmetric)
        give(&g, "symmetric", "true");
    if (s->search)
        VPTQ_CHECK(take_search(&g, s->search, err));
    snprintf(g.seed, sizeof g.seed, "%" PRIu64, seed);
    give(&g, "seed", g.seed);
    VPTQ_CHECK(check_values(s, &g, err));
    return vptq_settings_new(s->encoder, s->preset, g.item, g.count, settings, err);
}

const char *vptq_cli_settings_rate(const vptq_cli_settings *s)
{
    static const char *const names[] = {"vector-length", "centroids", "residual",
                                        "weight-bits"};
    if (s->preset)
        return "preset";
    for (size_t i = 0; i < CLI_SETTINGS; i++)
        for (size_t n = 0; s->value[i] && n < sizeof names / sizeof *names; n++)
            if (!strcmp(s->name[i], names[n]))
                return names[n];
    return NULL;
}
