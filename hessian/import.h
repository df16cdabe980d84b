/* Hessians of others, in and out.  Files are called "LAYER_INPUT.pt" or ".npy" with inputs qkv,
 * o, up and down.
 *
 * PyTorch, covariance form (VPTQ's and QuIP#'s collectors): `flatH` (lower triangle of Cov =
 * E[x x^T] - mu mu^T, row by row), `mu` (E[x]), `n` (columns), `ct` (tokens).
 * PyTorch, inverse form (what VPTQ's quantizer reads besides): `invH` [n, n], the upper
 * triangular U with U^T U = (P (H / m + r I) P^T)^-1, m the mean of the diagonal, r =
 * VPTQ_INVERSE_RIDGE; `perm` [n], position -> column; `zero_idx` [n], all false.
 * numpy: H itself, float32 or float64, square and symmetric.
 * llama.cpp's imatrix: one file for all layers with the diagonals of H. */
#ifndef VPTQ_HESSIAN_IMPORT_H
#define VPTQ_HESSIAN_IMPORT_H

#include "hessian/collect.h"
#include "lib/vptq.h"

/* Whether Hessians with the fingerprint `hessians` may be used with a model of fingerprint
 * `model`.  Those that were imported do not say of which model they are: only shapes tell. */
bool vptq_hessian_is_of(const char *hessians, const char *model);

/* Every layer of `from` (no gaps, all four inputs of each, all of one form) into the Hessian
 * directory `out_dir`, which appears whole; with force a Hessian directory that is there is
 * replaced.  `from` is a directory, or an imatrix file.
 *   covariance: H = Cov + mu mu^T; Cov is kept, too, where it cannot be computed back from H
 *     and mu to the last bit.
 *   inverse: (U^T U)^-1 in double, back in the order of columns, less the ridge where the mean
 *     diagonal shows that it is in there.  H is then divided by the mean of its diagonal, which
 *     these files do not tell, nor mean nor tokens.
 *   numpy: H as it is; neither mean nor tokens are known.
 *   imatrix: diagonals only. */
vptq_status vptq_hessian_import(vptq_device *dev, const char *from, const char *out_dir,
                                bool force, vptq_exchange *made, vptq_err *err) VPTQ_MUST_CHECK;

/* The Hessians of `dir` (without terms and held-out ones) as PyTorch files of either form into
 * a directory that appears whole.  A covariance that was imported comes out with the same
 * numbers, bit for bit; `ct` is 0 where the tokens are not known.  The inverse form keeps the
 * columns in their order. */
vptq_status vptq_hessian_export(vptq_device *dev, const char *dir, vptq_foreign_form form,
                                const char *out_dir, vptq_exchange *read,
                                vptq_err *err) VPTQ_MUST_CHECK;

#endif
