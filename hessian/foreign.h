/* What one file of others says about the input of a linear, for the files of this room. */
#ifndef VPTQ_HESSIAN_FOREIGN_H
#define VPTQ_HESSIAN_FOREIGN_H

#include "formats/gguf/imatrix.h"
#include "hessian/hessian.h"
#include "hessian/import.h"

typedef struct vptq_foreign {
    vptq_foreign_form form;
    uint32_t n;
    uint64_t tokens;   /* 0 = not said */
    float *lower;      /* [n (n + 1) / 2] H; NULL of an imatrix */
    float *covariance; /* the same, where H does not give it back to the last bit; else NULL */
    float *diagonal;   /* [n] of an imatrix, else NULL */
    float *mean;       /* [n], zero where it is not said */
    double ridge;      /* taken off the diagonal; 0 = none, or it is not known which */
} vptq_foreign;

/* A PyTorch file of either form, known by its keys.  All numbers are finite, diagonals not
 * negative; they live in `arena`. */
vptq_status vptq_foreign_read_torch(vptq_device *dev, const char *path, vptq_arena *arena,
                                    vptq_foreign *f, vptq_err *err) VPTQ_MUST_CHECK;
/* A .npy file of a square symmetric matrix. */
vptq_status vptq_foreign_read_npy(const char *path, vptq_arena *arena, vptq_foreign *f,
                                  vptq_err *err) VPTQ_MUST_CHECK;
/* What an imatrix says of an input of a block; `path` is for messages. */
vptq_status vptq_foreign_take_imatrix(const vptq_imatrix *im, const char *path, uint32_t layer,
                                      vptq_input input, vptq_arena *arena, vptq_foreign *f,
                                      vptq_err *err) VPTQ_MUST_CHECK;

/* What the inverse form adds to H / mean(diag H) on the diagonal before it is inverted, as the
 * published tools do it: 0.01, then 0.01 of the mean diagonal, which is 1.01 by then. */
#define VPTQ_INVERSE_RIDGE (0.01 + 0.01 * 1.01)

/* The tensor that keeps a covariance in a file of a Hessian directory. */
#define VPTQ_COVARIANCE "covariance"

/* "LAYER_INPUT.ENDING" */
void vptq_foreign_name(char name[64], uint32_t layer, vptq_input input, const char *ending);

#endif
