/* Internal: llama2.c's legacy (version 0) .bin checkpoints: seven int32 (dim, hidden, layers,
 * heads, kv heads, vocab, seq; a negative vocab = untied head) and float32 weights in a fixed
 * order. */
#ifndef VPTQ_FORMATS_LLAMA2C_H
#define VPTQ_FORMATS_LLAMA2C_H

#include "formats/model_desc.h"
#include "formats/tensor.h"

/* True if the sizes in the header add up to exactly the file's size. */
bool vptq_llama2c_is(const char *path);
/* Reads the description (family llama, theta 10000, eps 1e-5) and the tensors under Hugging
 * Face names. */
vptq_status vptq_llama2c_read(const char *path, vptq_tensor_set *set, vptq_model_desc *desc,
                              vptq_err *err) VPTQ_MUST_CHECK;

#endif
