/* Hadamard matrices by Sylvester and Paley, and products with them.
 *
 * q is an odd prime power, chi the quadratic character of GF(q): 1 for squares, -1 for other
 * elements, 0 for 0.  Q_ab = chi(a - b), and C is Q with a border: row 0 is 1, column 0 is -1
 * for q = 3 mod 4 and 1 for q = 1 mod 4, C_00 = 0.  Paley's matrices are
 *
 *     I + C                                              of order q + 1,     q = 3 mod 4
 *     C x [1 1; 1 -1] + I x [1 -1; -1 -1]                of order 2 (q + 1), q = 1 mod 4 */
#include "lib/base/hadamard.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { MAX_ORDER = 512, MAX_DEGREE = 3, LANES = 16 };

/* ---- GF(q) ---- */

/* GF(p^degree) as polynomials with x^degree = c1 x + c0, the element of index i having the
 * digits of i to the base p as coefficients. */
typedef struct field {
    unsigned p, degree, q, c0, c1;
    bool square[MAX_ORDER];
} field;

/* Sets p and degree if q is p, p^2 or p^3 with an odd prime p.  Higher powers give no order up
 * to MAX_ORDER that these lack. */
static bool split_power(unsigned q, field *f)
{
    unsigned p = 3, degree = 0, rest = q;
    while (q % p)
        p += 2;
    for (; rest % p == 0; rest /= p)
        degree++;
    *f = (field){.p = p, .degree = degree, .q = q};
    return rest == 1 && degree <= MAX_DEGREE;
}

/* Whether x^degree - c1 x - c0 has no root.  Of degree 2 or 3, it is then irreducible. */
static bool is_irreducible(const field *f)
{
    for (unsigned x = 0; x < f->p; x++) {
        const unsigned high = f->degree == 2 ? x * x : x * x % f->p * x;
        if ((high + (f->p - f->c1) * x + f->p - f->c0) % f->p == 0)
            return false;
    }
    return true;
}

static void unpack(const field *f, unsigned index, unsigned *digits)
{
    for (unsigned d = 0; d < f->degree; d++, index /= f->p)
        digits[d] = index % f->p;
}

static unsigned pack(const field *f, const unsigned *digits)
{
    unsigned index = 0;
    for (unsigned d = f->degree; d-- > 0;)
        index = index * f->p + digits[d];
    return index;
}

static unsigned square_of(const field *f, unsigned a)
{
    unsigned x[MAX_DEGREE], product[2 * MAX_DEGREE] = {0};
    unpack(f, a, x);
    for (unsigned i = 0; i < f->degree; i++)
        for (unsigned j = 0; j < f->degree; j++)
            product[i + j] += x[i] * x[j];
    for (unsigned d = 2 * f->degree - 2; d >= f->degree; d--) {
        product[d] %= f->p;
        product[d - f->degree + 1] += f->c1 * product[d];
        product[d - f->degree] += f->c0 * product[d];
    }
    for (unsigned d = 0; d < f->degree; d++)
        product[d] %= f->p;
    return pack(f, product);
}

static void make_field(field *f)
{
    bool found = f->degree == 1;
    for (f->c1 = 0; !found && f->c1 < f->p; f->c1 += !found)
        for (f->c0 = 1; !found && f->c0 < f->p; f->c0 += !found)
            found = is_irreducible(f);
    for (unsigned a = 1; a < f->q; a++)
        f->square[square_of(f, a)] = true;
}

/* ---- Paley ---- */

/* Signs of a Hadamard matrix: bit j of row i is set where it is -1. */
typedef struct signs {
    size_t order;
    uint32_t bits[MAX_ORDER][MAX_ORDER / 32];
} signs;

/* The field whose matrix has this order. */
static bool field_of(size_t order, field *f)
{
    const unsigned k = (unsigned)order;
    if (k % 4 || k < 12)
        return false;
    return split_power(k - 1, f) || (k % 8 == 4 && split_power(k / 2 - 1, f));
}

/* C_ij, i and j not equal. */
static bool is_negative(const field *f, unsigned i, unsigned j)
{
    unsigned a[MAX_DEGREE], b[MAX_DEGREE];
    if (!i)
        return false;
    if (!j)
        return f->q % 4 == 3;
    unpack(f, i - 1, a);
    unpack(f, j - 1, b);
    for (unsigned d = 0; d < f->degree; d++)
        a[d] = (a[d] + f->p - b[d]) % f->p;
    return !f->square[pack(f, a)];
}

static bool paley_is_negative(const field *f, unsigned i, unsigned j)
{
    if (f->q % 4 == 3)
        return i != j && is_negative(f, i, j);
    if (i / 2 == j / 2)
        return i % 2 || j % 2;
    return is_negative(f, i / 2, j / 2) != (i % 2 && j % 2);
}

static void make_signs(size_t order, signs *s)
{
    field f;
    s->order = order;
    if (!field_of(order, &f))
        return;
    make_field(&f);
    for (unsigned i = 0; i < order; i++) {
        memset(s->bits[i], 0, sizeof s->bits[i]);
        for (unsigned j = 0; j < order; j++)
            s->bits[i][j / 32] |= (uint32_t)paley_is_negative(&f, i, j) << j % 32;
    }
}

/* ---- order ---- */

/* K of a Hadamard matrix of order n; 0 if there is none. */
static size_t paley_order(size_t n)
{
    field f;
    size_t k = n;
    while (k % 2 == 0)
        k /= 2;
    if (k == 1)
        return 1;
    for (k *= 4; k <= MAX_ORDER && n % k == 0; k *= 2)
        if (field_of(k, &f))
            return k;
    return 0;
}

size_t vptq_hadamard_order(size_t n)
{
    size_t blocks = 1;
    while (n % blocks || !paley_order(n / blocks))
        blocks++;
    return n / blocks;
}

/* ---- products ---- */

/* Sylvester's matrix of order n times x. */
static void transform(size_t n, float *x)
{
    for (size_t half = 1; half < n; half *= 2)
        for (size_t i = 0; i < n; i += 2 * half)
            for (size_t j = i; j < i + half; j++) {
                const float a = x[j], b = x[j + half];
                x[j] = a + b;
                x[j + half] = a - b;
            }
}

static bool sign_of(const signs *s, bool transposed, size_t i, size_t j)
{
    return (transposed ? s->bits[j][i / 32] >> i % 32 : s->bits[i][j / 32] >> j % 32) & 1;
}

/* Columns [0, cols) of x [order][ld], times the matrix; rows are added in order. */
static void mix(const signs *s, bool transposed, size_t ld, size_t cols, float *x)
{
    float old[MAX_ORDER][LANES];
    for (size_t j = 0; j < s->order; j++)
        for (size_t l = 0; l < LANES; l++)
            old[j][l] = l < cols ? x[j * ld + l] : 0;
    for (size_t i = 0; i < s->order; i++) {
        float sum[LANES] = {0};
        for (size_t j = 0; j < s->order; j++) {
            const float sign = sign_of(s, transposed, i, j) ? -1 : 1;
            for (size_t l = 0; l < LANES; l++)
                sum[l] += sign * old[j][l];
        }
        memcpy(x + i * ld, sum, cols * sizeof *x);
    }
}

static void transform_block(const signs *s, size_t n, bool transposed, float *x)
{
    const size_t ld = n / s->order;
    const float scale = (float)(1 / sqrt((double)n));
    for (size_t i = 0; i < s->order; i++)
        transform(ld, x + i * ld);
    for (size_t c = 0; s->order > 1 && c < ld; c += LANES)
        mix(s, transposed, ld, ld - c < LANES ? ld - c : LANES, x + c);
    for (size_t i = 0; i < n; i++)
        x[i] *= scale;
}

void vptq_hadamard_rows(size_t rows, size_t n, bool transposed, float *w)
{
    const size_t block = vptq_hadamard_order(n);
    signs s;
    make_signs(paley_order(block), &s);
    for (size_t i = 0; i < rows * (n / block); i++)
        transform_block(&s, block, transposed, w + i * block);
}
