/* Internal: quantizing a whole model into a work directory (lib/vptq.h has the options). */
#ifndef VPTQ_QUANTIZE_QUANTIZE_H
#define VPTQ_QUANTIZE_QUANTIZE_H

#include "hessian/collect.h"
#include "lib/encoder/encode.h"
#include "lib/encoder/presets.h"
#include "lib/quantize/settings.h"
#include "lib/vptq.h"

/* Locks the work directory and resumes finished matrices.  The result is the same bytes for any
 * thread count and any interruption. */
vptq_status vptq_quantize_model(vptq_device *dev, const vptq_quantize_options *opt,
                                vptq_quantize_fn fn, void *arg, vptq_quantize_result *result,
                                vptq_err *err) VPTQ_MUST_CHECK;

#endif
