/* Matrices over several ranks: a queue of all of them or, where the run calibrates, a queue for
 * each set of matrices whose Hessians are there at the same time. */
#include <stdlib.h>
#include <string.h>

#include "lib/base/file.h"
#include "lib/quantize/internal.h"

/* What one rank does at a time: matrices of a layer. */
typedef struct unit {
    uint32_t layer;
    int first, count;
    double cost;
} unit;

typedef struct vptq_share {
    double *seconds; /* [layers * VPTQ_LINEAR_COUNT] of matrices that were made; 0 = reused */
    unit *units;     /* of the present queue */
    size_t count;
    uint64_t done; /* matrices of earlier queues, and their cost */
    double cost;
} share;

static size_t index_of(uint32_t layer, vptq_linear l)
{
    return (size_t)layer * VPTQ_LINEAR_COUNT + (size_t)l;
}

/* ---- what was done ---- */

void vptq_share_note(vptq_quantizer *q, const vptq_quantize_row *row)
{
    /* a matrix that took no time was made all the same */
    const double least = 1e-9, seconds = row->report.seconds;
    if (!row->reused)
        q->share->seconds[index_of(row->layer, q->linear)] = seconds > least ? seconds : least;
}

void vptq_share_recall(const vptq_quantizer *q, vptq_quantize_row *row)
{
    if (!q->share)
        return;
    const double seconds = q->share->seconds[index_of(row->layer, q->linear)];
    row->reused = !(seconds > 0);
    row->report.seconds = seconds;
}

uint64_t vptq_share_done(const vptq_quantizer *q, double *cost)
{
    const share *s = q->share;
    const vptq_ctx *ctx = q->dev->ctx;
    uint64_t done = s->done, given = vptq_comm_given(ctx, s->count);
    const uint64_t busy = (uint64_t)vptq_comm_size(ctx) - 1;
    given = given > busy ? given - busy : 0;
    *cost = s->cost;
    for (uint64_t i = 0; i < given; i++) {
        done += (uint64_t)s->units[i].count;
        *cost += s->units[i].cost;
    }
    return done;
}

uint32_t vptq_share_count_files(const vptq_quantizer *q)
{
    char path[PATH_MAX];
    uint32_t n = 0;
    for (uint32_t layer = q->first; layer <= q->last; layer++)
        for (int l = 0; l < VPTQ_LINEAR_COUNT; l++)
            n += !vptq_matrix_path(q, layer, (vptq_linear)l, path, NULL) &&
                 vptq_path_exists(path);
    return n;
}

/* ---- one queue ---- */

static void add_unit(vptq_quantizer *q, uint32_t layer, int first, int count)
{
    vptq_encoder_report cost;
    unit u = {.layer = layer, .first = first, .count = count};
    for (int l = first; l < first + count; l++)
        u.cost += vptq_quantizer_cost(q, layer, (vptq_linear)l, &cost);
    q->share->units[q->share->count++] = u;
}

/* Largest first, then by place: the same order on all ranks. */
static int compare_units(const void *a, const void *b)
{
    const unit *x = a, *y = b;
    if (x->cost < y->cost || x->cost > y->cost)
        return x->cost < y->cost ? 1 : -1;
    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    return (x->first > y->first) - (x->first < y->first);
}

/* Runs the units of the present queue, which it empties. */
static vptq_status run_units(vptq_quantizer *q, vptq_err *err)
{
    share *s = q->share;
    const vptq_ctx *ctx = q->dev->ctx;
    vptq_status st = VPTQ_OK;
    uint64_t at;

    qsort(s->units, s->count, sizeof *s->units, compare_units);
    while (!st && !(st = vptq_comm_next(ctx, s->count, &at, err)) && at < s->count)
        st = vptq_quantizer_run(q, s->units[at].layer, s->units[at].first, s->units[at].count,
                                err);
    VPTQ_CHECK(vptq_comm_agree(ctx, st, err));
    for (size_t i = 0; i < s->count; i++) {
        s->done += (uint64_t)s->units[i].count;
        s->cost += s->units[i].cost;
    }
    s->count = 0;
    return VPTQ_OK;
}

/* ---- Hessians that are there ---- */

/* Scales of columns are found once for a layer. */
static vptq_status run_all(vptq_quantizer *q, vptq_err *err)
{
    for (uint32_t layer = q->first; layer <= q->last; layer++) {
        const bool whole = vptq_fold_applies(q, layer);
        for (int l = 0; !whole && l < VPTQ_LINEAR_COUNT; l++)
            add_unit(q, layer, l, 1);
        if (whole)
            add_unit(q, layer, 0, VPTQ_LINEAR_COUNT);
    }
    return run_units(q, err);
}

/* ---- Hessians of this run ---- */

/* left[l] = whether matrix l of the layer has no usable file, as rank 0 sees it: another may see
 * a new file later. */
static vptq_status find_left(const vptq_quantizer *q, uint32_t layer,
                             bool left[VPTQ_LINEAR_COUNT], vptq_err *err)
{
    char path[PATH_MAX];
    for (int l = 0; l < VPTQ_LINEAR_COUNT; l++) {
        char *text = NULL;
        vptq_quantize_row row = vptq_row_make(q, layer, (vptq_linear)l);
        VPTQ_CHECK(vptq_matrix_path(q, layer, (vptq_linear)l, path, err));
        VPTQ_CHECK(vptq_row_reuse(q, path, &row, &text, err));
        left[l] = !text;
        free(text);
    }
    return VPTQ_OK;
}

/* Brings the Hessians of an input to all ranks, which keep them. */
static vptq_status load(const vptq_quantizer *q, uint32_t layer, vptq_input input,
                        vptq_err *err)
{
    vptq_input_hessians h = {0};
    VPTQ_CHECK(q->hessians.load(&q->hessians, layer, input,
                                vptq_input_size(q->model.desc, input), &h, err));
    q->hessians.release(&q->hessians, &h);
    return VPTQ_OK;
}

/* The matrices of the inputs [first, end) of a layer. */
static vptq_status run_inputs(vptq_quantizer *q, uint32_t layer, int first, int end,
                              const bool left[VPTQ_LINEAR_COUNT], vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    for (int i = first; i < end && !st; i++) {
        const size_t before = q->share->count;
        for (int l = 0; l < VPTQ_LINEAR_COUNT; l++)
            if (left[l] && vptq_linear_input((vptq_linear)l) == (vptq_input)i)
                add_unit(q, layer, l, 1);
        if (q->share->count > before)
            st = load(q, layer, (vptq_input)i, err);
    }
    VPTQ_CHECK(vptq_comm_agree(q->dev->ctx, st, err));
    return run_units(q, err);
}

/* A sequential calibration needs the matrices of an input before it goes on. */
static vptq_status run_layer(vptq_quantizer *q, uint32_t layer, vptq_err *err)
{
    const vptq_ctx *ctx = q->dev->ctx;
    bool left[VPTQ_LINEAR_COUNT];
    const bool first = vptq_comm_rank(ctx) == 0;
    VPTQ_CHECK(vptq_comm_agree(ctx, first ? find_left(q, layer, left, err) : VPTQ_OK, err));
    VPTQ_CHECK(vptq_comm_broadcast(ctx, 0, left, sizeof left, err));
    if (!q->opt->calibrate->sequential)
        return run_inputs(q, layer, 0, VPTQ_INPUT_COUNT, left, err);
    for (int i = 0; i < VPTQ_INPUT_COUNT; i++)
        VPTQ_CHECK(run_inputs(q, layer, i, i + 1, left, err));
    return VPTQ_OK;
}

vptq_status vptq_share_matrices(vptq_quantizer *q, vptq_err *err)
{
    const size_t all = (size_t)q->model.desc->layers * VPTQ_LINEAR_COUNT;
    share *s = vptq_arena_zalloc(&q->arena, 1, sizeof *s, err);
    double *ours = s ? vptq_arena_zalloc(&q->arena, all, sizeof *ours, err) : NULL;
    double *sums = ours ? vptq_arena_zalloc(&q->arena, all, sizeof *sums, err) : NULL;
    if (sums)
        s->units = vptq_arena_alloc(&q->arena, all, sizeof *s->units, err);
    if (!sums || !s->units)
        return VPTQ_E_NOMEM;
    s->seconds = ours;
    q->share = s;
    q->sharing = true;
    if (!q->opt->calibrate)
        VPTQ_CHECK(run_all(q, err));
    for (uint32_t layer = q->first; q->opt->calibrate && layer <= q->last; layer++)
        VPTQ_CHECK(run_layer(q, layer, err));
    VPTQ_CHECK(vptq_comm_sum(q->dev->ctx, vptq_comm_size(q->dev->ctx), ours, sums, all, err));
    s->seconds = sums;
    q->sharing = false;
    return VPTQ_OK;
}
