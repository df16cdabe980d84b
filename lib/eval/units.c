/* Units of a measurement and what ranks exchange about them. */
#include "lib/eval/units.h"

#include <inttypes.h>
#include <stdio.h>

#include "lib/base/comm.h"
#include "lib/model/forward.h"

/* Enough that all ranks end at about the same time, and few enough that weights are not read
 * again for every group. */
enum { UNITS_PER_RANK = 8 };

static bool is_shared(const vptq_ctx *ctx)
{
    return vptq_comm_size(ctx) > 1;
}

vptq_status vptq_units_plan(vptq_units *u, const vptq_ctx *ctx, const size_t *starts,
                            const size_t *parents, size_t sequences, vptq_arena *arena,
                            vptq_err *err)
{
    size_t groups = 0;
    u->whole = u->whole || !is_shared(ctx);
    u->count = 0;
    for (size_t s = 0; s < sequences; groups++)
        s = vptq_forward_group_trees(starts, parents, sequences, s);
    const size_t wanted = u->whole ? 1 : (size_t)vptq_comm_size(ctx) * UNITS_PER_RANK;
    const size_t per = groups > wanted ? groups / wanted : 1;
    u->first = vptq_arena_alloc(arena, groups + 1, sizeof *u->first, err);
    if (!u->first)
        return VPTQ_E_NOMEM;
    for (size_t s = 0, group = 0; s < sequences; group++) {
        if (group % per == 0)
            u->first[u->count++] = s;
        s = vptq_forward_group_trees(starts, parents, sequences, s);
    }
    u->first[u->count] = sequences;
    u->taken = vptq_comm_rank(ctx) ? u->count : 0;
    return VPTQ_OK;
}

vptq_status vptq_units_next(vptq_units *u, const vptq_ctx *ctx, size_t *first, size_t *end,
                            vptq_err *err)
{
    uint64_t unit = u->taken;
    if (!u->whole)
        VPTQ_CHECK(vptq_comm_next(ctx, u->count, &unit, err));
    else if (u->taken < u->count)
        u->taken++;
    *first = u->first[unit];
    *end = u->first[unit < u->count ? unit + 1 : unit];
    return VPTQ_OK;
}

size_t vptq_units_before(const vptq_units *u, const vptq_ctx *ctx, size_t first)
{
    const size_t busy = (size_t)vptq_comm_size(ctx);
    const size_t given = u->whole ? 0 : (size_t)vptq_comm_given(ctx, u->count);
    if (u->whole)
        return first;
    return given > busy ? u->first[given - busy] : 0;
}

vptq_status vptq_units_same_model(const vptq_ctx *ctx, const vptq_model *m, vptq_err *err)
{
    char text[17];
    if (!is_shared(ctx) || !m)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_checkpoint_fingerprint(&m->ckpt, ctx, text, err));
    return vptq_comm_same(ctx, "the model", text, err);
}

vptq_status vptq_units_same(const vptq_ctx *ctx, const char *what, uint64_t hash, vptq_err *err)
{
    char text[17];
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    return vptq_comm_same(ctx, what, text, err);
}

vptq_status vptq_units_alloc(const vptq_ctx *ctx, size_t n, vptq_arena *arena, double **values,
                             vptq_err *err)
{
    *values = vptq_arena_alloc(arena, n, sizeof **values, err);
    if (!*values)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < n && is_shared(ctx); i++)
        (*values)[i] = -0.0; /* as vptq_comm_gather */
    return VPTQ_OK;
}

vptq_status vptq_units_gather(const vptq_ctx *ctx, vptq_status st, double *values, size_t n,
                              vptq_err *err)
{
    st = vptq_comm_agree(ctx, st, err);
    return st ? st : vptq_comm_gather(ctx, values, n, err);
}
