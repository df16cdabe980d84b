/* The kernels of vptq_cpu_double (double.h). */
#include "lib/base/simd_doubles.h"

#include "lib/backend/cpu/double.h"

/* A block of ROWS * VECTORS accumulators, the vectors of B and one element of A fill the
 * registers: 28 of 32, or 16 of 16 with AVX2. */
enum { LANES = SIMD_DOUBLES, ROWS = LANES, VECTORS = 3, WIDTH = VECTORS * LANES };

/* ---- panels ---- */

/* Rows are read in groups that fit the ways of the first-level cache, whatever `ld` is. */
enum { GROUP = 4 };

SIMD_INLINE void gather_rows(size_t count, size_t k, const void *x, bool single, size_t ld,
                             double *panel)
{
    for (size_t j = 0; j < WIDTH; j += GROUP)
        for (size_t i = 0; i < k; i++)
            for (size_t g = j; g < j + GROUP; g++)
                panel[i * WIDTH + g] = g >= count ? 0
                                       : single   ? (double)((const float *)x)[g * ld + i]
                                                  : ((const double *)x)[g * ld + i];
}

static void gather(size_t count, size_t k, const double *x, size_t ld, double *panel)
{
    if (count >= WIDTH)
        gather_rows(WIDTH, k, x, false, ld, panel);
    else
        gather_rows(count, k, x, false, ld, panel);
}

static void gather_f32(size_t count, size_t k, const float *x, size_t ld, double *panel)
{
    if (count >= WIDTH)
        gather_rows(WIDTH, k, x, true, ld, panel);
    else
        gather_rows(count, k, x, true, ld, panel);
}

static void scatter(size_t count, size_t k, const double *panel, double *x, size_t ld)
{
    size_t j = 0;
    for (; j + GROUP <= count; j += GROUP)
        for (size_t i = 0; i < k; i++)
            for (size_t g = j; g < j + GROUP; g++)
                x[g * ld + i] = panel[i * WIDTH + g];
    for (; j < count; j++)
        for (size_t i = 0; i < k; i++)
            x[j * ld + i] = panel[i * WIDTH + j];
}

/* ---- blocks ---- */

typedef struct block {
    vr v[ROWS][VECTORS];
} block;

SIMD_INLINE void load(block *s, const double *c, size_t ldc)
{
#pragma GCC unroll 8
    for (size_t i = 0; i < ROWS; i++)
#pragma GCC unroll 3
        for (size_t j = 0; j < VECTORS; j++)
            s->v[i][j] = vr_load(c + i * ldc + j * LANES);
}

SIMD_INLINE void store(const block *s, double *c, size_t ldc)
{
#pragma GCC unroll 8
    for (size_t i = 0; i < ROWS; i++)
#pragma GCC unroll 3
        for (size_t j = 0; j < VECTORS; j++)
            vr_store(c + i * ldc + j * LANES, s->v[i][j]);
}

SIMD_INLINE void products(block *s, size_t k, const double *a, const double *b)
{
    for (size_t l = 0; l < k; l++, a += WIDTH, b += WIDTH) {
        vr y[VECTORS];
#pragma GCC unroll 3
        for (size_t j = 0; j < VECTORS; j++)
            y[j] = vr_load(b + j * LANES);
#pragma GCC unroll 8
        for (size_t i = 0; i < ROWS; i++) {
            const vr x = vr_set1(a[i]);
#pragma GCC unroll 3
            for (size_t j = 0; j < VECTORS; j++)
                s->v[i][j] = vr_mul_sub(x, y[j], s->v[i][j]);
        }
    }
}

static void subtract(size_t k, const double *a, const double *b, double *c, size_t ldc,
                     const double *next)
{
    block s;
    load(&s, c, ldc);
    for (size_t i = 0; i < ROWS; i++)
        for (size_t j = 0; j < WIDTH; j += 64 / sizeof *c)
            __builtin_prefetch(next + i * ldc + j, 1);
    products(&s, k, a, b);
    store(&s, c, ldc);
}

static void solve(size_t k, const double *l, size_t depth, const double *inverse, double *x)
{
    for (size_t at = 0; at < k; at += ROWS) {
        const double *a = l + at / WIDTH * depth * WIDTH + at % WIDTH;
        block s;
        load(&s, x + at * WIDTH, WIDTH);
        products(&s, at, a, x);
        a += at * WIDTH; /* the triangle itself */
#pragma GCC unroll 8
        for (size_t i = 0; i < ROWS; i++) {
            const vr scale = vr_set1(inverse[at + i]);
#pragma GCC unroll 3
            for (size_t j = 0; j < VECTORS; j++)
                s.v[i][j] = vr_mul(s.v[i][j], scale);
#pragma GCC unroll 8
            for (size_t r = i + 1; r < ROWS; r++) {
                const vr y = vr_set1(a[i * WIDTH + r]);
#pragma GCC unroll 3
                for (size_t j = 0; j < VECTORS; j++)
                    s.v[r][j] = vr_mul_sub(y, s.v[i][j], s.v[r][j]);
            }
        }
        store(&s, x + at * WIDTH, WIDTH);
    }
}

static size_t factor(size_t count, double *x, double *inverse)
{
    for (size_t i = 0; i < count; i++) {
        double *row = x + i * WIDTH;
        const double pivot = row[i];
        if (!(pivot > 0) || isinf(pivot))
            return i;
        const double root = sqrt(pivot);
        inverse[i] = 1 / root;
        for (size_t j = 0; j < WIDTH; j++)
            row[j] *= inverse[i];
        row[i] = root;
        for (size_t r = i + 1; r < count; r++) {
            const vr y = vr_set1(row[r]);
            for (size_t j = r / LANES * LANES; j < WIDTH; j += LANES) {
                double *to = x + r * WIDTH + j;
                vr_store(to, vr_mul_sub(y, vr_load(row + j), vr_load(to)));
            }
        }
    }
    return count;
}

static void trace(size_t m, size_t k, const double *a, const double *b, const double *e,
                  double *sum)
{
    for (size_t at = 0; at < m; at += ROWS) {
        block s;
#pragma GCC unroll 8
        for (size_t i = 0; i < ROWS; i++)
#pragma GCC unroll 3
            for (size_t j = 0; j < VECTORS; j++)
                s.v[i][j] = vr_set1(0);
        products(&s, k, a + at / WIDTH * k * WIDTH + at % WIDTH, b);
#pragma GCC unroll 3
        for (size_t j = 0; j < VECTORS; j++) {
            vr total = vr_load(sum + j * LANES);
#pragma GCC unroll 8
            for (size_t i = 0; i < ROWS; i++)
                total = vr_mul_add(s.v[i][j], vr_load(e + (at + i) * WIDTH + j * LANES), total);
            vr_store(sum + j * LANES, total);
        }
    }
}

const vptq_cpu_double VPTQ_SIMD_SYMBOL(vptq_cpu_double) = {.rows = ROWS,
                                                           .width = WIDTH,
                                                           .gather = gather,
                                                           .gather_f32 = gather_f32,
                                                           .scatter = scatter,
                                                           .subtract = subtract,
                                                           .solve = solve,
                                                           .factor = factor,
                                                           .trace = trace};
