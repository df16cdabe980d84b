/* Rows of the `cpu` table: OpenBLAS (one thread per call) on fixed tiles, OpenMP over the
 * tiles, AVX2 or AVX-512 chosen at run time.  A tile depends on the shapes alone, so results
 * are the same bits for any number of threads.  Contracts are in backend.h. */
#ifndef VPTQ_BACKEND_BACKEND_CPU_H
#define VPTQ_BACKEND_BACKEND_CPU_H

#include "lib/backend/backend.h"

#endif
