/* Internal: the weights of a Hugging Face directory, in safetensors or PyTorch files. */
#ifndef VPTQ_FORMATS_HF_WEIGHTS_H
#define VPTQ_FORMATS_HF_WEIGHTS_H

#include "formats/tensor.h"

/* Reads all tensors of a directory into the set and finishes it: those of the shards in
 * model.safetensors.index.json, else of model.safetensors, else of every *.safetensors file in
 * name order, else of the shards in pytorch_model.bin.index.json, else of pytorch_model.bin.
 * An index may only name files in the directory. */
vptq_status vptq_hf_read_weights(const char *dir, vptq_tensor_set *set,
                                 vptq_err *err) VPTQ_MUST_CHECK;

#endif
