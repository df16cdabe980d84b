/* Internal: tensors that hold the weights of several linear layers, one after the other in rows
 * (vptq_fused_layers): Phi-3 stores q, k and v, and gate and up, in this way. */
#ifndef VPTQ_FORMATS_HF_FUSED_H
#define VPTQ_FORMATS_HF_FUSED_H

#include "formats/model_desc.h"
#include "formats/tensor.h"

/* Puts one view per linear layer in place of every fused tensor of the set; other models stay
 * as they are.  VPTQ_E_SHAPE for a tensor with another number of rows or columns,
 * VPTQ_E_UNSUPPORTED for a quantized one. */
vptq_status vptq_fused_split(const vptq_model_desc *d, vptq_tensor_set *set,
                             vptq_err *err) VPTQ_MUST_CHECK;

/* Writes "model.layers.3.mlp.gate_up_proj.weight" into name. */
void vptq_fused_name(char name[VPTQ_NAME_MAX], uint32_t layer, const vptq_fused *f);

#endif
