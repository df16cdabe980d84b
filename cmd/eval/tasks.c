/* vptq-eval tasks: accuracy of a model on choice tasks, and agreement with its original. */
#include "cmd/eval/eval.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct tasks_command {
    const char *model, *base, *tokenizer, *delimiter, *samples;
    vptq_cli_strings tasks;
    uint64_t limit, context;
    double min_acc, min_agreement;
} tasks_command;

/* One --task NAME=FILE and its results. */
typedef struct task {
    char name[64];
    const char *path, *model, *base_model; /* as given */
    vptq_task_file file;
    bool has_file, done;
    vptq_task_result result, base;
    vptq_task_agreement agreement;
} task;

/* ---- the table ---- */

/* Conditions of columns: a base, a normalized accuracy or a perplexity in one of the tasks. */
enum { BASE = 1, NORM = 2, PERPLEXITY = 4 };
enum { PROGRAMS = VPTQ_IN_JSON | VPTQ_IN_CSV };

/* Key, title, member and needs of a column. */
#define FIGURE(k, t, member, n)                                                                \
    {                                                                                          \
        .name = k, .title = t, VPTQ_REAL(task, member), .decimals = 4, .needs = n              \
    }
#define COUNT(k, t, member, n)                                                                 \
    {                                                                                          \
        .name = k, .title = t, VPTQ_INTEGER(task, member), .needs = n                          \
    }
/* Key and member of a column of JSON and CSV only. */
#define FACT(k, field)                                                                         \
    {                                                                                          \
        .name = k, field, .formats = PROGRAMS                                                  \
    }

static const vptq_column columns[] = {
    {.name = "task", .title = "Task", VPTQ_CHARS(task, name), .head = true},
    COUNT("items", "Items", result.items, 0),
    FIGURE("acc", "acc", result.acc, 0),
    FIGURE("acc_stderr", "±", result.acc_stderr, 0),
    FIGURE("acc_norm", "acc_norm", result.acc_norm, NORM),
    FIGURE("acc_norm_stderr", "±", result.acc_norm_stderr, NORM),
    FIGURE("perplexity", "Perplexity", result.perplexity, PERPLEXITY),
    FIGURE("perplexity_stderr", "±", result.perplexity_stderr, PERPLEXITY),
    FIGURE("acc_base", "acc of base", base.acc, BASE),
    FIGURE("acc_norm_base", "acc_norm of base", base.acc_norm, BASE | NORM),
    FIGURE("perplexity_base", "Perplexity of base", base.perplexity, BASE | PERPLEXITY),
    FIGURE("agreement", "Agreement", agreement.same, BASE),
    FIGURE("agreement_stderr", "±", agreement.same_stderr, BASE),
    FIGURE("agreement_norm", "Agreement (norm)", agreement.same_norm, BASE | NORM),
    FIGURE("agreement_norm_stderr", "±", agreement.same_norm_stderr, BASE | NORM),
    COUNT("right_to_wrong", "Right to wrong", agreement.right_to_wrong, BASE),
    COUNT("wrong_to_right", "Wrong to right", agreement.wrong_to_right, BASE),
    FACT("requests", VPTQ_INTEGER(task, result.requests)),
    FACT("rows", VPTQ_INTEGER(task, result.rows)),
    FACT("rows_saved", VPTQ_INTEGER(task, result.rows_saved)),
    {.name = "seconds", .title = "Seconds", VPTQ_REAL(task, result.seconds), .decimals = 1},
    FACT("model", VPTQ_TEXT(task, model)),
    {.name = "base", VPTQ_TEXT(task, base_model), .formats = PROGRAMS, .needs = BASE}};

static size_t count_done(const tasks_command *c, const task *tasks)
{
    size_t n = 0;
    while (n < c->tasks.count && tasks[n].done)
        n++;
    return n;
}

static void print_total(const tasks_command *c, const task *tasks, size_t count)
{
    uint64_t rows = 0, saved = 0;
    double seconds = 0;
    for (size_t i = 0; i < count; i++) {
        rows += tasks[i].result.rows;
        saved += tasks[i].result.rows_saved;
        seconds += tasks[i].result.seconds;
    }
    printf("%s%s%s: %" PRIu64 " tokens, %.0f per second; sharing saved %" PRIu64 "\n", c->model,
           c->base ? " against " : "", c->base ? c->base : "", rows,
           seconds > 0 ? (double)rows / seconds : 0, saved);
}

/* Prints the finished tasks.  JSON and CSV have every column of the options, text and Markdown
 * leave out empty ones. */
static void print_table(const vptq_cli *cli, const tasks_command *c, const task *tasks)
{
    const size_t count = count_done(c, tasks);
    vptq_printer p = vptq_printer_make(&cli->out, VPTQ_COLUMNS(columns));
    const bool all = cli->common.format == CLI_JSON || cli->common.format == CLI_CSV;
    p.plain = true;
    p.has = (c->base ? BASE : 0) | (all ? NORM | PERPLEXITY : 0);
    for (size_t i = 0; i < count; i++)
        p.has |= (isnan(tasks[i].result.acc_norm) ? 0 : NORM) |
                 (isnan(tasks[i].result.perplexity) ? 0 : PERPLEXITY);
    vptq_print_rows(&p, tasks, count, sizeof *tasks, NULL);
    if (cli->common.format == CLI_TEXT)
        print_total(c, tasks, count);
}

static void print_plan(const vptq_cli *cli, const task *k)
{
    static const vptq_column plan[] = {
        {.name = "task", VPTQ_CHARS(task, name)},
        {.name = "items", VPTQ_INTEGER(task, result.items)},
        {.name = "requests", VPTQ_INTEGER(task, result.requests)},
        {.name = "rows", VPTQ_INTEGER(task, result.rows)},
        {.name = "rows_saved", VPTQ_INTEGER(task, result.rows_saved)}};
    const vptq_task_result *r = &k->result;
    if (cli->common.format == CLI_JSON) {
        vptq_print_object(&cli->out, VPTQ_COLUMNS(plan), k, NULL);
        return;
    }
    printf("%s: would score %" PRIu64 " items in %" PRIu64 " requests; %" PRIu64
           " tokens, %" PRIu64 " without sharing\n",
           k->name, r->items, r->requests, r->rows, r->rows + r->rows_saved);
}

/* ---- the run ---- */

/* Replaces \n, \t and \\ in the delimiter. */
static vptq_status read_delimiter(const char *from, char *to, size_t size, vptq_err *err)
{
    static const char escapes[] = "n\nt\t\\\\";
    size_t n = 0;
    for (; *from; from++) {
        const char *e = *from == '\\' && from[1] ? strchr(escapes, from[1]) : NULL;
        if (*from == '\\' && (!e || (e - escapes) % 2))
            return vptq_fail(err, VPTQ_E_ARG,
                             "--delimiter: unknown escape '%.2s', expected \\n, \\t or \\\\",
                             from);
        if (n + 1 >= size)
            return vptq_fail(err, VPTQ_E_ARG, "--delimiter: more than %zu bytes", size - 1);
        to[n++] = e ? e[1] : *from;
        from += e != NULL;
    }
    to[n] = 0;
    return VPTQ_OK;
}

static vptq_status read_task(vptq_cli *cli, const tasks_command *c, const char *word,
                             const char *delimiter, task *k, vptq_err *err)
{
    const char *path = strchr(word, '=');
    if (!path || path == word || !path[1] || (size_t)(path - word) >= sizeof k->name)
        return vptq_fail(err, VPTQ_E_ARG,
                         "--task %s: expected NAME=FILE with a name of at most %zu bytes", word,
                         sizeof k->name - 1);
    memcpy(k->name, word, (size_t)(path - word));
    k->path = path + 1;
    k->model = c->model;
    k->base_model = c->base;
    const vptq_task_file_options opt = {
        .task = k->name, .delimiter = delimiter, .limit = c->limit};
    vptq_status st = vptq_task_file_read(k->path, &opt, cli->ctx->mem, &k->file, err);
    k->has_file = !st;
    return st;
}

/* Reads and tokenizes every file before the first task is run. */
static vptq_status read_tasks(vptq_cli *cli, const tasks_command *c, vptq_cli_eval *s,
                              task *tasks, vptq_err *err)
{
    const vptq_task_options plan = {.context = c->context, .dry_run = true};
    char delimiter[256];
    VPTQ_CHECK(read_delimiter(c->delimiter, delimiter, sizeof delimiter, err));
    for (size_t i = 0; i < c->tasks.count; i++)
        VPTQ_CHECK(read_task(cli, c, c->tasks.items[i], delimiter, &tasks[i], err));
    for (size_t i = 0; i < c->tasks.count; i++)
        if (cli->common.dry_run || i > 0)
            VPTQ_CHECK(vptq_eval_task(&s->dev, &s->model, tasks[i].name, &tasks[i].file, &plan,
                                      NULL, NULL, &tasks[i].result, err));
    return VPTQ_OK;
}

static vptq_status run_task(vptq_cli *cli, const tasks_command *c, vptq_cli_eval *s, task *k,
                            vptq_file_writer *samples, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_task_options opt = {.context = c->context};
    vptq_arena arena;
    vptq_buf text;
    vptq_task_answer *answers = NULL, *base = NULL;
    char name[sizeof k->name + 16];
    vptq_arena_init(&arena, cli->ctx->mem);
    vptq_buf_init(&text, cli->ctx->mem);
    VPTQ_TRY(vptq_eval_task(&s->dev, &s->model, k->name, &k->file, &opt, &arena, &answers,
                            &k->result, err));
    if (c->base) {
        snprintf(name, sizeof name, "%s of the base", k->name);
        VPTQ_TRY(vptq_eval_task(&s->dev, &s->base, name, &k->file, &opt, &arena, &base,
                                &k->base, err));
        vptq_eval_task_compare(&k->file, answers, base, &k->agreement);
    }
    if (samples->fd >= 0) {
        VPTQ_TRY(vptq_eval_task_samples(k->name, &k->file, answers, base, &text, err));
        VPTQ_TRY(vptq_file_write(samples, text.data, text.len, err));
    }
    k->done = true;
out:
    vptq_buf_release(&text);
    vptq_arena_release(&arena);
    return st;
}

/* Runs all tasks; prints the finished ones even if a later one fails. */
static vptq_status run_tasks(vptq_cli *cli, const tasks_command *c, vptq_cli_eval *s,
                             task *tasks, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_file_writer samples = {.fd = -1};
    VPTQ_TRY(read_tasks(cli, c, s, tasks, err));
    for (size_t i = 0; cli->common.dry_run && i < c->tasks.count; i++)
        print_plan(cli, &tasks[i]);
    if (cli->common.dry_run)
        goto out;
    if (c->samples)
        VPTQ_TRY(vptq_file_writer_open(c->samples, cli->common.force, &samples, err));
    for (size_t i = 0; i < c->tasks.count && !st; i++)
        st = run_task(cli, c, s, &tasks[i], &samples, err);
    if (tasks[0].done)
        print_table(cli, c, tasks);
    if (!st && samples.fd >= 0)
        st = vptq_file_writer_commit(&samples, err);
out:
    vptq_file_writer_abort(&samples);
    return st;
}

/* Returns CLI_CHECK_FAILED if a figure of a task is below its minimum. */
static int check_limits(const tasks_command *c, const task *tasks)
{
    int code = CLI_OK;
    for (size_t i = 0; i < c->tasks.count && tasks[i].done; i++) {
        const task *k = &tasks[i];
        if (k->result.acc < c->min_acc) {
            fprintf(stderr, "vptq-eval: %s: accuracy %.4f is below --min-acc %g\n", k->name,
                    k->result.acc, c->min_acc);
            code = CLI_CHECK_FAILED;
        }
        if (c->base && k->agreement.same < c->min_agreement) {
            fprintf(stderr, "vptq-eval: %s: agreement %.4f is below --min-agreement %g\n",
                    k->name, k->agreement.same, c->min_agreement);
            code = CLI_CHECK_FAILED;
        }
    }
    return code;
}

static int run_command(vptq_cli *cli, const tasks_command *c)
{
    vptq_err err = {0};
    vptq_status st = VPTQ_OK;
    vptq_cli_eval s = {.has_dev = false};
    const vptq_checkpoint_options base = {.tokenizer = c->tokenizer};
    vptq_arena arena;
    vptq_arena_init(&arena, cli->ctx->mem);
    task *tasks = vptq_arena_zalloc(&arena, c->tasks.count, sizeof *tasks, &err);
    if (!tasks)
        VPTQ_TRY(VPTQ_E_NOMEM);
    VPTQ_TRY(vptq_cli_eval_open(&s, cli, c->model, c->tokenizer, c->base, true, &err));
    if (c->base) {
        VPTQ_TRY(vptq_model_open(cli->ctx, c->base, &base, true, &s.base, &err));
        s.has_base = true;
    }
    VPTQ_TRY(run_tasks(cli, c, &s, tasks, &err));
out:
    vptq_cli_eval_close(&s);
    int code = vptq_cli_finish(cli, st, &err);
    if (code == CLI_OK)
        code = check_limits(c, tasks);
    for (size_t i = 0; tasks && i < c->tasks.count; i++)
        if (tasks[i].has_file)
            vptq_task_file_release(&tasks[i].file);
    vptq_arena_release(&arena);
    return code;
}

static int check_usage(const vptq_cli *cli, const tasks_command *c)
{
    if (c->min_agreement > -(double)INFINITY && !c->base)
        return vptq_cli_usage_error(cli, "--min-agreement needs --base MODEL");
    return CLI_OK;
}

int vptq_cli_tasks(int argc, char **argv)
{
    tasks_command c = {.delimiter = "\\nAnswer: ",
                       .min_acc = -(double)INFINITY,
                       .min_agreement = -(double)INFINITY};
    const vptq_cli_option options[] = {
        {'m', "model", CLI_STRING, &c.model, "MODEL", "model to measure", true},
        {0, "base", CLI_STRING, &c.base, "MODEL", "its original, to compare choices with",
         false},
        {0, "tokenizer", CLI_STRING, &c.tokenizer, "FILE", "tokenizer to use with the model",
         false},
        {0, NULL, CLI_FLAG, NULL, NULL, "Items", false},
        {0, "task", CLI_STRINGS, &c.tasks, "NAME=FILE", "items of a task; may be repeated",
         true},
        {0, "limit", CLI_U64, &c.limit, "N", "only the first N items of each, 0 = all", false},
        {0, "delimiter", CLI_STRING, &c.delimiter, "TEXT",
         "text between query and choice of records {query, choices, gold}", false},
        {0, "context", CLI_U64, &c.context, "N",
         "maximum tokens of a request, 0 = the model's context", false},
        {0, NULL, CLI_FLAG, NULL, NULL, "Output", false},
        {0, "samples", CLI_STRING, &c.samples, "FILE",
         "write log-likelihoods and choices, one JSON line per item", false},
        {0, "min-acc", CLI_DOUBLE, &c.min_acc, "X", "exit 3 if an accuracy is below X", false},
        {0, "min-agreement", CLI_DOUBLE, &c.min_agreement, "X",
         "exit 3 if an agreement with the base is below X", false},
        CLI_END};
    vptq_cli cli = {
        .tool = "vptq-eval",
        .command = "tasks",
        .summary = "accuracy of a model on choice tasks",
        .usage = "vptq-eval tasks -m MODEL --task NAME=FILE.. [--base MODEL] [--limit N]",
        .examples = "  vptq-eval tasks -m packed --task arc_easy=arc_easy.jsonl --task "
                    "piqa=piqa.jsonl\n"
                    "  vptq-eval tasks -m packed --base model.gguf --task hellaswag=val.jsonl "
                    "--min-agreement 0.9\n",
        .options = options,
        .formats = "text|json|csv|md",
        .omit = "seed"};
    int code;
    if (vptq_cli_parse(&cli, argc, argv, 2, &code)) {
        code = check_usage(&cli, &c);
        if (code == CLI_OK)
            code = run_command(&cli, &c);
    }
    vptq_cli_release(&cli);
    return code;
}
