/* Steps of the optimizer; all of it on the host, in a fixed order. */
#include "lib/tune/optimizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double b1 = 0.9, b2 = 0.95, epsilon = 1e-8;
static const double last_rate = 0.05; /* of the largest, at the end */
static const double clip = 2;         /* of the median norm */

vptq_status vptq_optimizer_open(const vptq_student *s, uint32_t steps, vptq_arena *arena,
                                vptq_optimizer *o, vptq_err *err)
{
    const uint32_t warm_up = steps / 10;
    *o = (vptq_optimizer){.steps = steps, .warm_up = warm_up < 10 ? warm_up : 10};
    o->m = vptq_arena_zalloc(arena, s->count, sizeof *o->m, err);
    o->v = vptq_arena_zalloc(arena, s->count, sizeof *o->v, err);
    o->norms = vptq_arena_zalloc(arena, steps, sizeof *o->norms, err);
    o->range = vptq_student_range(s, 0, s->m->desc->layers);
    return o->m && o->v && o->norms ? VPTQ_OK : VPTQ_E_NOMEM;
}

void vptq_optimizer_begin(vptq_optimizer *o, const vptq_tensor_range *range)
{
    o->step = 0;
    o->range = *range;
    memset(o->m + range->at, 0, range->count * sizeof *o->m);
    memset(o->v + range->at, 0, range->count * sizeof *o->v);
}

double vptq_optimizer_rate(const vptq_optimizer *o, uint32_t t)
{
    if (t < o->warm_up)
        return o->rate * (t + 1) / o->warm_up;
    const double part = (double)(t - o->warm_up) / (double)(o->steps - o->warm_up);
    return o->rate * (last_rate + (1 - last_rate) * (1 - part * part * (3 - 2 * part)));
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Notes the norm of this step's gradient; returns the factor that clips it. */
static double clip_factor(vptq_optimizer *o, double norm)
{
    enum { MANY = 64 };
    double sorted[MANY];
    const size_t count = o->step < MANY ? o->step : MANY;
    o->norms[o->step] = norm;
    memcpy(sorted, o->norms + o->step - count, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, compare);
    if (!count)
        return 1;
    const double most = clip * (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
    return norm > most ? most / norm : 1;
}

static vptq_status gradient_norm(const vptq_student *s, const vptq_tensor_range *range,
                                 const double *gradient, double *norm, vptq_err *err)
{
    double sum = 0;
    for (size_t i = range->first; i < range->end; i++) {
        const vptq_trainable *t = &s->tensors[i];
        double part = 0;
        for (size_t j = t->at; j < t->at + t->count; j++)
            part += gradient[j] * gradient[j];
        if (!isfinite(part)) {
            char name[VPTQ_TRAINABLE_NAME_MAX];
            vptq_trainable_name(s->m->desc, t, name);
            return vptq_fail(err, VPTQ_E_NUMERIC, "the gradient of %s is not finite", name);
        }
        sum += part;
    }
    *norm = sqrt(sum);
    return VPTQ_OK;
}

/* The size of a tensor that steps are relative to, over the entries with a gradient. */
static double size_of(const vptq_student *s, const vptq_optimizer *o, const vptq_trainable *t)
{
    const size_t scale = t->kind == VPTQ_TRAIN_BIAS ? t->at - t->count : t->at;
    double sum = 0;
    for (size_t j = 0; j < t->count; j++)
        if (o->v[t->at + j] > 0)
            sum += (double)s->master[scale + j] * (double)s->master[scale + j];
    return sqrt(sum);
}

/* x^n by multiplication, whose rounding does not depend on a library. */
static double power(double x, uint32_t n)
{
    double result = 1;
    for (; n; n /= 2, x *= x)
        result *= n % 2 ? x : 1;
    return result;
}

/* The factors of a step, the same for all tensors. */
typedef struct step_factors {
    double rate, clip, unbias1, unbias2;
} step_factors;

/* Moves one tensor; u: its gradient, replaced by the direction. */
static void move(const vptq_optimizer *o, vptq_student *s, const vptq_trainable *t,
                 const step_factors *f, double *u)
{
    const double share = t->kind < VPTQ_TRAIN_SCALE ? 1 : 0.5;
    float *m = o->m + t->at, *v = o->v + t->at;
    double squares = 0, norm = 0;
    for (size_t j = 0; j < t->count; j++) {
        u[j] *= f->clip;
        squares += u[j] * u[j];
    }
    const double least = epsilon * sqrt(squares / (double)t->count);
    for (size_t j = 0; j < t->count; j++) {
        m[j] = (float)(b1 * (double)m[j] + (1 - b1) * u[j]);
        v[j] = (float)(b2 * (double)v[j] + (1 - b2) * u[j] * u[j]);
        const double size = sqrt((double)v[j] / f->unbias2) + least;
        u[j] = v[j] > 0 ? (double)m[j] / f->unbias1 / size : 0;
        norm += u[j] * u[j];
    }
    if (norm == 0)
        return;
    const double step = f->rate * share * size_of(s, o, t) / sqrt(norm);
    for (size_t j = 0; j < t->count; j++)
        s->master[t->at + j] = (float)((double)s->master[t->at + j] - step * u[j]);
}

vptq_status vptq_optimizer_step(vptq_optimizer *o, vptq_student *s, double *gradient,
                                double *norm, vptq_err *err)
{
    VPTQ_BUG_IF(o->step >= o->steps);
    VPTQ_CHECK(gradient_norm(s, &o->range, gradient, norm, err));
    const step_factors f = {.rate = vptq_optimizer_rate(o, o->step),
                            .clip = clip_factor(o, *norm),
                            .unbias1 = 1 - power(b1, o->step + 1),
                            .unbias2 = 1 - power(b2, o->step + 1)};
    for (size_t i = o->range.first; i < o->range.end; i++)
        move(o, s, &s->tensors[i], &f, gradient + s->tensors[i].at);
    o->step++;
    vptq_student_round(s, &o->range);
    return VPTQ_OK;
}
