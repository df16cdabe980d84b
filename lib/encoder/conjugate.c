/* Conjugate gradients for the least-squares steps (refit.c, scales.c). */
#include "lib/encoder/conjugate.h"

#include <string.h>

vptq_status vptq_conjugate_open(vptq_arena *arena, size_t n, vptq_conjugate *c, vptq_err *err)
{
    double **array[] = {&c->x, &c->r, &c->m, &c->s, &c->d, &c->ad};

    c->n = n;
    for (size_t i = 0; i < sizeof array / sizeof array[0]; i++) {
        *array[i] = vptq_arena_zalloc(arena, n, sizeof(double), err);
        if (!*array[i])
            return VPTQ_E_NOMEM;
    }
    return VPTQ_OK;
}

static double dot(size_t n, const double *x, const double *y)
{
    double s = 0;
    for (size_t i = 0; i < n; i++)
        s += x[i] * y[i];
    return s;
}

static double precondition(vptq_conjugate *c)
{
    for (size_t i = 0; i < c->n; i++)
        c->s[i] = c->m[i] > 0 ? c->r[i] / c->m[i] : 0;
    return dot(c->n, c->r, c->s);
}

vptq_status vptq_conjugate_run(vptq_conjugate *c, int iterations, vptq_err *err)
{
    const double tolerance = 1e-12;
    double rho = precondition(c), first = rho;

    memcpy(c->d, c->s, c->n * sizeof *c->d);
    for (int t = 0; t < iterations && rho > tolerance * first; t++) {
        VPTQ_CHECK(c->apply(c->arg, c->d, c->ad, err));
        double curvature = dot(c->n, c->d, c->ad);
        if (!(curvature > 0))
            break;
        double alpha = rho / curvature;
        for (size_t i = 0; i < c->n; i++) {
            c->x[i] += alpha * c->d[i];
            c->r[i] -= alpha * c->ad[i];
        }
        double next = precondition(c);
        for (size_t i = 0; i < c->n; i++)
            c->d[i] = c->s[i] + next / rho * c->d[i];
        rho = next;
    }
    return VPTQ_OK;
}
