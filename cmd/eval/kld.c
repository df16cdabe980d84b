/* vptq-eval kld: a model beside its original, which is run, or was recorded; or the original is
 * recorded. */
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

/* While windows come in. */
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
    vptq_log(&w->cli->ctx, VPTQ_LOG_MORE,
             "window %" PRIu64 ": divergence %.6f over %" PRIu64 " tokens, so far %.6f", window,
             kld, tokens, w->sum / (double)w->tokens);
}

/* ---- results ---- */

/* "p99_kld" and the like. */
static void json_levels(vptq_cli_json *j, const char *of, const vptq_kld_level *levels,
                        const double *values, size_t count)
{
    char key[32];
    for (size_t i = 0; i < count; i++) {
        snprintf(key, sizeof key, "%s_%s", levels[i].name, of);
        vptq_cli_json_f64(j, key, values[i]);
    }
}

static const char *protocol_name(const vptq_kld_result *r)
{
    return r->protocol == VPTQ_PPL_LLAMA_CPP ? "llama.cpp" : "gptq";
}

static void print_json(const kld_command *c, const vptq_kld_result *r)
{
    vptq_cli_json j;
    vptq_cli_json_begin(&j);
    vptq_cli_json_f64(&j, "mean_kld", r->mean_kld);
    vptq_cli_json_f64(&j, "kld_stderr", r->kld_stderr);
    json_levels(&j, "kld", vptq_kld_levels, r->kld, VPTQ_KLD_LEVELS);
    vptq_cli_json_f64(&j, "same_top1", r->same_top1);
    vptq_cli_json_f64(&j, "same_top1_stderr", r->same_top1_stderr);
    vptq_cli_json_f64(&j, "ppl", r->ppl);
    vptq_cli_json_f64(&j, "ppl_stderr", r->ppl_stderr);
    vptq_cli_json_f64(&j, "ppl_base", r->ppl_base);
    vptq_cli_json_f64(&j, "ppl_base_stderr", r->ppl_base_stderr);
    vptq_cli_json_f64(&j, "ln_ppl_correlation", r->ln_ppl_correlation);
    vptq_cli_json_f64(&j, "ln_ppl_ratio", r->ln_ppl_ratio);
    vptq_cli_json_f64(&j, "ln_ppl_ratio_stderr", r->ln_ppl_ratio_stderr);
    vptq_cli_json_f64(&j, "ppl_ratio", r->ppl_ratio);
    vptq_cli_json_f64(&j, "ppl_ratio_stderr", r->ppl_ratio_stderr);
    vptq_cli_json_f64(&j, "ppl_difference", r->ppl_difference);
    vptq_cli_json_f64(&j, "ppl_difference_stderr", r->ppl_difference_stderr);
    vptq_cli_json_f64(&j, "mean_delta_p", r->mean_delta_p);
    vptq_cli_json_f64(&j, "delta_p_stderr", r->delta_p_stderr);
    json_levels(&j, "delta_p", vptq_delta_levels, r->delta_p, VPTQ_DELTA_LEVELS);
    vptq_cli_json_f64(&j, "rms_delta_p", r->rms_delta_p);
    vptq_cli_json_f64(&j, "rms_delta_p_stderr", r->rms_delta_p_stderr);
    vptq_cli_json_u64(&j, "tokens", r->tokens);
    vptq_cli_json_u64(&j, "windows", r->windows);
    vptq_cli_json_u64(&j, "context", r->context);
    vptq_cli_json_str(&j, "protocol", protocol_name(r));
    vptq_cli_json_f64(&j, "seconds", r->seconds);
    vptq_cli_json_f64(&j, "base_tail", r->base_tail);
    vptq_cli_json_str(&j, "model", c->model);
    vptq_cli_json_str(&j, "base", c->base ? c->base : r->base_name);
    vptq_cli_json_str(&j, "base_file", c->base_file);
    vptq_cli_json_str(&j, "base_fingerprint",
                      r->base_fingerprint[0] ? r->base_fingerprint : NULL);
    vptq_cli_json_end(&j);
}

/* "99.9 %", "median", "maximum". */
static void level_title(char title[16], double quantile)
{
    if (quantile == 0 || quantile == 1)
        snprintf(title, 16, "%s", quantile > 0 ? "maximum" : "minimum");
    else if (quantile == 0.5)
        snprintf(title, 16, "median");
    else
        snprintf(title, 16, "%.1f %%", 100 * quantile);
}

static void print_levels(const char *of, const vptq_kld_level *levels, const double *values,
                         size_t count, double unit, int decimals, const char *name)
{
    char title[16];
    for (size_t i = 0; i < count; i++) {
        level_title(title, levels[i].quantile);
        printf("%-8s %-21s %10.*f%s\n", title, of, decimals, unit * values[i], name);
    }
}

static void print_estimate(const char *title, double value, double error, int decimals,
                           const char *unit)
{
    printf("%-30s %10.*f ± %.*f%s\n", title, decimals, value, decimals, error, unit);
}

/* As llama.cpp's perplexity tool lays it out. */
static void print_text(const vptq_kld_result *r)
{
    printf("perplexity\n");
    print_estimate("ppl", r->ppl, r->ppl_stderr, 6, "");
    print_estimate("ppl of the base", r->ppl_base, r->ppl_base_stderr, 6, "");
    printf("%-30s %10.2f %%\n", "correlation of ln ppl", 100 * r->ln_ppl_correlation);
    print_estimate("ln ratio of ppl", r->ln_ppl_ratio, r->ln_ppl_ratio_stderr, 6, "");
    print_estimate("ratio of ppl", r->ppl_ratio, r->ppl_ratio_stderr, 6, "");
    print_estimate("difference of ppl", r->ppl_difference, r->ppl_difference_stderr, 6, "");
    printf("\ndivergence in nats per token\n");
    print_estimate("mean     divergence", r->mean_kld, r->kld_stderr, 6, "");
    print_levels("divergence", vptq_kld_levels, r->kld, VPTQ_KLD_LEVELS, 1, 6, "");
    printf("\nchange of the right token's probability\n");
    print_estimate("mean     change", 100 * r->mean_delta_p, 100 * r->delta_p_stderr, 3, " %");
    print_levels("change", vptq_delta_levels, r->delta_p, VPTQ_DELTA_LEVELS, 100, 3, " %");
    print_estimate("rms      change", 100 * r->rms_delta_p, 100 * r->rms_delta_p_stderr, 3,
                   " %");
    print_estimate("same likeliest token", 100 * r->same_top1, 100 * r->same_top1_stderr, 3,
                   " %");
    printf("\n%" PRIu64 " tokens in %" PRIu64 " windows of %zu, %.1f s\n", r->tokens,
           r->windows, r->context, r->seconds);
    if (r->base_tail > 0)
        printf("the divergence is a lower bound: %.3g %% of the probability of the recorded "
               "base is not resolved\n",
               100 * r->base_tail);
}

static void print_recorded(const vptq_cli *cli, const kld_command *c, const vptq_kld_result *r)
{
    if (cli->common.format != CLI_JSON) {
        printf("recorded %" PRIu64 " tokens in %" PRIu64 " windows of %zu in %s, %.1f s\n",
               r->tokens, r->windows, r->context, c->save_base, r->seconds);
        return;
    }
    vptq_cli_json j;
    vptq_cli_json_begin(&j);
    vptq_cli_json_u64(&j, "tokens", r->tokens);
    vptq_cli_json_u64(&j, "windows", r->windows);
    vptq_cli_json_u64(&j, "context", r->context);
    vptq_cli_json_str(&j, "protocol", protocol_name(r));
    vptq_cli_json_f64(&j, "seconds", r->seconds);
    vptq_cli_json_str(&j, "base", c->base);
    vptq_cli_json_str(&j, "base_file", c->save_base);
    vptq_cli_json_end(&j);
}

/* What is known before a measurement. */
static void print_plan(const vptq_cli *cli, const kld_command *c, const vptq_kld_result *r)
{
    if (cli->common.format == CLI_JSON) {
        vptq_cli_json j;
        vptq_cli_json_begin(&j);
        vptq_cli_json_u64(&j, "tokens", r->tokens);
        vptq_cli_json_u64(&j, "windows", r->windows);
        vptq_cli_json_u64(&j, "context", r->context);
        vptq_cli_json_str(&j, "model", c->model);
        vptq_cli_json_end(&j);
        return;
    }
    printf("would %s %" PRIu64 " tokens in %" PRIu64 " windows\n",
           c->model ? "compare" : "record", r->tokens, r->windows);
}

static void print_result(const vptq_cli *cli, const kld_command *c, const vptq_kld_result *r)
{
    if (cli->common.dry_run)
        print_plan(cli, c, r);
    else if (!c->model)
        print_recorded(cli, c, r);
    else if (cli->common.format == CLI_JSON)
        print_json(c, r);
    else
        print_text(r);
}

/* ---- the run ---- */

/* The device and those of the models that are run. */
static vptq_status open_models(vptq_cli *cli, const kld_command *c, vptq_cli_eval *s,
                               vptq_err *err)
{
    const vptq_checkpoint_options base = {.tokenizer = c->tokenizer};
    const vptq_checkpoint_options model = {.tokenizer = c->tokenizer, .base = c->base};
    const bool text = c->texts.count > 0;
    VPTQ_CHECK(vptq_device_open(&cli->ctx, cli->common.backend, &s->dev, err));
    s->has_dev = true;
    if (c->model) {
        VPTQ_CHECK(vptq_model_open(&cli->ctx, c->model, &model, text, &s->model, err));
        s->has_model = true;
    }
    if (c->base) {
        VPTQ_CHECK(vptq_model_open(&cli->ctx, c->base, &base, text, &s->base, err));
        s->has_base = true;
    }
    return VPTQ_OK;
}

/* Whether the option was on the command line. */
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
        return vptq_cli_usage_error(cli, "give --base MODEL or --base-file FILE");
    if (c->save_base && !c->base)
        return vptq_cli_usage_error(cli, "--save-base needs --base MODEL");
    if (!c->model && !c->save_base)
        return vptq_cli_usage_error(cli, "give --model MODEL, or --save-base FILE");
    if (!c->save_base && (given(cli, "base-precision") || given(cli, "base-top")))
        return vptq_cli_usage_error(cli, "--base-precision and --base-top need --save-base");
    if (c->precision && given(cli, "base-top"))
        return vptq_cli_usage_error(
            cli, "--base-top goes with --base-precision compact, not with full");
    if (!c->model && given(cli, "max-kld"))
        return vptq_cli_usage_error(cli, "--max-kld needs --model MODEL");
    if (!c->base_file && c->texts.count + c->tokens.count == 0)
        return vptq_cli_usage_error(cli, "give --text FILE or --tokens FILE");
    return CLI_OK;
}

static int run_kld(vptq_cli *cli, const kld_command *c)
{
    vptq_err err = {0};
    vptq_status st = VPTQ_OK;
    vptq_cli_eval s = {.has_dev = false};
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
    VPTQ_TRY(open_models(cli, c, &s, &err));
    VPTQ_TRY(vptq_eval_kld(&s.dev, s.has_model ? &s.model : NULL, s.has_base ? &s.base : NULL,
                           &opt, print_kld_window, &windows, &r, &err));
    print_result(cli, c, &r);
out:
    vptq_cli_eval_close(&s);
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
        {0, "base-file", CLI_STRING, &c.base_file, "FILE", "its original as it was recorded",
         false},
        {0, "tokenizer", CLI_STRING, &c.tokenizer, "FILE", "tokenizer of another place", false},
        {0, "text", CLI_STRINGS, &c.texts, "FILE", "UTF-8 text; several are joined", false},
        {0, "tokens", CLI_STRINGS, &c.tokens, "FILE", "token ids, int32 little endian", false},
        {0, "rows", CLI_FLAG, &c.rows, NULL, "lines as dataset rows joined by two newlines",
         false},
        {0, "context", CLI_U64, &c.context, "N", "tokens per window", false},
        {0, "windows", CLI_U64, &c.windows, "N", "at most N windows, 0 = all", false},
        {0, "protocol", CLI_CHOICE, &c.protocol, "gptq|llama.cpp",
         "compare whole windows, or their second halves", false},
        {0, "max-kld", CLI_DOUBLE, &c.max_kld, "X", "exit 3 when the divergence is above X",
         false},
        {0, NULL, CLI_FLAG, NULL, NULL, "Recording the original", false},
        {0, "save-base", CLI_STRING, &c.save_base, "FILE", "record it in FILE; then -m may go",
         false},
        {0, "base-precision", CLI_CHOICE, &c.precision, "compact|full",
         "the likeliest ids of every token, or all", false},
        {0, "base-top", CLI_U64, &c.top, "N", "likeliest ids of a compact record", false},
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
