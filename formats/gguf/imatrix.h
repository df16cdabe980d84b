/* Internal: llama.cpp's importance matrices: E[x^2] of every input column of each linear layer,
 * without correlations.  Two forms: GGUF files (general.type "imatrix", tensors NAME.in_sum2,
 * NAME.counts and optionally NAME.in_sum), and the legacy one: i32 entries; per entry i32
 * length, name, i32 calls, i32 values, float sums over calls; the rest is ignored.  Checks
 * lengths against the file, that numbers are finite and not negative, and that names are
 * unique. https://github.com/ggml-org/llama.cpp/tree/master/tools/imatrix */
#ifndef VPTQ_FORMATS_GGUF_IMATRIX_H
#define VPTQ_FORMATS_GGUF_IMATRIX_H

#include "formats/model_desc.h"
#include "formats/tensor.h"

typedef struct vptq_imatrix_entry {
    const char *name; /* of the weight: "blk.0.attn_q.weight" */
    uint32_t n;
    uint64_t tokens;          /* 0 = unknown (the legacy form counts calls) */
    const float *mean_square; /* [n] E[x^2] */
    const float *mean;        /* [n] E[x]; NULL = unknown */
} vptq_imatrix_entry;

typedef struct vptq_imatrix {
    vptq_arena arena;
    vptq_imatrix_entry *entries;
    size_t count;
    vptq_strmap by_name;
} vptq_imatrix;

/* Skips entries of experts, which hold several matrices. */
vptq_status vptq_imatrix_read(const char *path, vptq_mem *mem, vptq_imatrix *im,
                              vptq_err *err) VPTQ_MUST_CHECK;
void vptq_imatrix_release(vptq_imatrix *im);

/* Entry of a block input: that of the first of its linear layers with an entry; NULL = none. */
const vptq_imatrix_entry *vptq_imatrix_find(const vptq_imatrix *im, uint32_t layer,
                                            vptq_input input);
/* Parses the block number of "blk.LAYER.REST"; false for other names. */
bool vptq_imatrix_layer(const char *name, uint32_t *layer);

#endif
