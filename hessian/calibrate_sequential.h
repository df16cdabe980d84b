/* The second stream of a sequential calibration; what calibrate.c and it share. */
#ifndef VPTQ_HESSIAN_CALIBRATE_SEQUENTIAL_H
#define VPTQ_HESSIAN_CALIBRATE_SEQUENTIAL_H

#include "hessian/calibrate.h"

/* Memory for x~ and the moments of both streams; x~ goes to a file in `dir` where x does.
 * Closing accepts what is not open. */
vptq_status vptq_calibrator_open_second(vptq_calibrator *c, const char *dir,
                                        vptq_err *err) VPTQ_MUST_CHECK;
void vptq_calibrator_close_second(vptq_calibrator *c);
/* x~ between two blocks; NULL without a second stream. */
vptq_hidden_states *vptq_calibrator_passed(const vptq_calibrator *c);

/* ---- of calibrate.c ---- */

size_t vptq_calibrator_windows(const vptq_calibrator *c); /* of both parts */
/* Adds x [tokens, dim] of one window to c->sum[input], and its sink to c->term. */
vptq_status vptq_calibrator_add(vptq_calibrator *c, vptq_input input, size_t tokens, size_t dim,
                                const float *x, vptq_err *err) VPTQ_MUST_CHECK;
/* The attention hook: c->term += sum_t a_t x_t x_t^T of one window; a stays in c->host_weight.
 */
vptq_status vptq_calibrator_attention(void *arg, size_t sequence, size_t tokens, size_t dim,
                                      const float *x, const vptq_attention_args *a,
                                      vptq_err *err) VPTQ_MUST_CHECK;

#endif
