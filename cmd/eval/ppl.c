/* vptq-eval ppl: perplexity of a model on texts, measured one by one or joined. */
#include "cmd/eval/eval.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct ppl_command {
    const char *model, *tokenizer, *base, *documents, *dump;
    vptq_cli_strings texts, tokens;
    uint64_t document_limit, context, windows, stride;
    int protocol;
    bool rows, lossy, join, tokens_only, partial;
    double max_ppl;
} ppl_command;

static size_t measurement_count(const ppl_command *c)
{
    return c->join ? 1 : c->texts.count + c->tokens.count;
}

/* Returns the file name of measurement i; joined texts have that of the first. */
static const char *measurement_name(const ppl_command *c, size_t i)
{
    return i < c->texts.count ? c->texts.items[i] : c->tokens.items[i - c->texts.count];
}

/* Returns CLI_CHECK_FAILED if a perplexity is above --max-ppl. */
static int check_limit(const vptq_cli *cli, const ppl_command *c,
                       const vptq_ppl_result *results)
{
    int code = CLI_OK;
    size_t count = measurement_count(c);
    for (size_t i = 0; i < count; i++) {
        if (results[i].ppl <= c->max_ppl)
            continue;
        vptq_cli_say(cli, "%s%sperplexity %.4f is above --max-ppl %g",
                     count > 1 ? measurement_name(c, i) : "", count > 1 ? ": " : "",
                     results[i].ppl, c->max_ppl);
        code = CLI_CHECK_FAILED;
    }
    return code;
}

static int check_ppl_usage(const vptq_cli *cli, const ppl_command *c)
{
    if (vptq_cli_check_context(cli, c->context))
        return CLI_USAGE;
    if (c->texts.count + c->tokens.count == 0)
        return vptq_cli_usage_error(cli, "missing option: --text FILE or --tokens FILE");
    if (!c->texts.count && (c->rows || c->lossy))
        return vptq_cli_usage_error(cli, "%s needs --text FILE",
                                    c->rows ? "--rows" : "--lossy");
    if (c->documents && c->tokens.count)
        return vptq_cli_usage_error(cli, "--documents and --tokens exclude each other");
    if (c->documents && c->join)
        return vptq_cli_usage_error(cli, "--documents and --join exclude each other");
    if (c->documents && c->rows)
        return vptq_cli_usage_error(cli, "--documents and --rows exclude each other");
    if (c->document_limit && !c->documents)
        return vptq_cli_usage_error(cli, "--document-limit needs --documents");
    if (c->dump && c->tokens_only)
        return vptq_cli_usage_error(cli, "--dump and --tokens-only exclude each other");
    if (c->tokens_only && c->max_ppl < (double)INFINITY)
        return vptq_cli_usage_error(cli, "--max-ppl and --tokens-only exclude each other");
    if (c->tokens_only && cli->common.format != CLI_TEXT)
        return vptq_cli_usage_error(cli,
                                    "--tokens-only prints ids and takes no other --format");
    return CLI_OK;
}

static int run_ppl(vptq_cli *cli, void *arg)
{
    const ppl_command *c = arg;
    vptq_err err = {0};
    vptq_status st = VPTQ_OK;
    vptq_model *model = NULL;
    const vptq_model_options open = {.tokenizer = c->tokenizer,
                                     .base = c->base,
                                     .partial = c->partial,
                                     .need_tokenizer = c->texts.count > 0,
                                     .work_only = true};
    const vptq_ppl_options opt = {
        .corpus = vptq_cli_corpus(&c->texts, &c->tokens, c->rows, c->lossy),
        .join = c->join,
        .documents = c->documents,
        .document_limit = c->document_limit,
        .context = vptq_cli_or_zero(cli, "context", c->context),
        .windows = c->windows,
        .stride = c->stride,
        .protocol = c->protocol ? VPTQ_PPL_LLAMA_CPP : VPTQ_PPL_GPTQ,
        .dump = c->dump,
        .force = cli->common.force,
        .dry_run = cli->common.dry_run,
    };
    if (check_ppl_usage(cli, c))
        return CLI_USAGE;
    vptq_ppl_result *results = calloc(measurement_count(c), sizeof *results);
    if (!results)
        VPTQ_TRY(vptq_fail(&err, VPTQ_E_NOMEM, "out of memory"));
    VPTQ_TRY(vptq_ctx_backend(cli->ctx, NULL, &err));
    VPTQ_TRY(vptq_model_load(cli->ctx, c->model, &open, &model, &err));
    if (c->tokens_only)
        VPTQ_TRY(vptq_tokenize(cli->ctx, model, &opt, &cli->out, &err));
    else
        VPTQ_TRY(vptq_perplexity(cli->ctx, model, &opt, &cli->out, results, &err));
out:
    vptq_model_free(model);
    int code = vptq_cli_finish(cli, st, &err);
    if (code == CLI_OK)
        code = check_limit(cli, c, results);
    free(results);
    return code;
}

int vptq_cli_ppl(vptq_cli *cli, int argc, char **argv)
{
    ppl_command c = {.context = CLI_UNSET, .max_ppl = (double)INFINITY};
    const vptq_cli_option options[] = {
        {'m', "model", CLI_STRING, &c.model, "MODEL", "model to measure"},
        {0, "tokenizer", CLI_STRING, &c.tokenizer, "FILE", "tokenizer to use with the model"},
        {0, "base", CLI_STRING, &c.base, "MODEL",
         "the original model of a work directory, if it was moved"},
        {0, "partial", CLI_FLAG, &c.partial, NULL, "accept an unfinished work directory"},
        CLI_HEADING("Text"),
        {0, "text", CLI_INPUTS, &c.texts, "FILE",
         "UTF-8 text, plain, gzip or zstd; '-' = standard input; several are measured one by "
         "one"},
        {0, "tokens", CLI_INPUTS, &c.tokens, "FILE", "token ids, int32 little endian"},
        {0, "join", CLI_FLAG, &c.join, NULL, "join all texts in order and measure them as one"},
        {0, "rows", CLI_FLAG, &c.rows, NULL, "lines as dataset rows joined by two newlines"},
        CLI_LOSSY_OPTION(&c.lossy),
        {0, "documents", CLI_STRING, &c.documents, "SEP",
         "score each document between separators separately"},
        {0, "document-limit", CLI_U64, &c.document_limit, "N", "only the first N documents"},
        {0, "tokens-only", CLI_FLAG, &c.tokens_only, NULL,
         "only print the token ids, one per line"},
        CLI_HEADING("Protocol"),
        {0, "context", CLI_U64, &c.context, "N", "tokens per window " CLI_WINDOW_DEFAULT},
        {0, "windows", CLI_U64, &c.windows, "N", "at most N windows, 0 = all"},
        {0, "stride", CLI_U64, &c.stride, "N", "tokens between window starts, 0 = context"},
        {0, "protocol", CLI_CHOICE, &c.protocol, "gptq|llama.cpp",
         "score whole windows, or their second halves"},
        {0, "max-ppl", CLI_DOUBLE, &c.max_ppl, "X", "exit 3 if a perplexity is above X"},
        {0, "dump", CLI_STRING, &c.dump, "FILE",
         "write the loss of every scored token, float64 little endian"},
        CLI_END};
    cli->usage = "vptq-eval ppl -m MODEL --text FILE.. [--join] [--rows] [--context N] "
                 "[--windows N]\n"
                 "vptq-eval ppl -m MODEL --text FILE --documents SEP";
    cli->examples = "  vptq-eval ppl -m model.gguf --text wiki.test.raw --rows --windows 16\n"
                    "  vptq-eval ppl -m packed --tokens ids.i32 --max-ppl 25 --format json\n"
                    "  vptq-eval ppl -m packed --text wiki.txt --text c4.txt --format csv\n";
    cli->options = options;
    cli->ranks = true;
    cli->formats = "text|json|csv|md";
    cli->omit = "seed";
    cli->required = "model";
    return vptq_cli_run(cli, argc, argv, run_ppl, &c);
}
