/* vptq-eval serve: speed of models that serve many sequences at once. */
#include "cmd/eval/eval.h"

#include <stdlib.h>
#include <string.h>

typedef struct serve_command {
    vptq_cli_strings models, configs;
    const char *tokenizer, *base, *output;
    uint32_t runs, warmup;
    int kv;
    bool allow_long, partial;
} serve_command;

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

/* Opens the models; the caller closes those that are not NULL and frees the list. */
static vptq_status open_models(const vptq_cli *cli, const serve_command *c,
                               vptq_serve_model **models, vptq_err *err)
{
    const vptq_model_options open = {.tokenizer = c->tokenizer,
                                     .base = c->base,
                                     .partial = c->partial,
                                     .need_tokenizer = true,
                                     .work_only = c->models.count == 1};
    *models = calloc(c->models.count, sizeof **models);
    if (!*models)
        return vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
    for (size_t i = 0; i < c->models.count; i++) {
        vptq_serve_model *m = &(*models)[i];
        const char *path;
        VPTQ_CHECK(split_name(c->models.items[i], m->name, &path, err));
        VPTQ_CHECK(vptq_model_load(cli->ctx, path, &open, &m->model, err));
    }
    return VPTQ_OK;
}

static int run_serve(vptq_cli *cli, void *arg)
{
    const serve_command *c = arg;
    vptq_err err = {0};
    vptq_status st = VPTQ_OK;
    vptq_serve_model *models = NULL;
    VPTQ_TRY(open_models(cli, c, &models, &err));
    const vptq_serve_options opt = {.models = models,
                                    .model_count = c->models.count,
                                    .configs = c->configs.items,
                                    .config_count = c->configs.count,
                                    .runs = c->runs,
                                    .warmup = c->warmup,
                                    .kv = c->kv ? VPTQ_F32 : VPTQ_F16,
                                    .seed = cli->common.seed,
                                    .allow_long = c->allow_long,
                                    .records = c->output,
                                    .force = cli->common.force,
                                    .dry_run = cli->common.dry_run};
    VPTQ_TRY(vptq_serve(cli->ctx, &opt, &cli->out, &err));
out:
    for (size_t i = 0; models && i < c->models.count; i++)
        vptq_model_free(models[i].model);
    free(models);
    return vptq_cli_finish(cli, st, &err);
}

int vptq_cli_serve(vptq_cli *cli, int argc, char **argv)
{
    serve_command c = {.runs = 3, .warmup = 1};
    const vptq_cli_option options[] = {
        {'m', "model", CLI_STRINGS, &c.models, "[NAME=]MODEL",
         "model to serve; may be repeated, models take turns"},
        {0, "tokenizer", CLI_STRING, &c.tokenizer, "FILE", "tokenizer to use with the model"},
        {0, "base", CLI_STRING, &c.base, "MODEL",
         "the original model of a work directory, if it was moved"},
        {0, "partial", CLI_FLAG, &c.partial, NULL, "accept an unfinished work directory"},
        {0, "config", CLI_STRINGS, &c.configs, "B,I,O|NAME",
         "sequences, tokens of their prompts, new tokens; or interactive, decode_bound, "
         "prefill_bound, long_context, medium_batch, base, high_concurrency; may be "
         "repeated (default: those of these seven that fit into the context of every model)"},
        {0, "runs", CLI_U32, &c.runs, "R", "runs of every model and configuration"},
        {0, "warmup", CLI_U32, &c.warmup, "N", "short runs before these"},
        {0, "kv", CLI_CHOICE, &c.kv, "f16|f32", "stored type of keys and values"},
        {'o', "output", CLI_STRING, &c.output, "FILE",
         "append a record per run; runs with a record are not repeated"},
        {0, "allow-long", CLI_FLAG, &c.allow_long, NULL,
         "allow sequences longer than a model's context"},
        CLI_END};
    cli->usage =
        "vptq-eval serve -m [NAME=]MODEL [-m MODEL].. [--config B,I,O|NAME].. [--runs R]\n"
        "       [--kv f16|f32] [-o RECORDS.jsonl]";
    cli->examples =
        "  vptq-eval serve -m original=model -m packed --config base -o runs.jsonl\n"
        "  vptq-eval serve -m packed --config 16,512,64 --runs 5 --format md\n";
    cli->options = options;
    cli->formats = "text|json|csv|md";
    cli->required = "model";
    return vptq_cli_run(cli, argc, argv, run_serve, &c);
}
