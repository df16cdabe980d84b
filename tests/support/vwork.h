/* One little quantized model in all its kinds: made from tests/golden/tiny_llama3 (F32, two
 * blocks of hidden size 32) with two matrices of arbitrary codes. */
#ifndef VPTQ_TESTS_SUPPORT_VWORK_H
#define VPTQ_TESTS_SUPPORT_VWORK_H

#define VWORK_PLAIN  "model.layers.0.self_attn.q_proj" /* v 4, k 16 */
#define VWORK_NORMED "model.layers.1.mlp.down_proj"    /* v 8, k 16 + 4, norm, order */

/* Fills DIR with base/ (the original), work/ (a quantize work directory over it), packed/ (the
 * published layout) and x.vptq (the archive).  DIR is absolute. */
void vwork_make(const char *dir);

#endif
