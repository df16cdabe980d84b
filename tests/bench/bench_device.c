/* The limits of a device, to judge other figures by: copies between host and device, an
 * empty launch by the device's clock and by the host's, reading memory, and the first packed
 * product of a matrix with large codebooks, which is the time to fill shared memory.
 *     bench_device [BACKEND [MIB]]      (default: cuda 256)
 * MIB: memory to copy and read; below 16 the launches are few, too. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/backend/backend.h"
#include "tests/bench/common.h"

enum { MIB = 1 << 20, LAUNCHES = 100, REPEATS = 5, IN = 4096 };

typedef struct bench {
    vptq_ctx ctx;
    vptq_device dev;
    size_t bytes, launches;
    void *a, *b;         /* [bytes] on the device */
    vptq_matrix *matrix; /* of the packed product */
    size_t out, in;
} bench;

static void *device_bytes(bench *b, size_t bytes)
{
    vptq_err err;
    void *p = NULL;
    bench_need(b->dev.ops->alloc(b->dev.state, 1, bytes, &p, &err), &err);
    return p;
}

/* ---- work ---- */

static vptq_status launch_nothing(void *arg, vptq_err *err)
{
    bench *b = arg;
    const vptq_swiglu_args a = {.n = 1, .dim = 1, .gate = b->a, .up = b->a, .y = b->b};
    for (size_t i = 0; i < b->launches; i++)
        VPTQ_CHECK(b->dev.ops->swiglu(b->dev.state, &a, err));
    return VPTQ_OK;
}

static vptq_status read_memory(void *arg, vptq_err *err)
{
    bench *b = arg;
    const size_t out = b->bytes / IN / sizeof(float);
    const vptq_gemv_args g = {.n = 1, .x = b->a, .y = b->b, .ldx = IN, .ldy = out};
    return b->dev.ops->gemv(b->dev.state, out, IN, VPTQ_F32, b->a, &g, err);
}

static vptq_status multiply(void *arg, vptq_err *err)
{
    bench *b = arg;
    const vptq_gemv_args g = {.n = 1, .x = b->a, .y = b->b, .ldx = b->in, .ldy = b->out};
    for (size_t i = 0; i < b->launches; i++)
        VPTQ_CHECK(b->dev.ops->vq_gemv(b->dev.state, b->matrix, &g, err));
    return VPTQ_OK;
}

/* Best of several times of the work, by the device's clock, after one that does not count. */
static double best(bench *b, vptq_work_fn *fn)
{
    vptq_err err;
    double least = 1e9;
    bench_need(fn(b, &err), &err);
    for (int i = 0; i < REPEATS; i++) {
        double seconds = 0;
        bench_need(b->dev.ops->measure(b->dev.state, fn, b, &seconds, &err), &err);
        least = seconds < least ? seconds : least;
    }
    return least;
}

/* ---- figures ---- */

static void copies(bench *b)
{
    vptq_err err;
    double up = 1e9, down = 1e9;
    unsigned char *host = bench_alloc(b->bytes, 1);
    memset(host, 1, b->bytes);
    for (int i = 0; i < REPEATS; i++) {
        double start = vptq_seconds();
        bench_need(b->dev.ops->upload(b->dev.state, b->a, host, b->bytes, &err), &err);
        bench_need(b->dev.ops->sync(b->dev.state, &err), &err);
        const double upload = vptq_seconds() - start;
        start = vptq_seconds();
        bench_need(b->dev.ops->download(b->dev.state, host, b->a, b->bytes, &err), &err);
        const double download = vptq_seconds() - start;
        up = upload < up ? upload : up;
        down = download < down ? download : down;
    }
    printf("upload               %8.1f GB/s (%zu MiB)\n", (double)b->bytes / up / 1e9,
           b->bytes / MIB);
    printf("download             %8.1f GB/s\n", (double)b->bytes / down / 1e9);
    free(host);
}

static void launches(bench *b)
{
    vptq_err err;
    printf("launch in a graph    %8.2f us\n",
           1e6 * best(b, launch_nothing) / (double)b->launches);
    bench_need(b->dev.ops->sync(b->dev.state, &err), &err);
    const double start = vptq_seconds();
    bench_need(launch_nothing(b, &err), &err);
    bench_need(b->dev.ops->sync(b->dev.state, &err), &err);
    printf("launch by the host   %8.2f us\n",
           1e6 * (vptq_seconds() - start) / (double)b->launches);
}

/* A matrix with one chunk of columns per block: filling the codebooks is nearly all there is.
 */
static void fill(bench *b, uint32_t k, uint32_t k_res)
{
    enum { ROWS = 16, COLUMNS = 128, V = 8 };
    vptq_err err;
    const vptq_vq_shape s = {.out = ROWS,
                             .in = COLUMNS,
                             .v = V,
                             .k = k,
                             .k_res = k_res,
                             .groups = 1,
                             .group_size = COLUMNS};
    const size_t words = vptq_vq_vector_rows(&s) * vptq_vq_row_words(&s);
    uint32_t *indices = bench_alloc(words, sizeof *indices);
    float *main_codebook = bench_alloc((size_t)k * V, sizeof *main_codebook);
    float *res_codebook = bench_alloc((size_t)k_res * V, sizeof *res_codebook);
    memset(indices, 0, words * sizeof *indices);
    for (size_t i = 0; i < (size_t)k * V; i++)
        main_codebook[i] = 1;
    for (size_t i = 0; i < (size_t)k_res * V; i++)
        res_codebook[i] = 1;
    const vptq_vq q = {.shape = s,
                       .indices = indices,
                       .centroids = main_codebook,
                       .res_centroids = res_codebook};
    bench_need(b->dev.ops->matrix_open(b->dev.state, &q, &b->matrix, &err), &err);
    b->out = ROWS;
    b->in = COLUMNS;
    printf("fill %4u + %3u       %8.2f us (product of %d x %d)\n", k, k_res,
           1e6 * best(b, multiply) / (double)b->launches, ROWS, COLUMNS);
    b->dev.ops->matrix_close(b->dev.state, b->matrix);
    free(indices);
    free(main_codebook);
    free(res_codebook);
}

int main(int argc, char **argv)
{
    static bench b = {.ctx = {.threads = 0}};
    char text[512];
    if (!bench_open_device(&b.ctx, argc > 1 ? argv[1] : NULL, &b.dev))
        return 0;
    b.dev.ops->describe(b.dev.state, text, sizeof text);
    printf("%s\n", text);
    b.dev.ops->libraries(b.dev.state, text, sizeof text);
    printf("%s\n", text);
    printf("last cache           %8.1f MiB\n",
           (double)b.dev.ops->cache_bytes(b.dev.state) / (1 << 20));
    b.bytes = (argc > 2 ? strtoull(argv[2], NULL, 10) : 256) * MIB;
    b.launches = b.bytes < 16 * MIB ? 2 : LAUNCHES;
    if (!b.bytes)
        bench_give_up("expected a number of MiB");
    b.a = device_bytes(&b, b.bytes);
    b.b = device_bytes(&b, b.bytes);
    copies(&b);
    launches(&b);
    printf("reading memory       %8.1f GB/s (gemv in F32)\n",
           (double)b.bytes / best(&b, read_memory) / 1e9);
    fill(&b, 4096, 256);
    fill(&b, 8192, 512);
    b.dev.ops->release(b.dev.state, b.a);
    b.dev.ops->release(b.dev.state, b.b);
    vptq_device_close(&b.dev);
    return 0;
}
