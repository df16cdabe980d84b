/* Copies of a codebook and bank conflicts: the counter by hand, the choice of copies against
 * all choices and against an exact expectation, layouts of random and of real codes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/vptq/packed.h"
#include "lib/backend/cuda/plan_copies.h"
#include "lib/backend/cuda/plan_smem.h"
#include "lib/base/rng.h"
#include "tests/support/vbanks.h"
#include "tests/support/vmatrix.h"
#include "tests/support/vpacked.h"
#include "tests/support/vtest.h"

enum { SLOTS = 8, LANES = 32 };

static uint32_t draw(vptq_rng *rng, uint64_t *counter, uint32_t n)
{
    return (uint32_t)vptq_rng_below(rng, (*counter)++, n);
}

/* ---- the counter ---- */

static uint32_t strided(uint32_t stride, uint32_t bytes)
{
    uint32_t a[LANES];
    for (uint32_t l = 0; l < LANES; l++)
        a[l] = l * stride;
    return vbanks_wavefronts(a, bytes);
}

static void test_wavefronts_by_hand(void **state)
{
    (void)state;
    assert_int_equal(strided(4, 4), 1); /* every lane has its own bank */
    assert_int_equal(strided(0, 4), 1); /* one word for all */
    assert_int_equal(strided(8, 4), 2);
    assert_int_equal(strided(128, 4), 32);
    assert_int_equal(strided(8, 8), 2); /* 16 lanes fill a line */
    assert_int_equal(strided(0, 8), 2);
    assert_int_equal(strided(16, 8), 4);
    assert_int_equal(strided(128, 8), 32);
    assert_int_equal(strided(16, 16), 4); /* 8 lanes fill a line */
    assert_int_equal(strided(0, 16), 4);
    assert_int_equal(strided(32, 16), 8);
    assert_int_equal(strided(128, 16), 32);
    uint32_t a[LANES] = {0}; /* lanes 0 and 1 in one slot, lanes 2 and 3 in it with one row */
    a[1] = 128;
    a[2] = a[3] = 256;
    assert_int_equal(vbanks_wavefronts(a, 16), 3 + 3);
}

/* ---- the choice, against all choices ---- */

/* Wavefronts of one phase; the other phases consist of its first row only. */
static uint32_t phase_clocks(const vptq_cuda_table *t, const uint16_t *rows)
{
    uint32_t a[LANES], bytes = t->pieces ? 16 : 8;
    for (uint32_t l = 0; l < LANES; l++)
        a[l] = (uint32_t)rows[l < t->slots ? l : 0] * bytes;
    return vbanks_wavefronts(a, bytes) - (LANES / t->slots - 1);
}

/* The minimum over all combinations of copies that the lanes could read. */
static uint32_t least_of_all(const vptq_cuda_table *t, const uint32_t *ranks)
{
    uint32_t combinations = 1, least = UINT32_MAX;
    for (uint32_t l = 0; l < SLOTS; l++)
        combinations *= t->copies;
    for (uint32_t n = 0; n < combinations; n++) {
        uint16_t rows[SLOTS];
        uint32_t rest = n, possible = 1;
        for (uint32_t l = 0; l < SLOTS; l++, rest /= t->copies) {
            uint32_t copy = rest % t->copies;
            possible &= ranks[l] < t->copy[copy].ranks;
            rows[l] = (uint16_t)vptq_cuda_row(t, copy, ranks[l]);
        }
        uint32_t clocks = possible ? phase_clocks(t, rows) : UINT32_MAX;
        least = clocks < least ? clocks : least;
    }
    return least;
}

static void against_all_choices(uint32_t k, uint32_t whole, uint32_t part, int phases)
{
    vptq_err err = {0};
    vptq_cuda_table t;
    vptq_rng rng = vptq_rng_make(k, whole, part, VPTQ_RNG_TEST);
    uint64_t counter = 0;
    assert_ok(vptq_cuda_table_copies(&t, 8, k, whole, part, &err), &err);
    for (int i = 0; i < phases; i++) {
        uint32_t ranks[SLOTS], crowd = draw(&rng, &counter, 3);
        uint16_t rows[SLOTS];
        for (uint32_t l = 0; l < SLOTS; l++) { /* some phases: few slots, or many equal */
            ranks[l] = draw(&rng, &counter, crowd == 1 ? 4 : k);
            if (crowd == 2)
                ranks[l] = ranks[l] / 8 * 8 + ranks[l] % 2;
        }
        uint32_t most = vptq_cuda_choose_rows(&t, ranks, 0, rows);
        for (uint32_t l = 0; l < SLOTS; l++)
            assert_int_equal(vptq_cuda_rank(&t, rows[l]), ranks[l]);
        assert_int_equal(most, phase_clocks(&t, rows));
        assert_int_equal(most, least_of_all(&t, ranks));
    }
}

static void test_choice_is_the_best_of_all(void **state)
{
    (void)state;
    against_all_choices(64, 1, 0, 50);
    against_all_choices(64, 2, 0, 300);
    against_all_choices(64, 1, 32, 300);
    against_all_choices(16, 2, 0, 100);
    against_all_choices(64, 3, 0, 40);
    against_all_choices(64, 2, 32, 40);
}

/* Padding lanes add nothing. */
static void test_choice_with_padding(void **state)
{
    (void)state;
    vptq_err err = {0};
    vptq_cuda_table t;
    uint32_t ranks[16];
    uint16_t rows[16];
    assert_ok(vptq_cuda_table_copies(&t, 8, 64, 2, 0, &err), &err);
    for (uint32_t l = 0; l < 16; l++)
        ranks[l] = UINT32_MAX;
    assert_int_equal(vptq_cuda_choose_rows(&t, ranks, 8, rows), 1);
    assert_int_equal(phase_clocks(&t, rows), 1);
    ranks[5] = 40;
    ranks[6] = 48;
    assert_int_equal(vptq_cuda_choose_rows(&t, ranks, 8, rows), 1);
    assert_int_equal(phase_clocks(&t, rows), 1);
    assert_int_equal(vptq_cuda_rank(&t, rows[5]), 40);
    assert_ok(vptq_cuda_table_replicas(&t, 4, 64, 16, &err), &err);
    for (uint32_t l = 0; l < 16; l++)
        ranks[l] = l % 3 ? UINT32_MAX : 7 * l % 64;
    assert_int_equal(vptq_cuda_choose_rows(&t, ranks, 16, rows), 1);
    assert_int_equal(phase_clocks(&t, rows), 1);
}

/* ---- the choice, against its exact expectation ---- */

/* How full the fullest slot must be when count[s] different rows have s as their slot in the
 * first copy. By Hall's theorem this is the maximum, over sets of slots, of the number of rows
 * that fit only into the set, divided by its number of slots. */
static uint32_t hall(const uint32_t *count, const vptq_cuda_table *t)
{
    uint32_t most = 1;
    for (uint32_t set = 1; set < 1U << SLOTS; set++) {
        uint32_t rows = 0, reached = 0, ways = 0;
        for (uint32_t s = 0; s < SLOTS; s++) {
            if (!(set >> s & 1))
                continue;
            rows += count[s];
            for (uint32_t c = 0; c < t->copies; c++)
                reached |= 1U << (s + t->copy[c].rotation) % SLOTS;
        }
        for (uint32_t s = 0; s < SLOTS; s++)
            ways += reached >> s & 1;
        uint32_t needed = (rows + ways - 1) / ways;
        most = needed > most ? needed : most;
    }
    return most;
}

typedef struct moments {
    double mean, variance;
} moments;

static void add_counts(const vptq_cuda_table *t, uint32_t *count, uint32_t slot, uint32_t left,
                       double probability, moments *m)
{
    if (slot == SLOTS - 1) {
        count[slot] = left;
        double full = hall(count, t);
        m->mean += probability / tgamma(left + 1) * full;
        m->variance += probability / tgamma(left + 1) * full * full;
        return;
    }
    for (uint32_t n = 0; n <= left; n++) {
        count[slot] = n;
        add_counts(t, count, slot + 1, left - n, probability / tgamma(n + 1), m);
    }
}

/* Mean and variance of the clocks of a phase of 8 different random rows, over all ways to
 * assign 8 rows to 8 slots. */
static moments expectation(const vptq_cuda_table *t)
{
    moments m = {0, 0};
    uint32_t count[SLOTS];
    add_counts(t, count, 0, SLOTS, tgamma(SLOTS + 1) / pow(SLOTS, SLOTS), &m);
    m.variance -= m.mean * m.mean;
    return m;
}

static double simulated(const vptq_cuda_table *t, int phases)
{
    vptq_rng rng = vptq_rng_make(3, t->v, t->copies, VPTQ_RNG_TEST);
    uint64_t counter = 0;
    double sum = 0;
    for (int i = 0; i < phases; i++) {
        uint32_t ranks[16];
        uint16_t rows[16];
        for (uint32_t l = 0; l < t->slots; l++)
            ranks[l] = draw(&rng, &counter, t->k);
        sum += vptq_cuda_choose_rows(t, ranks, 0, rows);
    }
    return sum / phases;
}

/* The published figures for 16-byte rows, times 4 phases: 10.4 with one copy, 7.2 to 7.4 with
 * two, 5.3 with three (rotations 0, 1, 4); ours (0, 1, 3) need 4.95.  A simulation of the
 * chosen copies lies within 5 standard errors of the exact mean, and a little below it as two
 * of 8 rows are equal in 28 / 4096 phases. */
static void test_expected_clocks(void **state)
{
    (void)state;
    static const double published[] = {10.389, 7.362, 4.954, 4.156};
    enum { PHASES = 20000 };
    vptq_err err = {0};
    vptq_cuda_table t;
    for (uint32_t copies = 1; copies <= 4; copies++) {
        assert_ok(vptq_cuda_table_copies(&t, 8, 4096, copies, 0, &err), &err);
        moments m = expectation(&t);
        double found = simulated(&t, PHASES), error = sqrt(m.variance / PHASES);
        assert_true(fabs(4 * m.mean - published[copies - 1]) < 0.001);
        assert_true(found < m.mean + 5 * error);
        assert_true(found > m.mean - 5 * error - 28.0 / 4096);
        assert_true(fabs(vptq_cuda_expected_clocks(&t) - 4 * m.mean) < 0.02);
    }
    assert_ok(vptq_cuda_table_copies(&t, 8, 4096, 3, 0, &err), &err);
    t.copy[2].rotation = 4;
    assert_true(fabs(4 * expectation(&t).mean - 5.3) < 0.01);
    t.copies = 2;
    t.copy[1].rotation = 4; /* the worse choice for two copies */
    assert_true(fabs(4 * expectation(&t).mean - 8.29) < 0.01);
}

/* Clocks per phase if the first half of the ranks has `percent` of the uses. */
static double skewed(const vptq_cuda_table *t, uint32_t percent, int phases)
{
    vptq_rng rng = vptq_rng_make(4, t->v, percent, VPTQ_RNG_TEST);
    uint64_t counter = 0;
    double sum = 0;
    for (int i = 0; i < phases; i++) {
        uint32_t ranks[16];
        uint16_t rows[16];
        for (uint32_t l = 0; l < t->slots; l++) {
            bool hot = draw(&rng, &counter, 100) < percent;
            ranks[l] = draw(&rng, &counter, t->k / 2) + (hot ? 0 : t->k / 2);
        }
        sum += vptq_cuda_choose_rows(t, ranks, 0, rows);
    }
    return sum / phases;
}

/* Means over phases of random codes: within 5 standard errors of a mean of 20,000 phases whose
 * deviation is at most 0.7 rows, times the phases of an access. */
static void check_mean(const vptq_cuda_table *t, double want)
{
    enum { PHASES = 20000 };
    double per_access = (double)LANES / t->slots;
    double found = per_access * simulated(t, PHASES);
    if (fabs(found - want) > per_access * 5 * 0.7 / sqrt(PHASES) + 0.02)
        fail_msg("%u copies, %u replicas, %u slots: %.3f clocks, expected %.2f", t->copies,
                 t->replicas, t->slots, found, want);
}

/* Rows of 8 bytes: published 6.1, 4.0, 3.3 for one, two, three copies; parts of copies and
 * replicas as the shared memory planner assumes them. */
static void test_other_tables(void **state)
{
    (void)state;
    static const double tails[] = {6.13, 4.09, 3.35, 2.38, 2.11};
    vptq_err err = {0};
    vptq_cuda_table t;
    for (uint32_t copies = 1; copies <= VPTQ_CUDA_MAX_COPIES; copies++) {
        assert_ok(vptq_cuda_table_copies(&t, 4, 4096, copies, 0, &err), &err);
        check_mean(&t, tails[copies - 1]);
        check_mean(&t, vptq_cuda_expected_clocks(&t));
    }
    for (uint32_t replicas = 2; replicas <= 16; replicas *= 2) {
        assert_ok(vptq_cuda_table_replicas(&t, 4, 256, replicas, &err), &err);
        check_mean(&t, vptq_cuda_expected_clocks(&t));
        if (replicas <= 8) {
            assert_ok(vptq_cuda_table_replicas(&t, 8, 256, replicas, &err), &err);
            check_mean(&t, vptq_cuda_expected_clocks(&t));
        }
    }
    assert_ok(vptq_cuda_table_copies(&t, 8, 4096, 1, 2048, &err), &err);
    check_mean(&t, 8.36);
    assert_ok(vptq_cuda_table_copies(&t, 8, 4096, 2, 2048, &err), &err);
    check_mean(&t, 5.92);
    assert_true(fabs(vptq_cuda_expected_clocks(&t) - 5.92) < 0.2);
    /* a small codebook without replicas: some rows are equal; a second copy of a hot half that
     * has 64 % of the uses: published 8.2, with the best of all choices 8.02 */
    assert_ok(vptq_cuda_table_copies(&t, 8, 256, 1, 0, &err), &err);
    check_mean(&t, 10.17);
    assert_ok(vptq_cuda_table_copies(&t, 8, 4096, 1, 2048, &err), &err);
    assert_true(fabs(4 * skewed(&t, 64, 20000) - 8.02) < 0.1);
    /* 4-byte words: 3.51 for gathers of x */
    vptq_rng rng = vptq_rng_make(1, 2, 3, VPTQ_RNG_TEST);
    uint64_t counter = 0;
    double sum = 0;
    enum { WARPS = 5000 };
    for (int i = 0; i < WARPS; i++) {
        uint32_t a[LANES];
        for (uint32_t l = 0; l < LANES; l++)
            a[l] = 4 * draw(&rng, &counter, 4096);
        sum += vbanks_wavefronts(a, 4);
    }
    assert_true(fabs(sum / WARPS - 3.51) < 5 * 0.8 / sqrt(WARPS) + 0.005);
}

/* ---- whole layouts ---- */

static vbanks_count count_matrix(const vptq_vq *q, const vptq_cuda_tables *t)
{
    vptq_err err = {0};
    vptq_arena arena;
    vptq_cuda_layout l;
    vptq_arena_init(&arena, NULL);
    assert_ok(vptq_cuda_layout_build(q, t, 1, &arena, &l, &err), &err);
    vbanks_count n = vbanks_count_layout(&l);
    vptq_arena_release(&arena);
    return n;
}

/* Random codes of a matrix of 512 x 512, v = 8, k = 4096, k_res = 256; every seventh index of
 * vmatrix is the last centroid, so the codes are drawn here. */
static void test_random_matrix(void **state)
{
    (void)state;
    enum { OUT = 512, IN = 512, V = 8, K = 4096, RES = 256, TILES = OUT * IN / V / LANES };
    vptq_vq_shape s = {OUT, IN, V, K, RES, 1, IN, 0, 0, 0, false, false, false};
    vptq_err err = {0};
    vptq_cuda_tables t = {0};
    vptq_rng rng = vptq_rng_make(5, 0, 0, VPTQ_RNG_TEST);
    uint64_t counter = 0;
    vmatrix m;
    vmatrix_make(&m, &s);
    size_t words = vptq_vq_row_words(&s) * (OUT / V);
    memset(m.indices, 0, words * sizeof *m.indices);
    for (size_t i = 0; i < (size_t)OUT / V * IN; i++)
        vptq_bits_put(m.indices, i, 20, draw(&rng, &counter, 1U << 20));
    assert_ok(vptq_cuda_table_replicas(&t.residual, V, RES, 8, &err), &err);
    for (uint32_t copies = 1; copies <= 3; copies++) {
        assert_ok(vptq_cuda_table_copies(&t.main, V, K, copies, 0, &err), &err);
        moments one = expectation(&t.main);
        vbanks_count n = count_matrix(&m.q, &t);
        assert_int_equal(n.tiles, TILES);
        assert_int_equal(n.residual, 4 * TILES); /* replicated: never a conflict */
        double error = 4 * sqrt(one.variance / (4.0 * TILES));
        assert_true(n.main_mean < 4 * one.mean + 5 * error);
        assert_true(n.main_mean > 4 * one.mean - 5 * error - 4 * 28.0 / 4096);
    }
    /* on a grid: 16 replicas, five copies of 8 bytes */
    assert_ok(vptq_cuda_table_replicas(&t.residual, VPTQ_CUDA_GRID_ROW, RES, 16, &err), &err);
    assert_ok(vptq_cuda_table_copies(&t.main, VPTQ_CUDA_GRID_ROW, K, 5, 0, &err), &err);
    t.main.v = t.residual.v = V;
    vbanks_count g = count_matrix(&m.q, &t);
    assert_int_equal(g.residual, 2 * TILES);
    assert_true(fabs(g.main_mean - 2.11) < 0.05);
    assert_ok(vptq_cuda_table_copies(&t.residual, V, RES, 1, 0, &err), &err);
    vbanks_count n = count_matrix(&m.q, &t);
    /* 256 rows, one copy: 10.2 */
    assert_true(fabs(n.residual_mean - 10.2) < 4 * 5 * 0.7 / sqrt(4.0 * TILES) + 0.05);
    vptq_cuda_table_global(&t.main, V, K);
    n = count_matrix(&m.q, &t);
    assert_int_equal(n.main, 0);
    vmatrix_free(&m);
}

/* All codes equal: broadcasts, whatever the layout; 8 bytes and pieces, too. */
static void test_equal_codes(void **state)
{
    (void)state;
    static const struct {
        uint32_t v;
        uint64_t clocks; /* of one access to all parts of a centroid */
    } list[] = {{4, 2}, {8, 4}, {12, 4 + 2}, {16, 8}};
    for (size_t i = 0; i < 4; i++) {
        vptq_vq_shape s = {4 * list[i].v, 128,   list[i].v, 64, 0, 1, 128, 0, 0, 0,
                           false,         false, false};
        vptq_err err = {0};
        vptq_cuda_tables t = {0};
        vmatrix m;
        vmatrix_make(&m, &s);
        memset(m.indices, 0xFF, vptq_vq_row_words(&s) * 4 * sizeof *m.indices);
        assert_ok(vptq_cuda_table_copies(&t.main, s.v, s.k, 2, 32, &err), &err);
        vbanks_count n = count_matrix(&m.q, &t);
        assert_int_equal(n.tiles, 16);
        assert_int_equal(n.main, 16 * list[i].clocks);
        vmatrix_free(&m);
    }
}

/* ---- a real model ---- */

static void add_real(const vptq_vq *q, uint32_t copies, vbanks_count *sum)
{
    vptq_err err = {0};
    vptq_cuda_tables t = {0};
    const vptq_vq_shape *s = &q->shape;
    assert_ok(vptq_cuda_table_copies(&t.main, s->v, s->k, copies, 0, &err), &err);
    assert_ok(vptq_cuda_table_replicas(&t.residual, s->v, s->k_res, 8, &err), &err);
    vbanks_count n = count_matrix(q, &t);
    uint64_t padding = n.tiles - (s->in + 15) / 16 * ((vptq_vq_vector_rows(s) + 1) / 2);
    sum->tiles += n.tiles - padding;
    sum->main += n.main - 4 * padding;
    sum->residual += n.residual - 4 * padding;
}

/* Codes of up_proj (172 x 64, v = 8, k = 256, 22 vector rows) of the 5 blocks of stories260K as
 * upstream quantized it: 220 tiles.  Centroids of a trained matrix are used unevenly and equal
 * codes are sent once, so there are somewhat fewer clocks than for random codes. */
static void test_real_codes(void **state)
{
    (void)state;
    char path[4096], name[128];
    vptq_err err = {0};
    vptq_tensor_set set;
    json_t *config = NULL;
    if (!vpacked_stories(&set, &config, path, sizeof path))
        skip();
    double mean[3];
    for (uint32_t copies = 1; copies <= 3; copies++) {
        vbanks_count sum = {0};
        for (int layer = 0; layer < 5; layer++) {
            vptq_packed_matrix m;
            snprintf(name, sizeof name, "model.layers.%d.mlp.up_proj", layer);
            const json_t *entry = vptq_packed_entry(config, name);
            assert_ok(vptq_packed_read(&(vptq_packed_source){&set, entry, name, path},
                                       &set.arena, &m, &err),
                      &err);
            add_real(&m.vq, copies, &sum);
        }
        assert_int_equal(sum.tiles, 220);
        assert_int_equal(sum.residual, 4 * 220);
        mean[copies - 1] = (double)sum.main / (double)sum.tiles;
    }
    print_message("clocks per 32 real codes: %.2f, %.2f, %.2f with 1, 2, 3 copies\n", mean[0],
                  mean[1], mean[2]);
    assert_true(mean[0] > 9.3 && mean[0] < 10.7);
    assert_true(mean[1] > 6.5 && mean[1] < 7.6);
    assert_true(mean[2] > 4.5 && mean[2] < 5.2);
    json_decref(config);
    vptq_tensor_set_release(&set);
}

VTEST_MAIN(cmocka_unit_test(test_wavefronts_by_hand),
           cmocka_unit_test(test_choice_is_the_best_of_all),
           cmocka_unit_test(test_choice_with_padding), cmocka_unit_test(test_expected_clocks),
           cmocka_unit_test(test_other_tables), cmocka_unit_test(test_random_matrix),
           cmocka_unit_test(test_equal_codes), cmocka_unit_test(test_real_codes))
