/* Names inside a Hessian directory, for the files of this room. */
#ifndef VPTQ_HESSIAN_DIR_NAMES_H
#define VPTQ_HESSIAN_DIR_NAMES_H

#include "hessian/collect.h"

#define VPTQ_HESSIAN_KV "kv"

enum { VPTQ_HESSIAN_LAYERS = 4096 }; /* of a model, at most */

/* "DIR/layer_003_INPUT.safetensors" */
vptq_status vptq_hessian_dir_file(char path[4096], const char *dir, uint32_t layer,
                                  const char *input, vptq_err *err) VPTQ_MUST_CHECK;
/* A Hessian (or its diagonal) or term with whatever numbers it holds; `kind` is what it must
 * be. */
vptq_status vptq_hessian_dir_read(const char *dir, uint32_t layer, const char *input,
                                  uint32_t n, vptq_token_weights kind, vptq_mem *mem,
                                  vptq_hessian_file *h, vptq_err *err) VPTQ_MUST_CHECK;
/* The same, finite and with `lower`: a diagonal gets zeros beside it, but with n = 0 (nobody
 * expects its size) is VPTQ_E_UNSUPPORTED. */
vptq_status vptq_hessian_dir_read_finite(const char *dir, uint32_t layer, const char *input,
                                         uint32_t n, vptq_token_weights kind, vptq_mem *mem,
                                         vptq_hessian_file *h, vptq_err *err) VPTQ_MUST_CHECK;

#endif
