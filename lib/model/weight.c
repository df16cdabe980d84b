/* Weights of a model: reading rows of them, and products with them.  A device with its own
 * memory multiplies by 16-bit weights as they are stored.  Uniform codes stay codes. */
#include <string.h>

#include "lib/base/half.h"
#include "lib/base/parallel.h"
#include "lib/model/model.h"

/* ---- read ---- */

enum { CHUNK_FLOATS = 1 << 15 }; /* floats that one thread converts at a time */

typedef struct read_job {
    const vptq_tensor *t;
    size_t r0, cols;
    float *dst;
} read_job;

static void read_rows(void *arg, size_t begin, size_t end, int thread)
{
    const read_job *j = arg;
    (void)thread;
    /* Cannot fail: the type, the only possible error, was checked before the loop. */
    vptq_status st =
        vptq_tensor_read(j->t, j->r0 + begin, end - begin, j->dst + begin * j->cols, NULL);
    VPTQ_BUG_IF(st);
}

static vptq_status read_to_host(const vptq_ctx *ctx, const vptq_tensor *t, size_t r0, size_t n,
                                float *dst, vptq_err *err)
{
    VPTQ_CHECK(vptq_tensor_read(t, r0, 0, dst, err)); /* checks the type */
    read_job job = {t, r0, vptq_tensor_cols(t), dst};
    const size_t chunk = job.cols < CHUNK_FLOATS ? CHUNK_FLOATS / (job.cols + 1) + 1 : 1;
    vptq_parallel_for(ctx->threads, n, chunk, read_rows, &job);
    return VPTQ_OK;
}

vptq_status vptq_weight_read(const vptq_weight *w, vptq_device *dev, size_t r0, size_t n,
                             float *dst, vptq_err *err)
{
    if (w->packed)
        return vptq_device_decode(dev, &w->packed->vq, r0, n, dst, w->cols, err);
    return read_to_host(dev->ctx, w->tensor, r0, n, dst, err);
}

/* ---- upload ---- */

/* Whether reading a plain weight changes nothing but its type. */
static bool is_raw(const vptq_tensor *t)
{
    return !t->uniform && t->rope_heads == 0 &&
           (t->round_to == VPTQ_F32 || t->round_to == t->type) &&
           (t->type == VPTQ_F32 || t->type == VPTQ_F16 || t->type == VPTQ_BF16);
}

vptq_dtype vptq_weight_type(const vptq_weight *w)
{
    const vptq_tensor *t = w->tensor;
    if (w->packed)
        return VPTQ_F32;
    if (t->round_to != VPTQ_F32)
        return t->round_to;
    return t->type == VPTQ_F16 || t->type == VPTQ_BF16 ? t->type : VPTQ_F32;
}

bool vptq_weight_takes_bytes(const vptq_weight *w)
{
    return w->tensor && w->tensor->activation_bits;
}

static bool has_codes(const vptq_weight *w)
{
    return w->tensor && w->tensor->uniform;
}

/* Bytes of a row as vptq_weight_type. */
static size_t row_bytes(const vptq_weight *w)
{
    return w->cols * vptq_dtype_get(vptq_weight_type(w))->bytes;
}

/* n rows of codes at `at`: codes, scales, groups of columns, zero points. */
static vptq_uniform codes_in(const vptq_uniform *u, const void *at, size_t n)
{
    const size_t each = vptq_uniform_groups(&u->shape);
    vptq_uniform v = {.shape = u->shape, .codes = at};
    v.scales = (const float *)(v.codes + n * vptq_uniform_row_words(&u->shape));
    const int32_t *groups = (const int32_t *)(v.scales + n * each);
    v.groups = u->groups ? groups : NULL;
    v.zeros = u->zeros ? (const uint8_t *)(groups + (u->groups ? u->shape.in : 0)) : NULL;
    return v;
}

static size_t codes_bytes(const vptq_uniform *u)
{
    const size_t each = vptq_uniform_groups(&u->shape);
    const size_t row = vptq_uniform_row_words(&u->shape) * sizeof *u->codes +
                       each * sizeof *u->scales + (u->zeros ? each : 0);
    return u->shape.out * row + (u->groups ? u->shape.in * sizeof *u->groups : 0);
}

/* Rows that are converted at a time. */
static size_t step_rows(const vptq_weight *w)
{
    enum { STEP_FLOATS = 1 << 20 };
    const size_t fit = STEP_FLOATS / w->cols + 1;
    return fit < w->rows ? fit : w->rows;
}

/* Converts n rows in place to the type in which the device has them: each number is exact. */
static void narrow(vptq_dtype type, float *x, size_t n)
{
    enum { PIECE = 1024 };
    uint16_t half[PIECE], *to = (uint16_t *)(void *)x;
    for (size_t i = 0, count; type != VPTQ_F32 && i < n; i += count) {
        count = n - i < PIECE ? n - i : PIECE;
        if (type == VPTQ_F16)
            vptq_f32_to_f16_n(x + i, half, count);
        else
            vptq_f32_to_bf16_n(x + i, half, count);
        memcpy(to + i, half, count * sizeof *half);
    }
}

/* dst = rows [r0, r0 + n) of a plain weight in the device's own memory, as vptq_weight_type. An
 * unused dst is one of upload_new. */
static vptq_status upload_rows(const vptq_weight *w, vptq_device *dev, size_t r0, size_t n,
                               void *dst, bool unused, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const size_t row = row_bytes(w), step = step_rows(w);
    const vptq_backend *ops = dev->ops;
    vptq_status (*const upload)(vptq_dev *, void *, const void *, size_t, vptq_err *) =
        unused ? ops->upload_new : ops->upload;
    if (is_raw(w->tensor))
        return upload(dev->state, dst, w->tensor->data + r0 * row, n * row, err);
    float *stage = vptq_mem_alloc(dev->ctx->mem, step, w->cols * sizeof *stage, err);
    if (!stage)
        return VPTQ_E_NOMEM;
    for (size_t r = 0, rows; r < n; r += rows) {
        rows = n - r < step ? n - r : step;
        VPTQ_TRY(read_to_host(dev->ctx, w->tensor, r0 + r, rows, stage, err));
        narrow(vptq_weight_type(w), stage, rows * w->cols);
        VPTQ_TRY(upload(dev->state, (char *)dst + r * row, stage, rows * row, err));
    }
out:
    vptq_mem_free(dev->ctx->mem, stage);
    return st;
}

/* to = rows [r0, r0 + n) of codes, as codes_in. */
static vptq_status upload_codes(const vptq_weight *w, vptq_device *dev, size_t r0, size_t n,
                                void *to, bool unused, vptq_err *err)
{
    const vptq_uniform *u = w->tensor->uniform;
    const size_t words = vptq_uniform_row_words(&u->shape),
                 groups = vptq_uniform_groups(&u->shape);
    const struct {
        const void *from;
        size_t bytes;
    } parts[] = {{u->codes + r0 * words, n * words * sizeof *u->codes},
                 {u->scales + r0 * groups, n * groups * sizeof *u->scales},
                 {u->groups, u->shape.in * sizeof *u->groups},
                 {u->zeros ? u->zeros + r0 * groups : NULL, n * groups}};
    vptq_status (*const upload)(vptq_dev *, void *, const void *, size_t, vptq_err *) =
        unused ? dev->ops->upload_new : dev->ops->upload;
    char *at = to;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (!parts[i].from)
            continue;
        VPTQ_CHECK(upload(dev->state, at, parts[i].from, parts[i].bytes, err));
        at += parts[i].bytes;
    }
    return VPTQ_OK;
}

/* ---- opened weights ---- */

vptq_status vptq_weight_open(const vptq_weight *w, vptq_device *dev, vptq_opened *o,
                             vptq_err *err)
{
    *o = (vptq_opened){.matrix = NULL};
    return w->packed ? dev->ops->matrix_open(dev->state, &w->packed->vq, &o->matrix, err)
                     : VPTQ_OK;
}

size_t vptq_weight_bytes(const vptq_weight *w, const vptq_device *dev)
{
    if (!w->tensor || dev->ops->host_memory)
        return 0;
    return has_codes(w) ? codes_bytes(w->tensor->uniform) : w->rows * row_bytes(w);
}

vptq_status vptq_weight_store(const vptq_weight *w, vptq_device *dev, vptq_opened *o,
                              vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    VPTQ_BUG_IF(w->packed || dev->ops->host_memory || o->stored);
    VPTQ_TRY(dev->ops->alloc(dev->state, vptq_weight_bytes(w, dev), 1, &o->stored, err));
    VPTQ_TRY(has_codes(w) ? upload_codes(w, dev, 0, w->rows, o->stored, true, err)
                          : upload_rows(w, dev, 0, w->rows, o->stored, true, err));
out:
    if (st)
        vptq_weight_close(dev, o);
    return st;
}

void vptq_weight_close(vptq_device *dev, vptq_opened *o)
{
    dev->ops->matrix_close(dev->state, o->matrix);
    dev->ops->release(dev->state, o->stored);
    *o = (vptq_opened){.matrix = NULL};
}

vptq_status vptq_weight_tile(const vptq_weight *w, const vptq_opened *o, vptq_device *dev,
                             size_t r0, size_t n, float *buffer, const void **rows,
                             vptq_err *err)
{
    *rows = buffer;
    VPTQ_BUG_IF(vptq_weight_takes_bytes(w));
    if (w->packed)
        return dev->ops->vq_dequant(dev->state, o->matrix, r0, n, buffer, w->cols, err);
    if (dev->ops->host_memory)
        return read_to_host(dev->ctx, w->tensor, r0, n, buffer, err);
    if (!o->stored || has_codes(w))
        return upload_rows(w, dev, r0, n, buffer, false, err);
    *rows = (const char *)o->stored + r0 * row_bytes(w);
    return VPTQ_OK;
}

vptq_status vptq_weight_codes(const vptq_weight *w, const vptq_opened *o, vptq_device *dev,
                              size_t r0, size_t n, float *buffer, const uint32_t **codes,
                              const float **scales, vptq_err *err)
{
    vptq_uniform u = *w->tensor->uniform;
    if (!dev->ops->host_memory && !o->stored) {
        VPTQ_CHECK(upload_codes(w, dev, r0, n, buffer, false, err));
        u = codes_in(&u, buffer, n);
        r0 = 0;
    } else if (o->stored) {
        u = codes_in(&u, o->stored, w->rows);
    }
    *codes = u.codes + r0 * vptq_uniform_row_words(&u.shape);
    *scales = u.scales + r0;
    return VPTQ_OK;
}

/* ---- products ---- */

size_t vptq_weight_gemv_rows(const vptq_weight *w, const vptq_device *dev, bool kept)
{
    enum { MAX_ROWS_ONCE = 8 }; /* for a weight that is used once */
    if (w->packed)
        return kept ? dev->ops->gemv_max_tokens : 0;
    if (!dev->ops->host_memory && vptq_weight_type(w) != VPTQ_F32)
        return SIZE_MAX;
    if (!dev->ops->host_memory)
        return kept ? dev->ops->gemv_max_tokens : 0;
    return !is_raw(w->tensor) && !has_codes(w) ? 0
           : kept                              ? dev->ops->gemv_max_tokens
                                               : MAX_ROWS_ONCE;
}

bool vptq_weight_is_whole(const vptq_weight *w, const vptq_opened *o, const vptq_device *dev)
{
    return w->packed || dev->ops->host_memory || o->stored;
}

vptq_status vptq_weight_gemv(const vptq_weight *w, const vptq_opened *o, vptq_device *dev,
                             const vptq_gemv_args *g, vptq_err *err)
{
    if (w->packed)
        return dev->ops->vq_gemv(dev->state, o->matrix, g, err);
    if (has_codes(w)) {
        const vptq_uniform *u = w->tensor->uniform;
        const vptq_uniform stored = o->stored ? codes_in(u, o->stored, w->rows) : *u;
        return dev->ops->uniform_gemv(dev->state, &stored, w->tensor->round_to, g, err);
    }
    return dev->ops->gemv(dev->state, w->rows, w->cols,
                          o->stored ? vptq_weight_type(w) : w->tensor->type,
                          o->stored ? o->stored : w->tensor->data, g, err);
}

/* ---- mapped bytes ---- */

void vptq_weight_forget(const vptq_weight *w)
{
    if (w->tensor)
        vptq_tensor_forget(w->tensor);
}

void vptq_weight_ahead(const vptq_weight *w)
{
    if (w->tensor)
        vptq_tensor_ahead(w->tensor);
}
