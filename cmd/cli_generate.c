#include "cmd/cli_eval.h"

#include <stdio.h>
#include <string.h>

typedef struct generate_command {
    const char *model, *tokenizer, *base, *prompt;
    uint64_t tokens;
    double temperature, top_p;
    bool special, ignore_eos;
} generate_command;

/* Text that comes: to stdout at once, behind the prompt, or kept for JSON. */
typedef struct generated {
    bool stream, began;
    const char *prompt;
    vptq_buf text;
    vptq_status status;
    vptq_err *err;
} generated;

static void print_prompt(generated *g)
{
    if (!g->began)
        fputs(g->prompt, stdout);
    g->began = true;
}

static void take_text(void *arg, const char *text, size_t len)
{
    generated *g = arg;
    if (g->stream) {
        print_prompt(g);
        fwrite(text, 1, len, stdout);
        fflush(stdout);
    } else if (!g->status) {
        g->status = vptq_buf_add(&g->text, text, len, g->err);
    }
}

static void print_generated(const generate_command *c, generated *g, size_t tokens, double rate)
{
    if (g->stream) {
        print_prompt(g);
        putchar('\n');
        return;
    }
    vptq_cli_json j;
    vptq_cli_json_begin(&j);
    vptq_cli_json_str(&j, "prompt", c->prompt);
    vptq_cli_json_str(&j, "text", g->text.len ? g->text.data : "");
    vptq_cli_json_u64(&j, "tokens", tokens);
    vptq_cli_json_f64(&j, "tokens_per_second", rate);
    vptq_cli_json_str(&j, "model", c->model);
    vptq_cli_json_end(&j);
}

static int run_generate(vptq_cli *cli, const generate_command *c)
{
    vptq_err err = {0};
    vptq_status st = VPTQ_OK;
    vptq_cli_eval s = {.has_dev = false};
    generated g = {.stream = cli->common.format != CLI_JSON, .prompt = c->prompt, .err = &err};
    vptq_generate_options opt = {.prompt = c->prompt,
                                 .tokens = c->tokens,
                                 .temperature = c->temperature,
                                 .top_p = c->top_p,
                                 .seed = cli->common.seed,
                                 .special = c->special,
                                 .ignore_eos = c->ignore_eos};
    vptq_ids ids;
    double rate = 0;
    vptq_ids_init(&ids, cli->ctx.mem);
    vptq_buf_init(&g.text, cli->ctx.mem);
    VPTQ_TRY(vptq_cli_eval_open(&s, cli, c->model, c->tokenizer, c->base, true, &err));
    VPTQ_TRY(vptq_eval_generate(&s.dev, &s.model, &opt, take_text, &g, &ids, &rate, &err));
    VPTQ_TRY(g.status);
    print_generated(c, &g, ids.count, rate);
    vptq_log(&cli->ctx, VPTQ_LOG_MORE, "%zu tokens with the prompt, %.1f new ones per second",
             ids.count, rate);
out:
    vptq_cli_eval_close(&s);
    vptq_buf_release(&g.text);
    vptq_ids_release(&ids);
    return vptq_cli_finish(cli, st, &err);
}

int vptq_cli_generate(int argc, char **argv)
{
    generate_command c = {.prompt = "", .tokens = 64, .top_p = 1};
    const vptq_cli_option options[] = {
        {'m', "model", CLI_STRING, &c.model, "MODEL", "model to run", true},
        {0, "tokenizer", CLI_STRING, &c.tokenizer, "FILE", "tokenizer of another place", false},
        {0, "base", CLI_STRING, &c.base, "MODEL",
         "the model that a work directory was made from, if it was moved", false},
        {'p', "prompt", CLI_STRING, &c.prompt, "TEXT", "text to continue", false},
        {'n', "max-tokens", CLI_U64, &c.tokens, "N", "new tokens at most", false},
        {0, "temperature", CLI_DOUBLE, &c.temperature, "X", "0 takes the likeliest token",
         false},
        {0, "top-p", CLI_DOUBLE, &c.top_p, "X", "draw from the likeliest tokens that sum to X",
         false},
        {0, "special", CLI_FLAG, &c.special, NULL,
         "special tokens of the prompt count as such, and are shown", false},
        {0, "ignore-eos", CLI_FLAG, &c.ignore_eos, NULL, "go on behind an end token", false},
        CLI_END};
    vptq_cli cli = {
        .tool = "vptq-eval",
        .command = "generate",
        .summary = "continue a prompt",
        .usage = "vptq-eval generate -m MODEL -p PROMPT [-n N] [--temperature X] [--top-p X]",
        .examples = "  vptq-eval generate -m packed -p 'Once upon a time' -n 100\n"
                    "  vptq-eval generate -m packed -p Hello --temperature 0.8 --seed 7\n",
        .options = options,
        .formats = "text|json",
        .omit = "force|dry-run"};
    int code;
    if (vptq_cli_parse(&cli, argc, argv, 2, &code))
        code = run_generate(&cli, &c);
    vptq_cli_release(&cli);
    return code;
}
