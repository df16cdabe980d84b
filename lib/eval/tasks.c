/* Choice tasks: log-likelihoods of planned requests batch by batch, answers, figures, samples.
 */
#include "lib/eval/tasks.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/file.h"
#include "lib/base/text.h"
#include "lib/eval/task_plan.h"
#include "lib/eval/units.h"
#include "lib/model/forward.h"
#include "lib/report/emit.h"

/* Limits of a batch: bytes of its hidden states, and groups of the forward pass.  Enough that a
 * model larger than memory is read only a few times. */
enum { BATCH_BYTES = 256 << 20, BATCH_GROUPS = 16 };

typedef struct run {
    vptq_device *dev;
    const vptq_model *m;
    const char *name;
    const vptq_task_file *file;
    const vptq_task_plan *plan;
    vptq_forward *f;
    vptq_task_answer *answers; /* [file->count] */

    vptq_units units;

    /* one batch of sequences [first, end) */
    size_t limit;             /* maximum rows, unless one group has more */
    size_t *starts, *parents; /* relative to the batch */
    float *hidden;            /* [rows, dim] */

    /* a chunk of its pairs */
    float *picked; /* [VPTQ_FORWARD_ROWS, dim] */
    vptq_nll_state *state;

    /* by pair, in one array; filled for the units of this rank */
    double *logprob;      /* rounded to float */
    double *likeliest;    /* 1: of all tokens */
    size_t rows;          /* all pairs before this row are filled */
    size_t item, request; /* all before them are done */
    uint64_t correct;     /* of the finished items */
} run;

/* ---- batches ---- */

/* The end of the batch that begins at sequence `first` of a unit that ends at `end`. */
static size_t batch_end(const run *r, size_t first, size_t end)
{
    const vptq_task_plan *p = r->plan;
    size_t stop = vptq_forward_group_trees(p->starts, p->parents, end, first);
    for (size_t groups = 1; stop < end && groups < BATCH_GROUPS; groups++) {
        size_t e = vptq_forward_group_trees(p->starts, p->parents, end, stop);
        if (p->starts[e] - p->starts[first] > r->limit)
            break;
        stop = e;
    }
    return stop;
}

static vptq_status alloc_run(run *r, vptq_arena *arena, vptq_err *err)
{
    const vptq_task_plan *p = r->plan;
    const size_t dim = r->m->desc->hidden, left = vptq_mem_left(r->dev->ctx->mem) / 4;
    size_t rows = 0, count = 0;
    r->limit = (left < BATCH_BYTES ? left : BATCH_BYTES) / (dim * sizeof *r->hidden);
    VPTQ_CHECK(vptq_units_plan(&r->units, r->dev->ctx, p->starts, p->parents, p->sequences,
                               arena, err));
    for (size_t s = 0, e, unit = 0; s < p->sequences; s = e) {
        unit += s == r->units.first[unit + 1];
        e = batch_end(r, s, r->units.first[unit + 1]);
        rows = p->starts[e] - p->starts[s] > rows ? p->starts[e] - p->starts[s] : rows;
        count = e - s > count ? e - s : count;
    }
    r->starts = vptq_arena_alloc(arena, count + 1, sizeof *r->starts, err);
    r->parents = vptq_arena_alloc(arena, count, sizeof *r->parents, err);
    r->hidden = vptq_arena_alloc(arena, rows, dim * sizeof *r->hidden, err);
    r->picked = vptq_arena_alloc(arena, VPTQ_FORWARD_ROWS, dim * sizeof *r->picked, err);
    r->state = vptq_arena_alloc(arena, VPTQ_FORWARD_ROWS, sizeof *r->state, err);
    return r->starts && r->parents && r->hidden && r->picked && r->state ? VPTQ_OK
                                                                         : VPTQ_E_NOMEM;
}

/* ---- answers ---- */

/* numpy.argmax of values, each divided by the characters of its request (`by` NULL: not). */
static uint32_t largest(const double *values, const vptq_task_request *by, uint32_t n)
{
    uint32_t best = 0;
    double max = 0;
    for (uint32_t i = 0; i < n; i++) {
        const double v = by ? values[i] / by[i].characters : values[i];
        if (i == 0 || v > max) {
            max = v;
            best = i;
        }
    }
    return best;
}

static vptq_status finish_request(const run *r, const vptq_task_item *item, uint32_t i,
                                  vptq_task_answer *a, vptq_err *err)
{
    const vptq_task_plan *p = r->plan;
    const size_t begin = p->scored[r->request + i], end = p->scored[r->request + i + 1];
    double sum = 0;
    a->greedy[i] = true;
    for (size_t k = begin; k < end; k++) {
        sum += r->logprob[p->scored_pair[k]];
        a->greedy[i] &= r->likeliest[p->scored_pair[k]] > 0;
    }
    if (!isfinite(sum))
        return vptq_fail(err, VPTQ_E_NUMERIC,
                         "%s: the model's output is not finite for the item in line %u of %s",
                         r->m->ckpt.path, item->line, r->file->path);
    a->loglikelihoods[i] = sum;
    a->tokens[i] = (uint32_t)(end - begin);
    return VPTQ_OK;
}

static vptq_status finish_item(run *r, vptq_err *err)
{
    const vptq_task_item *item = &r->file->items[r->item];
    vptq_task_answer *a = &r->answers[r->item];
    for (uint32_t i = 0; i < item->count; i++) {
        VPTQ_CHECK(finish_request(r, item, i, a, err));
    }
    a->choice = largest(a->loglikelihoods, NULL, item->count);
    a->choice_norm = largest(a->loglikelihoods, item->requests, item->count);
    a->correct = item->count == 1 ? a->greedy[0] : a->choice == item->gold;
    a->correct_norm = item->count > 1 && a->choice_norm == item->gold;
    r->correct += a->correct;
    r->request += item->count;
    r->item++;
    return VPTQ_OK;
}

static vptq_status alloc_answers(run *r, vptq_arena *arena, vptq_err *err)
{
    const size_t n = r->plan->requests;
    r->answers = vptq_arena_zalloc(arena, r->file->count, sizeof *r->answers, err);
    double *ll = vptq_arena_alloc(arena, n, sizeof *ll, err);
    uint32_t *tokens = vptq_arena_alloc(arena, n, sizeof *tokens, err);
    bool *greedy = vptq_arena_alloc(arena, n, sizeof *greedy, err);
    if (!r->answers || !ll || !tokens || !greedy)
        return VPTQ_E_NOMEM;
    for (size_t i = 0, at = 0; i < r->file->count; at += r->file->items[i++].count) {
        r->answers[i].loglikelihoods = ll + at;
        r->answers[i].tokens = tokens + at;
        r->answers[i].greedy = greedy + at;
    }
    return VPTQ_OK;
}

/* ---- the model ---- */

/* In the batch of `rows` rows after `first` ones, `blocks` blocks are done for all rows, and
 * the output head for `heads` rows. */
static void progress(const run *r, size_t first, size_t rows, uint32_t blocks, size_t heads)
{
    const uint64_t steps = (uint64_t)rows * blocks + heads;
    char text[96];
    int n = r->units.whole
                ? snprintf(text, sizeof text, "%.40s: %zu of %zu item%s", r->name, r->item,
                           r->file->count, vptq_plural(r->file->count, "", "s"))
                : snprintf(text, sizeof text, "%.40s: %zu item%s", r->name, r->file->count,
                           vptq_plural(r->file->count, "", "s"));
    if (r->units.whole && r->item && n > 0 && (size_t)n < sizeof text)
        snprintf(text + n, sizeof text - (size_t)n, ", acc %.4f",
                 (double)r->correct / (double)r->item);
    vptq_progress(r->dev->ctx, "tasks", vptq_plural(r->plan->rows, "token", "tokens"),
                  first + steps / (r->m->desc->layers + 1), r->plan->rows, text);
}

/* Scores at most VPTQ_FORWARD_ROWS pairs from *pair on whose rows are before `row_end`. */
static vptq_status score_pairs(run *r, size_t *pair, size_t first_row, size_t row_end,
                               vptq_err *err)
{
    const vptq_task_plan *p = r->plan;
    const size_t dim = r->m->desc->hidden, at = *pair;
    size_t n = 0;
    for (; n < VPTQ_FORWARD_ROWS && at + n < p->pairs && p->pair_row[at + n] < row_end; n++)
        memcpy(r->picked + n * dim, r->hidden + (p->pair_row[at + n] - first_row) * dim,
               dim * sizeof *r->picked);
    vptq_status st = vptq_forward_loss(r->f, n, r->picked, p->pair_target + at, r->state, err);
    for (size_t i = 0; i < n && !st; i++) {
        const vptq_nll_state *s = &r->state[i];
        r->logprob[at + i] = (double)(float)((double)s->target - s->max - log(s->sum));
        r->likeliest[at + i] = s->best_id == p->pair_target[at + i];
    }
    *pair += n;
    return st;
}

/* The first pair of the row or one after it. */
static size_t first_pair(const vptq_task_plan *p, size_t row)
{
    size_t low = 0, high = p->pairs;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (p->pair_row[middle] < row)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Finishes the items before r->rows. */
static vptq_status finish_items(run *r, vptq_err *err)
{
    while (r->item < r->file->count && r->plan->item_rows[r->item] <= r->rows)
        VPTQ_CHECK(finish_item(r, err));
    return VPTQ_OK;
}

/* Scores all pairs of a group, the rows [begin, end).  With several ranks, items after those of
 * another rank are finished when all are done. */
static vptq_status score_group(run *r, size_t first_row, size_t begin, size_t end,
                               vptq_err *err)
{
    const vptq_task_plan *p = r->plan;
    size_t pair = first_pair(p, begin);
    while (pair < p->pairs && p->pair_row[pair] < end)
        VPTQ_CHECK(score_pairs(r, &pair, first_row, end, err));
    r->rows = r->rows == begin ? end : r->rows;
    return finish_items(r, err);
}

static vptq_status run_batch(run *r, size_t first, size_t end, vptq_err *err)
{
    const vptq_task_plan *p = r->plan;
    const vptq_block_hooks hooks = {.parents = r->parents};
    const size_t count = end - first, row = p->starts[first], rows = p->starts[end] - row;
    const size_t before = p->starts[vptq_units_before(&r->units, r->dev->ctx, first)];
    for (size_t s = 0; s <= count; s++)
        r->starts[s] = p->starts[first + s] - row;
    for (size_t s = 0; s < count; s++) {
        const size_t parent = p->parents[first + s];
        r->parents[s] = parent == VPTQ_FORWARD_ROOT ? parent : parent - first;
    }
    VPTQ_CHECK(vptq_forward_embed(r->f, p->ids + row, rows, r->hidden, err));
    for (uint32_t l = 0; l < r->m->desc->layers; l++) {
        progress(r, before, rows, l, 0);
        VPTQ_CHECK(vptq_forward_block_with(r->f, l, r->starts, count, r->hidden, &hooks, err));
    }
    for (size_t g = 0, begin = row; g < count; begin = row + r->starts[g]) {
        g = vptq_forward_group_trees(r->starts, r->parents, count, g);
        VPTQ_CHECK(score_group(r, row, begin, row + r->starts[g], err));
        progress(r, before, rows, r->m->desc->layers, r->starts[g]);
    }
    return VPTQ_OK;
}

/* Agrees that all ranks have the same items. */
static vptq_status same_items(const run *r, vptq_err *err)
{
    const vptq_task_plan *p = r->plan;
    uint64_t hash = vptq_hash(p->ids, p->rows * sizeof *p->ids, r->file->count);
    hash = vptq_hash(p->starts, p->sequences * sizeof *p->starts, hash);
    hash = vptq_hash(p->pair_target, p->pairs * sizeof *p->pair_target, hash);
    return vptq_units_same(r->dev->ctx, "the items of a task", hash, err);
}

/* Runs the units of this rank. */
static vptq_status run_all(run *r, vptq_arena *work, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    size_t first, end;
    VPTQ_TRY(same_items(r, err));
    VPTQ_TRY(vptq_forward_open(r->m, r->dev, r->plan->longest, &r->f, err));
    VPTQ_TRY(alloc_run(r, work, err));
    while (!(st = vptq_units_next(&r->units, r->dev->ctx, &first, &end, err)) && first < end)
        for (size_t s = first, e; s < end; s = e) {
            e = batch_end(r, s, end);
            VPTQ_TRY(run_batch(r, s, e, err));
        }
out:
    vptq_forward_close(r->f);
    return st;
}

/* ---- figures ---- */

typedef double (*item_fn)(const vptq_task_answer *a, const vptq_task_answer *base);

/* Mean of a figure over all items, and its standard error.  Figures of one model get its
 * answers twice. */
static double mean_of(const vptq_task_answer *a, const vptq_task_answer *base, size_t n,
                      item_fn fn, double *standard_error)
{
    double sum = 0, sq = 0;
    for (size_t i = 0; i < n; i++)
        sum += fn(&a[i], &base[i]);
    const double mean = sum / (double)n;
    for (size_t i = 0; i < n; i++) {
        const double d = fn(&a[i], &base[i]) - mean;
        sq += d * d;
    }
    *standard_error = n > 1 ? sqrt(sq / (double)(n - 1) / (double)n) : (double)NAN;
    return mean;
}

static double correct(const vptq_task_answer *a, const vptq_task_answer *base)
{
    (void)base;
    return a->correct;
}

static double correct_norm(const vptq_task_answer *a, const vptq_task_answer *base)
{
    (void)base;
    return a->correct_norm;
}

static double first_loss(const vptq_task_answer *a, const vptq_task_answer *base)
{
    (void)base;
    return -a->loglikelihoods[0];
}

static double same_choice(const vptq_task_answer *a, const vptq_task_answer *base)
{
    return a->choice == base->choice;
}

static double same_norm(const vptq_task_answer *a, const vptq_task_answer *base)
{
    return a->choice_norm == base->choice_norm;
}

static double same_greedy(const vptq_task_answer *a, const vptq_task_answer *base)
{
    return a->correct == base->correct;
}

static void summarize(const run *r, vptq_task_figures *out)
{
    const size_t n = r->file->count;
    out->acc = mean_of(r->answers, r->answers, n, correct, &out->acc_stderr);
    if (vptq_task_form_has_norm(r->file->form))
        out->acc_norm = mean_of(r->answers, r->answers, n, correct_norm, &out->acc_norm_stderr);
    if (r->file->form == VPTQ_TASK_LAMBADA) {
        double error;
        out->perplexity = exp(mean_of(r->answers, r->answers, n, first_loss, &error));
        out->perplexity_stderr = out->perplexity * error;
    }
}

void vptq_eval_task_compare(const vptq_task_file *file, const vptq_task_answer *answers,
                            const vptq_task_answer *base, vptq_task_agreement *a)
{
    const bool alone = file->form == VPTQ_TASK_LAMBADA;
    *a = (vptq_task_agreement){.same_norm = (double)NAN, .same_norm_stderr = (double)NAN};
    a->same =
        mean_of(answers, base, file->count, alone ? same_greedy : same_choice, &a->same_stderr);
    if (vptq_task_form_has_norm(file->form))
        a->same_norm = mean_of(answers, base, file->count, same_norm, &a->same_norm_stderr);
    for (size_t i = 0; i < file->count; i++) {
        a->right_to_wrong += base[i].correct && !answers[i].correct;
        a->wrong_to_right += !base[i].correct && answers[i].correct;
    }
}

/* Measures; the answers are in `arena`. */
static vptq_status measure(run *r, vptq_arena *arena, vptq_arena *work, vptq_err *err)
{
    VPTQ_CHECK(alloc_answers(r, arena, err));
    VPTQ_CHECK(vptq_units_alloc(r->dev->ctx, 2 * r->plan->pairs, work, &r->logprob, err));
    r->likeliest = r->logprob + r->plan->pairs;
    return run_all(r, work, err);
}

/* Brings the values of all ranks together. */
static vptq_status finish(run *r, vptq_status st, vptq_err *err)
{
    VPTQ_CHECK(vptq_units_gather(r->dev->ctx, st, r->logprob, 2 * r->plan->pairs, err));
    if (!r->units.whole) /* the last items may be those of other ranks */
        vptq_progress(r->dev->ctx, "tasks", vptq_plural(r->plan->rows, "token", "tokens"),
                      r->plan->rows, r->plan->rows, NULL);
    r->rows = r->plan->rows;
    return finish_items(r, err);
}

vptq_status vptq_eval_task(vptq_device *dev, const vptq_model *m, const vptq_task_file *file,
                           const vptq_task_run *opt, vptq_task_answer **answers,
                           vptq_task_figures *out, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena work;
    vptq_task_plan plan;
    const double none = (double)NAN, begin = vptq_seconds();
    run r = {.dev = dev, .m = m, .name = opt->name, .file = file, .plan = &plan};
    *out = (vptq_task_figures){.acc = none,
                               .acc_stderr = none,
                               .acc_norm = none,
                               .acc_norm_stderr = none,
                               .perplexity = none,
                               .perplexity_stderr = none};
    vptq_arena_init(&work, dev->ctx->mem);
    st = vptq_task_plan_make(m, file, opt->context ? opt->context : m->desc->context,
                             dev->ctx->mem, &work, &plan, err);
    out->items = file->count;
    out->requests = plan.requests;
    out->rows = plan.rows;
    out->rows_saved = plan.unshared - plan.rows;
    if (!st && opt->hash)
        *opt->hash = plan.hash;
    if (opt->dry_run)
        goto out;
    if (!st)
        st = measure(&r, answers ? opt->arena : &work, &work, err);
    VPTQ_TRY(finish(&r, st, err));
    summarize(&r, out);
    out->seconds = vptq_seconds() - begin;
    if (answers)
        *answers = r.answers;
out:
    vptq_arena_release(&work);
    return st;
}

/* ---- samples ---- */

static void key(vptq_emit *e, const char *prefix, const char *name)
{
    vptq_emit_format(e, ", \"%s%s\": ", prefix, name);
}

/* Lists of an answer. */
typedef enum { LIST_LOGLIKELIHOODS, LIST_GREEDY, LIST_TOKENS, LIST_CHARACTERS } list;

static void put_list(vptq_emit *e, const char *prefix, const char *name, list what,
                     const vptq_task_item *item, const vptq_task_answer *a)
{
    key(e, prefix, name);
    for (uint32_t i = 0; i < item->count; i++) {
        vptq_emit_text(e, i ? ", " : "[");
        if (what == LIST_LOGLIKELIHOODS)
            vptq_emit_real(e, a->loglikelihoods[i]);
        else if (what == LIST_GREEDY)
            vptq_emit_text(e, a->greedy[i] ? "true" : "false");
        else
            vptq_emit_format(e, "%u",
                             what == LIST_TOKENS ? a->tokens[i] : item->requests[i].characters);
    }
    vptq_emit_text(e, "]");
}

static void put_choice(vptq_emit *e, const char *prefix, const char *name, uint32_t choice,
                       bool there)
{
    key(e, prefix, name);
    if (there)
        vptq_emit_format(e, "%u", choice);
    else
        vptq_emit_text(e, "null");
}

static void put_answer(vptq_emit *e, const char *prefix, bool norm, const vptq_task_item *item,
                       const vptq_task_answer *a)
{
    put_choice(e, prefix, "choice", a->choice, item->count > 1);
    put_choice(e, prefix, "choice_norm", a->choice_norm, norm);
    key(e, prefix, "correct");
    vptq_emit_text(e, a->correct ? "true" : "false");
    put_list(e, prefix, "loglikelihoods", LIST_LOGLIKELIHOODS, item, a);
    put_list(e, prefix, "greedy", LIST_GREEDY, item, a);
}

vptq_status vptq_eval_task_samples(const char *name, const vptq_task_file *file,
                                   const vptq_task_answer *answers,
                                   const vptq_task_answer *base, vptq_buf *out, vptq_err *err)
{
    vptq_emit e = {.buf = out, .err = err};
    const bool norm = vptq_task_form_has_norm(file->form);
    for (size_t i = 0; i < file->count; i++) {
        const vptq_task_item *item = &file->items[i];
        vptq_emit_text(&e, "{\"task\": ");
        vptq_emit_json(&e, name);
        vptq_emit_format(&e, ", \"item\": %zu, \"line\": %u", i, item->line);
        put_choice(&e, "", "gold", item->gold, item->count > 1);
        put_answer(&e, "", norm, item, &answers[i]);
        put_list(&e, "", "tokens", LIST_TOKENS, item, &answers[i]);
        put_list(&e, "", "characters", LIST_CHARACTERS, item, &answers[i]);
        if (base)
            put_answer(&e, "base_", norm, item, &base[i]);
        vptq_emit_text(&e, "}\n");
    }
    return e.st;
}
