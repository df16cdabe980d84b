/* Makes the random matrices and Hessians of problem.h. */
#include "tests/support/problem.h"

#include <stdlib.h>

#include "tests/support/vtest.h"

static void *must_alloc(size_t count, size_t size)
{
    void *p = calloc(count ? count : 1, size);
    assert_non_null(p);
    return p;
}

float *problem_hessian(uint32_t in, uint64_t seed)
{
    size_t t = 4 * (size_t)in;
    float *lower = must_alloc((size_t)in * (in + 1) / 2, sizeof *lower), *at = lower;
    float *x = must_alloc(t * in, sizeof *x);

    vtest_normal(x, t * in, seed);
    for (size_t r = 0; r < t; r++)
        for (size_t j = 1; j < in; j++)
            x[r * in + j] = 0.6F * x[r * in + j - 1] + x[r * in + j] + (j % 4 ? 0.0F : 0.5F);
    for (size_t i = 0; i < in; i++)
        for (size_t j = 0; j <= i; j++) {
            double s = 0;
            for (size_t r = 0; r < t; r++)
                s += (double)x[r * in + i] * (double)x[r * in + j];
            *at++ = (float)(s / (double)t);
        }
    free(x);
    return lower;
}

static void unpack(uint32_t in, const float *lower, double *h)
{
    for (size_t i = 0; i < in; i++)
        for (size_t j = 0; j <= i; j++)
            h[i * in + j] = h[j * in + i] = (double)*lower++;
}

void problem_unpack(problem *p)
{
    unpack(p->in, p->lower, p->h);
}

problem problem_make(uint32_t out, uint32_t in, uint64_t seed)
{
    problem p = {.out = out, .in = in, .lower = problem_hessian(in, seed + 1)};

    p.w = must_alloc((size_t)out * in, sizeof *p.w);
    p.h = must_alloc((size_t)in * in, sizeof *p.h);
    vtest_normal(p.w, (size_t)out * in, seed);
    for (size_t i = 0; i < (size_t)out * in; i++)
        p.w[i] = p.w[i] * (0.2F + 0.1F * (float)(i % in % 7)) + 0.05F * (float)(i % in % 3);
    problem_unpack(&p);
    return p;
}

void problem_free(problem *p)
{
    free(p->w);
    free(p->lower);
    free(p->h);
}

static double relative(const problem *p, const double *h, const float *what)
{
    double e = 0, n = 0;
    for (size_t r = 0; r < p->out; r++)
        for (size_t i = 0; i < p->in; i++)
            for (size_t j = 0; j < p->in; j++) {
                const float *w = p->w + r * p->in, *q = what + r * p->in;
                e += ((double)q[i] - (double)w[i]) * h[i * p->in + j] *
                     ((double)q[j] - (double)w[j]);
                n += (double)w[i] * h[i * p->in + j] * (double)w[j];
            }
    return n > 0 ? e / n : 0;
}

double problem_loss(const problem *p, const float *what)
{
    return relative(p, p->h, what);
}

double problem_loss_under(const problem *p, const float *lower, const float *what)
{
    double *h = must_alloc((size_t)p->in * p->in, sizeof *h);
    unpack(p->in, lower, h);
    double loss = relative(p, h, what);
    free(h);
    return loss;
}

void problem_invert(size_t n, double *a)
{
    for (size_t k = 0; k < n; k++) {
        double d = 1 / a[k * n + k];
        a[k * n + k] = 1;
        for (size_t j = 0; j < n; j++)
            a[k * n + j] *= d;
        for (size_t i = 0; i < n; i++) {
            if (i == k)
                continue;
            double f = a[i * n + k];
            a[i * n + k] = 0;
            for (size_t j = 0; j < n; j++)
                a[i * n + j] -= f * a[k * n + j];
        }
    }
}
