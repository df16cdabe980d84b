/* Internal: gradients of labels drawn from the model.  The loss is -sum_t ln p_t(y_t) over a
 * window, with labels y drawn from the model's own distributions p: the gradient of the
 * divergence from the model itself is 0, but its curvature is the expectation of products of
 * these gradients (the Fisher information).  Labels of the text would measure where the model
 * is wrong instead.
 *
 *     vptq_sampled s;
 *     vptq_sampled_open(dev, model, length, seed, &s, err);
 *     for (w = 0; w < windows; w++)
 *         vptq_sampled_run(&s, w, ids[w], fn, arg, err);
 *     vptq_sampled_close(&s);
 */
#ifndef VPTQ_HESSIAN_SAMPLED_H
#define VPTQ_HESSIAN_SAMPLED_H

#include "lib/model/backward.h"
#include "lib/model/model.h"

typedef struct vptq_sampled {
    vptq_device *dev;
    const vptq_model *model;
    size_t length; /* tokens of a window */
    uint64_t seed;

    /* private */
    vptq_arena arena;
    vptq_forward *f;
    vptq_backward *b;
    /* device memory */
    float *states;  /* [layers + 1][length, hidden]: what went into every block */
    float *dhidden; /* [length, hidden] */
    /* host memory */
    float *embedded; /* [length, hidden] */
    double *draws;   /* [length] */
    double *loss;    /* [length] */
} vptq_sampled;

/* Allocates everything; device and model must outlive *s.  The caller closes *s, also after an
 * error. */
vptq_status vptq_sampled_open(vptq_device *dev, const vptq_model *m, size_t length,
                              uint64_t seed, vptq_sampled *s, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_sampled_close(vptq_sampled *s); /* accepts a zeroed struct */

/* Runs ids [length] forwards and backwards and calls fn for every linear layer, from the last
 * block to the first.  The labels depend on the seed and on `w`, the number of the window.
 * VPTQ_E_NUMERIC, also from fn, names the window. */
vptq_status vptq_sampled_run(vptq_sampled *s, size_t w, const int32_t *ids, vptq_backward_fn fn,
                             void *arg, vptq_err *err) VPTQ_MUST_CHECK;

#endif
