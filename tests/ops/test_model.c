/* Tests the transformer ops without attention: ref against results computed by hand or by naive
 * loops, other backends against ref. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/backend/cpu/math.h"
#include "lib/base/half.h"
#include "tests/support/devices.h"

/* About eight float operations per element, each with an error of at most 2^-24 of its result:
 * an NMSE of 2^-48. */
static const double few_operations = 0x1p-45;

static const char *const names[] = {"ref", "cpu", "emu"};
enum { NAMES = 3 };

/* ---- the exponential ---- */

static double ulp_of(double x)
{
    int e = 0;
    frexp(x, &e);
    return ldexp(1, e - 24 < -149 ? -149 : e - 24);
}

static void test_exp_error(void **state)
{
    (void)state;
    enum { N = 1003 };
    for (int simd = VPTQ_SIMD_NONE; simd <= VPTQ_SIMD_NEON; simd++) {
        if (!vptq_cpu_has((vptq_simd)simd))
            continue;
        const vptq_cpu_math *math = vptq_cpu_math_get((vptq_simd)simd);
        float in[N], out[N];
        double worst = 0;
        for (int block = 0; block < 400; block++) {
            for (int i = 0; i < N; i++)
                out[i] = in[i] = -105.0f + 194.0f * (float)(block * N + i) / (400 * N);
            math->exp_shift(out, N, 0);
            for (int i = 0; i < N; i++) {
                const double want = exp((double)in[i]);
                if (want > 0x1.fffffep127) {
                    assert_true(isinf(out[i]));
                    continue;
                }
                const double error = fabs((double)out[i] - want) / ulp_of(want);
                worst = error > worst ? error : worst;
            }
        }
        if (worst > 2)
            fail_msg("exp has an error of %g ulp with %s", worst,
                     vptq_simd_name((vptq_simd)simd));
    }
}

static void test_exp_special(void **state)
{
    (void)state;
    for (int simd = VPTQ_SIMD_NONE; simd <= VPTQ_SIMD_NEON; simd++) {
        if (!vptq_cpu_has((vptq_simd)simd))
            continue;
        const vptq_cpu_math *math = vptq_cpu_math_get((vptq_simd)simd);
        float x[] = {0, -INFINITY, INFINITY, NAN, -200, 200, -0.0f, -3e38f, 3e38f};
        const float want[] = {1, 0, INFINITY, 0, 0, INFINITY, 1, 0, INFINITY};
        math->exp_shift(x, sizeof x / sizeof *x, 0);
        for (size_t i = 0; i < sizeof x / sizeof *x; i++)
            assert_true(i == 3 ? isnan(x[i]) : x[i] == want[i]);
    }
}

/* Every length up to three SIMD vectors, to cover tails: the same bits at every level. */
static void test_reductions_of_any_length(void **state)
{
    (void)state;
    enum { N = 49 };
    float *x = vtest_normals(N, 5), first[2][N + 1];
    double first_sums[2][N + 1];
    for (int simd = VPTQ_SIMD_NONE; simd <= VPTQ_SIMD_NEON; simd++) {
        if (!vptq_cpu_has((vptq_simd)simd))
            continue;
        const vptq_cpu_math *math = vptq_cpu_math_get((vptq_simd)simd);
        double sum = 0, squares = 0;
        float max = -INFINITY;
        for (size_t n = 0; n <= N; n++) {
            float y[N];
            memcpy(y, x, sizeof y);
            assert_true(math->max(x, n) == max);
            assert_true(fabs(math->exp_sum(x, n, 1) - sum) <= 1e-6 * sum);
            assert_true(fabs(math->sum_squares(x, n) - squares) <= 1e-14 * squares);
            assert_true(fabs((double)math->exp_shift(y, n, 1) - sum) <= 1e-6 * sum);
            assert_memory_equal(y + n, x + n, (N - n) * sizeof *y);
            memcpy(y, x, sizeof y);
            const float same[] = {math->max(x, n), math->exp_shift(y, n, 1)};
            const double same_sums[] = {math->exp_sum(x, n, 1), math->sum_squares(x, n)};
            for (size_t i = 0; i < 2; i++) {
                first[i][n] = simd ? first[i][n] : same[i];
                first_sums[i][n] = simd ? first_sums[i][n] : same_sums[i];
                assert_true(same[i] == first[i][n]);
                assert_true(same_sums[i] == first_sums[i][n]);
            }
            if (n < N) {
                sum += exp((double)x[n] - 1);
                squares += (double)x[n] * (double)x[n];
                max = x[n] > max ? x[n] : max;
            }
        }
    }
    free(x);
}

/* ---- embed ---- */

typedef struct embed_case {
    size_t n, dim;
    const void *table;
    vptq_dtype type;
    const int32_t *ids;
    float scale;
} embed_case;

static void run_embed(const vptq_device *dev, const void *arg, void *out)
{
    const embed_case *c = arg;
    vptq_err err;
    assert_ok(dev->ops->embed(dev->state,
                              &(vptq_embed_args){.n = c->n,
                                                 .dim = c->dim,
                                                 .table = c->table,
                                                 .type = c->type,
                                                 .ids = c->ids,
                                                 .scale = c->scale,
                                                 .out = out},
                              &err),
              &err);
}

static void test_embed(void **state)
{
    (void)state;
    enum { VOCAB = 300, N = 500 };
    static const size_t dims[] = {1, 33, 576};
    int32_t ids[N];
    for (int i = 0; i < N; i++)
        ids[i] = (i * 7 + 299) % VOCAB;
    for (size_t s = 0; s < sizeof dims / sizeof *dims; s++) {
        const size_t dim = dims[s];
        float *table = vtest_normals(VOCAB * dim, 6), *out = vtest_normals(N * dim, 7);
        uint16_t *half = malloc(VOCAB * dim * sizeof *half);
        assert_non_null(half);
        embed_case c = {N, dim, table, VPTQ_F32, ids, 0};
        const devices_op op = {run_embed, &c, N * dim * sizeof(float), 1, 0};
        devices_check_emu(&op, out);
        for (size_t i = 0; i < N; i++)
            assert_same_f32(out + i * dim, table + (size_t)ids[i] * dim, dim);

        c.table = half;
        for (int wide = 0; wide < 2; wide++) {
            c.type = wide ? VPTQ_BF16 : VPTQ_F16;
            for (size_t i = 0; i < VOCAB * dim; i++)
                half[i] = wide ? vptq_f32_to_bf16(table[i]) : vptq_f32_to_f16(table[i]);
            devices_check_emu(&op, out);
            for (size_t i = 0; i < N; i++)
                for (size_t j = 0; j < dim; j++) {
                    const float want = table[(size_t)ids[i] * dim + j];
                    assert_true(out[i * dim + j] == vptq_round_to(c.type, want));
                }
        }
        c.scale = 1.5F;
        devices_check_emu(&op, out);
        for (size_t i = 0; i < N; i++)
            for (size_t j = 0; j < dim; j++)
                assert_true(out[i * dim + j] ==
                            1.5F * vptq_round_to(c.type, table[(size_t)ids[i] * dim + j]));
        free(half);
        free(table);
        free(out);
    }
}

static void test_embed_refuses_blocks(void **state)
{
    (void)state;
    const int32_t id = 0;
    for (size_t i = 0; i < 2; i++) {
        devices_one d;
        vptq_err err;
        float out[32];
        devices_open(&d, names[i], vptq_cpu_simd(), 1);
        assert_fails(
            d.dev.ops->embed(
                d.dev.state,
                &(vptq_embed_args){
                    .n = 1, .dim = 32, .table = out, .type = VPTQ_Q4_1, .ids = &id, .out = out},
                &err),
            VPTQ_E_UNSUPPORTED, &err, "an embedding table of type Q4_1");
        devices_close(&d);
    }
}

/* ---- rmsnorm ---- */

typedef struct norm_case {
    size_t n, dim;
    const float *x, *weight, *bias;
} norm_case;

/* Adds the norm to what y holds. */
static void run_norm_add(const vptq_device *dev, const void *arg, void *out)
{
    const norm_case *c = arg;
    const vptq_rmsnorm_args a = {.n = c->n,
                                 .dim = c->dim,
                                 .x = c->x,
                                 .ldx = c->dim + 3,
                                 .weight = c->weight,
                                 .eps = 1e-5f,
                                 .y = out,
                                 .ldy = c->dim,
                                 .add = true};
    vptq_err err;
    memcpy(out, c->x, c->n * c->dim * sizeof(float));
    assert_ok(dev->ops->rmsnorm(dev->state, &a, &err), &err);
}

static void run_norm(const vptq_device *dev, const void *arg, void *out)
{
    const norm_case *c = arg;
    vptq_err err;
    float *y = out;
    assert_ok(dev->ops->rmsnorm(dev->state,
                                &(vptq_rmsnorm_args){.n = c->n,
                                                     .dim = c->dim,
                                                     .x = c->x,
                                                     .ldx = c->dim + 3,
                                                     .weight = c->weight,
                                                     .eps = 1e-5f,
                                                     .y = y,
                                                     .ldy = c->dim,
                                                     .bias = c->bias},
                                &err),
              &err);
    /* the same in place */
    const size_t size = c->n * (c->dim + 3);
    float *same = malloc((size + 1) * sizeof *same);
    assert_non_null(same);
    memcpy(same, c->x, size * sizeof *same);
    assert_ok(dev->ops->rmsnorm(dev->state,
                                &(vptq_rmsnorm_args){.n = c->n,
                                                     .dim = c->dim,
                                                     .x = same,
                                                     .ldx = c->dim + 3,
                                                     .weight = c->weight,
                                                     .eps = 1e-5f,
                                                     .y = same,
                                                     .ldy = c->dim + 3,
                                                     .bias = c->bias},
                                &err),
              &err);
    for (size_t i = 0; i < c->n; i++)
        assert_same_f32(same + i * (c->dim + 3), y + i * c->dim, c->dim);
    free(same);
}

static void test_rmsnorm(void **state)
{
    (void)state;
    static const size_t dims[] = {1, 15, 16, 17, 33, 64, 576}, rows[] = {1, 3, 130};
    for (size_t s = 0; s < sizeof dims / sizeof *dims; s++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            const size_t dim = dims[s], n = rows[r];
            float *x = vtest_normals(n * (dim + 3), 8), *w = vtest_normals(dim, 9);
            const norm_case c = {n, dim, x, w, NULL};
            const devices_op op = {run_norm, &c, n * dim, sizeof(float), few_operations};
            const devices_op add = {run_norm_add, &c, n * dim, sizeof(float), few_operations};
            (n <= 3 ? devices_check_emu : devices_check)(&op, NULL);
            (n <= 3 ? devices_check_emu : devices_check)(&add, NULL);
            free(x);
            free(w);
        }
}

static void test_rmsnorm_by_hand(void **state)
{
    (void)state;
    /* mean square of (3, 4) is 12.5; with eps 3.5 the root is 4 */
    const float x[] = {3, 4}, w[] = {2, -1}, want[] = {1.5f, -1};
    devices_one d;
    vptq_err err;
    float y[2];
    devices_open(&d, "ref", VPTQ_SIMD_NONE, 1);
    assert_ok(
        d.dev.ops->rmsnorm(
            d.dev.state,
            &(vptq_rmsnorm_args){
                .n = 1, .dim = 2, .x = x, .ldx = 2, .weight = w, .eps = 3.5f, .y = y, .ldy = 2},
            &err),
        &err);
    assert_same_f32(y, want, 2);
    devices_close(&d);
}

/* Float numbers around 5 lose what the mean adds to their size, 5 times that of the result. */
static void test_layer_norm(void **state)
{
    (void)state;
    static const size_t dims[] = {1, 15, 16, 17, 33, 64, 576}, rows[] = {1, 3, 130};
    for (size_t s = 0; s < sizeof dims / sizeof *dims; s++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            const size_t dim = dims[s], n = rows[r];
            float *x = vtest_normals(n * (dim + 3), 10), *w = vtest_normals(dim, 11);
            float *bias = vtest_normals(dim, 12);
            for (size_t i = 0; i < n * (dim + 3); i++)
                x[i] += 5;
            const norm_case c = {n, dim, x, w, bias};
            const devices_op op = {run_norm, &c, n * dim, sizeof(float), 26 * few_operations};
            (n <= 3 ? devices_check_emu : devices_check)(&op, NULL);
            free(x);
            free(w);
            free(bias);
        }
}

static void test_layer_norm_by_hand(void **state)
{
    (void)state;
    /* the mean of (3, 7) is 5, their variance 4; with eps 5 the root is 3 */
    const float x[] = {3, 7}, w[] = {3, -6}, bias[] = {1, 2}, want[] = {-1, -2};
    for (size_t i = 0; i < NAMES; i++) {
        devices_one d;
        vptq_err err;
        float y[2];
        devices_open(&d, names[i], vptq_cpu_simd(), 1);
        const vptq_rmsnorm_args a = {.n = 1,
                                     .dim = 2,
                                     .x = x,
                                     .ldx = 2,
                                     .weight = w,
                                     .eps = 5,
                                     .y = y,
                                     .ldy = 2,
                                     .bias = bias};
        assert_ok(d.dev.ops->rmsnorm(d.dev.state, &a, &err), &err);
        assert_close(y, want, 2, 0, 2e-7);
        devices_close(&d);
    }
}

/* ---- rope ---- */

typedef struct rope_case {
    size_t n, heads, head_dim, pos0, rotated;
    const float *x, *cosine, *sine;
    bool back;
} rope_case;

static void run_rope(const vptq_device *dev, const void *arg, void *out)
{
    const rope_case *c = arg;
    vptq_err err;
    const size_t ldx = c->heads * c->head_dim + 5;
    memcpy(out, c->x, c->n * ldx * sizeof(float));
    assert_ok(dev->ops->rope(dev->state,
                             &(vptq_rope_args){.n = c->n,
                                               .heads = c->heads,
                                               .head_dim = c->head_dim,
                                               .rotated = c->rotated,
                                               .x = out,
                                               .ldx = ldx,
                                               .cos_table = c->cosine,
                                               .sin_table = c->sine,
                                               .pos0 = c->pos0,
                                               .back = c->back},
                             &err),
              &err);
}

static void test_rope(void **state)
{
    (void)state;
    static const size_t shapes[][5] = {
        {1, 1, 2, 0, 0},   {3, 2, 6, 1, 0}, {40, 9, 64, 7, 0},   {5, 3, 128, 100, 0},
        {70, 4, 96, 0, 0}, {3, 2, 7, 1, 2}, {40, 5, 128, 7, 96}, {5, 3, 20, 3, 20}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        rope_case c = {.n = shapes[s][0],
                       .heads = shapes[s][1],
                       .head_dim = shapes[s][2],
                       .pos0 = shapes[s][3],
                       .rotated = shapes[s][4]};
        const size_t half = (c.rotated ? c.rotated : c.head_dim) / 2,
                     table = (c.pos0 + c.n) * half;
        const size_t size = c.n * (c.heads * c.head_dim + 5);
        float *x = vtest_normals(size, 12), *cosine = vtest_normals(table, 13),
              *sine = vtest_normals(table, 14);
        for (size_t i = 0; i < table; i++) {
            const double angle = (double)sine[i];
            cosine[i] = (float)cos(angle);
            sine[i] = (float)sin(angle);
        }
        c.x = x;
        c.cosine = cosine;
        c.sine = sine;
        const devices_op op = {run_rope, &c, size, sizeof(float), few_operations};
        devices_check_emu(&op, NULL);
        c.back = true;
        devices_check_emu(&op, NULL);
        free(x);
        free(cosine);
        free(sine);
    }
}

/* Turns row 1 of two heads of four elements, 1 to 8, to `want` and back on every backend. */
static void expect_rope(size_t rotated, const float *cosine, const float *sine,
                        const float *want)
{
    const float before[] = {1, 2, 3, 4, 5, 6, 7, 8};
    for (size_t i = 0; i < NAMES; i++) {
        float x[8];
        devices_one d;
        vptq_err err;
        memcpy(x, before, sizeof x);
        devices_open(&d, names[i], vptq_cpu_simd(), 1);
        vptq_rope_args a = {.n = 1,
                            .heads = 2,
                            .head_dim = 4,
                            .rotated = rotated,
                            .x = x,
                            .ldx = 8,
                            .cos_table = cosine,
                            .sin_table = sine,
                            .pos0 = 1};
        assert_ok(d.dev.ops->rope(d.dev.state, &a, &err), &err);
        assert_same_f32(x, want, 8);
        a.back = true;
        assert_ok(d.dev.ops->rope(d.dev.state, &a, &err), &err);
        assert_same_f32(x, before, 8);
        devices_close(&d);
    }
}

/* A quarter turn for pair (0, 2) and a half turn for pair (1, 3); then only the first two
 * elements of each head by a quarter. */
static void test_rope_by_hand(void **state)
{
    (void)state;
    const float cosine[] = {1, 1, 0, -1}, sine[] = {0, 0, 1, 0};
    const float want[] = {-3, -2, 1, -4, -7, -6, 5, -8};
    const float quarter_cosine[] = {1, 0}, quarter_sine[] = {0, 1};
    const float partial[] = {-2, 1, 3, 4, -6, 5, 7, 8};
    expect_rope(0, cosine, sine, want);
    expect_rope(2, quarter_cosine, quarter_sine, partial);
}

/* ---- swiglu ---- */

typedef struct swiglu_case {
    size_t n, dim;
    const float *gate, *up;
    bool gelu;
} swiglu_case;

static void run_swiglu(const vptq_device *dev, const void *arg, void *out)
{
    const swiglu_case *c = arg;
    vptq_err err;
    memcpy(out, c->gate, c->n * c->dim * sizeof(float)); /* y may be gate */
    const vptq_swiglu_args a = {
        .n = c->n, .dim = c->dim, .gelu = c->gelu, .gate = out, .up = c->up, .y = out};
    assert_ok(dev->ops->swiglu(dev->state, &a, &err), &err);
}

static void test_swiglu(void **state)
{
    (void)state;
    static const size_t shapes[][2] = {{1, 1}, {3, 17}, {1, 16385}, {40, 1536}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const size_t n = shapes[s][0], dim = shapes[s][1];
        float *gate = vtest_normals(n * dim, 22), *up = vtest_normals(n * dim, 23);
        for (size_t i = 0; i < n * dim; i++)
            gate[i] *= 10;
        swiglu_case c = {n, dim, gate, up, false};
        const devices_op op = {run_swiglu, &c, n * dim, sizeof(float), few_operations};
        devices_check_emu(&op, NULL);
        c.gelu = true;
        devices_check_emu(&op, NULL);
        c.up = NULL;
        devices_check_emu(&op, NULL);
        free(gate);
        free(up);
    }
}

static void test_swiglu_by_hand(void **state)
{
    (void)state;
    const float gate[] = {0, 1, -1, 1000, -1000}, up[] = {5, 2, 2, 3, 3};
    const float want[] = {0, 1.46211716f, -0.53788284f, 3000, 0};
    /* torch.nn.functional.gelu(gate, approximate="tanh") * up */
    const float want_gelu[] = {0, 1.68238398f, -0.31761602f, 3000, 0};
    const float want_alone[] = {0, 0.84119199f, -0.15880801f, 1000, 0};
    for (size_t i = 0; i < NAMES; i++) {
        devices_one d;
        vptq_err err;
        float y[5];
        devices_open(&d, names[i], vptq_cpu_simd(), 1);
        assert_ok(d.dev.ops->swiglu(
                      d.dev.state,
                      &(vptq_swiglu_args){.n = 1, .dim = 5, .gate = gate, .up = up, .y = y},
                      &err),
                  &err);
        assert_close(y, want, 5, 0, 2e-7);
        assert_ok(d.dev.ops->swiglu(
                      d.dev.state,
                      &(vptq_swiglu_args){
                          .n = 1, .dim = 5, .gelu = true, .gate = gate, .up = up, .y = y},
                      &err),
                  &err);
        assert_close(y, want_gelu, 5, 0, 4e-7);
        assert_ok(d.dev.ops->swiglu(
                      d.dev.state,
                      &(vptq_swiglu_args){.n = 1, .dim = 5, .gelu = true, .gate = gate, .y = y},
                      &err),
                  &err);
        assert_close(y, want_alone, 5, 0, 4e-7);
        devices_close(&d);
    }
}

/* ---- soft_cap ---- */

typedef struct cap_case {
    size_t n;
    float cap;
    const float *x;
} cap_case;

static void run_soft_cap(const vptq_device *dev, const void *arg, void *out)
{
    const cap_case *c = arg;
    vptq_err err;
    memcpy(out, c->x, c->n * sizeof(float));
    assert_ok(dev->ops->soft_cap(
                  dev->state, &(vptq_soft_cap_args){.n = c->n, .cap = c->cap, .x = out}, &err),
              &err);
}

static void test_soft_cap(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 17, 16385, 40 * 1536};
    static const float caps[] = {0.5f, 30, 50};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t i = 0; i < sizeof caps / sizeof *caps; i++) {
            float *x = vtest_normals(sizes[s], 24);
            for (size_t j = 0; j < sizes[s]; j++)
                x[j] *= 20;
            const cap_case c = {sizes[s], caps[i], x};
            const devices_op op = {run_soft_cap, &c, sizes[s], sizeof(float), few_operations};
            devices_check_emu(&op, NULL);
            free(x);
        }
}

/* Small numbers stay as they are, large ones and infinities become the cap. */
static void test_soft_cap_by_hand(void **state)
{
    (void)state;
    const float x[] = {0, 1e-6f, -1, 1, 30, -1000, INFINITY, -INFINITY};
    const float want[] = {0, 1e-6f, -0.99962986f, 0.99962986f, 22.8478247f, -30, 30, -30};
    for (size_t i = 0; i < NAMES; i++) {
        float y[8], nan[] = {NAN};
        devices_one d;
        vptq_err err;
        devices_open(&d, names[i], vptq_cpu_simd(), 1);
        memcpy(y, x, sizeof y);
        vptq_soft_cap_args a = {.n = 8, .cap = 30, .x = y};
        assert_ok(d.dev.ops->soft_cap(d.dev.state, &a, &err), &err);
        assert_close(y, want, 8, 0, 2e-7);
        a = (vptq_soft_cap_args){.n = 1, .cap = 30, .x = nan};
        assert_ok(d.dev.ops->soft_cap(d.dev.state, &a, &err), &err);
        assert_true(isnan(nan[0]));
        devices_close(&d);
    }
}

/* ---- nll ---- */

typedef struct nll_case {
    size_t n, vocab, tile;
    const float *logits;
    const int32_t *targets;
} nll_case;

static void fold(const vptq_device *dev, const nll_case *c, vptq_nll_state *s)
{
    vptq_err err;
    for (size_t j = 0; j < c->vocab; j += c->tile) {
        const size_t width = c->vocab - j < c->tile ? c->vocab - j : c->tile;
        assert_ok(dev->ops->nll(dev->state,
                                &(vptq_nll_args){.n = c->n,
                                                 .width = width,
                                                 .logits = c->logits + j,
                                                 .ld = c->vocab,
                                                 .first = (int32_t)j,
                                                 .targets = c->targets,
                                                 .start = j == 0,
                                                 .state = s},
                                &err),
                  &err);
    }
}

/* out: the loss of every token (0 without a target) and the best id */
static void run_nll(const vptq_device *dev, const void *arg, void *out)
{
    const nll_case *c = arg;
    double *to = out;
    vptq_nll_state *s = malloc(c->n * sizeof *s);
    assert_non_null(s);
    fold(dev, c, s);
    for (size_t i = 0; i < c->n; i++) {
        *to++ = c->targets[i] < 0 ? 0 : log(s[i].sum) + s[i].max - (double)s[i].target;
        *to++ = (double)s[i].best_id;
        assert_true(s[i].best == c->logits[i * c->vocab + (size_t)s[i].best_id]);
    }
    free(s);
}

static void test_nll(void **state)
{
    (void)state;
    static const size_t shapes[][3] = {{1, 1, 1},     {3, 17, 5},      {5, 1000, 1000},
                                       {9, 1000, 16}, {40, 3001, 512}, {130, 515, 64}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const size_t n = shapes[s][0], vocab = shapes[s][1];
        float *logits = vtest_normals(n * vocab, 24);
        int32_t *targets = malloc(n * sizeof *targets);
        assert_non_null(targets);
        for (size_t i = 0; i < n; i++)
            targets[i] = i % 4 == 3 ? -1 : (int32_t)(i * 31 % vocab);
        for (size_t i = 0; i < n * vocab; i++)
            logits[i] = logits[i] * 5 - 2;
        const nll_case c = {n, vocab, shapes[s][2], logits, targets};
        /* The terms are floats with an error of 2^-24, added in double. */
        const devices_op op = {run_nll, &c, 2 * n, sizeof(double), 0x1p-46};
        double *out = malloc(2 * n * sizeof *out);
        assert_non_null(out);
        const bool small = n * (vocab / shapes[s][2]) <= 600;
        (small ? devices_check_emu : devices_check)(&op, out);
        for (size_t i = 0; i < n; i++) { /* ref against the definition */
            const float *row = logits + i * vocab;
            double sum = 0, want = 0;
            size_t best = 0;
            for (size_t j = 0; j < vocab; j++) {
                sum += exp((double)row[j]);
                best = row[j] > row[best] ? j : best;
            }
            if (targets[i] >= 0)
                want = log(sum) - (double)row[targets[i]];
            assert_close_f64(&out[2 * i], &want, 1, 1e-12, 1e-12);
            assert_true(out[2 * i + 1] == (double)best);
        }
        free(out);
        free(targets);
        free(logits);
    }
}

static void test_nll_special(void **state)
{
    (void)state;
    /* Ties give the lowest id, in one tile and across tiles. Impossible tokens (-inf) add
     * nothing, even if a whole tile consists of them. Very different sizes do not overflow. */
    enum { VOCAB = 6 };
    const float logits[4][VOCAB] = {{1, 3, 3, 0, 3, 2},
                                    {-INFINITY, -INFINITY, 0, 0, 0, 0},
                                    {-1000, -1000, 1000, -1000, -1000, -1000},
                                    {0, NAN, 0, 0, 0, 0}};
    const int32_t targets[] = {1, 2, 2, 0}, best[] = {1, 2, 2};
    const double want[] = {log(3 + exp(-2) + exp(-3) + exp(-1)), log(4), 0};
    for (size_t dev = 0; dev < NAMES; dev++)
        for (size_t tile = 1; tile <= VOCAB; tile++) {
            const nll_case c = {4, VOCAB, tile, &logits[0][0], targets};
            vptq_nll_state s[4];
            devices_one d;
            devices_open(&d, names[dev], vptq_cpu_simd(), 1);
            fold(&d.dev, &c, s);
            for (size_t i = 0; i < 3; i++) {
                const double loss = log(s[i].sum) + s[i].max - (double)s[i].target;
                assert_close_f64(&loss, &want[i], 1, 1e-7, 0);
                assert_int_equal(s[i].best_id, best[i]);
            }
            assert_true(isnan(s[3].sum)); /* NaN is propagated */
            devices_close(&d);
        }
}

VTEST_MAIN(cmocka_unit_test(test_exp_error), cmocka_unit_test(test_exp_special),
           cmocka_unit_test(test_reductions_of_any_length), cmocka_unit_test(test_embed),
           cmocka_unit_test(test_embed_refuses_blocks), cmocka_unit_test(test_rmsnorm_by_hand),
           cmocka_unit_test(test_rmsnorm), cmocka_unit_test(test_layer_norm_by_hand),
           cmocka_unit_test(test_layer_norm), cmocka_unit_test(test_rope_by_hand),
           cmocka_unit_test(test_rope), cmocka_unit_test(test_soft_cap),
           cmocka_unit_test(test_soft_cap_by_hand), cmocka_unit_test(test_swiglu_by_hand),
           cmocka_unit_test(test_swiglu), cmocka_unit_test(test_nll),
           cmocka_unit_test(test_nll_special))
