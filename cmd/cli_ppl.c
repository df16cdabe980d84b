#include "cmd/cli_eval.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

typedef struct ppl_command {
    const char *model, *tokenizer, *base, *documents, *dump;
    vptq_cli_strings texts, tokens;
    uint64_t document_limit, context, windows, stride;
    int protocol;
    bool rows, tokens_only;
    double max_ppl;
} ppl_command;

static void print_window(void *arg, uint64_t window, double nll, uint64_t tokens)
{
    const vptq_cli *cli = arg;
    vptq_log(&cli->ctx, VPTQ_LOG_MORE,
             "window %" PRIu64 ": nll %.6f, ppl %.4f over %" PRIu64 " tokens", window, nll,
             exp(nll), tokens);
}

static void print_ids(const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        printf("%" PRId32 "\n", ids[i]);
}

/* One id per line; an empty line between documents. */
static vptq_status print_token_ids(const vptq_cli *cli, const ppl_command *c,
                                   const vptq_corpus_options *corpus, const vptq_model *m,
                                   vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_corpus text = {.ids = {.data = NULL}};
    vptq_ids ids;
    vptq_arena arena;
    vptq_ids_init(&ids, cli->ctx.mem);
    vptq_arena_init(&arena, cli->ctx.mem);
    if (c->documents) {
        size_t *offsets, count;
        VPTQ_TRY(vptq_corpus_documents(&cli->ctx, corpus->texts[0], c->documents, m->tokenizer,
                                       m->desc->vocab, &arena, &ids, &offsets, &count, err));
        if (c->document_limit && count > c->document_limit)
            count = c->document_limit;
        for (size_t i = 0; i < count; i++) {
            if (i > 0)
                putchar('\n');
            print_ids(ids.data + offsets[i], offsets[i + 1] - offsets[i]);
        }
    } else {
        VPTQ_TRY(vptq_corpus_load(&cli->ctx, corpus, m->tokenizer, m->desc->vocab, &text, err));
        print_ids(text.ids.data, text.ids.count);
    }
out:
    vptq_corpus_release(&text);
    vptq_ids_release(&ids);
    vptq_arena_release(&arena);
    return st;
}

static void print_ppl(const vptq_cli *cli, const ppl_command *c, const vptq_ppl_result *r)
{
    if (cli->common.format == CLI_JSON) {
        vptq_cli_json j;
        vptq_cli_json_begin(&j);
        vptq_cli_json_f64(&j, "ppl", r->ppl);
        vptq_cli_json_f64(&j, "ppl_stderr", r->ppl_stderr);
        vptq_cli_json_f64(&j, "nll", r->nll);
        vptq_cli_json_u64(&j, "tokens", r->tokens);
        vptq_cli_json_u64(&j, "windows", r->windows);
        vptq_cli_json_u64(&j, "context", r->context);
        vptq_cli_json_f64(&j, "seconds", r->seconds);
        vptq_cli_json_f64(&j, "tokens_per_second", r->tokens_per_second);
        vptq_cli_json_f64(&j, "bits_per_weight", r->bits_per_weight);
        vptq_cli_json_str(&j, "model", c->model);
        vptq_cli_json_end(&j);
        return;
    }
    printf("ppl %.4f ± %.4f\n", r->ppl, r->ppl_stderr);
    printf("nll %.6f over %" PRIu64 " tokens in %" PRIu64 " %s of %s%zu\n", r->nll, r->tokens,
           r->windows, c->documents ? "documents" : "windows", c->documents ? "at most " : "",
           r->context);
    if (r->skipped)
        printf("%" PRIu64 " longer documents were skipped\n", r->skipped);
    printf("%.3f bits per weight\n", r->bits_per_weight);
    printf("%.1f s, %.0f tokens per second\n", r->seconds, r->tokens_per_second);
}

/* The file is opened first, so that one that cannot be written costs no evaluation. */
static vptq_status score(vptq_cli *cli, const ppl_command *c, vptq_cli_eval *s,
                         const vptq_ppl_options *opt, vptq_ppl_result *r, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_file_writer file = {.fd = -1};
    vptq_arena arena;
    double *nll = NULL;
    bool dump = c->dump && !opt->dry_run;
    vptq_arena_init(&arena, cli->ctx.mem);
    if (dump)
        VPTQ_TRY(vptq_file_writer_open(c->dump, cli->common.force, &file, err));
    VPTQ_TRY(vptq_eval_ppl(&s->dev, &s->model, opt, print_window, cli, &arena,
                           dump ? &nll : NULL, r, err));
    if (dump) {
        VPTQ_TRY(vptq_file_write(&file, nll, (size_t)r->tokens * sizeof *nll, err));
        VPTQ_TRY(vptq_file_writer_commit(&file, err));
    }
out:
    vptq_file_writer_abort(&file);
    vptq_arena_release(&arena);
    return st;
}

static int check_ppl_usage(const vptq_cli *cli, const ppl_command *c)
{
    if (c->texts.count + c->tokens.count == 0)
        return vptq_cli_usage_error(cli, "give --text FILE or --tokens FILE");
    if (c->documents && (c->texts.count != 1 || c->tokens.count))
        return vptq_cli_usage_error(cli, "--documents takes exactly one --text");
    if (c->documents && c->rows)
        return vptq_cli_usage_error(cli, "--documents and --rows exclude each other");
    if (c->document_limit && !c->documents)
        return vptq_cli_usage_error(cli, "--document-limit needs --documents");
    if (c->dump && c->tokens_only)
        return vptq_cli_usage_error(cli, "--dump and --tokens-only exclude each other");
    return CLI_OK;
}

static int run_ppl(vptq_cli *cli, const ppl_command *c)
{
    vptq_err err = {0};
    vptq_status st = VPTQ_OK;
    vptq_cli_eval s = {.has_dev = false};
    vptq_ppl_result r;
    vptq_ppl_options opt = {
        .corpus = {.texts = c->texts.items,
                   .text_count = c->texts.count,
                   .tokens = c->tokens.items,
                   .token_count = c->tokens.count,
                   .rows = c->rows},
        .documents = c->documents,
        .document_limit = c->document_limit,
        .context = c->context,
        .windows = c->windows,
        .stride = c->stride,
        .protocol = c->protocol ? VPTQ_PPL_LLAMA_CPP : VPTQ_PPL_GPTQ,
        .dry_run = cli->common.dry_run,
    };
    bool passed = true;
    VPTQ_TRY(
        vptq_cli_eval_open(&s, cli, c->model, c->tokenizer, c->base, c->texts.count > 0, &err));
    if (c->tokens_only) {
        VPTQ_TRY(print_token_ids(cli, c, &opt.corpus, &s.model, &err));
    } else {
        VPTQ_TRY(score(cli, c, &s, &opt, &r, &err));
        if (cli->common.dry_run)
            printf("would score %" PRIu64 " tokens in %" PRIu64 " %s\n", r.tokens, r.windows,
                   c->documents ? "documents" : "windows");
        else
            print_ppl(cli, c, &r);
        passed = r.ppl <= c->max_ppl;
    }
out:
    vptq_cli_eval_close(&s);
    int code = vptq_cli_finish(cli, st, &err);
    if (code != CLI_OK || passed)
        return code;
    fprintf(stderr, "vptq-eval: perplexity %.4f is above --max-ppl %g\n", r.ppl, c->max_ppl);
    return CLI_CHECK_FAILED;
}

int vptq_cli_ppl(int argc, char **argv)
{
    ppl_command c = {.context = 2048, .max_ppl = (double)INFINITY};
    const vptq_cli_option options[] = {
        {'m', "model", CLI_STRING, &c.model, "MODEL", "model to measure", true},
        {0, "tokenizer", CLI_STRING, &c.tokenizer, "FILE", "tokenizer of another place", false},
        {0, "base", CLI_STRING, &c.base, "MODEL",
         "the model that a work directory was made from, if it was moved", false},
        {0, NULL, CLI_FLAG, NULL, NULL, "Text", false},
        {0, "text", CLI_STRINGS, &c.texts, "FILE", "UTF-8 text; several are joined", false},
        {0, "tokens", CLI_STRINGS, &c.tokens, "FILE", "token ids, int32 little endian", false},
        {0, "rows", CLI_FLAG, &c.rows, NULL, "lines as dataset rows joined by two newlines",
         false},
        {0, "documents", CLI_STRING, &c.documents, "SEP",
         "score each document between separators alone", false},
        {0, "document-limit", CLI_U64, &c.document_limit, "N", "only the first N documents",
         false},
        {0, "tokens-only", CLI_FLAG, &c.tokens_only, NULL,
         "print the token ids, one per line, and end", false},
        {0, NULL, CLI_FLAG, NULL, NULL, "Protocol", false},
        {0, "context", CLI_U64, &c.context, "N", "tokens per window", false},
        {0, "windows", CLI_U64, &c.windows, "N", "at most N windows, 0 = all", false},
        {0, "stride", CLI_U64, &c.stride, "N", "tokens between window starts, 0 = context",
         false},
        {0, "protocol", CLI_CHOICE, &c.protocol, "gptq|llama.cpp",
         "score whole windows, or their second halves", false},
        {0, "max-ppl", CLI_DOUBLE, &c.max_ppl, "X", "exit 3 when the perplexity is above X",
         false},
        {0, "dump", CLI_STRING, &c.dump, "FILE",
         "write the loss of every scored token, float64 little endian", false},
        CLI_END};
    vptq_cli cli = {
        .tool = "vptq-eval",
        .command = "ppl",
        .summary = "perplexity of a model on a text",
        .usage = "vptq-eval ppl -m MODEL --text FILE [--rows] [--context N] [--windows N]\n"
                 "vptq-eval ppl -m MODEL --text FILE --documents SEP",
        .examples = "  vptq-eval ppl -m model.gguf --text wiki.test.raw --rows --windows 16\n"
                    "  vptq-eval ppl -m packed --tokens ids.i32 --max-ppl 25 --format json\n",
        .options = options,
        .formats = "text|json",
        .omit = "seed"};
    int code;
    if (vptq_cli_parse(&cli, argc, argv, 2, &code)) {
        code = check_ppl_usage(&cli, &c);
        if (code == CLI_OK)
            code = run_ppl(&cli, &c);
    }
    vptq_cli_release(&cli);
    return code;
}
