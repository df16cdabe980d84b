/* Reads the names of groups and runs: models, labels of configurations, and runs that are
 * repeated, missing or misplaced. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/report/internal.h"

/* ---- models and labels ---- */

static int compare_names(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* Sets *repeated if a group name appears in several configurations. */
static vptq_status find_repeated_names(vptq_report *r, bool *repeated, vptq_err *err)
{
    const char **names = vptq_arena_alloc(&r->arena, r->group_count, sizeof *names, err);
    if (!names)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < r->group_count; i++)
        names[i] = r->groups[i].name;
    qsort(names, r->group_count, sizeof *names, compare_names);
    *repeated = false;
    for (size_t i = 1; i < r->group_count; i++)
        *repeated |= strcmp(names[i - 1], names[i]) == 0;
    return VPTQ_OK;
}

static bool ends_with(const char *s, const char *suffix)
{
    size_t n = strlen(s), k = strlen(suffix);
    return n > k && strcmp(s + n - k, suffix) == 0;
}

static bool all_end_with(const vptq_report *r, const vptq_report_config *c, const char *suffix)
{
    for (size_t i = 0; i < c->count; i++)
        if (!ends_with(r->groups[c->first + i].name, suffix))
            return false;
    return true;
}

/* The ending "_CONFIG" if all runs record that configuration and all groups end with it, or
 * NULL. */
static const char *label_by_record(const vptq_report *r, const vptq_report_config *c)
{
    const vptq_report_group *first = &r->groups[c->first];
    const char *config = first->runs[0]->config;
    size_t n = strlen(first->name), k = config ? strlen(config) : 0;
    for (size_t i = 0; config && i < c->count; i++)
        for (size_t run = 0; run < first[i].run_count; run++)
            if (!first[i].runs[run]->config || strcmp(first[i].runs[run]->config, config) != 0)
                return NULL;
    if (!config || n < k + 2 || first->name[n - k - 1] != '_' ||
        !all_end_with(r, c, first->name + n - k - 1))
        return NULL;
    return strcmp(first->name + n - k, config) == 0 ? first->name + n - k - 1 : NULL;
}

/* The ending "_LABEL" if the original's group is "ORIGINAL_LABEL" and all others end with it,
 * or NULL. */
static const char *label_by_original(const vptq_report *r, const vptq_report_config *c)
{
    size_t n = strlen(r->original);
    for (size_t i = 0; i < c->count; i++) {
        const char *name = r->groups[c->first + i].name;
        if (strncmp(name, r->original, n) == 0 && name[n] == '_' && name[n + 1] &&
            all_end_with(r, c, name + n))
            return name + n;
    }
    return NULL;
}

/* Counts the groups of c whose name without `suffix` is a model known from other
 * configurations. */
static size_t count_known_models(const vptq_report *r, const vptq_report_config *c,
                                 const char *suffix)
{
    size_t known = 0;
    for (size_t i = 0; i < c->count; i++) {
        const char *name = r->groups[c->first + i].name;
        size_t n = strlen(name) - strlen(suffix);
        for (size_t k = 0; k < r->group_count; k++) {
            const char *model = r->groups[k].model;
            if (model && strncmp(model, name, n) == 0 && !model[n]) {
                known++;
                break;
            }
        }
    }
    return known;
}

/* Without the original: of the endings that all groups share and that start with an underscore,
 * the longest of those that leave the most known models. */
static const char *label_by_others(const vptq_report *r, const vptq_report_config *c)
{
    const char *best = NULL, *name = r->groups[c->first].name;
    size_t best_known = 0;
    for (const char *s = strchr(name, '_'); s; s = strchr(s + 1, '_')) {
        if (s == name || !s[1] || !all_end_with(r, c, s))
            continue;
        size_t known = count_known_models(r, c, s);
        if (!best || known > best_known) {
            best = s;
            best_known = known;
        }
    }
    return best;
}

static vptq_status name_config(vptq_report *r, vptq_report_config *c, const char *suffix,
                               vptq_err *err)
{
    c->label = suffix ? suffix + 1 : NULL;
    for (size_t i = 0; i < c->count; i++) {
        vptq_report_group *g = &r->groups[c->first + i];
        size_t n = strlen(g->name) - (suffix ? strlen(suffix) : 0);
        g->model = vptq_arena_strndup(&r->arena, g->name, n, err);
        if (!g->model)
            return VPTQ_E_NOMEM;
    }
    return VPTQ_OK;
}

static vptq_status name_groups(vptq_report *r, vptq_err *err)
{
    bool repeated;
    VPTQ_CHECK(find_repeated_names(r, &repeated, err));
    for (size_t i = 0; i < r->config_count; i++) {
        const vptq_report_config *c = &r->configs[i];
        const char *suffix = repeated ? NULL : label_by_record(r, c);
        if (!suffix && !repeated)
            suffix = label_by_original(r, c);
        if (suffix || repeated)
            VPTQ_CHECK(name_config(r, &r->configs[i], suffix, err));
    }
    for (size_t i = 0; i < r->config_count; i++) {
        vptq_report_config *c = &r->configs[i];
        /* in a single configuration the shared ending may belong to the models */
        if (!r->groups[c->first].model)
            VPTQ_CHECK(name_config(
                r, c, r->config_count > 1 && c->count > 1 ? label_by_others(r, c) : NULL, err));
    }
    return VPTQ_OK;
}

/* ---- models ---- */

static size_t find_model(vptq_report *r, const char *name)
{
    size_t i = 0;
    while (i < r->model_count && strcmp(r->models[i].name, name) != 0)
        i++;
    return i;
}

static vptq_status list_models(vptq_report *r, vptq_err *err)
{
    r->models = vptq_arena_zalloc(&r->arena, r->group_count, sizeof *r->models, err);
    if (!r->models)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < r->group_count; i++) {
        vptq_report_group *g = &r->groups[i];
        if (strcmp(g->name, r->original) == 0)
            r->original = g->model; /* the user named a group */
        g->model_index = find_model(r, g->model);
        if (g->model_index == r->model_count)
            r->models[r->model_count++] = (vptq_report_model){.name = g->model,
                                                              .bits_per_weight = (double)NAN,
                                                              .peak_memory_bytes = (double)NAN};
    }
    for (size_t i = 0; i < r->group_count; i++) {
        vptq_report_group *g = &r->groups[i];
        vptq_report_model *m = &r->models[g->model_index];
        m->groups++;
        m->bits_per_weight = fmax(m->bits_per_weight, g->bits_per_weight);
        m->peak_memory_bytes = fmax(m->peak_memory_bytes, g->peak_memory_bytes);
        if (strcmp(g->model, r->original) == 0) {
            m->original = r->has_original = true;
            r->configs[g->config].original = g;
        }
    }
    return VPTQ_OK;
}

vptq_status vptq_report_name(vptq_report *r, vptq_err *err)
{
    VPTQ_CHECK(name_groups(r, err));
    return list_models(r, err);
}

/* ---- remarks ---- */

enum {
    MAX_LISTED = 8,      /* texts in a list; the others are counted */
    MAX_RUN_NUMBER = 100 /* larger numbers do not show which runs are missing */
};

/* The first MAX_LISTED texts, joined with ", ". */
typedef struct list {
    vptq_buf buf;
    size_t count;
} list;

static vptq_status add_text(list *l, vptq_err *err, const char *text, const char *more)
{
    vptq_status st = VPTQ_OK;
    if (l->count < MAX_LISTED)
        st = vptq_buf_printf(&l->buf, err, "%s%s%s", l->count ? ", " : "", text, more);
    l->count++;
    return st;
}

/* Sets *out to the list as a text of the report, NULL if it is empty, and empties it. */
static vptq_status take_list(list *l, vptq_report *r, const char **out, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    *out = NULL;
    if (l->count > MAX_LISTED)
        st = vptq_buf_printf(&l->buf, err, " and %zu more", l->count - MAX_LISTED);
    if (!st && l->count && !(*out = vptq_arena_strdup(&r->arena, l->buf.data, err)))
        st = VPTQ_E_NOMEM;
    vptq_buf_clear(&l->buf);
    l->count = 0;
    return st;
}

/* N of "..._runN" up to MAX_RUN_NUMBER, else 0. */
static unsigned run_number(const char *run_name)
{
    size_t stem = vptq_run_name_stem(run_name);
    unsigned long n = run_name[stem] ? strtoul(run_name + stem + 4, NULL, 10) : 0;
    return n <= MAX_RUN_NUMBER ? (unsigned)n : 0;
}

/* "run3" if the rest of the name is the group's, else the whole name. */
static const char *short_name(const vptq_report_group *g, const char *run_name)
{
    size_t stem = vptq_run_name_stem(run_name);
    return run_name[stem] && strncmp(run_name, g->name, stem) == 0 && !g->name[stem]
               ? run_name + stem + 1
               : run_name;
}

static vptq_status list_repeated(vptq_report *r, vptq_report_group *g, list *l, vptq_err *err)
{
    for (size_t i = 0; i < g->run_count; i++) {
        const char *name = g->runs[i]->run_name;
        size_t same = 0, before = 0;
        for (size_t k = 0; k < g->run_count; k++) {
            bool equal = strcmp(g->runs[k]->run_name, name) == 0;
            same += equal;
            before += equal && k < i;
        }
        if (same > 1 && !before) {
            char times[32] = " (twice)";
            if (same > 2)
                snprintf(times, sizeof times, " (%zu times)", same);
            VPTQ_CHECK(add_text(l, err, short_name(g, name), times));
        }
    }
    return take_list(l, r, &g->repeated, err);
}

static vptq_status list_missing(vptq_report *r, vptq_report_group *g, unsigned last, list *l,
                                vptq_err *err)
{
    bool seen[MAX_RUN_NUMBER + 1] = {false};
    for (size_t i = 0; i < g->run_count; i++)
        seen[run_number(g->runs[i]->run_name)] = true;
    for (unsigned n = 1; n <= last && !seen[0]; n++)
        if (!seen[n]) {
            char text[32];
            snprintf(text, sizeof text, "run%u", n);
            VPTQ_CHECK(add_text(l, err, text, ""));
        }
    VPTQ_CHECK(take_list(l, r, &g->missing, err));
    for (size_t i = 0; i < g->run_count; i++) {
        const char *name = g->runs[i]->run_name;
        if (name[vptq_run_name_stem(name)] && short_name(g, name) == name)
            VPTQ_CHECK(add_text(l, err, name, ""));
    }
    return take_list(l, r, &g->elsewhere, err);
}

static vptq_status list_absent(vptq_report *r, vptq_report_config *c, list *l, vptq_err *err)
{
    for (size_t m = 0; m < r->model_count; m++) {
        bool present = false;
        for (size_t i = 0; i < c->count; i++)
            present |= r->groups[c->first + i].model_index == m;
        if (!present)
            VPTQ_CHECK(add_text(l, err, r->models[m].name, ""));
    }
    return take_list(l, r, &c->absent, err);
}

vptq_status vptq_report_remark(vptq_report *r, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    unsigned last = 0;
    list l = {.count = 0};
    vptq_buf_init(&l.buf, r->arena.mem);
    for (size_t i = 0; i < r->group_count; i++)
        for (size_t k = 0; k < r->groups[i].run_count; k++) {
            unsigned n = run_number(r->groups[i].runs[k]->run_name);
            last = n > last ? n : last;
        }
    for (size_t i = 0; i < r->group_count; i++) {
        VPTQ_TRY(list_repeated(r, &r->groups[i], &l, err));
        VPTQ_TRY(list_missing(r, &r->groups[i], last, &l, err));
    }
    for (size_t i = 0; i < r->config_count; i++)
        VPTQ_TRY(list_absent(r, &r->configs[i], &l, err));
out:
    vptq_buf_release(&l.buf);
    return st;
}
