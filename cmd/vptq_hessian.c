/* vptq-hessian: collects second moments of the inputs of a model's linear layers; merges,
 * shows, imports and exports them. */
#include <string.h>

#include "cmd/cli/calibrate.h"
#include "lib/vptq.h"

typedef struct hessian_args {
    const char *model, *output, *tokenizer, *show, *import, *export;
    vptq_cli_calibrate calibrate;
    vptq_cli_range layers;
    bool merge, inverse;
} hessian_args;

static vptq_status collect(vptq_cli *cli, const hessian_args *a, vptq_err *err)
{
    vptq_model *model = NULL;
    vptq_model_options open = {.tokenizer = a->tokenizer};
    vptq_collect_options opt = {.first_layer = a->layers.first,
                                .last_layer = a->layers.last,
                                .force = cli->common.force,
                                .dry_run = cli->common.dry_run,
                                .tool_version = "vptq-hessian " VPTQ_VERSION};

    VPTQ_CHECK(vptq_cli_calibrate_take(cli, &a->calibrate, &opt.calibrate, &opt.factor, err));
    VPTQ_CHECK(vptq_ctx_backend(cli->ctx, NULL, err));
    open.need_tokenizer = opt.calibrate.corpus.text_count > 0;
    VPTQ_CHECK(vptq_model_load(cli->ctx, a->model, &open, &model, err));
    const vptq_status st =
        vptq_hessians_collect(cli->ctx, model, &opt, a->output, &cli->out, err);
    vptq_model_free(model);
    return st;
}

static vptq_status run(vptq_cli *cli, const hessian_args *a, vptq_err *err)
{
    const bool force = cli->common.force, plan = cli->common.dry_run;
    if (a->merge && plan)
        return vptq_hessians_plan_merge(cli->ctx, cli->args, cli->arg_count, a->output, force,
                                        &cli->out, err);
    if (a->export && plan)
        return vptq_hessians_plan_export(cli->ctx, a->export, a->inverse, a->output, &cli->out,
                                         err);
    if (a->merge)
        return vptq_hessians_merge(cli->ctx, cli->args, cli->arg_count, a->output, force,
                                   &cli->out, err);
    if (a->show)
        return vptq_hessians_show(cli->ctx, a->show, &cli->out, err);
    if (a->import)
        return vptq_hessians_import(cli->ctx, a->import, a->output, force, &cli->out, err);
    if (a->export)
        return vptq_hessians_export(cli->ctx, a->export, a->inverse, a->output, &cli->out, err);
    return collect(cli, a, err);
}

/* Returns the first given option that only collecting reads, or NULL. */
static const char *given_for_collecting(const vptq_cli *cli)
{
    for (const vptq_cli_option *o = cli->options; !o->name || strcmp(o->name, "merge"); o++)
        if (o->name && strcmp(o->name, "output") != 0 && vptq_cli_given(cli, o->name))
            return o->name;
    return NULL;
}

/* Checks what --merge, --import and --export write. */
static int check_written(const vptq_cli *cli, const hessian_args *a, const char *mode)
{
    if (a->import && cli->common.dry_run)
        return vptq_cli_usage_error(cli, "--%s has no --dry-run", mode);
    if (a->export && cli->common.force)
        return vptq_cli_usage_error(cli, "--export has no --force");
    if (!a->output)
        return vptq_cli_usage_error(cli, "--%s needs -o %s", mode,
                                    a->export ? "PTDIR" : "HDIR");
    if (a->merge && cli->arg_count < 2)
        return vptq_cli_usage_error(cli, "--merge needs at least two hessian directories");
    return CLI_OK;
}

static int check_usage(const vptq_cli *cli, const hessian_args *a)
{
    const char *mode = a->show     ? "show"
                       : a->merge  ? "merge"
                       : a->import ? "import"
                       : a->export ? "export"
                                   : NULL;
    const char *other = a->show && a->output ? "output" : given_for_collecting(cli);
    int rank, ranks;
    vptq_ctx_ranks(cli->ctx, &rank, &ranks);
    if (!!a->show + a->merge + !!a->import + !!a->export > 1)
        return vptq_cli_usage_error(
            cli, "--show, --merge, --import and --export exclude each other");
    if (a->inverse && !a->export)
        return vptq_cli_usage_error(cli, "--inverse goes with --export%s",
                                    a->import ? ": --import detects the kind of file" : "");
    if (mode && ranks > 1)
        return vptq_cli_usage_error(cli, "--%s runs in one process, not in %d", mode, ranks);
    if (mode && other)
        return vptq_cli_usage_error(cli, "--%s does not go with --%s", other, mode);
    if (cli->arg_count && !a->merge)
        return vptq_cli_usage_error(cli, "unexpected argument '%s'", cli->args[0]);
    if (mode)
        return a->show ? CLI_OK : check_written(cli, a, mode);
    if (!a->model)
        return vptq_cli_missing_option(cli, "model");
    if (!a->output && !cli->common.dry_run)
        return vptq_cli_missing_option(cli, "output");
    return CLI_OK;
}

static int dispatch(vptq_cli *cli, void *arg)
{
    vptq_err err = {0};
    const int code = check_usage(cli, arg);
    return code ? code : vptq_cli_finish(cli, run(cli, arg, &err), &err);
}

int main(int argc, char **argv)
{
    hessian_args a = {.calibrate = CLI_CALIBRATE_DEFAULTS, .layers = {0, UINT32_MAX}};
    const vptq_cli_option options[] = {
        CLI_HEADING("Collect"),
        {'m', "model", CLI_STRING, &a.model, "MODEL", "model whose inputs are measured"},
        {'o', "output", CLI_STRING, &a.output, "HDIR", "directory of Hessians to write"},
        {0, "layers", CLI_RANGE, &a.layers, "A-B", "only these layers (default: all)"},
        {0, "tokenizer", CLI_STRING, &a.tokenizer, "FILE", "tokenizer to use with the model"},
        CLI_CALIBRATE_OPTIONS(&a.calibrate),
        CLI_HEADING("Merge, inspect, exchange"),
        {0, "merge", CLI_FLAG, &a.merge, NULL, "merge the HDIRs given as arguments into -o"},
        {0, "show", CLI_STRING, &a.show, "HDIR",
         "print statistics and a verdict for each Hessian"},
        {0, "import", CLI_STRING, &a.import, "PATH",
         "convert to -o HDIR: a directory of PyTorch or .npy files, or an imatrix file"},
        {0, "export", CLI_STRING, &a.export, "HDIR",
         "write PyTorch files of these Hessians to -o PTDIR"},
        {0, "inverse", CLI_FLAG, &a.inverse, NULL,
         "export factors of the damped inverses instead of covariances"},
        CLI_END};
    vptq_cli cli = {
        .tool = "vptq-hessian",
        .summary = "Collects second moments of the inputs of a model's linear layers from "
                   "calibration text.",
        .usage = "vptq-hessian -m MODEL [-c TEXT..] -o HDIR [-n 128] [-l N]\n"
                 "vptq-hessian --merge HDIR HDIR.. -o HDIR\n"
                 "vptq-hessian --show HDIR\n"
                 "vptq-hessian --import PTDIR|NPYDIR|IMATRIX -o HDIR\n"
                 "vptq-hessian --export HDIR -o PTDIR [--inverse]",
        .examples = "To continue an interrupted collection, run the same command again.",
        .options = options,
        .formats = "text|json",
        .ranks = true,
        .operands = true};
    return vptq_cli_run(&cli, argc, argv, dispatch, &a);
}
