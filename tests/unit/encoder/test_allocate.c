/* Tests bit allocation against exhaustive search on small problems, and its properties on large
 * ones. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/rng.h"
#include "lib/encoder/allocate.h"
#include "lib/encoder/rates.h"
#include "tests/support/vtest.h"

enum { MOST = 400, OPTIONS = 12 };

typedef struct problem {
    vptq_allocate_problem p;
    size_t first[MOST + 1];
    vptq_allocate_option options[MOST * OPTIONS];
} problem;

/* `count` matrices of up to `most` options, with bits in multiples of `unit`. */
static problem *make(size_t count, size_t most, uint64_t unit, uint64_t seed)
{
    problem *q = calloc(1, sizeof *q);
    vptq_rng rng = vptq_rng_make(seed, 0, 0, VPTQ_RNG_TEST);
    uint64_t at = 0;
    assert_non_null(q);
    for (size_t i = 0; i < count; i++) {
        size_t n = 1 + vptq_rng_below(&rng, at++, most);
        q->first[i + 1] = q->first[i] + n;
        for (size_t o = q->first[i]; o < q->first[i + 1]; o++) {
            uint64_t bits = 1 + vptq_rng_below(&rng, at++, 40);
            q->options[o] = (vptq_allocate_option){
                .bits = bits * unit,
                .cost = exp2(-(double)bits / 8) * (0.5 + vptq_rng_uniform(&rng, at++))};
        }
    }
    q->p = (vptq_allocate_problem){.count = count, .first = q->first, .options = q->options};
    return q;
}

static double total(const problem *q, const size_t *choice, uint64_t *bits)
{
    double cost = 0;
    *bits = 0;
    for (size_t i = 0; i < q->p.count; i++) {
        assert_true(choice[i] < q->first[i + 1] - q->first[i]);
        const vptq_allocate_option *o = &q->options[q->first[i] + choice[i]];
        cost += o->cost;
        *bits += o->bits;
    }
    return cost;
}

/* The least cost of matrices i, i + 1, ... within the budget; infinity if none fits. */
static double brute_force(const problem *q, size_t i, uint64_t budget)
{
    if (i == q->p.count)
        return 0;
    double best = (double)INFINITY;
    for (size_t o = q->first[i]; o < q->first[i + 1]; o++) {
        if (q->options[o].bits > budget)
            continue;
        double cost = q->options[o].cost + brute_force(q, i + 1, budget - q->options[o].bits);
        best = cost < best ? cost : best;
    }
    return best;
}

static void test_brute_force(void **state)
{
    (void)state;
    vptq_err err = {0};
    for (uint64_t seed = 0; seed < 60; seed++) {
        problem *q = make(1 + seed % 6, 6, 1, seed);
        size_t choice[6];
        uint64_t bits, least = vptq_allocate_least(&q->p);
        for (uint64_t budget = least; budget < least + 60; budget += 7) {
            assert_ok(vptq_allocate(&q->p, budget, NULL, choice, &err), &err);
            double cost = total(q, choice, &bits), want = brute_force(q, 0, budget);
            assert_true(bits <= budget);
            assert_close_f64(&cost, &want, 1, 0, 1e-12);
        }
        assert_fails(vptq_allocate(&q->p, least - 1, NULL, choice, &err), VPTQ_E_ARG, &err,
                     "below the smallest possible");
        free(q);
    }
}

/* As large as a model, with bits that are not multiples of a cell: never over budget, never a
 * higher cost for more bits, and nearly all of the budget used. */
static void test_budgets(void **state)
{
    (void)state;
    vptq_err err = {0};
    problem *q = make(210, OPTIONS, 31337 * 64 + 5, 3);
    static size_t choice[MOST];
    uint64_t bits, least = vptq_allocate_least(&q->p);
    double last = (double)INFINITY;
    for (int i = 0; i < 12; i++) {
        uint64_t budget = least + least * (uint64_t)(i * i) / 30;
        assert_ok(vptq_allocate(&q->p, budget, NULL, choice, &err), &err);
        double cost = total(q, choice, &bits);
        assert_true(bits <= budget);
        assert_true(cost <= last);
        assert_true(i == 0 || i > 6 || (double)bits > 0.99 * (double)budget);
        last = cost;
    }
    /* With room for everything, every matrix gets its cheapest option. */
    double want = 0;
    for (size_t i = 0; i < q->p.count; i++) {
        double best = (double)INFINITY;
        for (size_t o = q->first[i]; o < q->first[i + 1]; o++)
            best = q->options[o].cost < best ? q->options[o].cost : best;
        want += best;
    }
    assert_ok(vptq_allocate(&q->p, UINT64_MAX, NULL, choice, &err), &err);
    double cost = total(q, choice, &bits);
    assert_close_f64(&cost, &want, 1, 0, 1e-12);
    free(q);
}

/* Among options of equal cost the one with fewer bits wins, then the first. */
static void test_ties(void **state)
{
    (void)state;
    vptq_err err = {0};
    const vptq_allocate_option options[] = {{9, 1}, {4, 1}, {4, 1}, {7, 2}, {5, 3}};
    const size_t first[] = {0, 3, 5};
    const vptq_allocate_problem p = {.count = 2, .first = first, .options = options};
    size_t choice[2];
    assert_int_equal(vptq_allocate_least(&p), 9);
    assert_int_equal(vptq_allocate_most(&p), 16);
    assert_ok(vptq_allocate(&p, 100, NULL, choice, &err), &err);
    assert_int_equal(choice[0], 1);
    assert_int_equal(choice[1], 0);
    assert_ok(vptq_allocate(&p, 10, NULL, choice, &err), &err);
    assert_int_equal(choice[1], 1);
}

static void test_refused(void **state)
{
    (void)state;
    vptq_err err = {0};
    vptq_allocate_option options[] = {{1, 1}, {2, (double)NAN}};
    const size_t first[] = {0, 2}, none[] = {0, 0};
    vptq_allocate_problem p = {.count = 1, .first = first, .options = options};
    size_t choice[1];
    assert_fails(vptq_allocate(&p, 9, NULL, choice, &err), VPTQ_E_NUMERIC, &err,
                 "option 1 of matrix 0");
    p.first = none;
    assert_fails(vptq_allocate(&p, 9, NULL, choice, &err), VPTQ_E_ARG, &err, "0 options");
}

/* ---- rates ---- */

static double index_bits(const vptq_rate *r)
{
    return (log2(r->k) + (r->k_res ? log2(r->k_res) : 0)) / r->v;
}

/* The table is in order, every setting is valid, and more centroids never predict a higher
 * loss. */
static void test_rates(void **state)
{
    (void)state;
    vptq_err err = {0};
    size_t count;
    const vptq_rate *r = vptq_rate_table(&count);
    for (size_t i = 0; i < count; i++) {
        vptq_encoder_settings s = vptq_encoder_defaults();
        s.v = r[i].v;
        s.k = r[i].k;
        s.k_res = r[i].k_res;
        assert_ok(vptq_encoder_check(&s, 1536, 1536, &err), &err);
        assert_true(i == 0 || index_bits(&r[i]) >= index_bits(&r[i - 1]));
        for (size_t j = 0; j < count; j++)
            if (r[i].v == r[j].v && r[i].k <= r[j].k && r[i].k_res <= r[j].k_res)
                assert_true(vptq_rate_predict(&r[j], 1536, 1536) <=
                            vptq_rate_predict(&r[i], 1536, 1536));
    }
}

/* Fewer rows predict less loss where vectors are few, and no gain at the codebooks of the quick
 * encoding itself. */
static void test_few_vectors(void **state)
{
    (void)state;
    const vptq_rate large = {8, 4096, 0, 1}, same = {4, 256, 0, 1};
    assert_true(vptq_rate_predict(&large, 192, 576) < vptq_rate_predict(&large, 1536, 576));
    const double one = 1, got = vptq_rate_predict(&same, 192, 576);
    assert_close_f64(&got, &one, 1, 0, 1e-12);
    /* 576 rows cut to 192, 10 and 3.4 vectors per centroid: measured 0.660 at this setting,
     * where the quick encoding itself gives 1.2245. */
    const double ratio =
        vptq_rate_predict(&large, 192, 576) / vptq_rate_predict(&large, 576, 576);
    const double measured = 0.660 / 1.2245;
    assert_close_f64(&ratio, &measured, 1, 0, 0.15);
    /* A matrix too small for 256 centroids: the quick encoding uses fewer, and its loss is
     * predicted for them. */
    assert_int_equal(vptq_rate_probe(64, 64, 0, VPTQ_F16).k, 64);
    assert_true(vptq_rate_predict(&same, 64, 64) < 0.6);
}

static vptq_status allocate(void *arg, vptq_mem *mem, vptq_err *err)
{
    problem *q = arg;
    size_t choice[MOST];
    return vptq_allocate(&q->p, vptq_allocate_least(&q->p) * 2, mem, choice, err);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    problem *q = make(40, OPTIONS, 1000, 8);
    assert_true(vtest_oom_walk(allocate, q) > 1);
    free(q);
}

VTEST_MAIN(cmocka_unit_test(test_brute_force), cmocka_unit_test(test_budgets),
           cmocka_unit_test(test_ties), cmocka_unit_test(test_refused),
           cmocka_unit_test(test_out_of_memory), cmocka_unit_test(test_rates),
           cmocka_unit_test(test_few_vectors))
