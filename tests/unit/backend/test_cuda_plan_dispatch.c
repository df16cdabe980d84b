/* Tests the use of shared memory, the choice of kernels and the division of work, and compares
 * predictions with the published table of the model. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/backend/cuda/plan_dispatch.h"
#include "tests/support/vtest.h"

static vptq_vq_shape make_shape(uint32_t out, uint32_t in, uint32_t v, uint32_t k,
                                uint32_t k_res)
{
    return (vptq_vq_shape){
        .out = out, .in = in, .v = v, .k = k, .k_res = k_res, .groups = 1, .group_size = in};
}

static vptq_cuda_smem fit(uint32_t v, uint32_t k, uint32_t k_res, uint32_t budget,
                          uint32_t batch, uint32_t copies)
{
    vptq_err err = {0};
    vptq_cuda_smem s;
    vptq_cuda_smem_want w = {.shape = make_shape(4096, 4096, v, k, k_res)};
    w.budget = budget;
    w.batch = batch;
    w.copies = copies;
    assert_ok(vptq_cuda_smem_fit(&w, &s, &err), &err);
    assert_true(s.total <= budget);
    return s;
}

/* ---- shared memory ---- */

/* Codebook sizes of real models at batch 1: whole copies of the main codebook, centroids of a
 * partial copy, replicas of the residual codebook, clocks per 32 codes. Worked out by hand:
 * what remains of 232,448 bytes after replicas and 2,048 bytes of partial sums, at 16 bytes per
 * row. */
static void test_classes_on_hopper(void **state)
{
    (void)state;
    static const struct {
        uint32_t v, k, k_res, whole, part, replicas;
        double main_clocks, residual_clocks;
    } list[] = {
        {8, 4096, 256, 3, 0, 8, 4.95, 4},    /* 12,352 rows */
        {8, 8192, 256, 1, 4160, 8, 8.36, 4}, /* the same */
        {8, 4096, 512, 2, 2112, 8, 5.9, 4},  /* 10,304 rows */
        {8, 8192, 512, 1, 2112, 8, 9.2, 4},
        {6, 4096, 0, 3, 2112, 0, 4.5, 0},         /* 14,400 rows */
        {12, 4096, 4096, 1, 1408, 0, 15.0, 16.5}, /* 24 bytes a row, 9,600 rows, 1 + 1 codebooks
                                                   */
        {4, 4096, 0, 5, 0, 0, 2.11, 0},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        vptq_cuda_smem s =
            fit(list[i].v, list[i].k, list[i].k_res, VPTQ_CUDA_SMEM_HOPPER, 1, 0);
        const vptq_cuda_table *t = &s.tables.main;
        assert_int_equal(t->replicas, 0);
        assert_int_equal(t->copies, list[i].whole + (list[i].part > 0));
        if (list[i].part)
            assert_int_equal(t->copy[list[i].whole].ranks, list[i].part);
        assert_int_equal(s.tables.residual.replicas, list[i].replicas);
        assert_true(fabs(s.main_clocks - list[i].main_clocks) < 0.25);
        assert_true(fabs(s.residual_clocks - list[i].residual_clocks) < 0.1);
    }
    /* small codebooks: every lane has its own slot */
    vptq_cuda_smem s = fit(8, 256, 256, VPTQ_CUDA_SMEM_HOPPER, 1, 0);
    assert_int_equal(s.tables.main.replicas, 8);
    assert_true(s.main_clocks <= 4 && s.residual_clocks <= 4);
    assert_int_equal(s.total, 32768 + 32768 + 2048);
    /* a larger batch needs more partial sums, which leave a partial third copy */
    s = fit(8, 4096, 256, VPTQ_CUDA_SMEM_HOPPER, 8, 0);
    assert_int_equal(s.tables.main.copies, 3);
    assert_int_equal(s.tables.main.copy[2].ranks, (232448 - 32768 - 16384) / 16 - 8192);
    assert_int_equal(s.total, 232448);
}

static void test_places(void **state)
{
    (void)state;
    vptq_cuda_smem s = fit(8, 4096, 256, VPTQ_CUDA_SMEM_SMALL, 1, 1);
    assert_int_equal(s.main_offset, 0);
    assert_int_equal(s.residual_offset, 65536);
    assert_int_equal(s.partial_offset, 65536 + 32768);
    assert_int_equal(s.sums_offset, 65536 + 32768 + 2048);
    assert_int_equal(s.total, 65536 + 32768 + 2048);
    vptq_err err = {0};
    vptq_cuda_smem_want w = {.shape = make_shape(4096, 4096, 8, 4096, 256), .batch = 4};
    w.shape.groups = 8;
    w.shape.group_size = 510;
    w.shape.outliers = 16;
    w.shape.v0 = 4;
    w.shape.k0 = 8192;
    w.budget = VPTQ_CUDA_SMEM_HOPPER;
    w.rows = 40;
    assert_ok(vptq_cuda_smem_fit(&w, &s, &err), &err);
    assert_true(s.tables.outlier.shared); /* in place of the others: 64 KB */
    assert_int_equal(s.sums_offset, s.partial_offset + 8192);
    assert_int_equal(s.total, s.sums_offset + 640);
    w.shape.k0 = 65536; /* 512 KB */
    assert_ok(vptq_cuda_smem_fit(&w, &s, &err), &err);
    assert_false(s.tables.outlier.shared);
}

static void test_too_large(void **state)
{
    (void)state;
    vptq_err err = {0};
    vptq_cuda_smem s;
    vptq_cuda_smem_want w = {.shape = make_shape(4096, 4096, 8, 8192, 256), .batch = 1};
    w.budget = VPTQ_CUDA_SMEM_SMALL;
    assert_fails(vptq_cuda_smem_fit(&w, &s, &err), VPTQ_E_UNSUPPORTED, &err,
                 "codebooks of 8192 and 256 centroids of 8 need 131072 and 4096 bytes of "
                 "shared memory and 2048 of staging, 137216 together (a block has 101376)");
    w.shape = make_shape(4096, 4096, 8, 65536, 256);
    w.budget = VPTQ_CUDA_SMEM_HOPPER;
    assert_fails(vptq_cuda_smem_fit(&w, &s, &err), VPTQ_E_UNSUPPORTED, &err, "1048576");
    w.rows = 30000;
    w.budget = VPTQ_CUDA_SMEM_SMALL;
    assert_fails(vptq_cuda_smem_direct(&w, &s, &err), VPTQ_E_UNSUPPORTED, &err,
                 "sums of 30000 rows for a batch of 1 and tables need 122112 bytes of shared "
                 "memory (a block has 101376)");
    w.rows = UINT32_MAX; /* 16 GiB */
    assert_fails(vptq_cuda_smem_direct(&w, &s, &err), VPTQ_E_UNSUPPORTED, &err, "17179871232");
    assert_fails(vptq_cuda_smem_fit(&w, &s, &err), VPTQ_E_UNSUPPORTED, &err, "of staging");
    w.rows = 0;
    w.batch = 17;
    assert_fails(vptq_cuda_smem_fit(&w, &s, &err), VPTQ_E_ARG, &err, "batch of 17");
    w.batch = 1;
    w.shape.k = 3;
    assert_fails(vptq_cuda_smem_direct(&w, &s, &err), VPTQ_E_SHAPE, &err, "power of two");
    w.shape = make_shape(64, 64, 8, 2, 0);
    w.budget = 2048; /* only staging fits */
    assert_fails(vptq_cuda_smem_fit(&w, &s, &err), VPTQ_E_UNSUPPORTED, &err, "has 2048");
}

/* ---- division of work ---- */

static const vptq_cuda_chip *h200(void)
{
    return vptq_cuda_chip_search("h200");
}

static vptq_cuda_choice predict(const vptq_cuda_chip *chip, vptq_vq_shape s, uint32_t batch,
                                vptq_cuda_kernel kernel, uint32_t copies)
{
    vptq_err err = {0};
    vptq_cuda_choice c;
    assert_ok(vptq_cuda_predict(chip, &s, batch, kernel, copies, &c, &err), &err);
    assert_true(fabs(c.total_us - c.launch_us - c.fill_us - c.copy_us - c.x_us - c.body_us -
                     c.join_us) < 1e-9);
    return c;
}

static void test_vector_row_pairs(void **state)
{
    (void)state;
    static const struct {
        uint32_t out, pairs, split, blocks;
    } list[] = {{1024, 1, 2, 128},  {4096, 2, 1, 128},   {8192, 4, 1, 128},
                {14336, 7, 1, 128}, {28672, 14, 1, 128}, {53248, 26, 1, 128}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        vptq_cuda_choice c = predict(h200(), make_shape(list[i].out, 4096, 8, 4096, 256), 1,
                                     VPTQ_CUDA_GEMV_SMEM, 0);
        assert_int_equal(c.pairs, list[i].pairs);
        assert_int_equal(c.split, list[i].split);
        assert_int_equal(c.blocks, list[i].blocks);
        assert_int_equal(c.rows, list[i].pairs * 16);
        assert_true(fabs(c.balance - 128.0 / 132) < 1e-9); /* 97 % */
    }
    vptq_cuda_choice c =
        predict(h200(), make_shape(4096, 16384, 8, 4096, 256), 1, VPTQ_CUDA_GEMV_SMEM, 0);
    assert_int_equal(c.passes, 2);
    /* rows of a block are whole vector rows of the outlier codebook, too: lcm(2 6, 2 4) = 24 */
    vptq_vq_shape s = make_shape(4096, 4096, 6, 4096, 0);
    s.outliers = 16;
    s.group_size = 4080;
    s.v0 = 4;
    s.k0 = 1024;
    c = predict(h200(), s, 1, VPTQ_CUDA_GEMV_SMEM, 0);
    assert_int_equal(c.rows % 24, 0);
    assert_int_equal(c.pairs, c.rows / 12);
}

/* ---- predictions ---- */

/* Published clocks per 32 indices by codebook sizes: lookups with one copy (v1) and with what
 * fits best (v2), both with 1.5 for loads. The planner must not be slower than the published
 * plan, within its rounding. */
static void test_published_classes(void **state)
{
    (void)state;
    static const struct {
        uint32_t v, k, k_res;
        double v1, v2;
    } list[] = {
        {8, 4096, 256, 15.9, 10.8}, {8, 8192, 256, 15.9, 13.7}, {8, 4096, 512, 15.9, 12.7},
        {8, 8192, 512, 15.9, 14.7}, {6, 4096, 0, 11.9, 6.8},    {12, 4096, 4096, 34.5, 34.5},
        {4, 4096, 0, 7.6, 5.5},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        const uint32_t v = list[i].v, k_res = list[i].k_res;
        vptq_cuda_smem one = fit(v, list[i].k, k_res, VPTQ_CUDA_SMEM_HOPPER, 1, 1);
        vptq_cuda_smem best = fit(v, list[i].k, k_res, VPTQ_CUDA_SMEM_HOPPER, 1, 0);
        const double v1 = one.main_clocks + one.residual_clocks + 1.5;
        const double v2 = best.main_clocks + best.residual_clocks + 1.5;
        assert_true(fabs(v1 - list[i].v1) < 0.1);
        assert_true(v2 < list[i].v2 + 0.2);
    }
}

/* The direct kernel by hand: 32 sectors of 32 bytes at 21.04 bytes per clock, 4 for replicas
 * and 11.7 for all else. */
static void test_direct_prediction(void **state)
{
    (void)state;
    vptq_cuda_choice c =
        predict(h200(), make_shape(4096, 4096, 8, 65536, 256), 1, VPTQ_CUDA_GEMV_DIRECT, 0);
    double clocks = 32 * 32 / (5500 / (1.98 * 132)) + 4 + 11.7;
    assert_true(fabs(c.body_us - clocks * 2 * 32 * 8 / 1980) < 1e-6);
    assert_int_equal(c.smem.tables.residual.replicas, 8);
    assert_false(c.smem.tables.main.shared);
}

static vptq_cuda_dispatch_plan dispatch(const char *chip, vptq_vq_shape s, const char *forced)
{
    vptq_err err = {0};
    vptq_cuda_dispatch_plan plan;
    const vptq_cuda_chip *p = vptq_cuda_chip_search(chip);
    assert_non_null(p);
    assert_ok(vptq_cuda_dispatch(p, &s, false, forced, &plan, &err), &err);
    return plan;
}

static void test_dispatch(void **state)
{
    (void)state;
    vptq_vq_shape plain = make_shape(4096, 4096, 8, 4096, 256);
    vptq_cuda_dispatch_plan p = dispatch("h200", plain, NULL);
    assert_int_equal(p.few.kernel, VPTQ_CUDA_GEMV_SMEM);
    assert_int_equal(p.small.from, 17);
    assert_int_equal(p.small.to, 256);
    assert_false(p.small.staged);
    /* a codebook of 1 MiB does not fit: read through L2, and no kernel for more tokens */
    p = dispatch("h200", make_shape(4096, 4096, 8, 65536, 256), NULL);
    assert_int_equal(p.few.kernel, VPTQ_CUDA_GEMV_DIRECT);
    assert_int_equal(p.small.to, 0);
    assert_int_equal(dispatch("rtx4090", make_shape(4096, 4096, 8, 8192, 256), NULL).few.kernel,
                     VPTQ_CUDA_GEMV_DIRECT);
    assert_int_equal(dispatch("rtx4090", plain, NULL).few.kernel, VPTQ_CUDA_GEMV_SMEM);
    /* tiny: the tables would take longer than the lookups */
    assert_int_equal(dispatch("h200", make_shape(256, 1024, 8, 8192, 256), NULL).few.kernel,
                     VPTQ_CUDA_GEMV_DIRECT);
    /* few lookups do not pay for writing copies; three fit but for a part that sums of several
     * tokens take */
    p = dispatch("h200", make_shape(1024, 8192, 8, 4096, 256), NULL);
    vptq_cuda_dispatch_plan big = dispatch("h200", make_shape(53248, 8192, 8, 4096, 256), NULL);
    assert_int_equal(p.few.smem.tables.main.copies, 1);
    assert_int_equal(big.few.smem.tables.main.copies, 3);
}

/* Rows of 8 bytes: by hand, 4096 + 256 centroids leave memory for five copies after 16 replicas
 * of the residual codebook, 16 KB of x and 33 x 8 sums of 4 bytes; instructions hide the
 * lookups of more than two. */
static void test_grid(void **state)
{
    (void)state;
    vptq_err err = {0};
    vptq_cuda_dispatch_plan p;
    vptq_vq_shape s = make_shape(53248, 4096, 8, 4096, 256);
    assert_ok(vptq_cuda_dispatch(h200(), &s, true, NULL, &p, &err), &err);
    assert_int_equal(p.few.kernel, VPTQ_CUDA_GEMV_GRID);
    assert_int_equal(p.few.smem.tables.main.copies, 2);
    assert_int_equal(p.few.smem.tables.residual.replicas, 16);
    assert_true(p.few.smem.tables.main.grid && p.few.smem.tables.main.v == 8);
    assert_int_equal(p.few.smem.partial_offset, (2 * 4096 + 16 * 256) * 8);
    assert_int_equal(p.small.from, 9);
    const vptq_cuda_grid_memory m = vptq_cuda_grid_memory_of(&s, 32, 2);
    assert_int_equal(m.sums, 4096 * 4);
    assert_int_equal(m.stride, 33);
    assert_int_equal(m.results, 4096 * 4 + 33 * 8 * 4);
    assert_int_equal(m.total, m.results + 512);
    /* twice the bytes of float16 rows would not fit: 16384 centroids */
    s = make_shape(4096, 4096, 8, 16384, 0);
    assert_ok(vptq_cuda_dispatch(h200(), &s, true, "gemv-grid:1", &p, &err), &err);
    assert_fails(vptq_cuda_dispatch(h200(), &s, false, "gemv-grid", &p, &err),
                 VPTQ_E_UNSUPPORTED, &err, "not on int8 grids");
    vptq_cuda_choice c;
    assert_fails(vptq_cuda_predict(h200(), &s, 2, VPTQ_CUDA_GEMV_GRID, 0, &c, &err),
                 VPTQ_E_UNSUPPORTED, &err, "one token");
    static const uint32_t others[] = {4, 9};
    for (size_t i = 0; i < 2; i++) {
        s = make_shape(4096, 4096, others[i], 256, 0);
        assert_false(vptq_cuda_has_grid_shape(&s));
        assert_fails(vptq_cuda_dispatch(h200(), &s, true, "gemv-grid", &p, &err),
                     VPTQ_E_UNSUPPORTED, &err, "5 to 8 values");
    }
}

static void test_forced_kernels(void **state)
{
    (void)state;
    vptq_vq_shape s = make_shape(4096, 4096, 8, 4096, 256);
    vptq_cuda_dispatch_plan p = dispatch("h200", s, "gemv-smem:2");
    assert_int_equal(p.few.kernel, VPTQ_CUDA_GEMV_SMEM);
    assert_int_equal(p.few.smem.tables.main.copies, 2);
    assert_int_equal(p.small.to, 0);
    assert_int_equal(dispatch("h200", s, "gemv-direct").few.kernel, VPTQ_CUDA_GEMV_DIRECT);
    p = dispatch("h200", s, "gemm-small");
    assert_int_equal(p.few.kernel, VPTQ_CUDA_GEMM_SMALL);
    assert_int_equal(p.small.from, 1);
    assert_int_equal(p.small.to, 256);
    p = dispatch("h200", s, "gemm-dequant");
    assert_int_equal(p.few.kernel, VPTQ_CUDA_GEMM_DEQUANT);
    assert_int_equal(p.small.to, 0);
    vptq_err err = {0};
    assert_fails(vptq_cuda_dispatch(h200(), &s, false, "gemv", &p, &err), VPTQ_E_ARG, &err,
                 "VPTQ_CUDA_GEMV is 'gemv', expected gemv-smem[:COPIES], gemv-direct[:COPIES], "
                 "gemv-grid[:COPIES], gemm-small or gemm-dequant");
    s.k = 65536;
    assert_fails(vptq_cuda_dispatch(h200(), &s, false, "gemv-smem", &p, &err),
                 VPTQ_E_UNSUPPORTED, &err, "65536");
}

/* Every valid shape has a kernel that fits, and no other kernel is predicted to be faster. */
static void check_choice(const vptq_cuda_chip *chip, const vptq_vq_shape *s)
{
    enum { PLANNED = 4 }; /* number of tokens planned for */
    vptq_err err = {0};
    vptq_cuda_dispatch_plan p;
    vptq_cuda_choice other;
    assert_ok(vptq_cuda_dispatch(chip, s, false, NULL, &p, &err), &err);
    const vptq_cuda_choice *c = &p.few;
    assert_true(c->kernel <= VPTQ_CUDA_GEMV_DIRECT);
    assert_true(isfinite(c->total_us) && c->total_us >= chip->launch_us);
    assert_true(c->smem.total <= chip->smem);
    assert_true(c->blocks >= 1 && c->blocks <= chip->sms);
    assert_true(c->balance > 0 && c->balance <= 1 + 1e-9);
    assert_true(c->smem.residual_offset % 128 == 0 && c->smem.partial_offset % 128 == 0 &&
                c->smem.sums_offset % 128 == 0 && c->smem.total % 128 == 0);
    assert_true((uint64_t)c->rows * (c->blocks / c->split) >= s->out);
    for (int kernel = 0; kernel <= VPTQ_CUDA_GEMV_DIRECT; kernel++)
        if (!vptq_cuda_predict(chip, s, PLANNED, (vptq_cuda_kernel)kernel, 2, &other, NULL) &&
            !vptq_cuda_is_staged(&other.smem.tables))
            assert_true(other.total_us >= c->total_us);
    if (!p.small.to)
        return;
    assert_true(p.small.smem.total <= chip->smem);
    for (uint32_t i = 0; i < VPTQ_CUDA_SMALL_PLANS; i++)
        assert_true(p.small.plan[i].columns >= 32 && p.small.plan[i].rows >= 1);
}

/* GEMM_SMALL: one copy of a large codebook or replicas of small ones, followed by 2 x 128
 * columns x 2 bytes for each token. By hand: for 4096 x 4096, 128 blocks of 2 pairs have 2
 * fragments, divided among 8 warps; with twice as many tokens, 4 pairs and half of the tokens
 * each. */
static void test_small_products(void **state)
{
    (void)state;
    static const struct {
        uint32_t k, k_res, batch, columns, ways, rows, main_replicas, replicas;
    } list[] = {
        {4096, 256, 32, 32, 1, 32, 0, 8},    {4096, 256, 64, 64, 1, 32, 0, 8},
        {4096, 256, 128, 128, 1, 32, 0, 8},  {4096, 256, 256, 128, 2, 64, 0, 8},
        {4096, 256, 1000, 128, 2, 64, 0, 8}, {8192, 256, 256, 128, 2, 64, 0, 8},
        {8192, 512, 256, 128, 2, 64, 0, 4},  {256, 256, 32, 32, 1, 32, 8, 8},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        vptq_vq_shape s = make_shape(4096, 4096, 8, list[i].k, list[i].k_res);
        vptq_cuda_choice c = predict(h200(), s, list[i].batch, VPTQ_CUDA_GEMM_SMALL, 0);
        const vptq_cuda_tables *t = &c.smem.tables;
        assert_int_equal(c.columns, list[i].columns);
        assert_int_equal(c.ways, list[i].ways);
        assert_int_equal(c.rows, list[i].rows);
        assert_int_equal(c.blocks, 128);
        assert_int_equal(t->main.replicas, list[i].main_replicas);
        assert_int_equal(t->main.copies, !list[i].main_replicas);
        assert_int_equal(t->residual.replicas, list[i].replicas);
        assert_int_equal(c.smem.total, c.smem.partial_offset + 512 * VPTQ_CUDA_GEMM_COLUMNS);
    }
    /* 32 tokens are 8 lines of x for two fragments; 96 bytes of codes go to 8 warps; 512 tiles,
     * and 1 us for each of 32 chunks */
    vptq_vq_shape s = make_shape(4096, 4096, 8, 4096, 256);
    vptq_cuda_choice c = predict(h200(), s, 32, VPTQ_CUDA_GEMM_SMALL, 0);
    double clocks = (10.38 + 4 + 8 * 0.75 + 4) / 0.32;
    assert_true(fabs(c.body_us - 512 * clocks / 1980 - 32) < 1e-6);
    /* 256 tokens: lookups and x still outweigh 16 x 16 x 128 products per tile */
    c = predict(h200(), s, 256, VPTQ_CUDA_GEMM_SMALL, 0);
    clocks = (10.38 + 4 + 4 * 0.75 + 16) / 0.32;
    assert_true(clocks > 16 * 16 * 128 / 1280.0);
    double read = 128 * (128 * 2 * 4096 + 1024 * 96.0) / 5500e3;
    assert_true(fabs(c.body_us - fmax(1024 * clocks / 1980, read) - 32) < 1e-6);
    /* 99 KB: memory for 32 tokens at a time */
    const vptq_cuda_chip *small = vptq_cuda_chip_search("rtx4090");
    c = predict(small, s, 256, VPTQ_CUDA_GEMM_SMALL, 0);
    assert_int_equal(c.columns, 32);
    assert_int_equal(c.ways, 8);
    assert_int_equal(c.rows, 256);
    vptq_err err = {0};
    s = make_shape(4096, 4096, 8, 8192, 256);
    assert_fails(vptq_cuda_predict(small, &s, 64, VPTQ_CUDA_GEMM_SMALL, 0, &c, &err),
                 VPTQ_E_UNSUPPORTED, &err, "16384 of staging");
}

static void test_every_shape_has_a_kernel(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 33, 1024, 11008, 65536},
                          lengths[] = {1, 4, 6, 8, 12, 64};
    static const uint32_t codebooks[][2] = {{2, 0}, {256, 256}, {4096, 512}, {65536, 65536}};
    static const char *const chips[] = {"h200", "h100", "a100", "rtx4090"};
    for (size_t i = 0; i < 5 * 5 * 6 * 4; i++) {
        vptq_vq_shape s = make_shape(sizes[i % 5], sizes[i / 5 % 5], lengths[i / 25 % 6],
                                     codebooks[i / 150 % 4][0], codebooks[i / 150 % 4][1]);
        if (s.in > 100 && i % 3 == 0) {
            s.outliers = s.in % 10 + 10;
            s.group_size = s.in - s.outliers;
            s.v0 = 5;
            s.k0 = 1000;
        }
        check_choice(vptq_cuda_chip_search(chips[i % 4]), &s);
    }
}

static void test_cannot_run(void **state)
{
    (void)state;
    vptq_err err = {0};
    vptq_cuda_choice c;
    vptq_vq_shape s = make_shape(64, 64, 8, 65536, 0);
    assert_fails(vptq_cuda_predict(h200(), &s, 1, VPTQ_CUDA_GEMV_SMEM, 0, &c, &err),
                 VPTQ_E_UNSUPPORTED, &err, "65536");
    assert_fails(vptq_cuda_predict(h200(), &s, 1, VPTQ_CUDA_GEMM_SMALL, 0, &c, &err),
                 VPTQ_E_UNSUPPORTED, &err, "65536");
    assert_fails(vptq_cuda_predict(h200(), &s, 17, VPTQ_CUDA_GEMV_DIRECT, 0, &c, &err),
                 VPTQ_E_UNSUPPORTED, &err, "batch of 17 is too large for gemv-direct");
    assert_fails(vptq_cuda_predict(h200(), &s, 0, VPTQ_CUDA_GEMV_DIRECT, 0, &c, &err),
                 VPTQ_E_ARG, &err, "batch of 0");
    s.in = 63;
    vptq_cuda_dispatch_plan p;
    assert_fails(vptq_cuda_dispatch(h200(), &s, false, NULL, &p, &err), VPTQ_E_SHAPE, &err,
                 "63");
    assert_null(vptq_cuda_chip_search("h2000"));
}

VTEST_MAIN(cmocka_unit_test(test_classes_on_hopper), cmocka_unit_test(test_places),
           cmocka_unit_test(test_too_large), cmocka_unit_test(test_vector_row_pairs),
           cmocka_unit_test(test_published_classes), cmocka_unit_test(test_direct_prediction),
           cmocka_unit_test(test_dispatch), cmocka_unit_test(test_grid),
           cmocka_unit_test(test_forced_kernels), cmocka_unit_test(test_small_products),
           cmocka_unit_test(test_every_shape_has_a_kernel), cmocka_unit_test(test_cannot_run))
