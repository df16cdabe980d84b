/* Settings of one matrix: defaults, what cannot be, and the stored shape that follows. */
#include <math.h>

#include "lib/quant/quant.h"

vptq_quant_settings vptq_quant_default(void)
{
    return (vptq_quant_settings){.v = 4,
                                 .k = 256,
                                 .norm = true,
                                 .perm = true,
                                 .kmeans_iterations = 25,
                                 .ridge = 0.0201, /* the published recipe's two ridges in one */
                                 .damping = 0.01,
                                 .storage = VPTQ_F16,
                                 .seed = 0};
}

vptq_vq_shape vptq_quant_shape(const vptq_quant_settings *s, uint32_t out, uint32_t in)
{
    /* Scale and bias are stored even without normalization (as 1 and 0), because the published
     * GPU kernels take them as mandatory arguments; so they count. */
    return (vptq_vq_shape){.out = out,
                           .in = in,
                           .v = s->v,
                           .k = s->k,
                           .groups = 1,
                           .group_size = in,
                           .has_norm = true};
}

vptq_status vptq_quant_check(const vptq_quant_settings *s, uint32_t out, uint32_t in,
                             vptq_err *err)
{
    if (s->v < 1 || s->v > VPTQ_VQ_MAX_V)
        return vptq_fail(err, VPTQ_E_ARG, "vector length is %u, expected 1 to %d", s->v,
                         VPTQ_VQ_MAX_V);
    if (s->k < 2 || s->k > VPTQ_VQ_MAX_K || (s->k & (s->k - 1)))
        return vptq_fail(err, VPTQ_E_ARG,
                         "number of centroids is %u, expected a power of two from 2 to %d",
                         s->k, VPTQ_VQ_MAX_K);
    if (s->kmeans_iterations < 1 || s->kmeans_iterations > VPTQ_KMEANS_MAX_ITERATIONS)
        return vptq_fail(err, VPTQ_E_ARG, "k-means iterations are %u, expected 1 to %d",
                         s->kmeans_iterations, VPTQ_KMEANS_MAX_ITERATIONS);
    if (!(s->ridge >= 0 && s->ridge <= 1))
        return vptq_fail(err, VPTQ_E_ARG, "ridge is %g, expected 0 to 1", s->ridge);
    if (!(s->damping > 0 && s->damping <= 1))
        return vptq_fail(err, VPTQ_E_ARG, "damping is %g, expected above 0 and up to 1",
                         s->damping);
    if (s->storage != VPTQ_F16 && s->storage != VPTQ_BF16)
        return vptq_fail(err, VPTQ_E_ARG, "storage type is %s, expected F16 or BF16",
                         vptq_dtype_get(s->storage)->name);
    vptq_vq_shape shape = vptq_quant_shape(s, out, in);
    return vptq_vq_shape_check(&shape, err);
}
