/* Checks a model and reports everything that is wrong with it, not only the first error. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/vptq/layer_file.h"
#include "formats/vptq/quirks.h"
#include "lib/base/text.h"
#include "lib/model/model.h"
#include "lib/pack/package.h"

enum { TILE_ROWS = 256, F16_MAX = 65504 };

typedef struct checking {
    vptq_device *dev;
    vptq_model model;
    const vptq_model *m; /* the model, once it is open */
    vptq_finding_fn fn;
    void *arg;
    vptq_check_result *result;
    vptq_quirks quirks; /* of the matrices of a packed model */
} checking;

static void report(checking *k, bool is_error, const char *fmt, ...) VPTQ_PRINTF(3, 4);

static void report(checking *k, bool is_error, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (is_error)
        k->result->errors++;
    else
        k->result->warnings++;
    k->fn(k->arg, is_error, text);
}

/* As `report`: a difference from SHA256SUMS. */
static void report_sum(void *arg, bool is_error, const char *text)
{
    report(arg, is_error, "%s", text);
}

/* Reports a fault that opening the model found and continued after. */
static void report_fault(void *arg, const char *text)
{
    report(arg, true, "%s", text);
}

/* Turns a fault of the file into a finding and returns all other failures.  Opening an archive
 * has reported its damage already. */
static vptq_status judge(checking *k, vptq_status st, const vptq_err *err)
{
    if (!vptq_checkpoint_is_fault(st))
        return st;
    if (st == VPTQ_E_CHECKSUM && k->m && k->m->ckpt.kind == VPTQ_CKPT_ARCHIVE)
        return VPTQ_OK;
    report(k, true, "%s", err->text);
    return VPTQ_OK;
}

/* ---- numbers ---- */

/* Whether a tensor is a stored part of a matrix, or replaced by one. */
static bool is_of_matrix(const vptq_checkpoint *c, const char *name)
{
    return (vptq_package_is_packed(c) && vptq_packed_module_length(name)) ||
           vptq_package_matrix_of(c, name);
}

static vptq_status check_plain(checking *k, vptq_err *err)
{
    const vptq_checkpoint *c = &k->m->ckpt;
    for (size_t i = 0; i < c->set.count; i++) {
        const vptq_tensor *t = &c->set.tensors[i];
        bool numbers = vptq_dtype_get(t->type)->is_float;
        VPTQ_CHECK(vptq_check_cancel(k->dev->ctx, err));
        if (numbers && !t->uniform && !is_of_matrix(c, t->name))
            VPTQ_CHECK(judge(k, vptq_package_copy(k->dev->ctx, c, t, NULL, err), err));
    }
    return VPTQ_OK;
}

/* Raises *largest to the largest magnitude of a tile.  Reports the first NaN or infinity and
 * returns false. */
static bool scan_tile(checking *k, const vptq_packed_matrix *m, const float *w, size_t r,
                      size_t n, float *largest)
{
    size_t cols = m->vq.shape.in;
    for (size_t i = 0; i < n * cols; i++) {
        if (!isfinite(w[i])) {
            report(k, true, "%s: matrix '%s': row %zu, column %zu dequantizes to %g",
                   k->m->ckpt.path, m->name, r + i / cols, i % cols, (double)w[i]);
            return false;
        }
        if (fabsf(w[i]) > *largest)
            *largest = fabsf(w[i]);
    }
    return true;
}

static vptq_status check_matrix(checking *k, const vptq_packed_matrix *m, vptq_err *err)
{
    vptq_device *dev = k->dev;
    vptq_status st = VPTQ_OK;
    size_t rows = m->vq.shape.out, cols = m->vq.shape.in;
    void *w = NULL;
    vptq_matrix *matrix = NULL;
    float *host = vptq_mem_alloc(dev->ctx->mem, TILE_ROWS, cols * sizeof(float), err);
    if (!host)
        return VPTQ_E_NOMEM;
    VPTQ_TRY(dev->ops->matrix_open(dev->state, &m->vq, &matrix, err));
    VPTQ_TRY(dev->ops->alloc(dev->state, TILE_ROWS * cols, sizeof(float), &w, err));
    float largest = 0;
    bool good = true;
    for (size_t r = 0; r < rows && good; r += TILE_ROWS) {
        size_t n = rows - r < TILE_ROWS ? rows - r : TILE_ROWS;
        VPTQ_TRY(vptq_check_cancel(dev->ctx, err));
        VPTQ_TRY(dev->ops->vq_dequant(dev->state, matrix, r, n, w, cols, err));
        VPTQ_TRY(dev->ops->download(dev->state, host, w, n * cols * sizeof(float), err));
        good = scan_tile(k, m, host, r, n, &largest);
    }
    if (good && largest > F16_MAX)
        report(k, false,
               "%s: matrix '%s' has a weight of magnitude %g, too large for float16, to which "
               "upstream's loader converts by default",
               k->m->ckpt.path, m->name, (double)largest);
out:
    dev->ops->release(dev->state, w);
    dev->ops->matrix_close(dev->state, matrix);
    vptq_mem_free(dev->ctx->mem, host);
    return st;
}

/* Checks a matrix of a packed model, which was opened for its shape only. */
static vptq_status check_packed(checking *k, const vptq_packed_matrix *m, vptq_err *err)
{
    const vptq_checkpoint *c = &k->m->ckpt;
    vptq_packed_matrix read;
    vptq_arena arena;
    vptq_arena_init(&arena, k->dev->ctx->mem);
    vptq_status st = vptq_packed_read(
        &(vptq_packed_source){&c->set, vptq_packed_entry(c->config, m->name), m->name, c->path},
        &arena, &read, err);
    if (!st) {
        read.name = m->name; /* which k->quirks keeps */
        vptq_quirks_add(&k->quirks, c->config, &c->set, &read);
        st = check_matrix(k, &read, err);
    }
    vptq_arena_release(&arena);
    return st;
}

static vptq_status check_matrices(checking *k, vptq_err *err)
{
    const vptq_checkpoint *c = &k->m->ckpt;
    const size_t all = vptq_checkpoint_matrix_count(c) + c->faulty_count;
    const size_t others = all - c->quantized_count; /* opening and check_plain checked them */
    for (size_t i = 0; i < c->quantized_count; i++) {
        vptq_progress(k->dev->ctx, "check", vptq_plural(all, "matrix", "matrices"), others + i,
                      all, c->quantized[i].name);
        vptq_status st = vptq_package_is_packed(c) ? check_packed(k, &c->quantized[i], err)
                                                   : check_matrix(k, &c->quantized[i], err);
        vptq_checkpoint_forget(c);
        if (st)
            return st;
    }
    vptq_progress(k->dev->ctx, "check", vptq_plural(all, "matrix", "matrices"), all, all, NULL);
    return VPTQ_OK;
}

/* ---- extra tensors ---- */

/* Reports tensors that the architecture does not have.  They are only warnings in models with
 * other towers next to the language model. */
static void check_extra(checking *k)
{
    const vptq_checkpoint *c = &k->m->ckpt;
    bool packed = vptq_package_is_packed(c);
    bool is_error = packed && !json_object_get(c->config, "text_config");
    for (size_t i = 0; i < c->set.count; i++) {
        const vptq_tensor *t = &c->set.tensors[i];
        if (!is_of_matrix(c, t->name) && !vptq_model_knows(c, t->name))
            report(k, is_error, "%s: a model of this architecture has no tensor '%s'", t->file,
                   t->name);
    }
    for (size_t i = 0; i < c->ignored_count; i++)
        report(k, is_error, "%s: config.json does not declare bias '%s', which is ignored",
               c->path, c->ignored[i]);
    const char *name;
    vptq_linear l;
    json_t *entry,
        *entries = json_object_get(vptq_packed_config(c->config), "config_for_layers");
    if (packed)
        json_object_foreach(entries, name,
                            entry) if (!vptq_linear_of_module(&c->desc, name, strlen(name), &l))
            report(k, false,
                   "%s: config_for_layers lists '%s', which is not a linear layer of a block",
                   c->path, name);
}

/* ---- defects ---- */

/* Reports a defect of several matrices as one finding. */
static void check_portability(checking *k)
{
    const vptq_checkpoint *c = &k->m->ckpt;
    const vptq_quirks *t = &k->quirks;
    for (size_t i = 0; i < VPTQ_QUIRK_COUNT; i++) {
        const char *text = vptq_quirk_warning((vptq_quirk)i);
        if (text && t->count[i] == 1)
            report(k, false, "%s: matrix '%s' %s", c->path, t->first[i], text);
        else if (text && t->count[i])
            report(k, false, "%s: matrix '%s' (and %u more) %s", c->path, t->first[i],
                   (unsigned)t->count[i] - 1, text);
    }
}

/* ---- work directories ---- */

/* Checks the bits per weight in a matrix file's report against what is stored. */
static void check_report(checking *k, const char *path, const vptq_layer_file *f)
{
    json_t *row = NULL;
    vptq_err err = {0};
    double reported = 0, bits = vptq_vq_count_bits(&f->matrix.vq.shape).per_weight;
    vptq_status st = vptq_json_parse(f->report, strlen(f->report), path, &row, &err);
    if (!st)
        st = vptq_json_f64_or(row, path, "bits_per_weight", NAN, &reported, &err);
    if (st)
        report(k, true, "%s", err.text);
    else if (!(fabs(reported - bits) <= 1e-6 * bits))
        report(k, true, "%s: its report has %g bits per weight, the file has %g", path,
               reported, bits);
    json_decref(row);
}

/* Checks the name and the report of each matrix file. */
static void check_layer_files(checking *k)
{
    const vptq_checkpoint *c = &k->m->ckpt;
    for (size_t i = 0; c->kind == VPTQ_CKPT_WORK && i < c->quantized_count; i++) {
        const char *name = c->quantized[i].name;
        const char *number = strpbrk(name, "0123456789");
        vptq_linear l;
        const vptq_layer_file *f = vptq_checkpoint_layer(c, i);
        const char *path = f->set.tensors[0].file;
        char expected[VPTQ_LAYER_FILE_NAME_MAX];
        if (!number || !vptq_linear_of_module(&c->desc, name, strlen(name), &l))
            continue;
        vptq_layer_file_name(expected, (uint32_t)strtoul(number, NULL, 10),
                             vptq_linear_name(&c->desc, l).text);
        if (strcmp(vptq_path_base(path), expected) != 0)
            report(k, true, "%s: this file holds matrix '%s' and must be named '%s'", path,
                   name, expected);
        check_report(k, path, f);
    }
}

/* Checks that a work directory is complete and that the tokenizer can be read. */
static vptq_status check_surroundings(checking *k, vptq_err *err)
{
    const vptq_checkpoint *c = &k->m->ckpt;
    const size_t all = vptq_checkpoint_all_matrices(c),
                 finished = vptq_checkpoint_matrix_count(c);
    if (c->kind == VPTQ_CKPT_WORK && finished < all)
        report(k, false, "%s: %zu of %zu matrices are quantized; the others are the original's",
               c->path, finished, all);
    if (!c->tokenizer) {
        report(k, false, "%s: the model has no tokenizer", c->path);
        return VPTQ_OK;
    }
    vptq_vocab vocab;
    vptq_status st = vptq_checkpoint_vocab(c, k->dev->ctx, &vocab, err);
    if (!st)
        vptq_vocab_release(&vocab);
    return judge(k, st, err);
}

static vptq_status check_opened(checking *k, vptq_err *err)
{
    VPTQ_CHECK(check_plain(k, err));
    VPTQ_CHECK(check_matrices(k, err));
    check_extra(k);
    check_layer_files(k);
    check_portability(k);
    return check_surroundings(k, err);
}

/* Opens the model and checks what is in it; faults of the file are findings. */
static vptq_status check_content(checking *k, const char *path,
                                 const vptq_checkpoint_options *open, vptq_err *err)
{
    vptq_checkpoint_options tolerant = open ? *open : (vptq_checkpoint_options){0};
    tolerant.shapes_only = true;
    tolerant.fault = report_fault;
    tolerant.fault_arg = k;
    vptq_status st = vptq_model_open(k->dev->ctx, path, &tolerant, false, &k->model, err);
    if (st)
        return judge(k, st, err);
    k->m = &k->model;
    st = check_opened(k, err);
    vptq_model_release(&k->model);
    return st;
}

vptq_status vptq_check_model(vptq_device *dev, const char *path,
                             const vptq_checkpoint_options *open, vptq_finding_fn fn, void *arg,
                             vptq_check_result *result, vptq_err *err)
{
    checking k = {.dev = dev, .fn = fn, .arg = arg, .result = result};
    vptq_err own = {0};
    *result = (vptq_check_result){.model = path};
    vptq_status st = vptq_sums_check(dev->ctx, path, report_sum, &k, result, &own);
    st = judge(&k, st, &own);
    if (!st)
        st = check_content(&k, path, open, &own);
    return st ? vptq_fail(err, st, "%s", own.text) : VPTQ_OK;
}
