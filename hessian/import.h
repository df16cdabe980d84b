/* Internal: imports Hessians of other programs and exports ours.  Files are named
 * "LAYER_INPUT.pt" or ".npy" with inputs qkv, o, up and down.
 *
 * PyTorch, covariance form (VPTQ's and QuIP#'s collectors): `flatH` (lower triangle of Cov =
 * E[x x^T] - mu mu^T, row by row), `mu` (E[x]), `n` (columns), `ct` (tokens).
 * PyTorch, inverse form (VPTQ's quantizer reads it as well): `invH` [n, n], the upper
 * triangular U with U^T U = (P (H / m + r I) P^T)^-1, m the mean of the diagonal, r =
 * VPTQ_INVERSE_RIDGE; `perm` [n], position -> column; `zero_idx` [n], all false.
 * numpy: H itself, float32 or float64, square and symmetric.
 * llama.cpp's imatrix: one file for all layers with the diagonals of H. */
#ifndef VPTQ_HESSIAN_IMPORT_H
#define VPTQ_HESSIAN_IMPORT_H

#include "hessian/collect.h"
#include "lib/vptq.h"

typedef enum {
    VPTQ_FOREIGN_COVARIANCE, /* PyTorch: covariance, mean, columns, tokens */
    VPTQ_FOREIGN_INVERSE,    /* PyTorch: factor of the damped inverse */
    VPTQ_FOREIGN_NUMPY,      /* H as it is; import only */
    VPTQ_FOREIGN_IMATRIX     /* llama.cpp: diagonals; import only */
} vptq_foreign_form;

/* "pytorch covariance", "pytorch inverse", "numpy" or "imatrix"; static. */
const char *vptq_foreign_form_name(vptq_foreign_form form);

typedef struct vptq_exchange {
    vptq_hessian_dir dir; /* what was written or read */
    vptq_foreign_form form;
    double ridge; /* inverse form: removed from (import) or added to (export) the diagonal of
                     H / mean(diag H); 0 on import = unknown, and left in */
} vptq_exchange;

/* Whether Hessians with the model fingerprint `hessians` fit the model with fingerprint
 * `model`. Imported ones fit every model, because their files do not name one. */
bool vptq_hessian_is_of(const char *hessians, const char *model);

/* Imports every layer of `from` (no gaps, all four inputs, all in one form) into the Hessian
 * directory `out_dir`, atomically; with force an existing Hessian directory is replaced.
 * `from` is a directory or an imatrix file.
 * - covariance: H = Cov + mu mu^T; Cov is stored as well if H and mu do not reproduce it to the
 *   last bit.
 * - inverse: (U^T U)^-1 in double and in column order, without the ridge if the mean diagonal
 *   shows that there is one.  H stays divided by the mean of its diagonal, because these files
 *   record neither that mean nor the mean of x nor tokens.
 * - numpy: H unchanged; mean and tokens are unknown.
 * - imatrix: diagonals only. */
vptq_status vptq_hessian_import(vptq_device *dev, const char *from, const char *out_dir,
                                bool force, vptq_exchange *made, vptq_err *err) VPTQ_MUST_CHECK;

/* Exports the Hessians of `dir` (without terms and held-out ones) as PyTorch files of either
 * form into a new directory, atomically.  An imported covariance is exported bit for bit; `ct`
 * is 0 if the tokens are unknown.  The inverse form has an identity `perm`. */
vptq_status vptq_hessian_export(vptq_device *dev, const char *dir, vptq_foreign_form form,
                                const char *out_dir, vptq_exchange *read,
                                vptq_err *err) VPTQ_MUST_CHECK;
/* Makes the checks of vptq_hessian_export, and plans it. */
vptq_status vptq_hessian_export_plan(const char *dir, vptq_foreign_form form,
                                     const char *out_dir, vptq_exchange *read,
                                     vptq_hessian_plan *plan, vptq_err *err) VPTQ_MUST_CHECK;

#endif
