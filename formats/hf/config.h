/* Internal: Hugging Face config.json files: to and from vptq_model_desc. */
#ifndef VPTQ_FORMATS_HF_CONFIG_H
#define VPTQ_FORMATS_HF_CONFIG_H

#include "formats/json.h"
#include "formats/model_desc.h"

/* Accepts both spellings of RoPE (`rope_theta` + `rope_scaling`, `rope_parameters`),
 * `torch_dtype` and `dtype`, `text_config` nesting, eos_token_id as a number or list.  Unknown
 * architecture: VPTQ_E_UNSUPPORTED naming it and what is supported. */
vptq_status vptq_hf_config_parse(const json_t *config, const char *name, vptq_model_desc *desc,
                                 vptq_err *err) VPTQ_MUST_CHECK;

/* Makes a config.json that transformers loads, for a model read from another kind of file;
 * `dtype` is "float16", "bfloat16" or "float32".  The caller owns *out. */
vptq_status vptq_hf_config_make(const vptq_model_desc *desc, const char *dtype, json_t **out,
                                vptq_err *err) VPTQ_MUST_CHECK;

/* The quantization_config, at the top or inside text_config; NULL if there is none. */
const json_t *vptq_hf_quantization(const json_t *config);

#endif
