/* Packed matrices on a device: what of them is in its memory, and when it comes there. */
#include "lib/backend/backend_cuda.h"

/* ---- several arrays in one piece of memory ---- */

enum { SLAB_ALIGN = 256, SLAB_ARRAYS = 8 };

/* Arrays of the host, each with the pointer that is to lead to its copy on the device. */
struct slab_array {
    const void *from;
    size_t bytes, at;
    const void **to;
};

struct slab_plan {
    slab_array array[SLAB_ARRAYS];
    unsigned count;
    size_t bytes;
};

template <class T> static void put(slab_plan *s, const T *from, size_t count, const T **to)
{
    *to = NULL;
    if (!from || !count)
        return;
    s->array[s->count++] = {from, count * sizeof(T), s->bytes,
                            reinterpret_cast<const void **>(to)};
    s->bytes += (count * sizeof(T) + SLAB_ALIGN - 1) / SLAB_ALIGN * SLAB_ALIGN;
}

static vptq_status upload(vptq_dev *dev, const slab_plan *s, void **slab, vptq_err *err)
{
    vptq_status st = vptq_cuda_alloc(s->bytes, slab, err);
    for (unsigned i = 0; i < s->count && !st; i++) {
        const slab_array *a = &s->array[i];
        unsigned char *to = static_cast<unsigned char *>(*slab) + a->at;
        *a->to = to;
        st = vptq_cuda_check(
            cudaMemcpyAsync(to, a->from, a->bytes, cudaMemcpyHostToDevice, dev->stream),
            "an upload", err);
    }
    if (st) {
        (void)cudaFree(*slab);
        *slab = NULL;
    }
    return st;
}

/* ---- as it is stored ---- */

static slab_plan plan_stored(const vptq_vq *q, vptq_vq *d)
{
    const vptq_vq_shape *s = &q->shape;
    const size_t groups = s->groups, strips = vptq_vq_strips(s);
    const size_t outlier_strips = s->outliers ? (s->out + s->v0 - 1) / s->v0 : 0;
    slab_plan p = {};
    *d = {};
    d->shape = *s;
    put(&p, q->indices, groups * strips * vptq_vq_row_words(s), &d->indices);
    put(&p, q->centroids, groups * s->k * s->v, &d->centroids);
    put(&p, q->res_centroids, groups * s->k_res * s->v, &d->res_centroids);
    put(&p, q->outlier_indices, outlier_strips * s->outliers, &d->outlier_indices);
    put(&p, q->outlier_centroids, (size_t)s->k0 * s->v0, &d->outlier_centroids);
    put(&p, q->perm, s->in, &d->perm);
    put(&p, q->scale, s->in, &d->scale);
    put(&p, q->bias, s->in, &d->bias);
    return p;
}

vptq_status vptq_cuda_matrix_stored(vptq_dev *dev, const vptq_matrix *m, const vptq_vq **q,
                                    vptq_err *err)
{
    *q = &m->stored;
    if (m->slab)
        return VPTQ_OK;
    const slab_plan p = plan_stored(&m->q, &m->stored);
    return upload(dev, &p, &m->slab, err);
}

/* ---- life ---- */

vptq_status vptq_cuda_matrix_open(vptq_dev *dev, const vptq_vq *q, vptq_matrix **m,
                                  vptq_err *err)
{
    *m = static_cast<vptq_matrix *>(vptq_mem_alloc(dev->ctx->mem, 1, sizeof **m, err));
    if (!*m)
        return VPTQ_E_NOMEM;
    **m = {};
    (*m)->q = *q;
    return VPTQ_OK;
}

void vptq_cuda_matrix_close(vptq_dev *dev, vptq_matrix *m)
{
    if (!m)
        return;
    (void)cudaStreamSynchronize(dev->stream); /* what was asked of it has been done */
    (void)cudaFree(m->slab);
    vptq_mem_free(dev->ctx->mem, m);
}
