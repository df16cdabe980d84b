/* Internal: the arrangement of a codebook's centroids in shared memory, and the meaning of a
 * run-time code. Plain C, no CUDA.
 *
 * A centroid of v 16-bit values is divided into pieces of 16 bytes (8 values: what ldmatrix
 * reads per lane) and, if 1..4 values remain, a tail of 8 bytes. v = 8: one piece; v = 6: one
 * padded piece; v = 12: a piece and a tail; v = 16: two pieces; v = 4: a tail only. Row r of
 * piece p starts at byte (p * rows + r) * 16, of the tail at pieces * rows * 16 + r * 8. All
 * parts of a centroid have the same row number, and that number is its run-time code, so that a
 * kernel computes only code * 16.
 *
 * Shared memory serves 128 bytes per clock, one access to each of 32 banks. Different rows in
 * the same slot of a 128-byte line (row mod `slots`: 8, or 16 for tails only) conflict. A
 * codebook is therefore stored several times, each copy with its slots rotated, and the code of
 * a lane selects the copy (plan_copies.h). The last copy may hold only the first ranks, where
 * centroids are ranked by use so that the part holds the hot ones.
 *
 * A centroid on an int8 grid (lib/base/grid.h) has 8 bytes, of which the first v are its codes.
 * Its table is that of a tail: functions that take v are called with VPTQ_CUDA_GRID_ROW.
 *
 *     copies:    row = copy.base + group of rank + (rank + copy.rotation) mod slots
 *     replicas:  row = rank * replicas + lane mod replicas       (every lane its own slot)
 *
 * Rows after the last rank of a copy, up to a whole line, are zero. */
#ifndef VPTQ_BACKEND_CUDA_PLAN_TABLE_H
#define VPTQ_BACKEND_CUDA_PLAN_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/bits.h"
#include "lib/base/dtype.h"
#include "lib/base/status.h"

enum {
    VPTQ_CUDA_LANES = 32,
    VPTQ_CUDA_LINE = 128, /* bytes that shared memory serves per clock */
    VPTQ_CUDA_PIECE = 16, /* bytes */
    VPTQ_CUDA_TAIL = 8,   /* bytes */
    VPTQ_CUDA_MAX_COPIES = 5,
    VPTQ_CUDA_GRID_ROW = 4, /* 16-bit values that take a row of 8 bytes */
    VPTQ_CUDA_GRID_V = 8    /* bytes in it */
};

typedef struct vptq_cuda_copy {
    uint32_t base;     /* first row, a multiple of 16 */
    uint32_t ranks;    /* holds ranks 0 .. ranks - 1 */
    uint32_t rotation; /* 0 .. slots - 1 */
} vptq_cuda_copy;

typedef struct vptq_cuda_table {
    uint32_t k, v;     /* k 0: no such codebook */
    uint32_t pieces;   /* pieces of 16 bytes per centroid */
    uint32_t tail;     /* 1 if a tail of 8 bytes follows, else 0 */
    uint32_t slots;    /* rows of a 128-byte line, and lanes of a phase */
    uint32_t rows;     /* of all copies, a multiple of 16, at most 65536 */
    uint32_t replicas; /* 0: copies are used; else 2, 4 .. slots */
    uint32_t copies;   /* 0 with replicas */
    bool shared;       /* false: read from global memory; one copy, row = centroid */
    bool grid;         /* values are bytes */
    bool ranked;       /* ranks differ from centroid numbers: the last copy is partial */
    vptq_cuda_copy copy[VPTQ_CUDA_MAX_COPIES];
} vptq_cuda_table;

/* Bytes of one centroid's pieces and tail. */
uint32_t vptq_cuda_row_bytes(uint32_t v);
size_t vptq_cuda_table_bytes(const vptq_cuda_table *t);
/* Bytes of one copy of a whole codebook. */
size_t vptq_cuda_copy_bytes(uint32_t v, uint32_t k);

/* Plans `whole` copies of the codebook and one more with its first `part` ranks (0: none;
 * rounded down to lines). VPTQ_E_UNSUPPORTED for more than 65536 rows or too many copies. k 0
 * gives the table of no codebook. */
vptq_status vptq_cuda_table_copies(vptq_cuda_table *t, uint32_t v, uint32_t k, uint32_t whole,
                                   uint32_t part, vptq_err *err) VPTQ_MUST_CHECK;
/* Plans every centroid `replicas` times side by side: a power of two, 2 .. slots. */
vptq_status vptq_cuda_table_replicas(vptq_cuda_table *t, uint32_t v, uint32_t k,
                                     uint32_t replicas, vptq_err *err) VPTQ_MUST_CHECK;
/* Plans one copy in global memory. */
void vptq_cuda_table_global(vptq_cuda_table *t, uint32_t v, uint32_t k);

/* Row of a rank in a copy that holds it; with replicas, of a rank for a lane. */
static inline VPTQ_HD uint32_t vptq_cuda_row(const vptq_cuda_table *t, uint32_t copy,
                                             uint32_t rank)
{
    uint32_t mask = t->slots - 1;
    const vptq_cuda_copy *c = &t->copy[copy];
    return c->base + (rank & ~mask) + ((rank + c->rotation) & mask);
}

static inline VPTQ_HD uint32_t vptq_cuda_replica_row(const vptq_cuda_table *t, uint32_t rank,
                                                     uint32_t lane)
{
    return rank * t->replicas + (lane & (t->replicas - 1));
}

/* Returns the rank in a row; UINT32_MAX for padding and beyond the table. */
uint32_t vptq_cuda_rank(const vptq_cuda_table *t, uint32_t row);

/* The same without branches for rows that hold a rank, for kernels whose tables differ from
 * those that the codes were made for. */
typedef struct vptq_cuda_rank_rule {
    uint32_t shift;     /* log2 of replicas */
    uint32_t log2_rows; /* log2 of the rows of a copy; 31 for a single copy */
    uint32_t rotations; /* of the copies, 4 bits each */
    uint32_t mask;      /* slots - 1 */
} vptq_cuda_rank_rule;

vptq_cuda_rank_rule vptq_cuda_rank_rule_of(const vptq_cuda_table *t);

static inline VPTQ_HD uint32_t vptq_cuda_rank_by(vptq_cuda_rank_rule r, uint32_t row)
{
    uint32_t i = row >> r.shift, rotation = r.rotations >> 4 * (i >> r.log2_rows) & 15;
    i &= (UINT32_C(1) << r.log2_rows) - 1;
    return (i & ~r.mask) | ((i - rotation) & r.mask);
}

/* Writes the vptq_cuda_table_bytes of the table to dst. centroids [k][v]; order [k] gives the
 * centroid of each rank, NULL if they are the same; type F16 or BF16. */
void vptq_cuda_table_image(const vptq_cuda_table *t, const float *centroids,
                           const uint16_t *order, vptq_dtype type, uint16_t *dst);

#endif
