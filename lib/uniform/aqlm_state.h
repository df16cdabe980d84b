/* Internal to lib/uniform: one matrix on its way to additive codes (aqlm.h), in host memory,
 * and the two steps of a round. */
#ifndef VPTQ_UNIFORM_AQLM_STATE_H
#define VPTQ_UNIFORM_AQLM_STATE_H

#include "lib/uniform/aqlm.h"

typedef struct vptq_aqlm_state {
    vptq_device *dev;
    const vptq_aqlm_settings *s;
    const vptq_uniform_input *input;
    size_t vectors;   /* of a row */
    const float *h;   /* [in, in] H divided by its mean diagonal */
    uint32_t *codes;  /* [codebooks, out, vectors] */
    float *codebooks; /* [codebooks, k, v] */
    float *scales;    /* [out] */
    float *e, *eh;    /* [out, in] the error, and its product with h */
} vptq_aqlm_state;

/* e = scale * z - w, or without `error` z, from the codes, and eh. */
vptq_status vptq_aqlm_decode(vptq_aqlm_state *a, bool error, vptq_err *err) VPTQ_MUST_CHECK;

/* Conjugate-gradient iterations of a round; more gain little, because codes follow. */
enum { VPTQ_AQLM_ITERATIONS = 10 };
/* Codebooks of a smaller loss under these codes, up to the smallest with many iterations, then
 * the best scales, both rounded.  Reads eh; overwrites e and eh. */
vptq_status vptq_aqlm_fit(vptq_aqlm_state *a, int iterations, vptq_err *err) VPTQ_MUST_CHECK;
/* Codes for all vectors, in an order drawn for this round.  Reads eh. */
vptq_status vptq_aqlm_search(vptq_aqlm_state *a, uint32_t round, vptq_err *err) VPTQ_MUST_CHECK;

#endif
