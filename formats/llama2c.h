/* llama2.c's legacy (version 0) .bin checkpoints: seven int32 (dim, hidden, layers, heads, kv
 * heads, vocab, seq; a negative vocab = untied head) and float32 weights in a fixed order. */
#ifndef VPTQ_FORMATS_LLAMA2C_H
#define VPTQ_FORMATS_LLAMA2C_H

#include "formats/model_desc.h"
#include "formats/tensor.h"

bool vptq_llama2c_is(const char *path); /* sizes in the header give exactly the file's size */
/* Description (family llama, theta 10000, eps 1e-5) and tensors with Hugging Face names. */
vptq_status vptq_llama2c_read(const char *path, vptq_tensor_set *set, vptq_model_desc *desc,
                              vptq_err *err) VPTQ_MUST_CHECK;

#endif
