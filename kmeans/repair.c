/* Repairs empty clusters: moves them to the points with the largest loss. */
#include <stdlib.h>
#include <string.h>

#include "kmeans/parts.h"
#include "lib/base/mem.h"

typedef struct loss {
    double value; /* w |x - c|^2 */
    size_t i;
} loss;

/* Whether a ranks after b: smaller loss, or the same loss at a higher index. */
static bool after(const loss *a, const loss *b)
{
    return a->value < b->value || (a->value <= b->value && a->i > b->i);
}

static int by_rank(const void *pa, const void *pb)
{
    const loss *a = pa, *b = pb;
    return after(a, b) ? 1 : after(b, a) ? -1 : 0;
}

/* Restores the heap order from entry i down; the root ranks after all others. */
static void sift_down(loss *heap, size_t size, size_t i)
{
    for (;;) {
        size_t last = i;
        for (size_t child = 2 * i + 1; child <= 2 * i + 2 && child < size; child++) {
            if (after(&heap[child], &heap[last]))
                last = child;
        }
        if (last == i)
            return;
        loss swap = heap[i];
        heap[i] = heap[last];
        heap[last] = swap;
        i = last;
    }
}

static double loss_of(const vptq_kmeans_points *points, size_t i, const float *c)
{
    const float *x = points->x + i * points->v;
    double sum = 0;
    for (uint32_t e = 0; e < points->v; e++)
        sum += ((double)x[e] - (double)c[e]) * ((double)x[e] - (double)c[e]);
    return points->w ? (double)points->w[i] * sum : sum;
}

/* The `size` points with the largest loss, largest first, filled up with losses of 0. */
static void find_worst(const vptq_kmeans_points *points, const vptq_kmeans_clusters *clusters,
                       loss *heap, size_t size)
{
    for (size_t h = 0; h < size; h++)
        heap[h] = (loss){.value = 0, .i = SIZE_MAX};
    for (size_t i = 0; i < points->n; i++) {
        const float *c = clusters->before + (size_t)clusters->labels[i] * points->v;
        const loss here = {.value = loss_of(points, i, c), .i = i};
        if (after(&heap[0], &here)) {
            heap[0] = here;
            sift_down(heap, size, 0);
        }
    }
    qsort(heap, size, sizeof *heap, by_rank);
}

vptq_status vptq_kmeans_repair(const vptq_kmeans_points *points,
                               const vptq_kmeans_clusters *clusters, float *centroids,
                               uint32_t *repaired, vptq_err *err)
{
    const size_t v = points->v, k = clusters->k;
    const double *weights = clusters->weights;
    size_t empty = 0;
    *repaired = 0;
    for (size_t j = 0; j < k; j++)
        empty += !(weights[j] > 0);
    if (!empty)
        return VPTQ_OK;
    /* Twice as many candidates, because equal points are skipped. */
    size_t size = points->n < 2 * empty ? points->n : 2 * empty, next = 0;
    loss *worst = vptq_mem_alloc(points->ctx->mem, size, sizeof *worst, err);
    if (!worst)
        return VPTQ_E_NOMEM;
    find_worst(points, clusters, worst, size);
    const float *last = NULL;
    for (size_t j = 0; j < k; j++) {
        if (weights[j] > 0)
            continue;
        while (next < size && worst[next].value > 0 && last &&
               !memcmp(points->x + worst[next].i * v, last, v * sizeof *last))
            next++;
        if (next == size || !(worst[next].value > 0))
            break;
        last = points->x + worst[next++].i * v;
        memcpy(centroids + j * v, last, v * sizeof *last);
        ++*repaired;
    }
    vptq_mem_free(points->ctx->mem, worst);
    return VPTQ_OK;
}
