/* Error of quantized matrices against their originals, in the metric of the Hessians. */
#include <math.h>
#include <string.h>

#include "hessian/collect.h"
#include "hessian/import.h"
#include "lib/base/text.h"
#include "lib/encoder/encode.h"
#include "lib/eval/error.h"
#include "lib/report/estimate.h"

typedef struct compare {
    vptq_device *dev;
    const vptq_model *quantized, *base;
    const char *hdir; /* or NULL */
    float *w, *what;  /* [largest matrix] host memory */
    vptq_error_fn fn;
    void *arg;
} compare;

static vptq_status check_hessians(const compare *c, uint32_t first, uint32_t last,
                                  vptq_err *err)
{
    vptq_hessian_dir h;
    char fingerprint[17];
    if (!c->hdir)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_hessian_dir_open(c->hdir, &h, err));
    VPTQ_CHECK(vptq_checkpoint_fingerprint(&c->base->ckpt, c->dev->ctx, fingerprint, err));
    if (!vptq_hessian_is_of(h.model_fingerprint, fingerprint))
        return vptq_fail(err, VPTQ_E_MISMATCH,
                         "%s: the Hessians are of a model with fingerprint %s, %s has %s",
                         c->hdir, h.model_fingerprint, c->base->ckpt.path, fingerprint);
    if (h.diagonal)
        vptq_log(c->dev->ctx, VPTQ_LOG_WARN,
                 "'%s' has only the diagonals of Hessians: losses ignore correlations between "
                 "columns",
                 c->hdir);
    if (h.first_layer > first || h.last_layer < last)
        return vptq_fail(err, VPTQ_E_MISMATCH,
                         "%s has layers %u to %u, expected layers %u to %u", c->hdir,
                         h.first_layer, h.last_layer, first, last);
    return VPTQ_OK;
}

/* Rejects layers whose norms differ by more than rounding: matrices that read them are scaled,
 * and cannot be compared one by one. */
static vptq_status check_norms(const compare *c, uint32_t layer, vptq_err *err)
{
    const vptq_block *a = &c->quantized->blocks[layer], *b = &c->base->blocks[layer];
    const vptq_tensor *norms[2][2] = {
        {a->norm[VPTQ_BLOCK_NORM_INPUT], b->norm[VPTQ_BLOCK_NORM_INPUT]},
        {a->norm[VPTQ_BLOCK_NORM_FEED_FORWARD], b->norm[VPTQ_BLOCK_NORM_FEED_FORWARD]}};
    for (int i = 0; i < 2; i++) {
        VPTQ_CHECK(vptq_tensor_read(norms[i][0], 0, 1, c->what, err));
        VPTQ_CHECK(vptq_tensor_read(norms[i][1], 0, 1, c->w, err));
        for (uint32_t j = 0; j < c->base->desc->hidden; j++)
            if (fabsf(c->what[j] - c->w[j]) > 0.01F * fabsf(c->w[j]) + 1e-6F)
                return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                                 "%s: the norms of layer %u are not those of %s, so its "
                                 "matrices are scaled (awq, smooth); compare the models with "
                                 "vptq-eval kld",
                                 c->quantized->ckpt.path, layer, c->base->ckpt.path);
    }
    return VPTQ_OK;
}

/* Reads a whole matrix as floats. */
static vptq_status read_matrix(const compare *c, const vptq_weight *w, float *dst,
                               vptq_err *err)
{
    const vptq_status st = vptq_weight_read(w, c->dev, 0, w->rows, dst, err);
    vptq_weight_forget(w);
    return st;
}

/* Fills relative_mse and the worst row with squared errors in double.  Rows of zeros have no
 * relative error. */
static void plain_errors(const float *w, const float *what, vptq_error_row *row)
{
    double error = 0, norm = 0;
    row->worst_row = 0;
    row->worst_row_mse = 0;
    for (uint32_t r = 0; r < row->rows; r++) {
        const float *a = w + (size_t)r * row->columns, *b = what + (size_t)r * row->columns;
        double row_error = 0, row_norm = 0;
        for (uint32_t i = 0; i < row->columns; i++) {
            double e = (double)b[i] - (double)a[i];
            row_error += e * e;
            row_norm += (double)a[i] * (double)a[i];
        }
        error += row_error;
        norm += row_norm;
        if (row_norm > 0 && row_error > row->worst_row_mse * row_norm) {
            row->worst_row = r;
            row->worst_row_mse = row_error / row_norm;
        }
    }
    row->relative_mse = norm > 0 ? error / norm : 0;
}

static vptq_status compare_matrix(const compare *c, uint32_t layer, vptq_linear l,
                                  const vptq_hessian_file *h, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_weight *q = &c->quantized->blocks[layer].linear[l];
    const vptq_uniform *u = q->packed ? NULL : q->tensor->uniform;
    const vptq_additive *a = q->packed ? NULL : q->tensor->additive;
    vptq_error_row row = {.layer = layer,
                          .name = c->base->names[l].text,
                          .rows = (uint32_t)q->rows,
                          .columns = (uint32_t)q->cols,
                          .proxy_loss = (double)NAN,
                          .kind = vptq_linear_kind(l)};
    if (q->packed)
        row.shape = q->packed->vq.shape;
    VPTQ_TRY(vptq_check_cancel(c->dev->ctx, err));
    VPTQ_TRY(read_matrix(c, &c->base->blocks[layer].linear[l], c->w, err));
    VPTQ_TRY(read_matrix(c, q, c->what, err));
    row.bits_per_weight = q->packed ? vptq_vq_count_bits(&row.shape).per_weight
                          : u       ? vptq_uniform_count_bits(&u->shape).per_weight
                          : a       ? vptq_additive_count_bits(&a->shape).per_weight
                                    : 16;
    plain_errors(c->w, c->what, &row);
    if (h->lower) {
        vptq_encoder_loss loss;
        const vptq_encoder_input input = {
            .out = row.rows, .in = row.columns, .w = c->w, .lower = h->lower};
        VPTQ_TRY(vptq_encoder_measure(c->dev, &input, c->what, &loss, err));
        row.proxy_loss = loss.relative;
        /* the same figure as the quantizer's report to the last digit */
        row.relative_mse = loss.norm_sq > 0 ? loss.error_sq / loss.norm_sq : 0;
    }
    VPTQ_TRY(c->fn(c->arg, &row, err));
out:
    if (st)
        vptq_err_context(err, "layer %u, %s", layer, row.name);
    return st;
}

/* Whether the model has a quantized matrix there. */
static bool is_compared(const compare *c, uint32_t layer, int l)
{
    const vptq_weight *w = &c->quantized->blocks[layer].linear[l];
    return vptq_linear_exists(c->base->desc, layer, l) &&
           (w->packed || w->tensor->uniform || w->tensor->additive ||
            vptq_checkpoint_is_dense(&c->quantized->ckpt, w->tensor));
}

/* Compares the quantized matrices of a layer that read one input, with its Hessian. */
static vptq_status compare_input(const compare *c, uint32_t layer, vptq_input input,
                                 uint64_t *found, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_hessian_file h = {.lower = NULL};
    bool open = false;
    for (int l = 0; l < vptq_linear_count(c->base->desc); l++) {
        if (vptq_linear_input(l) != input || !is_compared(c, layer, l))
            continue;
        if (c->hdir && !open) {
            VPTQ_TRY(vptq_hessian_dir_load(c->hdir, layer, input,
                                           vptq_input_size(c->base->desc, input),
                                           c->dev->ctx->mem, &h, err));
            open = true;
        }
        VPTQ_TRY(compare_matrix(c, layer, (vptq_linear)l, &h, err));
        ++*found;
    }
out:
    if (open)
        vptq_hessian_file_release(&h);
    return st;
}

static vptq_status alloc_matrices(compare *c, vptq_arena *arena, vptq_err *err)
{
    size_t largest = 0;
    for (int l = 0; l < vptq_linear_count(c->base->desc); l++) {
        uint32_t out, in;
        vptq_linear_shape(c->base->desc, (vptq_linear)l, &out, &in);
        size_t n = (size_t)out * in;
        largest = n > largest ? n : largest;
    }
    c->w = vptq_arena_alloc(arena, largest, sizeof *c->w, err);
    c->what = vptq_arena_alloc(arena, largest, sizeof *c->what, err);
    return c->w && c->what ? VPTQ_OK : VPTQ_E_NOMEM;
}

vptq_status vptq_eval_check_shapes(const vptq_model *m, const vptq_model *base, vptq_err *err)
{
    const vptq_model_desc *a = m->desc, *b = base->desc;
    if (a->vocab != b->vocab)
        return vptq_fail(err, VPTQ_E_MISMATCH,
                         "%s (vocabulary of %u) is not a version of %s (vocabulary of %u)",
                         m->ckpt.path, a->vocab, base->ckpt.path, b->vocab);
    if (a->layers == b->layers && a->hidden == b->hidden &&
        a->intermediate == b->intermediate && a->heads == b->heads &&
        a->kv_heads == b->kv_heads && a->head_dim == b->head_dim &&
        a->experts.count == b->experts.count && a->experts.shared == b->experts.shared &&
        a->experts.intermediate == b->experts.intermediate &&
        !memcmp(a->experts.dense, b->experts.dense, sizeof a->experts.dense))
        return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_MISMATCH,
                     "%s (%u layers of %u, %u) is not a version of %s (%u layers of %u, %u)",
                     m->ckpt.path, a->layers, a->hidden, a->intermediate, base->ckpt.path,
                     b->layers, b->hidden, b->intermediate);
}

/* Checks models, layers and Hessians, and allocates; *last: the last layer. */
static vptq_status begin(compare *c, const vptq_error_options *opt, vptq_arena *arena,
                         uint32_t *last, vptq_err *err)
{
    const uint32_t layers = c->base->desc->layers;
    VPTQ_CHECK(vptq_eval_check_shapes(c->quantized, c->base, err));
    *last = opt->last_layer == UINT32_MAX ? layers - 1 : opt->last_layer;
    if (opt->first_layer > *last || *last >= layers)
        return vptq_fail(err, VPTQ_E_ARG, "--layers %u-%u: %s has layers 0 to %u",
                         opt->first_layer, *last, c->base->ckpt.path, layers - 1);
    VPTQ_CHECK(check_hessians(c, opt->first_layer, *last, err));
    return alloc_matrices(c, arena, err);
}

static vptq_status none_found(const compare *c, uint32_t first, uint32_t last, vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_UNSUPPORTED, "%s has no quantized matrix in layers %u to %u",
                     c->quantized->ckpt.path, first, last);
}

vptq_status vptq_eval_error(vptq_device *dev, const vptq_model *quantized,
                            const vptq_model *base, const vptq_error_options *opt,
                            vptq_error_fn fn, void *arg, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    compare c = {.dev = dev,
                 .quantized = quantized,
                 .base = base,
                 .hdir = opt->hessians,
                 .fn = fn,
                 .arg = arg};
    uint64_t found = 0;
    const uint32_t first = opt->first_layer;
    uint32_t last;
    vptq_arena arena;
    vptq_arena_init(&arena, dev->ctx->mem);
    VPTQ_TRY(begin(&c, opt, &arena, &last, err));
    for (uint32_t l = first; l <= last; l++) {
        const uint32_t all = last - first + 1;
        VPTQ_TRY(check_norms(&c, l, err));
        for (int i = 0; i < vptq_input_count(&base->desc->experts); i++)
            VPTQ_TRY(compare_input(&c, l, (vptq_input)i, &found, err));
        vptq_progress(dev->ctx, "error", vptq_plural(all, "layer", "layers"), l - first + 1,
                      all, NULL);
    }
    if (found == 0)
        st = none_found(&c, first, last, err);
out:
    vptq_arena_release(&arena);
    return st;
}

/* ---- estimates ---- */

static vptq_status drop_row(void *arg, const vptq_error_row *row, vptq_err *err)
{
    (void)arg;
    (void)row;
    (void)err;
    return VPTQ_OK;
}

/* Products for the matrices of a layer that read an input: under a Hessian, one of each with
 * it. */
static double cost_of(const compare *c, uint32_t layer, vptq_input input)
{
    double cost = 0;
    for (int l = 0; l < vptq_linear_count(c->base->desc); l++) {
        uint32_t out, in;
        if (vptq_linear_input(l) != input || !is_compared(c, layer, l))
            continue;
        vptq_linear_shape(c->base->desc, (vptq_linear)l, &out, &in);
        cost += (double)out * in * (c->hdir ? (double)in : 1);
    }
    return cost;
}

/* Compares matrices in order until they take a second; *all: the cost of all. */
static vptq_status measure(const compare *c, uint32_t first, uint32_t last, double *seconds,
                           double *measured, double *all, vptq_err *err)
{
    static const double target_seconds = 1;
    uint64_t found = 0;
    *seconds = *measured = *all = 0;
    for (uint32_t l = first; l <= last; l++) {
        VPTQ_CHECK(check_norms(c, l, err));
        for (int i = 0; i < vptq_input_count(&c->base->desc->experts); i++) {
            const double cost = cost_of(c, l, (vptq_input)i), start = vptq_seconds();
            *all += cost;
            if (cost == 0 || *seconds > target_seconds)
                continue;
            VPTQ_CHECK(compare_input(c, l, (vptq_input)i, &found, err));
            *seconds += vptq_seconds() - start;
            *measured += cost;
        }
    }
    return VPTQ_OK;
}

/* Of the Hessian of the widest input. */
static uint64_t hessian_bytes(const compare *c)
{
    size_t n = 0;
    for (int i = 0; c->hdir && i < vptq_input_count(&c->base->desc->experts); i++)
        if (vptq_input_occurs(c->base->desc, i) && vptq_input_size(c->base->desc, i) > n)
            n = vptq_input_size(c->base->desc, i);
    return vptq_triangle(n) * sizeof(float);
}

vptq_status vptq_eval_error_estimate(vptq_device *dev, const vptq_model *quantized,
                                     const vptq_model *base, const vptq_error_options *opt,
                                     vptq_estimate *e, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    compare c = {.dev = dev,
                 .quantized = quantized,
                 .base = base,
                 .hdir = opt->hessians,
                 .fn = drop_row};
    vptq_mem *mem = dev->ctx->mem;
    const size_t peak = mem ? mem->peak : 0;
    double seconds, measured, all;
    uint32_t last;
    vptq_arena arena;
    vptq_arena_init(&arena, mem);
    *e = vptq_estimate_make(NULL);
    if (mem)
        mem->peak = mem->used;
    VPTQ_TRY(begin(&c, opt, &arena, &last, err));
    const size_t held = mem ? mem->used : 0;
    VPTQ_TRY(measure(&c, opt->first_layer, last, &seconds, &measured, &all, err));
    if (all == 0)
        VPTQ_TRY(none_found(&c, opt->first_layer, last, err));
    e->seconds = seconds * all / measured;
    e->memory_bytes = held + hessian_bytes(&c);
    if (mem && mem->peak > e->memory_bytes)
        e->memory_bytes = mem->peak;
out:
    if (mem && mem->peak < peak)
        mem->peak = peak;
    vptq_arena_release(&arena);
    return st;
}
