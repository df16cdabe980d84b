/* Reads the golden files of vgolden.h. */
#include "tests/support/vgolden.h"

#include <stdio.h>
#include <string.h>

#include "tests/support/vtest.h"

void vgolden_open(vptq_tensor_set *set, const char *path)
{
    vptq_err err = {0};
    vptq_tensor_set_init(set, NULL);
    assert_ok(vptq_safetensors_read(path, set, NULL, &err), &err);
    assert_ok(vptq_tensor_set_finish(set, &err), &err);
}

static const vptq_tensor *need(const vptq_tensor_set *set, const char *part, int i)
{
    char name[32];
    snprintf(name, sizeof name, "%s_%d", part, i);
    const vptq_tensor *t = vptq_tensor_find(set, name);
    assert_non_null(t);
    return t;
}

static float *copy(const vptq_tensor *t, size_t n)
{
    float *x = vtest_alloc(n, sizeof *x);
    assert_int_equal(t->bytes, n * sizeof *x);
    memcpy(x, t->data, n * sizeof *x);
    return x;
}

problem vgolden_problem(const vptq_tensor_set *set, int i)
{
    const vptq_tensor *w = need(set, "w", i);
    const size_t out = w->shape[0], in = w->shape[1];
    problem p = {.out = (uint32_t)out,
                 .in = (uint32_t)in,
                 .w = copy(w, out * in),
                 .lower = copy(need(set, "lower", i), in * (in + 1) / 2),
                 .h = vtest_alloc(in * in, sizeof *p.h)};
    problem_unpack(&p);
    return p;
}

void vgolden_losses(const vptq_tensor_set *set, int i, size_t n, double *loss)
{
    const vptq_tensor *t = need(set, "loss", i);
    assert_int_equal(t->bytes, n * sizeof *loss);
    memcpy(loss, t->data, n * sizeof *loss);
}
