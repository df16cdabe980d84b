/* vptq-eval error: error of every quantized matrix against its original. */
#include "cmd/eval/eval.h"

#include <stdlib.h>
#include <string.h>

typedef struct error_command {
    const char *model, *base, *hessians, *output;
    vptq_cli_range layers;
    uint32_t top;
    bool partial;
    int sort; /* vptq_error_order */
} error_command;

static int run_error(vptq_cli *cli, void *arg)
{
    const error_command *c = arg;
    vptq_err err = {0};
    vptq_status st = VPTQ_OK;
    vptq_model *model = NULL, *base = NULL;
    vptq_writer *file = NULL;
    vptq_output out;
    const vptq_model_options open = {
        .base = c->base, .partial = c->partial, .work_only = c->partial};
    const vptq_error_options opt = {.hessians = c->hessians,
                                    .first_layer = c->layers.first,
                                    .last_layer = c->layers.last,
                                    .order = (vptq_error_order)c->sort,
                                    .top = c->top,
                                    .dry_run = cli->common.dry_run};
    VPTQ_TRY(vptq_cli_open_output(cli, c->output, &file, &out, &err));
    VPTQ_TRY(vptq_ctx_backend(cli->ctx, NULL, &err));
    VPTQ_TRY(vptq_model_load(cli->ctx, c->model, &open, &model, &err));
    VPTQ_TRY(vptq_model_load(cli->ctx, c->base, NULL, &base, &err));
    VPTQ_TRY(vptq_measure_error(cli->ctx, model, base, &opt, &out, &err));
    if (file)
        VPTQ_TRY(vptq_writer_commit(file, &err));
out:
    vptq_writer_close(file);
    vptq_model_free(base);
    vptq_model_free(model);
    return vptq_cli_finish(cli, st, &err);
}

int vptq_cli_error(vptq_cli *cli, int argc, char **argv)
{
    error_command c = {.layers = {.first = 0, .last = UINT32_MAX}};
    const vptq_cli_option options[] = {
        {'m', "model", CLI_STRING, &c.model, "MODEL", "quantized model"},
        {0, "base", CLI_STRING, &c.base, "MODEL", "its original"},
        {0, "partial", CLI_FLAG, &c.partial, NULL, "accept an unfinished work directory"},
        {'H', "hessians", CLI_STRING, &c.hessians, "HDIR",
         "its Hessians, needed for errors of outputs"},
        {0, "layers", CLI_RANGE, &c.layers, "A-B", "only these layers"},
        {0, "sort", CLI_CHOICE, &c.sort, "auto|worst|layer",
         "order of rows; auto: by layer in json and csv, otherwise worst first"},
        {0, "top", CLI_U32, &c.top, "N", "only the first N rows; 0 = all"},
        {'o', "output", CLI_STRING, &c.output, "FILE",
         "write to FILE instead of stdout; its ending chooses the format"},
        CLI_END};
    cli->usage = "vptq-eval error -m MODEL --base MODEL [-H HDIR] [--layers A-B] [--top N]";
    cli->examples = "  vptq-eval error -m packed --base model.gguf -H hessians --top 10\n"
                    "  vptq-eval error -m packed --base model.gguf -H hessians --format html "
                    "-o error.html\n";
    cli->options = options;
    cli->formats = "text|json|csv|md|html";
    cli->omit = "seed";
    cli->required = "model|base";
    return vptq_cli_run(cli, argc, argv, run_error, &c);
}
