/* Random codebooks, and the distances that searches in them are checked against. */
#include "tests/support/vcodebooks.h"

#include <stdlib.h>

#include "tests/support/vtest.h"

vcodebooks vcodebooks_make(size_t n, uint32_t v, uint32_t k, uint32_t k_res, uint32_t beam)
{
    vcodebooks b = {.n = n};
    b.x = vtest_normals(n * v, n + v);
    b.c = vtest_normals((size_t)k * v, 77 * v + k);
    b.r = k_res ? vtest_normals((size_t)k_res * v, 99 * v + k_res) : NULL;
    for (size_t i = 0; i < (size_t)k_res * v; i++)
        b.r[i] *= 0.5F;
    b.codebooks = (vptq_codebooks){v, k, k_res, beam, false, b.c, b.r};
    return b;
}

void vcodebooks_free(vcodebooks *b)
{
    free(b->x);
    free(b->c);
    free(b->r);
}

vptq_search_index *vcodebooks_index(const vptq_device *dev, const vptq_codebooks *codebooks)
{
    vptq_search_index *index = NULL;
    vptq_err err;
    assert_ok(dev->ops->search_index_open(dev->state, codebooks, &index, &err), &err);
    return index;
}

double vcodebooks_distance(const vptq_codebooks *b, const float *x, uint32_t main, uint32_t res)
{
    double sum = 0;
    for (size_t d = 0; d < b->v; d++) {
        float value = b->centroids[(size_t)main * b->v + d];
        if (b->k_res)
            value += b->res_centroids[(size_t)res * b->v + d];
        const double diff = (double)x[d] - (double)value;
        sum += diff * diff;
    }
    return sum;
}
