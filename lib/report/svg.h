/* Internal: draws pictures on a page: bars with whiskers, lines over a linear or logarithmic
 * axis, points with labels, heat maps.  Each is a figure with one <svg> that scales by its
 * viewBox and has its colours from the page's style sheet.
 *
 * The fonts are the reader's, so the widths of texts are estimated generously, and long names
 * wrap. Values above 1e30 in magnitude are left out, on a logarithmic axis also those below
 * 1e-30. */
#ifndef VPTQ_REPORT_SVG_H
#define VPTQ_REPORT_SVG_H

#include "lib/report/html.h"

/* Title and description of a picture for readers who cannot see it. */
typedef struct vptq_svg_about {
    const char *title, *description;
    const char *caption; /* above the picture; NULL = the title */
} vptq_svg_about;

enum { VPTQ_SVG_SERIES = 8 }; /* colours and marks; further series reuse them */

typedef struct vptq_svg_bar {
    const char *label;
    double value;
    double low, high; /* whisker; NaN = none */
    unsigned series;  /* colour */
} vptq_svg_bar;

/* Horizontal bars from 0, each below its label and value. */
typedef struct vptq_svg_bars_spec {
    vptq_svg_about about;
    const char *axis; /* title of the axis, with the unit */
    const vptq_svg_bar *bars;
    size_t count;
    int decimals; /* of the values; negative: significant digits */
    double even;  /* position of a dashed line; NaN = none */
} vptq_svg_bars_spec;
void vptq_svg_bars(vptq_html *h, const vptq_svg_bars_spec *s);

typedef struct vptq_svg_axis {
    const char *title;
    bool log;
    bool at_values; /* ticks at the values of the points, unless they overlap */
} vptq_svg_axis;

typedef struct vptq_svg_line {
    const char *label;
    const double *x, *y;
    const double *low, *high; /* whiskers of y; NULL = none */
    size_t count;
} vptq_svg_line;

/* Points joined by lines, with a legend below. */
typedef struct vptq_svg_lines_spec {
    vptq_svg_about about;
    vptq_svg_axis x, y;
    const vptq_svg_line *lines;
    size_t count;
    double even; /* y of a dashed line; NaN = none */
} vptq_svg_lines_spec;
void vptq_svg_lines(vptq_html *h, const vptq_svg_lines_spec *s);

typedef struct vptq_svg_point {
    const char *label;
    double x, y;
    unsigned series; /* colour and mark */
} vptq_svg_point;

/* Points with labels next to them; a label that does not fit is replaced by a number that the
 * legend explains.  With `frontier` a line joins the points that no other point beats in both x
 * and y, where less is better (perplexity over bits). */
typedef struct vptq_svg_scatter_spec {
    vptq_svg_about about;
    vptq_svg_axis x, y;
    const vptq_svg_point *points;
    size_t count;
    /* Names for the legend, which leaves out those without points, [series_count]; or NULL. */
    const char *const *series;
    size_t series_count;
    bool frontier;
} vptq_svg_scatter_spec;
void vptq_svg_scatter(vptq_html *h, const vptq_svg_scatter_spec *s);

/* A table of coloured numbers: values [rows, columns] in one hue, stronger for larger values;
 * NaN = an empty cell. */
typedef struct vptq_svg_heat_spec {
    vptq_svg_about about;
    const char *row_title; /* "layer" */
    const char *const *rows, *const *columns;
    const double *values;
    size_t row_count, column_count;
    bool log;     /* colour by the logarithm */
    int decimals; /* of the numbers */
} vptq_svg_heat_spec;
void vptq_svg_heat(vptq_html *h, const vptq_svg_heat_spec *s);

/* Chooses at most `max_count` (>= 2) round values within [low, high]: steps of 1, 2, 2.5 or 5
 * times a power of ten, or, on a logarithmic axis over a factor of 10 or more, 1, 2 and 5 (or 1
 * and 3, or 1) times powers of ten.  Returns their number. */
enum { VPTQ_SVG_TICKS = 12 };
size_t vptq_svg_ticks(double low, double high, bool log, size_t max_count,
                      double ticks[VPTQ_SVG_TICKS]);

#endif
