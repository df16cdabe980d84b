/* Rows of report.jsonl: makes them, reads them from finished matrices, and sums them up. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/vptq/layer_file.h"
#include "lib/base/file.h"
#include "lib/quantize/internal.h"

enum { KEY = 64 };

vptq_quantize_row vptq_row_make(const vptq_quantizer *q, uint32_t layer, vptq_linear l)
{
    vptq_quantize_row row = {.layer = layer,
                             .name = vptq_quantizer_matrix(q, layer, l)->name.text,
                             .settings = &vptq_quantizer_matrix(q, layer, l)->settings,
                             .diagonal = q->hessians.diagonal,
                             .awq_alpha = (double)NAN};
    vptq_linear_shape(q->model.desc, l, &row.rows, &row.columns);
    if (row.settings->method == VPTQ_METHOD_VPTQ) {
        row.shape = vptq_encoder_shape(row.settings, row.rows, row.columns);
        row.bits = vptq_vq_count_bits(&row.shape);
    } else if (vptq_method_is_additive(row.settings->method)) {
        row.additive = vptq_additive_shape_of(row.settings, row.rows, row.columns);
        row.bits = vptq_additive_count_bits(&row.additive);
    } else if (!vptq_method_has_codes(row.settings->method)) {
        row.bits = (vptq_vq_bits){.indices = 16 * (uint64_t)row.rows * row.columns};
        row.bits.total = row.bits.indices;
        row.bits.per_weight = 16;
    } else {
        const vptq_uniform_settings s = vptq_uniform_settings_of(row.settings);
        row.uniform = vptq_uniform_shape_of(&s, row.rows, row.columns);
        row.bits = vptq_uniform_count_bits(&row.uniform);
    }
    row.predicted =
        q->predicted ? q->predicted[vptq_linear_index(q->model.desc, layer, l)] : (double)NAN;
    return row;
}

/* ---- as JSON ---- */

static bool put(json_t *doc, const char *key, json_t *value)
{
    return !json_object_set_new(doc, key, value);
}

static bool put_u64(json_t *doc, const char *key, uint64_t n)
{
    return put(doc, key, json_integer((json_int_t)n));
}

static bool put_f64(json_t *doc, const char *key, double x)
{
    return put(doc, key, json_real(x));
}

/* `list`: appends to a list, for steps that may come several times. */
static bool put_loss(json_t *doc, const char *key, bool list, double x)
{
    json_t *old = json_object_get(doc, key);

    if (!list)
        return put_f64(doc, key, x);
    if (!old && !put(doc, key, json_array()))
        return false;
    return !json_array_append_new(json_object_get(doc, key), json_real(x));
}

/* "loss_kmeans", "loss_sweeps_held_out" */
static void loss_key(char key[KEY], const char *step, const char *suffix)
{
    char name[KEY / 2];
    size_t n = 0;

    for (; *step && n + 1 < sizeof name; step++)
        if (*step != '-')
            name[n++] = *step;
    name[n] = 0;
    snprintf(key, KEY, "loss_%s%s", name, suffix);
}

static uint32_t times(const vptq_encoder_report *p, uint32_t steps, const char *name)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < steps; i++)
        n += !strcmp(p->steps[i].name, name);
    return n;
}

/* Whether a step's losses are a list: the step comes once per round of refits. */
static bool is_repeated(const vptq_encoder_report *p, const char *name)
{
    return !strcmp(name, "refit") || !strcmp(name, "scales") ||
           times(p, p->num_steps, name) > 1;
}

/* loss_STEP of all steps under one kind of Hessian. */
static bool put_steps(json_t *doc, const vptq_encoder_report *p, const char *suffix)
{
    char key[KEY];

    for (uint32_t i = 0; i < p->num_steps; i++) {
        const vptq_encoder_step *s = &p->steps[i];
        bool list = is_repeated(p, s->name);
        double loss = !*suffix                       ? s->loss
                      : !strcmp(suffix, "_weighted") ? s->weighted
                                                     : s->held_out;
        loss_key(key, s->name, suffix);
        if (!put_loss(doc, key, list, loss))
            return false;
    }
    return true;
}

/* Names of the reverted steps; "refit 2" if a step comes several times. */
static bool put_reverted(json_t *doc, const vptq_encoder_report *p)
{
    char name[KEY];
    json_t *list = json_array();

    for (uint32_t i = 0; list && i < p->num_steps; i++) {
        const vptq_encoder_step *s = &p->steps[i];
        if (!s->reverted)
            continue;
        snprintf(name, sizeof name, "%s", s->name);
        if (is_repeated(p, s->name))
            snprintf(name, sizeof name, "%s %u", s->name, times(p, i, s->name) + 1);
        if (json_array_append_new(list, json_string(name))) {
            json_decref(list);
            list = NULL;
        }
    }
    return put(doc, "undone", list);
}

static bool put_losses(json_t *doc, const vptq_quantize_row *r)
{
    const vptq_encoder_report *p = &r->report;

    return (!r->diagonal || put(doc, "hessian", json_string("diagonal"))) &&
           put_f64(doc, "proxy_loss", p->loss) &&
           (!r->weighted || put_f64(doc, "proxy_loss_weighted", p->weighted)) &&
           (!r->held_out || put_f64(doc, "proxy_loss_held_out", p->held_out)) &&
           (p->output == 0 || put_f64(doc, "output_loss", p->output)) &&
           (!r->corrected || (put_f64(doc, "alpha", r->alpha) &&
                              put_f64(doc, "alpha_damping", r->alpha_damping) &&
                              put_f64(doc, "alpha_gain", r->alpha_gain))) &&
           put_f64(doc, "relative_mse", p->relative_mse);
}

static bool put_codes(json_t *doc, const vptq_quantize_row *r)
{
    return put_u64(doc, "weight_bits", r->uniform.bits) &&
           (!r->settings->activation_bits ||
            put_u64(doc, "activation_bits", r->settings->activation_bits)) &&
           put_u64(doc, "group_size", r->uniform.group_size) &&
           (!isfinite(r->awq_alpha) || put_f64(doc, "awq_alpha", r->awq_alpha)) &&
           put(doc, "symmetric", json_boolean(!r->uniform.has_zeros)) &&
           put(doc, "act_order",
               json_boolean(r->settings->method & VPTQ_METHOD_GPTQ && r->settings->perm));
}

static bool put_additive(json_t *doc, const vptq_additive_shape *s)
{
    return put_u64(doc, "vector_length", s->v) && put_u64(doc, "codebooks", s->stages) &&
           put_u64(doc, "codebook_rows", s->block_rows) &&
           put_u64(doc, "group_size", s->scale_columns ? s->scale_columns : s->block_columns);
}

static bool put_other(json_t *doc, const vptq_quantize_row *r)
{
    const vptq_setting *t = vptq_setting_find("method");
    char method[VPTQ_SETTING_TEXT];
    vptq_setting_print(t, r->settings, method, sizeof method);
    return put_f64(doc, "bits_per_weight", r->bits.per_weight) &&
           put(doc, "method", json_string(method)) &&
           (!vptq_method_has_codes(r->settings->method) || put_codes(doc, r)) &&
           (!vptq_method_is_additive(r->settings->method) || put_additive(doc, &r->additive));
}

static bool put_shape(json_t *doc, const vptq_quantize_row *r)
{
    if (r->settings->method != VPTQ_METHOD_VPTQ)
        return put_other(doc, r);
    return put_f64(doc, "bits_per_weight", r->bits.per_weight) &&
           put_u64(doc, "v", r->shape.v) && put_u64(doc, "k", r->shape.k) &&
           put_u64(doc, "k_res", r->shape.k_res) && put_u64(doc, "groups", r->shape.groups) &&
           put_u64(doc, "outliers", r->shape.outliers) &&
           (!r->shape.outliers ||
            (put_u64(doc, "v0", r->shape.v0) && put_u64(doc, "k0", r->shape.k0)));
}

static bool put_work(json_t *doc, const vptq_quantize_row *r)
{
    const vptq_encoder_report *p = &r->report;

    return put_steps(doc, p, "") && (!r->weighted || put_steps(doc, p, "_weighted")) &&
           (!r->held_out || put_steps(doc, p, "_held_out")) && put_reverted(doc, p) &&
           (r->settings->method != VPTQ_METHOD_VPTQ ||
            (put_u64(doc, "kmeans_iterations", (uint64_t)p->kmeans_iterations) &&
             put_u64(doc, "kmeans_repaired", p->kmeans_repaired))) &&
           put_f64(doc, "damping_added", p->damping_added) &&
           put_u64(doc, "dead_columns", p->dead_columns) &&
           (!(r->settings->method & VPTQ_METHOD_SPARSE) ||
            put_f64(doc, "sparsity", p->sparsity));
}

static bool put_bits(json_t *doc, const vptq_vq_bits *b)
{
    return put_u64(doc, "index_bits", b->indices) &&
           put_u64(doc, "codebook_bits", b->codebooks) && put_u64(doc, "norm_bits", b->norm) &&
           put_u64(doc, "perm_bits", b->perm) &&
           put_u64(doc, "outlier_index_bits", b->outlier_indices) &&
           put_u64(doc, "outlier_codebook_bits", b->outlier_codebook) &&
           put_u64(doc, "total_bits", b->total);
}

/* The first step with a loss that is not finite, which JSON cannot hold; NULL if there is none.
 */
static const char *not_finite(const vptq_quantize_row *r)
{
    const vptq_encoder_report *p = &r->report;
    for (uint32_t i = 0; i < p->num_steps; i++) {
        const vptq_encoder_step *s = &p->steps[i];
        if (!isfinite(s->loss) || (r->weighted && !isfinite(s->weighted)) ||
            (r->held_out && !isfinite(s->held_out)))
            return s->name;
    }
    return isfinite(p->loss) && isfinite(p->relative_mse) && isfinite(p->output)
               ? NULL
               : "the last step";
}

vptq_status vptq_row_json(const vptq_quantize_row *r, bool planned, char **text, vptq_err *err)
{
    const vptq_encoder_settings usual = vptq_encoder_defaults();
    json_t *doc = json_object();
    vptq_status st = VPTQ_E_NOMEM;

    if (doc && put_u64(doc, "layer", r->layer) && put(doc, "name", json_string(r->name)) &&
        put_u64(doc, "rows", r->rows) && put_u64(doc, "columns", r->columns) &&
        (!isfinite(r->predicted) || put_f64(doc, "predicted_loss", r->predicted)) &&
        (planned || put_losses(doc, r)) && put_shape(doc, r) && (planned || put_work(doc, r)) &&
        put_bits(doc, &r->bits) &&
        put(doc, "settings", vptq_settings_json(r->settings, &usual)))
        st = vptq_json_text(doc, r->name, false, text, err);
    else if (!planned && not_finite(r))
        st = vptq_fail(err, VPTQ_E_NUMERIC,
                       "the loss after %s is not finite: weights or Hessian are too large",
                       not_finite(r));
    else
        vptq_fail(err, st, "out of memory");
    json_decref(doc);
    return st;
}

/* ---- rows of finished matrices ---- */

/* Reads the losses of a row that an earlier run made. */
static vptq_status parse_row(const char *path, const char *text, vptq_quantize_row *r,
                             vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    json_t *doc = NULL;
    vptq_encoder_report *p = &r->report;

    VPTQ_TRY(vptq_json_parse(text, strlen(text), path, &doc, err));
    r->weighted = json_object_get(doc, "proxy_loss_weighted");
    r->held_out = json_object_get(doc, "proxy_loss_held_out");
    VPTQ_TRY(vptq_json_f64_or(doc, path, "proxy_loss", 0, &p->loss, err));
    VPTQ_TRY(vptq_json_f64_or(doc, path, "proxy_loss_weighted", 0, &p->weighted, err));
    VPTQ_TRY(vptq_json_f64_or(doc, path, "proxy_loss_held_out", 0, &p->held_out, err));
    VPTQ_TRY(vptq_json_f64_or(doc, path, "relative_mse", 0, &p->relative_mse, err));
    VPTQ_TRY(vptq_json_f64_or(doc, path, "loss_kmeans", 0, &p->steps[0].loss, err));
out:
    json_decref(doc);
    return st;
}

vptq_status vptq_row_reuse(const vptq_quantizer *q, const char *path, vptq_quantize_row *row,
                           char **text, vptq_err *err)
{
    vptq_layer_file file;
    vptq_err why = {0};

    *text = NULL;
    if (!vptq_path_exists(path))
        return VPTQ_OK;
    vptq_status st = vptq_layer_file_read(path, q->dev->ctx->mem, &file, &why);
    if (st && !vptq_checkpoint_is_fault(st)) /* the file may be intact */
        return vptq_fail(err, st, "%s", why.text);
    if (st) {
        vptq_log(q->dev->ctx, VPTQ_LOG_WARN, "%s; the matrix is quantized again", why.text);
        return VPTQ_OK;
    }
    if (strcmp(file.fingerprint, q->fingerprint)) {
        vptq_log(q->dev->ctx, VPTQ_LOG_WARN,
                 "%s is from a run with other settings; the matrix is quantized again", path);
    } else if (parse_row(path, file.report, row, &why)) {
        vptq_log(q->dev->ctx, VPTQ_LOG_WARN, "%s; the matrix is quantized again", why.text);
    } else {
        row->reused = true;
        vptq_share_recall(q, row);
        *text = strdup(file.report);
        st = *text ? VPTQ_OK : vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
    }
    vptq_layer_file_release(&file);
    return st;
}

/* ---- report.jsonl ---- */

vptq_status vptq_row_account(vptq_quantizer *q, vptq_quantize_row *row, const char *text,
                             vptq_err *err)
{
    VPTQ_CHECK(vptq_buf_printf(&q->report, err, "%s\n", text));
    row->json = text;
    q->bits += row->bits.total;
    q->weights += (uint64_t)row->rows * row->columns;
    q->loss += row->report.loss;
    q->held_out += row->report.held_out;
    q->predicted_loss += row->predicted;
    q->result->matrices++;
    q->result->reused += row->reused;
    return q->fn ? q->fn(q->arg, row, err) : VPTQ_OK;
}

/* Appends the row of a matrix file if it is of this run.  Leaves out a damaged file, which the
 * run over its layer will replace; fails on one that cannot be read, which may be intact. */
static vptq_status report_file(vptq_quantizer *q, const char *path, vptq_err *err)
{
    vptq_layer_file file;
    vptq_err why = {0};
    vptq_status st = vptq_layer_file_read(path, q->dev->ctx->mem, &file, &why);

    if (st && !vptq_checkpoint_is_fault(st))
        return vptq_fail(err, st, "%s", why.text);
    if (st) {
        vptq_log(q->dev->ctx, VPTQ_LOG_WARN, "%s; report.jsonl leaves it out", why.text);
        return VPTQ_OK;
    }
    if (!strcmp(file.fingerprint, q->fingerprint))
        st = vptq_buf_printf(&q->report, err, "%s\n", file.report);
    vptq_layer_file_release(&file);
    return st;
}

/* Collects the rows of all finished matrices in the directory. */
static vptq_status report_everything(vptq_quantizer *q, vptq_err *err)
{
    char path[PATH_MAX];

    vptq_buf_clear(&q->report);
    for (uint32_t layer = 0; layer < q->model.desc->layers; layer++)
        for (int l = 0; l < vptq_linear_count(q->model.desc); l++) {
            if (!vptq_quantizer_has(q, layer, l))
                continue;
            VPTQ_CHECK(vptq_matrix_path(q, layer, (vptq_linear)l, path, err));
            if (vptq_path_exists(path))
                VPTQ_CHECK(report_file(q, path, err));
        }
    return VPTQ_OK;
}

vptq_status vptq_rows_write(vptq_quantizer *q, bool all, vptq_err *err)
{
    char path[PATH_MAX];

    VPTQ_CHECK(vptq_path_join(path, sizeof path, q->opt->work, VPTQ_WORK_REPORT, err));
    if (all)
        VPTQ_CHECK(report_everything(q, err));
    return vptq_file_replace(path, q->report.data, q->report.len, err);
}
