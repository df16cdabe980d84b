/* Internal: float matrix products for the ops of the cpu backend.
 *
 * The right operand is packed once into panels of math->tile_cols columns; a row block of the
 * left one is packed just before it passes over the panels (Goto and van de Geijn, Anatomy of
 * high-performance matrix multiplication, 2008). This replaces the sgemm of OpenBLAS: one
 * thread per call, which reproducibility requires, would pack the same operands again in every
 * call, and attention could not pass the result of one product to the next as it is. */
#ifndef VPTQ_BACKEND_CPU_GEMM_H
#define VPTQ_BACKEND_CPU_GEMM_H

#include "lib/backend/backend.h"
#include "lib/backend/cpu/math.h"

/* A range cut into equal tiles of at most `max`; each but the last is a multiple of `step`. */
typedef struct vptq_cpu_tiles {
    size_t n, size, count;
} vptq_cpu_tiles;
vptq_cpu_tiles vptq_cpu_tiles_of(size_t n, size_t max, size_t step);
size_t vptq_cpu_tile_length(const vptq_cpu_tiles *t, size_t index);

/* Tile (*row, *col), col <= row, of a lower triangle whose tiles are counted row by row. */
void vptq_cpu_lower_tile(size_t index, size_t *row, size_t *col);

/* Number of threads for `work` (elements or multiplications): all, or 1 if waking them would
 * cost more. */
int vptq_cpu_threads(const vptq_dev *dev, size_t work);

/* Packs rows <= tile_rows rows of length k, times alpha, as a left operand of math->tile: out
 * [k, tile_rows], missing rows 0. Element (i, l) is at i * ld + l, or at l * ld + i with
 * `transposed`. */
void vptq_cpu_pack_left(const vptq_cpu_math *math, size_t rows, size_t k, const float *a,
                        size_t ld, bool transposed, float alpha, float *out);

/* Computes the whole product on the calling thread; work: vptq_cpu_gemm_work(math, n, k)
 * floats. */
void vptq_cpu_gemm_serial(const vptq_cpu_math *math, const vptq_gemm_args *g, float *work);
size_t vptq_cpu_gemm_work(const vptq_cpu_math *math, size_t n, size_t k);

#endif
