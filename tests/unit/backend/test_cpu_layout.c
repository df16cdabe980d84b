/* Layouts of packed matrices on the cpu: every code refers to its centroid, and codebooks have
 * the smallest exact form. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/backend/cpu/gemv.h"
#include "lib/backend/cpu/grid.h"
#include "lib/base/half.h"
#include "tests/support/devices.h"
#include "tests/support/vmatrix.h"

enum { ROWS = VPTQ_BLOCK_VECTOR_ROWS };

typedef struct layout_case {
    vptq_vq_shape shape;
    vptq_dtype type; /* type that codebooks are rounded to */
    bool half;       /* expected */
    size_t lanes, far_half, far_float;
} layout_case;

/* Element e of the row that `code` refers to. */
static float number(const vptq_layout *l, const uint8_t *table, uint16_t code, size_t e)
{
    const uint8_t *row = table + 8 * code * l->code_scale;
    float value;
    uint16_t half;
    if (!l->half) {
        memcpy(&value, row + e * sizeof value, sizeof value);
        return value;
    }
    memcpy(&half, row + e * sizeof half, sizeof half);
    return ldexpf(vptq_f16_to_f32(half), -l->shift);
}

static void check_row(const vptq_layout *l, const uint8_t *table, uint16_t code,
                      const float *centroid, size_t v)
{
    for (size_t e = 0; e < l->lanes; e++)
        assert_true(number(l, table, code, e) == (e < v ? centroid[e] : 0));
}

static void check_codes(const vptq_layout *l, const vmatrix *m)
{
    const vptq_vq_shape *s = &m->q.shape;
    const size_t vector_rows = vptq_vq_vector_rows(s);
    assert_true(l->blocks == (vector_rows + ROWS - 1) / ROWS);
    assert_true(l->record == (s->k_res ? 2 * ROWS : ROWS));
    for (size_t g = 0; g < s->groups; g++)
        for (size_t i = 0; i < l->blocks * ROWS; i++)
            for (size_t j = 0; j < s->group_size; j++) {
                const size_t block = g * l->blocks + i / ROWS;
                const uint16_t *code =
                    l->codes + (block * s->group_size + j) * l->record + i % ROWS;
                const size_t at = (g * vector_rows + i) * s->group_size + j;
                if (i >= vector_rows) { /* never outside of a table */
                    assert_true(code[0] == 0 && (!s->k_res || code[ROWS] == 0));
                    continue;
                }
                check_row(l, l->main + g * s->k * l->row_bytes, code[0],
                          m->centroids + (g * s->k + m->main[at]) * s->v, s->v);
                if (s->k_res)
                    check_row(l, l->res + g * s->k_res * l->row_bytes, code[ROWS],
                              m->res_centroids + (g * s->k_res + m->res[at]) * s->v, s->v);
            }
}

static void make_case(const layout_case *c, vmatrix *m)
{
    const vptq_vq_shape *s = &c->shape;
    vmatrix_make(m, s); /* codebooks of float16 numbers */
    for (size_t i = 0; c->type == VPTQ_F32 && i < (size_t)s->groups * s->k * s->v; i++)
        m->centroids[i] *= 0.3F;
    vptq_round_to_n(c->type, m->centroids, (size_t)s->groups * s->k * s->v);
    if (s->k_res)
        vptq_round_to_n(c->type, m->res_centroids, (size_t)s->groups * s->k_res * s->v);
}

static void codes_refer_to_their_centroids(void **state)
{
    (void)state;
    static const layout_case cases[] = {
        /* codebooks of up to 16 KB stay floats */
        {{40, 30, 8, 256, 256, 1, 30, 0, 0, 0, false, false, false}, VPTQ_F16, false, 8, 2, 1},
        {{40, 30, 8, 256, 512, 1, 30, 0, 0, 0, false, false, false}, VPTQ_F16, true, 8, 1, 1},
        {{41, 300, 6, 4096, 0, 1, 300, 0, 0, 0, true, true, false}, VPTQ_F16, true, 8, 1, 1},
        {{30, 24, 4, 4096, 16, 2, 12, 0, 0, 0, false, false, false}, VPTQ_BF16, true, 4, 1, 1},
        {{30, 24, 1, 16, 16, 1, 24, 0, 0, 0, false, false, false}, VPTQ_F32, false, 4, 1, 1},
        /* numbers that are not float16 */
        {{40, 30, 8, 4096, 16, 1, 30, 0, 0, 0, false, false, false}, VPTQ_F32, false, 8, 1, 1},
        {{36, 26, 8, 4096, 16, 1, 20, 6, 4, 16, true, true, false}, VPTQ_BF16, true, 8, 1, 1},
        /* codes that fit into 16 bits only as row numbers */
        {{40, 9, 8, 65536, 2, 1, 9, 0, 0, 0, false, false, false}, VPTQ_F16, true, 8, 2, 4},
        {{40, 9, 8, 32768, 2, 1, 9, 0, 0, 0, false, false, false}, VPTQ_F16, true, 8, 1, 4},
        {{40, 9, 8, 16, 32768, 1, 9, 0, 0, 0, false, false, false}, VPTQ_F32, false, 8, 1, 4},
        {{90, 9, 33, 16384, 2, 1, 9, 0, 0, 0, false, false, false}, VPTQ_F16, true, 40, 10, 20},
        {{9, 9, 4, 65536, 0, 1, 9, 0, 0, 0, false, false, false}, VPTQ_F32, false, 4, 1, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int simd = VPTQ_SIMD_NONE; simd <= VPTQ_SIMD_NEON; simd++) {
            if (!vptq_cpu_has((vptq_simd)simd))
                continue;
            const layout_case *c = &cases[i];
            devices_one d;
            vptq_layout l = {0};
            vmatrix m;
            vptq_err err;
            make_case(c, &m);
            devices_open(&d, "cpu", (vptq_simd)simd, 3);
            assert_ok(vptq_layout_make(d.dev.state, &m.q, &l, &err), &err);
            assert_int_equal(l.half, c->half);
            assert_int_equal(l.lanes, c->lanes);
            assert_int_equal(l.code_scale, c->half ? c->far_half : c->far_float);
            assert_int_equal(l.row_bytes, l.lanes * (c->half ? 2 : 4));
            check_codes(&l, &m);
            vptq_layout_clear(&l);
            assert_true(!l.codes && !l.main);
            devices_close(&d);
            vmatrix_free(&m);
        }
}

/* Element e of the centroid that look-up i of a record means, by its code and scale. */
static float grid_number(const vptq_layout *l, const vptq_vq_shape *s, size_t group,
                         uint16_t code, size_t i, size_t e)
{
    enum { HALF = VPTQ_GRID_HALF };
    const int8_t *table = (const int8_t *)l->main + group * (s->k + s->k_res) * l->row_bytes;
    return (float)table[8 * (size_t)code * l->code_scale + e] * l->scale[2 * group + i / HALF];
}

static void check_grid_codes(const vptq_layout *l, const vmatrix *m)
{
    enum { LOOKUPS = VPTQ_GRID_LOOKUPS };
    const vptq_vq_shape *s = &m->q.shape;
    const size_t vector_rows = vptq_vq_vector_rows(s), columns = vptq_grid_columns(s->k_res);
    for (size_t g = 0; g < s->groups; g++)
        for (size_t row = 0; row < l->blocks * ROWS; row++)
            for (size_t i = 0; i < l->records * LOOKUPS; i++) {
                const size_t j = i / LOOKUPS * columns + i % columns;
                const bool is_res = s->k_res && i % LOOKUPS >= columns;
                const uint16_t code =
                    l->codes[(g * l->blocks + row / ROWS) * l->block_codes +
                             (i / LOOKUPS * ROWS + row % ROWS) * LOOKUPS + i % LOOKUPS];
                if (row >= vector_rows ||
                    j >= s->group_size) { /* of columns that do not exist */
                    assert_int_equal(code, 0);
                    continue;
                }
                const size_t at = (g * vector_rows + row) * s->group_size + j;
                const float *centroid =
                    is_res ? m->res_centroids + (g * s->k_res + m->res[at]) * s->v
                           : m->centroids + (g * s->k + m->main[at]) * s->v;
                for (size_t e = 0; e < l->lanes; e++)
                    assert_true(grid_number(l, s, g, code, i % LOOKUPS, e) ==
                                (e < s->v ? centroid[e] : 0));
            }
}

/* Codebooks of whole numbers up to `most` times a scale of each. */
static void make_grid_case(const vptq_vq_shape *s, float most, vmatrix *m)
{
    vmatrix_make(m, s);
    for (size_t i = 0; i < (size_t)s->groups * s->k * s->v; i++)
        m->centroids[i] = 0.0625F * fmaxf(fminf(rintf(m->centroids[i] * 40), 127), -127);
    for (size_t i = 0; i < (size_t)s->groups * s->k_res * s->v; i++)
        m->res_centroids[i] = 0.75F * rintf(m->res_centroids[i] * 40);
    m->centroids[0] = 0.0625F * most;
    m->centroids[1] = 0.0625F;
}

static void codebooks_on_a_grid_become_bytes(void **state)
{
    (void)state;
    static const struct {
        vptq_vq_shape shape;
        float most;
        bool grid, small; /* small: tables of floats fit the first cache and are faster */
        size_t lanes, far;
    } cases[] = {
        {{40, 30, 8, 1024, 512, 1, 30, 0, 0, 0, true, true, false}, 127, true, false, 8, 1},
        {{41, 2051, 6, 256, 16, 1, 2051, 0, 0, 0, false, false, false}, 127, true, true, 8, 1},
        {{36, 26, 12, 1024, 16, 2, 10, 6, 4, 16, true, true, false}, 127, true, false, 16, 1},
        {{40, 30, 4, 4096, 0, 2, 15, 0, 0, 0, false, false, false}, 127, true, false, 8, 1},
        {{40, 9, 12, 32768, 2, 1, 9, 0, 0, 0, false, false, false}, 127, true, false, 16, 2},
        {{40, 9, 8, 65536, 2, 1, 9, 0, 0, 0, false, false, false}, 127, false, false, 8, 0},
        {{40, 30, 8, 1024, 512, 1, 30, 0, 0, 0, true, true, false}, 128, false, false, 8, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int simd = VPTQ_SIMD_NONE; simd <= VPTQ_SIMD_NEON; simd++) {
            if (!vptq_cpu_has((vptq_simd)simd))
                continue;
            const bool bytes = vptq_grid_uses_bytes((vptq_simd)simd);
            devices_one d;
            vptq_layout l = {0};
            vmatrix m;
            vptq_err err;
            make_grid_case(&cases[i].shape, cases[i].most, &m);
            devices_open(&d, "cpu", (vptq_simd)simd, 3);
            assert_ok(vptq_layout_make(d.dev.state, &m.q, &l, &err), &err);
            assert_int_equal(l.grid, cases[i].grid && !cases[i].small);
            assert_int_equal(l.block_starts > 0, l.grid && bytes);
            if (l.grid) {
                assert_int_equal(l.lanes, cases[i].lanes);
                assert_int_equal(l.code_scale, cases[i].far);
                check_grid_codes(&l, &m);
            }
            vptq_layout_clear(&l);
            devices_close(&d);
            vmatrix_free(&m);
        }
}

/* Digits are the nearest whole numbers of 24 bits, and a piece that is not finite is NaN. */
static void digits_of_x(void **state)
{
    (void)state;
    enum { N = 2 * VPTQ_GRID_PIECE + 5, COLUMNS = 8, PADDED = N + 3 };
    uint8_t digits[VPTQ_GRID_SPACE * PADDED];
    float *x = vtest_normals(N, 7), unit[3];
    x[3] = -8388607.5F * 0x1p-20F; /* rounds to a power of two */
    x[4] = 8388607.5F * 0x1p-20F;
    x[VPTQ_GRID_PIECE + 9] = INFINITY;
    x[N - 1] = -0x1p-140F;
    x[N - 2] = x[N - 3] = x[N - 4] = x[N - 5] = 0;
    for (int bytes = 0; bytes < 2; bytes++) {
        vptq_grid_split(x, N, false, bytes, digits, unit);
        assert_true(isnan(unit[1]) && unit[0] == 0x1p-20F);
        for (size_t j = 0; j < PADDED; j++) {
            const uint8_t *at = digits + j / COLUMNS * COLUMNS * VPTQ_GRID_SPACE;
            const size_t i = j % COLUMNS;
            int16_t word[VPTQ_GRID_WORDS];
            for (size_t d = 0; d < VPTQ_GRID_WORDS; d++)
                memcpy(&word[d], at + (d * COLUMNS + i) * sizeof *word, sizeof *word);
            const int whole =
                !bytes ? word[0] + 4096 * word[1]
                       : at[i] + 256 * at[COLUMNS + i] + 65536 * (at[2 * COLUMNS + i] - 128);
            if (j >= N)
                assert_int_equal(whole, 0);
            else if (j / VPTQ_GRID_PIECE != 1)
                assert_true(fabs(ldexp(whole, -20) - (double)x[j]) <= 0x1p-20);
        }
    }
    free(x);
}

/* A NaN or an infinity in a codebook is kept. */
static void nan_and_infinity_in_codebooks_are_kept(void **state)
{
    (void)state;
    static const float odd[] = {NAN, INFINITY, -INFINITY, FLT_MAX, FLT_MIN / 8};
    const layout_case c = {
        {40, 30, 8, 1024, 16, 1, 30, 0, 0, 0, false, false, false}, VPTQ_F16, false, 8, 1, 1};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        devices_one d;
        vptq_layout l = {0};
        vmatrix m;
        vptq_err err;
        float found;
        make_case(&c, &m);
        m.centroids[77] = odd[i];
        devices_open(&d, "cpu", vptq_cpu_simd(), 2);
        assert_ok(vptq_layout_make(d.dev.state, &m.q, &l, &err), &err);
        assert_false(l.half);
        memcpy(&found, l.main + 77 * sizeof found, sizeof found);
        assert_memory_equal(&found, &odd[i], sizeof found);
        vptq_layout_clear(&l);
        devices_close(&d);
        vmatrix_free(&m);
    }
}

/* Each allocation of the first product fails once; the matrix still works. */
static void products_survive_failed_allocations(void **state)
{
    (void)state;
    enum { OUT = 40, IN = 30, MAX_FAILURES = 50 };
    const layout_case c = {
        {OUT, IN, 8, 1024, 16, 1, IN, 0, 0, 0, true, true, false}, VPTQ_F16, true, 8, 1, 1};
    vmatrix m;
    float *x = vtest_normals(IN, 5), y[OUT], want[OUT];
    const vptq_gemv_args g = {.n = 1, .x = x, .y = want, .ldx = IN, .ldy = OUT};
    vptq_mem mem;
    vptq_mem_init(&mem, 0);
    const vptq_ctx ctx = {.threads = 2, .mem = &mem};
    vptq_device dev;
    vptq_matrix *q = NULL;
    vptq_err err;
    int failures = 0;
    make_case(&c, &m);
    assert_ok(vptq_device_open(&ctx, "cpu", &dev, &err), &err);
    assert_ok(dev.ops->matrix_open(dev.state, &m.q, &q, &err), &err);
    assert_ok(dev.ops->vq_gemv(dev.state, q, &g, &err), &err);
    dev.ops->matrix_close(dev.state, q);
    const size_t used = mem.used;
    vptq_gemv_args again = g;
    again.y = y;
    for (int n = 0; n < MAX_FAILURES; n++) {
        mem.fail_after = n;
        vptq_status st = dev.ops->matrix_open(dev.state, &m.q, &q, &err);
        const bool opened = st == VPTQ_OK;
        if (opened)
            st = dev.ops->vq_gemv(dev.state, q, &again, &err);
        mem.fail_after = -1;
        if (!st)
            n = MAX_FAILURES;
        else
            assert_int_equal(st, VPTQ_E_NOMEM);
        failures += st != VPTQ_OK;
        if (opened) {
            assert_ok(dev.ops->vq_gemv(dev.state, q, &again, &err), &err);
            assert_same_f32(y, want, OUT);
            dev.ops->matrix_close(dev.state, q);
        }
        assert_int_equal(mem.used, used);
    }
    assert_true(failures >= 5); /* the handle, its layout, two tables, codes */
    vptq_device_close(&dev);
    free(x);
    vmatrix_free(&m);
}

VTEST_MAIN(cmocka_unit_test(codes_refer_to_their_centroids),
           cmocka_unit_test(codebooks_on_a_grid_become_bytes), cmocka_unit_test(digits_of_x),
           cmocka_unit_test(nan_and_infinity_in_codebooks_are_kept),
           cmocka_unit_test(products_survive_failed_allocations))
