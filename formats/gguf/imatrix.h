/* llama.cpp's importance matrices: for the input of each linear the mean of x^2 of every
 * column, nothing of how columns go together.  Two forms: GGUF files (general.type "imatrix",
 * tensors NAME.in_sum2 and NAME.counts, perhaps NAME.in_sum), and the legacy one: i32 entries;
 * per entry i32 length, name, i32 calls, i32 values, float sums over calls; then what is not
 * used here.  Checked: lengths against the file, numbers finite and not negative, unique names.
 * https://github.com/ggml-org/llama.cpp/tree/master/tools/imatrix */
#ifndef VPTQ_FORMATS_GGUF_IMATRIX_H
#define VPTQ_FORMATS_GGUF_IMATRIX_H

#include "formats/model_desc.h"
#include "formats/tensor.h"

typedef struct vptq_imatrix_entry {
    const char *name; /* of the weight: "blk.0.attn_q.weight" */
    uint32_t n;
    uint64_t tokens;          /* 0 = not known (the legacy form counts calls) */
    const float *mean_square; /* [n] E[x^2] */
    const float *mean;        /* [n] E[x]; NULL = not known */
} vptq_imatrix_entry;

typedef struct vptq_imatrix {
    vptq_arena arena;
    vptq_imatrix_entry *entries;
    size_t count;
    vptq_strmap by_name;
} vptq_imatrix;

/* Entries of experts, which are several matrices in one, are left out. */
vptq_status vptq_imatrix_read(const char *path, vptq_mem *mem, vptq_imatrix *im,
                              vptq_err *err) VPTQ_MUST_CHECK;
void vptq_imatrix_release(vptq_imatrix *im);

/* What a block's linears read, by the first of their names that is there; NULL = none is. */
const vptq_imatrix_entry *vptq_imatrix_find(const vptq_imatrix *im, uint32_t layer,
                                            vptq_input input);
/* The block of a name "blk.LAYER.REST"; false for other names. */
bool vptq_imatrix_layer(const char *name, uint32_t *layer);

#endif
