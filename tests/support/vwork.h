/* One small quantized model in every form: tests/golden/tiny_llama3 (F32, two blocks, hidden
 * size 32) with two matrices of random codes. */
#ifndef VPTQ_TESTS_SUPPORT_VWORK_H
#define VPTQ_TESTS_SUPPORT_VWORK_H

#include <stddef.h>

#define VWORK_PLAIN  "model.layers.0.self_attn.q_proj" /* v 4, k 16 */
#define VWORK_NORMED "model.layers.1.mlp.down_proj"    /* v 8, k 16 + 4, norm, permutation */

/* Writes to DIR, an absolute path: base/ (the original), work/ (a work directory of
 * vptq-quantize on that base), packed/ (the published layout) and x.vptq (the archive). */
void vwork_make(const char *dir);
/* Writes the report of a finished run to a work directory: a row for each matrix. */
void vwork_report(const char *work, size_t matrices);

#endif
