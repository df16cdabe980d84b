/* Quantizes a model into a work directory, matrix by matrix, resumable. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/vptq/layer_file.h"
#include "lib/base/file.h"
#include "lib/base/half.h"
#include "lib/base/text.h"
#include "lib/encoder/predict.h"
#include "lib/quantize/internal.h"

/* ---- one matrix ---- */

static uint32_t all_matrices(const vptq_quantizer *q)
{
    return (uint32_t)vptq_quantizer_count(q, q->first, q->last);
}

static void show_progress(const vptq_quantizer *q, const char *detail)
{
    const uint64_t all = all_matrices(q);
    uint64_t done = q->result->matrices;
    double cost = q->cost;
    if (q->sharing)
        done = vptq_share_done(q, &cost);
    const bool end = done == all;
    /* steps are announced when they begin */
    for (uint32_t i = 0; i + 1 < q->steps && i < q->matrix_cost.num_steps; i++)
        cost += q->matrix_cost.steps[i].seconds;
    vptq_progress_share(q->dev->ctx, "quantize", vptq_plural(all, "matrix", "matrices"), done,
                        all, end ? 1 : fmin(cost / q->all_cost, 1), detail);
}

double vptq_quantizer_cost(const vptq_quantizer *q, uint32_t layer, vptq_linear l,
                           vptq_encoder_report *cost)
{
    uint32_t rows, columns;
    vptq_linear_shape(q->model.desc, l, &rows, &columns);
    vptq_matrix_cost(&vptq_quantizer_matrix(q, layer, l)->settings, rows, columns, cost);
    return cost->seconds;
}

static double count_costs(const vptq_quantizer *q)
{
    vptq_encoder_report cost;
    double all = 0;
    for (uint32_t layer = q->first; layer <= q->last; layer++)
        for (int l = 0; l < vptq_linear_count(q->model.desc); l++)
            if (vptq_quantizer_has(q, layer, l))
                all += vptq_quantizer_cost(q, layer, l, &cost);
    return all;
}

static void on_step(void *arg, const char *step, double loss)
{
    vptq_quantizer *q = arg;
    char detail[96], value[32] = "";

    if (isfinite(loss))
        snprintf(value, sizeof value, ", loss %.5f", loss);
    snprintf(detail, sizeof detail, "layer %u %s: %s%s", q->layer,
             vptq_quantizer_matrix(q, q->layer, q->linear)->name.text, step, value);
    q->steps++;
    show_progress(q, detail);
}

/* Logs added damping and reverted steps. */
static void log_remarks(const vptq_quantizer *q, const char *name, const vptq_encoder_report *p)
{
    if (p->damping_added > 0)
        vptq_log(
            q->dev->ctx, VPTQ_LOG_WARN,
            "%s: the Hessian could be factored only after adding %g times its mean diagonal",
            name, p->damping_added);
    for (uint32_t i = 0; i < p->num_steps; i++)
        if (p->steps[i].reverted)
            vptq_log(q->dev->ctx, VPTQ_LOG_MORE,
                     "%s: step '%s' raised the loss and was reverted", name, p->steps[i].name);
}

static vptq_status read_weights(const vptq_quantizer *q, const vptq_quantize_row *row,
                                vptq_arena *arena, const float **w, vptq_err *err)
{
    float *x = vptq_arena_alloc(arena, (size_t)row->rows * row->columns, sizeof *x, err);
    if (!x)
        return VPTQ_E_NOMEM;
    *w = x;
    const vptq_weight *stored = &q->model.blocks[row->layer].linear[q->linear];
    vptq_status st = vptq_weight_read(stored, q->dev, 0, row->rows, x, err);
    vptq_weight_forget(stored);
    if (!st)
        vptq_fold_weights(q, row, x);
    return st;
}

/* The linear layer of a layer after l, or their count. */
static int next_linear(const vptq_quantizer *q, uint32_t layer, int l)
{
    const vptq_model_desc *d = q->model.desc;
    do
        l++;
    while (l < vptq_linear_count(d) && !vptq_quantizer_has(q, layer, l));
    return l;
}

/* Lets the system read the next matrix while this one is quantized. */
static void read_ahead(const vptq_quantizer *q)
{
    const int next = next_linear(q, q->layer, q->linear);
    const bool inside = next < vptq_linear_count(q->model.desc);
    const uint32_t layer = inside ? q->layer : q->layer + 1;
    if (layer <= q->last)
        vptq_weight_ahead(&q->model.blocks[layer].linear[inside ? next : 0]);
}

/* Puts the weights of a method without codes into *file, in `arena`. */
static vptq_status store_dense(const char *name, const vptq_encoder_input *input,
                               vptq_dtype storage, const float *what, vptq_arena *arena,
                               vptq_layer_file *file, vptq_err *err)
{
    const size_t n = (size_t)input->out * input->in, size = strlen(name) + sizeof ".weight";
    char *weight = vptq_arena_alloc(arena, size, 1, err);
    uint16_t *data = weight ? vptq_arena_alloc(arena, n, sizeof *data, err) : NULL;
    if (!data)
        return VPTQ_E_NOMEM;
    snprintf(weight, size, "%s.weight", name);
    if (storage == VPTQ_F16)
        vptq_f32_to_f16_n(what, data, n);
    else
        vptq_f32_to_bf16_n(what, data, n);
    file->dense = name;
    file->weight = (vptq_tensor){.name = weight,
                                 .type = storage,
                                 .dims = 2,
                                 .shape = {input->out, input->in},
                                 .data = (const uint8_t *)(const void *)data,
                                 .bytes = n * sizeof *data,
                                 .round_to = storage,
                                 .file = ""};
    return VPTQ_OK;
}

static vptq_status choose_additive(const vptq_quantizer *q, const char *name,
                                   const vptq_encoder_input *input, vptq_arena *arena,
                                   vptq_quantize_row *row, float *what, vptq_layer_file *file,
                                   vptq_err *err)
{
    const vptq_encoder_settings *s = row->settings;
    file->is_additive = true;
    file->additive = (vptq_additive_matrix){.name = name, .storage = s->storage};
    return vptq_quantize_additive(q->dev, s, input, arena, &file->additive.a, what,
                                  &row->report, err);
}

static vptq_status choose_other(const vptq_quantizer *q, const char *name,
                                const vptq_encoder_input *input, vptq_arena *arena,
                                vptq_quantize_row *row, vptq_layer_file *file, vptq_err *err)
{
    const vptq_encoder_settings *s = row->settings;
    float *what = vptq_arena_alloc(arena, (size_t)input->out * input->in, sizeof *what, err);
    if (!what)
        return VPTQ_E_NOMEM;
    if (vptq_method_is_additive(s->method))
        return choose_additive(q, name, input, arena, row, what, file, err);
    file->is_uniform = vptq_method_has_codes(s->method);
    file->uniform = (vptq_compressed_matrix){.name = name,
                                             .storage = s->storage,
                                             .activation_bits = s->activation_bits,
                                             .ragged = true};
    VPTQ_CHECK(vptq_quantize_uniform(q->dev, s, input, arena, &file->uniform.u, what,
                                     &row->report, err));
    return file->is_uniform ? VPTQ_OK
                            : store_dense(name, input, s->storage, what, arena, file, err);
}

vptq_status vptq_choose_codes(const vptq_quantizer *q, const char *name,
                              const vptq_encoder_input *input, vptq_arena *arena,
                              vptq_quantize_row *row, vptq_layer_file *file, vptq_err *err)
{
    const vptq_encoder_settings *s = row->settings;
    vptq_encoder_result r;
    *file = (vptq_layer_file){.is_uniform = false};
    if (s->method != VPTQ_METHOD_VPTQ)
        return choose_other(q, name, input, arena, row, file, err);
    VPTQ_CHECK(vptq_encode_matrix(q->dev, s, input, arena, &r, err));
    row->report = r.report;
    file->matrix = (vptq_packed_matrix){.name = name, .vq = r.vq, .storage = s->storage};
    file->centroids_f32 = r.centroids_f32;
    file->res_centroids_f32 = r.res_centroids_f32;
    return VPTQ_OK;
}

/* Quantizes the current matrix and writes it to `path`.  *text becomes its row as JSON, to be
 * freed by the caller. */
static vptq_status encode(vptq_quantizer *q, const char *path, const vptq_input_hessians *h,
                          vptq_quantize_row *row, char **text, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    vptq_layer_file file;
    char name[VPTQ_NAME_MAX];
    const vptq_model_desc *d = q->model.desc;
    vptq_encoder_input input = {.matrix_id =
                                    (uint32_t)vptq_linear_index(d, row->layer, q->linear),
                                .out = row->rows,
                                .in = row->columns,
                                .on_step = on_step,
                                .on_step_arg = q};

    vptq_arena_init(&arena, q->dev->ctx->mem);
    vptq_hessians_of(h, q->linear, &input);
    VPTQ_TRY(vptq_fold_hessians(q, &arena, &input, err));
    row->awq_alpha = q->fold.ready ? q->fold.alpha[vptq_linear_input(q->linear)] : (double)NAN;
    row->weighted = input.metric;
    row->held_out = input.held_out;
    VPTQ_TRY(read_weights(q, row, &arena, &input.w, err));
    read_ahead(q);
    if (h->shifts.shift || h->shifts.drift)
        VPTQ_TRY(vptq_calibration_target(q, h, row, &arena, &input.w, err));
    vptq_linear_full_name(q->model.desc, name, row->layer, q->linear);
    VPTQ_TRY(vptq_choose_codes(q, name, &input, &arena, row, &file, err));
    VPTQ_TRY(vptq_row_json(row, false, text, err));
    vptq_fold_file(q, &file);
    file.fingerprint = q->fingerprint;
    file.report = *text;
    VPTQ_TRY(vptq_layer_file_write(path, &file, q->dev->ctx->mem, err));
    log_remarks(q, name, &row->report);
out:
    vptq_arena_release(&arena);
    return st;
}

/* Quantizes a matrix, or reuses it if it is finished.  Loads the Hessians of its input into *h
 * unless an earlier matrix has. */
static vptq_status quantize_matrix(vptq_quantizer *q, vptq_input_hessians *h, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    char path[PATH_MAX];
    char *text = NULL;
    vptq_quantize_row row = vptq_row_make(q, q->layer, q->linear);

    q->steps = 0;
    (void)vptq_quantizer_cost(q, q->layer, q->linear, &q->matrix_cost);
    VPTQ_TRY(vptq_check_cancel(q->dev->ctx, err));
    VPTQ_TRY(vptq_matrix_path(q, q->layer, q->linear, path, err));
    VPTQ_TRY(vptq_row_reuse(q, path, &row, &text, err));
    if (!text && q->share && !q->sharing) /* the others do not help any more */
        VPTQ_TRY(
            vptq_fail(err, VPTQ_E_IO,
                      "'%s' was written by a rank of this run and is missing or damaged now; "
                      "run the same command again",
                      path));
    if (!text)
        VPTQ_TRY(vptq_fold_layer(q, q->layer, err));
    if (!text && !h->plain)
        VPTQ_TRY(q->hessians.load(&q->hessians, q->layer, vptq_linear_input(q->linear),
                                  row.columns, h, err));
    if (!text)
        st = encode(q, path, h, &row, &text, err);
    if (st) {
        char name[VPTQ_NAME_MAX];
        vptq_linear_full_name(q->model.desc, name, q->layer, q->linear);
        vptq_err_context(err, "%s", name);
        goto out;
    }
    q->steps = 0;
    if (q->sharing) {
        st = vptq_share_file(q, path, err);
        vptq_share_note(q, &row);
        show_progress(q, NULL);
        goto out;
    }
    st = vptq_row_account(q, &row, text, err);
    q->cost += q->matrix_cost.seconds;
    if (!row.reused || q->result->matrices == all_matrices(q))
        show_progress(q, NULL);
out:
    free(text);
    return st;
}

/* Matrices that read the same input follow each other and share its Hessians. */
vptq_status vptq_quantizer_run(vptq_quantizer *q, uint32_t layer, int first, int count,
                               vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_input_hessians h = {0};
    const int end = first + count;

    for (int l = next_linear(q, layer, first - 1), next; l < end && !st; l = next) {
        q->layer = layer;
        q->linear = (vptq_linear)l;
        st = quantize_matrix(q, &h, err);
        next = next_linear(q, layer, l);
        const bool last_of_input =
            next >= end || vptq_linear_input(next) != vptq_linear_input(l);
        if (h.plain && (st || last_of_input))
            q->hessians.release(&q->hessians, &h);
    }
    return st;
}

/* Quantizes what is left, and makes the report of all. */
static vptq_status quantize_layers(vptq_quantizer *q, vptq_err *err)
{
    const bool part = q->first > 0 || q->last + 1 < q->model.desc->layers;
    for (uint32_t layer = q->first; layer <= q->last; layer++)
        VPTQ_CHECK(vptq_quantizer_run(q, layer, 0, vptq_linear_count(q->model.desc), err));
    return vptq_rows_write(q, part, err);
}

/* ---- the run ---- */

/* Whether a dry run refuses the directory of another run.  One that measures sensitivities,
 * which a directory keeps for any budget, may be of another; with --tune it may hold only a
 * stage. */
static bool compares_manifest(const vptq_quantizer *q)
{
    return (q->opt->hessians || q->opt->calibrate) && !q->opt->tune &&
           !vptq_allocate_measures(q) && vptq_manifest_exists(q);
}

static vptq_status dry_run(vptq_quantizer *q, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_cuda_costs *costs = q->opt->predict ? vptq_cuda_costs_default() : NULL;

    if (q->opt->work && !q->opt->tune) /* with which it may hold only a stage */
        VPTQ_CHECK(vptq_work_check_own(q, err));
    if (q->opt->work)
        VPTQ_CHECK(vptq_manifest_check_write(q, err));
    if (compares_manifest(q))
        VPTQ_CHECK(vptq_manifest_check(q, false, err));
    if (costs && q->opt->calibrate)
        q->result->predicted_calibration = vptq_predict_calibration(q, costs);
    q->result->predicted_seconds = q->result->predicted_calibration;
    if (costs && (q->hessians.output_fingerprint[0] ||
                  (q->opt->calibrate && q->opt->calibrate->outputs)))
        vptq_log(q->dev->ctx, VPTQ_LOG_WARN,
                 "the predicted time leaves out output Hessians and the steps under them");

    for (uint32_t layer = q->first; layer <= q->last; layer++)
        for (int l = 0; l < vptq_linear_count(q->model.desc) && !st; l++) {
            char *text = NULL;
            if (!vptq_quantizer_has(q, layer, l))
                continue;
            vptq_quantize_row row = vptq_row_make(q, layer, (vptq_linear)l);
            if (costs && row.settings->method == VPTQ_METHOD_VPTQ)
                vptq_encoder_predict(costs, row.settings, row.rows, row.columns, &row.report);
            q->result->predicted_seconds += row.report.seconds;
            st = vptq_row_json(&row, true, &text, err);
            if (!st)
                st = vptq_row_account(q, &row, text, err);
            free(text);
        }
    return st;
}

/* Makes the work directory ready.  Removes the report first, which is written last: a directory
 * without it reads as unfinished. */
static vptq_status open_work(const vptq_quantizer *q, vptq_lock *lock, vptq_err *err)
{
    char path[PATH_MAX];
    /* writing a manifest into a model's directory would make it unreadable as a model */
    VPTQ_CHECK(vptq_work_check_own(q, err));
    VPTQ_CHECK(vptq_dir_make(q->opt->work, err));
    VPTQ_CHECK(vptq_lock_take(q->opt->work, lock, err));
    VPTQ_CHECK(vptq_manifest_open(q, err));
    VPTQ_CHECK(vptq_path_join(path, sizeof path, q->opt->work, VPTQ_WORK_REPORT, err));
    return vptq_file_remove(path, err);
}

static vptq_status finish_work(vptq_quantizer *q, vptq_err *err)
{
    VPTQ_CHECK(quantize_layers(q, err));
    vptq_calibrator_forget(
        q->opt->work); /* also those of a run that was finished with other Hessians */
    VPTQ_CHECK(vptq_work_forget_outputs(q->opt->work, err));
    q->result->mean_loss = q->loss / q->result->matrices;
    q->result->mean_held_out = q->held_out / q->result->matrices;
    return VPTQ_OK;
}

/* Of several ranks the first has the work directory, all make matrices, and the first then
 * finds them finished. */
static vptq_status run(vptq_quantizer *q, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_lock lock = {.fd = -1};
    const vptq_ctx *ctx = q->dev->ctx;
    const bool first = vptq_comm_rank(ctx) == 0;
    double one = 1;
    size_t bad_pivot;

    VPTQ_TRY(vptq_manifest_make(q, err));
    VPTQ_TRY(vptq_comm_same(ctx, "the fingerprint of models, Hessians and settings",
                            q->fingerprint, err));
    /* The first factorization loads a library that may be missing: not after the calibration.
     */
    if (q->opt->calibrate)
        VPTQ_TRY(vptq_hessian_cholesky(q->dev, 1, &one, &bad_pivot, err));
    if (first)
        st = open_work(q, &lock, err);
    else if (q->opt->no_shared_dir)
        st = vptq_dir_make(q->opt->work, err);
    VPTQ_TRY(vptq_comm_agree(ctx, st, err));
    q->all_cost = count_costs(q);
    if (vptq_comm_size(ctx) > 1)
        VPTQ_TRY(vptq_share_matrices(q, err));
    if (first)
        VPTQ_TRY(finish_work(q, err));
out:
    vptq_lock_release(&lock);
    return st;
}

/* Predicts the size of the packed weights. */
static void predict_file(const vptq_quantizer *q, vptq_quantize_result *r)
{
    const uint64_t bits = q->plain_bits + 16 * (q->matrix_weights - q->weights) + q->bits;
    r->packed_bytes = bits / 8;
    r->file_bits_per_weight = (double)bits / (double)(q->plain_weights + q->matrix_weights);
}

static void fill_result(const vptq_quantizer *q, vptq_quantize_result *r)
{
    if (!r->matrices) /* not the first rank, which tells the others */
        return;
    r->skipped =
        (uint32_t)vptq_linear_total(q->model.desc, q->first, q->last) - all_matrices(q);
    r->bits_per_weight = (double)q->bits / (double)q->weights;
    r->predicted_loss = q->predicted_loss / r->matrices;
    r->diagonal = q->hessians.diagonal;
    predict_file(q, r);
}

vptq_status vptq_quantize_model(vptq_device *dev, const vptq_quantize_options *opt,
                                vptq_quantize_fn fn, void *arg, vptq_quantize_result *result,
                                vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_quantizer q = {.dev = dev, .opt = opt, .result = result, .fn = fn, .arg = arg};
    double start = vptq_seconds();

    *result = (vptq_quantize_result){0};
    vptq_arena_init(&q.arena, dev->ctx->mem);
    vptq_buf_init(&q.report, dev->ctx->mem);
    VPTQ_TRY(vptq_plan_settings(&q, err));
    if (opt->hessians || (opt->calibrate && (!opt->dry_run || vptq_allocate_measures(&q) ||
                                             compares_manifest(&q))))
        VPTQ_TRY(vptq_plan_hessians(&q, err));
    if (!opt->dry_run || vptq_allocate_measures(&q))
        VPTQ_TRY(vptq_plan_weights(&q, err));
    VPTQ_TRY(vptq_plan_plain(&q, err));
    vptq_plan_warn(&q);
    if (opt->bits > 0)
        VPTQ_TRY(vptq_plan_allocate(&q, err));
    VPTQ_TRY(vptq_plan_check(&q, err));
    VPTQ_TRY(opt->dry_run ? dry_run(&q, err) : run(&q, err));
    fill_result(&q, result);
    if (opt->dry_run && opt->estimate)
        VPTQ_TRY(vptq_plan_estimate(&q, err));
out:
    result->seconds = vptq_seconds() - start;
    if (st == VPTQ_E_CANCELLED && !opt->dry_run)
        vptq_fail(err, st,
                  "interrupted; %u of %u matrices finished, run the same command to continue",
                  q.share || (!result->matrices && opt->work && !opt->force && q.matrix)
                      ? vptq_share_count_files(&q)
                      : result->matrices,
                  q.model.desc ? all_matrices(&q) : 0);
    st = vptq_comm_agree(dev->ctx, st, err);
    if (!st)
        st = vptq_comm_broadcast(dev->ctx, 0, result, sizeof *result, err);
    if (q.hessians.close)
        q.hessians.close(&q.hessians);
    json_decref(q.manifest);
    json_decref(q.rules);
    vptq_buf_release(&q.report);
    vptq_fold_release(&q);
    vptq_model_release(&q.model);
    vptq_arena_release(&q.arena);
    return st;
}
