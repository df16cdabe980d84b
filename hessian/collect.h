/* Walks a model over calibration windows and writes one Hessian per block input into a
 * directory. */
#ifndef VPTQ_HESSIAN_COLLECT_H
#define VPTQ_HESSIAN_COLLECT_H

#include "hessian/calibrate.h"
#include "lib/vptq.h"

/* Collects into `dir` (made when missing, locked while running), the held-out windows into
 * "holdout" inside it, which is a Hessian directory of its own.  A directory that holds some
 * of the layers of the same run (fingerprints of model, ids and settings in hessian.json) is
 * continued; one of another run is VPTQ_E_MISMATCH naming the key, unless force.  The hidden
 * states go into a checkpoint file beside the Hessians now and then, so that a killed run goes
 * on near where it was; one that is damaged or comes too late is only passed over.  Same bytes
 * in the end for any interruption, thread count and memory cap. */
vptq_status vptq_hessian_collect(vptq_device *dev, const vptq_model *m,
                                 const vptq_collect_options *opt, const char *dir,
                                 vptq_collect_result *result, vptq_err *err) VPTQ_MUST_CHECK;

/* Exact pooling of directories of the same model, layers and weights into a new one; held-out
 * parts are pooled, too, where every directory has one.  With force a Hessian directory that is
 * there is replaced, its held-out part with it. */
vptq_status vptq_hessian_merge(const vptq_ctx *ctx, const char *const *dirs, size_t count,
                               const char *out, bool force, vptq_err *err) VPTQ_MUST_CHECK;

/* The directory of held-out Hessians inside a directory. */
#define VPTQ_HESSIAN_HOLDOUT "holdout"

vptq_status vptq_hessian_dir_open(const char *dir, vptq_hessian_dir *h,
                                  vptq_err *err) VPTQ_MUST_CHECK;

/* Writes hessian.json; `details` (borrowed) becomes its key "settings". */
vptq_status vptq_hessian_dir_save(const char *dir, const vptq_hessian_dir *h, json_t *details,
                                  vptq_err *err) VPTQ_MUST_CHECK;
/* The Hessian of one input, `n` columns (0 = any); a missing file is VPTQ_E_FORMAT naming it, a
 * number that is not finite VPTQ_E_NUMERIC.  `lower` is there in any case: a diagonal gets
 * zeros beside it, but with n = 0 is VPTQ_E_UNSUPPORTED. */
vptq_status vptq_hessian_dir_load(const char *dir, uint32_t layer, vptq_input input, uint32_t n,
                                  vptq_mem *mem, vptq_hessian_file *h,
                                  vptq_err *err) VPTQ_MUST_CHECK;

/* The Hessian of k and v: plain (the lower triangle of that of qkv) plus `factor` times the
 * term of layer, into mixed [n (n + 1) / 2], which may be plain.  NAN takes the directory's
 * factor.  VPTQ_E_MISMATCH where the directory has no terms. */
vptq_status vptq_hessian_dir_load_kv(const char *dir, uint32_t layer, uint32_t n, double factor,
                                     vptq_mem *mem, const float *plain, float *mixed,
                                     vptq_err *err) VPTQ_MUST_CHECK;

vptq_status vptq_hessian_show(vptq_device *dev, const char *dir, vptq_hessian_row_fn fn,
                              void *arg, vptq_err *err) VPTQ_MUST_CHECK;

#endif
