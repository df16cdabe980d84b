/* Measures the loss and the divergence of every matrix after a quick encoding. */
#include "lib/quantize/sensitivity.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/comm.h"
#include "lib/base/file.h"
#include "lib/base/text.h"
#include "lib/encoder/rates.h"
#include "lib/eval/kld.h"
#include "lib/quantize/quantize.h"

enum { SENSITIVITY_FORMAT = 1, JSON_LIMIT = 64 << 20 };

typedef struct meter {
    vptq_device *dev;
    const vptq_model *m;
    const vptq_sensitivity_options *opt;
    vptq_sensitivity *rows;
    uint32_t done;  /* measured layers */
    json_t *doc;    /* contents of the file */
    bool save;      /* whether to write the file */
    vptq_ids ids;   /* of all windows */
    char text[17];  /* fingerprint of the text; "" = none */
    size_t tokens;  /* of all windows */
    size_t *starts; /* [windows + 1] */
    size_t windows;

    vptq_model changed;           /* the model with one matrix replaced */
    vptq_forward *base, *variant; /* of m, of changed */
    float *hidden;                /* [tokens, hidden] of the original, before a block */
    float *final;                 /* [tokens, hidden] of the original, after the last block */
    float *variants;              /* [linear layers of a block, tokens, hidden] */
    vptq_kld_token *scores;       /* [linear layers of a block, tokens] */
} meter;

/* ---- the file ---- */

/* Settings of the quick encoding, for a large matrix. */
static json_t *probe_json(const meter *t)
{
    const vptq_encoder_settings s =
        vptq_rate_probe(VPTQ_VQ_MAX_K, VPTQ_VQ_MAX_K, t->opt->seed, t->opt->storage);
    return vptq_settings_json(&s, NULL);
}

static json_t *text_json(const meter *t)
{
    if (!t->opt->text)
        return json_null();
    return json_pack("{s:s, s:I, s:I}", "fingerprint", t->text, "windows",
                     (json_int_t)t->windows, "length", (json_int_t)t->opt->length);
}

static vptq_status make_doc(meter *t, vptq_err *err)
{
    const vptq_hessian_source *h = t->opt->hessians;
    t->doc =
        json_pack("{s:i, s:s, s:s, s:s, s:f, s:o, s:o, s:[]}", "format", SENSITIVITY_FORMAT,
                  "tool", "vptq-quantize " VPTQ_VERSION, "base_fingerprint",
                  t->opt->base_fingerprint, "hessian_fingerprint", h->fingerprint, "kv_factor",
                  h->kv_factor, "probe", probe_json(t), "text", text_json(t), "rows");
    return t->doc ? VPTQ_OK : vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
}

static vptq_status read_row(const json_t *row, const char *path, vptq_sensitivity *s,
                            vptq_err *err)
{
    VPTQ_CHECK(vptq_json_f64_or(row, path, "loss", (double)NAN, &s->loss, err));
    VPTQ_CHECK(vptq_json_f64_or(row, path, "norm", (double)NAN, &s->norm, err));
    VPTQ_CHECK(vptq_json_f64_or(row, path, "kld", 0, &s->kld, err));
    VPTQ_CHECK(vptq_json_f64_or(row, path, "kld_stderr", 0, &s->kld_stderr, err));
    if (!(s->loss >= 0) || !(s->norm >= 0) || !(s->kld >= 0))
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: a row is incomplete", path);
    return VPTQ_OK;
}

/* Whether the file's measurements fit this run.  Its text only matters if this run has one. */
static bool same_run(const meter *t, const json_t *old)
{
    static const char *const keys[] = {
        "format", "tool", "base_fingerprint", "hessian_fingerprint", "kv_factor",
        "probe",  "text"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if ((t->opt->text || strcmp(keys[i], "text")) &&
            !json_equal(json_object_get(old, keys[i]), json_object_get(t->doc, keys[i])))
            return false;
    return true;
}

/* Reads the complete layers of a file of the same run.  If this run needs only losses, an
 * incomplete file with divergences is ignored and left unchanged. */
static vptq_status take_rows(meter *t, json_t *old, vptq_err *err)
{
    json_t *rows = json_object_get(old, "rows");
    const vptq_model_desc *d = t->m->desc;
    const size_t each = vptq_linear_total(d, 0, 0), all = d->layers * each;
    size_t n = json_array_size(rows) / each * each, taken = 0;
    n = n < all ? n : all;
    t->save = t->opt->text || json_is_null(json_object_get(old, "text"));
    if (!t->save && n < all)
        return VPTQ_OK;
    for (size_t i = 0; taken < n; i++)
        if (vptq_linear_exists(d, 0, (vptq_linear)(i % VPTQ_LINEAR_DENSE)))
            VPTQ_CHECK(read_row(json_array_get(rows, taken++), t->opt->file, &t->rows[i], err));
    t->done = (uint32_t)(n / each);
    json_t *ours = json_object_get(t->doc, "rows");
    for (size_t i = 0; i < n; i++)
        if (json_array_append(ours, json_array_get(rows, i)))
            return vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
    return VPTQ_OK;
}

/* Reads the measurements of an earlier run.  Ignores a file that is damaged or of another run;
 * fails on one that cannot be read, which may be intact. */
static vptq_status resume(meter *t, vptq_err *err)
{
    vptq_err why = {0};
    json_t *old = NULL;
    t->save = t->opt->file != NULL;
    if (!t->opt->file || !vptq_path_exists(t->opt->file))
        return VPTQ_OK;
    vptq_status st = vptq_json_load(t->opt->file, JSON_LIMIT, &old, &why);
    if (!st)
        st = vptq_json_unseal(old, t->opt->file, &why);
    if (!st && !same_run(t, old))
        vptq_log(t->dev->ctx, VPTQ_LOG_INFO,
                 "%s is from another model, text or setting; sensitivities are measured again",
                 t->opt->file);
    else if (!st)
        st = take_rows(t, old, &why);
    json_decref(old);
    if (st && !vptq_checkpoint_is_fault(st))
        return vptq_fail(err, st, "%s", why.text);
    if (st) {
        vptq_log(t->dev->ctx, VPTQ_LOG_WARN, "%s; sensitivities are measured again", why.text);
        t->done = 0;
        json_array_clear(json_object_get(t->doc, "rows"));
    }
    return VPTQ_OK;
}

/* Adds the rows of a layer and saves the file. */
static vptq_status save_layer(meter *t, uint32_t layer, vptq_err *err)
{
    json_t *rows = json_object_get(t->doc, "rows");
    for (uint32_t l = 0; l < VPTQ_LINEAR_DENSE; l++) {
        const vptq_sensitivity *s = &t->rows[layer * VPTQ_LINEAR_DENSE + l];
        if (!vptq_linear_exists(t->m->desc, 0, (vptq_linear)l))
            continue;
        json_t *row = json_pack("{s:i, s:s, s:f, s:f}", "layer", (int)layer, "name",
                                t->m->names[l].text, "loss", s->loss, "norm", s->norm);
        if (row && t->opt->text &&
            (json_object_set_new(row, "kld", json_real(s->kld)) ||
             json_object_set_new(row, "kld_stderr", json_real(s->kld_stderr)))) {
            json_decref(row);
            row = NULL;
        }
        if (!row || json_array_append_new(rows, row))
            return vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
    }
    return t->save ? vptq_json_save_sealed(t->opt->file, t->doc, err) : VPTQ_OK;
}

/* ---- quick encoding of a block ---- */

/* Number of linear layers of a block before l. */
static uint32_t position_of(const meter *t, uint32_t l)
{
    uint32_t count = 0;
    while (l-- > 0)
        count += vptq_linear_exists(t->m->desc, 0, (vptq_linear)l);
    return count;
}

static void progress(const meter *t, uint32_t layer, uint32_t l, const char *what)
{
    char detail[96];
    const vptq_model_desc *d = t->m->desc;
    const uint64_t each = vptq_linear_total(d, 0, 0), all = d->layers * each;
    snprintf(detail, sizeof detail, "layer %u %s: %s", layer, t->m->names[l].text, what);
    vptq_progress(t->dev->ctx, "sensitivity", vptq_plural(all, "matrix", "matrices"),
                  layer * each + position_of(t, l), all, detail);
}

/* Encodes a matrix into *out, in `arena`, and measures its loss. */
static vptq_status encode(meter *t, uint32_t layer, vptq_linear l, const vptq_input_hessians *h,
                          vptq_arena *arena, vptq_packed_matrix *out, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_weight *weight = &t->m->blocks[layer].linear[l];
    vptq_sensitivity *row = &t->rows[layer * VPTQ_LINEAR_DENSE + (uint32_t)l];
    vptq_encoder_input input = {.matrix_id = layer * VPTQ_LINEAR_DENSE + (uint32_t)l,
                                .out = (uint32_t)weight->rows,
                                .in = (uint32_t)weight->cols};
    vptq_encoder_result result;
    vptq_encoder_loss loss;
    vptq_arena work;
    vptq_arena_init(&work, t->dev->ctx->mem);
    float *w = vptq_arena_alloc(&work, weight->rows, weight->cols * sizeof *w, err);
    float *what = vptq_arena_alloc(&work, weight->rows, weight->cols * sizeof *what, err);
    if (!w || !what)
        VPTQ_TRY(VPTQ_E_NOMEM);
    progress(t, layer, (uint32_t)l, "quick encoding");
    VPTQ_TRY(vptq_weight_read(weight, t->dev, 0, weight->rows, w, err));
    vptq_weight_forget(weight);
    vptq_hessians_of(h, l, &input);
    input.held_out = input.output = NULL;
    input.w = w;
    const vptq_encoder_settings probe =
        vptq_rate_probe(input.out, input.in, t->opt->seed, t->opt->storage);
    VPTQ_TRY(vptq_encode_matrix(t->dev, &probe, &input, arena, &result, err));
    *out = (vptq_packed_matrix){
        .name = t->m->names[l].text, .vq = result.vq, .storage = probe.storage};
    VPTQ_TRY(vptq_device_decode(t->dev, &out->vq, 0, weight->rows, what, weight->cols, err));
    input.lower = input.metric ? input.metric : input.lower;
    VPTQ_TRY(vptq_encoder_measure(t->dev, &input, what, &loss, err));
    row->loss = loss.relative;
    row->norm = loss.norm;
out:
    vptq_arena_release(&work);
    return st;
}

/* Ranks take turns with the matrices of a block. */
static bool is_own(const meter *t, int l)
{
    const vptq_ctx *ctx = t->dev->ctx;
    return vptq_linear_exists(t->m->desc, 0, (vptq_linear)l) &&
           l % vptq_comm_size(ctx) == vptq_comm_rank(ctx);
}

/* All ranks load the Hessians, also of matrices of others: a calibration runs on all. */
static vptq_status encode_input(meter *t, uint32_t layer, vptq_input input, vptq_arena *arena,
                                vptq_packed_matrix *out, vptq_err *err)
{
    const vptq_hessian_source *source = t->opt->hessians;
    vptq_input_hessians h = {0};
    vptq_status st = VPTQ_OK;
    VPTQ_CHECK(source->load(source, layer, input, vptq_input_size(t->m->desc, input), &h, err));
    for (int l = 0; l < VPTQ_LINEAR_DENSE && !st; l++) {
        if (vptq_linear_input((vptq_linear)l) != input || !is_own(t, l))
            continue;
        st = encode(t, layer, (vptq_linear)l, &h, arena, &out[l], err);
        if (st)
            vptq_err_context(err, "layer %u %s", layer, t->m->names[l].text);
    }
    source->release(source, &h);
    return st;
}

/* ---- divergences ---- */

static vptq_status load_text(meter *t, vptq_arena *arena, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_corpus c = {.ids = {.data = NULL}};
    const vptq_sensitivity_options *o = t->opt;
    size_t *at;
    VPTQ_TRY(
        vptq_corpus_load(t->dev->ctx, o->text, t->m->tokenizer, t->m->desc->vocab, &c, err));
    memcpy(t->text, c.fingerprint, sizeof t->text);
    VPTQ_TRY(
        vptq_corpus_sample(&c, o->length, o->windows, o->seed, arena, &at, &t->windows, err));
    t->starts = vptq_arena_alloc(arena, t->windows + 1, sizeof *t->starts, err);
    if (!t->starts)
        VPTQ_TRY(VPTQ_E_NOMEM);
    for (size_t w = 0; w < t->windows; w++)
        VPTQ_TRY(vptq_ids_add(&t->ids, c.ids.data + at[w], o->length, err));
    for (size_t w = 0; w <= t->windows; w++)
        t->starts[w] = w * o->length;
    t->tokens = t->starts[t->windows];
out:
    vptq_corpus_release(&c);
    return st;
}

/* The blocks of the changed model, with matrices of their own. */
static vptq_status copy_blocks(meter *t, vptq_arena *arena, vptq_err *err)
{
    const vptq_model_desc *d = t->m->desc;
    const size_t count = (size_t)vptq_linear_count(d);
    for (uint32_t layer = 0; layer < d->layers; layer++) {
        vptq_block *b = &t->changed.blocks[layer];
        *b = t->m->blocks[layer];
        b->linear = vptq_arena_alloc(arena, count, sizeof *b->linear, err);
        if (!b->linear)
            return VPTQ_E_NOMEM;
        memcpy(b->linear, t->m->blocks[layer].linear, count * sizeof *b->linear);
    }
    return VPTQ_OK;
}

/* Computes the original's hidden states before block 0 and after the last block. */
static vptq_status begin_divergence(meter *t, vptq_arena *arena, vptq_err *err)
{
    const vptq_model_desc *d = t->m->desc;
    const size_t bytes = d->hidden * sizeof(float), each = vptq_linear_total(d, 0, 0);
    t->changed = *t->m;
    t->changed.blocks = vptq_arena_alloc(arena, d->layers, sizeof *t->changed.blocks, err);
    t->hidden = vptq_arena_alloc(arena, t->tokens, bytes, err);
    t->final = vptq_arena_alloc(arena, t->tokens, bytes, err);
    t->variants = vptq_arena_alloc(arena, t->tokens, each * bytes, err);
    t->scores = vptq_arena_alloc(arena, t->tokens, each * sizeof *t->scores, err);
    if (!t->changed.blocks || !t->hidden || !t->final || !t->variants || !t->scores)
        return VPTQ_E_NOMEM;
    VPTQ_CHECK(copy_blocks(t, arena, err));
    VPTQ_CHECK(vptq_forward_open(t->m, t->dev, t->opt->length, &t->base, err));
    VPTQ_CHECK(vptq_forward_open(&t->changed, t->dev, t->opt->length, &t->variant, err));
    VPTQ_CHECK(vptq_forward_embed(t->base, t->ids.data, t->tokens, t->hidden, err));
    memcpy(t->final, t->hidden, t->tokens * bytes);
    for (uint32_t layer = 0; layer < d->layers; layer++)
        VPTQ_CHECK(vptq_forward_block(t->base, layer, t->starts, t->windows, t->final, err));
    return VPTQ_OK;
}

/* x [tokens, hidden] = hidden states after the last block with matrix l of `layer` replaced. */
static vptq_status run_variant(meter *t, uint32_t layer, uint32_t l,
                               const vptq_packed_matrix *matrix, float *x, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const size_t floats = t->tokens * t->m->desc->hidden;
    vptq_weight *w = &t->changed.blocks[layer].linear[l];
    const vptq_weight plain = *w;
    *w = (vptq_weight){.rows = plain.rows, .cols = plain.cols, .packed = matrix};
    memcpy(x, t->hidden, floats * sizeof *x);
    for (uint32_t b = layer; b < t->m->desc->layers && !st; b++) {
        progress(t, layer, l, "divergence");
        st = vptq_forward_block(t->variant, b, t->starts, t->windows, x, err);
    }
    *w = plain;
    return st;
}

/* Computes mean divergence and its error from the scores k [tokens] of a matrix. */
static vptq_status summarize(const meter *t, uint32_t layer, uint32_t l,
                             const vptq_kld_token *k, vptq_err *err)
{
    vptq_sensitivity *s = &t->rows[layer * VPTQ_LINEAR_DENSE + l];
    const double n = (double)t->tokens;
    double sum = 0, sq = 0;
    for (size_t i = 0; i < t->tokens; i++)
        sum += k[i].kld;
    s->kld = sum / n;
    for (size_t i = 0; i < t->tokens; i++)
        sq += (k[i].kld - s->kld) * (k[i].kld - s->kld);
    s->kld_stderr = n > 1 ? sqrt(sq / (n - 1) / n) : 0;
    if (!isfinite(s->kld))
        return vptq_fail(err, VPTQ_E_NUMERIC,
                         "layer %u %s: the model's output is not finite with this matrix "
                         "quantized",
                         layer, t->m->names[l].text);
    return VPTQ_OK;
}

static vptq_status measure_block(meter *t, uint32_t layer, const vptq_packed_matrix *matrices,
                                 vptq_err *err)
{
    const size_t floats = t->tokens * t->m->desc->hidden;
    vptq_kld_args args = {.shape = t->m->desc,
                          .base = t->base,
                          .model = t->variant,
                          .rows = t->tokens,
                          .all = vptq_linear_total(t->m->desc, 0, 0),
                          .hidden_base = t->final,
                          .hidden = t->variants};
    for (uint32_t l = 0; l < VPTQ_LINEAR_DENSE; l++)
        if (is_own(t, (int)l))
            VPTQ_CHECK(run_variant(t, layer, l, &matrices[l],
                                   t->variants + args.variants++ * floats, err));
    if (!args.variants)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_eval_kld_rows(t->dev->ctx, &args, t->scores, err));
    const vptq_kld_token *k = t->scores;
    for (uint32_t l = 0; l < VPTQ_LINEAR_DENSE; l++)
        if (is_own(t, (int)l)) {
            VPTQ_CHECK(summarize(t, layer, l, k, err));
            k += t->tokens;
        }
    return VPTQ_OK;
}

/* ---- ranks ---- */

/* Gives all ranks the measurements of a layer; each has zeros for the matrices of others. */
static vptq_status share_layer(meter *t, uint32_t layer, vptq_err *err)
{
    enum { NUMBERS = VPTQ_LINEAR_DENSE * sizeof(vptq_sensitivity) / sizeof(double) };
    double values[NUMBERS];
    vptq_sensitivity *rows = &t->rows[layer * VPTQ_LINEAR_DENSE];
    memcpy(values, rows, sizeof values);
    VPTQ_CHECK(vptq_comm_gather(t->dev->ctx, values, NUMBERS, err));
    memcpy(rows, values, sizeof values);
    return VPTQ_OK;
}

/* Agrees that all ranks measure the same: their numbers go into one file. */
static vptq_status check_same(const meter *t, vptq_err *err)
{
    const vptq_ctx *ctx = t->dev->ctx;
    char *text, hash[17];
    VPTQ_CHECK(vptq_comm_same(ctx, "the text for measuring sensitivities", t->text, err));
    VPTQ_CHECK(vptq_json_text(t->doc, "sensitivities", false, &text, err));
    snprintf(hash, sizeof hash, "%016" PRIx64, vptq_hash(text, strlen(text), 0));
    free(text);
    return vptq_comm_same(ctx, "the model, its Hessians or a setting", hash, err);
}

/* Rank 0 reads and writes the file. */
static vptq_status share_file(meter *t, vptq_err *err)
{
    const vptq_ctx *ctx = t->dev->ctx;
    const size_t count = (size_t)t->m->desc->layers * VPTQ_LINEAR_DENSE;
    VPTQ_CHECK(check_same(t, err));
    if (vptq_comm_rank(ctx) == 0)
        VPTQ_CHECK(resume(t, err));
    VPTQ_CHECK(vptq_comm_broadcast(ctx, 0, &t->done, sizeof t->done, err));
    return vptq_comm_broadcast(ctx, 0, t->rows, count * sizeof *t->rows, err);
}

/* ---- all layers ---- */

static vptq_status measure_layers(meter *t, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_packed_matrix matrices[VPTQ_LINEAR_DENSE];
    vptq_arena arena;
    const uint64_t all = vptq_linear_total(t->m->desc, 0, t->m->desc->layers - 1);
    vptq_arena_init(&arena, t->dev->ctx->mem);
    for (uint32_t layer = 0; layer < t->m->desc->layers; layer++) {
        if (layer >= t->done) {
            for (int i = 0; i < VPTQ_INPUT_DENSE; i++)
                VPTQ_TRY(encode_input(t, layer, (vptq_input)i, &arena, matrices, err));
            if (t->opt->text)
                VPTQ_TRY(measure_block(t, layer, matrices, err));
            VPTQ_TRY(share_layer(t, layer, err));
            if (vptq_comm_rank(t->dev->ctx) == 0)
                VPTQ_TRY(save_layer(t, layer, err));
            vptq_arena_release(&arena);
        }
        if (t->opt->text)
            VPTQ_TRY(vptq_forward_block(t->base, layer, t->starts, t->windows, t->hidden, err));
    }
    vptq_progress(t->dev->ctx, "sensitivity", vptq_plural(all, "matrix", "matrices"), all, all,
                  NULL);
out:
    vptq_arena_release(&arena);
    return st;
}

vptq_status vptq_sensitivity_measure(vptq_device *dev, const vptq_model *m,
                                     const vptq_sensitivity_options *opt, vptq_arena *arena,
                                     vptq_sensitivity **rows, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_model_desc *d = m->desc;
    meter t = {.dev = dev, .m = m, .opt = opt};
    vptq_arena work;
    vptq_arena_init(&work, dev->ctx->mem);
    vptq_ids_init(&t.ids, dev->ctx->mem);
    t.rows =
        vptq_arena_zalloc(arena, (size_t)d->layers * VPTQ_LINEAR_DENSE, sizeof *t.rows, err);
    if (!t.rows)
        VPTQ_TRY(VPTQ_E_NOMEM);
    if (opt->text)
        VPTQ_TRY(load_text(&t, &work, err));
    VPTQ_TRY(make_doc(&t, err));
    VPTQ_TRY(share_file(&t, err));
    if (t.done < d->layers && opt->text)
        VPTQ_TRY(begin_divergence(&t, &work, err));
    if (t.done < d->layers)
        VPTQ_TRY(measure_layers(&t, err));
    *rows = t.rows;
out:
    vptq_forward_close(t.base);
    vptq_forward_close(t.variant);
    json_decref(t.doc);
    vptq_ids_release(&t.ids);
    vptq_arena_release(&work);
    return st;
}
