/* Internal: files of a Hessian directory: hessian.json (fingerprints of model and texts,
 * windows, settings) and one safetensors file per block input, "layer_003_qkv.safetensors".  It
 * has tensors `hessian` (lower triangle of H = E[x x^T] row by row, (0,0) (1,0) (1,1) ..., F32;
 * or `diagonal` if only that is known) and `mean` (E[x], F32; all zero if unknown) and metadata
 * `tokens` (a number or "unknown") and `xxh3`, a checksum of everything else.  A Hessian also
 * has `abs_mean` (E[|x|]), `min` and `max` of every column of x (F32 [n]), unless they are not
 * known.
 *
 * With token weights there are also terms T, in the same layout, with metadata `kind` and
 * `windows`: "layer_003_kv.safetensors", which k and v add to the Hessian of qkv, or
 * "layer_003_guided_q.safetensors" and so on for every linear layer. */
#ifndef VPTQ_FORMATS_VPTQ_HESSIAN_FILE_H
#define VPTQ_FORMATS_VPTQ_HESSIAN_FILE_H

#include <math.h>

#include "formats/hf/safetensors.h"
#include "formats/json.h"
#include "lib/vptq.h"

/* "plain", "sink", "attention", "guided" */
const char *vptq_token_weights_name(vptq_token_weights w);
/* Kind by name, of `len` bytes; VPTQ_WEIGHTS_COUNT if there is no such kind. */
vptq_token_weights vptq_token_weights_find(const char *name, size_t len);

typedef struct vptq_hessian_file {
    vptq_tensor_set set; /* owns the data */
    uint32_t n;
    uint64_t tokens;                   /* below 2^63; 0 = unknown */
    vptq_token_weights kind;           /* of a term; VPTQ_WEIGHTS_PLAIN for a Hessian */
    uint64_t windows;                  /* number averaged in a term; 0 for a Hessian */
    const float *lower;                /* [n (n + 1) / 2]; NULL if only the diagonal is known */
    const float *diagonal;             /* [n]; NULL if `lower` is in the file */
    const float *mean;                 /* [n] */
    const float *abs_mean, *min, *max; /* [n]; NULL = unknown, and for a term */
} vptq_hessian_file;

/* Whether a value of a Hessian or a mean can be computed with: finite, and so small that sums
 * of products with weights stay finite in F32.  Real ones are below 1e12. */
#define VPTQ_HESSIAN_MAX 1e24f
static inline bool vptq_hessian_usable(float x)
{
    return fabsf(x) <= VPTQ_HESSIAN_MAX;
}

/* Entries of the lower triangle of n columns; n is below 2^32. */
static inline size_t vptq_triangle(size_t n)
{
    return n % 2 ? n * ((n + 1) / 2) : n / 2 * (n + 1);
}

void vptq_hessian_file_name(char name[64], uint32_t layer, const char *input);
/* Values to write. */
typedef struct vptq_hessian_data {
    uint32_t n;
    uint64_t tokens;                   /* 0 = unknown */
    const float *values;               /* lower triangle [n (n + 1) / 2], or diagonal [n] */
    const float *mean;                 /* [n] */
    const float *abs_mean, *min, *max; /* [n]; NULL = unknown */
    bool diagonal;
    vptq_token_weights kind; /* of a term; VPTQ_WEIGHTS_PLAIN for a Hessian */
    uint64_t windows;        /* number averaged in a term */
    const char
        *extra_name;    /* of another tensor, which readers of Hessians ignore; NULL = none */
    const float *extra; /* [n (n + 1) / 2] */
} vptq_hessian_data;
/* Atomic; replaces an old file. */
vptq_status vptq_hessian_file_write(const char *path, const vptq_hessian_data *h,
                                    vptq_err *err) VPTQ_MUST_CHECK;
/* Reads a file and checks shapes (n against `expect_n` unless that is 0), metadata and, last,
 * the checksum. */
vptq_status vptq_hessian_file_read(const char *path, uint32_t expect_n, vptq_mem *mem,
                                   vptq_hessian_file *h, vptq_err *err) VPTQ_MUST_CHECK;
/* VPTQ_E_NUMERIC naming the column of the first value that is not usable, or contradicts
 * another one.  Separate from reading, so that a faulty file can still be shown. */
vptq_status vptq_hessian_file_check(const vptq_hessian_file *h, const char *path,
                                    vptq_err *err) VPTQ_MUST_CHECK;
/* Makes `lower` from `diagonal`, zero outside it.  Allocates n (n + 1) / 2 numbers for n in the
 * file, so read it with an expected n. */
vptq_status vptq_hessian_file_expand(vptq_hessian_file *h, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_hessian_file_release(vptq_hessian_file *h);

#endif
