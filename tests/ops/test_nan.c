/* Tests NaN in the input of vq_pass and vq_descend: choices stay in range, and other vector
 * rows are not affected. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/devices.h"
#include "tests/support/vcodebooks.h"

enum { COLS = 9, VECTOR_ROWS = 6, V = 4, ROWS = VECTOR_ROWS * V, K = 40, K_RES = 6, BAD = 2 };

typedef struct columns {
    float z[COLS * ROWS], q[COLS * ROWS], change[COLS * ROWS];
    uint32_t idx[COLS * VECTOR_ROWS], idx_res[COLS * VECTOR_ROWS];
} columns;

static float factors[COLS * COLS];

/* With `bad`, vector row BAD of column 3 has a NaN. */
static void run(const vptq_device *dev, const vptq_search_index *index,
                const vcodebooks *codebooks, bool descend, bool bad, columns *c)
{
    vptq_err err;
    memset(c, 0, sizeof *c);
    for (size_t i = 0; i < COLS * ROWS; i++)
        c->z[i] = codebooks->x[i];
    for (size_t t = 0; t < COLS; t++)
        for (size_t i = 0; i < ROWS; i++)
            c->q[t * ROWS + i] = codebooks->c[i % V] + codebooks->r[i % V]; /* of indices 0 */
    if (bad)
        c->z[3 * ROWS + BAD * V + 1] = NAN;
    const vptq_pass_args p = {COLS, ROWS,      index, c->z, factors,     c->idx, c->idx_res,
                              c->q, c->change, ROWS,  COLS, VECTOR_ROWS, ROWS,   ROWS};
    const vptq_descend_args d = {COLS, ROWS,      index, c->z, factors,     c->idx, c->idx_res,
                                 c->q, c->change, ROWS,  COLS, VECTOR_ROWS, ROWS,   ROWS};
    assert_ok(descend ? dev->ops->vq_descend(dev->state, &d, &err)
                      : dev->ops->vq_pass(dev->state, &p, &err),
              &err);
}

static void check(void *arg, const vptq_device *dev, bool is_ref)
{
    const vcodebooks *codebooks = arg;
    static columns good, bad;
    vptq_search_index *index = vcodebooks_index(dev, &codebooks->codebooks);
    (void)is_ref;
    for (int descend = 0; descend < 2; descend++) {
        run(dev, index, codebooks, descend, false, &good);
        run(dev, index, codebooks, descend, true, &bad);
        for (size_t t = 0; t < COLS; t++)
            for (size_t i = 0; i < ROWS; i++) {
                const size_t at = t * ROWS + i, vector_row = t * VECTOR_ROWS + i / V;
                assert_true(bad.idx[vector_row] < K && bad.idx_res[vector_row] < K_RES);
                assert_true(isfinite(bad.q[at])); /* decoded from the codebooks */
                if (i / V == BAD)
                    continue;
                assert_int_equal(bad.idx[vector_row], good.idx[vector_row]);
                assert_int_equal(bad.idx_res[vector_row], good.idx_res[vector_row]);
                assert_memory_equal(&bad.change[at], &good.change[at], sizeof(float));
            }
        if (!descend) /* propagated, not hidden */
            assert_true(isnan(bad.change[3 * ROWS + BAD * V + 1]));
    }
    dev->ops->search_index_close(dev->state, index);
}

static void nan_stays_in_its_vector_row(void **state)
{
    (void)state;
    for (uint32_t beam = 1; beam <= 8; beam += 7) {
        vcodebooks codebooks = vcodebooks_make(COLS * VECTOR_ROWS, V, K, K_RES, beam);
        float *u = vtest_normals(COLS * COLS, 3);
        for (size_t t = 0; t < COLS; t++)
            for (size_t s = 0; s < COLS; s++)
                factors[t * COLS + s] = s == t ? 1.5F : 0.2F * u[t * COLS + s];
        devices_each_emu(check, &codebooks);
        free(u);
        vcodebooks_free(&codebooks);
    }
}

VTEST_MAIN(cmocka_unit_test(nan_stays_in_its_vector_row))
