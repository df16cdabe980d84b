/* vptq-eval: measures a model. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cli.h"
#include "cmd/cli_gemv.h"

/* What the commands share: the device and the models it reads. */
typedef struct opened {
    vptq_device dev;
    vptq_model model, base;
    bool has_dev, has_model, has_base;
} opened;

static vptq_status open_all(opened *s, const vptq_cli *cli, const char *path,
                            const char *tokenizer, const char *base, bool need_tokenizer,
                            vptq_err *err)
{
    vptq_checkpoint_options opt = {.tokenizer = tokenizer, .base = base};
    vptq_status st = VPTQ_OK;
    VPTQ_TRY(vptq_device_open(&cli->ctx, cli->common.backend, &s->dev, err));
    s->has_dev = true;
    VPTQ_TRY(vptq_model_open(&cli->ctx, path, &opt, need_tokenizer, &s->model, err));
    s->has_model = true;
out:
    return st;
}

static void close_all(opened *s)
{
    if (s->has_base)
        vptq_model_release(&s->base);
    if (s->has_model)
        vptq_model_release(&s->model);
    if (s->has_dev)
        vptq_device_close(&s->dev);
}

/* ---- ppl ---- */

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
static vptq_status score(vptq_cli *cli, const ppl_command *c, opened *s,
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
    opened s = {.has_dev = false};
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
    VPTQ_TRY(open_all(&s, cli, c->model, c->tokenizer, c->base, c->texts.count > 0, &err));
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
    close_all(&s);
    int code = vptq_cli_finish(cli, st, &err);
    if (code != CLI_OK || passed)
        return code;
    fprintf(stderr, "vptq-eval: perplexity %.4f is above --max-ppl %g\n", r.ppl, c->max_ppl);
    return CLI_CHECK_FAILED;
}

static int command_ppl(int argc, char **argv)
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

/* ---- kld ---- */

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
    opened s = {.has_dev = false};
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
    VPTQ_TRY(open_all(&s, cli, c->model, c->tokenizer, c->base, c->texts.count > 0, &err));
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
    close_all(&s);
    int code = vptq_cli_finish(cli, st, &err);
    if (code != CLI_OK || passed)
        return code;
    fprintf(stderr, "vptq-eval: divergence %.6f is above --max-kld %g\n", r.mean_kld,
            c->max_kld);
    return CLI_CHECK_FAILED;
}

static int command_kld(int argc, char **argv)
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

/* ---- error ---- */

typedef struct error_command {
    const char *model, *base, *hessians;
    vptq_cli_range layers;
} error_command;

typedef struct error_table {
    int format; /* vptq_cli_format */
    bool began;
} error_table;

enum { ERROR_COLUMNS = 12 };
static const vptq_cli_column error_columns[ERROR_COLUMNS] = {{.name = "layer"},
                                                             {.name = "name", .width = -9},
                                                             {.name = "rows"},
                                                             {.name = "columns"},
                                                             {.name = "proxy_loss"},
                                                             {.name = "relative_mse"},
                                                             {.name = "bits_per_weight"},
                                                             {.name = "v"},
                                                             {.name = "k"},
                                                             {.name = "k_res"},
                                                             {.name = "groups"},
                                                             {.name = "outliers"}};

static void print_error_text(int format, const vptq_error_row *row)
{
    char cell[ERROR_COLUMNS][CLI_CELL];
    const uint32_t numbers[] = {row->shape.v, row->shape.k, row->shape.k_res, row->shape.groups,
                                row->shape.outliers};
    snprintf(cell[0], CLI_CELL, "%u", row->layer);
    snprintf(cell[1], CLI_CELL, "%s", row->name);
    snprintf(cell[2], CLI_CELL, "%u", row->rows);
    snprintf(cell[3], CLI_CELL, "%u", row->columns);
    snprintf(cell[4], CLI_CELL, "%.6f", row->proxy_loss);
    if (isnan(row->proxy_loss))
        snprintf(cell[4], CLI_CELL, "%s", format == CLI_CSV ? "" : "-");
    snprintf(cell[5], CLI_CELL, "%.6f", row->relative_mse);
    snprintf(cell[6], CLI_CELL, "%.4f", row->bits_per_weight);
    for (int i = 0; i < 5; i++)
        snprintf(cell[7 + i], CLI_CELL, "%u", numbers[i]);
    vptq_cli_table_row(format, error_columns, ERROR_COLUMNS, cell);
}

static void print_error_json(const vptq_error_row *row)
{
    vptq_cli_json j;
    vptq_cli_json_begin(&j);
    vptq_cli_json_u64(&j, "layer", row->layer);
    vptq_cli_json_str(&j, "name", row->name);
    vptq_cli_json_u64(&j, "rows", row->rows);
    vptq_cli_json_u64(&j, "columns", row->columns);
    vptq_cli_json_f64(&j, "proxy_loss", row->proxy_loss);
    vptq_cli_json_f64(&j, "relative_mse", row->relative_mse);
    vptq_cli_json_f64(&j, "bits_per_weight", row->bits_per_weight);
    vptq_cli_json_u64(&j, "v", row->shape.v);
    vptq_cli_json_u64(&j, "k", row->shape.k);
    vptq_cli_json_u64(&j, "k_res", row->shape.k_res);
    vptq_cli_json_u64(&j, "groups", row->shape.groups);
    vptq_cli_json_u64(&j, "outliers", row->shape.outliers);
    vptq_cli_json_end(&j);
}

static vptq_status print_error_row(void *arg, const vptq_error_row *row, vptq_err *err)
{
    error_table *t = arg;
    (void)err;
    if (t->format == CLI_JSON) {
        print_error_json(row);
        return VPTQ_OK;
    }
    if (!t->began)
        vptq_cli_table_head(t->format, error_columns, ERROR_COLUMNS);
    t->began = true;
    print_error_text(t->format, row);
    return VPTQ_OK;
}

static int run_error(vptq_cli *cli, const error_command *c)
{
    vptq_err err = {0};
    vptq_status st = VPTQ_OK;
    opened s = {.has_dev = false};
    vptq_checkpoint_options opt = {.tokenizer = NULL};
    error_table t = {.format = cli->common.format};
    VPTQ_TRY(open_all(&s, cli, c->model, NULL, c->base, false, &err));
    VPTQ_TRY(vptq_model_open(&cli->ctx, c->base, &opt, false, &s.base, &err));
    s.has_base = true;
    VPTQ_TRY(vptq_eval_error(&s.dev, &s.model, &s.base, c->hessians, c->layers.first,
                             c->layers.last, print_error_row, &t, &err));
out:
    close_all(&s);
    return vptq_cli_finish(cli, st, &err);
}

static int command_error(int argc, char **argv)
{
    error_command c = {.layers = {.first = 0, .last = UINT32_MAX}};
    const vptq_cli_option options[] = {
        {'m', "model", CLI_STRING, &c.model, "MODEL", "quantized model", true},
        {0, "base", CLI_STRING, &c.base, "MODEL", "the model it was made from", true},
        {'H', "hessians", CLI_STRING, &c.hessians, "HDIR",
         "Hessians; without them no proxy loss", false},
        {0, "layers", CLI_RANGE, &c.layers, "A-B", "only these layers", false},
        CLI_END};
    vptq_cli cli = {.tool = "vptq-eval",
                    .command = "error",
                    .summary = "error of every quantized matrix against its original",
                    .usage = "vptq-eval error -m MODEL --base MODEL [-H HDIR] [--layers A-B]",
                    .examples = "  vptq-eval error -m packed --base model.gguf -H hessians\n",
                    .options = options,
                    .formats = "text|json|csv|md",
                    .omit = "force|dry-run|seed"};
    int code;
    if (vptq_cli_parse(&cli, argc, argv, 2, &code))
        code = run_error(&cli, &c);
    vptq_cli_release(&cli);
    return code;
}

/* ---- generate ---- */

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
    opened s = {.has_dev = false};
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
    VPTQ_TRY(open_all(&s, cli, c->model, c->tokenizer, c->base, true, &err));
    VPTQ_TRY(vptq_eval_generate(&s.dev, &s.model, &opt, take_text, &g, &ids, &rate, &err));
    VPTQ_TRY(g.status);
    print_generated(c, &g, ids.count, rate);
    vptq_log(&cli->ctx, VPTQ_LOG_MORE, "%zu tokens with the prompt, %.1f new ones per second",
             ids.count, rate);
out:
    close_all(&s);
    vptq_buf_release(&g.text);
    vptq_ids_release(&ids);
    return vptq_cli_finish(cli, st, &err);
}

static int command_generate(int argc, char **argv)
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

int main(int argc, char **argv)
{
    static const vptq_cli_command commands[] = {
        {"ppl", "perplexity of a model on a text", command_ppl},
        {"kld", "divergence of a model from its original on a text", command_kld},
        {"error", "error of every quantized matrix against its original", command_error},
        {"generate", "continue a prompt", command_generate},
        {"gemv", "speed of products with packed matrices beside dense ones", vptq_cli_gemv},
        {NULL, NULL, NULL}};
    return vptq_cli_run_command("vptq-eval", "Measures a model.", commands, argc, argv);
}
