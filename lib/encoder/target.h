/* Internal: targets of sequential calibration.  A linear layer after quantized ones reads x~
 * where the original model has x; What x~ = W x would give the original's output.  What o and
 * down add to has drifted, too, so theirs is What x~ = W x~ + (h - h~), with h the original's
 * hidden states after the layer and h~ those that W would lead to.  Minimizing the squared
 * error of that over calibration tokens is, up to a constant, minimizing (What - W1) H~ (What -
 * W1)^T with
 *
 *     W1 = W + R H~^-1,  R = W E[(x - x~) x~^T] or E[(h - h~) x~^T],  H~ = E[x~ x~^T]
 *
 * (the first form is known as GPTAQ and ResComp).  The whole correction overfits the
 * calibration tokens: the target is W + alpha R (H~ + lambda)^-1 with 0 <= alpha <= 1, alpha
 * and lambda chosen on held-out tokens. */
#ifndef VPTQ_ENCODER_TARGET_H
#define VPTQ_ENCODER_TARGET_H

#include "lib/backend/mirror.h"

/* One matrix and the moments of its input, in host memory for vptq_target_find and in device
 * memory for the other functions, which have all their arrays there.  Either `shift` or `drift`
 * is NULL. */
typedef struct vptq_target_moments {
    uint32_t out, in;
    const float *w;     /* [out, in] */
    const float *lower; /* H~ [in (in + 1) / 2] */
    const float *shift; /* E[(x - x~) x~^T] [in, in], row = component of x - x~ */
    const float *drift; /* E[(h - h~) x~^T] [out, in] */
} vptq_target_moments;

/* delta [out, in] = R (H~ + lambda)^-1 with lambda = damping * mean diagonal of H~ (more if
 * that does not factor). */
vptq_status vptq_target_delta(vptq_device *dev, const vptq_target_moments *m, double damping,
                              float *delta, vptq_err *err) VPTQ_MUST_CHECK;

typedef struct vptq_target_choice {
    double alpha, damping;
    double gain; /* by how much the squared error on held-out tokens is below that of W,
                    divided by tr(W H~ W^T); >= 0 */
} vptq_target_choice;

/* Measures any delta on held-out tokens: their H~ and R [out, in], tr(W H~ W^T). */
typedef struct vptq_target_judge {
    uint32_t out, in;
    const float *lower;
    float *r; /* in the arrays given */
    double norm;
} vptq_target_judge;
vptq_status vptq_target_judge_make(vptq_device *dev, const vptq_target_moments *held_out,
                                   vptq_mirror *arrays, vptq_target_judge *judge,
                                   vptq_err *err) VPTQ_MUST_CHECK;

/* Of {0, 1/4, 1/2, 3/4, 1} up to `max_alpha`, the alpha with the least error on held-out
 * tokens; the smallest of equals. */
vptq_status vptq_target_choose(vptq_device *dev, const vptq_target_judge *judge,
                               const float *delta, double max_alpha, vptq_target_choice *choice,
                               vptq_err *err) VPTQ_MUST_CHECK;

/* Tries dampings of 0.01, 0.1 and 1: target [out, in] (not m->w) is the best of all, or w
 * itself if none gains. */
vptq_status vptq_target_find(vptq_device *dev, const vptq_target_moments *m,
                             const vptq_target_moments *held_out, double max_alpha,
                             float *target, vptq_target_choice *choice,
                             vptq_err *err) VPTQ_MUST_CHECK;

/* target [count] = w + alpha delta (host memory), exactly w for alpha = 0.  `target` may be
 * `delta`. */
void vptq_target_apply(size_t count, const float *w, const float *delta, double alpha,
                       float *target);

#endif
