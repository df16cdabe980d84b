#include "lib/backend/cuda/plan_dispatch.h"

#include <math.h>
#include <string.h>

enum {
    SECTOR = 32,        /* bytes that L2 gives for one row */
    MAX_SPLIT = 4,      /* blocks of a cluster */
    SM_RESERVED = 1024, /* bytes of an SM that a block takes beside its own */
    STORED = 2,         /* bytes of a 16-bit value */
    LEAST_COLUMNS = 32  /* rows of x of a block of GEMM_SMALL */
};
static const double dense_efficiency = 0.7; /* of the peak, large products */

/* Launch and memory: public figures and one copy test for the H200; the others are data sheets
 * and guesses by proportion.  To be replaced by measurements. */
static const vptq_cuda_chip chips[] = {
    {"h200", 132, VPTQ_CUDA_SMEM_HOPPER, 233472, true, 1.98, 4300, 5500, 2.5, 2.0, 0.05, 64,
     1280, 2048, 0.85, 1.5},
    {"h100", 132, VPTQ_CUDA_SMEM_HOPPER, 233472, true, 1.98, 3000, 5500, 2.5, 2.0, 0.05, 64,
     1280, 2048, 0.85, 1.5},
    {"a100", 108, VPTQ_CUDA_SMEM_AMPERE, 167936, false, 1.41, 1700, 4000, 3.0, 2.0, 0.05, 64,
     1024, 1024, 0.85, 1.5},
    {"rtx4090", 128, VPTQ_CUDA_SMEM_SMALL, 102400, false, 2.52, 920, 4500, 3.0, 2.0, 0.05, 64,
     256, 256, 0.85, 1.5},
};

const vptq_cuda_chip *vptq_cuda_chips(size_t *count)
{
    *count = sizeof chips / sizeof *chips;
    return chips;
}

const vptq_cuda_chip *vptq_cuda_chip_search(const char *name)
{
    for (size_t i = 0; i < sizeof chips / sizeof *chips; i++) {
        if (strcmp(chips[i].name, name) == 0)
            return &chips[i];
    }
    return NULL;
}

const char *vptq_cuda_kernel_name(vptq_cuda_kernel kernel)
{
    static const char *const names[VPTQ_CUDA_KERNELS] = {"gemv-smem", "gemv-direct",
                                                         "gemm-small", "gemm-dequant"};
    return names[kernel];
}

static double us_of_clocks(const vptq_cuda_chip *c, double clocks)
{
    return clocks / (c->ghz * 1e3);
}

static double us_of_bytes(double gb_s, double bytes)
{
    return bytes / (gb_s * 1e3);
}

static uint32_t ceil_div(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

static uint32_t gcd(uint32_t a, uint32_t b)
{
    return b ? gcd(b, a % b) : a;
}

static uint32_t chunks_of(uint32_t columns)
{
    return ceil_div(columns, VPTQ_CUDA_CHUNK);
}

/* Rows go to blocks in units that are whole pairs of vector rows, of the outlier codebook, too.
 * Of the ways to split the columns among a cluster, the smallest, unless a larger one takes an
 * eighth of the work from the busiest block: the blocks have to add up what they have.  `ways`:
 * clusters that take the same rows, each with rows of x of its own. */
static void spread(const vptq_cuda_chip *chip, const vptq_vq_shape *s, uint32_t ways,
                   vptq_cuda_choice *c)
{
    uint64_t unit = 2 * (uint64_t)s->v;
    if (s->outliers)
        unit = unit / gcd((uint32_t)unit, 2 * s->v0) * 2 * s->v0;
    uint32_t units = (uint32_t)((s->out + unit - 1) / unit);
    uint32_t chunks = s->groups * chunks_of(s->group_size);
    uint64_t least = UINT64_MAX;
    for (uint32_t split = 1; split <= MAX_SPLIT && split * ways <= chip->sms; split *= 2) {
        uint32_t clusters = chip->sms / (split * ways), each = ceil_div(units, clusters);
        uint64_t work = (uint64_t)each * s->groups * ceil_div(chunks_of(s->group_size), split);
        if (least != UINT64_MAX && work + (least + 7) / 8 > least)
            continue;
        least = work;
        c->split = split;
        c->ways = ways;
        c->blocks = ceil_div(units, each) * split * ways;
        uint64_t rows = each * unit;
        c->rows = (uint32_t)(rows < s->out ? rows : s->out);
        c->pairs = (uint32_t)((rows + 2 * s->v - 1) / (2 * s->v));
        c->balance = (double)units * chunks * ways / ((double)work * chip->sms);
        c->passes = ceil_div(ceil_div(chunks_of(s->group_size), split),
                             VPTQ_CUDA_PASS / VPTQ_CUDA_CHUNK);
    }
}

/* Tiles of the busiest block, those of the outlier columns as tiles of their own codebooks. */
static double tiles_of(const vptq_vq_shape *s, const vptq_cuda_choice *c, bool outliers)
{
    double rows = c->rows;
    if (outliers)
        return s->outliers
                   ? ceil(rows / (2.0 * s->v0)) * chunks_of(s->outliers) * VPTQ_CUDA_CHUNK_TILES
                   : 0;
    return (double)c->pairs * s->groups * ceil_div(chunks_of(s->group_size), c->split) *
           VPTQ_CUDA_CHUNK_TILES;
}

static double stream_bytes(const vptq_cuda_tables *t)
{
    double res = t->residual.replicas && t->residual.k <= 256 ? 1 : STORED;
    return VPTQ_CUDA_LANES * (STORED + (t->residual.k ? res : 0));
}

/* Clocks per 32 indices through L2: a sector a row of every piece and tail. */
static double gather_clocks(const vptq_cuda_chip *chip, const vptq_cuda_table *t)
{
    double bytes_a_clock = chip->l2_gb_s / (chip->ghz * chip->sms);
    if (!t->k || t->shared)
        return 0;
    return VPTQ_CUDA_LANES * (t->pieces + t->tail) * SECTOR / bytes_a_clock;
}

/* Clocks per tile of 32 indices; columns of x are of one n-tile of 8 at least. */
static double tile_clocks(const vptq_cuda_chip *chip, const vptq_cuda_table *main,
                          const vptq_cuda_table *res, double bytes, uint32_t columns,
                          double macs)
{
    double looked = (vptq_cuda_expected_clocks(main) + vptq_cuda_expected_clocks(res) +
                     chip->extra_clocks) /
                    chip->pipe;
    looked += gather_clocks(chip, main) + gather_clocks(chip, res);
    double n = ceil_div(columns, 8) * 8.0, codebooks = res->k ? 2 : 1;
    double mma = 2.0 * main->v * VPTQ_CUDA_TILE * n * codebooks / macs;
    double memory = bytes * chip->ghz * chip->sms / chip->memory_gb_s;
    return fmax(fmax(looked, mma), memory);
}

static double body_clocks(const vptq_cuda_chip *chip, const vptq_vq_shape *s,
                          const vptq_cuda_choice *c, uint32_t columns, double macs)
{
    const vptq_cuda_tables *t = &c->smem.tables;
    static const vptq_cuda_table none = {0};
    double clocks = tiles_of(s, c, false) *
                    tile_clocks(chip, &t->main, &t->residual, stream_bytes(t), columns, macs);
    if (s->outliers)
        clocks += tiles_of(s, c, true) * tile_clocks(chip, &t->outlier, &none,
                                                     VPTQ_CUDA_LANES * STORED, columns, macs);
    return clocks;
}

/* Codebooks into every SM once a segment, then their copies within it, a read and a write each.
 */
static void fill(const vptq_cuda_chip *chip, const vptq_vq_shape *s, vptq_cuda_choice *c)
{
    const vptq_cuda_table *all[] = {&c->smem.tables.main, &c->smem.tables.residual,
                                    &c->smem.tables.outlier};
    double codebooks = 0, copies = 0;
    for (size_t i = 0; i < 3; i++) {
        const vptq_cuda_table *t = all[i];
        if (!t->k || !t->shared)
            continue;
        double times = i < 2 ? s->groups : 1, one = (double)vptq_cuda_copy_bytes(t->v, t->k);
        codebooks += times * one;
        copies += times * fmax((double)vptq_cuda_table_bytes(t) - one, 0);
    }
    double into_sm = us_of_clocks(chip, codebooks / chip->fill_bytes);
    double out_of_l2 = us_of_bytes(chip->l2_gb_s, codebooks * c->blocks);
    c->fill_us = codebooks > 0
                     ? chip->fill_us + (chip->multicast ? into_sm : fmax(into_sm, out_of_l2))
                     : 0;
    c->copy_us = us_of_clocks(chip, copies / (VPTQ_CUDA_LINE / 2.0));
}

static void add_up(const vptq_cuda_chip *chip, vptq_cuda_choice *c)
{
    c->overlaps = c->kernel != VPTQ_CUDA_GEMM_DEQUANT &&
                  2 * (c->smem.total + SM_RESERVED) <= chip->smem_sm;
    c->total_us = c->launch_us + c->fill_us + c->copy_us + c->body_us;
}

static vptq_cuda_smem_want want_of(const vptq_cuda_chip *chip, const vptq_vq_shape *s,
                                   uint32_t batch, uint32_t copies, const vptq_cuda_choice *c)
{
    vptq_cuda_smem_want w = {.shape = *s, .budget = chip->smem, .batch = batch};
    w.copies = copies;
    if (c->passes > 1 || s->groups > 1 || s->outliers)
        w.rows = c->rows;
    return w;
}

static vptq_status predict_gemv(const vptq_cuda_chip *chip, const vptq_vq_shape *s,
                                uint32_t batch, uint32_t copies, vptq_cuda_choice *c,
                                vptq_err *err)
{
    if (batch > VPTQ_CUDA_MAX_BATCH)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED, "a batch of %u is too large for %s (1..%d)",
                         batch, vptq_cuda_kernel_name(c->kernel), VPTQ_CUDA_MAX_BATCH);
    spread(chip, s, 1, c);
    vptq_cuda_smem_want w = want_of(chip, s, batch, copies, c);
    vptq_status st = c->kernel == VPTQ_CUDA_GEMV_SMEM
                         ? vptq_cuda_smem_fit(&w, &c->smem, err)
                         : vptq_cuda_smem_direct(&w, &c->smem, err);
    if (st)
        return st;
    fill(chip, s, c);
    c->body_us = us_of_clocks(chip, body_clocks(chip, s, c, batch, chip->mma_macs));
    return VPTQ_OK;
}

/* Tables of GEMM_SMALL, which leave room for as many rows of x as they can: replicas of small
 * codebooks, one copy of large ones, as a choice of copies belongs to the codes. */
static vptq_status fit_small(const vptq_cuda_chip *chip, const vptq_vq_shape *s,
                             vptq_cuda_smem *smem, uint32_t *columns, vptq_err *err)
{
    vptq_cuda_smem_want w = {.shape = *s, .budget = chip->smem, .batch = 1};
    vptq_status st = VPTQ_E_UNSUPPORTED;
    for (*columns = VPTQ_CUDA_GEMM_COLUMNS;; *columns /= 2) {
        bool last = *columns == LEAST_COLUMNS;
        w.staging = vptq_cuda_gemm_staging(*columns);
        w.copies = 0;
        st = vptq_cuda_smem_fit(&w, smem, last ? err : NULL);
        w.copies = 1;
        if (!st && !smem->tables.main.replicas)
            st = vptq_cuda_smem_fit(&w, smem, last ? err : NULL);
        if (last || st != VPTQ_E_UNSUPPORTED)
            return st;
    }
}

/* Clocks of a block per tile of a pair of vector rows.  Shared memory serves look-ups, codes
 * (16 bytes a lane for 8 tiles, to every warp that takes some of the tiles) and x (2 lines for
 * 8 rows of it, to all fragments of a warp at once); the tensor cores multiply the sum of the
 * two codebooks. */
static double small_clocks(const vptq_cuda_chip *chip, const vptq_cuda_table *main,
                           const vptq_cuda_table *res, double bytes, uint32_t pairs,
                           uint32_t columns)
{
    uint32_t parts = main->pieces + main->tail, warps = 1;
    while (warps < VPTQ_CUDA_GEMM_WARPS &&
           warps * VPTQ_CUDA_GEMM_FRAGMENTS < (uint64_t)pairs * parts)
        warps *= 2;
    double codes = bytes / VPTQ_CUDA_LINE * VPTQ_CUDA_GEMM_WARPS / warps;
    double x = 2.0 * columns / 8 / VPTQ_CUDA_GEMM_FRAGMENTS;
    double looked = vptq_cuda_expected_clocks(main) + vptq_cuda_expected_clocks(res);
    looked = (looked + parts * (codes + x)) / chip->pipe;
    looked += gather_clocks(chip, main) + gather_clocks(chip, res);
    double mma = parts * 16.0 * VPTQ_CUDA_TILE * columns / chip->mma_macs;
    double memory = bytes * chip->ghz * chip->sms / chip->memory_gb_s;
    return fmax(fmax(looked, mma), memory);
}

/* Every block reads its rows of x, 16 fragments at a time, and its codes out of L2. */
static double small_us(const vptq_cuda_chip *chip, const vptq_vq_shape *s,
                       const vptq_cuda_choice *c, uint32_t columns)
{
    static const vptq_cuda_table none = {0};
    const vptq_cuda_tables *t = &c->smem.tables;
    double tiles = tiles_of(s, c, false), outlier_tiles = tiles_of(s, c, true);
    double clocks =
        tiles * small_clocks(chip, &t->main, &t->residual, stream_bytes(t), c->pairs, columns);
    if (s->outliers)
        clocks += outlier_tiles * small_clocks(chip, &t->outlier, &none,
                                               VPTQ_CUDA_LANES * STORED, c->pairs, columns);
    double times = ceil_div(c->pairs * (t->main.pieces + t->main.tail),
                            VPTQ_CUDA_GEMM_WARPS * VPTQ_CUDA_GEMM_FRAGMENTS);
    double x = times * columns * STORED * s->in / c->split, codes = tiles * stream_bytes(t);
    return fmax(us_of_clocks(chip, clocks),
                us_of_bytes(chip->l2_gb_s, c->blocks * (x + codes)));
}

/* Up to 256 rows of x a launch.  More rows of x in a block spare look-ups, fewer of them give
 * it more output rows and so fewer readers of x: whichever is predicted to be faster. */
static vptq_status predict_small(const vptq_cuda_chip *chip, const vptq_vq_shape *s,
                                 uint32_t batch, vptq_cuda_choice *c, vptq_err *err)
{
    vptq_cuda_smem smem;
    uint32_t most;
    vptq_status st = fit_small(chip, s, &smem, &most, err);
    if (st)
        return st;
    double least = 0;
    for (uint32_t columns = LEAST_COLUMNS; columns <= most; columns *= 2) {
        vptq_cuda_choice t = *c;
        uint32_t launch = batch < VPTQ_CUDA_GEMM_BATCH ? batch : VPTQ_CUDA_GEMM_BATCH;
        uint32_t ways = ceil_div(launch, columns);
        if (ways > chip->sms)
            ways = chip->sms;
        if (launch > columns * ways)
            launch = columns * ways;
        t.smem = smem;
        t.columns = columns;
        spread(chip, s, ways, &t);
        uint32_t each = ceil_div(ceil_div(launch, 8), ways) * 8;
        t.body_us = ceil_div(batch, launch) * small_us(chip, s, &t, each);
        fill(chip, s, &t);
        if (columns == LEAST_COLUMNS || t.body_us < least) {
            least = t.body_us;
            *c = t;
        }
    }
    return VPTQ_OK;
}

double vptq_cuda_dense_us(const vptq_cuda_chip *chip, uint32_t out, uint32_t in, uint32_t batch)
{
    double values = (double)out * in + (double)batch * ((double)out + in);
    double macs = (double)out * in * batch;
    double rate = dense_efficiency * chip->gemm_macs * chip->sms;
    return chip->launch_us + fmax(us_of_bytes(chip->memory_gb_s, values * STORED),
                                  us_of_clocks(chip, macs / rate));
}

/* The decoder writes what the product then reads; its look-ups hide behind the writing. */
static void predict_dequant(const vptq_cuda_chip *chip, const vptq_vq_shape *s, uint32_t batch,
                            vptq_cuda_choice *c)
{
    double weights = (double)s->out * s->in;
    double index_bytes = (double)vptq_vq_count_bits(s).total / 8;
    c->blocks = chip->sms;
    c->split = c->ways = c->passes = 1;
    c->balance = 1;
    c->body_us = us_of_bytes(chip->memory_gb_s, weights * STORED + index_bytes);
    c->body_us += vptq_cuda_dense_us(chip, s->out, s->in, batch) - chip->launch_us;
    c->launch_us += chip->next_us;
}

vptq_status vptq_cuda_predict(const vptq_cuda_chip *chip, const vptq_vq_shape *s,
                              uint32_t batch, vptq_cuda_kernel kernel, uint32_t copies,
                              vptq_cuda_choice *out, vptq_err *err)
{
    vptq_status st = vptq_vq_shape_check(s, err);
    if (!st && !batch)
        st = vptq_fail(err, VPTQ_E_ARG, "a batch of 0 columns");
    if (st)
        return st;
    *out = (vptq_cuda_choice){.kernel = kernel, .launch_us = chip->launch_us};
    if (kernel == VPTQ_CUDA_GEMM_DEQUANT)
        predict_dequant(chip, s, batch, out);
    else if (kernel == VPTQ_CUDA_GEMM_SMALL)
        st = predict_small(chip, s, batch, out, err);
    else
        st = predict_gemv(chip, s, batch, copies, out, err);
    if (!st)
        add_up(chip, out);
    return st;
}

vptq_status vptq_cuda_dispatch(const vptq_cuda_chip *chip, const vptq_vq_shape *s,
                               uint32_t batch, vptq_cuda_choice *out, vptq_err *err)
{
    vptq_cuda_choice best, c;
    vptq_status st = vptq_cuda_predict(chip, s, batch, VPTQ_CUDA_GEMM_DEQUANT, 0, &best, err);
    if (st)
        return st;
    for (int kernel = 0; kernel < VPTQ_CUDA_GEMM_DEQUANT; kernel++) {
        if (kernel == VPTQ_CUDA_GEMM_SMALL && batch <= VPTQ_CUDA_EXACT_BATCH)
            continue;
        uint32_t most = kernel == VPTQ_CUDA_GEMM_SMALL ? 0 : VPTQ_CUDA_MAX_COPIES;
        for (uint32_t copies = 0; copies <= most; copies++) {
            /* what cannot run is passed over: dequantizing always can */
            if (!vptq_cuda_predict(chip, s, batch, (vptq_cuda_kernel)kernel, copies, &c,
                                   NULL) &&
                c.total_us < best.total_us)
                best = c;
        }
    }
    *out = best;
    return VPTQ_OK;
}
