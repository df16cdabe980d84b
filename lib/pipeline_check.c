/* Checking a model: what opening does not look at. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "lib/model/model.h"
#include "lib/pipeline_out.h"

enum { TILE_ROWS = 256, F16_MAX = 65504 };

typedef struct checking {
    vptq_device *dev;
    const vptq_model *m;
    vptq_finding_fn fn;
    void *arg;
    uint32_t errors, warnings;
} checking;

static void found(checking *k, bool is_error, const char *fmt, ...) VPTQ_PRINTF(3, 4);

static void found(checking *k, bool is_error, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (is_error)
        k->errors++;
    else
        k->warnings++;
    k->fn(k->arg, is_error, text);
}

/* A failure that says something about the file is a finding; one of the run is passed on. */
static vptq_status judge(checking *k, vptq_status st, const vptq_err *err)
{
    switch (st) {
    case VPTQ_OK:
    case VPTQ_E_IO:
    case VPTQ_E_NOMEM:
    case VPTQ_E_DEVICE:
    case VPTQ_E_CANCELLED:
        return st;
    default:
        found(k, true, "%s", err->text);
        return VPTQ_OK;
    }
}

/* ---- numbers ---- */

static vptq_status check_plain(checking *k, vptq_err *err)
{
    const vptq_checkpoint *c = &k->m->ckpt;
    for (size_t i = 0; i < c->set.count; i++) {
        const vptq_tensor *t = &c->set.tensors[i];
        vptq_status st = vptq_check_cancel(k->dev->ctx, err);
        if (!st && !vptq_out_is_quantized(c, t->name) && vptq_dtype_get(t->type)->is_float)
            st = judge(k, vptq_tensor_check_finite(t, err), err);
        if (st)
            return st;
    }
    return VPTQ_OK;
}

/* Largest magnitude of a tile; a NaN or infinity is reported and ends the search. */
static bool scan_tile(checking *k, const vptq_packed_matrix *m, const float *w, size_t r,
                      size_t n, float *largest)
{
    size_t cols = m->vq.shape.in;
    for (size_t i = 0; i < n * cols; i++) {
        if (!isfinite(w[i])) {
            found(k, true, "%s: matrix '%s': row %zu, column %zu dequantizes to %g",
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
    float *host = vptq_mem_alloc(dev->ctx->mem, TILE_ROWS, cols * sizeof(float), err);
    if (!host)
        return VPTQ_E_NOMEM;
    VPTQ_TRY(dev->ops->alloc(dev->state, TILE_ROWS * cols, sizeof(float), &w, err));
    float largest = 0;
    bool good = true;
    for (size_t r = 0; r < rows && good; r += TILE_ROWS) {
        size_t n = rows - r < TILE_ROWS ? rows - r : TILE_ROWS;
        VPTQ_TRY(vptq_check_cancel(dev->ctx, err));
        VPTQ_TRY(dev->ops->vq_dequant(dev->state, &m->vq, r, n, w, cols, err));
        VPTQ_TRY(dev->ops->download(dev->state, host, w, n * cols * sizeof(float), err));
        good = scan_tile(k, m, host, r, n, &largest);
    }
    if (good && largest > F16_MAX)
        found(k, false,
              "%s: matrix '%s' has a weight of magnitude %g, which float16 cannot hold; "
              "upstream's loader converts to it by default",
              k->m->ckpt.path, m->name, (double)largest);
out:
    dev->ops->release(dev->state, w);
    vptq_mem_free(dev->ctx->mem, host);
    return st;
}

static vptq_status check_matrices(checking *k, vptq_err *err)
{
    const vptq_checkpoint *c = &k->m->ckpt;
    for (size_t i = 0; i < c->quantized_count; i++) {
        vptq_progress(k->dev->ctx, "check", i, c->quantized_count, c->quantized[i].name);
        vptq_status st = check_matrix(k, &c->quantized[i], err);
        if (st)
            return st;
    }
    vptq_progress(k->dev->ctx, "check", c->quantized_count, c->quantized_count, NULL);
    return VPTQ_OK;
}

/* ---- what other readers of the layout stumble over ---- */

/* The same trouble of many layers is one finding. */
typedef enum {
    EXTRA_KEY,
    FLOAT_KEY,
    NOT_PACKED,
    NO_NORM,
    LOST_PERM,
    BIAS_KEY,
    MANY_RESIDUALS,
    TROUBLE_COUNT
} trouble;

static const char *const trouble_text[TROUBLE_COUNT] = {
    "has key 'norm_dim' or 'enable_proxy_error', at which the vptq package stops",
    "has no 'indices_as_float', at which the vptq package stops",
    "stores its indices unpacked, which transformers refuses",
    "has no scale and bias, which the vptq package's GPU kernels read anyway",
    "says enable_perm, but has no 'perm' tensor",
    "has a 'bias' key that does not agree with its tensors",
    "has more residual than main centroids, of whose indices other readers lose bits"};

typedef struct troubles {
    uint32_t count[TROUBLE_COUNT];
    const char *first[TROUBLE_COUNT];
} troubles;

static void note(troubles *t, trouble what, bool is, const char *module)
{
    if (is && t->count[what]++ == 0)
        t->first[what] = module;
}

static void check_entry(const checking *k, const vptq_packed_matrix *m, troubles *t)
{
    const vptq_checkpoint *c = &k->m->ckpt;
    const json_t *entry = vptq_packed_entry(c->config, m->name);
    vptq_packed_layout layout;
    char bias[VPTQ_NAME_MAX + 8];
    if (vptq_packed_parse_entry(entry, m->name, c->path, &layout, NULL))
        return; /* opening has read it */
    snprintf(bias, sizeof bias, "%.*s.bias", VPTQ_NAME_MAX, m->name);
    const json_t *as_float = json_object_get(entry, "indices_as_float");
    bool extra =
        json_object_get(entry, "norm_dim") || json_object_get(entry, "enable_proxy_error");
    note(t, EXTRA_KEY, extra, m->name);
    note(t, FLOAT_KEY, !json_is_boolean(as_float), m->name);
    note(t, NOT_PACKED, !layout.bit_packed, m->name);
    note(t, NO_NORM, !m->vq.shape.has_norm, m->name);
    note(t, LOST_PERM, layout.shape.has_perm && !m->vq.shape.has_perm, m->name);
    note(t, BIAS_KEY, layout.has_bias != (vptq_tensor_find(&c->set, bias) != NULL), m->name);
    note(t, MANY_RESIDUALS, m->vq.shape.k_res > m->vq.shape.k, m->name);
}

static void check_portability(checking *k)
{
    const vptq_checkpoint *c = &k->m->ckpt;
    troubles t = {{0}, {NULL}};
    if (c->kind != VPTQ_CKPT_PACKED && c->kind != VPTQ_CKPT_ARCHIVE)
        return;
    for (size_t i = 0; i < c->quantized_count; i++)
        check_entry(k, &c->quantized[i], &t);
    for (size_t i = 0; i < TROUBLE_COUNT; i++)
        if (t.count[i] == 1)
            found(k, false, "%s: matrix '%s' %s", c->path, t.first[i], trouble_text[i]);
        else if (t.count[i])
            found(k, false, "%s: matrix '%s' (and %u more) %s", c->path, t.first[i],
                  (unsigned)t.count[i] - 1, trouble_text[i]);
}

static vptq_status check_surroundings(checking *k, vptq_err *err)
{
    const vptq_checkpoint *c = &k->m->ckpt;
    uint32_t all = c->desc.layers * VPTQ_LINEAR_COUNT;
    if (c->kind == VPTQ_CKPT_WORK && c->quantized_count < all)
        found(k, false, "%s: %zu of %u matrices are quantized", c->path, c->quantized_count,
              (unsigned)all);
    if (!c->tokenizer) {
        found(k, false, "%s: there is no tokenizer", c->path);
        return VPTQ_OK;
    }
    vptq_vocab vocab;
    vptq_status st = vptq_checkpoint_vocab(c, k->dev->ctx, &vocab, err);
    if (!st)
        vptq_vocab_release(&vocab);
    return judge(k, st, err);
}

vptq_status vptq_check_model(vptq_device *dev, const char *path,
                             const vptq_checkpoint_options *open, vptq_finding_fn fn, void *arg,
                             uint32_t *errors, uint32_t *warnings, vptq_err *err)
{
    checking k = {.dev = dev, .fn = fn, .arg = arg};
    vptq_model m;
    vptq_status st = vptq_model_open(dev->ctx, path, open, false, &m, err);
    if (st) {
        st = judge(&k, st, err);
        *errors = k.errors;
        *warnings = k.warnings;
        return st;
    }
    k.m = &m;
    VPTQ_TRY(check_plain(&k, err));
    VPTQ_TRY(check_matrices(&k, err));
    check_portability(&k);
    VPTQ_TRY(check_surroundings(&k, err));
    *errors = k.errors;
    *warnings = k.warnings;
out:
    vptq_model_release(&m);
    return st;
}
