/* The kernels of vptq_uniform_gemv_kernels (uniform_gemv.h).  Lanes are columns.  AVX-512 takes
 * registers of 8 floats, too: their look-ups are those of AVX2. */
#define SIMD_MAX_LANES 8
#include "lib/base/simd.h"

#include "lib/backend/cpu/uniform_gemv.h"

enum { LANES = SIMD_LANES, ROWS = VPTQ_UNIFORM_ROWS, TOKENS = VPTQ_UNIFORM_TOKENS };

/* ---- codes one by one ---- */

/* Codes that share a scale and a zero point.  After the last there is memory for a step more.
 */
typedef struct run {
    const uint8_t *codes;
    size_t n;
    float scale, zero;
    float *values;
} run;

typedef uint32_t vu __attribute__((vector_size(SIMD_LANES * sizeof(uint32_t))));

SIMD_INLINE vf round_bf16(vf x)
{
    const vu u = (vu)x, nearest = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000;
    return vf_select_equal(x, x, (vf)nearest, x); /* NaN stays */
}

SIMD_INLINE vf round_f16(vf x)
{
    uint16_t half[LANES];
    vf_store_f16(half, x);
    return vf_load_f16(half);
}

SIMD_INLINE vf round_to(vf x, vptq_dtype storage)
{
    return storage == VPTQ_F16 ? round_f16(x) : round_bf16(x);
}

#if SIMD_X86

SIMD_INLINE vf codes_at(const uint8_t *codes)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)codes)));
}

#else

SIMD_INLINE vf codes_at(const uint8_t *codes)
{
    return (vf){codes[0], codes[1], codes[2], codes[3]};
}

#endif

SIMD_INLINE void compute(const run *c, vptq_dtype storage)
{
    const vf zero = vf_set1(c->zero), scale = vf_set1(c->scale);
    for (size_t i = 0; i < c->n; i += LANES) {
        const vf exact = vf_mul(vf_sub(codes_at(c->codes + i), zero), scale);
        vf_store(c->values + i, round_to(exact, storage));
    }
}

enum { STEP = 32, TABLE_BITS = 4 };

#if SIMD_X86

/* ---- 32 codes at a time ---- */

/* How to spread codes over bytes: a register of 32-bit lanes gets the bytes of four codes each,
 * which are shifted to bit 0; then the second pair moves up, and the second code of each pair.
 */
typedef struct spreader {
    unsigned bits;
    __m256i shuffle, shift, pair[2], one[2]; /* masks: what stays, what moves */
    __m128i move_pair, move_one;
} spreader;

SIMD_INLINE spreader spreader_of(unsigned bits)
{
    /* 16 codes begin at bit 0 of each half */
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 0, 1, 2, 3);
    const __m256i bit = _mm256_mullo_epi32(lane, _mm256_set1_epi32(4 * (int)bits));
    const __m256i byte =
        _mm256_mullo_epi32(_mm256_srli_epi32(bit, 3), _mm256_set1_epi32(0x01010101));
    const int one = (1 << bits) - 1, pair = (1 << 2 * bits) - 1;
    return (spreader){
        .bits = bits,
        .shuffle = _mm256_add_epi32(byte, _mm256_set1_epi32(0x03020100)),
        .shift = _mm256_and_si256(bit, _mm256_set1_epi32(7)),
        .pair = {_mm256_set1_epi32(pair), _mm256_set1_epi32((int)((unsigned)pair << 16))},
        .one = {_mm256_set1_epi16((short)one), _mm256_set1_epi16((short)(one << 8))},
        .move_pair = _mm_cvtsi32_si128(16 - 2 * (int)bits),
        .move_one = _mm_cvtsi32_si128(8 - (int)bits)};
}

SIMD_INLINE __m256i move_half(__m256i x, __m128i by, const __m256i mask[2])
{
    return _mm256_or_si256(_mm256_and_si256(x, mask[0]),
                           _mm256_and_si256(_mm256_sll_epi32(x, by), mask[1]));
}

SIMD_INLINE __m256i spread_any(const spreader *s, const uint8_t *from)
{
    const __m128i low = _mm_loadu_si128((const void *)from);
    const __m128i high = _mm_loadu_si128((const void *)(from + 2 * s->bits));
    __m256i x = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    x = _mm256_srlv_epi32(_mm256_shuffle_epi8(x, s->shuffle), s->shift);
    return move_half(move_half(x, s->move_pair, s->pair), s->move_one, s->one);
}

SIMD_INLINE __m256i spread_4(const uint8_t *from)
{
    const __m256i x = _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)from));
    return _mm256_and_si256(_mm256_or_si256(x, _mm256_slli_epi16(x, 4)),
                            _mm256_set1_epi8(0x0f));
}

enum { REACH = 32 /* bytes from a step on that `spread` may read */ };

/* The 32 codes that begin at `from`, a byte each. */
SIMD_INLINE __m256i spread(const spreader *s, unsigned bits, const uint8_t *from)
{
    return bits == 4   ? spread_4(from)
           : bits == 8 ? _mm256_loadu_si256((const void *)from)
                       : spread_any(s, from);
}

/* The bytes from `from` to `end`, in `copy` if too few follow for `spread`; zeros then. */
SIMD_INLINE const uint8_t *reachable(const uint8_t *from, const uint8_t *end,
                                     uint8_t copy[REACH])
{
    const size_t left = (size_t)(end - from);
    if (left >= REACH)
        return from;
    memset(copy, 0, REACH);
    return memcpy(copy, from, left);
}

static void unpack(const uint8_t *from, unsigned bits, size_t n, uint8_t *codes)
{
    const uint8_t *end = from + (n * bits + 7) / 8;
    const spreader s = spreader_of(bits);
    uint8_t copy[REACH];
    for (size_t i = 0; i < n; i += STEP, from += 4 * bits)
        _mm256_storeu_si256((void *)(codes + i), spread(&s, bits, reachable(from, end, copy)));
}

/* ---- numbers of up to four bits: look-ups ---- */

/* The 16-bit numbers that up to 16 codes mean: their low and their high bytes. */
typedef struct table {
    __m128i low, high;
} table;

SIMD_INLINE __m128i narrow(vf x, vptq_dtype storage)
{
    if (storage == VPTQ_F16)
        return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
    const __m256i u = _mm256_srli_epi32(_mm256_castps_si256(round_bf16(x)), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(u), _mm256_extracti128_si256(u, 1));
}

/* The numbers from -15 to 15. */
static const float steps_from[32] = {-15, -14, -13, -12, -11, -10, -9, -8, -7, -6, -5,
                                     -4,  -3,  -2,  -1,  0,   1,   2,  3,  4,  5,  6,
                                     7,   8,   9,   10,  11,  12,  13, 14, 15};

SIMD_INLINE table table_at(const vptq_uniform_piece *p, size_t g, vptq_dtype storage)
{
    const unsigned zero = p->zeros ? p->zeros[g] : 1u << (p->w->shape.bits - 1);
    const float *steps = steps_from + 15 - zero % 16;
    const vf scale = vf_set1(p->scales[g]);
    const __m128i a = narrow(vf_mul(vf_load(steps), scale), storage);
    const __m128i b = narrow(vf_mul(vf_load(steps + 8), scale), storage);
    const __m128i low = _mm_set1_epi16(0xff);
    return (table){_mm_packus_epi16(_mm_and_si128(a, low), _mm_and_si128(b, low)),
                   _mm_packus_epi16(_mm_srli_epi16(a, 8), _mm_srli_epi16(b, 8))};
}

/* The numbers of a group's codes: of up to four bits by `low` and `high`, a table in each half,
 * of more bits code * scale + offset, rounded. */
typedef struct meaning {
    __m256i low, high;
    vf scale, offset;
} meaning;

SIMD_INLINE meaning meaning_of(const table *t)
{
    return (meaning){.low = _mm256_broadcastsi128_si256(t->low),
                     .high = _mm256_broadcastsi128_si256(t->high)};
}

/* a, b = the 8 numbers of each half. */
SIMD_INLINE void widen_halves(__m256i numbers, vptq_dtype storage, vf *a, vf *b)
{
    if (storage == VPTQ_F16) {
        *a = _mm256_cvtph_ps(_mm256_castsi256_si128(numbers));
        *b = _mm256_cvtph_ps(_mm256_extracti128_si256(numbers, 1));
        return;
    }
    const __m256i none = _mm256_setzero_si256();
    const vf low = (vf)_mm256_unpacklo_epi16(none, numbers);
    const vf high = (vf)_mm256_unpackhi_epi16(none, numbers);
    *a = _mm256_permute2f128_ps(low, high, 0x20);
    *b = _mm256_permute2f128_ps(low, high, 0x31);
}

SIMD_INLINE void look_up(const meaning *m, __m256i codes, vptq_dtype storage, vf v[4])
{
    const __m256i l = _mm256_shuffle_epi8(m->low, codes);
    const __m256i h = _mm256_shuffle_epi8(m->high, codes);
    widen_halves(_mm256_unpacklo_epi8(l, h), storage, &v[0], &v[2]);
    widen_halves(_mm256_unpackhi_epi8(l, h), storage, &v[1], &v[3]);
}

/* ---- numbers of more bits ---- */

/* Zero points and scales of 16 bits leave products exact, so that the order of operations does
 * not matter, and the range of the scales keeps round_exact exact. */
SIMD_INLINE meaning meaning_at(const vptq_uniform_piece *p, size_t g)
{
    const float zero = p->zeros ? p->zeros[g] : (float)(1u << (p->w->shape.bits - 1));
    return (meaning){.scale = vf_set1(p->scales[g]), .offset = vf_set1(-zero * p->scales[g])};
}

static bool scales_in_range(const vptq_uniform_piece *p)
{
    const bool half = p->storage == VPTQ_F16;
    const float least = half ? 0x1p-24F : 0x1p-90F, most = half ? 0x1p7F : 0x1p90F;
    bool good = true;
    for (size_t g = p->first / p->w->shape.group_size;
         g * p->w->shape.group_size < p->first + p->n; g++)
        good = good && p->scales[g] >= least && p->scales[g] <= most;
    return good;
}

/* Rounds to 11 or 8 digits, halves to even: a number with so many digits more and the same
 * exponent is added and subtracted.  Below 2^-14, F16 has the digits of 2^-14. */
SIMD_INLINE vf round_exact(vf x, vptq_dtype storage)
{
    const int shift = storage == VPTQ_F16 ? 13 : 16;
    __m256i most = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7f800000));
    most = _mm256_add_epi32(most, _mm256_set1_epi32(shift << 23 | 0x400000));
    if (storage == VPTQ_F16)
        most = _mm256_max_epi32(most, _mm256_set1_epi32(0x3f400000)); /* 1.5 * 2^-1 */
    return vf_sub(vf_add(x, _mm256_castsi256_ps(most)), _mm256_castsi256_ps(most));
}

SIMD_INLINE void compute_step(const meaning *m, const uint8_t *codes, vptq_dtype storage,
                              vf v[4])
{
#pragma GCC unroll 4
    for (size_t q = 0; q < 4; q++)
        v[q] = round_exact(vf_fma(codes_at(codes + q * LANES), m->scale, m->offset), storage);
}

/* ---- groups of whole steps ---- */

/* Numbers go from the codes to the product, or to memory, in registers. */
static bool has_steps(const vptq_uniform_piece *p)
{
    const vptq_uniform_shape *s = &p->w->shape;
    return !p->w->groups && (s->group_size % STEP == 0 || s->group_size == s->in) &&
           p->first % STEP == 0 && (s->bits <= TABLE_BITS || scales_in_range(p));
}

enum { TABLES = 16, CODES_AHEAD = 2048 /* bytes */ };

SIMD_INLINE void numbers_of(const meaning *m, const spreader *s, unsigned bits, bool tables,
                            vptq_dtype storage, const uint8_t *from, vf v[4])
{
    uint8_t codes[STEP];
    if (tables) {
        look_up(m, spread(s, bits, from), storage, v);
    } else if (bits == 8) {
        compute_step(m, from, storage, v);
    } else {
        _mm256_storeu_si256((void *)codes, spread(s, bits, from));
        compute_step(m, codes, storage, v);
    }
}

SIMD_INLINE void add_step(v16 *sum, const vf v[4], const float *x)
{
#pragma GCC unroll 4
    for (size_t q = 0; q < 4; q++)
        sum->part[q % 2] = vf_fma(v[q], vf_load(x + q * LANES), sum->part[q % 2]);
}

SIMD_INLINE void store_step(const vf v[4], float *values)
{
#pragma GCC unroll 4
    for (size_t q = 0; q < 4; q++)
        vf_store(values + q * LANES, v[q]);
}

/* add_step of the last `rest` columns. */
SIMD_INLINE void add_rest(v16 *sum, const vf v[4], const float *x, size_t rest)
{
    float value[2 * STEP] = {0}, last[STEP] = {0};
    store_step(v, value);
    memset(value + rest, 0, STEP * sizeof *value);
    memcpy(last, x, rest * sizeof *last);
    for (size_t q = 0; q < 4; q++)
        sum->part[q % 2] =
            vf_fma(vf_load(value + q * LANES), vf_load(last + q * LANES), sum->part[q % 2]);
}

/* Multiplies the piece by x or, without x, stores its numbers. */
SIMD_INLINE v16 walk(const vptq_uniform_piece *p, unsigned bits, bool tables,
                     vptq_dtype storage, const float *x)
{
    const size_t size = p->w->shape.group_size, n = p->n;
    const uint8_t *from = vptq_uniform_codes_at(p->w, p->row, p->first);
    const uint8_t *end = vptq_uniform_codes_at(p->w, p->row + 1, 0);
    const size_t g0 = p->first / size, groups = (p->first + n - 1) / size + 1 - g0;
    const spreader s = spreader_of(bits);
    v16 sum = v16_set1(0);
    table of[TABLES];
    size_t i = 0;
    for (size_t g = 0; g < groups; g++) {
        for (size_t t = 0; tables && g % TABLES == 0 && t < TABLES && g + t < groups; t++)
            of[t] = table_at(p, g0 + g + t, storage);
        const meaning m = tables ? meaning_of(&of[g % TABLES]) : meaning_at(p, g0 + g);
        const size_t all = (g0 + g + 1) * size - p->first, stop = all < n ? all : n;
        const size_t bytes = (stop - i) / STEP * 4 * bits;
        /* the end of the last step that may be read with what follows it */
        const uint8_t *fast = (size_t)(end - from) >= bytes + REACH ? from + bytes : from;
        vf v[4];
        for (; from < fast; i += STEP, from += 4 * bits) {
            __builtin_prefetch(from + CODES_AHEAD);
            numbers_of(&m, &s, bits, tables, storage, from, v);
            if (x)
                add_step(&sum, v, x + i);
            else
                store_step(v, p->values + i);
        }
        for (; i < stop; i += STEP, from += 4 * bits) {
            uint8_t copy[REACH];
            numbers_of(&m, &s, bits, tables, storage, reachable(from, end, copy), v);
            if (!x)
                store_step(v, p->values + i);
            else if (stop - i < STEP)
                add_rest(&sum, v, x + i, stop - i);
            else
                add_step(&sum, v, x + i);
        }
    }
    return sum;
}

/* Compiles loops for each usual width. */
SIMD_INLINE v16 walk_bits(const vptq_uniform_piece *p, vptq_dtype storage, const float *x)
{
    const unsigned bits = p->w->shape.bits;
    switch (bits) {
    case 1:
        return walk(p, 1, true, storage, x);
    case 2:
        return walk(p, 2, true, storage, x);
    case 3:
        return walk(p, 3, true, storage, x);
    case 4:
        return walk(p, 4, true, storage, x);
    case 8:
        return walk(p, 8, false, storage, x);
    default:
        return walk(p, bits, false, storage, x);
    }
}

static bool dot(const vptq_uniform_piece *p, const float *x, float *y)
{
    if (!has_steps(p))
        return false;
    *y = v16_sum(p->storage == VPTQ_F16 ? walk_bits(p, VPTQ_F16, x)
                                        : walk_bits(p, VPTQ_BF16, x));
    return true;
}

#else

static void unpack(const uint8_t *from, unsigned bits, size_t n, uint8_t *codes)
{
    vptq_uniform_unpack(from, bits, n, codes);
}

static bool dot(const vptq_uniform_piece *p, const float *x, float *y)
{
    (void)p;
    (void)x;
    (void)y;
    return false;
}

#endif

/* ---- rows ---- */

/* Columns of any groups. */
SIMD_INLINE void decode_mixed(const vptq_uniform_piece *p, const uint8_t *codes,
                              vptq_dtype storage)
{
    const int32_t *groups = p->w->groups + p->first;
    const float middle = (float)(1 << (p->w->shape.bits - 1));
    float scale[VPTQ_UNIFORM_PIECE + LANES], zero[VPTQ_UNIFORM_PIECE + LANES];
    for (size_t c = 0; c < p->n; c++) {
        scale[c] = p->scales[groups[c]];
        zero[c] = p->zeros ? p->zeros[groups[c]] : middle;
    }
    for (size_t c = p->n; c % LANES; c++)
        scale[c] = zero[c] = 0;
    for (size_t c = 0; c < p->n; c += LANES) {
        const vf steps = vf_sub(codes_at(codes + c), vf_load(zero + c));
        vf_store(p->values + c, round_to(vf_mul(steps, vf_load(scale + c)), storage));
    }
}

/* Columns in runs of one group. */
SIMD_INLINE void decode_runs(const vptq_uniform_piece *p, vptq_dtype storage)
{
    const vptq_uniform *w = p->w;
    const unsigned bits = w->shape.bits;
    const uint8_t *from = vptq_uniform_codes_at(w, p->row, p->first);
    uint8_t codes[VPTQ_UNIFORM_PIECE + STEP];
    unpack(from, bits, p->n, codes);
    if (w->groups) {
        decode_mixed(p, codes, storage);
        return;
    }
    for (size_t c = 0, end, g; c < p->n; c = end) {
        g = (p->first + c) / w->shape.group_size;
        end = (g + 1) * w->shape.group_size - p->first;
        end = end < p->n ? end : p->n;
        const run r = {.codes = codes + c,
                       .n = end - c,
                       .scale = p->scales[g],
                       .zero = p->zeros ? p->zeros[g] : (float)(1 << (bits - 1)),
                       .values = p->values + c};
        compute(&r, storage);
    }
}

SIMD_INLINE void decode_type(const vptq_uniform_piece *p, vptq_dtype storage)
{
#if SIMD_X86
    if (has_steps(p)) {
        walk_bits(p, storage, NULL);
        return;
    }
#endif
    decode_runs(p, storage);
}

static void decode(const vptq_uniform_piece *p)
{
    if (p->storage == VPTQ_F16)
        decode_type(p, VPTQ_F16);
    else
        decode_type(p, VPTQ_BF16);
}

/* ---- products ---- */

/* The sums of `rows` rows from row r0 on with all tokens; the numbers are constants at the
 * call. */
SIMD_INLINE void dots_of(const vptq_uniform_dots *d, size_t r0, size_t rows, size_t tokens)
{
    v16 sum[ROWS][TOKENS];
    const float *w = d->w + r0 * d->ldw, *x = d->x;
    const size_t ldw = d->ldw, ldx = d->ldx, whole = d->columns / SIMD_SUM * SIMD_SUM;
#pragma GCC unroll 4
    for (size_t r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (size_t i = 0; i < tokens; i++)
#pragma GCC unroll 4
            for (size_t p = 0; p < SIMD_PARTS; p++)
                sum[r][i].part[p] = vf_load(d->sum[i][r0 + r] + p * LANES);
    for (size_t j = 0; j < whole; j += SIMD_SUM)
#pragma GCC unroll 4
        for (size_t p = 0; p < SIMD_PARTS; p++) {
            const size_t at = j + p * LANES;
#pragma GCC unroll 2
            for (size_t i = 0; i < tokens; i++) {
                const vf xi = vf_load(x + i * ldx + at);
#pragma GCC unroll 4
                for (size_t r = 0; r < rows; r++)
                    sum[r][i].part[p] =
                        vf_fma(vf_load(w + r * ldw + at), xi, sum[r][i].part[p]);
            }
        }
#pragma GCC unroll 4
    for (size_t r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (size_t i = 0; i < tokens; i++)
#pragma GCC unroll 4
            for (size_t p = 0; p < SIMD_PARTS; p++)
                vf_store(d->sum[i][r0 + r] + p * LANES, sum[r][i].part[p]);
}

/* One token with four rows, or two with two: eight registers of sums with AVX2, enough to hide
 * the latency of a multiplication. */
static void dots(const vptq_uniform_dots *d)
{
    size_t r = 0;
    for (; d->tokens == 1 && d->rows - r >= 4; r += 4)
        dots_of(d, r, 4, 1);
    for (; d->tokens == 1 && r < d->rows; r++)
        dots_of(d, r, 1, 1);
    for (; d->rows - r >= 2; r += 2)
        dots_of(d, r, 2, 2);
    if (r < d->rows)
        dots_of(d, r, 1, 2);
}

static float total(const float *lanes)
{
    v16 sum;
#pragma GCC unroll 4
    for (size_t p = 0; p < SIMD_PARTS; p++)
        sum.part[p] = vf_load(lanes + p * LANES);
    return v16_sum(sum);
}

const vptq_uniform_gemv_kernels VPTQ_SIMD_SYMBOL(vptq_uniform_gemv_kernels) = {decode, dot,
                                                                               dots, total};
