/* vptq-eval ppl: perplexity of a model on texts, measured one by one or joined. */
#include "cmd/eval/eval.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct ppl_command {
    const char *model, *tokenizer, *base, *documents, *dump;
    vptq_cli_strings texts, tokens;
    uint64_t document_limit, context, windows, stride;
    int protocol;
    bool rows, join, tokens_only;
    double max_ppl;
} ppl_command;

/* Running loss of one text. */
typedef struct window_log {
    const vptq_cli *cli;
    vptq_writer *dump; /* NULL = none */
    double sum;
    uint64_t tokens;
} window_log;

static void print_window(void *arg, uint64_t window, double nll, uint64_t tokens)
{
    window_log *w = arg;
    w->sum += nll * (double)tokens;
    w->tokens += tokens;
    vptq_log(w->cli->ctx, VPTQ_LOG_MORE,
             "window %" PRIu64 ": nll %.6f, ppl %.4f over %" PRIu64 " tokens, so far %.4f",
             window, nll, exp(nll), tokens, exp(w->sum / (double)w->tokens));
}

/* ---- measurements ---- */

static size_t measurement_count(const ppl_command *c)
{
    return c->join ? 1 : c->texts.count + c->tokens.count;
}

/* Returns the file name of measurement i; joined texts have that of the first. */
static const char *measurement_name(const ppl_command *c, size_t i)
{
    return i < c->texts.count ? c->texts.items[i] : c->tokens.items[i - c->texts.count];
}

/* Returns the options of measurement i: one file, or all if joined.  Texts precede files of
 * ids. */
static vptq_ppl_options measurement(const vptq_cli *cli, const ppl_command *c, size_t i)
{
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
    if (c->join)
        return opt;
    opt.corpus.text_count = i < c->texts.count;
    opt.corpus.token_count = !opt.corpus.text_count;
    if (opt.corpus.text_count)
        opt.corpus.texts += i;
    else
        opt.corpus.tokens += i - c->texts.count;
    return opt;
}

/* ---- ids ---- */

/* Prints ids one per line; an empty line separates documents. */
static vptq_status print_ids(void *arg, const int32_t *ids, size_t n, vptq_err *err)
{
    bool *first = arg;
    (void)err;
    if (!*first)
        putchar('\n');
    *first = false;
    for (size_t i = 0; i < n; i++)
        printf("%" PRId32 "\n", ids[i]);
    return VPTQ_OK;
}

/* ---- results ---- */

/* A measurement and its names. */
typedef struct ppl_row {
    const char *text, *model;
    vptq_ppl_result r;
} ppl_row;

enum { TABLE = VPTQ_IN_TEXT | VPTQ_IN_CSV | VPTQ_IN_MD };
/* Conditions of columns: of a measurement, of a plan. */
enum { MEASURED = 1, PLANNED = 2 };

#define FIGURE(key, member, digits, bits)                                                      \
    {                                                                                          \
        .name = key, VPTQ_REAL(ppl_row, member), .decimals = digits, .fixed = VPTQ_IN_CSV,     \
        .width = 9, .needs = bits                                                              \
    }
#define COUNT(key, member)                                                                     \
    {                                                                                          \
        .name = key, VPTQ_INTEGER(ppl_row, member), .width = 8                                 \
    }
#define NAME(key, member, where, bits)                                                         \
    {                                                                                          \
        .name = key, VPTQ_TEXT(ppl_row, member), .formats = where, .needs = bits               \
    }

enum { TEXT_COLUMN };
static const vptq_column columns[] = {
    [TEXT_COLUMN] = NAME("text", text, TABLE, 0),
    NAME("text", text, VPTQ_IN_JSON, PLANNED),
    FIGURE("ppl", r.ppl, 4, MEASURED),
    FIGURE("ppl_stderr", r.ppl_stderr, 4, MEASURED),
    FIGURE("nll", r.nll, 6, MEASURED),
    FIGURE("bits_per_byte", r.bits_per_byte, 4, MEASURED),
    COUNT("tokens", r.tokens),
    COUNT("windows", r.windows),
    COUNT("skipped", r.skipped),
    COUNT("context", r.context),
    {.name = "seconds",
     VPTQ_REAL(ppl_row, r.seconds),
     .formats = VPTQ_IN_JSON,
     .needs = MEASURED},
    FIGURE("tokens_per_second", r.tokens_per_second, 1, MEASURED),
    FIGURE("bits_per_weight", r.bits_per_weight, 4, 0),
    NAME("text", text, VPTQ_IN_JSON, MEASURED),
    NAME("model", model, VPTQ_IN_JSON, 0)};

static void print_text(const ppl_command *c, const vptq_ppl_result *r)
{
    printf("ppl %.4f ± %.4f\n", r->ppl, r->ppl_stderr);
    printf("nll %.6f over %" PRIu64 " tokens in %" PRIu64 " %s of %s%zu\n", r->nll, r->tokens,
           r->windows, c->documents ? "documents" : "windows", c->documents ? "at most " : "",
           r->context);
    if (r->skipped)
        printf("%" PRIu64 " longer document%s skipped\n", r->skipped,
               r->skipped == 1 ? " was" : "s were");
    if (!isnan(r->bits_per_byte))
        printf("%.4f bits per byte\n", r->bits_per_byte);
    printf("%.3f bits per weight\n", r->bits_per_weight);
    printf("%.1f s, %.0f tokens per second\n", r->seconds, r->tokens_per_second);
}

/* Prints a row with the text column as wide as the longest name. */
static void print_row(const vptq_cli *cli, const ppl_command *c, size_t i, const ppl_row *row)
{
    vptq_column shown[sizeof columns / sizeof *columns];
    memcpy(shown, columns, sizeof columns);
    for (size_t k = 0; k < measurement_count(c); k++) {
        const int n = (int)strlen(measurement_name(c, k));
        shown[TEXT_COLUMN].width = n > shown[TEXT_COLUMN].width ? n : shown[TEXT_COLUMN].width;
    }
    vptq_printer p = vptq_printer_make(&cli->out, VPTQ_COLUMNS(shown));
    p.has = cli->common.dry_run ? PLANNED : MEASURED;
    p.rows = i;
    vptq_print_row(&p, row, NULL);
}

static void print_plan(const ppl_command *c, const ppl_row *row)
{
    if (measurement_count(c) > 1)
        printf("%s: ", row->text);
    printf("would score %" PRIu64 " tokens in %" PRIu64 " %s\n", row->r.tokens, row->r.windows,
           c->documents ? "documents" : "windows");
}

static void print_result(const vptq_cli *cli, const ppl_command *c, size_t i,
                         const vptq_ppl_result *r)
{
    const ppl_row row = {.text = measurement_name(c, i), .model = c->model, .r = *r};
    const int format = cli->common.format;
    if (cli->common.dry_run && format != CLI_JSON)
        print_plan(c, &row);
    else if (format == CLI_TEXT && measurement_count(c) == 1)
        print_text(c, r);
    else
        print_row(cli, c, i, &row);
}

/* ---- the run ---- */

/* Fails if a text is missing or too short, before any is measured. */
static vptq_status check_texts(vptq_cli *cli, const ppl_command *c, const vptq_model *m,
                               vptq_err *err)
{
    for (size_t i = 1; i < measurement_count(c) && !cli->common.dry_run; i++) {
        vptq_ppl_options opt = measurement(cli, c, i);
        vptq_ppl_result r;
        opt.dry_run = true;
        VPTQ_CHECK(vptq_perplexity(cli->ctx, m, &opt, NULL, NULL, NULL, &r, err));
    }
    return VPTQ_OK;
}

static vptq_status write_losses(void *arg, const double *nll, size_t tokens, vptq_err *err)
{
    window_log *w = arg;
    return vptq_writer_write(w->dump, nll, tokens * sizeof *nll, err);
}

/* Measures text i and writes the losses of its tokens to `dump`, unless that is NULL. */
static vptq_status score(vptq_cli *cli, const ppl_command *c, const vptq_model *m, size_t i,
                         vptq_writer *dump, vptq_ppl_result *r, vptq_err *err)
{
    window_log windows = {.cli = cli, .dump = dump};
    vptq_ppl_options opt = measurement(cli, c, i);
    if (measurement_count(c) > 1)
        vptq_log(cli->ctx, VPTQ_LOG_MORE, "%s", measurement_name(c, i));
    return vptq_perplexity(cli->ctx, m, &opt, print_window, dump ? write_losses : NULL,
                           &windows, r, err);
}

/* Measures all texts into ppl [measurements].  Opens the dump first, so that an unwritable file
 * costs no evaluation. */
static vptq_status score_all(vptq_cli *cli, const ppl_command *c, const vptq_model *m,
                             double *ppl, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_writer *dump = NULL;
    if (c->dump && !cli->common.dry_run)
        VPTQ_TRY(vptq_writer_open(c->dump, cli->common.force, &dump, err));
    VPTQ_TRY(check_texts(cli, c, m, err));
    for (size_t i = 0; i < measurement_count(c); i++) {
        vptq_ppl_result r;
        VPTQ_TRY(score(cli, c, m, i, dump, &r, err));
        print_result(cli, c, i, &r);
        ppl[i] = r.ppl;
    }
    if (dump)
        VPTQ_TRY(vptq_writer_commit(dump, err));
out:
    vptq_writer_close(dump);
    return st;
}

/* Returns CLI_CHECK_FAILED if a perplexity is above --max-ppl. */
static int check_limit(const ppl_command *c, const double *ppl)
{
    int code = CLI_OK;
    size_t count = measurement_count(c);
    for (size_t i = 0; i < count; i++) {
        if (ppl[i] <= c->max_ppl)
            continue;
        fprintf(stderr, "vptq-eval: %s%sperplexity %.4f is above --max-ppl %g\n",
                count > 1 ? measurement_name(c, i) : "", count > 1 ? ": " : "", ppl[i],
                c->max_ppl);
        code = CLI_CHECK_FAILED;
    }
    return code;
}

static int check_ppl_usage(const vptq_cli *cli, const ppl_command *c)
{
    if (c->texts.count + c->tokens.count == 0)
        return vptq_cli_usage_error(cli, "missing option: --text FILE or --tokens FILE");
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

static int run_ppl(vptq_cli *cli, const ppl_command *c)
{
    vptq_err err = {0};
    vptq_status st = VPTQ_OK;
    vptq_model *model = NULL;
    bool first = true;
    const vptq_model_options open = {
        .tokenizer = c->tokenizer, .base = c->base, .need_tokenizer = c->texts.count > 0};
    double *ppl = calloc(measurement_count(c), sizeof *ppl);
    if (!ppl)
        VPTQ_TRY(vptq_fail(&err, VPTQ_E_NOMEM, "out of memory"));
    VPTQ_TRY(vptq_ctx_backend(cli->ctx, NULL, &err));
    VPTQ_TRY(vptq_model_load(cli->ctx, c->model, &open, &model, &err));
    if (!c->tokens_only)
        VPTQ_TRY(score_all(cli, c, model, ppl, &err));
    for (size_t i = 0; c->tokens_only && i < measurement_count(c); i++) {
        const vptq_ppl_options opt = measurement(cli, c, i);
        VPTQ_TRY(vptq_tokenize(cli->ctx, model, &opt, print_ids, &first, &err));
    }
out:
    vptq_model_free(model);
    int code = vptq_cli_finish(cli, st, &err);
    if (code == CLI_OK)
        code = check_limit(c, ppl);
    free(ppl);
    return code;
}

int vptq_cli_ppl(int argc, char **argv)
{
    ppl_command c = {.context = 2048, .max_ppl = (double)INFINITY};
    const vptq_cli_option options[] = {
        {'m', "model", CLI_STRING, &c.model, "MODEL", "model to measure", true},
        {0, "tokenizer", CLI_STRING, &c.tokenizer, "FILE", "tokenizer to use with the model",
         false},
        {0, "base", CLI_STRING, &c.base, "MODEL",
         "the original model of a work directory, if it was moved", false},
        {0, NULL, CLI_FLAG, NULL, NULL, "Text", false},
        {0, "text", CLI_STRINGS, &c.texts, "FILE",
         "UTF-8 text; several are measured one by one", false},
        {0, "tokens", CLI_STRINGS, &c.tokens, "FILE", "token ids, int32 little endian", false},
        {0, "join", CLI_FLAG, &c.join, NULL, "join all texts in order and measure them as one",
         false},
        {0, "rows", CLI_FLAG, &c.rows, NULL, "lines as dataset rows joined by two newlines",
         false},
        {0, "documents", CLI_STRING, &c.documents, "SEP",
         "score each document between separators separately", false},
        {0, "document-limit", CLI_U64, &c.document_limit, "N", "only the first N documents",
         false},
        {0, "tokens-only", CLI_FLAG, &c.tokens_only, NULL,
         "only print the token ids, one per line", false},
        {0, NULL, CLI_FLAG, NULL, NULL, "Protocol", false},
        {0, "context", CLI_U64, &c.context, "N", "tokens per window", false},
        {0, "windows", CLI_U64, &c.windows, "N", "at most N windows, 0 = all", false},
        {0, "stride", CLI_U64, &c.stride, "N", "tokens between window starts, 0 = context",
         false},
        {0, "protocol", CLI_CHOICE, &c.protocol, "gptq|llama.cpp",
         "score whole windows, or their second halves", false},
        {0, "max-ppl", CLI_DOUBLE, &c.max_ppl, "X", "exit 3 if a perplexity is above X", false},
        {0, "dump", CLI_STRING, &c.dump, "FILE",
         "write the loss of every scored token, float64 little endian", false},
        CLI_END};
    vptq_cli cli = {
        .tool = "vptq-eval",
        .command = "ppl",
        .summary = "perplexity of a model on texts",
        .usage = "vptq-eval ppl -m MODEL --text FILE.. [--join] [--rows] [--context N] "
                 "[--windows N]\n"
                 "vptq-eval ppl -m MODEL --text FILE --documents SEP",
        .examples = "  vptq-eval ppl -m model.gguf --text wiki.test.raw --rows --windows 16\n"
                    "  vptq-eval ppl -m packed --tokens ids.i32 --max-ppl 25 --format json\n"
                    "  vptq-eval ppl -m packed --text wiki.txt --text c4.txt --format csv\n",
        .options = options,
        .formats = "text|json|csv|md",
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
