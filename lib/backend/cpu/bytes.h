/* Internal: inner loops of products of bytes on the cpu backend: one set per SIMD level
 * (bytes_simd.c), and one for processors with AVX-512 VNNI or AMX (bytes_vnni.c). */
#ifndef VPTQ_BACKEND_CPU_BYTES_H
#define VPTQ_BACKEND_CPU_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/backend/backend.h"
#include "lib/base/cpu.h"

/* Rows of codes times quantized rows; rows may be repeated where there are fewer. */
enum { VPTQ_BYTES_OUT = 4, VPTQ_BYTES_TOKENS = 4 };
typedef struct vptq_bytes_tile {
    size_t bytes; /* of a row, a multiple of 4 */
    const uint8_t *codes[VPTQ_BYTES_OUT];
    const int8_t *q[VPTQ_BYTES_TOKENS];
    int32_t excess[VPTQ_BYTES_TOKENS]; /* for VNNI: see below */
    int32_t sum[VPTQ_BYTES_TOKENS][VPTQ_BYTES_OUT];
} vptq_bytes_tile;

typedef void vptq_bytes_multiply(vptq_bytes_tile *t);

typedef struct vptq_bytes_kernels {
    /* Quantizes the n numbers of a row, as the op does; false, and nothing is written, if one
     * is not finite. */
    bool (*quantize)(const float *x, size_t n, int8_t *q, float *scale);
    vptq_bytes_multiply *one; /* only the first row of q */
    vptq_bytes_multiply *all;
} vptq_bytes_kernels;

VPTQ_SIMD_TABLES(vptq_bytes_kernels, vptq_bytes_kernels);

static inline const vptq_bytes_kernels *vptq_bytes_kernels_get(vptq_simd simd)
{
    return VPTQ_SIMD_SELECT(simd, vptq_bytes_kernels);
}

/* ---- AVX-512 VNNI and AMX ----
 *
 * Their instructions multiply unsigned by signed bytes, so that codes stay as they are and a
 * sum is too large by its row's `excess`, 128 times the sum of the row of q.  Sums may wrap
 * around before it is taken off.
 *
 * For many tokens, rows of q are packed into panels of 16: word w (4 bytes) of all 16 rows,
 * then word w + 1.  A lane is a token then, and no sum goes across lanes. */

enum {
    VPTQ_BYTES_PANEL = 16, /* tokens of a panel */
    VPTQ_BYTES_BLOCK = 32  /* rows of codes, and tokens, of a block */
};

typedef struct vptq_bytes_panels {
    size_t words;    /* of a panel: those of a row, filled up with zeros to a multiple of 16 */
    uint32_t *word;  /* [panels, words, 16]; of an even number of panels, aligned to 64 */
    int32_t *excess; /* [panels, 16] */
} vptq_bytes_panels;

typedef struct vptq_vnni_kernels {
    int32_t (*excess)(const int8_t *q, size_t bytes);
    vptq_bytes_multiply *one, *all; /* as those of vptq_bytes_kernels */
    /* Packs the rows of q, which are `bytes` long, of a panel: `rows` exist, others are zeros.
     */
    void (*pack)(const int8_t *q, size_t bytes, size_t rows, const vptq_bytes_panels *p,
                 size_t panel);
    /* Writes y of a block: rows of codes from `out` on, the tokens of two panels from `panel`
     * on.  With `amx` call it between vptq_amx_begin and vptq_amx_end. */
    void (*block)(const vptq_multiply_bytes_args *a, const vptq_bytes_panels *p, size_t panel,
                  size_t out, bool amx);
} vptq_vnni_kernels;

/* NULL if the level is below AVX-512, or the processor has no VNNI. */
const vptq_vnni_kernels *vptq_vnni_kernels_get(vptq_simd simd);

#endif
