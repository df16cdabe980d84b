/* Internal: a quantized model whose stored numbers can be trained: codebooks, scale and bias of
 * every packed linear layer.  Indices, norms, embedding and head stay as they are.
 *
 * Every number exists twice: `master` is what the optimizer moves, `stored` is the master
 * rounded to the storage type, and to the grid of a codebook that has one; the forward pass
 * reads it (the gradient passes through the rounding unchanged). */
#ifndef VPTQ_TUNE_STUDENT_H
#define VPTQ_TUNE_STUDENT_H

#include "lib/model/model.h"
#include "lib/tune/stored.h"

typedef enum {
    VPTQ_TRAIN_CENTROIDS,
    VPTQ_TRAIN_RES_CENTROIDS,
    VPTQ_TRAIN_OUTLIER_CENTROIDS,
    VPTQ_TRAIN_SCALE,
    VPTQ_TRAIN_BIAS
} vptq_train_kind;

/* Numbers that have one step size: a codebook of one column group, or the scale or bias of a
 * matrix. */
typedef struct vptq_trainable {
    uint32_t layer, group;
    vptq_linear linear;
    vptq_train_kind kind;
    size_t at, count; /* in the arrays of the student */
    uint32_t v;       /* of a codebook */
    bool grid;        /* a codebook on an int8 grid, on which it stays (lib/base/grid.h) */
} vptq_trainable;

/* Tensors [first, end) of a student, and their numbers [at, at + count). */
typedef struct vptq_tensor_range {
    size_t first, end, at, count;
} vptq_tensor_range;

typedef struct vptq_student {
    const vptq_model *m;
    vptq_arena arena;
    vptq_weight *weight; /* [layers * VPTQ_LINEAR_DENSE]; plain ones are the model's */
    vptq_packed_matrix
        *matrix;   /* the packed ones of them, reading `stored`; name NULL: plain */
    size_t *first; /* [layers * VPTQ_LINEAR_DENSE] first number of a matrix */
    vptq_trainable *tensors;
    size_t tensor_count, count;        /* tensors; numbers */
    float *master, *stored, *original; /* [count]; original: as the model has them */
    double *ones;                      /* [VPTQ_VQ_MAX_K] */
} vptq_student;

/* The model must outlive the student.  VPTQ_E_ARG for a model without packed layers. */
vptq_status vptq_student_open(const vptq_ctx *ctx, const vptq_model *m, vptq_student *s,
                              vptq_err *err) VPTQ_MUST_CHECK;
void vptq_student_release(vptq_student *s); /* accepts a zeroed struct */

/* The tensors of layers [first, end); none if nothing of them is packed. */
vptq_tensor_range vptq_student_range(const vptq_student *s, uint32_t first, uint32_t end);
/* stored = master, rounded, of these tensors. */
void vptq_student_round(vptq_student *s, const vptq_tensor_range *range);
/* Share of the stored numbers that differ from the model's. */
double vptq_student_changed(const vptq_student *s);

/* The gradients of a matrix within an array [count] of all numbers. */
vptq_stored_gradients vptq_student_gradients(const vptq_student *s, uint32_t layer,
                                             vptq_linear l, double *all);

/* "layer 3 q_proj: residual centroids of group 1" */
enum { VPTQ_TRAINABLE_NAME_MAX = 96 };
void vptq_trainable_name(const vptq_model_desc *d, const vptq_trainable *t,
                         char name[VPTQ_TRAINABLE_NAME_MAX]);

#endif
