#include "cmd/eval/eval.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct serve_command {
    vptq_cli_strings models, configs;
    const char *tokenizer, *base, *output;
    uint32_t runs, warmup;
    int kv;
    bool allow_long;
} serve_command;

/* ---- figures of a group ---- */

enum { LATENCY, TTFT, OUTPUT, OVERALL, INPUT, FIGURES };
static const char *const figure_names[FIGURES] = {"latency", "ttft", "output_throughput",
                                                  "overall_throughput", "input_throughput"};
static const char *const figure_titles[FIGURES] = {
    "latency (s)", "first token (s)", "output tok/s", "overall tok/s", "input tok/s"};

/* Mean and sum of squared differences from it, run by run (Welford). */
typedef struct group_stats {
    uint32_t runs;
    double mean[FIGURES], square[FIGURES];
    uint64_t peak;
} group_stats;

static void add_run(group_stats *g, const vptq_serve_record *r)
{
    const double x[FIGURES] = {r->latency, r->ttft, r->output_throughput, r->overall_throughput,
                               r->input_throughput};
    if (r->run == 1)
        *g = (group_stats){.runs = 0};
    g->runs++;
    for (int i = 0; i < FIGURES; i++) {
        const double from = x[i] - g->mean[i];
        g->mean[i] += from / g->runs;
        g->square[i] += from * (x[i] - g->mean[i]);
    }
    g->peak = r->peak_memory_bytes > g->peak ? r->peak_memory_bytes : g->peak;
}

/* The sample's standard deviation; NaN of one run. */
static double deviation(const group_stats *g, int figure)
{
    return g->runs > 1 ? sqrt(g->square[figure] / (g->runs - 1)) : (double)NAN;
}

/* ---- tables ---- */

enum { FACTS = 6, TEXT_COLUMNS = FACTS + FIGURES + 1, CSV_COLUMNS = FACTS + 2 * FIGURES + 1 };

typedef struct serve_table {
    const vptq_cli *cli;
    const vptq_serve_options *o;
    group_stats *groups; /* [models] of the configuration at hand */
    bool began;
} serve_table;

static int name_width(const serve_table *t, bool configs)
{
    size_t width = strlen(configs ? "config" : "model");
    const size_t count = configs ? t->o->config_count : t->o->model_count;
    for (size_t i = 0; i < count; i++) {
        const size_t n = strlen(configs ? t->o->configs[i].name : t->o->models[i].name);
        width = n > width ? n : width;
    }
    return -(int)width;
}

static void put_facts(const vptq_serve_record *r, char (*cell)[CLI_CELL])
{
    snprintf(cell[0], CLI_CELL, "%s", r->model->name);
    snprintf(cell[1], CLI_CELL, "%s", r->config->name);
    snprintf(cell[2], CLI_CELL, "%" PRIu32, r->config->batch);
    snprintf(cell[3], CLI_CELL, "%" PRIu32, r->config->input);
    snprintf(cell[4], CLI_CELL, "%" PRIu32, r->config->output);
}

static void print_text(serve_table *t, const vptq_serve_record *r, const group_stats *g)
{
    const int format = t->cli->common.format;
    const char *const facts[FACTS] = {"model", "config", "batch", "input", "output", "runs"};
    vptq_cli_column columns[TEXT_COLUMNS];
    char cell[TEXT_COLUMNS][CLI_CELL];
    for (int i = 0; i < FACTS; i++)
        columns[i] = (vptq_cli_column){facts[i], i < 2 ? name_width(t, i == 1) : 6};
    for (int i = 0; i < FIGURES; i++)
        columns[FACTS + i] = (vptq_cli_column){figure_titles[i], 19};
    columns[FACTS + FIGURES] = (vptq_cli_column){"memory (MiB)", 0};
    if (!t->began)
        vptq_cli_table_head(format, columns, TEXT_COLUMNS);
    put_facts(r, cell);
    snprintf(cell[5], CLI_CELL, "%" PRIu32, g->runs);
    for (int i = 0; i < FIGURES; i++) {
        const int digits = i <= TTFT ? 3 : 2;
        if (isnan(g->mean[i]))
            snprintf(cell[FACTS + i], CLI_CELL, "-");
        else if (g->runs == 1)
            snprintf(cell[FACTS + i], CLI_CELL, "%.*f", digits, g->mean[i]);
        else {
            snprintf(cell[FACTS + i], CLI_CELL, "%.*f ± %.*f", digits, g->mean[i], digits,
                     deviation(g, i));
            columns[FACTS + i].width++; /* widths count bytes */
        }
    }
    snprintf(cell[FACTS + FIGURES], CLI_CELL, "%.1f", (double)g->peak / 0x1p20);
    vptq_cli_table_row(format, columns, TEXT_COLUMNS, cell);
}

static void put_number(char cell[CLI_CELL], double x)
{
    snprintf(cell, CLI_CELL, isfinite(x) ? "%.9g" : "", x);
}

static void print_csv(serve_table *t, const vptq_serve_record *r, const group_stats *g)
{
    const char *const facts[FACTS] = {"model",     "config",     "batch_size",
                                      "input_len", "output_len", "runs"};
    vptq_cli_column columns[CSV_COLUMNS];
    char cell[CSV_COLUMNS][CLI_CELL], name[FIGURES][2][40];
    for (int i = 0; i < FACTS; i++)
        columns[i] = (vptq_cli_column){facts[i], 0};
    put_facts(r, cell);
    snprintf(cell[5], CLI_CELL, "%" PRIu32, g->runs);
    for (int i = 0; i < FIGURES; i++) {
        const int at = FACTS + 2 * i;
        snprintf(name[i][0], sizeof name[i][0], "%s_mean", figure_names[i]);
        snprintf(name[i][1], sizeof name[i][1], "%s_std", figure_names[i]);
        columns[at] = (vptq_cli_column){name[i][0], 0};
        columns[at + 1] = (vptq_cli_column){name[i][1], 0};
        put_number(cell[at], g->mean[i]);
        put_number(cell[at + 1], deviation(g, i));
    }
    columns[CSV_COLUMNS - 1] = (vptq_cli_column){"peak_memory_bytes", 0};
    snprintf(cell[CSV_COLUMNS - 1], CLI_CELL, "%" PRIu64, g->peak);
    if (!t->began)
        vptq_cli_table_head(CLI_CSV, columns, CSV_COLUMNS);
    vptq_cli_table_row(CLI_CSV, columns, CSV_COLUMNS, cell);
}

static void json_of(vptq_cli_json *j, const vptq_serve_record *r)
{
    char group[VPTQ_SERVE_RUN_NAME];
    vptq_serve_group(r, group);
    vptq_cli_json_begin(j);
    vptq_cli_json_str(j, "group", group);
    vptq_cli_json_str(j, "model", r->model->name);
    vptq_cli_json_str(j, "config", r->config->name);
    vptq_cli_json_u64(j, "batch_size", r->config->batch);
    vptq_cli_json_u64(j, "input_len", r->config->input);
    vptq_cli_json_u64(j, "output_len", r->config->output);
}

static void print_json(const vptq_serve_record *r, const group_stats *g)
{
    vptq_cli_json j;
    char name[48];
    json_of(&j, r);
    vptq_cli_json_u64(&j, "runs", g->runs);
    for (int i = 0; i < FIGURES; i++) {
        snprintf(name, sizeof name, "%s_mean", figure_names[i]);
        vptq_cli_json_f64(&j, name, g->mean[i]);
        snprintf(name, sizeof name, "%s_std", figure_names[i]);
        vptq_cli_json_f64(&j, name, deviation(g, i));
    }
    vptq_cli_json_u64(&j, "peak_memory_bytes", g->peak);
    vptq_cli_json_f64(&j, "bits_per_weight", r->bits_per_weight);
    vptq_cli_json_str(&j, "kv", r->kv == VPTQ_F16 ? "f16" : "f32");
    vptq_cli_json_u64(&j, "threads", (uint64_t)r->threads);
    vptq_cli_json_str(&j, "backend", r->backend);
    vptq_cli_json_u64(&j, "seed", r->seed);
    vptq_cli_json_end(&j);
}

static vptq_status take_run(void *arg, const vptq_serve_record *r, vptq_err *err)
{
    serve_table *t = arg;
    group_stats *g = &t->groups[r->model - t->o->models];
    (void)err;
    add_run(g, r);
    if (r->run < t->o->runs)
        return VPTQ_OK;
    if (t->cli->common.format == CLI_JSON)
        print_json(r, g);
    else if (t->cli->common.format == CLI_CSV)
        print_csv(t, r, g);
    else
        print_text(t, r, g);
    t->began = true;
    fflush(stdout); /* a table takes long */
    return VPTQ_OK;
}

/* ---- what would be run ---- */

enum { PLAN_COLUMNS = 8 };

static void print_need(const vptq_serve_options *o, const vptq_serve_record *r, int format,
                       bool first)
{
    static const vptq_cli_column columns[PLAN_COLUMNS] = {
        {"model", -24}, {"config", -16}, {"batch", 6},          {"input", 6},
        {"output", 6},  {"runs", 6},     {"weights (MiB)", 13}, {"cache and work (MiB)", 20}};
    char cell[PLAN_COLUMNS][CLI_CELL];
    if (format == CLI_JSON) {
        vptq_cli_json j;
        json_of(&j, r);
        vptq_cli_json_u64(&j, "runs", o->runs);
        vptq_cli_json_u64(&j, "weight_bytes", r->need.weights);
        vptq_cli_json_u64(&j, "cache_bytes", r->need.cache);
        vptq_cli_json_u64(&j, "working_bytes", r->need.working);
        vptq_cli_json_end(&j);
        return;
    }
    put_facts(r, cell);
    snprintf(cell[5], CLI_CELL, "%" PRIu32, o->runs);
    snprintf(cell[6], CLI_CELL, "%.1f", (double)r->need.weights / 0x1p20);
    snprintf(cell[7], CLI_CELL, "%.1f + %.1f", (double)r->need.cache / 0x1p20,
             (double)r->need.working / 0x1p20);
    if (first)
        vptq_cli_table_head(format, columns, PLAN_COLUMNS);
    vptq_cli_table_row(format, columns, PLAN_COLUMNS, cell);
}

static vptq_status print_plan(const vptq_cli *cli, const vptq_serve_options *o, vptq_err *err)
{
    VPTQ_CHECK(vptq_serve_check(&cli->ctx, o, NULL, err));
    for (size_t c = 0; c < o->config_count; c++)
        for (size_t m = 0; m < o->model_count; m++) {
            vptq_serve_record r = {.model = &o->models[m], .config = &o->configs[c]};
            VPTQ_CHECK(vptq_serve_need_of(&r.model->model, r.config, o->kv, &r.need, err));
            print_need(o, &r, cli->common.format, c == 0 && m == 0);
        }
    return VPTQ_OK;
}

/* ---- the command ---- */

/* NAME=MODEL, or a MODEL that is called by the last part of its path without its ending. */
static vptq_status split_name(const char *text, char name[VPTQ_SERVE_NAME], const char **path,
                              vptq_err *err)
{
    const char *equal = strchr(text, '='), *slash = strchr(text, '/');
    const bool given = equal && (!slash || equal < slash);
    *path = given ? equal + 1 : text;
    const char *end = *path + strlen(*path);
    while (end > *path + 1 && end[-1] == '/')
        end--;
    const char *from = end;
    while (from > *path && from[-1] != '/')
        from--;
    const char *dot = from + 1 < end ? memchr(from + 1, '.', (size_t)(end - from - 1)) : NULL;
    static const char *const endings[] = {".gguf", ".vptq", ".bin"};
    for (size_t i = 0; dot && i < 3; i++) {
        const size_t n = strlen(endings[i]);
        if ((size_t)(end - from) > n && !strncmp(end - n, endings[i], n)) {
            end -= n;
            break;
        }
    }
    const size_t n = given ? (size_t)(equal - text) : (size_t)(end - from);
    if (n == 0 || n >= VPTQ_SERVE_NAME || !**path)
        return vptq_fail(err, VPTQ_E_ARG,
                         "--model '%.128s', expected NAME=MODEL with a name of 1 to %d bytes",
                         text, VPTQ_SERVE_NAME - 1);
    memcpy(name, given ? text : from, n);
    name[n] = 0;
    return VPTQ_OK;
}

typedef struct serve_job {
    vptq_serve_model *models;
    size_t opened;
    vptq_serve_config *configs;
    vptq_serve_log *log;
    group_stats *groups;
    vptq_serve_options o;
} serve_job;

static vptq_status take_configs(const serve_command *c, serve_job *j, vptq_arena *arena,
                                vptq_err *err)
{
    size_t count;
    j->o.configs = vptq_serve_named(&count);
    j->o.config_count = count;
    if (c->configs.count == 0)
        return VPTQ_OK;
    j->configs = vptq_arena_alloc(arena, c->configs.count, sizeof *j->configs, err);
    if (!j->configs)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < c->configs.count; i++)
        VPTQ_CHECK(vptq_serve_parse(c->configs.items[i], &j->configs[i], err));
    j->o.configs = j->configs;
    j->o.config_count = c->configs.count;
    return VPTQ_OK;
}

static vptq_status open_models(const vptq_cli *cli, const serve_command *c, serve_job *j,
                               vptq_arena *arena, vptq_err *err)
{
    const vptq_checkpoint_options opt = {.tokenizer = c->tokenizer, .base = c->base};
    j->models = vptq_arena_alloc(arena, c->models.count, sizeof *j->models, err);
    j->groups =
        j->models ? vptq_arena_zalloc(arena, c->models.count, sizeof *j->groups, err) : NULL;
    if (!j->groups)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < c->models.count; i++) {
        const char *path;
        VPTQ_CHECK(split_name(c->models.items[i], j->models[i].name, &path, err));
        VPTQ_CHECK(vptq_serve_model_open(&cli->ctx, path, &opt, &j->models[i], err));
        j->opened++;
    }
    j->o.models = j->models;
    j->o.model_count = c->models.count;
    return VPTQ_OK;
}

static int run_serve(vptq_cli *cli, const serve_command *c)
{
    vptq_err err = {0};
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    serve_job j = {.o = {.runs = c->runs,
                         .warmup = c->warmup,
                         .kv = c->kv ? VPTQ_F32 : VPTQ_F16,
                         .seed = cli->common.seed,
                         .allow_long = c->allow_long,
                         .backend = cli->common.backend}};
    vptq_arena_init(&arena, cli->ctx.mem);
    VPTQ_TRY(take_configs(c, &j, &arena, &err));
    VPTQ_TRY(open_models(cli, c, &j, &arena, &err));
    if (cli->common.dry_run) {
        VPTQ_TRY(print_plan(cli, &j.o, &err));
        goto out;
    }
    VPTQ_TRY(vptq_serve_check(&cli->ctx, &j.o, NULL, &err)); /* before a file is touched */
    if (c->output)
        VPTQ_TRY(vptq_serve_log_open(cli->ctx.mem, c->output, cli->common.force, &j.log, &err));
    serve_table t = {.cli = cli, .o = &j.o, .groups = j.groups};
    VPTQ_TRY(vptq_eval_serve(&cli->ctx, &j.o, j.log, take_run, &t, &err));
out:
    vptq_serve_log_close(j.log);
    for (size_t i = 0; i < j.opened; i++)
        vptq_model_release(&j.models[i].model);
    vptq_arena_release(&arena);
    return vptq_cli_finish(cli, st, &err);
}

int vptq_cli_serve(int argc, char **argv)
{
    serve_command c = {.runs = 3, .warmup = 1};
    const vptq_cli_option options[] = {
        {'m', "model", CLI_STRINGS, &c.models, "[NAME=]MODEL",
         "model to serve; several take turns", true},
        {0, "tokenizer", CLI_STRING, &c.tokenizer, "FILE", "tokenizer of another place", false},
        {0, "base", CLI_STRING, &c.base, "MODEL",
         "the model that a work directory was made from, if it was moved", false},
        {0, "config", CLI_STRINGS, &c.configs, "B,I,O|NAME",
         "sequences, tokens of their prompts, new tokens; or interactive, decode_bound, "
         "prefill_bound, long_context, medium_batch, base, high_concurrency; several are "
         "allowed "
         "(default: these seven)",
         false},
        {0, "runs", CLI_U32, &c.runs, "R", "of every model and configuration", false},
        {0, "warmup", CLI_U32, &c.warmup, "N", "short runs in front of them", false},
        {0, "kv", CLI_CHOICE, &c.kv, "f16|f32", "what keys and values are stored as", false},
        {'o', "output", CLI_STRING, &c.output, "FILE",
         "append a record per run; runs that it has are not run again", false},
        {0, "allow-long", CLI_FLAG, &c.allow_long, NULL,
         "sequences may be longer than a model's context", false},
        CLI_END};
    vptq_cli cli = {
        .tool = "vptq-eval",
        .command = "serve",
        .summary = "speed of models that serve many sequences at once",
        .usage =
            "vptq-eval serve -m [NAME=]MODEL [-m MODEL].. [--config B,I,O|NAME].. [--runs R]\n"
            "       [--kv f16|f32] [-o RECORDS.jsonl]",
        .examples =
            "  vptq-eval serve -m original=model -m packed --config base -o runs.jsonl\n"
            "  vptq-eval serve -m packed --config 16,512,64 --runs 5 --format md\n",
        .options = options,
        .formats = "text|json|csv|md"};
    int code;
    if (vptq_cli_parse(&cli, argc, argv, 2, &code))
        code = run_serve(&cli, &c);
    vptq_cli_release(&cli);
    return code;
}
