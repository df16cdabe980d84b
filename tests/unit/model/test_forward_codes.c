/* Models of uniform codes: every backend computes the same bits as with the numbers of 16 bits
 * that the codes mean, in windows and in steps, stored or uploaded in tiles. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/half.h"
#include "lib/model/forward_internal.h"
#include "tests/emu/emu.h"
#include "tests/support/vrig.h"
#include "tests/support/vtest.h"

#define MODEL "tests/golden/bytes_qwen2"

enum { TOKENS = 12, HIDDEN = VRIG_HIDDEN, VOCAB = VRIG_VOCAB, STEPS = 3 };

/* One form of all matrices. */
typedef struct form {
    uint32_t bits, group_size; /* at most the columns */
    bool has_zeros, has_groups;
} form;

/* A matrix with any codes. */
typedef struct matrix {
    vptq_uniform u;
    uint16_t *half; /* what it means */
} matrix;

static void *arena_of(vrig *r, size_t count, size_t size)
{
    vptq_err err;
    void *p = vptq_arena_alloc(&r->m.ckpt.arena, count, size, &err);
    assert_non_null(p);
    return p;
}

static matrix matrix_make(vrig *r, const vptq_uniform_shape *shape, const form *f)
{
    matrix m = {.u = {.shape = *shape}};
    vptq_uniform_shape *s = &m.u.shape;
    s->bits = f->bits;
    s->group_size = f->group_size < s->in ? f->group_size : s->in;
    s->has_zeros = f->has_zeros;
    s->has_groups = f->has_groups;
    const size_t words = s->out * vptq_uniform_row_words(s), each = vptq_uniform_groups(s);
    uint32_t *codes = arena_of(r, words, sizeof *codes);
    float *scales = arena_of(r, s->out * each, sizeof *scales);
    uint8_t *zeros = arena_of(r, s->out * each, 1);
    int32_t *groups = arena_of(r, s->in, sizeof *groups);
    for (size_t i = 0; i < words; i++)
        codes[i] = (uint32_t)(i + 1) * 2654435761U;
    for (size_t i = 0; i < s->out * each; i++) {
        scales[i] = vptq_round_to(VPTQ_F16, ldexpf(1 + (float)(i % 7) / 8, -(int)s->bits - 3));
        zeros[i] = (uint8_t)(i * 5 % (1U << s->bits));
    }
    for (size_t c = 0; c < s->in; c++)
        groups[c] = (int32_t)(c * 7 % each);
    m.u.codes = codes;
    m.u.scales = scales;
    m.u.zeros = f->has_zeros ? zeros : NULL;
    m.u.groups = f->has_groups ? groups : NULL;
    float *w = vtest_alloc((size_t)s->out * s->in, sizeof *w);
    m.half = arena_of(r, (size_t)s->out * s->in, sizeof *m.half);
    vptq_uniform_read(&m.u, 0, s->out, w);
    vptq_f32_to_f16_n(w, m.half, (size_t)s->out * s->in);
    free(w);
    return m;
}

/* Opens a model whose matrices have this form, or are plain. */
static void open_form(vrig *r, const char *backend, const form *f, bool plain)
{
    vrig_open_forward(r, MODEL, backend, 2, TOKENS);
    for (size_t i = 0; i < r->m.ckpt.set.count; i++) {
        vptq_tensor *t = &r->m.ckpt.set.tensors[i];
        if (!t->uniform)
            continue;
        matrix *m = arena_of(r, 1, sizeof *m);
        *m = matrix_make(r, &t->uniform->shape, f);
        t->type = t->round_to = VPTQ_F16;
        t->activation_bits = 0;
        t->uniform = plain ? NULL : &m->u;
        t->data = plain ? (const uint8_t *)m->half : NULL;
        t->bytes = plain ? (size_t)m->u.shape.out * m->u.shape.in * sizeof *m->half : t->bytes;
    }
}

typedef struct results {
    float hidden[TOKENS * HIDDEN], logits[STEPS][VOCAB];
} results;

static void run(vrig *r, const int32_t *ids, results *to)
{
    static const size_t starts[] = {0, 9, TOKENS}, steps[STEPS] = {7, 1, 3};
    vptq_err err = {0};
    memset(to, 0, sizeof *to);
    vrig_run_blocks(r, ids, starts, 2, to->hidden);
    for (size_t s = 0, first = 0; s < STEPS; first += steps[s++])
        assert_ok(vrig_step(r->f, ids + first, steps[s], to->logits[s], &err), &err);
    for (size_t i = 0; i < VOCAB; i++)
        assert_true(isfinite(to->logits[STEPS - 1][i]));
}

static const form forms[] = {{4, 32, true, false},
                             {8, 1000, false, false},
                             {3, 16, true, true},
                             {2, 24, false, false},
                             {6, 64, true, false}};
static const int32_t ids[TOKENS] = {1, 5, 2, 9, 30, 11, 4, 8, 3, 17, 6, 2};

static void test_codes_are_their_numbers(void **state)
{
    (void)state;
    static const char *const backends[] = {"ref", "cpu", "emu"};
    assert_string_equal(vptq_backend_emu()->name, "emu"); /* links the backend */
    for (size_t b = 0; b < sizeof backends / sizeof *backends; b++)
        for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
            results got[2];
            for (int plain = 0; plain < 2; plain++) {
                vrig r;
                open_form(&r, backends[b], &forms[i], plain);
                run(&r, ids, &got[plain]);
                vrig_close(&r);
            }
            if (memcmp(&got[0], &got[1], sizeof *got) != 0)
                fail_msg("%s, %u bits: codes and numbers differ", backends[b], forms[i].bits);
        }
}

/* Codes on the device take their own bytes, and weights that do not fit are uploaded. */
static void test_little_memory(void **state)
{
    (void)state;
    static const size_t limits[] = {0, 80000, 40000};
    results got[3];
    size_t uploaded[3];
    for (size_t i = 0; i < 3; i++) {
        vrig r;
        open_form(&r, "emu", &forms[0], false);
        if (limits[i])
            cuda_emu_memory(cuda_emu_memory_used() + limits[i]);
        const size_t before = (size_t)cuda_emu_count().uploaded;
        run(&r, ids, &got[i]);
        uploaded[i] = (size_t)cuda_emu_count().uploaded - before;
        assert_memory_equal(&got[i], &got[0], sizeof *got);
        vrig_close(&r);
        cuda_emu_memory(0);
    }
    assert_true(uploaded[2] > uploaded[0]);
}

static void test_bytes_of_codes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        vrig r;
        open_form(&r, "emu", &forms[i], false);
        const vptq_weight *w = &r.m.blocks[0].linear[VPTQ_LINEAR_DOWN];
        const vptq_uniform *u = w->tensor->uniform;
        const size_t each = vptq_uniform_groups(&u->shape);
        const size_t row = vptq_uniform_row_words(&u->shape) * 4 + each * 4;
        assert_int_equal(vptq_weight_bytes(w, &r.dev), w->rows * (row + (u->zeros ? each : 0)) +
                                                           (u->groups ? w->cols * 4 : 0));
        assert_true(vptq_weight_gemv_rows(w, &r.dev, false) == SIZE_MAX);
        vrig_close(&r);
        open_form(&r, "cpu", &forms[i], false);
        w = &r.m.blocks[0].linear[VPTQ_LINEAR_DOWN];
        assert_int_equal(vptq_weight_bytes(w, &r.dev), 0);
        assert_int_equal(vptq_weight_gemv_rows(w, &r.dev, false), 8);
        assert_int_equal(vptq_weight_gemv_rows(w, &r.dev, true), 128);
        vrig_close(&r);
    }
}

VTEST_MAIN(cmocka_unit_test(test_codes_are_their_numbers), cmocka_unit_test(test_little_memory),
           cmocka_unit_test(test_bytes_of_codes))
