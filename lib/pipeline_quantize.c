/* model + Hessians -> work directory, matrix by matrix, resumable. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "formats/layer_file.h"
#include "lib/base/buf.h"
#include "lib/base/file.h"
#include "lib/pipeline.h"

enum { WORK_FORMAT = 1, JSON_LIMIT = 1 << 20 };

typedef struct quantizer {
    vptq_device *dev;
    const vptq_quantize_options *opt;
    vptq_model model;
    vptq_hessian_dir hdir;
    uint32_t first, last;
    char base_fingerprint[17];
    char fingerprint[17]; /* of everything that decides the bytes of a matrix */
    json_t *manifest;     /* quantize.json */
    vptq_buf report;      /* report.jsonl so far */
    vptq_quantize_result *result;
    uint64_t bits, weights;
    double loss_sum;
    vptq_quantize_fn fn;
    void *arg;
    uint32_t layer; /* being worked on */
    vptq_linear linear;
} quantizer;

/* ---- the manifest ---- */

static json_t *settings_json(const vptq_quant_settings *s)
{
    return json_pack("{s:I, s:I, s:b, s:b, s:I, s:f, s:f, s:I}", "vector_length",
                     (json_int_t)s->v, "centroids", (json_int_t)s->k, "norm", s->norm, "perm",
                     s->perm, "kmeans_iterations", (json_int_t)s->kmeans_iterations, "ridge",
                     s->ridge, "damping", s->damping, "seed", (json_int_t)s->seed);
}

/* Over the keys that decide the bytes of a matrix. */
static vptq_status hash_manifest(quantizer *q, vptq_err *err)
{
    static const char *const keys[] = {"tool", "base_fingerprint", "hessian_fingerprint",
                                       "dtype", "settings"};
    uint64_t h = 0;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        char *part =
            json_dumps(json_object_get(q->manifest, keys[i]), JSON_COMPACT | JSON_ENCODE_ANY);
        if (!part)
            return vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
        h = vptq_hash(part, strlen(part), h);
        free(part);
    }
    snprintf(q->fingerprint, sizeof q->fingerprint, "%016" PRIx64, h);
    return VPTQ_OK;
}

static vptq_status resolve(const char *path, char full[PATH_MAX], vptq_err *err)
{
    if (realpath(path, full))
        return VPTQ_OK;
    return vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot resolve '%s'", path);
}

/* Paths are stored in full: the directory may be read from anywhere. */
static vptq_status make_manifest(quantizer *q, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_quant_settings *s = &q->opt->settings;
    char path[PATH_MAX], tokenizer[PATH_MAX];

    VPTQ_TRY(resolve(q->opt->model, path, err));
    if (q->opt->tokenizer)
        VPTQ_TRY(resolve(q->opt->tokenizer, tokenizer, err));
    q->manifest =
        json_pack("{s:i, s:s, s:s, s:s, s:s, s:s?, s:s, s:o}", "format", WORK_FORMAT, "tool",
                  "vptq-quantize " VPTQ_VERSION, "base_model", path, "base_fingerprint",
                  q->base_fingerprint, "hessian_fingerprint", q->hdir.fingerprint, "tokenizer",
                  q->opt->tokenizer ? tokenizer : NULL, "dtype",
                  s->storage == VPTQ_BF16 ? "bf16" : "f16", "settings", settings_json(s));
    if (!q->manifest)
        return vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
    st = hash_manifest(q, err);
out:
    return st;
}

static vptq_status differ(const char *path, const char *key, const json_t *found,
                          const json_t *expected, vptq_err *err)
{
    char *f = json_dumps(found, JSON_COMPACT | JSON_ENCODE_ANY);
    char *e = json_dumps(expected, JSON_COMPACT | JSON_ENCODE_ANY);
    vptq_status st =
        vptq_fail(err, VPTQ_E_MISMATCH,
                  "%s is of another run: key '%s' is %.200s there and %.200s in this "
                  "run (--force starts again)",
                  path, key, f ? f : "missing", e ? e : "missing");
    free(f);
    free(e);
    return st;
}

/* Names the first key in which an existing manifest differs from this run's. */
static vptq_status compare_manifest(const quantizer *q, const char *path, const json_t *old,
                                    vptq_err *err)
{
    const char *keys[] = {"format", "tool", "base_fingerprint", "hessian_fingerprint", "dtype"};
    const json_t *settings = json_object_get(q->manifest, "settings");
    const json_t *old_settings = json_object_get(old, "settings");

    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const json_t *now = json_object_get(q->manifest, keys[i]);
        const json_t *then = json_object_get(old, keys[i]);
        if (!json_equal(now, then))
            return differ(path, keys[i], then, now, err);
    }
    const char *key;
    json_t *now;
    json_object_foreach((json_t *)(uintptr_t)settings, key, now)
    {
        const json_t *then = json_object_get(old_settings, key);
        if (!json_equal(now, then))
            return differ(path, key, then, now, err);
    }
    return VPTQ_OK;
}

static vptq_status matrix_path(const quantizer *q, uint32_t layer, vptq_linear l,
                               char path[PATH_MAX], vptq_err *err)
{
    char name[VPTQ_LAYER_FILE_NAME_MAX];
    vptq_layer_file_name(name, layer, vptq_linear_name(l));
    return vptq_path_join(path, PATH_MAX, q->opt->work, name, err);
}

/* All of them: the other run's model may have more layers than this one's. */
static vptq_status remove_matrices(const quantizer *q, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    char path[PATH_MAX], **names = NULL;
    size_t count = 0;

    vptq_arena_init(&arena, q->dev->ctx->mem);
    VPTQ_TRY(vptq_dir_list(q->opt->work, &arena, &names, &count, err));
    for (size_t i = 0; i < count; i++) {
        if (!vptq_layer_file_is(names[i]))
            continue;
        VPTQ_TRY(vptq_path_join(path, sizeof path, q->opt->work, names[i], err));
        if (unlink(path)) {
            st = vptq_fail_errno(err, VPTQ_E_IO, errno, "cannot remove '%s'", path);
            goto out;
        }
    }
out:
    vptq_arena_release(&arena);
    return st;
}

static vptq_status open_work(const quantizer *q, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    char path[PATH_MAX];
    json_t *old = NULL;

    VPTQ_TRY(vptq_path_join(path, sizeof path, q->opt->work, VPTQ_WORK_FILE, err));
    if (vptq_path_exists(path)) {
        vptq_err why = {0};
        st = vptq_json_load(path, JSON_LIMIT, &old, &why);
        if (!st)
            st = compare_manifest(q, path, old, &why);
        if (st && !q->opt->force) {
            if (err)
                *err = why;
            goto out;
        }
        if (st)
            VPTQ_TRY(remove_matrices(q, err));
    }
    VPTQ_TRY(vptq_json_save(path, q->manifest, err));
out:
    json_decref(old);
    return st;
}

/* ---- one matrix ---- */

static vptq_quantize_row make_row(const quantizer *q, uint32_t layer, vptq_linear l)
{
    vptq_quantize_row row = {.layer = layer, .name = vptq_linear_name(l)};
    vptq_linear_shape(q->model.desc, l, &row.rows, &row.columns);
    row.shape = vptq_quant_shape(&q->opt->settings, row.rows, row.columns);
    row.bits = vptq_vq_count_bits(&row.shape);
    return row;
}

/* The row as report.jsonl has it: everything that is the same on every run. */
static char *row_json(const vptq_quantize_row *r)
{
    const vptq_quant_report *p = &r->report;
    json_t *doc = json_pack("{s:i, s:s, s:i, s:i, s:f, s:f, s:f, s:i, s:i, s:i, s:i, s:i}",
                            "layer", (int)r->layer, "name", r->name, "rows", (int)r->rows,
                            "columns", (int)r->columns, "proxy_loss", p->loss, "relative_mse",
                            p->relative_mse, "bits_per_weight", r->bits.per_weight, "v",
                            (int)r->shape.v, "k", (int)r->shape.k, "k_res", (int)r->shape.k_res,
                            "groups", (int)r->shape.groups, "outliers", (int)r->shape.outliers);
    json_t *more =
        json_pack("{s:f, s:f, s:i, s:i, s:f, s:i, s:I, s:I, s:I}", "loss_kmeans",
                  p->step[0].loss, "loss_pass", p->step[1].loss, "kmeans_iterations",
                  p->kmeans_iterations, "kmeans_repaired", (int)p->kmeans_repaired,
                  "damping_added", p->damping_added, "dead_columns", (int)p->dead_columns,
                  "index_bits", (json_int_t)r->bits.indices, "codebook_bits",
                  (json_int_t)r->bits.codebooks, "total_bits", (json_int_t)r->bits.total);
    char *text = NULL;
    if (doc && more && !json_object_update(doc, more))
        text = json_dumps(doc, JSON_COMPACT);
    json_decref(doc);
    json_decref(more);
    return text;
}

static vptq_status parse_row(const char *path, const char *text, vptq_quantize_row *r,
                             vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    json_t *doc = NULL;
    uint64_t n;
    vptq_quant_report *p = &r->report;

    VPTQ_TRY(vptq_json_parse(text, strlen(text), path, &doc, err));
    VPTQ_TRY(vptq_json_f64_or(doc, path, "proxy_loss", 0, &p->loss, err));
    VPTQ_TRY(vptq_json_f64_or(doc, path, "relative_mse", 0, &p->relative_mse, err));
    VPTQ_TRY(vptq_json_f64_or(doc, path, "loss_kmeans", 0, &p->step[0].loss, err));
    VPTQ_TRY(vptq_json_f64_or(doc, path, "loss_pass", 0, &p->step[1].loss, err));
    VPTQ_TRY(vptq_json_f64_or(doc, path, "damping_added", 0, &p->damping_added, err));
    VPTQ_TRY(vptq_json_u64(doc, path, "kmeans_iterations", INT_MAX, &n, err));
    p->kmeans_iterations = (int)n;
    VPTQ_TRY(vptq_json_u64(doc, path, "kmeans_repaired", UINT32_MAX, &n, err));
    p->kmeans_repaired = (uint32_t)n;
    VPTQ_TRY(vptq_json_u64(doc, path, "dead_columns", UINT32_MAX, &n, err));
    p->dead_columns = (uint32_t)n;
out:
    json_decref(doc);
    return st;
}

/* *done = a good file of this run is there; a damaged or foreign one is reported and made
 * again. */
static vptq_status reuse(quantizer *q, const char *path, vptq_quantize_row *row, bool *done,
                         vptq_err *err)
{
    vptq_layer_file file;
    vptq_err why = {0};

    *done = false;
    if (!vptq_path_exists(path))
        return VPTQ_OK;
    vptq_status st = vptq_layer_file_read(path, q->dev->ctx->mem, &file, &why);
    if (st == VPTQ_E_NOMEM)
        return vptq_fail(err, st, "%s", why.text);
    if (st) {
        vptq_log(q->dev->ctx, VPTQ_LOG_WARN, "%s; the matrix is quantized again", why.text);
        return VPTQ_OK;
    }
    if (strcmp(file.fingerprint, q->fingerprint))
        vptq_log(q->dev->ctx, VPTQ_LOG_WARN,
                 "%s is of a run with other settings; the matrix is quantized again", path);
    else if (!parse_row(path, file.report, row, &why))
        *done = row->reused = true;
    else
        vptq_log(q->dev->ctx, VPTQ_LOG_WARN, "%s; the matrix is quantized again", why.text);
    vptq_layer_file_release(&file);
    return VPTQ_OK;
}

static void on_stage(void *arg, const char *stage, double loss)
{
    (void)loss;
    const quantizer *q = arg;
    char detail[96];
    uint64_t total = (uint64_t)(q->last - q->first + 1) * VPTQ_LINEAR_COUNT;
    snprintf(detail, sizeof detail, "layer %u %s: %s", q->layer, vptq_linear_name(q->linear),
             stage);
    vptq_progress(q->dev->ctx, "quantize", q->result->matrices, total, detail);
}

static vptq_status compute(quantizer *q, const char *path, const float *lower,
                           vptq_quantize_row *row, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    vptq_quant_result r;
    char name[VPTQ_NAME_MAX];
    char *report = NULL;
    size_t count = (size_t)row->rows * row->columns;
    vptq_quant_input input = {.matrix_id = row->layer * VPTQ_LINEAR_COUNT + (uint32_t)q->linear,
                              .out = row->rows,
                              .in = row->columns,
                              .lower = lower};

    vptq_arena_init(&arena, q->dev->ctx->mem);
    float *w = vptq_arena_alloc(&arena, count, sizeof *w, err);
    if (!w) {
        st = VPTQ_E_NOMEM;
        goto out;
    }
    VPTQ_TRY(vptq_weight_read(&q->model.blocks[row->layer].linear[q->linear], q->dev, 0,
                              row->rows, w, err));
    input.w = w;
    VPTQ_TRY(
        vptq_quant_matrix(q->dev, &q->opt->settings, &input, on_stage, q, &arena, &r, err));
    row->report = r.report;
    report = row_json(row);
    if (!report) {
        st = vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
        goto out;
    }
    vptq_linear_full_name(name, row->layer, q->linear);
    vptq_packed_matrix m = {.name = name, .vq = r.vq, .storage = q->opt->settings.storage};
    VPTQ_TRY(vptq_layer_file_write(path, &m, r.centroids_f32, NULL, q->fingerprint, report,
                                   q->dev->ctx->mem, err));
    if (r.report.damping_added > 0)
        vptq_log(q->dev->ctx, VPTQ_LOG_WARN,
                 "%s: the hessian needed %g of its mean diagonal added before it factored",
                 name, r.report.damping_added);
out:
    free(report);
    vptq_arena_release(&arena);
    return st;
}

static vptq_status account(quantizer *q, const vptq_quantize_row *row, vptq_err *err)
{
    char *text = row_json(row);
    if (!text)
        return vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
    vptq_status st = vptq_buf_printf(&q->report, err, "%s\n", text);
    free(text);
    if (st)
        return st;
    q->bits += row->bits.total;
    q->weights += (uint64_t)row->rows * row->columns;
    q->loss_sum += row->report.loss;
    q->result->matrices++;
    q->result->reused += row->reused;
    return q->fn ? q->fn(q->arg, row, err) : VPTQ_OK;
}

/* The linears of one input share a Hessian, which is loaded when the first of them needs it. */
static vptq_status quantize_input(quantizer *q, uint32_t layer, vptq_input input, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_hessian_file h = {0};
    bool loaded = false;
    char path[PATH_MAX];

    for (int l = 0; l < VPTQ_LINEAR_COUNT; l++) {
        if (vptq_linear_input((vptq_linear)l) != input)
            continue;
        vptq_quantize_row row = make_row(q, layer, (vptq_linear)l);
        bool done;
        q->layer = layer;
        q->linear = (vptq_linear)l;
        VPTQ_TRY(vptq_check_cancel(q->dev->ctx, err));
        VPTQ_TRY(matrix_path(q, layer, (vptq_linear)l, path, err));
        VPTQ_TRY(reuse(q, path, &row, &done, err));
        if (!done && !loaded) {
            VPTQ_TRY(vptq_hessian_dir_load(q->opt->hessians, layer, input, row.columns,
                                           q->dev->ctx->mem, &h, err));
            loaded = true;
        }
        if (!done)
            st = compute(q, path, h.lower, &row, err);
        if (st) {
            vptq_err_context(err, "layer %u %s", layer, row.name);
            goto out;
        }
        VPTQ_TRY(account(q, &row, err));
    }
out:
    if (loaded)
        vptq_hessian_file_release(&h);
    return st;
}

/* The row of a matrix file, where it is one of this run; the run over its layer will make a
 * damaged one again. */
static vptq_status report_file(quantizer *q, const char *path, vptq_err *err)
{
    vptq_layer_file file;
    vptq_err why = {0};
    vptq_status st = vptq_layer_file_read(path, q->dev->ctx->mem, &file, &why);

    if (st == VPTQ_E_NOMEM)
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

/* The rows of every finished matrix in the directory, also of layers that another run has done.
 */
static vptq_status report_everything(quantizer *q, vptq_err *err)
{
    char path[PATH_MAX];

    vptq_buf_clear(&q->report);
    for (uint32_t layer = 0; layer < q->model.desc->layers; layer++)
        for (int l = 0; l < VPTQ_LINEAR_COUNT; l++) {
            vptq_status st = matrix_path(q, layer, (vptq_linear)l, path, err);
            if (!st && vptq_path_exists(path))
                st = report_file(q, path, err);
            if (st)
                return st;
        }
    return VPTQ_OK;
}

static vptq_status quantize_layers(quantizer *q, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    char path[PATH_MAX];

    VPTQ_TRY(vptq_path_join(path, sizeof path, q->opt->work, "report.jsonl", err));
    for (uint32_t layer = q->first; layer <= q->last; layer++) {
        for (int i = 0; i < VPTQ_INPUT_COUNT; i++)
            VPTQ_TRY(quantize_input(q, layer, (vptq_input)i, err));
        VPTQ_TRY(vptq_file_replace(path, q->report.data, q->report.len, err));
    }
    if (q->first > 0 || q->last + 1 < q->model.desc->layers) {
        VPTQ_TRY(report_everything(q, err));
        VPTQ_TRY(vptq_file_replace(path, q->report.data, q->report.len, err));
    }
    vptq_progress(q->dev->ctx, "quantize", q->result->matrices, q->result->matrices, NULL);
out:
    return st;
}

/* ---- the whole ---- */

static vptq_status plan(quantizer *q, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_quantize_options *o = q->opt;
    vptq_checkpoint_options copt = {.tokenizer = o->tokenizer};

    VPTQ_TRY(vptq_model_open(q->dev->ctx, o->model, &copt, false, &q->model, err));
    if (q->model.ckpt.quantized_count) {
        st = vptq_fail(err, VPTQ_E_UNSUPPORTED, "'%s' is quantized already (%zu matrices)",
                       o->model, q->model.ckpt.quantized_count);
        goto out;
    }
    const vptq_model_desc *d = q->model.desc;
    q->first = o->first_layer;
    q->last = o->last_layer == UINT32_MAX ? d->layers - 1 : o->last_layer;
    if (q->first > q->last || q->last >= d->layers) {
        st = vptq_fail(err, VPTQ_E_ARG, "layers %u-%u of a model of %u layers (0-%u)", q->first,
                       q->last, d->layers, d->layers - 1);
        goto out;
    }
    for (int l = 0; l < VPTQ_LINEAR_COUNT; l++) {
        uint32_t rows, columns;
        vptq_linear_shape(d, (vptq_linear)l, &rows, &columns);
        VPTQ_TRY(vptq_quant_check(&o->settings, rows, columns, err));
    }
out:
    return st;
}

static vptq_status check_hessians(quantizer *q, vptq_err *err)
{
    vptq_status st = VPTQ_OK;

    VPTQ_TRY(vptq_hessian_dir_open(q->opt->hessians, &q->hdir, err));
    VPTQ_TRY(
        vptq_checkpoint_fingerprint(&q->model.ckpt, q->dev->ctx, q->base_fingerprint, err));
    if (strcmp(q->hdir.model_fingerprint, q->base_fingerprint)) {
        st = vptq_fail(
            err, VPTQ_E_MISMATCH,
            "'%s' holds the hessians of another model: model_fingerprint is %s, that of "
            "'%s' is %s",
            q->opt->hessians, q->hdir.model_fingerprint, q->opt->model, q->base_fingerprint);
        goto out;
    }
    if (q->first < q->hdir.first_layer || q->last > q->hdir.last_layer)
        st = vptq_fail(err, VPTQ_E_MISMATCH, "'%s' holds layers %u-%u, expected layers %u-%u",
                       q->opt->hessians, q->hdir.first_layer, q->hdir.last_layer, q->first,
                       q->last);
out:
    return st;
}

/* Bytes of a packed weights file: quantized parts as counted, everything else in 16 bits. */
static uint64_t predict_bytes(const quantizer *q)
{
    uint64_t plain = 0;
    for (size_t i = 0; i < q->model.ckpt.set.count; i++) {
        const vptq_tensor *t = &q->model.ckpt.set.tensors[i];
        plain += (uint64_t)vptq_tensor_rows(t) * vptq_tensor_cols(t);
    }
    return (plain - q->weights) * sizeof(uint16_t) + q->bits / 8;
}

static vptq_status dry_run(quantizer *q, vptq_err *err)
{
    for (uint32_t layer = q->first; layer <= q->last; layer++)
        for (int l = 0; l < VPTQ_LINEAR_COUNT; l++) {
            vptq_quantize_row row = make_row(q, layer, (vptq_linear)l);
            vptq_status st = account(q, &row, err);
            if (st)
                return st;
        }
    return VPTQ_OK;
}

static void warn_small_books(const quantizer *q)
{
    for (int l = 0; l < VPTQ_LINEAR_COUNT; l++) {
        vptq_quantize_row r = make_row(q, q->first, (vptq_linear)l);
        uint64_t vectors = (uint64_t)vptq_vq_strips(&r.shape) * r.columns;
        if (vectors < r.shape.k)
            vptq_log(q->dev->ctx, VPTQ_LOG_WARN,
                     "%s has %" PRIu64 " vectors for %u centroids: %.2f bits per weight in all",
                     r.name, vectors, r.shape.k, r.bits.per_weight);
    }
}

vptq_status vptq_quantize_model(vptq_device *dev, const vptq_quantize_options *opt,
                                vptq_quantize_fn fn, void *arg, vptq_quantize_result *result,
                                vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_lock lock = {.fd = -1};
    quantizer q = {.dev = dev, .opt = opt, .result = result, .fn = fn, .arg = arg};
    double start = vptq_seconds();

    *result = (vptq_quantize_result){0};
    vptq_buf_init(&q.report, dev->ctx->mem);
    VPTQ_TRY(plan(&q, err));
    warn_small_books(&q);
    if (opt->hessians)
        VPTQ_TRY(check_hessians(&q, err));
    if (opt->dry_run) {
        VPTQ_TRY(dry_run(&q, err));
    } else {
        VPTQ_TRY(make_manifest(&q, err));
        /* with a manifest in it, a model's directory would not be one any more */
        VPTQ_TRY(vptq_dir_check_own(opt->work, VPTQ_WORK_FILE, "work directory", dev->ctx->mem,
                                    err));
        VPTQ_TRY(vptq_dir_make(opt->work, err));
        VPTQ_TRY(vptq_lock_take(opt->work, &lock, err));
        VPTQ_TRY(open_work(&q, err));
        VPTQ_TRY(quantize_layers(&q, err));
        result->mean_loss = q.loss_sum / result->matrices;
    }
    result->bits_per_weight = (double)q.bits / (double)q.weights;
    result->packed_bytes = predict_bytes(&q);
out:
    result->seconds = vptq_seconds() - start;
    vptq_lock_release(&lock);
    json_decref(q.manifest);
    vptq_buf_release(&q.report);
    vptq_model_release(&q.model);
    return st;
}
