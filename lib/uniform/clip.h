/* Internal to lib/uniform: the ranges of groups that lose least, which AWQ chooses after its
 * scales (Lin et al. 2024; mit-han-lab/llm-awq, auto_clip). */
#ifndef VPTQ_UNIFORM_CLIP_H
#define VPTQ_UNIFORM_CLIP_H

#include "lib/uniform/uniform.h"

/* Scales and zero points [groups, out] of rounding to nearest.  The range of a group g of a row
 * is cut off at its largest |w| times 1, 0.95, .. 0.55, whichever has the smallest e H_gg e^T;
 * H_gg is the group's block of input->lower, e = q - w.  With zero points both integers next
 * to -lo / scale are tried: if both ends are cut off, it lies halfway between them.  (llm-awq
 * takes 512 tokens in place of H, and one zero point.)  Any number of threads gives the same.
 */
vptq_status vptq_uniform_clip(const vptq_device *dev, const vptq_uniform_settings *s,
                              const vptq_uniform_input *input, float *scale, uint8_t *zero,
                              vptq_err *err) VPTQ_MUST_CHECK;

#endif
