/* Statistics of a Hessian for vptq-hessian --show. */
#include <math.h>
#include <string.h>

#include "hessian/hessian.h"

enum {
    POWER_STEPS = 30,   /* of either eigenvalue iteration: an estimate, not a bound */
    ENOUGH_SAMPLES = 10 /* tokens per column; fewer get the verdict "few samples" */
};
static const double CONSTANT_SHARE =
    1e-6; /* variance over second moment: below, a column is constant */
static const double CONDITION_RIDGE =
    1e-6; /* times the mean diagonal; keeps the condition of a rank-deficient H finite */

static double normalize(size_t n, double *x)
{
    double s = 0;
    for (size_t i = 0; i < n; i++)
        s += x[i] * x[i];
    s = sqrt(s);
    for (size_t i = 0; i < n && s > 0; i++)
        x[i] /= s;
    return s;
}

/* y = A x for a symmetric A given by its packed lower triangle, plus ridge * x. */
static void symv(size_t n, const float *lower, double ridge, const double *x, double *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = ridge * x[i];
    for (size_t i = 0; i < n; i++) {
        const float *row = lower + i * (i + 1) / 2;
        double s = 0;
        for (size_t j = 0; j < i; j++) {
            s += (double)row[j] * x[j];
            y[j] += (double)row[j] * x[i];
        }
        y[i] += s + (double)row[i] * x[i];
    }
}

/* x = (L L^T)^-1 x */
static void cholesky_solve(size_t n, const double *l, double *x)
{
    for (size_t i = 0; i < n; i++) {
        double s = x[i];
        for (size_t j = 0; j < i; j++)
            s -= l[i * n + j] * x[j];
        x[i] = s / l[i * n + i];
    }
    for (size_t i = n; i-- > 0;) {
        x[i] /= l[i * n + i];
        for (size_t j = 0; j < i; j++)
            x[j] -= l[i * n + j] * x[i];
    }
}

/* Largest over smallest eigenvalue of H + ridge: power iteration and inverse iteration from a
 * fixed start. `work` has n * n + 2 n doubles. */
static vptq_status condition(vptq_device *dev, const vptq_hessian_file *h, double mean_diag,
                             double *work, double *out, vptq_err *err)
{
    size_t n = h->n;
    double ridge = CONDITION_RIDGE * mean_diag;
    double *l = work, *x = work + n * n, *y = x + n;

    for (size_t i = 0; i < n; i++) {
        const float *row = h->lower + i * (i + 1) / 2;
        for (size_t j = 0; j <= i; j++)
            l[i * n + j] = (double)row[j] + (i == j ? ridge : 0);
        x[i] = 1;
    }
    double largest = 0;
    normalize(n, x);
    for (int step = 0; step < POWER_STEPS; step++) {
        symv(n, h->lower, ridge, x, y);
        largest = normalize(n, y);
        memcpy(x, y, n * sizeof *x);
    }
    vptq_err why = {0};
    vptq_status st = vptq_hessian_cholesky(dev, n, l, NULL, &why);
    if (st == VPTQ_E_NUMERIC) {
        *out = INFINITY;
        return VPTQ_OK;
    }
    if (st)
        return vptq_fail(err, st, "%s", why.text);
    for (size_t i = 0; i < n; i++)
        x[i] = i & 1 ? -1 : 1; /* a constant may be orthogonal to the small directions */
    double inverse = 0;
    normalize(n, x);
    for (int step = 0; step < POWER_STEPS; step++) {
        cholesky_solve(n, l, x);
        inverse = normalize(n, x);
    }
    *out = largest * inverse;
    return VPTQ_OK;
}

/* The same for a diagonal, exactly. */
static double diagonal_condition(const vptq_hessian_file *h, double mean_diag)
{
    double min = (double)h->diagonal[0], max = min;
    for (size_t i = 1; i < h->n; i++) {
        double d = (double)h->diagonal[i];
        min = d < min ? d : min;
        max = d > max ? d : max;
    }
    const double ridge = CONDITION_RIDGE * mean_diag;
    return min + ridge > 0 ? (max + ridge) / (min + ridge) : (double)INFINITY;
}

static void count_columns(const vptq_hessian_file *h, vptq_hessian_stats *s)
{
    double mean_sq = 0;
    for (size_t i = 0; i < h->n; i++) {
        double d = (double)(h->diagonal ? h->diagonal[i] : h->lower[i * (i + 1) / 2 + i]);
        double m = (double)h->mean[i];
        s->trace += d;
        mean_sq += m * m;
        if (d > s->max_diag)
            s->max_diag = d;
        if (d == 0)
            s->dead++;
        else if (d - m * m <= CONSTANT_SHARE * d)
            s->constant++;
    }
    for (size_t i = 0; h->abs_mean && i < h->n; i++) {
        const float larger = h->max[i] > -h->min[i] ? h->max[i] : -h->min[i];
        s->abs_max = (double)larger > s->abs_max ? (double)larger : s->abs_max;
    }
    s->mean_diag = s->trace / h->n;
    s->mean_share = !(mean_sq > 0) ? (double)NAN : s->trace > 0 ? mean_sq / s->trace : 0;
}

static uint32_t count_unusable(const float *x, size_t n)
{
    uint32_t count = 0;
    for (size_t i = 0; x && i < n; i++)
        count += !vptq_hessian_usable(x[i]);
    return count;
}

/* A diagonal does not lose rank with few tokens. */
static const char *verdict_of(const vptq_hessian_stats *s)
{
    if (isinf(s->condition) || (!s->diagonal && s->samples_per_dim < 1))
        return "rank deficient";
    if (s->dead)
        return "dead columns";
    if (s->samples_per_dim < ENOUGH_SAMPLES)
        return "few samples";
    return s->diagonal ? "diagonal only" : "good";
}

void vptq_experts_count(vptq_expert_counts *n, const vptq_model_desc *d, vptq_input input,
                        uint64_t tokens)
{
    const uint32_t inner = d->experts.intermediate;
    const int e = vptq_input_expert(input);
    if (e < 0 || input != vptq_expert_input((uint32_t)e, VPTQ_INPUT_DOWN))
        return;
    n->all++;
    n->few += tokens < (d->hidden > inner ? d->hidden : inner);
    n->none += !tokens;
}

void vptq_experts_warn(const vptq_expert_counts *n, const vptq_ctx *ctx, const char *source)
{
    if (n->few)
        vptq_log(ctx, VPTQ_LOG_WARN,
                 "%s%zu of %zu experts saw fewer calibration tokens than they have columns, "
                 "%zu of them none; use more or longer windows (-n, -l)",
                 source, n->few, n->all, n->none);
}

vptq_status vptq_hessian_describe(vptq_device *dev, const vptq_hessian_file *h,
                                  vptq_hessian_stats *s, vptq_err *err)
{
    const size_t n = h->n;
    const float *values = h->diagonal ? h->diagonal : h->lower;

    *s = (vptq_hessian_stats){.n = h->n,
                              .tokens = h->tokens,
                              .abs_max = h->abs_mean ? 0 : (double)NAN,
                              .diagonal = h->diagonal != NULL};
    s->samples_per_dim = h->tokens ? (double)h->tokens / (double)n : (double)NAN;
    s->nan = count_unusable(values, h->diagonal ? n : n * (n + 1) / 2) +
             count_unusable(h->mean, n) + count_unusable(h->abs_mean, n) +
             count_unusable(h->min, n) + count_unusable(h->max, n);
    if (s->nan) {
        s->trace = s->mean_diag = s->max_diag = s->mean_share = s->abs_max = s->condition = NAN;
        s->verdict = "broken";
        return VPTQ_OK;
    }
    count_columns(h, s);
    if (h->diagonal) {
        s->condition = diagonal_condition(h, s->mean_diag);
    } else {
        double *work = vptq_mem_alloc(dev->ctx->mem, n * n + 2 * n, sizeof *work, err);
        if (!work)
            return VPTQ_E_NOMEM;
        vptq_status st = condition(dev, h, s->mean_diag, work, &s->condition, err);
        vptq_mem_free(dev->ctx->mem, work);
        if (st)
            return st;
    }
    s->verdict = verdict_of(s);
    return VPTQ_OK;
}
