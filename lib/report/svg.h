/* Pictures for a page: bars with whiskers, lines over a linear or logarithmic axis, points with
 * labels, heat maps.  Each is one <svg> that scales by its viewBox, with a title and a
 * description for those who do not see it, and colours from the page's style sheet.
 *
 * Fonts are the reader's, so widths of texts are estimated, on the safe side; long names wrap.
 * Values over 1e30 in size, and on a logarithmic axis those below 1e-30, are left out. */
#ifndef VPTQ_REPORT_SVG_H
#define VPTQ_REPORT_SVG_H

#include "lib/report/html.h"

enum { VPTQ_SVG_SERIES = 8 }; /* colours and marks; more series begin again */

typedef struct vptq_svg_bar {
    const char *label;
    double value;
    double low, high; /* whisker; NaN = none */
    unsigned series;  /* colour */
    const char *text; /* at the end of the label's line: the value as it is shown; or NULL */
} vptq_svg_bar;

/* Horizontal bars from 0, each below its label. */
typedef struct vptq_svg_bars_spec {
    const char *title, *description;
    const char *axis; /* what the axis shows, with its unit */
    const vptq_svg_bar *bars;
    size_t count;
    double even; /* a dashed line there; NaN = none */
} vptq_svg_bars_spec;
void vptq_svg_bars(vptq_html *h, const vptq_svg_bars_spec *s);

typedef struct vptq_svg_axis {
    const char *title;
    bool log;
    bool at_values; /* ticks at the values of the points, as far as they have room */
} vptq_svg_axis;

typedef struct vptq_svg_line {
    const char *label;
    const double *x, *y;
    const double *low, *high; /* whiskers of y; NULL = none */
    size_t count;
} vptq_svg_line;

/* Points joined by lines, a legend below. */
typedef struct vptq_svg_lines_spec {
    const char *title, *description;
    vptq_svg_axis x, y;
    const vptq_svg_line *lines;
    size_t count;
    double even; /* a dashed line at that y; NaN = none */
} vptq_svg_lines_spec;
void vptq_svg_lines(vptq_html *h, const vptq_svg_lines_spec *s);

typedef struct vptq_svg_point {
    const char *label;
    double x, y;
    unsigned series; /* colour and mark */
} vptq_svg_point;

/* Points with their labels beside them; one that finds no room there has a number, which the
 * legend explains.  With `frontier` a line joins the points that no other one beats in both x
 * and y, less being better (perplexity over bits). */
typedef struct vptq_svg_scatter_spec {
    const char *title, *description;
    vptq_svg_axis x, y;
    const vptq_svg_point *points;
    size_t count;
    const char *const *series; /* names for the legend, [series_count]; or NULL */
    size_t series_count;
    bool frontier;
} vptq_svg_scatter_spec;
void vptq_svg_scatter(vptq_html *h, const vptq_svg_scatter_spec *s);

/* values [rows, columns], each cell with its number and a colour of one hue, the stronger the
 * larger; NaN = an empty cell. */
typedef struct vptq_svg_heat_spec {
    const char *title, *description;
    const char *row_title; /* what rows are ("layer") */
    const char *const *rows, *const *columns;
    const double *values;
    size_t row_count, column_count;
    bool log;     /* colours over the logarithm */
    int decimals; /* of the numbers */
} vptq_svg_heat_spec;
void vptq_svg_heat(vptq_html *h, const vptq_svg_heat_spec *s);

/* At most `most` (>= 2) round values within [low, high], 1, 2, 2.5 or 5 times a power of ten
 * apart, or, on a logarithmic axis over a factor of 10 and more, 1, 2 and 5 (1 and 3, 1 alone)
 * times powers of ten; returns how many. */
enum { VPTQ_SVG_TICKS = 12 };
size_t vptq_svg_ticks(double low, double high, bool log, size_t most,
                      double ticks[VPTQ_SVG_TICKS]);

#endif
