/* Internal: the run-time layout of a packed matrix for the GPU, built from the bits of the file
 * when the matrix is first multiplied. Plain C, no CUDA.
 *
 * The columns are divided into segments with codebooks of their own: the outlier columns (if
 * any), then every group. The vector rows of a segment (v rows each) are taken in pairs, its
 * columns in tiles of 16 and chunks of 8 tiles; vector rows and columns beyond the end are
 * padding. A tile is 2 vector rows x 16 columns = 32 codes, one per lane, in the order in which
 * ldmatrix.x4 takes row addresses. Lane l belongs to 8 x 8 matrix l / 8, which is
 *
 *     vector row 2 * pair + (l / 8) % 2,  column 16 * tile + (l / 16) * 8 + l % 8,
 *
 * and with .trans the four matrices are the A fragment (2 v rows, 16 columns) of m16n8k16.
 *
 *     main      u16 [pairs][chunks][32 lanes][8 tiles]     16 bytes per lane: one 128-bit load
 *     residual  u8 or u16, in the same order               8 or 16 bytes per lane
 *
 * A u16 code is a row number of its table, with the copy chosen by plan_copies.h. A u8 code is
 * the centroid's number in a table of replicas: row = code * replicas + lane % replicas.
 *
 * Padding contributes nothing: a padding lane reads a valid row without a bank conflict, x is 0
 * in padded columns (channel -1), and padded output rows are dropped.
 *
 * Scale and bias of the columns are applied to x (x * scale, and the sum of x * bias once); the
 * layout does not depend on them. Sources: PTX ISA, ldmatrix and mma.m16n8k16 fragments. */
#ifndef VPTQ_BACKEND_CUDA_PLAN_LAYOUT_H
#define VPTQ_BACKEND_CUDA_PLAN_LAYOUT_H

#include "lib/backend/cuda/plan_table.h"
#include "lib/base/mem.h"
#include "lib/base/vq.h"

enum {
    VPTQ_CUDA_TILE = 16,                                     /* columns of a tile */
    VPTQ_CUDA_CHUNK_TILES = 8,                               /* tiles per load of a lane */
    VPTQ_CUDA_CHUNK = VPTQ_CUDA_TILE * VPTQ_CUDA_CHUNK_TILES /* columns */
};

/* The tables of all groups (main, residual) and of the outlier columns. Chosen by plan_smem.h;
 * k and v as in the shape, k 0 for a codebook that the shape does not have. */
typedef struct vptq_cuda_tables {
    vptq_cuda_table main, residual, outlier;
} vptq_cuda_tables;

typedef struct vptq_cuda_segment {
    uint32_t first, columns; /* positions first .. first + columns - 1 in processing order */
    uint32_t at, chunks;     /* its padded columns: channel[at], chunks * 128 of them */
    uint32_t vector_rows, pairs; /* vector rows of v rows; pairs of them */
    vptq_cuda_table main, residual;
    const float *centroids, *res_centroids; /* [k][v] of the vptq_vq, not owned */
    const uint16_t *order;                  /* [k] rank -> centroid of main, or NULL */
    const uint16_t *res_order;              /* the same for `residual` */
    uint16_t *codes;                        /* main stream */
    uint8_t *codes8;                        /* residual stream: one of the two, or none */
    uint16_t *codes16;
} vptq_cuda_segment;

typedef struct vptq_cuda_layout {
    uint32_t segments;
    vptq_cuda_segment *segment;
    uint32_t columns;       /* padded columns of all segments */
    const int32_t *channel; /* [columns] input channel (perm applied), -1: x is 0 */
} vptq_cuda_layout;

/* Builds the layout in `arena`. It refers to the codebooks of q, which must live as long. The
 * result does not depend on `threads`. VPTQ_E_SHAPE if the tables belong to other codebooks,
 * VPTQ_E_ARG for an outlier index beyond its codebook. */
vptq_status vptq_cuda_layout_build(const vptq_vq *q, const vptq_cuda_tables *tables,
                                   int threads, vptq_arena *arena, vptq_cuda_layout *out,
                                   vptq_err *err) VPTQ_MUST_CHECK;

/* Position of a lane's code in a stream of the segment. */
static inline size_t vptq_cuda_code_at(const vptq_cuda_segment *s, uint32_t pair,
                                       uint32_t chunk, uint32_t tile, uint32_t lane)
{
    size_t load = ((size_t)pair * s->chunks + chunk) * VPTQ_CUDA_LANES + lane;
    return load * VPTQ_CUDA_CHUNK_TILES + tile;
}

/* Vector row and column of a lane within the segment, padding included. */
static inline uint32_t vptq_cuda_lane_vector_row(uint32_t pair, uint32_t lane)
{
    return 2 * pair + ((lane >> 3) & 1);
}

static inline uint32_t vptq_cuda_lane_column(uint32_t chunk, uint32_t tile, uint32_t lane)
{
    return chunk * VPTQ_CUDA_CHUNK + tile * VPTQ_CUDA_TILE + (lane >> 4) * 8 + (lane & 7);
}

#endif
