/* vptq-eval kld: compares a model with its original, which is run or read from saved logits,
 * and saves the logits of an original. */
#include "cmd/eval/eval.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct kld_command {
    const char *model, *base, *base_file, *save_base, *tokenizer;
    vptq_cli_strings texts, tokens;
    uint64_t context, windows, top;
    int protocol, precision;
    bool rows, lossy, partial;
    double max_kld;
} kld_command;

/* Opens the device and the models to run. */
static vptq_status open_models(vptq_cli *cli, const kld_command *c, vptq_model **m,
                               vptq_model **base, vptq_err *err)
{
    const bool text = c->texts.count > 0;
    const vptq_model_options base_options = {.tokenizer = c->tokenizer, .need_tokenizer = text};
    vptq_model_options options = base_options;
    options.base = c->base;
    options.partial = options.work_only = c->partial;
    VPTQ_CHECK(vptq_ctx_backend(cli->ctx, NULL, err));
    if (c->model)
        VPTQ_CHECK(vptq_model_load(cli->ctx, c->model, &options, m, err));
    if (c->base)
        VPTQ_CHECK(vptq_model_load(cli->ctx, c->base, &base_options, base, err));
    return VPTQ_OK;
}

static int check_kld_usage(const vptq_cli *cli, const kld_command *c)
{
    if (vptq_cli_check_context(cli, c->context))
        return CLI_USAGE;
    if (!c->base == !c->base_file)
        return vptq_cli_usage_error(
            cli, "missing option: --base MODEL or --base-file FILE (one of them)");
    if (c->save_base && !c->base)
        return vptq_cli_usage_error(cli, "--save-base needs --base MODEL");
    if (!c->model && !c->save_base)
        return vptq_cli_usage_error(cli,
                                    "missing option: -m/--model MODEL or --save-base FILE");
    if (!c->save_base &&
        (vptq_cli_given(cli, "base-precision") || vptq_cli_given(cli, "base-top")))
        return vptq_cli_usage_error(cli, "--base-precision and --base-top need --save-base");
    if (c->precision && vptq_cli_given(cli, "base-top"))
        return vptq_cli_usage_error(
            cli, "--base-top goes with --base-precision compact, not with full");
    if (!c->model && vptq_cli_given(cli, "max-kld"))
        return vptq_cli_usage_error(cli, "--max-kld needs --model MODEL");
    if (!c->base_file && c->texts.count + c->tokens.count == 0)
        return vptq_cli_usage_error(cli, "missing option: --text FILE or --tokens FILE");
    if (!c->texts.count && (c->rows || c->lossy))
        return vptq_cli_usage_error(cli, "%s needs --text FILE",
                                    c->rows ? "--rows" : "--lossy");
    return CLI_OK;
}

static int run_kld(vptq_cli *cli, void *arg)
{
    const kld_command *c = arg;
    vptq_err err = {0};
    vptq_status st = VPTQ_OK;
    vptq_model *model = NULL, *base = NULL;
    vptq_kld_result r = {.mean_kld = 0};
    const bool recorded = c->base_file != NULL;
    vptq_kld_options opt = {
        .corpus = vptq_cli_corpus(&c->texts, &c->tokens, c->rows, c->lossy),
        .context = vptq_cli_or_zero(cli, "context", c->context),
        .windows = c->windows,
        .protocol = c->protocol ? VPTQ_PPL_LLAMA_CPP : VPTQ_PPL_GPTQ,
        .base_file = c->base_file,
        .any_protocol = recorded && !vptq_cli_given(cli, "protocol"),
        .save_base = c->save_base,
        .force = cli->common.force,
        .precision = c->precision ? VPTQ_KLD_BASE_FULL : VPTQ_KLD_BASE_COMPACT,
        .top = c->top,
        .dry_run = cli->common.dry_run,
    };
    if (check_kld_usage(cli, c))
        return CLI_USAGE;
    VPTQ_TRY(open_models(cli, c, &model, &base, &err));
    VPTQ_TRY(vptq_divergence(cli->ctx, model, base, &opt, &cli->out, &r, &err));
out:
    vptq_model_free(base);
    vptq_model_free(model);
    int code = vptq_cli_finish(cli, st, &err);
    if (code != CLI_OK || r.mean_kld <= c->max_kld)
        return code;
    vptq_cli_say(cli, "divergence %.6f is above --max-kld %g", r.mean_kld, c->max_kld);
    return CLI_CHECK_FAILED;
}

int vptq_cli_kld(vptq_cli *cli, int argc, char **argv)
{
    kld_command c = {.context = CLI_UNSET, .top = VPTQ_KLD_TOP, .max_kld = (double)INFINITY};
    const vptq_cli_option options[] = {
        {'m', "model", CLI_STRING, &c.model, "MODEL", "model to measure"},
        {0, "base", CLI_STRING, &c.base, "MODEL", "its original"},
        {0, "partial", CLI_FLAG, &c.partial, NULL, "accept an unfinished work directory"},
        {0, "base-file", CLI_STRING, &c.base_file, "FILE",
         "saved logits of its original, from --save-base"},
        {0, "tokenizer", CLI_STRING, &c.tokenizer, "FILE", "tokenizer to use with the model"},
        {0, "text", CLI_INPUTS, &c.texts, "FILE",
         "UTF-8 text, plain, gzip or zstd; '-' = standard input; several are joined"},
        {0, "tokens", CLI_INPUTS, &c.tokens, "FILE", "token ids, int32 little endian"},
        {0, "rows", CLI_FLAG, &c.rows, NULL, "lines as dataset rows joined by two newlines"},
        CLI_LOSSY_OPTION(&c.lossy),
        {0, "context", CLI_U64, &c.context, "N", "tokens per window " CLI_WINDOW_DEFAULT},
        {0, "windows", CLI_U64, &c.windows, "N", "at most N windows, 0 = all"},
        {0, "protocol", CLI_CHOICE, &c.protocol, "gptq|llama.cpp",
         "compare whole windows, or their second halves"},
        {0, "max-kld", CLI_DOUBLE, &c.max_kld, "X", "exit 3 if the divergence is above X"},
        CLI_HEADING("Saving the original"),
        {0, "save-base", CLI_STRING, &c.save_base, "FILE",
         "save its logits to FILE; -m is then optional"},
        {0, "base-precision", CLI_CHOICE, &c.precision, "compact|full",
         "save the likeliest ids of every token, or all"},
        {0, "base-top", CLI_U64, &c.top, "N", "number of likeliest ids with compact"},
        CLI_END};
    cli->usage =
        "vptq-eval kld -m MODEL --base MODEL --text FILE [--rows] [--context N] "
        "[--windows N]\n"
        "vptq-eval kld --base MODEL --save-base FILE --text FILE [--base-precision full]\n"
        "vptq-eval kld -m MODEL --base-file FILE";
    cli->examples =
        "  vptq-eval kld -m packed --base model.gguf --text wiki.test.raw --rows "
        "--windows 16\n"
        "  vptq-eval kld -m packed --base model.gguf --tokens ids.i32 --max-kld 0.2\n"
        "  vptq-eval kld --base model.gguf --save-base wiki.base --text wiki.test.raw "
        "--rows\n"
        "  vptq-eval kld -m packed --base-file wiki.base\n";
    cli->options = options;
    cli->ranks = true;
    cli->formats = "text|json";
    cli->omit = "seed";
    return vptq_cli_run(cli, argc, argv, run_kld, &c);
}
