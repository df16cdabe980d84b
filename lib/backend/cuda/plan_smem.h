/* Internal: divides the shared memory of a thread block among codebooks, their copies and the
 * working memory of the GEMV kernel. Plain C, no CUDA.
 *
 *     main table | residual table | partial sums of the warps | sums over segments      bytes
 *
 * The outlier table takes the place of the others because segments run one after another.
 * Partial sums: 32 warps x 16 rows x min(batch, 8) floats, for one 16-row fragment at a time.
 * Sums over segments: rows of the block x batch floats, needed when a block adds up several
 * segments or passes over columns. x is kept in registers, 8192 columns per pass (16 tiles per
 * warp, 32 registers per lane). */
#ifndef VPTQ_BACKEND_CUDA_PLAN_SMEM_H
#define VPTQ_BACKEND_CUDA_PLAN_SMEM_H

#include "lib/backend/cuda/plan_layout.h"

enum {
    VPTQ_CUDA_SMEM_HOPPER = 232448, /* largest number of bytes per block: sm_90, 227 KB */
    VPTQ_CUDA_SMEM_AMPERE = 166912, /* sm_80, 163 KB */
    VPTQ_CUDA_SMEM_SMALL = 101376,  /* sm_86, sm_89, sm_120: 99 KB */
    VPTQ_CUDA_WARPS = 32,           /* warps of a block */
    VPTQ_CUDA_MAX_BATCH = 16,       /* tokens of the GEMV kernel: two groups of 8 */
    VPTQ_CUDA_EXACT_BATCH = 8,      /* up to here x is two float16 halves, above it one */
    VPTQ_CUDA_PASS = 8192           /* columns whose x fits in the registers of a block */
};

typedef struct vptq_cuda_smem_want {
    vptq_vq_shape shape;
    uint32_t budget;  /* bytes per block */
    uint32_t batch;   /* tokens, 1..16 */
    uint32_t rows;    /* output rows of a block with sums over segments, or 0 */
    uint32_t staging; /* bytes that another kernel needs instead of partial sums, or 0 */
    uint32_t copies;  /* largest number of copies of the main codebook, a part counts; 0: the
                         best number */
    bool grid;        /* main and residual codebooks are on int8 grids; no outliers */
} vptq_cuda_smem_want;

typedef struct vptq_cuda_smem {
    vptq_cuda_tables tables;
    uint32_t main_offset, residual_offset, partial_offset, sums_offset,
        total; /* bytes, multiples of 128 */
    /* Expected clocks per 32 uniform random codes, for all pieces and tails: a simulated mean.
     */
    double main_clocks, residual_clocks;
} vptq_cuda_smem;

/* Finds the way to store the codebooks that fits and has the fewest expected clocks, among
 * equals the fewest bytes. The outlier codebook remains in global memory if it does not fit.
 * VPTQ_E_UNSUPPORTED, with sizes, if one copy of main and residual codebook does not fit;
 * VPTQ_E_ARG for a batch outside 1..16. */
vptq_status vptq_cuda_smem_fit(const vptq_cuda_smem_want *w, vptq_cuda_smem *out,
                               vptq_err *err) VPTQ_MUST_CHECK;

/* Plans the direct kernel: the main codebook in global memory; the residual codebook in shared
 * memory if its replicas take at most a quarter of the budget, otherwise global too. Errors as
 * above. */
vptq_status vptq_cuda_smem_direct(const vptq_cuda_smem_want *w, vptq_cuda_smem *out,
                                  vptq_err *err) VPTQ_MUST_CHECK;

/* Expected clocks per 32 uniform random codes of a table in shared memory; 0 for others. */
double vptq_cuda_expected_clocks(const vptq_cuda_table *t);

#endif
