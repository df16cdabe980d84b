/* Included by cpu_search_body.h: the best residual centroids of candidates, found by screening
 * sums of small integers and computing only what these cannot decide.
 *
 * What a residual centroid r adds to the score of a main centroid c is x.r - |r|^2 / 2 - c.r.
 * The last term is kept as 8 bits times a step of c's own; the others are taken for each x, and
 * all are summed in 16 bits in units of that x.  The error of a sum is at most e(c) units, so
 * that only pairs within e(c) of the largest lower bound can be best: a few, whose distances
 * are then computed.  Of the level's file:
 *
 *     screen_block(s, factor, y, b)   16 scores as integers (rounded, saturated) into y, where
 *                                     the loops below look for those of residual block b
 *     screen_max(t, y, n, m)          largest y + t m / 128, rounded, over n = a multiple of 64
 *     screen_list(t, y, n, m, least, list)   ascending the places where it is at least `least`
 */
#ifndef VPTQ_BACKEND_CPU_SCREEN_BODY_H
#define VPTQ_BACKEND_CPU_SCREEN_BODY_H

enum {
    MOST_UNITS = 16000, /* of what x adds; with the table's 127 * 64 no sum overflows */
    STEP_UNITS = 64,    /* of the largest step among the candidates */
    MOST_PAIRS = VPTQ_SCREENED_PAIRS
};

/* What x adds for every residual centroid, as integers; the unit, or 0 where there is none. */
INLINE float screen_vector(const tile *t, size_t v, const float *x, float step)
{
    const vptq_codebook *res = &t->b->res;
    vf most[PARTS];
    float lane[VPTQ_CODEBOOK_LANES], largest = 0;
    for (size_t p = 0; p < PARTS; p++)
        most[p] = vf_set1(0);
    for (size_t b = 0; b < res->blocks; b++) {
        vf s[PARTS];
        score_block(res->data + b * (1 + v) * VPTQ_CODEBOOK_LANES, v, x, s);
        for (size_t p = 0; p < PARTS; p++) {
            /* -infinity behind the last centroid is none of them */
            const vf size = vf_max(s[p], vf_fma(s[p], vf_set1(-1), vf_set1(0)));
            most[p] = vf_select_greater(size, vf_set1(FLT_MAX), most[p], vf_max(size, most[p]));
            vf_store(t->res + b * VPTQ_CODEBOOK_LANES + p * LANES, s[p]);
        }
    }
    for (size_t p = 0; p < PARTS; p++)
        vf_store(lane + p * LANES, most[p]);
    for (size_t l = 0; l < VPTQ_CODEBOOK_LANES; l++)
        largest = lane[l] > largest ? lane[l] : largest;
    const float unit =
        step / STEP_UNITS > largest / MOST_UNITS ? step / STEP_UNITS : largest / MOST_UNITS;
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

/* What the integers of one candidate stand for. */
typedef struct screen {
    int32_t factor; /* of the table's row, in 1/128 */
    int32_t base;   /* what its main score and the error add: sums are upper bounds */
    int32_t error;
} screen;

/* `best`: main score of the best candidate; `per_unit`: units in one. */
static inline screen screen_of(const tile *t, size_t place, float best, float per_unit,
                               float slack)
{
    const float step = t->b->screen_step[t->list[place]] * per_unit;
    const float base = (t->score[place] - best) * per_unit;
    screen s = {.factor = (int32_t)(128 * step + 0.5F)};
    s.error = (int32_t)(0.5F * step + slack) + 4;
    s.base = (int32_t)(base > -MOST_UNITS ? base - 0.5F : -MOST_UNITS) + s.error;
    return s;
}

/* The pairs that may be best, as place in the list * 65536 + residual centroid; more than
 * MOST_PAIRS where screening does not help. */
static size_t screen_pairs(const tile *t, size_t n, float best, float unit, float slack)
{
    const size_t room = t->b->screen_room;
    const float per_unit = 1 / unit;
    int32_t bound = INT32_MIN;
    for (size_t i = 0; i < n; i++) {
        const screen s = screen_of(t, i, best, per_unit, slack);
        const int32_t upper =
            s.base + screen_max(t->b->screen + t->list[i] * room, t->y, room, s.factor);
        t->upper[i] = upper;
        bound = upper - 2 * s.error > bound ? upper - 2 * s.error : bound;
    }
    size_t pairs = 0;
    for (size_t i = 0; i < n && pairs <= MOST_PAIRS; i++) {
        if (t->upper[i] < bound)
            continue;
        const screen s = screen_of(t, i, best, per_unit, slack);
        const size_t more = screen_list(t->b->screen + t->list[i] * room, t->y, room, s.factor,
                                        bound - s.base, t->pairs + pairs);
        for (size_t e = 0; e < more; e++)
            t->pairs[pairs + e] |= (uint32_t)i << 16;
        pairs += more;
    }
    return pairs;
}

/* The best pair of vector j; false where it has to be computed. */
INLINE bool best_by_screening(tile *t, size_t v, size_t j, size_t n)
{
    const float *x = t->x + j * v;
    float best = t->score[0], step = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        const float s = t->b->screen_step[t->list[i]];
        const int8_t *row = t->b->screen + t->list[i] * t->b->screen_room;
        for (size_t e = 0; e < 256 && e < t->b->screen_room; e += 64)
            __builtin_prefetch(row + e);
        step = s > step ? s : step;
        best = t->score[i] > best ? t->score[i] : best;
    }
    for (size_t d = 0; d < v; d++)
        norm += x[d] * x[d];
    const float unit = screen_vector(t, v, x, step);
    const float slack = 4e-6F * norm / unit; /* far more than the rounding of scores */
    if (!(unit > 0 && slack < MOST_UNITS) || n > 1u << 16)
        return false;
    const size_t pairs = screen_pairs(t, n, best, unit, slack);
    if (pairs > MOST_PAIRS)
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

/* One row of the table from main centroid c; *step is what its integers count. */
static void screen_row(const vptq_codebook *res, const float *c, float *room, size_t n,
                       int8_t *row, float *step)
{
    const size_t v = res->v;
    float largest = 0;
    for (size_t b = 0; b < res->blocks; b++) {
        const float *block = res->data + b * (1 + v) * VPTQ_CODEBOOK_LANES;
        float *dot = room + b * VPTQ_CODEBOOK_LANES;
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
        const float units = room[e] * -factor;
        row[e] = (int8_t)(units > 0   ? fminf(units, 127) + 0.5F
                          : units < 0 ? fmaxf(units, -127) - 0.5F
                                      : 0);
    }
}

#endif
