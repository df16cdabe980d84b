/* Compares groups: ranks within a configuration, speedups over the original, and their
 * summaries over configurations and batch sizes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/report/internal.h"

/* ---- within a configuration ---- */

static void rank_config(vptq_report *r, const vptq_report_config *c, vptq_metric m)
{
    const double sign = vptq_metrics[m].less ? 1 : -1; /* the least is the best */
    for (size_t i = 0; i < c->count; i++) {
        vptq_report_metric *x = &r->groups[c->first + i].metric[m];
        x->rank = x->stats.count ? 1 : 0;
        for (size_t k = 0; k < c->count && x->rank; k++) {
            const vptq_stats *y = &r->groups[c->first + k].metric[m].stats;
            if (y->count && sign * y->median < sign * x->stats.median)
                x->rank++;
        }
    }
}

/* Copies the known values of a metric; returns their number. */
static size_t copy_values(const vptq_report_group *g, vptq_metric m, double *values)
{
    size_t n = 0;
    for (size_t i = 0; i < g->run_count; i++)
        if (!isnan(g->metric[m].values[i]))
            values[n++] = g->metric[m].values[i];
    return n;
}

static vptq_status compute_speedup(vptq_report *r, vptq_report_group *g,
                                   const vptq_report_group *original, vptq_metric m,
                                   double *scratch, vptq_err *err)
{
    bool less = vptq_metrics[m].less;
    double *mine = scratch, *theirs = scratch + VPTQ_MAX_RATIO_VALUES;
    size_t n = copy_values(g, m, mine), k = copy_values(original, m, theirs);
    return vptq_ratio_of(less ? theirs : mine, less ? k : n, less ? mine : theirs, less ? n : k,
                         r->arena.mem, &g->metric[m].speedup, err);
}

static vptq_status relate_groups(vptq_report *r, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    double *scratch =
        vptq_mem_alloc(r->arena.mem, 2 * (size_t)VPTQ_MAX_RATIO_VALUES, sizeof *scratch, err);
    if (!scratch)
        return VPTQ_E_NOMEM;
    for (int m = 0; m < VPTQ_METRIC_COUNT; m++) {
        for (size_t i = 0; i < r->config_count; i++)
            rank_config(r, &r->configs[i], (vptq_metric)m);
        for (size_t i = 0; i < r->group_count; i++) {
            vptq_report_group *g = &r->groups[i];
            const vptq_report_group *original = r->configs[g->config].original;
            if (original && original != g)
                VPTQ_TRY(compute_speedup(r, g, original, (vptq_metric)m, scratch, err));
        }
    }
out:
    vptq_mem_free(r->arena.mem, scratch);
    return st;
}

/* ---- over configurations ---- */

/* Over the configurations of a batch size; 0 = of all. */
static vptq_report_summary summarize(const vptq_report *r, const vptq_report_model *model,
                                     uint32_t batch, vptq_metric m)
{
    vptq_report_summary s = {(double)NAN, (double)NAN, (double)NAN, 0, 0};
    double logs = 0;
    for (size_t i = 0; i < r->config_count; i++) {
        const vptq_report_group *g = model->by_config[i];
        double x = g ? g->metric[m].speedup.value : (double)NAN;
        if (isnan(x) || (batch && r->configs[i].batch_size != batch))
            continue;
        logs += log(x);
        s.min = s.count && s.min < x ? s.min : x;
        s.max = s.count && s.max > x ? s.max : x;
        s.slower += x < 1;
        s.count++;
    }
    if (s.count)
        s.mean = exp(logs / (double)s.count);
    return s;
}

/* The original first, then by decreasing mean latency speedup (models without one last), then
 * by name. */
static int compare_models(const void *left, const void *right)
{
    const vptq_report_model *a = left, *b = right;
    double x = a->summary[VPTQ_METRIC_LATENCY].mean, y = b->summary[VPTQ_METRIC_LATENCY].mean;
    if (a->original != b->original)
        return a->original ? -1 : 1;
    if (isnan(x) != isnan(y))
        return isnan(x) ? 1 : -1;
    if (x < y || x > y)
        return x < y ? 1 : -1;
    return strcmp(a->name, b->name);
}

static vptq_status relate_models(vptq_report *r, vptq_err *err)
{
    for (size_t i = 0; i < r->model_count; i++) {
        vptq_report_model *m = &r->models[i];
        m->by_config = vptq_arena_zalloc(&r->arena, r->config_count, sizeof *m->by_config, err);
        if (!m->by_config)
            return VPTQ_E_NOMEM;
        for (size_t k = 0; k < r->group_count; k++)
            if (r->groups[k].model_index == i)
                m->by_config[r->groups[k].config] = &r->groups[k];
        for (int k = 0; k < VPTQ_METRIC_COUNT; k++)
            m->summary[k] = summarize(r, m, 0, (vptq_metric)k);
    }
    qsort(r->models, r->model_count, sizeof *r->models, compare_models);
    for (size_t i = 0; i < r->model_count; i++)
        for (size_t k = 0; k < r->config_count; k++) {
            const vptq_report_group *g = r->models[i].by_config[k];
            if (g)
                r->groups[g - r->groups].model_index = i;
        }
    return VPTQ_OK;
}

/* ---- over batch sizes ---- */

static bool same_lengths(const vptq_report_config *a, const vptq_report_config *b)
{
    return a->input_len == b->input_len && a->output_len == b->output_len;
}

static vptq_status find_families(vptq_report *r, vptq_err *err)
{
    r->families = vptq_arena_alloc(&r->arena, r->config_count, sizeof *r->families, err);
    if (!r->families)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < r->config_count; i++) {
        const vptq_report_config *c = &r->configs[i];
        vptq_report_family f = {.input_len = c->input_len, .output_len = c->output_len};
        bool first = true;
        for (size_t k = 0; k < i; k++)
            first = first && !same_lengths(c, &r->configs[k]);
        for (size_t k = i; k < r->config_count; k++)
            f.count += same_lengths(c, &r->configs[k]);
        if (!first || f.count < 2)
            continue;
        f.configs = vptq_arena_alloc(&r->arena, f.count, sizeof *f.configs, err);
        if (!f.configs)
            return VPTQ_E_NOMEM;
        for (size_t k = i, n = 0; k < r->config_count; k++) /* sorted by batch size */
            if (same_lengths(c, &r->configs[k]))
                f.configs[n++] = k;
        r->families[r->family_count++] = f;
    }
    return VPTQ_OK;
}

vptq_status vptq_report_relate(vptq_report *r, vptq_err *err)
{
    VPTQ_CHECK(relate_groups(r, err));
    VPTQ_CHECK(relate_models(r, err));
    return find_families(r, err);
}

vptq_break_even vptq_report_break_even(const vptq_report *r, const vptq_report_family *f,
                                       const vptq_report_model *m, vptq_metric metric)
{
    vptq_break_even e = {.kind = VPTQ_EVEN_UNKNOWN, .batch = (double)NAN};
    double last_log = 0, last_batch = 0;
    size_t points = 0, crossings = 0;
    for (size_t i = 0; i < f->count; i++) {
        const vptq_report_group *g = m->by_config[f->configs[i]];
        double x = g ? g->metric[metric].speedup.value : (double)NAN;
        uint32_t batch = r->configs[f->configs[i]].batch_size;
        if (isnan(x))
            continue;
        double now = log(x), at = log((double)batch);
        if (!points)
            e.first = batch;
        else if ((now > 0) != (last_log > 0) && !crossings++) {
            e.kind = now > 0 ? VPTQ_EVEN_FROM : VPTQ_EVEN_UNTIL;
            e.batch = exp(last_batch + (at - last_batch) * last_log / (last_log - now));
        }
        e.last = batch;
        last_log = now;
        last_batch = at;
        points++;
    }
    e.again = crossings > 1;
    if (points > 1 && !crossings)
        e.kind = last_log > 0 ? VPTQ_EVEN_FASTER : VPTQ_EVEN_SLOWER;
    return e;
}

double vptq_report_at_batch(const vptq_report *r, const vptq_report_model *m, uint32_t batch,
                            vptq_metric metric)
{
    return summarize(r, m, batch, metric).mean;
}
