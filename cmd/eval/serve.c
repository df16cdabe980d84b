/* vptq-eval serve: speed of models that serve many sequences at once. */
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
#define FIGURE(key, text, i, digits)                                                           \
    {.title = text,                                                                            \
     VPTQ_REAL(serve_row, mean[i]),                                                            \
     .decimals = digits,                                                                       \
     .deviation = offsetof(serve_row, deviation[i]),                                           \
     .width = 19,                                                                              \
     .formats = PEOPLE},                                                                       \
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
    FACT("config", NULL, VPTQ_TEXT(serve_row, config), 0),
    FACT("batch_size", "batch", VPTQ_INTEGER(serve_row, batch), 6),
    FACT("input_len", "input", VPTQ_INTEGER(serve_row, input), 6),
    FACT("output_len", "output", VPTQ_INTEGER(serve_row, output), 6),
    FACT("runs", NULL, VPTQ_INTEGER(serve_row, runs), 6),
    FIGURE("latency", "latency (s)", LATENCY, 3),
    FIGURE("ttft", "first token (s)", TTFT, 3),
    FIGURE("output_throughput", "output tok/s", OUTPUT, 2),
    FIGURE("overall_throughput", "overall tok/s", OVERALL, 2),
    FIGURE("input_throughput", "input tok/s", INPUT, 2),
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

typedef struct serve_table {
    const vptq_serve_options *o;
    serve_row *groups; /* [models] of the current configuration */
    vptq_column columns[MAX_COLUMNS];
    vptq_printer printer;
} serve_table;

static void widen(vptq_column *c, const char *name)
{
    const int n = (int)strlen(name);
    c->width = n > c->width ? n : c->width;
}

/* Copies the columns and widens those of names to the longest one. */
static void begin_table(serve_table *t, const vptq_cli *cli, const vptq_serve_options *o,
                        const vptq_column *columns, size_t count)
{
    t->o = o;
    memcpy(t->columns, columns, count * sizeof *columns);
    for (size_t i = 0; i < o->model_count; i++)
        widen(&t->columns[MODEL_COLUMN], o->models[i].name);
    for (size_t i = 0; i < o->config_count; i++)
        widen(&t->columns[CONFIG_COLUMN], o->configs[i].name);
    t->printer = vptq_printer_make(&cli->out, t->columns, count);
}

static vptq_status take_run(void *arg, const vptq_serve_record *r, vptq_err *err)
{
    serve_table *t = arg;
    serve_row *g = &t->groups[r->model - t->o->models];
    (void)err;
    add_run(g, r);
    if (r->run < t->o->runs)
        return VPTQ_OK;
    vptq_print_row(&t->printer, g, NULL);
    fflush(stdout); /* a table takes long */
    return VPTQ_OK;
}

static vptq_status print_plan(const vptq_cli *cli, const vptq_serve_options *o, vptq_err *err)
{
    serve_table t;
    VPTQ_CHECK(vptq_serve_check(cli->ctx, o, NULL, err));
    begin_table(&t, cli, o, VPTQ_COLUMNS(plan));
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
            vptq_print_row(&t.printer, &row, NULL);
        }
    return VPTQ_OK;
}

/* ---- the command ---- */

/* Splits NAME=MODEL.  The name of a plain MODEL is the last part of its path without extension.
 */
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
                         "--model %.128s: expected NAME=MODEL with a name of 1 to %d bytes",
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
    serve_row *groups;
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
        j->models[i].model = vptq_arena_zalloc(arena, 1, sizeof *j->models[i].model, err);
        if (!j->models[i].model)
            return VPTQ_E_NOMEM;
        VPTQ_CHECK(vptq_model_open(cli->ctx, path, &opt, true, j->models[i].model, err));
        j->opened++;
        VPTQ_CHECK(vptq_checkpoint_fingerprint(&j->models[i].model->ckpt, cli->ctx,
                                               j->models[i].model->fingerprint, err));
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
    vptq_arena_init(&arena, cli->ctx->mem);
    VPTQ_TRY(take_configs(c, &j, &arena, &err));
    VPTQ_TRY(open_models(cli, c, &j, &arena, &err));
    if (cli->common.dry_run) {
        VPTQ_TRY(print_plan(cli, &j.o, &err));
        goto out;
    }
    VPTQ_TRY(vptq_serve_check(cli->ctx, &j.o, NULL, &err)); /* before a file is opened */
    if (c->output)
        VPTQ_TRY(
            vptq_serve_log_open(cli->ctx->mem, c->output, cli->common.force, &j.log, &err));
    serve_table t = {.groups = j.groups};
    begin_table(&t, cli, &j.o, VPTQ_COLUMNS(table));
    VPTQ_TRY(vptq_eval_serve(cli->ctx, &j.o, j.log, take_run, &t, &err));
out:
    vptq_serve_log_close(j.log);
    for (size_t i = 0; i < j.opened; i++)
        vptq_model_release(j.models[i].model);
    vptq_arena_release(&arena);
    return vptq_cli_finish(cli, st, &err);
}

int vptq_cli_serve(int argc, char **argv)
{
    serve_command c = {.runs = 3, .warmup = 1};
    const vptq_cli_option options[] = {
        {'m', "model", CLI_STRINGS, &c.models, "[NAME=]MODEL",
         "model to serve; may be repeated, models take turns", true},
        {0, "tokenizer", CLI_STRING, &c.tokenizer, "FILE", "tokenizer to use with the model",
         false},
        {0, "base", CLI_STRING, &c.base, "MODEL",
         "the original model of a work directory, if it was moved", false},
        {0, "config", CLI_STRINGS, &c.configs, "B,I,O|NAME",
         "sequences, tokens of their prompts, new tokens; or interactive, decode_bound, "
         "prefill_bound, long_context, medium_batch, base, high_concurrency; may be "
         "repeated (default: these seven)",
         false},
        {0, "runs", CLI_U32, &c.runs, "R", "runs of every model and configuration", false},
        {0, "warmup", CLI_U32, &c.warmup, "N", "short runs before these", false},
        {0, "kv", CLI_CHOICE, &c.kv, "f16|f32", "stored type of keys and values", false},
        {'o', "output", CLI_STRING, &c.output, "FILE",
         "append a record per run; runs with a record are not repeated", false},
        {0, "allow-long", CLI_FLAG, &c.allow_long, NULL,
         "allow sequences longer than a model's context", false},
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
