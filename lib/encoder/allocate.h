/* Internal: bit allocation.  Chooses one of several options for every matrix so that the sum of
 * costs is minimal and the sum of bits within a budget. */
#ifndef VPTQ_ENCODER_ALLOCATE_H
#define VPTQ_ENCODER_ALLOCATE_H

#include "lib/base/mem.h"

typedef struct vptq_allocate_option {
    uint64_t bits;
    double cost; /* finite; any scale */
} vptq_allocate_option;

/* The options of matrix i are options[first[i]] .. options[first[i + 1] - 1], at least one. */
typedef struct vptq_allocate_problem {
    size_t count;
    const size_t *first; /* [count + 1] */
    const vptq_allocate_option *options;
} vptq_allocate_problem;

/* Maximum cells in which the bits between the cheapest and the most expensive choice are
 * counted. A larger range is counted in cells of several bits, rounded up: the budget is never
 * exceeded, and the bits left unused are below half a cell per matrix on average (0.002 bits
 * per weight for 210 matrices). */
enum { VPTQ_ALLOCATE_CELLS = 1 << 18 };

/* The smallest possible budget: the sum of the fewest bits of every matrix. */
uint64_t vptq_allocate_least(const vptq_allocate_problem *p);
/* The largest that is of any use: the sum of the most bits of every matrix. */
uint64_t vptq_allocate_most(const vptq_allocate_problem *p);

/* choice[i] = the index (from 0) of matrix i's option, by dynamic programming over the cells;
 * exact if a cell is one bit.  The cells do not depend on the budget, so that a larger budget
 * never costs more.  Ties go to fewer bits, then to the earlier option.  VPTQ_E_ARG for a
 * budget below vptq_allocate_least. */
vptq_status vptq_allocate(const vptq_allocate_problem *p, uint64_t budget, vptq_mem *mem,
                          size_t *choice, vptq_err *err) VPTQ_MUST_CHECK;

#endif
