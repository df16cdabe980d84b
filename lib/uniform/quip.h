/* Internal: one matrix to points of fixed lattices by QuIP# (Tseng et al. 2024;
 * Cornell-RelaxML/quip-sharp), without its fine-tuning.  Knows matrices only, never models or
 * files.
 *
 * W and H are rotated by random signs and Hadamard transforms (lib/base/hadamard.h), which
 * makes weights look normal.  Vectors of 8 columns are then rounded to the nearest point of
 * E8P, and what remains to one of E81B (3 bits) or of E8P (4 bits), from the last vector of a
 * row to the first.  The error of a vector is propagated into those before it through the block
 * LDL factor of H (block LDLQ), and sweeps of coordinate descent over the vectors follow.
 * docs/methods.md. */
#ifndef VPTQ_UNIFORM_QUIP_H
#define VPTQ_UNIFORM_QUIP_H

#include "lib/base/additive.h"
#include "lib/uniform/uniform.h"

enum { VPTQ_QUIP_MIN_BITS = 2, VPTQ_QUIP_MAX_BITS = 4 };

typedef struct vptq_quip_settings {
    uint32_t bits;  /* of a weight, 2 to 4 */
    uint64_t seed;  /* of the signs */
    double ridge;   /* times mean diag H, added to H; published: 0.01 */
    double damping; /* first share added when the factorization fails, as in lib/encoder */
} vptq_quip_settings;

/* The shape that the settings give for a matrix. */
vptq_additive_shape vptq_quip_shape_of(const vptq_quip_settings *s, uint32_t out, uint32_t in);

/* Quantizes a matrix whose columns are a multiple of 8.  *a is in `arena`.  matrix_id tells the
 * signs of matrices apart.  *damping_added: times the mean diagonal; 0 = none was needed.
 * VPTQ_E_NUMERIC for a Hessian that is not finite or cannot be factored. */
vptq_status vptq_quip_quantize(vptq_device *dev, const vptq_quip_settings *s,
                               const vptq_uniform_input *input, uint32_t matrix_id,
                               vptq_arena *arena, vptq_additive *a, double *damping_added,
                               vptq_err *err) VPTQ_MUST_CHECK;

#endif
