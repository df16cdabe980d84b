/* Where the bits go: one of several options for every matrix, so that the sum of their costs is
 * least and the sum of their bits within a budget.  Numbers only. */
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

/* Cells that the bits between the cheapest and the dearest choice are counted in.  Where they
 * are more than this, an option's bits are rounded up to whole cells: the budget is never
 * passed, and what rounding leaves unused is below half a cell per matrix on average (0.002
 * bits per weight for 210 matrices). */
enum { VPTQ_ALLOCATE_CELLS = 1 << 18 };

/* The sum of the fewest bits of every matrix: no budget below it can be met. */
uint64_t vptq_allocate_least(const vptq_allocate_problem *p);

/* choice[i] = the index (from 0) of matrix i's option, by dynamic programming over the cells;
 * exact where a cell is one bit.  The cells depend on the problem, not on the budget, so that a
 * larger budget never costs more.  Ties go to fewer bits, then to the option named first.
 * VPTQ_E_ARG for a budget below vptq_allocate_least. */
vptq_status vptq_allocate(const vptq_allocate_problem *p, uint64_t budget, vptq_mem *mem,
                          size_t *choice, vptq_err *err) VPTQ_MUST_CHECK;

#endif
