/* Unpacks any model to one GGUF file, following llama.cpp's conventions for names, the order of
 * the rows of q and k, vectors in F32, metadata and tokenizer.  One tile of a tensor is in
 * memory at a time. */
#include <stdio.h>
#include <string.h>

#include "formats/gguf/model.h"
#include "lib/base/text.h"
#include "lib/model/model.h"
#include "lib/pack/package.h"

/* The linear layers of the blocks. */
typedef struct linear_layers {
    size_t count;
    size_t of_fallback, of_f16; /* rows are not whole blocks */
    size_t again;               /* were quantized before */
    uint64_t bytes, weights;
} linear_layers;

typedef struct exporting {
    vptq_device *dev;
    const vptq_checkpoint *c;
    const vptq_pack_options *opt;
    vptq_arena arena;
    vptq_package out;             /* under Hugging Face names */
    vptq_tensor *tensors;         /* [count] in the order of the file */
    vptq_package_tensor **source; /* [count] NULL = rope_freqs, which is computed */
    size_t count;
    vptq_package_loss loss, layer_loss;
    linear_layers layers;
    vptq_gguf_keys keys;
    uint64_t bytes;            /* of tensors */
    vptq_package_probe *probe; /* NULL: whole tensors are written */
} exporting;

/* ---- types ---- */

/* Types of linear layers: general.file_type, and the type for rows that are not whole blocks,
 * both as in llama.cpp (llama.h, src/llama-quant.cpp).  Of its variants of a type the ones that
 * store all linear layers in it. */
static const struct {
    bool known;
    uint32_t file_type;
    vptq_dtype fallback; /* F16 where its rows are not whole blocks either */
} layer_types[VPTQ_DTYPE_COUNT] = {
    [VPTQ_F32] = {true, 0, VPTQ_F32},    [VPTQ_F16] = {true, 1, VPTQ_F16},
    [VPTQ_BF16] = {true, 32, VPTQ_BF16}, [VPTQ_Q4_0] = {true, 2, VPTQ_F16},
    [VPTQ_Q4_1] = {true, 3, VPTQ_F16},   [VPTQ_Q5_0] = {true, 8, VPTQ_F16},
    [VPTQ_Q5_1] = {true, 9, VPTQ_F16},   [VPTQ_Q8_0] = {true, 7, VPTQ_F16},
    [VPTQ_Q2_K] = {true, 10, VPTQ_Q4_0}, [VPTQ_Q3_K] = {true, 11, VPTQ_Q4_0},
    [VPTQ_Q4_K] = {true, 14, VPTQ_Q5_0}, [VPTQ_Q5_K] = {true, 16, VPTQ_Q5_1},
    [VPTQ_Q6_K] = {true, 18, VPTQ_Q8_0},
};

static bool is_blocks(vptq_dtype type)
{
    return vptq_dtype_get(type)->block > 1;
}

static bool fits(vptq_dtype type, uint64_t columns)
{
    return columns % vptq_dtype_get(type)->block == 0;
}

static vptq_dtype layer_type(vptq_dtype wanted, uint64_t columns)
{
    const vptq_dtype fallback = layer_types[wanted].fallback;
    return fits(wanted, columns) ? wanted : fits(fallback, columns) ? fallback : VPTQ_F16;
}

/* Embedding and output head are in blocks on request only. */
static vptq_dtype embedding_type(const exporting *e)
{
    return e->opt->embeddings != VPTQ_DTYPE_COUNT ? e->opt->embeddings
           : is_blocks(e->opt->dtype)             ? VPTQ_F16
                                                  : e->opt->dtype;
}

static vptq_dtype tensor_type(const exporting *e, const vptq_package_tensor *source,
                              uint32_t dims, const uint64_t *shape)
{
    return dims < 2                                 ? VPTQ_F32
           : vptq_is_embedding(source->tensor.name) ? embedding_type(e)
                                                    : layer_type(e->opt->dtype, shape[1]);
}

static void count_layer(exporting *e, const vptq_tensor *t, const vptq_package_source *from)
{
    linear_layers *n = &e->layers;
    n->count++;
    n->of_f16 += t->type != e->opt->dtype && t->type == VPTQ_F16;
    n->of_fallback += t->type != e->opt->dtype && t->type != VPTQ_F16;
    n->again += from->matrix || from->plain->uniform || from->plain->additive ||
                is_blocks(from->plain->type);
    n->bytes += t->bytes;
    n->weights += t->shape[0] * t->shape[1];
}

/* The type of blocks that layers have: that of --dtype, unless all of them fell back
 * to another. */
static const char *blocks_of_layers(const exporting *e)
{
    const linear_layers *n = &e->layers;
    if (!is_blocks(e->opt->dtype) || n->of_f16 == n->count)
        return NULL;
    return vptq_dtype_get(n->of_f16 + n->of_fallback < n->count
                              ? e->opt->dtype
                              : layer_types[e->opt->dtype].fallback)
        ->name;
}

static void warn_of_layers(const exporting *e)
{
    const linear_layers *n = &e->layers;
    const vptq_dtype_info *type = vptq_dtype_get(e->opt->dtype);
    const char *fallback = vptq_dtype_get(layer_types[e->opt->dtype].fallback)->name;
    char stored[64] = "F16";
    if (is_blocks(e->opt->dtype) && n->again)
        vptq_log(e->dev->ctx, VPTQ_LOG_WARN,
                 "%s: %zu linear layer%s quantized already; quantizing %s weights again, "
                 "to %s, adds to the error",
                 e->c->path, n->again, vptq_plural(n->again, " is", "s are"),
                 vptq_plural(n->again, "its", "their"), type->name);
    if (n->of_fallback && n->of_f16)
        snprintf(stored, sizeof stored, "%s (%zu) and F16 (%zu)", fallback, n->of_fallback,
                 n->of_f16);
    else if (n->of_fallback)
        snprintf(stored, sizeof stored, "%s", fallback);
    if (n->of_fallback || n->of_f16)
        vptq_log(e->dev->ctx, VPTQ_LOG_WARN,
                 "%s: the rows of %zu of %zu linear layers are not whole blocks of %s (%zu "
                 "numbers); stored as %s",
                 e->c->path, n->of_fallback + n->of_f16, n->count, type->name, type->block,
                 stored);
}

/* ---- which tensors ---- */

/* Skips the rotary frequencies of older checkpoints, and the second copy of a tied head. */
static bool is_left_out(const vptq_checkpoint *c, const char *hf)
{
    static const char frequencies[] = ".rotary_emb.inv_freq";
    const size_t len = strlen(hf), end = sizeof frequencies - 1;
    return (len > end && strcmp(hf + len - end, frequencies) == 0) ||
           (c->desc.tied && strcmp(hf, VPTQ_HEAD_NAME) == 0);
}

static vptq_status add_tensor(exporting *e, const char *gguf, vptq_package_tensor *source,
                              uint32_t dims, const uint64_t *shape, vptq_err *err)
{
    vptq_tensor *t = &e->tensors[e->count];
    size_t elements = 1;
    if (dims < 1 || dims > 2)
        return vptq_fail(err, VPTQ_E_SHAPE,
                         "%s: tensor '%s' has %u dimensions, expected 1 or 2", e->c->path, gguf,
                         dims);
    *t = (vptq_tensor){.dims = dims, .file = e->c->path};
    t->name = vptq_arena_strdup(&e->arena, gguf, err);
    if (!t->name)
        return VPTQ_E_NOMEM;
    for (uint32_t d = 0; d < dims; d++) {
        t->shape[d] = shape[d];
        elements *= (size_t)shape[d]; /* cannot overflow: it was in memory or in a file */
    }
    t->type = tensor_type(e, source, dims, shape);
    const size_t block = vptq_dtype_get(t->type)->block;
    if (shape[dims - 1] % block || !vptq_dtype_bytes(t->type, elements, &t->bytes))
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: tensor '%s' has rows of %llu numbers, %s needs a multiple of %zu",
                         e->c->path, gguf, (unsigned long long)shape[dims - 1],
                         vptq_dtype_get(t->type)->name, block);
    if (dims > 1 && !vptq_is_embedding(source->tensor.name))
        count_layer(e, t, &source->source);
    if (source) {
        vptq_package_warn_decoding(&e->out, &source->tensor, t->type);
        source->tensor.type = t->type;
        source->tensor.bytes = t->bytes;
    }
    e->source[e->count++] = source;
    e->bytes += t->bytes;
    return VPTQ_OK;
}

static vptq_package_tensor *find_source(exporting *e, const char *hf)
{
    size_t lo = 0, hi = e->out.count;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        int order = strcmp(e->out.tensors[mid].tensor.name, hf);
        if (order == 0)
            return &e->out.tensors[mid];
        if (order < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

/* VPTQ_E_UNSUPPORTED with the first tensor that has no GGUF name. */
static vptq_status report_unnamed(const exporting *e, vptq_err *err)
{
    for (size_t i = 0; i < e->out.count; i++) {
        const char *name = e->out.tensors[i].tensor.name;
        bool found = false;
        for (size_t j = 0; j < e->count && !found; j++)
            found = e->source[j] == &e->out.tensors[i];
        if (!found)
            return vptq_fail(err, VPTQ_E_UNSUPPORTED, "%s: tensor '%s' has no name in GGUF",
                             e->c->path, name);
    }
    return VPTQ_OK;
}

static vptq_status list_tensors(exporting *e, vptq_err *err)
{
    const vptq_model_desc *d = &e->c->desc;
    char gguf[VPTQ_NAME_MAX], hf[VPTQ_NAME_MAX];
    VPTQ_CHECK(
        vptq_package_add_dequantized(&e->out, VPTQ_DTYPE_COUNT, VPTQ_F32, is_left_out, err));
    const size_t max = e->out.count + 1; /* and rope_freqs */
    e->tensors = vptq_arena_alloc(&e->arena, max, sizeof *e->tensors, err);
    e->source = vptq_arena_alloc(&e->arena, max, sizeof(vptq_package_tensor *), err);
    if (!e->tensors || !e->source)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; vptq_gguf_name_pair(d->layers, i, gguf, hf); i++) {
        vptq_package_tensor *t = find_source(e, hf);
        if (t)
            VPTQ_CHECK(add_tensor(e, gguf, t, t->tensor.dims, t->tensor.shape, err));
    }
    if (e->count != e->out.count)
        VPTQ_CHECK(report_unnamed(e, err));
    const uint64_t half = d->head_dim / 2;
    if (d->rope_scaling == VPTQ_ROPE_LLAMA3)
        VPTQ_CHECK(add_tensor(e, "rope_freqs.weight", NULL, 1, &half, err));
    return VPTQ_OK;
}

/* ---- metadata ---- */

static vptq_status make_keys(exporting *e, vptq_err *err)
{
    vptq_vocab v;
    VPTQ_CHECK(vptq_gguf_put_desc(&e->keys, &e->c->desc, e->c->path, err));
    vptq_gguf_put_u32(&e->keys, "general.file_type", layer_types[e->opt->dtype].file_type);
    if (is_blocks(e->opt->dtype) || is_blocks(embedding_type(e)))
        vptq_gguf_put_u32(&e->keys, "general.quantization_version", 2);
    VPTQ_CHECK(vptq_checkpoint_vocab(e->c, e->dev->ctx, &v, err));
    const char *chat; /* its own file takes precedence over tokenizer_config.json */
    vptq_status st =
        vptq_package_chat_template(e->dev->ctx, e->c, e->opt->tokenizer, &v.arena, &chat, err);
    if (!st && chat)
        v.chat_template = chat;
    if (!st)
        st = vptq_gguf_put_vocab(&e->keys, &v, &e->c->desc, err);
    vptq_vocab_release(&v);
    return st ? st : vptq_gguf_keys_status(&e->keys, err);
}

/* ---- bytes ---- */

/* Whether the architecture interleaves the two halves of each head in q and k. */
static bool is_interleaved(const exporting *e, const char *gguf)
{
    const char *rest = strncmp(gguf, "blk.", 4) == 0 ? strchr(gguf + 4, '.') : NULL;
    return e->c->desc.family->gguf_permuted && rest &&
           (strncmp(rest, ".attn_q.", 8) == 0 || strncmp(rest, ".attn_k.", 8) == 0);
}

/* Moves row h d + half d/2 + i of x to row h d + 2 i + half of y; n rows, whole heads. */
static void interleave(const float *x, size_t n, size_t cols, size_t d, float *y)
{
    for (size_t r = 0; r < n; r++) {
        size_t in = r % d, half = in / (d / 2), i = in % (d / 2);
        memcpy(y + (r - in + 2 * i + half) * cols, x + r * cols, cols * sizeof *y);
    }
}

static vptq_status write_rows(exporting *e, vptq_package_rows *in, const vptq_tensor *t,
                              bool interleaved, vptq_gguf_writer *w, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_mem *mem = e->dev->ctx->mem;
    /* a bias is one row whose elements are interleaved */
    const bool vector = t->dims < 2;
    const size_t cols = vector ? 1 : in->cols, per_row = vector ? in->cols : 1;
    size_t bytes;
    float *permuted = interleaved
                          ? vptq_mem_alloc(mem, in->tile_rows, in->cols * sizeof *permuted, err)
                          : NULL;
    uint8_t *stored = vptq_mem_alloc(mem, in->tile_rows, in->cols * sizeof(float), err);
    if (!stored || (interleaved && !permuted))
        VPTQ_TRY(VPTQ_E_NOMEM);
    for (size_t r = 0; r < in->rows; r += in->tile_rows) {
        if (r > 0 && vptq_package_is_late(e->probe))
            break;
        const float *x = NULL;
        size_t n = in->rows - r < in->tile_rows ? in->rows - r : in->tile_rows;
        VPTQ_TRY(vptq_check_cancel(e->dev->ctx, err));
        VPTQ_TRY(vptq_package_rows_read(in, r, n, &x, err));
        if (interleaved) {
            interleave(x, n * per_row, cols, e->c->desc.head_dim, permuted);
            x = permuted;
        }
        VPTQ_TRY(vptq_package_convert(in, t, x, r, n, stored, err));
        vptq_dtype_bytes(t->type, n * in->cols, &bytes);
        VPTQ_TRY(vptq_gguf_write(w, stored, bytes, err));
        if (e->probe)
            e->probe->bytes += bytes;
    }
out:
    vptq_mem_free(mem, stored);
    vptq_mem_free(mem, permuted);
    return st;
}

/* Writes tensor `i`, or rope_freqs, which has no source. */
static vptq_status write_tensor(exporting *e, size_t i, vptq_gguf_writer *w, vptq_err *err)
{
    vptq_package_rows in;
    const vptq_tensor *t = &e->tensors[i];
    const vptq_model_desc *d = &e->c->desc;
    for (uint32_t f = 0; !e->source[i] && f < d->head_dim / 2; f++) {
        const float divisor = (float)vptq_gguf_rope_divisor(d, f);
        VPTQ_CHECK(vptq_gguf_write(w, &divisor, sizeof divisor, err));
    }
    if (!e->source[i])
        return VPTQ_OK;
    const bool interleaved = is_interleaved(e, t->name);
    VPTQ_CHECK(vptq_package_rows_open(&e->out, e->dev, e->source[i],
                                      interleaved ? d->head_dim : 0, &in, err));
    vptq_status st = write_rows(e, &in, t, interleaved, w, err);
    vptq_package_rows_close(&in);
    return st;
}

static vptq_status write_file(exporting *e, uint64_t *bytes, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_ctx *ctx = e->dev->ctx;
    vptq_gguf_writer w;
    uint64_t done = 0;
    VPTQ_CHECK(vptq_gguf_writer_open(e->opt->output, e->opt->force, &e->keys, e->tensors,
                                     e->count, &w, err));
    for (size_t i = 0; !st && i < e->count; i++) {
        vptq_progress(ctx, "unpack", "bytes", done, e->bytes, e->tensors[i].name);
        st = write_tensor(e, i, &w, err);
        done += e->tensors[i].bytes;
    }
    *bytes = w.file.written;
    if (!st)
        st = vptq_gguf_writer_commit(&w, err);
    vptq_gguf_writer_abort(&w);
    vptq_progress(ctx, "unpack", "bytes", done, e->bytes, NULL);
    return st;
}

/* A vptq_package_try: writes a tensor to a file of its own that is not kept. */
static vptq_status try_tensors(void *arg, const vptq_package_tensor *t, size_t count,
                               vptq_package_probe *p, vptq_err *err)
{
    exporting *e = arg;
    vptq_gguf_writer w;
    vptq_status st = VPTQ_OK;
    e->probe = p;
    for (size_t i = 0; i < e->count && !st; i++) {
        if (e->source[i] < t || e->source[i] >= t + count)
            continue;
        st = vptq_gguf_writer_open(NULL, false, &e->keys, &e->tensors[i], 1, &w, err);
        if (st)
            break;
        st = write_tensor(e, i, &w, err);
        vptq_gguf_writer_abort(&w);
    }
    e->probe = NULL;
    return st;
}

static vptq_status export_model(exporting *e, vptq_pack_result *r, vptq_err *err)
{
    const vptq_pack_options *opt = e->opt;
    VPTQ_CHECK(vptq_gguf_check_family(&e->c->desc, e->c->path, err));
    VPTQ_CHECK(list_tensors(e, err));
    VPTQ_CHECK(make_keys(e, err));
    warn_of_layers(e);
    r->plain = (uint32_t)e->count;
    r->bytes = e->bytes + e->keys.bytes.len;
    if (e->layers.weights)
        r->bits_per_weight = 8.0 * (double)e->layers.bytes / (double)e->layers.weights;
    r->layers.type = blocks_of_layers(e);
    VPTQ_CHECK(opt->dry_run ? vptq_package_estimate(&e->out, try_tensors, e, r, err)
                            : write_file(e, &r->bytes, err));
    vptq_package_summarize(&e->out, opt->dry_run, r);
    return VPTQ_OK;
}

vptq_status vptq_unpack_gguf(vptq_device *dev, const vptq_pack_options *opt,
                             vptq_pack_result *r, vptq_err *err)
{
    vptq_model m;
    const vptq_checkpoint_options open = {.tokenizer = opt->tokenizer,
                                          .base = opt->base,
                                          .partial = opt->partial,
                                          .shapes_only = true};
    if ((unsigned)opt->dtype >= VPTQ_DTYPE_COUNT || !layer_types[opt->dtype].known)
        return vptq_fail(err, VPTQ_E_ARG,
                         "linear layers of type %d, expected F16, BF16, F32, Q4_0 to Q8_0 or "
                         "Q2_K to Q6_K",
                         (int)opt->dtype);
    VPTQ_CHECK(vptq_package_check_embeddings(opt, err));
    /* opening it as a model checks every matrix and tensor against the architecture */
    vptq_status st = vptq_model_open(dev->ctx, opt->input, &open, false, &m, err);
    if (st)
        return st;
    exporting e = {.dev = dev, .c = &m.ckpt, .opt = opt};
    vptq_arena_init(&e.arena, dev->ctx->mem);
    vptq_package_init(&e.out, dev->ctx, e.c, "unpack");
    e.out.loss = &e.loss;
    if (is_blocks(opt->dtype))
        e.out.layer_loss = &e.layer_loss;
    vptq_gguf_keys_init(&e.keys, dev->ctx->mem);
    st = vptq_package_check_output(dev->ctx, e.c, opt, err);
    if (!st)
        st = export_model(&e, r, err);
    vptq_gguf_keys_release(&e.keys);
    vptq_package_release(&e.out);
    vptq_arena_release(&e.arena);
    vptq_model_release(&m);
    return st;
}
