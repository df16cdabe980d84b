/* Internal to hessian/: reads the Hessian of one input from a file of another program. */
#ifndef VPTQ_HESSIAN_FOREIGN_H
#define VPTQ_HESSIAN_FOREIGN_H

#include "formats/gguf/imatrix.h"
#include "hessian/hessian.h"
#include "hessian/import.h"

typedef struct vptq_foreign {
    vptq_foreign_form form;
    uint32_t n;
    uint64_t tokens;   /* 0 = unknown */
    float *lower;      /* [n (n + 1) / 2] H; NULL for an imatrix */
    float *covariance; /* the same size, if H does not reproduce it to the last bit; or NULL */
    float *diagonal;   /* [n] of an imatrix, else NULL */
    float *mean;       /* [n], zero if unknown */
    double ridge;      /* removed from the diagonal; 0 = none or unknown */
} vptq_foreign;

/* Reads a PyTorch file of either form, told apart by its keys.  Checks that all numbers are
 * finite and no diagonal is negative.  The arrays belong to `arena`. */
vptq_status vptq_foreign_read_torch(vptq_device *dev, const char *path, vptq_arena *arena,
                                    vptq_foreign *f, vptq_err *err) VPTQ_MUST_CHECK;
/* Reads a .npy file with a square symmetric matrix. */
vptq_status vptq_foreign_read_npy(const char *path, vptq_arena *arena, vptq_foreign *f,
                                  vptq_err *err) VPTQ_MUST_CHECK;
/* Takes one input of a block from an imatrix that has it. */
vptq_status vptq_foreign_take_imatrix(const vptq_imatrix *im, uint32_t layer, vptq_input input,
                                      vptq_arena *arena, vptq_foreign *f,
                                      vptq_err *err) VPTQ_MUST_CHECK;

/* The inverse form adds this to the diagonal of H / mean(diag H) before it is inverted, as the
 * published tools do: 0.01, then 0.01 of the mean diagonal, which is 1.01 by then. */
#define VPTQ_INVERSE_RIDGE (0.01 + 0.01 * 1.01)

/* The tensor for a covariance in a file of a Hessian directory. */
#define VPTQ_COVARIANCE "covariance"

/* name = "LAYER_INPUT.ENDING" */
void vptq_foreign_name(char name[64], uint32_t layer, vptq_input input, const char *ending);

#endif
