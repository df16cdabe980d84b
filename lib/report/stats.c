/* Statistics of measurements. */
#include "lib/report/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int vptq_stats_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of_sorted(const double *x, size_t n)
{
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

double vptq_quantile(const double *sorted, size_t n, double q)
{
    const double position = q * (double)(n - 1);
    const size_t i = (size_t)position;
    if (i + 1 >= n)
        return sorted[n - 1];
    return sorted[i] + (position - (double)i) * (sorted[i + 1] - sorted[i]);
}

double vptq_mean_with_error(const double *x, double a, const double *y, double b, size_t n,
                            double *standard_error)
{
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++)
        sum += a * x[i] + (y ? b * y[i] : 0);
    const double mean = sum / (double)n;
    for (size_t i = 0; i < n; i++) {
        const double d = a * x[i] + (y ? b * y[i] : 0) - mean;
        squares += d * d;
    }
    *standard_error = n > 1 ? sqrt(squares / (double)(n - 1) / (double)n) : 0;
    return mean;
}

vptq_stats vptq_stats_of(const double *x, size_t n, double *sorted)
{
    vptq_stats s = {.count = n};
    double sum = 0, squares = 0;
    if (!n) {
        s.mean = s.std = s.median = s.min = s.max = (double)NAN;
        return s;
    }
    for (size_t i = 0; i < n; i++)
        sum += x[i];
    s.mean = sum / (double)n;
    for (size_t i = 0; i < n; i++)
        squares += (x[i] - s.mean) * (x[i] - s.mean);
    s.std = n > 1 ? sqrt(squares / (double)(n - 1)) : 0;
    memcpy(sorted, x, n * sizeof *x);
    qsort(sorted, n, sizeof *sorted, vptq_stats_order);
    s.min = sorted[0];
    s.max = sorted[n - 1];
    s.median = median_of_sorted(sorted, n);
    if (s.min == s.max) { /* only rounding errors of the sums would remain */
        s.mean = s.min;
        s.std = 0;
    }
    return s;
}

size_t vptq_stats_outliers(const double *x, size_t n, double median, bool *marked,
                           double *scratch)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        scratch[i] = fabs(x[i] - median);
    qsort(scratch, n, sizeof *scratch, vptq_stats_order);
    double mad = n ? median_of_sorted(scratch, n) : 0;
    for (size_t i = 0; i < n; i++) {
        const double distance = fabs(x[i] - median);
        marked[i] = n >= 3 && 0.6745 * distance > VPTQ_OUTLIER_Z * mad &&
                    distance > VPTQ_OUTLIER_RELATIVE * fabs(median);
        count += marked[i];
    }
    return count;
}

/* ---- ratio ---- */

enum { MAX_EXACT = 20 }; /* values on a side for which the distribution is counted exactly */
static const double confidence = 0.9;

/* Number of quotients below the interval: the largest c with P(U < c) <= (1 - confidence) / 2,
 * where U is the Mann-Whitney statistic of n and m values.  The number of ways to get U = u
 * satisfies w(u; i, j) = w(u - j; i - 1, j) + w(u; i, j - 1); it is computed as a product of
 * quotients of polynomials, (1 - q^(m + k)) / (1 - q^k) for k = 1..n.  `ways` [n m + 1]. */
static size_t exact_cut(size_t n, size_t m, double *ways)
{
    size_t last = n * m;
    memset(ways, 0, (last + 1) * sizeof *ways);
    ways[0] = 1;
    for (size_t k = 1; k <= n; k++) {
        for (size_t u = last; u >= m + k; u--)
            ways[u] -= ways[u - m - k];
        for (size_t u = k; u <= last; u++)
            ways[u] += ways[u - k];
    }
    double all = 0, below = 0;
    for (size_t u = 0; u <= last; u++)
        all += ways[u];
    size_t c = 0;
    while (c < last && (below + ways[c]) / all <= (1 - confidence) / 2 + 1e-12)
        below += ways[c++];
    return c;
}

static size_t normal_cut(size_t n, size_t m)
{
    static const double z = 1.6448536269514722; /* 95 % point */
    double a = (double)n, b = (double)m;
    double c = a * b / 2 - z * sqrt(a * b * (a + b + 1) / 12);
    return c > 0 ? (size_t)c : 0;
}

static void fill_ratio(const double *a, size_t n, const double *b, size_t m, double *quotients,
                       double *ways, vptq_ratio *r)
{
    double top = vptq_stats_of(a, n, quotients).median,
           bottom = vptq_stats_of(b, m, quotients).median;
    r->value = top / bottom;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < m; j++)
            quotients[i * m + j] = a[i] / b[j];
    qsort(quotients, n * m, sizeof *quotients, vptq_stats_order);
    size_t cut = n <= MAX_EXACT && m <= MAX_EXACT ? exact_cut(n, m, ways) : normal_cut(n, m);
    size_t out = cut ? cut - 1 : 0;
    r->low = quotients[out];
    r->high = quotients[n * m - 1 - out];
    /* the ratio of medians of even numbers of values may lie outside the quotients */
    r->low = r->value < r->low ? r->value : r->low;
    r->high = r->value > r->high ? r->value : r->high;
    if (n * m == 1)
        r->low = r->high = (double)NAN;
}

vptq_status vptq_ratio_of(const double *a, size_t n, const double *b, size_t m, vptq_mem *mem,
                          vptq_ratio *r, vptq_err *err)
{
    *r = (vptq_ratio){.value = (double)NAN, .low = (double)NAN, .high = (double)NAN};
    if (!n || !m)
        return VPTQ_OK;
    VPTQ_BUG_IF(n > VPTQ_MAX_RATIO_VALUES || m > VPTQ_MAX_RATIO_VALUES);
    const size_t count = n * m + n + m; /* of quotients, and of ways */
    double *quotients = vptq_mem_alloc(mem, 2 * count, sizeof *quotients, err);
    if (!quotients)
        return VPTQ_E_NOMEM;
    fill_ratio(a, n, b, m, quotients, quotients + count, r);
    vptq_mem_free(mem, quotients);
    return VPTQ_OK;
}
