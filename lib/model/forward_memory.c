/* Number of rows to run at once on a device with its own memory, from the memory that is free
 * at that moment.  Results do not depend on it, because groups are cut between sequences only,
 * into pieces that all have more than a few rows: products with few rows may round differently.
 * Steps with a cache are never cut: how attention splits its keys depends on the number of
 * queries. */
#include "lib/model/forward_internal.h"

enum {
    FEW_ROWS = VPTQ_FORWARD_FEW,
    MIN_ROWS = 2 * FEW_ROWS + 1, /* if even these do not fit, the allocation fails */
    WORKING = 1 << 20 /* bytes of scratch memory of an op, in addition to an eighth */
};

size_t vptq_forward_row_floats(const vptq_forward *f)
{
    const size_t inter = vptq_widest_intermediate(f->d),
                 gate = inter > f->q_dim ? inter : f->q_dim;
    const size_t bytes =
        f->takes_bytes ? vptq_forward_byte_row(f) / sizeof(float) + 1 : 0; /* and a scale */
    return f->d->hidden + f->q_dim + 2 * f->kv_dim + gate + inter + bytes +
           vptq_forward_experts_floats(f->d);
}

bool vptq_forward_has_bytes(const vptq_model *m)
{
    for (uint32_t layer = 0; layer < m->desc->layers; layer++)
        for (int l = 0; l < vptq_linear_count(m->desc); l++)
            if (vptq_linear_exists(m->desc, layer, l) &&
                vptq_weight_takes_bytes(&m->blocks[layer].linear[l]))
                return true;
    return false;
}

size_t vptq_forward_byte_row(const vptq_forward *f)
{
    const size_t inter = vptq_widest_intermediate(f->d), hidden = f->d->hidden;
    size_t widest = inter > hidden ? inter : hidden;
    widest = widest > f->q_dim ? widest : f->q_dim;
    return VPTQ_BYTES_ROW(widest);
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
    if (rows > f->ids_rows)
        bytes += (rows - f->ids_rows) * sizeof *f->ids;
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

bool vptq_forward_has_room(const vptq_forward *f, size_t bytes, size_t rows)
{
    const size_t needed = more_bytes(f, rows, true), available = available_bytes(f);
    return needed <= available && bytes <= available - needed;
}

size_t vptq_forward_rows(const vptq_forward *f, size_t left, size_t most)
{
    const size_t rows = left < most ? left : most;
    const bool few = left > rows && left - rows <= FEW_ROWS && !f->dev->ops->host_memory;
    return few && rows > 2 * FEW_ROWS ? rows - FEW_ROWS : rows;
}

size_t vptq_forward_chunk(const vptq_forward *f, size_t n, size_t first)
{
    const size_t left = n - first;
    return vptq_forward_rows(
        f, left, vptq_forward_head_fit(f, left < VPTQ_FORWARD_ROWS ? left : VPTQ_FORWARD_ROWS));
}

/* Upper bound of the device memory of the packed linear layers of a block. */
static size_t packed_bytes(const vptq_forward *f, const vptq_weight *linear)
{
    size_t bytes = 0;
    for (int l = 0; l < vptq_linear_count(f->d); l++) {
        if (!linear[l].packed)
            continue;
        vptq_vq_shape shape = linear[l].packed->vq.shape;
        shape.int8 = false; /* codebooks of 16 bits, which become float: twice as many bits */
        bytes += (size_t)(vptq_vq_count_bits(&shape).total / 8 * 2);
    }
    return bytes;
}

size_t vptq_forward_piece(const vptq_forward *f, const vptq_weight *linear,
                          const size_t *starts, const size_t *parents, size_t first,
                          size_t group_end)
{
    const size_t all = starts[group_end] - starts[first];
    const size_t rows = vptq_forward_fit(f, all, packed_bytes(f, linear), false);
    size_t end = vptq_forward_trees(starts, parents, group_end, first, rows);
    while (end < group_end && !f->dev->ops->host_memory &&
           (starts[end] - starts[first] <= FEW_ROWS ||
            starts[group_end] - starts[end] <= FEW_ROWS))
        end = vptq_forward_trees(starts, parents, group_end, end, 0); /* one more tree */
    return end;
}

/* ---- hidden states in device memory ---- */

/* Device memory of the largest block, its weights stored, and of the head. */
static size_t weight_bytes(const vptq_forward *f)
{
    const vptq_weight head = vptq_forward_head_weight(f);
    size_t largest = 0;
    for (uint32_t layer = 0; layer < f->d->layers; layer++) {
        const vptq_weight *linear = f->m->blocks[layer].linear;
        size_t bytes = packed_bytes(f, linear);
        for (int l = 0; l < vptq_linear_count(f->d); l++)
            bytes +=
                vptq_linear_exists(f->d, layer, l) ? vptq_weight_bytes(&linear[l], f->dev) : 0;
        largest = bytes > largest ? bytes : largest;
    }
    return largest + vptq_weight_bytes(&head, f->dev);
}

size_t vptq_forward_hidden_fit(const vptq_forward *f, size_t group_rows, size_t models,
                               size_t reserved)
{
    if (f->dev->ops->host_memory)
        return 0;
    const size_t available = available_bytes(f);
    const size_t needed = models * (weight_bytes(f) + more_bytes(f, group_rows, true));
    if (reserved > available || needed > available - reserved)
        return 0;
    return (available - reserved - needed) / (f->d->hidden * sizeof(float));
}

float *vptq_forward_hidden_alloc(vptq_forward *f, size_t rows)
{
    const vptq_backend *ops = f->dev->ops;
    void *p = NULL;
    int i = 0;
    while (i < VPTQ_FORWARD_RESIDENT && f->resident[i].data)
        i++;
    VPTQ_BUG_IF(i == VPTQ_FORWARD_RESIDENT);
    if (ops->host_memory ||
        ops->alloc(f->dev->state, rows, f->d->hidden * sizeof(float), &p, NULL))
        return NULL;
    f->resident[i].data = p;
    f->resident[i].rows = rows;
    return p;
}

void vptq_forward_hidden_free(vptq_forward *f, float *hidden)
{
    for (int i = 0; i < VPTQ_FORWARD_RESIDENT; i++)
        if (hidden && f->resident[i].data == hidden) {
            f->dev->ops->release(f->dev->state, hidden);
            f->resident[i].data = NULL;
        }
}

bool vptq_forward_is_resident(const vptq_forward *f, const float *hidden)
{
    const uintptr_t at = (uintptr_t)hidden;
    for (int i = 0; i < VPTQ_FORWARD_RESIDENT; i++) {
        const uintptr_t begin = (uintptr_t)f->resident[i].data;
        if (begin && at >= begin &&
            at - begin < f->resident[i].rows * f->d->hidden * sizeof(float))
            return true;
    }
    return false;
}

vptq_status vptq_forward_hidden_gather(vptq_forward *f, const float *hidden, const int32_t *at,
                                       size_t n, float *out, vptq_err *err)
{
    const vptq_backend *ops = f->dev->ops;
    VPTQ_CHECK(vptq_forward_reserve_ids(f, n, err));
    const vptq_embed_args a = {.n = n,
                               .dim = f->d->hidden,
                               .table = hidden,
                               .type = VPTQ_F32,
                               .ids = f->ids,
                               .out = out};
    VPTQ_CHECK(ops->upload(f->dev->state, f->ids, at, n * sizeof *at, err));
    return ops->embed(f->dev->state, &a, err);
}
