/* Tests the op search: ref, emu, and cpu at every SIMD level, against loops written out here.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/emu/emu.h"
#include "tests/support/devices.h"
#include "tests/support/vcodebooks.h"

/* ---- choices ---- */

typedef struct choices {
    uint32_t *idx, *idx_res;
    float *dist;
} choices;

static choices choices_make(size_t n)
{
    return (choices){vtest_alloc(n, sizeof(uint32_t)), vtest_alloc(n, sizeof(uint32_t)),
                     vtest_alloc(n, sizeof(float))};
}

static void choices_free(choices *c)
{
    free(c->idx);
    free(c->idx_res);
    free(c->dist);
}

static void run_search(const vptq_device *dev, const vptq_search_index *index,
                       const vcodebooks *p, size_t begin, size_t n, bool keep,
                       const choices *to)
{
    const vptq_search_args f = {.n = n,
                                .index = index,
                                .x = p->x + begin * p->codebooks.v,
                                .keep = keep,
                                .idx = to->idx + begin,
                                .idx_res = p->codebooks.k_res ? to->idx_res + begin : NULL,
                                .dist = to->dist + begin};
    vptq_err err;
    assert_ok(dev->ops->search(dev->state, &f, &err), &err);
}

/* Error that rounding may cause in a score, a sum of v + 1 float products of this size. */
static double slack_of(const vptq_codebooks *b, const float *x, uint32_t main, uint32_t res)
{
    double norm = 0;
    for (size_t d = 0; d < b->v; d++) {
        const double c = (double)b->centroids[(size_t)main * b->v + d];
        const double r = b->k_res ? (double)b->res_centroids[(size_t)res * b->v + d] : 0;
        norm += (double)x[d] * (double)x[d] + c * c + r * r;
    }
    return 4e-7 * norm * (2 + 0.1 * b->v);
}

/* ---- main codebook only, and exact pairs ---- */

typedef struct find_case {
    const vcodebooks *p;
    const double *least; /* smallest distance within the beam, for every vector */
} find_case;

static void check_found(void *arg, const vptq_device *dev, bool is_ref)
{
    const find_case *a = arg;
    const vcodebooks *p = a->p;
    const vptq_codebooks *b = &p->codebooks;
    choices got = choices_make(p->n);
    vptq_search_index *index = vcodebooks_index(dev, b);
    run_search(dev, index, p, 0, p->n, false, &got);
    for (size_t i = 0; i < p->n; i++) {
        const float *x = p->x + i * b->v;
        assert_true(got.idx[i] < b->k && got.idx_res[i] < (b->k_res ? b->k_res : 1));
        const double reached = vcodebooks_distance(b, x, got.idx[i], got.idx_res[i]);
        const double slack =
            is_ref ? 1e-6 * reached : slack_of(b, x, got.idx[i], got.idx_res[i]);
        if (!(reached <= a->least[i] + slack))
            fail_msg("v %u k %u+%u beam %u vector %zu: %g, least %g", b->v, b->k, b->k_res,
                     b->beam, i, reached, a->least[i]);
        assert_true(fabs((double)got.dist[i] - reached) <= 1e-5 * reached + 1e-12);
    }
    dev->ops->search_index_close(dev->state, index);
    choices_free(&got);
}

/* Finds the best pair whose main centroid is among the `beam` nearest by trying all. */
static double least_distance(const vptq_codebooks *b, const float *x, double *main_distance)
{
    double least = INFINITY, bound = -1;
    vptq_codebooks alone = *b;
    alone.k_res = 0;
    for (uint32_t j = 0; j < b->k; j++)
        main_distance[j] = vcodebooks_distance(&alone, x, j, 0);
    for (uint32_t taken = 0; taken < (b->beam < b->k ? b->beam : b->k); taken++) {
        double next = INFINITY; /* no main centroid occurs twice */
        for (uint32_t j = 0; j < b->k; j++)
            next =
                main_distance[j] > bound && main_distance[j] < next ? main_distance[j] : next;
        bound = next;
    }
    for (uint32_t j = 0; j < b->k; j++) {
        for (uint32_t l = 0; main_distance[j] <= bound && l < (b->k_res ? b->k_res : 1); l++)
            least = fmin(least, vcodebooks_distance(b, x, j, l));
    }
    return least;
}

static void search_problem(const vcodebooks *p, bool emulated)
{
    const vptq_codebooks *b = &p->codebooks;
    double *least = vtest_alloc(p->n, sizeof *least),
           *main_distance = vtest_alloc(b->k, sizeof *main_distance);
    for (size_t i = 0; i < p->n; i++)
        least[i] = least_distance(b, p->x + i * b->v, main_distance);
    find_case a = {p, least};
    (emulated ? devices_each_emu : devices_each)(check_found, &a);
    free(least);
    free(main_distance);
}

static void search_one_shape(size_t n, uint32_t v, uint32_t k, uint32_t k_res, uint32_t beam,
                             bool emulated)
{
    vcodebooks p = vcodebooks_make(n, v, k, k_res, beam);
    search_problem(&p, emulated);
    vcodebooks_free(&p);
}

static void search_finds_the_best_pair_in_the_beam(void **state)
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
            /* in one dimension near ties leave the beam undefined */
            const uint32_t beam = lengths[i] == 1 && s[2] > 1 ? s[0] : s[2];
            search_one_shape(1 + (i * 13 + j * 29) % 67, lengths[i], s[0], s[1], beam,
                             (i + j) % 2);
        }
    }
    search_one_shape(0, 8, 16, 16, 4, true);
}

/* Large codebooks: too large for a table of products and for trying many pairs here. */
static void search_in_large_codebooks(void **state)
{
    (void)state;
    search_one_shape(40, 8, 4096, 256, 16, true);
    search_one_shape(3, 6, 4096, 256, 4096, true);
    search_one_shape(5, 8, 4096, 2, 200, true);
    search_one_shape(3, 4, 65536, 2, 1, true);
    search_one_shape(3, 8, 65536, 16, 16, true);
    search_one_shape(3, 4, 16, 65536, 2, true);
    search_one_shape(7, 12, 1024, 1024, 8, true);
}

static void scale(float *x, size_t n, size_t every, float factor)
{
    for (size_t i = 0; i < n; i += every)
        x[i] *= factor;
}

/* Screening quantizes with one step per main centroid and one unit per vector. Very different
 * sizes must not hide the best pair. */
static void search_with_very_different_sizes(void **state)
{
    (void)state;
    enum { V = 8, K = 128, RES = 96 };
    for (int kind = 0; kind < 9; kind++) {
        vcodebooks p = vcodebooks_make(45, V, K, RES, kind % 2 ? K : 16);
        if (kind == 1)
            scale(p.r, RES * V, 1, 1e-5F);
        if (kind == 2)
            scale(p.r, RES * V, 13, 40);
        if (kind == 3)
            scale(p.c, K * V, 29, 300);
        if (kind == 4)
            scale(p.c, K * V, 1, 1e-6F);
        if (kind == 5)
            scale(p.x, p.n * V, 7, 1000);
        if (kind == 6)
            scale(p.x, p.n * V, 1, 1e-12F);
        if (kind == 7) /* more equal pairs than are computed one by one */
            for (size_t i = V; i < RES * V; i++)
                p.r[i] = p.r[i - V];
        if (kind == 8)
            memset(p.r, 0, RES * V * sizeof *p.r);
        search_problem(&p, true);
        vcodebooks_free(&p);
    }
}

/* For devices that find the beam by groups of centroids: near centroids fall into few groups
 * (the last kind into two groups of the cuda backend) and leave too many candidates. */
static void search_with_near_centroids_in_few_groups(void **state)
{
    (void)state;
    enum { V = 4, K = 2048, RES = 40, BEAM = 8 };
    static const uint32_t every[][3] = {{32, 1, 0}, {256, 3, 0}, {37, 2, 0}, {32, 2, 27}};
    for (size_t kind = 0; kind < sizeof every / sizeof *every; kind++) {
        vcodebooks p = vcodebooks_make(9, V, K, RES, BEAM);
        for (size_t j = 0; j < K; j++) {
            const uint32_t *e = every[kind];
            const bool near = (j + e[2] * (j / 32 % 8)) % e[0] < e[1];
            for (size_t d = 0; d < V; d++)
                p.c[j * V + d] += near ? 0 : p.c[j * V + d] < 0 ? -20 : 20;
        }
        search_problem(&p, true);
        vcodebooks_free(&p);
    }
}

/* ---- ties ---- */

typedef struct ties_case {
    uint32_t half, res_half, beam;
} ties_case;

/* Both codebooks contain every centroid twice. The first must be chosen, and with `keep` the
 * second must stay. */
static void check_ties(void *arg, const vptq_device *dev, bool is_ref)
{
    enum { V = 6 };
    const ties_case *a = arg;
    vcodebooks p = vcodebooks_make(33, V, 2 * a->half, 2 * a->res_half, a->beam);
    choices got = choices_make(p.n);
    (void)is_ref;
    memcpy(p.c + a->half * V, p.c, a->half * V * sizeof *p.c);
    memcpy(p.r + a->res_half * V, p.r, a->res_half * V * sizeof *p.r);
    vptq_search_index *index = vcodebooks_index(dev, &p.codebooks);
    run_search(dev, index, &p, 0, p.n, false, &got);
    for (size_t i = 0; i < p.n; i++) {
        assert_true(got.idx[i] < a->half && got.idx_res[i] < a->res_half);
        got.idx[i] += i % 2 ? a->half : 0;
        got.idx_res[i] += i % 3 ? a->res_half : 0;
    }
    run_search(dev, index, &p, 0, p.n, true, &got);
    for (size_t i = 0; i < p.n; i++) {
        assert_true((got.idx[i] >= a->half) == (i % 2 > 0));
        assert_true((got.idx_res[i] >= a->res_half) == (i % 3 > 0));
    }
    dev->ops->search_index_close(dev->state, index);
    choices_free(&got);
    vcodebooks_free(&p);
}

static void search_breaks_ties_by_index(void **state)
{
    (void)state;
    ties_case cases[] = {{37, 41, 1},  {37, 41, 2},   {37, 41, 8},   {37, 41, 74},
                         {256, 32, 1}, {512, 256, 1}, {512, 64, 12}, {32, 32, 64}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        devices_each_emu(check_ties, &cases[i]);
}

/* ---- choices to keep ---- */

static void check_keep(void *arg, const vptq_device *dev, bool is_ref)
{
    const vcodebooks *p = arg;
    const vptq_codebooks *b = &p->codebooks;
    choices free_choice = choices_make(p->n), kept = choices_make(p->n);
    vptq_search_index *index = vcodebooks_index(dev, b);
    (void)is_ref;
    run_search(dev, index, p, 0, p->n, false, &free_choice);

    /* the best choices stay bit for bit; searching around them may find better ones */
    memcpy(kept.idx, free_choice.idx, p->n * sizeof *kept.idx);
    memcpy(kept.idx_res, free_choice.idx_res, p->n * sizeof *kept.idx_res);
    run_search(dev, index, p, 0, p->n, true, &kept);
    for (size_t i = 0; i < p->n; i++) {
        const bool same =
            kept.idx[i] == free_choice.idx[i] && kept.idx_res[i] == free_choice.idx_res[i];
        assert_true(same || (b->local && kept.dist[i] < free_choice.dist[i]));
    }

    /* others stay only if they are at least as near */
    for (size_t i = 0; i < p->n; i++) {
        kept.idx[i] = (uint32_t)(i * 7 % b->k);
        kept.idx_res[i] = b->k_res ? (uint32_t)(i * 5 % b->k_res) : 0;
    }
    run_search(dev, index, p, 0, p->n, true, &kept);
    for (size_t i = 0; i < p->n; i++) {
        const float *x = p->x + i * b->v;
        const uint32_t old = (uint32_t)(i * 7 % b->k);
        const uint32_t old_res = b->k_res ? (uint32_t)(i * 5 % b->k_res) : 0;
        const double before = vcodebooks_distance(b, x, old, old_res);
        assert_true((double)kept.dist[i] <= before * (1 + 1e-6));
        if (!b->local)
            assert_true(kept.dist[i] <= free_choice.dist[i]);
        if (kept.idx[i] != old || kept.idx_res[i] != old_res)
            assert_true(vcodebooks_distance(b, x, kept.idx[i], kept.idx_res[i]) <
                        before * (1 + 1e-6));
    }
    dev->ops->search_index_close(dev->state, index);
    choices_free(&free_choice);
    choices_free(&kept);
}

static void search_keeps_choices_that_are_not_worse(void **state)
{
    (void)state;
    static const uint32_t shapes[][4] = {/* v, k, k_res, beam */
                                         {8, 256, 256, 16}, {8, 256, 256, 1}, {4, 256, 0, 1},
                                         {6, 100, 30, 100}, {5, 33, 7, 3},    {12, 1024, 64, 8},
                                         {8, 4096, 16, 16}, {6, 4096, 0, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int local = 0; local < 2; local++) {
            const uint32_t *s = shapes[i];
            vcodebooks p = vcodebooks_make(61, s[0], s[1], s[2], s[3]);
            p.codebooks.local = local;
            devices_each_emu(check_keep, &p);
            vcodebooks_free(&p);
        }
    }
}

/* ---- NaN and infinity ---- */

static void check_nan_and_infinity(void *arg, const vptq_device *dev, bool is_ref)
{
    const vptq_codebooks *shape = arg;
    vcodebooks p = vcodebooks_make(70, shape->v, shape->k, shape->k_res, shape->beam);
    choices got = choices_make(p.n);
    p.codebooks.local = shape->local;
    (void)is_ref;
    for (size_t i = 0; i < p.n; i++)
        p.x[i * shape->v + i % shape->v] = i % 5 == 0   ? NAN
                                           : i % 5 == 1 ? INFINITY
                                           : i % 5 == 2 ? 3e38F
                                           : i % 5 == 3 ? -3e38F
                                                        : 1;
    for (int bad_codebooks = 0; bad_codebooks < 3; bad_codebooks++) {
        vptq_search_index *index = vcodebooks_index(dev, &p.codebooks);
        for (int keep = 0; keep < 2; keep++) {
            run_search(dev, index, &p, 0, p.n, keep, &got);
            for (size_t i = 0; i < p.n; i++) {
                assert_true(got.idx[i] < shape->k);
                assert_true(got.idx_res[i] < (shape->k_res ? shape->k_res : 1));
            }
        }
        dev->ops->search_index_close(dev->state, index);
        for (size_t j = 0; j < (size_t)shape->k * shape->v; j++)
            p.c[j] = bad_codebooks ? NAN : j % 3 ? 1e30F : NAN;
        for (size_t j = 0; j < (size_t)shape->k_res * shape->v; j++)
            p.r[j] = bad_codebooks ? NAN : j % 2 ? 1e25F : INFINITY;
    }
    choices_free(&got);
    vcodebooks_free(&p);
}

static void search_stays_in_range_with_nan_and_infinity(void **state)
{
    (void)state;
    vptq_codebooks shapes[] = {
        {8, 21, 0, 1, false, NULL, NULL},     {8, 21, 9, 1, false, NULL, NULL},
        {8, 21, 9, 4, false, NULL, NULL},     {4, 300, 300, 16, false, NULL, NULL},
        {5, 300, 18, 300, false, NULL, NULL}, {6, 1024, 300, 16, true, NULL, NULL},
        {6, 1024, 0, 1, true, NULL, NULL},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        devices_each_emu(check_nan_and_infinity, &shapes[i]);
}

/* ---- position and threads ---- */

/* The result for a vector depends neither on its position nor on the thread and the level. */
static void search_does_not_depend_on_position_or_threads(void **state)
{
    (void)state;
    static const uint32_t shapes[][4] = {/* v, k, k_res, beam */
                                         {8, 256, 256, 16}, {4, 256, 0, 1},  {7, 100, 30, 5},
                                         {6, 1024, 300, 8}, {8, 64, 64, 64}, {8, 1024, 16, 8}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const uint32_t *s = shapes[i];
        vcodebooks p = vcodebooks_make(701, s[0], s[1], s[2], s[3]);
        p.codebooks.local = i == 5;
        if (i == 0)
            p.r[5 * s[0] + 3] = NAN; /* a screen must not take it for a good one */
        choices whole = choices_make(p.n), other = choices_make(p.n);
        for (int simd = VPTQ_SIMD_NONE; simd <= VPTQ_SIMD_NEON; simd++) {
            if (!vptq_cpu_has((vptq_simd)simd))
                continue;
            for (int threads = 1; threads <= 3; threads++) {
                devices_one d;
                devices_open(&d, "cpu", (vptq_simd)simd, threads);
                vptq_search_index *index = vcodebooks_index(&d.dev, &p.codebooks);
                for (int keep = 0; keep < 2; keep++) {
                    const choices *to = simd || threads > 1 ? &other : &whole;
                    for (size_t at = 0, step = 1; at < p.n; at += step, step = step % 90 + 7) {
                        size_t n = threads < 3 ? p.n : p.n - at < step ? p.n - at : step;
                        memset(to->idx + at, 0, n * sizeof *to->idx);
                        memset(to->idx_res + at, 0, n * sizeof *to->idx_res);
                        run_search(&d.dev, index, &p, at, n, keep, to);
                        if (n == p.n)
                            break;
                        step = n;
                    }
                }
                d.dev.ops->search_index_close(d.dev.state, index);
                devices_close(&d);
                if (!simd && threads == 1)
                    continue;
                assert_memory_equal(other.idx, whole.idx, p.n * sizeof *other.idx);
                assert_memory_equal(other.idx_res, whole.idx_res, p.n * sizeof *other.idx_res);
                assert_memory_equal(other.dist, whole.dist, p.n * sizeof *other.dist);
            }
        }
        choices_free(&whole);
        choices_free(&other);
        vcodebooks_free(&p);
    }
}

/* The same on the emulated device, in one call and in many, with any order of threads. */
static void search_does_not_depend_on_position_on_a_device(void **state)
{
    (void)state;
    static const uint32_t shapes[][4] = {/* v, k, k_res, beam */
                                         {8, 256, 64, 16}, {4, 256, 0, 1},   {6, 300, 50, 1},
                                         {12, 16, 9, 16},  {16, 200, 70, 8}, {20, 64, 64, 5}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const uint32_t *s = shapes[i];
        vcodebooks p = vcodebooks_make(43, s[0], s[1], s[2], s[3]);
        choices whole = choices_make(p.n), other = choices_make(p.n);
        for (uint64_t seed = 0; seed < 3; seed++) {
            devices_one d;
            cuda_emu_seed(seed);
            devices_open(&d, "emu", VPTQ_SIMD_NONE, 1);
            vptq_search_index *index = vcodebooks_index(&d.dev, &p.codebooks);
            if (seed == 0)
                run_search(&d.dev, index, &p, 0, p.n, false, &whole);
            for (size_t at = 0, step = 1; at < p.n; at += step, step = step % 20 + 6) {
                step = step < p.n - at ? step : p.n - at;
                run_search(&d.dev, index, &p, at, step, false, &other);
            }
            d.dev.ops->search_index_close(d.dev.state, index);
            devices_close(&d);
            assert_memory_equal(other.idx, whole.idx, p.n * sizeof *other.idx);
            assert_memory_equal(other.idx_res, whole.idx_res, p.n * sizeof *other.idx_res);
            assert_memory_equal(other.dist, whole.dist, p.n * sizeof *other.dist);
        }
        choices_free(&whole);
        choices_free(&other);
        vcodebooks_free(&p);
    }
    cuda_emu_seed(0);
}

/* ---- memory ---- */

static vptq_status run_all(void *arg, vptq_device *dev, vptq_err *err)
{
    const vcodebooks *p = arg;
    vptq_search_index *index = NULL;
    vptq_status st = VPTQ_OK;
    choices to = choices_make(p->n);
    vptq_search_args f = {.n = p->n, .x = p->x, .idx = to.idx, .idx_res = to.idx_res};
    VPTQ_TRY(dev->ops->search_index_open(dev->state, &p->codebooks, &index, err));
    f.index = index;
    VPTQ_TRY(dev->ops->search(dev->state, &f, err));
    f.keep = true;
    VPTQ_TRY(dev->ops->search(dev->state, &f, err));
out:
    dev->ops->search_index_close(dev->state, index);
    choices_free(&to);
    return st;
}

static void survives_every_failed_allocation(void **state)
{
    (void)state;
    devices_skip_if_only();
    vcodebooks p = vcodebooks_make(40, 4, 300, 20, 4);
    p.codebooks.local = true;
    assert_true(devices_oom_walk("cpu", 2, run_all, &p) >= 3);
    vcodebooks_free(&p);
}

/* Codebooks that do not fit into device memory give an error and leave nothing allocated. */
static void survives_too_little_device_memory(void **state)
{
    (void)state;
    devices_skip_if_only();
    vcodebooks p = vcodebooks_make(1, 8, 512, 32, 4);
    devices_one d;
    vptq_err err;
    vptq_search_index *index = NULL;
    devices_open(&d, "emu", VPTQ_SIMD_NONE, 1);
    const vptq_backend *ops = d.dev.ops;
    const size_t before = cuda_emu_memory_used();
    cuda_emu_memory(before + (512 + 32) * 8 * sizeof(float) + 1000);
    assert_fails(ops->search_index_open(d.dev.state, &p.codebooks, &index, &err), VPTQ_E_NOMEM,
                 &err, "bytes of device memory");
    assert_null(index);
    assert_int_equal(cuda_emu_memory_used(), before);
    cuda_emu_memory(0);
    assert_ok(ops->search_index_open(d.dev.state, &p.codebooks, &index, &err), &err);
    ops->search_index_close(d.dev.state, index);
    ops->search_index_close(d.dev.state, NULL);
    assert_int_equal(cuda_emu_memory_used(), before);
    devices_close(&d);
    vcodebooks_free(&p);
}

VTEST_MAIN(cmocka_unit_test(search_finds_the_best_pair_in_the_beam),
           cmocka_unit_test(search_in_large_codebooks),
           cmocka_unit_test(search_with_very_different_sizes),
           cmocka_unit_test(search_with_near_centroids_in_few_groups),
           cmocka_unit_test(search_breaks_ties_by_index),
           cmocka_unit_test(search_keeps_choices_that_are_not_worse),
           cmocka_unit_test(search_stays_in_range_with_nan_and_infinity),
           cmocka_unit_test(search_does_not_depend_on_position_or_threads),
           cmocka_unit_test(search_does_not_depend_on_position_on_a_device),
           cmocka_unit_test(survives_every_failed_allocation),
           cmocka_unit_test(survives_too_little_device_memory))
