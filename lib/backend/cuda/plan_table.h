/* Where the centroids of a codebook lie in a GPU's shared memory, and what a run-time code is.
 * Plain C, no CUDA.
 *
 * A centroid of v 16-bit values is cut into rows: pieces of 16 bytes (8 values; what one lane
 * gets of an ldmatrix) and, where 1..4 values are left, a tail of 8 bytes.  v = 8: one piece;
 * v = 6: one piece, padded; v = 12: a piece and a tail; v = 16: two pieces; v = 4: a tail
 * alone.  Row r of piece p lies at byte (p * rows + r) * 16, of the tail at
 * pieces * rows * 16 + r * 8.  All rows of a centroid have the same number, and a run-time code
 * is that number: nothing is left to compute but code * 16.
 *
 * Shared memory serves 128 bytes a clock, one access to each of 32 banks.  Rows that lie in the
 * same slot of a 128-byte line (row mod `slots`: 8, or 16 where only a tail is) wait for each
 * other, so a codebook is stored more than once, each copy with its slots rotated, and the code
 * of a lane says which copy it reads (cuda_plan_copies.h).  A copy may hold the beginning of
 * the codebook only: with the centroids in order of use ("rank"), a beginning is its hot part.
 *
 *     copies:    row = copy.base + group of rank + (rank + copy.rotation) mod slots
 *     replicas:  row = rank * replicas + lane mod replicas       (every lane its own slot)
 *
 * Rows behind the last rank of a copy, up to a whole line, hold zeros. */
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
    VPTQ_CUDA_LINE = 128, /* bytes that shared memory serves in a clock */
    VPTQ_CUDA_PIECE = 16, /* bytes */
    VPTQ_CUDA_TAIL = 8,   /* bytes */
    VPTQ_CUDA_MAX_COPIES = 5
};

typedef struct vptq_cuda_copy {
    uint32_t base;     /* first row, a multiple of 16 */
    uint32_t ranks;    /* holds ranks 0 .. ranks - 1 */
    uint32_t rotation; /* 0 .. slots - 1 */
} vptq_cuda_copy;

typedef struct vptq_cuda_table {
    uint32_t k, v;     /* k 0: there is no such codebook */
    uint32_t pieces;   /* rows of 16 bytes of a centroid */
    uint32_t tail;     /* 0, or 1: a row of 8 bytes behind them */
    uint32_t slots;    /* rows of a 128-byte line, and lanes of a phase of an access */
    uint32_t rows;     /* in all copies, a multiple of 16; at most 65536 */
    uint32_t replicas; /* 0: copies; else 2, 4 .. slots */
    uint32_t copies;   /* 0 with replicas */
    bool shared;       /* false: read from global memory; one copy, row = centroid */
    bool ranked;       /* ranks are not centroid numbers: the last copy holds a part */
    vptq_cuda_copy copy[VPTQ_CUDA_MAX_COPIES];
} vptq_cuda_table;

/* Bytes of one row of every piece and of the tail. */
uint32_t vptq_cuda_row_bytes(uint32_t v);
size_t vptq_cuda_table_bytes(const vptq_cuda_table *t);
/* Bytes of one copy of a whole codebook. */
size_t vptq_cuda_copy_bytes(uint32_t v, uint32_t k);

/* `whole` copies of the codebook and one more of its first `part` ranks (0: none; rounded down
 * to lines).  VPTQ_E_UNSUPPORTED when that needs more than 65536 rows or too many copies.  k 0
 * gives a table of no codebook. */
vptq_status vptq_cuda_table_copies(vptq_cuda_table *t, uint32_t v, uint32_t k, uint32_t whole,
                                   uint32_t part, vptq_err *err) VPTQ_MUST_CHECK;
/* Every centroid `replicas` times side by side: a power of two, 2 .. slots. */
vptq_status vptq_cuda_table_replicas(vptq_cuda_table *t, uint32_t v, uint32_t k,
                                     uint32_t replicas, vptq_err *err) VPTQ_MUST_CHECK;
/* In global memory, as it is. */
void vptq_cuda_table_global(vptq_cuda_table *t, uint32_t v, uint32_t k);

/* Row of a rank in a copy that holds it; of a rank for a lane, with replicas. */
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

/* Which rank a row holds; UINT32_MAX for rows of padding and beyond the table. */
uint32_t vptq_cuda_rank(const vptq_cuda_table *t, uint32_t row);

/* The same without branches, of rows that hold one: for kernels whose tables are not those that
 * the codes were made for. */
typedef struct vptq_cuda_rank_rule {
    uint32_t shift;     /* of replicas */
    uint32_t log2_rows; /* of a copy; 31 where there is one copy alone */
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

/* The bytes of shared memory: vptq_cuda_table_bytes of them at dst.  centroids [k][v]; order
 * [k] gives the centroid of each rank, NULL when they are the same; type F16 or BF16. */
void vptq_cuda_table_image(const vptq_cuda_table *t, const float *centroids,
                           const uint16_t *order, vptq_dtype type, uint16_t *dst);

#endif
