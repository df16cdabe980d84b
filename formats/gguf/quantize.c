/* Quantizes to the ten GGUF block layouts, which quants.c describes, as ggml does without an
 * importance matrix: every product and sum is one float operation in the order of its reference
 * code.  A block depends on its own numbers only.
 * https://github.com/ggml-org/ggml/blob/master/src/ggml-quants.c */
#include <float.h>
#include <math.h>
#include <string.h>

#include "formats/gguf/quants.h"
#include "lib/base/half.h"
#include "lib/base/le.h"
#include "lib/base/status.h"

enum { SMALL = 32, SUPER = 256 }; /* numbers of a plain block and of a K-quant super-block */

/* Stores a scale; returns it as readers see it. */
static float put_half(uint8_t *dst, float x)
{
    const uint16_t half = vptq_f32_to_f16(x);
    vptq_put_le(dst, half, 2);
    return vptq_f16_to_f32(half);
}

static int clamp(int x, int least, int most)
{
    return x < least ? least : x > most ? most : x;
}

/* Rounds half to even by an addition that leaves the integer in the low bits.  Integers of more
 * than 22 bits, infinities and NaN, from runs of subnormal numbers, give what they give in
 * ggml. */
static int nearest(float x)
{
    const float sum = x + 0x1.8p23F;
    uint32_t bits;
    memcpy(&bits, &sum, sizeof bits);
    return (int)(bits & 0x7FFFFF) - 0x400000;
}

/* The number of largest magnitude, with its sign. */
static float largest(const float *x, int n)
{
    float max = 0;
    for (int i = 0; i < n; i++)
        max = fabsf(x[i]) > fabsf(max) ? x[i] : max;
    return max;
}

static float least(const float *x, int n)
{
    float min = x[0];
    for (int i = 1; i < n; i++)
        min = x[i] < min ? x[i] : min;
    return min;
}

static float greatest(const float *x, int n)
{
    float max = x[0];
    for (int i = 1; i < n; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

/* ---- blocks of 32 numbers ---- */

static float inverse_of(float d)
{
    return fabsf(d) > 1 / FLT_MAX ? 1 / d : 0; /* 1 / d would be infinite */
}

static void to_q8_0(const float *x, uint8_t *dst)
{
    const float d = fabsf(largest(x, SMALL)) / 127, inverse = inverse_of(d);
    put_half(dst, d);
    for (int j = 0; j < SMALL; j++)
        dst[2 + j] = (uint8_t)(int8_t)roundf(x[j] * inverse);
}

/* Numbers q of 0 to 2 middle - 1, x = d (q - middle); the largest magnitude becomes 0. */
static void quantize_scaled(const float *x, int middle, uint8_t *d_at, uint8_t *q)
{
    const float d = largest(x, SMALL) / (float)-middle, inverse = inverse_of(d);
    put_half(d_at, d);
    for (int j = 0; j < SMALL; j++)
        q[j] =
            (uint8_t)clamp((int)(x[j] * inverse + ((float)middle + 0.5F)), 0, 2 * middle - 1);
}

/* Numbers q of 0 to top, x = d q + m. */
static void quantize_shifted(const float *x, int top, uint8_t *d_at, uint8_t *q)
{
    const float m = least(x, SMALL), d = (greatest(x, SMALL) - m) / (float)top;
    const float inverse = inverse_of(d);
    put_half(d_at, d);
    put_half(d_at + 2, m);
    for (int j = 0; j < SMALL; j++)
        q[j] = (uint8_t)clamp((int)((x[j] - m) * inverse + 0.5F), 0, top);
}

static void put_nibbles(const uint8_t *q, uint8_t *dst)
{
    for (int j = 0; j < SMALL / 2; j++)
        dst[j] = (uint8_t)((q[j] & 15) | (q[j + SMALL / 2] & 15) << 4);
}

static void put_fifth_bits(const uint8_t *q, uint8_t *dst)
{
    uint32_t bits = 0;
    for (int j = 0; j < SMALL; j++)
        bits |= (uint32_t)(q[j] >> 4) << j;
    vptq_put_le(dst, bits, 4);
}

static void to_q4_0(const float *x, uint8_t *dst)
{
    uint8_t q[SMALL];
    quantize_scaled(x, 8, dst, q);
    put_nibbles(q, dst + 2);
}

static void to_q4_1(const float *x, uint8_t *dst)
{
    uint8_t q[SMALL];
    quantize_shifted(x, 15, dst, q);
    put_nibbles(q, dst + 4);
}

static void to_q5_0(const float *x, uint8_t *dst)
{
    uint8_t q[SMALL];
    quantize_scaled(x, 16, dst, q);
    put_fifth_bits(q, dst + 2);
    put_nibbles(q, dst + 6);
}

static void to_q5_1(const float *x, uint8_t *dst)
{
    uint8_t q[SMALL];
    quantize_shifted(x, 31, dst, q);
    put_fifth_bits(q, dst + 4);
    put_nibbles(q, dst + 8);
}

/* ---- super-blocks with a scale per run: Q3_K, Q6_K ---- */

enum { RUN = 16, RUNS = SUPER / RUN };
#define LEAST_SCALE 1e-15F /* runs of smaller numbers are zero */

/* Sums for the scale by which the numbers round(inverse x) of -half to half - 1 fit x best,
 * each weighted by x^2: the scale is xl / ll, and the fit the better, the larger xl^2 / ll. */
static void fit_scale(const float *x, int half, float inverse, float *xl, float *ll)
{
    *xl = *ll = 0;
    for (int i = 0; i < RUN; i++) {
        const float l = (float)clamp(nearest(inverse * x[i]), -half, half - 1), w = x[i] * x[i];
        *xl += w * x[i] * l;
        *ll += w * l * l;
    }
}

/* The best scale of a run among those that put its largest number near the end of the range,
 * and its numbers plus 32. */
static float fit_six_bits(const float *x, uint8_t *q)
{
    enum { HALF = 32 };
    const float max = largest(x, RUN);
    float xl, ll, scale = 0;
    memset(q, 0, RUN);
    if (fabsf(max) < LEAST_SCALE)
        return 0;
    float inverse = -HALF / max;
    fit_scale(x, HALF, inverse, &xl, &ll);
    if (ll > 0)
        scale = xl / ll;
    float best = scale * xl;
    for (int step = -9; step <= 9; step++) {
        const float other = -(HALF + 0.1F * (float)step) / max;
        if (step == 0)
            continue; /* the one above */
        fit_scale(x, HALF, other, &xl, &ll);
        if (ll > 0 && xl * xl > best * ll) {
            inverse = other;
            scale = xl / ll;
            best = scale * xl;
        }
    }
    for (int i = 0; i < RUN; i++)
        q[i] = (uint8_t)(clamp(nearest(inverse * x[i]), -HALF, HALF - 1) + HALF);
    return scale;
}

/* Moves each number of a run to its best value given the others; returns whether one moved.  As
 * in ggml, nothing moves unless the largest number is negative. */
static bool move_three_bits(const float *x, int *l, float *xl, float *ll)
{
    bool moved = false;
    for (int i = 0; i < RUN; i++) {
        const float w = x[i] * x[i], old = (float)l[i];
        float other_xl = *xl - w * x[i] * old, other_ll = *ll - w * old * old;
        if (!(other_xl > 0))
            continue;
        const int to = clamp(nearest(x[i] * other_ll / other_xl), -4, 3);
        if (to == l[i])
            continue;
        other_xl += w * x[i] * (float)to;
        other_ll += w * (float)to * (float)to;
        if (other_ll > 0 && other_xl * other_xl * *ll > *xl * *xl * other_ll) {
            l[i] = to;
            *xl = other_xl;
            *ll = other_ll;
            moved = true;
        }
    }
    return moved;
}

/* The scale of a run, and its numbers plus 4. */
static float fit_three_bits(const float *x, uint8_t *q)
{
    enum { HALF = 4, MOST_ROUNDS = 5 };
    const float max = largest(x, RUN);
    float xl, ll;
    int l[RUN];
    memset(q, 0, RUN);
    if (fabsf(max) < LEAST_SCALE)
        return 0;
    const float inverse = -HALF / max;
    fit_scale(x, HALF, inverse, &xl, &ll);
    for (int i = 0; i < RUN; i++)
        l[i] = clamp(nearest(inverse * x[i]), -HALF, HALF - 1);
    for (int round = 0; round < MOST_ROUNDS && move_three_bits(x, l, &xl, &ll); round++)
        ;
    for (int i = 0; i < RUN; i++)
        q[i] = (uint8_t)(l[i] + HALF);
    return ll > 0 ? xl / ll : 0;
}

/* Rounds a run to the scale as stored; where that is 0, the numbers of the fit stay. */
static void round_to_scale(const float *x, float d, int half, uint8_t *q)
{
    for (int i = 0; d != 0 && i < RUN; i++)
        q[i] = (uint8_t)(clamp(nearest(x[i] / d), -half, half - 1) + half);
}

/* Stores the low two bits of 256 numbers as q2_k and q3_k read them. */
static void put_pairs(const uint8_t *q, uint8_t *dst)
{
    for (int part = 0; part < 2; part++, q += SUPER / 2)
        for (int l = 0; l < 32; l++)
            *dst++ = (uint8_t)((q[l] & 3) | (q[l + 32] & 3) << 2 | (q[l + 64] & 3) << 4 |
                               (q[l + 96] & 3) << 6);
}

static void to_q3_k(const float *x, uint8_t *dst)
{
    float scales[RUNS];
    uint8_t q[SUPER], *packed = dst + 96;
    memset(dst, 0, 110);
    for (int r = 0; r < RUNS; r++)
        scales[r] = fit_three_bits(x + r * RUN, q + r * RUN);
    const float max = largest(scales, RUNS), inverse = max != 0 ? -32 / max : 0;
    const float d = put_half(dst + 108, max != 0 ? 1 / inverse : 0);
    for (int r = 0; r < RUNS; r++) {
        const int s = max != 0 ? clamp(nearest(inverse * scales[r]), -32, 31) : -32;
        packed[r % 8] |= (uint8_t)(((s + 32) & 15) << r / 8 * 4);
        packed[8 + r % 4] |= (uint8_t)((s + 32) >> 4 << r / 4 * 2);
        round_to_scale(x + r * RUN, d * (float)s, 4, q + r * RUN);
    }
    for (int i = 0; i < SUPER; i++)
        dst[i % 32] |= (uint8_t)(q[i] >> 2 << i / 32); /* hmask */
    put_pairs(q, dst + 32);
}

/* Stores the 256 numbers of a block, each plus 32, as q6_k reads them. */
static void put_six_bits(const uint8_t *value, uint8_t *dst)
{
    for (int part = 0; part < 2; part++, value += SUPER / 2) {
        uint8_t *ql = dst + part * 64, *qh = dst + 128 + part * 32;
        for (int l = 0; l < 32; l++) {
            const int a = value[l], b = value[l + 32], c = value[l + 64], d = value[l + 96];
            ql[l] = (uint8_t)((a & 15) | (c & 15) << 4);
            ql[l + 32] = (uint8_t)((b & 15) | (d & 15) << 4);
            qh[l] = (uint8_t)(a >> 4 | b >> 4 << 2 | c >> 4 << 4 | d >> 4 << 6);
        }
    }
}

static void to_q6_k(const float *x, uint8_t *dst)
{
    float scales[RUNS];
    uint8_t q[SUPER];
    memset(dst, 0, 210);
    for (int r = 0; r < RUNS; r++)
        scales[r] = fit_six_bits(x + r * RUN, q + r * RUN);
    const float max = largest(scales, RUNS);
    if (fabsf(max) < LEAST_SCALE)
        return;
    const float inverse = -128 / max, d = put_half(dst + 208, 1 / inverse);
    for (int r = 0; r < RUNS; r++) {
        const int s = clamp(nearest(inverse * scales[r]), -128, 127);
        dst[192 + r] = (uint8_t)(int8_t)s;
        round_to_scale(x + r * RUN, d * (float)s, 32, q + r * RUN);
    }
    put_six_bits(q, dst);
}

/* ---- super-blocks with a scale and a minimum per run: Q2_K, Q4_K, Q5_K ---- */

/* How a type fits the line x = scale q - min, q = 0 to top, min >= 0, to a run. */
typedef struct line_kind {
    int run, top;
    float first; /* inverse scales tried: (first + 0.1 i + top) / range, i = 0 to last */
    int last;
    bool magnitudes; /* errors count by magnitude, weighted by |x|; else by square, weighted by
                        |x| plus the root mean square of x */
    int scale_top;   /* scales and minima are stored as multiples of 1 / scale_top of the
                        largest */
} line_kind;

static const line_kind q2_k_lines = {16, 3, -0.5F, 15, true, 15},
                       q4_k_lines = {32, 15, -1, 20, false, 63},
                       q5_k_lines = {32, 31, -0.5F, 15, false, 63};

enum { MAX_RUN = 32, MAX_RUNS = 16 };

typedef struct line {
    float scale, min; /* min as ggml has it while it fits: at most 0, added */
} line;

static void weigh(const line_kind *k, const float *x, float *w)
{
    float squares = 0, mean = 0;
    for (int i = 0; !k->magnitudes && i < k->run; i++)
        squares += x[i] * x[i];
    mean = sqrtf(squares / (float)k->run);
    for (int i = 0; i < k->run; i++)
        w[i] = mean + fabsf(x[i]);
}

static void round_to_line(const line_kind *k, const float *x, float min, float inverse,
                          uint8_t *q)
{
    for (int i = 0; i < k->run; i++)
        q[i] = (uint8_t)clamp(nearest(inverse * (x[i] - min)), 0, k->top);
}

static float line_error(const line_kind *k, const float *x, const float *w, const uint8_t *q,
                        line a)
{
    float error = 0;
    for (int i = 0; i < k->run; i++) {
        const float diff = a.scale * (float)q[i] + a.min - x[i];
        error += w[i] * (k->magnitudes ? fabsf(diff) : diff * diff);
    }
    return error;
}

/* The weighted least-squares line for numbers q; false if they are all equal. */
static bool solve_line(const line_kind *k, const float *x, const float *w, const uint8_t *q,
                       line *out)
{
    float sum_w = 0, sum_x = 0, sum_l = 0, sum_ll = 0, sum_xl = 0;
    for (int i = 0; i < k->run; i++) {
        const float l = (float)q[i];
        sum_w += w[i];
        sum_x += w[i] * x[i];
        sum_l += w[i] * l;
        sum_ll += w[i] * l * l;
        sum_xl += w[i] * l * x[i];
    }
    const float det = sum_w * sum_ll - sum_l * sum_l;
    if (!(det > 0))
        return false;
    out->scale = (sum_w * sum_xl - sum_x * sum_l) / det;
    out->min = (sum_ll * sum_x - sum_l * sum_xl) / det;
    if (out->min > 0)
        *out = (line){sum_xl / sum_ll, 0};
    return true;
}

/* The best line of a run among those tried, and its numbers. */
static line fit_line(const line_kind *k, const float *x, uint8_t *q)
{
    const float max = greatest(x, k->run), smallest = least(x, k->run);
    float w[MAX_RUN];
    uint8_t tried[MAX_RUN];
    line best = {0, smallest > 0 ? 0 : smallest}, next;
    memset(q, 0, (size_t)k->run);
    if (max == best.min)
        return best;
    weigh(k, x, w);
    const float inverse = (float)k->top / (max - best.min);
    best.scale = 1 / inverse;
    round_to_line(k, x, best.min, inverse, q);
    float best_error = line_error(k, x, w, q, best);
    for (int i = 0; i <= k->last; i++) {
        const float scaled = k->first + 0.1F * (float)i + (float)k->top;
        round_to_line(k, x, best.min, scaled / (max - best.min), tried);
        if (!solve_line(k, x, w, tried, &next))
            continue;
        const float error = line_error(k, x, w, tried, next);
        if (error < best_error) {
            memcpy(q, tried, (size_t)k->run);
            best_error = error;
            best = next;
        }
    }
    return best;
}

/* A super-block of lines; scale and min are stored as multiples of d and dmin. */
typedef struct line_block {
    uint8_t scale[MAX_RUNS], min[MAX_RUNS], q[SUPER];
    float d, dmin; /* as readers see them */
} line_block;

/* Fits all runs and stores d and dmin. */
static void fit_lines(const line_kind *k, const float *x, line_block *b, uint8_t *d_at)
{
    const int runs = SUPER / k->run;
    const float top = (float)k->scale_top;
    line a[MAX_RUNS];
    float max_scale = 0, max_min = 0;
    for (int r = 0; r < runs; r++) {
        a[r] = fit_line(k, x + r * k->run, b->q + r * k->run);
        max_scale = a[r].scale > max_scale ? a[r].scale : max_scale;
        max_min = -a[r].min > max_min ? -a[r].min : max_min;
    }
    const float inverse_scale = max_scale > 0 ? top / max_scale : 0;
    const float inverse_min = max_min > 0 ? top / max_min : 0;
    for (int r = 0; r < runs; r++) {
        b->scale[r] = (uint8_t)nearest(inverse_scale * a[r].scale);
        b->min[r] = (uint8_t)nearest(inverse_min * -a[r].min);
    }
    b->d = put_half(d_at, max_scale / top);
    b->dmin = put_half(d_at + 2, max_min / top);
}

/* Rounds all runs to the lines as stored; where a scale is 0, the numbers of the fit stay. */
static void round_to_lines(const line_kind *k, const float *x, line_block *b)
{
    for (int i = 0; i < SUPER; i++) {
        const float d = b->d * (float)b->scale[i / k->run];
        const float min = b->dmin * (float)b->min[i / k->run];
        if (d != 0)
            b->q[i] = (uint8_t)clamp(nearest((x[i] + min) / d), 0, k->top);
    }
}

static void to_q2_k(const float *x, uint8_t *dst)
{
    line_block b;
    fit_lines(&q2_k_lines, x, &b, dst + 80);
    for (int r = 0; r < SUPER / q2_k_lines.run; r++) {
        dst[r] = (uint8_t)(b.scale[r] | b.min[r] << 4);
        b.scale[r] = dst[r] & 15;
        b.min[r] = dst[r] >> 4;
    }
    round_to_lines(&q2_k_lines, x, &b);
    put_pairs(b.q, dst + 16);
}

/* d, dmin and the twelve bytes of six-bit scales and minima that Q4_K and Q5_K share. */
static void put_lines(const line_kind *k, const float *x, line_block *b, uint8_t *dst)
{
    uint8_t *packed = dst + 4;
    fit_lines(k, x, b, dst);
    for (int r = 0; r < SUPER / k->run; r++) {
        b->scale[r] = (uint8_t)clamp(b->scale[r], 0, k->scale_top);
        b->min[r] = (uint8_t)clamp(b->min[r], 0, k->scale_top);
    }
    for (int r = 0; r < 4; r++) {
        packed[r] = (uint8_t)(b->scale[r] | b->scale[r + 4] >> 4 << 6);
        packed[r + 4] = (uint8_t)(b->min[r] | b->min[r + 4] >> 4 << 6);
        packed[r + 8] = (uint8_t)((b->scale[r + 4] & 15) | (b->min[r + 4] & 15) << 4);
    }
    round_to_lines(k, x, b);
}

/* Low nibbles of 256 numbers: 64 of them share 32 bytes. */
static void put_run_nibbles(const uint8_t *q, uint8_t *dst)
{
    for (int part = 0; part < SUPER / 64; part++, q += 64)
        for (int l = 0; l < 32; l++)
            *dst++ = (uint8_t)((q[l] & 15) | (q[l + 32] & 15) << 4);
}

static void to_q4_k(const float *x, uint8_t *dst)
{
    line_block b;
    put_lines(&q4_k_lines, x, &b, dst);
    put_run_nibbles(b.q, dst + 16);
}

static void to_q5_k(const float *x, uint8_t *dst)
{
    line_block b;
    put_lines(&q5_k_lines, x, &b, dst);
    memset(dst + 16, 0, 32);
    for (int i = 0; i < SUPER; i++)
        dst[16 + i % 32] |= (uint8_t)(b.q[i] >> 4 << i / 32);
    put_run_nibbles(b.q, dst + 48);
}

/* ---- all types ---- */

#define LARGEST_HALF 65504.0F

/* Minima are stored as halves or small multiples of them, hence the lower limit of most. */
static const struct quantizer {
    void (*block)(const float *x, uint8_t *dst);
    float limit;
} quantizers[VPTQ_DTYPE_COUNT] = {
    [VPTQ_Q4_0] = {to_q4_0, LARGEST_HALF},       [VPTQ_Q4_1] = {to_q4_1, LARGEST_HALF},
    [VPTQ_Q5_0] = {to_q5_0, LARGEST_HALF},       [VPTQ_Q5_1] = {to_q5_1, LARGEST_HALF},
    [VPTQ_Q8_0] = {to_q8_0, LARGEST_HALF * 127}, [VPTQ_Q2_K] = {to_q2_k, LARGEST_HALF},
    [VPTQ_Q3_K] = {to_q3_k, LARGEST_HALF},       [VPTQ_Q4_K] = {to_q4_k, LARGEST_HALF},
    [VPTQ_Q5_K] = {to_q5_k, LARGEST_HALF},       [VPTQ_Q6_K] = {to_q6_k, LARGEST_HALF * 127},
};

float vptq_ggml_limit(vptq_dtype type)
{
    return quantizers[type].limit;
}

void vptq_ggml_quantize(vptq_dtype type, const float *x, size_t n, uint8_t *dst)
{
    const vptq_dtype_info *info = vptq_dtype_get(type);
    VPTQ_BUG_IF(!quantizers[type].block || n % info->block != 0);
    for (size_t i = 0; i < n / info->block; i++)
        quantizers[type].block(x + i * info->block, dst + i * info->bytes);
}
