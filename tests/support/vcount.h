/* The reference as a device with memory of its own that counts what moves to and from it. */
#ifndef VPTQ_TESTS_SUPPORT_VCOUNT_H
#define VPTQ_TESTS_SUPPORT_VCOUNT_H

#include "lib/model/model.h"

/* Makes `dev`, a reference device, count from 0.  The device then has `left` free bytes, always
 * the same number. */
void vcount_start(vptq_device *dev, size_t left);

typedef struct vcount {
    size_t weights; /* bytes uploaded from tensors of the model */
    size_t uploaded, downloaded, downloads;
} vcount;
vcount vcount_of(const vptq_model *m);

/* Bytes of the linear layers of all blocks. */
size_t vcount_block_weights(const vptq_model *m);

#endif
