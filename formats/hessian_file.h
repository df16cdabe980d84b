/* A Hessian directory: hessian.json (fingerprints of model and texts, windows, settings) and
 * one safetensors file per block input, "layer_003_qkv.safetensors", with `hessian` (lower
 * triangle of H = E[x x^T] row by row, (0,0) (1,0) (1,1) ..., F32), `mean` (E[x], F32) and
 * metadata `tokens`. */
#ifndef VPTQ_FORMATS_HESSIAN_FILE_H
#define VPTQ_FORMATS_HESSIAN_FILE_H

#include "formats/json.h"
#include "formats/safetensors.h"

typedef struct vptq_hessian_file {
    vptq_tensor_set set; /* owns the data */
    uint32_t n;
    uint64_t tokens;
    const float *lower; /* [n (n + 1) / 2] */
    const float *mean;  /* [n] */
} vptq_hessian_file;

void vptq_hessian_file_name(char name[64], uint32_t layer, const char *input);
/* Atomic; replaces an old file. */
vptq_status vptq_hessian_file_write(const char *path, uint32_t n, uint64_t tokens,
                                    const float *lower, const float *mean,
                                    vptq_err *err) VPTQ_MUST_CHECK;
/* Checks shapes (n against `expect_n` unless 0) and tokens > 0. */
vptq_status vptq_hessian_file_read(const char *path, uint32_t expect_n, vptq_mem *mem,
                                   vptq_hessian_file *h, vptq_err *err) VPTQ_MUST_CHECK;
/* VPTQ_E_NUMERIC naming row and column of the first NaN or infinity.  Apart from reading, so
 * that a broken file can still be looked at. */
vptq_status vptq_hessian_file_check_finite(const vptq_hessian_file *h, const char *path,
                                           vptq_err *err) VPTQ_MUST_CHECK;
void vptq_hessian_file_release(vptq_hessian_file *h);

#endif
