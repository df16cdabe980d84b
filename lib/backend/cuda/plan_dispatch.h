/* Internal: chooses the kernel that multiplies by a packed matrix on a GPU, divides its work
 * among thread blocks and predicts its time.  Plain C, no CUDA.
 *
 * All times are predictions from a few constants of a chip and counts of memory accesses; none
 * is a measurement.  They only serve to choose a kernel and never belong in a table of results.
 *
 * The model (derived in docs/gpu.md): time = launches + filling the tables + copying them
 * within shared memory + what x takes longer than that + body + adding up the parts of blocks.
 * The body of a block is its number of tiles (32 indices each) times the largest of
 *
 *   lookups    (clocks of shared memory (plan_smem.h) + 1.5) / pipe efficiency
 *   products   2 v rows x 16 columns x tokens, at the rate of the tensor cores
 *   codes      their bytes, at the block's share of the memory bandwidth
 */
#ifndef VPTQ_BACKEND_CUDA_PLAN_DISPATCH_H
#define VPTQ_BACKEND_CUDA_PLAN_DISPATCH_H

#include "lib/backend/cuda/plan_smem.h"

typedef struct vptq_cuda_chip {
    const char *name;
    uint32_t sms;        /* streaming multiprocessors */
    uint32_t smem;       /* bytes of shared memory that a block can use */
    double ghz;          /* clock under load */
    double memory_gb_s;  /* sustained */
    double l2_gb_s;      /* sustained */
    double launch_us;    /* one kernel in a graph, latencies included */
    double early_us;     /* from the start of a kernel to that of an early one after it */
    double x_us;         /* latencies of converting x: two reads and a sum over a block */
    double read_us;      /* latency of one read through L2 */
    double join_us;      /* until the last block has added the parts of all */
    double fill_us;      /* from the start of a block until the first row of a table arrives */
    double fill_bytes;   /* per clock into one SM */
    double mma_macs;     /* per clock and SM by mma.sync, f16 inputs, float sums; twice as many
                            with bytes */
    double pipe;         /* share of the clocks in which lookups of GEMM_SMALL keep shared
                            memory busy */
    double extra_clocks; /* of the other kernels per 32 indices, in addition to lookups */
} vptq_cuda_chip;

/* Returns the constants of a chip ("h200", "h100", "a100", "rtx4090"), NULL for another name.
 * For other chips take the nearest and replace sms and smem by the device's properties. */
const vptq_cuda_chip *vptq_cuda_chip_search(const char *name);

typedef enum vptq_cuda_kernel {
    VPTQ_CUDA_GEMV_SMEM,   /* up to 16 tokens, codebooks in shared memory */
    VPTQ_CUDA_GEMV_DIRECT, /* up to 16 tokens, the main codebook through L2 */
    VPTQ_CUDA_GEMV_GRID,   /* one token, codebooks on int8 grids in shared memory */
    VPTQ_CUDA_GEMM_SMALL,  /* any number; one copy of the codebooks in shared memory, with x */
    VPTQ_CUDA_GEMM_DEQUANT /* tiles of the matrix are decoded, then multiplied by gemm */
} vptq_cuda_kernel;
enum { VPTQ_CUDA_KERNELS = 5 };

/* Limits of GEMM_SMALL. */
enum {
    VPTQ_CUDA_GEMM_BATCH = 256,   /* tokens of a launch */
    VPTQ_CUDA_GEMM_COLUMNS = 128, /* tokens of a block */
    VPTQ_CUDA_GEMM_WARPS = 8,     /* of a block */
    VPTQ_CUDA_GEMM_FRAGMENTS = 2  /* of 16 output rows each, that a warp multiplies at once */
};

/* Warps of a block of the GEMV kernels.  The planner reserves partial sums for twice as many,
 * which leaves room for double buffering. */
enum { VPTQ_CUDA_GEMV_WARPS = 16 };

/* GEMV_GRID: warps of a block, and its memory after the tables (offsets in bytes): x, sums of
 * whole numbers (a stride for each digit of x and codebook), results of earlier segments; the
 * total counts what the kernel's own objects need, which is not part of a launch's dynamic
 * memory. */
enum {
    VPTQ_CUDA_GRID_WARPS = 12,
    VPTQ_CUDA_GRID_DIGITS = 4,
    VPTQ_CUDA_GRID_OBJECTS = 512 /* bytes of port_shared, for sums over a block */
};
typedef struct vptq_cuda_grid_memory {
    uint32_t x, sums, stride, results, total;
} vptq_cuda_grid_memory;

vptq_cuda_grid_memory vptq_cuda_grid_memory_of(const vptq_vq_shape *s, uint32_t chunks,
                                               uint32_t pairs);

/* Whether GEMV_GRID can multiply matrices of a shape, if all codebooks are on int8 grids. */
bool vptq_cuda_has_grid_shape(const vptq_vq_shape *s);

/* Blocks that convert x for a product of up to 8 tokens.  Product kernels start while these
 * run, so they are planned for the other SMs. */
enum { VPTQ_CUDA_X_BLOCKS = 4 };

/* Bytes of shared memory through which warps pass pieces that they read from global memory. */
enum {
    VPTQ_CUDA_GEMV_STAGE =
        (int)VPTQ_CUDA_GEMV_WARPS * (int)VPTQ_CUDA_LANES * (int)VPTQ_CUDA_PIECE,
    VPTQ_CUDA_GEMM_STAGE =
        (int)VPTQ_CUDA_GEMM_WARPS * (int)VPTQ_CUDA_LANES * (int)VPTQ_CUDA_PIECE
};

/* Bytes of shared memory that GEMM_SMALL needs after its tables: two chunks (128 columns of the
 * matrix each) of x in 16 bits. */
static inline VPTQ_HD uint32_t vptq_cuda_gemm_staging(uint32_t tokens)
{
    return 2 * VPTQ_CUDA_CHUNK * 2 * tokens;
}

/* How one kernel would run.  Cluster i of `split` blocks computes output rows i * rows ..;
 * block r of a cluster takes chunks r * n .. (r + 1) * n - 1 of every group, n = ceil(chunks /
 * split).
 */
typedef struct vptq_cuda_choice {
    vptq_cuda_kernel kernel;
    vptq_cuda_smem smem; /* tables that the layout must be built with */
    uint32_t blocks;     /* thread blocks, one per SM */
    uint32_t split;      /* blocks of a cluster, which share the columns: 1, 2 or 4 */
    uint32_t pairs;      /* pairs of vector rows of the busiest block */
    uint32_t rows;       /* output rows of a cluster: a multiple of 2 v and 2 v0, or out */
    uint32_t passes;     /* over the columns of the longest segment, 8192 at a time */
    uint32_t columns;    /* GEMM_SMALL: largest number of tokens of a block: 32, 64 or 128 */
    uint32_t ways;       /* GEMM_SMALL: clusters that share output rows, for different tokens */
    double balance;      /* mean load of the SMs over that of the busiest */
    double launch_us, fill_us, copy_us, x_us, body_us, join_us, total_us; /* predicted */
} vptq_cuda_choice;

/* Whether pieces of some codebook come from global memory, through a staging area. */
bool vptq_cuda_is_staged(const vptq_cuda_tables *t);

/* Plans one kernel for a batch of tokens.  `copies` as in vptq_cuda_smem_want; GEMM_SMALL
 * ignores it.  VPTQ_E_UNSUPPORTED, with the sizes, if the codebooks or the batch are too large.
 * Not for GEMM_DEQUANT. */
vptq_status vptq_cuda_predict(const vptq_cuda_chip *chip, const vptq_vq_shape *s,
                              uint32_t batch, vptq_cuda_kernel kernel, uint32_t copies,
                              vptq_cuda_choice *out, vptq_err *err) VPTQ_MUST_CHECK;

/* GEMM_SMALL is planned for numbers of tokens in steps. */
enum {
    VPTQ_CUDA_SMALL_STEP = 32,
    VPTQ_CUDA_SMALL_PLANS = VPTQ_CUDA_GEMM_BATCH / VPTQ_CUDA_SMALL_STEP
};

/* GEMM_SMALL on the layout of the GEMV kernel, with tables of its own. */
typedef struct vptq_cuda_small {
    uint32_t from, to;   /* numbers of tokens that it is used for; to 0: none */
    vptq_cuda_smem smem; /* the tables; x comes after them */
    bool staged;
    struct {
        uint32_t columns, ways, rows, split; /* see vptq_cuda_choice */
    } plan[VPTQ_CUDA_SMALL_PLANS];           /* [(tokens - 1) / step] */
} vptq_cuda_small;

/* The kernels of a matrix.  Its one run-time layout is built with the tables of `few`. */
typedef struct vptq_cuda_dispatch_plan {
    vptq_cuda_choice few; /* for up to 16 tokens; GEMM_DEQUANT: no kernel can run */
    vptq_cuda_small small;
} vptq_cuda_dispatch_plan;

/* Chooses the kernels with the shortest predicted time.  `grid`: all codebooks are on int8
 * grids.  `forced` ("KERNEL" or "KERNEL:COPIES", with KERNEL gemv-smem, gemv-direct, gemv-grid,
 * gemm-small or gemm-dequant) restricts the choice for
 * tests and measurements; NULL: no restriction.  VPTQ_E_ARG for another name,
 * VPTQ_E_UNSUPPORTED if the forced kernel cannot run. */
vptq_status vptq_cuda_dispatch(const vptq_cuda_chip *chip, const vptq_vq_shape *s, bool grid,
                               const char *forced, vptq_cuda_dispatch_plan *out,
                               vptq_err *err) VPTQ_MUST_CHECK;

#endif
