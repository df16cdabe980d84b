/* The loop of tuning: batches, steps, measurements, the state. */
#include "lib/tune/trainer.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "lib/base/comm.h"
#include "lib/base/rng.h"

/* ---- a group of windows ---- */

const vptq_weight *vptq_trainer_weights(const vptq_trainer *t, uint32_t layer)
{
    return t->student->weight + (size_t)layer * VPTQ_LINEAR_DENSE;
}

/* Adds a linear layer's part of the group's gradient. */
static vptq_status linear_hook(void *arg, uint32_t layer, vptq_linear l, size_t rows,
                               const float *x, const float *dz, vptq_err *err)
{
    vptq_trainer *t = arg;
    const vptq_weight *w = &vptq_trainer_weights(t, layer)[l];
    if (!w->packed)
        return VPTQ_OK;
    const vptq_stored_gradients to = vptq_student_gradients(t->student, layer, l, t->group);
    return vptq_stored_gradient(t->stored, &w->packed->vq, rows, x, dz, &to, err);
}

vptq_status vptq_trainer_backward(vptq_trainer *t, uint32_t layer, const float *hidden,
                                  float *dhidden, vptq_err *err)
{
    const vptq_backward_hooks hooks = {
        .linear = linear_hook, .arg = t, .weights = vptq_trainer_weights(t, layer)};
    return vptq_backward_block(t->b, layer, hidden, dhidden, &hooks, err);
}

static vptq_status not_finite(const vptq_trainer *t, size_t count, vptq_err *err)
{
    if (count == 1)
        return vptq_fail(err, VPTQ_E_NUMERIC, "the gradient of window %zu is not finite",
                         t->taken[0]);
    return vptq_fail(err, VPTQ_E_NUMERIC,
                     "the gradient of %zu windows, the first of them %zu, is not finite", count,
                     t->taken[0]);
}

/* t->group = the gradient of t->taken; *loss: the sum of their losses. */
static vptq_status make_group(vptq_trainer *t, size_t count, double *loss, vptq_err *err)
{
    const vptq_tensor_range *r = &t->optimizer.range;
    bool finite = true;
    memset(t->group + r->at, 0, r->count * sizeof *t->group);
    vptq_forward_use_bf16(t->f, t->opt.bf16);
    VPTQ_CHECK(t->loss(t->arg, t->taken, count, true, loss, err));
    for (size_t i = r->at; i < r->at + r->count; i++)
        finite &= isfinite(t->group[i]) != 0;
    return finite ? VPTQ_OK : not_finite(t, count, err);
}

/* Groups of `all` windows, and the windows of group g. */
static size_t group_count(const vptq_trainer *t, size_t all)
{
    return (all + t->opt.group - 1) / t->opt.group;
}

static size_t group_size(const vptq_trainer *t, size_t g, size_t all)
{
    const size_t left = all - g * t->opt.group;
    return left < t->opt.group ? left : t->opt.group;
}

/* *sum = t->losses of `count` groups, of which every rank has its own, added in their order. */
static vptq_status sum_losses(vptq_trainer *t, size_t count, double *sum, vptq_err *err)
{
    VPTQ_CHECK(vptq_comm_gather(t->dev->ctx, t->losses, count, err));
    *sum = 0;
    for (size_t g = 0; g < count; g++)
        *sum += t->losses[g];
    return VPTQ_OK;
}

/* r->held_out = the mean loss of the held-out windows; keeps the numbers if it is the lowest.
 */
static vptq_status measure(vptq_trainer *t, vptq_trainer_report *r, vptq_err *err)
{
    const vptq_tensor_range *range = &t->optimizer.range;
    const vptq_ctx *ctx = t->dev->ctx;
    const size_t groups = group_count(t, t->opt.held_out), ranks = (size_t)vptq_comm_size(ctx);
    double sum;
    vptq_forward_use_bf16(t->f, false);
    memset(t->losses, 0, groups * sizeof *t->losses);
    for (size_t g = (size_t)vptq_comm_rank(ctx); g < groups; g += ranks) {
        const size_t n = group_size(t, g, t->opt.held_out);
        for (size_t i = 0; i < n; i++)
            t->taken[i] = t->opt.windows + g * t->opt.group + i;
        VPTQ_CHECK(t->loss(t->arg, t->taken, n, false, &t->losses[g], err));
    }
    VPTQ_CHECK(sum_losses(t, groups, &sum, err));
    r->held_out = sum / (double)t->opt.held_out;
    t->due = false;
    if (r->held_out < t->best_held_out) {
        t->best_held_out = r->held_out;
        t->best_step = t->optimizer.step;
        memcpy(t->best + range->at, t->student->master + range->at,
               range->count * sizeof *t->best);
    }
    return VPTQ_OK;
}

/* ---- steps ---- */

/* Shuffles the windows for a pass over them. */
static void shuffle(vptq_trainer *t, size_t pass)
{
    const vptq_rng rng = vptq_rng_make(t->opt.seed, (uint32_t)pass, 0, VPTQ_RNG_TUNE);
    for (size_t i = 0; i < t->opt.windows; i++) {
        const size_t other = (size_t)vptq_rng_below(&rng, i, i + 1);
        t->order[i] = t->order[other];
        t->order[other] = i;
    }
    t->pass = pass;
}

/* The window at a position of the whole run. */
static size_t window_at(vptq_trainer *t, size_t position)
{
    if (position / t->opt.windows != t->pass)
        shuffle(t, position / t->opt.windows);
    return t->order[position % t->opt.windows];
}

bool vptq_trainer_done(const vptq_trainer *t)
{
    return t->optimizer.step == t->opt.steps && !t->due;
}

/* The gradient of group g of a step, in t->group. */
static vptq_status run_group(vptq_trainer *t, size_t g, vptq_err *err)
{
    const size_t n = group_size(t, g, t->opt.batch);
    const size_t first = (size_t)t->optimizer.step * t->opt.batch + g * t->opt.group;
    for (size_t i = 0; i < n; i++)
        t->taken[i] = window_at(t, first + i);
    return make_group(t, n, &t->losses[g], err);
}

/* t->batch += the gradients of the groups from g on, at most one per rank, in their order. */
static vptq_status add_groups(vptq_trainer *t, size_t g, size_t groups, vptq_err *err)
{
    const vptq_tensor_range *range = &t->optimizer.range;
    const vptq_ctx *ctx = t->dev->ctx;
    const size_t ranks = (size_t)vptq_comm_size(ctx), rank = (size_t)vptq_comm_rank(ctx);
    const size_t parts = groups - g < ranks ? groups - g : ranks;
    if (rank < parts)
        VPTQ_CHECK(run_group(t, g + rank, err));
    return vptq_comm_sum(ctx, (int)parts, rank < parts ? t->group + range->at : NULL,
                         t->batch + range->at, range->count, err);
}

/* A step without its measurement. */
static vptq_status take_step(vptq_trainer *t, vptq_trainer_report *r, vptq_err *err)
{
    const vptq_tensor_range *range = &t->optimizer.range;
    const size_t groups = group_count(t, t->opt.batch);
    const size_t ranks = (size_t)vptq_comm_size(t->dev->ctx);
    double sum;
    memset(t->batch + range->at, 0, range->count * sizeof *t->batch);
    memset(t->losses, 0, groups * sizeof *t->losses);
    for (size_t g = 0; g < groups; g += ranks)
        VPTQ_CHECK(add_groups(t, g, groups, err));
    VPTQ_CHECK(sum_losses(t, groups, &sum, err));
    r->loss = sum / (double)t->opt.batch;
    r->rate = vptq_optimizer_rate(&t->optimizer, t->optimizer.step);
    VPTQ_CHECK(vptq_optimizer_step(&t->optimizer, t->student, t->batch, &r->norm, err));
    t->due = t->optimizer.step % t->opt.every == 0 || t->optimizer.step == t->opt.steps;
    return VPTQ_OK;
}

vptq_status vptq_trainer_step(vptq_trainer *t, vptq_trainer_report *r, vptq_err *err)
{
    const double unknown = (double)NAN;
    *r = (vptq_trainer_report){
        .loss = unknown, .norm = unknown, .rate = unknown, .held_out = unknown};
    if (!t->due)
        VPTQ_CHECK(take_step(t, r, err));
    r->step = t->optimizer.step;
    r->changed = vptq_student_changed(t->student);
    return t->due ? measure(t, r, err) : VPTQ_OK;
}

double vptq_trainer_best(vptq_trainer *t, uint32_t *step)
{
    const vptq_tensor_range *r = &t->optimizer.range;
    vptq_student *s = t->student;
    if (step)
        *step = t->best_step;
    memcpy(s->master + r->at, t->best + r->at, r->count * sizeof *t->best);
    vptq_student_round(s, r);
    for (size_t i = r->first; i < r->end; i++)
        if (s->tensors[i].grid) /* other types of storage need the grid, too */
            memcpy(s->master + s->tensors[i].at, s->stored + s->tensors[i].at,
                   s->tensors[i].count * sizeof *s->master);
    return t->best_held_out;
}

/* ---- the state ---- */

enum { STATE_ARRAYS = 5 };

typedef struct state_array {
    void *data;
    size_t bytes;
} state_array;

/* The arrays that a step takes over from the steps before it. */
static void state_arrays(const vptq_trainer *t, state_array a[STATE_ARRAYS])
{
    const size_t floats = t->student->count * sizeof(float);
    a[0] = (state_array){t->student->master, floats};
    a[1] = (state_array){t->optimizer.m, floats};
    a[2] = (state_array){t->optimizer.v, floats};
    a[3] = (state_array){t->best, floats};
    a[4] = (state_array){t->optimizer.norms, t->opt.steps * sizeof *t->optimizer.norms};
}

typedef struct state_head {
    uint64_t step, best_step, due;
    double best_held_out;
} state_head;

size_t vptq_trainer_state_bytes(const vptq_trainer *t)
{
    state_array a[STATE_ARRAYS];
    size_t bytes = sizeof(state_head);
    state_arrays(t, a);
    for (int i = 0; i < STATE_ARRAYS; i++)
        bytes += a[i].bytes;
    return bytes;
}

void vptq_trainer_get_state(const vptq_trainer *t, void *state)
{
    const state_head head = {t->optimizer.step, t->best_step, t->due, t->best_held_out};
    state_array a[STATE_ARRAYS];
    char *to = state;
    memcpy(to, &head, sizeof head);
    to += sizeof head;
    state_arrays(t, a);
    for (int i = 0; i < STATE_ARRAYS; to += a[i++].bytes)
        memcpy(to, a[i].data, a[i].bytes);
}

vptq_status vptq_trainer_set_state(vptq_trainer *t, const void *state, vptq_err *err)
{
    state_array a[STATE_ARRAYS];
    state_head head;
    const char *from = state;
    memcpy(&head, from, sizeof head);
    from += sizeof head;
    if (head.step > t->opt.steps || head.best_step > head.step || !isfinite(head.best_held_out))
        return vptq_fail(err, VPTQ_E_FORMAT, "a state after step %" PRIu64 " of %u", head.step,
                         t->opt.steps);
    state_arrays(t, a);
    for (int i = 0; i < STATE_ARRAYS; from += a[i++].bytes)
        memcpy(a[i].data, from, a[i].bytes);
    t->optimizer.step = (uint32_t)head.step;
    t->best_step = (uint32_t)head.best_step;
    t->due = head.due != 0;
    t->best_held_out = head.best_held_out;
    vptq_student_round(t->student, &t->optimizer.range);
    return VPTQ_OK;
}

/* ---- opening and closing ---- */

vptq_status vptq_trainer_states(vptq_trainer *t, size_t n, float **to, vptq_err *err)
{
    const size_t size =
        t->opt.group * t->opt.length * t->student->m->desc->hidden * sizeof **to;
    void *p = NULL;
    const vptq_status st = t->dev->ops->alloc(t->dev->state, n, size, &p, err);
    *to = p;
    return st;
}

static vptq_status allocate(vptq_trainer *t, vptq_err *err)
{
    const size_t n = t->student->count;
    const size_t groups = group_count(t, t->opt.batch), held = group_count(t, t->opt.held_out);
    const size_t losses = groups > held ? groups : held;
    t->losses = vptq_arena_alloc(&t->arena, losses, sizeof *t->losses, err);
    t->group = vptq_arena_alloc(&t->arena, n, sizeof *t->group, err);
    t->batch = vptq_arena_alloc(&t->arena, n, sizeof *t->batch, err);
    t->best = vptq_arena_alloc(&t->arena, n, sizeof *t->best, err);
    t->order = vptq_arena_alloc(&t->arena, t->opt.windows, sizeof *t->order, err);
    t->taken = vptq_arena_alloc(&t->arena, t->opt.group, sizeof *t->taken, err);
    return t->losses && t->group && t->batch && t->best && t->order && t->taken ? VPTQ_OK
                                                                                : VPTQ_E_NOMEM;
}

static vptq_status open_stored(vptq_trainer *t, vptq_err *err)
{
    const size_t matrices = (size_t)t->student->m->desc->layers * VPTQ_LINEAR_DENSE;
    size_t count = 0;
    const vptq_vq **list = vptq_arena_alloc(&t->arena, matrices, sizeof *list, err);
    if (!list)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < matrices; i++)
        if (t->student->weight[i].packed)
            list[count++] = &t->student->weight[i].packed->vq;
    return vptq_stored_open(t->dev, list, count, t->opt.bf16, &t->stored, err);
}

vptq_status vptq_trainer_open(vptq_device *dev, vptq_student *student,
                              const vptq_trainer_options *opt, vptq_trainer_fn loss, void *arg,
                              vptq_trainer *t, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    *t = (vptq_trainer){.dev = dev, .student = student, .opt = *opt, .loss = loss, .arg = arg};
    vptq_arena_init(&t->arena, dev->ctx->mem);
    VPTQ_TRY(allocate(t, err));
    VPTQ_TRY(open_stored(t, err));
    VPTQ_TRY(vptq_forward_open(student->m, dev, opt->length, &t->f, err));
    VPTQ_TRY(vptq_backward_open(t->f, opt->length, opt->group, &t->b, err));
    VPTQ_TRY(vptq_optimizer_open(student, opt->steps, &t->arena, &t->optimizer, err));
out:
    if (st)
        vptq_trainer_close(t);
    return st;
}

void vptq_trainer_close(vptq_trainer *t)
{
    vptq_stored_close(t->stored);
    vptq_backward_close(t->b);
    vptq_forward_close(t->f);
    vptq_arena_release(&t->arena);
    *t = (vptq_trainer){.dev = NULL};
}

/* The default rate, near the one that lowers the held-out loss most.  A step follows the
 * gradient of a few thousand tokens, whose noise grows with the numbers per token, and a model
 * that is close to its original has less far to go.  Fitted end to end to stories260K (15,000
 * numbers, divergences of 0.07 to 2.7) and SmolLM2-135M (1.5 million, 0.66); as good as 0.01
 * for the layers of stories260K, whose numbers and losses are their own (docs/tuning.md).
 * Rounded to 8 bits, so that the last digits of the loss do not count. */
static double rate_of(const vptq_trainer *t, double loss)
{
    static const double factor = 0.01;
    const double tokens = (double)t->opt.batch * (double)t->opt.length;
    const double numbers = (double)t->optimizer.range.count;
    int exponent;
    const double rate = factor * sqrt(sqrt(tokens / numbers)) * sqrt(fmax(loss, 0));
    const double fraction = frexp(rate, &exponent);
    return ldexp(rint(ldexp(fraction, 8)), exponent - 8);
}

vptq_status vptq_trainer_begin(vptq_trainer *t, const vptq_tensor_range *range,
                               vptq_trainer_report *start, vptq_err *err)
{
    const double unknown = (double)NAN;
    vptq_optimizer_begin(&t->optimizer, range);
    t->best_held_out = (double)INFINITY;
    t->best_step = 0;
    t->due = false;
    t->pass = SIZE_MAX;
    *start = (vptq_trainer_report){.loss = unknown, .norm = unknown, .rate = unknown};
    start->changed = vptq_student_changed(t->student);
    VPTQ_CHECK(measure(t, start, err));
    t->optimizer.rate = isnan(t->opt.rate) ? rate_of(t, start->held_out) : t->opt.rate;
    return VPTQ_OK;
}
