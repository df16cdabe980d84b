/* Internal to hessian/: files of a Hessian directory. */
#ifndef VPTQ_HESSIAN_DIR_H
#define VPTQ_HESSIAN_DIR_H

#include "hessian/collect.h"

#define VPTQ_HESSIAN_KV "kv"

enum { VPTQ_HESSIAN_MAX_LAYERS = 4096 }; /* of a model */

/* path = "DIR/layer_003_INPUT.safetensors" */
vptq_status vptq_hessian_dir_file(char path[4096], const char *dir, uint32_t layer,
                                  const char *input, vptq_err *err) VPTQ_MUST_CHECK;
/* Reads a Hessian, its diagonal or a term, NaN included; VPTQ_E_MISMATCH unless it is of this
 * kind. */
vptq_status vptq_hessian_dir_read(const char *dir, uint32_t layer, const char *input,
                                  uint32_t n, vptq_token_weights kind, vptq_mem *mem,
                                  vptq_hessian_file *h, vptq_err *err) VPTQ_MUST_CHECK;
/* The same, but checked to be finite and always with `lower`: a diagonal is expanded with
 * zeros, or VPTQ_E_UNSUPPORTED with n = 0, when its size cannot be checked. */
vptq_status vptq_hessian_dir_read_finite(const char *dir, uint32_t layer, const char *input,
                                         uint32_t n, vptq_token_weights kind, vptq_mem *mem,
                                         vptq_hessian_file *h, vptq_err *err) VPTQ_MUST_CHECK;

#endif
