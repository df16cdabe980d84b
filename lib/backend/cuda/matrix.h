/* A packed matrix on a device: as it is stored, to decode rows, and in the run-time layout of
 * plan_layout.h, for products.  For the .cu files alone. */
#ifndef VPTQ_BACKEND_CUDA_MATRIX_H
#define VPTQ_BACKEND_CUDA_MATRIX_H

#include "lib/backend/cuda/cuda.h"

extern "C" {
#include "lib/backend/cuda/plan_dispatch.h"
}

enum { VPTQ_CUDA_GEMV_PASS = 256 }; /* bytes of shared memory that describe a pass */

/* A codebook.  `codebook` is in device memory: centroids in the order of their ranks, rows as
 * those of a table in global memory (cuda_plan_table.h), `codebook_rows` of a piece; as
 * float16, times the power of two that brings the largest value of it and the codebook that it
 * is added to to 2^13..2^14, so that float16 is exact, of bfloat16 what is not tiny beside the
 * largest, and that sums of two centroids do not overflow.  Products with it are multiplied by
 * `unit`. */
struct vptq_cuda_codebook {
    vptq_cuda_table table; /* k 0: there is no such codebook */
    const uint16_t *codebook;
    uint32_t codebook_rows;
    uint32_t at; /* byte of shared memory */
    float unit;
    vptq_cuda_rank_rule rule; /* of the codes of the layout, whose table may be another one */
};

/* The inner loop that multiplies a stripe: pieces out of shared memory, with residual codes of
 * a kind or without; or whatever there may be. */
enum vptq_cuda_loop {
    VPTQ_CUDA_MAIN_ALONE,
    VPTQ_CUDA_WITH_BYTES,
    VPTQ_CUDA_WITH_WORDS,
    VPTQ_CUDA_ANYTHING
};

/* A segment of plan_layout.h. */
struct vptq_cuda_stripe {
    vptq_cuda_codebook main, residual;
    const uint16_t *codes, *codes16;
    const uint8_t *codes8; /* one of the two, or none */
    uint32_t v, chunks;
    uint32_t tile; /* the first, among those of all stripes */
    vptq_cuda_loop loop;
};

/* The run-time layout; arrays are in device memory. */
struct vptq_cuda_runtime {
    vptq_cuda_choice choice; /* GEMM_DEQUANT: there is nothing else */
    vptq_cuda_small small;
    const vptq_cuda_stripe *small_stripes; /* [count] the stripes with the tables of `small` */
    const vptq_cuda_stripe *stripes;       /* [count] */
    uint32_t count, columns;               /* columns: padded, of all stripes */
    uint32_t most_chunks;                  /* of a stripe */
    uint32_t split;                        /* choice.split, as far as there are chunks for it */
    vptq_cuda_loop loop;                   /* of the groups; outliers' may be another one */
    bool any_loop;                         /* some stripe needs ANYTHING */
    bool staged;                           /* pieces are read out of global memory */
    const int32_t *channel;                /* [columns] input channel, -1: padding */
    const float *scale, *bias;             /* [in] or NULL both */
    unsigned *arrived;                     /* [blocks] zeros between launches */
};

/* What a use needs comes to the device at the first such use: decoding rows asks for no
 * run-time layout, a product with a few rows not for the stored arrays. */
struct vptq_matrix {
    vptq_vq q;              /* arrays in host memory */
    mutable vptq_vq stored; /* the same in device memory, once there is a slab */
    mutable void *slab;     /* holds its arrays; or NULL */
    mutable vptq_cuda_runtime runtime;
    mutable void *runtime_slab;
    mutable bool planned; /* runtime is made */
};

/* *q: the matrix with its arrays in device memory. */
vptq_status vptq_cuda_matrix_stored(vptq_dev *dev, const vptq_matrix *m, const vptq_vq **q,
                                    vptq_err *err);
/* *r: its run-time layout.  VPTQ_CUDA_GEMV in the environment names a kernel (docs/gpu.md). */
vptq_status vptq_cuda_matrix_runtime(vptq_dev *dev, const vptq_matrix *m,
                                     const vptq_cuda_runtime **r, vptq_err *err);

#endif
