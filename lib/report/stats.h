/* Internal: means, quantiles and spread of measurements, and the ratio of two sets of them. */
#ifndef VPTQ_REPORT_STATS_H
#define VPTQ_REPORT_STATS_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/mem.h"

typedef struct vptq_stats {
    size_t count;
    double mean, std;        /* sample standard deviation (n - 1); 0 for one value */
    double median, min, max; /* all NaN for no value */
} vptq_stats;

/* Orders doubles from small to large, for qsort. */
int vptq_stats_order(const void *a, const void *b);

/* The q-th quantile of n >= 1 sorted values, linear between neighbours. */
double vptq_quantile(const double *sorted, size_t n, double q);

/* The mean of a x_i + b y_i over n >= 1 values and its standard error, 0 for one value; y may
 * be NULL. */
double vptq_mean_with_error(const double *x, double a, const double *y, double b, size_t n,
                            double *standard_error);

/* Adds up in the order of x.  `sorted` [n] receives the values from small to large. */
vptq_stats vptq_stats_of(const double *x, size_t n, double *sorted);

/* Marks the values that are outliers by two measures, because the MAD of three values is often
 * small by chance: a modified z-score 0.6745 |x - median| / MAD above 3.5 (Iglewicz and
 * Hoaglin), and a distance of more than 5 % from the median.  Of fewer than three values none
 * is marked. `scratch` [n]; returns the number of outliers. */
#define VPTQ_OUTLIER_Z        3.5
#define VPTQ_OUTLIER_RELATIVE 0.05
size_t vptq_stats_outliers(const double *x, size_t n, double median, bool *marked,
                           double *scratch);

/* a / b of two sets of positive measurements: the ratio of their medians, and an interval for
 * it from the order statistics of all quotients a_i / b_j, by the exact distribution of the
 * Mann-Whitney statistic.  The interval is the narrowest with a confidence of at least 90 %
 * (with three values each, from the smallest to the largest quotient); with too few values for
 * that, from the smallest to the largest; NaN for one value each.  With more than 20 values on
 * a side it uses the normal approximation. */
typedef struct vptq_ratio {
    double value, low, high;
} vptq_ratio;
enum { VPTQ_MAX_RATIO_VALUES = 1000 }; /* on each side */
vptq_status vptq_ratio_of(const double *a, size_t n, const double *b, size_t m, vptq_mem *mem,
                          vptq_ratio *r, vptq_err *err) VPTQ_MUST_CHECK;

#endif
