/* Serves models as the options say and prints the figures of each model and configuration. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/text.h"
#include "lib/bench/serve.h"
#include "lib/report/column.h"

/* ---- figures of a group ---- */

enum { LATENCY, TTFT, OUTPUT, OVERALL, INPUT, FIGURES };

/* One model under one configuration: means and standard deviations over its runs, or the memory
 * that a run would need. */
typedef struct serve_row {
    char group[VPTQ_SERVE_RUN_NAME];
    const char *model, *config, *kv, *backend;
    uint32_t batch, input, output, runs, threads;
    double mean[FIGURES], deviation[FIGURES]; /* the latter NaN for one run */
    double square[FIGURES]; /* sums of squared differences from the mean (Welford) */
    uint64_t peak, seed;
    double bits_per_weight;
    vptq_serve_need need;
    char weights[24], cache_and_work[48]; /* mebibytes of `need` */
} serve_row;

static serve_row make_row(const vptq_serve_record *r)
{
    serve_row row = {.model = r->model->name,
                     .config = r->config->name,
                     .kv = r->kv == VPTQ_F16 ? "f16" : "f32",
                     .backend = r->backend,
                     .batch = r->config->batch,
                     .input = r->config->input,
                     .output = r->config->output,
                     .threads = (uint32_t)r->threads,
                     .seed = r->seed,
                     .bits_per_weight = r->bits_per_weight,
                     .need = r->need};
    vptq_serve_group(r, row.group);
    return row;
}

static void add_run(serve_row *g, const vptq_serve_record *r)
{
    const double x[FIGURES] = {r->latency, r->ttft, r->output_throughput, r->overall_throughput,
                               r->input_throughput};
    if (r->run == 1)
        *g = make_row(r);
    g->runs++;
    for (int i = 0; i < FIGURES; i++) {
        const double from = x[i] - g->mean[i];
        g->mean[i] += from / g->runs;
        g->square[i] += from * (x[i] - g->mean[i]);
        g->deviation[i] = g->runs > 1 ? sqrt(g->square[i] / (g->runs - 1)) : (double)NAN;
    }
    g->peak = r->peak_memory_bytes > g->peak ? r->peak_memory_bytes : g->peak;
}

/* ---- tables ---- */

enum { PEOPLE = VPTQ_IN_TEXT | VPTQ_IN_MD, PROGRAMS = VPTQ_IN_JSON | VPTQ_IN_CSV };

/* Name for programs, title for people, and member. */
#define FACT(key, text, field, columns)                                                        \
    {                                                                                          \
        .name = key, .title = text, field, .width = columns                                    \
    }
#define KEY(key, field)                                                                        \
    {                                                                                          \
        .name = key, field, .formats = VPTQ_IN_JSON                                            \
    }
/* People see "mean ± deviation", programs two columns. */
#define FIGURE(key, text, i, digits, is_major)                                                 \
    {.title = text,                                                                            \
     VPTQ_REAL(serve_row, mean[i]),                                                            \
     .decimals = digits,                                                                       \
     .deviation = offsetof(serve_row, deviation[i]),                                           \
     .width = 19,                                                                              \
     .formats = PEOPLE,                                                                        \
     .major = is_major},                                                                       \
        {.name = key "_mean", NINE_DIGITS(serve_row, mean[i])},                                \
    {                                                                                          \
        .name = key "_std", NINE_DIGITS(serve_row, deviation[i])                               \
    }
#define NINE_DIGITS(row, member)                                                               \
    VPTQ_REAL(row, member), .decimals = -9, .fixed = VPTQ_IN_CSV, .formats = PROGRAMS
#define MEBIBYTES .scale = 1 / 0x1p20, .decimals = 1

enum { MODEL_COLUMN = 1, CONFIG_COLUMN };

static const vptq_column table[] = {
    KEY("group", VPTQ_CHARS(serve_row, group)),
    FACT("model", NULL, VPTQ_TEXT(serve_row, model), 0),
    {.name = "config", VPTQ_TEXT(serve_row, config), .major = true},
    FACT("batch_size", "batch", VPTQ_INTEGER(serve_row, batch), 6),
    FACT("input_len", "input", VPTQ_INTEGER(serve_row, input), 6),
    FACT("output_len", "output", VPTQ_INTEGER(serve_row, output), 6),
    FACT("runs", NULL, VPTQ_INTEGER(serve_row, runs), 6),
    FIGURE("latency", "latency (s)", LATENCY, 3, true),
    FIGURE("ttft", "first token (s)", TTFT, 3, false),
    FIGURE("output_throughput", "output tok/s", OUTPUT, 2, true),
    FIGURE("overall_throughput", "overall tok/s", OVERALL, 2, false),
    FIGURE("input_throughput", "input tok/s", INPUT, 2, false),
    {.name = "peak_memory_bytes",
     .title = "memory (MiB)",
     VPTQ_INTEGER(serve_row, peak),
     MEBIBYTES},
    KEY("bits_per_weight", VPTQ_REAL(serve_row, bits_per_weight)),
    KEY("kv", VPTQ_TEXT(serve_row, kv)),
    KEY("threads", VPTQ_INTEGER(serve_row, threads)),
    KEY("backend", VPTQ_TEXT(serve_row, backend)),
    KEY("seed", VPTQ_INTEGER(serve_row, seed))};

/* A column of the plan that JSON lacks or has under another key. */
#define IN_PLAN(text, field, columns)                                                          \
    {                                                                                          \
        .name = text, field, .width = columns, .align = VPTQ_ALIGN_RIGHT,                      \
        .formats = PEOPLE | VPTQ_IN_CSV                                                        \
    }
static const vptq_column plan[] = {
    KEY("group", VPTQ_CHARS(serve_row, group)),
    FACT("model", NULL, VPTQ_TEXT(serve_row, model), 0),
    FACT("config", NULL, VPTQ_TEXT(serve_row, config), 0),
    IN_PLAN("batch", VPTQ_INTEGER(serve_row, batch), 6),
    IN_PLAN("input", VPTQ_INTEGER(serve_row, input), 6),
    IN_PLAN("output", VPTQ_INTEGER(serve_row, output), 6),
    KEY("batch_size", VPTQ_INTEGER(serve_row, batch)),
    KEY("input_len", VPTQ_INTEGER(serve_row, input)),
    KEY("output_len", VPTQ_INTEGER(serve_row, output)),
    FACT("runs", NULL, VPTQ_INTEGER(serve_row, runs), 6),
    IN_PLAN("weights (MiB)", VPTQ_CHARS(serve_row, weights), 13),
    IN_PLAN("cache and work (MiB)", VPTQ_CHARS(serve_row, cache_and_work), 20),
    KEY("weight_bytes", VPTQ_INTEGER(serve_row, need.weights)),
    KEY("cache_bytes", VPTQ_INTEGER(serve_row, need.cache)),
    KEY("working_bytes", VPTQ_INTEGER(serve_row, need.working))};

enum { MAX_COLUMNS = sizeof table / sizeof *table };

/* Shows the rows of a run. */
typedef struct serve_table {
    const vptq_serve_plan *o;
    serve_row *groups; /* [models] of the current configuration */
    vptq_column columns[MAX_COLUMNS];
    vptq_printer printer;
    size_t runs; /* shown */
} serve_table;

static void widen(vptq_column *c, const char *name)
{
    const int n = (int)strlen(name);
    c->width = n > c->width ? n : c->width;
}

/* Copies the columns and widens those of names to the longest one. */
static void begin_table(serve_table *t, const vptq_output *out, const vptq_serve_plan *o,
                        const vptq_column *columns, size_t count)
{
    t->o = o;
    memcpy(t->columns, columns, count * sizeof *columns);
    for (size_t i = 0; i < o->model_count; i++)
        widen(&t->columns[MODEL_COLUMN], o->models[i].name);
    for (size_t i = 0; i < o->config_count; i++)
        widen(&t->columns[CONFIG_COLUMN], o->configs[i].name);
    t->printer = vptq_printer_make(out, t->columns, count);
}

static vptq_status take_run(void *arg, const vptq_serve_record *r, vptq_err *err)
{
    serve_table *t = arg;
    serve_row *g = &t->groups[r->model - t->o->models];
    add_run(g, r);
    t->runs++;
    return r->run < t->o->runs ? VPTQ_OK : vptq_print_row(&t->printer, g, err);
}

/* Prints the memory that every model needs for every configuration. */
static vptq_status print_plan(const vptq_serve_plan *o, const vptq_output *out, vptq_err *err)
{
    serve_table t = {.groups = NULL};
    begin_table(&t, out, o, VPTQ_COLUMNS(plan));
    for (size_t c = 0; c < o->config_count; c++)
        for (size_t m = 0; m < o->model_count; m++) {
            vptq_serve_record r = {.model = &o->models[m], .config = &o->configs[c]};
            VPTQ_CHECK(vptq_serve_need_of(r.model->model, r.config, o->kv, &r.need, err));
            serve_row row = make_row(&r);
            row.runs = o->runs;
            snprintf(row.weights, sizeof row.weights, "%.1f",
                     (double)row.need.weights / 0x1p20);
            snprintf(row.cache_and_work, sizeof row.cache_and_work, "%.1f + %.1f",
                     (double)row.need.cache / 0x1p20, (double)row.need.working / 0x1p20);
            VPTQ_CHECK(vptq_print_row(&t.printer, &row, err));
        }
    return VPTQ_OK;
}

/* ---- the run ---- */

/* Takes the published configurations, without those that are longer than a model's context. */
static vptq_status take_named(const vptq_ctx *ctx, vptq_serve_config *own, vptq_serve_plan *o,
                              vptq_err *err)
{
    size_t count;
    char left_out[256] = "";
    const vptq_serve_config *named = vptq_serve_named(&count);
    for (size_t i = 0; i < count; i++) {
        const size_t at = strlen(left_out);
        vptq_serve_plan one = *o;
        one.configs = &named[i];
        one.config_count = 1;
        if (!vptq_serve_check_lengths(&one, NULL))
            own[o->config_count++] = named[i];
        else
            snprintf(left_out + at, sizeof left_out - at, "%s%s", at ? ", " : "",
                     named[i].name);
    }
    if (o->config_count == 0)
        return vptq_fail(err, VPTQ_E_ARG,
                         "all published configurations are longer than a model's context; "
                         "pass --config B,I,O, or --allow-long to run them anyway");
    if (left_out[0])
        vptq_log(ctx, VPTQ_LOG_INFO,
                 "left out, longer than a model's context (--allow-long runs them): %s",
                 left_out);
    return VPTQ_OK;
}

static vptq_status take_configs(const vptq_ctx *ctx, const vptq_serve_options *opt,
                                vptq_serve_config *own, vptq_serve_plan *o, vptq_err *err)
{
    o->configs = own;
    if (opt->config_count == 0)
        return take_named(ctx, own, o, err);
    o->config_count = opt->config_count;
    for (size_t i = 0; i < opt->config_count; i++)
        VPTQ_CHECK(vptq_serve_parse(opt->configs[i], &own[i], err));
    return VPTQ_OK;
}

static vptq_status run_plan(const vptq_ctx *ctx, const vptq_serve_plan *o,
                            const vptq_serve_options *opt, const vptq_output *out,
                            serve_row *groups, vptq_err *err)
{
    const size_t runs = o->model_count * o->config_count * o->runs;
    vptq_serve_log *log = NULL;
    serve_table t = {.groups = groups};
    VPTQ_CHECK(vptq_serve_check(ctx, o, NULL, err)); /* before a file is touched */
    if (opt->dry_run) {
        vptq_estimate e;
        if (opt->records)
            VPTQ_CHECK(vptq_serve_log_check(opt->records, err));
        VPTQ_CHECK(print_plan(o, out, err));
        if (!vptq_estimate_is_shown(out))
            return VPTQ_OK;
        VPTQ_CHECK(vptq_serve_estimate(ctx, o, &e, err));
        return vptq_estimate_end(out, &e, err);
    }
    if (opt->records)
        VPTQ_CHECK(vptq_serve_log_open(ctx->mem, opt->records, opt->force, &log, err));
    begin_table(&t, out, o, VPTQ_COLUMNS(table));
    const vptq_status st = vptq_eval_serve(ctx, o, log, take_run, &t, err);
    if (st == VPTQ_E_CANCELLED)
        vptq_fail(err, st, "interrupted after %zu of %zu %s; %s", t.runs, runs,
                  vptq_plural(runs, "run", "runs"),
                  log ? "run the same command to continue"
                      : "none is kept (-o FILE keeps them)");
    vptq_serve_log_close(log);
    return st;
}

vptq_status vptq_eval_serve_table(const vptq_ctx *ctx, const char *backend,
                                  const vptq_serve_options *opt, const vptq_output *out,
                                  vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    vptq_serve_plan o = {.models = opt->models,
                         .model_count = opt->model_count,
                         .runs = opt->runs,
                         .warmup = opt->warmup,
                         .kv = opt->kv,
                         .seed = opt->seed,
                         .allow_long = opt->allow_long,
                         .backend = backend};
    vptq_arena_init(&arena, ctx->mem);
    size_t published;
    vptq_serve_named(&published);
    vptq_serve_config *configs =
        vptq_arena_zalloc(&arena, opt->config_count + published, sizeof *configs, err);
    serve_row *groups =
        configs ? vptq_arena_zalloc(&arena, opt->model_count + 1, sizeof *groups, err) : NULL;
    if (!groups)
        VPTQ_TRY(VPTQ_E_NOMEM);
    VPTQ_TRY(take_configs(ctx, opt, configs, &o, err));
    for (size_t i = 0; i < opt->model_count; i++) {
        vptq_model *m = opt->models[i].model;
        if (!opt->dry_run && !m->fingerprint[0]) /* for which all weights are read */
            VPTQ_TRY(vptq_checkpoint_fingerprint(&m->ckpt, ctx, m->fingerprint, err));
    }
    VPTQ_TRY(run_plan(ctx, &o, opt, out, groups, err));
out:
    vptq_arena_release(&arena);
    return st;
}
