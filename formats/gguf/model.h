/* Internal: models as GGUF metadata and tensors, in both directions.  model.c reads them,
 * export.c writes them. */
#ifndef VPTQ_FORMATS_GGUF_MODEL_H
#define VPTQ_FORMATS_GGUF_MODEL_H

#include "formats/gguf/gguf.h"
#include "formats/gguf/write.h"
#include "formats/model_desc.h"
#include "formats/vocab/vocab.h"

/* ---- reading ---- */

/* The description, from general.architecture and ARCH.*; the vocabulary size is that of the
 * embedding or of the token list. */
vptq_status vptq_gguf_desc(const vptq_gguf *g, vptq_model_desc *desc,
                           vptq_err *err) VPTQ_MUST_CHECK;
/* The tensors under Hugging Face names.  Their data is in g's mapping, which must outlive the
 * set; q and k of permuted families get rope_heads. */
vptq_status vptq_gguf_hf_tensors(const vptq_gguf *g, const vptq_model_desc *desc,
                                 vptq_tensor_set *set, vptq_err *err) VPTQ_MUST_CHECK;

/* ---- writing ---- */

/* VPTQ_E_UNSUPPORTED for a model whose arithmetic no architecture expresses that is written. */
vptq_status vptq_gguf_check_family(const vptq_model_desc *d, const char *file,
                                   vptq_err *err) VPTQ_MUST_CHECK;
/* Adds general.architecture and ARCH.* such that vptq_gguf_desc reads the same description.
 * VPTQ_E_UNSUPPORTED for sliding windows that begin at a later layer, which the format cannot
 * express. */
vptq_status vptq_gguf_put_desc(vptq_gguf_keys *k, const vptq_model_desc *d, const char *file,
                               vptq_err *err) VPTQ_MUST_CHECK;
/* Adds tokenizer.*, padded to the model's vocabulary; special ids that the tokenizer does not
 * name are taken from the description.  VPTQ_E_UNSUPPORTED if the format cannot express the
 * tokenizer, VPTQ_E_MISMATCH if it has more tokens than the model. */
vptq_status vptq_gguf_put_vocab(vptq_gguf_keys *k, const vptq_vocab *v,
                                const vptq_model_desc *d, vptq_err *err) VPTQ_MUST_CHECK;

/* GGUF and Hugging Face name of tensor i of a model of `layers` blocks, in file order; false
 * after the last one.  Not every model has all of them. */
bool vptq_gguf_name_pair(uint32_t layers, size_t i, char gguf[VPTQ_NAME_MAX],
                         char hf[VPTQ_NAME_MAX]);
/* Element i of rope_freqs.weight: the divisor of rotary frequency i in Llama 3.1's scaling. */
double vptq_gguf_rope_divisor(const vptq_model_desc *d, uint32_t i);

#endif
