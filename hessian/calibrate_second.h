/* The second stream of a sequential calibration; for calibrate.c only. */
#ifndef HESSIAN_CALIBRATE_SECOND_H
#define HESSIAN_CALIBRATE_SECOND_H

#include "hessian/calibrate.h"

/* Memory for the moments of both streams; closing accepts what is not open. */
vptq_status vptq_calibrator_open_second(vptq_calibrator *c, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_calibrator_close_second(vptq_calibrator *c);

/* The tap of the first stream: keeps x of the group. */
vptq_status vptq_calibrator_record(void *arg, vptq_input input, size_t sequence, size_t tokens,
                                   size_t dim, const float *x, vptq_err *err) VPTQ_MUST_CHECK;
/* Of the second: adds (x - x~) x~^T of a sequence of the same group. */
vptq_status vptq_calibrator_add_shift(vptq_calibrator *c, vptq_input input, size_t sequence,
                                      size_t tokens, size_t dim, const float *x,
                                      vptq_err *err) VPTQ_MUST_CHECK;

#endif
