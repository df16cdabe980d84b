/* What fits into the shared memory of a thread block, and where it lies: codebooks, their
 * copies, and the staging of the GEMV kernel.  Plain C, no CUDA.
 *
 *     main table | residual table | partial sums of the warps | sums that wait      bytes
 *     (the outlier table in the same place: segments run one after another)
 *
 * Partial sums: 32 warps x 16 rows x min(batch, 8) columns of float, one 16-row fragment at a
 * time.  Sums that wait (float, rows of the block x batch): where a block adds up several
 * segments, or several passes over columns.  x is kept in registers, 8192 columns a pass (16
 * tiles a warp, 32 registers a lane), so it takes no room here. */
#ifndef VPTQ_BACKEND_CUDA_PLAN_SMEM_H
#define VPTQ_BACKEND_CUDA_PLAN_SMEM_H

#include "lib/backend/cuda/plan_layout.h"

enum {
    VPTQ_CUDA_SMEM_HOPPER = 232448, /* bytes of a block at most: sm_90, 227 KB */
    VPTQ_CUDA_SMEM_AMPERE = 166912, /* sm_80, 163 KB */
    VPTQ_CUDA_SMEM_SMALL = 101376,  /* sm_86, sm_89, sm_120: 99 KB */
    VPTQ_CUDA_WARPS = 32,           /* of a block */
    VPTQ_CUDA_MAX_BATCH = 16,       /* of the GEMV kernel: two n-tiles */
    VPTQ_CUDA_EXACT_BATCH = 8,      /* up to here x is two float16 parts, else one */
    VPTQ_CUDA_PASS = 8192           /* columns whose x fits in the registers of a block */
};

typedef struct vptq_cuda_smem_want {
    vptq_vq_shape shape;
    uint32_t budget;  /* bytes of a block */
    uint32_t batch;   /* 1..16 */
    uint32_t rows;    /* output rows of a block whose sums wait; 0: none do */
    uint32_t staging; /* bytes that another kernel needs in place of the partial sums; or 0 */
    uint32_t copies;  /* of the main codebook at most, parts counted; 0: what serves best */
} vptq_cuda_smem_want;

typedef struct vptq_cuda_smem {
    vptq_cuda_tables tables;
    uint32_t main_at, residual_at, partial_at, sums_at, total; /* bytes; multiples of 128 */
    /* Clocks per 32 indices of uniform random codes, all pieces and tails: a simulated mean,
     * not a measurement. */
    double main_clocks, residual_clocks;
} vptq_cuda_smem;

/* Of all ways to store the codebooks that fit, the one with the fewest expected clocks; among
 * equals the one with the fewest bytes.  The outlier codebook is read from global memory where
 * it does not fit.  VPTQ_E_UNSUPPORTED, with sizes, when one copy of main and residual codebook
 * does not fit; VPTQ_E_ARG for a batch that is not in 1..16. */
vptq_status vptq_cuda_smem_fit(const vptq_cuda_smem_want *w, vptq_cuda_smem *out,
                               vptq_err *err) VPTQ_MUST_CHECK;

/* For the direct kernel: the main codebook in global memory; the residual codebook in shared
 * memory where its replicas take no more than a quarter of the budget, else global, too. Errors
 * as above: sums that wait may be too many. */
vptq_status vptq_cuda_smem_direct(const vptq_cuda_smem_want *w, vptq_cuda_smem *out,
                                  vptq_err *err) VPTQ_MUST_CHECK;

/* Clocks per 32 uniform random codes of a table in shared memory; 0 for others. */
double vptq_cuda_expected_clocks(const vptq_cuda_table *t);

#endif
