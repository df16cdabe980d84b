/* Internal: the ops of the `cpu` table; contracts are in backend.h.
 *
 * Matrix products use kernels of our own, in float (math.h) or double (double.h), on fixed
 * tiles; OpenMP runs over the tiles; the SIMD level is chosen at run time.  No sum depends on
 * the number of threads or on the level. */
#ifndef VPTQ_BACKEND_CPU_CPU_H
#define VPTQ_BACKEND_CPU_CPU_H

#include "lib/backend/backend.h"

#define VPTQ_CPU_OP(op) vptq_op_##op vptq_cpu_##op;
VPTQ_BACKEND_OPS(VPTQ_CPU_OP)
vptq_op_assign vptq_cpu_reassign;

#endif
