/* Internal to lib/uniform: helpers of methods that keep the product of the error and the
 * Hessian up to date. */
#ifndef VPTQ_UNIFORM_METRIC_H
#define VPTQ_UNIFORM_METRIC_H

#include "lib/uniform/uniform.h"

/* h [in, in] = the Hessian of the input divided by its mean diagonal.  VPTQ_E_NUMERIC unless
 * it is finite and the mean positive. */
vptq_status vptq_uniform_metric(vptq_device *dev, const vptq_uniform_input *input, float *h,
                                vptq_err *err) VPTQ_MUST_CHECK;

/* Rounds to the storage type, within its finite numbers. */
void vptq_uniform_store(vptq_dtype storage, float *x, size_t n);

#endif
