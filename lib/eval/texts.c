/* Perplexity of a model on several texts: measures them one by one or joined, prints the
 * figures of each as it is finished, and keeps the losses of their tokens in a file. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "lib/base/buf.h"
#include "lib/base/comm.h"
#include "lib/base/file.h"
#include "lib/base/text.h"
#include "lib/eval/estimate.h"
#include "lib/eval/perplexity.h"
#include "lib/eval/units.h"
#include "lib/report/column.h"

/* ---- texts ---- */

static size_t text_count(const vptq_ppl_options *o)
{
    return o->join ? 1 : o->corpus.text_count + o->corpus.token_count;
}

/* Returns the file name of text i; joined texts have that of the first. */
static const char *text_name(const vptq_ppl_options *o, size_t i)
{
    const size_t texts = o->corpus.text_count;
    return i < texts ? o->corpus.texts[i] : o->corpus.tokens[i - texts];
}

/* Returns the options of text i: one file, or all if joined.  Texts precede files of ids. */
static vptq_ppl_options text_options(const vptq_ppl_options *o, size_t i)
{
    vptq_ppl_options one = *o;
    if (o->join)
        return one;
    one.corpus.text_count = i < o->corpus.text_count;
    one.corpus.token_count = !one.corpus.text_count;
    if (one.corpus.text_count)
        one.corpus.texts += i;
    else
        one.corpus.tokens += i - o->corpus.text_count;
    return one;
}

/* ---- ids ---- */

/* Prints ids one per line, after an empty line unless they are the *first. */
static vptq_status print_ids(const vptq_ctx *ctx, const vptq_output *out, const int32_t *ids,
                             size_t count, bool *first, vptq_err *err)
{
    const size_t block = 32768; /* bytes printed between two looks at the cancel flag */
    vptq_status st = VPTQ_OK;
    vptq_buf text;
    vptq_buf_init(&text, ctx->mem);
    if (!*first)
        VPTQ_TRY(vptq_buf_add(&text, "\n", 1, err));
    *first = false;
    for (size_t i = 0; i <= count; i++) {
        if (i == count || text.len >= block) {
            VPTQ_TRY(vptq_check_cancel(ctx, err));
            VPTQ_TRY(vptq_print_text(out, err, "%s", text.data));
            vptq_buf_clear(&text);
        }
        if (i < count)
            VPTQ_TRY(vptq_buf_printf(&text, err, "%" PRId32 "\n", ids[i]));
    }
out:
    vptq_buf_release(&text);
    return st;
}

static vptq_status print_documents(const vptq_ctx *ctx, const vptq_model *m,
                                   const vptq_ppl_options *o, const vptq_output *out,
                                   bool *first, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_ids ids;
    vptq_arena arena;
    size_t *offsets, count;
    vptq_ids_init(&ids, ctx->mem);
    vptq_arena_init(&arena, ctx->mem);
    VPTQ_TRY(vptq_corpus_documents(ctx, &o->corpus, o->documents, m->tokenizer, m->desc->vocab,
                                   &arena, &ids, &offsets, &count, err));
    if (o->document_limit && count > o->document_limit)
        count = o->document_limit;
    for (size_t i = 0; i < count; i++)
        VPTQ_TRY(print_ids(ctx, out, ids.data + offsets[i], offsets[i + 1] - offsets[i], first,
                           err));
out:
    vptq_ids_release(&ids);
    vptq_arena_release(&arena);
    return st;
}

static vptq_status print_all_ids(const vptq_ctx *ctx, const vptq_model *m,
                                 const vptq_ppl_options *opt, const vptq_output *out,
                                 vptq_err *err)
{
    bool first = true;
    for (size_t i = 0; i < text_count(opt); i++) {
        const vptq_ppl_options o = text_options(opt, i);
        vptq_corpus text = {.ids = {.data = NULL}};
        if (o.documents) {
            VPTQ_CHECK(print_documents(ctx, m, &o, out, &first, err));
            continue;
        }
        vptq_status st =
            vptq_corpus_load(ctx, &o.corpus, m->tokenizer, m->desc->vocab, &text, err);
        if (!st)
            st = print_ids(ctx, out, text.ids.data, text.ids.count, &first, err);
        vptq_corpus_release(&text);
        if (st)
            return st;
    }
    return VPTQ_OK;
}

vptq_status vptq_tokenize(vptq_ctx *ctx, const vptq_model *m, const vptq_ppl_options *opt,
                          const vptq_output *out, vptq_err *err)
{
    const bool prints = vptq_comm_rank(ctx) == 0;
    const vptq_status st = prints ? print_all_ids(ctx, m, opt, out, err) : VPTQ_OK;
    return vptq_comm_agree(ctx, st, err);
}

/* ---- figures ---- */

/* A text and its figures. */
typedef struct ppl_row {
    const char *text, *model;
    vptq_ppl_result r;
    vptq_object totals;
} ppl_row;

enum { TABLE = VPTQ_IN_TEXT | VPTQ_IN_CSV | VPTQ_IN_MD, PROGRAMS = VPTQ_IN_JSON | VPTQ_IN_CSV };
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
    {.name = "ppl",
     VPTQ_REAL(ppl_row, r.ppl),
     .decimals = 4,
     .fixed = VPTQ_IN_CSV,
     .width = 9,
     .needs = MEASURED,
     .major = true},
    FIGURE("ppl_stderr", r.ppl_stderr, 4, MEASURED),
    FIGURE("nll", r.nll, 6, MEASURED),
    FIGURE("bits_per_byte", r.bits_per_byte, 4, MEASURED),
    COUNT("tokens", r.tokens),
    COUNT("windows", r.windows),
    COUNT("skipped", r.skipped),
    COUNT("context", r.context),
    {.name = "seconds", VPTQ_REAL(ppl_row, r.seconds), .formats = PROGRAMS, .needs = MEASURED},
    FIGURE("tokens_per_second", r.tokens_per_second, 1, MEASURED),
    FIGURE("bits_per_weight", r.bits_per_weight, 4, 0),
    NAME("text", text, VPTQ_IN_JSON, MEASURED),
    NAME("model", model, PROGRAMS, 0),
    {.name = "totals",
     VPTQ_OBJECT(ppl_row, totals),
     .formats = VPTQ_IN_JSON,
     .needs = PLANNED}};

/* The run over all texts. */
typedef struct run {
    vptq_device *dev;
    const vptq_model *m;
    const vptq_ppl_options *opt;
    const vptq_output *out;
} run;

static vptq_status print_text(const run *r, const vptq_ppl_result *x, vptq_err *err)
{
    const bool documents = r->opt->documents != NULL;
    VPTQ_CHECK(vptq_print_text(
        r->out, err,
        "ppl %.4f ± %.4f\nnll %.6f over %" PRIu64 " token%s in %" PRIu64 " %s%s of %s%zu\n",
        x->ppl, x->ppl_stderr, x->nll, x->tokens, vptq_plural(x->tokens, "", "s"), x->windows,
        documents ? "document" : "window", vptq_plural(x->windows, "", "s"),
        documents ? "at most " : "", x->context));
    if (x->skipped)
        VPTQ_CHECK(vptq_print_text(r->out, err, "%" PRIu64 " longer document%s skipped\n",
                                   x->skipped, vptq_plural(x->skipped, " was", "s were")));
    if (!isnan(x->bits_per_byte))
        VPTQ_CHECK(vptq_print_text(r->out, err, "%.4f bits per byte\n", x->bits_per_byte));
    return vptq_print_text(r->out, err,
                           "%.3f bits per weight\n%.1f s, %.0f tokens per second\n",
                           x->bits_per_weight, x->seconds, x->tokens_per_second);
}

/* Prints row i with the text column as wide as the longest name. */
static vptq_status print_row(const run *r, size_t i, const ppl_row *row, vptq_err *err)
{
    vptq_column shown[sizeof columns / sizeof *columns];
    memcpy(shown, columns, sizeof columns);
    for (size_t k = 0; k < text_count(r->opt); k++) {
        const int n = (int)vptq_text_width(text_name(r->opt, k));
        shown[TEXT_COLUMN].width = n > shown[TEXT_COLUMN].width ? n : shown[TEXT_COLUMN].width;
    }
    vptq_printer p = vptq_printer_make(r->out, VPTQ_COLUMNS(shown));
    p.has = r->opt->dry_run ? PLANNED : MEASURED;
    p.rows = i;
    return vptq_print_row(&p, row, err);
}

static vptq_status print_result(const run *r, size_t i, const vptq_ppl_result *x, vptq_err *err)
{
    const ppl_row row = {.text = text_name(r->opt, i),
                         .model = r->m->ckpt.path,
                         .r = *x,
                         .totals = vptq_estimate_object(&x->estimate)};
    const bool alone = text_count(r->opt) == 1;
    if (!r->out)
        return VPTQ_OK;
    if (r->opt->dry_run && r->out->format != VPTQ_FORMAT_JSON) {
        VPTQ_CHECK(vptq_print_line(
            r->out, err, "%s%swould score %" PRIu64 " token%s in %" PRIu64 " %s%s",
            alone ? "" : row.text, alone ? "" : ": ", x->tokens,
            vptq_plural(x->tokens, "", "s"), x->windows,
            r->opt->documents ? "document" : "window", vptq_plural(x->windows, "", "s")));
        return vptq_estimate_print(r->out, &x->estimate, err);
    }
    if (alone && r->out->format == VPTQ_FORMAT_TEXT)
        return print_text(r, x, err);
    return print_row(r, i, &row, err);
}

/* ---- the run ---- */

/* Running loss of one text. */
typedef struct window_log {
    const vptq_ctx *ctx;
    double sum;
    uint64_t tokens;
} window_log;

static void log_window(void *arg, uint64_t window, double nll, uint64_t tokens)
{
    window_log *w = arg;
    w->sum += nll * (double)tokens;
    w->tokens += tokens;
    vptq_log(w->ctx, VPTQ_LOG_MORE,
             "window %" PRIu64 ": nll %.6f, ppl %.4f over %" PRIu64 " tokens, so far %.4f",
             window, nll, exp(nll), tokens, exp(w->sum / (double)w->tokens));
}

/* Fails if a text is missing or too short, before any is measured. */
static vptq_status check_texts(const run *r, vptq_err *err)
{
    for (size_t i = 1; i < text_count(r->opt) && !r->opt->dry_run; i++) {
        vptq_ppl_options o = text_options(r->opt, i);
        vptq_ppl_result unused;
        o.dry_run = true;
        VPTQ_CHECK(vptq_eval_ppl(r->dev, r->m, &o, NULL, &unused, err));
    }
    return VPTQ_OK;
}

static vptq_status estimate_text(const run *r, vptq_ppl_result *x, vptq_err *err)
{
    const double windows = (double)x->windows, scored = (double)x->tokens;
    const double tokens = r->opt->documents ? scored + windows : windows * (double)x->context;
    const double length = fmin(tokens / fmax(windows, 1), (double)x->context);
    x->estimate = vptq_estimate_make(r->opt->dump);
    x->estimate.disk_bytes = r->opt->dump ? x->tokens * sizeof(double) : 0;
    return vptq_eval_estimate(r->dev, r->m, tokens, scored, (size_t)fmax(length, 1),
                              &x->estimate, err);
}

/* Measures text i and writes the losses of its tokens to `dump`, if that is open. */
static vptq_status measure_text(const run *r, size_t i, vptq_file_writer *dump,
                                vptq_ppl_result *x, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    double *nll = NULL;
    window_log log = {.ctx = r->dev->ctx};
    const vptq_ppl_options o = text_options(r->opt, i);
    const vptq_eval_watch watch = {.window = log_window,
                                   .arg = &log,
                                   .arena = &arena,
                                   .losses = dump->fd < 0 ? NULL : &nll};
    vptq_arena_init(&arena, r->dev->ctx->mem);
    if (text_count(r->opt) > 1)
        vptq_log(r->dev->ctx, VPTQ_LOG_MORE, "%s", text_name(r->opt, i));
    VPTQ_TRY(vptq_eval_ppl(r->dev, r->m, &o, &watch, x, err));
    if (o.dry_run)
        VPTQ_TRY(estimate_text(r, x, err));
    if (nll)
        VPTQ_TRY(vptq_file_write(dump, nll, x->tokens * sizeof *nll, err));
    VPTQ_TRY(print_result(r, i, x, err));
out:
    vptq_arena_release(&arena);
    return st;
}

vptq_status vptq_eval_texts(vptq_device *dev, const vptq_model *m, const vptq_ppl_options *opt,
                            const vptq_output *out, vptq_ppl_result *results, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const bool first = vptq_comm_rank(dev->ctx) == 0; /* which alone writes */
    const run r = {.dev = dev, .m = m, .opt = opt, .out = first ? out : NULL};
    vptq_file_writer dump = {.fd = -1};
    size_t done = 0;
    if (opt->dump) {
        VPTQ_TRY(vptq_corpus_check_output(&opt->corpus, opt->dump, err));
        VPTQ_TRY(vptq_checkpoint_check_output(&m->ckpt, opt->dump, err));
    }
    if (opt->dump && !opt->dry_run && first) /* now: an unwritable file costs no evaluation */
        VPTQ_TRY(vptq_file_writer_open(opt->dump, opt->force, &dump, err));
    if (opt->dump && opt->dry_run && first)
        VPTQ_TRY(vptq_file_check_target(opt->dump, opt->force, err));
    VPTQ_TRY(vptq_units_same_model(dev->ctx, m, err));
    VPTQ_TRY(check_texts(&r, err));
    for (; done < text_count(opt); done++) {
        vptq_ppl_result x;
        VPTQ_TRY(measure_text(&r, done, &dump, &x, err));
        if (results)
            results[done] = x;
    }
out:
    /* The losses of finished texts are kept when a later text fails. */
    if (dump.fd >= 0 && done > 0) {
        const vptq_status kept = vptq_file_writer_commit(&dump, st ? NULL : err);
        st = st ? st : kept;
    }
    vptq_file_writer_abort(&dump);
    return vptq_comm_agree(dev->ctx, st, err);
}
