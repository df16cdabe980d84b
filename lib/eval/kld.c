/* Divergence of a model from its original on a text: both run over the same windows, or the
 * original was recorded, or is recorded. */
#include "lib/eval/divergence.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/eval/figures.h"
#include "lib/eval/pair.h"
#include "lib/eval/recorded.h"
#include "lib/eval/windows.h"

/* One of the two models, where it is run. */
typedef struct side {
    const vptq_model *m; /* NULL: it is not */
    vptq_forward *f;
    float *hidden; /* [rows of a batch, hidden] */
} side;

typedef struct run {
    vptq_device *dev;
    const vptq_kld_options *opt;
    vptq_windows w;
    vptq_window_fn fn;
    void *arg;
    side model, base;
    vptq_kld_base_file file; /* a recorded base; file.fd < 0: none */
    vptq_kld_base_head head; /* of the one that is recorded */
    vptq_kld_base_writer writer;
    vptq_kld_base_rows recorded, recording;
    vptq_kld_token *scores; /* [rows of a batch] */
    double *tail;           /* [rows of a batch] */

    size_t tokens;   /* scored so far */
    double sum;      /* of their divergences */
    double tail_sum; /* of the base's probabilities outside its records */
    vptq_kld_columns columns;
} run;

/* ---- what is compared ---- */

/* The ids of the text are those of the base's tokenizer, too. */
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

/* Windows of a text for one model or both. */
static vptq_status plan_text(run *r, vptq_corpus *corpus, vptq_arena *arena, vptq_err *err)
{
    const vptq_kld_options *o = r->opt;
    const vptq_model *m = r->model.m ? r->model.m : r->base.m;
    VPTQ_CHECK(
        vptq_corpus_load(r->dev->ctx, &o->corpus, m->tokenizer, m->desc->vocab, corpus, err));
    if (r->model.m)
        VPTQ_CHECK(check_tokenizers(r, corpus, err));
    r->w.ids = corpus->ids.data;
    VPTQ_CHECK(vptq_windows_cut(&r->w, corpus->name, corpus->ids.count, o->context, 0,
                                o->windows, o->protocol, arena, err));
    r->w.bos = vptq_windows_bos(m, o->protocol);
    return VPTQ_OK;
}

/* The recorded windows. */
static vptq_status plan_recorded(run *r, vptq_arena *arena, vptq_kld_result *result,
                                 vptq_err *err)
{
    const vptq_ctx *ctx = r->dev->ctx;
    const vptq_kld_base_head *h = &r->file.head;
    VPTQ_CHECK(vptq_kld_base_file_open(r->opt->base_file, ctx->mem, &r->file, err));
    VPTQ_CHECK(vptq_kld_base_head_check(ctx, &r->file, r->model.m, r->opt, err));
    result->context = h->context;
    result->protocol =
        h->protocol == VPTQ_KLD_BASE_LLAMA_CPP ? VPTQ_PPL_LLAMA_CPP : VPTQ_PPL_GPTQ;
    memcpy(result->base_name, h->name, sizeof result->base_name);
    snprintf(result->base_fingerprint, sizeof result->base_fingerprint, "%016" PRIx64,
             h->model);
    r->w.ids = r->file.ids;
    VPTQ_CHECK(vptq_windows_cut(&r->w, r->opt->base_file, (size_t)h->windows * h->context,
                                h->context, 0, r->opt->windows, result->protocol, arena, err));
    r->w.bos = h->bos;
    return VPTQ_OK;
}

static vptq_status plan(run *r, vptq_corpus *corpus, vptq_arena *arena, vptq_kld_result *result,
                        vptq_err *err)
{
    if (r->model.m && r->base.m)
        VPTQ_CHECK(vptq_eval_check_shapes(r->model.m, r->base.m, err));
    if (r->opt->base_file)
        VPTQ_CHECK(plan_recorded(r, arena, result, err));
    else
        VPTQ_CHECK(plan_text(r, corpus, arena, err));
    if (r->opt->save_base)
        VPTQ_CHECK(
            vptq_kld_base_head_make(r->dev->ctx, r->base.m, r->opt, &r->w, &r->head, err));
    result->windows = r->w.count;
    result->tokens = (uint64_t)r->w.count * vptq_windows_scored(&r->w, 0);
    return VPTQ_OK;
}

/* ---- the run ---- */

/* The columns of all tokens; the scores of a batch. */
static vptq_status alloc_scores(run *r, vptq_arena *arena, vptq_err *err)
{
    const size_t tokens = r->w.count * vptq_windows_scored(&r->w, 0);
    double **column[] = {&r->columns.kld, &r->columns.delta, &r->columns.nll,
                         &r->columns.nll_base};
    for (size_t i = 0; i < sizeof column / sizeof *column; i++) {
        *column[i] = vptq_arena_alloc(arena, tokens, sizeof **column[i], err);
        if (!*column[i])
            return VPTQ_E_NOMEM;
    }
    return VPTQ_OK;
}

static vptq_status alloc_run(run *r, vptq_arena *arena, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_ctx *ctx = r->dev->ctx;
    side *sides[] = {&r->base, &r->model};
    const size_t bytes = (r->model.m ? r->model.m : r->base.m)->desc->hidden * sizeof(float);
    const size_t count = (size_t)(r->model.m != NULL) + (r->base.m != NULL);
    if (r->model.m)
        VPTQ_TRY(alloc_scores(r, arena, err));
    if (r->opt->base_file)
        VPTQ_TRY(vptq_kld_base_rows_open(&r->recorded, ctx, &r->file.head, false, arena, err));
    if (r->opt->save_base)
        VPTQ_TRY(vptq_kld_base_rows_open(&r->recording, ctx, &r->head, true, arena, err));
    VPTQ_TRY(vptq_windows_plan(&r->w, count * bytes + sizeof *r->scores + sizeof *r->tail,
                               vptq_mem_left(ctx->mem), arena, err));
    for (size_t i = 0; i < 2; i++) {
        if (!sides[i]->m)
            continue;
        sides[i]->hidden = vptq_arena_alloc(arena, r->w.batch_rows, bytes, err);
        if (!sides[i]->hidden)
            VPTQ_TRY(VPTQ_E_NOMEM);
    }
    r->scores = vptq_arena_alloc(arena, r->w.batch_rows, sizeof *r->scores, err);
    r->tail = vptq_arena_zalloc(arena, r->w.batch_rows, sizeof *r->tail, err);
    if (!r->scores || !r->tail)
        st = VPTQ_E_NOMEM;
out:
    return st;
}

/* The models' blocks count as done one after the other. */
static void progress(const run *r, size_t first, size_t end, uint32_t blocks)
{
    char text[128], so_far[32] = "";
    const uint64_t per = (r->model.m ? r->model.m->desc->layers : 0) +
                         (r->base.m ? (uint64_t)r->base.m->desc->layers : 0) + 1;
    if (r->tokens)
        snprintf(so_far, sizeof so_far, "kld %.6f, ", r->sum / (double)r->tokens);
    snprintf(text, sizeof text, "%swindows %zu-%zu of %zu", so_far, first + 1, end, r->w.count);
    vptq_progress(r->dev->ctx, r->model.m ? "divergence" : "recording",
                  first * per + (end - first) * blocks, r->w.count * per, text);
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

/* The scores of window `s`, with the base's probabilities outside its records. */
static vptq_status add_scores(run *r, size_t s, const vptq_kld_token *t, const double *tail,
                              size_t n, vptq_err *err)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t at = r->tokens + i;
        if (!isfinite(t[i].kld) || !isfinite(t[i].nll) || !isfinite(t[i].nll_base))
            return not_finite(r, s, i, err);
        sum += t[i].kld;
        r->tail_sum += tail[i];
        r->columns.kld[at] = t[i].kld;
        r->columns.nll[at] = t[i].nll;
        r->columns.nll_base[at] = t[i].nll_base;
        r->columns.delta[at] = exp(-t[i].nll) - exp(-t[i].nll_base);
        r->columns.same += t[i].same_top1;
    }
    r->sum += sum;
    r->tokens += n;
    if (r->fn)
        r->fn(r->arg, s, sum / (double)n, n);
    return VPTQ_OK;
}

static vptq_status run_blocks(run *r, side *s, size_t first, size_t end, uint32_t *done,
                              vptq_err *err)
{
    const size_t *starts = r->w.starts, count = end - first;
    if (!s->m)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_forward_embed(s->f, r->w.inputs, starts[count], s->hidden, err));
    for (uint32_t l = 0; l < s->m->desc->layers; l++) {
        progress(r, first, end, *done + l);
        VPTQ_CHECK(vptq_forward_block(s->f, l, starts, count, s->hidden, NULL, NULL, err));
    }
    *done += s->m->desc->layers;
    return VPTQ_OK;
}

/* Records n rows, which begin at window `s`. */
static vptq_status record(run *r, size_t s, size_t n, const float *hidden, vptq_err *err)
{
    size_t bad;
    vptq_status st =
        vptq_kld_base_rows_record(&r->recording, r->base.f, n, r->base.m->desc->hidden, hidden,
                                  r->w.targets, &r->writer, &bad, err);
    if (st || bad == n)
        return st;
    const size_t each = vptq_windows_scored(&r->w, s);
    return not_finite(r, s + bad / each, bad % each, err);
}

/* Windows [g, e) of the batch that begins at `first`. */
static vptq_status score_group(run *r, size_t first, size_t g, size_t e, vptq_err *err)
{
    const vptq_model_desc *d = (r->model.m ? r->model.m : r->base.m)->desc;
    const size_t at = r->w.starts[g] * d->hidden;
    const float *hidden = r->model.m ? r->model.hidden + at : NULL;
    const float *hidden_base = r->base.m ? r->base.hidden + at : NULL;
    size_t rows = 0;
    if (r->base.m)
        rows = vptq_windows_gather(&r->w, first, g, e, d->hidden, r->base.hidden);
    if (r->model.m)
        rows = vptq_windows_gather(&r->w, first, g, e, d->hidden, r->model.hidden);
    if (r->opt->save_base)
        VPTQ_CHECK(record(r, first + g, rows, hidden_base, err));
    if (!r->model.m)
        return VPTQ_OK;
    if (r->base.m)
        VPTQ_CHECK(vptq_eval_kld_states(r->dev->ctx, d, r->base.f, r->model.f, rows, 1,
                                        hidden_base, hidden, r->w.targets, r->scores, err));
    else
        VPTQ_CHECK(vptq_kld_base_rows_compare(&r->recorded, r->model.f, rows, d->hidden, hidden,
                                              r->w.targets, &r->file, r->tokens, r->scores,
                                              r->tail, err));
    for (size_t i = g, from = 0; i < e; i++) {
        size_t n = vptq_windows_scored(&r->w, first + i);
        VPTQ_CHECK(add_scores(r, first + i, r->scores + from, r->tail + from, n, err));
        from += n;
    }
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

static vptq_status run_all(run *r, vptq_arena *arena, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    side *sides[] = {&r->model, &r->base};
    for (size_t i = 0; i < 2; i++)
        if (sides[i]->m)
            VPTQ_TRY(vptq_forward_open(sides[i]->m, r->dev, r->w.longest, &sides[i]->f, err));
    VPTQ_TRY(alloc_run(r, arena, err));
    if (r->opt->save_base)
        VPTQ_TRY(vptq_kld_base_writer_open(r->opt->save_base, r->opt->force, &r->head, r->w.ids,
                                           &r->writer, err));
    for (size_t s = 0, e; s < r->w.count; s = e) {
        e = vptq_windows_batch_end(&r->w, s);
        VPTQ_TRY(run_batch(r, s, e, err));
    }
    if (r->opt->save_base)
        VPTQ_TRY(vptq_kld_base_writer_commit(&r->writer, err));
out:
    vptq_kld_base_writer_abort(&r->writer);
    vptq_forward_close(r->model.f);
    vptq_forward_close(r->base.f);
    return st;
}

vptq_status vptq_eval_kld(vptq_device *dev, const vptq_model *m, const vptq_model *base,
                          const vptq_kld_options *opt, vptq_window_fn fn, void *arg,
                          vptq_kld_result *result, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_corpus corpus = {.ids = {.data = NULL}};
    vptq_arena arena;
    run r = {.dev = dev,
             .model.m = m,
             .base.m = base,
             .opt = opt,
             .w = {.bos = -1},
             .fn = fn,
             .arg = arg,
             .file.file.fd = -1,
             .writer.file.fd = -1};
    *result = (vptq_kld_result){.context = opt->context, .protocol = opt->protocol};
    if (!base == !opt->base_file || (opt->save_base && !base) || (!m && !opt->save_base))
        return vptq_fail(
            err, VPTQ_E_ARG,
            "a model is compared with an original that is run or was recorded, and "
            "one that is run can be recorded");
    vptq_arena_init(&arena, dev->ctx->mem);
    VPTQ_TRY(plan(&r, &corpus, &arena, result, err));
    if (opt->dry_run)
        goto out;
    double begin = vptq_seconds();
    VPTQ_TRY(run_all(&r, &arena, err));
    if (m) {
        vptq_kld_figures(&r.columns, r.tokens, result);
        result->base_tail = r.tail_sum / (double)r.tokens;
    }
    result->seconds = vptq_seconds() - begin;
out:
    vptq_kld_base_file_release(&r.file);
    vptq_arena_release(&arena);
    vptq_corpus_release(&corpus);
    return st;
}
