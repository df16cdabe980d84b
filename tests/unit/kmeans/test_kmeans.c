/* Tests properties of weighted k-means that hold for any data, on ref and on every SIMD level
 * of cpu. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kmeans/kmeans.h"
#include "kmeans/parts.h"
#include "tests/support/devices.h"

enum { N = 1500, V = 4, MOST_K = 64, ITERATIONS = 12 };

static vptq_kmeans_options options(uint32_t v, uint32_t k)
{
    vptq_kmeans_options opt = vptq_kmeans_default(v, k);
    opt.iterations = ITERATIONS;
    opt.tolerance = 0;
    opt.rng = vptq_rng_make(7, 1, 0, VPTQ_RNG_SEEDING);
    return opt;
}

typedef struct result {
    float centroids[MOST_K * V];
    uint32_t labels[N];
    vptq_kmeans_stats stats;
    double objective[ITERATIONS]; /* after each iteration */
    uint32_t repaired[ITERATIONS];
} result;

static void run(const char *name, vptq_simd simd, int threads, const vptq_kmeans_options *opt,
                size_t n, const float *x, const float *w, result *r)
{
    devices_one d;
    vptq_err err;
    memset(r, 0xff, sizeof *r);
    devices_open(&d, name, simd, threads);
    const vptq_kmeans_args a = {n, x, w, r->centroids, r->labels};
    assert_ok(vptq_kmeans_run(&d.dev, opt, &a, &r->stats, &err), &err);
    const int count = r->stats.iterations;
    for (int t = 0; t < count; t++) { /* from runs that end before and after the iteration */
        vptq_kmeans_options cut = *opt;
        vptq_kmeans_stats stats, next;
        float centroids[MOST_K * V];
        const vptq_kmeans_args short_run = {n, x, w, centroids, NULL};
        cut.iterations = t + 1;
        assert_ok(vptq_kmeans_run(&d.dev, &cut, &short_run, &stats, &err), &err);
        cut.iterations = t + 2 <= count ? t + 2 : count;
        assert_ok(vptq_kmeans_run(&d.dev, &cut, &short_run, &next, &err), &err);
        r->objective[t] = stats.last;
        r->repaired[t] = next.repaired - stats.repaired;
    }
    devices_close(&d);
}

static double objective_of(size_t n, uint32_t v, const float *x, const float *w,
                           const float *centroids, const uint32_t *labels)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        for (size_t e = 0; e < v; e++) {
            double diff = (double)x[i * v + e] - (double)centroids[labels[i] * v + e];
            sum += (w ? (double)w[i] : 1) * diff * diff;
        }
    }
    return sum;
}

static void check_result(const vptq_kmeans_options *opt, size_t n, const float *x,
                         const float *w, const result *r)
{
    const int count = r->stats.iterations;
    assert_in_range(count, 1, opt->iterations);
    assert_true(r->objective[0] <= r->stats.first && r->objective[0] >= r->stats.first);
    double sum = objective_of(n, opt->v, x, w, r->centroids, r->labels);
    assert_close_f64(&r->stats.last, &sum, 1, 1e-12, 1e-9);
    uint32_t repaired = 0;
    for (int t = 0; t < count; t++) {
        repaired += r->repaired[t];
        if (t > 0) /* the slack allows for rounding of centroids and scores */
            assert_true(r->objective[t] <= r->objective[t - 1] * (1 + 1e-6));
    }
    assert_int_equal(repaired, r->stats.repaired);
    for (size_t i = 0; i < n; i++)
        assert_true(r->labels[i] < opt->k);
    for (size_t e = 0; e < (size_t)opt->k * opt->v; e++)
        assert_true(isfinite(r->centroids[e]));
}

/* Random points with weights over three decades. */
static void make_points(float *x, float *w)
{
    vtest_normal(x, (size_t)N * V, 1);
    vtest_normal(w, N, 2);
    for (size_t i = 0; i < N; i++)
        w[i] = expf(1.5F * w[i]);
}

static void objective_never_rises(void **state)
{
    (void)state;
    static float x[N * V], w[N];
    static result r;
    make_points(x, w);
    for (int seeding = 0; seeding < 2; seeding++) {
        for (int weighted = 0; weighted < 2; weighted++) {
            vptq_kmeans_options opt = options(V, 32);
            opt.seeding = seeding ? VPTQ_KMEANS_RANDOM : VPTQ_KMEANS_PLUSPLUS;
            run("ref", VPTQ_SIMD_NONE, 1, &opt, N, x, weighted ? w : NULL, &r);
            check_result(&opt, N, x, weighted ? w : NULL, &r);
            assert_true(r.stats.last < 0.95 * r.stats.first);
            for (int simd = VPTQ_SIMD_NONE; simd <= VPTQ_SIMD_NEON; simd++) {
                if (!vptq_cpu_has((vptq_simd)simd))
                    continue;
                run("cpu", (vptq_simd)simd, 2, &opt, N, x, weighted ? w : NULL, &r);
                check_result(&opt, N, x, weighted ? w : NULL, &r);
            }
        }
    }
}

static void more_centroids_are_better(void **state)
{
    (void)state;
    static float x[N * V], w[N];
    static result few, many;
    make_points(x, w);
    vptq_kmeans_options a = options(V, 32), b = options(V, 64);
    run("cpu", VPTQ_SIMD_AVX512, 2, &a, N, x, w, &few);
    run("cpu", VPTQ_SIMD_AVX512, 2, &b, N, x, w, &many);
    assert_true(many.stats.last < 0.8 * few.stats.last);
}

/* Greedy k-means++ starts well below k points drawn uniformly. */
static void careful_seeding_pays(void **state)
{
    (void)state;
    static float x[N * V], w[N];
    static result plus, uniform;
    make_points(x, w);
    vptq_kmeans_options opt = options(V, 64);
    opt.iterations = 1;
    run("cpu", VPTQ_SIMD_AVX512, 2, &opt, N, x, w, &plus);
    opt.seeding = VPTQ_KMEANS_RANDOM;
    run("cpu", VPTQ_SIMD_AVX512, 2, &opt, N, x, w, &uniform);
    assert_true(plus.stats.first < 0.75 * uniform.stats.first);
    assert_int_equal(plus.stats.iterations, 1);
    assert_false(plus.stats.converged);
}

/* One point with 10^6 times the weight of the others gets a centroid to itself. */
static void weights_matter(void **state)
{
    (void)state;
    static float x[N * V], w[N];
    static result r;
    make_points(x, w);
    for (size_t i = 0; i < N; i++)
        w[i] = i == 777 ? 1e6F : 1;
    for (int seeding = 0; seeding < 2; seeding++) {
        vptq_kmeans_options opt = options(V, 16);
        opt.seeding = seeding ? VPTQ_KMEANS_RANDOM : VPTQ_KMEANS_PLUSPLUS;
        run("cpu", VPTQ_SIMD_AVX512, 2, &opt, N, x, w, &r);
        assert_close(r.centroids + r.labels[777] * V, x + 777 * V, V, 1e-3, 0);
    }
    /* Points of weight 0 attract no centroid: two sites, one of them without weight. */
    for (size_t i = 0; i < N; i++) {
        w[i] = i % 3 == 0;
        for (size_t e = 0; e < V; e++)
            x[i * V + e] = i % 3 ? 100 : (float)e;
    }
    vptq_kmeans_options one = options(V, 1);
    run("cpu", VPTQ_SIMD_AVX512, 1, &one, N, x, w, &r);
    assert_same_f32(r.centroids, x, V);
    assert_true(r.stats.last <= 0);
}

static void one_cluster_is_the_weighted_mean(void **state)
{
    (void)state;
    static float x[N * V], w[N];
    static result r;
    double mean[V] = {0}, total = 0;
    make_points(x, w);
    for (size_t i = 0; i < N; i++) {
        for (size_t e = 0; e < V; e++)
            mean[e] += (double)w[i] * (double)x[i * V + e];
        total += (double)w[i];
    }
    vptq_kmeans_options opt = options(V, 1);
    run("cpu", VPTQ_SIMD_AVX512, 2, &opt, N, x, w, &r);
    check_result(&opt, N, x, w, &r);
    for (size_t e = 0; e < V; e++)
        assert_true(fabs((double)r.centroids[e] - mean[e] / total) < 1e-6);
    assert_true(r.stats.converged);
}

/* Weights that are all 0 count as ones. */
static void zero_weights_count_as_ones(void **state)
{
    (void)state;
    static float x[N * V], w[N];
    static result with, without;
    make_points(x, w);
    memset(w, 0, sizeof w);
    vptq_kmeans_options opt = options(V, 20);
    run("cpu", VPTQ_SIMD_AVX512, 2, &opt, N, x, w, &with);
    run("cpu", VPTQ_SIMD_AVX512, 2, &opt, N, x, NULL, &without);
    assert_memory_equal(&with, &without, sizeof with);
}

static void fewer_distinct_points_than_centroids(void **state)
{
    (void)state;
    static float x[N * V];
    static result r;
    for (size_t distinct = 1; distinct < 9; distinct += 7) {
        for (size_t i = 0; i < N * V; i++)
            x[i] = (float)((i / V) % distinct) * 1.25F + (float)(i % V);
        for (int seeding = 0; seeding < 2; seeding++) {
            vptq_kmeans_options opt = options(V, 40);
            opt.seeding = seeding ? VPTQ_KMEANS_RANDOM : VPTQ_KMEANS_PLUSPLUS;
            run("cpu", VPTQ_SIMD_AVX512, 2, &opt, N, x, NULL, &r);
            check_result(&opt, N, x, NULL, &r);
            assert_true(r.stats.converged);
            for (size_t i = 0; i < N; i++)
                assert_same_f32(r.centroids + r.labels[i] * V, x + i * V, V);
        }
    }
}

static void one_point_per_cluster(void **state)
{
    (void)state;
    static float x[N * V], w[N];
    static result r;
    make_points(x, w);
    for (uint32_t n = 1; n <= MOST_K;
         n += 21) { /* from fewer points than centroids to as many */
        vptq_kmeans_options opt = options(V, MOST_K);
        run("cpu", VPTQ_SIMD_AVX512, 2, &opt, n, x, w, &r);
        check_result(&opt, n, x, w, &r);
        assert_same_f32(r.centroids, x, (size_t)n * V);
        for (size_t j = n; j < MOST_K; j++)
            assert_same_f32(r.centroids + j * V, x + (n - 1) * V, V);
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(r.labels[i], i);
    }
    /* One point more than centroids: exactly the two nearest points share one. */
    vptq_kmeans_options opt = options(V, 20);
    for (size_t i = 0; i < (size_t)21 * V; i++)
        x[i] = (float)(i / V * i / V) + (i / V == 20 ? -2000 : 0);
    run("cpu", VPTQ_SIMD_AVX512, 2, &opt, 21, x, NULL, &r);
    check_result(&opt, 21, x, NULL, &r);
}

/* Empty clusters move to the points with the largest losses, one cluster per point, ties by
 * index. */
static void repair_takes_the_worst_points(void **state)
{
    (void)state;
    enum { POINTS = 9, K = 6 };
    const float x[POINTS] = {0, 5, 1, -4, 5, 9, 9, 3, 0};
    const float w[POINTS] = {1, 1, 1, 1, 1, 0, 0.25F, 1, 1};
    uint32_t labels[POINTS] = {0};
    double weights[K] = {9, 0, 0, 0, 0, 0};
    float before[K] = {0, 50, 51, 52, 53, 54};
    float moved[K] = {2.5F, 50, 51, 52, 53, 54};
    /* losses: 0 25 1 16 25 0 20.25 9 0; the second 5 equals the first and is left out */
    const float expected[K] = {2.5F, 5, 9, -4, 3, 1};
    devices_one d;
    devices_open(&d, "cpu", VPTQ_SIMD_NONE, 1);
    vptq_kmeans_points points = {&d.dev, POINTS, 1, x, w};
    const vptq_kmeans_clusters clusters = {K, before, labels, weights};
    vptq_err err;
    uint32_t repaired = 99;
    assert_ok(vptq_kmeans_repair(&points, &clusters, moved, &repaired, &err), &err);
    assert_int_equal(repaired, 5);
    assert_same_f32(moved, expected, K);
    /* Without any loss nothing moves. */
    const float zeros[POINTS] = {0};
    float still[K] = {0, 50, 51, 52, 53, 54};
    points.x = zeros;
    assert_ok(vptq_kmeans_repair(&points, &clusters, still, &repaired, &err), &err);
    assert_int_equal(repaired, 0);
    assert_same_f32(still, before, K);
    devices_close(&d);
}

static void same_bytes_for_any_threads(void **state)
{
    (void)state;
    enum { MANY = 20000, K = 48 };
    static float x[MANY * V], w[MANY], first[K * V], other[K * V];
    static uint32_t first_labels[MANY], labels[MANY];
    vtest_normal(x, (size_t)MANY * V, 1);
    for (size_t i = 0; i < MANY; i++)
        w[i] = 1 + (float)(i % 17);
    for (int simd = VPTQ_SIMD_NONE; simd <= VPTQ_SIMD_NEON; simd++) {
        if (!vptq_cpu_has((vptq_simd)simd))
            continue;
        for (int threads = 1; threads <= 3; threads++) {
            devices_one d;
            vptq_err err;
            vptq_kmeans_stats stats;
            vptq_kmeans_options opt = options(V, K);
            opt.iterations = 4;
            devices_open(&d, "cpu", (vptq_simd)simd, threads);
            const vptq_kmeans_args a = {MANY, x, w, simd || threads > 1 ? other : first,
                                        simd || threads > 1 ? labels : first_labels};
            assert_ok(vptq_kmeans_run(&d.dev, &opt, &a, &stats, &err), &err);
            devices_close(&d);
            if (simd || threads > 1) {
                assert_memory_equal(other, first, sizeof first);
                assert_memory_equal(labels, first_labels, sizeof labels);
            }
        }
    }
}

/* Another seed gives another codebook, the same seed the same one. */
static void seed_decides(void **state)
{
    (void)state;
    static float x[N * V], w[N];
    static result a, b, c;
    make_points(x, w);
    vptq_kmeans_options opt = options(V, 16);
    run("cpu", VPTQ_SIMD_AVX512, 2, &opt, N, x, w, &a);
    run("cpu", VPTQ_SIMD_AVX512, 2, &opt, N, x, w, &b);
    opt.rng = vptq_rng_make(8, 1, 0, VPTQ_RNG_SEEDING);
    run("cpu", VPTQ_SIMD_AVX512, 2, &opt, N, x, w, &c);
    assert_memory_equal(&a, &b, sizeof a);
    assert_memory_not_equal(a.centroids, c.centroids, 16 * V * sizeof(float));
}

static void tolerance_stops(void **state)
{
    (void)state;
    static float x[N * V], w[N];
    static result r;
    make_points(x, w);
    vptq_kmeans_options opt = options(V, 32);
    opt.tolerance = 0.02;
    run("cpu", VPTQ_SIMD_AVX512, 2, &opt, N, x, w, &r);
    int count = r.stats.iterations;
    assert_true(r.stats.converged);
    assert_in_range(count, 2, ITERATIONS - 1);
    for (int t = 1; t < count; t++) {
        double gain = 1 - r.objective[t] / r.objective[t - 1];
        assert_true(t + 1 == count ? gain <= 0.02 : gain > 0.02);
    }
}

/* Squared moves of the centroids in iteration t, from runs that end before and after it. */
static double moved_in(const vptq_kmeans_options *opt, int t, const float *x, const float *w)
{
    static result before, after;
    vptq_kmeans_options cut = *opt;
    double sum = 0;
    cut.shift = 0;
    cut.iterations = t;
    run("cpu", VPTQ_SIMD_AVX512, 1, &cut, N, x, w, &before);
    cut.iterations = t + 1;
    run("cpu", VPTQ_SIMD_AVX512, 1, &cut, N, x, w, &after);
    for (size_t e = 0; e < (size_t)opt->k * V; e++) {
        double d = (double)after.centroids[e] - (double)before.centroids[e];
        sum += d * d;
    }
    return sum;
}

/* Stops at the first iteration whose moves sum to less than the limit. */
static void shift_stops(void **state)
{
    (void)state;
    static float x[N * V], w[N];
    static result r;
    make_points(x, w);
    vptq_kmeans_options opt = options(V, 8);
    opt.keep_empty = true; /* so that only means move */
    opt.seeding = VPTQ_KMEANS_RANDOM;
    run("cpu", VPTQ_SIMD_AVX512, 1, &opt, N, x, w, &r);
    assert_int_equal(r.stats.iterations, ITERATIONS);
    assert_false(r.stats.converged);
    opt.shift = 1.05 * moved_in(&opt, 4, x, w);
    run("cpu", VPTQ_SIMD_AVX512, 1, &opt, N, x, w, &r);
    const int count = r.stats.iterations;
    assert_true(r.stats.converged);
    assert_in_range(count, 5, ITERATIONS - 1);
    for (int t = 1; t < count; t++)
        assert_true((moved_in(&opt, t, x, w) < opt.shift) == (t == count - 1));
    check_result(&opt, N, x, w, &r);
}

static double distance(const float *a, const float *b)
{
    double d = 0;
    for (size_t e = 0; e < V; e++)
        d += ((double)a[e] - (double)b[e]) * ((double)a[e] - (double)b[e]);
    return d;
}

/* Copies of the points of few sites, drawn at random as centroids, win no points at first and
 * stay where they are; with repair they move. Labels are the nearest centroids either way. */
static void empty_clusters_are_kept(void **state)
{
    (void)state;
    enum { K = 24, SITES = 200 };
    static float x[N * V];
    static result kept, repaired;
    float start[K * V];
    for (size_t i = 0; i < N; i++) { /* half of the points are on 3 sites */
        size_t site = i % 2 ? i % 3 : i / 2 % SITES;
        for (size_t e = 0; e < V; e++)
            x[i * V + e] = (float)((site * 7 + e * site) % 64);
    }
    vptq_kmeans_options opt = options(V, K);
    opt.seeding = VPTQ_KMEANS_RANDOM;
    opt.keep_empty = true;
    devices_one d;
    devices_open(&d, "cpu", VPTQ_SIMD_NONE, 1);
    vptq_kmeans_points points = {&d.dev, N, V, x, NULL};
    vptq_err err;
    assert_ok(vptq_kmeans_seed(&points, &opt, start, &err), &err);
    devices_close(&d);
    opt.iterations = 2; /* means move once */
    run("cpu", VPTQ_SIMD_AVX512, 2, &opt, N, x, NULL, &kept);
    size_t copies = 0;
    for (size_t j = 0; j < K; j++)
        for (size_t i = 0; i < j; i++)
            if (!memcmp(start + i * V, start + j * V, V * sizeof *start)) {
                assert_same_f32(kept.centroids + j * V, start + j * V, V);
                copies++;
                break;
            }
    assert_true(copies > 2);
    opt.iterations = ITERATIONS;
    run("cpu", VPTQ_SIMD_AVX512, 2, &opt, N, x, NULL, &kept);
    check_result(&opt, N, x, NULL, &kept);
    assert_int_equal(kept.stats.repaired, 0);
    opt.keep_empty = false;
    run("cpu", VPTQ_SIMD_AVX512, 2, &opt, N, x, NULL, &repaired);
    check_result(&opt, N, x, NULL, &repaired);
    assert_true(repaired.stats.repaired > 0);
    assert_true(repaired.stats.last < kept.stats.last);
    const result *both[] = {&kept, &repaired};
    for (int n = 0; n < 2; n++)
        for (size_t i = 0; i < N; i++) {
            double own = distance(x + i * V, both[n]->centroids + both[n]->labels[i] * V);
            for (size_t j = 0; j < K; j++)
                assert_true(
                    own <= distance(x + i * V, both[n]->centroids + j * V) * (1 + 1e-5) + 1e-3);
        }
}

static void bad_input_is_named(void **state)
{
    (void)state;
    static float x[N * V], w[N], centroids[16 * V];
    devices_one d;
    vptq_err err;
    vptq_kmeans_stats stats;
    vptq_kmeans_options opt = options(V, 16);
    devices_open(&d, "cpu", VPTQ_SIMD_AVX512, 2);
#define RUN(n)                                                                                 \
    vptq_kmeans_run(&d.dev, &opt, &(vptq_kmeans_args){n, x, w, centroids, NULL}, &stats, &err)
    make_points(x, w);
    x[123 * V + 2] = NAN;
    assert_fails(RUN(N), VPTQ_E_NUMERIC, &err, "vector 123 of 1500");
    x[123 * V + 2] = -INFINITY;
    assert_fails(RUN(N), VPTQ_E_NUMERIC, &err, "vector 123 of 1500");
    x[123 * V + 2] = 0;
    w[45] = -0.5F;
    assert_fails(RUN(N), VPTQ_E_NUMERIC, &err, "weight of vector 45 of 1500 is -0.5");
    w[45] = NAN;
    assert_fails(RUN(N), VPTQ_E_NUMERIC, &err, "weight of vector 45");
    w[45] = INFINITY;
    assert_fails(RUN(N), VPTQ_E_NUMERIC, &err, "weight of vector 45");
    w[45] = 0;
    assert_fails(RUN(0), VPTQ_E_ARG, &err, "no vectors");
    opt.k = 0;
    assert_fails(RUN(N), VPTQ_E_ARG, &err, "0 centroids");
    opt.k = 65537;
    assert_fails(RUN(N), VPTQ_E_ARG, &err, "65537 centroids");
    opt = options(0, 16);
    assert_fails(RUN(N), VPTQ_E_ARG, &err, "vector length 0");
    opt = options(V, 16);
    opt.iterations = 0;
    assert_fails(RUN(N), VPTQ_E_ARG, &err, "0 iterations");
    opt.iterations = 5;
    opt.tolerance = NAN;
    assert_fails(RUN(N), VPTQ_E_ARG, &err, "tolerance");
    opt.tolerance = 0;
    opt.shift = -1;
    assert_fails(RUN(N), VPTQ_E_ARG, &err, "shift -1");
    opt.shift = (double)INFINITY;
    assert_fails(RUN(N), VPTQ_E_ARG, &err, "shift inf");
    opt.shift = (double)NAN;
    assert_fails(RUN(N), VPTQ_E_ARG, &err, "shift nan");
#undef RUN
    devices_close(&d);
}

static void cancel_stops(void **state)
{
    (void)state;
    static float x[N * V], w[N], centroids[16 * V];
    volatile sig_atomic_t stop = 1;
    vptq_ctx ctx = {.threads = 1, .cancel = &stop};
    vptq_device dev;
    vptq_err err;
    vptq_kmeans_stats stats;
    vptq_kmeans_options opt = options(V, 16);
    make_points(x, w);
    assert_ok(vptq_device_open(&ctx, "ref", &dev, &err), &err);
    const vptq_kmeans_args a = {N, x, w, centroids, NULL};
    assert_fails(vptq_kmeans_run(&dev, &opt, &a, &stats, &err), VPTQ_E_CANCELLED, &err,
                 "interrupted");
    vptq_kmeans_points points = {&dev, N, V, x, w};
    assert_fails(vptq_kmeans_seed(&points, &opt, centroids, &err), VPTQ_E_CANCELLED, &err,
                 "interrupted");
    vptq_device_close(&dev);
}

static vptq_status run_once(void *arg, vptq_device *dev, vptq_err *err)
{
    const float *x = arg;
    float centroids[24 * V];
    vptq_kmeans_stats stats;
    vptq_kmeans_options opt = options(V, 24);
    const vptq_kmeans_args a = {200, x, NULL, centroids, NULL};
    return vptq_kmeans_run(dev, &opt, &a, &stats, err);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    static float x[200 * V]; /* few distinct points, so that repair runs as well */
    for (size_t i = 0; i < 200 * V; i++)
        x[i] = (float)(i / V % 27 * (i % V + 1));
    assert_true(devices_oom_walk("cpu", 2, run_once, x) >= 8);
}

VTEST_MAIN(cmocka_unit_test(objective_never_rises), cmocka_unit_test(more_centroids_are_better),
           cmocka_unit_test(careful_seeding_pays), cmocka_unit_test(weights_matter),
           cmocka_unit_test(one_cluster_is_the_weighted_mean),
           cmocka_unit_test(zero_weights_count_as_ones),
           cmocka_unit_test(fewer_distinct_points_than_centroids),
           cmocka_unit_test(one_point_per_cluster),
           cmocka_unit_test(repair_takes_the_worst_points),
           cmocka_unit_test(same_bytes_for_any_threads), cmocka_unit_test(seed_decides),
           cmocka_unit_test(tolerance_stops), cmocka_unit_test(shift_stops),
           cmocka_unit_test(empty_clusters_are_kept), cmocka_unit_test(bad_input_is_named),
           cmocka_unit_test(cancel_stops), cmocka_unit_test(every_allocation_may_fail))
