/* Internal: the fixed codebooks of QuIP# (Tseng et al. 2024, section 4;
 * Cornell-RelaxML/quip-sharp), from codes alone.  E8P: the lattice E8 shifted by 1/4, its
 * points near 0.  E81B: 256 points of E8 near 0. */
#ifndef VPTQ_BASE_LATTICE_H
#define VPTQ_BASE_LATTICE_H

#include <stdint.h>

enum { VPTQ_LATTICE_V = 8 };

/* point [8] of the code: E8P, 65536 points, for 16 bits; E81B, 256 points, for 8 bits.  Codes
 * are those of the published code. */
void vptq_lattice_point(uint32_t bits, uint32_t code, float *point);

/* The code of the point nearest to x [8] (of E8P or E81B, as above), and that point. Candidates
 * are compared in float; if several are nearest, any of them.  Some point if x is not finite.
 */
uint32_t vptq_lattice_nearest(uint32_t bits, const float *x, float *point);

#endif
