/* Internal to lib/eval: the units of a measurement, which ranks (lib/base/comm.h) take one by
 * one, and its numbers, which all of them then have.  One process takes everything at once.
 *
 *     VPTQ_TRY(vptq_units_plan(&u, ctx, starts, NULL, sequences, &arena, err));
 *     VPTQ_TRY(vptq_units_alloc(ctx, n, &arena, &values, err));
 *     while (!(st = vptq_units_next(&u, ctx, &first, &end, err)) && first < end)
 *         VPTQ_TRY(run_sequences(first, end, values, err));
 *     ...
 *     st = vptq_units_gather(ctx, st, values, n, err);
 *
 * A unit is some groups of the forward pass (forward.h), so that cutting changes no number.  It
 * depends on the sequences and the number of ranks only, never on the memory of one of them. */
#ifndef VPTQ_EVAL_UNITS_H
#define VPTQ_EVAL_UNITS_H

#include "lib/base/ctx.h"
#include "lib/model/model.h"

typedef struct vptq_units {
    bool whole;    /* set before planning: one unit, which rank 0 takes */
    size_t *first; /* [count + 1] the sequence that each begins with */
    size_t count, taken;
} vptq_units;

/* starts [sequences + 1] and parents (may be NULL) as vptq_forward_group_trees. */
vptq_status vptq_units_plan(vptq_units *u, const vptq_ctx *ctx, const size_t *starts,
                            const size_t *parents, size_t sequences, vptq_arena *arena,
                            vptq_err *err) VPTQ_MUST_CHECK;
/* Takes a unit, the sequences [*first, *end); none are left if these are equal. */
vptq_status vptq_units_next(vptq_units *u, const vptq_ctx *ctx, size_t *first, size_t *end,
                            vptq_err *err) VPTQ_MUST_CHECK;
/* For a progress line: sequences that are done, about, when rank 0 begins with `first`. */
size_t vptq_units_before(const vptq_units *u, const vptq_ctx *ctx, size_t first);

/* Agree that all ranks measure the same model (NULL: none), or that `hash` of what they
 * measure, named `what`, is the same; else VPTQ_E_MISMATCH. */
vptq_status vptq_units_same_model(const vptq_ctx *ctx, const vptq_model *m,
                                  vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_units_same(const vptq_ctx *ctx, const char *what, uint64_t hash,
                            vptq_err *err) VPTQ_MUST_CHECK;

/* Allocates values [n]; each rank fills those of its units. */
vptq_status vptq_units_alloc(const vptq_ctx *ctx, size_t n, vptq_arena *arena, double **values,
                             vptq_err *err) VPTQ_MUST_CHECK;
/* Agrees on `st`, the status of this rank, and gives all ranks all values, which may be NULL if
 * st is a failure.  Call it after every run of units, also of a failed one. */
vptq_status vptq_units_gather(const vptq_ctx *ctx, vptq_status st, double *values, size_t n,
                              vptq_err *err) VPTQ_MUST_CHECK;

#endif
