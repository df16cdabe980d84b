/* The kernels of vptq_cpu_math (math.h). */
#include "lib/base/simd.h"

#include "lib/backend/backend.h"
#include "lib/backend/cpu/exp_simd.h"
#include "lib/backend/cpu/math.h"
#include "lib/base/half.h"

/* Shape of a block of C in `tile`: TILE_ROWS * TILE_VECTORS accumulators, the vectors of B and
 * one element of A fill the registers. */
#if VPTQ_SIMD_LEVEL == 2
enum { TILE_ROWS = 14, TILE_VECTORS = 2 };
#elif VPTQ_SIMD_LEVEL == 1
enum { TILE_ROWS = 6, TILE_VECTORS = 2 };
#else
enum { TILE_ROWS = 6, TILE_VECTORS = 4 };
#endif
enum { LANES = SIMD_LANES, TILE_COLS = TILE_VECTORS * LANES };

/* Bodies of loops over rows: whole registers, and the end of a row in lanes 0 and on of v16. */

SIMD_INLINE void exp_part(float *x, size_t n, vf shift, vf *sum)
{
    const vf e = vf_exp(vf_sub(n < LANES ? vf_load_part(x, n) : vf_load(x), shift));
    if (n < LANES)
        vf_store_part(x, e, n);
    else
        vf_store(x, e);
    *sum = vf_add(*sum, n < LANES ? vf_fill_after(e, n, 0) : e);
}

static float exp_shift(float *x, size_t n, float shift)
{
    const vf s = vf_set1(shift);
    v16 sum = v16_set1(0);
    size_t i = 0;
    for (; i + SIMD_SUM <= n; i += SIMD_SUM)
#pragma GCC unroll 4
        for (size_t p = 0; p < SIMD_PARTS; p++)
            exp_part(x + i + p * LANES, LANES, s, &sum.part[p]);
#pragma GCC unroll 4
    for (size_t p = 0; p < SIMD_PARTS; p++, i += LANES)
        if (i < n)
            exp_part(x + i, simd_lanes_left(n, i), s, &sum.part[p]);
    return v16_sum(sum);
}

static double exp_sum(const float *x, size_t n, float shift)
{
    const vf s = vf_set1(shift);
    vd16 sum = vd16_zero();
    size_t i = 0;
    for (; i + SIMD_SUM <= n; i += SIMD_SUM)
#pragma GCC unroll 4
        for (size_t p = 0; p < SIMD_PARTS; p++)
            sum.part[p] = vd_add(sum.part[p], vf_exp(vf_sub(vf_load(x + i + p * LANES), s)));
#pragma GCC unroll 4
    for (size_t p = 0; p < SIMD_PARTS; p++, i += LANES)
        if (i < n) {
            const size_t t = simd_lanes_left(n, i);
            const vf e = vf_exp(vf_sub(vf_load_part(x + i, t), s));
            sum.part[p] = vd_add(sum.part[p], vf_fill_after(e, t, 0));
        }
    return vd16_sum(sum);
}

static float row_max(const float *x, size_t n)
{
    v16 m = v16_set1(-INFINITY);
    size_t i = 0;
    for (; i + SIMD_SUM <= n; i += SIMD_SUM)
#pragma GCC unroll 4
        for (size_t p = 0; p < SIMD_PARTS; p++)
            m.part[p] = vf_max(vf_load(x + i + p * LANES), m.part[p]);
#pragma GCC unroll 4
    for (size_t p = 0; p < SIMD_PARTS; p++, i += LANES)
        if (i < n) {
            const size_t t = simd_lanes_left(n, i);
            m.part[p] = vf_max(vf_fill_after(vf_load_part(x + i, t), t, -INFINITY), m.part[p]);
        }
    return v16_max(m);
}

/* Sum of x in double, or of its squares; both products are exact. */
SIMD_INLINE double add_up(const float *x, size_t n, bool squares)
{
    const vd one = vd_from(vf_set1(1));
    vd16 sum = vd16_zero();
    size_t i = 0;
    for (; i + SIMD_SUM <= n; i += SIMD_SUM)
#pragma GCC unroll 4
        for (size_t p = 0; p < SIMD_PARTS; p++) {
            const vd d = vd_from(vf_load(x + i + p * LANES));
            sum.part[p] = vd_mul_add(squares ? d : one, d, sum.part[p]);
        }
#pragma GCC unroll 4
    for (size_t p = 0; p < SIMD_PARTS; p++, i += LANES)
        if (i < n) {
            const vd d = vd_from(vf_load_part(x + i, simd_lanes_left(n, i)));
            sum.part[p] = vd_mul_add(squares ? d : one, d, sum.part[p]);
        }
    return vd16_sum(sum);
}

static double sum_squares(const float *x, size_t n)
{
    return add_up(x, n, true);
}

static void center(const float *x, float *y, size_t n)
{
    const float mean = (float)(add_up(x, n, false) / (double)n);
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] - mean;
}

SIMD_INLINE void dot_step(const double *a, const float *b, vd16 *sum)
{
#pragma GCC unroll 4
    for (size_t p = 0; p < SIMD_PARTS; p++)
        sum->part[p] =
            vd_mul_add(vd_load(a + p * LANES), vd_from(vf_load(b + p * LANES)), sum->part[p]);
}

static void norm(const float *x, const float *w, float s, const float *more, float *y, size_t n)
{
    const vf v = vf_set1(s);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const vf z = vf_mul(vf_mul(vf_load(x + i), v), vf_load(w + i));
        vf_store(y + i, more ? vf_add(vf_load(more + i), z) : z);
    }
    if (i < n) {
        const vf z = vf_mul(vf_mul(vf_load_part(x + i, n - i), v), vf_load_part(w + i, n - i));
        vf_store_part(y + i, more ? vf_add(vf_load_part(more + i, n - i), z) : z, n - i);
    }
}

static void rotate(float *lo, float *hi, const float *c, const float *s, size_t n)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const vf a = vf_load(lo + i), b = vf_load(hi + i);
        const vf cosine = vf_load(c + i), sine = vf_load(s + i);
        vf_store(lo + i, vf_sub(vf_mul(a, cosine), vf_mul(b, sine)));
        vf_store(hi + i, vf_add(vf_mul(b, cosine), vf_mul(a, sine)));
    }
    if (i < n) {
        const size_t t = n - i;
        const vf a = vf_load_part(lo + i, t), b = vf_load_part(hi + i, t);
        const vf cosine = vf_load_part(c + i, t), sine = vf_load_part(s + i, t);
        vf_store_part(lo + i, vf_sub(vf_mul(a, cosine), vf_mul(b, sine)), t);
        vf_store_part(hi + i, vf_add(vf_mul(b, cosine), vf_mul(a, sine)), t);
    }
}

static inline vf vf_swiglu(vf gate, vf up, bool gelu)
{
    vf z = gate;
    if (gelu)
        z = vf_mul(gate, vf_fma(vf_mul(gate, gate), vf_set1((float)VPTQ_GELU_D),
                                vf_set1((float)VPTQ_GELU_C)));
    const vf e = vf_exp(vf_sub(vf_set1(0), z));
    return vf_mul(vf_div(gate, vf_add(vf_set1(1), e)), up);
}

static void swiglu(const float *gate, const float *up, bool gelu, float *y, size_t n)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        vf_store(y + i, vf_swiglu(vf_load(gate + i), up ? vf_load(up + i) : vf_set1(1), gelu));
    if (i < n) {
        const vf g = vf_load_part(gate + i, n - i);
        const vf u = up ? vf_load_part(up + i, n - i) : vf_set1(1);
        vf_store_part(y + i, vf_swiglu(g, u, gelu), n - i);
    }
}

/* tanh as in Cephes' tanhf: a polynomial below 0.625, where the other formula cancels. */
static inline vf vf_tanh(vf x)
{
    const vf size = vf_max(x, vf_sub(vf_set1(0), x)), square = vf_mul(x, x);
    vf p = vf_set1(-5.70498872745e-3f);
    p = vf_fma(p, square, vf_set1(2.06390887954e-2f));
    p = vf_fma(p, square, vf_set1(-5.37397155531e-2f));
    p = vf_fma(p, square, vf_set1(1.33314422036e-1f));
    p = vf_fma(p, square, vf_set1(-3.33332819422e-1f));
    const vf near = vf_fma(vf_mul(p, square), x, x);
    const vf e = vf_add(vf_exp(vf_add(size, size)), vf_set1(1));
    const vf far = vf_sub(vf_set1(1), vf_div(vf_set1(2), e));
    const vf turned = vf_select_greater(vf_set1(0), x, vf_sub(vf_set1(0), far), far);
    return vf_select_greater(vf_set1(0.625f), size, near, turned);
}

static void soft_cap(float *x, size_t n, float cap)
{
    const vf c = vf_set1(cap);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        vf_store(x + i, vf_mul(c, vf_tanh(vf_div(vf_load(x + i), c))));
    if (i < n)
        vf_store_part(x + i, vf_mul(c, vf_tanh(vf_div(vf_load_part(x + i, n - i), c))), n - i);
}

static void add_double(const float *x, double *sum, size_t n)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        vd_store(sum + i, vd_add(vd_load(sum + i), vf_load(x + i)));
    for (; i < n; i++)
        sum[i] += (double)x[i];
}

static void copy(size_t rows, size_t cols, const float *src, size_t ld_src, float factor,
                 float *dst, size_t ld_dst)
{
    const vf f = vf_set1(factor);
    for (size_t i = 0; i < rows; i++, src += ld_src, dst += ld_dst) {
        size_t j = 0;
        for (; j + LANES <= cols; j += LANES)
            vf_store(dst + j, vf_mul(vf_load(src + j), f));
        if (j < cols)
            vf_store_part(dst + j, vf_mul(vf_load_part(src + j, cols - j), f), cols - j);
    }
}

static void scale(float *x, size_t n, float s)
{
    copy(1, n, x, n, s, x, n);
}

static void transpose(size_t rows, size_t cols, const float *src, size_t ld_src, float factor,
                      float *dst, size_t ld_dst)
{
    /* One cache line of every row at a time: lines that map to the same few cache sets are used
     * up before they evict each other. */
    enum { LINE = 16 };
    const size_t whole_rows = rows / 4 * 4, whole_cols = cols / 4 * 4;
    for (size_t line = 0; line < whole_cols; line += LINE) {
        const size_t end = line + LINE < whole_cols ? line + LINE : whole_cols;
        for (size_t i = 0; i < whole_rows; i += 4)
            for (size_t j = line; j < end; j += 4)
                transpose_4x4(src + i * ld_src + j, ld_src, factor, dst + j * ld_dst + i,
                              ld_dst);
    }
    for (size_t i = 0; i < rows; i++)
        for (size_t j = i < whole_rows ? whole_cols : 0; j < cols; j++)
            dst[j * ld_dst + i] = factor * src[i * ld_src + j];
}

/* Dot products of ROWS_A rows of A with ROWS_B rows of B, or of one with MAX_B. The counts are
 * constants at the call, so that the accumulators stay in registers. */
enum { ROWS_A = 2, ROWS_B = SIMD_512 ? 4 : 3, MAX_B = 4 };

SIMD_INLINE void dots_block(size_t rows_a, size_t rows_b, size_t k, float alpha, const float *a,
                            size_t lda, const float *b, size_t ldb, float *c, size_t ldc)
{
    v16 s[ROWS_A][MAX_B];
    for (size_t i = 0; i < rows_a; i++)
        for (size_t j = 0; j < rows_b; j++)
            s[i][j] = v16_set1(0);
    size_t l = 0;
    for (; l + SIMD_SUM <= k; l += SIMD_SUM)
#pragma GCC unroll 4
        for (size_t p = 0; p < SIMD_PARTS; p++) {
            vf x[ROWS_A];
            for (size_t i = 0; i < rows_a; i++)
                x[i] = vf_load(a + i * lda + l + p * LANES);
            for (size_t j = 0; j < rows_b; j++) {
                const vf y = vf_load(b + j * ldb + l + p * LANES);
                for (size_t i = 0; i < rows_a; i++)
                    s[i][j].part[p] = vf_fma(x[i], y, s[i][j].part[p]);
            }
        }
#pragma GCC unroll 4
    for (size_t p = 0; p < SIMD_PARTS; p++, l += LANES)
        for (size_t j = 0; l < k && j < rows_b; j++) {
            const size_t t = simd_lanes_left(k, l);
            const vf y = vf_load_part(b + j * ldb + l, t);
            for (size_t i = 0; i < rows_a; i++)
                s[i][j].part[p] = vf_fma(vf_load_part(a + i * lda + l, t), y, s[i][j].part[p]);
        }
    for (size_t i = 0; i < rows_a; i++)
        for (size_t j = 0; j < rows_b; j++)
            c[i * ldc + j] += alpha * v16_sum(s[i][j]);
}

SIMD_INLINE void dots_columns(size_t cols, size_t m, size_t k, float alpha, const float *a,
                              size_t lda, const float *b, size_t ldb, float *c, size_t ldc)
{
    size_t i = 0;
    for (; i + ROWS_A <= m; i += ROWS_A)
        dots_block(ROWS_A, cols, k, alpha, a + i * lda, lda, b, ldb, c + i * ldc, ldc);
    if (i < m)
        dots_block(1, cols, k, alpha, a + i * lda, lda, b, ldb, c + i * ldc, ldc);
}

static void dots(size_t m, size_t n, size_t k, float alpha, const float *a, size_t lda,
                 const float *b, size_t ldb, float *c, size_t ldc)
{
    size_t j = 0;
    for (; m == 1 && j + MAX_B <= n; j += MAX_B)
        dots_block(1, MAX_B, k, alpha, a, lda, b + j * ldb, ldb, c + j, ldc);
    for (; j + ROWS_B <= n; j += ROWS_B)
        dots_columns(ROWS_B, m, k, alpha, a, lda, b + j * ldb, ldb, c + j, ldc);
    for (; j < n; j++)
        dots_columns(1, m, k, alpha, a, lda, b + j * ldb, ldb, c + j, ldc);
}

/* COLS vectors of columns of C for ROWS_A rows of A. */
enum { COLS = 4 };

static inline void axpys_block(size_t rows_a, size_t cols, size_t k, float alpha,
                               const float *a, size_t lda, const float *b, size_t ldb, float *c,
                               size_t ldc)
{
    vf s[ROWS_A][COLS];
    for (size_t i = 0; i < rows_a; i++)
        for (size_t j = 0; j < cols; j++)
            s[i][j] = vf_set1(0);
    for (size_t l = 0; l < k; l++)
        for (size_t j = 0; j < cols; j++) {
            const vf y = vf_load(b + l * ldb + j * LANES);
            for (size_t i = 0; i < rows_a; i++)
                s[i][j] = vf_fma(vf_set1(a[i * lda + l]), y, s[i][j]);
        }
    for (size_t i = 0; i < rows_a; i++)
        for (size_t j = 0; j < cols; j++) {
            float *to = c + i * ldc + j * LANES;
            vf_store(to, vf_fma(vf_set1(alpha), s[i][j], vf_load(to)));
        }
}

static void axpys_tail(size_t n, size_t k, float alpha, const float *a, const float *b,
                       size_t ldb, float *c)
{
    vf s = vf_set1(0);
    for (size_t l = 0; l < k; l++)
        s = vf_fma(vf_set1(a[l]), vf_load_part(b + l * ldb, n), s);
    vf_store_part(c, vf_fma(vf_set1(alpha), s, vf_load_part(c, n)), n);
}

static void axpys(size_t m, size_t n, size_t k, float alpha, const float *a, size_t lda,
                  const float *b, size_t ldb, float *c, size_t ldc)
{
    size_t j = 0;
    for (; j + COLS * LANES <= n; j += COLS * LANES) {
        size_t i = 0;
        for (; i + ROWS_A <= m; i += ROWS_A)
            axpys_block(ROWS_A, COLS, k, alpha, a + i * lda, lda, b + j, ldb, c + i * ldc + j,
                        ldc);
        if (i < m)
            axpys_block(1, COLS, k, alpha, a + i * lda, lda, b + j, ldb, c + i * ldc + j, ldc);
    }
    for (; j + LANES <= n; j += LANES)
        for (size_t i = 0; i < m; i++)
            axpys_block(1, 1, k, alpha, a + i * lda, lda, b + j, ldb, c + i * ldc + j, ldc);
    if (j < n)
        for (size_t i = 0; i < m; i++)
            axpys_tail(n - j, k, alpha, a + i * lda, b + j, ldb, c + i * ldc + j);
}

static void tile(size_t k, const float *a, const float *b, bool add, float *c, size_t ldc,
                 size_t rows, size_t cols)
{
    /* C is needed last: it arrives while the products are computed. */
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j += 64 / sizeof *c)
            __builtin_prefetch(c + i * ldc + j, 1);
    vf s[TILE_ROWS][TILE_VECTORS];
#pragma GCC unroll 16
    for (size_t i = 0; i < TILE_ROWS; i++)
#pragma GCC unroll 4
        for (size_t j = 0; j < TILE_VECTORS; j++)
            s[i][j] = vf_set1(0);
    for (size_t l = 0; l < k; l++, a += TILE_ROWS, b += TILE_COLS) {
        vf y[TILE_VECTORS];
#pragma GCC unroll 4
        for (size_t j = 0; j < TILE_VECTORS; j++)
            y[j] = vf_load(b + j * LANES);
#pragma GCC unroll 16
        for (size_t i = 0; i < TILE_ROWS; i++) {
            const vf x = vf_set1(a[i]);
#pragma GCC unroll 4
            for (size_t j = 0; j < TILE_VECTORS; j++)
                s[i][j] = vf_fma(x, y[j], s[i][j]);
        }
    }
    float whole[TILE_ROWS * TILE_COLS];
    const bool part = rows < TILE_ROWS || cols < TILE_COLS;
    float *to = part ? whole : c;
    const size_t ld = part ? TILE_COLS : ldc;
#pragma GCC unroll 16
    for (size_t i = 0; i < TILE_ROWS; i++)
#pragma GCC unroll 4
        for (size_t j = 0; j < TILE_VECTORS; j++) {
            float *at = to + i * ld + j * LANES;
            vf_store(at, add && !part ? vf_add(vf_load(at), s[i][j]) : s[i][j]);
        }
    if (part)
        for (size_t i = 0; i < rows; i++)
            for (size_t j = 0; j < cols; j++)
                c[i * ldc + j] =
                    add ? c[i * ldc + j] + whole[i * TILE_COLS + j] : whole[i * TILE_COLS + j];
}

/* ---- bfloat16 ---- */

/* Subnormal operands and results are zero while this is set.  The empty asm statements keep
 * accesses to memory, and with them the arithmetic between, on their side; `sum` is what that
 * arithmetic leaves. */
static uint64_t flush_subnormals(void)
{
    uint64_t old = 0;
#if defined(__x86_64__)
    enum { FLUSH_RESULTS = 0x8000, OPERANDS_ARE_ZERO = 0x40 };
    old = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr((unsigned)old | FLUSH_RESULTS | OPERANDS_ARE_ZERO);
#elif defined(__aarch64__)
    enum { FLUSH_TO_ZERO = 1 << 24 };
    __asm__ volatile("mrs %0, fpcr" : "=r"(old));
    __asm__ volatile("msr fpcr, %0" : : "r"(old | FLUSH_TO_ZERO));
#endif
    __asm__ volatile("" ::: "memory");
    return old;
}

static void restore_subnormals(uint64_t old, const float *sum)
{
    __asm__ volatile("" : : "r"(sum) : "memory");
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr((unsigned)old);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(old));
#else
    (void)old;
#endif
}

/* Rows of C whose even and odd chains fit in registers. */
enum { PAIR_ROWS = TILE_ROWS / 2, PAIRS = 16 };

/* sum [PAIR_ROWS, TILE_COLS] += the products of 32 steps. */
SIMD_INLINE void add_pairs(const float *a, const float *b, float *sum)
{
    vf s[2][PAIR_ROWS][TILE_VECTORS];
    for (size_t o = 0; o < 2; o++)
#pragma GCC unroll 8
        for (size_t i = 0; i < PAIR_ROWS; i++)
#pragma GCC unroll 4
            for (size_t j = 0; j < TILE_VECTORS; j++)
                s[o][i][j] = vf_set1(0);
#pragma GCC unroll 1
    for (size_t l = 0; l < PAIRS; l++)
#pragma GCC unroll 2
        for (size_t o = 0; o < 2; o++, a += TILE_ROWS, b += TILE_COLS) {
            vf y[TILE_VECTORS];
#pragma GCC unroll 4
            for (size_t j = 0; j < TILE_VECTORS; j++)
                y[j] = vf_load(b + j * LANES);
#pragma GCC unroll 8
            for (size_t i = 0; i < PAIR_ROWS; i++) {
                const vf x = vf_set1(a[i]);
#pragma GCC unroll 4
                for (size_t j = 0; j < TILE_VECTORS; j++)
                    s[o][i][j] = vf_fma(x, y[j], s[o][i][j]);
            }
        }
#pragma GCC unroll 8
    for (size_t i = 0; i < PAIR_ROWS; i++)
#pragma GCC unroll 4
        for (size_t j = 0; j < TILE_VECTORS; j++) {
            float *to = sum + i * TILE_COLS + j * LANES;
            vf_store(to, vf_add(vf_load(to), vf_add(s[0][i][j], s[1][i][j])));
        }
}

static void tile_bf16(size_t k, const float *a, const float *b, bool add, float *c, size_t ldc,
                      size_t rows, size_t cols)
{
    float sum[TILE_ROWS * TILE_COLS] = {0};
    for (size_t i = 0; add && i < rows; i++)
        memcpy(sum + i * TILE_COLS, c + i * ldc, cols * sizeof *c);
    const uint64_t old = flush_subnormals();
    for (size_t i = 0; i < TILE_ROWS; i += PAIR_ROWS)
        for (size_t l = 0; l < k; l += 2 * PAIRS)
            add_pairs(a + l * TILE_ROWS + i, b + l * TILE_COLS, sum + i * TILE_COLS);
    restore_subnormals(old, sum);
    for (size_t i = 0; i < rows; i++)
        memcpy(c + i * ldc, sum + i * TILE_COLS, cols * sizeof *c);
}

/* ---- running softmax ---- */

static void softmax_vector(float *s, size_t n, float *max, float *sum, float *f)
{
    const vf none = vf_set1(-INFINITY), old = vf_load(max);
    vf m = old;
    for (size_t l = 0; l < n; l++)
        m = vf_max(vf_load(s + l * TILE_COLS), m);
    vf_store(max, m);
    /* exp(-inf - shift) is 0 for any finite shift; -inf - -inf would be NaN. */
    const vf shift = vf_select_equal(m, none, vf_set1(0), m);
    const vf factor = vf_exp(vf_sub(old, shift));
    vf total = vf_mul(vf_load(sum), factor);
    for (size_t l = 0; l < n; l++) {
        const vf p = vf_exp(vf_sub(vf_load(s + l * TILE_COLS), shift));
        vf_store(s + l * TILE_COLS, p);
        total = vf_add(total, p);
    }
    vf_store(sum, total);
    vf_store(f, factor);
}

static void softmax(float *s, size_t n, float *max, float *sum, float *f)
{
    for (size_t j = 0; j < TILE_COLS; j += LANES)
        softmax_vector(s + j, n, max + j, sum + j, f + j);
}

static void scale_columns(float *x, size_t n, const float *f)
{
    for (size_t l = 0; l < n; l++, x += TILE_COLS)
        for (size_t j = 0; j < TILE_COLS; j += LANES)
            vf_store(x + j, vf_mul(vf_load(x + j), vf_load(f + j)));
}

/* ---- pages of the key-value cache ----
 *
 * Each vector that is loaded from a page, and converted, serves up to PAGE_HEADS query heads.
 */

/* heads * vectors accumulators, one factor per head and a loaded vector fill the 16 registers
 * of AVX2. */
enum {
    PAGE_HEADS = 3,
    PAGE_VECTORS = VPTQ_KV_PAGE / LANES < 4 ? VPTQ_KV_PAGE / LANES : 4,
    PAGE_STEP = PAGE_VECTORS * LANES
};

SIMD_INLINE vf page_load(bool half, const void *page, size_t at)
{
    return half ? vf_load_f16((const uint16_t *)page + at) : vf_load((const float *)page + at);
}

/* Tokens [t0, t0 + PAGE_STEP) for heads <= PAGE_HEADS, a constant at the call. */
SIMD_INLINE void scores_block(bool half, size_t heads, size_t d, const float *q,
                              const void *keys, size_t t0, float *score, size_t ld)
{
    vf s[PAGE_HEADS][PAGE_VECTORS];
#pragma GCC unroll 3
    for (size_t h = 0; h < heads; h++)
#pragma GCC unroll 4
        for (size_t v = 0; v < PAGE_VECTORS; v++)
            s[h][v] = vf_set1(0);
    for (size_t i = 0; i < d; i++) {
        vf x[PAGE_HEADS];
#pragma GCC unroll 3
        for (size_t h = 0; h < heads; h++)
            x[h] = vf_set1(q[h * d + i]);
#pragma GCC unroll 4
        for (size_t v = 0; v < PAGE_VECTORS; v++) {
            const vf k = page_load(half, keys, i * VPTQ_KV_PAGE + t0 + v * LANES);
#pragma GCC unroll 3
            for (size_t h = 0; h < heads; h++)
                s[h][v] = vf_fma(x[h], k, s[h][v]);
        }
    }
#pragma GCC unroll 3
    for (size_t h = 0; h < heads; h++)
#pragma GCC unroll 4
        for (size_t v = 0; v < PAGE_VECTORS; v++)
            vf_store(score + h * ld + t0 + v * LANES, s[h][v]);
}

SIMD_INLINE void scores_heads(bool half, size_t heads, size_t d, const float *q,
                              const void *keys, float *score, size_t ld)
{
    for (size_t t = 0; t < VPTQ_KV_PAGE; t += PAGE_STEP)
        scores_block(half, heads, d, q, keys, t, score, ld);
}

SIMD_INLINE void scores_all(bool half, size_t heads, size_t d, const float *q, const void *keys,
                            float *score, size_t ld)
{
    size_t h = 0;
    for (; h + PAGE_HEADS <= heads; h += PAGE_HEADS)
        scores_heads(half, PAGE_HEADS, d, q + h * d, keys, score + h * ld, ld);
    if (heads - h == 2)
        scores_heads(half, 2, d, q + h * d, keys, score + h * ld, ld);
    else if (heads - h == 1)
        scores_heads(half, 1, d, q + h * d, keys, score + h * ld, ld);
}

static void page_scores(bool half, size_t heads, size_t d, const float *q, const void *keys,
                        float *score, size_t ld)
{
    if (half)
        scores_all(true, heads, d, q, keys, score, ld);
    else
        scores_all(false, heads, d, q, keys, score, ld);
}

/* Dimensions [i0, i0 + vectors * LANES). */
SIMD_INLINE void mix_block(bool half, size_t heads, size_t vectors, size_t d, const float *p,
                           size_t ld, size_t first, size_t end, const void *values, size_t i0,
                           float *out)
{
    vf s[PAGE_HEADS][PAGE_VECTORS];
#pragma GCC unroll 3
    for (size_t h = 0; h < heads; h++)
#pragma GCC unroll 4
        for (size_t v = 0; v < vectors; v++)
            s[h][v] = vf_load(out + h * d + i0 + v * LANES);
    for (size_t t = first; t < end; t++) {
        vf x[PAGE_HEADS];
#pragma GCC unroll 3
        for (size_t h = 0; h < heads; h++)
            x[h] = vf_set1(p[h * ld + t]);
#pragma GCC unroll 4
        for (size_t v = 0; v < vectors; v++) {
            const vf y = page_load(half, values, t * d + i0 + v * LANES);
#pragma GCC unroll 3
            for (size_t h = 0; h < heads; h++)
                s[h][v] = vf_fma(x[h], y, s[h][v]);
        }
    }
#pragma GCC unroll 3
    for (size_t h = 0; h < heads; h++)
#pragma GCC unroll 4
        for (size_t v = 0; v < vectors; v++)
            vf_store(out + h * d + i0 + v * LANES, s[h][v]);
}

SIMD_INLINE void mix_heads(bool half, size_t heads, size_t d, const float *p, size_t ld,
                           size_t first, size_t end, const void *values, float *out)
{
    size_t i = 0;
    for (; i + PAGE_STEP <= d; i += PAGE_STEP)
        mix_block(half, heads, PAGE_VECTORS, d, p, ld, first, end, values, i, out);
    for (; i + LANES <= d; i += LANES)
        mix_block(half, heads, 1, d, p, ld, first, end, values, i, out);
    for (; i < d; i++)
        for (size_t h = 0; h < heads; h++)
            for (size_t t = first; t < end; t++) {
                const float y = half ? vptq_f16_to_f32(((const uint16_t *)values)[t * d + i])
                                     : ((const float *)values)[t * d + i];
                out[h * d + i] = fmaf(p[h * ld + t], y, out[h * d + i]);
            }
}

SIMD_INLINE void mix_all(bool half, size_t heads, size_t d, const float *p, size_t ld,
                         size_t first, size_t end, const void *values, float *out)
{
    size_t h = 0;
    for (; h + PAGE_HEADS <= heads; h += PAGE_HEADS)
        mix_heads(half, PAGE_HEADS, d, p + h * ld, ld, first, end, values, out + h * d);
    if (heads - h == 2)
        mix_heads(half, 2, d, p + h * ld, ld, first, end, values, out + h * d);
    else if (heads - h == 1)
        mix_heads(half, 1, d, p + h * ld, ld, first, end, values, out + h * d);
}

static void page_mix(bool half, size_t heads, size_t d, const float *p, size_t ld, size_t first,
                     size_t end, const void *values, float *out)
{
    if (half)
        mix_all(true, heads, d, p, ld, first, end, values, out);
    else
        mix_all(false, heads, d, p, ld, first, end, values, out);
}

const vptq_cpu_math VPTQ_SIMD_SYMBOL(vptq_cpu_math) = {
    .exp_shift = exp_shift,
    .exp_sum = exp_sum,
    .max = row_max,
    .scale = scale,
    .sum_squares = sum_squares,
    .center = center,
    .norm = norm,
    .rotate = rotate,
    .swiglu = swiglu,
    .soft_cap = soft_cap,
    .add_double = add_double,
    .copy = copy,
    .transpose = transpose,
    .dots = dots,
    .axpys = axpys,
    .tile_rows = TILE_ROWS,
    .tile_cols = TILE_COLS,
    .tile = tile,
    .tile_bf16 = tile_bf16,
    .softmax = softmax,
    .scale_columns = scale_columns,
    .page_scores = page_scores,
    .page_mix = page_mix,
};
