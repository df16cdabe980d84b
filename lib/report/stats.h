/* Statistics of a handful of repeated measurements, and of the ratio of two such. */
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

/* Rising doubles, for qsort. */
int vptq_stats_order(const void *a, const void *b);

/* Sums in the order of x; `sorted` [n] is room, and gets the values in rising order. */
vptq_stats vptq_stats_of(const double *x, size_t n, double *sorted);

/* Marks values that are far from the median both by what the others scatter (modified z-score
 * 0.6745 |x - median| / MAD above 3.5: Iglewicz and Hoaglin) and in themselves (more than 5 %),
 * since the MAD of three values is small by chance often enough.  With fewer than three values
 * none is marked.  `room` [n]; returns how many are marked. */
#define VPTQ_OUTLIER_Z        3.5
#define VPTQ_OUTLIER_RELATIVE 0.05
size_t vptq_stats_outliers(const double *x, size_t n, double median, bool *marked,
                           double *room);

/* a / b of two sets of positive measurements: the ratio of their medians, and an interval for
 * it from the order statistics of all quotients a_i / b_j, by the exact distribution of the
 * Mann-Whitney statistic: the narrowest whose confidence is at least 90 % (three values each:
 * smallest to largest quotient is 90 %); where there are too few values for that, smallest to
 * largest; NaN for one value each.  More than 20 values on a side: by the normal approximation.
 */
typedef struct vptq_ratio {
    double value, low, high;
} vptq_ratio;
enum { VPTQ_RATIO_VALUES = 1000 }; /* at most on a side */
vptq_status vptq_ratio_of(const double *a, size_t n, const double *b, size_t m, vptq_mem *mem,
                          vptq_ratio *r, vptq_err *err) VPTQ_MUST_CHECK;

#endif
