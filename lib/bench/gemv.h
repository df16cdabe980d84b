/* Internal: speed of products with packed matrices against dense ones, as in the two published
 * tables of VPTQ's kernels, for any backend, shape and pair of codebooks.
 *
 * The kinds run in turns in one process on matrices of random numbers.  Each call uses the next
 * of several copies that together exceed three times the largest cache of the device, unless
 * the options say otherwise, and times are those of the device's clock (measure of the backend
 * table).  All rows of the first product are checked against the matrix as ref decodes it. */
#ifndef VPTQ_BENCH_GEMV_H
#define VPTQ_BENCH_GEMV_H

#include "lib/backend/backend.h"
#include "lib/vptq.h"

/* The shapes and codebooks of the published tables: a = in, b = out; a = k, b = k_res. */
enum { VPTQ_GEMV_SHAPES = 30, VPTQ_GEMV_CODEBOOKS = 4, VPTQ_GEMV_CHAINS = 4 };
const vptq_gemv_pair *vptq_gemv_published_shapes(void);
/* Blocks of SmolLM2-135M, TinyLlama-1.1B, Llama-2-7B and -13B: a = hidden, b = intermediate. */
const vptq_gemv_pair *vptq_gemv_chain_shapes(void);
const vptq_gemv_pair *vptq_gemv_published_codebooks(void);

typedef struct vptq_gemv_row {
    uint32_t in_features, out_features, v, k, k_res, batch;
    double time_us, time_p10_us, time_p90_us; /* packed: median and percentiles of a call */
    /* Dense products: this backend's on 16 bits; the library's, on F32 for host backends, on
     * float16 for devices by the fastest of its routines (vptq_half_args.way).  NaN without a
     * library. */
    double half_us, library_us;
    uint32_t way;
    double dense_us;       /* the faster of the two */
    double ratio;          /* time_us / dense_us */
    double gb_per_second;  /* bytes of the packed matrix over time_us */
    double floor_fraction; /* of the rate at which the device reads memory */
    uint64_t packed_bytes, half_bytes;
} vptq_gemv_row;
typedef vptq_status (*vptq_gemv_fn)(void *arg, const vptq_gemv_row *row, vptq_err *err);

/* Measures rows in the order of the published tables: codebooks, then shapes (out, then in),
 * then batch.  Errors: VPTQ_E_ARG naming an impossible option, VPTQ_E_NOMEM for a matrix that
 * does not fit, VPTQ_E_NUMERIC for a wrong product, and what `fn` returns. */
vptq_status vptq_eval_gemv(vptq_device *dev, const vptq_gemv_options *opt, vptq_gemv_fn fn,
                           void *arg, vptq_err *err) VPTQ_MUST_CHECK;
/* As vptq_gemv: prints the rows. */
vptq_status vptq_eval_gemv_table(vptq_device *dev, const vptq_gemv_options *opt,
                                 const vptq_output *out, vptq_err *err) VPTQ_MUST_CHECK;

#endif
