/* Internal to hessian/calibrate*.c, which depend on each other in one direction: calibrate.c
 * (plan, start, one stream, checkpoint) uses calibrate_sequential.c (two streams), and both use
 * calibrate_sums.c. */
#ifndef VPTQ_HESSIAN_CALIBRATE_INTERNAL_H
#define VPTQ_HESSIAN_CALIBRATE_INTERNAL_H

#include "hessian/calibrate.h"

/* Windows of both parts. */
static inline size_t vptq_calibrator_windows(const vptq_calibrator *c)
{
    return c->windows[VPTQ_PART_MAIN] + c->windows[VPTQ_PART_HELD_OUT];
}

/* The number that this rank runs. */
static inline size_t vptq_calibrator_own_windows(const vptq_calibrator *c)
{
    return c->own[VPTQ_PART_MAIN] + c->own[VPTQ_PART_HELD_OUT];
}

/* A chunk of every rank. */
typedef struct vptq_calibrator_round {
    size_t first, count; /* own windows of the chunk; count 0: this rank has none */
    int parts;           /* ranks that have one */
} vptq_calibrator_round;

/* ---- calibrate_sums.c ---- */

/* Lists the windows that this rank runs. */
vptq_status vptq_calibrator_choose_own(vptq_calibrator *c, vptq_err *err) VPTQ_MUST_CHECK;
/* Rounds of a part, and the i-th of them. */
size_t vptq_calibrator_rounds(const vptq_calibrator *c, vptq_part part);
vptq_calibrator_round vptq_calibrator_round_at(const vptq_calibrator *c, vptq_part part,
                                               size_t i);

/* Opens a stream of hidden states of all windows, in device memory if `streams` of them fit. */
vptq_status vptq_calibrator_open_stream(const vptq_calibrator *c, const char *dir,
                                        size_t streams, vptq_hidden_states *s,
                                        vptq_err *err) VPTQ_MUST_CHECK;
/* Allocates the terms and the arrays for token weights; measures saliencies for guided ones. */
vptq_status vptq_calibrator_open_terms(vptq_calibrator *c, const char *dir,
                                       vptq_err *err) VPTQ_MUST_CHECK;
/* Clears the sums of an input and prepares its weights for the windows of a part. */
vptq_status vptq_calibrator_begin(vptq_calibrator *c, vptq_input input, vptq_part part,
                                  vptq_err *err) VPTQ_MUST_CHECK;
/* Adds the chunks of a round, which the ranks 0 to parts - 1 have, to the sums of an input. */
vptq_status vptq_calibrator_share(vptq_calibrator *c, vptq_input input, int parts,
                                  vptq_err *err) VPTQ_MUST_CHECK;
/* Finishes the sums of an input after the last round. */
vptq_status vptq_calibrator_end(vptq_calibrator *c, vptq_input input, vptq_part part,
                                vptq_err *err) VPTQ_MUST_CHECK;
/* Adds x [tokens, dim of input] (device memory) to the sum of an input, and its first token to
 * the term of the sink. */
vptq_status vptq_calibrator_add(vptq_calibrator *c, vptq_input input, size_t tokens,
                                const float *x, vptq_err *err) VPTQ_MUST_CHECK;
/* Guided weights: adds x of own window w to the term of linear layer l.  Leaves its weights in
 * c->weight [tokens]. */
vptq_status vptq_calibrator_add_guided(vptq_calibrator *c, vptq_linear l, size_t w,
                                       size_t tokens, const float *x,
                                       vptq_err *err) VPTQ_MUST_CHECK;
/* An attention hook (lib/model/forward.h): T += sum_t a_t x_t x_t^T over one window, a_t the
 * mean squared attention that token t receives.  Leaves a in c->weight [tokens]. */
vptq_status vptq_calibrator_attention(void *arg, size_t sequence, size_t tokens, size_t dim,
                                      const float *x, const vptq_attention_args *a,
                                      vptq_err *err) VPTQ_MUST_CHECK;

/* ---- calibrate_sequential.c ---- */

/* The second stream, x~; closed by vptq_calibrator_release. */
vptq_status vptq_calibrator_open_second(vptq_calibrator *c, const char *dir,
                                        vptq_err *err) VPTQ_MUST_CHECK;
/* Bytes of host memory of its sums and groups of `rows` rows, with a model of this shape. */
size_t vptq_calibrator_second_bytes(const vptq_calibrator *c, const vptq_model_desc *d,
                                    size_t rows);
void vptq_calibrator_close_second(vptq_calibrator *c);
/* Its hidden states, NULL without one. */
vptq_hidden_states *vptq_calibrator_second(const vptq_calibrator *c);

#endif
