/* Plans a run before any work: opens the model and the Hessians, makes the settings of every
 * matrix, and finds errors that would otherwise stop the run hours later. */
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/file.h"
#include "lib/base/parallel.h"
#include "lib/base/text.h"
#include "lib/quantize/internal.h"
#include "lib/quantize/tune.h"

/* Weights of a chunk that a thread checks. */
enum { SCAN_VALUES = 1 << 15 };

static vptq_status resolve_settings(vptq_quantizer *q, vptq_err *err)
{
    const char *path = q->opt->recipe;
    vptq_text_file recipe;
    if (path)
        VPTQ_CHECK(vptq_text_file_open(q->dev->ctx, path, VPTQ_TEXT_JSON, VPTQ_RECIPE_LIMIT,
                                       &recipe, err));
    const vptq_status st =
        vptq_settings_resolve(q->model.desc, q->opt->settings, path ? &recipe : NULL, &q->arena,
                              &q->matrix, &q->rules, err);
    if (path)
        vptq_text_file_close(&recipe);
    return st;
}

/* The mode of the options; of AUTO the one for this model and run. */
static vptq_allocate_mode resolve_allocate(const vptq_quantizer *q)
{
    const vptq_quantize_options *o = q->opt;
    if (o->allocate != VPTQ_ALLOCATE_AUTO || !(o->bits > 0))
        return o->allocate;
    if (q->model.desc->experts.count) {
        vptq_log(
            q->dev->ctx, VPTQ_LOG_INFO,
            "%s: allocates by predicted losses (--allocate proxy), because divergences are "
            "not measured for models of type %s",
            o->model, q->model.desc->family->model_type);
        return VPTQ_ALLOCATE_PROXY;
    }
    if (!o->dry_run)
        return VPTQ_ALLOCATE_KL;
    vptq_log(
        q->dev->ctx, VPTQ_LOG_INFO,
        "the run itself will choose by --allocate kl, which this plan neither measures nor "
        "counts in its time");
    return VPTQ_ALLOCATE_PROXY;
}

size_t vptq_quantizer_count(const vptq_quantizer *q, uint32_t first, uint32_t last)
{
    size_t count = 0;
    for (uint32_t layer = first; layer <= last; layer++)
        for (int l = 0; l < vptq_linear_count(q->model.desc); l++)
            count += vptq_quantizer_has(q, layer, l);
    return count;
}

/* Finds methods whose matrices no packed model holds together. */
static vptq_status check_codes(const vptq_quantizer *q, vptq_err *err)
{
    vptq_code_counts n = {0};
    vptq_err why;
    for (uint32_t layer = q->first; layer <= q->last; layer++)
        for (int l = 0; l < vptq_linear_count(q->model.desc); l++) {
            if (!vptq_quantizer_has(q, layer, l))
                continue;
            const uint32_t method = vptq_quantizer_matrix(q, layer, l)->settings.method;
            n.vectors += method == VPTQ_METHOD_VPTQ;
            n.uniform += vptq_method_has_codes(method);
            n.additive += vptq_method_is_additive(method);
        }
    const bool dir = q->opt->packs && q->opt->packs_dir;
    return vptq_code_counts_check(&n, dir, q->opt->model, &why)
               ? vptq_fail(err, VPTQ_E_ARG, "%s", why.text)
               : VPTQ_OK;
}

/* Finds groups of uniform codes that no packed model can have (formats/hf/compressed.h). */
static vptq_status check_groups(const vptq_quantizer *q, vptq_err *err)
{
    const vptq_model_desc *d = q->model.desc;
    char name[VPTQ_NAME_MAX];
    uint32_t out, in, columns = 0, group = 0;
    size_t count = 0;
    for (uint32_t layer = q->first; layer <= q->last; layer++)
        for (int l = 0; l < vptq_linear_count(d); l++) {
            if (!vptq_quantizer_has(q, layer, l))
                continue;
            const vptq_encoder_settings *s = &vptq_quantizer_matrix(q, layer, l)->settings;
            vptq_linear_shape(d, (vptq_linear)l, &out, &in);
            if (!vptq_method_has_codes(s->method) || s->group_size == 0 ||
                s->group_size >= in || in % s->group_size == 0 || count++)
                continue;
            vptq_linear_full_name(d, name, layer, (vptq_linear)l);
            group = s->group_size;
            columns = in;
        }
    if (!count)
        return VPTQ_OK;
    return vptq_fail(
        err, VPTQ_E_ARG,
        "%s: group_size is %u, which does not divide %u columns (%zu such %s), so that "
        "%s cannot be packed; --fit-groups true takes groups that divide",
        name, group, columns, count, vptq_plural(count, "matrix", "matrices"),
        vptq_plural(count, "it", "they"));
}

/* Scales of columns are moved between all matrices of a layer. */
static vptq_status check_fold_skips(const vptq_quantizer *q, vptq_err *err)
{
    char name[VPTQ_NAME_MAX];
    for (uint32_t layer = q->first; layer <= q->last; layer++)
        for (int l = 0; l < vptq_linear_count(q->model.desc); l++)
            if (vptq_quantizer_matrix(q, layer, l)->skip && vptq_fold_applies(q, layer)) {
                vptq_linear_full_name(q->model.desc, name, layer, (vptq_linear)l);
                return vptq_fail(err, VPTQ_E_ARG,
                                 "%s: a recipe cannot skip single matrices of a layer with awq "
                                 "or smooth, which scale all of them",
                                 name);
            }
    return VPTQ_OK;
}

/* Rejects models and calibrations that the scales of columns do not go with. */
static vptq_status check_folds(const vptq_quantizer *q, vptq_err *err)
{
    const vptq_family *f = q->model.desc->family;
    const char *path = q->model.ckpt.path;
    uint32_t layer = q->first;
    while (layer <= q->last && !vptq_fold_applies(q, layer))
        layer++;
    if (layer > q->last)
        return VPTQ_OK;
    VPTQ_CHECK(check_fold_skips(q, err));
    if (f->norm_offset)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: awq and smooth move scales into norms, which models of type %s "
                         "store as differences from 1",
                         path, f->model_type);
    if (f->layer_norm)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: awq and smooth move scales into norms, but not into those of "
                         "models of type %s, which have biases",
                         path, f->model_type);
    if (f->experts)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: awq and smooth are not supported for models of type %s, whose "
                         "experts share a norm with the router",
                         path, f->model_type);
    if (q->opt->calibrate && q->opt->calibrate->sequential)
        return vptq_fail(err, VPTQ_E_ARG,
                         "awq and smooth need the Hessians of a whole block first: they do not "
                         "go with a sequential calibration, which is the default of -b without "
                         "-H and -c; -c builtin calibrates on the built-in text at once");
    return VPTQ_OK;
}

/* Finds a matrix that cannot be tuned, then what else tuning will refuse. */
static vptq_status check_tuning(const vptq_quantizer *q, vptq_err *err)
{
    const vptq_model_desc *d = q->model.desc;
    char name[VPTQ_NAME_MAX], method[VPTQ_SETTING_TEXT];
    const vptq_matrix_settings *first = NULL;
    size_t count = 0;
    for (uint32_t layer = q->first; layer <= q->last; layer++)
        for (int l = 0; l < vptq_linear_count(d); l++) {
            const vptq_matrix_settings *m = vptq_quantizer_matrix(q, layer, l);
            if (!vptq_quantizer_has(q, layer, l) || m->settings.method == VPTQ_METHOD_VPTQ)
                continue;
            first = first ? first : m;
            count++;
        }
    if (!first)
        return vptq_tune_check(q->dev->ctx, q->opt->tune, &q->model, err);
    vptq_linear_full_name(d, name, first->layer, first->linear);
    vptq_setting_print(vptq_setting_find("method"), &first->settings, method, sizeof method);
    return vptq_fail(err, VPTQ_E_ARG,
                     "%s: method is %s (%zu %s of other methods than vptq), which cannot "
                     "be tuned",
                     name, method, count, vptq_plural(count, "matrix", "matrices"));
}

vptq_status vptq_plan_settings(vptq_quantizer *q, vptq_err *err)
{
    const vptq_quantize_options *o = q->opt;
    vptq_checkpoint_options copt = {.tokenizer = o->tokenizer, .quiet = o->no_size_warnings};
    const bool measured = o->bits > 0 && (o->allocate == VPTQ_ALLOCATE_KL ||
                                          (o->allocate == VPTQ_ALLOCATE_AUTO && !o->dry_run));
    if (measured && !o->allocate_text)
        return vptq_fail(err, VPTQ_E_ARG,
                         "no allocate_text, on which --allocate kl measures divergences");
    const bool text = (measured && o->allocate_text->text_count > 0) ||
                      (o->calibrate && o->calibrate->corpus.text_count > 0) ||
                      (o->tune && o->tune->corpus.text_count > 0);

    VPTQ_CHECK(vptq_model_open(q->dev->ctx, o->model, &copt, text, &q->model, err));
    const vptq_checkpoint *c = &q->model.ckpt;
    const size_t quantized = vptq_checkpoint_matrix_count(c);
    if (quantized)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED, "'%s' is quantized already (%zu %s)",
                         o->model, quantized, vptq_plural(quantized, "matrix", "matrices"));
    const vptq_model_desc *d = q->model.desc;
    q->allocate = resolve_allocate(q);
    q->first = o->first_layer;
    q->last = o->last_layer == UINT32_MAX ? d->layers - 1 : o->last_layer;
    if (q->first > q->last || q->last >= d->layers)
        return vptq_fail(err, VPTQ_E_ARG, "layers %u-%u of a model of %u layer%s (0-%u)",
                         q->first, q->last, d->layers, vptq_plural(d->layers, "", "s"),
                         d->layers - 1);
    VPTQ_CHECK(resolve_settings(q, err));
    if (vptq_quantizer_count(q, q->first, q->last) == 0)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: skips all matrices of layers %u-%u",
                         o->recipe, q->first, q->last);
    /* finds errors in settings that allocation does not change before it spends time */
    VPTQ_CHECK(vptq_settings_check(d, q->matrix, err));
    if (o->packs) {
        VPTQ_CHECK(check_codes(q, err));
        VPTQ_CHECK(check_groups(q, err));
    }
    VPTQ_CHECK(check_folds(q, err));
    return o->tune ? check_tuning(q, err) : VPTQ_OK;
}

/* Warns of Hessians with few tokens or only diagonals. */
static void warn_hessians(const vptq_quantizer *q)
{
    const vptq_quantize_options *o = q->opt;
    const uint32_t widest = vptq_widest_input(q->model.desc);

    if (q->hessians.diagonal)
        vptq_log(q->dev->ctx, VPTQ_LOG_WARN,
                 "'%s' has only the diagonals of Hessians: they weight errors, but no column "
                 "compensates the error of another, and losses ignore correlations between "
                 "columns",
                 o->hessians);
    else if (q->hessians.tokens && q->hessians.tokens < widest)
        vptq_log(
            q->dev->ctx, VPTQ_LOG_WARN,
            "%s%sonly %" PRIu64
            " calibration tokens for %u columns: directions they do not cover are ignored; "
            "use more or longer windows (-n, -l)",
            o->hessians ? o->hessians : "", o->hessians ? ": " : "", q->hessians.tokens,
            widest);
}

/* Whether a matrix that reads the input has no file yet, or all are measured. */
static vptq_status is_needed(const vptq_quantizer *q, uint32_t layer, vptq_input input,
                             bool *needed, vptq_err *err)
{
    char path[PATH_MAX];
    const bool folds = vptq_fold_applies(q, layer); /* which reads all of them */
    const bool again = q->opt->force || !q->opt->work;
    *needed = vptq_allocate_measures(q);
    for (int l = 0; l < vptq_linear_count(q->model.desc) && !*needed; l++) {
        if (!vptq_quantizer_has(q, layer, l))
            continue;
        if (!folds && vptq_linear_input((vptq_linear)l) != input)
            continue;
        if (!again)
            VPTQ_CHECK(vptq_matrix_path(q, layer, (vptq_linear)l, path, err));
        *needed = again || !vptq_path_exists(path);
    }
    return VPTQ_OK;
}

/* Reads the Hessians that the run needs, so that a missing or damaged one is found now, not
 * after hours.  A dry run, which takes seconds, only finds missing ones. */
static vptq_status check_hessians(const vptq_quantizer *q, uint32_t first, uint32_t last,
                                  vptq_err *err)
{
    vptq_input_hessians h;
    vptq_expert_counts experts = {0};
    char source[512];
    bool needed;
    for (uint32_t layer = first; layer <= last; layer++)
        for (int i = 0; i < vptq_input_count(&q->model.desc->experts); i++) {
            const uint32_t columns = vptq_input_size(q->model.desc, (vptq_input)i);
            VPTQ_CHECK(vptq_check_cancel(q->dev->ctx, err));
            VPTQ_CHECK(is_needed(q, layer, (vptq_input)i, &needed, err));
            if (!needed || !vptq_input_exists(&q->model.desc->experts, layer, i))
                continue;
            if (q->opt->dry_run) {
                VPTQ_CHECK(vptq_hessian_source_find(&q->hessians, layer, (vptq_input)i, err));
                continue;
            }
            VPTQ_CHECK(q->hessians.load(&q->hessians, layer, (vptq_input)i, columns, &h, err));
            const bool lacks = vptq_fold_applies(q, layer) && !h.abs_mean;
            vptq_experts_count(&experts, q->model.desc, i, h.file.tokens);
            q->hessians.release(&q->hessians, &h);
            if (lacks)
                return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                                 "'%s': the Hessians of layer %u have no channel ranges, which "
                                 "awq and smooth need; collect them again with this version",
                                 q->opt->hessians, layer);
        }
    snprintf(source, sizeof source, "%.500s: ", q->opt->hessians);
    vptq_experts_warn(&experts, q->dev->ctx, source);
    return VPTQ_OK;
}

/* A sequential calibration of later layers runs the quantized ones before them.  Rank 0 has the
 * work directory, which others may not see. */
static vptq_status check_earlier(const vptq_quantizer *q, vptq_err *err)
{
    char path[PATH_MAX];
    if (vptq_comm_rank(q->dev->ctx))
        return VPTQ_OK;
    for (uint32_t layer = 0; layer < q->first; layer++)
        for (int l = 0; l < vptq_linear_count(q->model.desc); l++) {
            if (!vptq_quantizer_has(q, layer, l))
                continue;
            VPTQ_CHECK(vptq_matrix_path(q, layer, (vptq_linear)l, path, err));
            if (!vptq_path_exists(path))
                return vptq_fail(err, VPTQ_E_MISMATCH,
                                 "%s is missing: sequential calibration of later layers needs "
                                 "layer %u quantized",
                                 path, layer);
        }
    return VPTQ_OK;
}

void vptq_plan_warn(const vptq_quantizer *q)
{
    vptq_err why;
    if (!q->opt->packs && check_codes(q, &why))
        vptq_log(q->dev->ctx, VPTQ_LOG_WARN, "%s", why.text);
    if (!q->opt->packs && check_groups(q, &why))
        vptq_log(q->dev->ctx, VPTQ_LOG_WARN, "%s", why.text);
    warn_hessians(q);
}

vptq_status vptq_plan_hessians(vptq_quantizer *q, vptq_err *err)
{
    const vptq_quantize_options *o = q->opt;
    uint32_t first = q->first, last = q->last;

    VPTQ_CHECK(
        vptq_checkpoint_fingerprint(&q->model.ckpt, q->dev->ctx, q->base_fingerprint, err));
    if (vptq_allocate_measures(q)) {
        first = 0;
        last = q->model.desc->layers - 1;
    }
    if (o->calibrate)
        VPTQ_CHECK(vptq_calibration_open(q, err));
    else
        VPTQ_CHECK(vptq_hessian_source_open(
            &(vptq_hessian_source_options){.dir = o->hessians,
                                           .held_out = o->held_out,
                                           .kv_factor = o->kv_factor,
                                           .no_outputs = o->no_outputs,
                                           .desc = q->model.desc,
                                           .model_fingerprint = q->base_fingerprint,
                                           .first_layer = first,
                                           .last_layer = last},
            q->dev->ctx->mem, &q->hessians, err));
    if (!o->calibrate)
        return check_hessians(q, first, last, err);
    return o->calibrate->sequential && !o->dry_run ? check_earlier(q, err) : VPTQ_OK;
}

/* ---- codebooks ---- */

/* Finds a codebook with more centroids than vectors to train them on.  Returns its name as a
 * prefix of "centroids", NULL if there is none. */
static const char *large_codebook(const vptq_vq_shape *s, uint64_t *vectors, uint32_t *k)
{
    *vectors = (uint64_t)vptq_vq_vector_rows(s) * s->group_size;
    *k = s->k;
    if (*vectors < s->k)
        return "";
    *k = s->k_res;
    if (*vectors < s->k_res)
        return "residual ";
    *k = s->k0;
    *vectors = s->outliers ? (uint64_t)((s->out + s->v0 - 1) / s->v0) * s->outliers : 0;
    return s->outliers && *vectors < s->k0 ? "outlier " : NULL;
}

static void warn_large_codebook(const vptq_quantizer *q, const vptq_quantize_row *r,
                                uint32_t more_layers)
{
    char more[48] = "";
    uint64_t vectors;
    uint32_t k;
    const char *codebook = large_codebook(&r->shape, &vectors, &k);

    if (more_layers)
        snprintf(more, sizeof more, " (and %u more layer%s)", more_layers,
                 vptq_plural(more_layers, "", "s"));
    vptq_log(q->dev->ctx, VPTQ_LOG_WARN,
             "layer %u %s has %" PRIu64
             " vectors%s for %u %scentroids: %.2f bits per weight in total%s",
             r->layer, r->name, vectors,
             r->shape.groups > 1 && strcmp(codebook, "outlier ") ? " in a group" : "", k,
             codebook, r->bits.per_weight, more);
}

/* Warns once per kind of linear layer, naming its first layer with the problem. */
static void warn_large_codebooks(const vptq_quantizer *q)
{
    for (int l = 0; l < vptq_linear_count(q->model.desc); l++) {
        vptq_quantize_row first = {0};
        uint32_t layers = 0;
        for (uint32_t layer = q->first; layer <= q->last; layer++) {
            uint64_t vectors;
            uint32_t k;
            if (!vptq_quantizer_has(q, layer, l))
                continue;
            vptq_quantize_row r = vptq_row_make(q, layer, (vptq_linear)l);
            if (r.settings->method == VPTQ_METHOD_VPTQ &&
                large_codebook(&r.shape, &vectors, &k) && !layers++)
                first = r;
        }
        if (layers)
            warn_large_codebook(q, &first, layers - 1);
    }
}

/* ---- weights ---- */

typedef struct scan {
    const vptq_tensor *t;
    size_t cols, chunk; /* rows that a thread reads at a time */
    float *buffer;      /* [threads][chunk * cols] */
    size_t *bad;        /* [threads] first element that is not finite; SIZE_MAX = none */
} scan;

static void scan_rows(void *arg, size_t begin, size_t end, int thread)
{
    const scan *s = arg;
    float *x = s->buffer + (size_t)thread * s->chunk * s->cols;
    size_t *bad = &s->bad[thread];

    /* reading fails only for an unknown type, which opening the model has rejected */
    vptq_status st = vptq_tensor_read(s->t, begin, end - begin, x, NULL);
    VPTQ_BUG_IF(st);
    for (size_t i = 0; i < (end - begin) * s->cols; i++)
        if (!isfinite(x[i])) {
            size_t at = begin * s->cols + i;
            *bad = at < *bad ? at : *bad;
            return;
        }
}

static vptq_status scan_matrix(const vptq_quantizer *q, uint32_t layer, vptq_linear l, scan *s,
                               vptq_err *err)
{
    char name[VPTQ_NAME_MAX];
    size_t bad = SIZE_MAX;
    const vptq_weight *w = &q->model.blocks[layer].linear[l];
    int threads = q->dev->ctx->threads;

    s->t = w->tensor;
    s->cols = w->cols;
    s->chunk = SCAN_VALUES / w->cols ? SCAN_VALUES / w->cols : 1;
    for (int t = 0; t < threads; t++)
        s->bad[t] = SIZE_MAX;
    vptq_parallel_for(threads, w->rows, s->chunk, scan_rows, s);
    vptq_tensor_forget(s->t);
    for (int t = 0; t < threads; t++)
        bad = s->bad[t] < bad ? s->bad[t] : bad;
    if (bad == SIZE_MAX)
        return VPTQ_OK;
    vptq_linear_full_name(q->model.desc, name, layer, l);
    return vptq_fail(err, VPTQ_E_NUMERIC,
                     "'%s': tensor '%s.weight' holds a number that is not finite at row %zu, "
                     "column %zu",
                     q->opt->model, name, bad / s->cols, bad % s->cols);
}

vptq_status vptq_plan_weights(const vptq_quantizer *q, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    scan s = {0};
    const size_t threads = (size_t)q->dev->ctx->threads;
    const size_t widest = vptq_widest_input(q->model.desc);
    const size_t values = widest > SCAN_VALUES ? widest : SCAN_VALUES;

    vptq_arena_init(&arena, q->dev->ctx->mem);
    s.buffer = vptq_arena_alloc(&arena, values * threads, sizeof *s.buffer, err);
    s.bad = s.buffer ? vptq_arena_alloc(&arena, threads, sizeof *s.bad, err) : NULL;
    if (!s.bad) {
        st = VPTQ_E_NOMEM;
        goto out;
    }
    bool all = vptq_allocate_measures(q);
    uint32_t last = all ? q->model.desc->layers - 1 : q->last;
    const uint32_t first = all ? 0 : q->first;
    const vptq_ctx *ctx = q->dev->ctx;
    /* every rank reads its share */
    for (uint32_t layer = first + (uint32_t)vptq_comm_rank(ctx); layer <= last;
         layer += (uint32_t)vptq_comm_size(ctx))
        for (int l = 0; l < vptq_linear_count(q->model.desc); l++) {
            VPTQ_TRY(vptq_check_cancel(q->dev->ctx, err));
            if (!vptq_linear_exists(q->model.desc, layer, l))
                continue;
            VPTQ_TRY(scan_matrix(q, layer, (vptq_linear)l, &s, err));
        }
out:
    vptq_arena_release(&arena);
    return vptq_comm_agree(q->dev->ctx, st, err);
}

/* Output Hessians come into play after the last refit of the encoder. */
static void warn_unused_outputs(const vptq_quantizer *q)
{
    size_t unused = 0;
    for (uint32_t layer = q->first; layer <= q->last; layer++)
        for (int l = 0; l < vptq_linear_count(q->model.desc); l++) {
            if (!vptq_quantizer_has(q, layer, l))
                continue;
            const vptq_encoder_settings *s =
                &vptq_quantizer_matrix(q, layer, (vptq_linear)l)->settings;
            unused += s->method != VPTQ_METHOD_VPTQ || !s->refits;
        }
    if (unused && q->hessians.output_fingerprint[0])
        vptq_log(q->dev->ctx, VPTQ_LOG_WARN,
                 "%zu %s quantized without refits: output Hessians have no effect on %s",
                 unused, vptq_plural(unused, "matrix is", "matrices are"),
                 vptq_plural(unused, "it", "them"));
}

/* Whether a matrix of the layer has method vptq, which alone uses output Hessians. */
static bool has_vectors(const vptq_quantizer *q, uint32_t layer)
{
    for (int l = 0; l < vptq_linear_count(q->model.desc); l++)
        if (vptq_quantizer_has(q, layer, l) &&
            vptq_quantizer_matrix(q, layer, l)->settings.method == VPTQ_METHOD_VPTQ)
            return true;
    return false;
}

static vptq_status check_fold_outputs(const vptq_quantizer *q, vptq_err *err)
{
    for (uint32_t layer = q->first; layer <= q->last; layer++)
        if (vptq_fold_applies(q, layer) && q->hessians.output_fingerprint[0] &&
            has_vectors(q, layer))
            return vptq_fail(err, VPTQ_E_ARG,
                             "awq and smooth change the outputs of matrices: output Hessians "
                             "do not go with matrices of method vptq in the same layer");
    return VPTQ_OK;
}

vptq_status vptq_plan_check(const vptq_quantizer *q, vptq_err *err)
{
    VPTQ_CHECK(check_fold_outputs(q, err));
    VPTQ_CHECK(vptq_settings_check(q->model.desc, q->matrix, err));
    warn_unused_outputs(q);
    if (!q->opt->no_size_warnings)
        warn_large_codebooks(q);
    return VPTQ_OK;
}

/* Counts a tensor that stays plain. */
static vptq_status count_plain(vptq_quantizer *q, const vptq_tensor *t, vptq_dtype type,
                               vptq_err *err)
{
    const size_t n = vptq_tensor_rows(t) * vptq_tensor_cols(t);
    size_t bytes;
    if (!vptq_dtype_bytes(type, n, &bytes))
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: tensor '%s' has %zu numbers, %s needs a multiple of %zu", t->file,
                         t->name, n, vptq_dtype_get(type)->name, vptq_dtype_get(type)->block);
    q->plain_bits += 8 * (uint64_t)bytes;
    q->plain_weights += n;
    return VPTQ_OK;
}

static bool is_matrix(const vptq_model *m, const vptq_tensor *t)
{
    for (uint32_t i = 0; i < m->desc->layers; i++)
        for (int l = 0; l < vptq_linear_count(m->desc); l++)
            if (m->blocks[i].linear[l].tensor == t)
                return true;
    return false;
}

vptq_status vptq_plan_plain(vptq_quantizer *q, vptq_err *err)
{
    const vptq_model *m = &q->model;
    const vptq_tensor_set *set = &m->ckpt.set;
    const bool file = q->opt->budget == VPTQ_BUDGET_FILE;
    const bool packed = file || q->opt->packs;
    const vptq_dtype type = packed ? q->opt->embeddings : VPTQ_F16;
    if (packed && !vptq_is_embedding_type(type))
        return vptq_fail(err, VPTQ_E_ARG,
                         "embeddings of type %d, expected F16, BF16, F32, Q8_0 or Q6_K",
                         (int)type);
    if (file && (q->first > 0 || q->last + 1 < m->desc->layers))
        return vptq_fail(err, VPTQ_E_ARG,
                         "a budget for the file with layers %u-%u of 0-%u: expected all layers",
                         q->first, q->last, m->desc->layers - 1);
    for (size_t i = 0; i < set->count; i++) { /* as packing takes them, used or not */
        const vptq_tensor *t = &set->tensors[i];
        if (is_matrix(m, t))
            q->matrix_weights += (uint64_t)vptq_tensor_rows(t) * vptq_tensor_cols(t);
        else
            VPTQ_CHECK(count_plain(q, t, vptq_is_embedding(t->name) ? type : VPTQ_F16, err));
    }
    return VPTQ_OK;
}
