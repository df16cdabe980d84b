/* Residual k-means, rounds and the result (aqlm.h). */
#include "lib/uniform/aqlm.h"

#include <math.h>
#include <string.h>

#include "kmeans/kmeans.h"
#include "lib/backend/mirror.h"
#include "lib/base/parallel.h"
#include "lib/uniform/aqlm_state.h"
#include "lib/uniform/metric.h"

enum { ROWS = 16 };

/* ---- errors ---- */

typedef struct measuring {
    const vptq_aqlm_state *a;
    bool error;
    double *loss; /* [out] */
} measuring;

static void decode_rows(void *arg, size_t begin, size_t end, int thread)
{
    const measuring *d = arg;
    const vptq_aqlm_state *a = d->a;
    const vptq_aqlm_settings *s = a->s;
    const size_t in = a->input->in, v = s->v, stage = a->input->out * a->vectors;
    (void)thread;
    for (size_t i = begin * in; i < end * in; i++) {
        const size_t vector = i / v, e = i % v;
        float z = a->codebooks[a->codes[vector] * v + e];
        for (size_t m = 1; m < s->codebooks; m++)
            z += a->codebooks[(m * s->k + a->codes[m * stage + vector]) * v + e];
        a->e[i] = d->error ? z * a->scales[i / in] - a->input->w[i] : z;
    }
}

static void loss_rows(void *arg, size_t begin, size_t end, int thread)
{
    const measuring *m = arg;
    const size_t in = m->a->input->in;
    (void)thread;
    for (size_t r = begin; r < end; r++) {
        m->loss[r] = 0;
        for (size_t i = r * in; i < (r + 1) * in; i++)
            m->loss[r] += (double)m->a->e[i] * (double)m->a->eh[i];
    }
}

static vptq_status multiply(const vptq_aqlm_state *a, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const size_t out = a->input->out, in = a->input->in;
    vptq_mirror m = vptq_mirror_of(a->dev);
    const vptq_gemm_args product = {
        .m = out,
        .n = in,
        .k = in,
        .a = vptq_mirror_in(&m, a->e, out, in * sizeof(float)),
        .b = vptq_mirror_in(&m, a->h, in, in * sizeof(float)),
        .c = vptq_mirror_take(&m, a->eh, out, in * sizeof(float), VPTQ_MIRROR_DOWNLOAD),
        .lda = in,
        .ldb = in,
        .ldc = in,
        .alpha = 1};
    VPTQ_TRY(vptq_mirror_check(&m, err));
    VPTQ_TRY(a->dev->ops->gemm(a->dev->state, &product, err));
out:
    return vptq_mirror_end(&m, st, err);
}

vptq_status vptq_aqlm_decode(vptq_aqlm_state *a, bool error, vptq_err *err)
{
    measuring m = {.a = a, .error = error};
    vptq_parallel_for(a->dev->ctx->threads, a->input->out, ROWS, decode_rows, &m);
    return multiply(a, err);
}

/* e and eh of the error, and *loss = tr(e h e^T). */
static vptq_status measure(vptq_aqlm_state *a, double *loss, vptq_err *err)
{
    const vptq_ctx *ctx = a->dev->ctx;
    const size_t out = a->input->out;
    VPTQ_CHECK(vptq_aqlm_decode(a, true, err));
    measuring m = {.a = a, .loss = vptq_mem_alloc(ctx->mem, out, sizeof *m.loss, err)};
    if (!m.loss)
        return VPTQ_E_NOMEM;
    vptq_parallel_for(ctx->threads, out, ROWS, loss_rows, &m);
    *loss = 0;
    for (size_t r = 0; r < out; r++)
        *loss += m.loss[r];
    vptq_mem_free(ctx->mem, m.loss);
    return VPTQ_OK;
}

/* ---- residual k-means ---- */

/* The scale of every row, its norm, and x [out, in] = the weights divided by it. */
static void normalize(const vptq_aqlm_state *a, float *x)
{
    const size_t out = a->input->out, in = a->input->in;
    for (size_t r = 0; r < out; r++) {
        const float *w = a->input->w + r * in;
        double sum = 0;
        for (size_t i = 0; i < in; i++)
            sum += (double)w[i] * (double)w[i];
        a->scales[r] = (float)sqrt(sum);
        vptq_uniform_store(a->s->storage, a->scales + r, 1);
        for (size_t i = 0; i < in; i++)
            x[r * in + i] = a->scales[r] > 0 ? w[i] / a->scales[r] : 0;
    }
}

/* Codebook and codes of one stage for the vectors x. */
static vptq_status cluster(const vptq_aqlm_state *a, uint32_t stage, float *x, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_aqlm_settings *s = a->s;
    const size_t n = a->input->out * a->vectors, size = s->v * sizeof(float);
    vptq_kmeans_options o = vptq_kmeans_default(s->v, s->k);
    vptq_kmeans_stats stats;
    o.iterations = s->kmeans_iterations;
    o.rng = vptq_rng_make(s->seed, s->matrix, stage, VPTQ_RNG_SEEDING);
    vptq_mirror m = vptq_mirror_of(a->dev);
    const vptq_kmeans_args args = {
        .n = n,
        .x = vptq_mirror_in(&m, x, n, size),
        .centroids = vptq_mirror_take(&m, a->codebooks + (size_t)stage * s->k * s->v, s->k,
                                      size, VPTQ_MIRROR_DOWNLOAD),
        .labels = vptq_mirror_take(&m, a->codes + stage * n, n, sizeof(uint32_t),
                                   VPTQ_MIRROR_DOWNLOAD)};
    VPTQ_TRY(vptq_mirror_check(&m, err));
    VPTQ_TRY(vptq_kmeans_run(a->dev, &o, &args, &stats, err));
out:
    return vptq_mirror_end(&m, st, err);
}

static vptq_status residual_kmeans(const vptq_aqlm_state *a, float *x, vptq_err *err)
{
    const vptq_aqlm_settings *s = a->s;
    const size_t n = a->input->out * a->vectors;
    normalize(a, x);
    for (uint32_t stage = 0; stage < s->codebooks; stage++) {
        float *codebook = a->codebooks + (size_t)stage * s->k * s->v;
        VPTQ_CHECK(vptq_check_cancel(a->dev->ctx, err));
        VPTQ_CHECK(cluster(a, stage, x, err));
        vptq_uniform_store(s->storage, codebook, (size_t)s->k * s->v);
        for (size_t i = 0; i < n; i++)
            for (size_t e = 0; e < s->v; e++)
                x[i * s->v + e] -= codebook[a->codes[stage * n + i] * s->v + e];
    }
    return VPTQ_OK;
}

/* ---- rounds ---- */

static vptq_status run(vptq_aqlm_state *a, vptq_err *err)
{
    double loss, before;
    VPTQ_CHECK(residual_kmeans(a, a->e, err));
    VPTQ_CHECK(measure(a, &before, err));
    for (uint32_t round = 0; round < a->s->rounds; round++) {
        VPTQ_CHECK(vptq_check_cancel(a->dev->ctx, err));
        VPTQ_CHECK(vptq_aqlm_fit(a, VPTQ_AQLM_ITERATIONS, err));
        VPTQ_CHECK(vptq_aqlm_decode(a, true, err));
        VPTQ_CHECK(vptq_aqlm_search(a, round, err));
        VPTQ_CHECK(measure(a, &loss, err));
        if (!(loss < (1 - a->s->tolerance) * before))
            break;
        before = loss;
    }
    return VPTQ_OK;
}

vptq_additive_shape vptq_aqlm_shape_of(const vptq_aqlm_settings *s, uint32_t out, uint32_t in)
{
    vptq_additive_shape shape = {.out = out,
                                 .in = in,
                                 .v = s->v,
                                 .stages = s->codebooks,
                                 .block_rows = out,
                                 .block_columns = in,
                                 .scale_columns = in};
    for (uint32_t m = 0; m < s->codebooks && m < VPTQ_ADDITIVE_MAX_STAGES; m++)
        shape.bits[m] = vptq_log2u(s->k);
    return shape;
}

static uint32_t *pack_codes(const vptq_additive_shape *s, uint32_t stage, const uint32_t *codes,
                            vptq_arena *arena, vptq_err *err)
{
    const size_t words = vptq_additive_row_words(s, stage), vectors = s->in / s->v;
    uint32_t *packed = vptq_arena_zalloc(arena, s->out * words, sizeof *packed, err);
    for (size_t r = 0; packed && r < s->out; r++)
        for (size_t t = 0; t < vectors; t++)
            vptq_bits_put(packed + r * words, t, s->bits[stage], codes[r * vectors + t]);
    return packed;
}

/* Allocates what is kept in `arena`, the rest in `scratch`. */
static vptq_status allocate(vptq_aqlm_state *a, vptq_arena *arena, vptq_arena *scratch,
                            vptq_err *err)
{
    const vptq_aqlm_settings *s = a->s;
    const size_t out = a->input->out, in = a->input->in;
    float *h = vptq_arena_alloc(scratch, in, in * sizeof *h, err);
    a->h = h;
    a->codebooks =
        h ? vptq_arena_alloc(arena, (size_t)s->codebooks * s->k, s->v * sizeof(float), err)
          : NULL;
    a->scales = a->codebooks ? vptq_arena_alloc(arena, out, sizeof *a->scales, err) : NULL;
    a->e = a->scales ? vptq_arena_alloc(scratch, out, in * sizeof *a->e, err) : NULL;
    a->eh = a->e ? vptq_arena_alloc(scratch, out, in * sizeof *a->eh, err) : NULL;
    a->codes = a->eh ? vptq_arena_alloc(scratch, s->codebooks * out * a->vectors,
                                        sizeof *a->codes, err)
                     : NULL;
    if (!a->codes)
        return VPTQ_E_NOMEM;
    return vptq_uniform_metric(a->dev, a->input, h, err);
}

vptq_status vptq_aqlm_quantize(vptq_device *dev, const vptq_aqlm_settings *s,
                               const vptq_uniform_input *input, vptq_arena *arena,
                               vptq_additive *q, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena scratch;
    const vptq_additive_shape shape = vptq_aqlm_shape_of(s, input->out, input->in);
    VPTQ_CHECK(vptq_additive_shape_check(&shape, err));
    vptq_aqlm_state a = {.dev = dev, .s = s, .input = input, .vectors = input->in / s->v};
    *q = (vptq_additive){.shape = shape};
    vptq_arena_init(&scratch, dev->ctx->mem);
    VPTQ_TRY(allocate(&a, arena, &scratch, err));
    VPTQ_TRY(run(&a, err));
    q->scales = a.scales;
    for (uint32_t m = 0; m < s->codebooks && !st; m++) {
        q->codebooks[m] = a.codebooks + (size_t)m * s->k * s->v;
        q->codes[m] = pack_codes(&shape, m, a.codes + m * input->out * a.vectors, arena, err);
        st = q->codes[m] ? VPTQ_OK : VPTQ_E_NOMEM;
    }
out:
    vptq_arena_release(&scratch);
    return st;
}
