/* Which kernel multiplies by a packed matrix on a GPU, how its work is spread, and how long a
 * model says that it takes.  Plain C, no CUDA.
 *
 * Every time in this file is a PREDICTION from a few constants of a device and counts of
 * accesses; none is a measurement, and none belongs into a table of results.  They exist to
 * choose a kernel and to be held against measurements.
 *
 * The model (docs/gpu.md has the derivation): time = launch + filling the tables + making their
 * copies + body.  The body of a block is its tiles of 32 indices times the largest of
 *   look-ups   clocks of the shared memory (cuda_plan_smem.h) + 1.5, over a pipe efficiency
 *   products   2 v rows x 16 columns x batch, over the rate of the tensor cores
 *   stream     bytes of codes over the block's share of the memory's bandwidth. */
#ifndef VPTQ_BACKEND_CUDA_PLAN_DISPATCH_H
#define VPTQ_BACKEND_CUDA_PLAN_DISPATCH_H

#include "lib/backend/cuda/plan_smem.h"

typedef struct vptq_cuda_chip {
    const char *name;
    uint32_t sms;
    uint32_t smem;      /* bytes of a block */
    uint32_t smem_sm;   /* of an SM; each block on it takes 1024 more than its own */
    bool multicast;     /* a cluster loads a table once for all its blocks */
    double ghz;         /* clock under load */
    double memory_gb_s; /* sustained */
    double l2_gb_s;
    double launch_us;    /* of one kernel in a graph, its latencies included */
    double next_us;      /* of a second kernel behind it */
    double fill_us;      /* before the first byte of a table arrives */
    double fill_bytes;   /* a clock into one SM */
    double mma_macs;     /* a clock and SM by mma.sync, 16-bit inputs, float sums */
    double gemm_macs;    /* the same at the chip's peak */
    double pipe;         /* share of the clocks in which look-ups keep shared memory busy */
    double extra_clocks; /* per 32 indices: loads of codes and x */
} vptq_cuda_chip;

/* The chips with constants of their own; for another one, take the nearest and set sms, smem,
 * ghz and memory_gb_s from the device's properties. */
const vptq_cuda_chip *vptq_cuda_chips(size_t *count);
const vptq_cuda_chip *vptq_cuda_chip_search(const char *name); /* NULL: none of that name */

typedef enum vptq_cuda_kernel {
    VPTQ_CUDA_GEMV_SMEM,   /* batch 1..16, codebooks in shared memory */
    VPTQ_CUDA_GEMV_DIRECT, /* batch 1..16, the main codebook through L2 */
    VPTQ_CUDA_GEMM_SMALL, /* the codebooks once in shared memory, or replicas, and beside them x
                           */
    VPTQ_CUDA_GEMM_DEQUANT /* the whole matrix to 16 bits, then a dense product */
} vptq_cuda_kernel;
enum { VPTQ_CUDA_KERNELS = 4 };

/* Of GEMM_SMALL: rows of x in a launch and in a block, at most; warps of a block; fragments (16
 * output rows) of a warp at a time. */
enum {
    VPTQ_CUDA_GEMM_BATCH = 256,
    VPTQ_CUDA_GEMM_COLUMNS = 128,
    VPTQ_CUDA_GEMM_WARPS = 8,
    VPTQ_CUDA_GEMM_FRAGMENTS = 2
};

const char *vptq_cuda_kernel_name(vptq_cuda_kernel kernel);

/* Bytes of shared memory behind the tables of GEMM_SMALL: two chunks (128 columns of the
 * matrix) of so many rows of x in 16 bits. */
static inline VPTQ_HD uint32_t vptq_cuda_gemm_staging(uint32_t columns)
{
    return 2 * VPTQ_CUDA_CHUNK * 2 * columns;
}

/* Cluster i of `split` blocks works on output rows i * rows .. of all columns; its block r on
 * chunks r * n .. (r + 1) * n - 1 of every group, n = ceil(chunks / split). */
typedef struct vptq_cuda_choice {
    vptq_cuda_kernel kernel;
    vptq_cuda_smem smem; /* tables to build the layout with; zero for GEMM_DEQUANT */
    uint32_t blocks;     /* thread blocks, one an SM */
    uint32_t split;      /* blocks of a cluster that share the columns: 1, 2, 4 */
    uint32_t pairs;      /* vector row pairs of the busiest block */
    uint32_t rows;       /* output rows of a cluster: a multiple of 2 v and 2 v0, or out */
    uint32_t passes;     /* over columns, 8192 at a time, of the longest segment */
    uint32_t columns;    /* GEMM_SMALL: rows of x of a block, 32, 64 or 128 at most ... */
    uint32_t ways;       /* ... and clusters that share output rows, each with x of its own */
    bool overlaps; /* two such blocks fit on an SM: the next launch may fill its tables early */
    double balance; /* mean load of the SMs over that of the busiest */
    double launch_us, fill_us, copy_us, body_us, total_us; /* predicted */
} vptq_cuda_choice;

/* One kernel; copies as in vptq_cuda_smem_want, and nothing to GEMM_SMALL, whose tables do not
 * depend on the batch either.  VPTQ_E_UNSUPPORTED where it cannot run: codebooks too large,
 * batch too large, with sizes. */
vptq_status vptq_cuda_predict(const vptq_cuda_chip *chip, const vptq_vq_shape *s,
                              uint32_t batch, vptq_cuda_kernel kernel, uint32_t copies,
                              vptq_cuda_choice *out, vptq_err *err) VPTQ_MUST_CHECK;

/* The kernel and number of copies with the least predicted time; every valid shape and batch
 * (>= 1) has one.  Up to 8 rows of x are not given to GEMM_SMALL, which has 11 bits of them. */
vptq_status vptq_cuda_dispatch(const vptq_cuda_chip *chip, const vptq_vq_shape *s,
                               uint32_t batch, vptq_cuda_choice *out,
                               vptq_err *err) VPTQ_MUST_CHECK;

/* Predicted time of the dense 16-bit product of the same shape, at full bandwidth. */
double vptq_cuda_dense_us(const vptq_cuda_chip *chip, uint32_t out, uint32_t in,
                          uint32_t batch);

#endif
