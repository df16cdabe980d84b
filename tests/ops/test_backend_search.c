/* The rows that search books and what is made of them: ref against loops written out here, cpu
 * against ref at every SIMD level. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/devices.h"

static void *need(size_t count, size_t size)
{
    void *p = calloc(count + 1, size);
    assert_non_null(p);
    return p;
}

static float *normal(size_t n, float scale, uint64_t seed)
{
    float *x = need(n, sizeof *x);
    vtest_normal(x, n, seed);
    for (size_t i = 0; i < n; i++)
        x[i] *= scale;
    return x;
}

/* Calls fn(arg, device) for ref, then for cpu at every level. */
typedef void (*device_fn)(void *arg, const vptq_device *dev, bool is_ref);
static void on_every_device(device_fn fn, void *arg)
{
    devices_one d;
    devices_open(&d, "ref", VPTQ_SIMD_NONE, 1);
    fn(arg, &d.dev, true);
    devices_close(&d);
    const int best = (int)vptq_cpu_simd();
    for (int simd = VPTQ_SIMD_NONE; simd <= best; simd++) {
        devices_open(&d, "cpu", (vptq_simd)simd, 2);
        fn(arg, &d.dev, false);
        devices_close(&d);
    }
}

/* ---- books and vectors ---- */

typedef struct problem {
    size_t n;
    vptq_books books;
    float *x, *c, *r;
} problem;

static problem problem_make(size_t n, uint32_t v, uint32_t k, uint32_t k_res, uint32_t beam)
{
    problem p = {.n = n};
    p.x = normal(n * v, 1, n + v);
    p.c = normal((size_t)k * v, 1, 77 * v + k);
    p.r = k_res ? normal((size_t)k_res * v, 0.5F, 99 * v + k_res) : NULL;
    p.books = (vptq_books){v, k, k_res, beam, false, p.c, p.r};
    return p;
}

static void problem_free(problem *p)
{
    free(p->x);
    free(p->c);
    free(p->r);
}

static vptq_finder *finder_of(const vptq_device *dev, const vptq_books *books)
{
    vptq_finder *finder = NULL;
    vptq_err err;
    assert_ok(dev->ops->finder_open(dev->state, books, &finder, &err), &err);
    return finder;
}

typedef struct choices {
    uint32_t *idx, *idx_res;
    float *dist;
} choices;

static choices choices_make(size_t n)
{
    return (choices){need(n, sizeof(uint32_t)), need(n, sizeof(uint32_t)),
                     need(n, sizeof(float))};
}

static void choices_free(choices *c)
{
    free(c->idx);
    free(c->idx_res);
    free(c->dist);
}

static void find(const vptq_device *dev, const vptq_finder *finder, const problem *p,
                 size_t begin, size_t n, bool keep, const choices *to)
{
    const vptq_find_args f = {.n = n,
                              .finder = finder,
                              .x = p->x + begin * p->books.v,
                              .keep = keep,
                              .idx = to->idx + begin,
                              .idx_res = p->books.k_res ? to->idx_res + begin : NULL,
                              .dist = to->dist + begin};
    vptq_err err;
    assert_ok(dev->ops->find(dev->state, &f, &err), &err);
}

/* To the floats that the choice decodes to. */
static double distance(const vptq_books *b, const float *x, uint32_t main, uint32_t res)
{
    double sum = 0;
    for (size_t d = 0; d < b->v; d++) {
        float value = b->centroids[(size_t)main * b->v + d];
        if (b->k_res)
            value += b->res_centroids[(size_t)res * b->v + d];
        const double diff = (double)x[d] - (double)value;
        sum += diff * diff;
    }
    return sum;
}

/* What rounding in scores may cost: they are sums of v + 1 float products of this size. */
static double slack_of(const vptq_books *b, const float *x, uint32_t main)
{
    double norm = 0;
    for (size_t d = 0; d < b->v; d++) {
        const double c = (double)b->centroids[(size_t)main * b->v + d];
        norm += (double)x[d] * (double)x[d] + c * c;
    }
    return 4e-7 * (norm + 1) * (2 + 0.1 * b->v);
}

/* ---- main book alone, and exact pairs ---- */

typedef struct find_case {
    const problem *p;
    const double *least; /* smallest distance of every vector to what the beam allows */
} find_case;

static void check_found(void *arg, const vptq_device *dev, bool is_ref)
{
    const find_case *a = arg;
    const problem *p = a->p;
    const vptq_books *b = &p->books;
    choices got = choices_make(p->n);
    vptq_finder *finder = finder_of(dev, b);
    find(dev, finder, p, 0, p->n, false, &got);
    for (size_t i = 0; i < p->n; i++) {
        const float *x = p->x + i * b->v;
        assert_true(got.idx[i] < b->k && got.idx_res[i] < (b->k_res ? b->k_res : 1));
        const double reached = distance(b, x, got.idx[i], got.idx_res[i]);
        const double slack = is_ref ? 1e-6 * reached : slack_of(b, x, got.idx[i]);
        if (!(reached <= a->least[i] + slack))
            fail_msg("v %u k %u+%u beam %u vector %zu: %g, least %g", b->v, b->k, b->k_res,
                     b->beam, i, reached, a->least[i]);
        assert_true(fabs((double)got.dist[i] - reached) <= 1e-5 * reached + 1e-12);
    }
    dev->ops->finder_close(dev->state, finder);
    choices_free(&got);
}

/* The best pair whose main centroid is among the `beam` nearest, by looking at all. */
static double least_distance(const vptq_books *b, const float *x, double *main_distance)
{
    double least = INFINITY, bound = -1;
    vptq_books alone = *b;
    alone.k_res = 0;
    for (uint32_t j = 0; j < b->k; j++)
        main_distance[j] = distance(&alone, x, j, 0);
    for (uint32_t taken = 0; taken < (b->beam < b->k ? b->beam : b->k); taken++) {
        double next = INFINITY; /* the books hold no main centroid twice */
        for (uint32_t j = 0; j < b->k; j++)
            next =
                main_distance[j] > bound && main_distance[j] < next ? main_distance[j] : next;
        bound = next;
    }
    for (uint32_t j = 0; j < b->k; j++) {
        for (uint32_t l = 0; main_distance[j] <= bound && l < (b->k_res ? b->k_res : 1); l++)
            least = fmin(least, distance(b, x, j, l));
    }
    return least;
}

static void find_one_shape(size_t n, uint32_t v, uint32_t k, uint32_t k_res, uint32_t beam)
{
    problem p = problem_make(n, v, k, k_res, beam);
    double *least = need(n, sizeof *least), *main_distance = need(k, sizeof *main_distance);
    for (size_t i = 0; i < n; i++)
        least[i] = least_distance(&p.books, p.x + i * v, main_distance);
    find_case a = {&p, least};
    on_every_device(check_found, &a);
    free(least);
    free(main_distance);
    problem_free(&p);
}

static void find_reaches_the_beam(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, 2, 3, 4, 6, 8, 12, 16, 64};
    static const uint32_t shapes[][3] = {
        /* k, k_res, beam */
        {2, 2, 1},     {2, 3, 2},     {5, 17, 2},    {16, 16, 16}, {17, 2, 4},
        {100, 33, 1},  {100, 33, 8},  {100, 33, 99}, {256, 5, 16}, {256, 70, 256},
        {300, 16, 30}, {256, 64, 32}, {260, 0, 1},   {33, 0, 7},   {700, 20, 64}};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        for (size_t j = 0; j < sizeof shapes / sizeof *shapes; j++) {
            const uint32_t *s = shapes[j];
            /* one dimension has too many near ties for a beam to be well defined */
            const uint32_t beam = lengths[i] == 1 && s[2] > 1 ? s[0] : s[2];
            find_one_shape(1 + (i * 13 + j * 29) % 67, lengths[i], s[0], s[1], beam);
        }
    }
    find_one_shape(0, 8, 16, 16, 4);
}

/* Large books: too large for a table of products, and for the plain loops to try many. */
static void find_in_large_books(void **state)
{
    (void)state;
    find_one_shape(40, 8, 4096, 256, 16);
    find_one_shape(3, 6, 4096, 256, 4096);
    find_one_shape(5, 8, 4096, 2, 200);
    find_one_shape(3, 4, 65536, 2, 1);
    find_one_shape(3, 8, 65536, 16, 16);
    find_one_shape(3, 4, 16, 65536, 2);
    find_one_shape(7, 12, 1024, 1024, 8);
}

/* ---- ties ---- */

/* Both books hold every centroid twice: the first must win. */
static void check_ties(void *arg, const vptq_device *dev, bool is_ref)
{
    enum { HALF = 37, RES_HALF = 19, V = 6 };
    const uint32_t *beam = arg;
    problem p = problem_make(133, V, 2 * HALF, 2 * RES_HALF, *beam);
    choices got = choices_make(p.n);
    (void)is_ref;
    memcpy(p.c + HALF * V, p.c, HALF * V * sizeof *p.c);
    memcpy(p.r + RES_HALF * V, p.r, RES_HALF * V * sizeof *p.r);
    vptq_finder *finder = finder_of(dev, &p.books);
    find(dev, finder, &p, 0, p.n, false, &got);
    for (size_t i = 0; i < p.n; i++)
        assert_true(got.idx[i] < HALF && got.idx_res[i] < RES_HALF);
    dev->ops->finder_close(dev->state, finder);
    choices_free(&got);
    problem_free(&p);
}

static void find_takes_the_lowest_on_ties(void **state)
{
    (void)state;
    uint32_t beams[] = {1, 2, 8, 74};
    for (size_t i = 0; i < sizeof beams / sizeof *beams; i++)
        on_every_device(check_ties, &beams[i]);
}

/* ---- choices to keep ---- */

static void check_keep(void *arg, const vptq_device *dev, bool is_ref)
{
    const problem *p = arg;
    const vptq_books *b = &p->books;
    choices free_choice = choices_make(p->n), kept = choices_make(p->n);
    vptq_finder *finder = finder_of(dev, b);
    (void)is_ref;
    find(dev, finder, p, 0, p->n, false, &free_choice);

    /* the best choices stay as they are, to the bit; looking around them may find better ones
     */
    memcpy(kept.idx, free_choice.idx, p->n * sizeof *kept.idx);
    memcpy(kept.idx_res, free_choice.idx_res, p->n * sizeof *kept.idx_res);
    find(dev, finder, p, 0, p->n, true, &kept);
    for (size_t i = 0; i < p->n; i++) {
        const bool same =
            kept.idx[i] == free_choice.idx[i] && kept.idx_res[i] == free_choice.idx_res[i];
        assert_true(same || (b->local && kept.dist[i] < free_choice.dist[i]));
    }

    /* others stay only where they are at least as near */
    for (size_t i = 0; i < p->n; i++) {
        kept.idx[i] = (uint32_t)(i * 7 % b->k);
        kept.idx_res[i] = b->k_res ? (uint32_t)(i * 5 % b->k_res) : 0;
    }
    find(dev, finder, p, 0, p->n, true, &kept);
    for (size_t i = 0; i < p->n; i++) {
        const float *x = p->x + i * b->v;
        const uint32_t old = (uint32_t)(i * 7 % b->k);
        const uint32_t old_res = b->k_res ? (uint32_t)(i * 5 % b->k_res) : 0;
        const double before = distance(b, x, old, old_res);
        assert_true((double)kept.dist[i] <= before * (1 + 1e-6));
        if (!b->local)
            assert_true(kept.dist[i] <= free_choice.dist[i]);
        if (kept.idx[i] != old || kept.idx_res[i] != old_res)
            assert_true(distance(b, x, kept.idx[i], kept.idx_res[i]) < before * (1 + 1e-6));
    }
    dev->ops->finder_close(dev->state, finder);
    choices_free(&free_choice);
    choices_free(&kept);
}

static void find_keeps_what_is_not_worse(void **state)
{
    (void)state;
    static const uint32_t shapes[][4] = {/* v, k, k_res, beam */
                                         {8, 256, 256, 16}, {8, 256, 256, 1}, {4, 256, 0, 1},
                                         {6, 100, 30, 100}, {5, 33, 7, 3},    {12, 1024, 64, 8},
                                         {8, 4096, 16, 16}, {6, 4096, 0, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int local = 0; local < 2; local++) {
            const uint32_t *s = shapes[i];
            problem p = problem_make(61, s[0], s[1], s[2], s[3]);
            p.books.local = local;
            on_every_device(check_keep, &p);
            problem_free(&p);
        }
    }
}

/* ---- what is not a number ---- */

static void check_garbage(void *arg, const vptq_device *dev, bool is_ref)
{
    const vptq_books *shape = arg;
    problem p = problem_make(70, shape->v, shape->k, shape->k_res, shape->beam);
    choices got = choices_make(p.n);
    p.books.local = shape->local;
    (void)is_ref;
    for (size_t i = 0; i < p.n; i++)
        p.x[i * shape->v + i % shape->v] = i % 5 == 0   ? NAN
                                           : i % 5 == 1 ? INFINITY
                                           : i % 5 == 2 ? 3e38F
                                           : i % 5 == 3 ? -3e38F
                                                        : 1;
    for (int bad_books = 0; bad_books < 3; bad_books++) {
        vptq_finder *finder = finder_of(dev, &p.books);
        for (int keep = 0; keep < 2; keep++) {
            find(dev, finder, &p, 0, p.n, keep, &got);
            for (size_t i = 0; i < p.n; i++) {
                assert_true(got.idx[i] < shape->k);
                assert_true(got.idx_res[i] < (shape->k_res ? shape->k_res : 1));
            }
        }
        dev->ops->finder_close(dev->state, finder);
        for (size_t j = 0; j < (size_t)shape->k * shape->v; j++)
            p.c[j] = bad_books ? NAN : j % 3 ? 1e30F : NAN;
        for (size_t j = 0; j < (size_t)shape->k_res * shape->v; j++)
            p.r[j] = bad_books ? NAN : j % 2 ? 1e25F : INFINITY;
    }
    choices_free(&got);
    problem_free(&p);
}

static void find_stays_in_range_for_garbage(void **state)
{
    (void)state;
    vptq_books shapes[] = {
        {8, 21, 0, 1, false, NULL, NULL},     {8, 21, 9, 1, false, NULL, NULL},
        {8, 21, 9, 4, false, NULL, NULL},     {4, 300, 300, 16, false, NULL, NULL},
        {5, 300, 18, 300, false, NULL, NULL}, {6, 1024, 300, 16, true, NULL, NULL},
        {6, 1024, 0, 1, true, NULL, NULL},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        on_every_device(check_garbage, &shapes[i]);
}

/* ---- place and threads ---- */

/* The answer for a vector is the same wherever it stands and whoever computes it. */
static void find_does_not_depend_on_place_or_threads(void **state)
{
    (void)state;
    static const uint32_t shapes[][4] = {/* v, k, k_res, beam */
                                         {8, 256, 256, 16}, {4, 256, 0, 1},  {7, 100, 30, 5},
                                         {6, 1024, 300, 8}, {8, 64, 64, 64}, {8, 1024, 16, 8}};
    const int best = (int)vptq_cpu_simd();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const uint32_t *s = shapes[i];
        problem p = problem_make(701, s[0], s[1], s[2], s[3]);
        p.books.local = i == 5;
        choices whole = choices_make(p.n), other = choices_make(p.n);
        for (int simd = VPTQ_SIMD_NONE; simd <= best; simd++) {
            for (int threads = 1; threads <= 3; threads++) {
                devices_one d;
                devices_open(&d, "cpu", (vptq_simd)simd, threads);
                vptq_finder *finder = finder_of(&d.dev, &p.books);
                for (int keep = 0; keep < 2; keep++) {
                    const choices *to = threads > 1 ? &other : &whole;
                    memset(whole.idx, 0, threads > 1 ? 0 : p.n * sizeof *whole.idx);
                    for (size_t at = 0, step = 1; at < p.n; at += step, step = step % 90 + 7) {
                        size_t n = threads < 3 ? p.n : p.n - at < step ? p.n - at : step;
                        memset(to->idx + at, 0, n * sizeof *to->idx);
                        memset(to->idx_res + at, 0, n * sizeof *to->idx_res);
                        find(&d.dev, finder, &p, at, n, keep, to);
                        if (n == p.n)
                            break;
                        step = n;
                    }
                }
                d.dev.ops->finder_close(d.dev.state, finder);
                devices_close(&d);
                if (threads == 1)
                    continue;
                assert_memory_equal(other.idx, whole.idx, p.n * sizeof *other.idx);
                assert_memory_equal(other.idx_res, whole.idx_res, p.n * sizeof *other.idx_res);
                assert_memory_equal(other.dist, whole.dist, p.n * sizeof *other.dist);
            }
        }
        choices_free(&whole);
        choices_free(&other);
        problem_free(&p);
    }
}

/* ---- coordinate descent ---- */

typedef struct descend_case {
    size_t cols, strips;
    problem books; /* n = 0 */
    float *w, *h, *g, *q;
    uint32_t *idx, *idx_res;
} descend_case;

static descend_case descend_make(size_t cols, size_t strips, uint32_t v, uint32_t k,
                                 uint32_t k_res, uint32_t beam)
{
    descend_case a = {.cols = cols, .strips = strips};
    const size_t rows = strips * v, n = cols * strips;
    a.books = problem_make(0, v, k, k_res, beam);
    a.w = normal(cols * rows, 1, 5);
    a.h = need(cols * cols, sizeof *a.h);
    a.g = need(cols * rows, sizeof *a.g);
    a.q = need(cols * rows, sizeof *a.q);
    a.idx = need(n, sizeof *a.idx);
    a.idx_res = need(n, sizeof *a.idx_res);
    float *m = normal(cols * cols, 1, 6);
    for (size_t i = 0; i < cols; i++) { /* m m^T, made a little diagonal */
        for (size_t j = 0; j < cols; j++) {
            for (size_t l = 0; l < cols; l++)
                a.h[i * cols + j] += m[i * cols + l] * m[j * cols + l] / (float)cols;
        }
        a.h[i * cols + i] += 0.5F;
    }
    free(m);
    if (cols > 2) /* a channel that is always zero */
        for (size_t i = 0; i < cols; i++)
            a.h[2 * cols + i] = a.h[i * cols + 2] = 0;
    for (size_t i = 0; i < n; i++) {
        a.idx[i] = (uint32_t)(i * i % k);
        a.idx_res[i] = k_res ? (uint32_t)(i * 3 % k_res) : 0;
        for (size_t d = 0; d < v; d++)
            a.q[i * v + d] = a.books.c[(size_t)a.idx[i] * v + d] +
                             (k_res ? a.books.r[(size_t)a.idx_res[i] * v + d] : 0);
    }
    for (size_t t = 0; t < cols; t++) {
        for (size_t s = 0; s < cols; s++) {
            for (size_t i = 0; i < rows; i++)
                a.g[t * rows + i] +=
                    (a.q[s * rows + i] - a.w[s * rows + i]) * a.h[s * cols + t];
        }
    }
    return a;
}

static void descend_free(descend_case *a)
{
    problem_free(&a->books);
    free(a->w);
    free(a->h);
    free(a->g);
    free(a->q);
    free(a->idx);
    free(a->idx_res);
}

static double loss_of(const descend_case *a, const float *q)
{
    const size_t rows = a->strips * a->books.books.v;
    double loss = 0;
    for (size_t s = 0; s < a->cols; s++) {
        for (size_t t = 0; t < a->cols; t++) {
            for (size_t i = 0; i < rows; i++) {
                const size_t si = s * rows + i, ti = t * rows + i;
                loss += ((double)q[si] - (double)a->w[si]) * (double)a->h[s * a->cols + t] *
                        ((double)q[ti] - (double)a->w[ti]);
            }
        }
    }
    return loss;
}

/* The sweep in double over one strip; false where a choice is too close to call in float. */
static bool sweep_strip(const descend_case *a, size_t strip, uint32_t *idx, uint32_t *idx_res)
{
    const vptq_books *b = &a->books.books;
    const size_t v = b->v, rows = a->strips * v;
    double *q = need(a->cols * v, sizeof *q);
    bool clear = true;
    for (size_t t = 0; t < a->cols; t++) {
        for (size_t d = 0; d < v; d++)
            q[t * v + d] = (double)a->q[t * rows + strip * v + d];
    }
    for (size_t t = 0; t < a->cols && clear; t++) {
        const double h = (double)a->h[t * a->cols + t];
        float target[64];
        if (!(h > 0))
            continue;
        for (size_t d = 0; d < v; d++) {
            double g = 0;
            for (size_t s = 0; s < a->cols; s++)
                g += (q[s * v + d] - (double)a->w[s * rows + strip * v + d]) *
                     (double)a->h[s * a->cols + t];
            target[d] = (float)(q[t * v + d] - g / h);
        }
        const size_t at = t * a->strips + strip;
        double best = distance(b, target, idx[at], idx_res[at]);
        uint32_t main = idx[at], res = idx_res[at];
        for (uint32_t j = 0; j < b->k; j++) {
            for (uint32_t l = 0; l < (b->k_res ? b->k_res : 1); l++) {
                const double now = distance(b, target, j, l);
                if (j == main && l == res)
                    continue;
                clear = clear && fabs(now - best) > 1e-4 * (now + best);
                if (now < best) {
                    best = now;
                    main = j;
                    res = l;
                }
            }
        }
        idx[at] = main;
        idx_res[at] = res;
        for (size_t d = 0; d < v; d++)
            q[t * v + d] = (double)b->centroids[main * v + d] +
                           (b->k_res ? (double)b->res_centroids[res * v + d] : 0);
    }
    free(q);
    return clear;
}

typedef struct descend_run {
    float *q, *delta;
    uint32_t *idx, *idx_res;
} descend_run;

/* In arrays with room behind every column. */
static descend_run descend_on(const descend_case *a, const vptq_device *dev)
{
    const vptq_books *b = &a->books.books;
    const size_t rows = a->strips * b->v, ld = rows + 3, ldi = a->strips + 2;
    descend_run r = {need(a->cols * ld, sizeof(float)), need(a->cols * ld, sizeof(float)),
                     need(a->cols * ldi, sizeof(uint32_t)),
                     need(a->cols * ldi, sizeof(uint32_t))};
    vptq_finder *finder = finder_of(dev, b);
    vptq_err err;
    for (size_t t = 0; t < a->cols; t++) {
        memcpy(r.q + t * ld, a->q + t * rows, rows * sizeof *r.q);
        memcpy(r.idx + t * ldi, a->idx + t * a->strips, a->strips * sizeof *r.idx);
        memcpy(r.idx_res + t * ldi, a->idx_res + t * a->strips, a->strips * sizeof *r.idx_res);
    }
    const vptq_descend_args d = {.cols = a->cols,
                                 .rows = rows,
                                 .finder = finder,
                                 .g = a->g,
                                 .h = a->h,
                                 .idx = r.idx,
                                 .idx_res = b->k_res ? r.idx_res : NULL,
                                 .q = r.q,
                                 .delta = r.delta,
                                 .ldg = rows,
                                 .ldh = a->cols,
                                 .ldi = ldi,
                                 .ldq = ld,
                                 .ldd = ld};
    assert_ok(dev->ops->vq_descend(dev->state, &d, &err), &err);
    dev->ops->finder_close(dev->state, finder);
    for (size_t t = 0; t < a->cols; t++) {
        for (size_t i = rows; i < ld; i++) /* nothing behind a column is touched */
            assert_true(r.q[t * ld + i] == 0 && r.delta[t * ld + i] == 0);
    }
    return r;
}

static void descend_run_free(descend_run *r)
{
    free(r->q);
    free(r->delta);
    free(r->idx);
    free(r->idx_res);
}

static void check_descend(void *arg, const vptq_device *dev, bool is_ref)
{
    const descend_case *a = arg;
    const vptq_books *b = &a->books.books;
    const size_t rows = a->strips * b->v, ld = rows + 3, ldi = a->strips + 2;
    descend_run r = descend_on(a, dev);
    uint32_t *idx = need(a->cols * a->strips, sizeof *idx);
    uint32_t *idx_res = need(a->cols * a->strips, sizeof *idx_res);
    float *q = need(a->cols * rows, sizeof *q);
    size_t compared = 0;
    (void)is_ref;
    for (size_t t = 0; t < a->cols; t++) { /* q is what idx stands for, delta what changed */
        memcpy(q + t * rows, r.q + t * ld, rows * sizeof *q);
        for (size_t i = 0; i < rows; i++) {
            const size_t at = t * ldi + i / b->v, d = i % b->v;
            float value = b->centroids[(size_t)r.idx[at] * b->v + d];
            if (b->k_res)
                value += b->res_centroids[(size_t)r.idx_res[at] * b->v + d];
            assert_true(value == r.q[t * ld + i]);
            assert_true(r.delta[t * ld + i] == value - a->q[t * rows + i]);
        }
    }
    const double before = loss_of(a, a->q), after = loss_of(a, q);
    assert_true(after <= before * (1 + 1e-6));
    for (size_t strip = 0; b->beam >= b->k && !b->local && strip < a->strips; strip++) {
        memcpy(idx, a->idx, a->cols * a->strips * sizeof *idx);
        memcpy(idx_res, a->idx_res, a->cols * a->strips * sizeof *idx_res);
        if (!sweep_strip(a, strip, idx, idx_res))
            continue;
        compared++;
        for (size_t t = 0; t < a->cols; t++) {
            assert_int_equal(r.idx[t * ldi + strip], idx[t * a->strips + strip]);
            assert_int_equal(r.idx_res[t * ldi + strip], idx_res[t * a->strips + strip]);
        }
    }
    assert_true(compared * 2 >= a->strips || b->beam < b->k || b->local);
    free(idx);
    free(idx_res);
    free(q);
    descend_run_free(&r);
}

static void descend_equals_the_naive_sweep(void **state)
{
    (void)state;
    static const struct {
        size_t cols, strips;
        uint32_t v, k, k_res, beam;
        bool local;
    } cases[] = {{1, 1, 8, 16, 0, 16, false},   {5, 40, 8, 16, 0, 16, false},
                 {6, 33, 4, 8, 8, 8, false},    {9, 7, 3, 20, 4, 20, false},
                 {4, 20, 16, 17, 3, 17, false}, {12, 50, 2, 4, 2, 4, false},
                 {20, 70, 8, 64, 32, 8, false}, {7, 35, 6, 100, 0, 1, false},
                 {20, 70, 8, 512, 32, 8, true}, {20, 70, 6, 1024, 0, 1, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        descend_case a = descend_make(cases[i].cols, cases[i].strips, cases[i].v, cases[i].k,
                                      cases[i].k_res, cases[i].beam);
        a.books.books.local = cases[i].local;
        on_every_device(check_descend, &a);
        descend_free(&a);
    }
}

static void descend_same_bits_for_any_threads(void **state)
{
    (void)state;
    for (int simd = VPTQ_SIMD_NONE; simd <= (int)vptq_cpu_simd(); simd++) {
        descend_case a = descend_make(30, 350, 8, 256, 64, 8);
        descend_run first = {0};
        for (int threads = 1; threads <= 3; threads++) {
            devices_one d;
            devices_open(&d, "cpu", (vptq_simd)simd, threads);
            descend_run r = descend_on(&a, &d.dev);
            if (threads == 1) {
                first = r;
            } else {
                assert_memory_equal(r.q, first.q, a.cols * (350 * 8 + 3) * sizeof *r.q);
                assert_memory_equal(r.delta, first.delta,
                                    a.cols * (350 * 8 + 3) * sizeof *r.delta);
                assert_memory_equal(r.idx, first.idx, a.cols * 352 * sizeof *r.idx);
                assert_memory_equal(r.idx_res, first.idx_res, a.cols * 352 * sizeof *r.idx);
                descend_run_free(&r);
            }
            devices_close(&d);
        }
        descend_run_free(&first);
        descend_free(&a);
    }
}

/* ---- gather and scatter ---- */

typedef struct scatter_case {
    size_t cols, strips;
    problem books;
    float *y, *weight;
    uint32_t *idx, *idx_res; /* [cols, strips + 1] */
} scatter_case;

static void check_gather(void *arg, const vptq_device *dev, bool is_ref)
{
    const scatter_case *a = arg;
    const vptq_books *b = &a->books.books;
    const size_t v = b->v, rows = a->strips * v, ld = rows + 2;
    float *q = need(a->cols * ld, sizeof *q);
    vptq_err err;
    (void)is_ref;
    const vptq_gather_args g = {.cols = a->cols,
                                .rows = rows,
                                .v = b->v,
                                .k = b->k,
                                .k_res = b->k_res,
                                .centroids = a->books.c,
                                .res_centroids = a->books.r,
                                .idx = a->idx,
                                .idx_res = b->k_res ? a->idx_res : NULL,
                                .q = q,
                                .ldi = a->strips + 1,
                                .ldq = ld};
    assert_ok(dev->ops->vq_gather(dev->state, &g, &err), &err);
    for (size_t t = 0; t < a->cols; t++) {
        for (size_t i = 0; i < ld; i++) {
            const size_t at = t * (a->strips + 1) + i / v;
            float want = 0;
            if (i < rows)
                want = a->books.c[a->idx[at] * v + i % v];
            if (i < rows && b->k_res)
                want += a->books.r[a->idx_res[at] * v + i % v];
            assert_true(q[t * ld + i] == want);
        }
    }
    free(q);
}

static void scatter_on(const scatter_case *a, const vptq_device *dev, double *sums,
                       double *weights)
{
    const vptq_books *b = &a->books.books;
    const size_t rows = a->strips * b->v;
    vptq_err err;
    const vptq_scatter_args s = {.cols = a->cols,
                                 .rows = rows,
                                 .v = b->v,
                                 .k = b->k,
                                 .y = a->y,
                                 .weight = a->weight,
                                 .idx = a->idx,
                                 .sums = sums,
                                 .weights = weights,
                                 .ldy = rows,
                                 .ldi = a->strips + 1};
    assert_ok(dev->ops->vq_scatter(dev->state, &s, &err), &err);
}

static void check_scatter(void *arg, const vptq_device *dev, bool is_ref)
{
    const scatter_case *a = arg;
    const size_t v = a->books.books.v, k = a->books.books.k, rows = a->strips * v;
    double *sums = need(k * v, sizeof *sums), *weights = need(k, sizeof *weights);
    double *want = need(k * v, sizeof *want), *want_weights = need(k, sizeof *want_weights);
    (void)is_ref;
    for (size_t t = 0; t < a->cols; t++) {
        const double w = a->weight ? (double)a->weight[t] : 1;
        for (size_t i = 0; i < rows; i++) {
            const size_t j = a->idx[t * (a->strips + 1) + i / v];
            want[j * v + i % v] += w * (double)a->y[t * rows + i];
            want_weights[j] += i % v ? 0 : w;
        }
    }
    memset(sums, 0xff, k * v * sizeof *sums);
    memset(weights, 0xff, k * sizeof *weights);
    scatter_on(a, dev, sums, weights);
    assert_close_f64(sums, want, k * v, 1e-12, 1e-12);
    assert_close_f64(weights, want_weights, k, 1e-12, 1e-12);
    memset(sums, 0xff, k * v * sizeof *sums);
    scatter_on(a, dev, sums, NULL);
    assert_close_f64(sums, want, k * v, 1e-12, 1e-12);
    free(sums);
    free(weights);
    free(want);
    free(want_weights);
}

static scatter_case scatter_make(size_t cols, size_t strips, uint32_t v, uint32_t k,
                                 uint32_t k_res, bool weighted)
{
    scatter_case a = {cols, strips, problem_make(0, v, k, k_res, 1), NULL, NULL, NULL, NULL};
    const size_t n = cols * (strips + 1);
    a.y = normal(cols * strips * v, 1, 8);
    a.weight = weighted ? normal(cols, 1, 9) : NULL;
    a.idx = need(n, sizeof *a.idx);
    a.idx_res = need(n, sizeof *a.idx_res);
    for (size_t i = 0; i < n; i++) {
        a.idx[i] = (uint32_t)(i * i % k);
        a.idx_res[i] = k_res ? (uint32_t)(i * 11 % k_res) : 0;
    }
    return a;
}

static void scatter_free(scatter_case *a)
{
    problem_free(&a->books);
    free(a->y);
    free(a->weight);
    free(a->idx);
    free(a->idx_res);
}

static void gather_and_scatter_follow_the_indices(void **state)
{
    (void)state;
    static const uint32_t shapes[][6] = {/* cols, strips, v, k, k_res, weighted */
                                         {0, 5, 4, 4, 0, 0},     {1, 1, 8, 2, 2, 1},
                                         {30, 40, 8, 16, 0, 1},  {77, 33, 4, 5, 3, 0},
                                         {9, 100, 12, 64, 9, 1}, {5, 7, 6, 4096, 16, 1},
                                         {64, 50, 64, 2, 2, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const uint32_t *s = shapes[i];
        scatter_case a = scatter_make(s[0], s[1], s[2], s[3], s[4], s[5]);
        on_every_device(check_gather, &a);
        on_every_device(check_scatter, &a);
        scatter_free(&a);
    }
}

static void scatter_same_bits_for_any_threads(void **state)
{
    (void)state;
    enum { V = 8, K = 40, SUMS = K * V };
    scatter_case a = scatter_make(101, 77, V, K, 0, true);
    double first[SUMS + K], other[SUMS + K];
    for (int threads = 1; threads <= 5; threads++) {
        devices_one d;
        double *to = threads > 1 ? other : first;
        devices_open(&d, "cpu", VPTQ_SIMD_AVX512, threads);
        scatter_on(&a, &d.dev, to, to + SUMS);
        assert_memory_equal(to, first, sizeof first);
        devices_close(&d);
    }
    scatter_free(&a);
}

/* ---- memory ---- */

static vptq_status run_all(void *arg, vptq_mem *mem, vptq_err *err)
{
    const problem *p = arg;
    vptq_ctx ctx = {.mem = mem, .threads = 2};
    vptq_device dev;
    vptq_finder *finder = NULL;
    double *sums = need((size_t)p->books.k * p->books.v, sizeof *sums);
    uint32_t *idx = need(p->n, sizeof *idx), *idx_res = need(p->n, sizeof *idx_res);
    float *rest = need(p->n * p->books.v, sizeof *rest), h = 1;
    vptq_status st = vptq_device_open(&ctx, "cpu", &dev, err);
    if (st)
        goto freed;
    VPTQ_TRY(dev.ops->finder_open(dev.state, &p->books, &finder, err));
    const size_t rows = p->n * p->books.v;
    const vptq_find_args f = {
        .n = p->n, .finder = finder, .x = p->x, .idx = idx, .idx_res = idx_res};
    const vptq_descend_args d = {.cols = 1,
                                 .rows = rows,
                                 .finder = finder,
                                 .g = p->x,
                                 .h = &h,
                                 .idx = idx,
                                 .idx_res = idx_res,
                                 .q = rest,
                                 .delta = rest};
    const vptq_scatter_args s = {.cols = 1,
                                 .rows = rows,
                                 .v = p->books.v,
                                 .k = p->books.k,
                                 .y = p->x,
                                 .idx = idx,
                                 .sums = sums};
    VPTQ_TRY(dev.ops->find(dev.state, &f, err));
    VPTQ_TRY(dev.ops->vq_descend(dev.state, &d, err));
    VPTQ_TRY(dev.ops->vq_scatter(dev.state, &s, err));
out:
    dev.ops->finder_close(dev.state, finder);
    vptq_device_close(&dev);
freed:
    free(sums);
    free(idx);
    free(idx_res);
    free(rest);
    return st;
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    problem p = problem_make(40, 4, 300, 20, 4);
    p.books.local = true;
    assert_true(vtest_oom_walk(run_all, &p) >= 5);
    problem_free(&p);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(find_reaches_the_beam),
        cmocka_unit_test(find_in_large_books),
        cmocka_unit_test(find_takes_the_lowest_on_ties),
        cmocka_unit_test(find_keeps_what_is_not_worse),
        cmocka_unit_test(find_stays_in_range_for_garbage),
        cmocka_unit_test(find_does_not_depend_on_place_or_threads),
        cmocka_unit_test(descend_equals_the_naive_sweep),
        cmocka_unit_test(descend_same_bits_for_any_threads),
        cmocka_unit_test(gather_and_scatter_follow_the_indices),
        cmocka_unit_test(scatter_same_bits_for_any_threads),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return vtest_main(argc, argv, tests);
}
