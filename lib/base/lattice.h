/* Internal: the fixed codebooks of QuIP# (Tseng et al. 2024, section 4;
 * Cornell-RelaxML/quip-sharp): points of the lattice E8 shifted by 1/4, from codes alone. */
#ifndef VPTQ_BASE_LATTICE_H
#define VPTQ_BASE_LATTICE_H

#include <stdint.h>

enum { VPTQ_LATTICE_V = 8 };

/* point [8] of the code: E8P, 65536 points, for 16 bits; E81B, 256 points, for 8 bits.  Codes
 * are those of the published code. */
void vptq_lattice_point(uint32_t bits, uint32_t code, float *point);

#endif
