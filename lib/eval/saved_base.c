/* The saved logits of an original (formats/vptq/kld_base.h): checks that a file matches a model
 * and a text, saves rows, and compares rows of a model with saved ones.
 *
 * Let p^ be the saved probabilities of the ids K of a record, T that of all other ids, s = sum
 * p^
 * + T (1 up to rounding) and q the model's probabilities.  The divergence is that of p^/s over
 * K and one bucket for the rest:
 *
 *     (sum_K p^_j (ln p^_j - ln q_j) + T (ln T - ln Q)) / s - ln s,   Q = sum of q outside K
 *
 * By the log sum inequality it is at most the divergence over all ids. */
#include "lib/eval/saved_base.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/parallel.h"
#include "lib/base/text.h"

/* ---- the head of a file ---- */

/* XXH3 over the bytes of all ids in order, each seeded with the hash so far: the same for any
 * file format of a tokenizer.  0 without a tokenizer. */
static vptq_status vocabulary_fingerprint(const vptq_ctx *ctx, const vptq_model *m,
                                          uint64_t *sum, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_buf text;
    *sum = 0;
    if (!m->tokenizer)
        return VPTQ_OK;
    vptq_buf_init(&text, ctx->mem);
    for (uint32_t i = 0; i < m->vocab.count; i++) {
        const int32_t id = (int32_t)i;
        bool start = false;
        vptq_buf_clear(&text);
        VPTQ_TRY(vptq_tokenizer_decode(m->tokenizer, &id, 1, &start, true, &text, err));
        *sum = vptq_hash(text.data, text.len, *sum);
    }
out:
    vptq_buf_release(&text);
    return st;
}

vptq_status vptq_saved_base_make_head(const vptq_ctx *ctx, const vptq_model *base,
                                      const vptq_kld_options *opt, const vptq_windows *w,
                                      vptq_kld_base_head *head, vptq_err *err)
{
    char hex[17];
    const uint32_t vocab = base->desc->vocab;
    const bool full = opt->precision == VPTQ_KLD_BASE_FULL;
    if (!full && opt->top == 0)
        return vptq_fail(err, VPTQ_E_ARG,
                         "the number of likeliest ids to save is 0, expected at least 1");
    if (w->count > UINT32_MAX || opt->context > INT32_MAX)
        return vptq_fail(err, VPTQ_E_ARG, "%zu windows of %zu tokens are too many to save",
                         w->count, opt->context);
    *head = (vptq_kld_base_head){
        .precision = opt->precision,
        .protocol =
            opt->protocol == VPTQ_PPL_LLAMA_CPP ? VPTQ_KLD_BASE_LLAMA_CPP : VPTQ_KLD_BASE_GPTQ,
        .vocab = vocab,
        .entries = full || opt->top > vocab ? vocab : (uint32_t)opt->top,
        .context = (uint32_t)opt->context,
        .windows = (uint32_t)w->count,
        .bos = w->bos,
    };
    VPTQ_CHECK(vptq_checkpoint_fingerprint(&base->ckpt, ctx, hex, err));
    head->model = strtoull(hex, NULL, 16);
    VPTQ_CHECK(vocabulary_fingerprint(ctx, base, &head->vocabulary, err));
    const char *name = vptq_path_base(base->ckpt.path);
    memcpy(head->name, name, strnlen(name, VPTQ_KLD_BASE_NAME_MAX));
    return VPTQ_OK;
}

static const char *protocol_name(bool llama_cpp)
{
    return llama_cpp ? "llama.cpp" : "gptq";
}

static vptq_status check_settings(const vptq_kld_base_file *file, const vptq_model *m,
                                  const vptq_kld_options *opt, vptq_err *err)
{
    const vptq_kld_base_head *h = &file->head;
    const bool llama_cpp = h->protocol == VPTQ_KLD_BASE_LLAMA_CPP;
    if (h->vocab != m->desc->vocab)
        return vptq_fail(err, VPTQ_E_MISMATCH,
                         "%s: saved over a vocabulary of %" PRIu32 " ids, %s has %" PRIu32,
                         file->file.path, h->vocab, m->ckpt.path, m->desc->vocab);
    if (opt->context && opt->context != h->context)
        return vptq_fail(err, VPTQ_E_MISMATCH,
                         "%s: saved with a context of %" PRIu32 " tokens, not of %zu",
                         file->file.path, h->context, opt->context);
    if (opt->windows > h->windows)
        return vptq_fail(err, VPTQ_E_MISMATCH, "%s: saved %" PRIu32 " window%s, not %zu",
                         file->file.path, h->windows, vptq_plural(h->windows, "", "s"),
                         opt->windows);
    if (!opt->any_protocol && llama_cpp != (opt->protocol == VPTQ_PPL_LLAMA_CPP))
        return vptq_fail(err, VPTQ_E_MISMATCH, "%s: saved by the %s protocol, not by %s",
                         file->file.path, protocol_name(llama_cpp), protocol_name(!llama_cpp));
    return VPTQ_OK;
}

/* Checks that the text begins with the saved ids.  `other`: the tokenizers differ. */
static vptq_status check_text(const vptq_ctx *ctx, const vptq_kld_base_file *file,
                              const vptq_model *m, const vptq_kld_options *opt, bool other,
                              vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_corpus c = {.ids = {.data = NULL}};
    const size_t n = (size_t)file->head.windows * file->head.context;
    size_t i = 0;
    VPTQ_TRY(vptq_corpus_load(ctx, &opt->corpus, m->tokenizer, m->desc->vocab, &c, err));
    while (i < n && i < c.ids.count && c.ids.data[i] == file->ids[i])
        i++;
    if (i < n && other)
        st = vptq_fail(err, VPTQ_E_MISMATCH,
                       "%s: saved with another tokenizer: that of %s gives %s other tokens "
                       "from token %zu on",
                       file->file.path, m->ckpt.path, c.name, i);
    else if (i < n && i == c.ids.count)
        st = vptq_fail(err, VPTQ_E_MISMATCH,
                       "%s: saved from another text: %s has %zu tokens, the saved windows "
                       "%zu",
                       file->file.path, c.name, c.ids.count, n);
    else if (i < n)
        st = vptq_fail(err, VPTQ_E_MISMATCH,
                       "%s: saved from another text: %s has other tokens from token %zu on",
                       file->file.path, c.name, i);
out:
    vptq_corpus_release(&c);
    return st;
}

vptq_status vptq_saved_base_check(const vptq_ctx *ctx, const vptq_kld_base_file *file,
                                  const vptq_model *m, const vptq_kld_options *opt,
                                  vptq_err *err)
{
    const vptq_kld_base_head *h = &file->head;
    uint64_t vocabulary;
    VPTQ_CHECK(check_settings(file, m, opt, err));
    VPTQ_CHECK(vocabulary_fingerprint(ctx, m, &vocabulary, err));
    const bool other = h->vocabulary && vocabulary && h->vocabulary != vocabulary;
    if (opt->corpus.text_count + opt->corpus.token_count > 0)
        VPTQ_CHECK(check_text(ctx, file, m, opt, other, err));
    else if (other)
        return vptq_fail(err, VPTQ_E_MISMATCH, "%s: saved with another tokenizer than %s has",
                         file->file.path, m->ckpt.path);
    const int32_t bos = vptq_windows_bos(
        m, h->protocol == VPTQ_KLD_BASE_LLAMA_CPP ? VPTQ_PPL_LLAMA_CPP : VPTQ_PPL_GPTQ);
    if (m->tokenizer && bos != h->bos)
        return vptq_fail(err, VPTQ_E_MISMATCH,
                         "%s: saved with id %" PRId32 " in place of each window's first token, "
                         "%s uses %" PRId32 " (-1: none)",
                         file->file.path, h->bos, m->ckpt.path, bos);
    return VPTQ_OK;
}

/* ---- rows ---- */

/* Bytes of the logits and records of a chunk; rows of a parallel step. */
enum { ROWS_BYTES = 64 << 20, ROWS_STEP = 4 };

vptq_status vptq_saved_base_rows_open(vptq_saved_base_rows *b, const vptq_ctx *ctx,
                                      const vptq_kld_base_head *head, bool save,
                                      vptq_arena *arena, vptq_err *err)
{
    const size_t row = head->vocab * sizeof(float) + vptq_kld_base_record_bytes(head);
    const size_t left = vptq_mem_left(ctx->mem) / 4;
    const size_t fit = (left < ROWS_BYTES ? left : ROWS_BYTES) / row;
    const size_t scratch = save ? (size_t)ctx->threads * head->entries : 0;
    *b = (vptq_saved_base_rows){.ctx = ctx, .head = head};
    b->chunk = fit < 1 ? 1 : fit < VPTQ_FORWARD_ROWS ? fit : VPTQ_FORWARD_ROWS;
    b->logits = vptq_arena_alloc(arena, b->chunk, head->vocab * sizeof *b->logits, err);
    b->records = vptq_arena_alloc(arena, b->chunk, vptq_kld_base_record_bytes(head), err);
    b->values = vptq_arena_alloc(arena, scratch, sizeof *b->values, err);
    b->ids = vptq_arena_alloc(arena, scratch, sizeof *b->ids, err);
    b->finite = vptq_arena_alloc(arena, b->chunk, sizeof *b->finite, err);
    if (!b->logits || !b->records || !b->values || !b->ids || !b->finite)
        return VPTQ_E_NOMEM;
    return VPTQ_OK;
}

/* ---- one row of logits ---- */

/* Log of the sum of exp(z); *best = the likeliest id, the first of equals.  Not finite if a
 * logit is not. */
static double log_sum(const float *z, size_t n, size_t *best)
{
    double sum = 0;
    *best = 0;
    for (size_t j = 1; j < n; j++)
        *best = z[j] > z[*best] ? j : *best;
    const double max = (double)z[*best];
    for (size_t j = 0; j < n; j++)
        sum += exp((double)z[j] - max);
    return max + log(sum); /* cppcheck-suppress invalidFunctionArg ; n > 0 */
}

/* Whether id a is less likely than b; of equals the larger id counts as less likely. */
static bool below(const float *z, uint32_t a, uint32_t b)
{
    return z[a] < z[b] || (z[a] == z[b] && a > b);
}

/* Restores the heap with n ids, the least likely on top, after the id at i has changed. */
static void sift(const float *z, uint32_t *heap, size_t n, size_t i)
{
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && below(z, heap[child + 1], heap[child]))
            child++;
        if (!below(z, heap[child], heap[i]))
            break;
        const uint32_t id = heap[i];
        heap[i] = heap[child];
        heap[child] = id;
    }
}

static int by_id(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Fills ids with the k likeliest of n ids, in rising order. */
static void select_likeliest(const float *z, size_t n, uint32_t *ids, size_t k)
{
    for (size_t i = 0; i < k; i++)
        ids[i] = (uint32_t)i;
    for (size_t i = k / 2; i-- > 0;)
        sift(z, ids, k, i);
    for (size_t j = k; j < n; j++)
        if (below(z, ids[0], (uint32_t)j)) {
            ids[0] = (uint32_t)j;
            sift(z, ids, k, 0);
        }
    qsort(ids, k, sizeof *ids, by_id);
}

typedef struct rows_job {
    const vptq_saved_base_rows *b;
    uint64_t first; /* number of the first record; for saving only */
    const int32_t *targets;
    vptq_kld_token *out; /* out and tail: for comparing only */
    double *tail;
} rows_job;

static void save_row(const rows_job *job, size_t row, int thread)
{
    const vptq_saved_base_rows *b = job->b;
    const vptq_kld_base_head *h = b->head;
    const float *z = b->logits + row * h->vocab;
    double *values = b->values + (size_t)thread * h->entries;
    uint32_t *ids = b->ids + (size_t)thread * h->entries;
    size_t best;
    const double lse = log_sum(z, h->vocab, &best);
    b->finite[row] = isfinite(lse) && isfinite(z[job->targets[row]]);
    if (!b->finite[row])
        return;
    double rest = 0;
    if (h->precision == VPTQ_KLD_BASE_COMPACT) {
        select_likeliest(z, h->vocab, ids, h->entries);
        for (size_t j = 0, i = 0; j < h->vocab; j++) {
            if (i < h->entries && ids[i] == j)
                i++;
            else
                rest += exp((double)z[j] - lse);
        }
    }
    for (size_t i = 0; i < h->entries; i++)
        values[i] = (double)z[h->precision == VPTQ_KLD_BASE_FULL ? i : ids[i]] - lse;
    vptq_kld_base_record_fill(h, job->first + row,
                              &(vptq_kld_base_values){(uint32_t)best,
                                                      (double)z[job->targets[row]] - lse,
                                                      log(rest), values, ids},
                              b->records + row * vptq_kld_base_record_bytes(h));
}

static void save_rows(void *arg, size_t begin, size_t end, int thread)
{
    for (size_t row = begin; row < end; row++)
        save_row(arg, row, thread);
}

/* Logits of the model for one row, the log of the sum of their exp, and their maximum. */
typedef struct model_row {
    const float *y;
    size_t vocab;
    double lse, max;
} model_row;

/* Sum of p^ (ln p^ - ln q) over the ids of a record.  *mass = sum of p^, *outside = sum of
 * exp(y - max) over all other ids. */
static double cross_entries(const vptq_kld_base_record *r, size_t entries, const model_row *m,
                            double *mass, double *outside)
{
    double sum = 0;
    size_t next = 0;
    *mass = *outside = 0;
    for (size_t i = 0; i < entries; i++) {
        const size_t id = vptq_kld_base_id(r, i);
        const double value = vptq_kld_base_log(r, i), p = exp(value);
        sum += p * (value - ((double)m->y[id] - m->lse));
        *mass += p;
        for (; next < id; next++)
            *outside += exp((double)m->y[next] - m->max);
        next = id + 1;
    }
    for (; next < m->vocab; next++)
        *outside += exp((double)m->y[next] - m->max);
    return sum;
}

static void compare_rows(void *arg, size_t begin, size_t end, int thread)
{
    const rows_job *job = arg;
    const vptq_saved_base_rows *b = job->b;
    const vptq_kld_base_head *h = b->head;
    (void)thread;
    for (size_t row = begin; row < end; row++) {
        const float *y = b->logits + row * h->vocab;
        const vptq_kld_base_record r =
            vptq_kld_base_record_at(h, b->records + row * vptq_kld_base_record_bytes(h));
        size_t best;
        const double lse = log_sum(y, h->vocab, &best), max = (double)y[best];
        double mass, outside;
        const model_row m = {y, h->vocab, lse, max};
        double sum = cross_entries(&r, h->entries, &m, &mass, &outside);
        const double tail = exp((double)r.tail);
        if (tail > 0)
            sum += tail * ((double)r.tail - (log(outside) + max - lse));
        const double kld = sum / (mass + tail) - log(mass + tail);
        job->tail[row] = tail;
        job->out[row] = (vptq_kld_token){
            /* rounding may make a tiny divergence negative; NaN stays */
            .kld = kld < 0 ? 0 : kld,
            .nll = lse - (double)y[job->targets[row]],
            .nll_base = -(double)r.target,
            .same_top1 = best == r.likeliest,
        };
    }
}

/* ---- rows of hidden states ---- */

vptq_status vptq_saved_base_rows_save(vptq_saved_base_rows *b,
                                      const vptq_saved_base_batch *batch,
                                      vptq_kld_base_writer *w, size_t *bad, vptq_err *err)
{
    const size_t n = batch->rows;
    *bad = n;
    for (size_t at = 0, rows; at < n; at += rows) {
        rows = vptq_forward_rows(batch->f, n - at, b->chunk);
        rows_job job = {.b = b, .first = w->records, .targets = batch->targets + at};
        VPTQ_CHECK(vptq_forward_logits(batch->f, rows, batch->hidden + at * batch->dim,
                                       b->logits, err));
        vptq_parallel_for(b->ctx->threads, rows, ROWS_STEP, save_rows, &job);
        for (size_t i = 0; i < rows; i++)
            if (!b->finite[i]) {
                *bad = at + i;
                return VPTQ_OK;
            }
        VPTQ_CHECK(vptq_kld_base_writer_add(w, b->records, rows, err));
    }
    return VPTQ_OK;
}

vptq_status vptq_saved_base_rows_compare(vptq_saved_base_rows *b,
                                         const vptq_saved_base_batch *batch,
                                         const vptq_kld_base_file *file, uint64_t first,
                                         vptq_kld_token *out, double *tail, vptq_err *err)
{
    const size_t n = batch->rows;
    for (size_t at = 0, rows; at < n; at += rows) {
        rows = vptq_forward_rows(batch->f, n - at, b->chunk);
        rows_job job = {
            .b = b, .targets = batch->targets + at, .out = out + at, .tail = tail + at};
        VPTQ_CHECK(vptq_kld_base_file_read(file, first + at, rows, b->records, err));
        VPTQ_CHECK(vptq_forward_logits(batch->f, rows, batch->hidden + at * batch->dim,
                                       b->logits, err));
        vptq_parallel_for(b->ctx->threads, rows, ROWS_STEP, compare_rows, &job);
    }
    return VPTQ_OK;
}
