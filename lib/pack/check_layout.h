/* What a matrix of the published layout has that other readers stumble over.  Reading takes it,
 * checking says it, writing the matrix again repairs it. */
#ifndef VPTQ_PACK_CHECK_LAYOUT_H
#define VPTQ_PACK_CHECK_LAYOUT_H

#include "formats/checkpoint.h"

typedef enum {
    VPTQ_TROUBLE_EXTRA_KEY,
    VPTQ_TROUBLE_FLOAT_KEY,
    VPTQ_TROUBLE_AS_FLOAT,
    VPTQ_TROUBLE_NOT_PACKED,
    VPTQ_TROUBLE_NO_NORM,
    VPTQ_TROUBLE_LOST_PERM,
    VPTQ_TROUBLE_PERM, /* no finding: everybody reads it */
    VPTQ_TROUBLE_BIAS_KEY,
    VPTQ_TROUBLE_RESIDUALS,
    VPTQ_TROUBLE_PADDING,
    VPTQ_TROUBLE_COUNT
} vptq_trouble;

/* How many matrices have each, and the first of them. */
typedef struct vptq_troubles {
    uint32_t count[VPTQ_TROUBLE_COUNT];
    const char *first[VPTQ_TROUBLE_COUNT];
} vptq_troubles;

/* m with its data; c is a packed directory or an archive; names are not copied. */
void vptq_troubles_add(vptq_troubles *t, const vptq_checkpoint *c, const vptq_packed_matrix *m);
/* "matrix 'P' ..."; NULL for what is no finding. */
const char *vptq_trouble_finding(vptq_trouble what);
/* "N matrices: ..."; what writing again does about it. */
const char *vptq_trouble_repair(vptq_trouble what);

#endif
