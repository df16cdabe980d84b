/* Internal: the text model of a model with other parts (images), whose config.json has it as
 * text_config: it is read as a model of its own. */
#ifndef VPTQ_FORMATS_HF_TEXT_PART_H
#define VPTQ_FORMATS_HF_TEXT_PART_H

#include "formats/json.h"
#include "formats/tensor.h"

/* Puts the configuration of the text model in place of *config, if its model_type is that of a
 * model with other parts (vptq_family.whole); *found tells. */
vptq_status vptq_hf_text_config(json_t **config, bool *found, vptq_err *err) VPTQ_MUST_CHECK;
/* Gives the tensors of the text model the names that they have without other parts, and takes
 * those of the others, *dropped, out of the set. */
vptq_status vptq_hf_text_tensors(vptq_tensor_set *set, size_t *dropped,
                                 vptq_err *err) VPTQ_MUST_CHECK;

#endif
