/* Codebook search of the reference backend and the ops that use it, one vector at a time.
 * Distances are measured in double from the floats that a choice decodes to, c + r. */
#include <math.h>
#include <string.h>

#include "lib/backend/dev.h"
#include "lib/backend/ref/ref.h"

typedef struct candidate {
    double distance;
    uint32_t index;
} candidate;

struct vptq_search_index {
    vptq_codebooks codebooks;
    uint32_t beam;         /* at most k */
    candidate *candidates; /* [beam] */
};

typedef struct choice {
    uint32_t main, res;
    double distance;
} choice;

vptq_status vptq_ref_search_index_open(vptq_dev *dev, const vptq_codebooks *codebooks,
                                       vptq_search_index **index, vptq_err *err)
{
    vptq_mem *mem = dev->ctx->mem;
    vptq_search_index *f = vptq_mem_alloc(mem, 1, sizeof *f, err);
    if (!f)
        return VPTQ_E_NOMEM;
    *f = (vptq_search_index){.codebooks = *codebooks};
    f->beam = !codebooks->k_res                ? 1
              : codebooks->beam < codebooks->k ? codebooks->beam
                                               : codebooks->k;
    f->candidates = vptq_mem_alloc(mem, f->beam, sizeof *f->candidates, err);
    if (!f->candidates) {
        vptq_mem_free(mem, f);
        return VPTQ_E_NOMEM;
    }
    *index = f;
    return VPTQ_OK;
}

void vptq_ref_search_index_close(vptq_dev *dev, vptq_search_index *index)
{
    if (!index)
        return;
    vptq_mem_free(dev->ctx->mem, index->candidates);
    vptq_mem_free(dev->ctx->mem, index);
}

static void decode(const vptq_codebooks *b, uint32_t main, uint32_t res, float *q)
{
    for (size_t d = 0; d < b->v; d++) {
        q[d] = b->centroids[(size_t)main * b->v + d];
        if (b->k_res)
            q[d] += b->res_centroids[(size_t)res * b->v + d];
    }
}

/* Lists the nearest main centroids, nearest first, the lower index first on ties, without those
 * at no finite distance; returns their number. */
static uint32_t nearest_mains(const vptq_search_index *index, const float *x)
{
    const vptq_codebooks *b = &index->codebooks;
    uint32_t count = 0;
    for (uint32_t j = 0; j < b->k; j++) {
        double distance = vptq_ref_distance(x, b->centroids + (size_t)j * b->v, b->v);
        if (!(distance <
              (count < index->beam ? (double)INFINITY : index->candidates[count - 1].distance)))
            continue;
        uint32_t at = count < index->beam ? count++ : count - 1;
        for (; at > 0 && index->candidates[at - 1].distance > distance; at--)
            index->candidates[at] = index->candidates[at - 1];
        index->candidates[at] = (candidate){distance, j};
    }
    return count;
}

static bool comes_first(const choice *a, const choice *b)
{
    if (a->distance < b->distance)
        return true;
    return a->distance <= b->distance &&
           (a->main < b->main || (a->main == b->main && a->res < b->res));
}

static choice search(const vptq_search_index *index, const float *x)
{
    const vptq_codebooks *b = &index->codebooks;
    const uint32_t count = nearest_mains(index, x), k_res = b->k_res ? b->k_res : 1;
    float q[VPTQ_VQ_MAX_V];
    choice best = {0, 0, INFINITY};
    for (uint32_t i = 0; i < count; i++) {
        choice now = {index->candidates[i].index, 0, 0};
        for (now.res = 0; now.res < k_res; now.res++) {
            decode(b, now.main, now.res, q);
            now.distance = vptq_ref_distance(x, q, b->v);
            if (comes_first(&now, &best))
                best = now;
        }
    }
    return best;
}

/* Chooses for x and decodes the choice into q. */
static choice choose(const vptq_search_index *index, const float *x, bool keep, uint32_t *idx,
                     uint32_t *idx_res, float *q)
{
    const vptq_codebooks *b = &index->codebooks;
    choice best = search(index, x);
    if (keep) {
        choice old = {*idx, b->k_res ? *idx_res : 0, 0};
        decode(b, old.main, old.res, q);
        old.distance = vptq_ref_distance(x, q, b->v);
        if (!(best.distance < old.distance))
            best = old;
    }
    decode(b, best.main, best.res, q);
    *idx = best.main;
    if (b->k_res)
        *idx_res = best.res;
    return best;
}

vptq_status vptq_ref_search(vptq_dev *dev, const vptq_search_args *s, vptq_err *err)
{
    const uint32_t v = s->index->codebooks.v;
    float q[VPTQ_VQ_MAX_V];
    (void)dev;
    (void)err;
    for (size_t i = 0; i < s->n; i++) {
        uint32_t *res = s->idx_res ? s->idx_res + i : NULL;
        choose(s->index, s->x + i * v, s->keep, s->idx + i, res, q);
        if (s->dist)
            s->dist[i] = (float)vptq_ref_distance(s->x + i * v, q, v);
    }
    return VPTQ_OK;
}

vptq_status vptq_ref_vq_pass(vptq_dev *dev, const vptq_pass_args *p, vptq_err *err)
{
    const uint32_t v = p->index->codebooks.v;
    (void)dev;
    (void)err;
    for (size_t t = 0; t < p->cols; t++) {
        float *z = p->z + t * p->ldz, *q = p->q + t * p->ldq, *e = p->err + t * p->lde;
        for (size_t i = 0; i < p->rows / v; i++) {
            uint32_t *res = p->idx_res ? p->idx_res + t * p->ldi + i : NULL;
            choose(p->index, z + i * v, false, p->idx + t * p->ldi + i, res, q + i * v);
        }
        for (size_t r = 0; r < p->rows; r++)
            e[r] = (z[r] - q[r]) / p->u[t * p->ldu + t];
        for (size_t s = t + 1; s < p->cols; s++) {
            for (size_t r = 0; r < p->rows; r++)
                p->z[s * p->ldz + r] -= e[r] * p->u[t * p->ldu + s];
        }
    }
    return VPTQ_OK;
}

/* g of one vector of column t, including the changes of the columns before it. */
static void gradient(const vptq_descend_args *d, size_t t, size_t row, uint32_t v, float *g)
{
    memcpy(g, d->g + t * d->ldg + row, v * sizeof *g);
    for (size_t s = 0; s < t; s++) {
        for (size_t e = 0; e < v; e++)
            g[e] += d->delta[s * d->ldd + row + e] * d->h[s * d->ldh + t];
    }
}

static void descend_vector(const vptq_descend_args *d, size_t t, size_t vector_row)
{
    const uint32_t v = d->index->codebooks.v;
    const size_t row = vector_row * v;
    const float h = d->h[t * d->ldh + t];
    uint32_t *res = d->idx_res ? d->idx_res + t * d->ldi + vector_row : NULL;
    float *q = d->q + t * d->ldq + row, *delta = d->delta + t * d->ldd + row;
    float target[VPTQ_VQ_MAX_V], now[VPTQ_VQ_MAX_V];
    if (!(h > 0)) {
        memset(delta, 0, v * sizeof *delta);
        return;
    }
    gradient(d, t, row, v, target);
    for (size_t e = 0; e < v; e++)
        target[e] = q[e] - target[e] / h;
    choose(d->index, target, true, d->idx + t * d->ldi + vector_row, res, now);
    for (size_t e = 0; e < v; e++) {
        delta[e] = now[e] - q[e];
        q[e] = now[e];
    }
}

vptq_status vptq_ref_vq_descend(vptq_dev *dev, const vptq_descend_args *d, vptq_err *err)
{
    (void)dev;
    (void)err;
    for (size_t t = 0; t < d->cols; t++) {
        for (size_t vector_row = 0; vector_row < d->rows / d->index->codebooks.v; vector_row++)
            descend_vector(d, t, vector_row);
    }
    return VPTQ_OK;
}

vptq_status vptq_ref_vq_gather(vptq_dev *dev, const vptq_gather_args *g, vptq_err *err)
{
    const vptq_codebooks codebooks = {.v = g->v,
                                      .k = g->k,
                                      .k_res = g->k_res,
                                      .centroids = g->centroids,
                                      .res_centroids = g->res_centroids};
    (void)dev;
    (void)err;
    for (size_t t = 0; t < g->cols; t++) {
        for (size_t i = 0; i < g->rows / g->v; i++)
            decode(&codebooks, g->idx[t * g->ldi + i],
                   g->k_res ? g->idx_res[t * g->ldi + i] : 0, g->q + t * g->ldq + i * g->v);
    }
    return VPTQ_OK;
}

vptq_status vptq_ref_vq_scatter(vptq_dev *dev, const vptq_scatter_args *s, vptq_err *err)
{
    (void)dev;
    (void)err;
    memset(s->sums, 0, (size_t)s->k * s->v * sizeof *s->sums);
    if (s->weights)
        memset(s->weights, 0, (size_t)s->k * s->v * sizeof *s->weights);
    for (size_t t = 0; t < s->cols; t++) {
        const double w = s->weight ? (double)s->weight[t] : 1;
        for (size_t i = 0; i < s->rows / s->v; i++) {
            const size_t j = s->idx[t * s->ldi + i];
            for (size_t d = 0; d < s->v; d++)
                s->sums[j * s->v + d] += w * (double)s->y[t * s->ldy + i * s->v + d];
            for (size_t d = 0; s->weights && d < s->v; d++)
                s->weights[j * s->v + d] += w;
        }
    }
    return VPTQ_OK;
}
