/* Calibrations of a tiny model. */
#include "tests/support/vcalib.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/bits.h"
#include "tests/support/vtest.h"

void vcalib_open(vcalib *r, const char *dir, const char *backend)
{
    vrig_open_on(&r->v, VRIG_TINY_OF("qwen3"), NULL, backend, 2);
    r->ids = vrig_ids(dir, VCALIB_IDS, r->path, sizeof r->path);
}

void vcalib_close(vcalib *r)
{
    vrig_close(&r->v);
    free(r->ids);
}

void vcalib_plan(vcalib *r, vptq_token_weights weights, bool sequential, vptq_calibrator *c)
{
    vptq_err err = {0};
    const char *files[] = {r->path};
    const vptq_calibrate_options opt = {.corpus = {.tokens = files, .token_count = 1},
                                        .windows = VCALIB_WINDOWS,
                                        .length = VCALIB_LENGTH,
                                        .holdout = (double)VCALIB_HELD / VCALIB_WINDOWS,
                                        .weights = weights,
                                        .sequential = sequential};
    assert_ok(vptq_calibrator_plan(&r->v.dev, &r->v.m, &opt, c, &err), &err);
    assert_int_equal(c->windows[VPTQ_PART_MAIN], VCALIB_WINDOWS - VCALIB_HELD);
    assert_int_equal(c->windows[VPTQ_PART_HELD_OUT], VCALIB_HELD);
}

void vcalib_start(vcalib *r, const char *dir, vptq_token_weights weights, bool sequential,
                  uint32_t wanted, vptq_calibrator *c)
{
    vptq_err err = {0};
    vcalib_plan(r, weights, sequential, c);
    assert_ok(vptq_calibrator_start(c, dir, wanted, r->v.m.desc->layers - 1, &err), &err);
}

static double *copy_of(const double *x, size_t n)
{
    double *out = malloc(n * sizeof *out);
    assert_non_null(out);
    memcpy(out, x, n * sizeof *out);
    return out;
}

float *vcalib_room(size_t rows, size_t columns)
{
    float *p = malloc(rows * columns * sizeof *p);
    assert_non_null(p);
    return p;
}

static void keep_term(vcalib_moments *m, vptq_calibrator *c, vptq_part part, vptq_linear l)
{
    vptq_err err = {0};
    const vptq_hessian_sum *s = &c->term[l];
    if (!vptq_calibrator_has_term(c, l))
        return;
    assert_int_equal(s->tokens, c->windows[part]);
    m->term[part][l] = copy_of(s->total.sum, vptq_triangle(s->n));
    if (!c->opt.sequential)
        return;
    m->term_shift[part][l] = vcalib_room(c->model->desc->hidden, s->n);
    assert_ok(vptq_calibrator_term_shift(c, l, m->term_shift[part][l], &err), &err);
}

static vptq_status keep(void *arg, vptq_calibrator *c, vptq_part part, vptq_err *err)
{
    vcalib_moments *m = arg;
    for (int i = 0; i < VPTQ_INPUT_DENSE; i++) {
        const size_t n = c->sum[i].n;
        if (c->opt.sequential && i != (int)c->next)
            continue;
        assert_int_equal(c->sum[i].tokens, c->windows[part] * VCALIB_LENGTH);
        m->h[part][i] = copy_of(c->sum[i].total.sum, vptq_triangle(n));
        float *range = m->range[part][i] = vcalib_room(3, n);
        VPTQ_CHECK(vptq_hessian_sum_range(&c->sum[i], range, range + n, range + 2 * n, err));
        if (!c->opt.sequential)
            continue;
        m->shift[part][i] = vcalib_room(c->model->desc->hidden, n);
        VPTQ_CHECK(vptq_calibrator_shift(c, m->shift[part][i], err));
    }
    for (int l = 0; l < VPTQ_LINEAR_DENSE; l++)
        keep_term(m, c, part, (vptq_linear)l);
    return VPTQ_OK;
}

void vcalib_free(vcalib_moments *m)
{
    for (int part = 0; part < VPTQ_PART_COUNT; part++) {
        for (int i = 0; i < VPTQ_INPUT_DENSE; i++) {
            free(m->h[part][i]);
            free(m->range[part][i]);
            free(m->shift[part][i]);
        }
        for (int l = 0; l < VPTQ_LINEAR_DENSE; l++) {
            free(m->term[part][l]);
            free(m->term_shift[part][l]);
        }
    }
}

void vcalib_run(vptq_calibrator *c, const vptq_weight *linear, vcalib_moments *m)
{
    vptq_err err = {0};
    const uint32_t layer = c->layer;
    memset(m, 0, sizeof *m);
    if (!c->opt.sequential) {
        assert_ok(vptq_calibrator_run(c, keep, m, &err), &err);
        return;
    }
    for (int i = 0; i <= VPTQ_INPUT_DENSE; i++) {
        vptq_weight mixed[VPTQ_LINEAR_DENSE];
        for (int l = 0; l < VPTQ_LINEAR_DENSE; l++)
            mixed[l] = (int)vptq_linear_input((vptq_linear)l) < i
                           ? linear[l]
                           : c->model->blocks[layer].linear[l];
        assert_int_equal(c->next, i);
        assert_ok(vptq_calibrator_step(c, mixed, keep, m, &err), &err);
    }
    assert_int_equal(c->layer, layer + 1);
}

static void expect_same_lower(const double *a, const double *b, size_t n)
{
    assert_memory_equal(a, b, vptq_triangle(n) * sizeof *a);
}

void vcalib_expect_same(const vcalib *r, const vcalib_moments *a, const vcalib_moments *b)
{
    for (int part = 0; part < VPTQ_PART_COUNT; part++) {
        for (int i = 0; i < VPTQ_INPUT_DENSE; i++) {
            const size_t n = vptq_input_size(r->v.m.desc, (vptq_input)i);
            expect_same_lower(a->h[part][i], b->h[part][i], n);
            assert_memory_equal(a->range[part][i], b->range[part][i], 3 * n * sizeof(float));
        }
        for (int l = 0; l < VPTQ_LINEAR_DENSE; l++) {
            const size_t n = vptq_input_size(r->v.m.desc, vptq_linear_input((vptq_linear)l));
            assert_int_equal(a->term[part][l] != NULL, b->term[part][l] != NULL);
            if (a->term[part][l])
                expect_same_lower(a->term[part][l], b->term[part][l], n);
        }
    }
}

void vcalib_exact(vcalib *r, const vptq_weight *w, vptq_arena *arena, vptq_packed_matrix *out)
{
    vptq_err err = {0};
    const uint32_t rows = (uint32_t)w->rows, cols = (uint32_t)w->cols, count = rows * cols;
    uint32_t k = 2;
    while (k < count)
        k *= 2;
    float *codebook = vptq_arena_zalloc(arena, k, sizeof *codebook, &err);
    *out = (vptq_packed_matrix){.name = "exact", .storage = VPTQ_BF16};
    out->vq.shape = (vptq_vq_shape){
        .out = rows, .in = cols, .v = 1, .k = k, .groups = 1, .group_size = cols};
    const size_t words = vptq_vq_row_words(&out->vq.shape);
    uint32_t *codes = vptq_arena_zalloc(arena, rows * words, sizeof *codes, &err);
    assert_ok(vptq_weight_read(w, &r->v.dev, 0, rows, codebook, &err), &err);
    for (uint32_t row = 0; row < rows; row++)
        for (uint32_t col = 0; col < cols; col++)
            vptq_bits_put(codes + row * words, col, vptq_log2u(k), row * cols + col);
    out->vq.centroids = codebook;
    out->vq.indices = codes;
}

/* Rounds the weights to multiples of 1/64. */
static void coarse_matrix(vcalib *r, const vptq_weight *w, vptq_arena *arena,
                          vptq_packed_matrix *out)
{
    vcalib_exact(r, w, arena, out);
    float *codebook = (float *)(uintptr_t)out->vq.centroids;
    for (uint32_t i = 0; i < out->vq.shape.k; i++)
        codebook[i] = roundf(codebook[i] * 64) / 64;
}

void vcalib_coarse(vcalib *r, uint32_t layer, vptq_arena *arena, vptq_packed_matrix *coarse,
                   vptq_weight *linear)
{
    for (int l = 0; l < VPTQ_LINEAR_DENSE; l++) {
        const vptq_weight *w = &r->v.m.blocks[layer].linear[l];
        coarse_matrix(r, w, arena, &coarse[l]);
        linear[l] = (vptq_weight){w->rows, w->cols, NULL, &coarse[l]};
    }
}

static void expect_same_term_shifts(const vcalib *r, const vcalib_moments *a,
                                    const vcalib_moments *b)
{
    for (int part = 0; part < VPTQ_PART_COUNT; part++)
        for (int l = 0; l < VPTQ_LINEAR_DENSE; l++) {
            const size_t n = vptq_input_size(r->v.m.desc, vptq_linear_input((vptq_linear)l));
            if (a->term_shift[part][l])
                assert_same_f32(a->term_shift[part][l], b->term_shift[part][l],
                                n * r->v.m.desc->hidden);
        }
}

void vcalib_expect_same_shifts(const vcalib *r, const vcalib_moments *a,
                               const vcalib_moments *b)
{
    for (int part = 0; part < VPTQ_PART_COUNT; part++)
        for (int i = 0; i < VPTQ_INPUT_DENSE; i++) {
            const size_t n = vptq_input_size(r->v.m.desc, (vptq_input)i) * r->v.m.desc->hidden;
            assert_same_f32(a->shift[part][i], b->shift[part][i], n);
        }
    expect_same_term_shifts(r, a, b);
}
