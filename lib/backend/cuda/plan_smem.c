/* Divides the shared memory of a block. */
#include "lib/backend/cuda/plan_smem.h"

enum { ALIGN = 128, FRAGMENT_ROWS = 16, FRAGMENT_COLUMNS = 8, MAX_REPLICAS = 16 };
enum { MIN_PART = 8 }; /* a smaller part of a codebook is not worth ranking the centroids */

/* Clocks per access by number of whole copies: means of 200,000 random phases with chosen
 * copies. A part of a copy gains more than its share because hot slots can use it. */
static double copy_clocks(const vptq_cuda_table *t)
{
    static const double piece[VPTQ_CUDA_MAX_COPIES] = {10.38, 7.36, 4.95, 4.16, 4.02};
    static const double tail[VPTQ_CUDA_MAX_COPIES] = {6.13, 4.09, 3.35, 2.38, 2.11};
    const double *by_copies = t->slots == 8 ? piece : tail;
    uint32_t whole = t->copies - (t->ranked ? 1 : 0);
    double clocks = by_copies[whole - 1];
    if (!t->ranked)
        return clocks;
    double share = (double)t->copy[whole].ranks / t->k;
    return clocks - share * (1.65 - 0.65 * share) * (clocks - by_copies[whole]);
}

static double replica_clocks(const vptq_cuda_table *t)
{
    static const double piece[] = {9.47, 7.74, 4.0};
    static const double tail[] = {5.75, 5.27, 3.99, 2.0};
    return (t->slots == 8 ? piece : tail)[vptq_log2u(t->replicas) - 1];
}

double vptq_cuda_expected_clocks(const vptq_cuda_table *t)
{
    enum { WORST_TAIL = 613 }; /* percent: tails after pieces have no choice of copies */
    if (!t->k || !t->shared)
        return 0;
    double one = t->replicas ? replica_clocks(t) : copy_clocks(t);
    if (!t->pieces)
        return one;
    return t->pieces * one + t->tail * (WORST_TAIL / 100.0);
}

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static size_t partial_bytes(const vptq_cuda_smem_want *w)
{
    if (w->staging)
        return aligned(w->staging);
    uint32_t columns = w->batch < FRAGMENT_COLUMNS ? w->batch : FRAGMENT_COLUMNS;
    return VPTQ_CUDA_WARPS * FRAGMENT_ROWS * columns * sizeof(float);
}

static size_t sums_bytes(const vptq_cuda_smem_want *w)
{
    return (size_t)w->rows * w->batch * sizeof(float);
}

/* Returns the number of 16-bit values that take as many bytes as a centroid. */
static uint32_t row_values(const vptq_cuda_smem_want *w)
{
    return w->grid ? VPTQ_CUDA_GRID_ROW : w->shape.v;
}

/* Computes the offsets; false if the total exceeds the budget. *total is what is needed. */
static bool set_offsets(const vptq_cuda_smem_want *w, vptq_cuda_smem *s, size_t *total)
{
    const vptq_cuda_tables *t = &s->tables;
    size_t main = t->main.shared ? aligned(vptq_cuda_table_bytes(&t->main)) : 0;
    size_t res = t->residual.shared ? aligned(vptq_cuda_table_bytes(&t->residual)) : 0;
    size_t outlier = t->outlier.shared ? aligned(vptq_cuda_table_bytes(&t->outlier)) : 0;
    size_t tables = main + res > outlier ? main + res : outlier;
    size_t sums_offset = tables + partial_bytes(w);
    *total = sums_offset + aligned(sums_bytes(w));
    if (*total > w->budget)
        return false;
    s->main_offset = 0;
    s->residual_offset = (uint32_t)main;
    s->partial_offset = (uint32_t)tables;
    s->sums_offset = (uint32_t)sums_offset;
    s->total = (uint32_t)*total;
    s->main_clocks = vptq_cuda_expected_clocks(&t->main);
    s->residual_clocks = vptq_cuda_expected_clocks(&t->residual);
    return true;
}

/* Plans the largest number of copies of the main codebook in `available` bytes, or replicas if
 * every slot can have one. */
static bool fill_main(const vptq_cuda_smem_want *w, size_t available, vptq_cuda_table *t)
{
    const vptq_vq_shape *s = &w->shape;
    uint32_t v = row_values(w), width = vptq_cuda_row_bytes(v), limit = w->copies;
    size_t one = vptq_cuda_copy_bytes(v, s->k);
    if (!limit || limit > VPTQ_CUDA_MAX_COPIES)
        limit = VPTQ_CUDA_MAX_COPIES;
    if (one > available)
        return false;
    if (!w->copies) {
        uint32_t slots = v <= 4 ? 16 : 8;
        if (!vptq_cuda_table_replicas(t, v, s->k, slots, NULL) &&
            vptq_cuda_table_bytes(t) <= available)
            return true;
    }
    size_t whole = available / one;
    uint32_t part = 0;
    if (whole >= limit)
        whole = limit;
    else
        part = (uint32_t)((available - whole * one) / width);
    if (part < s->k / MIN_PART)
        part = 0;
    while (whole) { /* fewer copies if they exceed 65536 rows */
        if (!vptq_cuda_table_copies(t, v, s->k, (uint32_t)whole, part, NULL))
            return true;
        whole--;
        part = 0;
    }
    return false;
}

/* Plans one copy of the outlier codebook in the bytes that the others leave unused, else global
 * memory: its columns are few. */
static void add_outliers(const vptq_cuda_smem_want *w, size_t available, vptq_cuda_tables *t)
{
    const vptq_vq_shape *s = &w->shape;
    if (vptq_cuda_copy_bytes(s->v0, s->k0) <= available &&
        !vptq_cuda_table_copies(&t->outlier, s->v0, s->k0, 1, 0, NULL))
        return;
    vptq_cuda_table_global(&t->outlier, s->v0, s->k0);
}

static vptq_status too_large(const vptq_cuda_smem_want *w, size_t staging, vptq_err *err)
{
    const vptq_vq_shape *s = &w->shape;
    size_t main = vptq_cuda_copy_bytes(row_values(w), s->k);
    size_t res = vptq_cuda_copy_bytes(row_values(w), s->k_res);
    return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                     "codebooks of %u and %u centroids of %u need %zu and %zu bytes of shared "
                     "memory and %zu of staging, %zu together (a block has %u)",
                     s->k, s->k_res, s->v, main, res, staging, main + res + staging, w->budget);
}

static vptq_status check(const vptq_cuda_smem_want *w, vptq_err *err)
{
    if (w->batch < 1 || w->batch > VPTQ_CUDA_MAX_BATCH)
        return vptq_fail(err, VPTQ_E_ARG, "a batch of %u is not in 1..%d", w->batch,
                         VPTQ_CUDA_MAX_BATCH);
    return vptq_vq_shape_check(&w->shape, err);
}

vptq_status vptq_cuda_smem_fit(const vptq_cuda_smem_want *w, vptq_cuda_smem *out, vptq_err *err)
{
    VPTQ_CHECK(check(w, err));
    const vptq_vq_shape *s = &w->shape;
    uint32_t v = row_values(w);
    size_t staging = partial_bytes(w) + aligned(sums_bytes(w)), total;
    size_t available = w->budget > staging ? w->budget - staging : 0;
    bool found = false;
    /* replicas 1 means a single copy */
    for (uint32_t replicas = 1; replicas <= MAX_REPLICAS; replicas *= 2) {
        vptq_cuda_smem c = {0};
        vptq_cuda_tables *t = &c.tables;
        vptq_status fits =
            replicas > 1 ? vptq_cuda_table_replicas(&t->residual, v, s->k_res, replicas, NULL)
                         : vptq_cuda_table_copies(&t->residual, v, s->k_res, 1, 0, NULL);
        size_t res = aligned(vptq_cuda_table_bytes(&t->residual));
        if (fits || res > available ||
            !fill_main(w, (available - res) / ALIGN * ALIGN, &t->main))
            continue;
        add_outliers(w, available, t);
        if (!set_offsets(w, &c, &total))
            continue;
        double gain =
            found ? out->main_clocks + out->residual_clocks - c.main_clocks - c.residual_clocks
                  : 1;
        if (gain > 0 || (gain >= 0 && c.total < out->total)) {
            t->main.v = t->residual.v = s->v;
            t->main.grid = t->residual.grid = w->grid;
            *out = c;
            found = true;
        }
    }
    return found ? VPTQ_OK : too_large(w, staging, err);
}

vptq_status vptq_cuda_smem_direct(const vptq_cuda_smem_want *w, vptq_cuda_smem *out,
                                  vptq_err *err)
{
    VPTQ_CHECK(check(w, err));
    const vptq_vq_shape *s = &w->shape;
    *out = (vptq_cuda_smem){0};
    vptq_cuda_tables *t = &out->tables;
    vptq_cuda_table_global(&t->main, s->v, s->k);
    vptq_cuda_table_global(&t->outlier, s->v0, s->k0);
    uint32_t slots = s->v <= 4 ? 16 : 8;
    if (vptq_cuda_table_replicas(&t->residual, s->v, s->k_res, slots, NULL) ||
        vptq_cuda_table_bytes(&t->residual) > w->budget / 4)
        vptq_cuda_table_global(&t->residual, s->v, s->k_res);
    size_t total;
    if (!set_offsets(w, out, &total))
        return vptq_fail(
            err, VPTQ_E_UNSUPPORTED,
            "sums of %u rows for a batch of %u and tables need %zu bytes of shared memory (a "
            "block has %u)",
            w->rows, w->batch, total, w->budget);
    return VPTQ_OK;
}
