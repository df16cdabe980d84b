/* Products of some rows of x with a matrix in its stored form, for the rows gemv and vq_gemv:
 * pieces of the matrix become packed panels in a thread's own memory, where they meet all rows
 * of x at once, so that nothing of the matrix goes to memory as floats. */
#ifndef VPTQ_BACKEND_CPU_MANY_H
#define VPTQ_BACKEND_CPU_MANY_H

#include "lib/backend/backend.h"
#include "lib/backend/cpu/math.h"

/* Columns of a piece at most. */
enum { VPTQ_MANY_DEPTH = 320 };

/* pack: columns [l, l + depth) of rows [r0, r0 + n) of the matrix, n <= vector row, as panels
 * [depth, tile_cols], one behind the other; what columns beyond the last row are does not
 * count.  r0 is a multiple of vector row; work: work_rows * VPTQ_MANY_DEPTH floats.  Called by
 * several threads at once. */
typedef struct vptq_many_source {
    void (*pack)(const void *arg, const vptq_cpu_math *math, size_t r0, size_t n, size_t l,
                 size_t depth, float *work, float *panels);
    const void *arg;
    size_t out, in;
    size_t vector_row, work_rows;
} vptq_many_source;

/* As the row gemv; start (may be NULL): a number per row of x that all of its results begin
 * with.  The caller has taken scratch already: work has vptq_cpu_many_work floats. */
size_t vptq_cpu_many_work(const vptq_dev *dev, const vptq_many_source *source, size_t n);
void vptq_cpu_multiply_many(vptq_dev *dev, const vptq_many_source *source,
                            const vptq_gemv_args *g, const float *start, float *work);

#endif
