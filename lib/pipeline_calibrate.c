/* Hessians from the quantize run itself.  Whoever measures before the run proper (an allocation
 * of bits) gets those of the model as it is; the run then begins at block 0 again.  With
 * --sequential a block's inputs are those that passed the finished matrices of the blocks
 * before it, read from the work directory: what was made by an interrupted run is all that the
 * next one needs. */
#include "lib/pipeline_calibrate.h"

#include <math.h>
#include <string.h>

#include "formats/layer_file.h"
#include "lib/base/file.h"
#include "lib/quant/target.h"

enum { NO_LAYER = UINT32_MAX };
/* Of the mean diagonal, as GPTQ and its successors damp their Hessians. */
static const double TARGET_DAMPING = 0.01;

/* What one part of the windows gives for the block at hand. */
typedef struct part_moments {
    float *lower[VPTQ_INPUT_COUNT];
    float *shift[VPTQ_INPUT_COUNT]; /* sequential only */
} part_moments;

typedef struct calibration {
    vptq_quantizer *q;
    vptq_calibrator calibrator;
    bool started;
    bool measuring;   /* began before the run proper: one stream */
    vptq_arena arena; /* of the moments and what they are made in */
    uint32_t layer;   /* that the moments are of; NO_LAYER = none yet */
    part_moments part[VPTQ_PART_COUNT];
    float *kv, *mean;
} calibration;

/* ---- quantized blocks ---- */

/* Opens the finished matrices of a layer. */
static vptq_status open_layer(const calibration *k, uint32_t layer,
                              vptq_layer_file file[VPTQ_LINEAR_COUNT],
                              vptq_weight linear[VPTQ_LINEAR_COUNT], int *open, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    char path[PATH_MAX];

    for (*open = 0; *open < VPTQ_LINEAR_COUNT; ++*open) {
        const vptq_linear l = (vptq_linear)*open;
        VPTQ_TRY(vptq_matrix_path(k->q, layer, l, path, err));
        if (!vptq_path_exists(path))
            return vptq_fail(err, VPTQ_E_MISMATCH,
                             "%s is missing: sequential calibration of later layers needs "
                             "layer %u quantized",
                             path, layer);
        VPTQ_TRY(vptq_layer_file_read(path, k->q->dev->ctx->mem, &file[l], err));
        linear[l] = k->q->model.blocks[layer].linear[l];
        linear[l].tensor = NULL;
        linear[l].packed = &file[l].matrix;
        if (strcmp(file[l].fingerprint, k->q->fingerprint)) {
            ++*open;
            return vptq_fail(err, VPTQ_E_MISMATCH,
                             "%s is of a run with other settings: sequential calibration of "
                             "later layers needs layer %u quantized with those of this run",
                             path, layer);
        }
    }
out:
    return st;
}

/* The second stream through the block that the first one has just passed. */
static vptq_status advance(calibration *k, vptq_err *err)
{
    vptq_layer_file file[VPTQ_LINEAR_COUNT];
    vptq_weight linear[VPTQ_LINEAR_COUNT];
    int open = 0;
    vptq_status st = open_layer(k, k->calibrator.layer - 1, file, linear, &open, err);
    if (!st)
        st = vptq_calibrator_advance(&k->calibrator, linear, err);
    while (open-- > 0)
        vptq_layer_file_release(&file[open]);
    return st;
}

/* ---- moments ---- */

static vptq_status take_sum(calibration *k, const vptq_hessian_sum *s, const char *input,
                            float *lower, vptq_err *err)
{
    return vptq_calibrator_finish(s, k->calibrator.layer, input, lower, k->mean, err);
}

static vptq_status take(void *arg, vptq_calibrator *c, vptq_part part, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    calibration *k = arg;
    part_moments *m = &k->part[part];

    for (int i = 0; i < VPTQ_INPUT_COUNT; i++) {
        VPTQ_TRY(take_sum(k, &c->sum[i], vptq_input_name((vptq_input)i), m->lower[i], err));
        if (c->opt.sequential)
            vptq_calibrator_shift(c, (vptq_input)i, m->shift[i]);
    }
    if (part == VPTQ_PART_MAIN && k->kv) {
        VPTQ_TRY(take_sum(k, &c->term, "k and v", k->kv, err));
        vptq_hessian_mix(c->term.n, m->lower[VPTQ_INPUT_QKV], k->kv, k->q->hessians.kv_factor,
                         k->kv);
    }
out:
    return st;
}

static vptq_status floats(calibration *k, size_t count, float **out, vptq_err *err)
{
    *out = vptq_arena_alloc(&k->arena, count, sizeof **out, err);
    return *out ? VPTQ_OK : VPTQ_E_NOMEM;
}

static vptq_status make_room(calibration *k, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_model_desc *d = k->q->model.desc;
    size_t widest = 0;

    for (int part = 0; part < VPTQ_PART_COUNT; part++)
        for (int i = 0; k->calibrator.windows[part] && i < VPTQ_INPUT_COUNT; i++) {
            const size_t n = vptq_input_size(d, (vptq_input)i);
            widest = n > widest ? n : widest;
            VPTQ_TRY(floats(k, n * (n + 1) / 2, &k->part[part].lower[i], err));
            if (k->calibrator.opt.sequential)
                VPTQ_TRY(floats(k, n * n, &k->part[part].shift[i], err));
        }
    VPTQ_TRY(floats(k, widest, &k->mean, err));
    if (k->q->hessians.kv_factor > 0)
        VPTQ_TRY(floats(k, (size_t)d->hidden * (d->hidden + 1) / 2, &k->kv, err));
out:
    return st;
}

/* About what the encoder takes for the largest matrix: some copies of the weights, factor and
 * metric. */
static size_t encoder_memory(const vptq_model_desc *d)
{
    enum { PER_WEIGHT = 32, PER_ENTRY = 24 };
    size_t most = 0;
    for (int l = 0; l < VPTQ_LINEAR_COUNT; l++) {
        uint32_t out, in;
        vptq_linear_shape(d, (vptq_linear)l, &out, &in);
        const size_t bytes = (size_t)out * in * PER_WEIGHT + (size_t)in * in * PER_ENTRY;
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* From the checkpoint or from block 0 on; again, where that lies behind. */
static vptq_status start(calibration *k, uint32_t layer, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_quantizer *q = k->q;
    vptq_calibrate_options opt = *q->opt->calibrate;

    k->measuring = !q->manifest;
    opt.sequential = opt.sequential && !k->measuring;
    opt.run = opt.sequential ? vptq_hash(q->fingerprint, 16, 0) : 0;
    opt.reserve = encoder_memory(q->model.desc);
    vptq_calibrator_release(&k->calibrator);
    vptq_arena_release(&k->arena);
    k->layer = NO_LAYER;
    memset(k->part, 0, sizeof k->part);
    VPTQ_TRY(vptq_calibrator_plan(q->dev, &q->model, &opt, &k->calibrator, err));
    VPTQ_TRY(make_room(k, err));
    VPTQ_TRY(vptq_calibrator_start(&k->calibrator, q->opt->work, layer, q->last, err));
    k->started = true;
out:
    return st;
}

/* Brings the states in front of the layer's block and runs it. */
static vptq_status run_to(calibration *k, uint32_t layer, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_calibrator *c = &k->calibrator;

    if (!k->started || k->measuring != !k->q->manifest || layer < c->layer)
        VPTQ_TRY(start(k, layer, err));
    if (c->opt.sequential && k->layer != NO_LAYER)
        VPTQ_TRY(advance(k, err)); /* of the block that was quantized last */
    k->layer = NO_LAYER;
    while (c->layer < layer) {
        VPTQ_TRY(vptq_calibrator_run(c, NULL, NULL, err));
        if (c->opt.sequential)
            VPTQ_TRY(advance(k, err));
    }
    if (layer > 0)
        vptq_calibrator_checkpoint(c);
    VPTQ_TRY(vptq_calibrator_run(c, take, k, err));
    k->layer = layer;
out:
    return st;
}

/* ---- the source ---- */

static vptq_status load(const vptq_hessian_source *s, uint32_t layer, vptq_input input,
                        uint32_t columns, vptq_input_hessians *h, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    calibration *k = s->state;
    const part_moments *main = &k->part[VPTQ_PART_MAIN];
    const part_moments *held_out = &k->part[VPTQ_PART_HELD_OUT];

    (void)columns;
    if (k->layer != layer || k->measuring != !k->q->manifest)
        VPTQ_TRY(run_to(k, layer, err));
    *h = (vptq_input_hessians){.plain = main->lower[input],
                               .kv = input == VPTQ_INPUT_QKV ? k->kv : NULL,
                               .held_out = held_out->lower[input],
                               .shift = main->shift[input],
                               .held_out_shift = held_out->shift[input]};
out:
    return st;
}

static void release(const vptq_hessian_source *s, vptq_input_hessians *h)
{
    (void)s; /* the moments stay for the other inputs */
    *h = (vptq_input_hessians){0};
}

static void close_source(vptq_hessian_source *s)
{
    calibration *k = s->state;
    if (k->started && k->measuring &&
        k->q->opt->work) /* the run proper would have removed it */
        vptq_calibrator_forget(k->q->opt->work);
    vptq_calibrator_release(&k->calibrator);
    vptq_arena_release(&k->arena);
    vptq_mem_free(s->mem, k);
    s->state = NULL;
}

vptq_status vptq_calibration_open(vptq_quantizer *q, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_hessian_source *s = &q->hessians;
    const vptq_quantize_options *o = q->opt;
    vptq_mem *mem = q->dev->ctx->mem;
    calibration *k = vptq_mem_alloc(mem, 1, sizeof *k, err);

    if (!k)
        return VPTQ_E_NOMEM;
    *k = (calibration){.q = q, .layer = NO_LAYER};
    vptq_arena_init(&k->arena, mem);
    *s = (vptq_hessian_source){
        .load = load, .release = release, .close = close_source, .mem = mem, .state = k};
    VPTQ_TRY(vptq_calibrator_plan(q->dev, &q->model, o->calibrate, &k->calibrator, err));
    memcpy(s->fingerprint, k->calibrator.fingerprint[VPTQ_PART_MAIN], sizeof s->fingerprint);
    memcpy(s->held_out_fingerprint, k->calibrator.fingerprint[VPTQ_PART_HELD_OUT],
           sizeof s->held_out_fingerprint);
    s->tokens = (uint64_t)k->calibrator.windows[VPTQ_PART_MAIN] * o->calibrate->length;
    s->kv_factor = o->calibrate->weights ? o->kv_factor : 0;
out:
    return st;
}

/* ---- targets ---- */

/* What o and down read is made by corrected linears of the same block: moments of x~ that went
 * through the original ones say nothing about it.  (Correcting these two as well makes good
 * twice for the same error; over 30 blocks it destroyed a model.) */
static bool reads_residual_stream(vptq_linear l)
{
    const vptq_input input = vptq_linear_input(l);
    return input == VPTQ_INPUT_QKV || input == VPTQ_INPUT_UP;
}

vptq_status vptq_calibration_target(vptq_quantizer *q, const vptq_input_hessians *h,
                                    vptq_quantize_row *row, vptq_arena *arena, const float **w,
                                    vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_target_choice choice;
    const size_t count = (size_t)row->rows * row->columns;
    const vptq_target_moments moments = {h->plain, h->shift};
    const vptq_target_moments held_out = {h->held_out, h->held_out_shift};

    row->corrected = true;
    const double most = q->opt->calibrate->correction;
    if (!(most > 0) || !reads_residual_stream(q->linear))
        return VPTQ_OK;
    if (!h->held_out_shift) /* nothing tells how much is too much */
        return VPTQ_OK;
    float *delta = vptq_arena_alloc(arena, count, sizeof *delta, err);
    if (!delta)
        return VPTQ_E_NOMEM;
    VPTQ_TRY(vptq_target_delta(q->dev, row->rows, row->columns, *w, &moments, TARGET_DAMPING,
                               delta, err));
    VPTQ_TRY(vptq_target_choose(q->dev, row->rows, row->columns, *w, delta, &held_out, most,
                                &choice, err));
    vptq_target_apply(count, *w, delta, choice.alpha, delta);
    row->alpha = choice.alpha;
    row->alpha_gain = choice.gain;
    *w = delta;
out:
    return st;
}
