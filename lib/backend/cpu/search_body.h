/* The body of vptq_search_kernels, included by cpu_search_{none,avx2,avx512}.c behind their
 * vector type:
 *
 *     vf           a vector of LANES floats
 *     BOTH         candidates whose remainders, of up to 12 dimensions, fit into the registers
 *     vf_set1, vf_load, vf_store              any alignment
 *     vf_add
 *     vf_fma(a, b, c)                         a * b + c
 *     vf_max(a, b), vf_min(a, b)              b where either is NaN
 *     vf_select_greater(a, b, x, y)           x where a > b, else y
 *     vf_at_least(a, b), vf_greater(a, b)     bit l: a >= b, a > b in lane l
 *     screen_block, screen_max, screen_list   see cpu_screen_body.h
 *     vf_append(list, score, n, s, least, first)   first + l, and its score, for every lane l
 * of s that is at least `least`, ascending, behind entry n - 1; the new n.  May write LANES
 * entries.
 *
 * The score of a centroid is that of cpu_vq_kernels.h, summed in the same order, so that it has
 * the same bits wherever it is taken; that of a pair for x is x.(c + r) - |c + r|^2 / 2.
 *
 * How the `beam` nearest main centroids are found: 32 (16, 8) vectors in the lanes meet all
 * centroids.  Kept are the maximum of every block of 16, and the maxima of at least twice as
 * many classes as the beam, a class being every so-many-th run of 4 centroids.  The beam-th
 * largest of these is a bound that at least `beam` scores reach and few others do, about 1.4
 * beams in all.  Blocks whose maximum reaches it are scored again, vector by vector. */
#ifndef VPTQ_BACKEND_CPU_SEARCH_BODY_H
#define VPTQ_BACKEND_CPU_SEARCH_BODY_H

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "lib/backend/cpu/vq_kernels.h"
#include "lib/base/vq.h"

enum { PARTS = VPTQ_CODEBOOK_LANES / LANES, SETS = 2, TILE = SETS * LANES, STEP = 4 };
enum { MOST_CLASSES = 2 * VPTQ_MOST_NEAR };

/* The functions below are compiled once per vector length: v is a constant where it matters. */
#define INLINE static inline __attribute__((always_inline))

/* ---- main scores ---- */

/* A few vectors that are searched together. */
typedef struct tile {
    const vptq_pair_codebooks *b;
    const float *x;
    size_t count, classes;
    bool around;      /* candidates are those near the present choice */
    float *tops;      /* [blocks][TILE] largest score of each block */
    float *class_top; /* [classes][TILE] */
    uint16_t *hits;   /* [TILE][blocks] blocks with candidates, ... */
    uint32_t *list;   /* [k + 16] candidates of one vector ... */
    float *score;     /* ... and their scores */
    float *res;       /* [res.blocks * 16] what one vector adds to residual scores; ... */
    int16_t *y;       /* [screen_room] ... as integers */
    int32_t *upper;   /* [k + 16] bounds of the candidates, ... */
    uint32_t *pairs;  /* [MOST_PAIRS + screen_room + 16] ... and pairs that reach them */
    float bound[TILE];
    float old[TILE]; /* distance of the choice that came; infinity without */
    uint32_t found[TILE], found_res[TILE];
    float nearest[TILE]; /* distance of what was found; infinity = nothing */
} tile;

static tile tile_in(const vptq_pair_codebooks *b, float *room)
{
    tile t = {.b = b, .classes = b->classes};
    const size_t blocks = b->main.blocks;
    t.tops = room;
    t.class_top = t.tops + blocks * TILE;
    t.score = t.class_top + b->classes * TILE;
    t.res = t.score + (blocks + 1) * VPTQ_CODEBOOK_LANES;
    t.list = (uint32_t *)(void *)(t.res + b->res.blocks * VPTQ_CODEBOOK_LANES);
    t.upper = (int32_t *)(void *)(t.list + (blocks + 1) * VPTQ_CODEBOOK_LANES);
    t.pairs = (uint32_t *)(void *)(t.upper + (blocks + 1) * VPTQ_CODEBOOK_LANES);
    t.y = (int16_t *)(void *)(t.pairs + VPTQ_SCREENED_PAIRS + b->screen_room +
                              VPTQ_CODEBOOK_LANES);
    t.hits = (uint16_t *)(void *)(t.y + b->screen_room);
    for (size_t e = b->res.blocks; e < b->screen_room / VPTQ_CODEBOOK_LANES; e++) {
        vf none[PARTS];
        for (size_t p = 0; p < PARTS; p++)
            none[p] = vf_set1(-INFINITY);
        screen_block(none, 1, t.y, e);
    }
    return t;
}

/* xt[d] = dimension d of the tile's vectors; lanes past `count` repeat the last one. */
INLINE void transpose(size_t v, size_t count, const float *x, float *xt)
{
    for (size_t l = 0; l < TILE; l++) {
        const float *from = x + (l < count ? l : count - 1) * v;
        for (size_t d = 0; d < v; d++)
            xt[d * TILE + l] = from[d];
    }
}

/* Largest score per lane over STEP centroids. */
INLINE void best_of_step(const float *c, size_t v, const float *xt, vf top[SETS])
{
    vf score[STEP][SETS];
    for (size_t l = 0; l < STEP; l++) {
        for (size_t s = 0; s < SETS; s++)
            score[l][s] = vf_set1(c[l]);
    }
#pragma GCC unroll 16
    for (size_t d = 0; d < v; d++) {
        vf x[SETS];
        for (size_t s = 0; s < SETS; s++)
            x[s] = vf_load(xt + d * TILE + s * LANES);
        for (size_t l = 0; l < STEP; l++) {
            const vf cl = vf_set1(c[(1 + d) * VPTQ_CODEBOOK_LANES + l]);
            for (size_t s = 0; s < SETS; s++)
                score[l][s] = vf_fma(x[s], cl, score[l][s]);
        }
    }
    for (size_t s = 0; s < SETS; s++) {
        top[s] = vf_max(score[0][s], vf_set1(-INFINITY));
        for (size_t l = 1; l < STEP; l++)
            top[s] = vf_max(score[l][s], top[s]);
    }
}

/* Fills tops and class_top. */
INLINE void score_tile(const tile *t, size_t v, const float *xt)
{
    const vptq_codebook *codebook = &t->b->main;
    size_t class = 0;
    for (size_t i = 0; i < t->classes * TILE; i++)
        t->class_top[i] = -INFINITY;
    for (size_t b = 0; b < codebook->blocks; b++) {
        const float *c = codebook->data + b * (1 + v) * VPTQ_CODEBOOK_LANES;
        vf most[SETS];
        for (size_t s = 0; s < SETS; s++)
            most[s] = vf_set1(-INFINITY);
        for (size_t j = 0; j < VPTQ_CODEBOOK_LANES; j += STEP, c += STEP) {
            /* The compiler would hoist the loads of xt and c out of the loops and spill them.
             */
            __asm__("" : "+r"(xt), "+r"(c));
            float *of_class = t->class_top + class * TILE;
            vf top[SETS];
            best_of_step(c, v, xt, top);
            for (size_t s = 0; s < SETS; s++) {
                vf_store(of_class + s * LANES, vf_max(top[s], vf_load(of_class + s * LANES)));
                most[s] = vf_max(top[s], most[s]);
            }
            class = class + 1 < t->classes ? class + 1 : 0;
        }
        for (size_t s = 0; s < SETS; s++)
            vf_store(t->tops + b * TILE + s * LANES, most[s]);
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

/* Sorts the class maxima of every lane downwards: Batcher's merge exchange (Knuth, TAOCP 3,
 * 5.2.2, algorithm M). */
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

/* Scores of x against the 16 centroids of block c. */
INLINE void score_block(const float *c, size_t v, const float *x, vf s[PARTS])
{
    for (size_t p = 0; p < PARTS; p++)
        s[p] = vf_load(c + p * LANES);
#pragma GCC unroll 16
    for (size_t d = 0; d < v; d++) {
        for (size_t p = 0; p < PARTS; p++)
            s[p] = vf_fma(vf_load(c + (1 + d) * VPTQ_CODEBOOK_LANES + p * LANES), vf_set1(x[d]),
                          s[p]);
    }
}

/* The blocks in which any score of a vector reaches its bound; n [TILE] of them each. */
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

/* The candidates of vector j, ascending, into list and score; their number. */
INLINE size_t collect(const tile *t, size_t v, size_t j, size_t hits)
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

/* The `rank`-th largest of n scores, a multiple of LANES. */
static float ranked(const float *score, size_t n, size_t rank)
{
    float bound = INFINITY;
    for (size_t i = 0; i < n; i++) {
        size_t larger = 0;
        for (size_t e = 0; e < n; e += LANES)
            larger +=
                (size_t)__builtin_popcount(vf_greater(vf_load(score + e), vf_set1(score[i])));
        if (larger < rank && score[i] < bound)
            bound = score[i];
    }
    return bound;
}

/* A bound that `beam` of n scores reach, and few others: from the maxima of `classes` classes,
 * a multiple of 16 of at least the beam, where there are not fewer scores. */
INLINE float bound_of(const float *score, size_t n, size_t classes, size_t beam)
{
    float top[MOST_CLASSES];
    classes = classes < n ? classes : n;
    for (size_t e = 0; e < classes; e += LANES) {
        vf most = vf_max(vf_load(score + e), vf_set1(-INFINITY));
        for (size_t i = e + classes; i < n; i += classes)
            most = vf_max(vf_load(score + i), most);
        vf_store(top + e, most);
    }
    const float bound = ranked(top, classes, beam < classes ? beam : classes);
    return bound > -FLT_MAX ? bound : -FLT_MAX;
}

/* Scores of x against the near ones of centroid c, [near]. */
INLINE void score_near(const vptq_pair_codebooks *b, size_t v, uint32_t c, const float *x,
                       float *score)
{
    const float *data = b->near_data + c * (b->near * (1 + v));
    for (size_t e = 0; e < b->near;
         e += VPTQ_CODEBOOK_LANES, data += (1 + v) * VPTQ_CODEBOOK_LANES) {
        vf s[PARTS];
        score_block(data, v, x, s);
        for (size_t p = 0; p < PARTS; p++)
            vf_store(score + e + p * LANES, s[p]);
    }
}

/* The candidates of vector j around main centroid c, nearest to c first; their number. */
INLINE size_t collect_around(const tile *t, size_t v, size_t j, uint32_t c)
{
    const vptq_pair_codebooks *b = t->b;
    const size_t classes =
        (2 * b->beam + VPTQ_CODEBOOK_LANES - 1) / VPTQ_CODEBOOK_LANES * VPTQ_CODEBOOK_LANES;
    float score[VPTQ_MOST_NEAR] = {0};
    size_t n = 0;
    score_near(b, v, c, t->x + j * v, score);
    const vf bound = vf_set1(bound_of(score, b->near, classes, b->beam));
    for (size_t e = 0; e < b->near; e += LANES)
        n = vf_append(t->list, t->score, n, vf_load(score + e), bound, (uint32_t)e);
    for (size_t i = 0; i < n; i++)
        t->list[i] = b->near_index[c * b->near + t->list[i]];
    return n;
}

/* ---- pairs ---- */

/* |x - (c + r)|^2 */
INLINE float distance_of(const tile *t, size_t v, const float *x, uint32_t main, uint32_t res)
{
    const float *c = t->b->centroids + main * v, *r = t->b->res_centroids + res * v;
    float sum = 0;
    for (size_t d = 0; d < v; d++) {
        const float diff = x[d] - (c[d] + r[d]);
        sum += diff * diff;
    }
    return sum;
}

#include "lib/backend/cpu/screen_body.h"

/* The best score per lane, and at which place of a list it was. */
typedef struct lane_best {
    vf score[PARTS], place[PARTS];
} lane_best;

typedef struct pair {
    uint32_t main, res;
    float score; /* -infinity = none */
} pair;

INLINE void start(lane_best *best)
{
    for (size_t p = 0; p < PARTS; p++) {
        best->score[p] = vf_set1(-INFINITY);
        best->place[p] = vf_set1(0);
    }
}

INLINE void offer(lane_best *best, const vf score[PARTS], float base, size_t place)
{
    for (size_t p = 0; p < PARTS; p++) {
        const vf s = vf_add(score[p], vf_set1(base));
        best->place[p] =
            vf_select_greater(s, best->score[p], vf_set1((float)place), best->place[p]);
        best->score[p] = vf_max(s, best->score[p]);
    }
}

/* The largest score and the first place that has it; false where there is none. */
INLINE bool finish(const lane_best *best, float *top, size_t *place)
{
    float score[VPTQ_CODEBOOK_LANES], at[VPTQ_CODEBOOK_LANES], first = 0;
    for (size_t p = 0; p < PARTS; p++) {
        vf_store(score + p * LANES, best->score[p]);
        vf_store(at + p * LANES, best->place[p]);
    }
    *top = -INFINITY;
    for (size_t l = 0; l < VPTQ_CODEBOOK_LANES; l++) {
        if (score[l] > *top || (score[l] >= *top && at[l] < first)) {
            *top = score[l];
            first = at[l];
        }
    }
    *place = (size_t)first;
    return *top > -INFINITY;
}

/* Lanes of s + base that reach `score`. */
INLINE uint32_t lanes_reaching(const vf s[PARTS], float base, float score)
{
    uint32_t hit = 0;
    for (size_t p = 0; p < PARTS; p++)
        hit |= vf_at_least(vf_add(s[p], vf_set1(base)), vf_set1(score)) << p * LANES;
    return hit;
}

/* x less its main centroid. */
INLINE void remainder_of(const tile *t, size_t v, const float *x, uint32_t main, float *w)
{
    const float *c = t->b->centroids + main * v;
    for (size_t d = 0; d < v; d++)
        w[d] = x[d] - c[d];
}

/* Candidates i .. i + count - 1 against the whole residual codebook. */
INLINE void try_some(const tile *t, size_t v, const float *x, size_t i, size_t count,
                     lane_best *best)
{
    const vptq_codebook *res = &t->b->res;
    float w[BOTH * VPTQ_VQ_MAX_V];
    vf most[BOTH][PARTS];
    for (size_t j = 0; j < count; j++) {
        remainder_of(t, v, x, t->list[i + j], w + j * v);
        for (size_t p = 0; p < PARTS; p++)
            most[j][p] = vf_set1(-INFINITY);
    }
    const float *c = res->data;
    for (size_t b = 0; b < res->blocks; b++, c += (1 + v) * VPTQ_CODEBOOK_LANES) {
        for (size_t j = 0; j < count; j++) {
            vf s[PARTS];
            score_block(c, v, w + j * v, s);
            for (size_t p = 0; p < PARTS; p++)
                most[j][p] = vf_max(s[p], most[j][p]);
        }
    }
    for (size_t j = 0; j < count; j++)
        offer(best, most[j], t->score[i + j], i + j);
}

INLINE pair best_by_computing(const tile *t, size_t v, const float *x, size_t n)
{
    const vptq_codebook *res = &t->b->res;
    const size_t both = v <= 12 ? BOTH : 1;
    float w[VPTQ_VQ_MAX_V];
    lane_best best;
    pair found = {0, 0, -INFINITY};
    size_t i = 0, place;
    start(&best);
    for (; i + both <= n; i += both)
        try_some(t, v, x, i, both, &best);
    for (; i < n; i++)
        try_some(t, v, x, i, 1, &best);
    if (!finish(&best, &found.score, &place))
        return found;
    found.main = t->list[place];
    remainder_of(t, v, x, found.main, w);
    for (size_t b = 0; b < res->blocks; b++) {
        vf s[PARTS];
        score_block(res->data + b * (1 + v) * VPTQ_CODEBOOK_LANES, v, w, s);
        const uint32_t hit = lanes_reaching(s, t->score[place], found.score);
        found.res =
            (uint32_t)(b * VPTQ_CODEBOOK_LANES) + (uint32_t)__builtin_ctz(hit | 1u << 31);
        if (hit)
            break;
    }
    return found;
}

/* The best pair of vector j with a candidate of the list, n of them. */
INLINE void best_pair(tile *t, size_t v, size_t j, size_t n)
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

INLINE void best_pairs(tile *t, size_t v, const uint32_t *idx)
{
    size_t hits[TILE];
    if (!t->around)
        find_hits(t, hits);
    for (size_t j = 0; j < t->count; j++) {
        const size_t n =
            t->around ? collect_around(t, v, j, idx[j]) : collect(t, v, j, hits[j]);
        if (n)
            best_pair(t, v, j, n);
    }
}

/* ---- bounds ---- */

/* Main centroids whose score is below this cannot be part of a pair nearer than `distance`
 * (squared): then |x - c| is more than that distance and the longest residual together.  The
 * slack is far above the rounding of scores. */
INLINE float reach_bound(const tile *t, size_t v, const float *x, float distance)
{
    float norm = 0;
    for (size_t d = 0; d < v; d++)
        norm += x[d] * x[d];
    const float radius = t->b->reach + sqrtf(distance);
    const float bound = 0.5F * (norm - radius * radius) - 1e-5F * (norm + radius * radius);
    return bound > -FLT_MAX ? bound : -FLT_MAX; /* also where it is not a number */
}

INLINE void start_tile(tile *t, size_t v, bool keep, const uint32_t *idx,
                       const uint32_t *idx_res)
{
    for (size_t j = 0; j < TILE; j++) {
        t->found[j] = t->found_res[j] = 0;
        t->old[j] = t->nearest[j] = INFINITY;
    }
    for (size_t j = 0; keep && j < t->count; j++)
        t->old[j] = distance_of(t, v, t->x + j * v, idx[j], idx_res[j]);
}

/* Bounds that the beam reaches, in `bound`. */
INLINE void first_bounds(tile *t, size_t v, bool keep)
{
    sort_classes(t);
    memcpy(t->bound, t->class_top + (t->b->beam - 1) * TILE, sizeof t->bound);
    for (size_t j = 0; j < TILE; j++) {
        /* -infinity, the score of what is behind the last centroid, is no candidate */
        t->bound[j] = t->bound[j] > -FLT_MAX ? t->bound[j] : -FLT_MAX;
        t->bound[j] = j < t->count ? t->bound[j] : INFINITY;
    }
    for (size_t j = 0; keep && j < t->count; j++) {
        const float limit = reach_bound(t, v, t->x + j * v, t->old[j]);
        t->bound[j] = limit > t->bound[j] ? limit : t->bound[j];
    }
}

/* All main centroids that could still win; infinity where there are none that were not tried.
 */
INLINE void exact_bounds(tile *t, size_t v)
{
    for (size_t j = 0; j < t->count; j++) {
        const float least = t->nearest[j] < t->old[j] ? t->nearest[j] : t->old[j];
        const float limit = reach_bound(t, v, t->x + j * v, least);
        t->bound[j] = limit < t->bound[j] ? limit : INFINITY;
    }
}

/* ---- search ---- */

INLINE void search_tile(tile *t, size_t v, bool keep, uint32_t *idx, uint32_t *idx_res)
{
    start_tile(t, v, keep, idx, idx_res);
    if (!t->around) {
        float xt[VPTQ_VQ_MAX_V * TILE];
        transpose(v, t->count, t->x, xt);
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

INLINE void search_all(const vptq_pair_codebooks *b, size_t v, size_t n, const float *x,
                       bool keep, float *room, uint32_t *idx, uint32_t *idx_res)
{
    tile t = tile_in(b, room);
    t.around = keep && b->near;
    for (size_t i = 0; i < n; i += TILE) {
        t.x = x + i * v;
        t.count = n - i < TILE ? n - i : TILE;
        search_tile(&t, v, keep, idx + i, idx_res + i);
    }
}

static void search(const vptq_pair_codebooks *b, size_t n, const float *x, bool keep,
                   float *room, uint32_t *idx, uint32_t *idx_res)
{
    switch (b->main.v) {
    case 4:
        search_all(b, 4, n, x, keep, room, idx, idx_res);
        break;
    case 6:
        search_all(b, 6, n, x, keep, room, idx, idx_res);
        break;
    case 8:
        search_all(b, 8, n, x, keep, room, idx, idx_res);
        break;
    case 12:
        search_all(b, 12, n, x, keep, room, idx, idx_res);
        break;
    default:
        search_all(b, b->main.v, n, x, keep, room, idx, idx_res);
        break;
    }
}

/* ---- main centroids alone ---- */

INLINE float distance_to(const float *x, const float *c, size_t v)
{
    float sum = 0;
    for (size_t d = 0; d < v; d++)
        sum += (x[d] - c[d]) * (x[d] - c[d]);
    return sum;
}

INLINE void search_main_around(const vptq_pair_codebooks *b, size_t v, size_t n, const float *x,
                               uint32_t *idx)
{
    for (size_t i = 0; i < n; i++, x += v) {
        float score[VPTQ_MOST_NEAR] = {0}, top = -INFINITY;
        score_near(b, v, idx[i], x, score);
        vf most = vf_load(score);
        for (size_t e = LANES; e < b->near; e += LANES)
            most = vf_max(vf_load(score + e), most);
        float lane[LANES];
        vf_store(lane, most);
        for (size_t l = 0; l < LANES; l++)
            top = lane[l] > top ? lane[l] : top;
        uint32_t hit = 0;
        size_t e = 0;
        for (; !hit && e < b->near; e += LANES)
            hit = vf_at_least(vf_load(score + e), vf_set1(top));
        if (!hit || !(top > -INFINITY))
            continue;
        const uint32_t found =
            b->near_index[idx[i] * b->near + e - LANES + (size_t)__builtin_ctz(hit)];
        if (distance_to(x, b->centroids + found * v, v) <
            distance_to(x, b->centroids + idx[i] * v, v))
            idx[i] = found;
    }
}

static void search_main(const vptq_pair_codebooks *b, size_t n, const float *x, uint32_t *idx)
{
    switch (b->main.v) {
    case 4:
        search_main_around(b, 4, n, x, idx);
        break;
    case 6:
        search_main_around(b, 6, n, x, idx);
        break;
    case 8:
        search_main_around(b, 8, n, x, idx);
        break;
    default:
        search_main_around(b, b->main.v, n, x, idx);
        break;
    }
}

/* The m best of n entries of list, best first; before, list and score ascend by centroid. */
static size_t keep_best(uint32_t *list, const float *score, size_t n, size_t m, float *best,
                        uint32_t *kept)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        if (count == m && !(score[i] > best[m - 1]))
            continue;
        size_t at = count < m ? count++ : m - 1;
        for (; at > 0 && best[at - 1] < score[i]; at--) {
            best[at] = best[at - 1];
            kept[at] = kept[at - 1];
        }
        best[at] = score[i];
        kept[at] = list[i];
    }
    return count;
}

static size_t around(const vptq_codebook *codebook, size_t m, const float *x, float *room,
                     uint32_t *list)
{
    const size_t all = codebook->blocks * VPTQ_CODEBOOK_LANES;
    float *score = room, best[VPTQ_MOST_NEAR];
    uint32_t *found = (uint32_t *)(void *)(room + 2 * all + VPTQ_CODEBOOK_LANES);
    float *of = room + all;
    size_t n = 0;
    for (size_t b = 0; b < codebook->blocks; b++) {
        vf s[PARTS];
        score_block(codebook->data + b * (1 + codebook->v) * VPTQ_CODEBOOK_LANES, codebook->v,
                    x, s);
        for (size_t p = 0; p < PARTS; p++)
            vf_store(score + b * VPTQ_CODEBOOK_LANES + p * LANES, s[p]);
    }
    const vf bound = vf_set1(bound_of(score, all, 2 * m, m));
    for (size_t e = 0; e < all; e += LANES)
        n = vf_append(found, of, n, vf_load(score + e), bound, (uint32_t)e);
    return keep_best(found, of, n, m, best, list);
}

#endif
