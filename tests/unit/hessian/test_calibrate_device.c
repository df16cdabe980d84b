/* Tests what calibration moves to and from a device with its own memory, and that its sums do
 * not depend on where hidden states are. */
#include <stdlib.h>
#include <string.h>

#include "tests/support/vcalib.h"
#include "tests/support/vcount.h"
#include "tests/support/vtest.h"

static vptq_status finish_sums(void *arg, vptq_calibrator *c, vptq_part part, vptq_err *err)
{
    size_t *bytes = arg;
    (void)part;
    for (int i = 0; i < VPTQ_INPUT_DENSE; i++) {
        const size_t n = c->sum[i].n;
        if (c->opt.sequential && i != (int)c->next)
            continue;
        float *lower = vtest_alloc(n * (n + 1) / 2, sizeof *lower);
        float *mean = vtest_alloc(n, sizeof *mean);
        assert_ok(vptq_hessian_sum_finish(&c->sum[i], lower, mean, err), err);
        *bytes += (n * (n + 1) / 2 + n) * sizeof *lower;
        free(mean);
        free(lower);
    }
    return VPTQ_OK;
}

/* Two groups of windows, one for each part: the weights of a block are uploaded once, hidden
 * states once if they fit, and sums come back in two downloads. */
static void test_uploads_of_one_stream(void **state)
{
    for (int fits = 0; fits < 2; fits++) {
        vcalib r;
        vptq_calibrator c;
        vptq_err err = {0};
        size_t sums = 0;
        vcalib_open(&r, *state, "ref");
        vcount_start(&r.v.dev, SIZE_MAX);
        vcalib_plan(&r, VPTQ_WEIGHTS_PLAIN, false, &c);
        c.reserve = fits ? 0 : SIZE_MAX;
        assert_ok(vptq_calibrator_start(&c, *state, 0, r.v.m.desc->layers - 1, &err), &err);
        const vcount before = vcount_of(&r.v.m);
        const size_t hidden = VCALIB_IDS * r.v.m.desc->hidden * sizeof(float),
                     layers = r.v.m.desc->layers;
        assert_int_equal(before.weights, 0);
        assert_true(!c.states.resident == !fits);
        while (c.layer < layers)
            assert_ok(vptq_calibrator_run(&c, finish_sums, &sums, &err), &err);
        const vcount after = vcount_of(&r.v.m);
        assert_int_equal(after.weights, vcount_block_weights(&r.v.m));
        assert_int_equal(after.uploaded - before.uploaded - after.weights,
                         fits ? 0 : layers * hidden);
        assert_int_equal(after.downloaded - before.downloaded,
                         sums + (fits ? 0 : layers * hidden));
        assert_int_equal(after.downloads - before.downloads,
                         layers * (size_t)(VPTQ_PART_COUNT * (2 * VPTQ_INPUT_DENSE + !fits)));
        vptq_calibrator_release(&c);
        vcalib_close(&r);
    }
}

/* Runs all blocks of two streams with quantized matrices that lose something: `m` [layers]. */
static void run_two(vcalib *r, vptq_calibrator *c, vcalib_moments *m)
{
    vptq_arena arena;
    vptq_arena_init(&arena, NULL);
    for (uint32_t layer = 0; layer < r->v.m.desc->layers; layer++) {
        vptq_packed_matrix coarse[VPTQ_LINEAR_DENSE];
        vptq_weight linear[VPTQ_LINEAR_DENSE];
        vcalib_coarse(r, layer, &arena, coarse, linear);
        vcalib_run(c, linear, &m[layer]);
    }
    vptq_arena_release(&arena);
}

enum { LAYERS = 2 };
typedef enum { HOST, FITS, AWAY, PLACES } place;

/* Runs two streams in host memory, or in the memory of a device with or without room for them.
 * Weights move once (the quantized matrices are packed, and opened apart from this count), and
 * nothing of the size of hidden states if these fit. */
static void run_in(place where, const char *dir, vptq_token_weights weights, vcalib_moments *m)
{
    vcalib r;
    vptq_calibrator c;
    vptq_err err = {0};
    vcalib_open(&r, dir, "ref");
    const uint32_t layers = r.v.m.desc->layers;
    const size_t hidden = VCALIB_IDS * r.v.m.desc->hidden * sizeof(float);
    assert_int_equal(layers, LAYERS);
    if (where != HOST)
        vcount_start(&r.v.dev, SIZE_MAX);
    vcalib_plan(&r, weights, true, &c);
    c.reserve = where == AWAY ? SIZE_MAX : 0;
    assert_ok(vptq_calibrator_start(&c, dir, 0, layers - 1, &err), &err);
    const vcount before = where == HOST ? (vcount){0} : vcount_of(&r.v.m);
    run_two(&r, &c, m);
    if (where != HOST) {
        const vcount after = vcount_of(&r.v.m);
        const size_t moved = after.uploaded - before.uploaded - after.weights;
        assert_true(where == FITS ? moved < hidden : moved > 4 * layers * hidden);
        if (weights == VPTQ_WEIGHTS_SINK)
            assert_int_equal(after.weights, vcount_block_weights(&r.v.m));
    }
    vptq_calibrator_release(&c);
    vcalib_close(&r);
}

static void test_two_streams_on_a_device(void **state)
{
    static const vptq_token_weights kinds[] = {VPTQ_WEIGHTS_SINK, VPTQ_WEIGHTS_ATTENTION,
                                               VPTQ_WEIGHTS_GUIDED};
    vcalib r;
    vcalib_open(&r, *state, "ref");
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        vcalib_moments host[LAYERS], m[LAYERS];
        run_in(HOST, *state, kinds[k], host);
        for (int where = FITS; where < PLACES; where++) {
            run_in((place)where, *state, kinds[k], m);
            for (int layer = 0; layer < LAYERS; layer++) {
                vcalib_expect_same(&r, &host[layer], &m[layer]);
                vcalib_expect_same_shifts(&r, &host[layer], &m[layer]);
                vcalib_free(&m[layer]);
            }
        }
        for (int layer = 0; layer < LAYERS; layer++)
            vcalib_free(&host[layer]);
    }
    vcalib_close(&r);
}

VTEST_MAIN(scratch_test(test_uploads_of_one_stream), scratch_test(test_two_streams_on_a_device))
