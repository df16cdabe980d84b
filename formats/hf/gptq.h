/* Internal: the layouts of AutoGPTQ and AutoAWQ for a linear layer at module path P, which
 * GPTQModel also writes: tensors P.qweight, P.qzeros, P.scales and, of AutoGPTQ, P.g_idx.  They
 * are only read; matrices are written in the compressed-tensors layout (compressed.h).  Layout:
 * docs/formats/gptq-awq.md.
 *
 *     bool quantized;
 *     vptq_gptq_layout layout;
 *     vptq_compressed_matrix m;
 *     VPTQ_CHECK(vptq_gptq_layout_of(config, file, &layout, err));
 *     VPTQ_CHECK(vptq_gptq_read(set, &layout, P, file, arena, &m, &quantized, err)); */
#ifndef VPTQ_FORMATS_HF_GPTQ_H
#define VPTQ_FORMATS_HF_GPTQ_H

#include "formats/hf/compressed.h"

typedef struct vptq_gptq_layout {
    uint32_t bits;
    uint32_t group_size; /* columns per group; 0 = a whole row */
    bool awq;            /* a word has codes of eight rows, else of one row */
    bool minus_one;      /* zero points are stored less one */
    bool ordered;        /* P.g_idx is required */
} vptq_gptq_layout;

/* True if config.json has a quantization_config of quant_method gptq or awq, at the top or
 * inside text_config. */
bool vptq_gptq_is_config(const json_t *config);

/* Reads the layout of all quantized layers from the whole config.json.
 *
 * VPTQ_E_FORMAT or VPTQ_E_UNSUPPORTED naming file and key: bits other than 2, 3, 4 and 8 (awq:
 * 4), formats other than gptq and gptq_v2 (awq: gemm of autoawq), words of other than 32 bits,
 * a quantized lm_head, settings of single layers. */
vptq_status vptq_gptq_layout_of(const json_t *config, const char *file, vptq_gptq_layout *out,
                                vptq_err *err) VPTQ_MUST_CHECK;

/* Length of P for a tensor P.qweight, P.qzeros, P.scales or P.g_idx; 0 for other names. */
size_t vptq_gptq_module_length(const char *tensor_name);

/* Reads one matrix from a set of tensors into `arena`; `file` is for messages.  *quantized is
 * false if there is no P.qweight: the config does not list the layers that stay plain.  Zero
 * points are left out if all are 2^(bits - 1), and groups if they follow each other.
 *
 * Checks types and shapes against each other and the layout; that scales are finite and
 * positive; that every column's group exists, although groups may have any number of columns;
 * and that there is no P.weight. */
vptq_status vptq_gptq_read(const vptq_tensor_set *set, const vptq_gptq_layout *layout,
                           const char *name, const char *file, vptq_arena *arena,
                           vptq_compressed_matrix *out, bool *quantized,
                           vptq_err *err) VPTQ_MUST_CHECK;

#endif
