/* Internal: a narrow stand-in for a large model, to measure how long the large one takes
 * without running a whole block of it.  It has the kinds of weights of block 0 in smaller
 * shapes, filled with their first numbers: it computes nothing of use.
 *
 *     vptq_narrow n;
 *     vptq_model_narrow(&model, &dev, &n, err);
 *     seconds of n.model's block 0, times vptq_block_products of both
 *     vptq_narrow_release(&n);
 */
#ifndef VPTQ_MODEL_NARROW_H
#define VPTQ_MODEL_NARROW_H

#include "lib/model/model.h"

typedef struct vptq_narrow {
    const vptq_model
        *model; /* the original, if its blocks are small; else `own`, which has one
                   block, the same vocabulary, and borrows the original's numbers */
    vptq_model own;
    vptq_model_desc desc;
    vptq_arena arena;
} vptq_narrow;

/* Blocks of at most so many weights are small.  Devices with their own memory are slow at small
 * products, and have the large matrices there. */
enum { VPTQ_NARROW_WEIGHTS = 1 << 24, VPTQ_NARROW_DEVICE_WEIGHTS = 1 << 28 };

vptq_status vptq_model_narrow(const vptq_model *m, const vptq_device *dev, vptq_narrow *n,
                              vptq_err *err) VPTQ_MUST_CHECK;
/* The same with any bound. */
vptq_status vptq_model_narrow_to(const vptq_model *m, double most_weights, vptq_mem *mem,
                                 vptq_narrow *n, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_narrow_release(vptq_narrow *n); /* accepts a zeroed struct */

/* Products of numbers that block 0 takes for one token in sequences of `length`; `moments`: and
 * for summing the second moments of its inputs. */
double vptq_block_products(const vptq_model_desc *d, size_t length, bool moments);

#endif
