/* Number of rows to run at once on a device with its own memory, from the memory that is free
 * at that moment.  Results do not depend on it, because groups are cut between sequences only.
 * Steps with a cache are never cut: how attention splits its keys depends on the number of
 * queries. */
#include "lib/model/forward_internal.h"

enum {
    MIN_ROWS = 16,    /* if even these do not fit, the allocation fails */
    WORKING = 1 << 20 /* bytes of scratch memory of an op, in addition to an eighth */
};

size_t vptq_forward_row_floats(const vptq_forward *f)
{
    const size_t inter = f->d->intermediate, gate = inter > f->q_dim ? inter : f->q_dim;
    return f->d->hidden + f->q_dim + 2 * f->kv_dim + gate + inter;
}

/* Free bytes less the scratch memory that the ops may allocate. */
static size_t available_bytes(const vptq_forward *f)
{
    const size_t left = f->dev->ops->left(f->dev->state), half = left / 2;
    const size_t working = left / 8 + WORKING;
    return left - (working < half ? working : half);
}

/* Bytes that `rows` rows need in addition to those already allocated. */
static size_t more_bytes(const vptq_forward *f, size_t rows, bool head)
{
    const size_t head_row =
        VPTQ_FORWARD_TILE_ROWS * sizeof(float) + sizeof *f->nll + sizeof *f->targets;
    size_t bytes = 0;
    if (rows > f->rows)
        bytes += (rows - f->rows) * vptq_forward_row_floats(f) * sizeof(float);
    if (rows > f->hidden_rows)
        bytes += (rows - f->hidden_rows) * f->d->hidden * sizeof(float);
    if (head && rows > f->head_rows)
        bytes += (rows - f->head_rows) * head_row;
    return bytes;
}

size_t vptq_forward_fit(const vptq_forward *f, size_t rows, size_t reserved, bool head)
{
    if (f->dev->ops->host_memory || !more_bytes(f, rows, head))
        return rows;
    const size_t available = available_bytes(f);
    while (rows > MIN_ROWS &&
           (reserved > available || more_bytes(f, rows, head) > available - reserved)) {
        const size_t fewer = rows - rows / 4;
        rows = fewer > MIN_ROWS ? fewer : MIN_ROWS;
    }
    return rows;
}

size_t vptq_forward_chunk(const vptq_forward *f, size_t n, size_t first)
{
    const size_t left = n - first;
    return vptq_forward_head_fit(f, left < VPTQ_FORWARD_ROWS ? left : VPTQ_FORWARD_ROWS);
}

/* Upper bound of the device memory of the packed linear layers of a block. */
static size_t packed_bytes(const vptq_weight *linear)
{
    size_t bytes = 0;
    for (int l = 0; l < VPTQ_LINEAR_COUNT; l++)
        if (linear[l].packed) /* 16-bit codebooks become float */
            bytes += (size_t)(vptq_vq_count_bits(&linear[l].packed->vq.shape).total / 8 * 2);
    return bytes;
}

size_t vptq_forward_piece(const vptq_forward *f, const vptq_weight *linear,
                          const size_t *starts, const size_t *parents, size_t first,
                          size_t group_end)
{
    const size_t all = starts[group_end] - starts[first];
    const size_t rows = vptq_forward_fit(f, all, packed_bytes(linear), false);
    return vptq_forward_trees(starts, parents, group_end, first, rows);
}
