/* The loop of end-to-end tuning: windows forwards and backwards, steps, measurements, the
 * state. */
#include "lib/tune/e2e.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "lib/base/rng.h"

struct vptq_e2e {
    vptq_device *dev;
    const vptq_model *teacher;
    vptq_student *student;
    vptq_e2e_options opt;
    vptq_arena arena;
    vptq_forward *f;
    vptq_backward *b;
    vptq_stored *stored;
    vptq_optimizer optimizer;
    /* [windows + held_out][length, hidden] of the teacher, after its final norm */
    vptq_hidden_states wanted;
    float *embedded; /* [length, hidden] */
    float *states;  /* [layers + 1][length, hidden] device memory: what went into every block */
    float *target;  /* [length, hidden] device memory: the teacher's of the window */
    float *dhidden; /* [length, hidden] device memory */
    double *loss;   /* [length] */
    double *window; /* [count] gradient of a window */
    double *batch;  /* [count] of the batch */
    float *best;    /* [count] masters with the lowest held-out divergence */
    double best_held_out;
    uint32_t best_step;
    bool due;      /* the held-out windows are to be measured after the last step */
    size_t *order; /* [windows] of the present pass */
    size_t pass;   /* over all windows, that order is of; SIZE_MAX: none */
};

/* ---- the original ---- */

/* Hidden states of one window after all blocks of the teacher and its final norm. */
static vptq_status teach(vptq_e2e *e, vptq_forward *f, size_t w, vptq_err *err)
{
    const size_t length = e->opt.length, starts[] = {0, length};
    float *wanted;
    VPTQ_CHECK(vptq_check_cancel(e->dev->ctx, err));
    VPTQ_CHECK(vptq_hidden_states_get(&e->wanted, w * length, length, true, &wanted, err));
    VPTQ_CHECK(vptq_forward_embed(f, e->opt.ids + w * length, length, wanted, err));
    for (uint32_t l = 0; l < e->teacher->desc->layers; l++)
        VPTQ_CHECK(vptq_forward_block(f, l, starts, 1, wanted, err));
    VPTQ_CHECK(vptq_forward_normalized(f, length, wanted, wanted, err));
    return vptq_hidden_states_keep(&e->wanted, w * length, length, err);
}

static vptq_status teach_all(vptq_e2e *e, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const size_t all = e->opt.windows + e->opt.held_out;
    vptq_forward *f = NULL;
    VPTQ_TRY(vptq_forward_open(e->teacher, e->dev, e->opt.length, &f, err));
    for (size_t w = 0; w < all; w++) {
        VPTQ_TRY(teach(e, f, w, err));
        vptq_progress(e->dev->ctx, "original", w + 1, all, NULL);
    }
out:
    vptq_forward_close(f);
    return st;
}

/* ---- one window ---- */

static const vptq_weight *weights_of(const vptq_e2e *e, uint32_t layer)
{
    return e->student->weight + (size_t)layer * VPTQ_LINEAR_COUNT;
}

/* Runs the student forwards, keeping what goes into every block. */
static vptq_status run_forward(vptq_e2e *e, size_t w, vptq_err *err)
{
    const size_t length = e->opt.length, size = length * e->teacher->desc->hidden;
    const size_t bytes = size * sizeof(float);
    const uint32_t layers = e->teacher->desc->layers;
    const vptq_backend *ops = e->dev->ops;
    VPTQ_CHECK(vptq_forward_embed(e->f, e->opt.ids + w * length, length, e->embedded, err));
    VPTQ_CHECK(ops->upload(e->dev->state, e->states, e->embedded, bytes, err));
    for (uint32_t l = 0; l < layers; l++) {
        float *next = e->states + (l + 1) * size;
        VPTQ_CHECK(ops->copy(e->dev->state, next, e->states + l * size, bytes, err));
        VPTQ_CHECK(vptq_backward_forward(e->b, l, weights_of(e, l), next, err));
    }
    return VPTQ_OK;
}

/* The divergence of window w: *mean, over its tokens; dhidden: its gradient, or NULL. */
static vptq_status run_head(vptq_e2e *e, size_t w, double *mean, float *dhidden, vptq_err *err)
{
    const size_t length = e->opt.length, size = length * e->teacher->desc->hidden;
    const vptq_backward_loss a = {.hidden = e->states + e->teacher->desc->layers * size,
                                  .teacher = e->target,
                                  .scale = (float)(1 / (double)(length * e->opt.batch))};
    double sum = 0;
    float *wanted;
    VPTQ_CHECK(vptq_hidden_states_get(&e->wanted, w * length, length, false, &wanted, err));
    VPTQ_CHECK(
        e->dev->ops->upload(e->dev->state, e->target, wanted, size * sizeof *wanted, err));
    VPTQ_CHECK(vptq_backward_head(e->b, &a, e->loss, dhidden, err));
    for (size_t i = 0; i < length; i++)
        sum += e->loss[i];
    *mean = sum / (double)length;
    return isfinite(*mean) ? VPTQ_OK
                           : vptq_fail(err, VPTQ_E_NUMERIC,
                                       "the divergence of window %zu is not finite", w);
}

/* Adds a linear layer's part of the window's gradient. */
static vptq_status linear_hook(void *arg, uint32_t layer, vptq_linear l, size_t rows,
                               const float *x, const float *dz, vptq_err *err)
{
    vptq_e2e *e = arg;
    const vptq_weight *w = &weights_of(e, layer)[l];
    if (!w->packed)
        return VPTQ_OK;
    const vptq_stored_gradients to = vptq_student_gradients(e->student, layer, l, e->window);
    return vptq_stored_gradient(e->stored, &w->packed->vq, rows, x, dz, &to, err);
}

/* e->batch += the gradient of window w; *loss: its mean divergence. */
static vptq_status add_window(vptq_e2e *e, size_t w, double *loss, vptq_err *err)
{
    const size_t size = e->opt.length * e->teacher->desc->hidden;
    memset(e->window, 0, e->student->count * sizeof *e->window);
    VPTQ_CHECK(run_forward(e, w, err));
    VPTQ_CHECK(run_head(e, w, loss, e->dhidden, err));
    for (uint32_t l = e->teacher->desc->layers; l-- > 0;) {
        const vptq_backward_hooks hooks = {
            .linear = linear_hook, .arg = e, .weights = weights_of(e, l)};
        VPTQ_CHECK(vptq_backward_block(e->b, l, e->states + l * size, e->dhidden, &hooks, err));
    }
    for (size_t i = 0; i < e->student->count; i++)
        e->batch[i] += e->window[i];
    return VPTQ_OK;
}

/* r->held_out = the mean divergence of the held-out windows; keeps the numbers if it is the
 * lowest. */
static vptq_status measure(vptq_e2e *e, vptq_e2e_report *r, vptq_err *err)
{
    double sum = 0;
    for (size_t w = 0; w < e->opt.held_out; w++) {
        double mean;
        VPTQ_CHECK(run_forward(e, e->opt.windows + w, err));
        VPTQ_CHECK(run_head(e, e->opt.windows + w, &mean, NULL, err));
        sum += mean;
    }
    r->held_out = sum / (double)e->opt.held_out;
    e->due = false;
    if (r->held_out < e->best_held_out) {
        e->best_held_out = r->held_out;
        e->best_step = e->optimizer.step;
        memcpy(e->best, e->student->master, e->student->count * sizeof *e->best);
    }
    return VPTQ_OK;
}

/* ---- steps ---- */

/* Shuffles the windows for a pass over them. */
static void shuffle(vptq_e2e *e, size_t pass)
{
    const vptq_rng rng = vptq_rng_make(e->opt.seed, (uint32_t)pass, 0, VPTQ_RNG_TUNE);
    for (size_t i = 0; i < e->opt.windows; i++) {
        const size_t other = (size_t)vptq_rng_below(&rng, i, i + 1);
        e->order[i] = e->order[other];
        e->order[other] = i;
    }
    e->pass = pass;
}

/* The window at a position of the whole run. */
static size_t window_at(vptq_e2e *e, size_t position)
{
    if (position / e->opt.windows != e->pass)
        shuffle(e, position / e->opt.windows);
    return e->order[position % e->opt.windows];
}

bool vptq_e2e_done(const vptq_e2e *e)
{
    return e->optimizer.step == e->opt.steps && !e->due;
}

uint32_t vptq_e2e_taken(const vptq_e2e *e)
{
    return e->optimizer.step;
}

/* A step without its measurement. */
static vptq_status take_step(vptq_e2e *e, vptq_e2e_report *r, vptq_err *err)
{
    const size_t first = (size_t)e->optimizer.step * e->opt.batch;
    double sum = 0;
    memset(e->batch, 0, e->student->count * sizeof *e->batch);
    for (size_t i = 0; i < e->opt.batch; i++) {
        double loss;
        VPTQ_CHECK(add_window(e, window_at(e, first + i), &loss, err));
        sum += loss;
    }
    r->loss = sum / (double)e->opt.batch;
    r->rate = vptq_optimizer_rate(&e->optimizer, e->optimizer.step);
    VPTQ_CHECK(vptq_optimizer_step(&e->optimizer, e->student, e->batch, &r->norm, err));
    e->due = e->optimizer.step % e->opt.every == 0 || e->optimizer.step == e->opt.steps;
    return VPTQ_OK;
}

vptq_status vptq_e2e_step(vptq_e2e *e, vptq_e2e_report *r, vptq_err *err)
{
    const double unknown = (double)NAN;
    *r = (vptq_e2e_report){
        .loss = unknown, .norm = unknown, .rate = unknown, .held_out = unknown};
    if (!e->due)
        VPTQ_CHECK(take_step(e, r, err));
    r->step = e->optimizer.step;
    r->changed = vptq_student_changed(e->student);
    return e->due ? measure(e, r, err) : VPTQ_OK;
}

double vptq_e2e_best(vptq_e2e *e, uint32_t *step)
{
    if (step)
        *step = e->best_step;
    vptq_student *s = e->student;
    memcpy(s->master, e->best, s->count * sizeof *e->best);
    vptq_student_round(s);
    for (size_t i = 0; i < s->tensor_count; i++)
        if (s->tensors[i].grid) /* other types of storage need the grid, too */
            memcpy(s->master + s->tensors[i].at, s->stored + s->tensors[i].at,
                   s->tensors[i].count * sizeof *s->master);
    return e->best_held_out;
}

/* ---- the state ---- */

enum { STATE_ARRAYS = 5 };

typedef struct state_array {
    void *data;
    size_t bytes;
} state_array;

/* The arrays that a step takes over from the steps before it. */
static void state_arrays(const vptq_e2e *e, state_array a[STATE_ARRAYS])
{
    const size_t floats = e->student->count * sizeof(float);
    a[0] = (state_array){e->student->master, floats};
    a[1] = (state_array){e->optimizer.m, floats};
    a[2] = (state_array){e->optimizer.v, floats};
    a[3] = (state_array){e->best, floats};
    a[4] = (state_array){e->optimizer.norms, e->opt.steps * sizeof *e->optimizer.norms};
}

typedef struct state_head {
    uint64_t step, best_step, due;
    double best_held_out;
} state_head;

size_t vptq_e2e_state_bytes(const vptq_e2e *e)
{
    state_array a[STATE_ARRAYS];
    size_t bytes = sizeof(state_head);
    state_arrays(e, a);
    for (int i = 0; i < STATE_ARRAYS; i++)
        bytes += a[i].bytes;
    return bytes;
}

void vptq_e2e_get_state(const vptq_e2e *e, void *state)
{
    const state_head head = {e->optimizer.step, e->best_step, e->due, e->best_held_out};
    state_array a[STATE_ARRAYS];
    char *to = state;
    memcpy(to, &head, sizeof head);
    to += sizeof head;
    state_arrays(e, a);
    for (int i = 0; i < STATE_ARRAYS; to += a[i++].bytes)
        memcpy(to, a[i].data, a[i].bytes);
}

vptq_status vptq_e2e_set_state(vptq_e2e *e, const void *state, vptq_err *err)
{
    state_array a[STATE_ARRAYS];
    state_head head;
    const char *from = state;
    memcpy(&head, from, sizeof head);
    from += sizeof head;
    if (head.step > e->opt.steps || head.best_step > head.step || !(head.best_held_out >= 0))
        return vptq_fail(err, VPTQ_E_FORMAT, "a state after step %" PRIu64 " of %u", head.step,
                         e->opt.steps);
    state_arrays(e, a);
    for (int i = 0; i < STATE_ARRAYS; from += a[i++].bytes)
        memcpy(a[i].data, from, a[i].bytes);
    e->optimizer.step = (uint32_t)head.step;
    e->best_step = (uint32_t)head.best_step;
    e->due = head.due != 0;
    e->best_held_out = head.best_held_out;
    vptq_student_round(e->student);
    return VPTQ_OK;
}

/* ---- opening and closing ---- */

static vptq_status device_floats(vptq_e2e *e, size_t rows, size_t cols, float **to,
                                 vptq_err *err)
{
    void *p = NULL;
    const vptq_status st = e->dev->ops->alloc(e->dev->state, rows, cols * sizeof **to, &p, err);
    *to = p;
    return st;
}

static vptq_status allocate(vptq_e2e *e, vptq_err *err)
{
    const size_t n = e->student->count, size = e->opt.length * e->teacher->desc->hidden;
    e->embedded = vptq_arena_alloc(&e->arena, size, sizeof *e->embedded, err);
    e->loss = vptq_arena_alloc(&e->arena, e->opt.length, sizeof *e->loss, err);
    e->window = vptq_arena_alloc(&e->arena, n, sizeof *e->window, err);
    e->batch = vptq_arena_alloc(&e->arena, n, sizeof *e->batch, err);
    e->best = vptq_arena_alloc(&e->arena, n, sizeof *e->best, err);
    e->order = vptq_arena_alloc(&e->arena, e->opt.windows, sizeof *e->order, err);
    if (!e->embedded || !e->loss || !e->window || !e->batch || !e->best || !e->order)
        return VPTQ_E_NOMEM;
    VPTQ_CHECK(device_floats(e, e->teacher->desc->layers + 1, size, &e->states, err));
    VPTQ_CHECK(device_floats(e, 1, size, &e->target, err));
    return device_floats(e, 1, size, &e->dhidden, err);
}

/* The last allocation, since it gives way under a memory cap; the teacher's forward pass then
 * needs less than a backward pass. */
static vptq_status open_wanted(vptq_e2e *e, vptq_err *err)
{
    e->wanted.rows = (e->opt.windows + e->opt.held_out) * e->opt.length;
    e->wanted.dim = e->teacher->desc->hidden;
    e->wanted.max_rows = e->opt.length;
    return vptq_hidden_states_open(e->dev->ctx, e->opt.dir,
                                   vptq_backward_bytes(e->f, e->opt.length), &e->wanted, err);
}

static vptq_status open_stored(vptq_e2e *e, vptq_err *err)
{
    const size_t matrices = (size_t)e->teacher->desc->layers * VPTQ_LINEAR_COUNT;
    size_t count = 0;
    const vptq_vq **list = vptq_arena_alloc(&e->arena, matrices, sizeof *list, err);
    if (!list)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < matrices; i++)
        if (e->student->weight[i].packed)
            list[count++] = &e->student->weight[i].packed->vq;
    return vptq_stored_open(e->dev, list, count, &e->stored, err);
}

vptq_status vptq_e2e_open(vptq_device *dev, const vptq_model *teacher, vptq_student *student,
                          const vptq_e2e_options *opt, vptq_e2e **out, vptq_e2e_report *start,
                          vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    *out = NULL;
    vptq_e2e *e = vptq_mem_alloc(dev->ctx->mem, 1, sizeof *e, err);
    if (!e)
        return VPTQ_E_NOMEM;
    *e = (vptq_e2e){.dev = dev,
                    .teacher = teacher,
                    .student = student,
                    .opt = *opt,
                    .best_held_out = (double)INFINITY,
                    .pass = SIZE_MAX};
    vptq_arena_init(&e->arena, dev->ctx->mem);
    VPTQ_TRY(allocate(e, err));
    VPTQ_TRY(open_stored(e, err));
    VPTQ_TRY(vptq_forward_open(student->m, dev, opt->length, &e->f, err));
    VPTQ_TRY(vptq_backward_open(e->f, opt->length, &e->b, err));
    VPTQ_TRY(vptq_optimizer_open(student, opt->steps, opt->rate, &e->optimizer, err));
    VPTQ_TRY(open_wanted(e, err));
    VPTQ_TRY(teach_all(e, err));
    *start = (vptq_e2e_report){.loss = (double)NAN, .norm = (double)NAN, .rate = (double)NAN};
    VPTQ_TRY(measure(e, start, err));
out:
    if (st)
        vptq_e2e_close(e);
    else
        *out = e;
    return st;
}

void vptq_e2e_close(vptq_e2e *e)
{
    if (!e)
        return;
    float *const arrays[] = {e->states, e->target, e->dhidden};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        e->dev->ops->release(e->dev->state, arrays[i]);
    vptq_hidden_states_close(&e->wanted);
    vptq_stored_close(e->stored);
    vptq_backward_close(e->b);
    vptq_forward_close(e->f);
    vptq_arena_release(&e->arena);
    vptq_mem_free(e->dev->ctx->mem, e);
}
