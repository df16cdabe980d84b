/* Tests the emulator's tensor cores: layouts, exact products and the rounding of the models. */
#include "tests/emu/launch.h"

#include <math.h>
#include <stdlib.h>

extern "C" {
#include "lib/base/half.h"
}

struct tile {
    uint16_t at[32][8]; /* four 8 x 8 matrices below each other */
};

__global__ static void load_matrices(const uint16_t *in, uint32_t *out)
{
    tile &t = port_shared<tile>();
    uint32_t r[4];
    for (unsigned j = 0; j < 8; j++)
        t.at[threadIdx.x][j] = in[threadIdx.x * 8 + j];
    __syncwarp();
    /* lane l passes the address of row 31 - l */
    port_ldmatrix_trans(r, t.at[31 - threadIdx.x]);
    for (unsigned i = 0; i < 4; i++)
        out[threadIdx.x * 4 + i] = r[i];
}

static void ldmatrix_follows_its_layout(void **)
{
    uint16_t in[32][8];
    uint32_t out[32][4];
    for (unsigned i = 0; i < 256; i++)
        in[i / 8][i % 8] = (uint16_t)(i * 257 + 1);
    for (uint64_t seed = 0; seed < 8; seed++) {
        cuda_emu_seed(seed);
        run(load_matrices, 1, 32, 0, &in[0][0], &out[0][0]);
        for (unsigned l = 0; l < 32; l++)
            for (unsigned i = 0; i < 4; i++) {
                /* row r of matrix i is row 31 - (8 i + r) of `in` */
                const unsigned last = 31 - 8 * i, g = l / 4, t = 2 * (l % 4);
                const uint32_t pair = in[last - t][g] | (uint32_t)in[last - t - 1][g] << 16;
                assert_int_equal(out[l][i], pair);
            }
    }
}

/* A [16, 16] and B [16, 8] as 16-bit numbers row by row, D [16, 8]. */
__global__ static void multiply_tile(const uint16_t *a, const uint16_t *b, float *d)
{
    const unsigned g = threadIdx.x / 4, t = threadIdx.x % 4 * 2;
    uint32_t fa[4], fb[2];
    float fd[4];
    for (unsigned i = 0; i < 4; i++) {
        const uint16_t *from = a + (g + i % 2 * 8) * 16 + t + i / 2 * 8;
        fa[i] = from[0] | (uint32_t)from[1] << 16;
    }
    for (unsigned i = 0; i < 2; i++)
        fb[i] = b[(t + i * 8) * 8 + g] | (uint32_t)b[(t + i * 8 + 1) * 8 + g] << 16;
    for (unsigned i = 0; i < 4; i++)
        fd[i] = d[(g + i / 2 * 8) * 8 + t + i % 2];
    port_mma_f16(fd, fa, fb);
    for (unsigned i = 0; i < 4; i++)
        d[(g + i / 2 * 8) * 8 + t + i % 2] = fd[i];
}

static void mma_multiplies(void **)
{
    float *x = vtest_normals(16 * 16 + 16 * 8 + 16 * 8, 3);
    uint16_t a[16 * 16], b[16 * 8];
    float d[16 * 8], want[16 * 8];
    for (unsigned i = 0; i < 16 * 16; i++)
        a[i] = vptq_f32_to_f16(x[i]);
    for (unsigned i = 0; i < 16 * 8; i++) {
        b[i] = vptq_f32_to_f16(x[256 + i]);
        d[i] = x[384 + i];
    }
    for (unsigned i = 0; i < 16; i++)
        for (unsigned j = 0; j < 8; j++) {
            double sum = (double)d[i * 8 + j];
            for (unsigned k = 0; k < 16; k++)
                sum += (double)vptq_f16_to_f32(a[i * 16 + k]) *
                       (double)vptq_f16_to_f32(b[k * 8 + j]);
            want[i * 8 + j] = (float)sum;
        }
    cuda_emu_seed(9);
    static const char *const models[] = {"ordered", "volta", "ampere", "hopper"};
    for (const char *model : models) {
        float sums[16 * 8];
        memcpy(sums, d, sizeof d);
        assert_true(cuda_emu_mma_model(model));
        run(multiply_tile, 1, 32, 0, a, b, sums);
        /* volta cuts 17 terms of at most 16 at 2^-19 each, in each of 4 steps */
        assert_close(sums, want, 16 * 8, 4 * 17 * 0x1p-19, 0);
    }
    assert_true(cuda_emu_mma_model("ampere"));
    assert_false(cuda_emu_mma_model("pascal"));
    free(x);
}

__global__ static void multiply_bytes(const int8_t *a, const int8_t *b, int32_t *d)
{
    const unsigned g = port_lane() / 4, t = port_lane() % 4;
    uint32_t x[4], y[2];
    int32_t sum[4];
    for (unsigned i = 0; i < 4; i++) {
        memcpy(&x[i], a + (g + i % 2 * 8) * 32 + 4 * t + i / 2 * 16, 4);
        sum[i] = d[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
    }
    for (unsigned i = 0; i < 2; i++) /* b is transposed: [8][32] */
        memcpy(&y[i], b + g * 32 + 4 * t + i * 16, 4);
    port_mma_s8(sum, x, y);
    for (unsigned i = 0; i < 4; i++)
        d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sum[i];
}

static void mma_multiplies_bytes(void **)
{
    int8_t a[16 * 32], b[8 * 32];
    int32_t d[16 * 8], want[16 * 8];
    for (unsigned i = 0; i < 16 * 32; i++)
        a[i] = (int8_t)(i * 37 % 256 - 128);
    for (unsigned i = 0; i < 8 * 32; i++)
        b[i] = (int8_t)(i * 91 % 256 - 128);
    for (unsigned i = 0; i < 16 * 8; i++) {
        want[i] = d[i] = (int32_t)i - 60;
        for (unsigned k = 0; k < 32; k++)
            want[i] += a[i / 8 * 32 + k] * b[i % 8 * 32 + k];
    }
    run(multiply_bytes, 1, 32, 0, a, b, d);
    assert_memory_equal(d, want, sizeof d);
    assert_int_equal(port_permute(0x33221100, 0x77665544, 0x7250), 0x77225500);
}

__global__ static void multiply_doubles(const double *a, const double *b, double *d)
{
    const unsigned g = port_lane() / 4, t = port_lane() % 4;
    double sum[2] = {d[g * 8 + 2 * t], d[g * 8 + 2 * t + 1]};
    port_mma_f64(sum, a[g * 4 + t], b[t * 8 + g]);
    d[g * 8 + 2 * t] = sum[0];
    d[g * 8 + 2 * t + 1] = sum[1];
}

static void mma_multiplies_doubles(void **)
{
    double a[8 * 4], b[4 * 8], d[8 * 8], want[8 * 8];
    for (unsigned i = 0; i < 8 * 4; i++) {
        a[i] = (double)(i * 37 % 64) - 31;
        b[i] = 1 + (double)(i * 29 % 32) * 0x1p-40;
    }
    for (unsigned i = 0; i < 8 * 8; i++) {
        want[i] = d[i] = (double)i - 30;
        for (unsigned k = 0; k < 4; k++) /* exact: 2^-40 to 2^9 */
            want[i] += a[i / 8 * 4 + k] * b[k * 8 + i % 8];
    }
    run(multiply_doubles, 1, 32, 0, a, b, d);
    assert_memory_equal(d, want, sizeof d);
}

/* The sum of c and products[k] x 1 or x 4096, as the model adds it. */
static float sum_of(const char *model, float c, const float *products)
{
    uint16_t a[16 * 16] = {0}, b[16 * 8] = {0};
    float d[16 * 8] = {0};
    d[0] = c;
    for (unsigned k = 0; k < 16; k++) {
        const bool large = fabsf(products[k]) > 4096;
        a[k] = vptq_f32_to_f16(large ? products[k] / 4096 : products[k]);
        b[8 * k] = vptq_f32_to_f16(large ? 4096 : 1);
    }
    assert_true(cuda_emu_mma_model(model));
    run(multiply_tile, 1, 32, 0, a, b, d);
    assert_true(cuda_emu_mma_model("ampere"));
    return d[0];
}

/* 2^24 = `large`, the first number whose successor is not a float, at place `at`. */
static float sum_with(const char *model, float c, float large, unsigned at, float others)
{
    float products[16];
    for (unsigned k = 0; k < 16; k++)
        products[k] = k == at ? large : others;
    return sum_of(model, c, products);
}

static void mma_rounds_like_tensor_cores(void **)
{
    const float large = 0x1p24f;
    static const struct {
        const char *model;
        float c, others, first, last; /* with the large product first and last */
    } known[] = {
        /* a float sum rounds each time */
        {"ordered", 0, 1, large, large + 16},
        /* bits of 1 are cut off next to 2^24; 12 are added before it comes */
        {"volta", 0, 1, large, large + 12},
        {"volta", 0, 2, large + 30, large + 30},
        /* 7 of 15 in the first step and 8 in the second, then cut to a multiple of 2 */
        {"ampere", 0, 1, large + 14, large + 14},
        {"ampere", 0, 0.5f, large, large + 4},
        {"hopper", 0, 1, large + 14, large + 14},
        {"hopper", 0, 0.5f, large + 6, large + 6},
        {"hopper", 0, 0.25f, large, large},
        /* the sum so far is a term like the others */
        {"hopper", 1, 1, large + 16, large + 16},
        {"ampere", -large, 1, 15, 15},
    };
    for (const auto &c : known)
        for (float sign = -1; sign <= 1; sign += 2) { /* toward zero */
            assert_true(sum_with(c.model, sign * c.c, sign * large, 0, sign * c.others) ==
                        sign * c.first);
            assert_true(sum_with(c.model, sign * c.c, sign * large, 15, sign * c.others) ==
                        sign * c.last);
        }
    for (unsigned at = 0; at < 16; at++) { /* no order within a step */
        assert_true(sum_with("hopper", 0, large, at, 1) == large + 14);
        assert_true(sum_with("ampere", 0, large, at % 8, 0.75f) == large);
        assert_true(sum_with("ampere", large, 0, at, 0.75f) == large);
    }
    float odd[16] = {0x1p-24f, 0, 0x1p-24f}; /* denormal f16 */
    assert_true(sum_of("hopper", 0, odd) == 0x1p-23f);
    assert_true(sum_of("hopper", 0x1p-149f, odd) == 0x1p-23f);
    odd[3] = HUGE_VALF;
    assert_true(sum_of("hopper", 1, odd) == HUGE_VALF);
    odd[4] = -HUGE_VALF;
    assert_true(isnan(sum_of("ampere", 1, odd)));
}

VTEST_MAIN(cmocka_unit_test(ldmatrix_follows_its_layout), cmocka_unit_test(mma_multiplies),
           cmocka_unit_test(mma_multiplies_bytes), cmocka_unit_test(mma_multiplies_doubles),
           cmocka_unit_test(mma_rounds_like_tensor_cores))
