/* E8P and E81B: points of codes, and nearest points.
 *
 * A point of E8P is s + 1/4 or s - 1/4, with 1/4 in every coordinate.  The coordinates of s are
 * 1/2, 3/2 or 5/2 by magnitude, their sum is even, and the magnitudes are one of 256 patterns:
 * all with |s|^2 <= 10, and 29 of those with |s|^2 = 12.  A code is a pattern (8 bits) and the
 * signs of s (8 bits); an odd number of sign bits means - 1/4 and flips the first. */
#include "lib/base/lattice.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>

enum { V = VPTQ_LATTICE_V, LOW = 227, HIGH = 29 }; /* patterns with |s|^2 <= 10, and with 12 */

/* Twice the magnitudes, a hexadecimal digit each; the first LOW in increasing order. */
static const uint32_t patterns[LOW + HIGH] = {
    0x11111111, 0x11111113, 0x11111115, 0x11111131, 0x11111133, 0x11111135, 0x11111151,
    0x11111153, 0x11111311, 0x11111313, 0x11111315, 0x11111331, 0x11111333, 0x11111351,
    0x11111511, 0x11111513, 0x11111531, 0x11113111, 0x11113113, 0x11113115, 0x11113131,
    0x11113133, 0x11113151, 0x11113311, 0x11113313, 0x11113331, 0x11113333, 0x11113511,
    0x11115111, 0x11115113, 0x11115131, 0x11115311, 0x11131111, 0x11131113, 0x11131115,
    0x11131131, 0x11131133, 0x11131151, 0x11131311, 0x11131313, 0x11131331, 0x11131333,
    0x11131511, 0x11133111, 0x11133113, 0x11133131, 0x11133133, 0x11133311, 0x11133313,
    0x11133331, 0x11135111, 0x11151111, 0x11151113, 0x11151131, 0x11151311, 0x11153111,
    0x11311111, 0x11311113, 0x11311115, 0x11311131, 0x11311133, 0x11311151, 0x11311311,
    0x11311313, 0x11311331, 0x11311333, 0x11311511, 0x11313111, 0x11313113, 0x11313131,
    0x11313133, 0x11313311, 0x11313313, 0x11313331, 0x11315111, 0x11331111, 0x11331113,
    0x11331131, 0x11331133, 0x11331311, 0x11331313, 0x11331331, 0x11333111, 0x11333113,
    0x11333131, 0x11333311, 0x11351111, 0x11511111, 0x11511113, 0x11511131, 0x11511311,
    0x11513111, 0x11531111, 0x13111111, 0x13111113, 0x13111115, 0x13111131, 0x13111133,
    0x13111151, 0x13111311, 0x13111313, 0x13111331, 0x13111333, 0x13111511, 0x13113111,
    0x13113113, 0x13113131, 0x13113133, 0x13113311, 0x13113313, 0x13113331, 0x13115111,
    0x13131111, 0x13131113, 0x13131131, 0x13131133, 0x13131311, 0x13131313, 0x13131331,
    0x13133111, 0x13133113, 0x13133131, 0x13133311, 0x13151111, 0x13311111, 0x13311113,
    0x13311131, 0x13311133, 0x13311311, 0x13311313, 0x13311331, 0x13313111, 0x13313113,
    0x13313131, 0x13313311, 0x13331111, 0x13331113, 0x13331131, 0x13331311, 0x13333111,
    0x13511111, 0x15111111, 0x15111113, 0x15111131, 0x15111311, 0x15113111, 0x15131111,
    0x15311111, 0x31111111, 0x31111113, 0x31111115, 0x31111131, 0x31111133, 0x31111151,
    0x31111311, 0x31111313, 0x31111331, 0x31111333, 0x31111511, 0x31113111, 0x31113113,
    0x31113131, 0x31113133, 0x31113311, 0x31113313, 0x31113331, 0x31115111, 0x31131111,
    0x31131113, 0x31131131, 0x31131133, 0x31131311, 0x31131313, 0x31131331, 0x31133111,
    0x31133113, 0x31133131, 0x31133311, 0x31151111, 0x31311111, 0x31311113, 0x31311131,
    0x31311133, 0x31311311, 0x31311313, 0x31311331, 0x31313111, 0x31313113, 0x31313131,
    0x31313311, 0x31331111, 0x31331113, 0x31331131, 0x31331311, 0x31333111, 0x31511111,
    0x33111111, 0x33111113, 0x33111131, 0x33111133, 0x33111311, 0x33111313, 0x33111331,
    0x33113111, 0x33113113, 0x33113131, 0x33113311, 0x33131111, 0x33131113, 0x33131131,
    0x33131311, 0x33133111, 0x33311111, 0x33311113, 0x33311131, 0x33311311, 0x33313111,
    0x33331111, 0x35111111, 0x51111111, 0x51111113, 0x51111131, 0x51111311, 0x51113111,
    0x51131111, 0x51311111, 0x53111111, 0x31113333, 0x13113333, 0x11313333, 0x11133333,
    0x33313311, 0x33313131, 0x33311331, 0x33313113, 0x33311313, 0x33311133, 0x33133311,
    0x33133131, 0x33131331, 0x33133113, 0x33131313, 0x33131133, 0x31333311, 0x31333131,
    0x31331331, 0x31333113, 0x31331313, 0x13331133, 0x13333311, 0x13333131, 0x13331331,
    0x13333113, 0x13331313, 0x11331333, 0x33113331};

enum { WHOLE = 113, SHORT = 241 }; /* E81B: points of whole numbers, all with |x|^2 <= 2 */

/* Twice the coordinates, plus 4; [0, WHOLE) and [WHOLE, SHORT) in increasing order.  The last
 * 15 points have one coordinate of 2 or -2. */
static const uint32_t e81b[256] = {
    0x22444444, 0x24244444, 0x24424444, 0x24442444, 0x24444244, 0x24444424, 0x24444442,
    0x24444446, 0x24444464, 0x24444644, 0x24446444, 0x24464444, 0x24644444, 0x26444444,
    0x42244444, 0x42424444, 0x42442444, 0x42444244, 0x42444424, 0x42444442, 0x42444446,
    0x42444464, 0x42444644, 0x42446444, 0x42464444, 0x42644444, 0x44224444, 0x44242444,
    0x44244244, 0x44244424, 0x44244442, 0x44244446, 0x44244464, 0x44244644, 0x44246444,
    0x44264444, 0x44422444, 0x44424244, 0x44424424, 0x44424442, 0x44424446, 0x44424464,
    0x44424644, 0x44426444, 0x44442244, 0x44442424, 0x44442442, 0x44442446, 0x44442464,
    0x44442644, 0x44444224, 0x44444242, 0x44444246, 0x44444264, 0x44444422, 0x44444426,
    0x44444444, 0x44444462, 0x44444466, 0x44444624, 0x44444642, 0x44444646, 0x44444664,
    0x44446244, 0x44446424, 0x44446442, 0x44446446, 0x44446464, 0x44446644, 0x44462444,
    0x44464244, 0x44464424, 0x44464442, 0x44464446, 0x44464464, 0x44464644, 0x44466444,
    0x44624444, 0x44642444, 0x44644244, 0x44644424, 0x44644442, 0x44644446, 0x44644464,
    0x44644644, 0x44646444, 0x44664444, 0x46244444, 0x46424444, 0x46442444, 0x46444244,
    0x46444424, 0x46444442, 0x46444446, 0x46444464, 0x46444644, 0x46446444, 0x46464444,
    0x46644444, 0x62444444, 0x64244444, 0x64424444, 0x64442444, 0x64444244, 0x64444424,
    0x64444442, 0x64444446, 0x64444464, 0x64444644, 0x64446444, 0x64464444, 0x64644444,
    0x66444444, 0x33333333, 0x33333355, 0x33333535, 0x33333553, 0x33335335, 0x33335353,
    0x33335533, 0x33335555, 0x33353335, 0x33353353, 0x33353533, 0x33353555, 0x33355333,
    0x33355355, 0x33355535, 0x33355553, 0x33533335, 0x33533353, 0x33533533, 0x33533555,
    0x33535333, 0x33535355, 0x33535535, 0x33535553, 0x33553333, 0x33553355, 0x33553535,
    0x33553553, 0x33555335, 0x33555353, 0x33555533, 0x33555555, 0x35333335, 0x35333353,
    0x35333533, 0x35333555, 0x35335333, 0x35335355, 0x35335535, 0x35335553, 0x35353333,
    0x35353355, 0x35353535, 0x35353553, 0x35355335, 0x35355353, 0x35355533, 0x35355555,
    0x35533333, 0x35533355, 0x35533535, 0x35533553, 0x35535335, 0x35535353, 0x35535533,
    0x35535555, 0x35553335, 0x35553353, 0x35553533, 0x35553555, 0x35555333, 0x35555355,
    0x35555535, 0x35555553, 0x53333335, 0x53333353, 0x53333533, 0x53333555, 0x53335333,
    0x53335355, 0x53335535, 0x53335553, 0x53353333, 0x53353355, 0x53353535, 0x53353553,
    0x53355335, 0x53355353, 0x53355533, 0x53355555, 0x53533333, 0x53533355, 0x53533535,
    0x53533553, 0x53535335, 0x53535353, 0x53535533, 0x53535555, 0x53553335, 0x53553353,
    0x53553533, 0x53553555, 0x53555333, 0x53555355, 0x53555535, 0x53555553, 0x55333333,
    0x55333355, 0x55333535, 0x55333553, 0x55335335, 0x55335353, 0x55335533, 0x55335555,
    0x55353335, 0x55353353, 0x55353533, 0x55353555, 0x55355333, 0x55355355, 0x55355535,
    0x55355553, 0x55533335, 0x55533353, 0x55533533, 0x55533555, 0x55535333, 0x55535355,
    0x55535535, 0x55535553, 0x55553333, 0x55553355, 0x55553535, 0x55553553, 0x55555335,
    0x55555353, 0x55555533, 0x55555555, 0x84444444, 0x48444444, 0x44844444, 0x44484444,
    0x44448444, 0x44444844, 0x44444484, 0x44444448, 0x04444444, 0x40444444, 0x44044444,
    0x44404444, 0x44440444, 0x44444044, 0x44444404};

static unsigned digit(uint32_t key, size_t i)
{
    return key >> 4 * (V - 1 - i) & 15;
}

static uint32_t put_digit(size_t i, unsigned value)
{
    return (uint32_t)value << 4 * (V - 1 - i);
}

/* The index of `key` among keys[first..end), which are in increasing order and have it. */
static uint32_t find(const uint32_t *keys, uint32_t first, uint32_t end, uint32_t key)
{
    while (end - first > 1) {
        const uint32_t middle = (first + end) / 2;
        if (keys[middle] <= key)
            first = middle;
        else
            end = middle;
    }
    return first;
}

/* ---- points ---- */

static unsigned parity(unsigned bits)
{
    bits ^= bits >> 4;
    bits ^= bits >> 2;
    return (bits ^ bits >> 1) & 1;
}

/* Whether the magnitudes of a pattern have an odd sum, so that an odd number of them must be
 * negative. */
static unsigned is_odd(uint32_t pattern)
{
    unsigned sum = 0;
    for (size_t i = 0; i < V; i++)
        sum += digit(pattern, i);
    return sum / 2 & 1;
}

/* The sign bit of coordinate i: even coordinates come first. */
static unsigned bit_of(size_t i)
{
    return (unsigned)(i / 2 + i % 2 * 4);
}

/* In the stored pattern, the last coordinate of an odd one is negative. */
static void e8p_point(uint32_t code, float *point)
{
    const uint32_t pattern = patterns[code >> 8];
    const unsigned minus = parity(code & 255);
    const unsigned negative = (code & 255) ^ minus ^ is_odd(pattern) << bit_of(V - 1);
    const float shift = minus ? -0.25F : 0.25F;
    for (size_t i = 0; i < V; i++) {
        const float magnitude = (float)digit(pattern, i) * 0.5F;
        point[i] = (negative >> bit_of(i) & 1 ? -magnitude : magnitude) + shift;
    }
}

static void e81b_point(uint32_t code, float *point)
{
    for (size_t i = 0; i < V; i++)
        point[i] = ((float)digit(e81b[code & 255], i) - 4) * 0.5F;
}

void vptq_lattice_point(uint32_t bits, uint32_t code, float *point)
{
    if (bits == 16)
        e8p_point(code, point);
    else
        e81b_point(code, point);
}

/* ---- nearest points ---- */

/* Magnitudes and signs of a vector. */
typedef struct folded {
    float size[V];
    float sum;
    unsigned negative; /* bit i: of coordinate i */
    uint8_t order[V];  /* coordinates by decreasing size */
} folded;

/* The nearest so far: the point with magnitudes `pattern` and the signs of the vector,
 * except that of `flip` if the number of negative ones must change.  score = 2 x s - |s|^2. */
typedef struct choice {
    float score;
    uint32_t pattern, index; /* index: LOW and above for the patterns of HIGH, else unknown */
    size_t flip;
} choice;

static folded fold(const float *x)
{
    folded f = {.sum = 0};
    uint8_t rank[V] = {0};
    for (size_t i = 0; i < V; i++) {
        f.size[i] = fabsf(x[i]);
        f.sum += f.size[i];
        f.negative |= (unsigned)(x[i] < 0) << i;
    }
    for (size_t i = 0; i < V; i++)
        for (size_t j = i + 1; j < V; j++) {
            const bool before = f.size[i] >= f.size[j];
            rank[i] += !before;
            rank[j] += before;
        }
    for (size_t i = 0; i < V; i++)
        f.order[rank[i]] = (uint8_t)i;
    return f;
}

static void keep_better(choice *best, float score, uint32_t pattern)
{
    if (score > best->score) {
        best->score = score;
        best->pattern = pattern;
    }
}

/* The best of the first LOW patterns.  They are 1/2 with up to four 3/2, or one 5/2, or one of
 * each, anywhere: large coordinates get large magnitudes, and the smallest flips its sign. */
static choice best_low(const folded *f, unsigned odd_signs)
{
    const float lost = 2 * f->size[f->order[V - 1]];
    const uint32_t first = put_digit(f->order[0], 4);
    uint32_t pattern = patterns[0];
    float score = f->sum - 2;
    choice best = {
        .score = score - (odd_signs ? lost : 0), .pattern = pattern, .flip = f->order[V - 1]};
    for (unsigned k = 1; k <= 4; k++) {
        pattern += put_digit(f->order[k - 1], 2);
        score += 2 * f->size[f->order[k - 1]] - 2;
        keep_better(&best, score - ((odd_signs ^ k) & 1 ? lost : 0), pattern);
    }
    score = f->sum + 4 * f->size[f->order[0]] - 8;
    keep_better(&best, score - (odd_signs ? lost : 0), patterns[0] + first);
    score += 2 * f->size[f->order[1]] - 2;
    keep_better(&best, score - (odd_signs ? 0 : lost),
                patterns[0] + first + put_digit(f->order[1], 2));
    return best;
}

/* Compares with one of the patterns of five 3/2 and three 1/2. */
static void try_high(const folded *f, unsigned odd_signs, uint32_t index, choice *best)
{
    const uint32_t pattern = patterns[index];
    float product = 0, least = INFINITY;
    size_t flip = 0;
    for (size_t i = 0; i < V; i++) {
        const float term = f->size[i] * ((float)digit(pattern, i) * 0.5F);
        product += term;
        if (term < least) {
            least = term;
            flip = i;
        }
    }
    const float score = 2 * product - 12 - (odd_signs ? 0 : 4 * least);
    if (score > best->score)
        *best = (choice){score, pattern, index, flip};
}

/* The code of the point nearest to x + 1/4 (minus) or x - 1/4 without its shift. */
static uint32_t nearest_shifted(const float *x, unsigned minus)
{
    float y[V];
    for (size_t i = 0; i < V; i++)
        y[i] = x[i] + (minus ? 0.25F : -0.25F);
    const folded f = fold(y);
    const unsigned odd_signs = parity(f.negative);
    choice best = best_low(&f, odd_signs);
    float bound = f.sum - 12;
    for (size_t i = 0; i < 5; i++)
        bound += 2 * f.size[f.order[i]];
    for (uint32_t i = LOW; bound > best.score && i < LOW + HIGH; i++)
        try_high(&f, odd_signs, i, &best);
    const unsigned odd = is_odd(best.pattern);
    const unsigned negative = f.negative ^ (odd_signs ^ odd) << best.flip;
    uint32_t signs = minus ^ odd << bit_of(V - 1);
    for (size_t i = 0; i < V; i++)
        signs ^= (negative >> i & 1) << bit_of(i);
    const uint32_t index = best.index ? best.index : find(patterns, 0, LOW, best.pattern);
    return index << 8 | signs;
}

static float distance(const float *x, const float *point)
{
    float sum = 0;
    for (size_t i = 0; i < V; i++)
        sum += (x[i] - point[i]) * (x[i] - point[i]);
    return sum;
}

static uint32_t nearest_e8p(const float *x, float *point)
{
    float other[V];
    const uint32_t plus = nearest_shifted(x, 0), minus = nearest_shifted(x, 1);
    e8p_point(plus, point);
    e8p_point(minus, other);
    if (!(distance(x, other) < distance(x, point)))
        return plus;
    for (size_t i = 0; i < V; i++)
        point[i] = other[i];
    return minus;
}

/* Twice the coordinate of a point, with the sign of x, added to the key of 0. */
static uint32_t signed_digit(const folded *f, size_t i, unsigned twice)
{
    return f->negative >> i & 1 ? 0 - put_digit(i, twice) : put_digit(i, twice);
}

/* Compares with the points that have one coordinate of 2 or -2; the last cannot be -2. */
static void try_long(const folded *f, float score, uint32_t *code)
{
    const size_t first = f->order[0];
    const bool missing = first == V - 1 && f->negative >> first & 1;
    const size_t i = missing ? f->order[1] : first;
    if (4 * f->size[i] - 4 > score)
        *code = (uint32_t)(SHORT + i + (f->negative >> i & 1 ? V : 0));
}

static uint32_t nearest_e81b(const float *x, float *point)
{
    const uint32_t zero = 0x44444444;
    const folded f = fold(x);
    const size_t a = f.order[0], b = f.order[1], least = f.order[V - 1];
    float score = 0, half = f.sum - 2 - (parity(f.negative) ? 2 * f.size[least] : 0);
    uint32_t key = zero, code;
    if (2 * (f.size[a] + f.size[b]) - 2 > score) {
        score = 2 * (f.size[a] + f.size[b]) - 2;
        key += signed_digit(&f, a, 2) + signed_digit(&f, b, 2);
    }
    code = find(e81b, 0, WHOLE, key);
    if (half > score) {
        score = half;
        key = zero;
        for (size_t i = 0; i < V; i++)
            key += signed_digit(&f, i, 1);
        if (parity(f.negative))
            key -= 2 * signed_digit(&f, least, 1);
        code = find(e81b, WHOLE, SHORT, key);
    }
    try_long(&f, score, &code);
    e81b_point(code, point);
    return code;
}

uint32_t vptq_lattice_nearest(uint32_t bits, const float *x, float *point)
{
    return bits == 16 ? nearest_e8p(x, point) : nearest_e81b(x, point);
}
