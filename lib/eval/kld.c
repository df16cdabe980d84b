/* Divergence of a model from its original on a text.  Both run over the same windows, or the
 * logits of the original are read from a saved file, or saved to one. */
#include "lib/eval/kld.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/comm.h"
#include "lib/base/text.h"
#include "lib/eval/error.h"
#include "lib/eval/saved_base.h"
#include "lib/eval/windows.h"
#include "lib/report/stats.h"

/* Values of every scored token, in one array; each rank fills those of its windows.  Sorting
 * changes the order of kld and delta only. */
typedef struct columns {
    double *kld, *nll, *nll_base;
    double *tail;  /* the base's probability outside the saved ids */
    double *same;  /* 1: both models have the same likeliest token */
    double *delta; /* probability of the target by the model minus that by the base */
} columns;
enum { COLUMNS = 6 };

/* One of the two models. */
typedef struct side {
    const vptq_model *m; /* NULL: is not run */
    vptq_window_states states;
} side;

typedef struct run {
    vptq_device *dev;
    const vptq_kld_options *opt;
    vptq_windows w;
    vptq_eval_watch watch;
    side model, base;
    vptq_kld_base_file file;     /* a saved base; file.fd < 0: none */
    vptq_saved_base_rows saved;  /* of `file` */
    vptq_kld_base_head head;     /* of the file that the base is saved to ... */
    vptq_kld_base_writer writer; /* ... its writer ... */
    vptq_saved_base_rows saving; /* ... and its rows */
    vptq_kld_token *scores;      /* [rows of a batch] */
    double *tail;                /* [rows of a batch] */

    double begin; /* vptq_seconds */
    columns columns;
    size_t added, tokens; /* in these sums over the first windows: windows, and their tokens */
    double sum;           /* of divergences */
} run;

/* ---- windows ---- */

/* Checks that the base's tokenizer gives the same ids for the text. */
static vptq_status check_tokenizers(const run *r, const vptq_corpus *corpus, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_corpus other = {.ids = {.data = NULL}};
    const vptq_corpus_options *o = &r->opt->corpus;
    if (o->text_count == 0)
        return VPTQ_OK;
    VPTQ_TRY(vptq_corpus_load(r->dev->ctx, o, r->base.m->tokenizer, r->base.m->desc->vocab,
                              &other, err));
    size_t n = corpus->ids.count < other.ids.count ? corpus->ids.count : other.ids.count;
    size_t i = 0;
    while (i < n && corpus->ids.data[i] == other.ids.data[i])
        i++;
    if (i < n || corpus->ids.count != other.ids.count)
        st =
            vptq_fail(err, VPTQ_E_MISMATCH,
                      "%s: the tokenizers of %s and %s give different tokens from token %zu on",
                      corpus->name, r->model.m->ckpt.path, r->base.m->ckpt.path, i);
out:
    vptq_corpus_release(&other);
    return st;
}

/* Cuts the windows of a text for one model or both. */
static vptq_status plan_text(run *r, vptq_corpus *corpus, vptq_arena *arena, vptq_err *err)
{
    const vptq_kld_options *o = r->opt;
    const vptq_model *m = r->model.m ? r->model.m : r->base.m;
    VPTQ_CHECK(
        vptq_corpus_load(r->dev->ctx, &o->corpus, m->tokenizer, m->desc->vocab, corpus, err));
    if (r->model.m)
        VPTQ_CHECK(check_tokenizers(r, corpus, err));
    r->w.ids = corpus->ids.data;
    const vptq_windows_options cut = {
        .context = o->context, .max_windows = o->windows, .protocol = o->protocol};
    VPTQ_CHECK(vptq_windows_cut(&r->w, corpus->name, corpus->ids.count, &cut, arena, err));
    r->w.bos = vptq_windows_bos(m, o->protocol);
    return VPTQ_OK;
}

/* Takes the windows of the saved base. */
static vptq_status plan_saved(run *r, vptq_arena *arena, vptq_kld_result *result, vptq_err *err)
{
    const vptq_ctx *ctx = r->dev->ctx;
    const vptq_kld_base_head *h = &r->file.head;
    VPTQ_CHECK(vptq_kld_base_file_open(r->opt->base_file, ctx->mem, &r->file, err));
    VPTQ_CHECK(vptq_saved_base_check(ctx, &r->file, r->model.m, r->opt, err));
    result->context = h->context;
    result->protocol =
        h->protocol == VPTQ_KLD_BASE_LLAMA_CPP ? VPTQ_PPL_LLAMA_CPP : VPTQ_PPL_GPTQ;
    memcpy(result->base_name, h->name, sizeof result->base_name);
    snprintf(result->base_fingerprint, sizeof result->base_fingerprint, "%016" PRIx64,
             h->model);
    r->w.ids = r->file.ids;
    const vptq_windows_options cut = {
        .context = h->context, .max_windows = r->opt->windows, .protocol = result->protocol};
    VPTQ_CHECK(vptq_windows_cut(&r->w, r->opt->base_file, (size_t)h->windows * h->context, &cut,
                                arena, err));
    r->w.bos = h->bos;
    return VPTQ_OK;
}

static vptq_status plan(run *r, vptq_corpus *corpus, vptq_arena *arena, vptq_kld_result *result,
                        vptq_err *err)
{
    if (r->model.m && r->base.m)
        VPTQ_CHECK(vptq_eval_check_shapes(r->model.m, r->base.m, err));
    if (r->opt->base_file)
        VPTQ_CHECK(plan_saved(r, arena, result, err));
    else
        VPTQ_CHECK(plan_text(r, corpus, arena, err));
    if (r->opt->save_base)
        VPTQ_CHECK(
            vptq_saved_base_make_head(r->dev->ctx, r->base.m, r->opt, &r->w, &r->head, err));
    result->windows = r->w.count;
    result->tokens = (uint64_t)r->w.count * vptq_windows_scored(&r->w, 0);
    return VPTQ_OK;
}

/* ---- the run ---- */

static vptq_status alloc_columns(run *r, size_t tokens, vptq_arena *arena, vptq_err *err)
{
    columns *c = &r->columns;
    VPTQ_CHECK(vptq_units_alloc(r->dev->ctx, COLUMNS * tokens, arena, &c->kld, err));
    c->nll = c->kld + tokens;
    c->nll_base = c->nll + tokens;
    c->tail = c->nll_base + tokens;
    c->same = c->tail + tokens;
    c->delta = c->same + tokens;
    return VPTQ_OK;
}

static vptq_status alloc_run(run *r, vptq_arena *arena, vptq_err *err)
{
    const vptq_ctx *ctx = r->dev->ctx;
    side *sides[] = {&r->base, &r->model};
    vptq_window_states *states[2];
    size_t count = 0;
    for (size_t i = 0; i < 2; i++)
        if (sides[i]->m) {
            sides[i]->states.dim = sides[i]->m->desc->hidden;
            states[count++] = &sides[i]->states;
        }
    if (r->opt->base_file)
        VPTQ_CHECK(vptq_saved_base_rows_open(&r->saved, ctx, &r->file.head, false, arena, err));
    if (r->opt->save_base)
        VPTQ_CHECK(vptq_saved_base_rows_open(&r->saving, ctx, &r->head, true, arena, err));
    r->w.units.whole = r->opt->save_base != NULL; /* the file has the windows in order */
    VPTQ_CHECK(vptq_windows_plan(&r->w, ctx, sizeof *r->scores + sizeof *r->tail, states, count,
                                 arena, err));
    r->scores = vptq_arena_alloc(arena, r->w.batch_rows, sizeof *r->scores, err);
    r->tail = vptq_arena_zalloc(arena, r->w.batch_rows, sizeof *r->tail, err);
    return r->scores && r->tail ? VPTQ_OK : VPTQ_E_NOMEM;
}

static const char *stage_name(const run *r)
{
    return r->model.m ? "divergence" : "recording";
}

/* `blocks`: done in this batch, of both models together. */
static void progress(const run *r, size_t first, size_t end, uint32_t blocks)
{
    char text[128], so_far[32] = "";
    const uint64_t per = (r->model.m ? r->model.m->desc->layers : 0) +
                         (r->base.m ? (uint64_t)r->base.m->desc->layers : 0) + 1;
    const size_t before = vptq_units_before(&r->w.units, r->dev->ctx, first);
    if (r->tokens)
        snprintf(so_far, sizeof so_far, "kld %.6f, ", r->sum / (double)r->tokens);
    snprintf(text, sizeof text, "%swindows %zu-%zu", so_far, first + 1, end);
    vptq_progress_share(
        r->dev->ctx, stage_name(r), vptq_plural(r->w.count, "window", "windows"),
        blocks == per && before == first ? end : before, r->w.count,
        (double)(before * per + (end - first) * blocks) / (double)(r->w.count * per), text);
}

static vptq_status not_finite(const run *r, size_t s, size_t row, vptq_err *err)
{
    const char *model = r->model.m ? r->model.m->ckpt.path : NULL;
    const char *base = r->base.m ? r->base.m->ckpt.path : NULL;
    return vptq_fail(err, VPTQ_E_NUMERIC,
                     "the output of %s%s%s is not finite in window %zu at token %zu",
                     model ? model : base, model && base ? " or " : "",
                     model && base ? base : "", s, r->w.seq[s].from + row);
}

/* Keeps the n scores from token `at` on; tail [n]: the base's probabilities outside the saved
 * ids. */
static void keep_scores(const columns *c, size_t at, const vptq_kld_token *t,
                        const double *tail, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        c->kld[at + i] = t[i].kld;
        c->nll[at + i] = t[i].nll;
        c->nll_base[at + i] = t[i].nll_base;
        c->tail[at + i] = tail[i];
        c->same[at + i] = t[i].same_top1;
        c->delta[at + i] = exp(-t[i].nll) - exp(-t[i].nll_base);
    }
}

/* Adds the scores of window `s` to the sums, after those of the ones before. */
static vptq_status add_scores(run *r, size_t s, vptq_err *err)
{
    const columns *c = &r->columns;
    const size_t at = r->w.scored[s], n = vptq_windows_scored(&r->w, s);
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(c->kld[at + i]) || !isfinite(c->nll[at + i]) ||
            !isfinite(c->nll_base[at + i]))
            return not_finite(r, s, i, err);
        sum += c->kld[at + i];
    }
    r->sum += sum;
    r->tokens += n;
    r->added++;
    if (r->watch.window)
        r->watch.window(r->watch.arg, s, sum / (double)n, n);
    return VPTQ_OK;
}

static vptq_status run_blocks(run *r, side *s, size_t first, size_t end, uint32_t *done,
                              vptq_err *err)
{
    const size_t *starts = r->w.starts, count = end - first;
    if (!s->m)
        return VPTQ_OK;
    VPTQ_CHECK(
        vptq_forward_embed(s->states.f, r->w.inputs, starts[count], s->states.hidden, err));
    for (uint32_t l = 0; l < s->m->desc->layers; l++) {
        progress(r, first, end, *done + l);
        VPTQ_CHECK(vptq_forward_block(s->states.f, l, starts, count, s->states.hidden, err));
    }
    *done += s->m->desc->layers;
    return VPTQ_OK;
}

/* Saves n rows of the base, beginning with those of window `s`. */
static vptq_status save_rows(run *r, size_t s, size_t n, const float *hidden, vptq_err *err)
{
    size_t bad;
    const vptq_saved_base_batch batch = {.f = r->base.states.f,
                                         .rows = n,
                                         .dim = r->base.m->desc->hidden,
                                         .hidden = hidden,
                                         .targets = r->w.targets};
    VPTQ_CHECK(vptq_saved_base_rows_save(&r->saving, &batch, &r->writer, &bad, err));
    if (bad == n)
        return VPTQ_OK;
    const size_t per_window = vptq_windows_scored(&r->w, s);
    return not_finite(r, s + bad / per_window, bad % per_window, err);
}

/* Fills r->scores and r->tail for n rows: against the base if it is run, else against its saved
 * rows from `first` on. */
static vptq_status compare_rows(run *r, size_t first, size_t n, const float *hidden_base,
                                const float *hidden, vptq_err *err)
{
    const vptq_model_desc *d = r->model.m->desc;
    if (r->base.m) {
        const vptq_kld_args args = {.shape = d,
                                    .base = r->base.states.f,
                                    .model = r->model.states.f,
                                    .rows = n,
                                    .variants = 1,
                                    .hidden_base = hidden_base,
                                    .hidden = hidden,
                                    .targets = r->w.targets};
        return vptq_eval_kld_rows(r->dev->ctx, &args, r->scores, err);
    }
    const vptq_saved_base_batch batch = {.f = r->model.states.f,
                                         .rows = n,
                                         .dim = d->hidden,
                                         .hidden = hidden,
                                         .targets = r->w.targets};
    return vptq_saved_base_rows_compare(&r->saved, &batch, &r->file, first, r->scores, r->tail,
                                        err);
}

/* Scores windows [g, e) of the batch that begins at `first`.  Sums need all windows before
 * them: with several ranks, those of others follow when all are done. */
static vptq_status score_group(run *r, size_t first, size_t g, size_t e, vptq_err *err)
{
    float *hidden = NULL, *hidden_base = NULL;
    size_t rows = 0;
    if (r->base.m)
        VPTQ_CHECK(
            vptq_windows_gather(&r->w, &r->base.states, first, g, e, &hidden_base, &rows, err));
    if (r->model.m)
        VPTQ_CHECK(
            vptq_windows_gather(&r->w, &r->model.states, first, g, e, &hidden, &rows, err));
    if (r->opt->save_base)
        VPTQ_CHECK(save_rows(r, first + g, rows, hidden_base, err));
    if (!r->model.m)
        return VPTQ_OK;
    VPTQ_CHECK(compare_rows(r, r->w.scored[first + g], rows, hidden_base, hidden, err));
    keep_scores(&r->columns, r->w.scored[first + g], r->scores, r->tail, rows);
    while (r->added >= first + g && r->added < first + e)
        VPTQ_CHECK(add_scores(r, r->added, err));
    return VPTQ_OK;
}

static vptq_status run_batch(run *r, size_t first, size_t end, vptq_err *err)
{
    uint32_t done = 0;
    vptq_windows_fill(&r->w, first, end);
    VPTQ_CHECK(run_blocks(r, &r->base, first, end, &done, err));
    VPTQ_CHECK(run_blocks(r, &r->model, first, end, &done, err));
    for (size_t g = 0, e; g < end - first; g = e) {
        e = vptq_forward_group(r->w.starts, end - first, g);
        VPTQ_CHECK(score_group(r, first, g, e, err));
    }
    progress(r, first, end, done + 1);
    return VPTQ_OK;
}

/* Runs units until none is left. */
static vptq_status run_units(run *r, vptq_err *err)
{
    for (;;) {
        size_t first, end;
        VPTQ_CHECK(vptq_units_next(&r->w.units, r->dev->ctx, &first, &end, err));
        if (first == end)
            return VPTQ_OK;
        for (size_t s = first, e; s < end; s = e) {
            e = vptq_windows_batch_end(&r->w, s, end);
            VPTQ_CHECK(run_batch(r, s, e, err));
        }
    }
}

/* Runs the windows of this rank. */
static vptq_status run_all(run *r, vptq_arena *arena, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    side *sides[] = {&r->model, &r->base};
    VPTQ_TRY(vptq_windows_same(&r->w, r->dev->ctx, err));
    if (r->opt->base_file)
        VPTQ_TRY(vptq_units_same(r->dev->ctx, "the saved base", r->file.hash, err));
    for (size_t i = 0; i < 2; i++)
        if (sides[i]->m)
            VPTQ_TRY(
                vptq_forward_open(sides[i]->m, r->dev, r->w.longest, &sides[i]->states.f, err));
    VPTQ_TRY(alloc_run(r, arena, err));
    const bool saves = r->opt->save_base && vptq_comm_rank(r->dev->ctx) == 0;
    if (saves)
        VPTQ_TRY(vptq_kld_base_writer_open(r->opt->save_base, r->opt->force, &r->head, r->w.ids,
                                           &r->writer, err));
    VPTQ_TRY(run_units(r, err));
    if (saves)
        VPTQ_TRY(vptq_kld_base_writer_commit(&r->writer, err));
out:
    vptq_kld_base_writer_abort(&r->writer);
    vptq_forward_close(r->model.states.f);
    vptq_forward_close(r->base.states.f);
    return st;
}

/* ---- figures ---- */

/* Standard errors are those of llama.cpp's perplexity tool: of means over tokens, with the
 * covariance of the two models' losses where both enter. */

const vptq_kld_level vptq_kld_levels[VPTQ_KLD_LEVELS] = {
    {"max", 1},   {"p999", 0.999}, {"p99", 0.99}, {"p95", 0.95}, {"p90", 0.9},
    {"p50", 0.5}, {"p10", 0.1},    {"p05", 0.05}, {"p01", 0.01}, {"min", 0}};

const vptq_kld_level vptq_delta_levels[VPTQ_DELTA_LEVELS] = {
    {"max", 1},    {"p999", 0.999}, {"p99", 0.99}, {"p95", 0.95}, {"p90", 0.9},
    {"p75", 0.75}, {"p50", 0.5},    {"p25", 0.25}, {"p10", 0.1},  {"p05", 0.05},
    {"p01", 0.01}, {"p001", 0.001}, {"min", 0}};

static void sort_levels(double *x, size_t n, const vptq_kld_level *levels, size_t count,
                        double *out)
{
    qsort(x, n, sizeof *x, vptq_stats_order);
    for (size_t i = 0; i < count; i++)
        out[i] = vptq_quantile(x, n, levels[i].quantile);
}

static double correlation(const double *x, double x_mean, const double *y, double y_mean,
                          size_t n)
{
    double xx = 0, xy = 0, yy = 0;
    for (size_t i = 0; i < n; i++) {
        const double a = x[i] - x_mean, b = y[i] - y_mean;
        xx += a * a;
        xy += a * b;
        yy += b * b;
    }
    return xy / sqrt(xx * yy);
}

static void loss_figures(const columns *c, size_t n, vptq_kld_result *r)
{
    double error, error_base;
    const double mean = vptq_mean_with_error(c->nll, 1, NULL, 0, n, &error);
    const double mean_base = vptq_mean_with_error(c->nll_base, 1, NULL, 0, n, &error_base);
    r->ppl = exp(mean);
    r->ppl_stderr = r->ppl * error;
    r->ppl_base = exp(mean_base);
    r->ppl_base_stderr = r->ppl_base * error_base;
    r->ln_ppl_correlation = correlation(c->nll, mean, c->nll_base, mean_base, n);
    /* Errors of differences come from the differences of every token: the same as the two
     * variances minus the covariance, but exactly 0 between equal models. */
    r->ln_ppl_ratio =
        vptq_mean_with_error(c->nll, 1, c->nll_base, -1, n, &r->ln_ppl_ratio_stderr);
    r->ppl_ratio = exp(r->ln_ppl_ratio);
    r->ppl_ratio_stderr = r->ppl_ratio * r->ln_ppl_ratio_stderr;
    r->ppl_difference = r->ppl - r->ppl_base;
    vptq_mean_with_error(c->nll, r->ppl, c->nll_base, -r->ppl_base, n,
                         &r->ppl_difference_stderr);
}

static void delta_figures(const columns *c, size_t n, vptq_kld_result *r)
{
    double square = 0, fourth = 0;
    r->mean_delta_p = vptq_mean_with_error(c->delta, 1, NULL, 0, n, &r->delta_p_stderr);
    for (size_t i = 0; i < n; i++)
        square += c->delta[i] * c->delta[i];
    square /= (double)n;
    for (size_t i = 0; i < n; i++) {
        double d = c->delta[i] * c->delta[i] - square;
        fourth += d * d;
    }
    const double error = n > 1 ? sqrt(fourth / (double)(n - 1) / (double)n) : 0;
    r->rms_delta_p = sqrt(square);
    r->rms_delta_p_stderr = square > 0 ? error / (2 * r->rms_delta_p) : 0;
}

static void compute_figures(const columns *c, size_t n, vptq_kld_result *r)
{
    double same = 0, tail = 0;
    for (size_t i = 0; i < n; i++) {
        same += c->same[i];
        tail += c->tail[i];
    }
    same /= (double)n;
    r->base_tail = tail / (double)n;
    loss_figures(c, n, r);
    delta_figures(c, n, r);
    r->mean_kld = vptq_mean_with_error(c->kld, 1, NULL, 0, n, &r->kld_stderr);
    r->same_top1 = same;
    r->same_top1_stderr = n > 1 ? sqrt(same * (1 - same) / (double)(n - 1)) : 0;
    sort_levels(c->kld, n, vptq_kld_levels, VPTQ_KLD_LEVELS, r->kld);
    sort_levels(c->delta, n, vptq_delta_levels, VPTQ_DELTA_LEVELS, r->delta_p);
}

/* Fails if the file to save to is an input, and in a dry run, if it cannot be written. */
static vptq_status check_saved(const run *r, vptq_err *err)
{
    const char *path = r->opt->save_base;
    VPTQ_CHECK(vptq_corpus_check_output(&r->opt->corpus, path, err));
    VPTQ_CHECK(vptq_checkpoint_check_output(&r->base.m->ckpt, path, err));
    VPTQ_CHECK(vptq_checkpoint_check_output(r->model.m ? &r->model.m->ckpt : NULL, path, err));
    return r->opt->dry_run && !vptq_comm_rank(r->dev->ctx)
               ? vptq_file_check_target(path, r->opt->force, err)
               : VPTQ_OK;
}

/* Plans, and measures unless this is a dry run. */
static vptq_status measure(run *r, vptq_corpus *corpus, vptq_arena *arena,
                           vptq_kld_result *result, vptq_err *err)
{
    if (r->opt->save_base)
        VPTQ_CHECK(check_saved(r, err));
    VPTQ_CHECK(plan(r, corpus, arena, result, err));
    if (r->opt->dry_run)
        return VPTQ_OK;
    if (r->model.m)
        VPTQ_CHECK(alloc_columns(r, result->tokens, arena, err));
    r->begin = vptq_seconds();
    return run_all(r, arena, err);
}

/* Brings the values of all ranks together. */
static vptq_status finish(run *r, vptq_status st, vptq_kld_result *result, vptq_err *err)
{
    const size_t n = r->model.m ? COLUMNS * result->tokens : 0;
    VPTQ_CHECK(vptq_units_gather(r->dev->ctx, st, r->columns.kld, n, err));
    while (r->model.m && r->added < r->w.count)
        VPTQ_CHECK(add_scores(r, r->added, err));
    if (!r->w.units.whole) /* the last windows may be those of other ranks */
        vptq_progress(r->dev->ctx, stage_name(r), vptq_plural(r->w.count, "window", "windows"),
                      r->w.count, r->w.count, NULL);
    if (r->model.m)
        compute_figures(&r->columns, r->tokens, result);
    result->seconds = vptq_seconds() - r->begin;
    return VPTQ_OK;
}

vptq_status vptq_eval_kld(vptq_device *dev, const vptq_model *m, const vptq_model *base,
                          const vptq_kld_options *opt, const vptq_eval_watch *watch,
                          vptq_kld_result *result, vptq_err *err)
{
    vptq_status st;
    vptq_corpus corpus = {.ids = {.data = NULL}};
    vptq_arena arena;
    vptq_kld_options own = *opt;
    run r = {.dev = dev,
             .model.m = m,
             .base.m = base,
             .opt = &own,
             .w = {.bos = -1},
             .file.file.fd = -1,
             .writer.file.fd = -1};
    if (watch)
        r.watch = *watch;
    if (!base == !opt->base_file || (opt->save_base && !base) || (!m && !opt->save_base))
        return vptq_fail(
            err, VPTQ_E_ARG,
            "give either an original to run or a saved one; only one that is run can be saved");
    if (!opt->base_file)
        own.context = vptq_model_window(m ? m : base, opt->context);
    *result = (vptq_kld_result){.context = own.context, .protocol = opt->protocol};
    vptq_arena_init(&arena, dev->ctx->mem);
    st = measure(&r, &corpus, &arena, result, err);
    if (!opt->dry_run)
        st = finish(&r, st, result, err);
    vptq_kld_base_file_release(&r.file);
    vptq_arena_release(&arena);
    vptq_corpus_release(&corpus);
    return st;
}
