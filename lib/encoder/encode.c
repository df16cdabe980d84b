/* Encodes one matrix: the paper's algorithm with our steps, in order. */
#include "lib/encoder/encode.h"

#include <math.h>
#include <string.h>

#include "lib/encoder/encoder.h"

/* ---- one step: announced, measured, reported, reverted if it raised the objective ---- */

typedef enum on_worse { KEEP, REVERT_IF_WORSE } on_worse;

typedef struct running_step {
    const char *name;
    double start, objective; /* before the step */
    bool saved;              /* in enc->saved; else the step is kept whatever it does */
} running_step;

/* Copies `bytes` between *saved and `array`, and moves *saved past them. */
static vptq_status copy_array(const vptq_device *dev, char **saved, void *array, size_t bytes,
                              bool save, vptq_err *err)
{
    char *at = *saved;
    *saved += bytes;
    return dev->ops->copy(dev->state, save ? (void *)at : array, save ? array : (void *)at,
                          bytes, err);
}

/* The codebooks and indices of a group. */
static vptq_status copy_group(const vptq_device *dev, char **saved, const vptq_column_group *g,
                              bool save, vptq_err *err)
{
    const size_t indices = g->cols * g->vector_rows * sizeof *g->idx;
    const size_t size = g->v * sizeof *g->main;

    VPTQ_CHECK(copy_array(dev, saved, g->main, g->k * size, save, err));
    VPTQ_CHECK(copy_array(dev, saved, g->idx, indices, save, err));
    if (!g->k_res)
        return VPTQ_OK;
    VPTQ_CHECK(copy_array(dev, saved, g->res, g->k_res * size, save, err));
    return copy_array(dev, saved, g->idx_res, indices, save, err);
}

static size_t group_bytes(const vptq_column_group *g)
{
    return ((size_t)g->k + g->k_res) * g->v * sizeof *g->main +
           g->cols * g->vector_rows * (g->k_res ? 2 : 1) * sizeof *g->idx;
}

/* Everything that a step may change. */
static vptq_status copy_solution(vptq_encoder *enc, bool save, vptq_err *err)
{
    const vptq_columns *l = &enc->columns;
    const size_t in = enc->problem.in, bytes = in * sizeof(float);
    float *norms[] = {enc->problem.scale, enc->problem.bias};
    char *saved = enc->saved.columns;

    for (size_t i = 0; i < 2; i++) {
        float *at = enc->saved.norms + i * in;
        memcpy(save ? at : norms[i], save ? norms[i] : at, bytes);
    }
    for (uint32_t i = 0; i < l->num_groups; i++)
        VPTQ_CHECK(copy_group(enc->dev, &saved, &l->groups[i], save, err));
    return VPTQ_OK;
}

static vptq_status open_saved(vptq_encoder *enc, vptq_err *err)
{
    const vptq_columns *l = &enc->columns;
    size_t bytes = 0;

    for (uint32_t i = 0; i < l->num_groups; i++)
        bytes += group_bytes(&l->groups[i]);
    enc->saved.norms = vptq_arena_alloc(&enc->scratch, enc->problem.in, 2 * sizeof(float), err);
    if (!enc->saved.norms)
        return VPTQ_E_NOMEM;
    enc->saved.columns = vptq_mirror_alloc(&enc->arrays, bytes, 1);
    return vptq_mirror_check(&enc->arrays, err);
}

static void announce(const vptq_encoder *enc, const char *step)
{
    const vptq_encoder_input *input = enc->problem.input;
    const vptq_encoder_report *r = enc->report;
    if (input->on_step)
        input->on_step(input->on_step_arg, step,
                       r->num_steps ? r->steps[r->num_steps - 1].loss : (double)NAN);
}

/* Under the raw metric of the published recipe the objective is not the loss, and every step
 * is kept. */
static vptq_status begin(vptq_encoder *enc, running_step *step, const char *name, on_worse then,
                         vptq_err *err)
{
    *step = (running_step){.name = name, .start = vptq_seconds(), .objective = enc->objective};
    announce(enc, name);
    if (then == KEEP || enc->settings->metric != VPTQ_METRIC_SCALED)
        return VPTQ_OK;
    if (!enc->saved.columns)
        VPTQ_CHECK(open_saved(enc, err));
    step->saved = true;
    return copy_solution(enc, true, err);
}

/* Leaves q and a fresh gradient. */
static vptq_status end(vptq_encoder *enc, const running_step *step, vptq_err *err)
{
    vptq_encoder_step *row = &enc->report->steps[enc->report->num_steps];

    VPTQ_CHECK(vptq_encoder_update(enc, err));
    *row = (vptq_encoder_step){.name = step->name};
    if (step->saved && enc->objective > step->objective) {
        VPTQ_CHECK(copy_solution(enc, false, err));
        VPTQ_CHECK(vptq_problem_normalize(&enc->problem, err));
        VPTQ_CHECK(vptq_encoder_update(enc, err));
        row->reverted = true;
    }
    VPTQ_CHECK(vptq_losses_measure(enc, row, err));
    row->seconds = vptq_seconds() - step->start;
    enc->report->num_steps++;
    return VPTQ_OK;
}

/* ---- the steps in order ---- */

/* Codebooks from the normalized weights, with indices that ignore H' off its diagonal. */
static vptq_status train_codebooks(vptq_encoder *enc, vptq_err *err)
{
    const vptq_encoder_settings *s = enc->settings;
    running_step step;

    VPTQ_CHECK(begin(enc, &step, "k-means", KEEP, err));
    VPTQ_CHECK(vptq_train_main(enc, err));
    VPTQ_CHECK(end(enc, &step, err));
    if (s->k_res) {
        VPTQ_CHECK(begin(enc, &step, "residual", KEEP, err));
        VPTQ_CHECK(vptq_train_residual(enc, err));
        VPTQ_CHECK(end(enc, &step, err));
    }
    if (s->k_res && s->joint) {
        VPTQ_CHECK(begin(enc, &step, "joint", KEEP, err));
        VPTQ_CHECK(vptq_train_joint(enc, err));
        VPTQ_CHECK(end(enc, &step, err));
    }
    return VPTQ_OK;
}

/* A change of scale changes the damping that H' needs, and with it the objective. */
static bool can_refit_scales(const vptq_encoder *enc)
{
    return enc->settings->scales && enc->settings->metric == VPTQ_METRIC_SCALED &&
           !(enc->problem.damping > 0);
}

/* The paper's column pass, then everything that lowers the objective further. */
static vptq_status minimize_error(vptq_encoder *enc, vptq_err *err)
{
    const vptq_encoder_settings *s = enc->settings;
    running_step step;

    VPTQ_CHECK(begin(enc, &step, "pass", REVERT_IF_WORSE, err));
    VPTQ_CHECK(vptq_column_pass(enc, false, err));
    VPTQ_CHECK(end(enc, &step, err));
    if (s->retrain) {
        VPTQ_CHECK(begin(enc, &step, "retrain", REVERT_IF_WORSE, err));
        VPTQ_CHECK(vptq_retrain(enc, s->retrain, err));
        VPTQ_CHECK(end(enc, &step, err));
    }
    if (s->sweeps) {
        VPTQ_CHECK(begin(enc, &step, "sweeps", REVERT_IF_WORSE, err));
        VPTQ_CHECK(vptq_sweeps(enc, s->sweeps, err));
        VPTQ_CHECK(end(enc, &step, err));
    }
    if (s->refits && can_refit_scales(enc)) {
        VPTQ_CHECK(begin(enc, &step, "scales", REVERT_IF_WORSE, err));
        VPTQ_CHECK(vptq_refit_scales(enc, VPTQ_SCALE_ITERATIONS, err));
        VPTQ_CHECK(end(enc, &step, err));
    }
    for (uint32_t i = 0; i < s->refits; i++) {
        VPTQ_CHECK(begin(enc, &step, "refit", REVERT_IF_WORSE, err));
        VPTQ_CHECK(vptq_refit(enc, NULL, NULL, VPTQ_REFIT_ITERATIONS, err));
        VPTQ_CHECK(vptq_encoder_update(enc, err));
        VPTQ_CHECK(vptq_sweeps(enc, VPTQ_REFIT_SWEEPS, err));
        VPTQ_CHECK(end(enc, &step, err));
    }
    return VPTQ_OK;
}

/* Lowers the objective with the output Hessian in it. */
static vptq_status minimize_with_output(vptq_encoder *enc, vptq_err *err)
{
    running_step step;

    VPTQ_CHECK(vptq_output_open(enc, err));
    for (int i = 0; enc->output.k && i < VPTQ_OUTPUT_ROUNDS; i++) {
        VPTQ_CHECK(begin(enc, &step, "output", REVERT_IF_WORSE, err));
        VPTQ_CHECK(vptq_refit(enc, NULL, NULL, VPTQ_OUTPUT_ITERATIONS, err));
        VPTQ_CHECK(vptq_encoder_update(enc, err));
        if (can_refit_scales(enc)) {
            VPTQ_CHECK(vptq_refit_scales(enc, VPTQ_OUTPUT_SCALE_ITERATIONS, err));
            VPTQ_CHECK(vptq_encoder_update(enc, err));
        }
        VPTQ_CHECK(vptq_sweeps(enc, 1, err));
        VPTQ_CHECK(end(enc, &step, err));
    }
    return VPTQ_OK;
}

static vptq_status round_codebooks(vptq_encoder *enc, vptq_err *err)
{
    if (enc->settings->codebook_grid == VPTQ_GRID_INT8)
        VPTQ_CHECK(vptq_grid_codebooks(enc, true, err));
    return vptq_columns_round(&enc->columns, enc->settings->storage, enc->keep, err);
}

/* A grid is coarser than the storage type: with the main codebooks on theirs, a second pass and
 * sweeps decide anew, and the residual codebooks, which follow with storage, compensate. */
static vptq_status adapt_to_grid(vptq_encoder *enc, vptq_err *err)
{
    running_step step;

    VPTQ_CHECK(begin(enc, &step, "grid", KEEP, err));
    VPTQ_CHECK(vptq_grid_codebooks(enc, false, err));
    VPTQ_CHECK(end(enc, &step, err));
    if (!enc->output.k) { /* which the pass would ignore */
        VPTQ_CHECK(begin(enc, &step, "repass", REVERT_IF_WORSE, err));
        VPTQ_CHECK(vptq_column_pass(enc, false, err));
        VPTQ_CHECK(vptq_encoder_update(enc, err));
        VPTQ_CHECK(vptq_sweeps(enc, VPTQ_GRID_SWEEPS, err));
        VPTQ_CHECK(end(enc, &step, err));
    }
    if (!enc->settings->k_res)
        return VPTQ_OK;
    VPTQ_CHECK(begin(enc, &step, "adapt", REVERT_IF_WORSE, err));
    VPTQ_CHECK(vptq_grid_refit_residual(enc, VPTQ_REFIT_ITERATIONS, err));
    VPTQ_CHECK(vptq_encoder_update(enc, err));
    VPTQ_CHECK(vptq_sweeps(enc, VPTQ_GRID_SWEEPS, err));
    return end(enc, &step, err);
}

/* Rounding may raise the loss, the sweep after it only lowers it. */
static vptq_status round_for_storage(vptq_encoder *enc, vptq_err *err)
{
    running_step step;

    VPTQ_CHECK(begin(enc, &step, "storage", KEEP, err));
    VPTQ_CHECK(round_codebooks(enc, err));
    if (enc->settings->rounding == VPTQ_ROUND_LOOP) {
        VPTQ_CHECK(vptq_encoder_update(enc, err));
        VPTQ_CHECK(vptq_sweeps(enc, VPTQ_STORAGE_SWEEPS, err));
    }
    return end(enc, &step, err);
}

/* The loss under the output Hessian of what is stored. */
static vptq_status measure_output(vptq_encoder *enc, vptq_err *err)
{
    double *loss = &enc->report->output;

    if (!enc->output.k)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_encoder_dot(enc, enc->problem.out, enc->e, enc->g, loss, err));
    *loss = enc->output.norm > 0 ? *loss / enc->output.norm : 0;
    return VPTQ_OK;
}

vptq_status vptq_encode_matrix(vptq_device *dev, const vptq_encoder_settings *settings,
                               const vptq_encoder_input *input, vptq_arena *arena,
                               vptq_encoder_result *result, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const double start = vptq_seconds();
    const vptq_encoder_settings *s = settings;
    const bool pass_is_last = !s->retrain && !s->sweeps && !s->refits;
    vptq_encoder_report *report = &result->report;
    vptq_encoder enc = {.dev = dev,
                        .settings = s,
                        .keep = arena,
                        .arrays = vptq_mirror_of(dev),
                        .problem.input = input,
                        .report = report};

    *result = (vptq_encoder_result){0};
    vptq_arena_init(&enc.scratch, dev->ctx->mem);
    VPTQ_TRY(vptq_encoder_check(s, input->out, input->in, err));

    /* Column groups; normalized weights Z, metric H', order of columns, factor U. */
    const vptq_vq_shape shape = vptq_encoder_shape(s, input->out, input->in);
    announce(&enc, "factor");
    VPTQ_TRY(vptq_columns_make(&enc.columns, &shape, &enc.arrays, arena, &enc.scratch, err));
    VPTQ_TRY(vptq_problem_make(&enc.problem, dev, s, input, &enc.columns, &enc.scratch, err));
    report->dead_columns = enc.problem.dead;
    report->damping_added = enc.problem.damping_added;
    VPTQ_TRY(vptq_encoder_open(&enc, err));

    VPTQ_TRY(train_codebooks(&enc, err));
    if (pass_is_last && s->rounding == VPTQ_ROUND_LOOP) { /* choose among stored centroids */
        VPTQ_TRY(round_codebooks(&enc, err));
        VPTQ_TRY(vptq_encoder_update(&enc, err));
    }
    VPTQ_TRY(minimize_error(&enc, err));
    if (s->refits && input->output)
        VPTQ_TRY(minimize_with_output(&enc, err));
    if (!enc.columns.rounded && s->codebook_grid == VPTQ_GRID_INT8 &&
        s->rounding == VPTQ_ROUND_LOOP)
        VPTQ_TRY(adapt_to_grid(&enc, err));
    if (!enc.columns.rounded)
        VPTQ_TRY(round_for_storage(&enc, err));

    VPTQ_TRY(measure_output(&enc, err));
    VPTQ_TRY(vptq_store(&enc, result, err));
    VPTQ_TRY(vptq_losses_stored(&enc, &result->vq, err));
    report->seconds = vptq_seconds() - start;
out:
    st = vptq_mirror_end(&enc.arrays, st, err);
    vptq_arena_release(&enc.scratch);
    return st;
}
