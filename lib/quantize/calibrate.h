/* Calibration in the quantize run: a source of Hessians that runs the model over the text block
 * by block while the matrices are made. */
#ifndef VPTQ_QUANTIZE_CALIBRATE_H
#define VPTQ_QUANTIZE_CALIBRATE_H

#include "lib/quantize/internal.h"

/* Plans the calibration that q->opt asks for and makes q->hessians its source.  Nothing is run
 * before the first Hessian is asked for; blocks are run in order from there on. */
vptq_status vptq_calibration_open(vptq_quantizer *q, vptq_err *err) VPTQ_MUST_CHECK;

/* With moments of two streams in h: *w becomes the corrected target of the row's matrix, in
 * `arena`, and the row says how much of the correction was taken. */
vptq_status vptq_calibration_target(vptq_quantizer *q, const vptq_input_hessians *h,
                                    vptq_quantize_row *row, vptq_arena *arena, const float **w,
                                    vptq_err *err) VPTQ_MUST_CHECK;

#endif
