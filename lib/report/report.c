/* Cuts records into groups and computes their statistics. */
#include "lib/report/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/ctx.h"
#include "lib/report/estimate.h"
#include "lib/report/internal.h"

enum { MAX_GROUPS = 2000 };

const vptq_metric_info vptq_metrics[VPTQ_METRIC_COUNT] = {
    [VPTQ_METRIC_LATENCY] = {"Latency", "s", true},
    [VPTQ_METRIC_DECODE] = {"Decode throughput", "tok/s", false},
    [VPTQ_METRIC_PREFILL] = {"Prefill throughput", "tok/s", false},
    [VPTQ_METRIC_OVERALL] = {"Overall throughput", "tok/s", false},
    [VPTQ_METRIC_TTFT] = {"Time to first token", "s", true}};

/* ---- grouping ---- */

static int compare_config(const vptq_record *a, const vptq_record *b)
{
    if (a->batch_size != b->batch_size)
        return a->batch_size < b->batch_size ? -1 : 1;
    if (a->input_len != b->input_len)
        return a->input_len < b->input_len ? -1 : 1;
    if (a->output_len != b->output_len)
        return a->output_len < b->output_len ? -1 : 1;
    return 0;
}

/* By configuration, group, and address, which is the order in the files. */
static int compare_records(const void *left, const void *right)
{
    const vptq_record *a = *(const vptq_record *const *)left,
                      *b = *(const vptq_record *const *)right;
    int c = compare_config(a, b);
    if (!c)
        c = strcmp(a->group, b->group);
    return c ? c : (a > b) - (a < b);
}

/* Cuts the sorted records into configurations and groups. */
static vptq_status cut_groups(vptq_report *r, const vptq_record **sorted, vptq_err *err)
{
    for (size_t i = 0; i < r->records; i++) {
        bool config = !i || compare_config(sorted[i - 1], sorted[i]) != 0;
        bool group = config || strcmp(sorted[i - 1]->group, sorted[i]->group) != 0;
        if (config)
            r->configs[r->config_count++] =
                (vptq_report_config){.batch_size = sorted[i]->batch_size,
                                     .input_len = sorted[i]->input_len,
                                     .output_len = sorted[i]->output_len,
                                     .first = r->group_count};
        if (group) {
            if (r->group_count == MAX_GROUPS)
                return vptq_fail(err, VPTQ_E_FORMAT,
                                 "the records have more than %d groups (models times "
                                 "configurations)",
                                 (int)MAX_GROUPS);
            r->configs[r->config_count - 1].count++;
            r->groups[r->group_count++] = (vptq_report_group){
                .name = sorted[i]->group, .config = r->config_count - 1, .runs = sorted + i};
        }
        vptq_report_group *g = &r->groups[r->group_count - 1];
        if (++g->run_count > VPTQ_MAX_RATIO_VALUES)
            return vptq_fail(err, VPTQ_E_FORMAT, "group '%s' has more than %d runs", g->name,
                             (int)VPTQ_MAX_RATIO_VALUES);
    }
    return VPTQ_OK;
}

static vptq_status group_records(vptq_report *r, const vptq_records *records, vptq_err *err)
{
    size_t max_groups = records->count < MAX_GROUPS ? records->count : MAX_GROUPS;
    const vptq_record **sorted =
        vptq_arena_alloc(&r->arena, records->count, sizeof *sorted, err);
    r->groups = sorted ? vptq_arena_alloc(&r->arena, max_groups, sizeof *r->groups, err) : NULL;
    /* one more: a configuration is added before its first group is refused */
    r->configs =
        r->groups ? vptq_arena_alloc(&r->arena, max_groups + 1, sizeof *r->configs, err) : NULL;
    if (!r->configs)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < records->count; i++)
        sorted[i] = &records->items[i];
    qsort(sorted, records->count, sizeof *sorted, compare_records);
    r->records = records->count;
    return cut_groups(r, sorted, err);
}

/* ---- statistics of a group ---- */

/* Seconds until the first token, as recorded or computed from the throughputs: the latency
 * minus the output tokens over the decode throughput.  NaN if that is not positive. */
static double run_ttft(const vptq_record *run, bool *derived)
{
    double batch = run->batch_size, in = batch * run->input_len, out = batch * run->output_len;
    *derived = false;
    if (!isnan(run->ttft))
        return run->ttft;
    if (!isnan(run->input_throughput))
        return in / run->input_throughput;
    double ttft = run->latency - out / run->output_throughput;
    *derived = ttft > 0;
    return *derived ? ttft : (double)NAN;
}

static void run_values(const vptq_record *run, double values[VPTQ_METRIC_COUNT], bool *derived)
{
    double in = (double)run->batch_size * run->input_len, ttft = run_ttft(run, derived);
    values[VPTQ_METRIC_LATENCY] = run->latency;
    values[VPTQ_METRIC_DECODE] = run->output_throughput;
    values[VPTQ_METRIC_OVERALL] = run->overall_throughput;
    values[VPTQ_METRIC_TTFT] = ttft;
    values[VPTQ_METRIC_PREFILL] =
        isnan(run->input_throughput) ? in / ttft : run->input_throughput;
}

/* Sets what all runs of a group share besides their figures. */
static void describe_setting(vptq_report_group *g)
{
    g->backend = g->runs[0]->backend;
    g->bits_per_weight = g->peak_memory_bytes = (double)NAN;
    for (size_t i = 0; i < g->run_count; i++) {
        const vptq_record *run = g->runs[i];
        g->bits_per_weight = fmax(g->bits_per_weight, run->bits_per_weight);
        g->peak_memory_bytes = fmax(g->peak_memory_bytes, run->peak_memory_bytes);
        if (!run->backend || !g->backend || strcmp(run->backend, g->backend) != 0)
            g->backend = NULL;
    }
}

/* Statistics and outliers over the known values; `scratch` [2 n], `marked` [n]. */
static void describe(vptq_report_metric *m, size_t n, double *scratch, bool *marked)
{
    size_t known = 0;
    for (size_t i = 0; i < n; i++)
        if (!isnan(m->values[i]))
            scratch[known++] = m->values[i];
    m->stats = vptq_stats_of(scratch, known, scratch + n);
    m->outliers = vptq_stats_outliers(scratch, known, m->stats.median, marked, scratch + n);
    for (size_t i = 0, k = 0; i < n; i++)
        m->outlier[i] = isnan(m->values[i]) ? false : marked[k++];
}

static void clear_outliers(vptq_report_metric *m, size_t n)
{
    m->outliers = 0;
    memset(m->outlier, 0, n * sizeof *m->outlier);
}

static vptq_status describe_group(vptq_report *r, vptq_report_group *g, vptq_err *err)
{
    enum { SCRATCH = 2 };
    const size_t n = g->run_count;
    describe_setting(g);
    double *reals =
        vptq_arena_alloc(&r->arena, (VPTQ_METRIC_COUNT + SCRATCH) * n, sizeof *reals, err);
    bool *flags =
        reals ? vptq_arena_alloc(&r->arena, (VPTQ_METRIC_COUNT + 1) * n, sizeof *flags, err)
              : NULL;
    if (!flags)
        return VPTQ_E_NOMEM;
    double *scratch = reals + VPTQ_METRIC_COUNT * n;
    bool *marked = flags + VPTQ_METRIC_COUNT * n;
    for (size_t m = 0; m < VPTQ_METRIC_COUNT; m++) {
        g->metric[m].values = reals + m * n;
        g->metric[m].outlier = flags + m * n;
        g->metric[m].speedup = (vptq_ratio){(double)NAN, (double)NAN, (double)NAN};
    }
    for (size_t i = 0; i < n; i++) {
        double values[VPTQ_METRIC_COUNT];
        bool derived;
        run_values(g->runs[i], values, &derived);
        g->derived_ttft += derived;
        for (int m = 0; m < VPTQ_METRIC_COUNT; m++)
            g->metric[m].values[i] = values[m];
    }
    for (int m = 0; m < VPTQ_METRIC_COUNT; m++)
        describe(&g->metric[m], n, scratch, marked);
    if (g->derived_ttft) { /* differences of rounded figures scatter too much */
        clear_outliers(&g->metric[VPTQ_METRIC_TTFT], n);
        clear_outliers(&g->metric[VPTQ_METRIC_PREFILL], n);
    }
    return VPTQ_OK;
}

/* ---- the report ---- */

vptq_status vptq_report_build(const vptq_records *records, const char *original, vptq_mem *mem,
                              vptq_report *r, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    *r = (vptq_report){.original = original ? original : "original"};
    vptq_arena_init(&r->arena, mem);
    VPTQ_TRY(group_records(r, records, err));
    for (size_t i = 0; i < r->group_count; i++)
        VPTQ_TRY(describe_group(r, &r->groups[i], err));
    VPTQ_TRY(vptq_report_name(r, err));
    if (original && !r->has_original) {
        st = vptq_fail(err, VPTQ_E_ARG,
                       "--original '%s': no records of such a model; there are some of '%s'",
                       original, r->models[0].name);
        goto out;
    }
    VPTQ_TRY(vptq_report_remark(r, err));
    VPTQ_TRY(vptq_report_relate(r, err));
out:
    if (st)
        vptq_report_release(r);
    return st;
}

void vptq_report_release(vptq_report *r)
{
    vptq_arena_release(&r->arena);
    *r = (vptq_report){.original = NULL};
}

vptq_status vptq_report_write(const vptq_report *r, vptq_format format, const char *source,
                              vptq_buf *out, vptq_err *err)
{
    if (format == VPTQ_FORMAT_CSV || format == VPTQ_FORMAT_JSON)
        return vptq_report_write_rows(r, format, out, err);
    return vptq_report_write_page(r, format, source, out, err);
}

/* The report was made, which takes no longer than writing it.  The estimate of a page, the
 * default, is text. */
static vptq_status report_plan(const vptq_ctx *ctx, const vptq_compare_options *opt,
                               double seconds, size_t bytes, const vptq_output *out,
                               vptq_err *err)
{
    vptq_output plan = out ? *out : (vptq_output){.format = VPTQ_FORMAT_CSV};
    vptq_estimate e = vptq_estimate_make(opt->output);
    e.seconds = seconds;
    e.memory_bytes = ctx->mem ? ctx->mem->peak : 0;
    e.disk_bytes = opt->output ? bytes : 0;
    if (plan.format == VPTQ_FORMAT_MD || plan.format == VPTQ_FORMAT_HTML)
        plan.format = VPTQ_FORMAT_TEXT;
    return vptq_estimate_end(&plan, &e, err);
}

vptq_status vptq_compare(vptq_ctx *ctx, const vptq_compare_options *opt, const vptq_output *out,
                         vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_records all;
    vptq_report report;
    vptq_buf text;
    const double start = vptq_seconds();
    const vptq_format format = out ? out->format : VPTQ_FORMAT_MD;
    vptq_records_init(&all, ctx->mem);
    vptq_buf_init(&text, ctx->mem);
    for (size_t i = 0; i < opt->count; i++)
        VPTQ_TRY(vptq_records_read(ctx, &all, opt->records[i], err));
    VPTQ_TRY(vptq_report_build(&all, opt->original, ctx->mem, &report, err));
    for (size_t i = 0; i < report.group_count; i++)
        if (report.groups[i].mixed)
            vptq_log(ctx, VPTQ_LOG_WARN,
                     "group '%s': its runs differ in %s and are not comparable",
                     report.groups[i].name, report.groups[i].mixed);
    st = opt->classic ? vptq_report_write_classic(&report, opt->source, &text, err)
                      : vptq_report_write(&report, format, opt->source, &text, err);
    vptq_report_release(&report);
    if (!st && opt->dry_run)
        st = report_plan(ctx, opt, vptq_seconds() - start, text.len, out, err);
    else if (!st && out)
        st = out->write(out->arg, text.data, text.len, err);
out:
    vptq_records_release(&all);
    vptq_buf_release(&text);
    return st;
}
