/* vptq-eval tasks: accuracy of a model on choice tasks, and agreement with its original. */
#include "cmd/eval/eval.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct tasks_command {
    const char *model, *base, *tokenizer, *delimiter, *samples;
    vptq_cli_strings tasks;
    uint64_t limit, context;
    double min_acc, min_agreement;
    bool partial;
} tasks_command;

enum { NAME = 64 };

/* The tasks of --task NAME=FILE and their results. */
typedef struct task_list {
    char (*names)[NAME];
    vptq_task *tasks;
    vptq_task_result *results;
} task_list;

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

vptq_status vptq_cli_take_task(const char *word, char *name, size_t size, vptq_task *task,
                               vptq_err *err)
{
    const char *path = strchr(word, '=');
    if (!path || path == word || !path[1] || (size_t)(path - word) >= size)
        return vptq_fail(err, VPTQ_E_ARG,
                         "--task %s: expected NAME=FILE with a name of at most %zu bytes", word,
                         size - 1);
    memcpy(name, word, (size_t)(path - word));
    name[path - word] = 0;
    *task = (vptq_task){name, path + 1};
    return VPTQ_OK;
}

static vptq_status take_tasks(const tasks_command *c, task_list *l, vptq_err *err)
{
    l->names = calloc(c->tasks.count, sizeof *l->names);
    l->tasks = calloc(c->tasks.count, sizeof *l->tasks);
    l->results = calloc(c->tasks.count, sizeof *l->results);
    if (!l->names || !l->tasks || !l->results)
        return vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
    for (size_t i = 0; i < c->tasks.count; i++)
        VPTQ_CHECK(vptq_cli_take_task(c->tasks.items[i], l->names[i], NAME, &l->tasks[i], err));
    return VPTQ_OK;
}

/* Returns CLI_CHECK_FAILED if a figure of a task is below its minimum. */
static int check_limits(const vptq_cli *cli, const tasks_command *c, const task_list *l)
{
    int code = CLI_OK;
    for (size_t i = 0; i < c->tasks.count; i++) {
        const vptq_task_result *r = &l->results[i];
        if (r->model.acc < c->min_acc) {
            vptq_cli_say(cli, "%s: accuracy %.4f is below --min-acc %g", l->names[i],
                         r->model.acc, c->min_acc);
            code = CLI_CHECK_FAILED;
        }
        if (c->base && r->agreement.same < c->min_agreement) {
            vptq_cli_say(cli, "%s: agreement %.4f is below --min-agreement %g", l->names[i],
                         r->agreement.same, c->min_agreement);
            code = CLI_CHECK_FAILED;
        }
    }
    return code;
}

static int run_command(vptq_cli *cli, void *arg)
{
    const tasks_command *c = arg;
    vptq_err err = {0};
    vptq_status st = VPTQ_OK;
    vptq_model *model = NULL, *base = NULL;
    task_list l = {NULL, NULL, NULL};
    char delimiter[256];
    const vptq_model_options open = {.tokenizer = c->tokenizer,
                                     .base = c->base,
                                     .partial = c->partial,
                                     .need_tokenizer = true,
                                     .work_only = c->partial};
    const vptq_model_options open_base = {.tokenizer = c->tokenizer, .need_tokenizer = true};
    if (c->min_agreement > -(double)INFINITY && !c->base)
        return vptq_cli_usage_error(cli, "--min-agreement needs --base MODEL");
    VPTQ_TRY(vptq_ctx_backend(cli->ctx, NULL, &err));
    VPTQ_TRY(vptq_model_load(cli->ctx, c->model, &open, &model, &err));
    if (c->base)
        VPTQ_TRY(vptq_model_load(cli->ctx, c->base, &open_base, &base, &err));
    VPTQ_TRY(read_delimiter(c->delimiter, delimiter, sizeof delimiter, &err));
    VPTQ_TRY(take_tasks(c, &l, &err));
    const vptq_task_options opt = {.tasks = l.tasks,
                                   .task_count = c->tasks.count,
                                   .delimiter = delimiter,
                                   .limit = c->limit,
                                   .context = c->context,
                                   .samples = c->samples,
                                   .force = cli->common.force,
                                   .dry_run = cli->common.dry_run};
    VPTQ_TRY(vptq_score_tasks(cli->ctx, model, base, &opt, &cli->out, l.results, &err));
out:
    vptq_model_free(base);
    vptq_model_free(model);
    int code = vptq_cli_finish(cli, st, &err);
    if (code == CLI_OK && !cli->common.dry_run)
        code = check_limits(cli, c, &l);
    free(l.results);
    free(l.tasks);
    free(l.names);
    return code;
}

int vptq_cli_tasks(vptq_cli *cli, int argc, char **argv)
{
    tasks_command c = {.delimiter = "\\nAnswer: ",
                       .min_acc = -(double)INFINITY,
                       .min_agreement = -(double)INFINITY};
    const vptq_cli_option options[] = {
        {'m', "model", CLI_STRING, &c.model, "MODEL", "model to measure"},
        {0, "base", CLI_STRING, &c.base, "MODEL", "its original, to compare choices with"},
        {0, "partial", CLI_FLAG, &c.partial, NULL, "accept an unfinished work directory"},
        {0, "tokenizer", CLI_STRING, &c.tokenizer, "FILE", "tokenizer to use with the model"},
        CLI_HEADING("Items"),
        {0, "task", CLI_INPUTS, &c.tasks, "NAME=FILE", "items of a task; may be repeated"},
        {0, "limit", CLI_U64, &c.limit, "N", "only the first N items of each, 0 = all"},
        {0, "delimiter", CLI_STRING, &c.delimiter, "TEXT",
         "text between query and choice of records {query, choices, gold}"},
        {0, "context", CLI_U64, &c.context, "N",
         "maximum tokens of a request, 0 = the model's context"},
        CLI_HEADING("Output"),
        {0, "samples", CLI_STRING, &c.samples, "FILE",
         "write log-likelihoods and choices, one JSON line per item"},
        {0, "min-acc", CLI_DOUBLE, &c.min_acc, "X", "exit 3 if an accuracy is below X"},
        {0, "min-agreement", CLI_DOUBLE, &c.min_agreement, "X",
         "exit 3 if an agreement with the base is below X"},
        CLI_END};
    cli->usage = "vptq-eval tasks -m MODEL --task NAME=FILE.. [--base MODEL] [--limit N]";
    cli->examples = "  vptq-eval tasks -m packed --task arc_easy=arc_easy.jsonl --task "
                    "piqa=piqa.jsonl\n"
                    "  vptq-eval tasks -m packed --base model.gguf --task hellaswag=val.jsonl "
                    "--min-agreement 0.9\n";
    cli->options = options;
    cli->ranks = true;
    cli->formats = "text|json|csv|md";
    cli->omit = "seed";
    cli->required = "model|task";
    return vptq_cli_run(cli, argc, argv, run_command, &c);
}
