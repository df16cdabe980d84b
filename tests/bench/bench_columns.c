/* Measures the ops that choose indices (search, vq_pass, vq_descend, vq_descend_output) by the
 * device's clock, at v = 8 with 4096 + 256 centroids and a beam of 16, on matrices of several
 * heights. `hash` is that of the choices of the first call: a change of the kernels that keeps
 * every bit keeps it.
 *     bench_columns [BACKEND [COLUMNS [ROWS..]]]      (default: cuda 128 2048 4096 11008) */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/backend/mirror.h"
#include "lib/base/file.h"
#include "lib/base/parallel.h"
#include "tests/bench/common.h"
#include "tests/support/vnormal.h"

enum { V = 8, K = 4096, K_RES = 256, BEAM = 16, REPEATS = 5, COLUMNS = 128 };

typedef struct bench {
    vptq_device dev;
    vptq_codebooks codebooks;
    vptq_search_index *index;
    size_t rows, cols;
    float *x;            /* [cols, rows] z or g; vectors to search */
    float *h;            /* [cols, cols] u or h */
    float *output;       /* [rows / 64, rounded up][64, 64] */
    float *q, *change;   /* [cols, rows] */
    uint32_t *idx, *res; /* [cols, rows / V] on the device */
    uint32_t *choices;   /* [2][cols, rows / V] on the host */
} bench;

static float *normals(size_t count, uint32_t seed, double scale)
{
    const vptq_rng rng = vptq_rng_make(seed, 0, 0, VPTQ_RNG_TEST);
    float *x = bench_alloc(count, sizeof *x);
    for (size_t i = 0; i < count; i++)
        x[i] = (float)(scale * vtest_rng_normal(&rng, i));
    return x;
}

static vptq_status run_search(void *arg, vptq_err *err)
{
    const bench *b = arg;
    const vptq_search_args s = {.n = b->cols * (b->rows / V),
                                .index = b->index,
                                .x = b->x,
                                .idx = b->idx,
                                .idx_res = b->res};
    return b->dev.ops->search(b->dev.state, &s, err);
}

static vptq_status run_pass(void *arg, vptq_err *err)
{
    const bench *b = arg;
    const vptq_pass_args p = {.cols = b->cols,
                              .rows = b->rows,
                              .index = b->index,
                              .z = b->x,
                              .u = b->h,
                              .idx = b->idx,
                              .idx_res = b->res,
                              .q = b->q,
                              .err = b->change,
                              .ldz = b->rows,
                              .ldu = b->cols,
                              .ldi = b->rows / V,
                              .ldq = b->rows,
                              .lde = b->rows};
    return b->dev.ops->vq_pass(b->dev.state, &p, err);
}

static vptq_status run_descend(void *arg, vptq_err *err)
{
    const bench *b = arg;
    const vptq_descend_args d = {.cols = b->cols,
                                 .rows = b->rows,
                                 .index = b->index,
                                 .g = b->x,
                                 .h = b->h,
                                 .idx = b->idx,
                                 .idx_res = b->res,
                                 .q = b->q,
                                 .delta = b->change,
                                 .ldg = b->rows,
                                 .ldh = b->cols,
                                 .ldi = b->rows / V,
                                 .ldq = b->rows,
                                 .ldd = b->rows};
    return b->dev.ops->vq_descend(b->dev.state, &d, err);
}

static vptq_status run_descend_output(void *arg, vptq_err *err)
{
    const bench *b = arg;
    const vptq_descend_output_args d = {.cols = b->cols,
                                        .rows = b->rows,
                                        .v = V,
                                        .k = K,
                                        .k_res = K_RES,
                                        .centroids = b->codebooks.centroids,
                                        .res_centroids = b->codebooks.res_centroids,
                                        .output = b->output,
                                        .g = b->x,
                                        .h = b->h,
                                        .idx = b->idx,
                                        .idx_res = b->res,
                                        .q = b->q,
                                        .delta = b->change,
                                        .ldg = b->rows,
                                        .ldh = b->cols,
                                        .ldi = b->rows / V,
                                        .ldq = b->rows,
                                        .ldd = b->rows};
    return b->dev.ops->vq_descend_output(b->dev.state, &d, err);
}

/* Hash of the choices after one call, then the best of several times. */
static void measure(bench *b, const char *op, vptq_work_fn *fn)
{
    const size_t vectors = b->cols * (b->rows / V), bytes = vectors * sizeof *b->idx;
    vptq_err err;
    double least = 1e9;
    bench_need(fn(b, &err), &err);
    bench_need(b->dev.ops->download(b->dev.state, b->choices, b->idx, bytes, &err), &err);
    bench_need(b->dev.ops->download(b->dev.state, b->choices + vectors, b->res, bytes, &err),
               &err);
    const uint64_t hash = vptq_hash(b->choices, 2 * bytes, 0);
    for (int i = 0; i < REPEATS; i++) {
        double seconds = 0;
        bench_need(b->dev.ops->measure(b->dev.state, fn, b, &seconds, &err), &err);
        least = seconds < least ? seconds : least;
    }
    printf("%-17s %6zu %6zu %9.3f %10.3f  %016" PRIx64 "\n", op, b->rows, b->cols, 1e3 * least,
           1e6 * least / (double)b->cols, hash);
    fflush(stdout);
}

/* Diagonal 1, the rest small: what is left after a column changes the later ones a little. */
static float *factors(size_t cols)
{
    float *h = normals(cols * cols, 3, 0.03);
    for (size_t t = 0; t < cols; t++)
        h[t * cols + t] = 1;
    return h;
}

/* Blocks of K, identities, for `rows` rows. */
static float *identities(size_t rows)
{
    const size_t n = VPTQ_OUTPUT_ROWS;
    float *k = bench_alloc(rows * n, sizeof *k);
    memset(k, 0, rows * n * sizeof *k);
    for (size_t i = 0; i < rows; i++)
        k[i * n + i % n] = 1;
    return k;
}

/* The sweeps start from zeros and the choices of the search; they and the pass continue from
 * their results when they are repeated. */
static void bench_shape(bench *b, size_t rows, size_t cols)
{
    const size_t floats = rows * cols;
    vptq_mirror m = vptq_mirror_of(&b->dev);
    vptq_err err;
    const size_t padded = (rows + VPTQ_OUTPUT_ROWS - 1) / VPTQ_OUTPUT_ROWS * VPTQ_OUTPUT_ROWS;
    float *x = normals(floats, 1, 1), *h = factors(cols), *k = identities(padded);
    b->rows = rows;
    b->cols = cols;
    b->choices = bench_alloc(2 * floats / V, sizeof *b->choices);
    b->x = vptq_mirror_take(&m, x, floats, sizeof *x, VPTQ_MIRROR_UPLOAD);
    b->h = vptq_mirror_take(&m, h, cols * cols, sizeof *h, VPTQ_MIRROR_UPLOAD);
    b->output =
        vptq_mirror_take(&m, k, padded * VPTQ_OUTPUT_ROWS, sizeof *k, VPTQ_MIRROR_UPLOAD);
    b->q = vptq_mirror_alloc(&m, floats, sizeof *b->q);
    b->change = vptq_mirror_alloc(&m, floats, sizeof *b->change);
    b->idx = vptq_mirror_alloc(&m, floats / V, sizeof *b->idx);
    b->res = vptq_mirror_alloc(&m, floats / V, sizeof *b->res);
    bench_need(vptq_mirror_check(&m, &err), &err);
    measure(b, "search", run_search);
    bench_need(b->dev.ops->clear(b->dev.state, b->q, floats * sizeof *b->q, &err), &err);
    measure(b, "vq_descend", run_descend);
    bench_need(b->dev.ops->clear(b->dev.state, b->q, floats * sizeof *b->q, &err), &err);
    measure(b, "vq_descend_output", run_descend_output);
    measure(b, "vq_pass", run_pass);
    bench_need(vptq_mirror_end(&m, VPTQ_OK, &err), &err);
    free(x);
    free(h);
    free(k);
    free(b->choices);
}

int main(int argc, char **argv)
{
    static const size_t heights[] = {2048, 4096, 11008};
    const size_t shapes = argc > 3 ? (size_t)argc - 3 : sizeof heights / sizeof *heights;
    const size_t cols = argc > 2 ? strtoull(argv[2], NULL, 10) : COLUMNS;
    vptq_ctx ctx = {.threads = vptq_cpu_count()};
    bench b = {0};
    vptq_err err;
    char text[512];
    if (!bench_open_device(&ctx, argc > 1 ? argv[1] : NULL, &b.dev))
        return 0;
    vptq_mirror m = vptq_mirror_of(&b.dev);
    float *c = normals((size_t)K * V, 4, 0.9), *r = normals((size_t)K_RES * V, 5, 0.3);
    b.codebooks =
        (vptq_codebooks){.v = V,
                         .k = K,
                         .k_res = K_RES,
                         .beam = BEAM,
                         .centroids = vptq_mirror_in(&m, c, (size_t)K * V, sizeof *c),
                         .res_centroids = vptq_mirror_in(&m, r, (size_t)K_RES * V, sizeof *r)};
    bench_need(vptq_mirror_check(&m, &err), &err);
    bench_need(b.dev.ops->search_index_open(b.dev.state, &b.codebooks, &b.index, &err), &err);
    b.dev.ops->describe(b.dev.state, text, sizeof text);
    printf("%s\n%-17s %6s %6s %9s %10s  hash\n", text, "op", "rows", "cols", "ms", "us/column");
    for (size_t i = 0; i < shapes; i++) {
        const size_t rows = argc > 3 ? strtoull(argv[i + 3], NULL, 10) : heights[i];
        if (!cols || !rows || rows % V)
            bench_give_up("expected a number of columns, and of rows in multiples of 8");
        bench_shape(&b, rows, cols);
    }
    b.dev.ops->search_index_close(b.dev.state, b.index);
    bench_need(vptq_mirror_end(&m, VPTQ_OK, &err), &err);
    free(c);
    free(r);
    vptq_device_close(&b.dev);
    return 0;
}
