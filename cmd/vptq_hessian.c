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

static int collect(vptq_cli *cli, const hessian_args *a)
{
    vptq_err err = {0};
    vptq_model *model = NULL;
    vptq_model_options open = {.tokenizer = a->tokenizer};
    vptq_collect_options opt = {.first_layer = a->layers.first,
                                .last_layer = a->layers.last,
                                .force = cli->common.force,
                                .dry_run = cli->common.dry_run,
                                .tool_version = "vptq-hessian " VPTQ_VERSION};

    vptq_status st = vptq_cli_calibrate_take(&a->calibrate, cli->common.seed, &opt.calibrate,
                                             &opt.factor, &err);
    if (st)
        return vptq_cli_finish(cli, st, &err);
    st = vptq_ctx_backend(cli->ctx, NULL, &err);
    open.need_tokenizer = opt.calibrate.corpus.text_count > 0;
    if (!st)
        st = vptq_model_load(cli->ctx, a->model, &open, &model, &err);
    if (!st)
        st = vptq_hessians_collect(cli->ctx, model, &opt, a->output, &cli->out, &err);
    vptq_model_free(model);
    return vptq_cli_finish(cli, st, &err);
}

/* Imports or exports Hessians. */
static int exchange(vptq_cli *cli, const hessian_args *a)
{
    vptq_err err = {0};
    const char *option = a->import ? "--import" : "--export";

    if (cli->common.dry_run)
        return vptq_cli_usage_error(cli, "%s has no --dry-run", option);
    if (a->export && cli->common.force)
        return vptq_cli_usage_error(cli, "--export has no --force");
    if (!a->output)
        return vptq_cli_usage_error(cli, "%s needs -o %s", option,
                                    a->import ? "HDIR" : "PTDIR");
    const vptq_status st = a->import ? vptq_hessians_import(cli->ctx, a->import, a->output,
                                                            cli->common.force, &cli->out, &err)
                                     : vptq_hessians_export(cli->ctx, a->export, a->inverse,
                                                            a->output, &cli->out, &err);
    return vptq_cli_finish(cli, st, &err);
}

static int merge(vptq_cli *cli, const hessian_args *a)
{
    vptq_err err = {0};
    if (cli->common.dry_run)
        return vptq_cli_usage_error(cli, "--merge has no --dry-run");
    if (!a->output)
        return vptq_cli_usage_error(cli, "--merge needs -o HDIR");
    if (cli->arg_count < 2)
        return vptq_cli_usage_error(cli, "--merge needs at least two hessian directories");
    const vptq_status st = vptq_hessians_merge(cli->ctx, cli->args, cli->arg_count, a->output,
                                               cli->common.force, &cli->out, &err);
    return vptq_cli_finish(cli, st, &err);
}

/* Returns the first given option that only collecting reads, among the first `count` of the
 * table, or NULL. */
static const char *given_for_collecting(const vptq_cli *cli, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (vptq_cli_given(cli, i) && strcmp(cli->options[i].name, "output") != 0)
            return cli->options[i].name;
    return NULL;
}

static int dispatch(vptq_cli *cli, const hessian_args *a, size_t collecting)
{
    const char *mode = a->show     ? "show"
                       : a->merge  ? "merge"
                       : a->import ? "import"
                       : a->export ? "export"
                                   : NULL;
    const char *other = a->show && a->output ? "output" : given_for_collecting(cli, collecting);
    if (!!a->show + a->merge + !!a->import + !!a->export > 1)
        return vptq_cli_usage_error(
            cli, "--show, --merge, --import and --export exclude each other");
    if (a->inverse && !a->export)
        return vptq_cli_usage_error(cli, "--inverse goes with --export%s",
                                    a->import ? ": --import detects the kind of file" : "");
    if (mode && other)
        return vptq_cli_usage_error(cli, "--%s does not go with --%s", other, mode);
    if (a->merge)
        return merge(cli, a);
    if (cli->arg_count)
        return vptq_cli_usage_error(cli, "unexpected argument '%s'", cli->args[0]);
    if (a->show) {
        vptq_err err = {0};
        const vptq_status st = vptq_hessians_show(cli->ctx, a->show, &cli->out, &err);
        return vptq_cli_finish(cli, st, &err);
    }
    if (a->import || a->export)
        return exchange(cli, a);
    if (!a->model)
        return vptq_cli_missing_option(cli, "model");
    if (!a->output && !cli->common.dry_run)
        return vptq_cli_missing_option(cli, "output");
    if (!vptq_cli_calibrate_given(&a->calibrate))
        return vptq_cli_usage_error(cli,
                                    "missing option: -c/--calibration TEXT or --tokens FILE");
    return collect(cli, a);
}

int main(int argc, char **argv)
{
    hessian_args a = {.layers = {0, UINT32_MAX}};
    const vptq_cli_option collect_options[] = {
        {0, NULL, CLI_FLAG, NULL, NULL, "Collect", false},
        {'m', "model", CLI_STRING, &a.model, "MODEL", "model whose inputs are measured", false},
        {'o', "output", CLI_STRING, &a.output, "HDIR", "directory of Hessians to write", false},
        {0, "layers", CLI_RANGE, &a.layers, "A-B", "only these layers (default: all)", false},
        {0, "tokenizer", CLI_STRING, &a.tokenizer, "FILE", "tokenizer to use with the model",
         false}};
    const vptq_cli_option other_options[] = {
        {0, NULL, CLI_FLAG, NULL, NULL, "Merge, inspect, exchange", false},
        {0, "merge", CLI_FLAG, &a.merge, NULL, "merge the HDIRs given as arguments into -o",
         false},
        {0, "show", CLI_STRING, &a.show, "HDIR",
         "print statistics and a verdict for each Hessian", false},
        {0, "import", CLI_STRING, &a.import, "PATH",
         "convert to -o HDIR: a directory of PyTorch or .npy files, or an imatrix file", false},
        {0, "export", CLI_STRING, &a.export, "HDIR",
         "write PyTorch files of these Hessians to -o PTDIR", false},
        {0, "inverse", CLI_FLAG, &a.inverse, NULL,
         "export factors of the damped inverses instead of covariances", false},
        CLI_END};
    enum {
        COLLECT = sizeof collect_options / sizeof collect_options[0],
        OTHER = sizeof other_options / sizeof other_options[0]
    };
    vptq_cli_option options[COLLECT + CLI_CALIBRATE_OPTIONS + OTHER];
    vptq_cli cli = {
        .tool = "vptq-hessian",
        .summary = "Collects second moments of the inputs of a model's linear layers from "
                   "calibration text.",
        .usage = "vptq-hessian -m MODEL -c TEXT [-c TEXT..] -o HDIR [-n 128] [-l 2048]\n"
                 "vptq-hessian --merge HDIR HDIR.. -o HDIR\n"
                 "vptq-hessian --show HDIR\n"
                 "vptq-hessian --import PTDIR|NPYDIR|IMATRIX -o HDIR\n"
                 "vptq-hessian --export HDIR -o PTDIR [--inverse]",
        .examples = "To continue an interrupted collection, run the same command again.",
        .options = options,
        .formats = "text|json",
        .operands = true};
    int code;

    memcpy(options, collect_options, sizeof collect_options);
    vptq_cli_calibrate_options(&a.calibrate, options + COLLECT);
    memcpy(options + COLLECT + CLI_CALIBRATE_OPTIONS, other_options, sizeof other_options);
    if (vptq_cli_parse(&cli, argc, argv, 1, &code))
        code = dispatch(&cli, &a, COLLECT + CLI_CALIBRATE_OPTIONS);
    vptq_cli_release(&cli);
    return code;
}
