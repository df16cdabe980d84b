/* Internal: the backward pass of windows of one length, block by block from the last to the
 * first.  A block computes its activations again from the hidden states that went into it, so
 * that those of one block exist at a time, unless there is memory to keep them.
 *
 *     vptq_backward *b;
 *     vptq_backward_open(f, length, windows, &b, err);
 *     vptq_backward_run(b, ids, NULL, embedded, h, err);
 *     vptq_backward_head(b, &of_the_head, loss, dh, err);
 *     for (l = layers; l-- > 0;)
 *         vptq_backward_block(b, l, h[l], dh, &hooks, err);
 *
 * dX is the gradient of the sum of losses with respect to X.  A window attends to itself only;
 * its results do not depend on other windows, and neither on the number of threads nor on
 * memory. */
#ifndef VPTQ_MODEL_BACKWARD_H
#define VPTQ_MODEL_BACKWARD_H

#include "lib/model/forward.h"

typedef struct vptq_backward vptq_backward;

/* VPTQ_E_UNSUPPORTED for a model with 8-bit activations, or with arithmetic that the backward
 * pass lacks: other activations than silu, soft caps, norms of what a block adds. */
vptq_status vptq_backward_check(const vptq_model *m, vptq_err *err) VPTQ_MUST_CHECK;
/* For up to `windows` windows of `length` tokens; that is at most the max_length of f, which
 * must outlive it.  Errors as vptq_backward_check. */
vptq_status vptq_backward_open(vptq_forward *f, size_t length, size_t windows,
                               vptq_backward **b, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_backward_close(vptq_backward *b); /* accepts NULL */
/* Bytes of device memory for `rows` tokens in all windows. */
size_t vptq_backward_bytes(const vptq_forward *f, size_t rows);
/* Keeps the activations of as many blocks as `bytes` of device memory hold, from the last one
 * on, from vptq_backward_run to the backward pass, which does not compute them again; the
 * results are the same.  Where memory is short it keeps fewer blocks, or none.  Call it once,
 * if at all. */
void vptq_backward_keep(vptq_backward *b, size_t bytes);
/* The following calls are for `count` windows, one after another in every array: `rows` =
 * count * length.  At first all `windows`. */
void vptq_backward_windows(vptq_backward *b, size_t count);

/* Runs the model forwards over ids [rows] of host memory and keeps what goes into every block
 * and out of the last: states [layers + 1][rows, hidden], device memory.  embedded
 * [rows, hidden]: working memory of the host.  weights [layers * VPTQ_LINEAR_DENSE], or NULL
 * for those of the model. */
vptq_status vptq_backward_run(vptq_backward *b, const int32_t *ids, const vptq_weight *weights,
                              float *embedded, float *states, vptq_err *err) VPTQ_MUST_CHECK;
/* Runs a block forwards, hidden [rows, hidden] in place, in device memory; with these weights
 * [VPTQ_LINEAR_DENSE], or (NULL) those of the model. */
vptq_status vptq_backward_forward(vptq_backward *b, uint32_t layer, const vptq_weight *weights,
                                  float *hidden, vptq_err *err) VPTQ_MUST_CHECK;

/* Called for every linear layer of a block with its input x [rows, in] and the gradient of its
 * output dz [rows, out], both in device memory. */
typedef vptq_status (*vptq_backward_fn)(void *arg, uint32_t layer, vptq_linear l, size_t rows,
                                        const float *x, const float *dz, vptq_err *err);

/* Further inputs and outputs of a block; all may be NULL. */
typedef struct vptq_backward_hooks {
    vptq_backward_fn linear;
    void *arg;
    const vptq_weight *weights; /* [VPTQ_LINEAR_DENSE], replace those of the model */
    /* Gradients of the norms' weights, which are added to; device memory. */
    double *input_norm, *post_norm; /* [hidden] */
    double *q_norm, *k_norm;        /* [head_dim] */
} vptq_backward_hooks;

/* hidden [rows, hidden]: what went into the block.  In the states of the last vptq_backward_run
 * it must be unchanged, and so must the weights.  dhidden [rows, hidden]: the gradient of
 * what came out; replaced by that of what went in.  Both in device memory. */
vptq_status vptq_backward_block(vptq_backward *b, uint32_t layer, const float *hidden,
                                float *dhidden, const vptq_backward_hooks *hooks,
                                vptq_err *err) VPTQ_MUST_CHECK;

/* Loss of every token.  The wanted distributions are those of `teacher`, the hidden states of
 * the original after its final norm (whose head is the same), or certain targets: see the op
 * kl_grad.  With `draws` the targets are drawn from the model's own distribution (see the op
 * sample); VPTQ_E_NUMERIC where a logit is NaN. */
typedef struct vptq_backward_loss {
    const float *hidden;    /* [rows, hidden] out of the last block, device memory */
    const float *teacher;   /* [rows, hidden], device memory, or NULL */
    const int32_t *targets; /* [rows] host memory; without a teacher */
    const double *draws;    /* [rows] in [0, 1), host memory; without a teacher and targets */
    float scale;            /* of the losses in the sum */
    double *final_norm;     /* [hidden] gradient, added to, device memory; or NULL */
} vptq_backward_loss;
/* loss [rows], host memory: of each token, not scaled.  dhidden [rows, hidden]: the gradient of
 * a->hidden, or NULL.  Logits exist for a chunk of tokens at a time. */
vptq_status vptq_backward_head(vptq_backward *b, const vptq_backward_loss *a, double *loss,
                               float *dhidden, vptq_err *err) VPTQ_MUST_CHECK;

#endif
