/* With p^ the recorded probabilities of the ids K of a record, T that of all others, s = sum p^
 * + T (1 but for rounding), and q the model's, the divergence is that of the distribution p^/s
 * over K and one bucket for the rest:
 *
 *     (sum_K p^_j (ln p^_j - ln q_j) + T (ln T - ln Q)) / s - ln s,   Q = sum of q outside K
 *
 * which by the log sum inequality is at most that over all ids. */
#include "lib/eval/recorded.h"

#include <math.h>
#include <stdlib.h>

#include "lib/base/parallel.h"

/* Logits and records of some rows; rows of a parallel step. */
enum { ROWS_BYTES = 64 << 20, ROWS_STEP = 4 };

vptq_status vptq_kld_base_rows_open(vptq_kld_base_rows *b, const vptq_ctx *ctx,
                                    const vptq_kld_base_head *head, bool record,
                                    vptq_arena *arena, vptq_err *err)
{
    const size_t row = head->vocab * sizeof(float) + vptq_kld_base_record_bytes(head);
    const size_t left = vptq_mem_left(ctx->mem) / 4;
    const size_t fit = (left < ROWS_BYTES ? left : ROWS_BYTES) / row;
    const size_t scratch = record ? (size_t)ctx->threads * head->entries : 0;
    *b = (vptq_kld_base_rows){.ctx = ctx, .head = head};
    b->most = fit < 1 ? 1 : fit < VPTQ_FORWARD_ROWS ? fit : VPTQ_FORWARD_ROWS;
    b->logits = vptq_arena_alloc(arena, b->most, head->vocab * sizeof *b->logits, err);
    b->records = vptq_arena_alloc(arena, b->most, vptq_kld_base_record_bytes(head), err);
    b->values = vptq_arena_alloc(arena, scratch, sizeof *b->values, err);
    b->ids = vptq_arena_alloc(arena, scratch, sizeof *b->ids, err);
    b->finite = vptq_arena_alloc(arena, b->most, sizeof *b->finite, err);
    if (!b->logits || !b->records || !b->values || !b->ids || !b->finite)
        return VPTQ_E_NOMEM;
    return VPTQ_OK;
}

/* ---- one row of logits ---- */

/* Log of the sum of exp over a row; *best: the likeliest id, the first of several.  NaN or
 * infinity where a logit is. */
static double log_sum(const float *z, size_t n, size_t *best)
{
    double sum = 0;
    *best = 0;
    for (size_t j = 1; j < n; j++)
        *best = z[j] > z[*best] ? j : *best;
    const double max = (double)z[*best];
    for (size_t j = 0; j < n; j++)
        sum += exp((double)z[j] - max);
    return max + log(sum);
}

/* Whether id a is less likely than b; of equals the larger one is. */
static bool below(const float *z, uint32_t a, uint32_t b)
{
    return z[a] < z[b] || (z[a] == z[b] && a > b);
}

/* A heap with the least likely of n ids on top: puts the one at place i where it belongs among
 * those under it. */
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

/* The k likeliest of n ids, ascending. */
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
    const vptq_kld_base_rows *b;
    uint64_t first; /* number of the first record, for recording */
    const int32_t *targets;
    vptq_kld_token *out; /* for comparing ... */
    double *tail;
} rows_job;

static void record_row(const rows_job *job, size_t row, int thread)
{
    const vptq_kld_base_rows *b = job->b;
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
    vptq_kld_base_record_fill(h, job->first + row, (uint32_t)best,
                              (double)z[job->targets[row]] - lse, log(rest), values, ids,
                              b->records + row * vptq_kld_base_record_bytes(h));
}

static void record_rows(void *arg, size_t begin, size_t end, int thread)
{
    for (size_t row = begin; row < end; row++)
        record_row(arg, row, thread);
}

/* Sum of p^ (ln p^ - ln q) over the ids of a record; *mass: that of p^; *outside: sum of
 * exp(y - max) of all other ids. */
static double cross_entries(const vptq_kld_base_record *r, size_t entries, const float *y,
                            size_t vocab, double lse, double max, double *mass, double *outside)
{
    double sum = 0;
    size_t next = 0;
    *mass = *outside = 0;
    for (size_t i = 0; i < entries; i++) {
        const size_t id = vptq_kld_base_id(r, i);
        const double value = vptq_kld_base_log(r, i), p = exp(value);
        sum += p * (value - ((double)y[id] - lse));
        *mass += p;
        for (; next < id; next++)
            *outside += exp((double)y[next] - max);
        next = id + 1;
    }
    for (; next < vocab; next++)
        *outside += exp((double)y[next] - max);
    return sum;
}

static void compare_rows(void *arg, size_t begin, size_t end, int thread)
{
    const rows_job *job = arg;
    const vptq_kld_base_rows *b = job->b;
    const vptq_kld_base_head *h = b->head;
    (void)thread;
    for (size_t row = begin; row < end; row++) {
        const float *y = b->logits + row * h->vocab;
        const vptq_kld_base_record r =
            vptq_kld_base_record_at(h, b->records + row * vptq_kld_base_record_bytes(h));
        size_t best;
        const double lse = log_sum(y, h->vocab, &best), max = (double)y[best];
        double mass, outside;
        double sum = cross_entries(&r, h->entries, y, h->vocab, lse, max, &mass, &outside);
        const double tail = exp((double)r.tail);
        if (tail > 0)
            sum += tail * ((double)r.tail - (log(outside) + max - lse));
        const double kld = sum / (mass + tail) - log(mass + tail);
        job->tail[row] = tail;
        job->out[row] = (vptq_kld_token){
            /* Rounding may leave a divergence of almost nothing below zero; NaN stays. */
            .kld = kld < 0 ? 0 : kld,
            .nll = lse - (double)y[job->targets[row]],
            .nll_base = -(double)r.target,
            .same_top1 = best == r.likeliest,
        };
    }
}

/* ---- rows of states ---- */

vptq_status vptq_kld_base_rows_record(vptq_kld_base_rows *b, vptq_forward *f, size_t n,
                                      size_t dim, const float *hidden, const int32_t *targets,
                                      vptq_kld_base_writer *w, size_t *bad, vptq_err *err)
{
    *bad = n;
    for (size_t at = 0, rows; at < n; at += rows) {
        rows = n - at < b->most ? n - at : b->most;
        rows_job job = {.b = b, .first = w->records, .targets = targets + at};
        VPTQ_CHECK(vptq_forward_logits(f, rows, hidden + at * dim, b->logits, err));
        vptq_parallel_for(b->ctx->threads, rows, ROWS_STEP, record_rows, &job);
        for (size_t i = 0; i < rows; i++)
            if (!b->finite[i]) {
                *bad = at + i;
                return VPTQ_OK;
            }
        VPTQ_CHECK(vptq_kld_base_writer_add(w, b->records, rows, err));
    }
    return VPTQ_OK;
}

vptq_status vptq_kld_base_rows_compare(vptq_kld_base_rows *b, vptq_forward *f, size_t n,
                                       size_t dim, const float *hidden, const int32_t *targets,
                                       const vptq_kld_base_file *file, uint64_t first,
                                       vptq_kld_token *out, double *tail, vptq_err *err)
{
    for (size_t at = 0, rows; at < n; at += rows) {
        rows = n - at < b->most ? n - at : b->most;
        rows_job job = {.b = b, .targets = targets + at, .out = out + at, .tail = tail + at};
        VPTQ_CHECK(vptq_kld_base_file_read(file, first + at, rows, b->records, err));
        VPTQ_CHECK(vptq_forward_logits(f, rows, hidden + at * dim, b->logits, err));
        vptq_parallel_for(b->ctx->threads, rows, ROWS_STEP, compare_rows, &job);
    }
    return VPTQ_OK;
}
