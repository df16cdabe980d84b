/* Repairs empty clusters: moves them to the points with the largest loss. */
#include <string.h>

#include "kmeans/parts.h"
#include "lib/backend/mirror.h"

/* Host arrays of a repair. */
typedef struct repair {
    double *weights; /* [k] */
    /* candidates, largest loss first */
    size_t count;
    double *loss; /* [count] */
    uint32_t *at; /* [count] */
    float *x;     /* [count, v] */
} repair;

/* Finds twice as many candidates as clusters are empty, because equal points are skipped. */
static vptq_status find_candidates(const vptq_kmeans_points *points,
                                   const vptq_kmeans_clusters *clusters, size_t empty,
                                   vptq_arena *arena, repair *r, vptq_err *err)
{
    const vptq_device *dev = points->dev;
    const size_t v = points->v;

    r->count = points->n < 2 * empty ? points->n : 2 * empty;
    r->loss = vptq_arena_alloc(arena, r->count, sizeof *r->loss, err);
    r->at = r->loss ? vptq_arena_alloc(arena, r->count, sizeof *r->at, err) : NULL;
    r->x = r->at ? vptq_arena_alloc(arena, r->count, v * sizeof *r->x, err) : NULL;
    if (!r->x)
        return VPTQ_E_NOMEM;
    const vptq_worst_args worst = {.n = points->n,
                                   .count = r->count,
                                   .v = points->v,
                                   .k = clusters->k,
                                   .x = points->x,
                                   .w = points->w,
                                   .idx = clusters->labels,
                                   .centroids = clusters->before,
                                   .loss = r->loss,
                                   .at = r->at};
    VPTQ_CHECK(dev->ops->worst_vectors(dev->state, &worst, err));
    while (r->count && !(r->loss[r->count - 1] > 0))
        r->count--;
    vptq_mirror m = vptq_mirror_of(points->dev);
    float *x = vptq_mirror_take(&m, r->x, r->count, v * sizeof *r->x, VPTQ_MIRROR_DOWNLOAD);
    vptq_status st = vptq_mirror_check(&m, err);
    if (!st && r->count)
        st = vptq_kmeans_pick_host(points, r->at, r->count, x, err);
    return vptq_mirror_end(&m, st, err);
}

/* Copies candidates to the empty clusters. */
static vptq_status fill(const vptq_kmeans_points *points, const repair *r, uint32_t k,
                        float *centroids, uint32_t *repaired, vptq_err *err)
{
    const vptq_device *dev = points->dev;
    const size_t v = points->v, bytes = v * sizeof *centroids;
    const float *last = NULL;
    size_t next = 0;

    for (size_t j = 0; j < k; j++) {
        if (r->weights[j] > 0)
            continue;
        while (next < r->count && last && !memcmp(r->x + next * v, last, bytes))
            next++;
        if (next == r->count)
            break;
        VPTQ_CHECK(dev->ops->copy(dev->state, centroids + j * v, points->x + r->at[next] * v,
                                  bytes, err));
        last = r->x + next++ * v;
        ++*repaired;
    }
    return VPTQ_OK;
}

vptq_status vptq_kmeans_repair(const vptq_kmeans_points *points,
                               const vptq_kmeans_clusters *clusters, float *centroids,
                               uint32_t *repaired, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_device *dev = points->dev;
    const uint32_t k = clusters->k;
    vptq_arena arena;
    size_t empty = 0;
    repair r = {0};

    *repaired = 0;
    vptq_arena_init(&arena, dev->ctx->mem);
    r.weights = vptq_arena_alloc(&arena, k, sizeof *r.weights, err);
    if (!r.weights)
        VPTQ_TRY(VPTQ_E_NOMEM);
    VPTQ_TRY(dev->ops->download(dev->state, r.weights, clusters->weights, k * sizeof *r.weights,
                                err));
    for (size_t j = 0; j < k; j++)
        empty += !(r.weights[j] > 0);
    if (empty) {
        VPTQ_TRY(find_candidates(points, clusters, empty, &arena, &r, err));
        VPTQ_TRY(fill(points, &r, k, centroids, repaired, err));
    }
out:
    vptq_arena_release(&arena);
    return st;
}
