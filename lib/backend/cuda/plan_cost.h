/* Internal: predicts the time of the ops that quantize and calibrate on a GPU, so that a run
 * can be planned without one.  Plain C, no CUDA.  Times of products with packed matrices:
 * plan_dispatch.h.
 *
 * Every time is seconds = launches + the larger of computing and memory, from one table of
 * constants (plan_cost.c) and counts of multiplications, instructions and bytes that follow
 * from the kernels.  The constants were fitted to a run on an H200 (docs/gpu.md, "Predicted
 * times"). */
#ifndef VPTQ_BACKEND_CUDA_PLAN_COST_H
#define VPTQ_BACKEND_CUDA_PLAN_COST_H

#include <stdint.h>

#include "lib/base/vq.h"

/* Rates per second, unless they say otherwise; docs/gpu.md, "Predicted times", has the source
 * of each. */
typedef struct vptq_cuda_costs {
    const char *chip;
    double launch_s;  /* of a kernel in a queue, latencies included */
    double memory;    /* bytes */
    double link;      /* bytes between host and device, through pinned buffers */
    double products;  /* multiplications of float16 in our kernels, with float sums */
    double doubles;   /* multiplications in double on tensor cores, in our kernels */
    double factoring; /* the same in cuSOLVER's */
    double issued;    /* instructions of one lane, in kernels that fill the device */
    double columns;   /* the same in the column kernels, which have few vectors at a time, */
    double column_s;  /* and seconds of each column that no number of vectors shortens */
    double seeding_s; /* the same of each centroid of plus_plus */
} vptq_cuda_costs;

/* The chip that predictions are for: an H200. */
const vptq_cuda_costs *vptq_cuda_costs_default(void);

/* Codebooks of a search: k main centroids and, with the best `beam` of them, k_res residual
 * ones (0: none). */
typedef struct vptq_cuda_searched {
    uint32_t v, k, k_res, beam;
} vptq_cuda_searched;

/* Seconds of one call; sizes as in backend.h, as doubles because only products of them count.
 */
double vptq_cuda_cost_gemm(const vptq_cuda_costs *c, double m, double n, double k);
double vptq_cuda_cost_gemv(const vptq_cuda_costs *c, double tokens, double out, double in);
double vptq_cuda_cost_syrk(const vptq_cuda_costs *c, double tokens, double n);
double vptq_cuda_cost_attention(const vptq_cuda_costs *c, double tokens, double context,
                                double heads, double head_dim);
double vptq_cuda_cost_factor(const vptq_cuda_costs *c, double n); /* potrf and trtri */
double vptq_cuda_cost_quad_trace(const vptq_cuda_costs *c, double m, double n);
double vptq_cuda_cost_assign(const vptq_cuda_costs *c, double n, uint32_t v, uint32_t k);
double vptq_cuda_cost_search(const vptq_cuda_costs *c, double n, const vptq_cuda_searched *s);
/* All columns of a group through vq_pass or vq_descend: `columns` of `vectors` each. */
double vptq_cuda_cost_columns(const vptq_cuda_costs *c, double columns, double vectors,
                              const vptq_cuda_searched *s);
/* accumulate and vq_scatter of n vectors. */
double vptq_cuda_cost_scatter(const vptq_cuda_costs *c, double n, uint32_t v, uint32_t k);
/* An op that only reads and writes so many bytes, such as vq_gather. */
double vptq_cuda_cost_stream(const vptq_cuda_costs *c, double bytes);
/* A copy between host and device. */
double vptq_cuda_cost_copy(const vptq_cuda_costs *c, double bytes);
/* plus_plus: distances of n vectors to the candidates for each of k centroids. */
double vptq_cuda_cost_seeding(const vptq_cuda_costs *c, double n, uint32_t v, uint32_t k);

#endif
