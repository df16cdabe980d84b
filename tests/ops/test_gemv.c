/* Tests the ops gemv and vq_gemv: ref and cpu at every SIMD level, against sums in double over
 * a matrix that is decoded here. The bits of a result do not depend on the number of threads or
 * on the other tokens, and for a few tokens not on their number either. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "tests/emu/emu.h"
#include "tests/support/devices.h"
#include "tests/support/vmatrix.h"

/* Tests every number of rows up to this; more rows use other code. */
enum { FEW_ROWS = 9, MANY_ROWS = 70 };
static const size_t many_rows[] = {16, 17, 20, 33, 36, 41, MANY_ROWS};

typedef struct gemv_case {
    const vptq_vq *q; /* or NULL, */
    const void *w;    /* weights of `type` */
    vptq_dtype type;
    bool library;   /* use library_gemv */
    bool host_only; /* GPU kernels need 16-bit codebooks; test_packed.c has grids */
    size_t out, in;
    const float *decoded; /* [out, in] */
    const float *x;       /* [MANY_ROWS, in + 5] */
    const float *bias;    /* [out] */
    float *alone;         /* [MANY_ROWS, out] earlier results of the same device */
} gemv_case;

static void run(const gemv_case *c, const vptq_device *dev, const vptq_gemv_args *g)
{
    vptq_err err;
    if (c->library)
        assert_ok(dev->ops->library_gemv(dev->state, c->out, c->in, c->w, g, &err), &err);
    else if (c->q) {
        vptq_matrix *m = NULL;
        assert_ok(dev->ops->matrix_open(dev->state, c->q, &m, &err), &err);
        assert_ok(dev->ops->vq_gemv(dev->state, m, g, &err), &err);
        dev->ops->matrix_close(dev->state, m);
    } else
        assert_ok(dev->ops->gemv(dev->state, c->out, c->in, c->type, c->w, g, &err), &err);
}

static void check_rows(const gemv_case *c, const vptq_device *dev, size_t n, float beta,
                       const float *bias)
{
    const size_t ldx = c->in + 5, ldy = c->out + 3;
    float *y = vtest_alloc(n * ldy, sizeof *y);
    for (size_t i = 0; i < n * ldy; i++)
        y[i] = beta != 0 ? (float)(i % 11) : NAN; /* not read when beta is 0 */
    const vptq_gemv_args g = {
        .n = n, .x = c->x, .y = y, .ldx = ldx, .ldy = ldy, .beta = beta, .bias = bias};
    /* more than 8 rows: 11 bits of x and of decoded weights on a GPU (docs/gpu.md), each off by
     * 2^-12 at most, of half of `size` */
    const double limit = c->q && !dev->ops->host_memory && n > 8 ? 0x1p-12 : 2e-6;
    run(c, dev, &g);
    for (size_t i = 0; i < n; i++)
        for (size_t r = 0; r < ldy; r++) {
            const float before = (float)((i * ldy + r) % 11);
            if (r >= c->out) { /* the gap after the row is not written */
                assert_true(beta != 0 ? y[i * ldy + r] == before : isnan(y[i * ldy + r]));
                continue;
            }
            double want = (beta != 0 ? (double)before : 0) + (bias ? (double)bias[r] : 0);
            double size = fabs(want);
            for (size_t j = 0; j < c->in; j++) {
                double term = (double)c->decoded[r * c->in + j] * (double)c->x[i * ldx + j];
                want += term;
                size += 2 * fabs(term); /* a scaled value and a bias may cancel */
            }
            if (!(fabs((double)y[i * ldy + r] - want) <= limit * size + 1e-12))
                fail_msg("row %zu, element %zu: %g, expected %g", i, r, (double)y[i * ldy + r],
                         want);
        }
    free(y);
}

static void check_gemv(void *arg, const vptq_device *dev, bool is_ref)
{
    const gemv_case *c = arg;
    if (c->host_only && !dev->ops->host_memory)
        return;
    if (c->library && is_ref) { /* ref has no library */
        vptq_err err;
        const vptq_gemv_args g = {.n = 0};
        assert_fails(dev->ops->library_gemv(dev->state, c->out, c->in, c->w, &g, &err),
                     VPTQ_E_UNSUPPORTED, &err, "ref backend has no library");
        return;
    }
    const bool emulated = strcmp(dev->ops->name, "emu") == 0; /* slow: few row counts */
    for (size_t n = 0; n <= FEW_ROWS; n += emulated && n ? 2 * n + 1 : 1)
        check_rows(c, dev, n, (float)(n % 2), n % 3 ? c->bias : NULL);
    for (size_t i = 0; i < sizeof many_rows / sizeof *many_rows; i++) {
        const size_t n = many_rows[i];
        const bool small = c->out * c->in < 1000; /* 17 and 70: both tiles of tensor cores */
        if (emulated && ((c->q && !small) || n % 70 > 17))
            continue;
        check_rows(c, dev, n, (float)(n % 2), n % 3 ? c->bias : NULL);
    }
}

/* Compares rows computed together with rows computed alone; `first` stores the latter. */
static void check_company_on(const gemv_case *c, const char *name, vptq_simd simd, int threads,
                             bool first)
{
    const size_t ldx = c->in + 5;
    devices_one d;
    float *y = vtest_alloc(FEW_ROWS * c->out, sizeof *y);
    devices_open(&d, name, simd, threads);
    for (size_t i = 0; i < FEW_ROWS && first; i++) {
        const vptq_gemv_args one = {
            .n = 1, .x = c->x + i * ldx, .y = c->alone + i * c->out, .ldx = ldx, .ldy = c->out};
        run(c, &d.dev, &one);
    }
    const vptq_gemv_args all = {.n = FEW_ROWS, .x = c->x, .y = y, .ldx = ldx, .ldy = c->out};
    run(c, &d.dev, &all);
    assert_same_f32(y, c->alone, FEW_ROWS * c->out);
    devices_close(&d);
    free(y);
}

/* Many rows give the same bits as earlier on this device (`first`: stores them), also next to
 * rows of NaN. */
static void check_many_on(const gemv_case *c, vptq_simd simd, int threads, bool first)
{
    const size_t ldx = c->in + 5;
    devices_one d;
    float *y = vtest_alloc(MANY_ROWS * c->out, sizeof *y);
    float *x = vtest_alloc(MANY_ROWS * ldx, sizeof *x);
    memcpy(x, c->x, MANY_ROWS * ldx * sizeof *x);
    devices_open(&d, "cpu", simd, threads);
    const vptq_gemv_args g = {.n = MANY_ROWS, .x = x, .y = y, .ldx = ldx, .ldy = c->out};
    run(c, &d.dev, &g);
    if (first)
        memcpy(c->alone, y, MANY_ROWS * c->out * sizeof *y);
    else
        assert_same_f32(y, c->alone, MANY_ROWS * c->out);
    for (size_t i = 1; i < MANY_ROWS; i += 2)
        x[i * ldx] = NAN;
    run(c, &d.dev, &g);
    for (size_t i = 0; i < MANY_ROWS; i++)
        if (i % 2)
            assert_true(isnan(y[i * c->out]));
        else
            assert_same_f32(y + i * c->out, c->alone + i * c->out, c->out);
    devices_close(&d);
    free(x);
    free(y);
}

/* A row has the same bits alone, among a few others, at every level and for any number of
 * threads. */
static void check_company(const gemv_case *c)
{
    for (int simd = VPTQ_SIMD_NONE; simd <= VPTQ_SIMD_NEON; simd++)
        for (int threads = 1; threads <= 5 && vptq_cpu_has((vptq_simd)simd); threads += 2)
            check_company_on(c, "cpu", (vptq_simd)simd, threads, !simd && threads == 1);
    for (int simd = VPTQ_SIMD_NONE; simd <= VPTQ_SIMD_NEON; simd++)
        for (int threads = 1; threads <= 5 && vptq_cpu_has((vptq_simd)simd); threads += 2)
            check_many_on(c, (vptq_simd)simd, threads, !simd && threads == 1);
    for (uint64_t seed = 0; seed < 2 && !c->q; seed++) {
        cuda_emu_seed(seed);
        check_company_on(c, "emu", VPTQ_SIMD_NONE, 1, seed == 0);
    }
    cuda_emu_seed(0);
}

static void check_all(gemv_case *c)
{
    float *x = vtest_normals(MANY_ROWS * (c->in + 5), 21), *bias = vtest_normals(c->out, 22);
    c->x = x;
    c->bias = bias;
    c->alone = vtest_alloc(MANY_ROWS * c->out, sizeof *c->alone);
    if (c->host_only)
        devices_each(check_gemv, c);
    else
        devices_each_emu(check_gemv, c);
    if (!c->library) /* a library sums in its own order */
        check_company(c);
    free(x);
    free(bias);
    free(c->alone);
}

static void products_with_packed_matrices(void **state)
{
    (void)state;
    /* out, in, v, k, k_res, groups, group_size, outliers, v0, k0, perm, norm */
    static const vptq_vq_shape shapes[] = {
        {32, 24, 4, 256, 0, 1, 24, 0, 0, 0, false, false, false},
        {30, 20, 4, 256, 16, 1, 20, 0, 0, 0, false, true, false},
        {40, 300, 8, 256, 256, 1, 300, 0, 0, 0, true, false, false},
        {310, 517, 8, 4096, 256, 1, 517, 0, 0, 0, false, true, false},
        {64, 41, 6, 4096, 0, 1, 41, 0, 0, 0, false, true, false},
        {30, 33, 12, 4096, 4096, 1, 33, 0, 0, 0, false, true, false},
        {36, 52, 4, 256, 16, 4, 13, 0, 0, 0, true, true, false},
        {300, 1040, 2, 16, 4, 4, 260, 0, 0, 0, true, true, false},
        {48, 40, 8, 256, 16, 1, 36, 4, 4, 64, true, true, false},
        {31, 45, 6, 256, 0, 4, 10, 5, 4, 256, true, true, false},
        {31, 345, 6, 64, 2, 1, 45, 300, 9, 7, false, false, false},
        {10, 19, 1, 65536, 65536, 1, 19, 0, 0, 0, false, true, false},
        {7, 21, 1, 65536, 32768, 1, 21, 0, 0, 0, true, true, false},
        {70, 90, 16, 8192, 4096, 1, 90, 0, 0, 0, false, true, false}, /* 25 bits */
        {70, 90, 16, 8192, 8192, 1, 90, 0, 0, 0, false, true, false}, /* 26 bits */
        {24, 20, 4, 16, 256, 1, 20, 0, 0, 0, false, false, false},
        {5, 700, 1, 2, 0, 1, 700, 0, 0, 0, true, true, false},
        {7, 600, 64, 1, 2, 2, 300, 0, 0, 0, false, true, false},
        {1, 1, 3, 2, 0, 1, 1, 0, 0, 0, false, false, false},
        {1000, 65, 8, 16, 16, 1, 65, 0, 0, 0, false, false, false},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        vmatrix m;
        vptq_err err;
        const vptq_vq_shape *s = &shapes[i];
        assert_ok(vptq_vq_shape_check(s, &err), &err);
        vmatrix_make(&m, s);
        float *w = vtest_alloc((size_t)s->out * s->in, sizeof *w);
        vmatrix_decode(&m, w);
        gemv_case c = {.q = &m.q, .out = s->out, .in = s->in, .decoded = w};
        check_all(&c);
        free(w);
        vmatrix_free(&m);
    }
}

/* Codebooks of 16-bit numbers, as in files, with magnitudes outside of float16: the cpu stores
 * large codebooks shifted. */
static void products_with_codebooks_of_any_magnitude(void **state)
{
    (void)state;
    static const struct {
        vptq_vq_shape shape;
        vptq_dtype type;
        int exponent; /* magnitude of the numbers, about 2^exponent */
    } cases[] = {
        {{310, 517, 8, 4096, 256, 1, 517, 0, 0, 0, true, true, false}, VPTQ_F16, 0},
        {{40, 70, 8, 4096, 256, 1, 70, 0, 0, 0, false, false, false}, VPTQ_F16, -9},
        {{40, 70, 8, 1024, 0, 1, 70, 0, 0, 0, false, false, false}, VPTQ_BF16, 0},
        {{72, 40, 6, 2048, 512, 2, 20, 0, 0, 0, false, true, false}, VPTQ_BF16, -60},
        {{33, 45, 12, 1024, 64, 1, 41, 4, 4, 64, true, true, false}, VPTQ_BF16, 70},
        {{34, 21, 4, 4096, 2048, 1, 21, 0, 0, 0, false, false, false}, VPTQ_F16, -4},
        {{21, 35, 3, 8192, 0, 1, 35, 0, 0, 0, true, false, false}, VPTQ_BF16, -20},
        {{48, 24, 8, 65536, 256, 1, 24, 0, 0, 0, false, true, false}, VPTQ_F16, -5}, /* large */
        {{40, 24, 16, 65536, 0, 1, 24, 0, 0, 0, false, true, false}, VPTQ_BF16, 0},  /* large */
        {{16, 30, 8, 512, 512, 1, 30, 0, 0, 0, false, false, false},
         VPTQ_BF16,
         105}, /* no shift */
        /* more than 16 bits: kept as floats */
        {{42, 30, 8, 1024, 256, 1, 30, 0, 0, 0, false, true, false}, VPTQ_F32, -3},
        {{26, 30, 4, 2048, 0, 1, 30, 0, 0, 0, true, false, false}, VPTQ_F32, 0},
        {{40, 12, 8, 32768, 4, 1, 12, 0, 0, 0, false, false, false}, VPTQ_F32, 0}, /* large */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const vptq_vq_shape *s = &cases[i].shape;
        vmatrix m;
        vmatrix_make(&m, s);
        const size_t main = (size_t)s->groups * s->k * s->v;
        const size_t res = (size_t)s->groups * s->k_res * s->v;
        const float unit = ldexpf(cases[i].type == VPTQ_F32 ? 0.3F : 1, cases[i].exponent);
        for (size_t j = 0; j < main; j++)
            m.centroids[j] *= unit; /* float16 numbers until here */
        for (size_t j = 0; j < res; j++)
            m.res_centroids[j] *= unit;
        vptq_round_to_n(cases[i].type, m.centroids, main);
        vptq_round_to_n(cases[i].type, m.res_centroids, res);
        float *w = vtest_alloc((size_t)s->out * s->in, sizeof *w);
        vmatrix_decode(&m, w);
        gemv_case c = {.q = &m.q,
                       .host_only = cases[i].type == VPTQ_F32,
                       .out = s->out,
                       .in = s->in,
                       .decoded = w};
        check_all(&c);
        free(w);
        vmatrix_free(&m);
    }
}

/* Moves n numbers to multiples of a scale, at most 127 of them. */
static void put_on_grid(float *c, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++) {
        const float code = rintf(c[i] * 40);
        c[i] = scale * (code > 127 ? 127 : code < -127 ? -127 : code);
    }
    c[0] = 127 * scale;
}

/* Codebooks on an int8 grid, each with a scale of its own: the cpu keeps their codes. */
static void products_with_codebooks_on_a_grid(void **state)
{
    (void)state;
    static const vptq_vq_shape shapes[] = {
        {310, 517, 8, 4096, 256, 1, 517, 0, 0, 0, true, true, false},
        {40, 2070, 8, 256, 16, 1, 2070, 0, 0, 0, true, true, false}, /* three pieces of x */
        {40, 1031, 8, 1024, 0, 1, 1031, 0, 0, 0, false, true, false},
        {33, 70, 4, 1024, 0, 1, 70, 0, 0, 0, false, false, false},
        {50, 45, 6, 2048, 64, 1, 45, 0, 0, 0, true, false, false},
        {61, 46, 12, 1024, 256, 1, 46, 0, 0, 0, false, true, false},
        {70, 90, 16, 8192, 4096, 1, 90, 0, 0, 0, false, true, false},
        {45, 47, 8, 512, 128, 4, 11, 3, 4, 16, true, true, false},
        {41, 45, 6, 1024, 0, 4, 10, 5, 12, 256, false, true, false},
        {64, 30, 8, 65536, 0, 1, 30, 0, 0, 0, false, true, false},
        {64, 30, 12, 32768, 16, 1, 30, 0, 0, 0, false, true, false}, /* codes are row numbers */
        {48, 24, 8, 65536, 256, 1, 24, 0, 0, 0, false, true, false}, /* too large for a grid */
        {40, 19, 33, 1024, 2, 1, 19, 0, 0, 0, false, false, false},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const vptq_vq_shape *s = &shapes[i];
        const size_t main = (size_t)s->k * s->v, res = (size_t)s->k_res * s->v;
        vmatrix m;
        vmatrix_make(&m, s);
        for (size_t g = 0; g < s->groups; g++) {
            put_on_grid(m.centroids + g * main, main, ldexpf((float)(9 + g), -9));
            if (s->k_res)
                put_on_grid(m.res_centroids + g * res, res, ldexpf((float)(15 - g), -12));
        }
        float *w = vtest_alloc((size_t)s->out * s->in, sizeof *w);
        vmatrix_decode(&m, w);
        gemv_case c = {.q = &m.q, .host_only = true, .out = s->out, .in = s->in, .decoded = w};
        check_all(&c);
        free(w);
        vmatrix_free(&m);
    }
}

/* Entries of every width from 1 to 32 bits, with rows that end where their array ends. */
static void entries_of_every_width_are_read(void **state)
{
    (void)state;
    for (unsigned bits = 1; bits <= 32; bits++) {
        const unsigned main_bits = bits <= 16 ? bits : 16;
        const vptq_vq_shape s = {.out = 9,
                                 .in = 40 + bits % 3,
                                 .v = 1,
                                 .k = 1u << main_bits,
                                 .k_res = bits > 16 ? 1u << (bits - 16) : 0,
                                 .groups = 1,
                                 .group_size = 40 + bits % 3};
        vmatrix m;
        vmatrix_make(&m, &s);
        float *w = vtest_alloc((size_t)s.out * s.in, sizeof *w);
        vmatrix_decode(&m, w);
        gemv_case c = {.q = &m.q, .out = s.out, .in = s.in, .decoded = w};
        check_all(&c);
        free(w);
        vmatrix_free(&m);
    }
}

static void products_with_plain_matrices(void **state)
{
    (void)state;
    static const struct {
        size_t out, in;
    } shapes[] = {{1, 1}, {3, 7}, {17, 8}, {5, 33}, {70, 576}, {9, 1541}, {300, 200}};
    static const vptq_dtype types[] = {VPTQ_F32, VPTQ_F16, VPTQ_BF16};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
            const size_t n = shapes[i].out * shapes[i].in;
            const size_t bytes = vptq_dtype_get(types[t])->bytes;
            float *w = vtest_normals(n, 30 + i);
            uint8_t *stored = vtest_alloc(n * bytes + 1, 1), *at = stored + i % 2;
            vptq_round_to_n(types[t], w, n);
            for (size_t j = 0; j < n; j++) {
                uint16_t h =
                    types[t] == VPTQ_F16 ? vptq_f32_to_f16(w[j]) : vptq_f32_to_bf16(w[j]);
                memcpy(at + j * bytes, types[t] == VPTQ_F32 ? (void *)&w[j] : (void *)&h,
                       bytes);
            }
            gemv_case c = {.w = at,
                           .type = types[t],
                           .out = shapes[i].out,
                           .in = shapes[i].in,
                           .decoded = w};
            check_all(&c);
            if (types[t] == VPTQ_F32) {
                c.w = w;
                c.library = true;
                check_all(&c);
            }
            free(stored);
            free(w);
        }
}

typedef struct part_case {
    size_t out, in, split;
    vptq_dtype type;
    const void *w; /* [out, in] */
    const float *x;
} part_case;

static void check_parts(void *arg, const vptq_device *dev, bool is_ref)
{
    static const size_t counts[] = {1, 5, 20};
    const part_case *c = arg;
    const size_t rest = c->out - c->split;
    const char *second = (const char *)c->w + c->split * c->in * vptq_dtype_get(c->type)->bytes;
    vptq_err err;
    (void)is_ref;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const size_t n = counts[i];
        float *whole = vtest_alloc(n * c->out, sizeof *whole);
        float *parts[2] = {vtest_alloc(n * c->split, sizeof **parts),
                           vtest_alloc(n * rest, sizeof **parts)};
        vptq_gemv_args g = {.n = n, .x = c->x, .y = whole, .ldx = c->in, .ldy = c->out};
        assert_ok(dev->ops->gemv(dev->state, c->out, c->in, c->type, c->w, &g, &err), &err);
        g.y = parts[0];
        g.ldy = c->split;
        assert_ok(dev->ops->gemv(dev->state, c->split, c->in, c->type, c->w, &g, &err), &err);
        g.y = parts[1];
        g.ldy = rest;
        assert_ok(dev->ops->gemv(dev->state, rest, c->in, c->type, second, &g, &err), &err);
        for (size_t t = 0; t < n; t++) {
            assert_same_f32(parts[0] + t * c->split, whole + t * c->out, c->split);
            assert_same_f32(parts[1] + t * rest, whole + t * c->out + c->split, rest);
        }
        free(parts[1]);
        free(parts[0]);
        free(whole);
    }
}

/* The forward pass multiplies by a whole matrix or, where memory is short, by parts of it. */
static void parts_of_a_matrix_give_the_same_bits(void **state)
{
    (void)state;
    static const vptq_dtype types[] = {VPTQ_F32, VPTQ_F16, VPTQ_BF16};
    part_case c = {.out = 150, .in = 72, .split = 64};
    float *x = vtest_normals(20 * c.in, 41), *w = vtest_normals(c.out * c.in, 42);
    uint16_t *half = vtest_alloc(c.out * c.in, sizeof *half);
    c.x = x;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        c.type = types[t];
        c.w = c.type == VPTQ_F32 ? (void *)w : half;
        if (c.type == VPTQ_F16)
            vptq_f32_to_f16_n(w, half, c.out * c.in);
        if (c.type == VPTQ_BF16)
            vptq_f32_to_bf16_n(w, half, c.out * c.in);
        devices_each_emu(check_parts, &c);
    }
    free(half);
    free(w);
    free(x);
}

/* The alignment of the weights changes how the CUDA kernel reads them, not the result. */
static void products_with_unaligned_weights(void **state)
{
    (void)state;
    enum { OUT = 5, IN = 1032, ROWS = 17, OFFSETS = 18 };
    static const size_t rows[] = {2, ROWS};
    static const vptq_dtype types[] = {VPTQ_F32, VPTQ_F16, VPTQ_BF16};
    const vptq_ctx ctx = {.threads = 1};
    vptq_device device;
    uint16_t *weights = vtest_alloc(2 * (size_t)OUT * IN, sizeof *weights);
    float *x = vtest_normals(ROWS * IN, 32);
    void *w = NULL, *x_there = NULL, *y_there = NULL;
    vptq_err err;
    for (size_t i = 0; i < 2 * OUT * IN; i++)
        weights[i] = (uint16_t)(i * 40503 >> 3 & 0x3bff); /* numbers in any of the types */
    assert_ok(vptq_device_open(&ctx, devices_gpu(), &device, &err), &err);
    const vptq_backend *ops = device.ops;
    vptq_dev *dev = device.state;
    assert_ok(ops->alloc(dev, OUT * IN * sizeof *x + OFFSETS, 1, &w, &err), &err);
    assert_ok(ops->alloc(dev, ROWS * IN, sizeof *x, &x_there, &err), &err);
    assert_ok(ops->alloc(dev, ROWS * OUT, sizeof *x, &y_there, &err), &err);
    assert_ok(ops->upload(dev, x_there, x, ROWS * IN * sizeof *x, &err), &err);
    for (size_t t = 0; t < 2 * sizeof types / sizeof *types; t++) {
        const vptq_gemv_args g = {
            .n = rows[t % 2], .x = x_there, .y = y_there, .ldx = IN, .ldy = OUT};
        const vptq_dtype type = types[t / 2];
        const size_t bytes = OUT * IN * vptq_dtype_get(type)->bytes;
        float first[ROWS * OUT], y[ROWS * OUT];
        for (size_t offset = 0; offset <= OFFSETS; offset++) {
            uint8_t *from = (uint8_t *)w + offset;
            assert_ok(ops->upload(dev, from, weights, bytes, &err), &err);
            assert_ok(ops->gemv(dev, OUT, IN, type, from, &g, &err), &err);
            assert_ok(ops->download(dev, offset ? y : first, y_there, sizeof y, &err), &err);
            /* many tokens and weights between two elements take another kernel */
            if (offset && g.n == 2)
                assert_memory_equal(y, first, g.n * OUT * sizeof *y);
            else if (offset)
                assert_close(y, first, g.n * OUT, 1e-4, 1e-4);
        }
        assert_true(isfinite(first[0]) && first[0] != first[1]);
    }
    ops->release(dev, w);
    ops->release(dev, x_there);
    ops->release(dev, y_there);
    vptq_device_close(&device);
    free(weights);
    free(x);
}

/* Large and tiny float16 weights in one row: both are exact. */
static void check_range(void *arg, const vptq_device *dev, bool is_ref)
{
    enum { IN = 66, N = 20 }; /* not a multiple of what tiles take, and many tokens */
    uint16_t w[IN];
    float x[N * IN], y[N];
    (void)arg;
    (void)is_ref;
    w[0] = vptq_f32_to_f16(65504);
    for (int i = 1; i < IN; i++)
        w[i] = 3; /* 3 * 2^-24 */
    for (int i = 0; i < N * IN; i++)
        x[i] = i % IN ? 1 : 0;
    const vptq_gemv_args g = {.n = N, .x = x, .ldx = IN, .y = y, .ldy = 1};
    vptq_err err;
    assert_ok(dev->ops->gemv(dev->state, 1, IN, VPTQ_F16, w, &g, &err), &err);
    for (int i = 0; i < N; i++)
        assert_true(y[i] == 65 * 3 * 0x1p-24F);
}

static void products_with_weights_of_every_size(void **state)
{
    (void)state;
    devices_each_emu(check_range, NULL);
}

/* ---- many tokens ---- */

enum { MANY = 70 };
typedef struct many_case {
    const vmatrix *m;
    const float *x, *bias;
} many_case;

static void run_many(const vptq_device *dev, const void *arg, void *out)
{
    const many_case *c = arg;
    const vptq_vq_shape *s = &c->m->q.shape;
    vptq_matrix *m = NULL;
    vptq_err err;
    const size_t ldy = s->out + 3;
    float *y = vtest_alloc(MANY * ldy, sizeof *y);
    for (size_t i = 0; i < MANY * ldy; i++)
        y[i] = (float)(i % 11);
    const vptq_gemv_args g = {.n = MANY,
                              .x = c->x,
                              .y = y,
                              .ldx = s->in + 5,
                              .ldy = ldy,
                              .beta = c->bias ? 1 : 0,
                              .bias = c->bias};
    assert_ok(dev->ops->matrix_open(dev->state, &c->m->q, &m, &err), &err);
    assert_ok(dev->ops->vq_gemv(dev->state, m, &g, &err), &err);
    dev->ops->matrix_close(dev->state, m);
    for (size_t i = 0; i < MANY; i++) {
        memcpy((float *)out + i * s->out, y + i * ldy, s->out * sizeof *y);
        for (size_t j = s->out; j < ldy; j++) /* the gap after a row is not written */
            assert_true(y[i * ldy + j] == (float)((i * ldy + j) % 11));
    }
    free(y);
}

/* Incomplete pieces of several depths and numbers of vector rows; groups and outliers that end
 * inside a piece; vectors that pieces would cut. */
static void products_with_many_rows(void **state)
{
    (void)state;
    devices_skip_if_only();
    static const vptq_vq_shape shapes[] = {
        {100, 700, 8, 64, 16, 1, 700, 0, 0, 0, true, true, false},
        {97, 717, 6, 64, 0, 3, 231, 24, 4, 16, true, true, false},
        {130, 330, 12, 32, 4, 2, 163, 4, 4, 8, false, false, false},
        {60, 400, 5, 32, 8, 1, 400, 0, 0, 0, true, false, false},
        {100, 740, 4, 64, 0, 1, 400, 340, 4, 16, true, true, false},
        {70, 90, 8, 64, 0, 1, 80, 10, 6, 16, false, true, false}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const vptq_vq_shape *s = &shapes[i];
        vmatrix m;
        vmatrix_make(&m, s);
        float *x = vtest_normals(MANY * (s->in + 5), 41), *bias = vtest_normals(s->out, 42);
        const many_case c = {&m, x, i % 2 ? NULL : bias};
        /* Sums of up to 700 products in float, of values whose scale and bias may cancel. */
        const devices_op op = {run_many, &c, MANY * s->out, sizeof(float), 0x1p-38};
        devices_check(&op, NULL);
        vmatrix_free(&m);
        free(x);
        free(bias);
    }
}

static vptq_status multiply_in(void *arg, vptq_device *dev, vptq_err *err)
{
    enum { N = 40 };
    static const float x[N * N], w[N * N];
    static float y[N * N];
    const vmatrix *q = arg;
    const vptq_gemv_args g = {.n = N, .x = x, .y = y, .ldx = N, .ldy = N};
    vptq_matrix *m = NULL;
    vptq_status st = VPTQ_OK;
    if (q) {
        VPTQ_TRY(dev->ops->matrix_open(dev->state, &q->q, &m, err));
        VPTQ_TRY(dev->ops->vq_gemv(dev->state, m, &g, err));
    } else
        VPTQ_TRY(dev->ops->gemv(dev->state, N, N, VPTQ_F32, w, &g, err));
out:
    dev->ops->matrix_close(dev->state, m);
    return st;
}

static void many_rows_survive_failed_allocations(void **state)
{
    (void)state;
    devices_skip_if_only();
    const vptq_vq_shape s = {40, 40, 8, 16, 0, 1, 40, 0, 0, 0, false, false, false};
    vmatrix m;
    vmatrix_make(&m, &s);
    /* at least the device and the panels, then also the handle */
    assert_true(devices_oom_walk("cpu", 2, multiply_in, NULL) >= 2);
    assert_true(devices_oom_walk("cpu", 2, multiply_in, &m) >= 4);
    vmatrix_free(&m);
}

VTEST_MAIN(cmocka_unit_test(products_with_packed_matrices),
           cmocka_unit_test(products_with_codebooks_of_any_magnitude),
           cmocka_unit_test(products_with_codebooks_on_a_grid),
           cmocka_unit_test(entries_of_every_width_are_read),
           cmocka_unit_test(products_with_plain_matrices),
           cmocka_unit_test(parts_of_a_matrix_give_the_same_bits),
           cmocka_unit_test(products_with_unaligned_weights),
           cmocka_unit_test(products_with_weights_of_every_size),
           cmocka_unit_test(products_with_many_rows),
           cmocka_unit_test(many_rows_survive_failed_allocations))
