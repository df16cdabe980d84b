/* Internal: what a calibration will take, from real work of about a second: block 0, or a
 * narrow stand-in for that of a large model (lib/model/narrow.h), runs over as many windows, or
 * tokens of one, as that allows.  The time of all follows from their tokens and the products of
 * both blocks; the memory, from the arrays of both. */
#ifndef VPTQ_HESSIAN_PROBE_H
#define VPTQ_HESSIAN_PROBE_H

#include "hessian/calibrate.h"

/* Seconds of so many blocks over all windows of a sampled calibration, and the peak of its
 * memory with all hidden states in it: `summed` blocks with their Hessians, at least 1, and
 * `passed` blocks, 0 if sequential, that windows only pass.  Not with guided weights, whose
 * gradients take passes over the whole model, and without output Hessians, which do so too. */
vptq_status vptq_calibrator_probe(const vptq_calibrator *c, uint32_t summed, uint32_t passed,
                                  double *seconds, uint64_t *memory,
                                  vptq_err *err) VPTQ_MUST_CHECK;

#endif
