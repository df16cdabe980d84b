/* The standard errors are those of llama.cpp's perplexity tool: of means over tokens, with the
 * covariance of the two models' losses where both come in. */
#include "lib/eval/figures.h"

#include <math.h>
#include <stdlib.h>

#include "lib/report/stats.h"

const vptq_kld_level vptq_kld_levels[VPTQ_KLD_LEVELS] = {
    {"max", 1},   {"p999", 0.999}, {"p99", 0.99}, {"p95", 0.95}, {"p90", 0.9},
    {"p50", 0.5}, {"p10", 0.1},    {"p05", 0.05}, {"p01", 0.01}, {"min", 0}};

const vptq_kld_level vptq_delta_levels[VPTQ_DELTA_LEVELS] = {
    {"max", 1},    {"p999", 0.999}, {"p99", 0.99}, {"p95", 0.95}, {"p90", 0.9},
    {"p75", 0.75}, {"p50", 0.5},    {"p25", 0.25}, {"p10", 0.1},  {"p05", 0.05},
    {"p01", 0.01}, {"p001", 0.001}, {"min", 0}};

/* The q-th quantile of n sorted numbers, linear between neighbours. */
static double quantile(const double *x, size_t n, double q)
{
    double at = q * (double)(n - 1);
    size_t i = (size_t)at;
    return i + 1 < n ? x[i] + (at - (double)i) * (x[i + 1] - x[i]) : x[n - 1];
}

static void sort_levels(double *x, size_t n, const vptq_kld_level *levels, size_t count,
                        double *out)
{
    qsort(x, n, sizeof *x, vptq_stats_order);
    for (size_t i = 0; i < count; i++)
        out[i] = quantile(x, n, levels[i].quantile);
}

/* Mean of a x_i + b y_i and its standard error; y may be NULL. */
static double mean_of(const double *x, double a, const double *y, double b, size_t n,
                      double *standard_error)
{
    double sum = 0, sq = 0;
    for (size_t i = 0; i < n; i++)
        sum += a * x[i] + (y ? b * y[i] : 0);
    const double mean = sum / (double)n;
    for (size_t i = 0; i < n; i++) {
        double d = a * x[i] + (y ? b * y[i] : 0) - mean;
        sq += d * d;
    }
    *standard_error = n > 1 ? sqrt(sq / (double)(n - 1) / (double)n) : 0;
    return mean;
}

static double correlation(const double *x, double x_mean, const double *y, double y_mean,
                          size_t n)
{
    double xx = 0, xy = 0, yy = 0;
    for (size_t i = 0; i < n; i++) {
        const double a = x[i] - x_mean, b = y[i] - y_mean;
        xx += a * a;
        xy += a * b;
        yy += b * b;
    }
    return xy / sqrt(xx * yy);
}

static void loss_figures(const vptq_kld_columns *c, size_t n, vptq_kld_result *r)
{
    double error, error_base;
    const double mean = mean_of(c->nll, 1, NULL, 0, n, &error);
    const double mean_base = mean_of(c->nll_base, 1, NULL, 0, n, &error_base);
    r->ppl = exp(mean);
    r->ppl_stderr = r->ppl * error;
    r->ppl_base = exp(mean_base);
    r->ppl_base_stderr = r->ppl_base * error_base;
    r->ln_ppl_correlation = correlation(c->nll, mean, c->nll_base, mean_base, n);
    /* Errors of differences come from the differences of every token, which is what the two
     * variances and the covariance add up to, and exactly 0 between equal models. */
    r->ln_ppl_ratio = mean_of(c->nll, 1, c->nll_base, -1, n, &r->ln_ppl_ratio_stderr);
    r->ppl_ratio = exp(r->ln_ppl_ratio);
    r->ppl_ratio_stderr = r->ppl_ratio * r->ln_ppl_ratio_stderr;
    r->ppl_difference = r->ppl - r->ppl_base;
    mean_of(c->nll, r->ppl, c->nll_base, -r->ppl_base, n, &r->ppl_difference_stderr);
}

static void delta_figures(const vptq_kld_columns *c, size_t n, vptq_kld_result *r)
{
    double square = 0, fourth = 0;
    r->mean_delta_p = mean_of(c->delta, 1, NULL, 0, n, &r->delta_p_stderr);
    for (size_t i = 0; i < n; i++)
        square += c->delta[i] * c->delta[i];
    square /= (double)n;
    for (size_t i = 0; i < n; i++) {
        double d = c->delta[i] * c->delta[i] - square;
        fourth += d * d;
    }
    const double error = n > 1 ? sqrt(fourth / (double)(n - 1) / (double)n) : 0;
    r->rms_delta_p = sqrt(square);
    r->rms_delta_p_stderr = square > 0 ? error / (2 * r->rms_delta_p) : 0;
}

void vptq_kld_figures(const vptq_kld_columns *c, size_t n, vptq_kld_result *r)
{
    const double same = (double)c->same / (double)n;
    loss_figures(c, n, r);
    delta_figures(c, n, r);
    r->mean_kld = mean_of(c->kld, 1, NULL, 0, n, &r->kld_stderr);
    r->same_top1 = same;
    r->same_top1_stderr = n > 1 ? sqrt(same * (1 - same) / (double)(n - 1)) : 0;
    sort_levels(c->kld, n, vptq_kld_levels, VPTQ_KLD_LEVELS, r->kld);
    sort_levels(c->delta, n, vptq_delta_levels, VPTQ_DELTA_LEVELS, r->delta_p);
}
