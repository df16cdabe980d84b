/* Internal: operands of products on tensor cores. Every element of a row is
 *
 *     x = (hi + lo) 2^e       with hi = fp16(x 2^-e), lo = fp16(x 2^-e - hi)
 *
 * and e such that the largest finite magnitude of the row lies in [2^14, 2^15) after scaling;
 * float16 is not scaled down, so that it is exact in hi alone.
 * hi and lo hold 22 bits: the rest is at most 2^-22 |x| for elements down to 2^-18 of the
 * largest of their row, and at most 2^-40 of the largest for smaller ones. Elements with 8
 * bits, such as BF16, are exact in hi alone down to 2^-31 of the largest (2^-39 below). If a
 * row has an element that is not finite, the products with that element are not finite. */
#ifndef VPTQ_BACKEND_CUDA_SPLIT_H
#define VPTQ_BACKEND_CUDA_SPLIT_H

#include "lib/backend/cuda/cuda.h"

enum {
    SPLIT_RUN = 64,     /* rows are padded with zeros to a multiple; see product.h */
    SPLIT_MAX_EXP = 15, /* scaled elements are below 2^15 */
};

/* A matrix to be multiplied: element (i, l) is at[i * row + l * step], with row or step 1. */
typedef struct split_source {
    const void *at;
    vptq_dtype type; /* F32; F16 and BF16 with step 1 only */
    size_t rows, k, row, step;
    const float *w; /* [k] factors of the elements, or NULL; F32 only */
} split_source;

/* The operand: hi and lo [rows, stride], exponents [rows]. */
typedef struct split_rows {
    const __half *hi, *lo; /* lo NULL: hi is exact */
    const int *e;          /* NULL: all 0 */
    size_t rows, stride;
} split_rows;

/* x 2^e, rounded once where it is normal; -252 <= e <= 252. */
static __device__ inline float split_scale(float x, int e)
{
    const int half = e / 2;
    return x * __uint_as_float((unsigned)(half + 127) << 23) *
           __uint_as_float((unsigned)(e - half + 127) << 23);
}

static inline size_t split_stride(size_t k)
{
    return (k + SPLIT_RUN - 1) / SPLIT_RUN * SPLIT_RUN;
}

/* Bytes of an operand, a multiple of 256. F16 and BF16 have no lo. */
size_t split_bytes(vptq_dtype type, size_t rows, size_t k);

/* Splits a matrix into `memory`, split_bytes() of device memory aligned to 256 bytes. F16 that
 * lies as tiles need it stays where it is, and `memory` is not used. */
vptq_status split(vptq_dev *dev, const char *op, const split_source *s, void *memory,
                  split_rows *to, vptq_err *err);
bool split_in_place(const split_source *s);

#endif
