/* The feed-forward part of a block with experts, on devices that work in host memory:
 *
 *     p = softmax(x W_router^T);  E = the `used` experts with the largest p
 *     h += sigmoid(x w_shared^T) shared(x) + sum over e in E of (p_e or p_e / sum_E p) e(x)
 *
 * The tokens of an expert are gathered and multiplied together.  The sum of a token starts with
 * the shared expert and goes on in the order of the experts, so that it depends neither on the
 * number of threads nor on the other tokens. */
#include <math.h>
#include <string.h>

#include "lib/model/forward_internal.h"

/* Memory for a number of rows. */
typedef struct routing {
    float *logits;           /* [rows, count] */
    float *x, *y, *sum;      /* [rows, hidden]: tokens of an expert, its outputs, their sum */
    float *weight, *share;   /* [rows, used] of the chosen experts; [rows] of one expert */
    uint32_t *chosen, *from; /* [rows, used]; [rows] where the tokens of x come from */
} routing;

static size_t row_words(const vptq_model_desc *d)
{
    return d->experts.count + 3 * (size_t)d->hidden + 2 * ((size_t)d->experts.used + 1);
}

size_t vptq_forward_experts_floats(const vptq_model_desc *d)
{
    return d->experts.count ? row_words(d) : 0;
}

static routing routing_of(const vptq_forward *f)
{
    const vptq_experts *e = &f->d->experts;
    const size_t rows = f->rows, hidden = f->d->hidden;
    routing r = {.logits = f->experts};
    r.x = r.logits + rows * e->count;
    r.y = r.x + rows * hidden;
    r.sum = r.y + rows * hidden;
    r.weight = r.sum + rows * hidden;
    r.share = r.weight + rows * e->used;
    r.chosen = (uint32_t *)(void *)(r.share + rows);
    r.from = r.chosen + rows * e->used;
    return r;
}

/* ---- router ---- */

/* Chooses experts and their weights for one token.  Of equal logits the first counts. */
static void choose(const vptq_experts *x, const float *z, uint32_t *chosen, float *weight)
{
    double largest = -(double)INFINITY, all = 0, used = 0;
    for (uint32_t i = 0; i < x->count; i++)
        largest = (double)z[i] > largest ? (double)z[i] : largest;
    for (uint32_t i = 0; i < x->count; i++)
        all += exp((double)z[i] - largest);
    for (uint32_t k = 0; k < x->used; k++) {
        uint32_t best = x->count;
        for (uint32_t i = 0; i < x->count; i++) {
            bool taken = false;
            for (uint32_t j = 0; j < k; j++)
                taken = taken || chosen[j] == i;
            if (!taken && (best == x->count || z[i] > z[best]))
                best = i;
        }
        chosen[k] = best;
        used += exp((double)z[best] - largest);
    }
    for (uint32_t k = 0; k < x->used; k++)
        weight[k] = (float)(exp((double)z[chosen[k]] - largest) / (x->normalized ? used : all));
}

/* out [rows, t's rows] = x times a small matrix that is not a linear layer of the block. */
static vptq_status multiply(vptq_forward *f, const vptq_tensor *t, size_t rows, const float *x,
                            float *out, vptq_err *err)
{
    const vptq_weight w = {
        .rows = vptq_tensor_rows(t), .cols = vptq_tensor_cols(t), .tensor = t};
    const vptq_opened opened = {.matrix = NULL};
    const vptq_forward_linear_args a = {
        .w = &w, .opened = &opened, .rows = rows, .x = x, .out = out};
    return vptq_forward_linear(f, &a, err);
}

static vptq_status route(vptq_forward *f, const vptq_forward_pass *p, const routing *r,
                         vptq_err *err)
{
    const vptq_experts *e = &f->d->experts;
    VPTQ_CHECK(multiply(f, f->m->blocks[p->layer].router, p->rows, p->a->x, r->logits, err));
    for (size_t t = 0; t < p->rows; t++)
        choose(e, r->logits + t * e->count, r->chosen + t * e->used, r->weight + t * e->used);
    return VPTQ_OK;
}

/* Gathers the tokens of expert e; returns their number. */
static size_t gather(const vptq_forward *f, const vptq_forward_pass *p, const routing *r,
                     uint32_t e)
{
    const size_t used = f->d->experts.used, hidden = f->d->hidden;
    size_t n = 0;
    for (size_t i = 0; i < p->rows * used; i++) {
        if (r->chosen[i] != e)
            continue;
        r->from[n] = (uint32_t)(i / used);
        r->share[n] = r->weight[i];
        memcpy(r->x + n * hidden, p->a->x + r->from[n] * hidden, hidden * sizeof *r->x);
        n++;
    }
    return n;
}

/* ---- experts ---- */

/* Calls the hook for the n gathered tokens in x, sequence by sequence. */
static vptq_status hook_gathered(const vptq_forward *f, const vptq_forward_pass *p,
                                 vptq_input input, const routing *r, size_t n, const float *x,
                                 vptq_err *err)
{
    const size_t dim = vptq_input_size(f->d, input);
    for (size_t s = 0, i = 0, end; p->hooks.hook && s < p->count; s++, i = end) {
        for (end = i; end < n && r->from[end] < p->starts[s + 1] - p->starts[0];)
            end++;
        if (end > i)
            VPTQ_CHECK(p->hooks.hook(p->hooks.arg, input, p->first_sequence + s, end - i, dim,
                                     x + i * dim, err));
    }
    return VPTQ_OK;
}

/* p->a->act = act(x W_gate^T) * (x W_up^T), for p->rows tokens. */
static vptq_status run_gate_and_up(vptq_forward *f, const vptq_forward_pass *p,
                                   vptq_linear gate, const float *x, vptq_err *err)
{
    uint32_t out, in;
    vptq_linear_shape(f->d, gate, &out, &in);
    VPTQ_CHECK(vptq_forward_block_linear(f, p, gate, x, 0, p->a->gate, err));
    VPTQ_CHECK(vptq_forward_block_linear(f, p, gate + 1, x, 0, p->a->up, err));
    return f->dev->ops->swiglu(f->dev->state,
                               &(vptq_swiglu_args){.n = p->rows,
                                                   .dim = out,
                                                   .gelu = f->d->gelu,
                                                   .gate = p->a->gate,
                                                   .up = p->a->up,
                                                   .y = p->a->act},
                               err);
}

/* Whether a pass that stops at an input needs the inputs from `first` to `last`. */
static bool needs(const vptq_forward_pass *p, vptq_input first, vptq_input last)
{
    return !p->hooks.stop || (p->hooks.last >= first && p->hooks.last <= last);
}

static vptq_status run_shared(vptq_forward *f, const vptq_forward_pass *p, const routing *r,
                              vptq_err *err)
{
    const size_t hidden = f->d->hidden;
    VPTQ_CHECK(run_gate_and_up(f, p, VPTQ_LINEAR_SHARED, p->a->x, err));
    VPTQ_CHECK(vptq_forward_hook_rows(f, p, VPTQ_INPUT_SHARED_DOWN, p->a->act, err));
    if (p->hooks.stop)
        return VPTQ_OK;
    VPTQ_CHECK(
        vptq_forward_block_linear(f, p, VPTQ_LINEAR_SHARED + 2, p->a->act, 0, r->sum, err));
    VPTQ_CHECK(
        multiply(f, f->m->blocks[p->layer].shared_gate, p->rows, p->a->x, r->share, err));
    for (size_t t = 0; t < p->rows; t++) {
        const float share = (float)(1 / (1 + exp(-(double)r->share[t])));
        for (size_t i = 0; i < hidden; i++)
            r->sum[t * hidden + i] *= share;
    }
    return VPTQ_OK;
}

static vptq_status run_expert(vptq_forward *f, const vptq_forward_pass *p, const routing *r,
                              uint32_t e, vptq_err *err)
{
    const size_t hidden = f->d->hidden, n = gather(f, p, r, e);
    const vptq_linear gate = vptq_expert_linear(e, VPTQ_LINEAR_GATE);
    const vptq_input up = vptq_expert_input(e, VPTQ_INPUT_UP), down = up + 1;
    vptq_forward_pass own = *p;
    own.rows = n;
    if (!n || !needs(p, up, down))
        return VPTQ_OK;
    VPTQ_CHECK(hook_gathered(f, p, up, r, n, r->x, err));
    if (p->hooks.stop && p->hooks.last == up)
        return VPTQ_OK;
    VPTQ_CHECK(run_gate_and_up(f, &own, gate, r->x, err));
    VPTQ_CHECK(hook_gathered(f, p, down, r, n, p->a->act, err));
    if (p->hooks.stop)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_forward_block_linear(f, &own, gate + 2, p->a->act, 0, r->y, err));
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < hidden; i++)
            r->sum[r->from[t] * hidden + i] += r->share[t] * r->y[t * hidden + i];
    return VPTQ_OK;
}

vptq_status vptq_forward_experts(vptq_forward *f, const vptq_forward_pass *p, vptq_err *err)
{
    const vptq_experts *x = &f->d->experts;
    const size_t floats = p->rows * f->d->hidden;
    const routing r = routing_of(f);
    if (x->shared && needs(p, VPTQ_INPUT_SHARED_DOWN, VPTQ_INPUT_SHARED_DOWN))
        VPTQ_CHECK(run_shared(f, p, &r, err));
    else
        memset(r.sum, 0, floats * sizeof *r.sum);
    if (!needs(p, VPTQ_INPUT_EXPERT, vptq_input_count(x)))
        return VPTQ_OK;
    VPTQ_CHECK(route(f, p, &r, err));
    for (uint32_t e = 0; e < x->count; e++)
        VPTQ_CHECK(run_expert(f, p, &r, e, err));
    for (size_t i = 0; !p->hooks.stop && i < floats; i++)
        p->h[i] += r.sum[i];
    return VPTQ_OK;
}
