/* Internal: one matrix of additive codes in memory: the stored form of GPTVQ, AQLM, QuIP# and
 * DB-LLM.  `lib/uniform` produces it, work directories and archives hold it
 * (formats/vptq/additive.h), and models read it.
 *
 * W is [out, in].  A row is cut into vectors of v consecutive columns.  A block of block_rows x
 * block_columns weights has codebooks of its own, one per stage; the last block of a row or
 * column may be smaller.  Entries of the stages are added:
 *
 *     Z[r][v t + e] = sum over stages m of entry_m(block of (r, v t), code_m[r][t])[e]
 *     W[r][c] = Z[r][c] * scale[r][c / scale_columns]                      without a rotation
 *     W = diag(row_signs) A_out^T Z A_in diag(column_signs)                with one
 *
 * An entry is one of the stored codebook, or a point of a fixed lattice (lib/base/lattice.h)
 * times the stage's scale.  A_n is the orthogonal matrix of lib/base/hadamard.h.  Sums have the
 * order of the stages and of the columns, in float. */
#ifndef VPTQ_BASE_ADDITIVE_H
#define VPTQ_BASE_ADDITIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/ctx.h"
#include "lib/base/mem.h"
#include "lib/base/vq.h"

enum { VPTQ_ADDITIVE_MAX_STAGES = 8, VPTQ_ADDITIVE_MAX_V = 16, VPTQ_ADDITIVE_MAX_BITS = 16 };

typedef struct vptq_additive_shape {
    uint32_t out, in;
    uint32_t v; /* columns of a vector, 1 to 16; divides in, block_columns and scale_columns */
    uint32_t stages;                         /* codebooks that are added, 1 to 8 */
    uint32_t bits[VPTQ_ADDITIVE_MAX_STAGES]; /* of a code of the stage, 1 to 16 */
    uint32_t block_rows, block_columns;      /* 1 to out and in */
    uint32_t scale_columns; /* of a row share a scale, 1 to in; 0 = no scales */
    bool int8; /* codebooks are whole numbers of 8 bits times a scale each (lib/base/grid.h) */
    bool sparse;  /* entry 0 of every codebook is 0 and not stored */
    bool lattice; /* no codebooks are stored: v is 8, a code of 16 bits is a point of E8P, of 8
                     bits one of E81B.  One block, none of int8, sparse and scales */
    bool rotated; /* row_signs and column_signs are stored.  No scales */
} vptq_additive_shape;

typedef struct vptq_additive {
    vptq_additive_shape shape;
    /* [stages]: codes [out][row words of the stage], as in vptq_uniform */
    const uint32_t *codes[VPTQ_ADDITIVE_MAX_STAGES];
    /* [stages]: codebooks [row blocks][column blocks][2^bits][v], entry 0 included if sparse;
       values exact in the storage type; NULL for a lattice */
    const float *codebooks[VPTQ_ADDITIVE_MAX_STAGES];
    float stage_scales[VPTQ_ADDITIVE_MAX_STAGES]; /* of a lattice */
    const float *scales; /* [out][scale groups] or NULL; values exact in the storage type */
    const uint8_t *row_signs, *column_signs; /* [out], [in]: 1 for -1, 0 for 1; or both NULL */
} vptq_additive;

static inline size_t vptq_additive_row_words(const vptq_additive_shape *s, uint32_t stage)
{
    return vptq_bits_words(s->in / s->v, s->bits[stage]);
}

static inline size_t vptq_additive_blocks(const vptq_additive_shape *s)
{
    return (size_t)((s->out + s->block_rows - 1) / s->block_rows) *
           ((s->in + s->block_columns - 1) / s->block_columns);
}

/* VPTQ_E_SHAPE naming the first broken rule of the above. */
vptq_status vptq_additive_shape_check(const vptq_additive_shape *s,
                                      vptq_err *err) VPTQ_MUST_CHECK;

/* Every stored bit, padding included: codes as `indices`, codebooks and their scales as
 * `codebooks`, scales of rows (16 bits), of lattice stages (32 bits) and signs (1 bit, whole
 * words) as `norm`. */
vptq_vq_bits vptq_additive_count_bits(const vptq_additive_shape *s);

/* w [out, in], before rounding to the storage type.  The same bits for any number of threads;
 * needs no memory unless rotated. */
vptq_status vptq_additive_decode(const vptq_ctx *ctx, const vptq_additive *a, float *w,
                                 vptq_err *err) VPTQ_MUST_CHECK;

#endif
