/* Internal: what the files that implement lib/vptq.h share. */
#ifndef VPTQ_VPTQ_INTERNAL_H
#define VPTQ_VPTQ_INTERNAL_H

#include "formats/checkpoint.h"
#include "lib/backend/backend.h"
#include "lib/vptq.h"

/* The device of a context that vptq_ctx_open made; its first user opens it. */
vptq_status vptq_ctx_device(vptq_ctx *ctx, vptq_device **device, vptq_err *err) VPTQ_MUST_CHECK;
/* The name that the context was opened with, "auto" by default. */
const char *vptq_ctx_backend_name(const vptq_ctx *ctx);
/* `o` may be NULL. */
vptq_checkpoint_options vptq_model_checkpoint_options(const vptq_model_options *o);
/* As vptq_quantize; the digest is that of the model as packed with the types of `pack`. */
vptq_status vptq_quantize_to_pack(vptq_ctx *ctx, const vptq_quantize_options *opt,
                                  const vptq_pack_options *pack, const vptq_output *out,
                                  vptq_quantize_result *result, vptq_err *err) VPTQ_MUST_CHECK;

#endif
