/* Two models that are compared must be versions of each other.  Internal to lib/eval. */
#ifndef VPTQ_EVAL_PAIR_H
#define VPTQ_EVAL_PAIR_H

#include "lib/model/model.h"

/* VPTQ_E_MISMATCH naming both files and shapes when they differ. */
vptq_status vptq_eval_check_shapes(const vptq_model *m, const vptq_model *base,
                                   vptq_err *err) VPTQ_MUST_CHECK;

#endif
