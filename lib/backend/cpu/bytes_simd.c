/* The kernels of vptq_bytes_kernels (bytes.h).  Sums of whole numbers are exact in any order.
 */
#include "lib/base/simd.h"

#include "lib/backend/array_ops.h"
#include "lib/backend/cpu/bytes.h"

enum { OUT = VPTQ_BYTES_OUT, TOKENS = VPTQ_BYTES_TOKENS };

/* ---- quantizing ---- */

/* The largest magnitude of n numbers; NaN if one is not finite, because 0 times it is NaN. */
static float largest(const float *x, size_t n)
{
    const vf none = vf_set1(0);
    vf most = none, zero = none;
    float lane[SIMD_LANES], check[SIMD_LANES], m = 0;
    for (size_t i = 0; i < n; i += SIMD_LANES) {
        const vf v = n - i < SIMD_LANES ? vf_load_part(x + i, n - i) : vf_load(x + i);
        most = vf_max(vf_max(v, vf_sub(none, v)), most);
        zero = vf_add(zero, vf_mul(v, none));
    }
    vf_store(lane, most);
    vf_store(check, zero);
    for (size_t l = 0; l < SIMD_LANES; l++) {
        m = lane[l] > m ? lane[l] : m;
        check[0] += check[l];
    }
    return m + check[0];
}

/* Writes n nearest whole numbers, as vf_round has them: from -127 to 127, because 127 / m times
 * m is below 127.5.  They are the low bytes of the sum. */
static void store_nearest(int8_t *q, size_t n, vf v)
{
    const vf sum = vf_add(v, vf_set1(0x1.8p23F));
#if SIMD_512
    const __m128i whole = _mm512_cvtepi32_epi8(_mm512_castps_si512(sum));
#elif SIMD_X86
    const __m256i low = _mm256_set1_epi32(0x0c080400);
    const __m256i lanes = _mm256_shuffle_epi8(_mm256_castps_si256(sum), low);
    const __m128i whole =
        _mm_unpacklo_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
#else
    int32_t word[SIMD_LANES];
    int8_t whole[SIMD_LANES];
    memcpy(word, &sum, sizeof word);
    for (size_t l = 0; l < SIMD_LANES; l++)
        whole[l] = (int8_t)(uint8_t)(word[l] & 0xff);
#endif
    if (n == SIMD_LANES)
        memcpy(q, &whole, SIMD_LANES);
    else
        memcpy(q, &whole, n);
}

static bool quantize(const float *x, size_t n, int8_t *q, float *scale)
{
    const float m = largest(x, n);
    if (isnan(m))
        return false;
    memset(q, 0, VPTQ_BYTES_ROW(n));
    *scale = m < VPTQ_BYTES_LEAST ? 0 : m / 127;
    if (m < VPTQ_BYTES_LEAST)
        return true;
    const vf steps = vf_set1(127 / m);
    for (size_t i = 0; i < n; i += SIMD_LANES) {
        const size_t count = n - i < SIMD_LANES ? n - i : SIMD_LANES;
        const vf v = count < SIMD_LANES ? vf_load_part(x + i, count) : vf_load(x + i);
        store_nearest(q + i, count, vf_mul(v, steps));
    }
    return true;
}

/* ---- products ----
 *
 * bytes      a piece of a row
 * weights    a piece of codes, less 128
 * sums       some 32-bit sums, which together are the sum of products */

#if SIMD_512

typedef __m512i bytes, sums;
typedef struct weights {
    __m512i magnitude; /* unsigned: up to 128 */
    __mmask64 negative;
} weights;

SIMD_INLINE bytes load(const void *p)
{
    return _mm512_loadu_si512(p);
}

SIMD_INLINE weights weights_of(bytes codes)
{
    const __m512i w = _mm512_xor_si512(codes, _mm512_set1_epi8((char)0x80));
    return (weights){_mm512_abs_epi8(w), _mm512_movepi8_mask(w)};
}

SIMD_INLINE sums no_sums(void)
{
    return _mm512_setzero_si512();
}

/* Two products of magnitudes up to 127 * 128 fit in 16 bits. */
SIMD_INLINE sums add_products(sums s, weights w, bytes q)
{
    const __m512i turned = _mm512_mask_sub_epi8(q, w.negative, _mm512_setzero_si512(), q);
    const __m512i pairs = _mm512_maddubs_epi16(w.magnitude, turned);
    return _mm512_add_epi32(s, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}

SIMD_INLINE int32_t total(sums s)
{
    return _mm512_reduce_add_epi32(s);
}

#elif SIMD_X86

typedef __m256i bytes, sums;
typedef struct weights {
    __m256i magnitude; /* unsigned: up to 128 */
    __m256i w;         /* for its sign */
} weights;

SIMD_INLINE bytes load(const void *p)
{
    return _mm256_loadu_si256(p);
}

SIMD_INLINE weights weights_of(bytes codes)
{
    const __m256i w = _mm256_xor_si256(codes, _mm256_set1_epi8((char)0x80));
    return (weights){_mm256_abs_epi8(w), w};
}

SIMD_INLINE sums no_sums(void)
{
    return _mm256_setzero_si256();
}

/* Two products of magnitudes up to 127 * 128 fit in 16 bits. */
SIMD_INLINE sums add_products(sums s, weights w, bytes q)
{
    const __m256i pairs = _mm256_maddubs_epi16(w.magnitude, _mm256_sign_epi8(q, w.w));
    return _mm256_add_epi32(s, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

SIMD_INLINE int32_t total(sums s)
{
    __asm__("" : "+x"(s)); /* or gcc stores the sum in every step of the loop before */
    __m128i t = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(t, _mm_shuffle_epi32(t, 0xb1)));
}

#elif VPTQ_SIMD_LEVEL == 3

typedef int8x16_t bytes, weights;
typedef int32x4_t sums;

SIMD_INLINE bytes load(const void *p)
{
    return vld1q_s8(p);
}

SIMD_INLINE weights weights_of(bytes codes)
{
    return veorq_s8(codes, vdupq_n_s8(-128));
}

SIMD_INLINE sums no_sums(void)
{
    return vdupq_n_s32(0);
}

/* Two products of magnitudes up to 127 * 128 fit in 16 bits. */
SIMD_INLINE sums add_products(sums s, weights w, bytes q)
{
    const int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(q));
    return vpadalq_s16(s, vmlal_s8(low, vget_high_s8(w), vget_high_s8(q)));
}

SIMD_INLINE int32_t total(sums s)
{
    return vaddvq_s32(s);
}

#else

typedef struct bytes {
    int8_t lane[16];
} bytes;
typedef bytes weights;
typedef int32_t sums;

SIMD_INLINE bytes load(const void *p)
{
    bytes b;
    memcpy(&b, p, sizeof b);
    return b;
}

SIMD_INLINE weights weights_of(bytes codes)
{
    for (size_t i = 0; i < sizeof codes.lane; i++)
        codes.lane[i] ^= -128;
    return codes;
}

SIMD_INLINE sums no_sums(void)
{
    return 0;
}

SIMD_INLINE sums add_products(sums s, weights w, bytes q)
{
    for (size_t i = 0; i < sizeof w.lane; i++)
        s += w.lane[i] * q.lane[i];
    return s;
}

SIMD_INLINE int32_t total(sums s)
{
    return s;
}

#endif

/* The first n bytes, then zeros. */
SIMD_INLINE bytes load_first(const void *p, size_t n)
{
#if SIMD_512
    return _mm512_maskz_loadu_epi8(((__mmask64)1 << n) - 1, p);
#else
    uint8_t whole[sizeof(bytes)] = {0};
    memcpy(whole, p, n);
    return load(whole);
#endif
}

/* The products of the last bytes of rows, which fill no piece. */
static void add_end(vptq_bytes_tile *t, size_t at, size_t tokens)
{
    const size_t left = t->bytes - at;
    for (size_t o = 0; o < OUT; o++) {
        const weights w = weights_of(load_first(t->codes[o] + at, left));
        for (size_t i = 0; i < tokens; i++)
            t->sum[i][o] += total(add_products(no_sums(), w, load_first(t->q[i] + at, left)));
    }
}

/* The products of all whole pieces of `tokens` rows with `out` rows of codes from row `first`
 * on.  All but t are constants at the call. */
SIMD_INLINE void multiply(vptq_bytes_tile *t, size_t first, size_t tokens, size_t out)
{
    const size_t end = t->bytes - t->bytes % sizeof(bytes);
    sums s[TOKENS * OUT];
#pragma GCC unroll 16
    for (size_t i = 0; i < tokens * out; i++)
        s[i] = no_sums();
    for (size_t at = 0; at < end; at += sizeof(bytes))
#pragma GCC unroll 4
        for (size_t o = 0; o < out; o++) {
            const weights w = weights_of(load(t->codes[first + o] + at));
#pragma GCC unroll 4
            for (size_t i = 0; i < tokens; i++)
                s[i * out + o] = add_products(s[i * out + o], w, load(t->q[i] + at));
        }
#pragma GCC unroll 4
    for (size_t i = 0; i < tokens; i++)
#pragma GCC unroll 4
        for (size_t o = 0; o < out; o++)
            t->sum[i][first + o] = total(s[i * out + o]);
}

static void one(vptq_bytes_tile *t)
{
    multiply(t, 0, 1, OUT);
    if (t->bytes % sizeof(bytes))
        add_end(t, t->bytes - t->bytes % sizeof(bytes), 1);
}

/* Half of the rows of codes at a time: so many sums fit into registers. */
static void all(vptq_bytes_tile *t)
{
    multiply(t, 0, TOKENS, OUT / 2);
    multiply(t, OUT / 2, TOKENS, OUT / 2);
    if (t->bytes % sizeof(bytes))
        add_end(t, t->bytes - t->bytes % sizeof(bytes), TOKENS);
}

const vptq_bytes_kernels VPTQ_SIMD_SYMBOL(vptq_bytes_kernels) = {
    .quantize = quantize, .one = one, .all = all};
