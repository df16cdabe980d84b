/* Names the models and configurations of a report after its groups. */
#include <math.h>
#include <string.h>

#include "lib/report/internal.h"

/* ---- labels of configurations ---- */

/* Whether several groups have one name: then names contain no configuration. */
static bool names_repeat(const vptq_report *r)
{
    for (size_t i = 0; i < r->group_count; i++)
        for (size_t k = 0; k < i; k++)
            if (strcmp(r->groups[i].name, r->groups[k].name) == 0)
                return true;
    return false;
}

static bool all_end_with(const vptq_report *r, const vptq_report_config *c, const char *ending)
{
    const size_t k = strlen(ending);
    for (size_t i = 0; i < c->count; i++) {
        const char *name = r->groups[c->first + i].name;
        const size_t n = strlen(name);
        if (n <= k || strcmp(name + n - k, ending) != 0)
            return false;
    }
    return true;
}

/* Whether the ending leaves the original or, with `others`, a model of another configuration.
 */
static bool leaves_model(const vptq_report *r, const vptq_report_config *c, const char *ending,
                         bool others)
{
    for (size_t i = 0; i < c->count; i++) {
        const char *name = r->groups[c->first + i].name;
        const size_t n = strlen(name) - strlen(ending);
        if (strncmp(r->original, name, n) == 0 && !r->original[n])
            return true;
        for (size_t k = 0; others && k < r->group_count; k++) {
            const char *model = r->groups[k].model;
            if (model && strncmp(model, name, n) == 0 && !model[n])
                return true;
        }
    }
    return false;
}

/* The ending "_LABEL" of all groups of a configuration: the recorded one, else the longest that
 * leaves a known model, else, in the last pass, the longest.  NULL if there is none. */
static const char *find_ending(const vptq_report *r, const vptq_report_config *c, bool last)
{
    const vptq_report_group *first = &r->groups[c->first];
    const char *config = first->runs[0]->config, *known = NULL, *longest = NULL;
    for (const char *s = strchr(first->name + 1, '_'); s; s = strchr(s + 1, '_')) {
        if (!s[1] || !all_end_with(r, c, s))
            continue;
        if (config && strcmp(s + 1, config) == 0)
            return s;
        if (!known && leaves_model(r, c, s, last))
            known = s;
        longest = longest ? longest : s;
    }
    return known || !last ? known : longest;
}

/* Sets the label of a configuration, and the models of its groups to what precedes it. */
static vptq_status name_config(vptq_report *r, vptq_report_config *c, const char *ending,
                               vptq_err *err)
{
    c->label = ending ? ending + 1 : NULL;
    for (size_t i = 0; i < c->count; i++) {
        vptq_report_group *g = &r->groups[c->first + i];
        const size_t n = strlen(g->name) - (ending ? strlen(ending) : 0);
        g->model = vptq_arena_strndup(&r->arena, g->name, n, err);
        if (!g->model)
            return VPTQ_E_NOMEM;
    }
    return VPTQ_OK;
}

static vptq_status name_configs(vptq_report *r, vptq_err *err)
{
    const bool repeat = names_repeat(r);
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < r->config_count; i++) {
            vptq_report_config *c = &r->configs[i];
            /* an ending that nothing else confirms may belong to the models */
            const bool last = pass == 1 && r->config_count > 1 && c->count > 1;
            if (r->groups[c->first].model)
                continue;
            const char *ending = repeat ? NULL : find_ending(r, c, last);
            if (ending || pass == 1)
                VPTQ_CHECK(name_config(r, c, ending, err));
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
    VPTQ_CHECK(name_configs(r, err));
    return list_models(r, err);
}
