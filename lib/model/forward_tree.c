/* Sequences that continue others: the order in which they must be given, groups of whole trees,
 * and the keys and values of the tokens before a sequence. */
#include "lib/model/forward_internal.h"

/* ---- order and groups ---- */

static size_t tree_end(const size_t *parents, size_t count, size_t root)
{
    size_t end = root + 1;
    while (parents && end < count && parents[end] != VPTQ_FORWARD_ROOT)
        end++;
    return end;
}

size_t vptq_forward_trees(const size_t *starts, const size_t *parents, size_t count,
                          size_t first, size_t rows)
{
    size_t end = tree_end(parents, count, first);
    while (end < count) {
        const size_t next = tree_end(parents, count, end);
        if (starts[next] - starts[first] > rows)
            break;
        end = next;
    }
    return end;
}

size_t vptq_forward_group_trees(const size_t *starts, const size_t *parents, size_t count,
                                size_t first)
{
    return vptq_forward_trees(starts, parents, count, first, VPTQ_FORWARD_ROWS);
}

size_t vptq_forward_group(const size_t *starts, size_t count, size_t first)
{
    return vptq_forward_group_trees(starts, NULL, count, first);
}

size_t vptq_forward_tree_position(const size_t *starts, const size_t *parents, size_t s)
{
    size_t position = 0;
    for (size_t p = parents ? parents[s] : VPTQ_FORWARD_ROOT; p != VPTQ_FORWARD_ROOT;
         p = parents[p])
        position += starts[p + 1] - starts[p];
    return position;
}

/* Whether sequence s may continue `parent`: sequence s - 1 or one that s - 1 continues. */
static bool in_preorder(const size_t *parents, size_t s, size_t parent)
{
    size_t p = s ? s - 1 : VPTQ_FORWARD_ROOT;
    while (p != VPTQ_FORWARD_ROOT && p != parent)
        p = parents[p];
    return p == parent;
}

vptq_status vptq_forward_check_trees(const vptq_forward *f, const size_t *starts,
                                     const size_t *parents, size_t count, size_t *rows,
                                     size_t *tokens, vptq_err *err)
{
    *rows = *tokens = 0;
    for (size_t s = 0; s < count; s++) {
        if (parents && !in_preorder(parents, s, parents[s]))
            return vptq_fail(err, VPTQ_E_ARG,
                             "sequence %zu continues %zu, expected the sequence before it or "
                             "one that this continues",
                             s, parents[s]);
        const size_t length =
            vptq_forward_tree_position(starts, parents, s) + starts[s + 1] - starts[s];
        if (starts[s + 1] <= starts[s] || length > f->max_length)
            return vptq_fail(err, VPTQ_E_ARG, "sequence %zu has %zu tokens, expected 1 to %zu",
                             s, length, f->max_length);
        *tokens = length > *tokens ? length : *tokens;
    }
    for (size_t s = 0, end; s < count; s = end) {
        end = vptq_forward_group_trees(starts, parents, count, s);
        const size_t group = starts[end] - starts[s];
        *rows = group > *rows ? group : *rows;
    }
    return VPTQ_OK;
}

/* ---- keys and values ---- */

void vptq_forward_tree_free(vptq_forward *f)
{
    const vptq_backend *ops = f->dev->ops;
    ops->release(f->dev->state, f->tree_k);
    ops->release(f->dev->state, f->tree_v);
    ops->release(f->dev->state, f->tree_ids);
    f->tree_k = f->tree_v = NULL;
    f->tree_ids = NULL;
    f->tree_tokens = f->tree_rows = 0;
}

static vptq_status fill_ids(vptq_forward *f, size_t rows, vptq_err *err)
{
    vptq_mem *mem = f->dev->ctx->mem;
    int32_t *ids = vptq_mem_alloc(mem, rows, sizeof *ids, err);
    if (!ids)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < rows; i++)
        ids[i] = (int32_t)i;
    const vptq_status st =
        f->dev->ops->upload(f->dev->state, f->tree_ids, ids, rows * sizeof *ids, err);
    vptq_mem_free(mem, ids);
    return st;
}

vptq_status vptq_forward_tree_reserve(vptq_forward *f, size_t rows, size_t tokens,
                                      vptq_err *err)
{
    if (rows <= f->tree_rows && tokens <= f->tree_tokens)
        return VPTQ_OK;
    vptq_status st = VPTQ_OK;
    const vptq_backend *ops = f->dev->ops;
    const size_t bytes = f->kv_dim * sizeof(float);
    void *p[3] = {NULL, NULL, NULL};
    rows = rows > f->tree_rows ? rows : f->tree_rows;
    tokens = tokens > f->tree_tokens ? tokens : f->tree_tokens;
    vptq_forward_tree_free(f);
    VPTQ_TRY(ops->alloc(f->dev->state, tokens, bytes, &p[0], err));
    f->tree_k = p[0];
    VPTQ_TRY(ops->alloc(f->dev->state, tokens, bytes, &p[1], err));
    f->tree_v = p[1];
    VPTQ_TRY(ops->alloc(f->dev->state, rows, sizeof *f->tree_ids, &p[2], err));
    f->tree_ids = p[2];
    VPTQ_TRY(fill_ids(f, rows, err));
    f->tree_rows = rows;
    f->tree_tokens = tokens;
out:
    if (st) {
        vptq_forward_tree_free(f);
        vptq_err_context(err, "keys and values of %zu tokens", tokens);
    }
    return st;
}

vptq_status vptq_forward_tree_keep(vptq_forward *f, size_t begin, size_t n, size_t position,
                                   vptq_err *err)
{
    const vptq_backend *ops = f->dev->ops;
    vptq_embed_args copy = {.n = n,
                            .dim = f->kv_dim,
                            .table = f->k,
                            .type = VPTQ_F32,
                            .ids = f->tree_ids + begin,
                            .out = f->tree_k + position * f->kv_dim};
    VPTQ_CHECK(ops->embed(f->dev->state, &copy, err));
    copy.table = f->v;
    copy.out = f->tree_v + position * f->kv_dim;
    return ops->embed(f->dev->state, &copy, err);
}
