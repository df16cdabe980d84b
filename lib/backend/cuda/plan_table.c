/* Arranges the centroids of a codebook in shared memory, with copies or replicas. */
#include "lib/backend/cuda/plan_table.h"

#include <string.h>

#include "lib/base/half.h"
#include "lib/base/vq.h"

enum { PIECE_VALUES = 8, TAIL_VALUES = 4, ROW_ALIGN = 16, MAX_ROWS = 65536 };
enum {
    PIECE_SLOTS = VPTQ_CUDA_LINE / VPTQ_CUDA_PIECE,
    TAIL_SLOTS = VPTQ_CUDA_LINE / VPTQ_CUDA_TAIL
};

/* Rotations of the copies, in the order in which copies are added. Differences between any two
 * are distinct as far as possible, so that two slots share few alternatives. With 8 slots and
 * chosen copies, the fullest slot of 8 random rows holds 2.60, 1.84, 1.24, 1.04, 1.01 rows;
 * rotations 0, 1, 4 would leave 1.33. */
static const uint32_t piece_rotations[VPTQ_CUDA_MAX_COPIES] = {0, 1, 3, 4, 6};
static const uint32_t tail_rotations[VPTQ_CUDA_MAX_COPIES] = {0, 1, 5, 7, 12};

static uint32_t round_up(uint32_t n, uint32_t to)
{
    return (n + to - 1) / to * to;
}

/* v is at most VPTQ_VQ_MAX_V (vptq_vq_shape_check). */
static void set_rows(vptq_cuda_table *t, uint32_t v, uint32_t k)
{
    uint32_t left = v % PIECE_VALUES;
    *t = (vptq_cuda_table){.k = k, .v = v, .shared = true};
    t->tail = left > 0 && left <= TAIL_VALUES;
    t->pieces = v / PIECE_VALUES + (left > TAIL_VALUES);
    t->slots = t->pieces ? PIECE_SLOTS : TAIL_SLOTS;
}

static uint32_t width(const vptq_cuda_table *t)
{
    return t->pieces * VPTQ_CUDA_PIECE + t->tail * VPTQ_CUDA_TAIL;
}

uint32_t vptq_cuda_row_bytes(uint32_t v)
{
    vptq_cuda_table t;
    set_rows(&t, v, 1);
    return width(&t);
}

size_t vptq_cuda_table_bytes(const vptq_cuda_table *t)
{
    return t->k ? (size_t)t->rows * width(t) : 0;
}

size_t vptq_cuda_copy_bytes(uint32_t v, uint32_t k)
{
    return (size_t)round_up(k, ROW_ALIGN) * vptq_cuda_row_bytes(v);
}

vptq_status vptq_cuda_table_copies(vptq_cuda_table *t, uint32_t v, uint32_t k, uint32_t whole,
                                   uint32_t part, vptq_err *err)
{
    set_rows(t, v, k);
    if (!k)
        return VPTQ_OK;
    uint32_t lines = round_up(k, ROW_ALIGN);
    part = part < k ? part / ROW_ALIGN * ROW_ALIGN : 0;
    uint32_t copies = whole + (part > 0);
    uint64_t rows = (uint64_t)whole * lines + part;
    if (!whole || copies > VPTQ_CUDA_MAX_COPIES || rows > MAX_ROWS)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%u copies of a codebook of %u and %u centroids of one more are not "
                         "1..%d copies of up to %d rows",
                         whole, k, part, VPTQ_CUDA_MAX_COPIES, MAX_ROWS);
    t->rows = (uint32_t)rows;
    t->copies = copies;
    t->ranked = part > 0;
    for (uint32_t c = 0; c < copies; c++) {
        t->copy[c].base = c * lines;
        t->copy[c].ranks = c < whole ? k : part;
        t->copy[c].rotation = t->pieces ? piece_rotations[c] : tail_rotations[c];
    }
    return VPTQ_OK;
}

vptq_status vptq_cuda_table_replicas(vptq_cuda_table *t, uint32_t v, uint32_t k,
                                     uint32_t replicas, vptq_err *err)
{
    set_rows(t, v, k);
    if (!k)
        return VPTQ_OK;
    uint64_t rows = ((uint64_t)k * replicas + ROW_ALIGN - 1) / ROW_ALIGN * ROW_ALIGN;
    if (replicas < 2 || replicas > t->slots || (replicas & (replicas - 1)) || rows > MAX_ROWS)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%u replicas of a codebook of %u are not a power of two from 2 to %u "
                         "of up to %d rows together",
                         replicas, k, t->slots, MAX_ROWS);
    t->rows = (uint32_t)rows;
    t->replicas = replicas;
    return VPTQ_OK;
}

void vptq_cuda_table_global(vptq_cuda_table *t, uint32_t v, uint32_t k)
{
    set_rows(t, v, k);
    t->shared = false;
    if (!k)
        return;
    t->rows = round_up(k, ROW_ALIGN);
    t->copies = 1;
    t->copy[0].ranks = k;
}

uint32_t vptq_cuda_rank(const vptq_cuda_table *t, uint32_t row)
{
    if (row >= t->rows)
        return UINT32_MAX;
    if (t->replicas)
        return row / t->replicas < t->k ? row / t->replicas : UINT32_MAX;
    uint32_t last = t->copies - 1;
    while (t->copy[last].base > row)
        last--;
    const vptq_cuda_copy *c = &t->copy[last];
    uint32_t mask = t->slots - 1, local = row - c->base;
    uint32_t rank = (local & ~mask) + ((local - c->rotation) & mask);
    return rank < c->ranks ? rank : UINT32_MAX;
}

vptq_cuda_rank_rule vptq_cuda_rank_rule_of(const vptq_cuda_table *t)
{
    vptq_cuda_rank_rule r = {.log2_rows = 31};
    if (!t->k)
        return r;
    r.mask = t->slots - 1;
    if (t->replicas)
        r.shift = vptq_log2u(t->replicas);
    if (t->copies >
        1) /* only outlier codebooks are not of 2^n centroids, and they have one copy */
        r.log2_rows = vptq_log2u(t->copy[1].base);
    for (uint32_t c = 0; c < t->copies; c++)
        r.rotations |= t->copy[c].rotation << 4 * c;
    return r;
}

/* Converts values first .. first + n - 1 of a centroid; those beyond v remain zero. */
static void put_values(uint16_t *dst, const float *centroid, uint32_t v, uint32_t first,
                       uint32_t n, vptq_dtype type)
{
    for (uint32_t i = 0; i < n && first + i < v; i++)
        dst[i] = type == VPTQ_BF16 ? vptq_f32_to_bf16(centroid[first + i])
                                   : vptq_f32_to_f16(centroid[first + i]);
}

void vptq_cuda_table_image(const vptq_cuda_table *t, const float *centroids,
                           const uint16_t *order, vptq_dtype type, uint16_t *dst)
{
    if (!t->k)
        return;
    memset(dst, 0, vptq_cuda_table_bytes(t));
    uint16_t *tails = dst + (size_t)t->pieces * t->rows * PIECE_VALUES;
    for (uint32_t row = 0; row < t->rows; row++) {
        uint32_t rank = vptq_cuda_rank(t, row);
        if (rank == UINT32_MAX)
            continue;
        const float *c = centroids + (size_t)(order ? order[rank] : rank) * t->v;
        for (uint32_t p = 0; p < t->pieces; p++)
            put_values(dst + ((size_t)p * t->rows + row) * PIECE_VALUES, c, t->v,
                       p * PIECE_VALUES, PIECE_VALUES, type);
        if (t->tail)
            put_values(tails + (size_t)row * TAIL_VALUES, c, t->v, t->pieces * PIECE_VALUES,
                       TAIL_VALUES, type);
    }
}
