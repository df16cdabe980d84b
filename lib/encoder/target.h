/* Targets of sequential calibration.  A linear that stands behind quantized ones gets x~ where
 * the original model has x; what gives the original's output is What x~ = W x.  What o and down
 * add to has drifted, too, so theirs is What x~ = W x~ + (h - h~), h the original's states
 * behind them and h~ those that W would lead to.  Minimizing the squared error of that over
 * calibration tokens is, but for a constant, minimizing (What - W1) H~ (What - W1)^T with
 *
 *     W1 = W + R H~^-1,  R = W E[(x - x~) x~^T] or E[(h - h~) x~^T],  H~ = E[x~ x~^T]
 *
 * (the first form is known as GPTAQ and ResComp).  All of that correction fits the calibration
 * tokens too well: W + alpha R (H~ + lambda)^-1 with 0 <= alpha <= 1 is the target, alpha and
 * lambda by held-out tokens. */
#ifndef VPTQ_ENCODER_TARGET_H
#define VPTQ_ENCODER_TARGET_H

#include "lib/backend/backend.h"

/* Of one input, host memory; one of the last two is NULL. */
typedef struct vptq_target_moments {
    const float *lower; /* H~ [in (in + 1) / 2] */
    const float *shift; /* E[(x - x~) x~^T] [in, in], row = component of x - x~ */
    const float *drift; /* E[(h - h~) x~^T] [out, in] */
} vptq_target_moments;

/* delta [out, in] = R (H~ + lambda)^-1 with lambda = damping * mean diagonal of H~ (more where
 * that does not factor). */
vptq_status vptq_target_delta(vptq_device *dev, uint32_t out, uint32_t in, const float *w,
                              const vptq_target_moments *m, double damping, float *delta,
                              vptq_err *err) VPTQ_MUST_CHECK;

typedef struct vptq_target_choice {
    double alpha, damping;
    double gain; /* by how much the squared error of the held-out tokens is below that of W,
                    over tr(W H~ W^T); >= 0 */
} vptq_target_choice;

/* What held-out tokens say of any delta: H~ of theirs [in, in], R [out, in], tr(W H~ W^T). */
typedef struct vptq_target_judge {
    uint32_t out, in;
    double *h; /* lower triangle */
    float *r;
    double norm;
} vptq_target_judge;
/* The arena owns what the judge holds. */
vptq_status vptq_target_judge_make(vptq_device *dev, uint32_t out, uint32_t in, const float *w,
                                   const vptq_target_moments *held_out, vptq_arena *arena,
                                   vptq_target_judge *judge, vptq_err *err) VPTQ_MUST_CHECK;

/* The alpha of {0, 1/4, 1/2, 3/4, 1}, up to `most`, with the least error on held-out tokens,
 * the smallest where several are as good. */
vptq_status vptq_target_choose(vptq_device *dev, const vptq_target_judge *judge,
                               const float *delta, double most, vptq_target_choice *choice,
                               vptq_err *err) VPTQ_MUST_CHECK;

/* Both, over dampings of 0.01, 0.1 and 1: target [out, in] (not w) is the best of all, w itself
 * where none is any good. */
vptq_status vptq_target_find(vptq_device *dev, uint32_t out, uint32_t in, const float *w,
                             const vptq_target_moments *m, const vptq_target_moments *held_out,
                             double most, float *target, vptq_target_choice *choice,
                             vptq_err *err) VPTQ_MUST_CHECK;

/* target = w + alpha delta, `count` numbers; target may be delta.  Exactly w for alpha = 0. */
void vptq_target_apply(size_t count, const float *w, const float *delta, double alpha,
                       float *target);

#endif
