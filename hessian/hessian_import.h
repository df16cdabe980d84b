/* Hessians of others: PyTorch files as VPTQ's and QuIP#'s collectors write them, one per input,
 * "LAYER_INPUT.pt" with inputs qkv, o, up and down: `flatH` (lower triangle of the covariance
 * Cov = E[x x^T] - mu mu^T, row by row), `mu` (E[x]), `n` (columns) and `ct` (tokens). */
#ifndef HESSIAN_HESSIAN_IMPORT_H
#define HESSIAN_HESSIAN_IMPORT_H

#include "hessian/hessian_collect.h"

/* Whether Hessians with the fingerprint `hessians` may be used with a model of fingerprint
 * `model`.  Those that were imported do not say of which model they are: only shapes tell. */
bool vptq_hessian_is_of(const char *hessians, const char *model);

/* Every layer of `from` (no gaps, all four inputs of each) into the Hessian directory
 * `out_dir`, which appears whole; with force a Hessian directory that is there is replaced.  H
 * = Cov + mu mu^T; Cov is kept, too, where it cannot be computed back from H and mu to the last
 * bit. */
vptq_status vptq_hessian_import(const vptq_ctx *ctx, const char *from, const char *out_dir,
                                bool force, vptq_hessian_dir *made,
                                vptq_err *err) VPTQ_MUST_CHECK;

/* The Hessians of `dir` (without terms and held-out ones) as such files into a directory that
 * appears whole.  What was imported comes out with the same numbers, bit for bit. */
vptq_status vptq_hessian_export(const vptq_ctx *ctx, const char *dir, const char *out_dir,
                                vptq_hessian_dir *read, vptq_err *err) VPTQ_MUST_CHECK;

#endif
