/* Calibration inside a quantize run: a source of Hessians that runs the model over the text.
 *
 * Measurements before the run (bit allocation) use the original model; the run then starts
 * again at block 0.  With --sequential the inputs of a matrix have passed through all finished
 * matrices before it, which are read from the work directory, so that an interrupted run can
 * resume. */
#include "lib/quantize/internal.h"

#include <math.h>
#include <string.h>

#include "formats/vptq/layer_file.h"
#include "lib/base/comm.h"
#include "lib/base/file.h"
#include "lib/encoder/target.h"

static const uint32_t NO_LAYER = UINT32_MAX;

/* Moments of one part of the windows for the current block; sequential: for the current input.
 */
typedef struct part_moments {
    float **lower;                   /* [vptq_input_count] */
    float **range;                   /* the same; abs_mean, min and max [3, n], or NULL */
    float *mixed[VPTQ_LINEAR_DENSE]; /* with the token weights of a term; NULL = no term */
    /* sequential only: shift or drift, and the same with those weights */
    float *shift;
    float *mixed_shift[VPTQ_LINEAR_DENSE];
} part_moments;

typedef struct calibration {
    vptq_quantizer *q;
    vptq_calibrator calibrator;
    bool started;
    bool measuring;   /* started for measurements before the run: never sequential */
    vptq_arena arena; /* of the moments */
    uint32_t layer;   /* of the moments; NO_LAYER = none yet */
    vptq_input input; /* of the moments, if sequential */
    part_moments part[VPTQ_PART_COUNT];
    float *mean;
    vptq_expert_counts experts; /* of the layers so far */
} calibration;

/* ---- quantized matrices ---- */

/* The first linear layer that reads `input` or a later one. */
static int linears_before(const vptq_model_desc *d, vptq_input input)
{
    int l = 0;
    while (l < vptq_linear_count(d) && vptq_linear_input((vptq_linear)l) < input)
        l++;
    return l;
}

/* The first linear layer that a step for an input runs through: of an expert only its own. */
static int first_linear(const vptq_model_desc *d, vptq_input input)
{
    const int e = vptq_input_expert(input);
    if (input == vptq_input_count(&d->experts) || input < VPTQ_INPUT_DENSE)
        return 0;
    return e < 0 ? VPTQ_LINEAR_SHARED : vptq_expert_linear((uint32_t)e, VPTQ_LINEAR_GATE);
}

/* linear [vptq_linear_count] = the matrices of a layer: finished ones that a step for `input`
 * runs before it, else the originals.  The caller releases file[l] where open[l]. */
static vptq_status open_linears(const calibration *k, uint32_t layer, vptq_input input,
                                vptq_layer_file *file, vptq_weight *linear, bool *open,
                                vptq_err *err)
{
    char path[PATH_MAX];
    const vptq_model_desc *d = k->q->model.desc;
    const int count = linears_before(d, input);

    memcpy(linear, k->q->model.blocks[layer].linear,
           (size_t)vptq_linear_count(d) * sizeof *linear);
    for (vptq_linear l = first_linear(d, input); l < count; l++) {
        if (!vptq_quantizer_has(k->q, layer, l))
            continue;
        VPTQ_CHECK(vptq_matrix_path(k->q, layer, l, path, err));
        if (!vptq_path_exists(path))
            return vptq_fail(err, VPTQ_E_MISMATCH,
                             "%s is missing: sequential calibration of later layers needs "
                             "layer %u quantized",
                             path, layer);
        VPTQ_CHECK(vptq_layer_file_read(path, k->q->dev->ctx->mem, &file[l], err));
        open[l] = true;
        VPTQ_CHECK(vptq_layer_file_decode(k->q->dev->ctx, &file[l], err));
        const bool packed = vptq_layer_file_is_packed(&file[l]);
        linear[l].tensor = packed ? NULL : &file[l].weight;
        linear[l].packed = packed ? &file[l].matrix : NULL;
        if (strcmp(file[l].fingerprint, k->q->fingerprint))
            return vptq_fail(err, VPTQ_E_MISMATCH,
                             "%s is from a run with other settings: sequential calibration of "
                             "later layers needs layer %u quantized with those of this run",
                             path, layer);
    }
    return VPTQ_OK;
}

/* ---- moments ---- */

static vptq_status take_sum(calibration *k, const vptq_hessian_sum *s, const char *input,
                            float *lower, vptq_err *err)
{
    return vptq_calibrator_finish(s, k->calibrator.layer, input, lower, k->mean, err);
}

/* Takes the Hessian of an input and its channel ranges. */
static vptq_status take_input(calibration *k, const part_moments *m, vptq_input i,
                              vptq_err *err)
{
    const vptq_hessian_sum *s = &k->calibrator.sum[i];
    float *range = m->range[i];

    VPTQ_CHECK(take_sum(k, s, vptq_input_name(i).text, m->lower[i], err));
    if (!range)
        return VPTQ_OK;
    return vptq_calibrator_range(s, k->calibrator.layer, vptq_input_name(i).text, range,
                                 range + s->n, range + 2 * (size_t)s->n, err);
}

/* Makes the Hessian with the term of linear layer l, and the shift. */
static vptq_status take_term(calibration *k, const part_moments *m, vptq_linear l,
                             vptq_err *err)
{
    vptq_calibrator *c = &k->calibrator;
    const vptq_token_weights kind = c->opt.weights;
    const double factor = k->q->hessians.kv_factor;
    const size_t n = c->term[l].n;
    const float *plain = m->lower[vptq_linear_input(l)];
    float *shift = m->mixed_shift[l];

    VPTQ_CHECK(take_sum(k, &c->term[l], vptq_term_name(kind, l), m->mixed[l], err));
    vptq_term_mix(kind, factor, vptq_triangle(n), plain, m->mixed[l], m->mixed[l]);
    if (!c->opt.sequential)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_calibrator_term_shift(c, l, shift, err));
    vptq_term_mix(kind, factor, c->model->desc->hidden * n, m->shift, shift, shift);
    return VPTQ_OK;
}

/* Copies the calibrator's sums for one part of the windows. */
static vptq_status take(void *arg, vptq_calibrator *c, vptq_part part, vptq_err *err)
{
    calibration *k = arg;
    part_moments *m = &k->part[part];
    const bool sequential = c->opt.sequential;

    for (int i = 0; i < vptq_input_count(&c->model->desc->experts); i++) {
        if (sequential ? i != c->next
                       : !vptq_input_exists(&c->model->desc->experts, c->layer, i))
            continue;
        VPTQ_CHECK(take_input(k, m, i, err));
        if (part == VPTQ_PART_MAIN)
            vptq_experts_count(&k->experts, c->model->desc, i, c->sum[i].tokens);
    }
    if (sequential && vptq_calibrator_shifts(c->next))
        VPTQ_CHECK(vptq_calibrator_shift(c, m->shift, err));
    for (int l = 0; l < VPTQ_LINEAR_DENSE; l++)
        if (m->mixed[l] && vptq_calibrator_has_term(c, (vptq_linear)l))
            VPTQ_CHECK(take_term(k, m, (vptq_linear)l, err));
    return VPTQ_OK;
}

/* One step of a sequential calibration through the finished matrices of the block. */
static vptq_status step(calibration *k, vptq_calibrator_fn fn, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_calibrator *c = &k->calibrator;
    const size_t count = (size_t)vptq_linear_count(k->q->model.desc);
    const bool runs = fn || vptq_calibrator_shifts(c->next) ||
                      c->next == vptq_input_count(&k->q->model.desc->experts);
    vptq_arena arena;
    vptq_arena_init(&arena, k->q->dev->ctx->mem);
    vptq_layer_file *file = vptq_arena_alloc(&arena, count, sizeof *file, err);
    vptq_weight *linear = vptq_arena_alloc(&arena, count, sizeof *linear, err);
    bool *open = vptq_arena_zalloc(&arena, count, sizeof *open, err);
    if (!file || !linear || !open)
        VPTQ_TRY(VPTQ_E_NOMEM);
    if (runs)
        VPTQ_TRY(open_linears(k, c->layer, c->next, file, linear, open, err));
    st = vptq_calibrator_step(c, runs ? linear : NULL, fn, k, err);
out:
    for (size_t l = 0; open && l < count; l++)
        if (open[l])
            vptq_layer_file_release(&file[l]);
    vptq_arena_release(&arena);
    return st;
}

/* ---- memory ---- */

static vptq_status floats(calibration *k, size_t count, float **out, vptq_err *err)
{
    *out = vptq_arena_alloc(&k->arena, count, sizeof **out, err);
    return *out ? VPTQ_OK : VPTQ_E_NOMEM;
}

/* Allocates what the term of a linear layer takes. */
static vptq_status alloc_term(calibration *k, part_moments *m, vptq_linear l, vptq_err *err)
{
    const vptq_model_desc *d = k->q->model.desc;
    const size_t n = vptq_input_size(d, vptq_linear_input(l));

    if (vptq_term_of(k->calibrator.opt.weights, l) != l)
        return VPTQ_OK;
    VPTQ_CHECK(floats(k, vptq_triangle(n), &m->mixed[l], err));
    return k->calibrator.opt.sequential ? floats(k, d->hidden * n, &m->mixed_shift[l], err)
                                        : VPTQ_OK;
}

/* Allocates one part.  The inputs of a sequential run come one after another and share it. */
static vptq_status alloc_part(calibration *k, part_moments *m, bool held_out, size_t widest,
                              vptq_err *err)
{
    const vptq_model_desc *d = k->q->model.desc;
    const bool sequential = k->calibrator.opt.sequential;
    const bool terms = k->q->hessians.kv_factor > 0 && (sequential || !held_out);

    const int inputs = vptq_input_count(&d->experts);
    m->lower = vptq_arena_zalloc(&k->arena, (size_t)inputs, sizeof *m->lower, err);
    m->range = vptq_arena_zalloc(&k->arena, (size_t)inputs, sizeof *m->range, err);
    if (!m->lower || !m->range)
        return VPTQ_E_NOMEM;
    if (sequential)
        VPTQ_CHECK(floats(k, widest * (widest + 1) / 2, &m->lower[0], err));
    for (int i = 0; i < inputs; i++) {
        const size_t n = vptq_input_size(d, i);
        if (!vptq_input_occurs(d, i))
            continue;
        if (!held_out)
            VPTQ_CHECK(floats(k, 3 * n, &m->range[i], err));
        if (sequential)
            m->lower[i] = m->lower[0];
        else
            VPTQ_CHECK(floats(k, n * (n + 1) / 2, &m->lower[i], err));
    }
    for (int l = 0; terms && l < VPTQ_LINEAR_DENSE; l++)
        VPTQ_CHECK(alloc_term(k, m, (vptq_linear)l, err));
    return sequential ? floats(k, d->hidden * widest, &m->shift, err) : VPTQ_OK;
}

static vptq_status alloc_parts(calibration *k, vptq_err *err)
{
    const size_t widest = vptq_widest_input(k->q->model.desc);

    VPTQ_CHECK(floats(k, widest, &k->mean, err));
    for (int part = 0; part < VPTQ_PART_COUNT; part++)
        if (k->calibrator.windows[part])
            VPTQ_CHECK(alloc_part(k, &k->part[part], part == VPTQ_PART_HELD_OUT, widest, err));
    return VPTQ_OK;
}

size_t vptq_calibration_memory(const vptq_model_desc *d, const vptq_calibrate_options *o)
{
    const size_t widest = vptq_widest_input(d), shift = o->sequential ? d->hidden * widest : 0;
    size_t part = o->sequential ? vptq_triangle(widest) : 0, terms = 0;
    for (int i = 0; !o->sequential && i < vptq_input_count(&d->experts); i++)
        part += vptq_input_occurs(d, i) ? vptq_triangle(vptq_input_size(d, i)) : 0;
    for (int l = 0; l < VPTQ_LINEAR_DENSE; l++)
        if (vptq_term_of(o->weights, (vptq_linear)l) == (vptq_linear)l)
            terms +=
                vptq_triangle(vptq_input_size(d, vptq_linear_input((vptq_linear)l))) + shift;
    /* two parts, and a target with its solution in double */
    const size_t target = o->sequential ? 2 * widest * widest + 2 * shift : 0;
    return sizeof(float) * 2 * (part + terms + shift) + sizeof(double) * target;
}

/* Without a factor there are no terms to collect. */
static vptq_calibrate_options calibrate_options(const vptq_quantizer *q)
{
    vptq_calibrate_options o = *q->opt->calibrate;
    if (!(q->opt->kv_factor > 0))
        o.weights = VPTQ_WEIGHTS_PLAIN;
    return o;
}

/* Removes checkpoints of the hidden states, and of saliencies. */
static void forget(const calibration *k, bool saliencies)
{
    const char *work = k->q->opt->work;
    if (vptq_comm_rank(k->q->dev->ctx))
        return;
    if (saliencies)
        vptq_calibrator_forget(work);
    else
        vptq_calibrator_forget_states(work);
}

/* Starts or restarts the calibration at the checkpoint file or at block 0. */
static vptq_status start(calibration *k, uint32_t layer, vptq_err *err)
{
    vptq_quantizer *q = k->q;
    vptq_calibrate_options opt = calibrate_options(q);

    if (k->started && k->measuring && q->manifest) /* the run cannot use its checkpoint */
        forget(k, false);
    k->measuring = !q->manifest;
    opt.sequential = opt.sequential && !k->measuring;
    vptq_calibrator_release(&k->calibrator);
    vptq_arena_release(&k->arena);
    k->experts = (vptq_expert_counts){0};
    k->layer = NO_LAYER;
    memset(k->part, 0, sizeof k->part);
    VPTQ_CHECK(vptq_calibrator_plan(q->dev, &q->model, &opt, &k->calibrator, err));
    k->calibrator.run = opt.sequential ? vptq_hash(q->fingerprint, 16, 0) : 0;
    k->calibrator.reserve = vptq_matrix_memory(q);
    VPTQ_CHECK(alloc_parts(k, err));
    VPTQ_CHECK(vptq_calibrator_start(&k->calibrator, q->opt->work, layer, q->last, err));
    k->started = true;
    return VPTQ_OK;
}

/* Sequential: advances to the layer's input and sums its moments. */
static vptq_status step_to(calibration *k, uint32_t layer, vptq_input input, vptq_err *err)
{
    vptq_calibrator *c = &k->calibrator;

    while (c->layer < layer)
        VPTQ_CHECK(step(k, NULL, err));
    if (layer > 0 && c->next == VPTQ_INPUT_QKV)
        vptq_calibrator_checkpoint(c);
    while (c->next < input)
        VPTQ_CHECK(step(k, NULL, err));
    return step(k, take, err);
}

/* Not sequential: advances to the layer and sums the moments of all its inputs. */
static vptq_status run_to(calibration *k, uint32_t layer, vptq_err *err)
{
    vptq_calibrator *c = &k->calibrator;

    while (c->layer < layer)
        VPTQ_CHECK(vptq_calibrator_run(c, NULL, NULL, err));
    if (layer > 0)
        vptq_calibrator_checkpoint(c);
    return vptq_calibrator_run(c, take, k, err);
}

/* Makes the moments of an input available. */
static vptq_status advance(calibration *k, uint32_t layer, vptq_input input, vptq_err *err)
{
    vptq_calibrator *c = &k->calibrator;
    const bool fresh = !k->started || k->measuring != !k->q->manifest;

    if (!fresh && k->layer == layer && (!c->opt.sequential || k->input == input))
        return VPTQ_OK;
    /* the calibrator only moves forward: earlier inputs need a restart */
    if (fresh || layer < c->layer ||
        (c->opt.sequential && layer == c->layer && input < c->next))
        VPTQ_CHECK(start(k, layer, err));
    k->layer = NO_LAYER;
    VPTQ_CHECK(c->opt.sequential ? step_to(k, layer, input, err) : run_to(k, layer, err));
    k->layer = layer;
    k->input = input;
    return VPTQ_OK;
}

/* ---- the source ---- */

static vptq_input_shifts shifts_of(const calibration *k, const part_moments *m,
                                   vptq_input input)
{
    const bool drift = vptq_calibrator_drifts(input);
    if (!vptq_calibrator_shifts(input))
        return (vptq_input_shifts){.shift = NULL};
    vptq_input_shifts s = {.shift = drift ? NULL : m->shift, .drift = drift ? m->shift : NULL};

    for (int l = 0; l < VPTQ_LINEAR_DENSE; l++) {
        const vptq_linear term = vptq_term_of(k->calibrator.opt.weights, (vptq_linear)l);
        if (term == VPTQ_LINEAR_NONE || vptq_linear_input((vptq_linear)l) != input)
            continue;
        s.mixed[l] = m->mixed[term];
        s.mixed_shift[l] = m->mixed_shift[term];
    }
    return s;
}

/* Measures the output Hessians before the run's first matrix; measurements for a budget do
 * without them. */
static vptq_status open_outputs(calibration *k, vptq_err *err)
{
    vptq_quantizer *q = k->q;
    char path[PATH_MAX];

    if (!q->hessians.output_fingerprint[0] || !q->manifest)
        return VPTQ_OK;
    vptq_calibrator_stop(&k->calibrator); /* measurements may have started it */
    VPTQ_CHECK(vptq_path_join(path, sizeof path, q->opt->work, VPTQ_OUTPUTS_FILE, err));
    VPTQ_CHECK(vptq_outputs_collect(&k->calibrator, path, err));
    VPTQ_CHECK(vptq_share_spread(q, path, err));
    return vptq_outputs_open(path, q->model.desc, q->dev->ctx->mem, &q->hessians.outputs, err);
}

/* The first load of a layer, or sequentially of an input, runs the calibration: all ranks make
 * it together. */
static vptq_status load(const vptq_hessian_source *s, uint32_t layer, vptq_input input,
                        uint32_t columns, vptq_input_hessians *h, vptq_err *err)
{
    calibration *k = s->state;
    const part_moments *main = &k->part[VPTQ_PART_MAIN];
    const part_moments *held_out = &k->part[VPTQ_PART_HELD_OUT];

    if (!k->started || k->measuring)
        VPTQ_CHECK(open_outputs(k, err));
    VPTQ_CHECK(advance(k, layer, input, err));
    *h = (vptq_input_hessians){.plain = main->lower[input],
                               .abs_mean = main->range[input],
                               .min = main->range[input] + columns,
                               .max = main->range[input] + 2 * (size_t)columns,
                               .held_out = held_out->lower ? held_out->lower[input] : NULL,
                               .shifts = shifts_of(k, main, input),
                               .held_out_shifts = shifts_of(k, held_out, input)};
    memcpy(h->metric, h->shifts.mixed, sizeof h->metric);
    vptq_hessians_set_outputs(s, layer, input, h);
    return VPTQ_OK;
}

static void release(const vptq_hessian_source *s, vptq_input_hessians *h)
{
    (void)s; /* the calibration keeps the moments for the other inputs */
    *h = (vptq_input_hessians){0};
}

static void close_source(vptq_hessian_source *s)
{
    calibration *k = s->state;
    /* the run that would have removed them did not start; saliencies serve the next one */
    if (k->started && k->measuring && k->q->opt->work)
        forget(k, k->q->opt->dry_run);
    vptq_experts_warn(&k->experts, k->q->dev->ctx, "");
    vptq_outputs_close(&s->outputs);
    vptq_calibrator_release(&k->calibrator);
    vptq_arena_release(&k->arena);
    vptq_mem_free(s->mem, k);
    s->state = NULL;
}

vptq_status vptq_calibration_open(vptq_quantizer *q, vptq_err *err)
{
    vptq_hessian_source *s = &q->hessians;
    const vptq_calibrate_options o = calibrate_options(q);
    vptq_mem *mem = q->dev->ctx->mem;
    calibration *k = vptq_mem_alloc(mem, 1, sizeof *k, err);

    if (!k)
        return VPTQ_E_NOMEM;
    *k = (calibration){.q = q, .layer = NO_LAYER};
    vptq_arena_init(&k->arena, mem);
    *s = (vptq_hessian_source){
        .load = load, .release = release, .close = close_source, .mem = mem, .state = k};
    VPTQ_CHECK(vptq_calibrator_plan(q->dev, &q->model, &o, &k->calibrator, err));
    vptq_calibrator_log_windows(&k->calibrator);
    VPTQ_CHECK(vptq_comm_same(q->dev->ctx, "the fingerprint of model and text",
                              k->calibrator.fingerprint[VPTQ_PART_MAIN], err));
    memcpy(s->fingerprint, k->calibrator.fingerprint[VPTQ_PART_MAIN], sizeof s->fingerprint);
    memcpy(s->held_out_fingerprint, k->calibrator.fingerprint[VPTQ_PART_HELD_OUT],
           sizeof s->held_out_fingerprint);
    if (o.outputs)
        vptq_outputs_fingerprint(&k->calibrator, s->output_fingerprint);
    s->tokens = (uint64_t)k->calibrator.windows[VPTQ_PART_MAIN] * k->calibrator.opt.length;
    s->weights = o.weights;
    s->kv_factor = s->weights ? q->opt->kv_factor : 0;
    return vptq_term_check(s->weights, s->kv_factor, err);
}

/* ---- targets ---- */

/* The moments of a target, with the same token weights as in its Hessian. */
static vptq_target_moments moments_of(vptq_linear l, const vptq_quantize_row *row,
                                      const float *w, const float *plain,
                                      const vptq_input_shifts *s)
{
    /* experts have no terms */
    const bool mixed = l < VPTQ_LINEAR_DENSE && s->mixed[l] != NULL;
    const float *shift = mixed && s->shift ? s->mixed_shift[l] : s->shift;
    const float *drift = mixed && s->drift ? s->mixed_shift[l] : s->drift;
    return (vptq_target_moments){.out = row->rows,
                                 .in = row->columns,
                                 .w = w,
                                 .lower = mixed ? s->mixed[l] : plain,
                                 .shift = shift,
                                 .drift = drift};
}

vptq_status vptq_calibration_target(vptq_quantizer *q, const vptq_input_hessians *h,
                                    vptq_quantize_row *row, vptq_arena *arena, const float **w,
                                    vptq_err *err)
{
    vptq_target_choice choice;
    const size_t count = (size_t)row->rows * row->columns;
    const vptq_target_moments moments = moments_of(q->linear, row, *w, h->plain, &h->shifts);
    const vptq_target_moments held_out =
        moments_of(q->linear, row, *w, h->held_out, &h->held_out_shifts);

    row->corrected = true;
    const double max = q->opt->calibrate->correction;
    if (!(max > 0) || !h->held_out) /* only held-out tokens show how much is too much */
        return VPTQ_OK;
    float *target = vptq_arena_alloc(arena, count, sizeof *target, err);
    if (!target)
        return VPTQ_E_NOMEM;
    VPTQ_CHECK(vptq_target_find(q->dev, &moments, &held_out, max, target, &choice, err));
    row->alpha = choice.alpha;
    row->alpha_damping = choice.damping;
    row->alpha_gain = choice.gain;
    *w = target;
    return VPTQ_OK;
}
