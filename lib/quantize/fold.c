/* Scales that SmoothQuant and AWQ move between the matrices of a layer and what computes their
 * input: a norm, or the rows of another matrix.
 *
 *     q, k, v    input norm                gate, up    norm after the attention
 *     o          rows of v (AWQ, as many heads as key heads)
 *     down       rows of up (AWQ)
 *
 * A changed norm is rounded to the storage type first; the columns get what that leaves of it,
 * so that the layer computes the same.  The norms are stored when all matrices of the layer
 * are, because the layer computes the same only as a whole. */
#include <math.h>
#include <string.h>

#include "lib/base/half.h"
#include "lib/quantize/internal.h"
#include "lib/uniform/fold.h"

enum { FOLDS = VPTQ_METHOD_SMOOTH | VPTQ_METHOD_AWQ, MOST_READERS = 3 };

static uint32_t method_of(const vptq_quantizer *q, uint32_t layer, int l)
{
    const vptq_matrix_settings *m = vptq_quantizer_matrix(q, layer, (vptq_linear)l);
    return m->skip ? 0 : m->settings.method;
}

bool vptq_fold_applies(const vptq_quantizer *q, uint32_t layer)
{
    for (int l = 0; l < vptq_linear_count(q->model.desc); l++)
        if (method_of(q, layer, l) & FOLDS)
            return true;
    return false;
}

/* The norm before an input; NULL = none. */
static const vptq_tensor *norm_before(const vptq_block *b, vptq_input input)
{
    return input == VPTQ_INPUT_QKV  ? b->norm[VPTQ_BLOCK_NORM_INPUT]
           : input == VPTQ_INPUT_UP ? b->norm[VPTQ_BLOCK_NORM_FEED_FORWARD]
                                    : NULL;
}

/* The linear layer whose outputs are the channels of an input, without a bias, which would have
 * to change too; VPTQ_LINEAR_NONE = none. */
static vptq_linear producer_of(const vptq_quantizer *q, const vptq_block *b, vptq_input input)
{
    const vptq_model_desc *d = q->model.desc;
    const vptq_linear l = input == VPTQ_INPUT_DOWN                           ? VPTQ_LINEAR_UP
                          : input == VPTQ_INPUT_O && d->heads == d->kv_heads ? VPTQ_LINEAR_V
                                                                             : VPTQ_LINEAR_NONE;
    return l == VPTQ_LINEAR_NONE || b->linear_bias[l] ? VPTQ_LINEAR_NONE : l;
}

/* Stages that change the scales of an input. */
static uint32_t stages_of(const vptq_quantizer *q, uint32_t layer, vptq_input input)
{
    const vptq_block *b = &q->model.blocks[layer];
    const uint32_t possible = norm_before(b, input)                          ? FOLDS
                              : producer_of(q, b, input) != VPTQ_LINEAR_NONE ? VPTQ_METHOD_AWQ
                                                                             : 0;
    uint32_t stages = 0;
    for (int l = 0; l < VPTQ_LINEAR_DENSE; l++)
        if (vptq_linear_input((vptq_linear)l) == input)
            stages |= method_of(q, layer, l);
    return stages & possible;
}

/* ---- the scales of one input ---- */

/* The matrices that read the input, scaled by the stages so far. */
typedef struct reading {
    vptq_quantizer *q;
    vptq_input input;
    vptq_arena arena;
    size_t n;
    float *s;                          /* [n] the scales so far */
    float *step;                       /* [n] those of the present stage */
    float *lower, *abs_mean, *abs_max; /* of x / s */
    vptq_linear linear[MOST_READERS];  /* that read it */
    float *w[MOST_READERS];            /* [out, n] W diag(s) */
    uint32_t out[MOST_READERS];
    size_t count;
} reading;

static vptq_status floats(reading *r, size_t n, float **to, vptq_err *err)
{
    *to = vptq_arena_alloc(&r->arena, n, sizeof **to, err);
    return *to ? VPTQ_OK : VPTQ_E_NOMEM;
}

static vptq_status read_matrices(reading *r, uint32_t layer, vptq_err *err)
{
    for (int l = 0; l < VPTQ_LINEAR_DENSE; l++) {
        const vptq_weight *w = &r->q->model.blocks[layer].linear[l];
        if (vptq_linear_input((vptq_linear)l) != r->input ||
            !(method_of(r->q, layer, l) & FOLDS))
            continue;
        float *x;
        VPTQ_CHECK(floats(r, w->rows * w->cols, &x, err));
        VPTQ_CHECK(vptq_weight_read(w, r->q->dev, 0, w->rows, x, err));
        vptq_weight_forget(w);
        r->n = w->cols;
        r->linear[r->count] = (vptq_linear)l;
        r->out[r->count] = (uint32_t)w->rows;
        r->w[r->count++] = x;
    }
    return VPTQ_OK;
}

/* Copies the statistics of the input. */
static vptq_status read_statistics(reading *r, uint32_t layer, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_input_hessians h = {0};
    const vptq_hessian_source *source = &r->q->hessians;
    const size_t n = r->n;
    VPTQ_CHECK(source->load(source, layer, r->input, (uint32_t)n, &h, err));
    if (!h.abs_mean)
        VPTQ_TRY(vptq_fail(err, VPTQ_E_UNSUPPORTED,
                           "the Hessians have no channel ranges, which awq and smooth need; "
                           "collect them again with this version"));
    VPTQ_TRY(floats(r, vptq_triangle(n), &r->lower, err));
    VPTQ_TRY(floats(r, n, &r->abs_mean, err));
    VPTQ_TRY(floats(r, n, &r->abs_max, err));
    memcpy(r->lower, h.plain, vptq_triangle(n) * sizeof *r->lower);
    memcpy(r->abs_mean, h.abs_mean, n * sizeof *r->abs_mean);
    for (size_t j = 0; j < n; j++)
        r->abs_max[j] = fmaxf(fabsf(h.min[j]), fabsf(h.max[j]));
out:
    source->release(source, &h);
    return st;
}

static void scale_lower(size_t n, const float *s, const float *from, float *lower)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j <= i; j++, from++, lower++)
            *lower = *from / (s[i] * s[j]);
}

/* Multiplies the scales by those of a stage. */
static void apply(reading *r)
{
    for (size_t j = 0; j < r->n; j++) {
        r->s[j] *= r->step[j];
        r->abs_mean[j] /= r->step[j];
        r->abs_max[j] /= r->step[j];
    }
    for (size_t i = 0; i < r->count; i++)
        for (size_t k = 0; k < r->out[i]; k++)
            for (size_t j = 0; j < r->n; j++)
                r->w[i][k * r->n + j] *= r->step[j];
    scale_lower(r->n, r->step, r->lower, r->lower);
}

vptq_uniform_settings vptq_fold_settings(const vptq_encoder_settings *s)
{
    vptq_uniform_settings u = vptq_uniform_settings_of(s);
    u.clip = false;
    u.prune = (vptq_prune){0};
    return u;
}

/* The matrices that have the stage. */
static vptq_fold_input input_of(const reading *r, uint32_t layer, uint32_t stage,
                                vptq_fold_matrix matrix[MOST_READERS])
{
    vptq_fold_input f = {.in = (uint32_t)r->n,
                         .abs_mean = r->abs_mean,
                         .abs_max = r->abs_max,
                         .lower = r->lower,
                         .matrix = matrix};
    for (size_t i = 0; i < r->count; i++) {
        const vptq_encoder_settings *s =
            &vptq_quantizer_matrix(r->q, layer, r->linear[i])->settings;
        if (!(s->method & stage))
            continue;
        matrix[f.count++] = (vptq_fold_matrix){
            .out = r->out[i], .w = r->w[i], .settings = vptq_fold_settings(s)};
    }
    return f;
}

/* That of the first matrix: they share one set of scales. */
static double smooth_alpha(const reading *r, uint32_t layer)
{
    for (size_t i = 0; i < r->count; i++) {
        const vptq_encoder_settings *s =
            &vptq_quantizer_matrix(r->q, layer, r->linear[i])->settings;
        if (s->method & VPTQ_METHOD_SMOOTH)
            return s->smooth_alpha;
    }
    return 0;
}

/* r->s = the scales of all stages. */
static vptq_status run_stages(reading *r, uint32_t layer, uint32_t stages, double *alpha,
                              vptq_err *err)
{
    vptq_fold_matrix matrix[MOST_READERS];
    *alpha = (double)NAN;
    for (size_t j = 0; j < r->n; j++)
        r->s[j] = 1;
    if (stages & VPTQ_METHOD_SMOOTH) {
        const vptq_fold_input f = input_of(r, layer, VPTQ_METHOD_SMOOTH, matrix);
        vptq_smooth_scales(&f, smooth_alpha(r, layer), r->step);
        apply(r);
    }
    if (stages & VPTQ_METHOD_AWQ) {
        const vptq_fold_input f = input_of(r, layer, VPTQ_METHOD_AWQ, matrix);
        VPTQ_CHECK(vptq_awq_scales(r->q->dev, &f, r->step, alpha, err));
        apply(r);
    }
    return VPTQ_OK;
}

/* *norm = the norm divided by s and rounded; s = what that leaves to the columns. */
static vptq_status divide_norm(vptq_quantizer *q, const vptq_tensor *t, size_t n, float *s,
                               vptq_dtype storage, float **norm, vptq_err *err)
{
    float *x = vptq_arena_alloc(&q->fold.arena, n, sizeof *x, err);
    if (!x)
        return VPTQ_E_NOMEM;
    VPTQ_CHECK(vptq_tensor_read(t, 0, 1, x, err));
    for (size_t j = 0; j < n; j++) {
        const float divided = vptq_round_to(storage, x[j] / s[j]), ratio = x[j] / divided;
        const bool usable = isnormal(divided) && isnormal(ratio);
        s[j] = usable ? ratio : 1;
        x[j] = usable ? divided : vptq_round_to(storage, x[j]);
    }
    *norm = x;
    return VPTQ_OK;
}

static vptq_status find_scales(vptq_quantizer *q, uint32_t layer, vptq_input input,
                               vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_fold *f = &q->fold;
    reading r = {.q = q, .input = input};
    const uint32_t stages = stages_of(q, layer, input);
    const vptq_tensor *norm = norm_before(&q->model.blocks[layer], input);

    vptq_arena_init(&r.arena, q->dev->ctx->mem);
    VPTQ_TRY(read_matrices(&r, layer, err));
    VPTQ_TRY(read_statistics(&r, layer, err));
    VPTQ_TRY(floats(&r, r.n, &r.step, err));
    r.s = vptq_arena_alloc(&f->arena, r.n, sizeof *r.s, err);
    if (!r.s)
        VPTQ_TRY(VPTQ_E_NOMEM);
    VPTQ_TRY(run_stages(&r, layer, stages, &f->alpha[input], err));
    if (norm)
        VPTQ_TRY(divide_norm(q, norm, r.n, r.s,
                             vptq_quantizer_matrix(q, layer, r.linear[0])->settings.storage,
                             &f->norm[input], err));
    f->scale[input] = r.s;
out:
    vptq_arena_release(&r.arena);
    return st;
}

/* ---- a layer ---- */

vptq_status vptq_fold_layer(vptq_quantizer *q, uint32_t layer, vptq_err *err)
{
    vptq_fold *f = &q->fold;
    if (f->ready && f->layer == layer)
        return VPTQ_OK;
    vptq_fold_release(q);
    if (!vptq_fold_applies(q, layer))
        return VPTQ_OK;
    vptq_arena_init(&f->arena, q->dev->ctx->mem);
    for (int i = 0; i < VPTQ_INPUT_DENSE; i++) {
        f->alpha[i] = (double)NAN;
        if (stages_of(q, layer, (vptq_input)i))
            VPTQ_CHECK(find_scales(q, layer, (vptq_input)i, err));
    }
    f->layer = layer;
    f->ready = true;
    return VPTQ_OK;
}

void vptq_fold_release(vptq_quantizer *q)
{
    vptq_arena_release(&q->fold.arena);
    q->fold = (vptq_fold){0};
}

/* ---- one matrix ---- */

void vptq_fold_weights(const vptq_quantizer *q, const vptq_quantize_row *row, float *w)
{
    const vptq_block *b = &q->model.blocks[row->layer];
    const float *columns, *rows = NULL;
    if (!q->fold.ready)
        return;
    columns = q->fold.scale[vptq_linear_input(q->linear)];
    for (int i = 0; i < VPTQ_INPUT_DENSE; i++)
        if (producer_of(q, b, (vptq_input)i) == q->linear && !norm_before(b, (vptq_input)i))
            rows = q->fold.scale[i];
    for (size_t r = 0; r < row->rows; r++)
        for (size_t j = 0; j < row->columns; j++, w++)
            *w *= (columns ? columns[j] : 1) / (rows ? rows[r] : 1);
}

/* Replaces *lower by a copy for x / s. */
static vptq_status scale_hessian(size_t n, const float *s, vptq_arena *arena,
                                 const float **lower, vptq_err *err)
{
    if (!*lower)
        return VPTQ_OK;
    float *scaled = vptq_arena_alloc(arena, vptq_triangle(n), sizeof *scaled, err);
    if (!scaled)
        return VPTQ_E_NOMEM;
    scale_lower(n, s, *lower, scaled);
    *lower = scaled;
    return VPTQ_OK;
}

/* Which file has the norm is part of the format. */
void vptq_fold_file(const vptq_quantizer *q, vptq_layer_file *file)
{
    const vptq_input input = vptq_linear_input(q->linear);
    file->folded = q->fold.ready;
    if (q->linear != VPTQ_LINEAR_Q && q->linear != VPTQ_LINEAR_GATE)
        return;
    file->norm = q->fold.norm[input];
    file->norm_size = vptq_input_size(q->model.desc, input);
}

vptq_status vptq_fold_hessians(const vptq_quantizer *q, vptq_arena *arena,
                               vptq_encoder_input *input, vptq_err *err)
{
    const float *s = q->fold.ready ? q->fold.scale[vptq_linear_input(q->linear)] : NULL;
    if (!s)
        return VPTQ_OK;
    VPTQ_CHECK(scale_hessian(input->in, s, arena, &input->lower, err));
    VPTQ_CHECK(scale_hessian(input->in, s, arena, &input->metric, err));
    return scale_hessian(input->in, s, arena, &input->held_out, err);
}
