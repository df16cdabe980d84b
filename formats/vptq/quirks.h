/* Internal: quirks of the published layout: forms that our reader accepts but other readers
 * refuse or misread.  Checking a model reports them, writing the matrix again repairs them. */
#ifndef VPTQ_FORMATS_VPTQ_QUIRKS_H
#define VPTQ_FORMATS_VPTQ_QUIRKS_H

#include "formats/vptq/packed.h"

typedef enum {
    VPTQ_QUIRK_EXTRA_KEY,
    VPTQ_QUIRK_FLOAT_KEY,
    VPTQ_QUIRK_AS_FLOAT,
    VPTQ_QUIRK_NOT_PACKED,
    VPTQ_QUIRK_NO_NORM,
    VPTQ_QUIRK_LOST_PERM,
    VPTQ_QUIRK_PERM, /* no warning: every reader supports it */
    VPTQ_QUIRK_BIAS_KEY,
    VPTQ_QUIRK_RESIDUALS,
    VPTQ_QUIRK_PADDING,
    VPTQ_QUIRK_COUNT
} vptq_quirk;

/* Number of matrices with each quirk, and the name of the first one. */
typedef struct vptq_quirks {
    uint32_t count[VPTQ_QUIRK_COUNT];
    const char *first[VPTQ_QUIRK_COUNT];
} vptq_quirks;

/* Counts the quirks of a matrix with its data, read from a model with this config.json and
 * these tensors.  Keeps a pointer to m->name. */
void vptq_quirks_add(vptq_quirks *q, const json_t *config, const vptq_tensor_set *set,
                     const vptq_packed_matrix *m);
/* Predicate of "matrix 'P' ..."; NULL for a quirk that every reader supports. */
const char *vptq_quirk_warning(vptq_quirk quirk);
/* Text of "N matrices: ...", the repair made by writing the matrix again. */
const char *vptq_quirk_repair(vptq_quirk quirk);

#endif
