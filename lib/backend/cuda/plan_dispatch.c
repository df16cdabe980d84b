/* The time model of the kernels for packed matrices, and the choice among them. */
#include "lib/backend/cuda/plan_dispatch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    SECTOR = 32,        /* bytes that L2 transfers for one row */
    MAX_SPLIT = 4,      /* blocks of a cluster */
    VALUE_BYTES = 2,    /* of a 16-bit value */
    MIN_COLUMNS = 32,   /* tokens of a block of GEMM_SMALL */
    MMA_COLUMNS = 8,    /* columns of a tensor core product */
    ROWS_PER_CLOCK = 4, /* that an SM writes into the tables */
    /* GEMV_GRID, counted in SASS (docs/gpu.md): instructions for 8 tiles, with each codebook
     * and without; instructions and lines of shared memory when a warp adds up one codebook's
     * sums.  Its 12 warps keep an SM busy half of the time. */
    GRID_ISSUE = 2, /* instructions per clock */
    GRID_CHUNK = 36,
    GRID_CHUNK_CODEBOOK = 66,
    GRID_FLUSH = 128,
    GRID_FLUSH_LINES = 20,
    GRID_LARGEST = 3600, /* clocks from the end of the previous kernel until a block knows its
                            largest value */
    GRID_CONVERT = 45,   /* clocks for the digits of a chunk */
    /* Tokens that the layout is planned for.  One layout serves any number of tokens; reserving
     * the sums of 4 costs a single token less than a hundredth of its lookups. */
    PLANNED_BATCH = 4
};

/* Share of the clocks in which the lookups of GEMV_GRID keep shared memory busy. */
static const double GRID_PIPE = 0.74;
/* GEMM_SMALL: from asking for a chunk of x until all warps have it. */
static const double SMALL_CHUNK_US = 1.0;

/* H200: measured (docs/gpu.md), but for x_us, read_us and join_us, which are estimates.  The
 * others: data sheets and estimates by proportion. */
static const vptq_cuda_chip chips[] = {
    {"h200", 132, VPTQ_CUDA_SMEM_HOPPER, 1.98, 4230, 5500, 2.5, 0.5, 1.2, 0.3, 1.0, 2.2, 64,
     1280, 0.32, 11.7},
    {"h100", 132, VPTQ_CUDA_SMEM_HOPPER, 1.98, 3000, 5500, 2.5, 0.5, 1.2, 0.3, 1.0, 2.2, 64,
     1280, 0.32, 11.7},
    /* without early launches, the second one takes its whole time */
    {"a100", 108, VPTQ_CUDA_SMEM_AMPERE, 1.41, 1700, 4000, 3.0, 1.5, 1.5, 0.4, 1.3, 2.8, 64,
     1024, 0.32, 11.7},
    {"rtx4090", 128, VPTQ_CUDA_SMEM_SMALL, 2.52, 920, 4500, 3.0, 1.5, 1.2, 0.3, 1.0, 2.2, 64,
     256, 0.32, 11.7},
};

const vptq_cuda_chip *vptq_cuda_chip_search(const char *name)
{
    for (size_t i = 0; i < sizeof chips / sizeof *chips; i++)
        if (strcmp(chips[i].name, name) == 0)
            return &chips[i];
    return NULL;
}

static const char *const kernel_names[VPTQ_CUDA_KERNELS] = {
    "gemv-smem", "gemv-direct", "gemv-grid", "gemm-small", "gemm-dequant"};

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

/* Divides the output rows among blocks, in units of whole pairs of vector rows (also of the
 * outlier codebook), and the columns among the `split` blocks of a cluster.  Without `split`, a
 * larger cluster must save the busiest block an eighth of its work to pay for adding up the
 * parts.  `ways` clusters take
 * the same output rows for different tokens. GEMV_SMEM and GEMV_DIRECT start while the blocks
 * that convert x run and leave them their SMs. */
static void spread(const vptq_cuda_chip *chip, const vptq_vq_shape *s, uint32_t ways,
                   uint32_t only_split, vptq_cuda_choice *c)
{
    uint64_t unit = 2 * (uint64_t)s->v;
    if (s->outliers)
        unit = unit / gcd((uint32_t)unit, 2 * s->v0) * 2 * s->v0;
    uint32_t units = (uint32_t)((s->out + unit - 1) / unit);
    uint32_t chunks = s->groups * chunks_of(s->group_size);
    uint64_t least = UINT64_MAX;
    uint32_t sms = chip->sms;
    if (c->kernel <= VPTQ_CUDA_GEMV_DIRECT && sms >= 2 * VPTQ_CUDA_X_BLOCKS)
        sms -= VPTQ_CUDA_X_BLOCKS;
    for (uint32_t split = 1; split <= MAX_SPLIT && split * ways <= sms; split *= 2) {
        if (only_split && split != only_split)
            continue;
        uint32_t clusters = sms / (split * ways), each = ceil_div(units, clusters);
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

/* Tiles of the busiest block: of the outlier columns, or of all groups. */
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
    double res = t->residual.replicas && t->residual.k <= 256 ? 1 : VALUE_BYTES;
    return VPTQ_CUDA_LANES * (VALUE_BYTES + (t->residual.k ? res : 0));
}

/* Clocks per 32 indices of a codebook in global memory: one sector for each piece and tail. */
static double gather_clocks(const vptq_cuda_chip *chip, const vptq_cuda_table *t)
{
    double bytes_per_clock = chip->l2_gb_s / (chip->ghz * chip->sms);
    if (!t->k || t->shared)
        return 0;
    return VPTQ_CUDA_LANES * (t->pieces + t->tail) * SECTOR / bytes_per_clock;
}

/* Clocks per tile of 32 indices; products take tokens in groups of 8. */
static double tile_clocks(const vptq_cuda_chip *chip, const vptq_cuda_table *main,
                          const vptq_cuda_table *res, double bytes, uint32_t columns,
                          double macs)
{
    double lookups =
        vptq_cuda_expected_clocks(main) + vptq_cuda_expected_clocks(res) + chip->extra_clocks;
    lookups += gather_clocks(chip, main) + gather_clocks(chip, res);
    double n = ceil_div(columns, MMA_COLUMNS) * (double)MMA_COLUMNS, codebooks = res->k ? 2 : 1;
    double mma = 2.0 * main->v * VPTQ_CUDA_TILE * n * codebooks / macs;
    double memory = bytes * chip->ghz * chip->sms / chip->memory_gb_s;
    return fmax(fmax(lookups, mma), memory);
}

/* Clocks of GEMV_GRID, by count: 8 products of 16 x 8 x 32 bytes for 8 tiles and a codebook;
 * the lines of codes, which pass through the same memory as lookups, and 4 lines of x for 8
 * tiles; instructions.  Every warp that has work adds up its sums at the end and after each
 * pair. */
static double grid_clocks(const vptq_cuda_chip *chip, const vptq_vq_shape *s,
                          const vptq_cuda_choice *c)
{
    const vptq_cuda_tables *t = &c->smem.tables;
    double tiles = tiles_of(s, c, false), chunks = tiles / VPTQ_CUDA_CHUNK_TILES;
    double codebooks = t->residual.k ? 2 : 1;
    double flushes = codebooks * s->groups *
                     fmin(chunks / s->groups, (double)c->pairs + VPTQ_CUDA_GRID_WARPS - 1);
    double loads = stream_bytes(t) / VPTQ_CUDA_LINE + 4.0 / VPTQ_CUDA_CHUNK_TILES;
    double lookups = tiles * (vptq_cuda_expected_clocks(&t->main) +
                              vptq_cuda_expected_clocks(&t->residual) + loads) +
                     flushes * GRID_FLUSH_LINES;
    double mma = chunks * codebooks * 8 * 16 * 8 * 32 / (2 * chip->mma_macs);
    double issue =
        chunks * (GRID_CHUNK + codebooks * GRID_CHUNK_CODEBOOK) + flushes * GRID_FLUSH;
    double memory = tiles * stream_bytes(t) * chip->ghz * chip->sms / chip->memory_gb_s;
    return fmax(fmax(lookups / GRID_PIPE, memory), fmax(mma, issue / GRID_ISSUE));
}

static double body_clocks(const vptq_cuda_chip *chip, const vptq_vq_shape *s,
                          const vptq_cuda_choice *c, uint32_t columns, double macs)
{
    const vptq_cuda_tables *t = &c->smem.tables;
    static const vptq_cuda_table none = {0};
    if (c->kernel == VPTQ_CUDA_GEMV_GRID)
        return grid_clocks(chip, s, c);
    double clocks = tiles_of(s, c, false) *
                    tile_clocks(chip, &t->main, &t->residual, stream_bytes(t), columns, macs);
    if (s->outliers)
        clocks +=
            tiles_of(s, c, true) *
            tile_clocks(chip, &t->outlier, &none, VPTQ_CUDA_LANES * VALUE_BYTES, columns, macs);
    return clocks;
}

/* Predicts bringing so many bytes from L2 to each of the blocks. */
static double load_us(const vptq_cuda_chip *chip, const vptq_cuda_choice *c, double bytes)
{
    return fmax(us_of_clocks(chip, bytes / chip->fill_bytes),
                us_of_bytes(chip->l2_gb_s, bytes * c->blocks));
}

/* Bytes that the conversion of one token reads: x, scale and bias, input channels. */
static double x_bytes(const vptq_vq_shape *s)
{
    return 4.0 * s->in * (1 + (s->has_norm ? 2 : 0) + (s->has_perm || s->groups > 1 ? 1 : 0));
}

/* Predicts loading the codebooks into every SM, once per segment, and writing all rows of their
 * tables.  GEMV_GRID with blocks for half of the SMs does that while the product before it runs
 * on the others. */
static void fill(const vptq_cuda_chip *chip, const vptq_vq_shape *s, vptq_cuda_choice *c)
{
    const vptq_cuda_table *all[] = {&c->smem.tables.main, &c->smem.tables.residual,
                                    &c->smem.tables.outlier};
    double codebooks = 0, rows = 0;
    for (size_t i = 0; i < 3; i++) {
        const vptq_cuda_table *t = all[i];
        if (!t->k || !t->shared)
            continue;
        uint32_t values = t->grid ? VPTQ_CUDA_GRID_ROW : t->v;
        double times = i < 2 ? s->groups : 1, one = (double)vptq_cuda_copy_bytes(values, t->k);
        codebooks += times * one;
        rows += times * t->rows * (t->pieces + t->tail);
    }
    c->fill_us = c->copy_us = 0;
    if (codebooks <= 0 || (c->kernel == VPTQ_CUDA_GEMV_GRID && 2 * c->blocks <= chip->sms))
        return;
    if (c->kernel == VPTQ_CUDA_GEMV_GRID) /* loads x at the same time */
        codebooks += x_bytes(s) / c->split;
    c->fill_us = chip->fill_us + load_us(chip, c, codebooks);
    c->copy_us = us_of_clocks(chip, rows / ROWS_PER_CLOCK);
}

/* Predicts what x costs: its own launch, the conversion beyond the time in which a GEMV kernel
 * fills its tables, and reading it.  GEMV_GRID converts it while it fills its tables, and then
 * needs the largest value of a block. */
static void add_x(const vptq_cuda_chip *chip, const vptq_vq_shape *s, uint32_t batch,
                  vptq_cuda_choice *c)
{
    double halves = batch <= VPTQ_CUDA_EXACT_BATCH ? 2 : 1;
    double convert = chip->x_us + us_of_clocks(chip, x_bytes(s) / chip->fill_bytes);
    double hidden = chip->early_us + c->fill_us + c->copy_us;
    c->join_us = c->split > 1 ? chip->join_us : 0;
    if (c->kernel == VPTQ_CUDA_GEMV_GRID) {
        c->launch_us = chip->launch_us;
        c->x_us = us_of_clocks(
            chip, GRID_LARGEST + GRID_CONVERT * ceil_div(chunks_of(s->group_size), c->split) *
                                     (double)s->groups);
        return;
    }
    c->launch_us = chip->launch_us + chip->early_us;
    if (c->kernel == VPTQ_CUDA_GEMM_SMALL) {
        c->x_us = convert; /* reading x is part of the body */
        return;
    }
    c->x_us = fmax(convert - hidden, 0) + chip->read_us +
              load_us(chip, c, halves * VALUE_BYTES * batch * s->in / c->split);
}

vptq_cuda_grid_memory vptq_cuda_grid_memory_of(const vptq_vq_shape *s, uint32_t chunks,
                                               uint32_t pairs)
{
    enum { ROWS = 2 * VPTQ_CUDA_GRID_V }; /* of a pair */
    uint32_t sums = VPTQ_CUDA_GRID_DIGITS * (s->k_res ? 2 : 1);
    vptq_cuda_grid_memory m = {.x = 0};
    m.sums = chunks * VPTQ_CUDA_CHUNK * VPTQ_CUDA_GRID_DIGITS;
    m.stride = pairs * ROWS + 1; /* odd: digits are in different banks */
    m.results = m.sums + sums * m.stride * (uint32_t)sizeof(int32_t);
    m.total = m.results + (s->groups > 1 ? pairs * ROWS * (uint32_t)sizeof(float) : 0) +
              VPTQ_CUDA_GRID_OBJECTS;
    return m;
}

bool vptq_cuda_has_grid_shape(const vptq_vq_shape *s)
{
    return s->v > VPTQ_CUDA_GRID_ROW && s->v <= VPTQ_CUDA_GRID_V && !s->outliers;
}

static vptq_cuda_smem_want want_of(const vptq_cuda_chip *chip, const vptq_vq_shape *s,
                                   uint32_t batch, uint32_t copies, const vptq_cuda_choice *c)
{
    vptq_cuda_smem_want w = {.shape = *s, .budget = chip->smem, .batch = batch};
    w.copies = copies;
    if (c->kernel == VPTQ_CUDA_GEMV_GRID) {
        w.grid = true;
        w.staging =
            vptq_cuda_grid_memory_of(s, ceil_div(chunks_of(s->group_size), c->split), c->pairs)
                .total;
        return w;
    }
    if (c->passes > 1 || s->groups > 1 || s->outliers)
        w.rows = c->rows;
    return w;
}

static void add_up(const vptq_cuda_chip *chip, const vptq_vq_shape *s, uint32_t batch,
                   vptq_cuda_choice *c)
{
    add_x(chip, s, batch, c);
    c->total_us = c->launch_us + c->fill_us + c->copy_us + c->x_us + c->body_us + c->join_us;
}

/* split 0: the most even division. */
static vptq_status predict_gemv(const vptq_cuda_chip *chip, const vptq_vq_shape *s,
                                uint32_t batch, uint32_t copies, uint32_t split,
                                vptq_cuda_choice *c, vptq_err *err)
{
    if (batch > VPTQ_CUDA_MAX_BATCH)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED, "a batch of %u is too large for %s (1..%d)",
                         batch, kernel_names[c->kernel], VPTQ_CUDA_MAX_BATCH);
    if (c->kernel == VPTQ_CUDA_GEMV_GRID && (!vptq_cuda_has_grid_shape(s) || batch > 1))
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s multiplies one token by vectors of 5 to 8 values without outlier "
                         "columns",
                         kernel_names[c->kernel]);
    spread(chip, s, 1, split, c);
    vptq_cuda_smem_want w = want_of(chip, s, batch, copies, c);
    VPTQ_CHECK(c->kernel == VPTQ_CUDA_GEMV_DIRECT ? vptq_cuda_smem_direct(&w, &c->smem, err)
                                                  : vptq_cuda_smem_fit(&w, &c->smem, err));
    fill(chip, s, c);
    c->body_us = us_of_clocks(chip, body_clocks(chip, s, c, batch, chip->mma_macs));
    add_up(chip, s, batch, c);
    return VPTQ_OK;
}

/* Plans GEMV_GRID with the number of blocks for the same rows that is predicted to be fastest:
 * more blocks read less of x and leave more memory for copies. */
static vptq_status predict_grid(const vptq_cuda_chip *chip, const vptq_vq_shape *s,
                                uint32_t batch, uint32_t copies, vptq_cuda_choice *c,
                                vptq_err *err)
{
    vptq_cuda_choice t;
    vptq_status st = predict_gemv(chip, s, batch, copies, 1, c, err);
    for (uint32_t split = 2; split <= MAX_SPLIT && split * 2 <= chip->sms; split *= 2) {
        t = (vptq_cuda_choice){.kernel = VPTQ_CUDA_GEMV_GRID};
        if (predict_gemv(chip, s, batch, copies, split, &t, NULL) ||
            (!st && t.total_us >= c->total_us))
            continue;
        *c = t;
        st = VPTQ_OK;
    }
    return st;
}

/* Chooses the tables of GEMM_SMALL and the largest number of tokens that fits after them.
 * Large codebooks are stored once, because their codes choose copies of another table. */
static vptq_status fit_small(const vptq_cuda_chip *chip, const vptq_vq_shape *s,
                             vptq_cuda_smem *smem, uint32_t *columns, vptq_err *err)
{
    vptq_cuda_smem_want w = {.shape = *s, .budget = chip->smem, .batch = 1};
    vptq_status st = VPTQ_E_UNSUPPORTED;
    for (*columns = VPTQ_CUDA_GEMM_COLUMNS;; *columns /= 2) {
        bool last = *columns == MIN_COLUMNS;
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

/* Clocks of a block per tile of a pair of vector rows.  Shared memory serves lookups, codes (16
 * bytes per lane for 8 tiles, to every warp that shares the fragment) and x (2 lines for 8
 * tokens, once for all fragments of a warp).  The tensor cores multiply the sum of both
 * codebooks. */
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
    double lookups = vptq_cuda_expected_clocks(main) + vptq_cuda_expected_clocks(res);
    lookups = (lookups + parts * (codes + x)) / chip->pipe;
    lookups += gather_clocks(chip, main) + gather_clocks(chip, res);
    double mma = parts * 16.0 * VPTQ_CUDA_TILE * columns / chip->mma_macs;
    double memory = bytes * chip->ghz * chip->sms / chip->memory_gb_s;
    return fmax(fmax(lookups, mma), memory);
}

/* Predicted time of a launch; every block reads its tokens (once per 16 fragments) and codes
 * through L2. */
static double small_us(const vptq_cuda_chip *chip, const vptq_vq_shape *s,
                       const vptq_cuda_choice *c, uint32_t columns)
{
    static const vptq_cuda_table none = {0};
    const vptq_cuda_tables *t = &c->smem.tables;
    double tiles = tiles_of(s, c, false), outlier_tiles = tiles_of(s, c, true);
    double clocks =
        tiles * small_clocks(chip, &t->main, &t->residual, stream_bytes(t), c->pairs, columns);
    if (s->outliers)
        clocks +=
            outlier_tiles * small_clocks(chip, &t->outlier, &none,
                                         VPTQ_CUDA_LANES * VALUE_BYTES, c->pairs, columns);
    double times = ceil_div(c->pairs * (t->main.pieces + t->main.tail),
                            VPTQ_CUDA_GEMM_WARPS * VPTQ_CUDA_GEMM_FRAGMENTS);
    double x = times * columns * VALUE_BYTES * s->in / c->split,
           codes = tiles * stream_bytes(t);
    double chunks = (double)s->groups * ceil_div(chunks_of(s->group_size), c->split);
    return fmax(us_of_clocks(chip, clocks),
                us_of_bytes(chip->l2_gb_s, c->blocks * (x + codes))) +
           times * chunks * SMALL_CHUNK_US;
}

/* Plans GEMM_SMALL with the number of tokens per block that is predicted to be fastest: many
 * save lookups; few give a block more output rows, so that fewer blocks read x. */
static vptq_status predict_small(const vptq_cuda_chip *chip, const vptq_vq_shape *s,
                                 uint32_t batch, vptq_cuda_choice *c, vptq_err *err)
{
    vptq_cuda_smem smem;
    uint32_t max_columns;
    VPTQ_CHECK(fit_small(chip, s, &smem, &max_columns, err));
    double fastest = 0;
    for (uint32_t columns = MIN_COLUMNS; columns <= max_columns; columns *= 2) {
        vptq_cuda_choice t = *c;
        uint32_t launch = batch < VPTQ_CUDA_GEMM_BATCH ? batch : VPTQ_CUDA_GEMM_BATCH;
        uint32_t ways = ceil_div(launch, columns);
        if (ways > chip->sms)
            ways = chip->sms;
        if (launch > columns * ways)
            launch = columns * ways;
        t.smem = smem;
        t.columns = columns;
        spread(chip, s, ways, 0, &t);
        uint32_t each = ceil_div(ceil_div(launch, MMA_COLUMNS), ways) * MMA_COLUMNS;
        t.body_us = ceil_div(batch, launch) * small_us(chip, s, &t, each);
        fill(chip, s, &t);
        if (columns == MIN_COLUMNS || t.body_us < fastest) {
            fastest = t.body_us;
            *c = t;
        }
    }
    return VPTQ_OK;
}

static bool reads_pieces(const vptq_cuda_table *t)
{
    return t->k && t->pieces && !t->shared;
}

bool vptq_cuda_is_staged(const vptq_cuda_tables *t)
{
    return reads_pieces(&t->main) || reads_pieces(&t->residual) || reads_pieces(&t->outlier);
}

vptq_status vptq_cuda_predict(const vptq_cuda_chip *chip, const vptq_vq_shape *s,
                              uint32_t batch, vptq_cuda_kernel kernel, uint32_t copies,
                              vptq_cuda_choice *out, vptq_err *err)
{
    VPTQ_CHECK(vptq_vq_shape_check(s, err));
    if (!batch)
        return vptq_fail(err, VPTQ_E_ARG, "a batch of 0 tokens");
    *out = (vptq_cuda_choice){.kernel = kernel};
    if (kernel == VPTQ_CUDA_GEMM_SMALL)
        VPTQ_CHECK(predict_small(chip, s, batch, out, err));
    else if (kernel == VPTQ_CUDA_GEMV_GRID)
        return predict_grid(chip, s, batch, copies, out, err);
    else
        VPTQ_CHECK(predict_gemv(chip, s, batch, copies, 0, out, err));
    add_up(chip, s, batch, out);
    return VPTQ_OK;
}

/* ---- choosing ---- */

/* vptq_cuda_predict with shared memory set aside for the staging area, if one is needed. */
static vptq_status predict_staged(const vptq_cuda_chip *chip, const vptq_vq_shape *s,
                                  uint32_t batch, vptq_cuda_kernel kernel, uint32_t copies,
                                  vptq_cuda_choice *c, vptq_err *err)
{
    VPTQ_CHECK(vptq_cuda_predict(chip, s, batch, kernel, copies, c, err));
    if (!vptq_cuda_is_staged(&c->smem.tables))
        return VPTQ_OK;
    vptq_cuda_chip rest = *chip;
    rest.smem -= kernel == VPTQ_CUDA_GEMM_SMALL ? VPTQ_CUDA_GEMM_STAGE : VPTQ_CUDA_GEMV_STAGE;
    return vptq_cuda_predict(&rest, s, batch, kernel, copies, c, err);
}

static uint32_t planned_batch(vptq_cuda_kernel kernel)
{
    return kernel == VPTQ_CUDA_GEMV_GRID ? 1 : PLANNED_BATCH;
}

/* The GEMV kernel and number of copies with the shortest predicted time; GEMM_DEQUANT if no
 * kernel can run. */
static void choose_few(const vptq_cuda_chip *chip, const vptq_vq_shape *s, bool grid,
                       vptq_cuda_choice *best)
{
    const vptq_cuda_kernel last = grid ? VPTQ_CUDA_GEMV_GRID : VPTQ_CUDA_GEMV_DIRECT;
    vptq_cuda_choice c;
    *best = (vptq_cuda_choice){.kernel = VPTQ_CUDA_GEMM_DEQUANT};
    for (vptq_cuda_kernel kernel = VPTQ_CUDA_GEMV_SMEM; kernel <= last; kernel++)
        for (uint32_t copies = 0; copies <= VPTQ_CUDA_MAX_COPIES; copies++)
            if (!predict_staged(chip, s, planned_batch(kernel), kernel, copies, &c, NULL) &&
                (best->kernel == VPTQ_CUDA_GEMM_DEQUANT || c.total_us < best->total_us))
                *best = c;
}

static vptq_status choose_forced(const vptq_cuda_chip *chip, const vptq_vq_shape *s, bool grid,
                                 const char *forced, vptq_cuda_choice *c, vptq_err *err)
{
    const char *colon = strchr(forced, ':');
    const size_t length = colon ? (size_t)(colon - forced) : strlen(forced);
    const uint32_t copies = colon ? (uint32_t)strtoul(colon + 1, NULL, 10) : 0;
    for (int k = 0; k < VPTQ_CUDA_KERNELS; k++) {
        if (strlen(kernel_names[k]) != length || strncmp(kernel_names[k], forced, length) != 0)
            continue;
        *c = (vptq_cuda_choice){.kernel = (vptq_cuda_kernel)k};
        if (k == VPTQ_CUDA_GEMM_DEQUANT)
            return VPTQ_OK;
        if (k == VPTQ_CUDA_GEMV_GRID && !grid)
            return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                             "VPTQ_CUDA_GEMV is '%s', but the codebooks are not on int8 grids",
                             forced);
        return predict_staged(chip, s, planned_batch((vptq_cuda_kernel)k), (vptq_cuda_kernel)k,
                              copies, c, err);
    }
    return vptq_fail(err, VPTQ_E_ARG,
                     "VPTQ_CUDA_GEMV is '%s', expected gemv-smem[:COPIES], "
                     "gemv-direct[:COPIES], gemv-grid[:COPIES], gemm-small or gemm-dequant",
                     forced);
}

static double predicted_us(const vptq_cuda_chip *chip, const vptq_vq_shape *s, uint32_t batch,
                           vptq_cuda_kernel kernel)
{
    vptq_cuda_choice c;
    return predict_staged(chip, s, batch, kernel, 0, &c, NULL) ? HUGE_VAL : c.total_us;
}

/* Plans GEMM_SMALL, unless its tables do not fit.  It is used from 9 tokens on where it is
 * predicted to be faster than `few`, and up to its limit, because the alternative (decoding
 * rows to float and multiplying in float) is far slower. */
static void choose_small(const vptq_cuda_chip *chip, const vptq_vq_shape *s,
                         vptq_cuda_kernel few, vptq_cuda_small *small)
{
    const uint32_t max_few = VPTQ_CUDA_MAX_BATCH;
    vptq_cuda_choice c;
    for (uint32_t i = 0; i < VPTQ_CUDA_SMALL_PLANS; i++) {
        const uint32_t batch = (i + 1) * VPTQ_CUDA_SMALL_STEP;
        if (predict_staged(chip, s, batch, VPTQ_CUDA_GEMM_SMALL, 0, &c, NULL))
            return;
        small->plan[i].columns = c.columns;
        small->plan[i].ways = c.ways;
        small->plan[i].rows = c.rows;
        small->plan[i].split = c.split;
    }
    small->smem = c.smem; /* the same in all plans */
    small->staged = vptq_cuda_is_staged(&c.smem.tables);
    small->to = VPTQ_CUDA_GEMM_BATCH;
    if (few == VPTQ_CUDA_GEMM_SMALL)
        small->from = 1;
    else if (few == VPTQ_CUDA_GEMV_GRID ||
             predicted_us(chip, s, max_few, VPTQ_CUDA_GEMM_SMALL) <
                 predicted_us(chip, s, max_few, few))
        small->from = VPTQ_CUDA_EXACT_BATCH + 1;
    else
        small->from = max_few + 1;
}

vptq_status vptq_cuda_dispatch(const vptq_cuda_chip *chip, const vptq_vq_shape *s, bool grid,
                               const char *forced, vptq_cuda_dispatch_plan *out, vptq_err *err)
{
    *out = (vptq_cuda_dispatch_plan){0};
    VPTQ_CHECK(vptq_vq_shape_check(s, err));
    if (forced)
        VPTQ_CHECK(choose_forced(chip, s, grid, forced, &out->few, err));
    else
        choose_few(chip, s, grid, &out->few);
    const vptq_cuda_kernel few = out->few.kernel;
    if (few != VPTQ_CUDA_GEMM_DEQUANT && (!forced || few == VPTQ_CUDA_GEMM_SMALL))
        choose_small(chip, s, few, &out->small);
    return VPTQ_OK;
}
