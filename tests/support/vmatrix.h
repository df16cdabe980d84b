/* Quantized matrices with random content, and their unpacked arrays. */
#ifndef VPTQ_TESTS_SUPPORT_VMATRIX_H
#define VPTQ_TESTS_SUPPORT_VMATRIX_H

#include "lib/base/vq.h"

typedef struct vmatrix {
    vptq_vq q;
    uint32_t *indices, *main, *res; /* main, res: [groups][vector rows][group_size] */
    uint16_t *outlier_indices, *perm;
    float *centroids, *res_centroids, *outlier_centroids, *scale, *bias;
} vmatrix;

void vmatrix_make(vmatrix *m, const vptq_vq_shape *s);
void vmatrix_free(vmatrix *m);

/* Decodes the unpacked arrays into w [out, in], column by column, by the formula of vq.h. */
void vmatrix_decode(const vmatrix *m, float *w);

#endif
