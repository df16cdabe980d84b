/* Packing, unpacking, listing and checking a whole model. */
#ifndef VPTQ_PACK_PACK_H
#define VPTQ_PACK_PACK_H

#include "formats/checkpoint.h"
#include "formats/vptq/quirks.h"
#include "lib/backend/backend.h"
#include "lib/vptq.h"

/* ---- pack and unpack ---- */

/* A work directory (or any quantized MODEL) -> published layout or archive.  Of a packed
 * input one matrix, or a piece of a plain tensor, is in memory at a time. */
vptq_status vptq_pack_model(const vptq_ctx *ctx, const vptq_pack_options *opt,
                            vptq_pack_result *r, vptq_err *err) VPTQ_MUST_CHECK;
/* Any MODEL -> a plain Hugging Face directory with config and tokenizer, or one GGUF file with
 * both inside (vectors in F32 there, as its readers want them). */
vptq_status vptq_unpack_model(vptq_device *dev, const vptq_pack_options *opt,
                              vptq_pack_result *r, vptq_err *err) VPTQ_MUST_CHECK;

/* All matrices and tensors of any MODEL; total_bytes = size of the files.  `open` may be NULL.
 */
vptq_status vptq_list_model(const vptq_ctx *ctx, const char *path,
                            const vptq_checkpoint_options *open, vptq_list_fn fn, void *arg,
                            uint64_t *total_bytes, double *bits_per_weight,
                            vptq_err *err) VPTQ_MUST_CHECK;

vptq_status vptq_check_model(vptq_device *dev, const char *path,
                             const vptq_checkpoint_options *open, vptq_finding_fn fn, void *arg,
                             uint32_t *errors, uint32_t *warnings,
                             vptq_err *err) VPTQ_MUST_CHECK;

#endif
