/* A Hessian directory: hessian.json (fingerprints of model and texts, windows, settings) and
 * one safetensors file per block input, "layer_003_qkv.safetensors", with `hessian` (lower
 * triangle of H = E[x x^T] row by row, (0,0) (1,0) (1,1) ..., F32), `mean` (E[x], F32) and
 * metadata `tokens` ("unknown" where nobody said).  Where only the diagonal of H is known there
 * is `diagonal` (F32) in place of `hessian`.  A mean that is not known is all zero.
 *
 * Where tokens were weighted there is "layer_003_kv.safetensors", too: the term T that k and v
 * add to the Hessian of qkv, in the same layout, with metadata `kind` and `windows` besides. */
#ifndef VPTQ_FORMATS_VPTQ_HESSIAN_FILE_H
#define VPTQ_FORMATS_VPTQ_HESSIAN_FILE_H

#include "formats/hf/safetensors.h"
#include "formats/json.h"
#include "lib/vptq.h"

const char *vptq_token_weights_name(vptq_token_weights w); /* "plain", "sink", "attention" */
/* Of the `len` bytes at `name`; VPTQ_WEIGHTS_COUNT when there is none of that name. */
vptq_token_weights vptq_token_weights_find(const char *name, size_t len);

typedef struct vptq_hessian_file {
    vptq_tensor_set set; /* owns the data */
    uint32_t n;
    uint64_t tokens;         /* below 2^63; 0 = not known */
    vptq_token_weights kind; /* of a term; VPTQ_WEIGHTS_PLAIN in a Hessian */
    uint64_t windows;        /* that a term is the mean of; 0 in a Hessian */
    const float *lower;      /* [n (n + 1) / 2]; NULL where only the diagonal is known */
    const float *diagonal;   /* [n] then, else NULL */
    const float *mean;       /* [n] */
} vptq_hessian_file;

/* Entries of the lower triangle of n columns; n is below 2^32. */
static inline size_t vptq_triangle(size_t n)
{
    return n % 2 ? n * ((n + 1) / 2) : n / 2 * (n + 1);
}

void vptq_hessian_file_name(char name[64], uint32_t layer, const char *input);
/* Atomic; replaces an old file.  tokens 0 = not known. */
vptq_status vptq_hessian_file_write(const char *path, uint32_t n, uint64_t tokens,
                                    const float *lower, const float *mean,
                                    vptq_err *err) VPTQ_MUST_CHECK;
/* The same with one more vector of n (n + 1) / 2 numbers, which readers of Hessians pass over.
 */
vptq_status vptq_hessian_file_write_with(const char *path, uint32_t n, uint64_t tokens,
                                         const float *lower, const float *mean,
                                         const char *name, const float *extra,
                                         vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_hessian_diagonal_write(const char *path, uint32_t n, uint64_t tokens,
                                        const float *diagonal, const float *mean,
                                        vptq_err *err) VPTQ_MUST_CHECK;
/* The same for a term. */
vptq_status vptq_hessian_term_write(const char *path, vptq_token_weights kind, uint64_t windows,
                                    uint32_t n, uint64_t tokens, const float *lower,
                                    const float *mean, vptq_err *err) VPTQ_MUST_CHECK;
/* Checks shapes (n against `expect_n` unless 0) and tokens. */
vptq_status vptq_hessian_file_read(const char *path, uint32_t expect_n, vptq_mem *mem,
                                   vptq_hessian_file *h, vptq_err *err) VPTQ_MUST_CHECK;
/* VPTQ_E_NUMERIC naming row and column of the first NaN or infinity.  Apart from reading, so
 * that a broken file can still be looked at. */
vptq_status vptq_hessian_file_check_finite(const vptq_hessian_file *h, const char *path,
                                           vptq_err *err) VPTQ_MUST_CHECK;
/* Gives a diagonal its `lower`, with zeros beside it: n (n + 1) / 2 numbers in memory for n in
 * the file, so that n must have been expected. */
vptq_status vptq_hessian_file_expand(vptq_hessian_file *h, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_hessian_file_release(vptq_hessian_file *h);

#endif
