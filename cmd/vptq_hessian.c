/* vptq-hessian: collects second moments of the inputs of a model's linear layers; merges,
 * shows, imports and exports them. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cmd/cli/calibrate.h"
#include "lib/internal.h"
#include "lib/vptq.h"

typedef struct hessian_args {
    const char *model, *output, *tokenizer, *show, *import, *export;
    vptq_cli_calibrate calibrate;
    vptq_cli_range layers;
    bool merge, inverse;
} hessian_args;

/* ---- collect ---- */

/* A collection or its plan, as printed. */
typedef struct collected {
    const char *model, *output;
    vptq_collect_result r;
} collected;
static const vptq_column collected_columns[] = {
    {.name = "model", VPTQ_TEXT(collected, model)},
    {.name = "output", VPTQ_TEXT(collected, output)},
    {.name = "windows", VPTQ_INTEGER(collected, r.windows)},
    {.name = "windows_held_out", VPTQ_INTEGER(collected, r.held_out)},
    {.name = "window_length", VPTQ_INTEGER(collected, r.length)},
    {.name = "tokens", VPTQ_INTEGER(collected, r.tokens)},
    {.name = "layers_done", VPTQ_INTEGER(collected, r.layers_done)},
    {.name = "layers_reused", VPTQ_INTEGER(collected, r.layers_reused)},
    {.name = "bytes", VPTQ_INTEGER(collected, r.bytes)},
    {.name = "seconds", VPTQ_REAL(collected, r.seconds)}};

static void print_collected(const vptq_cli *cli, const hessian_args *a,
                            const vptq_collect_result *r)
{
    if (cli->common.format == CLI_JSON) {
        const collected row = {a->model, a->output, *r};
        vptq_print_object(&cli->out, VPTQ_COLUMNS(collected_columns), &row, NULL);
        return;
    }
    char bytes[32], seconds[32];
    vptq_cli_human_bytes(bytes, r->bytes);
    vptq_cli_human_seconds(seconds, r->seconds);
    printf("%s: %zu windows of %zu tokens, %u layers%s, %s", a->output ? a->output : "plan",
           r->windows, r->length, r->layers_done, cli->common.dry_run ? " to do" : "", bytes);
    if (r->held_out)
        printf(", %zu windows held out", r->held_out);
    if (r->layers_reused)
        printf(", %u layers kept", r->layers_reused);
    printf(", %s\n", seconds);
}

static int collect(vptq_cli *cli, const hessian_args *a)
{
    vptq_err err = {0};
    vptq_model *model = NULL;
    vptq_collect_result r = {0};
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
        st = vptq_hessians_collect(cli->ctx, model, &opt, a->output, &r, &err);
    vptq_model_free(model);
    if (!st)
        print_collected(cli, a, &r);
    return vptq_cli_finish(cli, st, &err);
}

/* ---- show ---- */

/* The statistics of one Hessian. */
typedef struct show_row {
    const char *input;
    uint32_t layer;
    vptq_hessian_stats s;
} show_row;

/* 0 tokens: unknown. */
#define TOKENS .zero_missing = true, .missing = "?"

static const vptq_column show_columns[] = {
    {.name = "layer", VPTQ_INTEGER(show_row, layer)},
    {.name = "input", VPTQ_TEXT(show_row, input)},
    {.name = "columns", VPTQ_INTEGER(show_row, s.n)},
    {.name = "tokens", VPTQ_INTEGER(show_row, s.tokens), TOKENS, .width = 9},
    {.name = "samples_per_dim",
     .title = "per dim",
     VPTQ_REAL(show_row, s.samples_per_dim),
     .decimals = 1,
     .missing = "?",
     .width = 8},
    {.name = "diagonal", VPTQ_BOOL(show_row, s.diagonal), .formats = VPTQ_IN_JSON},
    {.name = "trace", VPTQ_REAL(show_row, s.trace), .decimals = -4, .width = 10},
    {.name = "mean_diag", VPTQ_REAL(show_row, s.mean_diag), .formats = VPTQ_IN_JSON},
    {.name = "max_diag",
     .title = "max diag",
     VPTQ_REAL(show_row, s.max_diag),
     .decimals = -3,
     .width = 9},
    {.name = "mean_share",
     .title = "mean",
     VPTQ_REAL(show_row, s.mean_share),
     .scale = 100,
     .unit = "%",
     .missing = "?",
     .width = 6},
    {.name = "dead", VPTQ_INTEGER(show_row, s.dead), .width = 5},
    {.name = "constant", VPTQ_INTEGER(show_row, s.constant)},
    {.name = "nan", VPTQ_INTEGER(show_row, s.nan), .width = 4},
    {.name = "condition", VPTQ_REAL(show_row, s.condition), .decimals = -2},
    {.name = "verdict", VPTQ_TEXT(show_row, s.verdict)}};

typedef struct show_state {
    vptq_printer printer;
    uint64_t bad;
    double worst_condition;
    bool diagonal; /* at least one is only a diagonal */
} show_state;

static vptq_status print_stats(void *arg, uint32_t layer, const char *input,
                               const vptq_hessian_stats *s, vptq_err *err)
{
    show_state *show = arg;
    const show_row row = {input, layer, *s};
    (void)err;
    show->bad += strcmp(s->verdict, "good") != 0;
    show->diagonal = show->diagonal || s->diagonal;
    if (s->condition > show->worst_condition)
        show->worst_condition = s->condition;
    vptq_print_row(&show->printer, &row, NULL);
    return VPTQ_OK;
}

static int show(vptq_cli *cli, const char *dir)
{
    vptq_err err = {0};
    show_state state = {.printer = vptq_printer_make(&cli->out, VPTQ_COLUMNS(show_columns))};
    const bool text = cli->common.format == CLI_TEXT;
    state.printer.gap = 1;

    vptq_status st = vptq_hessians_show(cli->ctx, dir, print_stats, &state, &err);
    if (!st && text)
        printf("%s: %" PRIu64 " of %zu hessians are good, worst condition %.2g\n", dir,
               state.printer.rows - state.bad, state.printer.rows, state.worst_condition);
    if (!st && text && state.diagonal)
        printf("only diagonals are known: they weight errors but cannot compensate them\n");
    return vptq_cli_finish(cli, st, &err);
}

/* ---- merge, import and export ---- */

typedef struct merged {
    const char *output;
    size_t merged;
} merged;
static const vptq_column merged_columns[] = {{.name = "output", VPTQ_TEXT(merged, output)},
                                             {.name = "merged", VPTQ_INTEGER(merged, merged)}};

static int merge(vptq_cli *cli, const hessian_args *a)
{
    vptq_err err = {0};
    const merged row = {a->output, cli->arg_count};
    vptq_status st = vptq_hessians_merge(cli->ctx, cli->args, cli->arg_count, a->output,
                                         cli->common.force, &err);
    if (!st && cli->common.format == CLI_JSON)
        vptq_print_object(&cli->out, VPTQ_COLUMNS(merged_columns), &row, NULL);
    else if (!st)
        printf("%s: merged from %zu directories\n", a->output, cli->arg_count);
    return vptq_cli_finish(cli, st, &err);
}

/* Imported or exported Hessians, as printed. */
typedef struct exchanged {
    const char *output, *form;
    vptq_exchange x;
    bool took_ridge, added_ridge;
} exchanged;
static const vptq_column exchanged_columns[] = {
    {.name = "output", VPTQ_TEXT(exchanged, output)},
    {.name = "form", VPTQ_TEXT(exchanged, form)},
    {.name = "first_layer", VPTQ_INTEGER(exchanged, x.dir.first_layer)},
    {.name = "last_layer", VPTQ_INTEGER(exchanged, x.dir.last_layer)},
    {.name = "tokens", VPTQ_INTEGER(exchanged, x.dir.tokens), TOKENS},
    {.name = "diagonal", VPTQ_BOOL(exchanged, x.dir.diagonal)},
    {.name = "ridge_removed",
     VPTQ_REAL(exchanged, x.ridge),
     .when = offsetof(exchanged, took_ridge)},
    {.name = "ridge", VPTQ_REAL(exchanged, x.ridge), .when = offsetof(exchanged, added_ridge)}};

static void print_exchanged(const vptq_cli *cli, const hessian_args *a, const vptq_exchange *x)
{
    const vptq_hessian_dir *d = &x->dir;
    const bool inverse = x->form == VPTQ_FOREIGN_INVERSE;

    if (cli->common.format == CLI_JSON) {
        const exchanged row = {.output = a->output,
                               .form = vptq_foreign_form_name(x->form),
                               .x = *x,
                               .took_ridge = inverse && a->import,
                               .added_ridge = inverse && !a->import};
        vptq_print_object(&cli->out, VPTQ_COLUMNS(exchanged_columns), &row, NULL);
        return;
    }
    printf("%s: %s, hessians of layers %" PRIu32 "-%" PRIu32 ", ", a->output,
           vptq_foreign_form_name(x->form), d->first_layer, d->last_layer);
    if (d->tokens)
        printf("%" PRIu64 " tokens\n", d->tokens);
    else
        printf("unknown number of tokens\n");
    if (d->diagonal)
        printf("only diagonals are known: they weight errors but cannot compensate them\n");
    if (inverse && a->export)
        printf("inverted with %g of the mean diagonal added\n", x->ridge);
    else if (inverse && x->ridge > 0)
        printf("inverted back; the ridge of %g was subtracted, the mean diagonal is 1\n",
               x->ridge);
    else if (inverse)
        printf("inverted back; their damping is unknown, so they keep it\n");
}

/* Imports or exports Hessians. */
static int exchange(vptq_cli *cli, const hessian_args *a)
{
    vptq_err err = {0};
    vptq_exchange done;
    const char *option = a->import ? "--import" : "--export";

    if (cli->common.dry_run)
        return vptq_cli_usage_error(cli, "%s has no --dry-run", option);
    if (a->export && cli->common.force)
        return vptq_cli_usage_error(cli, "--export has no --force");
    if (!a->output)
        return vptq_cli_usage_error(cli, "%s needs -o %s", option,
                                    a->import ? "HDIR" : "PTDIR");
    vptq_status st = a->import ? vptq_hessians_import(cli->ctx, a->import, a->output,
                                                      cli->common.force, &done, &err)
                               : vptq_hessians_export(cli->ctx, a->export,
                                                      a->inverse ? VPTQ_FOREIGN_INVERSE
                                                                 : VPTQ_FOREIGN_COVARIANCE,
                                                      a->output, &done, &err);
    if (!st)
        print_exchanged(cli, a, &done);
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
    if (a->merge) {
        if (cli->common.dry_run)
            return vptq_cli_usage_error(cli, "--merge has no --dry-run");
        if (!a->output)
            return vptq_cli_usage_error(cli, "--merge needs -o HDIR");
        if (cli->arg_count < 2)
            return vptq_cli_usage_error(cli, "--merge needs at least two hessian directories");
        return merge(cli, a);
    }
    if (cli->arg_count)
        return vptq_cli_usage_error(cli, "unexpected argument '%s'", cli->args[0]);
    if (a->show)
        return show(cli, a->show);
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
