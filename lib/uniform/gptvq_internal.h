/* Internal to gptvq*.c: the metric of vectors, training of codebooks, and least squares over
 * them. */
#ifndef VPTQ_UNIFORM_GPTVQ_INTERNAL_H
#define VPTQ_UNIFORM_GPTVQ_INTERNAL_H

#include "lib/uniform/gptvq.h"

/* The state of a matrix; arrays are in host memory. */
typedef struct vptq_gptvq {
    vptq_device *dev;
    const vptq_gptvq_settings *s;
    const vptq_uniform_input *input;
    vptq_additive_shape shape;
    vptq_arena scratch;
    float *w;         /* [out, in] compensated weights */
    float *u;         /* [in, in] */
    uint32_t *idx;    /* [out, in / v] index of every vector */
    float *codebooks; /* [row blocks][column blocks][k][v] */
} vptq_gptvq;

static inline size_t vptq_gptvq_k(const vptq_gptvq *q)
{
    return (size_t)1 << q->shape.bits[0];
}

/* A block of weights that shares a codebook: vector t of row r is w + r ld + t v.  What the
 * pass loses by an error d [v] of a vector at position t is |e|^2 with e U_t = d, U_t the
 * diagonal block of U at its columns. */
typedef struct vptq_gptvq_block {
    size_t rows, vectors, v, k;
    const float *w;
    size_t ld;
    const float
        *u; /* of the first column of the block; row i of U_t is u + (t v + i)(ldu) + t v */
    size_t ldu;
    float *codebook; /* [k][v] */
} vptq_gptvq_block;

/* Solves e U_t = d. */
static inline void vptq_gptvq_solve(size_t v, const float *u, size_t ldu, const float *d,
                                    float *e)
{
    for (size_t j = 0; j < v; j++) {
        float sum = d[j];
        for (size_t i = 0; i < j; i++)
            sum -= e[i] * u[i * ldu + j];
        e[j] = sum / u[j * ldu + j];
    }
}

/* The centroids at a position, c U_t^-1, and scratch. */
typedef struct vptq_gptvq_scaled {
    float *c;    /* [v][k] */
    float *cost; /* [k] */
} vptq_gptvq_scaled;
void vptq_gptvq_scale(const vptq_gptvq_block *b, size_t t, const vptq_gptvq_scaled *s);
/* The index of the centroid that costs least for a vector at that position, the first of equal
 * ones. */
uint32_t vptq_gptvq_nearest(const vptq_gptvq_block *b, size_t t, const vptq_gptvq_scaled *s,
                            const float *x);

/* Scratch of a thread for blocks of up to `max` vectors. */
typedef struct vptq_gptvq_ranked {
    double distance;
    uint32_t at;
} vptq_gptvq_ranked;
typedef struct vptq_gptvq_trainer {
    vptq_gptvq_ranked *ranked; /* [max] */
    uint32_t *idx;             /* [max] */
    double *metric;            /* [vectors of a row][v][v] */
    double *a, *b;             /* [k][v][v], [k][v] */
    double *weight;            /* [k] */
    vptq_gptvq_scaled scaled;
} vptq_gptvq_trainer;

vptq_status vptq_gptvq_trainer_make(vptq_gptvq *q, vptq_gptvq_trainer *t,
                                    vptq_err *err) VPTQ_MUST_CHECK;
/* Makes the codebook of a block: centroids at equal steps of the Mahalanobis distance, then
 * expectation and maximization under the metric, then rounding to what is stored.  False if a
 * centroid does not fit the storage type. */
bool vptq_gptvq_train(const vptq_gptvq *q, const vptq_gptvq_block *b, vptq_gptvq_trainer *t);
/* Rounds a codebook [k][v] to what is stored; weight [k]: importance of the centroids. */
bool vptq_gptvq_round(const vptq_gptvq *q, float *codebook, const double *weight);

/* Fits all codebooks to the original weights under H with q->idx fixed.  A row block whose loss
 * does not fall keeps its codebooks. */
vptq_status vptq_gptvq_refit(vptq_gptvq *q, vptq_err *err) VPTQ_MUST_CHECK;

#endif
