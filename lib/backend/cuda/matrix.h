/* Internal: a packed matrix on a device, as it is stored (to decode rows) and in the run-time
 * layout of plan_layout.h (for products). */
#ifndef VPTQ_BACKEND_CUDA_MATRIX_H
#define VPTQ_BACKEND_CUDA_MATRIX_H

#include "lib/backend/cuda/cuda.h"

extern "C" {
#include "lib/backend/cuda/plan_dispatch.h"
}

enum { VPTQ_CUDA_GEMV_PASS = 640 }; /* bytes of shared memory that describe a pass */

/* A codebook. `codebook` is in device memory: centroids in the order of their ranks, in rows as
 * those of a table in global memory (plan_table.h). Values are float16, multiplied by a power
 * of two that brings the largest value of this codebook and the one it is added to to
 * 2^13..2^14. So float16 values stay exact, bfloat16 values lose only what is tiny compared
 * with the largest, and sums of two centroids do not overflow. Products are multiplied by
 * `unit` to undo it. */
struct vptq_cuda_codebook {
    vptq_cuda_table table; /* k 0: no such codebook */
    const uint16_t *codebook;
    uint32_t codebook_rows;
    uint32_t at; /* offset in shared memory */
    float unit;
    const uint8_t *bytes;     /* on an int8 grid: rows of 8 codes, in the order of the ranks */
    float bytes_unit;         /* scale of the grid */
    vptq_cuda_rank_rule rule; /* for codes that were made for another table */
};

/* The inner loop for a stripe: pieces in shared memory with no residual codes, bytes or 16-bit
 * words as residual codes; or the general loop. */
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
    const uint8_t *codes8; /* at most one of codes16 and codes8 */
    uint32_t v, chunks;
    uint32_t tile; /* its first tile among those of all stripes */
    vptq_cuda_loop loop;
};

/* The run-time layout; arrays are in device memory. */
struct vptq_cuda_runtime {
    vptq_cuda_choice choice; /* GEMM_DEQUANT: nothing else is set */
    vptq_cuda_small small;
    const vptq_cuda_stripe
        *small_stripes;              /* [count] the same stripes with the tables of `small` */
    const vptq_cuda_stripe *stripes; /* [count] */
    vptq_cuda_stripe first;          /* stripes[0] in host memory */
    uint32_t count, columns;         /* columns: padded columns of all stripes */
    uint32_t max_chunks;             /* of the longest stripe */
    uint32_t split;                  /* choice.split, or fewer if there are fewer chunks */
    vptq_cuda_loop loop;             /* of the groups; the outlier columns may need another */
    bool any_loop;                   /* some stripe needs the general loop */
    bool staged;                     /* pieces are read from global memory */
    const int32_t *channel;          /* [columns] input channel, -1: padding */
    const float *scale, *bias;       /* [in], or both NULL */
    unsigned *arrived;               /* [blocks] zeros between launches */
};

/* Data is uploaded when a use first needs it: decoding rows needs the stored arrays, products
 * need the run-time layout. */
struct vptq_matrix {
    vptq_vq q;              /* arrays in host memory */
    mutable vptq_vq stored; /* the same in device memory, valid once `slab` is set */
    mutable void *slab;     /* memory of the arrays of `stored`, or NULL */
    mutable vptq_cuda_runtime runtime;
    mutable void *runtime_slab;
    mutable bool planned; /* `runtime` is valid */
};

/* Sets *q to the matrix with its arrays in device memory. */
vptq_status vptq_cuda_matrix_stored(vptq_dev *dev, const vptq_matrix *m, const vptq_vq **q,
                                    vptq_err *err);
/* Sets *r to its run-time layout. The environment variable VPTQ_CUDA_GEMV forces a kernel
 * (docs/gpu.md). */
vptq_status vptq_cuda_matrix_runtime(vptq_dev *dev, const vptq_matrix *m,
                                     const vptq_cuda_runtime **r, vptq_err *err);

#endif
