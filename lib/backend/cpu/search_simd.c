/* Search of pairs of main and residual centroids: the kernels of vptq_search_kernels.
 *
 * The score of a centroid is that of codebook.h; the score of a pair for x is x.(c + r) -
 * |c + r|^2 / 2.
 *
 * Finding the `beam` nearest main centroids: 32 (16, 8) vectors in the lanes are scored against
 * all centroids.  Of the scores, only the maximum of each block of 16 and the maxima of at
 * least 2 * beam classes are kept; a class is every so-many-th run of 4 centroids.  The beam-th
 * largest class maximum is a bound that at least `beam` scores reach, and about 1.4 * beam in
 * all.  Blocks whose maximum reaches it are scored again, vector by vector. */
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "lib/backend/cpu/codebook_simd.h"
#include "lib/backend/cpu/screen_simd.h"

/* Candidates whose remainders, of up to 12 dimensions, fit into the registers together. */
enum { BOTH = VPTQ_SIMD_LEVEL == 2 ? 2 : 1 };

/* ---- main scores ---- */

/* Vectors that are searched together, with their work space. */
typedef struct tile {
    const vptq_pair_codebooks *b;
    const float *x;
    size_t count, classes;
    bool neighbors;   /* candidates are the neighbors of the current choice */
    float *tops;      /* [blocks][TILE] largest score of each block */
    float *class_top; /* [classes][TILE] */
    uint16_t *hits;   /* [TILE][blocks] blocks with candidates */
    uint32_t *list;   /* [k + 16] candidates of one vector */
    float *score;     /* their scores */
    float *res;       /* [res.blocks * 16] what one vector adds to residual scores */
    int16_t *y;       /* [screen_stride] the same as integers */
    int32_t *upper;   /* [k + 16] upper bounds of the candidates */
    uint32_t *pairs;  /* [MAX_PAIRS + screen_stride + 16] pairs that reach the bounds */
    float bound[TILE];
    float old[TILE]; /* distance of the given choice; infinity if there is none */
    uint32_t found[TILE], found_res[TILE];
    float nearest[TILE]; /* distance of the best pair so far; infinity if there is none */
} tile;

static tile tile_in(const vptq_pair_codebooks *b, float *work)
{
    tile t = {.b = b, .classes = b->classes};
    const size_t blocks = b->main.blocks;
    t.tops = work;
    t.class_top = t.tops + blocks * TILE;
    t.score = t.class_top + b->classes * TILE;
    t.res = t.score + (blocks + 1) * VPTQ_CODEBOOK_LANES;
    t.list = (uint32_t *)(void *)(t.res + b->res.blocks * VPTQ_CODEBOOK_LANES);
    t.upper = (int32_t *)(void *)(t.list + (blocks + 1) * VPTQ_CODEBOOK_LANES);
    t.pairs = (uint32_t *)(void *)(t.upper + (blocks + 1) * VPTQ_CODEBOOK_LANES);
    t.y = (int16_t *)(void *)(t.pairs + VPTQ_SCREENED_PAIRS + b->screen_stride +
                              VPTQ_CODEBOOK_LANES);
    t.hits = (uint16_t *)(void *)(t.y + b->screen_stride);
    for (size_t e = b->res.blocks; e < b->screen_stride / VPTQ_CODEBOOK_LANES; e++) {
        vf none[PARTS];
        for (size_t p = 0; p < PARTS; p++)
            none[p] = vf_set1(-INFINITY);
        screen_block(none, 1, t.y, e);
    }
    return t;
}

/* Fills tops and class_top. */
SIMD_INLINE void score_tile(const tile *t, size_t v, const float *xt)
{
    const vptq_codebook *codebook = &t->b->main;
    size_t class = 0;
    for (size_t i = 0; i < t->classes * TILE; i++)
        t->class_top[i] = -INFINITY;
    for (size_t b = 0; b < codebook->blocks; b++) {
        const float *c = codebook->data + b * (1 + v) * VPTQ_CODEBOOK_LANES;
        vf max[SETS];
        for (size_t s = 0; s < SETS; s++)
            max[s] = vf_set1(-INFINITY);
        for (size_t j = 0; j < VPTQ_CODEBOOK_LANES; j += STEP, c += STEP) {
            SIMD_KEEP_IN_LOOP(xt, c);
            float *of_class = t->class_top + class * TILE;
            vf top[SETS];
            for (size_t s = 0; s < SETS; s++)
                top[s] = vf_set1(-INFINITY);
            best_of_step(c, v, SETS, xt, top);
            for (size_t s = 0; s < SETS; s++) {
                vf_store(of_class + s * LANES, vf_max(top[s], vf_load(of_class + s * LANES)));
                max[s] = vf_max(top[s], max[s]);
            }
            class = class + 1 < t->classes ? class + 1 : 0;
        }
        for (size_t s = 0; s < SETS; s++)
            vf_store(t->tops + b * TILE + s * LANES, max[s]);
    }
}

static void sort_two(float *a, float *b)
{
    for (size_t s = 0; s < TILE; s += LANES) {
        const vf x = vf_load(a + s), y = vf_load(b + s);
        vf_store(a + s, vf_max(x, y));
        vf_store(b + s, vf_min(x, y));
    }
}

/* Sorts the class maxima of every lane in descending order: Batcher's merge exchange (Knuth,
 * TAOCP 3, 5.2.2, algorithm M). */
static void sort_classes(const tile *t)
{
    const size_t n = t->classes;
    size_t top = 1;
    while (top * 2 < n)
        top *= 2;
    for (size_t p = top; p > 0; p /= 2) {
        for (size_t q = top, r = 0, d = p;; d = q - p, q /= 2, r = p) {
            for (size_t i = 0; i + d < n; i++) {
                if ((i & p) == r)
                    sort_two(t->class_top + i * TILE, t->class_top + (i + d) * TILE);
            }
            if (q == p)
                break;
        }
    }
}

/* ---- candidates ---- */

/* Lists, for each vector, the blocks in which a score reaches its bound, and their number in n
 * [TILE]. */
static void find_hits(const tile *t, size_t *n)
{
    const size_t blocks = t->b->main.blocks;
    memset(n, 0, TILE * sizeof *n);
    for (size_t b = 0; b < blocks; b++) {
        uint32_t hit = 0;
        for (size_t s = 0; s < SETS; s++)
            hit |= vf_at_least(vf_load(t->tops + b * TILE + s * LANES),
                               vf_load(t->bound + s * LANES))
                   << s * LANES;
        for (; hit; hit &= hit - 1) {
            const size_t j = (size_t)__builtin_ctz(hit);
            t->hits[j * blocks + n[j]++] = (uint16_t)b;
        }
    }
}

/* Collects the candidates of vector j in list, ascending, and their scores; returns their
 * number. */
SIMD_INLINE size_t collect(const tile *t, size_t v, size_t j, size_t hits)
{
    const uint16_t *hit = t->hits + j * t->b->main.blocks;
    size_t n = 0;
    for (size_t i = 0; i < hits; i++) {
        vf s[PARTS];
        score_block(t->b->main.data + hit[i] * (1 + v) * VPTQ_CODEBOOK_LANES, v, t->x + j * v,
                    s);
        for (size_t p = 0; p < PARTS; p++)
            n = vf_append(t->list, t->score, n, s[p], vf_set1(t->bound[j]),
                          (uint32_t)(hit[i] * VPTQ_CODEBOOK_LANES + p * LANES));
    }
    return n;
}

/* ---- around the present choice ---- */

/* Collects the candidates of vector j among the neighbors of main centroid c, nearest to c
 * first; returns their number. */
SIMD_INLINE size_t collect_neighbors(const tile *t, size_t v, size_t j, uint32_t c)
{
    const vptq_pair_codebooks *b = t->b;
    const size_t classes =
        (2 * b->beam + VPTQ_CODEBOOK_LANES - 1) / VPTQ_CODEBOOK_LANES * VPTQ_CODEBOOK_LANES;
    float score[VPTQ_MAX_NEIGHBORS] = {0};
    size_t n = 0;
    score_neighbors(b, v, c, t->x + j * v, score);
    const vf bound = vf_set1(bound_of(score, b->neighbors, classes, b->beam));
    for (size_t e = 0; e < b->neighbors; e += LANES)
        n = vf_append(t->list, t->score, n, vf_load(score + e), bound, (uint32_t)e);
    for (size_t i = 0; i < n; i++)
        t->list[i] = b->neighbor_index[c * b->neighbors + t->list[i]];
    return n;
}

/* ---- pairs ---- */

/* |x - (c + r)|^2 */
SIMD_INLINE float distance_of(const tile *t, size_t v, const float *x, uint32_t main,
                              uint32_t res)
{
    const float *c = t->b->centroids + main * v, *r = t->b->res_centroids + res * v;
    float sum = 0;
    for (size_t d = 0; d < v; d++) {
        const float diff = x[d] - (c[d] + r[d]);
        sum += diff * diff;
    }
    return sum;
}

/* ---- screening ----
 *
 * A residual centroid r adds x.r - |r|^2 / 2 - c.r to the score of a main centroid c.  The last
 * term is stored as 8 bits times a step of c; the other two are computed for each x.  All are
 * summed in 16 bits in units of that x.  The error of a sum is at most e(c) units, so that only
 * pairs within e(c) of the largest lower bound can be best.  The distances of these few pairs
 * are then computed. */

enum {
    MAX_UNITS = 16000, /* units of the largest term of x; with the 127 * 64 of the table no sum
                          overflows */
    STEP_UNITS = 64,   /* units of the largest step among the candidates */
    MAX_PAIRS = VPTQ_SCREENED_PAIRS
};

/* Computes the terms that x adds for every residual centroid, as integers; returns their unit,
 * or 0 if there is none. */
SIMD_INLINE float screen_vector(const tile *t, size_t v, const float *x, float step)
{
    const vptq_codebook *res = &t->b->res;
    vf max[PARTS];
    float lane[VPTQ_CODEBOOK_LANES], largest = 0;
    for (size_t p = 0; p < PARTS; p++)
        max[p] = vf_set1(0);
    for (size_t b = 0; b < res->blocks; b++) {
        vf s[PARTS];
        score_block(res->data + b * (1 + v) * VPTQ_CODEBOOK_LANES, v, x, s);
        for (size_t p = 0; p < PARTS; p++) {
            /* without the -infinity after the last centroid */
            const vf size = vf_max(s[p], vf_fma(s[p], vf_set1(-1), vf_set1(0)));
            max[p] = vf_select_greater(size, vf_set1(FLT_MAX), max[p], vf_max(size, max[p]));
            vf_store(t->res + b * VPTQ_CODEBOOK_LANES + p * LANES, s[p]);
        }
    }
    for (size_t p = 0; p < PARTS; p++)
        vf_store(lane + p * LANES, max[p]);
    for (size_t l = 0; l < VPTQ_CODEBOOK_LANES; l++)
        largest = lane[l] > largest ? lane[l] : largest;
    const float unit =
        step / STEP_UNITS > largest / MAX_UNITS ? step / STEP_UNITS : largest / MAX_UNITS;
    const float factor = 1 / unit;
    if (!(unit > 1e-30F && factor > 1e-30F))
        return 0;
    for (size_t b = 0; b < res->blocks; b++) {
        vf s[PARTS];
        for (size_t p = 0; p < PARTS; p++)
            s[p] = vf_load(t->res + b * VPTQ_CODEBOOK_LANES + p * LANES);
        screen_block(s, factor, t->y, b);
    }
    return unit;
}

/* How the integers of one candidate are to be read. */
typedef struct screen {
    int32_t factor; /* of the row of the table, in 1/128 */
    int32_t base;   /* its main score plus the error, so that sums are upper bounds */
    int32_t error;
} screen;

/* best: main score of the best candidate; per_unit: units per 1. */
static inline screen screen_of(const tile *t, size_t entry, float best, float per_unit,
                               float slack)
{
    const float step = t->b->screen_step[t->list[entry]] * per_unit;
    const float base = (t->score[entry] - best) * per_unit;
    screen s = {.factor = (int32_t)(128 * step + 0.5F)};
    s.error = (int32_t)(0.5F * step + slack) + 4;
    s.base = (int32_t)(base > -MAX_UNITS ? base - 0.5F : -MAX_UNITS) + s.error;
    return s;
}

/* Lists the pairs that may be best, as index into the candidates * 65536 + residual centroid;
 * more than MAX_PAIRS if screening does not help. */
static size_t screen_pairs(const tile *t, size_t n, float best, float unit, float slack)
{
    const size_t work = t->b->screen_stride;
    const float per_unit = 1 / unit;
    int32_t bound = INT32_MIN;
    for (size_t i = 0; i < n; i++) {
        const screen s = screen_of(t, i, best, per_unit, slack);
        const int32_t upper =
            s.base + screen_max(t->b->screen + t->list[i] * work, t->y, work, s.factor);
        t->upper[i] = upper;
        bound = upper - 2 * s.error > bound ? upper - 2 * s.error : bound;
    }
    size_t pairs = 0;
    for (size_t i = 0; i < n && pairs <= MAX_PAIRS; i++) {
        if (t->upper[i] < bound)
            continue;
        const screen s = screen_of(t, i, best, per_unit, slack);
        const size_t more = screen_list(t->b->screen + t->list[i] * work, t->y, work, s.factor,
                                        bound - s.base, t->pairs + pairs);
        for (size_t e = 0; e < more; e++)
            t->pairs[pairs + e] |= (uint32_t)i << 16;
        pairs += more;
    }
    return pairs;
}

/* Finds the best pair of vector j; returns false if it must be computed instead. */
SIMD_INLINE bool best_by_screening(tile *t, size_t v, size_t j, size_t n)
{
    const float *x = t->x + j * v;
    float best = t->score[0], step = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        const float s = t->b->screen_step[t->list[i]];
        const int8_t *row = t->b->screen + t->list[i] * t->b->screen_stride;
        for (size_t e = 0; e < 256 && e < t->b->screen_stride; e += 64)
            __builtin_prefetch(row + e);
        step = s > step ? s : step;
        best = t->score[i] > best ? t->score[i] : best;
    }
    for (size_t d = 0; d < v; d++)
        norm += x[d] * x[d];
    const float unit = screen_vector(t, v, x, step);
    const float slack = 4e-6F * norm / unit; /* far more than the rounding of scores */
    if (!(unit > 0 && slack < MAX_UNITS) || n > 1u << 16)
        return false;
    const size_t pairs = screen_pairs(t, n, best, unit, slack);
    if (pairs > MAX_PAIRS)
        return false;
    for (size_t e = 0; e < pairs; e++) {
        const uint32_t main = t->list[t->pairs[e] >> 16], res = t->pairs[e] & 0xffff;
        const float distance = distance_of(t, v, x, main, res);
        const bool first = main < t->found[j] || (main == t->found[j] && res < t->found_res[j]);
        if (distance < t->nearest[j] || (distance <= t->nearest[j] && first)) {
            t->nearest[j] = distance;
            t->found[j] = main;
            t->found_res[j] = res;
        }
    }
    return true;
}

/* Fills one row of the table, for main centroid c; *step is the value of one unit. */
static void screen_row(const vptq_codebook *res, const float *c, float *work, size_t n,
                       int8_t *row, float *step)
{
    const size_t v = res->v;
    float largest = 0;
    for (size_t b = 0; b < res->blocks; b++) {
        const float *block = res->data + b * (1 + v) * VPTQ_CODEBOOK_LANES;
        float *dot = work + b * VPTQ_CODEBOOK_LANES;
        vf s[PARTS];
        for (size_t p = 0; p < PARTS; p++)
            s[p] = vf_set1(0);
        for (size_t d = 0; d < v; d++) {
            for (size_t p = 0; p < PARTS; p++)
                s[p] = vf_fma(vf_load(block + (1 + d) * VPTQ_CODEBOOK_LANES + p * LANES),
                              vf_set1(c[d]), s[p]);
        }
        for (size_t p = 0; p < PARTS; p++)
            vf_store(dot + p * LANES, s[p]);
        for (size_t l = 0; l < VPTQ_CODEBOOK_LANES; l++)
            largest = fabsf(dot[l]) > largest ? fabsf(dot[l]) : largest;
    }
    *step = largest / 127;
    const float factor = largest > 1e-30F ? 127 / largest : 0;
    memset(row, 0, n);
    for (size_t e = 0; e < res->blocks * VPTQ_CODEBOOK_LANES; e++) {
        const float units = work[e] * -factor;
        row[e] = (int8_t)(units > 0   ? fminf(units, 127) + 0.5F
                          : units < 0 ? fmaxf(units, -127) - 0.5F
                                      : 0);
    }
}

/* ---- computing ---- */

/* The best score per lane, and the index of the candidate that has it. */
typedef struct lane_best {
    vf score[PARTS], entry[PARTS];
} lane_best;

typedef struct pair {
    uint32_t main, res;
    float score; /* -infinity if there is none */
} pair;

SIMD_INLINE void start(lane_best *best)
{
    for (size_t p = 0; p < PARTS; p++) {
        best->score[p] = vf_set1(-INFINITY);
        best->entry[p] = vf_set1(0);
    }
}

SIMD_INLINE void offer(lane_best *best, const vf score[PARTS], float base, size_t entry)
{
    for (size_t p = 0; p < PARTS; p++) {
        const vf s = vf_add(score[p], vf_set1(base));
        best->entry[p] =
            vf_select_greater(s, best->score[p], vf_set1((float)entry), best->entry[p]);
        best->score[p] = vf_max(s, best->score[p]);
    }
}

/* Finds the largest score and the first candidate that has it; returns false if there is none.
 */
SIMD_INLINE bool finish(const lane_best *best, float *top, size_t *entry)
{
    float score[VPTQ_CODEBOOK_LANES], at[VPTQ_CODEBOOK_LANES], first = 0;
    for (size_t p = 0; p < PARTS; p++) {
        vf_store(score + p * LANES, best->score[p]);
        vf_store(at + p * LANES, best->entry[p]);
    }
    *top = -INFINITY;
    for (size_t l = 0; l < VPTQ_CODEBOOK_LANES; l++) {
        if (score[l] > *top || (score[l] >= *top && at[l] < first)) {
            *top = score[l];
            first = at[l];
        }
    }
    *entry = (size_t)first;
    return *top > -INFINITY;
}

/* Lanes of s + base that reach `score`. */
SIMD_INLINE uint32_t lanes_reaching(const vf s[PARTS], float base, float score)
{
    uint32_t hit = 0;
    for (size_t p = 0; p < PARTS; p++)
        hit |= vf_at_least(vf_add(s[p], vf_set1(base)), vf_set1(score)) << p * LANES;
    return hit;
}

/* x minus its main centroid. */
SIMD_INLINE void remainder_of(const tile *t, size_t v, const float *x, uint32_t main, float *w)
{
    const float *c = t->b->centroids + main * v;
    for (size_t d = 0; d < v; d++)
        w[d] = x[d] - c[d];
}

/* Tries candidates i .. i + count - 1 with the whole residual codebook. */
SIMD_INLINE void try_some(const tile *t, size_t v, const float *x, size_t i, size_t count,
                          lane_best *best)
{
    const vptq_codebook *res = &t->b->res;
    float w[BOTH * VPTQ_VQ_MAX_V];
    vf max[BOTH][PARTS];
    for (size_t j = 0; j < count; j++) {
        remainder_of(t, v, x, t->list[i + j], w + j * v);
        for (size_t p = 0; p < PARTS; p++)
            max[j][p] = vf_set1(-INFINITY);
    }
    const float *c = res->data;
    for (size_t b = 0; b < res->blocks; b++, c += (1 + v) * VPTQ_CODEBOOK_LANES) {
        for (size_t j = 0; j < count; j++) {
            vf s[PARTS];
            score_block(c, v, w + j * v, s);
            for (size_t p = 0; p < PARTS; p++)
                max[j][p] = vf_max(s[p], max[j][p]);
        }
    }
    for (size_t j = 0; j < count; j++)
        offer(best, max[j], t->score[i + j], i + j);
}

SIMD_INLINE pair best_by_computing(const tile *t, size_t v, const float *x, size_t n)
{
    const vptq_codebook *res = &t->b->res;
    const size_t both = v <= 12 ? BOTH : 1;
    float w[VPTQ_VQ_MAX_V];
    lane_best best;
    pair found = {0, 0, -INFINITY};
    size_t i = 0, entry;
    start(&best);
    for (; i + both <= n; i += both)
        try_some(t, v, x, i, both, &best);
    for (; i < n; i++)
        try_some(t, v, x, i, 1, &best);
    if (!finish(&best, &found.score, &entry))
        return found;
    found.main = t->list[entry];
    remainder_of(t, v, x, found.main, w);
    for (size_t b = 0; b < res->blocks; b++) {
        vf s[PARTS];
        score_block(res->data + b * (1 + v) * VPTQ_CODEBOOK_LANES, v, w, s);
        const uint32_t hit = lanes_reaching(s, t->score[entry], found.score);
        found.res =
            (uint32_t)(b * VPTQ_CODEBOOK_LANES) + (uint32_t)__builtin_ctz(hit | 1u << 31);
        if (hit)
            break;
    }
    return found;
}

/* Finds the best pair of vector j among n candidates. */
SIMD_INLINE void best_pair(tile *t, size_t v, size_t j, size_t n)
{
    const float *x = t->x + j * v;
    if (t->b->screen && best_by_screening(t, v, j, n))
        return;
    const pair best = best_by_computing(t, v, x, n);
    if (!(best.score > -INFINITY))
        return;
    t->found[j] = best.main;
    t->found_res[j] = best.res;
    t->nearest[j] = distance_of(t, v, x, best.main, best.res);
}

SIMD_INLINE void best_pairs(tile *t, size_t v, const uint32_t *idx)
{
    size_t hits[TILE];
    if (!t->neighbors)
        find_hits(t, hits);
    for (size_t j = 0; j < t->count; j++) {
        const size_t n =
            t->neighbors ? collect_neighbors(t, v, j, idx[j]) : collect(t, v, j, hits[j]);
        if (n)
            best_pair(t, v, j, n);
    }
}

/* ---- bounds ---- */

/* Main centroids whose score is below this cannot be part of a pair nearer than `distance`
 * (squared): then |x - c| is more than that distance and the longest residual together.  The
 * slack is far above the rounding of scores. */
SIMD_INLINE float reach_bound(const tile *t, size_t v, const float *x, float distance)
{
    float norm = 0;
    for (size_t d = 0; d < v; d++)
        norm += x[d] * x[d];
    const float radius = t->b->longest_res + sqrtf(distance);
    const float bound = 0.5F * (norm - radius * radius) - 1e-5F * (norm + radius * radius);
    return bound > -FLT_MAX ? bound : -FLT_MAX; /* also if it is NaN */
}

SIMD_INLINE void start_tile(tile *t, size_t v, bool keep, const uint32_t *idx,
                            const uint32_t *idx_res)
{
    for (size_t j = 0; j < TILE; j++) {
        t->found[j] = t->found_res[j] = 0;
        t->old[j] = t->nearest[j] = INFINITY;
    }
    for (size_t j = 0; keep && j < t->count; j++)
        t->old[j] = distance_of(t, v, t->x + j * v, idx[j], idx_res[j]);
}

/* Sets the bounds that the beam reaches. */
SIMD_INLINE void first_bounds(tile *t, size_t v, bool keep)
{
    sort_classes(t);
    memcpy(t->bound, t->class_top + (t->b->beam - 1) * TILE, sizeof t->bound);
    for (size_t j = 0; j < TILE; j++) {
        /* -infinity, the score after the last centroid, is not a candidate */
        t->bound[j] = t->bound[j] > -FLT_MAX ? t->bound[j] : -FLT_MAX;
        t->bound[j] = j < t->count ? t->bound[j] : INFINITY;
    }
    for (size_t j = 0; keep && j < t->count; j++) {
        const float limit = reach_bound(t, v, t->x + j * v, t->old[j]);
        t->bound[j] = limit > t->bound[j] ? limit : t->bound[j];
    }
}

/* Sets bounds that admit all main centroids that can still win; infinity if all were tried. */
SIMD_INLINE void exact_bounds(tile *t, size_t v)
{
    for (size_t j = 0; j < t->count; j++) {
        const float least = t->nearest[j] < t->old[j] ? t->nearest[j] : t->old[j];
        const float limit = reach_bound(t, v, t->x + j * v, least);
        t->bound[j] = limit < t->bound[j] ? limit : INFINITY;
    }
}

/* ---- search ---- */

SIMD_INLINE void search_tile(tile *t, size_t v, bool keep, uint32_t *idx, uint32_t *idx_res)
{
    start_tile(t, v, keep, idx, idx_res);
    if (!t->neighbors) {
        float xt[VPTQ_VQ_MAX_V * TILE];
        transpose_tile(v, SETS, t->count, t->x, xt);
        score_tile(t, v, xt);
        first_bounds(t, v, keep);
    }
    const int rounds = t->b->exact ? 2 : 1;
    for (int round = 0; round < rounds; round++) {
        if (round)
            exact_bounds(t, v);
        best_pairs(t, v, idx);
    }
    for (size_t j = 0; j < t->count; j++) {
        if (keep && !(t->nearest[j] < t->old[j]))
            continue;
        idx[j] = t->found[j];
        idx_res[j] = t->found_res[j];
    }
}

SIMD_INLINE void search_all(const vptq_pair_codebooks *b, size_t v, size_t n, const float *x,
                            bool keep, float *work, uint32_t *idx, uint32_t *idx_res)
{
    tile t = tile_in(b, work);
    t.neighbors = keep && b->neighbors;
    for (size_t i = 0; i < n; i += TILE) {
        t.x = x + i * v;
        t.count = n - i < TILE ? n - i : TILE;
        search_tile(&t, v, keep, idx + i, idx_res + i);
    }
}

static void search(const vptq_pair_codebooks *b, size_t n, const float *x, bool keep,
                   float *work, uint32_t *idx, uint32_t *idx_res)
{
    VPTQ_WITH_V(b->main.v, search_all(b, V, n, x, keep, work, idx, idx_res));
}

const vptq_search_kernels VPTQ_SIMD_SYMBOL(vptq_search_kernels) = {search, screen_row};
