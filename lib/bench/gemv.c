/* Times products with packed matrices against dense ones. */
#include "lib/bench/gemv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/grid.h"
#include "lib/base/half.h"
#include "lib/base/parallel.h"
#include "lib/base/rng.h"
#include "lib/bench/gemv_check.h"
#include "lib/report/stats.h"

enum { MAX_ROUNDS = 101, MIN_ROUNDS = 5, MAX_WAYS = 16, MAX_BATCH = 1024 };
static const double min_sample = 300e-6; /* seconds of a timed sample */

const vptq_gemv_pair *vptq_gemv_published_shapes(void)
{
    static const vptq_gemv_pair shapes[VPTQ_GEMV_SHAPES] = {
        {1024, 1024},  {2048, 1024},  {4096, 1024},  {8192, 1024},  {16384, 1024},
        {1024, 4096},  {2048, 4096},  {4096, 4096},  {8192, 4096},  {16384, 4096},
        {1024, 8192},  {2048, 8192},  {4096, 8192},  {8192, 8192},  {16384, 8192},
        {1024, 14336}, {2048, 14336}, {4096, 14336}, {8192, 14336}, {16384, 14336},
        {1024, 28672}, {2048, 28672}, {4096, 28672}, {8192, 28672}, {16384, 28672},
        {1024, 53248}, {2048, 53248}, {4096, 53248}, {8192, 53248}, {16384, 53248}};
    return shapes;
}

const vptq_gemv_pair *vptq_gemv_chain_shapes(void)
{
    static const vptq_gemv_pair shapes[VPTQ_GEMV_CHAINS] = {
        {576, 1536}, {2048, 5632}, {4096, 11008}, {5120, 13824}};
    return shapes;
}

const vptq_gemv_pair *vptq_gemv_published_codebooks(void)
{
    static const vptq_gemv_pair codebooks[VPTQ_GEMV_CODEBOOKS] = {
        {4096, 256}, {8192, 256}, {4096, 512}, {8192, 512}};
    return codebooks;
}

/* The operands: the packed matrix, the dense one in 16 bits, and one for the library: in F32
 * for a library of the host, in float16 for those of a device. */
typedef enum { PACKED, HALF, LIBRARY, KINDS } kind;

/* Matrices of one shape.  A call is one product, or `times` products with each part of a chain.
 */
typedef struct bench {
    struct bench *next_part; /* of the chain, or NULL */
    size_t times;            /* 1 without a chain */
    vptq_device *dev;
    const vptq_gemv_options *opt;
    vptq_gemv_pair name; /* in_features and out_features of the row */
    vptq_vq_shape shape;
    size_t batch;
    size_t copies[KINDS];
    vptq_matrix **matrix; /* [copies] */
    /* Content of the packed matrices in host memory: one for each copy, or one for all where
     * the device has memory of its own. */
    size_t stored, index_words;
    uint32_t *indices;
    float *codebook;     /* [stored, k, v] */
    float *res_codebook; /* [stored, k_res, v] */
    float *norm;         /* [stored, 2, in] */
    /* In device memory: */
    uint16_t *half;            /* [copies, out, in] */
    void *dense;               /* [copies, out, in] of the library */
    float *x, *y;              /* [batch, in], [batch, out] */
    uint16_t *half_x, *half_y; /* the same for a device's library */
    unsigned way;              /* the library's routine (vptq_half_args) */
    size_t next[KINDS];
    double bandwidth; /* bytes per second of reading memory */
} bench;

/* ---- matrices of random content ---- */

/* Content of an array; CODEBOOK is floats that are exact in 16 bits, GRID those of an int8
 * grid.
 */
typedef enum {
    WORDS,
    FLOATS,
    CODEBOOK_F16,
    CODEBOOK_BF16,
    CODEBOOK_GRID,
    FLOAT16,
    BFLOAT16
} content;

typedef struct fill_job {
    vptq_rng rng;
    content content;
    void *dst;
} fill_job;

/* Uniform in [-1, 1). */
static float random_float(const vptq_rng *rng, uint64_t i)
{
    return (float)(vptq_rng_uniform(rng, i) * 2 - 1);
}

static void fill_range(void *arg, size_t begin, size_t end, int thread)
{
    const fill_job *job = arg;
    uint32_t *words = job->dst;
    float *floats = job->dst;
    uint16_t *halves = job->dst;
    (void)thread;
    for (size_t i = begin; i < end; i++) {
        if (job->content == WORDS) {
            words[i] = (uint32_t)vptq_rng_u64(&job->rng, i);
            continue;
        }
        const float x = random_float(&job->rng, i);
        if (job->content == FLOATS)
            floats[i] = x;
        else if (job->content == CODEBOOK_F16)
            floats[i] = vptq_f16_to_f32(vptq_f32_to_f16(x));
        else if (job->content == CODEBOOK_BF16)
            floats[i] = vptq_bf16_to_f32(vptq_f32_to_bf16(x));
        else if (job->content == CODEBOOK_GRID)
            floats[i] = rintf(x * VPTQ_GRID_MAX) / (VPTQ_GRID_MAX + 1);
        else
            halves[i] = job->content == FLOAT16 ? vptq_f32_to_f16(x) : vptq_f32_to_bf16(x);
    }
}

static size_t element_size(content c)
{
    return c == FLOAT16 || c == BFLOAT16 ? sizeof(uint16_t) : sizeof(float);
}

/* Fills dst [n] from random stream `stream`.  Large arrays repeat with a period larger than any
 * cache, because drawing every number would take longer than the measurement. */
static void fill_random(const bench *b, content c, uint32_t stream, size_t n, void *dst)
{
    const size_t period = (size_t)3 << 23, size = element_size(c);
    fill_job job = {
        .rng = vptq_rng_make(b->opt->seed, stream, 0, VPTQ_RNG_TEST), .content = c, .dst = dst};
    vptq_parallel_for(b->dev->ctx->threads, n < period ? n : period, 1 << 14, fill_range, &job);
    for (size_t at = period; at < n; at += period)
        memcpy((uint8_t *)dst + at * size, dst, (n - at < period ? n - at : period) * size);
}

/* Allocates `copies` identical arrays of n random elements in device memory. */
static vptq_status make_random(const bench *b, content c, uint32_t stream, size_t n,
                               size_t copies, void **dst, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_backend *ops = b->dev->ops;
    const size_t bytes = n * element_size(c);
    void *stage = NULL;
    *dst = NULL;
    VPTQ_TRY(ops->alloc(b->dev->state, copies, bytes ? bytes : 1, dst, err));
    if (!ops->host_memory) {
        stage = vptq_mem_alloc(b->dev->ctx->mem, n ? n : 1, element_size(c), err);
        if (!stage)
            VPTQ_TRY(VPTQ_E_NOMEM);
    }
    void *one = stage ? stage : *dst;
    fill_random(b, c, stream, n, one);
    for (size_t i = stage ? 0 : 1; i < copies; i++)
        VPTQ_TRY(ops->upload(b->dev->state, (uint8_t *)*dst + i * bytes, one, bytes, err));
out:
    vptq_mem_free(b->dev->ctx->mem, stage);
    return st;
}

/* The same for b->stored arrays in host memory; NULL without memory. */
static void *make_stored(const bench *b, content c, uint32_t stream, size_t n, vptq_err *err)
{
    const size_t bytes = n * element_size(c);
    uint8_t *dst = vptq_mem_alloc(b->dev->ctx->mem, b->stored, bytes ? bytes : 1, err);
    if (!dst)
        return NULL;
    fill_random(b, c, stream, n, dst);
    for (size_t i = 1; i < b->stored; i++)
        memcpy(dst + i * bytes, dst, bytes);
    return dst;
}

/* Indices 0, 1, 2, ... into both codebooks in every vector row. */
static void make_sequential(const bench *b)
{
    const vptq_vq_shape *s = &b->shape;
    const size_t words = vptq_vq_row_words(s), bytes = b->index_words * sizeof(uint32_t);
    uint32_t *rows = b->indices;
    memset(rows, 0, bytes);
    for (size_t r = 0; r < vptq_vq_vector_rows(s); r++)
        for (size_t c = 0; c < s->in; c++) {
            const uint64_t i = r * s->in + c;
            const uint32_t main = (uint32_t)(i % s->k),
                           res = s->k_res ? (uint32_t)(i % s->k_res) : 0;
            vptq_bits_put(rows + r * words, c, vptq_vq_index_bits(s),
                          main | (s->k_res ? res << vptq_log2u(s->k) : 0));
        }
    for (size_t c = 1; c < b->stored; c++)
        memcpy(rows + c * b->index_words, rows, bytes);
}

/* ---- memory ---- */

static void release_matrices(bench *b)
{
    vptq_mem *mem = b->dev->ctx->mem;
    void *device_arrays[] = {b->half, b->dense, b->x, b->y, b->half_x, b->half_y};
    void *host_arrays[] = {b->matrix, b->indices, b->codebook, b->res_codebook, b->norm};
    for (size_t c = 0; b->matrix && c < b->copies[PACKED]; c++)
        b->dev->ops->matrix_close(b->dev->state, b->matrix[c]);
    for (size_t i = 0; i < sizeof device_arrays / sizeof *device_arrays; i++)
        b->dev->ops->release(b->dev->state, device_arrays[i]);
    for (size_t i = 0; i < sizeof host_arrays / sizeof *host_arrays; i++)
        vptq_mem_free(mem, host_arrays[i]);
    b->matrix = NULL;
    b->indices = NULL;
    b->codebook = b->res_codebook = b->norm = b->x = b->y = NULL;
    b->half = b->half_x = b->half_y = NULL;
    b->dense = NULL;
}

/* Number of copies of `bytes` that together exceed three times the device's cache. */
static size_t count_copies(const bench *b, double bytes)
{
    enum { TIMES = 3, MAX_COPIES = 1024, DEFAULT_CACHE = 32 << 20 };
    const size_t cache = b->dev->ops->cache_bytes(b->dev->state);
    if (b->opt->cache == VPTQ_GEMV_WARM)
        return 1;
    const double wanted = TIMES * (double)(cache ? cache : DEFAULT_CACHE) / bytes + 1;
    const size_t copies = wanted < MAX_COPIES ? (size_t)wanted : MAX_COPIES;
    return copies > b->times ? copies : b->times;
}

static double packed_bytes(const vptq_vq_shape *s)
{
    return (double)vptq_vq_count_bits(s).total / 8;
}

static vptq_vq stored_copy(const bench *b, size_t c)
{
    const vptq_vq_shape *s = &b->shape;
    const float *norm = b->norm + c * 2 * s->in;
    return (vptq_vq){.shape = *s,
                     .indices = b->indices + c * b->index_words,
                     .centroids = b->codebook + c * s->k * s->v,
                     .res_centroids = s->k_res ? b->res_codebook + c * s->k_res * s->v : NULL,
                     .scale = norm,
                     .bias = norm + s->in};
}

static vptq_status make_packed(bench *b, vptq_err *err)
{
    const vptq_vq_shape *s = &b->shape;
    const size_t copies = b->copies[PACKED];
    b->stored = b->dev->ops->host_memory ? copies : 1;
    b->index_words = vptq_vq_vector_rows(s) * vptq_vq_row_words(s);
    b->indices = make_stored(b, WORDS, 0, b->index_words, err);
    const content codebook = b->opt->grid                ? CODEBOOK_GRID
                             : b->opt->dtype == VPTQ_F16 ? CODEBOOK_F16
                                                         : CODEBOOK_BF16;
    b->codebook = make_stored(b, codebook, 1, (size_t)s->k * s->v, err);
    b->res_codebook = make_stored(b, codebook, 2, (size_t)s->k_res * s->v, err);
    b->norm = make_stored(b, FLOATS, 3, 2 * (size_t)s->in, err);
    b->matrix = vptq_mem_alloc(b->dev->ctx->mem, copies, sizeof(*b->matrix), err);
    for (size_t c = 0; b->matrix && c < copies; c++)
        b->matrix[c] = NULL;
    if (!b->indices || !b->codebook || !b->res_codebook || !b->norm || !b->matrix)
        VPTQ_CHECK(VPTQ_E_NOMEM);
    if (b->opt->sequential)
        make_sequential(b);
    for (size_t c = 0; c < copies; c++) {
        const vptq_vq q = stored_copy(b, c % b->stored);
        VPTQ_CHECK(b->dev->ops->matrix_open(b->dev->state, &q, &b->matrix[c], err));
    }
    return VPTQ_OK;
}

/* Replaces the array *array in device memory. */
static vptq_status make_again(const bench *b, content c, uint32_t stream, size_t n,
                              void *const array, vptq_err *err)
{
    void *p = NULL;
    memcpy(&p, array, sizeof p);
    b->dev->ops->release(b->dev->state, p);
    const vptq_status st = make_random(b, c, stream, n, 1, &p, err);
    memcpy(array, &p, sizeof p);
    return st;
}

/* release_matrices frees what it has allocated after a failure. */
static vptq_status make_matrices(bench *b, vptq_err *err)
{
    const size_t n = (size_t)b->shape.out * b->shape.in;
    const content dense = b->dev->ops->host_memory ? FLOATS : FLOAT16;
    void *half = NULL;
    b->copies[PACKED] = count_copies(b, packed_bytes(&b->shape));
    b->copies[HALF] = count_copies(b, 2 * (double)n);
    b->copies[LIBRARY] = count_copies(b, (double)element_size(dense) * (double)n);
    VPTQ_CHECK(make_packed(b, err));
    const vptq_status st = make_random(b, b->opt->dtype == VPTQ_F16 ? FLOAT16 : BFLOAT16, 4, n,
                                       b->copies[HALF], &half, err);
    b->half = half;
    VPTQ_CHECK(st);
    return make_random(b, dense, 5, n, b->copies[LIBRARY], &b->dense, err);
}

static vptq_status make_activations(bench *b, vptq_err *err)
{
    const size_t x = b->batch * b->shape.in, y = b->batch * b->shape.out;
    VPTQ_CHECK(make_again(b, FLOATS, 6, x, &b->x, err));
    VPTQ_CHECK(make_again(b, FLOATS, 7, y, &b->y, err));
    if (b->dev->ops->host_memory)
        return VPTQ_OK;
    VPTQ_CHECK(make_again(b, FLOAT16, 6, x, &b->half_x, err));
    return make_again(b, FLOAT16, 7, y, &b->half_y, err);
}

/* ---- products ---- */

static vptq_status multiply_by_library(bench *b, size_t copy, vptq_err *err)
{
    const vptq_backend *ops = b->dev->ops;
    const size_t out = b->shape.out, in = b->shape.in, n = out * in;
    if (ops->host_memory) {
        const vptq_gemv_args g = {.n = b->batch, .x = b->x, .y = b->y, .ldx = in, .ldy = out};
        return ops->library_gemv(b->dev->state, out, in, (const float *)b->dense + copy * n, &g,
                                 err);
    }
    const vptq_half_args h = {.out = out,
                              .in = in,
                              .n = b->batch,
                              .way = b->way,
                              .w = (const uint16_t *)b->dense + copy * n,
                              .x = b->half_x,
                              .y = b->half_y};
    return ops->library_half(b->dev->state, &h, err);
}

/* One product with the next copy. */
static vptq_status multiply(bench *b, kind which, vptq_err *err)
{
    const vptq_backend *ops = b->dev->ops;
    const vptq_vq_shape *s = &b->shape;
    const size_t c = b->next[which]++ % b->copies[which], n = (size_t)s->out * s->in;
    const vptq_gemv_args g = {.n = b->batch, .x = b->x, .y = b->y, .ldx = s->in, .ldy = s->out};
    if (which == PACKED)
        return ops->vq_gemv(b->dev->state, b->matrix[c], &g, err);
    if (which == HALF)
        return ops->gemv(b->dev->state, s->out, s->in, b->opt->dtype, b->half + c * n, &g, err);
    return multiply_by_library(b, c, err);
}

static vptq_status check_product(bench *b, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_backend *ops = b->dev->ops;
    const vptq_vq_shape *s = &b->shape;
    const size_t inputs = b->batch * s->in, outputs = b->batch * s->out;
    const vptq_vq q = stored_copy(b, 0);
    vptq_arena arena;
    vptq_arena_init(&arena, b->dev->ctx->mem);
    float *x = vptq_arena_alloc(&arena, inputs, sizeof *x, err);
    float *y = vptq_arena_alloc(&arena, outputs, sizeof *y, err);
    if (!x || !y)
        VPTQ_TRY(VPTQ_E_NOMEM);
    b->next[PACKED] = 0;
    VPTQ_TRY(multiply(b, PACKED, err));
    VPTQ_TRY(ops->download(b->dev->state, x, b->x, inputs * sizeof *x, err));
    VPTQ_TRY(ops->download(b->dev->state, y, b->y, outputs * sizeof *y, err));
    st = vptq_gemv_check(b->dev->ctx, &q, b->batch, x, y, err);
out:
    vptq_arena_release(&arena);
    return st;
}

/* ---- time ---- */

typedef struct samples {
    double seconds[MAX_ROUNDS]; /* per call */
    size_t count;
    size_t calls; /* in one sample */
} samples;

/* Quantile of the seconds, in microseconds; sorts them. */
static double quantile_us(samples *s, double q)
{
    qsort(s->seconds, s->count, sizeof *s->seconds, vptq_stats_order);
    return 1e6 * vptq_quantile(s->seconds, s->count, q);
}

/* One call: a product, or one with every matrix of the chain. */
static vptq_status multiply_all(bench *b, kind which, vptq_err *err)
{
    for (bench *part = b; part; part = part->next_part)
        for (size_t i = 0; i < part->times; i++)
            VPTQ_CHECK(multiply(part, which, err));
    return VPTQ_OK;
}

typedef struct sample_work {
    bench *b;
    kind which;
    size_t calls;
} sample_work;

static vptq_status multiply_often(void *arg, vptq_err *err)
{
    const sample_work *w = arg;
    for (size_t i = 0; i < w->calls; i++)
        VPTQ_CHECK(multiply_all(w->b, w->which, err));
    return VPTQ_OK;
}

/* Mean seconds of a call over `calls` calls. */
static vptq_status time_calls(bench *b, kind which, size_t calls, double *seconds,
                              vptq_err *err)
{
    sample_work w = {b, which, calls};
    VPTQ_CHECK(b->dev->ops->measure(b->dev->state, multiply_often, &w, seconds, err));
    *seconds /= (double)calls;
    return VPTQ_OK;
}

/* Multiplies once with every packed matrix, whose first product prepares it, and once in the
 * other ways, because a recorded product must find its working memory allocated; then chooses
 * the calls per sample from one more call of each kind. */
static vptq_status warm_up(bench *b, bool has_library, samples s[KINDS], vptq_err *err)
{
    for (bench *part = b; part; part = part->next_part)
        for (size_t c = 0; c < part->copies[PACKED]; c++)
            VPTQ_CHECK(multiply(part, PACKED, err));
    for (int i = 0; i < KINDS; i++) {
        double first = 0;
        s[i].count = 0;
        if (i == LIBRARY && !has_library)
            continue;
        if (i != PACKED)
            VPTQ_CHECK(multiply_all(b, (kind)i, err));
        VPTQ_CHECK(time_calls(b, (kind)i, 1, &first, err));
        s[i].calls = first < min_sample ? (size_t)(min_sample / (first + 1e-9)) + 1 : 1;
    }
    return VPTQ_OK;
}

/* Times the kinds in turns until the time for the row is over. */
static vptq_status time_row(bench *b, bool has_library, samples s[KINDS], vptq_err *err)
{
    VPTQ_CHECK(warm_up(b, has_library, s, err));
    const double start = vptq_seconds();
    for (size_t round = 0; round < MAX_ROUNDS; round++) {
        if (round >= MIN_ROUNDS && vptq_seconds() - start > b->opt->seconds)
            break;
        VPTQ_CHECK(vptq_check_cancel(b->dev->ctx, err));
        for (int i = 0; i < KINDS; i++) {
            if (i == LIBRARY && !has_library)
                continue;
            VPTQ_CHECK(time_calls(b, (kind)i, s[i].calls, &s[i].seconds[s[i].count], err));
            s[i].count++;
        }
    }
    return VPTQ_OK;
}

/* Chooses the fastest routine of a device's library for one matrix: a cycle through the copies
 * with each.  VPTQ_E_UNSUPPORTED without a library. */
static vptq_status choose_way(bench *b, vptq_err *err)
{
    bench one = *b;
    double best = 0;
    one.next_part = NULL;
    one.times = 1;
    for (one.way = 0; one.way < MAX_WAYS; one.way++) {
        double seconds = 0;
        const vptq_status st = multiply(&one, LIBRARY, err); /* allocates on first use */
        if (st == VPTQ_E_UNSUPPORTED && one.way)
            break;
        VPTQ_CHECK(st);
        VPTQ_CHECK(time_calls(&one, LIBRARY, one.copies[LIBRARY], &seconds, err));
        if (!one.way || seconds < best) {
            best = seconds;
            b->way = one.way;
        }
    }
    return VPTQ_OK;
}

/* Sets *has if the backend has a library to compare with.  Without it a ratio says little, so
 * that the user gets a warning. */
static vptq_status find_library(bench *b, bool *has, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const bool host = b->dev->ops->host_memory;
    for (bench *part = b; part && !st; part = part->next_part)
        st = host ? multiply(part, LIBRARY, err) : choose_way(part, err);
    *has = st == VPTQ_OK;
    if (st == VPTQ_E_UNSUPPORTED)
        vptq_log(b->dev->ctx, VPTQ_LOG_WARN, "no product to compare with: %s",
                 err ? err->text : "no library");
    return st == VPTQ_E_UNSUPPORTED ? VPTQ_OK : st;
}

/* Makes the activations of a batch and checks the packed products with them. */
static vptq_status prepare_parts(bench *b, size_t batch, vptq_err *err)
{
    for (bench *part = b; part; part = part->next_part) {
        part->batch = batch;
        VPTQ_CHECK(make_activations(part, err));
        VPTQ_CHECK(check_product(part, err));
    }
    return VPTQ_OK;
}

static vptq_status measure_row(bench *b, vptq_gemv_row *row, vptq_err *err)
{
    const vptq_vq_shape *s = &b->shape;
    samples t[KINDS];
    bool has_library = false;
    VPTQ_CHECK(find_library(b, &has_library, err));
    VPTQ_CHECK(time_row(b, has_library, t, err));
    *row =
        (vptq_gemv_row){.in_features = b->name.a,
                        .out_features = b->name.b,
                        .v = s->v,
                        .k = s->k,
                        .k_res = s->k_res,
                        .batch = (uint32_t)b->batch,
                        .time_us = quantile_us(&t[PACKED], 0.5),
                        .time_p10_us = quantile_us(&t[PACKED], 0.1),
                        .time_p90_us = quantile_us(&t[PACKED], 0.9),
                        .half_us = quantile_us(&t[HALF], 0.5),
                        .library_us = has_library ? quantile_us(&t[LIBRARY], 0.5) : (double)NAN,
                        .way = b->way};
    for (const bench *part = b; part; part = part->next_part) {
        row->packed_bytes += part->times * (uint64_t)packed_bytes(&part->shape);
        row->half_bytes += part->times * 2 * (uint64_t)part->shape.out * part->shape.in;
    }
    row->dense_us = row->library_us < row->half_us ? row->library_us : row->half_us;
    row->ratio = row->time_us / row->dense_us;
    const double rate = (double)row->packed_bytes / (row->time_us * 1e-6);
    row->gb_per_second = rate / 1e9;
    row->floor_fraction = rate / b->bandwidth;
    return VPTQ_OK;
}

typedef struct reading {
    const bench *b;
    size_t rows, columns;
    const float *w;
    vptq_gemv_args g;
} reading;

static vptq_status read_rows(void *arg, vptq_err *err)
{
    const reading *r = arg;
    return r->b->dev->ops->gemv(r->b->dev->state, r->rows, r->columns, VPTQ_F32, r->w, &r->g,
                                err);
}

/* Best of several measurements of the rate at which a large dense matrix is read; of its first
 * rows where those already take long. */
static vptq_status measure_bandwidth(bench *b, vptq_err *err)
{
    enum { MIN_ROWS = 64, ROWS = 4096, COLUMNS = 16384, TIMES = 7 };
    static const double long_seconds = 5e-3;
    vptq_status st = VPTQ_OK;
    const vptq_backend *ops = b->dev->ops;
    void *w = NULL, *x = NULL, *y = NULL;
    VPTQ_TRY(make_random(b, FLOATS, 8, (size_t)ROWS * COLUMNS, 1, &w, err));
    VPTQ_TRY(make_random(b, FLOATS, 9, COLUMNS, 1, &x, err));
    VPTQ_TRY(make_random(b, FLOATS, 10, ROWS, 1, &y, err));
    reading r = {
        b, MIN_ROWS, COLUMNS, w, {.n = 1, .x = x, .y = y, .ldx = COLUMNS, .ldy = ROWS}};
    VPTQ_TRY(read_rows(&r, err));
    for (int i = 0; i < TIMES; i++) {
        double seconds = 0;
        VPTQ_TRY(ops->measure(b->dev->state, read_rows, &r, &seconds, err));
        const double rate = (double)r.rows * COLUMNS * sizeof(float) / (seconds + 1e-9);
        if (seconds < long_seconds && r.rows < ROWS) { /* too few rows to say much */
            r.rows *= 2;
            i = -1;
        } else
            b->bandwidth = rate > b->bandwidth ? rate : b->bandwidth;
    }
out:
    ops->release(b->dev->state, w);
    ops->release(b->dev->state, x);
    ops->release(b->dev->state, y);
    return st;
}

/* ---- the table ---- */

static vptq_vq_shape shape_of(const vptq_gemv_options *o, uint32_t in, uint32_t out,
                              const vptq_gemv_pair *codebooks)
{
    return (vptq_vq_shape){.out = out,
                           .in = in,
                           .v = o->v,
                           .k = codebooks->a,
                           .k_res = codebooks->b,
                           .groups = 1,
                           .group_size = in,
                           .has_norm = true};
}

static vptq_status check_shape(const vptq_vq_shape *s, vptq_err *err)
{
    if (s->out == 0)
        return vptq_fail(err, VPTQ_E_ARG, "a matrix has 0 rows, expected at least 1");
    return vptq_vq_shape_check(s, err) ? VPTQ_E_ARG : VPTQ_OK;
}

enum { MAX_PARTS = 3 };

/* Lists the matrices of a row: one, or those of a block of a model grouped by shape.  Returns
 * their number. */
static size_t list_parts(const vptq_gemv_options *o, const vptq_gemv_pair *shape,
                         const vptq_gemv_pair *codebooks, bench parts[MAX_PARTS])
{
    const uint32_t a = shape->a, b = shape->b;
    const bool chain = o->cache == VPTQ_GEMV_CHAIN;
    const struct {
        uint32_t in, out;
        size_t times;
    } block[MAX_PARTS] = {{a, a, 4}, {a, b, 2}, {b, a, 1}}; /* q k v o, gate up, down */
    for (size_t i = 0; i < MAX_PARTS; i++)
        parts[i] = (bench){.shape = chain ? shape_of(o, block[i].in, block[i].out, codebooks)
                                          : shape_of(o, a, b, codebooks),
                           .times = chain ? block[i].times : 1,
                           .opt = o,
                           .name = *shape,
                           .next_part = chain && i + 1 < MAX_PARTS ? &parts[i + 1] : NULL};
    return chain ? MAX_PARTS : 1;
}

static vptq_status check_options(const vptq_gemv_options *o, vptq_err *err)
{
    bench parts[MAX_PARTS];
    if (o->dtype != VPTQ_F16 && o->dtype != VPTQ_BF16)
        return vptq_fail(err, VPTQ_E_ARG, "--dtype is %s, expected f16 or bf16",
                         vptq_dtype_get(o->dtype)->name);
    if (!(o->seconds > 0))
        return vptq_fail(err, VPTQ_E_ARG, "--seconds is %g, expected more than 0", o->seconds);
    for (size_t i = 0; i < o->batch_count; i++)
        if (o->batch[i] == 0 || o->batch[i] > MAX_BATCH)
            return vptq_fail(err, VPTQ_E_ARG, "--batch is %u, expected 1 to %d", o->batch[i],
                             (int)MAX_BATCH);
    for (size_t i = 0; i < o->shape_count; i++)
        for (size_t k = 0; k < o->codebook_count; k++)
            for (size_t n = list_parts(o, &o->shapes[i], &o->codebooks[k], parts); n > 0; n--)
                VPTQ_CHECK(check_shape(&parts[n - 1].shape, err));
    return VPTQ_OK;
}

/* Measures all batches of one shape with one pair of codebooks. */
static vptq_status run_shape(const bench *base, const vptq_gemv_pair *shape,
                             const vptq_gemv_pair *codebooks, vptq_gemv_fn fn, void *arg,
                             vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_gemv_options *opt = base->opt;
    bench parts[MAX_PARTS];
    const size_t count = list_parts(opt, shape, codebooks, parts);
    for (size_t n = 0; n < count; n++) {
        parts[n].dev = base->dev;
        parts[n].bandwidth = base->bandwidth;
    }
    for (size_t n = 0; n < count; n++)
        VPTQ_TRY(make_matrices(&parts[n], err));
    for (size_t i = 0; i < opt->batch_count; i++) {
        vptq_gemv_row row;
        VPTQ_TRY(prepare_parts(parts, opt->batch[i], err));
        VPTQ_TRY(measure_row(parts, &row, err));
        VPTQ_TRY(fn(arg, &row, err));
    }
out:
    for (size_t n = 0; n < count; n++)
        release_matrices(&parts[n]);
    if (st == VPTQ_E_NOMEM && err)
        vptq_err_context(err, "in %u, out %u", shape->a, shape->b);
    return st;
}

vptq_status vptq_eval_gemv(vptq_device *dev, const vptq_gemv_options *opt, vptq_gemv_fn fn,
                           void *arg, vptq_err *err)
{
    bench b = {.dev = dev, .opt = opt};
    VPTQ_CHECK(check_options(opt, err));
    VPTQ_CHECK(measure_bandwidth(&b, err));
    for (size_t k = 0; k < opt->codebook_count; k++)
        for (size_t i = 0; i < opt->shape_count; i++)
            VPTQ_CHECK(run_shape(&b, &opt->shapes[i], &opt->codebooks[k], fn, arg, err));
    return VPTQ_OK;
}
