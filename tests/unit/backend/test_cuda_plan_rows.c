/* Predicts the 120 rows of the published tables (docs/gpu.md): 30 shapes with 4 pairs of
 * codebooks, one token, on an H200, against an ideal product of a 16-bit matrix, and compares
 * predictions with times that were measured on one. */
#include <math.h>
#include <stdio.h>

#include "lib/backend/cuda/plan_dispatch.h"
#include "lib/bench/gemv.h"
#include "tests/support/vtest.h"

/* An ideal product: a launch and all of its bytes at the memory's rate. */
static double dense_us(const vptq_cuda_chip *chip, uint32_t out, uint32_t in)
{
    return chip->launch_us + 2.0 * out * in / (chip->memory_gb_s * 1e3);
}

/* Predicted time of one token by the kernel that the planner chooses.  Its tables may be
 * planned for several tokens, for which only x takes longer. */
static double packed_us(const vptq_cuda_chip *chip, const vptq_vq_shape *s, bool grid)
{
    vptq_err err = {0};
    vptq_cuda_dispatch_plan plan;
    vptq_cuda_choice c;
    assert_ok(vptq_cuda_dispatch(chip, s, grid, NULL, &plan, &err), &err);
    assert_ok(vptq_cuda_predict(chip, s, 1, plan.few.kernel, 0, &c, &err), &err);
    return plan.few.kernel == VPTQ_CUDA_GEMV_GRID ? plan.few.total_us
                                                  : plan.few.total_us - plan.few.x_us + c.x_us;
}

typedef struct means {
    double of_codebooks[VPTQ_GEMV_CODEBOOKS], all, largest;
} means;

static means predict_rows(bool grid)
{
    const vptq_cuda_chip *chip = vptq_cuda_chip_search("h200");
    const vptq_gemv_pair *shapes = vptq_gemv_published_shapes(),
                         *codebooks = vptq_gemv_published_codebooks();
    means m = {.all = 0};
    for (size_t b = 0; b < VPTQ_GEMV_CODEBOOKS; b++) {
        double sum = 0;
        for (size_t i = 0; i < VPTQ_GEMV_SHAPES; i++) {
            const vptq_vq_shape s = {.out = shapes[i].b,
                                     .in = shapes[i].a,
                                     .v = 8,
                                     .k = codebooks[b].a,
                                     .k_res = codebooks[b].b,
                                     .groups = 1,
                                     .group_size = shapes[i].a};
            const double ratio = packed_us(chip, &s, grid) / dense_us(chip, s.out, s.in);
            sum += log(ratio);
            m.largest = i + 1 == VPTQ_GEMV_SHAPES && ratio > m.largest ? ratio : m.largest;
        }
        m.of_codebooks[b] = exp(sum / VPTQ_GEMV_SHAPES);
        m.all += sum;
    }
    m.all = exp(m.all / (VPTQ_GEMV_SHAPES * VPTQ_GEMV_CODEBOOKS));
    return m;
}

static void print_means(const char *name, const means *m)
{
    printf("%s: ", name);
    for (size_t b = 0; b < VPTQ_GEMV_CODEBOOKS; b++)
        printf("%.3f ", m->of_codebooks[b]);
    printf("all %.3f, largest shape at most %.3f\n", m->all, m->largest);
}

static void test_published_rows(void **state)
{
    (void)state;
    const means f16 = predict_rows(false), grid = predict_rows(true);
    print_means("float16", &f16);
    print_means("grid", &grid);
    assert_true(f16.all > 1.1 && f16.all < 1.3);
    assert_true(grid.all > 0.8 && grid.all < 0.95);
    assert_true(grid.largest < 0.4);
}

/* Microseconds of products with 4096 + 256 centroids, scale and bias, by number of copies of
 * the main codebook (docs/gpu.md, "Measured"). */
static void test_measured_rows(void **state)
{
    static const struct {
        uint32_t in, out;
        double smem[3], grid[3];
    } rows[] = {
        {1024, 1024, {9.3, 10.1, 10.8}, {5.3, 5.3, 5.3}},
        {4096, 4096, {15.4, 14.6, 14.3}, {13.6, 13.6, 14.1}},
        {4096, 14336, {31.4, 28.6, 28.3}, {21.7, 21.3, 21.9}},
        {8192, 28672, {104.1, 91.7, 86.5}, {57.4, 54.2, 54.7}},
    };
    const vptq_cuda_chip *chip = vptq_cuda_chip_search("h200");
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (uint32_t copies = 1; copies <= 3; copies++)
            for (int grid = 0; grid < 2; grid++) {
                const vptq_vq_shape s = {.out = rows[i].out,
                                         .in = rows[i].in,
                                         .v = 8,
                                         .k = 4096,
                                         .k_res = 256,
                                         .groups = 1,
                                         .group_size = rows[i].in,
                                         .has_norm = true};
                const double measured = (grid ? rows[i].grid : rows[i].smem)[copies - 1];
                vptq_err err = {0};
                vptq_cuda_choice c;
                assert_ok(vptq_cuda_predict(chip, &s, 1,
                                            grid ? VPTQ_CUDA_GEMV_GRID : VPTQ_CUDA_GEMV_SMEM,
                                            copies, &c, &err),
                          &err);
                if (fabs(c.total_us / measured - 1) > 0.15)
                    fail_msg("%u x %u, %u copies: %.1f us, measured %.1f", s.in, s.out, copies,
                             c.total_us, measured);
            }
}

VTEST_MAIN(cmocka_unit_test(test_published_rows), cmocka_unit_test(test_measured_rows))
