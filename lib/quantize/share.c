/* Matrices over several ranks: a queue of all of them or, where the run calibrates, a queue for
 * each set of matrices whose Hessians are there at the same time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/file.h"
#include "lib/quantize/internal.h"

/* Matrices of a layer that one rank quantizes at a time. */
typedef struct unit {
    uint32_t layer;
    int first, count;
    uint32_t matrices; /* of them that the run quantizes */
    double cost;
} unit;

typedef struct vptq_share {
    double *seconds; /* [vptq_linear_index] of matrices that were made; 0 = reused */
    bool *left;      /* [vptq_linear_count] of the present layer: its matrices to make */
    unit *units;     /* of the present queue */
    size_t count;
    uint64_t done; /* matrices of earlier queues, and their cost */
    double cost;
} share;

/* ---- what was done ---- */

void vptq_share_note(vptq_quantizer *q, const vptq_quantize_row *row)
{
    /* a matrix that took no time was made all the same */
    const double least = 1e-9, seconds = row->report.seconds;
    if (!row->reused)
        q->share->seconds[vptq_linear_index(q->model.desc, row->layer, q->linear)] =
            seconds > least ? seconds : least;
}

void vptq_share_recall(const vptq_quantizer *q, vptq_quantize_row *row)
{
    if (!q->share)
        return;
    const double seconds =
        q->share->seconds[vptq_linear_index(q->model.desc, row->layer, q->linear)];
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
        done += s->units[i].matrices;
        *cost += s->units[i].cost;
    }
    return done;
}

uint32_t vptq_share_count_files(const vptq_quantizer *q)
{
    char path[PATH_MAX];
    uint32_t n = 0;
    for (uint32_t layer = q->first; layer <= q->last; layer++)
        for (int l = 0; l < vptq_linear_count(q->model.desc); l++)
            n += vptq_quantizer_has(q, layer, l) &&
                 !vptq_matrix_path(q, layer, (vptq_linear)l, path, NULL) &&
                 vptq_path_exists(path);
    return n;
}

/* ---- the directory ---- */

/* The start of a message with a matrix; its file follows. */
typedef struct file_head {
    uint32_t layer, linear;
} file_head;

/* As vptq_take_fn: rank 0 keeps a matrix of another. */
static vptq_status take_file(void *arg, const void *data, size_t size, vptq_err *err)
{
    const vptq_quantizer *q = arg;
    const char *bytes = data;
    char path[PATH_MAX];
    file_head h;
    VPTQ_BUG_IF(size <= sizeof h);
    memcpy(&h, bytes, sizeof h);
    VPTQ_CHECK(vptq_matrix_path(q, h.layer, (vptq_linear)h.linear, path, err));
    return vptq_file_replace(path, bytes + sizeof h, size - sizeof h, err);
}

static vptq_status post_file(const vptq_quantizer *q, const char *path, vptq_err *err)
{
    const vptq_ctx *ctx = q->dev->ctx;
    const file_head h = {q->layer, (uint32_t)q->linear};
    vptq_map map;
    VPTQ_CHECK(vptq_map_open(path, &map, err));
    char *data = vptq_mem_alloc(ctx->mem, 1, sizeof h + map.size, err);
    vptq_status st = data ? VPTQ_OK : VPTQ_E_NOMEM;
    if (data) {
        memcpy(data, &h, sizeof h);
        memcpy(data + sizeof h, map.data, map.size);
        st = vptq_comm_post(ctx, data, sizeof h + map.size, err);
    }
    vptq_mem_free(ctx->mem, data);
    vptq_map_release(&map);
    return st;
}

vptq_status vptq_share_spread(const vptq_quantizer *q, const char *path, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_ctx *ctx = q->dev->ctx;
    const bool first = vptq_comm_rank(ctx) == 0;
    vptq_map map = {0};
    void *data = NULL;
    if (!q->opt->no_shared_dir || vptq_comm_size(ctx) == 1)
        return VPTQ_OK;
    if (first)
        VPTQ_TRY(vptq_map_open(path, &map, err));
    uint64_t size = map.size;
    VPTQ_TRY(vptq_comm_broadcast(ctx, 0, &size, sizeof size, err));
    data = vptq_mem_alloc(ctx->mem, 1, (size_t)size, err);
    if (!data)
        VPTQ_TRY(VPTQ_E_NOMEM);
    if (first)
        memcpy(data, map.data, map.size);
    VPTQ_TRY(vptq_comm_broadcast(ctx, 0, data, (size_t)size, err));
    if (!first)
        VPTQ_TRY(vptq_file_replace(path, data, (size_t)size, err));
out:
    vptq_mem_free(ctx->mem, data);
    if (first)
        vptq_map_release(&map);
    return st;
}

vptq_status vptq_share_file(const vptq_quantizer *q, const char *path, vptq_err *err)
{
    const bool sent = q->opt->no_shared_dir && vptq_comm_rank(q->dev->ctx) > 0;
    return sent ? post_file(q, path, err) : VPTQ_OK;
}

/* ---- one queue ---- */

static void add_unit(vptq_quantizer *q, uint32_t layer, int first, int count)
{
    vptq_encoder_report cost;
    unit u = {.layer = layer, .first = first, .count = count};
    for (int l = first; l < first + count; l++)
        if (vptq_quantizer_has(q, layer, l)) {
            u.matrices++;
            u.cost += vptq_quantizer_cost(q, layer, (vptq_linear)l, &cost);
        }
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
    vptq_comm_share_threads(ctx, s->count);
    while (!st && !(st = vptq_comm_next(ctx, s->count, &at, err)) && at < s->count)
        st = vptq_quantizer_run(q, s->units[at].layer, s->units[at].first, s->units[at].count,
                                err);
    vptq_comm_share_threads(ctx, 0);
    VPTQ_CHECK(vptq_comm_agree(ctx, st, err));
    for (size_t i = 0; i < s->count; i++) {
        s->done += s->units[i].matrices;
        s->cost += s->units[i].cost;
    }
    s->count = 0;
    return VPTQ_OK;
}

/* ---- what is left ---- */

/* left[l] = whether matrix l of the layer has no usable file, as rank 0 sees it: another may
 * see a new file later. */
static vptq_status find_left(const vptq_quantizer *q, uint32_t layer, bool *left, vptq_err *err)
{
    char path[PATH_MAX];
    for (int l = 0; l < vptq_linear_count(q->model.desc); l++) {
        char *text = NULL;
        left[l] = false;
        if (!vptq_quantizer_has(q, layer, l))
            continue;
        vptq_quantize_row row = vptq_row_make(q, layer, (vptq_linear)l);
        VPTQ_CHECK(vptq_matrix_path(q, layer, (vptq_linear)l, path, err));
        VPTQ_CHECK(vptq_row_reuse(q, path, &row, &text, err));
        left[l] = !text;
        free(text);
    }
    return VPTQ_OK;
}

static vptq_status share_left(const vptq_quantizer *q, uint32_t layer, bool *left,
                              vptq_err *err)
{
    const vptq_ctx *ctx = q->dev->ctx;
    const bool first = vptq_comm_rank(ctx) == 0;
    VPTQ_CHECK(vptq_comm_agree(ctx, first ? find_left(q, layer, left, err) : VPTQ_OK, err));
    return vptq_comm_broadcast(ctx, 0, left,
                               (size_t)vptq_linear_count(q->model.desc) * sizeof *left, err);
}

/* ---- Hessians that are there ---- */

/* Adds the matrices of a layer of which one is left.  Scales of columns are found once for a
 * layer. */
static void add_layer(vptq_quantizer *q, uint32_t layer, const bool *left)
{
    const bool whole = vptq_fold_applies(q, layer);
    for (int l = 0; l < vptq_linear_count(q->model.desc); l++)
        if (left[l] && whole) {
            add_unit(q, layer, 0, vptq_linear_count(q->model.desc));
            return;
        } else if (left[l]) {
            add_unit(q, layer, l, 1);
        }
}

static vptq_status run_all(vptq_quantizer *q, vptq_err *err)
{
    bool *left = q->share->left;
    for (uint32_t layer = q->first; layer <= q->last; layer++) {
        VPTQ_CHECK(share_left(q, layer, left, err));
        add_layer(q, layer, left);
    }
    return run_units(q, err);
}

/* ---- Hessians of this run ---- */

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

/* Gives the matrices of the inputs [first, end) of a layer to all ranks. */
static vptq_status spread_inputs(const vptq_quantizer *q, uint32_t layer, int first, int end,
                                 vptq_err *err)
{
    char path[PATH_MAX];
    for (int l = 0; l < vptq_linear_count(q->model.desc); l++) {
        const int input = (int)vptq_linear_input((vptq_linear)l);
        if (!vptq_quantizer_has(q, layer, l) || input < first || input >= end)
            continue;
        VPTQ_CHECK(vptq_matrix_path(q, layer, (vptq_linear)l, path, err));
        VPTQ_CHECK(vptq_share_spread(q, path, err));
    }
    return VPTQ_OK;
}

/* The matrices of the inputs [first, end) of a layer. */
static vptq_status run_inputs(vptq_quantizer *q, uint32_t layer, int first, int end,
                              const bool *left, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    for (int i = first; i < end && !st; i++) {
        const size_t before = q->share->count;
        for (int l = 0; l < vptq_linear_count(q->model.desc); l++)
            if (left[l] && vptq_linear_input((vptq_linear)l) == (vptq_input)i)
                add_unit(q, layer, l, 1);
        if (q->share->count > before)
            st = load(q, layer, (vptq_input)i, err);
    }
    VPTQ_CHECK(vptq_comm_agree(q->dev->ctx, st, err));
    VPTQ_CHECK(run_units(q, err));
    return q->opt->calibrate->sequential ? spread_inputs(q, layer, first, end, err) : VPTQ_OK;
}

/* A sequential calibration needs the matrices of an input before it goes on. */
static vptq_status run_layer(vptq_quantizer *q, uint32_t layer, vptq_err *err)
{
    bool *left = q->share->left;
    const int inputs = vptq_input_count(&q->model.desc->experts);
    VPTQ_CHECK(share_left(q, layer, left, err));
    if (!q->opt->calibrate->sequential)
        return run_inputs(q, layer, 0, inputs, left, err);
    for (int i = 0; i < inputs; i++)
        VPTQ_CHECK(run_inputs(q, layer, i, i + 1, left, err));
    return VPTQ_OK;
}

/* Gives the finished layers before the first one of the run to all ranks, which run them. */
static vptq_status spread_earlier(const vptq_quantizer *q, vptq_err *err)
{
    const int inputs = vptq_input_count(&q->model.desc->experts);
    for (uint32_t layer = 0; layer < q->first; layer++)
        VPTQ_CHECK(spread_inputs(q, layer, 0, inputs, err));
    return VPTQ_OK;
}

static vptq_status run_layers(vptq_quantizer *q, vptq_err *err)
{
    if (!q->opt->no_shared_dir)
        VPTQ_CHECK(vptq_comm_see(q->dev->ctx, q->opt->work, ", or give --no-shared-dir", err));
    if (!q->opt->calibrate)
        return run_all(q, err);
    if (q->opt->calibrate->sequential)
        VPTQ_CHECK(spread_earlier(q, err));
    for (uint32_t layer = q->first; layer <= q->last; layer++)
        VPTQ_CHECK(run_layer(q, layer, err));
    return VPTQ_OK;
}

vptq_status vptq_share_matrices(vptq_quantizer *q, vptq_err *err)
{
    const vptq_ctx *ctx = q->dev->ctx;
    const vptq_model_desc *d = q->model.desc;
    const size_t all = vptq_linear_index(d, d->layers, 0);
    share *s = vptq_arena_zalloc(&q->arena, 1, sizeof *s, err);
    if (!s)
        return VPTQ_E_NOMEM;
    s->seconds = vptq_arena_zalloc(&q->arena, all, sizeof *s->seconds, err);
    if (s->seconds)
        s->units = vptq_arena_alloc(&q->arena, all, sizeof *s->units, err);
    if (s->units)
        s->left =
            vptq_arena_alloc(&q->arena, (size_t)vptq_linear_count(d), sizeof *s->left, err);
    if (!s->left)
        return VPTQ_E_NOMEM;
    q->share = s;
    q->sharing = true;
    vptq_comm_take(ctx, take_file, q);
    const vptq_status st = run_layers(q, err);
    vptq_comm_take(ctx, NULL, NULL);
    q->sharing = false;
    return st ? st : vptq_comm_gather(ctx, s->seconds, all, err);
}
