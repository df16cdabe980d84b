/* vptq-eval kld: compares a model with its original, which is run or read from saved logits,
 * and saves the logits of an original. */
#include "cmd/eval/eval.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct kld_command {
    const char *model, *base, *base_file, *save_base, *tokenizer;
    vptq_cli_strings texts, tokens;
    uint64_t context, windows, top;
    int protocol, precision;
    bool rows;
    double max_kld;
} kld_command;

/* Running divergence. */
typedef struct window_log {
    const vptq_cli *cli;
    double sum;
    uint64_t tokens;
} window_log;

static void print_kld_window(void *arg, uint64_t window, double kld, uint64_t tokens)
{
    window_log *w = arg;
    w->sum += kld * (double)tokens;
    w->tokens += tokens;
    vptq_log(w->cli->ctx, VPTQ_LOG_MORE,
             "window %" PRIu64 ": divergence %.6f over %" PRIu64 " tokens, so far %.6f", window,
             kld, tokens, w->sum / (double)w->tokens);
}

/* ---- results ---- */

/* Measured, planned or saved figures, and their options. */
typedef struct kld_row {
    const char *model, *base, *base_file, *protocol, *fingerprint;
    vptq_kld_result r;
} kld_row;

/* A key of JSON only. */
#define KEY(key, field)                                                                        \
    {                                                                                          \
        .name = key, field, .formats = VPTQ_IN_JSON                                            \
    }
/* A figure: key, title, member, decimals, and scale and unit for people. */
#define FIGURE(key, text, member, digits, factor, suffix, ...)                                 \
    {                                                                                          \
        .name = key, .title = text, VPTQ_REAL(kld_row, r.member), .decimals = digits,          \
        .scale = factor, .unit = suffix, .width = 10, __VA_ARGS__                              \
    }
#define LEVEL(key, text, member)  FIGURE(key, text " divergence", member, 6, 1, NULL, .needs = 0)
#define CHANGE(key, text, member) FIGURE(key, text " change", member, 3, 100, " %", .needs = 0)
/* A figure with the key and the member of its standard error. */
#define ESTIMATE(key, text, member, error_key, error, digits, factor, suffix)                  \
    FIGURE(key, text, member, digits, factor, suffix,                                          \
           .deviation = offsetof(kld_row, r.error)),                                           \
        KEY(error_key, VPTQ_REAL(kld_row, r.error))
#define NATS(key, text, member, error_key, error)                                              \
    ESTIMATE(key, text, member, error_key, error, 6, 1, NULL)
#define PERCENT(key, text, member, error_key, error)                                           \
    ESTIMATE(key, text, member, error_key, error, 3, 100, " %")

/* The keys of a comparison in the order of JSON; the text output orders the sections
 * differently. */
static const vptq_column divergence[] = {
    NATS("mean_kld", "mean     divergence", mean_kld, "kld_stderr", kld_stderr),
    LEVEL("max_kld", "maximum ", kld[0]),
    LEVEL("p999_kld", "99.9 %  ", kld[1]),
    LEVEL("p99_kld", "99.0 %  ", kld[2]),
    LEVEL("p95_kld", "95.0 %  ", kld[3]),
    LEVEL("p90_kld", "90.0 %  ", kld[4]),
    LEVEL("p50_kld", "median  ", kld[5]),
    LEVEL("p10_kld", "10.0 %  ", kld[6]),
    LEVEL("p05_kld", "5.0 %   ", kld[7]),
    LEVEL("p01_kld", "1.0 %   ", kld[8]),
    LEVEL("min_kld", "minimum ", kld[9])};
static const vptq_column same_token[] = {PERCENT("same_top1", "same likeliest token", same_top1,
                                                 "same_top1_stderr", same_top1_stderr)};
static const vptq_column perplexity[] = {
    NATS("ppl", "ppl", ppl, "ppl_stderr", ppl_stderr),
    NATS("ppl_base", "ppl of the base", ppl_base, "ppl_base_stderr", ppl_base_stderr),
    FIGURE("ln_ppl_correlation", "correlation of ln ppl", ln_ppl_correlation, 2, 100, " %",
           .missing = "nan %"),
    NATS("ln_ppl_ratio", "ln ratio of ppl", ln_ppl_ratio, "ln_ppl_ratio_stderr",
         ln_ppl_ratio_stderr),
    NATS("ppl_ratio", "ratio of ppl", ppl_ratio, "ppl_ratio_stderr", ppl_ratio_stderr),
    NATS("ppl_difference", "difference of ppl", ppl_difference, "ppl_difference_stderr",
         ppl_difference_stderr)};
static const vptq_column change[] = {
    PERCENT("mean_delta_p", "mean     change", mean_delta_p, "delta_p_stderr", delta_p_stderr),
    CHANGE("max_delta_p", "maximum ", delta_p[0]),
    CHANGE("p999_delta_p", "99.9 %  ", delta_p[1]),
    CHANGE("p99_delta_p", "99.0 %  ", delta_p[2]),
    CHANGE("p95_delta_p", "95.0 %  ", delta_p[3]),
    CHANGE("p90_delta_p", "90.0 %  ", delta_p[4]),
    CHANGE("p75_delta_p", "75.0 %  ", delta_p[5]),
    CHANGE("p50_delta_p", "median  ", delta_p[6]),
    CHANGE("p25_delta_p", "25.0 %  ", delta_p[7]),
    CHANGE("p10_delta_p", "10.0 %  ", delta_p[8]),
    CHANGE("p05_delta_p", "5.0 %   ", delta_p[9]),
    CHANGE("p01_delta_p", "1.0 %   ", delta_p[10]),
    CHANGE("p001_delta_p", "0.1 %   ", delta_p[11]),
    CHANGE("min_delta_p", "minimum ", delta_p[12]),
    PERCENT("rms_delta_p", "rms      change", rms_delta_p, "rms_delta_p_stderr",
            rms_delta_p_stderr)};
static const vptq_column run[] = {KEY("tokens", VPTQ_INTEGER(kld_row, r.tokens)),
                                  KEY("windows", VPTQ_INTEGER(kld_row, r.windows)),
                                  KEY("context", VPTQ_INTEGER(kld_row, r.context)),
                                  KEY("protocol", VPTQ_TEXT(kld_row, protocol)),
                                  KEY("seconds", VPTQ_REAL(kld_row, r.seconds)),
                                  KEY("base_tail", VPTQ_REAL(kld_row, r.base_tail)),
                                  KEY("model", VPTQ_TEXT(kld_row, model)),
                                  KEY("base", VPTQ_TEXT(kld_row, base)),
                                  KEY("base_file", VPTQ_TEXT(kld_row, base_file)),
                                  KEY("base_fingerprint", VPTQ_TEXT(kld_row, fingerprint))};
static const vptq_column saved[] = {KEY("tokens", VPTQ_INTEGER(kld_row, r.tokens)),
                                    KEY("windows", VPTQ_INTEGER(kld_row, r.windows)),
                                    KEY("context", VPTQ_INTEGER(kld_row, r.context)),
                                    KEY("protocol", VPTQ_TEXT(kld_row, protocol)),
                                    KEY("seconds", VPTQ_REAL(kld_row, r.seconds)),
                                    KEY("base", VPTQ_TEXT(kld_row, base)),
                                    KEY("base_file", VPTQ_TEXT(kld_row, base_file))};
static const vptq_column planned[] = {KEY("tokens", VPTQ_INTEGER(kld_row, r.tokens)),
                                      KEY("windows", VPTQ_INTEGER(kld_row, r.windows)),
                                      KEY("context", VPTQ_INTEGER(kld_row, r.context)),
                                      KEY("model", VPTQ_TEXT(kld_row, model))};

static void append(vptq_column *columns, size_t *count, const vptq_column *more, size_t n)
{
    memcpy(columns + *count, more, n * sizeof *more);
    *count += n;
}

static void print_json(const vptq_cli *cli, const kld_row *row)
{
    vptq_column columns[VPTQ_MAX_COLUMNS];
    size_t n = 0;
    append(columns, &n, VPTQ_COLUMNS(divergence));
    append(columns, &n, VPTQ_COLUMNS(same_token));
    append(columns, &n, VPTQ_COLUMNS(perplexity));
    append(columns, &n, VPTQ_COLUMNS(change));
    append(columns, &n, VPTQ_COLUMNS(run));
    vptq_print_object(&cli->out, columns, n, row, NULL);
}

/* Prints in the layout of llama.cpp's perplexity tool. */
static void print_text(const vptq_cli *cli, const kld_row *row)
{
    enum { TITLES = 30 };
    const vptq_kld_result *r = &row->r;
    printf("perplexity\n");
    vptq_print_list(&cli->out, VPTQ_COLUMNS(perplexity), TITLES, row, NULL);
    printf("\ndivergence in nats per token\n");
    vptq_print_list(&cli->out, VPTQ_COLUMNS(divergence), TITLES, row, NULL);
    printf("\nchange of the correct token's probability\n");
    vptq_print_list(&cli->out, VPTQ_COLUMNS(change), TITLES, row, NULL);
    vptq_print_list(&cli->out, VPTQ_COLUMNS(same_token), TITLES, row, NULL);
    printf("\n%" PRIu64 " tokens in %" PRIu64 " windows of %zu, %.1f s\n", r->tokens,
           r->windows, r->context, r->seconds);
    if (r->base_tail > 0)
        printf("the divergence is a lower bound: %.3g %% of the probability of the saved "
               "base is not resolved\n",
               100 * r->base_tail);
}

static void print_result(const vptq_cli *cli, const kld_command *c, const vptq_kld_result *r)
{
    const bool json = cli->common.format == CLI_JSON;
    const kld_row row = {.model = c->model,
                         .base = c->base ? c->base : r->base_name,
                         .base_file = c->model ? c->base_file : c->save_base,
                         .protocol = r->protocol == VPTQ_PPL_LLAMA_CPP ? "llama.cpp" : "gptq",
                         .fingerprint = r->base_fingerprint[0] ? r->base_fingerprint : NULL,
                         .r = *r};
    if (cli->common.dry_run && json)
        vptq_print_object(&cli->out, VPTQ_COLUMNS(planned), &row, NULL);
    else if (cli->common.dry_run)
        printf("would %s %" PRIu64 " tokens in %" PRIu64 " windows\n",
               c->model ? "compare" : "save", r->tokens, r->windows);
    else if (!c->model && json)
        vptq_print_object(&cli->out, VPTQ_COLUMNS(saved), &row, NULL);
    else if (!c->model)
        printf("saved %" PRIu64 " tokens in %" PRIu64 " windows of %zu in %s, %.1f s\n",
               r->tokens, r->windows, r->context, c->save_base, r->seconds);
    else if (json)
        print_json(cli, &row);
    else
        print_text(cli, &row);
}

/* ---- the run ---- */

/* Opens the device and the models to run. */
static vptq_status open_models(vptq_cli *cli, const kld_command *c, vptq_model **m,
                               vptq_model **base, vptq_err *err)
{
    const bool text = c->texts.count > 0;
    const vptq_model_options base_options = {.tokenizer = c->tokenizer, .need_tokenizer = text};
    vptq_model_options options = base_options;
    options.base = c->base;
    VPTQ_CHECK(vptq_ctx_backend(cli->ctx, NULL, err));
    if (c->model)
        VPTQ_CHECK(vptq_model_load(cli->ctx, c->model, &options, m, err));
    if (c->base)
        VPTQ_CHECK(vptq_model_load(cli->ctx, c->base, &base_options, base, err));
    return VPTQ_OK;
}

/* Tells whether the option was given. */
static bool given(const vptq_cli *cli, const char *name)
{
    for (size_t i = 0; cli->options[i].name || cli->options[i].help; i++)
        if (cli->options[i].name && strcmp(cli->options[i].name, name) == 0)
            return vptq_cli_given(cli, i);
    return false;
}

static int check_kld_usage(const vptq_cli *cli, const kld_command *c)
{
    if (!c->base == !c->base_file)
        return vptq_cli_usage_error(
            cli, "missing option: --base MODEL or --base-file FILE (one of them)");
    if (c->save_base && !c->base)
        return vptq_cli_usage_error(cli, "--save-base needs --base MODEL");
    if (!c->model && !c->save_base)
        return vptq_cli_usage_error(cli,
                                    "missing option: -m/--model MODEL or --save-base FILE");
    if (!c->save_base && (given(cli, "base-precision") || given(cli, "base-top")))
        return vptq_cli_usage_error(cli, "--base-precision and --base-top need --save-base");
    if (c->precision && given(cli, "base-top"))
        return vptq_cli_usage_error(
            cli, "--base-top goes with --base-precision compact, not with full");
    if (!c->model && given(cli, "max-kld"))
        return vptq_cli_usage_error(cli, "--max-kld needs --model MODEL");
    if (!c->base_file && c->texts.count + c->tokens.count == 0)
        return vptq_cli_usage_error(cli, "missing option: --text FILE or --tokens FILE");
    return CLI_OK;
}

static int run_kld(vptq_cli *cli, const kld_command *c)
{
    vptq_err err = {0};
    vptq_status st = VPTQ_OK;
    vptq_model *model = NULL, *base = NULL;
    vptq_kld_result r = {.mean_kld = 0};
    const bool recorded = c->base_file != NULL;
    vptq_kld_options opt = {
        .corpus = {.texts = c->texts.items,
                   .text_count = c->texts.count,
                   .tokens = c->tokens.items,
                   .token_count = c->tokens.count,
                   .rows = c->rows},
        .context = recorded && !given(cli, "context") ? 0 : c->context,
        .windows = c->windows,
        .protocol = c->protocol ? VPTQ_PPL_LLAMA_CPP : VPTQ_PPL_GPTQ,
        .base_file = c->base_file,
        .any_protocol = recorded && !given(cli, "protocol"),
        .save_base = c->save_base,
        .force = cli->common.force,
        .precision = c->precision ? VPTQ_KLD_BASE_FULL : VPTQ_KLD_BASE_COMPACT,
        .top = c->top,
        .dry_run = cli->common.dry_run,
    };
    window_log windows = {.cli = cli};
    VPTQ_TRY(open_models(cli, c, &model, &base, &err));
    VPTQ_TRY(
        vptq_divergence(cli->ctx, model, base, &opt, print_kld_window, &windows, &r, &err));
    print_result(cli, c, &r);
out:
    vptq_model_free(base);
    vptq_model_free(model);
    int code = vptq_cli_finish(cli, st, &err);
    if (code != CLI_OK || r.mean_kld <= c->max_kld)
        return code;
    fprintf(stderr, "vptq-eval: divergence %.6f is above --max-kld %g\n", r.mean_kld,
            c->max_kld);
    return CLI_CHECK_FAILED;
}

int vptq_cli_kld(int argc, char **argv)
{
    kld_command c = {.context = 2048, .top = VPTQ_KLD_TOP, .max_kld = (double)INFINITY};
    const vptq_cli_option options[] = {
        {'m', "model", CLI_STRING, &c.model, "MODEL", "model to measure", false},
        {0, "base", CLI_STRING, &c.base, "MODEL", "its original", false},
        {0, "base-file", CLI_STRING, &c.base_file, "FILE",
         "saved logits of its original, from --save-base", false},
        {0, "tokenizer", CLI_STRING, &c.tokenizer, "FILE", "tokenizer to use with the model",
         false},
        {0, "text", CLI_STRINGS, &c.texts, "FILE", "UTF-8 text; several are joined", false},
        {0, "tokens", CLI_STRINGS, &c.tokens, "FILE", "token ids, int32 little endian", false},
        {0, "rows", CLI_FLAG, &c.rows, NULL, "lines as dataset rows joined by two newlines",
         false},
        {0, "context", CLI_U64, &c.context, "N", "tokens per window", false},
        {0, "windows", CLI_U64, &c.windows, "N", "at most N windows, 0 = all", false},
        {0, "protocol", CLI_CHOICE, &c.protocol, "gptq|llama.cpp",
         "compare whole windows, or their second halves", false},
        {0, "max-kld", CLI_DOUBLE, &c.max_kld, "X", "exit 3 if the divergence is above X",
         false},
        {0, NULL, CLI_FLAG, NULL, NULL, "Saving the original", false},
        {0, "save-base", CLI_STRING, &c.save_base, "FILE",
         "save its logits to FILE; -m is then optional", false},
        {0, "base-precision", CLI_CHOICE, &c.precision, "compact|full",
         "save the likeliest ids of every token, or all", false},
        {0, "base-top", CLI_U64, &c.top, "N", "number of likeliest ids with compact", false},
        CLI_END};
    vptq_cli cli = {
        .tool = "vptq-eval",
        .command = "kld",
        .summary = "divergence of a model from its original on a text",
        .usage =
            "vptq-eval kld -m MODEL --base MODEL --text FILE [--rows] [--context N] "
            "[--windows N]\n"
            "vptq-eval kld --base MODEL --save-base FILE --text FILE [--base-precision full]\n"
            "vptq-eval kld -m MODEL --base-file FILE",
        .examples =
            "  vptq-eval kld -m packed --base model.gguf --text wiki.test.raw --rows "
            "--windows 16\n"
            "  vptq-eval kld -m packed --base model.gguf --tokens ids.i32 --max-kld 0.2\n"
            "  vptq-eval kld --base model.gguf --save-base wiki.base --text wiki.test.raw "
            "--rows\n"
            "  vptq-eval kld -m packed --base-file wiki.base\n",
        .options = options,
        .formats = "text|json",
        .omit = "seed"};
    int code;
    if (vptq_cli_parse(&cli, argc, argv, 2, &code)) {
        code = check_kld_usage(&cli, &c);
        if (code == CLI_OK)
            code = run_kld(&cli, &c);
    }
    vptq_cli_release(&cli);
    return code;
}
