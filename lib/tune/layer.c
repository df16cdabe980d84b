/* Layer-wise tuning: the two streams, the loss of a block, the state. */
#include "lib/tune/layer.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "lib/base/comm.h"
#include "lib/base/text.h"

struct vptq_layerwise {
    vptq_trainer t;
    const vptq_model *teacher;
    vptq_arena arena;
    vptq_forward *original;
    /* [windows + held_out][length, hidden] of the teacher and of the student; between two
     * blocks, both before block `layer`; while one is trained, the teacher's after it */
    vptq_hidden_states h, own;
    double *change;  /* [windows + held_out] distance that the teacher's block moves a window */
    float *host[2];  /* [length, hidden] */
    float *in, *out; /* [length, hidden] device memory: of the student's block */
    uint32_t layer, finished, end; /* position of the streams; blocks tuned; all of them */
    vptq_layer_report *reports;    /* [layers] */
};

/* ---- the loss ---- */

/* The largest y for which more than `above` of |x| are at least y: the size of the number of
 * rank `above`, counted from 0.  Floats of one sign are ordered as their bits are. */
static float size_of_rank(const float *x, size_t n, size_t above)
{
    uint32_t found = 0;
    float size;
    for (uint32_t bit = 1u << 30; bit; bit >>= 1) {
        size_t count = 0;
        for (size_t i = 0; i < n; i++) {
            uint32_t bits;
            memcpy(&bits, &x[i], sizeof bits);
            count += (bits & 0x7fffffff) >= (found | bit);
        }
        if (count > above)
            found |= bit;
    }
    memcpy(&size, &found, sizeof size);
    return size;
}

double vptq_layer_distance(const float *a, const float *b, size_t n, float *difference,
                           float *limit)
{
    enum { ONE_IN = 1000 };
    double sum = 0;
    bool finite = true;
    for (size_t i = 0; i < n; i++) {
        difference[i] = a[i] - b[i];
        finite &= isfinite(difference[i]) != 0;
    }
    *limit = size_of_rank(difference, n, n / ONE_IN);
    for (size_t i = 0; i < n; i++)
        if (fabsf(difference[i]) <= *limit)
            sum += (double)difference[i] * (double)difference[i];
    return finite ? sum : (double)NAN;
}

static size_t window_size(const vptq_layerwise *l)
{
    return l->t.opt.length * l->teacher->desc->hidden;
}

static vptq_status get(vptq_layerwise *l, vptq_hidden_states *s, size_t w, float **rows,
                       vptq_err *err)
{
    const size_t length = l->t.opt.length;
    return vptq_hidden_states_get(s, w * length, length, false, rows, err);
}

static vptq_status keep(vptq_layerwise *l, vptq_hidden_states *s, size_t w, vptq_err *err)
{
    const size_t length = l->t.opt.length;
    return vptq_hidden_states_keep(s, w * length, length, err);
}

/* Runs the student's block over window w: l->in, l->out, and l->host[0], a copy of that. */
static vptq_status run_block(vptq_layerwise *l, size_t w, vptq_err *err)
{
    const size_t bytes = window_size(l) * sizeof(float);
    const vptq_device *dev = l->t.dev;
    float *own;
    VPTQ_CHECK(get(l, &l->own, w, &own, err));
    VPTQ_CHECK(dev->ops->upload(dev->state, l->in, own, bytes, err));
    VPTQ_CHECK(dev->ops->copy(dev->state, l->out, l->in, bytes, err));
    VPTQ_CHECK(vptq_backward_forward(l->t.b, l->layer, vptq_trainer_weights(&l->t, l->layer),
                                     l->out, err));
    return dev->ops->download(dev->state, l->host[0], l->out, bytes, err);
}

/* l->out = the gradient of the loss, from the differences in l->host[1]. */
static vptq_status loss_gradient(vptq_layerwise *l, size_t w, float limit, vptq_err *err)
{
    const size_t dim = l->teacher->desc->hidden, size = window_size(l);
    const double scale = 2 / l->change[w] / (double)l->t.opt.batch;
    float *g = l->host[1];
    memset(g, 0, dim * sizeof *g);
    for (size_t i = dim; i < size; i++)
        g[i] = fabsf(g[i]) <= limit ? (float)(scale * (double)g[i]) : 0;
    return l->t.dev->ops->upload(l->t.dev->state, l->out, g, size * sizeof *g, err);
}

static vptq_status window_loss(void *arg, const size_t *windows, size_t count, bool backward,
                               double *loss, vptq_err *err)
{
    vptq_layerwise *l = arg;
    const size_t w = windows[0];
    VPTQ_BUG_IF(count != 1);
    const size_t dim = l->teacher->desc->hidden;
    float *wanted, limit;
    VPTQ_CHECK(run_block(l, w, err));
    VPTQ_CHECK(get(l, &l->h, w, &wanted, err));
    *loss = vptq_layer_distance(l->host[0] + dim, wanted + dim, window_size(l) - dim,
                                l->host[1] + dim, &limit) /
            l->change[w];
    if (!isfinite(*loss))
        return vptq_fail(err, VPTQ_E_NUMERIC, "the loss of window %zu is not finite", w);
    if (!backward)
        return VPTQ_OK;
    VPTQ_CHECK(loss_gradient(l, w, limit, err));
    return vptq_trainer_backward(&l->t, l->layer, l->in, l->out, err);
}

/* ---- the streams ---- */

static size_t all_windows(const vptq_layerwise *l)
{
    return l->t.opt.windows + l->t.opt.held_out;
}

/* Both streams = the embeddings. */
static vptq_status embed(vptq_layerwise *l, vptq_err *err)
{
    const size_t length = l->t.opt.length;
    for (size_t w = 0; w < all_windows(l); w++) {
        const int32_t *ids = l->t.opt.ids + w * length;
        float *rows;
        VPTQ_CHECK(vptq_hidden_states_get(&l->h, w * length, length, true, &rows, err));
        VPTQ_CHECK(vptq_forward_embed(l->original, ids, length, rows, err));
        VPTQ_CHECK(keep(l, &l->h, w, err));
        VPTQ_CHECK(vptq_hidden_states_get(&l->own, w * length, length, true, &rows, err));
        VPTQ_CHECK(vptq_forward_embed(l->t.f, ids, length, rows, err));
        VPTQ_CHECK(keep(l, &l->own, w, err));
    }
    return VPTQ_OK;
}

/* Window w of the teacher's stream goes through block l->layer. */
static vptq_status advance_teacher_window(vptq_layerwise *l, size_t w, vptq_err *err)
{
    const size_t dim = l->teacher->desc->hidden, size = window_size(l);
    const size_t starts[] = {0, l->t.opt.length};
    float *h, limit;
    VPTQ_CHECK(get(l, &l->h, w, &h, err));
    memcpy(l->host[0], h, size * sizeof *h);
    VPTQ_CHECK(vptq_forward_block(l->original, l->layer, starts, 1, h, err));
    l->change[w] =
        vptq_layer_distance(h + dim, l->host[0] + dim, size - dim, l->host[1] + dim, &limit);
    if (l->change[w] == 0) /* a block that does nothing: its error counts as it is */
        l->change[w] = 1;
    return keep(l, &l->h, w, err);
}

static vptq_status advance_student_window(vptq_layerwise *l, size_t w, vptq_err *err)
{
    float *own;
    VPTQ_CHECK(run_block(l, w, err));
    VPTQ_CHECK(
        vptq_hidden_states_get(&l->own, w * l->t.opt.length, l->t.opt.length, true, &own, err));
    memcpy(own, l->host[0], window_size(l) * sizeof *own);
    return keep(l, &l->own, w, err);
}

/* Runs all windows of a stream, which ranks take in turns and give to each other. */
static vptq_status advance(vptq_layerwise *l, vptq_hidden_states *s,
                           vptq_status (*window)(vptq_layerwise *l, size_t w, vptq_err *err),
                           vptq_err *err)
{
    const vptq_ctx *ctx = l->t.dev->ctx;
    const size_t length = l->t.opt.length, all = all_windows(l);
    const size_t rank = (size_t)vptq_comm_rank(ctx), ranks = (size_t)vptq_comm_size(ctx);
    for (size_t first = 0; first < all; first += ranks) {
        if (first + rank < all)
            VPTQ_CHECK(window(l, first + rank, err));
        for (size_t r = 0; r < ranks && first + r < all; r++)
            VPTQ_CHECK(vptq_hidden_states_spread(s, (int)r, (first + r) * length, length, err));
    }
    return VPTQ_OK;
}

/* The teacher's stream goes through block l->layer. */
static vptq_status advance_teacher(vptq_layerwise *l, vptq_err *err)
{
    memset(l->change, 0, all_windows(l) * sizeof *l->change);
    vptq_forward_hold(l->original, true);
    VPTQ_CHECK(advance(l, &l->h, advance_teacher_window, err));
    vptq_forward_hold(l->original, false);
    return vptq_comm_gather(l->t.dev->ctx, l->change, all_windows(l), err);
}

/* The student's stream follows. */
static vptq_status advance_student(vptq_layerwise *l, vptq_err *err)
{
    VPTQ_CHECK(advance(l, &l->own, advance_student_window, err));
    l->layer++;
    return VPTQ_OK;
}

/* ---- blocks ---- */

vptq_trainer *vptq_layerwise_trainer(vptq_layerwise *l)
{
    return &l->t;
}

bool vptq_layerwise_done(const vptq_layerwise *l)
{
    return l->finished == l->end;
}

uint32_t vptq_layerwise_finished(const vptq_layerwise *l)
{
    return l->finished;
}

uint32_t vptq_layerwise_end(const vptq_layerwise *l)
{
    return l->end;
}

const vptq_layer_report *vptq_layerwise_report(const vptq_layerwise *l, uint32_t layer)
{
    return &l->reports[layer];
}

static vptq_status train(vptq_layerwise *l, vptq_layer_report *r, vptq_err *err)
{
    const vptq_tensor_range range = vptq_student_range(l->t.student, l->layer, l->layer + 1);
    const uint64_t steps = l->t.opt.steps;
    vptq_trainer_report step;
    uint32_t best;
    const double unknown = (double)NAN;
    *r = (vptq_layer_report){unknown, unknown, unknown, unknown};
    if (!range.count)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_trainer_begin(&l->t, &range, &step, err));
    r->before = step.held_out;
    while (!vptq_trainer_done(&l->t)) {
        VPTQ_CHECK(vptq_trainer_step(&l->t, &step, err));
        vptq_progress_share(
            l->t.dev->ctx, "layers", vptq_plural(l->end, "layer", "layers"), l->layer, l->end,
            (double)(l->layer * steps + step.step) / (double)(l->end * steps), NULL);
    }
    r->after = vptq_trainer_best(&l->t, &best);
    r->best_step = best;
    r->rate = l->t.optimizer.rate;
    return VPTQ_OK;
}

/* Names the layer in an error of its training. */
static vptq_status train_named(vptq_layerwise *l, vptq_layer_report *r, vptq_err *err)
{
    const vptq_status st = train(l, r, err);
    if (st)
        vptq_err_context(err, "layer %u", l->layer);
    return st;
}

vptq_status vptq_layerwise_block(vptq_layerwise *l, vptq_layer_report *r, vptq_err *err)
{
    VPTQ_BUG_IF(vptq_layerwise_done(l));
    while (l->layer < l->finished) { /* as a state says */
        VPTQ_CHECK(advance_teacher(l, err));
        VPTQ_CHECK(advance_student(l, err));
    }
    VPTQ_CHECK(advance_teacher(l, err));
    VPTQ_CHECK(train_named(l, r, err));
    l->reports[l->finished++] = *r;
    return l->finished < l->end ? advance_student(l, err) : VPTQ_OK;
}

/* ---- the state ---- */

size_t vptq_layerwise_state_bytes(const vptq_model_desc *d, const vptq_student *s)
{
    return sizeof(uint64_t) + d->layers * sizeof(vptq_layer_report) +
           s->count * sizeof *s->master;
}

void vptq_layerwise_get_state(const vptq_layerwise *l, void *state)
{
    const uint64_t finished = l->finished;
    const size_t reports = l->teacher->desc->layers * sizeof *l->reports;
    char *to = state;
    memcpy(to, &finished, sizeof finished);
    memcpy(to + sizeof finished, l->reports, reports);
    memcpy(to + sizeof finished + reports, l->t.student->master,
           l->t.student->count * sizeof *l->t.student->master);
}

vptq_status vptq_layerwise_set_state(vptq_layerwise *l, const void *state, vptq_err *err)
{
    vptq_student *s = l->t.student;
    const vptq_tensor_range all = vptq_student_range(s, 0, s->m->desc->layers);
    const size_t reports = l->teacher->desc->layers * sizeof *l->reports;
    const char *from = state;
    uint64_t finished;
    memcpy(&finished, from, sizeof finished);
    if (finished > l->end)
        return vptq_fail(err, VPTQ_E_FORMAT, "a state after layer %" PRIu64 " of %u", finished,
                         l->end);
    memcpy(l->reports, from + sizeof finished, reports);
    memcpy(s->master, from + sizeof finished + reports, s->count * sizeof *s->master);
    vptq_student_round(s, &all);
    l->finished = (uint32_t)finished;
    return VPTQ_OK;
}

/* ---- opening and closing ---- */

static vptq_status allocate(vptq_layerwise *l, vptq_err *err)
{
    const size_t size = window_size(l);
    l->change = vptq_arena_alloc(&l->arena, all_windows(l), sizeof *l->change, err);
    l->host[0] = vptq_arena_alloc(&l->arena, size, sizeof *l->host[0], err);
    l->host[1] = vptq_arena_alloc(&l->arena, size, sizeof *l->host[1], err);
    l->reports =
        vptq_arena_zalloc(&l->arena, l->teacher->desc->layers, sizeof *l->reports, err);
    if (!l->change || !l->host[0] || !l->host[1] || !l->reports)
        return VPTQ_E_NOMEM;
    VPTQ_CHECK(vptq_trainer_states(&l->t, 1, &l->in, err));
    return vptq_trainer_states(&l->t, 1, &l->out, err);
}

/* Under a memory cap a stream gives way to what a backward pass takes. */
static vptq_status open_stream(vptq_layerwise *l, vptq_hidden_states *s, vptq_err *err)
{
    const vptq_trainer_options *o = &l->t.opt;
    s->rows = all_windows(l) * o->length;
    s->dim = l->teacher->desc->hidden;
    s->max_rows = o->length;
    return vptq_hidden_states_open(l->t.dev->ctx, o->dir,
                                   vptq_backward_bytes(l->t.f, o->length), s, err);
}

vptq_status vptq_layerwise_open(vptq_device *dev, const vptq_model *teacher,
                                vptq_student *student, const vptq_trainer_options *opt,
                                vptq_layerwise **out, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_trainer_options single = *opt;
    single.group = 1;
    *out = NULL;
    vptq_layerwise *l = vptq_mem_alloc(dev->ctx->mem, 1, sizeof *l, err);
    if (!l)
        return VPTQ_E_NOMEM;
    *l = (vptq_layerwise){.teacher = teacher};
    l->end = student->tensors[student->tensor_count - 1].layer + 1;
    vptq_arena_init(&l->arena, dev->ctx->mem);
    VPTQ_TRY(vptq_trainer_open(dev, student, &single, window_loss, l, &l->t, err));
    VPTQ_TRY(allocate(l, err));
    VPTQ_TRY(vptq_forward_open(teacher, dev, opt->length, &l->original, err));
    VPTQ_TRY(open_stream(l, &l->h, err));
    VPTQ_TRY(open_stream(l, &l->own, err));
    VPTQ_TRY(embed(l, err));
out:
    if (st)
        vptq_layerwise_close(l);
    else
        *out = l;
    return st;
}

void vptq_layerwise_close(vptq_layerwise *l)
{
    if (!l)
        return;
    const vptq_device *dev = l->t.dev;
    vptq_mem *mem = l->arena.mem;
    for (int i = 0; dev && i < 2; i++)
        dev->ops->release(dev->state, i ? l->in : l->out);
    vptq_hidden_states_close(&l->own);
    vptq_hidden_states_close(&l->h);
    vptq_forward_close(l->original);
    vptq_trainer_close(&l->t);
    vptq_arena_release(&l->arena);
    vptq_mem_free(mem, l);
}
