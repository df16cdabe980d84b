/* Internal: the saliency of each token at each linear layer: how much the loss of a model
 * depends on the layer's outputs there.
 *
 * The saliency of token t at a linear layer with outputs z is s(t) = mean over rows j of
 * (d loss / d z_j(t))^2, for labels drawn from the model (hessian/sampled.h).
 *
 * Source: GuidedQuant (Kim et al. 2025) for the weighting, with sampled labels. */
#ifndef VPTQ_HESSIAN_SALIENCY_H
#define VPTQ_HESSIAN_SALIENCY_H

#include "hessian/hidden_states.h"
#include "lib/model/model.h"

typedef struct vptq_saliency_options {
    const vptq_model *model;
    const int32_t *ids;
    const size_t *window; /* index of the first id of each window of the text */
    const size_t *number; /* [windows] which of them to run; NULL = 0, 1, .. */
    size_t windows, length;
    uint64_t seed;
    const char *fingerprint; /* of all of these; 16 bytes */
    const char *dir; /* for the checkpoint, and for saliencies that memory cannot hold */
    double checkpoint_seconds; /* at least this long between checkpoints */
    size_t reserve;            /* bytes that the caller needs under a memory cap */
} vptq_saliency_options;

/* Row (w * layers + layer) * VPTQ_LINEAR_DENSE + l of *s [.., length] = the saliencies of the
 * w-th window at linear layer l.  Each window takes a pass forwards and one backwards; windows
 * that the checkpoint in o->dir holds are not run again.  Several ranks have no checkpoint. The
 * caller closes *s.  VPTQ_E_NUMERIC names the window whose gradient is not finite. */
vptq_status vptq_saliency_collect(vptq_device *dev, const vptq_saliency_options *o,
                                  vptq_hidden_states *s, vptq_err *err) VPTQ_MUST_CHECK;
static inline size_t vptq_saliency_row(const vptq_model_desc *d, size_t w, uint32_t layer,
                                       vptq_linear l)
{
    return (w * d->layers + layer) * VPTQ_LINEAR_DENSE + (size_t)l;
}

#define VPTQ_SALIENCY_FILE "saliency.state" /* the checkpoint */

/* Weights of the tokens of some windows at one linear layer: min(s(t), clip) / mean, with a
 * mean of 1.  A few tokens would otherwise dominate. */
typedef struct vptq_saliency_scale {
    float clip;  /* the quantile 0.95 of s */
    double mean; /* of min(s, clip); 0: all are 0 */
} vptq_saliency_scale;

/* values [count] are reordered. */
vptq_saliency_scale vptq_saliency_scale_of(float *values, size_t count);
/* w [count] = the weights of s, divided by `count`; 1 / count if mean is 0. */
void vptq_saliency_weights(const vptq_saliency_scale *k, const float *s, size_t count,
                           float *w);

#endif
