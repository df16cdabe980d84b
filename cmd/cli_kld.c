#include "cmd/cli_eval.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

typedef struct kld_command {
    const char *model, *base, *tokenizer;
    vptq_cli_strings texts, tokens;
    uint64_t context, windows;
    bool rows;
    double max_kld;
} kld_command;

static void print_kld_window(void *arg, uint64_t window, double kld, uint64_t tokens)
{
    const vptq_cli *cli = arg;
    vptq_log(&cli->ctx, VPTQ_LOG_MORE,
             "window %" PRIu64 ": divergence %.6f over %" PRIu64 " tokens", window, kld,
             tokens);
}

static void print_kld(const vptq_cli *cli, const kld_command *c, const vptq_kld_result *r)
{
    if (cli->common.format == CLI_JSON) {
        vptq_cli_json j;
        vptq_cli_json_begin(&j);
        vptq_cli_json_f64(&j, "mean_kld", r->mean_kld);
        vptq_cli_json_f64(&j, "kld_stderr", r->kld_stderr);
        vptq_cli_json_f64(&j, "max_kld", r->max_kld);
        vptq_cli_json_f64(&j, "p99_kld", r->p99_kld);
        vptq_cli_json_f64(&j, "p50_kld", r->p50_kld);
        vptq_cli_json_f64(&j, "same_top1", r->same_top1);
        vptq_cli_json_f64(&j, "ppl", r->ppl);
        vptq_cli_json_f64(&j, "ppl_base", r->ppl_base);
        vptq_cli_json_f64(&j, "ppl_ratio", r->ppl_ratio);
        vptq_cli_json_f64(&j, "ppl_ratio_stderr", r->ppl_ratio_stderr);
        vptq_cli_json_u64(&j, "tokens", r->tokens);
        vptq_cli_json_u64(&j, "windows", r->windows);
        vptq_cli_json_u64(&j, "context", r->context);
        vptq_cli_json_f64(&j, "seconds", r->seconds);
        vptq_cli_json_str(&j, "model", c->model);
        vptq_cli_json_str(&j, "base", c->base);
        vptq_cli_json_end(&j);
        return;
    }
    printf("divergence %.6f ± %.6f nats per token\n", r->mean_kld, r->kld_stderr);
    printf("median %.6f, 99 %% below %.6f, largest %.6f\n", r->p50_kld, r->p99_kld, r->max_kld);
    printf("same likeliest token %.2f %%\n", 100 * r->same_top1);
    printf("ppl %.4f, of the base %.4f, ratio %.5f ± %.5f\n", r->ppl, r->ppl_base, r->ppl_ratio,
           r->ppl_ratio_stderr);
    printf("%" PRIu64 " tokens in %" PRIu64 " windows of %zu\n", r->tokens, r->windows,
           r->context);
    printf("%.1f s\n", r->seconds);
}

static int run_kld(vptq_cli *cli, const kld_command *c)
{
    vptq_err err = {0};
    vptq_status st = VPTQ_OK;
    vptq_cli_eval s = {.has_dev = false};
    vptq_checkpoint_options base = {.tokenizer = c->tokenizer};
    vptq_kld_result r;
    vptq_kld_options opt = {
        .corpus = {.texts = c->texts.items,
                   .text_count = c->texts.count,
                   .tokens = c->tokens.items,
                   .token_count = c->tokens.count,
                   .rows = c->rows},
        .context = c->context,
        .windows = c->windows,
        .dry_run = cli->common.dry_run,
    };
    bool passed = true;
    VPTQ_TRY(
        vptq_cli_eval_open(&s, cli, c->model, c->tokenizer, c->base, c->texts.count > 0, &err));
    VPTQ_TRY(vptq_model_open(&cli->ctx, c->base, &base, c->texts.count > 0, &s.base, &err));
    s.has_base = true;
    VPTQ_TRY(vptq_eval_kld(&s.dev, &s.model, &s.base, &opt, print_kld_window, cli, &r, &err));
    if (cli->common.dry_run)
        printf("would compare %" PRIu64 " tokens in %" PRIu64 " windows\n", r.tokens,
               r.windows);
    else
        print_kld(cli, c, &r);
    passed = r.mean_kld <= c->max_kld;
out:
    vptq_cli_eval_close(&s);
    int code = vptq_cli_finish(cli, st, &err);
    if (code != CLI_OK || passed)
        return code;
    fprintf(stderr, "vptq-eval: divergence %.6f is above --max-kld %g\n", r.mean_kld,
            c->max_kld);
    return CLI_CHECK_FAILED;
}

int vptq_cli_kld(int argc, char **argv)
{
    kld_command c = {.context = 2048, .max_kld = (double)INFINITY};
    const vptq_cli_option options[] = {
        {'m', "model", CLI_STRING, &c.model, "MODEL", "model to measure", true},
        {0, "base", CLI_STRING, &c.base, "MODEL", "its original", true},
        {0, "tokenizer", CLI_STRING, &c.tokenizer, "FILE", "tokenizer of another place", false},
        {0, "text", CLI_STRINGS, &c.texts, "FILE", "UTF-8 text; several are joined", false},
        {0, "tokens", CLI_STRINGS, &c.tokens, "FILE", "token ids, int32 little endian", false},
        {0, "rows", CLI_FLAG, &c.rows, NULL, "lines as dataset rows joined by two newlines",
         false},
        {0, "context", CLI_U64, &c.context, "N", "tokens per window", false},
        {0, "windows", CLI_U64, &c.windows, "N", "at most N windows, 0 = all", false},
        {0, "max-kld", CLI_DOUBLE, &c.max_kld, "X", "exit 3 when the divergence is above X",
         false},
        CLI_END};
    vptq_cli cli = {
        .tool = "vptq-eval",
        .command = "kld",
        .summary = "divergence of a model from its original on a text",
        .usage = "vptq-eval kld -m MODEL --base MODEL --text FILE [--rows] [--context N] "
                 "[--windows N]",
        .examples =
            "  vptq-eval kld -m packed --base model.gguf --text wiki.test.raw --rows "
            "--windows 16\n"
            "  vptq-eval kld -m packed --base model.gguf --tokens ids.i32 --max-kld 0.2\n",
        .options = options,
        .formats = "text|json",
        .omit = "force|seed"};
    int code;
    if (vptq_cli_parse(&cli, argc, argv, 2, &code)) {
        if (c.texts.count + c.tokens.count == 0)
            code = vptq_cli_usage_error(&cli, "give --text FILE or --tokens FILE");
        else
            code = run_kld(&cli, &c);
    }
    vptq_cli_release(&cli);
    return code;
}
