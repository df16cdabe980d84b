/* Targets of sequential calibration.  A linear that stands behind quantized blocks gets x~
 * where the original model has x.  Minimizing |What x~ - W x|^2 over calibration tokens is, but
 * for a constant, minimizing (What - W1) H~ (What - W1)^T with
 *
 *     W1 = W + W E[(x - x~) x~^T] H~^-1,  H~ = E[x~ x~^T]
 *
 * (methods known as GPTAQ and ResComp).  All of that correction fits the calibration tokens too
 * well: W + alpha (W1 - W) with 0 <= alpha <= 1 is the target, alpha by held-out tokens. */
#ifndef VPTQ_QUANT_TARGET_H
#define VPTQ_QUANT_TARGET_H

#include "lib/backend/backend.h"

/* Of one input, host memory: what passed the quantized blocks, and how far the original model's
 * is from it. */
typedef struct vptq_target_moments {
    const float *lower; /* H~ [in (in + 1) / 2] */
    const float *shift; /* E[(x - x~) x~^T] [in, in], row = component of x - x~ */
} vptq_target_moments;

/* delta [out, in] = W1 - W, with `damping` times its mean diagonal added to H~ (more where that
 * does not factor). */
vptq_status vptq_target_delta(vptq_device *dev, uint32_t out, uint32_t in, const float *w,
                              const vptq_target_moments *m, double damping, float *delta,
                              vptq_err *err) VPTQ_MUST_CHECK;

typedef struct vptq_target_choice {
    double alpha;
    double gain; /* by how much E|W_alpha x~ - W x|^2 of the held-out tokens is below that of
                    W_0 = W, over tr(W H~ W^T); >= 0 */
} vptq_target_choice;

/* The alpha of {0, 1/4, 1/2, 3/4, 1}, up to `most`, with the least error on held-out moments,
 * the smallest where several are as good. */
vptq_status vptq_target_choose(vptq_device *dev, uint32_t out, uint32_t in, const float *w,
                               const float *delta, const vptq_target_moments *held_out,
                               double most, vptq_target_choice *choice,
                               vptq_err *err) VPTQ_MUST_CHECK;

/* target = w + alpha delta, `count` numbers; target may be delta.  Exactly w for alpha = 0. */
void vptq_target_apply(size_t count, const float *w, const float *delta, double alpha,
                       float *target);

#endif
